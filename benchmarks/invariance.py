"""How far a policy gradient depends on how it is computed: it should not, but for rounding.

`python -m benchmarks.invariance` writes docs/results/invariance.md. tests/train/test_invariance.py holds a small
model to the same table.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgym_train import logprobs as logprobs_module
from agentgym_train.logprobs import autocast, token_logprobs
from agentgym_train.memory import recompute_layers, set_update_mode
from agentgym_train.models import demo_model_path, load_model
from agentgym_train.packing import pack
from agentgym_train.trajectory import Trajectory

TEMPERATURE = 0.7
PAGE = Path("docs/results/invariance.md")

# A way to compute: yields, one micro-batch after the other, the log-probabilities of sampled tokens, [n], and the
# trajectory that each belongs to, [n]; those of a trajectory in their order.
Way = Callable[[PreTrainedModel, Sequence[Trajectory]], Iterator[tuple[Tensor, Tensor]]]


def plain(model: PreTrainedModel, batch: Sequence[Trajectory]) -> Iterator[tuple[Tensor, Tensor]]:
    """Hugging Face's forward pass, one trajectory at a time."""
    yield from padded(model, batch, size=1)


def padded(
    model: PreTrainedModel, batch: Sequence[Trajectory], size: int, left: bool = False, extra: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Hugging Face's forward pass over padded batches of `size` trajectories."""
    for start in range(0, len(batch), size):
        members = batch[start : start + size]
        width = max(len(member.tokens) for member in members) + extra
        tokens = torch.zeros(len(members), width, dtype=torch.long)
        real = torch.zeros_like(tokens)
        trained = torch.zeros_like(tokens, dtype=torch.bool)
        for number, member in enumerate(members):
            where = slice(width - len(member.tokens), width) if left else slice(len(member.tokens))
            tokens[number, where] = torch.tensor(member.tokens)
            real[number, where] = 1
            trained[number, where] = torch.tensor(member.mask, dtype=torch.bool)
        positions = (real.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=tokens, attention_mask=real, position_ids=positions, use_cache=False).logits
        distribution = (logits[:, :-1].float() / TEMPERATURE).log_softmax(-1)
        chosen = distribution.gather(-1, tokens[:, 1:, None]).squeeze(-1)
        owners = torch.arange(start, start + len(members))[:, None].expand(-1, width - 1)
        yield chosen[trained[:, 1:]], owners[trained[:, 1:]]


def packed(
    model: PreTrainedModel, batch: Sequence[Trajectory], budget: int, share: bool = True, backwards: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """The trainer's way: rows of at most `budget` tokens."""
    rows = pack(batch, budget, share_prompts=share)
    for row in reversed(rows) if backwards else rows:
        yield token_logprobs(model, row, TEMPERATURE)[0], row.owners


def recomputed(model: PreTrainedModel, batch: Sequence[Trajectory], budget: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The trainer's way with gradient checkpointing."""
    recompute_layers(model)
    set_update_mode(model)
    yield from packed(model, batch, budget)


def in_small_chunks(
    model: PreTrainedModel, batch: Sequence[Trajectory], budget: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The trainer's way with logits made for 5 tokens at a time."""
    usual, logprobs_module.CHUNK = logprobs_module.CHUNK, 5
    try:
        yield from packed(model, batch, budget)
    finally:
        logprobs_module.CHUNK = usual


def ways(longest: int) -> dict[str, Way]:
    """The ways that are compared with `plain`, by what they are.

    Args:
        longest: Tokens of the batch's longest trajectory.
    """
    return {
        "plain, padded on the right, two at a time": lambda m, b: padded(m, b, 2),
        "plain, padded on the right, all at a time, 50 columns more": lambda m, b: padded(m, b, len(b), extra=50),
        "plain, padded on the left, all at a time": lambda m, b: padded(m, b, len(b), left=True),
        "a row a trajectory": lambda m, b: packed(m, b, longest, share=False),
        "rows of a trajectory's size": lambda m, b: packed(m, b, longest),
        "rows of three trajectories' size": lambda m, b: packed(m, b, 3 * longest),
        "the same rows, the last one first": lambda m, b: packed(m, b, 3 * longest, backwards=True),
        "one row": lambda m, b: packed(m, b, 10**9),
        "one row, logits for 5 tokens at a time": lambda m, b: in_small_chunks(m, b, 10**9),
        "one row, layers recomputed": lambda m, b: recomputed(m, b, 10**9),
    }


@dataclass(frozen=True)
class Outcome:
    """What one way gives.

    Attributes:
        logprobs: [sampled tokens] by trajectory.
        loss: The policy loss at a ratio of 1.
        gradient: [weights].
    """

    logprobs: Tensor
    loss: float
    gradient: Tensor


def outcome(model: PreTrainedModel, batch: Sequence[Trajectory], way: Way, precision: str) -> Outcome:
    """Compute loss and gradient with one backward pass per micro-batch; the model is left as it was."""
    own = copy.deepcopy(model)
    advantages = torch.tensor([1.0, -0.5, 2.0, -1.5, 0.25, -0.25] * len(batch))
    trained = sum(trajectory.sampled for trajectory in batch)
    values: list[list[Tensor]] = [[] for _ in batch]
    total = 0.0
    micro_batches = way(own, batch)
    while True:
        with autocast(own, precision):
            try:
                logprobs, owners = next(micro_batches)
            except StopIteration:
                break
        loss = -(advantages[owners] * logprobs).sum() / trained
        loss.backward()
        total += float(loss.detach())
        for owner in owners.unique().tolist():
            values[owner].append(logprobs.detach()[owners == owner])
    gradient = torch.cat([weight.grad.flatten() for weight in own.parameters() if weight.grad is not None])
    return Outcome(torch.cat([part for own_values in values for part in own_values]), total, gradient)


def differences(one: Outcome, other: Outcome) -> tuple[float, float, float]:
    """Largest difference of a log-probability in nats, difference of the loss, relative difference of the gradient."""
    return (
        float((one.logprobs - other.logprobs).abs().max()),
        abs(one.loss - other.loss),
        float((one.gradient - other.gradient).norm() / other.gradient.norm()),
    )


def main() -> None:
    """Write the table for the demo's model."""
    from benchmarks.test_update import textcraft_batch

    model = load_model(str(demo_model_path()))
    batch = textcraft_batch(model, "Depth1")
    tokens = [len(trajectory.tokens) for trajectory in batch]
    table = {}
    for precision in ("float32", "bfloat16"):
        expected = outcome(model, batch, plain, precision)
        for name, way in ways(max(tokens)).items():
            table[name, precision] = differences(outcome(model, batch, way, precision), expected)
            print(precision, name, table[name, precision], flush=True)
    lines = [
        "# Does the gradient depend on how it is computed?",
        "",
        f"SmolLM2-135M, {len(batch)} TextCraft episodes in groups of 3 ({min(tokens)} to {max(tokens)} tokens, "
        f"{sum(t.sampled for t in batch)} of {sum(tokens)} trained), policy loss at a ratio of 1 with unequal "
        f"advantages, temperature {TEMPERATURE}. Each way against Hugging Face's forward pass with one trajectory at "
        "a time: the largest difference of a log-probability in nats, the difference of the loss, and the norm of "
        "the gradient's difference over the gradient's norm. float32: everything; bfloat16: mixed precision, as the "
        "trainer's default.",
        "",
        "| Way | float32: log-probability | loss | gradient | bfloat16: log-probability | loss | gradient |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in ways(0):
        numbers = [f"{value:.1e}" for precision in ("float32", "bfloat16") for value in table[name, precision]]
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    lines += [
        "",
        "What remains is rounding: sums in another order. In bfloat16 a wider or padded batch changes Hugging Face's "
        "own forward pass as much as packing does. `tests/train/test_invariance.py` holds a small model and "
        "trajectories of unequal length to 1e-4 nats and a relative gradient difference of 1e-4 in float32.",
        "",
        f"torch {torch.__version__}, {platform.machine()}, {time.strftime('%Y-%m-%d')}; written by "
        "`python -m benchmarks.invariance`.",
        "",
    ]
    PAGE.write_text("\n".join(lines), encoding="utf-8")
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
