"""The token-level loss, against numbers computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from agentgym_train.losses import PolicyLoss, policy_loss, token_weights


def log(*values: float) -> Tensor:
    return torch.tensor([math.log(value) for value in values])


def loss_of(
    ratios: list[float],
    advantages: list[float],
    *,
    importance: float = 1.0,
    reference: list[float] | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    importance_cap: float = 2.0,
    kl_coef: float = 0.0,
    kl_estimator: str = "k3",
) -> tuple[PolicyLoss, Tensor]:
    """Loss where the old policy gives every token 0.1; ratios, importance and reference are relative to it."""
    old = log(*[0.1] * len(ratios))
    logprobs = log(*(0.1 * ratio for ratio in ratios)).requires_grad_()
    terms = policy_loss(
        logprobs,
        old,
        old - math.log(importance),
        None if reference is None else log(*(0.1 * value for value in reference)),
        torch.tensor(advantages),
        clip_low=clip_low,
        clip_high=clip_high,
        importance_cap=importance_cap,
        kl_coef=kl_coef,
        kl_estimator=kl_estimator,
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    return terms, gradient


def test_clipping_on_both_sides() -> None:
    ratios = [1.0, 1.5, 1.5, 0.5, 0.5, 1.1]
    advantages = [2.0, 2.0, -2.0, 2.0, -2.0, 1.0]
    terms, gradient = loss_of(ratios, advantages)
    # min(r A, clip(r) A): a gain is capped at 1.2 and 0.8, a loss is not.
    assert terms.loss.tolist() == pytest.approx([-2.0, -2.4, 3.0, -1.0, 1.6, -1.1])
    assert terms.clipped.tolist() == [0, 1, 0, 0, 1, 0]
    assert terms.ratio.tolist() == pytest.approx(ratios)
    # d(-r A)/d logprob = -r A where the cap does not hold, 0 where it does
    assert gradient.tolist() == pytest.approx([-2.0, 0.0, 3.0, -1.0, 0.0, -1.1])


def test_asymmetric_clipping() -> None:
    terms, _ = loss_of([1.25, 1.35, 0.85, 0.75], [1.0, 1.0, -1.0, -1.0], clip_low=0.1, clip_high=0.3)
    assert terms.loss.tolist() == pytest.approx([-1.25, -1.3, 0.9, 0.9])
    assert terms.clipped.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("estimator", "kl", "slope"),
    [
        # reference / policy = 2 and 1/2, d = ln 2 and -ln 2; slope is the derivative by the log-probability
        ("k1", [-math.log(2), math.log(2)], [1.0, 1.0]),
        ("k2", [math.log(2) ** 2 / 2, math.log(2) ** 2 / 2], [-math.log(2), math.log(2)]),
        ("k3", [2 - 1 - math.log(2), 0.5 - 1 + math.log(2)], [-1.0, 0.5]),
    ],
)
def test_kl_estimators(estimator: str, kl: list[float], slope: list[float]) -> None:
    terms, gradient = loss_of([1.0, 1.0], [0.0, 0.0], reference=[2.0, 0.5], kl_coef=0.1, kl_estimator=estimator)
    assert terms.kl.tolist() == pytest.approx(kl)
    assert terms.loss.tolist() == pytest.approx([0.1 * value for value in kl])
    assert gradient.tolist() == pytest.approx([0.1 * value for value in slope])


def test_no_reference_no_kl() -> None:
    terms, _ = loss_of([1.0], [1.0], kl_coef=0.1)
    assert terms.kl.tolist() == [0.0]
    assert terms.loss.tolist() == pytest.approx([-1.0])


@pytest.mark.parametrize(("importance", "weight"), [(0.5, 0.5), (1.5, 1.5), (7.0, 2.0)])
def test_importance_weights_are_truncated(importance: float, weight: float) -> None:
    terms, gradient = loss_of([1.1], [1.0], importance=importance, reference=[1.1], kl_coef=1.0)
    assert terms.importance.tolist() == pytest.approx([weight])
    assert terms.loss.tolist() == pytest.approx([-1.1 * weight])  # the divergence here is 0
    assert gradient.tolist() == pytest.approx([-1.1 * weight], abs=1e-6)  # the weight itself has no gradient


def test_token_weights_by_hand() -> None:
    owners, lengths = torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([2, 4])
    assert token_weights(owners, lengths, "token").tolist() == pytest.approx([1 / 6] * 6)
    assert token_weights(owners, lengths, "sequence").tolist() == pytest.approx([1 / 4] * 2 + [1 / 8] * 4)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_the_weights_of_a_batch_add_up_to_1_however_it_is_split(aggregation: str) -> None:
    lengths = torch.tensor([3, 1, 7])
    owners = torch.repeat_interleave(torch.arange(3), lengths)
    whole = token_weights(owners, lengths, aggregation)
    assert float(whole.sum()) == pytest.approx(1.0)
    parts = [token_weights(part, lengths, aggregation) for part in owners.split(4)]
    assert torch.equal(torch.cat(parts), whole)
