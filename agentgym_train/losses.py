"""The token-level policy loss and its diagnostics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KL_ESTIMATORS = ("k1", "k2", "k3")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Loss of n tokens, each value [n].

    Attributes:
        loss: The term to be weighted, summed and minimised.
        kl: Estimate of the divergence from the reference; zeros without one.
        ratio: Probability ratio between the current policy and the one that the batch began with.
        clipped: 1.0 where the ratio lies outside the clip range on the side that the advantage pushes to.
        importance: Truncated weight between the batch's policy and the engine's.
    """

    loss: Tensor
    kl: Tensor
    ratio: Tensor
    clipped: Tensor
    importance: Tensor


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    engine: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
    kl_coef: float,
    kl_estimator: str,
) -> PolicyLoss:
    """Compute -w * min(r A, clip(r, 1 - low, 1 + high) A) + beta * KL for every sampled token.

    r = exp(logprobs - old) (PPO, arXiv 1707.06347, equation 7; per token as in GRPO, arXiv 2402.03300,
    equation 3). w = min(exp(old - engine), cap) corrects for an engine whose numerics differ from the
    trainer's. The estimators of KL(policy || reference) are k1 = -d, k2 = d^2 / 2 and k3 = e^d - 1 - d, with
    d = reference - logprobs.

    Args:
        logprobs: [n] current policy, with gradient.
        old: [n] the policy that the batch began with, without gradient.
        engine: [n] the engine's values when it sampled.
        reference: [n] the reference policy, or None if there is no KL term.
        advantages: [n] advantage of each token's trajectory.
        clip_low: Lower clip range, in (0, 1).
        clip_high: Upper clip range, above 0.
        importance_cap: Largest importance weight w.
        kl_coef: Weight beta of the KL term.
        kl_estimator: One of `KL_ESTIMATORS`.
    """
    ratio = (logprobs - old).exp()
    importance = (old - engine).exp().clamp(max=importance_cap)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)
    loss = -importance * surrogate
    kl = torch.zeros_like(logprobs)
    if reference is not None:
        difference = reference - logprobs
        if kl_estimator == "k1":
            kl = -difference
        elif kl_estimator == "k2":
            kl = difference.square() / 2
        else:
            kl = difference.exp() - 1 - difference
        loss = loss + kl_coef * kl
    outside = ((ratio > 1 + clip_high) & (advantages > 0)) | ((ratio < 1 - clip_low) & (advantages < 0))
    return PolicyLoss(loss, kl.detach(), ratio.detach(), outside.float(), importance)


def token_weights(owners: Tensor, lengths: Tensor, aggregation: str) -> Tensor:
    """Weight of each token in the batch's loss; the weights of a whole batch add up to 1.

    Args:
        owners: [n] trajectory of each token.
        lengths: [trajectories] sampled tokens of each trajectory of the whole batch.
        aggregation: `"token"`: every token counts the same (sum over tokens / tokens of the batch).
            `"sequence"`: every trajectory counts the same (mean over its tokens, then over trajectories).
    """
    if aggregation == "token":
        return torch.full(owners.shape, 1.0 / float(lengths.sum()))
    return 1.0 / (len(lengths) * lengths[owners].float())
