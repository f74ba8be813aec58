"""What a configuration must satisfy before anything is loaded."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.config import Config, ConfigError, RunConfig, TaskConfig, TrainingConfig
from agentgym_wrappers import FixedHorizon, Schedule, schedule_from


class _Bounds(NamedTuple):
    """Which numbers are accepted."""

    least: float
    included: bool = True
    largest: float = math.inf
    finite: bool = True


_AT_LEAST_0, _AT_LEAST_1, _ABOVE_0 = _Bounds(0), _Bounds(1), _Bounds(0, included=False)
_SCORE = _Bounds(0, largest=1)
_LIMIT = _Bounds(0, included=False, finite=False)  # an infinite one leaves out what it limits

# Of all kinds of run; each has some of them.
_NUMBERS = {
    "steps": _AT_LEAST_1,
    "rounds": _AT_LEAST_1,
    "epochs": _AT_LEAST_1,
    "batch_size": _AT_LEAST_1,
    "checkpoint_every": _AT_LEAST_0,
    "stall_seconds": _AT_LEAST_0,
    "max_error_share": _Bounds(0, largest=1),
    "agent.last_turns": _AT_LEAST_0,
    "engine.timeout_s": _ABOVE_0,
    "engine.memory_share": _Bounds(0, included=False, largest=1),
    "warm_start.tasks": _AT_LEAST_1,
    "warm_start.batch_size": _AT_LEAST_1,
    "warm_start.epochs": _AT_LEAST_1,
    "warm_start.lr": _ABOVE_0,
    "data.tasks": _AT_LEAST_0,
    "data.min_score": _SCORE,
    "pairs.beta": _ABOVE_0,
    "learn.epochs": _AT_LEAST_1,
    "learn.batch_size": _AT_LEAST_1,
    "rollout.tasks_per_step": _AT_LEAST_1,
    "rollout.steps_per_round": _AT_LEAST_1,
    "rollout.min_score": _SCORE,
    "rollout.samples_per_task": _AT_LEAST_1,
    "rollout.temperature": _ABOVE_0,
    "rollout.max_lag": _AT_LEAST_0,
    "rollout.late_share": _Bounds(0, largest=1),
    "rollout.max_reply_tokens": _AT_LEAST_1,
    "rollout.max_parallel": _AT_LEAST_1,
    "rollout.env_workers": _AT_LEAST_1,
    "model.lora_rank": _AT_LEAST_0,
    "model.lora_alpha": _ABOVE_0,
    "optimiser.lr": _ABOVE_0,
    "optimiser.warmup_steps": _AT_LEAST_0,
    "optimiser.betas": _Bounds(0, largest=1 - 1e-9),
    "optimiser.weight_decay": _AT_LEAST_0,
    "optimiser.max_grad_norm": _LIMIT,
    "optimiser.token_budget": _AT_LEAST_1,
    "algorithm.epochs": _AT_LEAST_1,
    "algorithm.clip_low": _Bounds(0, included=False, largest=1),
    "algorithm.clip_high": _LIMIT,
    "algorithm.importance_cap": _LIMIT,
    "algorithm.engine_tolerance": _LIMIT,
    "algorithm.kl_coef": _AT_LEAST_0,
    "algorithm.resample_rounds": _AT_LEAST_0,
    "algorithm.discount": _Bounds(0, included=False, largest=1),
    "algorithm.trace": _Bounds(0, largest=1),
    "algorithm.critic_lr": _ABOVE_0,
    "evaluate.tasks": _AT_LEAST_0,
    "evaluate.samples": _AT_LEAST_1,
    "evaluate.horizon": _AT_LEAST_1,
    "evaluate.temperature": _AT_LEAST_0,
    "evaluate.every": _AT_LEAST_0,
}


def check_config(config: RunConfig) -> None:
    """Check the numbers and the horizon.

    Raises:
        ConfigError: At the first value that is not accepted.
    """
    if not config.run_dir:
        raise ConfigError("run_dir='' is not accepted; give the folder to write the run to.")
    for name, bounds in _NUMBERS.items():
        value = _look_up(config, name)
        if isinstance(value, tuple):
            for place, number in enumerate(value):
                _check_number(f"{name}[{place}]", number, bounds)
        elif value is not None:
            _check_number(name, value, bounds)
    _check_scenarios(config)
    if isinstance(config, TrainingConfig):
        _check_number("evaluate.tasks", config.evaluate.tasks, _AT_LEAST_1)
        if config.command != Config.command:
            _refuse_adaptive(config)
    if isinstance(config, TrainingConfig) and config.model.dtype == "bfloat16" and not config.model.lora_rank:
        raise ConfigError(
            "model.dtype=bfloat16 is not accepted without an adapter: steps of a usual learning rate are smaller than "
            "what bfloat16 can hold, and would be lost. Give model.lora_rank, or leave model.dtype=float32."
        )
    if isinstance(config, Config) and config.algorithm.name in ("grpo", "rloo") and config.rollout.samples_per_task < 2:
        raise ConfigError(
            f"rollout.samples_per_task={config.rollout.samples_per_task} is not accepted: "
            f"{config.algorithm.name.upper()} compares the trajectories of a group with each other and "
            "needs at least 2 of them (the paper uses 8)."
        )
    if isinstance(config, Config) and config.rollout.deterministic and config.rollout.max_lag:
        raise ConfigError(
            f"rollout.max_lag={config.rollout.max_lag} is not accepted with rollout.deterministic=true: which episodes "
            "are late depends on how fast their environments are. Leave one of the two out."
        )
    make_schedule(config)


def _look_up(config: RunConfig, name: str) -> Any:
    """The value of a key such as `optimiser.lr`; None if this kind of run does not have it."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _check_number(name: str, number: float, bounds: _Bounds) -> None:
    least, included, largest, finite = bounds
    endless = finite and math.isinf(number)
    if endless or not (least <= number <= largest if included else least < number <= largest):
        above = "at least" if included else "more than"
        below = f" and at most {largest:g}" if math.isfinite(largest) else ", but finite" if endless else ""
        raise ConfigError(f"{name}={number} is not accepted; give {above} {least}{below}.")


def _check_scenarios(config: RunConfig) -> None:
    titles = [spec.title for spec in config.tasks]
    for place, spec in enumerate(config.tasks):
        if titles.index(spec.title) < place:
            raise ConfigError(
                f"tasks[{place}] is called {spec.title!r} like tasks[{titles.index(spec.title)}]; give it a name of "
                "its own."
            )
        if not 0 < spec.weight < math.inf:
            raise ConfigError(f"tasks[{place}].weight={spec.weight} is not accepted; give a finite number above 0.")
        if spec.evaluate_horizon < 0:
            raise ConfigError(
                f"tasks[{place}].evaluate_horizon={spec.evaluate_horizon} is not accepted; give at least 1, or 0 for "
                "evaluate.horizon."
            )
    if math.isinf(sum(spec.weight for spec in config.tasks)):
        raise ConfigError("tasks: the weights are too large to be added up; they count relative to each other.")


def _refuse_adaptive(config: TrainingConfig) -> None:
    for value in (config.horizon, *(spec.horizon for spec in config.tasks)):
        if isinstance(value, dict) and value.get("kind") == "adaptive":
            raise ConfigError(
                f"horizon={value!r}: an adaptive horizon follows the steps of `agentgym train`; for `agentgym "
                f"{config.command}` give a number, or a linear or staged schedule."
            )


def make_schedule(
    config: RunConfig, spec: TaskConfig | None = None, where: str = "", steps: int = 0
) -> Schedule | AdaptiveHorizon:
    """The horizon schedule that the configuration describes.

    Args:
        config: The run's configuration.
        spec: A scenario, whose own schedule counts if it has one.
        where: What the configuration calls the scenario, for errors.
        steps: Steps of the whole run, which stages are fractions of; by default what the configuration says.

    Raises:
        ConfigError: If it describes none.
    """
    if not isinstance(config, TrainingConfig):  # nothing is trained
        return FixedHorizon(config.evaluate.horizon)
    own = spec is not None and spec.horizon != 0
    value = given = spec.horizon if spec is not None and own else config.horizon
    if isinstance(value, dict) and value.get("kind") == "staged":
        value = {"total_steps": steps or config.total_steps, **value}
    try:
        if isinstance(value, dict) and value.get("kind") == "adaptive":
            names = ("start", "increment", "cap", "window", "tolerance")
            if unknown := sorted(value.keys() - {"kind", *names}):
                raise ValueError(f"unknown {', '.join(unknown)}; an adaptive horizon has {', '.join(names)}")
            return AdaptiveHorizon(**{name: value[name] for name in names if name in value})
        return schedule_from(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where + '.' if own else ''}horizon={given!r}: {error}") from error


def pick_device(config: RunConfig) -> torch.device:
    """The device that `model.device` names; for `auto` the accelerator if there is one.

    Raises:
        ConfigError: If it cannot be used here.
    """
    if config.model.device == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu")
    try:
        return torch.empty(0, device=config.model.device).device
    except (RuntimeError, AssertionError) as error:  # a build without the device asserts
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model.device={config.model.device!r} cannot be used here ({reason}); give auto, cpu, or another device "
            "that `agentgym doctor` shows."
        ) from error
