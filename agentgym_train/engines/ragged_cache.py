"""A key-value cache whose rows have lengths of their own.

Hugging Face's caches give all rows the same number of columns. In multi-turn rollouts, where one reply is
three tokens and another forty, most columns would soon be padding. Here token p of a row stands in
column p of that row, so a query at position p attends to the columns up to p and nothing is padded: what a
shorter chunk leaves in the columns after its end is overwritten before anything can attend to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

_BLOCK = 128  # columns are added by blocks


class RaggedCache(Cache):
    """The cached keys and values of several contexts.

    Call `prepare` before each forward pass; it says which rows the pass is about and where its tokens
    stand.
    """

    def __init__(self, config: PreTrainedConfig, size: int) -> None:
        """Make an empty cache.

        Args:
            config: Configuration of the model.
            size: Number of rows.

        Raises:
            ValueError: If the model has layers other than full attention.
        """
        text = config.get_text_config()
        default = "sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"
        kinds = set(getattr(text, "layer_types", None) or [default])
        if kinds != {"full_attention"}:
            raise ValueError(
                f"the model's layers are {', '.join(sorted(kinds))}; this engine's cache holds full attention only."
            )
        # The layers share this and not the cache: a cycle would keep gigabytes alive until the next collection.
        self._pass = _Pass(size)
        super().__init__(layers=[_RaggedLayer(self._pass) for _ in range(text.num_hidden_layers)])

    def prepare(self, rows: Tensor | None, positions: Tensor) -> Tensor:
        """Announce a forward pass.

        Args:
            rows: [batch] row of each sequence of the pass; None means all rows, in order.
            positions: [batch, width] position of each token in its context.

        Returns:
            The attention mask of the pass, [batch, 1, width, columns], True where attention is allowed.
        """
        columns = int(positions.max()) + 1
        self._pass.rows, self._pass.positions, self._pass.columns = rows, positions, columns
        return (torch.arange(columns, device=positions.device) <= positions[..., None])[:, None]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        for layer in self.layers:
            assert isinstance(layer, _RaggedLayer)
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
        self._pass.size = len(rows)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Let some rows hold what others hold."""
        for layer in self.layers:
            assert isinstance(layer, _RaggedLayer)
            layer.keys[targets], layer.values[targets] = layer.keys[sources], layer.values[sources]


class _Pass:
    """What all layers need to know of the current forward pass."""

    def __init__(self, size: int) -> None:
        self.size = size  # rows of the cache
        self.rows: Tensor | None = None  # [batch] rows of the pass, or None for all of them, in order
        self.positions = torch.empty(0, 0, dtype=torch.long)  # [batch, width]
        self.columns = 0  # columns that the pass attends to


class _RaggedLayer(CacheLayerMixin):
    """One layer's keys and values, [rows, heads, columns, head size]."""

    keys: Tensor
    values: Tensor

    def __init__(self, current: _Pass) -> None:
        super().__init__()
        self._pass = current

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take over type and sizes of the first pass; columns come with `update`."""
        heads = key_states.shape[1]
        self.keys = key_states.new_empty(self._pass.size, heads, 0, key_states.shape[-1])
        self.values = value_states.new_empty(self._pass.size, heads, 0, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 (Hugging Face's signature)
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Store a pass's keys and values; returns all those that it may attend to."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        current = self._pass
        if current.columns > self.keys.shape[2]:
            missing = -(-current.columns // _BLOCK) * _BLOCK - self.keys.shape[2]
            # Zeros, not uninitialized memory: masked columns get weight 0, and 0 * NaN would be NaN.
            self.keys = torch.nn.functional.pad(self.keys, (0, 0, 0, missing))
            self.values = torch.nn.functional.pad(self.values, (0, 0, 0, missing))
        rows = torch.arange(len(key_states), device=key_states.device) if current.rows is None else current.rows
        where = (rows[:, None], slice(None), current.positions)
        self.keys[where] = key_states.transpose(1, 2)
        self.values[where] = value_states.transpose(1, 2)
        keys, values = self.keys[:, :, : current.columns], self.values[:, :, : current.columns]
        return (keys, values) if current.rows is None else (keys[rows], values[rows])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002
        """Length and offset of what a pass attends to."""
        return self._pass.columns, 0

    def get_seq_length(self) -> int:
        """Number of columns of the last pass."""
        return self._pass.columns

    def get_max_length(self) -> int:
        """There is no largest length."""
        return -1
