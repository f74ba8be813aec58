"""A text environment in which an untrained model already earns different rewards.

Each task names a letter; every one in a reply is worth a tenth. Two-line and cut replies are refused.
"""

import math
import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import register, registry

from agentgym_envs import Fault, Task, TaskTable, TextEnv
from agentgym_envs.core import Outcome, Start

LETTERS = "aeiostnrhldc"
TASKS = TaskTable(
    "Letters",
    [
        Task(f"letters_{i}", i, "Vowels" if letter in "aeio" else "Consonants", "test" if i % 4 == 3 else "train")
        for i, letter in enumerate(LETTERS)
    ],
)


def write(text: object) -> str:
    """Write any text on one line.

    Examples:
        write eee
    """
    return f"{text}"


class LettersEnv(TextEnv):
    scenario = "Letters"
    verbs = (write,)
    # How many of the first actions, of all environments in the process, raise.
    failures_left = int(os.environ.get("LETTERS_FAILURES", "0"))

    @classmethod
    def task_table(cls) -> TaskTable:
        return TASKS

    @classmethod
    def data_hash(cls) -> str:
        return LETTERS

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        self.letter = LETTERS[task.index]
        self.count = 0
        word = "".join("uvwxyz"[int(rng.random() * 6)] for _ in range(3))
        return Start(f"{word}: write {self.letter}", f"write {self.letter}")

    def _act(self, action: str) -> Outcome:
        if LettersEnv.failures_left:
            LettersEnv.failures_left -= 1
            raise RuntimeError("the simulator is broken")
        self.count = min(10, self.count + action.lower().count(self.letter))
        done = self.count == 10
        return Outcome(f"{self.count} of 10", self.count / 10, done, end="success" if done else "")

    def oracle_action(self) -> str | None:
        return self.letter * 5


class FragileEnv(LettersEnv):
    """In some tasks an action after the first turn raises or faults."""

    deterministic = False  # a fault ends the episode

    def _act(self, action: str) -> Outcome:
        if self._turn >= 1 and self._task.id == "letters_0":
            raise ZeroDivisionError("the simulator has lost its mind")
        if self._turn >= 1 and self._task.id == "letters_1":
            raise Fault("died", "the simulator has died")
        return super()._act(action)


class DeadlyEnv(LettersEnv):
    """In one task an action after the first turn ends the process."""

    def _act(self, action: str) -> Outcome:
        if self._turn >= 1 and self._task.id == "letters_0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._act(action)


class SlowEnv(LettersEnv):
    """In one task every action takes a while."""

    def _act(self, action: str) -> Outcome:
        if self._task.id == "letters_0":
            time.sleep(1.0)
        return super()._act(action)


class UnsoundEnv(LettersEnv):
    """In one task the score is not a number."""

    def _act(self, action: str) -> Outcome:
        outcome = super()._act(action)
        return outcome._replace(score=math.nan) if self._task.id == "letters_0" else outcome


class BlockedEnv(LettersEnv):
    """No task of it begins."""

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        raise LookupError("the simulator has gone out")


class HopelessEnv(LettersEnv):
    """No reply is worth anything."""

    def _act(self, action: str) -> Outcome:
        return super()._act(action)._replace(score=0.0)


LETTERS_ID, SLOW_ID = "Toy/Letters-v0", "Toy/SlowLetters-v0"
UNSOUND_ID, HOPELESS_ID = "Toy/UnsoundLetters-v0", "Toy/HopelessLetters-v0"
BLOCKED_ID = "Toy/BlockedLetters-v0"
_KINDS = {
    LETTERS_ID: LettersEnv,
    SLOW_ID: SlowEnv,
    UNSOUND_ID: UnsoundEnv,
    HOPELESS_ID: HopelessEnv,
    BLOCKED_ID: BlockedEnv,
}
for _id, _kind in _KINDS.items():
    if _id not in registry:
        register(id=_id, entry_point=f"{__name__}:{_kind.__name__}", max_episode_steps=20)
