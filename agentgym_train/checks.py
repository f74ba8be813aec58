"""What a configuration must satisfy before anything is loaded."""

from __future__ import annotations

import math

import torch

from agentgym_train.adaptive_horizon import AdaptiveHorizon
from agentgym_train.config import Config, ConfigError, TaskConfig
from agentgym_wrappers import Schedule, schedule_from


def check_config(config: Config) -> None:
    """Check the numbers and the horizon.

    Raises:
        ConfigError: At the first value that is not accepted.
    """
    if not config.run_dir:
        raise ConfigError("run_dir='' is not accepted; give the folder to write the run to.")
    positive = {
        "steps": config.steps,
        "rollout.tasks_per_step": config.rollout.tasks_per_step,
        "rollout.max_reply_tokens": config.rollout.max_reply_tokens,
        "rollout.max_parallel": config.rollout.max_parallel,
        "rollout.env_workers": config.rollout.env_workers,
        "algorithm.epochs": config.algorithm.epochs,
        "optimiser.token_budget": config.optimiser.token_budget,
        "evaluate.tasks": config.evaluate.tasks,
        "evaluate.samples": config.evaluate.samples,
        "evaluate.horizon": config.evaluate.horizon,
        "warm_start.tasks": config.warm_start.tasks,
        "warm_start.batch_size": config.warm_start.batch_size,
        "warm_start.epochs": config.warm_start.epochs,
    }
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"{name}={value} is not accepted; give at least 1.")
    ranges = {
        # name: (value, least, whether the least is accepted, largest)
        "checkpoint_every": (config.checkpoint_every, 0, True, math.inf),
        "max_error_share": (config.max_error_share, 0, True, 1),
        "warm_start.lr": (config.warm_start.lr, 0, False, math.inf),
        "optimiser.lr": (config.optimiser.lr, 0, False, math.inf),
        "optimiser.warmup_steps": (config.optimiser.warmup_steps, 0, True, math.inf),
        "optimiser.betas[0]": (config.optimiser.betas[0], 0, True, 1 - 1e-9),
        "optimiser.betas[1]": (config.optimiser.betas[1], 0, True, 1 - 1e-9),
        "optimiser.weight_decay": (config.optimiser.weight_decay, 0, True, math.inf),
        "optimiser.max_grad_norm": (config.optimiser.max_grad_norm, 0, False, math.inf),
        "algorithm.clip_low": (config.algorithm.clip_low, 0, False, 1),
        "algorithm.clip_high": (config.algorithm.clip_high, 0, False, math.inf),
        "algorithm.importance_cap": (config.algorithm.importance_cap, 0, False, math.inf),
        "algorithm.kl_coef": (config.algorithm.kl_coef, 0, True, math.inf),
        "algorithm.resample_rounds": (config.algorithm.resample_rounds, 0, True, math.inf),
        "algorithm.discount": (config.algorithm.discount, 0, False, 1),
        "algorithm.trace": (config.algorithm.trace, 0, True, 1),
        "algorithm.critic_lr": (config.algorithm.critic_lr, 0, False, math.inf),
        "evaluate.temperature": (config.evaluate.temperature, 0, True, math.inf),
        "evaluate.every": (config.evaluate.every, 0, True, math.inf),
    }
    for name, (number, least, included, largest) in ranges.items():
        if not (least <= number <= largest if included else least < number <= largest):
            above = "at least" if included else "more than"
            below = f" and at most {largest:g}" if math.isfinite(largest) else ""
            raise ConfigError(f"{name}={number} is not accepted; give {above} {least}{below}.")
    if config.rollout.samples_per_task < 2:
        raise ConfigError(
            f"rollout.samples_per_task={config.rollout.samples_per_task} is not accepted: GRPO compares the "
            "trajectories of a group with each other and needs at least 2 of them (the paper uses 8)."
        )
    if not config.rollout.temperature > 0:
        raise ConfigError(
            f"rollout.temperature={config.rollout.temperature} is not accepted; rollouts need a temperature above 0."
        )
    titles = [spec.title for spec in config.tasks]
    for place, spec in enumerate(config.tasks):
        if titles.index(spec.title) < place:
            raise ConfigError(
                f"tasks[{place}] is called {spec.title!r} like tasks[{titles.index(spec.title)}]; give it a name of "
                "its own."
            )
        if not 0 < spec.weight < math.inf:
            raise ConfigError(f"tasks[{place}].weight={spec.weight} is not accepted; give a number above 0.")
        if spec.evaluate_horizon < 0:
            raise ConfigError(
                f"tasks[{place}].evaluate_horizon={spec.evaluate_horizon} is not accepted; give at least 1, or 0 for "
                "evaluate.horizon."
            )
    make_schedule(config)


def make_schedule(config: Config, spec: TaskConfig | None = None, where: str = "") -> Schedule | AdaptiveHorizon:
    """The horizon schedule that the configuration describes.

    Args:
        config: The run's configuration.
        spec: A scenario, whose own schedule counts if it has one.
        where: What the configuration calls the scenario, for errors.

    Raises:
        ConfigError: If it describes none.
    """
    own = spec is not None and spec.horizon != 0
    value = given = spec.horizon if spec is not None and own else config.horizon
    if isinstance(value, dict) and value.get("kind") == "staged":
        value = {"total_steps": config.steps, **value}
    try:
        if isinstance(value, dict) and value.get("kind") == "adaptive":
            names = ("start", "increment", "cap", "window", "tolerance")
            if unknown := sorted(value.keys() - {"kind", *names}):
                raise ValueError(f"unknown {', '.join(unknown)}; an adaptive horizon has {', '.join(names)}")
            return AdaptiveHorizon(**{name: value[name] for name in names if name in value})
        return schedule_from(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where + '.' if own else ''}horizon={given!r}: {error}") from error


def pick_device(config: Config) -> torch.device:
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
