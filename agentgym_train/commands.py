"""The commands that make, continue and describe runs.

PyTorch and transformers are imported when a run begins, so that help and wrong usage answer at once.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from agentgym_train.config import (
    Config,
    ConfigError,
    RunConfig,
    TrainingConfig,
    adopt,
    load_recipe,
    recipe_data,
    recipe_names,
    stored_config,
    stored_data,
)
from agentgym_train.config_kinds import DPOConfig, EvalConfig, EvolConfig, SFTConfig
from agentgym_train.terminal import Terminal, say_error

if TYPE_CHECKING:
    from agentgym_train.run import Run

K = TypeVar("K", bound=RunConfig)


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
    return _training_command(
        Config,
        arguments,
        "Train a language model on text environments by reinforcement learning: GRPO, RLOO, REINFORCE++ or PPO, under "
        "a horizon that grows.",
    )


def sft_command(arguments: list[str]) -> int:
    """`agentgym sft`."""
    return _training_command(
        SFTConfig,
        arguments,
        "Fine-tune a language model on episodes: the oracle's, those in a file of conversations (--data.path FILE), or "
        "the good ones of a run (--data.path RUN_DIR/trajectories.jsonl). Held-out tasks are never trained on.",
    )


def dpo_command(arguments: list[str]) -> int:
    """`agentgym dpo`."""
    return _training_command(
        DPOConfig,
        arguments,
        "Direct preference optimisation over multi-turn episodes: --pairs.path names a file of pairs (chosen, "
        "rejected), or a run's trajectories.jsonl, of which the better and worse episodes of a task are paired. The "
        "reference is the model as it is at the start.",
    )


def evol_command(arguments: list[str]) -> int:
    """`agentgym evol`."""
    return _training_command(
        EvolConfig,
        arguments,
        "AgentEvol: rounds in which the model explores tasks, the episodes with a high score are kept, and the model "
        "is fine-tuned on them and on the oracle's. The horizon may grow from round to round.",
    )


def eval_command(arguments: list[str]) -> int:
    """`agentgym eval`."""
    try:
        recipe, rest = _take_option(arguments, "--recipe")
        run, rest = _take_option(rest, "--run")
        resume, rest = _take_option(rest, "--resume")
        if resume is not None:
            return _run(_resumed_config(EvalConfig, resume, recipe or run, rest), resume=True)
        default = _evaluated(recipe, run)
    except ConfigError as error:
        return _fail(error)
    config = _parse(
        default,
        rest,
        "Evaluate a model on held-out tasks, without training. Prints success and score with their intervals by "
        "scenario and subset; the folder holds them (summary.json, results.md) and every episode "
        "(trajectories.jsonl).\n\n"
        "  agentgym eval --model.path FOLDER_OR_ID --env.id AgentGym/TextCraft-v0 --evaluate.horizon 20\n"
        "  agentgym eval --run RUN_DIR                  the newest checkpoint of a run, with the run's settings\n"
        "  agentgym eval --recipe NAME --model.path ... the settings of a recipe\n"
        "  agentgym eval --resume RUN_DIR               play what a stopped evaluation has left\n"
        "  agentgym eval --policy oracle                what the oracle (or random choice) reaches\n"
        "  agentgym eval --tasks '[{id: AgentGym/TextCraft-v0}, {id: AgentGym/BabyAI-v0, evaluate_horizon: 30}]'\n\n"
        "Every option below overrides these settings.",
    )
    if config.run_dir == EvalConfig().run_dir:
        config.run_dir = _unused(config.run_dir)
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


def _training_command(kind: type[TrainingConfig], arguments: list[str], what: str) -> int:
    """Begin a run, from a recipe or from nothing, or continue one."""
    name = kind.command
    try:
        recipe, rest = _take_option(arguments, "--recipe")
        resume, rest = _take_option(rest, "--resume")
        if resume is not None:
            return _run(_resumed_config(kind, resume, recipe, rest), resume=True)
        default = kind() if recipe is None else load_recipe(recipe, kind)
    except ConfigError as error:
        return _fail(error)
    names = ", ".join(recipe_names(name))
    description = (
        f"{what}\n\n"
        f"  agentgym {name} --recipe NAME [options]      start from a recipe: {names}, or a YAML file\n"
        f"  agentgym {name} --resume RUN_DIR             continue a run exactly\n"
        f"  agentgym {name} --resume RUN_DIR --{kind.longer} N   continue it to more {kind.longer}\n\n"
        "Every option below overrides the recipe."
    )
    return _run(_parse(default, rest, description), resume=False)


def _parse(default: K, arguments: list[str], description: str) -> K:
    kind: Any = Annotated[type(default), tyro.conf.arg(name="")]
    parsed: K = tyro.cli(
        kind,
        prog=f"agentgym {default.command}",
        description=description,
        default=default,
        args=arguments,
    )
    return parsed


def _run(config: RunConfig, resume: bool) -> int:
    _quiet_libraries()
    from agentgym_train.chat import ChatTemplateError
    from agentgym_train.engines import EngineError
    from agentgym_train.lora import AdapterError
    from agentgym_train.models import ModelError
    from agentgym_train.report import write_report
    from agentgym_train.run import drive
    from agentgym_train.run_folder import FolderError
    from agentgym_train.stop import StopRequested
    from agentgym_train.update import NumericsError
    from agentgym_wrappers import WorkerError

    terminal = Terminal()
    terminal.say(f"run folder: {config.run_dir}")
    envs = ", ".join(spec.id for spec in config.scenarios)
    model = config.policy if isinstance(config, EvalConfig) and config.policy != "model" else config.model.path
    terminal.say(f"model: {model}   env: {envs}   seed: {config.seed}")
    try:
        summary = drive(_kind_of(config), config, resume, terminal)
    except (
        *(AdapterError, ChatTemplateError, ConfigError, EngineError, FolderError),
        *(ModelError, NumericsError, WorkerError),
    ) as error:
        return _fail(error)
    except StopRequested as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        say_error("stopped at once; the last checkpoint stands")
        return 130
    if isinstance(config, EvalConfig):
        return 0
    _say_result(summary, terminal)
    try:
        report = write_report(Path(config.run_dir))
    except KeyboardInterrupt:
        say_error(f"stopped; the run is finished. Write its report with: agentgym report {config.run_dir}")
        return 130
    except OSError as error:
        say_error(
            f"error: the report cannot be written ({error}); the run is finished. Write its report with: agentgym "
            f"report {config.run_dir}"
        )
        return 1
    terminal.say(f"report: {report}")
    return 0


def _kind_of(config: RunConfig) -> type[Run]:
    """The kind of run that a configuration is for."""
    if isinstance(config, SFTConfig):
        from agentgym_train.sft import SFT

        return SFT
    if isinstance(config, DPOConfig):
        from agentgym_train.dpo import DPO

        return DPO
    if isinstance(config, EvolConfig):
        from agentgym_train.evol import Evol

        return Evol
    if isinstance(config, EvalConfig):
        from agentgym_train.evaluation import Evaluation

        return Evaluation
    from agentgym_train.loop import Trainer

    return Trainer


def _say_result(summary: dict[str, Any], terminal: Terminal) -> None:
    idle, steps = summary["steps_without_update"], summary["steps"]
    if summary["command"] == Config.command and idle == steps:
        terminal.say(
            f"The model was never updated: in all {steps} steps the rewards of each group were equal. "
            "If all episodes failed, give a longer warm start, easier tasks, or a model that can act; if all "
            "succeeded, harder tasks.",
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
    if summary.get("best"):
        terminal.say(f"best:   {summary['best']}")


def _resumed_config(kind: type[RunConfig], run_dir: str, recipe: str | None, rest: list[str]) -> RunConfig:
    longer = kind.longer if issubclass(kind, TrainingConfig) else ""
    given, others = _take_option(rest, f"--{longer}") if longer else (None, rest)
    if recipe is not None or others:
        but = f" (--{longer} can)" if longer else ""
        raise ConfigError(
            f"--resume continues a run with its own configuration; {' '.join(others) or '--recipe'} cannot be given "
            f"beside it{but}."
        )
    config = stored_config(Path(run_dir), kind)
    config.run_dir = run_dir
    if given is not None:
        least = getattr(config, longer)
        if not given.isdecimal() or int(given) < least:
            raise ConfigError(f"--{longer} {given} is not accepted; the run has {least}, give that or more.")
        setattr(config, longer, int(given))
    return config


def _evaluated(recipe: str | None, run: str | None) -> EvalConfig:
    """The settings that an evaluation begins with: its own, a recipe's, or a run's with its newest checkpoint."""
    if recipe is not None and run is not None:
        raise ConfigError("--recipe and --run both say what to begin with; give one of them.")
    if recipe is None and run is None:
        return EvalConfig()
    data = stored_data(Path(run)) if run is not None else recipe_data(str(recipe))
    if isinstance(data, dict) and data.get("command", Config.command) != EvalConfig.command:
        data.pop("run_dir", None)
    config = adopt(data, EvalConfig)
    if run is not None:
        from agentgym_train.run_folder import newest_checkpoint

        checkpoint = newest_checkpoint(Path(run))
        if checkpoint is None:
            raise ConfigError(f"--run {run}: there is no checkpoint yet.")
        config.model.path, config.model.chat_template = str(checkpoint), ""
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
