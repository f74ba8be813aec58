"""Sampling with a Hugging Face model: runs wherever PyTorch does.

The key-value cache is kept across the turns of an episode, so each turn costs its new tokens only, whoever
else takes a turn at that time. What a context has in common with another, as the members of a group have their
prompt, is computed once, and a reply that has ended costs nothing while others go on.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentgym_train.engines.base import Completion, Engine, EngineError, Request
from agentgym_train.engines.choices import Choices
from agentgym_train.engines.decode_attention import DECODE_ATTENTION
from agentgym_train.engines.ragged_cache import RaggedCache
from agentgym_train.lora import has_adapter, merge_adapter, plain_weights
from agentgym_train.packed_attention import PACKED_ATTENTION

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


class _Reply:
    """A reply that is being sampled."""

    def __init__(self, request: Request, temperature: float, stop_tokens: frozenset[int]) -> None:
        self.temperature = temperature
        self.logits: Tensor | None = None  # [vocabulary], of the next token; None if that must be computed first
        self.ended = False
        self.allowed: tuple[int, ...] = ()  # ids among which the next token is chosen; empty for all
        self._stop = stop_tokens
        self._max_tokens = request.max_tokens
        self._random = random.Random(request.seed)
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._among: list[tuple[int, ...]] = []
        self._fed = 0
        self._choices = None if request.choices is None else Choices(request.choices, stop_tokens)
        if self._choices is not None:
            self.allowed = self._choices.allowed()

    def draw(self) -> float:
        """A uniform number for the next token."""
        return self._random.random()

    def append(self, token: int, logprob: float) -> None:
        """Go on with a token, and with those after it that have no alternative."""
        while True:
            self._tokens.append(token)
            self._logprobs.append(logprob)
            self.ended = token in self._stop or len(self._tokens) == self._max_tokens
            if self._choices is None:
                return
            self._among.append(self.allowed)
            if self.ended:
                return
            self._choices.take(token)
            self.allowed = self._choices.allowed()
            if len(self.allowed) > 1:
                return
            token, logprob = self.allowed[0], 0.0

    def take_unfed(self) -> list[int]:
        """The tokens that the model has not been given."""
        new, self._fed = self._tokens[self._fed :], len(self._tokens)
        return new

    def completion(self) -> Completion:
        """The reply as it is."""
        finish: Literal["stop", "length"] = "stop" if self._tokens[-1] in self._stop else "length"
        return Completion(self._tokens, self._logprobs, finish, self._among)


def copy_for_sampling(model: PreTrainedModel, precision: str) -> PreTrainedModel:
    """A copy of a model with its weights in `"float32"` or `"bfloat16"`, and an adapter merged into them."""
    own = copy.deepcopy(model).requires_grad_(False)
    if has_adapter(own):
        merge_adapter(own)
    if precision == "bfloat16":
        for parameter in own.parameters():  # not the buffers: rounded rotary frequencies drift with distance
            parameter.data = parameter.data.to(torch.bfloat16)
    return own


class HFEngine(Engine):
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
        if model.config._attn_implementation == PACKED_ATTENTION:
            model.set_attn_implementation(DECODE_ATTENTION)
        self._stop = stop_tokens
        self._contexts: _Contexts | None = None
        self._released: set[str] = set()
        self._replies: dict[str, _Reply] = {}  # under way, by key
        RaggedCache(model.config, size=1)  # refuses at start what it cannot hold

    @torch.inference_mode()
    def submit(self, requests: Sequence[Request], temperature: float) -> None:
        """Feed the contexts (see `Engine.submit`)."""
        replies = [_Reply(request, temperature, self._stop) for request in requests]
        for reply, logits in zip(replies, self._feed_requests(requests), strict=True):
            reply.logits = logits
        self._replies |= zip((request.key for request in requests), replies, strict=True)

    @torch.inference_mode()
    def collect(self, wait_s: float = 0.0) -> dict[str, Completion]:
        """Sample token by token, for all replies that are under way (see `Engine.collect`)."""
        until = time.monotonic() + wait_s
        done: dict[str, Completion] = {}
        try:
            while self._replies and not done:
                self._sample_next()
                # A reply's last token is not fed here: it comes with the next turn's observation.
                done = {key: reply.completion() for key, reply in self._replies.items() if reply.ended}
                for key in done:
                    del self._replies[key]
                if time.monotonic() >= until:
                    break
        except EngineError:
            self.release()
            raise
        return done

    @torch.no_grad()
    def update_weights(self, model: nn.Module) -> None:
        """Copy the trained weights (see `Engine.update_weights`)."""
        self.release()
        for name, value in plain_weights(model):
            self.model.get_parameter(name).copy_(value)

    def release(self, keys: Sequence[str] | None = None) -> None:
        """Drop the keys and values of some rollouts, or all (see `Engine.release`)."""
        for key in list(self._replies) if keys is None else keys:
            self._replies.pop(key, None)
        if keys is None:
            self._contexts = None
            self._released.clear()
        else:
            self._released.update(keys)  # their rows go when the next ones come: until then siblings may use them

    def _sample_next(self) -> None:
        """Sample the next token of every reply that is under way."""
        pending = {key: reply for key, reply in self._replies.items() if reply.logits is None}
        if pending:
            assert self._contexts is not None
            row_of = {key: row for row, key in enumerate(self._contexts.keys)}
            new = [reply.take_unfed() for reply in pending.values()]
            for reply, logits in zip(pending.values(), self._go_on([row_of[key] for key in pending], new), strict=True):
                reply.logits = logits
        going = list(self._replies.values())
        logits = torch.stack([cast(Tensor, reply.logits) for reply in going])
        draws = torch.tensor([reply.draw() for reply in going], device=logits.device)
        temperatures = torch.tensor([reply.temperature for reply in going], device=logits.device)
        tokens, chosen = _sample(logits, draws, temperatures, [reply.allowed for reply in going])
        for reply, token, logprob in zip(going, tokens.tolist(), chosen.tolist(), strict=True):
            reply.append(token, logprob)
            reply.logits = None

    def _feed_requests(self, requests: Sequence[Request]) -> Tensor:
        """Bring every context into the cache; returns the logits after its last token, [requests, vocabulary]."""
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
        return logits[torch.tensor([place_of[tuple(request.tokens)] for request in requests], device=device)]

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

    def _go_on(self, rows: list[int], new: list[list[int]]) -> Tensor:
        """Append the newest tokens of replies to their rows; returns the logits at their ends, [len(rows), vocabulary].

        A pass over some rows copies their keys and values; a pass over all of them does not. So while most
        replies go on, the others get a token that is not recorded, and which the next one overwrites.
        """
        assert self._contexts is not None
        total = len(self._contexts.tokens)
        if 2 * len(rows) <= total:
            return self._forward(rows, new)
        given = dict(zip(rows, new, strict=True))
        logits = self._forward(list(range(total)), [given.get(row, [0]) for row in range(total)], record=rows)
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


def _sample(
    logits: Tensor, draws: Tensor, temperatures: Tensor, allowed: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution at a uniform draw.

    Args:
        logits: [rows, vocabulary].
        draws: [rows], uniform in [0, 1).
        temperatures: [rows]; 0 takes the most probable token.
        allowed: For each row the ids to choose among; empty for the whole vocabulary.

    Returns:
        Token ids and their log-probabilities, each [rows].
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    for row, ids in enumerate(allowed):
        if ids:
            among = torch.tensor(ids, device=logits.device)
            scaled[row] = torch.full_like(scaled[row], -torch.inf).index_copy(0, among, scaled[row, among])
    logprobs = torch.log_softmax(scaled, dim=-1)
    if not torch.isfinite(logprobs.amax(dim=-1)).all():
        raise EngineError("the model gives probabilities that are not finite; its weights are damaged.")
    cumulative = logprobs.exp().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A draw that is rounded to 1 would fall behind the last token that can be drawn.
    target = torch.minimum(draws.to(total.dtype)[:, None] * total, total.nextafter(torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None]).squeeze(1)
