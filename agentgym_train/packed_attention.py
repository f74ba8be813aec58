"""Attention over packed rows: each span of a row by itself, so nothing is computed between strangers.

A mask over the whole row would cost the square of the row's length in time and memory. With spans the cost is
that of the trajectories one by one, less what they share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

PACKED_ATTENTION = "agentgym_packed"


@dataclass(frozen=True, slots=True)
class Span:
    """A run of a row's tokens, each of which attends to those before it in the span, and to the span's prompt.

    Attributes:
        start: Index in the row of its first token.
        stop: Index after its last one.
        prompt_start: Index of the first token of the prompt that it continues.
        prompt_stop: Index after the prompt's last token; equal to `prompt_start` if the span is a beginning.
    """

    start: int
    stop: int
    prompt_start: int = 0
    prompt_stop: int = 0


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    spans: tuple[Span, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within spans; without them this is PyTorch's scaled dot-product attention.

    Args:
        module: The attention layer.
        query: [1, heads, N, size].
        key: [1, key heads, N, size].
        value: [1, key heads, N, size].
        attention_mask: As for `sdpa`; without use if there are spans.
        spans: They follow each other and cover the row.
        kwargs: What Hugging Face passes on.

    Returns:
        [1, N, heads, size], and None for the weights.
    """
    if spans is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    outputs = []
    for span in spans:
        own, prompt = slice(span.start, span.stop), slice(span.prompt_start, span.prompt_stop)
        keys, values, mask = key[:, :, own], value[:, :, own], None
        if span.prompt_stop > span.prompt_start:
            keys = torch.cat([key[:, :, prompt], keys], dim=2)
            values = torch.cat([value[:, :, prompt], values], dim=2)
            shape = span.stop - span.start, keys.shape[2]
            # The last query sees everything, each one before it one key less.
            mask = torch.ones(shape, dtype=torch.bool, device=key.device).tril(shape[1] - shape[0])[None, None]
        outputs.append(sdpa_attention_forward(module, query[:, :, own], keys, values, mask, **kwargs)[0])
    return torch.cat(outputs, dim=1), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
