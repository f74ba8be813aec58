"""Sampling with a Hugging Face model: runs wherever PyTorch does.

The key-value cache is kept across the turns of an episode, so each turn costs the new tokens only, and
the prompt that the members of a group share is computed once. All rows of the cache have the same number
of columns; where a row has nothing to add in a column, the column is masked for it and takes no position.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from agentgym_train.engines.base import Completion, EngineError, Request


class _Rows:
    """The cached contexts: what has been fed to the model, row by row."""

    def __init__(self, cache: Cache, mask: Tensor, keys: list[str], tokens: list[list[int]]) -> None:
        self.cache = cache
        self.mask = mask  # [rows, columns], 1 where a token of the row stands
        self.keys = keys
        self.tokens = tokens

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if rows == list(range(len(self.tokens))):
            return
        index = torch.tensor(rows, device=self.mask.device)
        self.cache.batch_select_indices(index)
        self.mask = self.mask[index]
        self.tokens = [list(self.tokens[row]) for row in rows]
        self.keys = [self.keys[row] for row in rows]


class HFEngine:
    """Samples with a copy of the trained model.

    The copy may have a smaller dtype than the trained weights; `update_weights` converts. The trainer
    corrects for the difference with truncated importance weights.
    """

    def __init__(self, model: PreTrainedModel, stop_tokens: frozenset[int]) -> None:
        """Make an engine.

        Args:
            model: Model to sample with; the engine owns it.
            stop_tokens: Tokens at which a reply ends.
        """
        self.model = model.eval()
        self._stop = stop_tokens
        self._rows: _Rows | None = None

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Sample one reply per request (see `Engine.generate`)."""
        logits = self._feed_contexts(requests)
        rows = self._rows
        assert rows is not None
        generators = [random.Random(request.seed) for request in requests]
        sampled: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish = ["" for _ in requests]
        while True:
            draws = torch.tensor([generator.random() for generator in generators], device=logits.device)
            tokens, chosen = _sample(logits, draws, temperature)
            for row, (token, logprob) in enumerate(zip(tokens.tolist(), chosen.tolist(), strict=True)):
                if finish[row]:
                    continue
                sampled[row].append(token)
                logprobs[row].append(logprob)
                if token in self._stop:
                    finish[row] = "stop"
                elif len(sampled[row]) >= requests[row].max_tokens:
                    finish[row] = "length"
            if all(finish):
                break
            # A reply's last token is not fed here: it comes with the next turn's observation.
            logits = self._feed([[] if done else [own[-1]] for own, done in zip(sampled, finish, strict=True)])
        return [
            Completion(own, own_logprobs, "stop" if why == "stop" else "length")
            for own, own_logprobs, why in zip(sampled, logprobs, finish, strict=True)
        ]

    @torch.no_grad()
    def update_weights(self, model: nn.Module) -> None:
        """Copy the trained weights (see `Engine.update_weights`)."""
        self.release()
        for mine, trained in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.copy_(trained)

    def release(self) -> None:
        """Drop the key-value cache."""
        self._rows = None

    def _feed_contexts(self, requests: Sequence[Request]) -> Tensor:
        """Bring every context into the cache; returns the logits after its last token, [rows, vocabulary]."""
        matched = self._match(requests)
        if matched is not None:
            rows = self._rows
            assert rows is not None
            rows.select(matched)
            new = [list(request.tokens[len(fed) :]) for request, fed in zip(requests, rows.tokens, strict=True)]
            return self._feed(new)
        distinct = list(dict.fromkeys(tuple(request.tokens) for request in requests))
        device = self.model.device
        self._rows = _Rows(
            DynamicCache(config=self.model.config),
            torch.zeros(len(distinct), 0, dtype=torch.long, device=device),
            ["" for _ in distinct],
            [[] for _ in distinct],
        )
        logits = self._feed([list(context) for context in distinct])
        row_of = {context: row for row, context in enumerate(distinct)}
        expanded = [row_of[tuple(request.tokens)] for request in requests]
        self._rows.select(expanded)
        self._rows.keys = [request.key for request in requests]
        return logits[torch.tensor(expanded, device=device)]

    def _match(self, requests: Sequence[Request]) -> list[int] | None:
        """The cached row that each request continues, or None where one of them continues none."""
        if self._rows is None:
            return None
        row_of = {key: row for row, key in enumerate(self._rows.keys)}
        matched = []
        for request in requests:
            row = row_of.get(request.key)
            if row is None:
                return None
            fed = self._rows.tokens[row]
            if len(fed) >= len(request.tokens) or list(request.tokens[: len(fed)]) != fed:
                return None
            matched.append(row)
        return matched

    def _feed(self, new: list[list[int]]) -> Tensor:
        """Append tokens to the cached rows, none for some; returns the logits at each row's end."""
        rows = self._rows
        assert rows is not None
        device = self.model.device
        width = max(map(len, new))
        # Right-aligned, so that the last column holds the last token of every row that has one.
        tokens = torch.tensor([[0] * (width - len(own)) + own for own in new], device=device)
        mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in new], device=device)
        positions = rows.mask.sum(1, keepdim=True) + mask.cumsum(1) - 1
        rows.mask = torch.cat([rows.mask, mask], dim=1)
        output = self.model(
            input_ids=tokens,
            attention_mask=rows.mask,
            position_ids=positions.clamp(min=0),
            past_key_values=rows.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        for fed, own in zip(rows.tokens, new, strict=True):
            fed += own
        return cast(Tensor, output.logits)[:, -1]


def _sample(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution at a uniform draw.

    Args:
        logits: [rows, vocabulary].
        draws: [rows], uniform in [0, 1).
        temperature: 0 takes the most probable token.

    Returns:
        Token ids and their log-probabilities, each [rows].
    """
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    if not torch.isfinite(logprobs.amax(dim=-1)).all():
        raise EngineError("the model gives probabilities that are not finite; its weights are damaged.")
    if temperature == 0:
        tokens = logprobs.argmax(dim=-1)
    else:
        cumulative = logprobs.exp().cumsum(dim=-1)
        target = draws.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(1)
