"""What the tests of vLLM share: a model that it can serve, and what must be installed."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from agentgym_train.engines import Completion
from tests.train.conftest import train_tokenizer

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm")

CONTEXTS = [[5, 6, 7], [9] * 40, [5, 6, 7, 8, 11, 3], [30, 31]]


def save_model(path: Path) -> None:
    """A Llama of two layers with heads of a size that vLLM's kernels know, and with distinct probabilities."""
    tokenizer = train_tokenizer(["abc def ghi, oak planks: write a letter"])
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=4096,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def change(model: PreTrainedModel, scale: float = 0.05, seed: int = 0) -> None:
    """Move all weights, as an update does, though further."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def difference(
    model: PreTrainedModel, context: Sequence[int], reply: Completion, temperature: float = 1.0
) -> torch.Tensor:
    """Differences between a reply's log-probabilities and those of one plain forward pass."""
    tokens = [*context, *reply.tokens]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    logprobs = (logits.float() / temperature).log_softmax(-1)
    plain = torch.gather(logprobs, -1, torch.tensor(tokens[1:])[:, None])[-len(reply.tokens) :, 0]
    return (plain - torch.tensor(reply.logprobs)).abs()
