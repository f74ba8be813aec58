"""The environment of letters with a list of actions, some of which begin alike."""

from typing import Any

from gymnasium.error import ResetNeeded

from tests.train.letters_env import LettersEnv


class ListingEnv(LettersEnv):
    """The list is shorter once something was written; one action solves the task at once."""

    def available_actions(self) -> list[str]:
        if self._record is None:
            raise ResetNeeded("call reset() first")
        whole = self.letter * 10
        return [whole, "see tree", "see log", "no"] if self.count == 0 else [whole, "see tree"]


class UnlikeEnv(ListingEnv):
    """Begins otherwise each time, whatever the seed."""

    starts = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Any]:
        observation, info = super().reset(seed=seed, options=options)
        UnlikeEnv.starts += 1
        return f"{observation} ({UnlikeEnv.starts})", info
