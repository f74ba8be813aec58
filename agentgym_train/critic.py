"""The critic of PPO: a model of its own with one output, the reward that is still to come."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentgym_train.config import OptimiserConfig
from agentgym_train.logprobs import autocast, hidden_states
from agentgym_train.memory import set_update_mode
from agentgym_train.packing import Row
from agentgym_train.update import optimiser_step, require_finite


class Critic(nn.Module):
    """Estimates, before each sampled token, the sum of rewards from there to the end of the episode.

    Its body is a copy of the policy's as it is when the critic is made, so it costs the policy's memory again;
    weights that are frozen, as all but an adapter's are, it shares. Its head begins with zeros: the first estimates
    are 0. Its state holds what is trained.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        """Copy the policy's body, without the language-model head."""
        super().__init__()
        shared = {id(weight): weight for weight in policy.base_model.parameters() if not weight.requires_grad}
        self.body = cast(PreTrainedModel, copy.deepcopy(policy.base_model, shared))
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._frozen = {name for name, weight in self.named_parameters() if not weight.requires_grad}
        self.register_state_dict_post_hook(_without_frozen)
        self.register_load_state_dict_post_hook(_not_missing_frozen)

    def forward(self, row: Row) -> Tensor:
        """Return the estimates before a row's trained tokens, [n]."""
        estimates: Tensor = self.head(hidden_states(self.body, row).float()).squeeze(-1)
        return estimates


def estimates(critic: Critic, policy: PreTrainedModel, rows: Sequence[Row], precision: str) -> list[Tensor]:
    """The critic's estimates without gradient, [n] per row."""
    with torch.no_grad(), autocast(policy, precision):
        return [critic(row).float() for row in rows]


def update_critic(
    critic: Critic,
    policy: PreTrainedModel,
    optimiser: torch.optim.AdamW,
    rows: Sequence[Row],
    targets: Sequence[Tensor],
    lr: float,
    config: OptimiserConfig,
    check: Callable[[], None],
) -> dict[str, float]:
    """Take one step on half the mean squared error of the estimates.

    Returns:
        `critic/loss`, `critic/grad_norm`, and `critic/explained`: the share of the targets' variance that the
        estimates explained before the step.

    Raises:
        NumericsError: If anything is not finite.
    """
    set_update_mode(critic)
    together = torch.cat(list(targets))
    optimiser.zero_grad(set_to_none=True)
    total = 0.0
    for row, target in zip(rows, targets, strict=True):
        check()
        with autocast(policy, config.precision):
            values = critic(row).float()
        loss = (values - target.to(values.device)).square().sum() / (2 * len(together))
        require_finite("critic's loss", loss)
        loss.backward()
        total += float(loss.detach())
    norm = optimiser_step(critic, optimiser, lr, config)
    variance = float(together.var(unbiased=False))
    explained = 1 - 2 * total / variance if variance > 0 else 0.0
    return {"critic/loss": total, "critic/grad_norm": norm, "critic/explained": explained}


def _without_frozen(critic: Critic, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in critic._frozen:
        del state[prefix + name]


def _not_missing_frozen(critic: Critic, keys: Any) -> None:
    keys.missing_keys[:] = [name for name in keys.missing_keys if name not in critic._frozen]
