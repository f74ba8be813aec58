"""The online algorithms: which trajectories a step trains on, and the advantage of each of their tokens.

All share one data path; `algorithm.name` chooses here and nowhere else. `docs/training.md` has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentgym_train.advantages import (
    GroupAdvantages,
    generalised_advantages,
    group_advantages,
    returns_to_go,
    token_rewards,
    whitened,
)
from agentgym_train.config import AlgorithmConfig
from agentgym_train.packing import Row
from agentgym_train.trajectory import Trajectory

# Their divergence from the reference is a cost in each token's reward, not a term of the loss.
KL_IN_REWARD = ("reinforce++", "ppo")


def choose(trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig) -> GroupAdvantages:
    """Say which trajectories are trained on and, for the group-relative algorithms, with which advantage.

    An episode that ended in an error takes part in nothing. GRPO and RLOO also drop groups without variance.
    """
    valid = [trajectory.end != "error" and trajectory.sampled > 0 for trajectory in trajectories]
    groups = group_advantages(
        [trajectory.reward for trajectory in trajectories],
        [trajectory.group for trajectory in trajectories],
        valid,
        algorithm.normalise_std,
        leave_one_out=algorithm.name == "rloo",
    )
    if algorithm.name in KL_IN_REWARD:
        return GroupAdvantages([0.0] * len(valid), valid, groups.groups, groups.zero_variance)
    return groups


def token_advantages(
    batch: Sequence[Trajectory],
    own: Sequence[float],
    rows: Sequence[Row],
    reference: Sequence[Tensor] | None,
    values: Sequence[Tensor] | None,
    algorithm: AlgorithmConfig,
) -> tuple[list[Tensor], list[Tensor]]:
    """Compute the advantage of every trained token.

    Args:
        batch: The trajectories that are trained on.
        own: Advantage of each trajectory, as `choose` returned it.
        rows: The packed batch.
        reference: Per row, the reference's log-probabilities [n]; None without a KL term.
        values: Per row, the critic's estimates [n]; None without a critic.
        algorithm: Name, weight of the divergence, discounts.

    Returns:
        Per row, the advantages [n]; and the critic's targets [n], or nothing without a critic.
    """
    if algorithm.name not in KL_IN_REWARD:
        by_trajectory = torch.tensor(own)
        return [by_trajectory[row.owners] for row in rows], []
    lengths = [trajectory.sampled for trajectory in batch]
    costs = torch.zeros(sum(lengths))
    if reference is not None:
        apart = [row.logprobs - own.cpu() for row, own in zip(rows, reference, strict=True)]
        costs = algorithm.kl_coef * _by_trajectory(apart, rows, lengths)
    rewards = torch.cat([token_rewards(trajectory) for trajectory in batch]) - costs
    if values is None:
        flat = torch.cat([returns_to_go(own) for own in rewards.split(lengths)])
        return whitened(_by_row(flat, rows, lengths)), []
    estimated = _by_trajectory([own.cpu() for own in values], rows, lengths)
    pairs = [
        generalised_advantages(own_rewards, own_values, algorithm.discount, algorithm.trace)
        for own_rewards, own_values in zip(rewards.split(lengths), estimated.split(lengths), strict=True)
    ]
    advantages, targets = (_by_row(torch.cat(flat), rows, lengths) for flat in zip(*pairs, strict=True))
    return whitened(advantages), targets


def _by_trajectory(pieces: Sequence[Tensor], rows: Sequence[Row], lengths: Sequence[int]) -> Tensor:
    """Values of the trained tokens, given by row, in the order of trajectories and, in each, of its turns."""
    values = torch.empty(sum(lengths))
    for piece, where in zip(pieces, _where(rows, lengths), strict=True):
        values[where] = piece
    return values


def _by_row(values: Tensor, rows: Sequence[Row], lengths: Sequence[int]) -> list[Tensor]:
    """The inverse of `_by_trajectory`."""
    return [values[where] for where in _where(rows, lengths)]


def _where(rows: Sequence[Row], lengths: Sequence[int]) -> list[Tensor]:
    """Per row, where each trained token stands when the trajectories' sampled tokens are put in a line, [n]."""
    before = torch.tensor([0, *lengths]).cumsum(0)
    return [before[row.owners] + row.places for row in rows]
