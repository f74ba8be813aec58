"""Packed rows give the log-probabilities and gradients of the trajectories computed one by one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.chat import Chat
from agentgym_train.logprobs import token_logprobs
from agentgym_train.models import load_model
from agentgym_train.packed_attention import Span
from agentgym_train.packing import Row, pack
from agentgym_train.trajectory import Episode, Trajectory


def trajectory_of(chat: Chat, prompt: str, turns: Sequence[str], sample: int = 0) -> Trajectory:
    trajectory = Trajectory(Episode(prompt, 0, sample, 9, ""))
    trajectory.append_given(chat.prompt("Reply.", prompt))
    trajectory.prompt_length = len(trajectory.tokens)
    for reply in turns:
        tokens = chat.reply(reply)
        trajectory.append_sampled(tokens, [-0.1 * (k + 1) for k in range(len(tokens))])
        trajectory.append_given(chat.after_reply(f"answer to {reply}", ended=True))
    return trajectory


def batch_of(chat: Chat) -> list[Trajectory]:
    """Two groups, not contiguous, with unequal lengths; and one trajectory alone."""
    return [
        trajectory_of(chat, "write e", ["eee", "see"], 0),
        trajectory_of(chat, "xyz: write t", ["t"], 0),
        trajectory_of(chat, "write e", ["lee o", "e", "tree log"], 1),
        trajectory_of(chat, "write e", ["no"], 2),
        trajectory_of(chat, "xyz: write t", ["at it", "tt"], 1),
        trajectory_of(chat, "o " * 20, ["oooo"], 0),
    ]


def by_trajectory(model: PreTrainedModel, rows: Sequence[Row], count: int, temperature: float) -> list[Tensor]:
    """Log-probabilities of the trained tokens of each trajectory."""
    values: list[list[Tensor]] = [[] for _ in range(count)]
    for row in rows:
        logprobs, entropy = token_logprobs(model, row, temperature)
        assert logprobs.shape == entropy.shape == row.targets.shape
        for owner, value in zip(row.owners.tolist(), logprobs, strict=True):
            values[owner].append(value)
    return [torch.stack(own) for own in values]


def gradients(model: PreTrainedModel, values: Sequence[Tensor]) -> list[Tensor]:
    """Gradient of a sum in which every trajectory has a weight of its own."""
    model.zero_grad()
    torch.stack([(k - 2.5) * own.sum() for k, own in enumerate(values)]).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def plain_logprobs(model: PreTrainedModel, trajectory: Trajectory, temperature: float) -> Tensor:
    logits = model(input_ids=torch.tensor([trajectory.tokens])).logits[0, :-1]
    targets = torch.tensor(trajectory.tokens[1:])
    logprobs = (logits / temperature).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    return torch.masked_select(logprobs, torch.tensor(trajectory.mask[1:], dtype=torch.bool))


def assert_equal_to_one_by_one(
    model: PreTrainedModel, batch: list[Trajectory], rows: Sequence[Row], temperature: float = 1.0
) -> None:
    expected = [plain_logprobs(model, trajectory, temperature) for trajectory in batch]
    values = by_trajectory(model, rows, len(batch), temperature)
    for own, plain in zip(values, expected, strict=True):
        torch.testing.assert_close(own, plain, atol=2e-5, rtol=1e-5)
    for own, plain in zip(gradients(model, values), gradients(model, expected), strict=True):
        # float32 sums in another order: relative to the largest entry of the tensor
        torch.testing.assert_close(own, plain, atol=1e-4 * float(plain.abs().max()), rtol=1e-4)


@pytest.mark.parametrize("budget", [1, 60, 100, 200, 100_000])
def test_packed_rows_equal_one_by_one(model: PreTrainedModel, chat: Chat, budget: int) -> None:
    batch = batch_of(chat)
    assert_equal_to_one_by_one(model, batch, pack(batch, budget), temperature=0.7)


def test_a_model_that_asks_for_another_attention_is_packed_rightly(
    model: PreTrainedModel, chat: Chat, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "attn_implementation": "eager"}))
    batch = batch_of(chat)
    assert_equal_to_one_by_one(load_model(str(tmp_path)), batch, pack(batch, 1000))


def test_rows_without_shared_prompts_equal_one_by_one(model: PreTrainedModel, chat: Chat) -> None:
    batch = batch_of(chat)
    rows = pack(batch, 1000, share_prompts=False)
    assert [row.tokens.tolist() for row in rows] == [trajectory.tokens for trajectory in batch]
    assert all(row.spans is None for row in rows)
    assert_equal_to_one_by_one(model, batch, rows)


def test_packed_rows_of_the_demo_model_equal_one_by_one(
    demo_model: PreTrainedModel, demo_tokenizer: PreTrainedTokenizerBase
) -> None:
    chat = Chat(demo_tokenizer)
    batch = [trajectory_of(chat, "stick", ["get 1", "go"], 0), trajectory_of(chat, "stick", ["craft"], 1)]
    (row,) = pack(batch, 1000)
    assert_equal_to_one_by_one(demo_model, batch, [row])


def test_a_hand_made_row() -> None:
    """Prompt 1 2 3; one member replies 4 5, reads 6 and replies 7, the other replies 8."""
    first = Trajectory(Episode("t", 0, 0, 9, ""))
    first.append_given([1, 2, 3])
    first.prompt_length = 3
    first.append_sampled([4, 5], [-0.4, -0.5])
    first.append_given([6])
    first.append_sampled([7], [-0.7])
    second = Trajectory(Episode("t", 0, 1, 9, ""))
    second.append_given([1, 2, 3])
    second.prompt_length = 3
    second.append_sampled([8], [-0.8])
    (row,) = pack([first, second], 100)
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 3]
    assert row.targets.tolist() == [4, 5, 7, 8]
    # The first token of each reply to the prompt is predicted by the prompt's last one.
    assert row.predictors.tolist() == [2, 3, 5, 2]
    assert row.owners.tolist() == [0, 0, 0, 1]
    assert row.logprobs.tolist() == pytest.approx([-0.4, -0.5, -0.7, -0.8])
    assert row.unpacked == 11
    # The prompt by itself; then each reply, which also attends to the prompt.
    assert row.spans == (Span(0, 3), Span(3, 7, 0, 3), Span(7, 8, 0, 3))


@pytest.mark.parametrize("budget", [1, 60, 100, 200, 100_000])
def test_rows_keep_to_the_budget_and_hold_every_sampled_token_once(chat: Chat, budget: int) -> None:
    batch = batch_of(chat)
    rows = pack(batch, budget)
    for row in rows:
        assert len(row.tokens) <= budget or len(set(row.owners.tolist())) == 1
    for index, trajectory in enumerate(batch):
        own = [token for row in rows for token, owner in zip(row.targets.tolist(), row.owners.tolist(), strict=True)
               if owner == index]  # fmt: skip
        assert own == [token for token, flag in zip(trajectory.tokens, trajectory.mask, strict=True) if flag]
    assert sum(row.unpacked for row in rows) == sum(len(trajectory.tokens) for trajectory in batch)
    if budget > 10_000:
        prompts = {tuple(trajectory.tokens[: trajectory.prompt_length]) for trajectory in batch}
        replies = sum(len(trajectory.tokens) - trajectory.prompt_length for trajectory in batch)
        assert [len(row.tokens) for row in rows] == [sum(map(len, prompts)) + replies]
    if budget == 1:
        assert len(rows) == len(batch)
