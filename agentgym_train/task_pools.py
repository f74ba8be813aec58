"""Which tasks a run warms up on, trains on and is tested on. The three never overlap."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import gymnasium
import numpy as np

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_envs import Task, TextEnv
from agentgym_train.config import ConfigError, RunConfig, TaskConfig


@dataclass(frozen=True, slots=True)
class TaskPools:
    """Task ids by purpose, each in a fixed order that does not depend on the run's seed."""

    warm_start: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]


def task_pools(config: RunConfig, spec: TaskConfig | None = None, where: str = "env") -> TaskPools:
    """Divide a scenario's train and test splits for a run.

    The train split is put in the order of a hash of the ids; the first `warm_start.tasks` are for the warm
    start, the rest for what follows. The first `evaluate.tasks` of the test split, in the same order, are the
    held-out tasks; all of it if that is 0.

    Args:
        config: The run's configuration.
        spec: The scenario; the run's first one by default.
        where: What the configuration calls it, for errors.

    Raises:
        ConfigError: If the environment is unknown or there are too few tasks.
    """
    spec = spec or config.scenarios[0]
    env = _make(spec, where)
    try:
        table = cast(TextEnv, env.unwrapped).task_table()
        own_subset = env.spec.kwargs.get("subset") if env.spec else None  # of ids such as AgentGym/TextCraft-Depth1-v0
    finally:
        env.close()
    for name in ("tasks", "split"):
        if name in spec.options:
            raise ConfigError(
                f"{where}.options.{name} is not accepted: a run divides the tasks into training and test itself. "
                f"Choose them with {where}.subsets."
            )
    subsets = dict.fromkeys(spec.subsets or (own_subset,))
    try:
        train = _hash_order([task for subset in subsets for task in table.select(subset, "train")])
        test = _hash_order([task for subset in subsets for task in table.select(subset, "test")])
    except ValueError as error:
        raise ConfigError(f"{where}.subsets: {error}") from error
    warm, (groups, _) = config.oracle_tasks, config.groups
    if len(train) - warm < groups:
        raise ConfigError(
            f"{spec.id} has {len(train)} training tasks in these subsets; warm_start.tasks={warm} leaves "
            f"{max(0, len(train) - warm)} for reinforcement learning, fewer than "
            f"rollout.tasks_per_step={groups}. Lower one of them or add subsets."
        )
    if len(test) < config.evaluate.tasks:
        raise ConfigError(
            f"evaluate.tasks={config.evaluate.tasks}, but {spec.id} has {len(test)} test tasks in these subsets."
        )
    return TaskPools(train[:warm], train[warm:], test[: config.evaluate.tasks or None])


def shares(weights: Sequence[float], step: int, count: int) -> list[range]:
    """Divide a step's groups among scenarios.

    Group k of the run goes to the scenario whose stretch of [0, 1), as long as its weight, holds the fractional part
    of k times the golden ratio: those parts are spread evenly, so that shares are kept over few steps already.

    Args:
        weights: Of the scenarios, above 0.
        step: Number of the step.
        count: Groups per step.

    Returns:
        For each scenario, which of its own groups, counted from the beginning of the run, belong to the step.
    """
    places = np.arange((step + 1) * count, dtype=np.float64) * ((5**0.5 - 1) / 2) % 1.0
    ends = np.cumsum(np.asarray(weights, dtype=np.float64))
    owners = np.searchsorted(ends / ends[-1], places, side="right")
    before = np.bincount(owners[: step * count], minlength=len(ends))
    after = np.bincount(owners, minlength=len(ends))
    return [range(first, last) for first, last in zip(before.tolist(), after.tolist(), strict=True)]


def draw(pool: tuple[str, ...], places: range, seed: int | str) -> list[str]:
    """Draw tasks: the pool in a new random order each time it has been gone through.

    A pure function of its arguments, so a resumed run draws what it would have drawn.

    Args:
        pool: Task ids.
        places: Which of the run's draws, without gaps.
        seed: Seed of the orders.
    """
    if not places:
        return []
    laps = range(places[0] // len(pool), places[-1] // len(pool) + 1)
    order = [task for lap in laps for task in _shuffled(pool, f"tasks/{seed}/{lap}")]
    first = places[0] - laps.start * len(pool)
    return order[first : first + len(places)]


def episode_seed(*parts: object) -> int:
    """Seed of an environment, derived from what the episode is for by hashing."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _make(spec: TaskConfig, where: str) -> gymnasium.Env[str, str]:
    try:
        env = gymnasium.make(spec.id, **spec.options)
    except (gymnasium.error.Error, ImportError) as error:
        known = sorted(name for name in gymnasium.registry if name.startswith("AgentGym/"))
        raise ConfigError(f"{where}.id={spec.id!r}: {error} Known here: {', '.join(known)}.") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}.options={spec.options!r}: {error}") from error
    if not isinstance(env.unwrapped, TextEnv):
        env.close()
        raise ConfigError(f"{where}.id={spec.id!r} is no text environment of this suite.")
    return cast("gymnasium.Env[str, str]", env)


def _hash_order(tasks: list[Task]) -> tuple[str, ...]:
    return tuple(sorted((task.id for task in tasks), key=lambda name: hashlib.sha256(name.encode()).digest()))


def _shuffled(pool: tuple[str, ...], seed: str) -> list[str]:
    rng = random.Random(seed)
    return sorted(pool, key=lambda _: rng.random())
