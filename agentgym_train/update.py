"""Gradient steps: on the policy loss of a batch of rollouts, and on the likelihood of given replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgym_train.config import AlgorithmConfig, OptimiserConfig
from agentgym_train.logprobs import autocast, token_logprobs
from agentgym_train.losses import policy_loss, token_weights
from agentgym_train.memory import set_update_mode
from agentgym_train.packing import Row


class NumericsError(RuntimeError):
    """A loss, log-probability or gradient is not finite; no optimiser step was taken with it."""


def make_optimiser(model: torch.nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """Make AdamW over all weights that are trained."""
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,  # one pass over the weights: on a CPU four times as fast
    )


def reference_logprobs(
    model: PreTrainedModel, rows: Sequence[Row], temperature: float, precision: str, check: Callable[[], None]
) -> list[Tensor]:
    """Log-probabilities of the trained tokens under a fixed model, [n] per row."""
    with torch.no_grad(), autocast(model, precision):
        values = []
        for row in rows:
            check()
            values.append(token_logprobs(model, row, temperature)[0])
        return values


def update_policy(
    model: PreTrainedModel,
    optimiser: torch.optim.AdamW,
    rows: Sequence[Row],
    advantages: Sequence[Tensor],
    lengths: Sequence[int],
    reference: Sequence[Tensor] | None,
    temperature: float,
    lr: float,
    algorithm: AlgorithmConfig,
    optimiser_config: OptimiserConfig,
    check: Callable[[], None],
    engine_tolerance: float = math.inf,
) -> dict[str, float]:
    """Take one optimiser step per pass over the batch.

    The gradient does not depend on how the trajectories are packed into rows: each token's weight is
    fixed beforehand by the whole batch.

    Args:
        model: The policy.
        optimiser: Its optimiser.
        rows: The packed batch.
        advantages: Per row, the advantage of each trained token, [n].
        lengths: Sampled tokens of each trajectory.
        reference: Per row, the reference's log-probabilities; None without a KL term.
        temperature: The sampling temperature.
        lr: Learning rate of this step.
        algorithm: Clip ranges, KL, aggregation and number of passes.
        optimiser_config: Gradient clipping and precision.
        check: Called before each row of the first pass; may raise to abandon the step, which then leaves no trace.
        engine_tolerance: Largest accepted `engine_difference`; of a batch that the policy as it is now has sampled,
            numerics alone make it differ.

    Returns:
        Token-weighted means over all passes: `loss`, `kl`, `entropy`, `clip_fraction`, `ratio`,
        `importance`, `engine_difference` (mean absolute difference of the log-probabilities), `grad_norm`.

    Raises:
        NumericsError: If anything is not finite, or the engine differs too much; no step was taken then.
    """
    set_update_mode(model)
    sampled = torch.tensor(lengths)
    old: list[Tensor] = []
    totals: dict[str, float] = {}
    for epoch in range(algorithm.epochs):
        optimiser.zero_grad(set_to_none=True)
        for number, row in enumerate(rows):
            if epoch == 0:  # later the weights have moved, and the step is carried to its end
                check()
            with autocast(model, optimiser_config.precision):
                logprobs, entropy = token_logprobs(model, row, temperature)
            if epoch == 0:  # the weights have not moved since the rollout
                old.append(logprobs.detach())
            engine = row.logprobs.to(logprobs.device)
            terms = policy_loss(
                logprobs,
                old[number],
                engine,
                None if reference is None else reference[number],
                advantages[number].to(logprobs.device),
                clip_low=algorithm.clip_low,
                clip_high=algorithm.clip_high,
                importance_cap=algorithm.importance_cap,
                kl_coef=algorithm.kl_coef,
                kl_estimator=algorithm.kl_estimator,
            )
            weights = token_weights(row.owners, sampled, algorithm.aggregation).to(logprobs.device)
            loss = (weights * terms.loss).sum()
            require_finite("loss", loss)
            loss.backward()
            measured = {
                "loss": terms.loss.detach(),
                "kl": terms.kl,
                "entropy": entropy,
                "clip_fraction": terms.clipped,
                "ratio": terms.ratio,
                "importance": terms.importance,
                "engine_difference": (old[number] - engine).abs(),
            }
            for name, values in measured.items():
                totals[name] = totals.get(name, 0.0) + float((weights * values).sum()) / algorithm.epochs
        if epoch == 0:
            check_engine_agreement(totals["engine_difference"] * algorithm.epochs, engine_tolerance)
        norm = optimiser_step(model, optimiser, lr, optimiser_config)
        totals["grad_norm"] = totals.get("grad_norm", 0.0) + norm / algorithm.epochs
    return totals


def update_supervised(
    model: PreTrainedModel,
    optimiser: torch.optim.AdamW,
    rows: Sequence[Row],
    lr: float,
    optimiser_config: OptimiserConfig,
    check: Callable[[], None],
) -> dict[str, float]:
    """Take one step on the mean negative log-likelihood of the trained tokens.

    Returns:
        `loss` in nats a token, `grad_norm`, `tokens`.

    Raises:
        NumericsError: If anything is not finite.
    """
    set_update_mode(model)
    tokens = sum(len(row.targets) for row in rows)
    optimiser.zero_grad(set_to_none=True)
    total = 0.0
    for row in rows:
        check()
        with autocast(model, optimiser_config.precision):
            logprobs, _ = token_logprobs(model, row, temperature=1.0)
        loss = -logprobs.sum() / tokens
        require_finite("loss", loss)
        loss.backward()
        total += float(loss.detach())
    norm = optimiser_step(model, optimiser, lr, optimiser_config)
    return {"loss": total, "grad_norm": norm, "tokens": float(tokens)}


def learning_rate(step: int, lr: float, warmup_steps: int) -> float:
    """Linear warm-up to `lr`, then constant: a pure function of the step, so resuming needs no state."""
    return lr * min(1.0, (step + 1) / max(1, warmup_steps))


def optimiser_step(model: torch.nn.Module, optimiser: torch.optim.AdamW, lr: float, config: OptimiserConfig) -> float:
    """Clip the gradient, take a step, and return the norm before clipping.

    Raises:
        NumericsError: If the norm is not finite; no step was taken then.
    """
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    if not math.isfinite(norm):
        raise NumericsError(f"the gradient's norm is {norm}")
    for group in optimiser.param_groups:
        group["lr"] = lr
    optimiser.step()
    return norm


def check_engine_agreement(difference: float, tolerance: float) -> None:
    """Stop training on log-probabilities that are not the policy's.

    Args:
        difference: Mean absolute difference of the engine's log-probabilities and the trainer's, in nats a token.
        tolerance: Largest accepted one.

    Raises:
        NumericsError: If it is larger.
    """
    if difference > tolerance:
        raise NumericsError(
            f"the engine's log-probabilities differ from the trainer's by {difference:.3g} nats a token on average, "
            f"more than algorithm.engine_tolerance={tolerance:g}: the two have different weights, temperature or "
            "precision. Try rollout.precision=float32, or raise the tolerance if the difference is meant"
        )


def require_finite(name: str, value: Tensor) -> None:
    """Raise `NumericsError` unless all values are finite."""
    if not torch.isfinite(value).all():
        raise NumericsError(f"the {name} is {float(value.detach())}")
