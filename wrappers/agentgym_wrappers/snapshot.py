"""Snapshots of wrapped environments: save one, restore it anywhere, or fork it.

A snapshot is JSON: the state of each wrapper, outermost first, and the environment's own snapshot. A
wrapper takes part with two methods, `snapshot_state` and `restore_state` (see `SnapshotWrapper`);
Gymnasium's wrappers are known here by their exact class. Others are refused by name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.wrappers import (
    Autoreset,
    ClipReward,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformAction,
    TransformObservation,
    TransformReward,
)

from agentgym_envs import TextEnv
from agentgym_envs.core import checked_record

SNAPSHOT_FORMAT = 1

AnyEnv = gymnasium.Env[Any, Any]
AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
Save = Callable[[Any], dict[str, Any]]
Load = Callable[[Any, Mapping[str, Any]], None]


@runtime_checkable
class SnapshotWrapper(Protocol):
    """What a wrapper implements to take part in snapshots."""

    def snapshot_state(self) -> dict[str, Any]:
        """Return everything that the wrapper has to remember, as JSON values."""

    def restore_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take over a saved state, before the environment inside is restored.

        Returns:
            The entries that the wrapper adds to `info` in that state, if any.
        """


def _save_statistics(wrapper: RecordEpisodeStatistics[Any, Any]) -> dict[str, Any]:
    return {
        "count": wrapper.episode_count,
        "seconds": time.perf_counter() - wrapper.episode_start_time,
        "return": float(wrapper.episode_returns),
        "length": int(wrapper.episode_lengths),
        "times": [float(value) for value in wrapper.time_queue],
        "returns": [float(value) for value in wrapper.return_queue],
        "lengths": [int(value) for value in wrapper.length_queue],
    }


def _load_statistics(wrapper: RecordEpisodeStatistics[Any, Any], state: Mapping[str, Any]) -> None:
    numbers: dict[str, type] = {"count": int, "seconds": float, "return": float, "length": int}
    checked_record("the state", state, **numbers, times=list, returns=list, lengths=list)
    wrapper.episode_count = state["count"]
    wrapper.episode_start_time = time.perf_counter() - state["seconds"]
    wrapper.episode_returns = state["return"]
    wrapper.episode_lengths = state["length"]
    wrapper.time_queue.clear()
    wrapper.time_queue.extend(map(float, state["times"]))
    wrapper.return_queue.clear()
    wrapper.return_queue.extend(map(float, state["returns"]))
    wrapper.length_queue.clear()
    wrapper.length_queue.extend(map(int, state["lengths"]))


def _load_checker(wrapper: PassiveEnvChecker[Any, Any], _state: Mapping[str, Any]) -> None:
    """The first calls were checked where the episode began; the next ones are not the first."""
    wrapper.checked_reset = wrapper.checked_step = wrapper.checked_data_reuse = True
    wrapper._previous_data = None


def _attribute(name: str, *types: type) -> tuple[Save, Load]:
    """How to save and load a wrapper whose whole state is one attribute of one of these types."""

    def save(wrapper: AnyWrapper) -> dict[str, Any]:
        return {name: getattr(wrapper, name)}

    def load(wrapper: AnyWrapper, state: Mapping[str, Any]) -> None:
        setattr(wrapper, name, checked_record("the state", state, **{name: types})[name])

    return save, load


# Exact class -> how its state is saved and loaded.
_GYMNASIUM_WRAPPERS: dict[type, tuple[Save, Load]] = {
    Autoreset: _attribute("autoreset", bool),
    OrderEnforcing: _attribute("_has_reset", bool),
    PassiveEnvChecker: (lambda _wrapper: {}, _load_checker),
    RecordEpisodeStatistics: (_save_statistics, _load_statistics),
    TimeLimit: _attribute("_elapsed_steps", int, type(None)),
}
# The user's functions in the Transform wrappers must be pure, as Gymnasium asks.
_STATELESS = (ClipReward, TransformAction, TransformObservation, TransformReward)


def snapshot(env: AnyEnv) -> bytes:
    """Return the state of an environment and of the wrappers around it.

    Args:
        env: A `TextEnv`, wrapped or not.

    Returns:
        JSON bytes for `restore`, here or in another process.

    Raises:
        ValueError: If the environment is no `TextEnv`, or a wrapper's state is not known.
        gymnasium.error.ResetNeeded: If there was no reset yet.
    """
    wrappers, base = _chain(env)
    record = {
        "format": SNAPSHOT_FORMAT,
        "wrappers": [{"class": _name(wrapper), "state": _save(wrapper)} for wrapper in wrappers],
        "env": base.snapshot().decode(),
    }
    return json.dumps(record).encode()


def restore(env: AnyEnv, data: bytes) -> tuple[Any, dict[str, Any]]:
    """Put an environment and the wrappers around it into a saved state.

    Args:
        env: An environment made and wrapped in the same way as the saved one.
        data: What `snapshot` returned.

    Returns:
        The observation and `info` in that state.

    Raises:
        ValueError: If the bytes are no snapshot, or one of another environment or other wrappers.
        RuntimeError: If the replay did not reproduce the saved observation. After either error the
            environment needs a reset.
    """
    wrappers, base = _chain(env)
    try:
        record = checked_record("the record", json.loads(data), format=int, wrappers=list, env=str)
        for entry in record["wrappers"]:
            checked_record("a wrapper's entry", entry, **{"class": str, "state": dict})
        inner = record["env"].encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"restore: this is no snapshot ({type(error).__name__}: {error}); give the bytes that "
            "agentgym_wrappers.snapshot returned (those of TextEnv.snapshot() go to TextEnv.restore)."
        ) from error
    if record["format"] != SNAPSHOT_FORMAT:
        raise ValueError(
            f"restore: the snapshot's format is {record['format']!r}; this version reads {SNAPSHOT_FORMAT}."
        )
    saved = [entry["class"] for entry in record["wrappers"]]
    names = [_name(wrapper) for wrapper in wrappers]
    if saved != names:
        raise ValueError(
            f"restore: the snapshot has the wrappers {_listed(saved)}, but this environment has "
            f"{_listed(names)} (outermost first); make and wrap it as the saved one was."
        )
    try:
        entries = [_load(wrapper, entry["state"]) for wrapper, entry in zip(wrappers, record["wrappers"], strict=True)]
    except BaseException:
        base._running = False  # the wrappers are half restored: only a reset makes the environment usable
        raise
    observation, info = base.restore(inner)
    result: Any = observation
    merged: dict[str, Any] = dict(info)
    for wrapper, entry in zip(reversed(wrappers), reversed(entries), strict=True):
        if isinstance(wrapper, gymnasium.ObservationWrapper):
            result = wrapper.observation(result)
        merged.update(entry)
    return result, merged


def fork(env: AnyEnv) -> AnyEnv:
    """Return a second environment in the same state, which shares nothing with the first.

    The new one is made from `env.spec`, so the environment must come from `gymnasium.make`, and each
    wrapper must record its constructor arguments (`gymnasium.utils.RecordConstructorArgs`).

    Raises:
        ValueError: If the environment cannot be made again or its state cannot be saved.
        gymnasium.error.ResetNeeded: If there was no reset yet.
    """
    data = snapshot(env)
    spec = env.spec
    if spec is None:
        raise ValueError(
            f"fork: {env!r} has no spec to make another one from; make it with gymnasium.make, or make one "
            "yourself and use restore(other, snapshot(env))."
        )
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            raise ValueError(
                f"fork: the wrapper {wrapper.name} does not record its constructor arguments; let it inherit "
                "from gymnasium.utils.RecordConstructorArgs, or use restore(other, snapshot(env))."
            )
    copy: AnyEnv = gymnasium.make(spec)
    try:
        names = [[_name(wrapper) for wrapper in _chain(each)[0]] for each in (env, copy)]
        if names[0] != names[1]:
            raise ValueError(
                f"fork: the environment has the wrappers {_listed(names[0])}, but its spec makes "
                f"{_listed(names[1])}: a Gymnasium spec holds at most one TimeLimit, OrderEnforcing and "
                "PassiveEnvChecker, innermost. Set the limit with gymnasium.make(id, max_episode_steps=...), "
                "with HorizonCurriculum, or use restore(other, snapshot(env))."
            )
        restore(copy, data)
    except BaseException:
        copy.close()
        raise
    return copy


def can_replay(env: AnyEnv) -> bool:
    """Whether `snapshot` and a replay of the actions since restore an episode of this environment."""
    try:
        return _chain(env)[1].deterministic
    except ValueError:
        return False


def _chain(env: AnyEnv) -> tuple[list[AnyWrapper], TextEnv]:
    """The wrappers, outermost first, all of which are known, and the environment inside."""
    wrappers: list[AnyWrapper] = []
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        known = type(inner) in _GYMNASIUM_WRAPPERS or type(inner) in _STATELESS
        if not known and not isinstance(inner, SnapshotWrapper):
            raise ValueError(
                f"snapshot: the state of the wrapper {_name(inner)} is not known. Give it the methods "
                "snapshot_state() -> dict and restore_state(dict) -> dict (see SnapshotWrapper in "
                "agentgym_wrappers/snapshot.py), or leave the wrapper out."
            )
        wrappers.append(inner)
        inner = inner.env
    if not isinstance(inner, TextEnv):
        raise ValueError(f"snapshot: agentgym_envs.TextEnv environments have snapshots, not {inner!r}.")
    return wrappers, inner


def _save(wrapper: AnyWrapper) -> dict[str, Any]:
    if isinstance(wrapper, SnapshotWrapper):
        return wrapper.snapshot_state()
    known = _GYMNASIUM_WRAPPERS.get(type(wrapper))
    return known[0](wrapper) if known else {}


def _load(wrapper: AnyWrapper, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Restore one wrapper; returns what it adds to `info`."""
    try:
        if isinstance(wrapper, SnapshotWrapper):
            return wrapper.restore_state(state)
        if known := _GYMNASIUM_WRAPPERS.get(type(wrapper)):
            known[1](wrapper, state)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"restore: the wrapper {_name(wrapper)} cannot take over its saved state "
            f"({type(error).__name__}: {error}); was the snapshot changed, or made by another version?"
        ) from error
    return {}


def _name(wrapper: AnyWrapper) -> str:
    return f"{type(wrapper).__module__}:{type(wrapper).__qualname__}"


def _listed(names: list[str]) -> str:
    return ", ".join(name.partition(":")[2] for name in names) or "none"
