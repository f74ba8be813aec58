"""Loss and gradient do not depend on micro-batches, packing or padding."""

from __future__ import annotations

import pytest
from transformers import PreTrainedModel

from agentgym_train.chat import Chat
from benchmarks.invariance import differences, outcome, plain, ways
from tests.train.test_packing import batch_of


@pytest.mark.parametrize("way", ways(0))
def test_a_way_to_compute_gives_what_one_by_one_gives(model: PreTrainedModel, chat: Chat, way: str) -> None:
    batch = batch_of(chat)
    longest = max(len(trajectory.tokens) for trajectory in batch)
    expected = outcome(model, batch, plain, "float32")
    logprob, loss, gradient = differences(outcome(model, batch, ways(longest)[way], "float32"), expected)
    assert logprob < 1e-4
    assert loss < 1e-5
    assert gradient < 1e-4


def test_a_gradient_of_another_batch_is_told_apart(model: PreTrainedModel, chat: Chat) -> None:
    """The measure of the tests above is not blind: one trajectory less is far outside their bounds."""
    batch = batch_of(chat)
    expected = outcome(model, batch, plain, "float32")
    less = outcome(model, batch[:-1], plain, "float32")
    assert float((less.gradient - expected.gradient).norm() / expected.gradient.norm()) > 1e-2
