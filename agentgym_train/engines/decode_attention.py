"""Attention for sampling one token at a time in bfloat16 on a CPU.

PyTorch's kernel is made for many queries. For a single one it was measured 8 (300 cached tokens) to 15 times
(900) slower than two matrix products, which most of a rollout's time then went to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

DECODE_ATTENTION = "agentgym_decode"


def decode_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend from one query per row; anything else goes to PyTorch's kernel.

    Args:
        module: The attention layer.
        query: [rows, heads, width, size].
        key: [rows, key heads, columns, size].
        value: [rows, key heads, columns, size].
        attention_mask: [rows, 1, width, columns], True where attention is allowed.
        kwargs: What Hugging Face passes on, `scaling` among it.

    Returns:
        [rows, width, heads, size], and None for the weights.
    """
    rows, heads, width, size = query.shape
    slow_kernel = width == 1 and query.dtype == torch.bfloat16 and query.device.type == "cpu"
    if not slow_kernel or attention_mask is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return output, None
    scaling = kwargs.get("scaling") or size**-0.5
    groups = query.view(rows, key.shape[1], heads // key.shape[1], size) * scaling
    scores = torch.matmul(groups, key.transpose(2, 3)).masked_fill(~attention_mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).view(rows, 1, heads, value.shape[-1]), None


AttentionInterface.register(DECODE_ATTENTION, decode_attention)
AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)
