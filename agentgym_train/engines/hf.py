"""Sampling with a Hugging Face model: runs wherever PyTorch does.

The key-value cache is kept across the turns of an episode, so each turn costs its new tokens only. The
prompt that the members of a group share is computed once, and a reply that has ended costs nothing while
others go on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentgym_train.engines.base import Completion, EngineError, Request
from agentgym_train.engines.decode_attention import DECODE_ATTENTION
from agentgym_train.engines.ragged_cache import RaggedCache

_MAX_ROWS = 16  # contexts of different length that are fed in one pass
_MAX_TOKENS = 8192  # tokens in one pass


class _Contexts:
    """The cached contexts: what has been fed to the model, row by row."""

    def __init__(self, cache: RaggedCache, keys: list[str], tokens: list[list[int]]) -> None:
        self.cache = cache
        self.keys = keys
        self.tokens = tokens

    def select(self, rows: list[int], device: torch.device) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if rows == list(range(len(self.tokens))):
            return
        self.cache.select(torch.tensor(rows, device=device))
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

        Raises:
            ValueError: If the model has layers other than full attention.
        """
        self.model = model.eval()
        if model.config._attn_implementation == "sdpa":
            model.set_attn_implementation(DECODE_ATTENTION)
        self._stop = stop_tokens
        self._contexts: _Contexts | None = None
        RaggedCache(model.config, size=1)  # refuses at start what it cannot hold

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Sample one reply per request (see `Engine.generate`)."""
        logits = self._feed_requests(requests)
        generators = [random.Random(request.seed) for request in requests]
        sampled: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        stopped = [False for _ in requests]
        active = list(range(len(requests)))
        while True:
            draws = torch.tensor([generators[row].random() for row in active], device=logits.device)
            tokens, chosen = _sample(logits, draws, temperature)
            for row, token, logprob in zip(active, tokens.tolist(), chosen.tolist(), strict=True):
                sampled[row].append(token)
                logprobs[row].append(logprob)
                stopped[row] = token in self._stop
            active = [row for row in active if not stopped[row] and len(sampled[row]) < requests[row].max_tokens]
            if not active:
                break
            # A reply's last token is not fed here: it comes with the next turn's observation.
            logits = self._decode(active, [sampled[row][-1] for row in active])
        return [
            Completion(own, own_logprobs, "stop" if stop else "length")
            for own, own_logprobs, stop in zip(sampled, logprobs, stopped, strict=True)
        ]

    @torch.no_grad()
    def update_weights(self, model: nn.Module) -> None:
        """Copy the trained weights (see `Engine.update_weights`)."""
        self.release()
        for mine, trained in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.copy_(trained)

    def release(self) -> None:
        """Drop the key-value cache."""
        self._contexts = None

    def _feed_requests(self, requests: Sequence[Request]) -> Tensor:
        """Bring every context into the cache; returns the logits after its last token, [requests, vocabulary]."""
        device = self.model.device
        known = self._match(requests)
        if known is not None:
            contexts = self._contexts
            assert contexts is not None
            contexts.select(known, device)
            new = [list(request.tokens[len(fed) :]) for request, fed in zip(requests, contexts.tokens, strict=True)]
            return self._feed(new)
        distinct = list(dict.fromkeys(tuple(request.tokens) for request in requests))
        cache = RaggedCache(self.model.config, size=len(distinct))
        self._contexts = _Contexts(cache, ["" for _ in distinct], [[] for _ in distinct])
        logits = self._feed([list(context) for context in distinct])
        row_of = {context: row for row, context in enumerate(distinct)}
        copies = [row_of[tuple(request.tokens)] for request in requests]
        self._contexts.select(copies, device)
        self._contexts.keys = [request.key for request in requests]
        return logits[torch.tensor(copies, device=device)]

    def _match(self, requests: Sequence[Request]) -> list[int] | None:
        """The cached row that each request continues, or None where one of them continues none."""
        if self._contexts is None:
            return None
        row_of = {key: row for row, key in enumerate(self._contexts.keys)}
        matched = []
        for request in requests:
            row = row_of.get(request.key)
            if row is None:
                return None
            fed = self._contexts.tokens[row]
            if len(fed) >= len(request.tokens) or list(request.tokens[: len(fed)]) != fed:
                return None
            matched.append(row)
        return matched

    def _feed(self, new: list[list[int]]) -> Tensor:
        """Append tokens to every row; returns the logits at each row's end, [rows, vocabulary].

        Rows of similar length go together, so that little is computed for nothing.
        """
        by_length = sorted(range(len(new)), key=lambda row: -len(new[row]))
        logits: list[Tensor] = []
        start = 0
        while start < len(by_length):
            count = max(1, min(_MAX_ROWS, _MAX_TOKENS // len(new[by_length[start]])))
            rows = by_length[start : start + count]
            logits.append(self._forward(rows, [new[row] for row in rows]))
            start += count
        order = torch.tensor(by_length, device=self.model.device)
        return torch.cat(logits)[order.argsort()]

    def _decode(self, rows: list[int], tokens: list[int]) -> Tensor:
        """Append one token to some rows; returns the logits after it, [len(rows), vocabulary].

        A pass over some rows copies their keys and values; a pass over all of them does not. So while most
        replies go on, the others get a token that is not recorded, and which the next one overwrites.
        """
        assert self._contexts is not None
        total = len(self._contexts.tokens)
        if 2 * len(rows) <= total:
            return self._forward(rows, [[token] for token in tokens])
        given = dict(zip(rows, tokens, strict=True))
        logits = self._forward(list(range(total)), [[given.get(row, 0)] for row in range(total)], record=rows)
        return logits[torch.tensor(rows, device=logits.device)]

    def _forward(self, rows: list[int], new: list[list[int]], record: Sequence[int] | None = None) -> Tensor:
        """Append tokens to some rows in one pass; returns the logits at their ends, [len(rows), vocabulary].

        Only for the rows in `record` (all by default) do the tokens become part of the context.
        """
        contexts = self._contexts
        assert contexts is not None
        device = self.model.device
        width = max(map(len, new))
        tokens = torch.tensor([own + [0] * (width - len(own)) for own in new], device=device)
        lengths = torch.tensor([len(contexts.tokens[row]) for row in rows], device=device)
        positions = lengths[:, None] + torch.arange(width, device=device)
        every_row = rows == list(range(len(contexts.tokens)))
        mask = contexts.cache.prepare(None if every_row else torch.tensor(rows, device=device), positions)
        ends, end_of_row = torch.unique(torch.tensor([len(own) - 1 for own in new], device=device), return_inverse=True)
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            cache=contexts.cache,
            use_cache=True,
            logits_to_keep=ends,
        )
        recorded = set(rows if record is None else record)
        for row, own in zip(rows, new, strict=True):
            if row in recorded:
                contexts.tokens[row] += own
        return cast(Tensor, output.logits)[torch.arange(len(rows), device=device), end_of_row]


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
