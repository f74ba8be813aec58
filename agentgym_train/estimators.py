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
    advantages: list[Tensor] = []
    targets: list[Tensor] = []
    for number, row in enumerate(rows):
        cost = torch.zeros(len(row.owners))
        if reference is not None:
            cost = algorithm.kl_coef * (row.logprobs - reference[number].cpu())
        row_advantages, row_targets = torch.zeros_like(cost), torch.zeros_like(cost)
        for owner in row.owners.unique().tolist():
            mine = row.owners == owner
            rewards = token_rewards(batch[owner]) - cost[mine]
            if values is None:
                row_advantages[mine] = returns_to_go(rewards)
            else:
                row_advantages[mine], row_targets[mine] = generalised_advantages(
                    rewards, values[number][mine.to(values[number].device)].cpu(), algorithm.discount, algorithm.trace
                )
        advantages.append(row_advantages)
        targets.append(row_targets)
    return whitened(advantages), targets if values is not None else []
