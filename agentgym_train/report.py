"""The report of a run: one HTML page that needs no other file, no network and no script."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from agentgym_train import curves
from agentgym_train.curves import Row
from agentgym_train.plain_data import json_lines

# The dark counterparts of `curves.COLOURS`; the template hands both to the browser.
_DARK = {
    "ink": "#e7eaf1",
    "muted": "#98a2b3",
    "line": "#2c3342",
    "band": "#1f2532",
    "card": "#171c26",
    "blue": "#6d9dff",
    "amber": "#f0a04b",
    "green": "#3cc395",
    "violet": "#b18cff",
    "red": "#f47983",
}


# What is read of a row of each phase, and of an episode. One without it was not written by a run, and is left out.
_KEYS = {
    "warm_start": {"step", "time", "loss"},
    "train": {"step", "time", "horizon", "groups/total", "groups/zero_variance", "tokens/sampled"},
    "sft": {"step", "time", "loss"},
    "dpo": {"step", "time", "loss"},
    "learn": {"step", "time", "loss"},
    "explore": {"step", "time", "horizon", "success/mean"},
    "eval": {"step", "time", "name", "horizon", "temperature", "tasks", "samples", "success/mean"}
    | {"score/mean", "turns/mean", "valid_action_share"},
}
_NUMBERS = ("step", "time")
_EPISODE_KEYS = set("step phase name task goal subset horizon reward success end turns prompt".split())

# What a run's time is counted under, in the order in which a run first comes to it.
_PHASES = ("data", "warm_start", "rollout", "reference", "update", "evaluate")


@dataclass(frozen=True)
class Run:
    """What a run folder holds so far.

    Attributes:
        folder: Where it is.
        config: The text of config.yaml.
        env: Environment id, or those of a list of scenarios.
        model: Folder or hub id of the model.
        seed: Of the run.
        rows: Rows of metrics.jsonl, in the order in which they were written.
        summary: summary.json, or empty while the run goes on.
        unreadable: Lines of metrics.jsonl that are no row of a run; a last line cut short is not counted,
            since a run that is writing has one.
    """

    folder: Path
    config: str
    env: str
    model: str
    seed: int
    rows: list[Row]
    summary: dict[str, Any]
    unreadable: int

    @property
    def warm_start(self) -> list[Row]:
        """Rows of supervised steps."""
        return [row for row in self.rows if row["phase"] == "warm_start"]

    @property
    def train(self) -> list[Row]:
        """Rows of policy-gradient steps."""
        return [row for row in self.rows if row["phase"] == "train"]

    @property
    def played(self) -> list[Row]:
        """Rows of the steps in which training tasks were rolled out."""
        return [row for row in self.rows if row["phase"] in ("train", "explore")]

    @property
    def learned(self) -> list[Row]:
        """Rows of the steps of `agentgym sft`, `dpo` and `evol`."""
        return [row for row in self.rows if row["phase"] in ("sft", "dpo", "learn")]

    @property
    def evaluations(self) -> list[Row]:
        """Rows of evaluations."""
        return [row for row in self.rows if row["phase"] == "eval"]

    def evaluation(self, name: str) -> Row | None:
        """The last evaluation of that name ("before", "between", "after"), or None."""
        return next((row for row in reversed(self.evaluations) if row["name"] == name), None)


@dataclass(frozen=True)
class Example:
    """An episode to show, and why it was chosen."""

    title: str
    note: str
    episode: Row


def read_run(run_dir: Path) -> Run:
    """Reads a run folder, finished or not.

    Raises:
        ValueError: If the folder is not one that `agentgym train` wrote.
    """
    try:
        config = (run_dir / "config.yaml").read_text(encoding="utf-8")
        settings = yaml.safe_load(config)
        env = ", ".join(spec["id"] for spec in settings.get("tasks") or [settings["env"]])
        model, seed = settings["model"]["path"], settings["seed"]
    except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{run_dir} is not a run folder: it holds no config.yaml with env.id, model.path and seed. "
            "Give the folder that `agentgym train` or `agentgym demo` wrote."
        ) from error
    lines = list(json_lines(run_dir / "metrics.jsonl"))
    rows = [row for row in lines if row is not None and _is_row(row)]
    return Run(
        folder=run_dir,
        config=config,
        env=env,
        model=model,
        seed=seed,
        rows=rows,
        summary=_read_summary(run_dir / "summary.json"),
        unreadable=len(lines) - len(rows),
    )


def write_report(run_dir: Path) -> Path:
    """Writes report.html into a run folder, from whatever the run has recorded so far.

    Args:
        run_dir: The folder of a run, finished, interrupted or still running.

    Returns:
        The path of the page.

    Raises:
        ValueError: If the folder is not one that `agentgym train` wrote.
    """
    run = read_run(run_dir)
    examples = _choose_examples(run_dir / "trajectories.jsonl")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": format_percent,
        "points": format_points,
        "number": _number,
        "seconds": curves.format_seconds,
        "split_action": _split_action,
    }
    page = environment.get_template("report.html.j2").render(
        run=run,
        status=_status(run),
        facts=_facts(run),
        warning=_warning(run),
        plots=_plots(run),
        examples=examples,
        missing=_missing(run, examples),
        light=curves.COLOURS,
        dark=_DARK,
    )
    path = run_dir / "report.html"
    # A model can write half of a surrogate pair, which UTF-8 cannot hold.
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def format_percent(value: float | None) -> str:
    """A share with one decimal, and a dash where there is none."""
    return f"{value:.1%}" if value is not None and math.isfinite(value) else "\N{EN DASH}"


def format_points(value: float | None) -> str:
    """A difference of two shares in percentage points, with its sign unless it is zero."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    points = f"{100 * value:+.1f}"
    return "0.0" if float(points) == 0 else points.replace("-", "\N{MINUS SIGN}")


def _is_row(row: Row) -> bool:
    """Whether a line of metrics.jsonl holds what is read of it."""
    known = next((keys for phase, keys in _KEYS.items() if phase == row.get("phase")), None)
    return known is not None and known <= row.keys() and all(isinstance(row[key], int | float) for key in _NUMBERS)


def _read_summary(path: Path) -> dict[str, Any]:
    """The summary; empty if there is none or the file holds something else."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(summary, dict) and "status" in summary and isinstance(summary.get("seconds"), dict)
    return summary if whole else {}


def _status(run: Run) -> str:
    """How the run ended. One that was killed leaves the same files behind as one that goes on."""
    if run.summary:
        return str(run.summary["status"])
    if not run.rows:
        return "running or stopped without a word (no entry yet)"
    last = datetime.fromtimestamp(run.rows[-1]["time"], UTC)
    return f"running or stopped without a word (last entry {last:%Y-%m-%d %H:%M} UTC)"


def _warning(run: Run) -> str:
    """A sentence if no training step had a group to learn from, else nothing."""
    train = run.train
    # With reinforce++ and ppo such groups are learned from: the step has a loss.
    flat = sum(row["groups/zero_variance"] == row["groups/total"] and "loss" not in row for row in train)
    steps, without = run.summary.get("steps", len(train)), run.summary.get("steps_without_update", flat)
    if not steps or without < steps:
        return ""
    so_far = "" if run.summary else " so far"
    where = f"all {steps} training steps" if steps > 1 else "the only training step"
    return (
        f"The model was never updated{so_far}: in {where}, the rewards within every group were equal, which gives no "
        "gradient. More samples per task make rewards differ; so do easier tasks or a longer warm start if all "
        "episodes fail, and harder tasks if all succeed."
    )


def _facts(run: Run) -> dict[str, str]:
    """The row of small figures below the headline."""
    facts = {}
    if run.train:
        stages = list(dict.fromkeys(row["horizon"] for row in run.train))
        groups = sum(row["groups/total"] for row in run.train)
        flat = sum(row["groups/zero_variance"] for row in run.train)
        facts["training steps"] = str(len(run.train))
        facts["horizon"] = " → ".join(map(str, stages if len(stages) <= 4 else (stages[0], "…", stages[-1])))
        facts["sampled tokens"] = f"{sum(row['tokens/sampled'] for row in run.train):,}"
        facts["groups without variance"] = format_percent(flat / groups if groups else None)
    if seconds := _seconds(run):
        facts["time"] = curves.format_seconds(sum(seconds.values()))
    return facts


def _seconds(run: Run) -> dict[str, float]:
    """Seconds by phase: the summary's, or what the log tells while there is none."""
    seconds = run.summary["seconds"] if run.summary else _logged_seconds(run.rows)
    return {phase: seconds[phase] for phase in _PHASES if phase in seconds}


def _logged_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds by phase, from the rows alone.

    Training rows hold theirs. Warm-start steps and evaluations are taken to last from the row before them: the
    first row of a log is not counted, and a pause before a resumed run's first one is.
    """
    seconds: dict[str, float] = {}
    for earlier, row in zip([None, *rows], rows, strict=False):
        if any(f"seconds/{phase}" in row for phase in _PHASES):
            spent = {phase: row[f"seconds/{phase}"] for phase in _PHASES if f"seconds/{phase}" in row}
        else:
            phase = "evaluate" if row["phase"] == "eval" else "warm_start"
            spent = {phase: row["time"] - earlier["time"]} if earlier else {}
        for phase, length in spent.items():
            seconds[phase] = seconds.get(phase, 0.0) + length
    return seconds


def _plots(run: Run) -> list[dict[str, Any]]:
    """Title, caption and SVG of each plot that the run has data for."""
    train, played, evaluations = run.train, run.played, run.evaluations
    plots = []

    def add(name: str, title: str, caption: str, figure: Figure, narrow: Figure | None = None) -> None:
        svg = curves.to_svg(figure, name)
        narrow_svg = curves.to_svg(narrow, f"{name}-narrow") if narrow else ""
        plots.append({"name": name, "title": title, "caption": caption, "svg": svg, "narrow": narrow_svg})

    if played or evaluations:
        add(
            "success",
            "Success",
            "Share of episodes that reach the goal. Training tasks change from step to step; evaluations "
            "have held-out tasks and a horizon of their own. Points are measured; from ten on, lines are their "
            "moving average.",
            curves.plot_success(played, evaluations),
            curves.plot_success(played, evaluations, curves.NARROW),
        )
    if curves.scenarios_of(played):
        add(
            "scenarios",
            "Success by scenario",
            "Share of each scenario's training episodes that reach the goal.",
            curves.plot_scenarios(played),
            curves.plot_scenarios(played, curves.NARROW),
        )
    if played or evaluations:
        add(
            "reward",
            "Reward",
            "Mean reward of a training episode; in evaluations, the score.",
            curves.plot_reward(played, evaluations),
        )
    if played:
        add("turns", "Turns per episode", "Mean, and the most that an episode may take.", curves.plot_turns(played))
        add(
            "replies",
            "Replies",
            "Share with a valid action, and share cut off at the limit of tokens.",
            curves.plot_replies(played),
        )
    if train:
        add(
            "zero-variance",
            "Groups without variance",
            "All rewards of the group are equal: grpo and rloo learn nothing from it.",
            curves.plot_zero_variance(train),
        )
    for key, title, caption, plot in (
        ("grad_norm", "Gradient norm", "Before clipping.", curves.plot_grad_norm),
        ("kl", "KL to the reference", "Nats per token.", curves.plot_kl),
        ("entropy", "Entropy", "Of the policy, nats per token.", curves.plot_entropy),
    ):
        if curves.has_data(train, key):  # a step without an update has none
            add(key, title, caption, plot(train))
    if run.learned:
        add("loss", "Loss", "Nats a token; of preferences, nats a pair.", curves.plot_warm_start(run.learned))
    if run.warm_start:
        add(
            "warm-start",
            "Warm start",
            "Supervised loss, nats per token, before the policy-gradient steps.",
            curves.plot_warm_start(run.warm_start),
        )
    if seconds := _seconds(run):
        caption = "Wall-clock time." if run.summary else "Wall-clock time, as far as the log tells."
        add("time", "Time by phase", caption, curves.plot_seconds(seconds))
    return plots


def _choose_examples(path: Path) -> list[Example]:
    """Up to three episodes: one task before and after training, and a failure after training.

    While there is no evaluation after training, the last one, else the last training step, stands in.
    """
    # Only the last step of each kind is kept, since a run can hold far more episodes than memory.
    latest: dict[str, list[Row]] = {}
    for row in json_lines(path):
        if row is None or not row.keys() >= _EPISODE_KEYS or row["end"] == "error":
            continue
        kind = row["name"] if row["phase"] == "eval" else "train"
        if kind not in latest or latest[kind][0]["step"] != row["step"]:
            latest[kind] = []
        latest[kind].append(row)
    before: dict[str, Row] = {}
    for row in latest.get("before", ()):
        # Of several tries at a task, a failed one shows better what training changed.
        if row["task"] not in before or before[row["task"]]["success"]:
            before[row["task"]] = row
    places = {"after": "after training", "between": "during training", "train": "in the last training step"}
    kind = next((kind for kind in places if kind in latest), "train")
    episodes, when = latest.get(kind, []), places[kind]

    def shows_change(episode: Row) -> tuple[int, int]:
        earlier = before.get(episode["task"])
        contrast = 0 if earlier is None else 1 if earlier["success"] else 2
        return contrast, len(episode["turns"])

    solved = max((e for e in episodes if e["success"]), key=shows_change, default=None)
    task = solved["task"] if solved else ""
    first = before.get(task) or next(iter(before.values()), None)
    # Of another task than the solved one where there is one.
    failures = (e for e in episodes if not e["success"])
    failed = min(failures, key=lambda e: bool(e["task"] == task), default=None)
    examples = []
    if first:
        note = "The same task as the solved one." if first["task"] == task else ""
        examples.append(Example("Before training", note, first))
    if solved:
        examples.append(Example(f"Solved {when}", "", solved))
    if failed:
        examples.append(Example(f"Failed {when}", "", failed))
    return examples


def _missing(run: Run, examples: Sequence[Example]) -> list[str]:
    """Sentences on what the page cannot show, and why."""
    missing = []
    if not run.summary:
        missing.append("The run has not finished, or was stopped without a summary: there is no gain yet.")
    elif run.summary["status"] == "interrupted":
        missing.append("The run was interrupted before its last step.")
    if not (run.train or run.learned):
        missing.append("No training step is recorded yet.")
    missing += [f"There is no evaluation {name} training." for name in ("before", "after") if not run.evaluation(name)]
    if not examples:
        missing.append("No evaluated episode is recorded yet, so there is no transcript.")
    if run.unreadable:
        missing.append(f"{run.unreadable} line(s) of metrics.jsonl could not be read and were left out.")
    return missing


def _split_action(turn: Row) -> tuple[str, str, str]:
    """The reply before, in and after the action that was read from it; the action is empty if none was."""
    reply, action = turn["reply"], turn.get("action")
    before, found, after = reply.rpartition(action) if action else (reply, "", "")
    return (before, found, after) if found else (reply, "", "")


def _number(value: float | None) -> str:
    return f"{value:.2f}" if value is not None and math.isfinite(value) else "\N{EN DASH}"
