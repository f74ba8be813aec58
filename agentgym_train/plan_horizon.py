"""`agentgym plan-horizon`: what a horizon schedule does, before anything is trained."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from agentgym_train.adaptive_horizon import AdaptiveHorizon, Signals
from agentgym_train.config import Config, ConfigError, RunConfig, Yaml, from_dict, recipe_data, recipe_names
from agentgym_train.config_kinds import KINDS, EvalConfig
from agentgym_train.terminal import say_error
from agentgym_wrappers import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EPISODES = 128  # a step, of the made-up curves but the noisy one
CURVES: dict[str, tuple[Callable[[float], float], int]] = {
    # name: success rate at a share of the run, episodes a step
    "rising": (lambda share: 0.1 + 0.72 * share, _EPISODES),
    "plateau": (lambda _: 0.6, _EPISODES),
    "rising, then settled": (lambda share: min(0.7, 0.1 + 1.8 * share), 2 * _EPISODES),
    "collapse": (lambda share: 0.6 if share < 0.25 else 0.05, _EPISODES),
    "noise": (lambda _: 0.5, 4),
}
"""Kinds of success curves that an adaptive horizon is shown."""


@dataclass
class _Options:
    """Show how many turns a schedule gives at each step, as a table and a plot.

    agentgym plan-horizon --horizon '{kind: linear, start: 10, increment: 10, every: 100, cap: 30}' --steps 300

    agentgym plan-horizon --recipe textcraft-scaling

    agentgym plan-horizon --horizon '{kind: adaptive, start: 10, increment: 10, cap: 30}'

    agentgym plan-horizon --horizon '{kind: adaptive, start: 10, increment: 10, cap: 30}' --run RUN_DIR

    An adaptive horizon depends on how training goes. It is shown curves of the kinds that runs produce (rising,
    plateau, settled, collapse, noise), or the training steps of a run.
    """

    horizon: Annotated[int | dict[str, Any] | None, Yaml] = None
    """A number or a schedule, as for `agentgym train`."""
    recipe: str = ""
    """A recipe of the package or a YAML file, whose schedules are shown."""
    run: str = ""
    """Folder of a run of `agentgym train`, whose steps an adaptive horizon is shown."""
    steps: int = 0
    """Steps; by default those of the recipe or the run, else 60 for an adaptive horizon and 300 for others."""
    out: str = "horizon.png"
    """The plot; empty for none."""


def plan_horizon_command(arguments: list[str]) -> int:
    """`agentgym plan-horizon`."""
    options = tyro.cli(_Options, prog="agentgym plan-horizon", args=arguments)
    try:
        schedules, steps = _schedules(options)
        adaptive = {name: one for name, one in schedules.items() if isinstance(one, AdaptiveHorizon)}
        fixed = {name: one for name, one in schedules.items() if isinstance(one, Schedule)}
        figures = []
        if fixed:
            print(fixed_table(fixed, steps))
            figures.append(plot_fixed(fixed, steps))
        for name, rule in adaptive.items():
            replays = {kind: replay(rule, signals) for kind, signals in _signals(options, steps).items()}
            print("\n".join(filter(None, [name, adaptive_table(replays)])))
            figures.append(plot_adaptive(replays))
        if options.out:
            for path, figure in zip(_paths(options.out, len(figures)), figures, strict=True):
                figure.savefig(path, dpi=100)
                print(f"plot: {path}")
    except (ConfigError, OSError, ValueError) as error:
        say_error(f"error: {error}")
        return 1
    return 0


@dataclass(frozen=True)
class Replay:
    """What an adaptive horizon makes of a curve.

    Attributes:
        success: [steps] of the curve.
        turns: [steps] horizon of each step.
        told: [steps] what the rule said after each step.
    """

    success: list[float]
    turns: list[int]
    told: list[str]


def replay(rule: AdaptiveHorizon, signals: Sequence[Signals]) -> Replay:
    """Show a curve to a rule as it is at the start of a run."""
    horizon = AdaptiveHorizon(rule.start, rule.increment, rule.cap, rule.window, rule.tolerance)
    turns, told = [], []
    for step, each in enumerate(signals):
        turns.append(horizon.horizon_at(step))
        told.append(horizon.observe(each))
    return Replay([each.success for each in signals], turns, told)


def made_up_signals(kind: str, steps: int, seed: int = 0) -> list[Signals]:
    """The signals of one of `CURVES`: success rates as so many episodes a step measure them, all else as it was."""
    rate, episodes = CURVES[kind]
    rng = random.Random(f"{seed}/{kind}")
    measured = (sum(rng.random() < rate(step / steps) for _ in range(episodes)) / episodes for step in range(steps))
    return [Signals(success, 1.0, 12.0, 0.9) for success in measured]


def run_signals(run_dir: Path) -> list[Signals]:
    """The signals of the training steps of a run.

    Raises:
        ConfigError: If the folder holds none.
    """
    try:
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        signals = [
            Signals(row["success/mean"], row.get("entropy"), row["tokens/reply_mean"], row["valid_action_share"])
            for row in rows
            if row.get("phase") == "train" and row["tokens/reply_mean"]
        ]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"--run {run_dir}: metrics.jsonl cannot be read ({error}).") from error
    if not signals:
        raise ConfigError(f"--run {run_dir}: there is no step of `agentgym train` in its metrics.jsonl.")
    return signals


def stages(schedule: Schedule, steps: int) -> list[tuple[int, int, int]]:
    """First step, last step and turns of each stage of a schedule."""
    turns = [schedule.horizon_at(step) for step in range(steps)]
    groups = itertools.groupby(range(steps), key=turns.__getitem__)
    listed = [(value, list(places)) for value, places in groups]
    return [(places[0], places[-1], value) for value, places in listed]


def fixed_table(schedules: Mapping[str, Schedule], steps: int) -> str:
    """The stages of schedules as text."""
    lines = [f"{'steps':>13}  turns"]
    for name, schedule in schedules.items():
        lines += [name] if name else []
        lines += [f"{f'{first}-{last}':>13}  {turns:>5}" for first, last, turns in stages(schedule, steps)]
    return "\n".join(lines)


def adaptive_table(replays: Mapping[str, Replay]) -> str:
    """What an adaptive horizon made of curves, as text."""
    lines = [f"{'curve':<22}{'turns at the end':>17}  raised after step   held for"]
    for kind, result in replays.items():
        raised = ", ".join(str(step) for step, told in enumerate(result.told) if told == "raised") or "-"
        held = next((told for told in result.told if told not in ("", "raised")), "-")
        lines.append(f"{kind:<22}{result.turns[-1]:>17}  {raised:<20}{held}")
    return "\n".join(lines)


def plot_fixed(schedules: Mapping[str, Schedule], steps: int) -> Figure:
    """Turns over steps."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from agentgym_train.curves import COLOURS

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="turns")
    colours = itertools.cycle(["blue", "amber", "green", "violet", "red"])
    for (name, schedule), colour in zip(schedules.items(), colours, strict=False):
        turns = [schedule.horizon_at(step) for step in range(steps)]
        axes.step(range(steps), turns, where="post", color=COLOURS[colour], label=name)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=COLOURS["line"])
    if len(schedules) > 1:
        axes.legend(frameon=False)
    return figure


def plot_adaptive(replays: Mapping[str, Replay]) -> Figure:
    """Success above, turns below, a column for each curve; a raise is a line through both."""
    from matplotlib.figure import Figure

    from agentgym_train.curves import COLOURS

    figure = Figure(figsize=(max(5.0, 2.9 * len(replays)), 4.6), layout="constrained")
    grid = figure.subplots(2, len(replays), sharex=True, sharey="row", squeeze=False)
    for column, (kind, result) in enumerate(replays.items()):
        above, below = grid[0][column], grid[1][column]
        steps = range(len(result.success))
        above.plot(steps, result.success, ".", markersize=3, color=COLOURS["blue"])
        below.step(steps, result.turns, where="post", color=COLOURS["amber"])
        for step, told in enumerate(result.told):
            for axes in (above, below):
                if told == "raised":
                    axes.axvline(step + 1, color=COLOURS["green"], linewidth=1)
                elif told:
                    axes.axvspan(step, step + 1, color=COLOURS["red"], alpha=0.12, linewidth=0)
        above.set_title(kind, fontsize=10)
        above.set_ylim(-0.03, 1.03)
        below.set_xlabel("step")
    grid[1][0].set_ylim(0, 1.1 * max(result.turns[-1] for result in replays.values()))  # that of all columns
    grid[0][0].set_ylabel("success")
    grid[1][0].set_ylabel("turns")
    figure.supxlabel("green: raised; red: held because something has collapsed", fontsize=9, color=COLOURS["muted"])
    return figure


def _schedules(options: _Options) -> tuple[dict[str, Schedule | AdaptiveHorizon], int]:
    """The schedules that the options name, and over how many steps they are shown."""
    from agentgym_train.checks import check_config, make_schedule

    if (options.horizon is None) == (not options.recipe):
        raise ConfigError(f"give --horizon or --recipe (one of: {', '.join(recipe_names())}, or a YAML file).")
    if options.steps < 0:
        raise ConfigError(f"--steps {options.steps} is not accepted; give at least 1.")
    if options.recipe:
        data = recipe_data(options.recipe)
        kind: type[RunConfig] = KINDS.get(data.get("command", "train"), Config) if isinstance(data, dict) else Config
        config = from_dict(data, kind)
        if isinstance(config, EvalConfig):
            raise ConfigError(f"--recipe {options.recipe} is for `agentgym eval`, which has no schedule.")
        total = getattr(config, "total_steps", 1)
        steps = options.steps or (total if total > 1 else 300)
    else:
        kind_of_horizon = options.horizon.get("kind") if isinstance(options.horizon, dict) else "fixed"
        steps = options.steps or (60 if kind_of_horizon == "adaptive" else 300)
        config = from_dict({"horizon": options.horizon, "steps": steps})
    check_config(config)
    several = len(config.scenarios) > 1
    made = {spec.title if several else "": make_schedule(config, spec, "tasks", steps) for spec in config.scenarios}
    return made, steps


def _signals(options: _Options, steps: int) -> dict[str, list[Signals]]:
    if options.run:
        return {Path(options.run).name: run_signals(Path(options.run))}
    return {kind: made_up_signals(kind, steps) for kind in CURVES}


def _paths(out: str, count: int) -> list[Path]:
    """A file for each plot: the one that was named, then numbered ones."""
    path = Path(out)
    return [path.with_stem(f"{path.stem}-{number}") if number else path for number in range(count)]
