"""The interface of engines."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

_PATIENCE_S = 60.0  # of one call of `collect`; engines have time limits of their own


class EngineError(RuntimeError):
    """The engine cannot go on, for instance because the model gives no finite probabilities."""


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to sample.

    Attributes:
        key: Name of the rollout; the next turn of the same rollout uses the same key, which lets an
            engine keep what it computed for the earlier turns.
        tokens: The whole context so far.
        max_tokens: Largest number of tokens to sample, the end-of-turn token included.
        seed: Seed of this reply's sampling; the same seed and context give the same reply.
        choices: If given, the replies among which one is sampled, as token ids that end with a stop token and hold
            no other. Each token then has the model's probability divided by that of all tokens which could stand in
            its place. An engine that cannot do this raises EngineError (see `refuse_choices`).
    """

    key: str
    tokens: Sequence[int]
    max_tokens: int
    seed: str
    choices: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled reply.

    Attributes:
        tokens: Sampled token ids, the stop token included where one was sampled.
        logprobs: Log-probability of each at the sampling temperature.
        finish: `"stop"` at a stop token, `"length"` at `max_tokens`.
        allowed: For a request with choices, the token ids among which each token was sampled, else empty.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    allowed: list[tuple[int, ...]] = field(default_factory=list)


class Engine(ABC):
    """Samples replies for many rollouts at once.

    Replies are begun with `submit` and taken with `collect`, so that one which is complete waits for no other.
    """

    @abstractmethod
    def submit(self, requests: Sequence[Request], temperature: float) -> None:
        """Begin replies; `collect` goes on with them.

        Args:
            requests: Their keys are distinct, also from those of the replies under way.
            temperature: Sampling temperature; 0 takes the most probable token.

        Raises:
            EngineError: If the engine cannot take them; none of them is under way then.
        """

    @abstractmethod
    def collect(self, wait_s: float = 0.0) -> dict[str, Completion]:
        """Go on until a reply is complete, or until about `wait_s` seconds have passed.

        Returns:
            The completed replies by their requests' keys.

        Raises:
            EngineError: If the engine cannot go on. No reply is under way then.
        """

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Sample one reply per request, in the order of the requests, while nothing else is under way.

        Args:
            requests: Their keys are distinct.
            temperature: Sampling temperature; 0 takes the most probable token.

        Raises:
            EngineError: If the engine cannot go on.
        """
        replies: dict[str, Completion] = {}
        self.submit(requests, temperature)
        while len(replies) < len(requests):
            replies |= self.collect(_PATIENCE_S)
        return [replies[request.key] for request in requests]

    @abstractmethod
    def update_weights(self, model: nn.Module) -> None:
        """Take over the weights of the trained model and forget everything computed with older ones.

        Raises:
            EngineError: If the engine's weights are not the model's afterwards.
        """

    @abstractmethod
    def release(self, keys: Sequence[str] | None = None) -> None:
        """Free what is kept between turns.

        Args:
            keys: Keys of rollouts that are over; None for all, and for replies that are under way.
        """

    def close(self) -> None:
        """Free everything that the engine holds; it cannot be used afterwards. Twice is fine."""
        self.release()


def seed_number(seed: str) -> int:
    """A seed for engines that take numbers: 63 bits that depend on every character."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big") >> 1


def refuse_long(requests: Sequence[Request], max_context: int, engine: str) -> None:
    """Raise for requests whose reply might not fit, before an engine shortens one or refuses all.

    Args:
        requests: What the engine is asked for.
        max_context: Largest number of tokens of a context and its reply.
        engine: What the user calls the engine.

    Raises:
        EngineError: If one could be longer.
    """
    for request in requests:
        if len(request.tokens) + request.max_tokens > max_context:
            raise EngineError(
                f"the context of {request.key} has {len(request.tokens)} tokens, which leaves no room for a reply of "
                f"{request.max_tokens} within the {max_context} that {engine} was started for."
            )


def refuse_choices(requests: Sequence[Request], engine: str) -> None:
    """Raise for requests with choices, in an engine that cannot keep to them.

    Args:
        requests: What the engine is asked for.
        engine: What the user calls it.

    Raises:
        EngineError: If a request has choices.
    """
    if any(request.choices is not None for request in requests):
        raise EngineError(
            f"the engine {engine} cannot choose among listed replies (agent.constrained=true); the engine hf can."
        )
