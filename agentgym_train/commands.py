"""The commands that need the trainer's packages."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentgym_train.chat import ChatTemplateError
from agentgym_train.config import Config, ConfigError, load_recipe, recipe_names
from agentgym_train.models import ModelError
from agentgym_train.terminal import Terminal


@dataclasses.dataclass
class _Demo:
    """Watch a language model learn to craft.

    SmolLM2-135M-Instruct is warmed up on a few oracle episodes (without them it makes no valid command), trained
    with GRPO under a growing horizon, and evaluated on held-out goals before, between and after. The run
    folder holds metrics, trajectories, the trained model and report.html.
    """

    quick: bool = False
    """The same path in about 4 minutes: fewer steps and evaluations."""
    seed: int = 0
    """Seed of the run."""
    eval_samples: int = 0
    """Episodes per held-out task; 0 means what the recipe says."""
    run_dir: str = ""
    """Folder of the run; by default the recipe's, and an earlier demo in it is replaced."""


def demo_command(arguments: list[str]) -> int:
    """`agentgym demo`."""
    options = tyro.cli(_Demo, prog="agentgym demo", args=arguments)
    config = load_recipe("textcraft-demo-quick" if options.quick else "textcraft-demo")
    config.seed = options.seed
    if options.eval_samples:
        config.evaluate.samples = options.eval_samples
    if options.run_dir:
        config.run_dir = options.run_dir
    elif Path(config.run_dir).is_dir():
        shutil.rmtree(config.run_dir)
    return _run(config, resume=False)


def train_command(arguments: list[str]) -> int:
    """`agentgym train`."""
    try:
        recipe, rest = _take_option(arguments, "--recipe")
        resume, rest = _take_option(rest, "--resume")
        if resume:
            if recipe or rest:
                raise ConfigError(
                    f"--resume continues a run with its own configuration; {' '.join(rest) or '--recipe'} cannot be "
                    "given beside it."
                )
            from agentgym_train.run_folder import RunFolder

            config = RunFolder.stored_config(Path(resume))
            config.run_dir = resume
            return _run(config, resume=True)
        default = load_recipe(recipe) if recipe else Config()
    except ConfigError as error:
        return _fail(error)
    description = (
        "Train a language model on text environments.\n\n"
        "  agentgym train --recipe NAME [options]   start from a recipe: "
        f"{', '.join(recipe_names())}, or a YAML file\n"
        "  agentgym train --resume RUN_DIR          continue a run exactly\n\n"
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

    from agentgym_train.report import write_report

    try:
        path = write_report(Path(tyro.cli(report, prog="agentgym report", args=arguments)))
    except ValueError as error:
        return _fail(error)
    print(f"report: {path}")
    return 0


def _run(config: Config, resume: bool) -> int:
    _quiet_libraries()
    from agentgym_train.engines import EngineError
    from agentgym_train.loop import train
    from agentgym_train.report import write_report
    from agentgym_train.stop import StopRequested
    from agentgym_train.update import NumericsError

    terminal = Terminal()
    terminal.say(
        f"run folder: {config.run_dir}   model: {config.model.path}   env: {config.env.id}   seed: {config.seed}"
    )
    try:
        summary = train(config, resume, terminal)
    except (ConfigError, ModelError, ChatTemplateError, EngineError, NumericsError) as error:
        return _fail(error)
    except StopRequested as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        print("stopped at once; the last checkpoint stands", file=sys.stderr)
        return 130
    report = write_report(Path(config.run_dir))
    _say_result(summary, terminal.say)
    terminal.say(f"report: {report}")
    return 0


def _say_result(summary: dict[str, Any], say: Callable[[str], None]) -> None:
    if "gain" in summary:
        say(
            f"held-out success {summary['before']:.3f} -> {summary['after']:.3f}: gain {summary['gain']:+.3f} "
            f"(95 % interval {summary['gain_low']:+.3f} to {summary['gain_high']:+.3f})"
        )
    else:
        say(f"held-out success after training: {summary.get('after', float('nan')):.3f}")


def _fail(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 1


def _take_option(arguments: list[str], name: str) -> tuple[str, list[str]]:
    """Take `name VALUE` or `name=VALUE` out of the arguments."""
    rest = list(arguments)
    for index, argument in enumerate(rest):
        if argument == name:
            if index + 1 == len(rest) or rest[index + 1].startswith("--"):
                raise ConfigError(f"{name} needs a value.")
            return rest[index + 1], rest[:index] + rest[index + 2 :]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2], rest[:index] + rest[index + 1 :]
    return "", rest


def _quiet_libraries() -> None:
    """Progress bars and advice of libraries would drown the run's own lines."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch|transformers")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
