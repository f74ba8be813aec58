"""Sampling with a Hugging Face model: runs wherever PyTorch does.

The key-value cache is kept across the turns of an episode, so each turn costs its new tokens only, whoever
else takes a turn at that time. What a context has in common with another, as the members of a group have their
prompt, is computed once, and a reply that has ended costs nothing while others go on.
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

    def __init__(self, cache: RaggedCache, keys: list[str]) -> None:
        self.cache = cache
        self.keys = keys
        self.tokens: list[list[int]] = [[] for _ in keys]

    def continues(self, row: int | None, request: Request) -> bool:
        """Whether a request goes on where a row ends."""
        if row is None:
            return False
        fed = self.tokens[row]
        return len(fed) < len(request.tokens) and list(request.tokens[: len(fed)]) == fed

    def closest(self, context: Sequence[int]) -> tuple[int, int]:
        """The row that begins most like a context, and how many tokens (never all) they have in common."""
        shared = [_common_length(fed, context[:-1]) for fed in self.tokens]
        longest = max(shared)
        return shared.index(longest), longest

    def select(self, rows: list[int], device: torch.device) -> None:
        """Keep these rows, in this order; a row may be repeated."""
        if rows == list(range(len(self.tokens))):
            return
        self.cache.select(torch.tensor(rows, device=device))
        self.tokens = [list(self.tokens[row]) for row in rows]
        self.keys = [self.keys[row] for row in rows]

    def copy(self, sources: list[int], targets: list[int], device: torch.device) -> None:
        """Let rows hold what other rows hold."""
        if targets:
            self.cache.copy(torch.tensor(sources, device=device), torch.tensor(targets, device=device))
            for source, target in zip(sources, targets, strict=True):
                self.tokens[target] = list(self.tokens[source])


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
        self._released: set[str] = set()
        RaggedCache(model.config, size=1)  # refuses at start what it cannot hold

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Sample one reply per request (see `Engine.generate`)."""
        rows, logits = self._feed_requests(requests)
        generators = [random.Random(request.seed) for request in requests]
        sampled: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        stopped = [False for _ in requests]
        active = list(range(len(requests)))
        while True:
            draws = torch.tensor([generators[place].random() for place in active], device=logits.device)
            tokens, chosen = _sample(logits, draws, temperature)
            for place, token, logprob in zip(active, tokens.tolist(), chosen.tolist(), strict=True):
                sampled[place].append(token)
                logprobs[place].append(logprob)
                stopped[place] = token in self._stop
            active = [p for p in active if not stopped[p] and len(sampled[p]) < requests[p].max_tokens]
            if not active:
                break
            # A reply's last token is not fed here: it comes with the next turn's observation.
            logits = self._decode([rows[place] for place in active], [sampled[place][-1] for place in active])
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

    def release(self, keys: Sequence[str] | None = None) -> None:
        """Drop the keys and values of some rollouts, or all (see `Engine.release`)."""
        if keys is None:
            self._contexts = None
            self._released.clear()
        else:
            self._released.update(keys)  # their rows go when the next ones come: until then siblings may use them

    def _feed_requests(self, requests: Sequence[Request]) -> tuple[list[int], Tensor]:
        """Bring every context into the cache.

        Returns:
            The cache row of each request, and the logits after its last token, [requests, vocabulary].
        """
        device = self.model.device
        contexts = self._contexts = self._with_rows_for(requests)
        row_of = {key: row for row, key in enumerate(contexts.keys)}
        rows = [row_of[request.key] for request in requests]
        first: dict[tuple[int, ...], int] = {}  # context -> row that computes it; the others with it get copies
        for request, row in zip(requests, rows, strict=True):
            first.setdefault(tuple(request.tokens), row)
        new = [list(context[len(contexts.tokens[row]) :]) for context, row in first.items()]
        logits = self._feed(list(first.values()), new)
        copies = [(first[tuple(r.tokens)], row) for r, row in zip(requests, rows, strict=True)]
        copies = [(source, target) for source, target in copies if source != target]
        contexts.copy([source for source, _ in copies], [target for _, target in copies], device)
        place_of = {context: place for place, context in enumerate(first)}
        return rows, logits[torch.tensor([place_of[tuple(request.tokens)] for request in requests], device=device)]

    def _with_rows_for(self, requests: Sequence[Request]) -> _Contexts:
        """Give each request a row that holds the beginning of its context, if only a few tokens of it.

        What was released, and rows of the same key that go on otherwise, are dropped.
        """
        contexts = self._contexts
        if contexts is None:
            return _Contexts(RaggedCache(self.model.config, len(requests)), [request.key for request in requests])
        row_of = {key: row for row, key in enumerate(contexts.keys)}
        new = [request for request in requests if not contexts.continues(row_of.get(request.key), request)]
        dropped = self._released | {request.key for request in new}
        kept = [row for row, key in enumerate(contexts.keys) if key not in dropped]
        # Whoever begins alike, such as a sibling, saves computing that part again.
        sources = [contexts.closest(request.tokens) for request in new]
        contexts.select([*kept, *(row for row, _ in sources)], self.model.device)
        for place, (request, (_, shared)) in enumerate(zip(new, sources, strict=True), len(kept)):
            contexts.keys[place] = request.key
            contexts.tokens[place] = contexts.tokens[place][:shared]
        self._released.clear()
        return contexts

    def _feed(self, rows: list[int], new: list[list[int]]) -> Tensor:
        """Append tokens to some rows; returns the logits at their ends, [rows, vocabulary].

        Rows of similar length go together, so that little is computed for nothing.
        """
        by_length = sorted(range(len(rows)), key=lambda place: -len(new[place]))
        logits: list[Tensor] = []
        start = 0
        while start < len(by_length):
            count = max(1, min(_MAX_ROWS, _MAX_TOKENS // len(new[by_length[start]])))
            places = by_length[start : start + count]
            logits.append(self._forward([rows[place] for place in places], [new[place] for place in places]))
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


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of tokens at the beginning that two sequences have in common."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


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
