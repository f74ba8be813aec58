"""Replies that are chosen from a list, token by token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from agentgym_train.engines.base import EngineError


class Choices:
    """The listed replies that begin with what has been sampled so far."""

    def __init__(self, replies: Sequence[Sequence[int]], stop_tokens: Collection[int]) -> None:
        """Begin with all of them.

        Args:
            replies: Token ids of each reply.
            stop_tokens: Tokens at which a reply ends.

        Raises:
            EngineError: If there is none, or a stop token stands anywhere but at a reply's end.
        """
        for reply in replies:
            if [token in stop_tokens for token in reply] != [False] * (len(reply) - 1) + [True]:
                raise EngineError(f"the listed reply {list(reply)} does not hold one stop token, at its end.")
        if not replies:
            raise EngineError("the list of replies to choose from is empty.")
        self._left = list(replies)
        self._length = 0

    def allowed(self) -> tuple[int, ...]:
        """Token ids that can come next, in rising order."""
        return tuple(sorted({reply[self._length] for reply in self._left}))

    def take(self, token: int) -> None:
        """Go on with one of them."""
        self._left = [reply for reply in self._left if reply[self._length] == token]
        self._length += 1
