"""Advantages of trajectories, relative to their group."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of a batch.

    Attributes:
        values: One advantage per trajectory; 0.0 where the trajectory is not trained on.
        trained: Whether each trajectory is trained on.
        groups: Number of groups.
        zero_variance: Number of groups that were dropped because all their rewards are equal.
    """

    values: list[float]
    trained: list[bool]
    groups: int
    zero_variance: int


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    valid: Sequence[bool],
    normalise_std: bool = True,
) -> GroupAdvantages:
    """Compute A_i = (r_i - mean(r)) / std(r) over each group (GRPO, arXiv 2402.03300, section 4.1.2).

    Only valid trajectories enter a group's mean and (sample) standard deviation. A group whose valid
    rewards are all equal teaches nothing and is dropped whole, from the KL term too.

    Args:
        rewards: Sum of rewards of each trajectory.
        groups: Group of each trajectory; members need not stand together.
        valid: False for trajectories that ended in an error.
        normalise_std: False leaves the division out (Dr. GRPO, arXiv 2503.20783).

    Raises:
        ValueError: If a reward of a valid trajectory is not finite.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        bucket = members.setdefault(group, [])
        if valid[index]:
            if not math.isfinite(rewards[index]):
                raise ValueError(f"the reward of trajectory {index} (group {group!r}) is {rewards[index]}.")
            bucket.append(index)
    values = [0.0] * len(rewards)
    trained = [False] * len(rewards)
    zero_variance = 0
    for indices in members.values():
        own = np.array([rewards[index] for index in indices], dtype=np.float64)
        if len(own) < 2 or np.ptp(own) < 1e-8:
            zero_variance += 1
            continue
        centred = own - own.mean()
        scaled = centred / own.std(ddof=1) if normalise_std else centred
        for index, value in zip(indices, scaled, strict=True):
            values[index] = float(value)
            trained[index] = True
    return GroupAdvantages(values, trained, len(members), zero_variance)
