"""Log-probabilities of trained tokens: what they are among, what they keep in memory, which models they fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    GPT2Config,
    GraniteConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from agentgym_train import logprobs
from agentgym_train.chat import Chat
from agentgym_train.logprobs import token_logprobs
from agentgym_train.packed_attention import PACKED_ATTENTION
from agentgym_train.packing import pack
from agentgym_train.self_check import packing_problem
from tests.train.test_packing import assert_equal_to_one_by_one, batch_of

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}


def make(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED_ATTENTION)
    for parameter in model.parameters():  # first weights are so small that much would look alike
        parameter.data *= 3
    model.eval()
    return model


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SMALL),
        Qwen3Config(**SMALL),
        GraniteConfig(**SMALL, logits_scaling=4.0, attention_multiplier=0.2),
        CohereConfig(**SMALL, logit_scale=0.25),
    ],
    ids=lambda config: config.model_type,
)
def test_models_are_packed_and_their_logits_scaled_as_they_do(config: PreTrainedConfig, chat: Chat) -> None:
    model = make(config)
    assert packing_problem(model) == ""
    batch = batch_of(chat)
    assert_equal_to_one_by_one(model, batch, pack(batch, 1000), temperature=0.7)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (MistralConfig(**SMALL, sliding_window=64), "layers of sliding_attention"),
        (GPT2Config(vocab_size=512, n_positions=512, n_embd=32, n_layer=2, n_head=4), ""),
    ],
    ids=["mistral", "gpt2"],
)
def test_what_cannot_be_packed_is_trained_one_by_one(config: PreTrainedConfig, problem: str, chat: Chat) -> None:
    model = make(config)
    found = packing_problem(model)
    assert problem in found
    batch = batch_of(chat)
    assert_equal_to_one_by_one(model, batch, pack(batch, 1000, share_prompts=not found))


def test_logits_exist_for_a_few_tokens_at_a_time(
    model: PreTrainedModel, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = pack(batch_of(chat), 100_000)
    vocabulary, head = model.config.vocab_size, model.lm_head.weight
    rows_of_logits: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.shape[-1:] == (vocabulary,) and tensor.data_ptr() != head.data_ptr():
            rows_of_logits.append(tensor.numel() // vocabulary)
        return tensor

    def total() -> float:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            return float(token_logprobs(model, row, 0.7)[0].sum().detach())

    whole = total()
    assert max(rows_of_logits) == len(row.targets)  # in one chunk
    monkeypatch.setattr(logprobs, "CHUNK", 7)
    rows_of_logits.clear()
    assert total() == pytest.approx(whole, rel=1e-6)
    assert not rows_of_logits  # nothing of the vocabulary's size waits for the backward pass


def test_a_token_chosen_among_few_is_compared_with_those_only(model: PreTrainedModel, chat: Chat) -> None:
    (row,) = pack(batch_of(chat)[1:2], 100_000)
    full, full_entropy = token_logprobs(model, row, 0.7)
    assert len(row.targets) == 2
    first = int(row.targets[0])
    # The first token was chosen among three, with the chosen one repeated; the second one among all.
    among = replace(row, choices=torch.tensor([[first, 7, 9, first], [-1, -1, -1, -1]]))
    values, entropy = token_logprobs(model, among, 0.7)
    probabilities = torch.tensor([float(_logprob_of(model, row, token).exp()) for token in (first, 7, 9)])
    probabilities /= probabilities.sum()
    assert float(values[0].detach()) == pytest.approx(math.log(probabilities[0]), abs=1e-5)
    assert float(entropy[0]) == pytest.approx(float(-(probabilities * probabilities.log()).sum()), abs=1e-5)
    torch.testing.assert_close(values[1], full[1])
    torch.testing.assert_close(entropy[1], full_entropy[1])
    values.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


def _logprob_of(model: PreTrainedModel, row: Any, token: int) -> Tensor:
    return token_logprobs(model, replace(row, targets=torch.tensor([token, int(row.targets[1])])), 0.7)[0][0].detach()
