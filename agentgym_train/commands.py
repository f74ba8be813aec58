"""The commands that need the trainer's packages.

PyTorch and transformers are imported when a run begins, so that help and wrong usage answer at once.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentgym_train.config import Config, ConfigError, load_recipe, recipe_names, stored_config
from agentgym_train.terminal import Terminal, say_error


@dataclasses.dataclass
class _Demo:
    """Watch a language model learn to craft.

    SmolLM2-135M-Instruct is warmed up on a few oracle episodes (without them it makes no valid command), trained
    with GRPO under a growing horizon, and evaluated on held-out goals before, between and after. The run
    folder holds metrics, trajectories, the trained model and report.html.
    """

    quick: bool = False
    """The same path in about ten minutes: fewer steps and evaluations."""
    seed: int = 0
    """Seed of the run."""
    eval_samples: int = 0
    """Episodes per held-out task; 0 means what the recipe says."""
    run_dir: str | None = None
    """Folder of the run; by default the recipe's, with a number added if there is one already."""


@dataclasses.dataclass
class _Results:
    """Write a page that compares finished runs of one setting with different seeds."""

    run_dirs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Folders of the runs."""
    out: str = "results.md"
    """The page; a plot is put beside it."""


def demo_command(arguments: list[str]) -> int:
    """`agentgym demo`."""
    options = tyro.cli(_Demo, prog="agentgym demo", args=arguments)
    config = load_recipe("textcraft-demo-quick" if options.quick else "textcraft-demo")
    config.seed = options.seed
    if options.eval_samples:
        config.evaluate.samples = options.eval_samples
    config.run_dir = _unused(config.run_dir) if options.run_dir is None else options.run_dir
    return _run(config, resume=False)


def train_command(arguments: list[str]) -> int:
    """`agentgym train`."""
    try:
        recipe, rest = _take_option(arguments, "--recipe")
        resume, rest = _take_option(rest, "--resume")
        if resume is not None:
            return _run(_resumed_config(resume, recipe, rest), resume=True)
        default = Config() if recipe is None else load_recipe(recipe)
    except ConfigError as error:
        return _fail(error)
    description = (
        "Train a language model on text environments.\n\n"
        "  agentgym train --recipe NAME [options]      start from a recipe: "
        f"{', '.join(recipe_names())}, or a YAML file\n"
        "  agentgym train --resume RUN_DIR             continue a run exactly\n"
        "  agentgym train --resume RUN_DIR --steps N   continue it to more steps\n\n"
        "Every option below overrides the recipe."
    )
    config = tyro.cli(
        Annotated[Config, tyro.conf.arg(name="")],
        prog="agentgym train",
        description=description,
        default=default,
        args=rest,
    )
    return _run(config, resume=False)


def report_command(arguments: list[str]) -> int:
    """`agentgym report`."""

    def report(run_dir: Annotated[str, tyro.conf.Positional]) -> str:
        """Write report.html for a run folder.

        Args:
            run_dir: The folder of a run, finished or not.
        """
        return run_dir

    run_dir = tyro.cli(report, prog="agentgym report", args=arguments)
    from agentgym_train.report import write_report

    try:
        path = write_report(Path(run_dir))
    except ValueError as error:
        return _fail(error)
    print(f"report: {path}")
    return 0


def results_command(arguments: list[str]) -> int:
    """`agentgym results`."""
    options = tyro.cli(_Results, prog="agentgym results", args=arguments)
    from agentgym_train.results import write_results_page

    try:
        write_results_page([Path(run_dir) for run_dir in options.run_dirs], Path(options.out))
    except ValueError as error:
        return _fail(error)
    print(f"results: {options.out}")
    return 0


def _run(config: Config, resume: bool) -> int:
    _quiet_libraries()
    from agentgym_train.chat import ChatTemplateError
    from agentgym_train.engines import EngineError
    from agentgym_train.loop import train
    from agentgym_train.models import ModelError
    from agentgym_train.report import write_report
    from agentgym_train.run_folder import FolderError
    from agentgym_train.stop import StopRequested
    from agentgym_train.update import NumericsError
    from agentgym_wrappers import WorkerError

    terminal = Terminal()
    terminal.say(f"run folder: {config.run_dir}")
    envs = ", ".join(spec.id for spec in config.scenarios)
    terminal.say(f"model: {config.model.path}   env: {envs}   seed: {config.seed}")
    try:
        summary = train(config, resume, terminal)
    except (ConfigError, ModelError, ChatTemplateError, EngineError, FolderError, NumericsError, WorkerError) as error:
        return _fail(error)
    except StopRequested as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        say_error("stopped at once; the last checkpoint stands")
        return 130
    _say_result(summary, terminal)
    try:
        report = write_report(Path(config.run_dir))
    except KeyboardInterrupt:
        say_error(f"stopped; the run is finished. Write its report with: agentgym report {config.run_dir}")
        return 130
    terminal.say(f"report: {report}")
    return 0


def _say_result(summary: dict[str, Any], terminal: Terminal) -> None:
    idle, steps = summary["steps_without_update"], summary["steps"]
    if idle == steps:
        terminal.say(
            f"The model was never updated: in all {steps} steps the rewards of each group were equal. "
            "Give a longer warm start, easier tasks, or a model that can act.",
            style="bold red",
        )
    if "gain" in summary:
        terminal.say(
            f"held-out success {summary['before']:.3f} -> {summary['after']:.3f}: gain {summary['gain']:+.3f} "
            f"(95 % interval {summary['gain_low']:+.3f} to {summary['gain_high']:+.3f})"
        )
    elif "after" in summary:
        terminal.say(f"held-out success after training: {summary['after']:.3f}")
    terminal.say(f"model:  {summary['checkpoint']}")


def _resumed_config(run_dir: str, recipe: str | None, rest: list[str]) -> Config:
    steps, others = _take_option(rest, "--steps")
    if recipe is not None or others:
        raise ConfigError(
            f"--resume continues a run with its own configuration; {' '.join(others) or '--recipe'} cannot be given "
            "beside it (--steps can)."
        )
    config = stored_config(Path(run_dir))
    config.run_dir = run_dir
    if steps is not None:
        if not steps.isdecimal() or int(steps) < config.steps:
            raise ConfigError(f"--steps {steps} is not accepted; the run has {config.steps}, give that or more.")
        config.steps = int(steps)
    return config


def _unused(run_dir: str) -> str:
    """The folder's name, with a number if it exists: an earlier run is never removed."""
    number, name = 1, run_dir
    while Path(name).exists():
        number += 1
        name = f"{run_dir}-{number}"
    return name


def _fail(error: Exception) -> int:
    say_error(f"error: {error}")
    return 1


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Take `name VALUE` or `name=VALUE` out of the arguments; None if it is not among them."""
    rest = list(arguments)
    for index, argument in enumerate(rest):
        option, separator, value = argument.partition("=")
        if option != name:
            continue
        after = index + 1
        if not separator and after < len(rest) and not rest[after].startswith("--"):
            value, after = rest[after], after + 1
        if not value:
            raise ConfigError(f"{name} needs a value.")
        return value, rest[:index] + rest[after:]
    return None, rest


def _quiet_libraries() -> None:
    """Progress bars and advice of libraries would drown the run's own lines."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch|transformers")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
