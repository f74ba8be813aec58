"""A results page over several finished runs of one configuration under different seeds."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from agentgym_train.curves import Row, format_seconds, plot_seeds
from agentgym_train.report import Run, format_percent, format_points, read_run
from agentgym_train.statistics import paired_bootstrap

_T = TypeVar("_T")


def write_results_page(run_dirs: list[Path], out: Path) -> None:
    """Writes a Markdown page of results, and a plot of the same name with the ending .png beside it.

    Args:
        run_dirs: Folders of finished runs that differ in their seed.
        out: Path of the page, ending in .md; its folder is made if it is not there.

    Raises:
        ValueError: If there is no run, one is no run folder or has not finished, two have the same seed, or
            they differ in environment, model or evaluation horizon.
    """
    runs = sorted((_read_finished(folder) for folder in run_dirs), key=lambda run: run.seed)
    if not runs:
        raise ValueError("a results page needs at least one run folder; none was given")
    env = _shared("environment", [run.env for run in runs])
    model = _model_name(_shared("model", [run.model for run in runs]))
    horizon = _shared("evaluation horizon", [run.summary["horizon_eval"] for run in runs])
    seeds = [run.seed for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"each run needs a seed of its own, to count once; the seeds given are {seeds}")

    before, after = (_pool(runs, name) for name in ("before", "after"))
    gain, low, high = paired_bootstrap(before, after)
    evaluation = _evaluation(runs[0], "after")
    table = "\n".join(_table_row(run) for run in runs)
    plot = out.with_suffix(".png")
    count = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    page = f"""# {env}: {model}, {count}

Success on held-out tasks changed by **{format_points(gain)} points** on average (95% interval
{format_points(low)} to {format_points(high)}), over {len(before)} tasks and {count}. Every evaluation is
within {horizon} turns at temperature {evaluation["temperature"]}, with {evaluation["samples"]}
samples a task.

| Seed | Before | After | Gain (points) | 95% interval | Time |
|---:|---:|---:|---:|---:|---:|
{table}

Intervals are paired bootstraps over tasks. The one over all seeds resamples each task's mean over the seeds:
it covers the choice of tasks, not the choice of seeds. Time is all of a run's phases: warm start, rollouts,
updates and evaluations.

![Success in training by step, a line a seed]({plot.name})
"""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    figure = plot_seeds({f"seed {run.seed}": run.train for run in runs}, f"{env}: success in training")
    figure.savefig(plot, dpi=150, metadata={"Software": None})


def _read_finished(folder: Path) -> Run:
    run = read_run(folder)
    if run.summary.get("status") != "finished":
        raise ValueError(f"{folder} has not finished, so it has no results yet; leave it out or finish it")
    if "gain" not in run.summary:
        raise ValueError(f"{folder} was not evaluated before and after training, so it has no gain; leave it out")
    return run


def _shared(name: str, values: Sequence[_T]) -> _T:
    if any(value != values[0] for value in values):
        raise ValueError(f"all runs of a page must have the same {name}; these have {list(values)}")
    return values[0]


def _model_name(path: str) -> str:
    """A hub id as it is, of a local folder only its own name: where it lies says nothing to a reader."""
    hub_id = re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path)
    return path if hub_id and not Path(path).is_dir() else Path(path).resolve().name


def _evaluation(run: Run, name: str) -> Row:
    row = run.evaluation(name)
    if row is None:
        raise ValueError(f"{run.folder} has no evaluation {name} training, so it has no gain")
    return row


def _pool(runs: Sequence[Run], name: str) -> dict[str, float]:
    """Success by task, averaged over the runs that have the task."""
    values = defaultdict(list)
    for run in runs:
        for task, success in _evaluation(run, name)["success/by_task"].items():
            values[task].append(success)
    return {task: sum(successes) / len(successes) for task, successes in values.items()}


def _table_row(run: Run) -> str:
    summary = run.summary
    cells = (
        str(run.seed),
        format_percent(summary["before"]),
        format_percent(summary["after"]),
        format_points(summary["gain"]),
        f"{format_points(summary['gain_low'])} to {format_points(summary['gain_high'])}",
        format_seconds(sum(summary["seconds"].values())),
    )
    return f"| {' | '.join(cells)} |"
