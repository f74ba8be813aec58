"""Random choices from `random()` alone, whose stream is the same in every version of Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices."""

    def __init__(self, name: str) -> None:
        """Start the stream of this name."""
        self._random = random.Random(name)

    def integer(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def one(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self._random.random() * len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        """So many different items, or all where there are fewer."""
        left = list(items)
        return [left.pop(int(self._random.random() * len(left))) for _ in range(min(count, len(left)))]

    def chance(self, share: float) -> bool:
        """True with this probability."""
        return self._random.random() < share

    def skewed(self, low: int, high: int) -> int:
        """An integer of the range, small ones more often."""
        return low + int(self._random.random() ** 2 * (high - low + 1))
