"""Groups under way: which episodes a step begins, and which it gets back.

With `rollout.max_lag` above 0 a step need not wait for its last episodes: some groups are finished in the steps that
follow, beside the new ones, while the policy moves on. What such an episode's tokens were sampled with stands in
their log-probabilities, so the truncated importance weight of the loss covers the lag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from agentgym_train.trajectory import Episode, Trajectory


@dataclass
class Group:
    """The trajectories of one task and seed.

    Attributes:
        step: In which they were begun.
        trajectories: All of them; `end` is empty while one is under way.
    """

    step: int
    trajectories: list[Trajectory]

    @property
    def done(self) -> bool:
        """Whether every one is finished."""
        return all(trajectory.end for trajectory in self.trajectories)


class GroupsUnderWay:
    """The groups of one scenario that have begun and were not taken yet."""

    def __init__(self, begin: Callable[[Sequence[Episode]], list[Trajectory]], max_lag: int, late_share: float) -> None:
        """Make the list.

        Args:
            begin: Puts episodes behind those that are under way.
            max_lag: Steps that a group may be finished late; 0 lets every step wait for its own.
            late_share: Share of a step's groups that need not be finished in it, if `max_lag` allows.
        """
        self._begin, self._max_lag, self._late_share = begin, max_lag, late_share
        self._groups: list[Group] = []

    @property
    def under_way(self) -> list[Trajectory]:
        """Trajectories that are not finished."""
        return [one for group in self._groups for one in group.trajectories if not one.end]

    def begin(self, step: int, episodes: Sequence[Episode]) -> None:
        """Begin the groups of a step.

        Args:
            step: Its number.
            episodes: The members of a group stand behind each other.
        """
        trajectories = self._begin(episodes)
        self._groups += [Group(step, list(own)) for _, own in groupby(trajectories, key=lambda one: one.group)]

    def enough(self, step: int, begun: int) -> bool:
        """Whether a step that began so many groups has what it needs: enough groups, and none beyond its lag."""
        if not all(group.done for group in self._groups if group.step <= step - self._max_lag):
            return False
        return sum(group.done for group in self._groups) >= math.ceil(begun * (1 - self._late_share))

    def take(self) -> list[Group]:
        """Take the finished groups out."""
        done = [group for group in self._groups if group.done]
        self._groups = [group for group in self._groups if not group.done]
        return done

    def state(self) -> list[dict[str, Any]]:
        """The groups that are left to later steps, for a checkpoint between two steps."""
        return [
            {"step": group.step, "episodes": [asdict(one.episode) for one in group.trajectories]}
            for group in self._groups
        ]

    def restore(self, state: Iterable[dict[str, Any]]) -> None:
        """Begin the groups of a checkpoint again; their episodes start from the beginning."""
        for row in state:
            self.begin(row["step"], [Episode(**episode) for episode in row["episodes"]])
