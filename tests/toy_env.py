"""A small text environment for tests whose simulator is a real child process, so that it can really die.

Count up to a target without passing it. Going past it is a failure that costs all points.
"""

import random
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import register, registry

from agentgym_envs import Fault, Task, TaskTable, TextEnv
from agentgym_envs.core import Outcome, Start

COUNTER = """
import sys
value = 0
for line in sys.stdin:
    verb, number = line.split()
    value = int(number) if verb == "set" else value + int(number)
    print(value, flush=True)
"""
TARGETS = (4, 5, 6, 8, 10)
MAX_TURNS = 30
TASKS = TaskTable(
    "Counter",
    [
        Task(f"counter_{i}", i, "Small" if t < 8 else "Big", "test" if t == 6 else "train")
        for i, t in enumerate(TARGETS)
    ],
)


def add(number: object) -> str:
    """Add a number from 0 to 9.

    Examples:
        add 1
    """
    return f"add {number}"


class CounterEnv(TextEnv):
    scenario = "Counter"
    verbs = (add,)

    def __init__(self, *, reply_seconds: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.python = sys.executable
        self.reply_seconds = reply_seconds
        self.child: subprocess.Popen[str] | None = None
        self.value = 0
        self.target = 1

    @classmethod
    def task_table(cls) -> TaskTable:
        return TASKS

    @classmethod
    def data_hash(cls) -> str:
        return "-".join(map(str, TARGETS))

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        self.target = TARGETS[task.index]
        self.value = self._ask(f"set {1 + int(rng.random() * 2)}")
        return Start(f"Count from {self.value} to {self.target}.", f"reach {self.target}", self._score())

    def _act(self, action: str) -> Outcome:
        verb, _, number = action.partition(" ")
        if verb != "add" or number not in set("0123456789"):
            return Outcome(f"Could not understand {action[:50]!r}; write add 1.", self._score(), valid=False)
        self.value = self._ask(f"add {number}")
        end = "success" if self.value == self.target else "failure" if self.value > self.target else ""
        if not end and self._turn + 1 == MAX_TURNS:
            end = "simulator_limit"
        return Outcome(f"The counter shows {self.value}.", self._score(), end == "success", end=end)

    def _score(self) -> float:
        return self.value / self.target if self.value <= self.target else 0.0

    def available_actions(self) -> list[str]:
        return [add(number) for number in range(3)]

    def oracle_action(self) -> str | None:
        return add(1) if self.value < self.target else None

    def close(self) -> None:
        self._restart()
        super().close()

    def _restart(self) -> None:
        if self.child is not None:
            assert self.child.stdin is not None
            assert self.child.stdout is not None
            self.child.kill()
            self.child.wait(10)
            self.child.stdout.close()
            try:
                self.child.stdin.close()
            except BrokenPipeError:
                pass  # the child died before it read the last line
            self.child = None

    def _ask(self, line: str) -> int:
        if self.child is None:
            self.child = subprocess.Popen(
                [self.python, "-S", "-c", COUNTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        try:
            print(line, file=self.child.stdin, flush=True)
        except BrokenPipeError:
            raise Fault("died", "the counter process has died") from None
        if not select.select([self.child.stdout], [], [], self.reply_seconds)[0]:
            raise Fault("timeout", f"the counter process gave no answer in {self.reply_seconds} s")
        reply = self.child.stdout.readline()
        if not reply:
            raise Fault("died", "the counter process has died")
        return int(reply)


class OneWayCounterEnv(CounterEnv):
    """Nothing can be replayed, as on a web site."""

    deterministic = False


def kill(env: CounterEnv) -> None:
    assert env.child is not None
    env.child.send_signal(signal.SIGKILL)
    env.child.wait(10)


COUNTER_ID = "Toy/Counter-v0"
if COUNTER_ID not in registry:
    register(id=COUNTER_ID, entry_point=f"{__name__}:CounterEnv", max_episode_steps=20)
    register(id="Toy/OneWayCounter-v0", entry_point=f"{__name__}:OneWayCounterEnv", max_episode_steps=20)
