"""The interface of engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import nn


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
    """

    key: str
    tokens: Sequence[int]
    max_tokens: int
    seed: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled reply.

    Attributes:
        tokens: Sampled token ids, the stop token included where one was sampled.
        logprobs: Log-probability of each at the sampling temperature.
        finish: `"stop"` at a stop token, `"length"` at `max_tokens`.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]


class Engine(Protocol):
    """Samples replies for many rollouts at once."""

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Sample one reply per request, in the order of the requests.

        Args:
            requests: At least one request; keys are distinct.
            temperature: Sampling temperature; 0 takes the most probable token.

        Raises:
            EngineError: If the model gives no finite probabilities.
        """
        ...

    def update_weights(self, model: nn.Module) -> None:
        """Take over the weights of the trained model and forget everything computed with older ones."""
        ...

    def release(self, keys: Sequence[str] | None = None) -> None:
        """Free what is kept between turns.

        Args:
            keys: Keys of rollouts that are over; None for all.
        """
        ...
