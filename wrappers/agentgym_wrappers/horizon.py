"""A limit on an episode's turns that grows during training, after ScalingInter-RL (arXiv 2509.08755).

A schedule is a pure function from the global training step to the number of turns, so a resumed run
continues with the horizon that it would have had. `HorizonCurriculum` enforces it on any environment.
"""

from __future__ import annotations

import difflib
import itertools
import math
import operator
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar, cast

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import TimeLimit

from agentgym_envs import TextEnv
from agentgym_envs.core import checked_record

ObsType = TypeVar("ObsType")
ActType = TypeVar("ActType")


def _integer(name: str, value: object, least: int) -> int:
    """Return `value` as an int of at least `least` (NumPy integers are accepted, bools are not)."""
    try:
        number = None if isinstance(value, bool) else operator.index(cast(Any, value))
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {value!r}.")
    return number


@dataclass(frozen=True)
class Schedule:
    """Base of the schedules: a monotone non-decreasing function from global step to turns."""

    kind: ClassVar[str]

    def horizon_at(self, step: int) -> int:
        """Return the number of turns that an episode may take.

        Args:
            step: Global training step, at least 0.
        """
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the plain JSON form, from which `schedule_from` makes an equal schedule."""
        return {"kind": self.kind, **asdict(self)}

    def _normalise(self, **least: int) -> None:
        """Check integer fields against their smallest value, and store them as plain ints."""
        for name, smallest in least.items():
            number = _integer(f"{type(self).__name__}: {name}", getattr(self, name), smallest)
            object.__setattr__(self, name, number)


@dataclass(frozen=True)
class FixedHorizon(Schedule):
    """The same horizon throughout.

    Attributes:
        turns: Turns of an episode, at least 1.
    """

    kind: ClassVar[str] = "fixed"
    turns: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        self._normalise(turns=1)

    def horizon_at(self, step: int) -> int:
        """Return `turns`."""
        _integer("step", step, 0)
        return self.turns


@dataclass(frozen=True)
class LinearHorizon(Schedule):
    """Grow by `increment` turns every `every` steps: min(start + increment * floor(step / every), cap).

    ScalingInter-RL's rule: the interaction horizon h grows by delta_h every Delta steps (arXiv 2509.08755).

    Attributes:
        start: Turns at step 0, at least 1.
        increment: Turns added each time, at least 0.
        every: Steps between two increases, at least 1.
        cap: Largest number of turns, at least `start`.
    """

    kind: ClassVar[str] = "linear"
    start: int
    increment: int
    every: int
    cap: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        self._normalise(start=1, increment=0, every=1, cap=1)
        if self.cap < self.start:
            raise ValueError(f"LinearHorizon: cap must be at least start={self.start}, not {self.cap}.")

    def horizon_at(self, step: int) -> int:
        """Return min(start + increment * floor(step / every), cap)."""
        return min(self.start + self.increment * (_integer("step", step, 0) // self.every), self.cap)


@dataclass(frozen=True)
class StagedHorizon(Schedule):
    """Stages that begin at fractions of the run.

    Attributes:
        stages: Pairs (fraction of `total_steps` at which the stage begins, turns). Fractions rise from 0
            and stay below 1, turns do not fall. A stage begins at the first step that is not before it.
        total_steps: Global steps of the whole run, at least 1. The last stage also holds beyond them.
    """

    kind: ClassVar[str] = "staged"
    stages: tuple[tuple[float, int], ...]
    total_steps: int

    def __post_init__(self) -> None:
        """Check the arguments."""
        self._normalise(total_steps=1)
        try:
            stages = tuple((float(fraction), turns) for fraction, turns in self.stages)
        except (TypeError, ValueError):
            raise ValueError(
                "StagedHorizon: stages must be pairs (fraction, turns), such as [(0.0, 10), (0.5, 20)], "
                f"not {self.stages!r}."
            ) from None
        stages = tuple((fraction, _integer("StagedHorizon: turns", turns, 1)) for fraction, turns in stages)
        fractions = [fraction for fraction, _ in stages]
        turns = [number for _, number in stages]
        if not stages or fractions[0] != 0.0:
            raise ValueError(f"StagedHorizon: the first stage must begin at fraction 0, not in {self.stages!r}.")
        if not all(a < b for a, b in itertools.pairwise([*fractions, 1.0])):  # false for NaN too
            raise ValueError(f"StagedHorizon: the fractions must rise and stay below 1, not {fractions}.")
        if turns != sorted(turns):
            raise ValueError(f"StagedHorizon: the turns must not fall from stage to stage, not {turns}.")
        object.__setattr__(self, "stages", stages)

    def horizon_at(self, step: int) -> int:
        """Return the turns of the last stage that has begun."""
        number = _integer("step", step, 0)
        return [turns for fraction, turns in self.stages if number >= self._first_step(fraction)][-1]

    def _first_step(self, fraction: float) -> int:
        # A little less, since 0.07 * 100 is 7.000000000000001, and the stage is meant to begin at step 7.
        return math.ceil(fraction * self.total_steps * (1 - 1e-12))

    def to_dict(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        return {
            "kind": self.kind,
            "stages": [list(stage) for stage in self.stages],
            "total_steps": self.total_steps,
        }


_KINDS: dict[str, type[Schedule]] = {cls.kind: cls for cls in (FixedHorizon, LinearHorizon, StagedHorizon)}


def schedule_from(value: Schedule | Mapping[str, Any] | int) -> Schedule:
    """Make a schedule from its plain form.

    Args:
        value: A schedule, a number of turns, or a mapping with `kind` and the arguments of that kind, e.g.
            `{"kind": "linear", "start": 5, "increment": 5, "every": 100, "cap": 20}`.

    Raises:
        ValueError: If the value describes no schedule.
    """
    if isinstance(value, Schedule):
        return value
    if not isinstance(value, Mapping):
        return FixedHorizon(value)
    arguments = dict(value)
    kind = arguments.pop("kind", None)
    _check_name("horizon schedule: kind", kind, list(_KINDS))
    cls = _KINDS[cast(str, kind)]
    accepted = [field.name for field in fields(cls)]
    for name in arguments:
        _check_name(f"{kind} horizon schedule: key", name, accepted)
    missing = [name for name in accepted if name not in arguments]
    if missing:
        raise ValueError(f"{kind} horizon schedule: {', '.join(missing)} must be given beside {dict(value)!r}.")
    return cls(**arguments)


def _check_name(what: str, name: object, accepted: list[str]) -> None:
    if name not in accepted:
        near = difflib.get_close_matches(str(name), accepted, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{what} {name!r} is unknown; accepted are {', '.join(accepted)}.{hint}")


class HorizonCurriculum(gymnasium.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Cut episodes after a number of turns that depends on the global training step.

    It works on any single environment and belongs outermost. An episode's limit is chosen at its reset
    and nowhere else: `reset(options={"horizon": h})` if given, else the schedule at `global_step`. A turn
    is one call of `step`. Gymnasium's `TimeLimit`s inside are switched off, so the limit moves up as well
    as down; limits of the simulator itself stay.

    At the limit `truncated` is True and `info["end"]` is `"horizon"`. An episode that ends by itself in
    the same turn is `terminated` only. `info["horizon"]` always tells the limit.
    """

    def __init__(
        self,
        env: gymnasium.Env[ObsType, ActType],
        schedule: Schedule | Mapping[str, Any] | int,
        count_episodes: bool = False,
    ) -> None:
        """Wrap an environment.

        Args:
            env: A single environment.
            schedule: A schedule or a plain form of one (see `schedule_from`).
            count_episodes: Whether each reset after the first adds 1 to `global_step`, for training code
                that does not set it.

        Raises:
            ValueError: If the schedule is wrong, or `env` is a vector environment or has a
                HorizonCurriculum already.
        """
        self.schedule = schedule_from(schedule)
        if isinstance(cast(object, env), gymnasium.vector.VectorEnv):
            raise ValueError(
                "HorizonCurriculum wraps single environments, since each counts its own turns; wrap them "
                "inside it: gymnasium.make_vec(id, num_envs=8, env_wrappers=[lambda env: HorizonCurriculum(env, 10)])."
            )
        RecordConstructorArgs.__init__(self, schedule=self.schedule.to_dict(), count_episodes=count_episodes)
        super().__init__(env)
        self.count_episodes = count_episodes
        self._time_limits: list[TimeLimit[Any, Any]] = []
        inner: gymnasium.Env[Any, Any] = env
        while isinstance(inner, gymnasium.Wrapper):
            if isinstance(inner, HorizonCurriculum):
                raise ValueError("HorizonCurriculum: there is one inside already; set its global_step instead.")
            if isinstance(inner, TimeLimit):
                self._time_limits.append(inner)
            inner = inner.env
        _ = env.spec  # TimeLimit caches its spec on the first look: let it see the limit it was made with
        self._global_step = 0
        self._was_reset = False
        self._horizon = 0
        self._turn = 0
        self._running = False
        self._cut = False

    @property
    def global_step(self) -> int:
        """Global training step that the next reset asks the schedule for."""
        return self._global_step

    @global_step.setter
    def global_step(self, step: int) -> None:
        self._global_step = _integer("global_step", step, 0)

    @property
    def horizon(self) -> int:
        """Turns that the current episode may take; 0 before the first reset."""
        return self._horizon

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Start an episode and choose its limit.

        Args:
            seed: Passed on.
            options: `{"horizon": h}` sets this episode's limit; the rest is passed on.

        Raises:
            ValueError: If the horizon is no integer of at least 1.
        """
        self._running = False
        step = self._global_step + (self.count_episodes and self._was_reset)
        if isinstance(options, Mapping) and "horizon" in options:
            horizon = _integer("options['horizon']", options["horizon"], 1)
            options = {name: value for name, value in options.items() if name != "horizon"}
        else:
            horizon = self.schedule.horizon_at(step)
        self._apply(horizon)
        observation, info = self.env.reset(seed=seed, options=options)
        self._global_step = step
        self._was_reset = self._running = True
        self._turn, self._cut = 0, False
        return observation, {**info, "horizon": horizon}

    def step(self, action: ActType) -> tuple[ObsType, float, bool, bool, dict[str, Any]]:
        """Take one turn.

        Raises:
            gymnasium.error.ResetNeeded: If no episode is running.
        """
        if not self._running:
            raise ResetNeeded("HorizonCurriculum: no episode is running; call reset() before step().")
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._turn += 1
        info = {**info, "horizon": self._horizon}
        if terminated:
            truncated = False
        elif not truncated and self._turn >= self._horizon:
            truncated = self._cut = True
            info["end"] = "horizon"
        self._running = not (terminated or truncated)
        return observation, cast(float, reward), terminated, truncated, info

    def snapshot_state(self) -> dict[str, Any]:
        """Return the wrapper's part of `agentgym_wrappers.snapshot`."""
        return {
            "global_step": self._global_step,
            "was_reset": self._was_reset,
            "horizon": self._horizon,
            "turn": self._turn,
            "running": self._running,
            "cut": self._cut,
        }

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take over a saved state; returns the entries that this wrapper adds to `info`.

        Raises:
            ValueError: If it is no state of this wrapper.
        """
        checked_record(
            "the state", state, global_step=int, was_reset=bool, horizon=int, turn=int, running=bool, cut=bool
        )
        self.global_step = state["global_step"]
        self._apply(state["horizon"])
        self._was_reset = state["was_reset"]
        self._turn = state["turn"]
        self._running = state["running"]
        self._cut = state["cut"]
        return {"horizon": self._horizon, **({"end": "horizon"} if self._cut else {})}

    def _apply(self, horizon: int) -> None:
        """Make `horizon` the one limit of the episode."""
        self._horizon = horizon
        for time_limit in self._time_limits:
            time_limit._max_episode_steps = sys.maxsize
        if isinstance(self.unwrapped, TextEnv):
            self.unwrapped.turn_limit = horizon
