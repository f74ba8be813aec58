"""Log-probabilities of trained tokens, with logits made only where a token is trained."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentgym_train.packing import Row

_CHUNK = 256  # trained tokens whose [tokens, vocabulary] float32 values exist at one time


def autocast(model: PreTrainedModel, dtype: str) -> AbstractContextManager[object]:
    """Mixed precision for the model's device: `"bfloat16"`, or `"float32"` for none."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(model.device.type, dtype=torch.bfloat16)


def token_logprobs(model: PreTrainedModel, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of a row's n trained tokens, and the entropy of their distributions.

    Args:
        model: Any causal language model whose forward takes `logits_to_keep`.
        row: A packed row.
        temperature: The sampling temperature; the logits are divided by it, as the engine did.

    Returns:
        Log-probabilities [n], with gradient where enabled, and entropies [n] in nats, without.
    """
    device = model.device
    output = model(
        input_ids=row.tokens[None].to(device),
        attention_mask=None if row.allowed is None else row.allowed[None, None].to(device),
        position_ids=row.positions[None].to(device),
        logits_to_keep=row.predictors.to(device),
        use_cache=False,
    )
    pieces = [
        checkpoint(_logprobs_and_entropy, logits, targets, temperature or 1.0, use_reentrant=False)
        for logits, targets in zip(output.logits[0].split(_CHUNK), row.targets.to(device).split(_CHUNK), strict=True)
    ]
    return torch.cat([logprobs for logprobs, _ in pieces]), torch.cat([entropy for _, entropy in pieces])


def _logprobs_and_entropy(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    distribution = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = distribution.gather(-1, targets[:, None]).squeeze(1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return chosen, entropy
