"""Advantages: of trajectories, relative to their group, and of single tokens."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentgym_train.trajectory import Trajectory


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
    leave_one_out: bool = False,
) -> GroupAdvantages:
    """Compute A_i = (r_i - mean(r)) / std(r) over each group (GRPO, arXiv 2402.03300, section 4.1.2).

    With `leave_one_out` it is A_i = r_i - mean of the others' rewards (RLOO, arXiv 2402.14740, section 3.2).

    Only valid trajectories enter a group's mean and (sample) standard deviation. A group whose valid
    rewards are all equal teaches nothing and is dropped whole, from the KL term too.

    Args:
        rewards: Sum of rewards of each trajectory.
        groups: Group of each trajectory; members need not stand together.
        valid: False for trajectories that ended in an error.
        normalise_std: False leaves the division out (Dr. GRPO, arXiv 2503.20783).
        leave_one_out: Compare each with the mean of the others; nothing is divided then.

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
        scaled = own - own.mean()
        if leave_one_out:
            scaled *= len(own) / (len(own) - 1)
        elif normalise_std:
            scaled /= own.std(ddof=1)
        for index, value in zip(indices, scaled, strict=True):
            values[index] = float(value)
            trained[index] = True
    return GroupAdvantages(values, trained, len(members), zero_variance)


def token_rewards(trajectory: Trajectory) -> Tensor:
    """Rewards of a trajectory's sampled tokens, [sampled]: each turn's at the last token of its reply.

    Of several trials the last one counts, as it does for `Trajectory.reward`.
    """
    rewards = torch.zeros(trajectory.sampled)
    stop = 0
    for turn in trajectory.turns:
        stop += turn.stop - turn.start
        if turn.trial == trajectory.trials:
            rewards[stop - 1] += turn.reward
    return rewards


def returns_to_go(rewards: Tensor) -> Tensor:
    """Sum of each token's reward and all later ones, [n]."""
    return rewards.flip(0).cumsum(0).flip(0)


def generalised_advantages(rewards: Tensor, values: Tensor, discount: float, trace: float) -> tuple[Tensor, Tensor]:
    """Compute generalised advantage estimates (GAE, arXiv 1506.02438, equation 16) over sampled tokens.

    delta_t = r_t + discount * V_{t+1} - V_t and A_t = delta_t + discount * trace * A_{t+1}. Nothing comes after
    the last token, whether the task ended the episode or a horizon did: the policy is trained for the turns that
    it has.

    Args:
        rewards: [n] of the tokens that the policy sampled in one trajectory; others are not counted as steps.
        values: [n] the critic's estimate before each of them.
        discount: Discount of a token, gamma.
        trace: Lambda.

    Returns:
        Advantages [n], and returns [n] that the critic learns: advantages + values.
    """
    advantages = torch.zeros_like(values)
    later = following = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = float(rewards[t]) + discount * following - float(values[t])
        later = delta + discount * trace * later
        advantages[t] = later
        following = float(values[t])
    return advantages, advantages + values


def whitened(pieces: Sequence[Tensor]) -> list[Tensor]:
    """Shift and scale values to mean 0 and standard deviation 1 over all pieces together."""
    if not pieces:
        return []
    together = torch.cat(list(pieces)).double()  # in single precision, equal values would be scaled by their rounding
    mean, scale = together.mean(), together.std(unbiased=False)
    return [((piece.double() - mean) / (scale + 1e-8)).to(piece.dtype) for piece in pieces]
