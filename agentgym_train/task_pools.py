"""Which tasks a run warms up on, trains on and is tested on. The three never overlap."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import cast

import gymnasium

import agentgym_envs  # noqa: F401  (registers the ids)
from agentgym_envs import Task, TextEnv
from agentgym_train.config import Config, ConfigError


@dataclass(frozen=True, slots=True)
class TaskPools:
    """Task ids by purpose, each in a fixed order that does not depend on the run's seed."""

    warm_start: tuple[str, ...]
    train: tuple[str, ...]
    test: tuple[str, ...]


def task_pools(config: Config) -> TaskPools:
    """Divide the environment's train and test splits for a run.

    The train split is put in the order of a hash of the ids; the first `warm_start.tasks` are for the warm
    start, the rest for reinforcement learning. The first `evaluate.tasks` of the test split, in the same
    order, are the held-out tasks.

    Raises:
        ConfigError: If the environment is unknown or there are too few tasks.
    """
    env = _make(config)
    try:
        table = cast(TextEnv, env.unwrapped).task_table()
        own_subset = env.spec.kwargs.get("subset") if env.spec else None  # of ids such as AgentGym/TextCraft-Depth1-v0
    finally:
        env.close()
    for name in ("tasks", "split"):
        if name in config.env.options:
            raise ConfigError(
                f"env.options.{name} is not accepted: a run divides the tasks into training and test itself. Choose "
                "them with env.subsets."
            )
    subsets = dict.fromkeys(config.env.subsets or (own_subset,))
    try:
        train = _hash_order([task for subset in subsets for task in table.select(subset, "train")])
        test = _hash_order([task for subset in subsets for task in table.select(subset, "test")])
    except ValueError as error:
        raise ConfigError(f"env.subsets: {error}") from error
    warm = config.warm_start.tasks if config.warm_start.kind == "oracle" else 0
    if len(train) - warm < config.rollout.tasks_per_step:
        raise ConfigError(
            f"{config.env.id} has {len(train)} training tasks in these subsets; warm_start.tasks={warm} leaves "
            f"{max(0, len(train) - warm)} for reinforcement learning, fewer than "
            f"rollout.tasks_per_step={config.rollout.tasks_per_step}. Lower one of them or add subsets."
        )
    if len(test) < config.evaluate.tasks:
        raise ConfigError(
            f"evaluate.tasks={config.evaluate.tasks}, but {config.env.id} has {len(test)} test tasks in these subsets."
        )
    return TaskPools(train[:warm], train[warm:], test[: config.evaluate.tasks])


def draw(pool: tuple[str, ...], step: int, count: int, seed: int | str) -> list[str]:
    """Draw the tasks of a step: the pool in a new random order each time it has been gone through.

    A pure function of its arguments, so a resumed run draws what it would have drawn.
    """
    laps = range(step * count // len(pool), ((step + 1) * count - 1) // len(pool) + 1)
    order = [task for lap in laps for task in _shuffled(pool, f"tasks/{seed}/{lap}")]
    first = step * count - laps.start * len(pool)
    return order[first : first + count]


def episode_seed(*parts: object) -> int:
    """Seed of an environment, derived from what the episode is for by hashing."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _make(config: Config) -> gymnasium.Env[str, str]:
    try:
        env = gymnasium.make(config.env.id, **config.env.options)
    except (gymnasium.error.Error, ImportError) as error:
        known = sorted(name for name in gymnasium.registry if name.startswith("AgentGym/"))
        raise ConfigError(f"env.id={config.env.id!r}: {error} Known here: {', '.join(known)}.") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"env.options={config.env.options!r}: {error}") from error
    if not isinstance(env.unwrapped, TextEnv):
        env.close()
        raise ConfigError(f"env.id={config.env.id!r} is no text environment of this suite.")
    return cast("gymnasium.Env[str, str]", env)


def _hash_order(tasks: list[Task]) -> tuple[str, ...]:
    return tuple(sorted((task.id for task in tasks), key=lambda name: hashlib.sha256(name.encode()).digest()))


def _shuffled(pool: tuple[str, ...], seed: str) -> list[str]:
    rng = random.Random(seed)
    return sorted(pool, key=lambda _: rng.random())
