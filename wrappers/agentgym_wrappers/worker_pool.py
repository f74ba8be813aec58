"""The workers of `SubprocVectorEnv` and what the parent knows of their environments: requests, replies, faults.

`WorkerPool` sends commands, takes replies, and replaces workers that die or hang. It keeps how each episode
began and what was done since, so it can bring an environment back elsewhere.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import pickle
import selectors
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import cloudpickle
import numpy as np
from gymnasium.utils.env_checker import data_equivalence

from agentgym_wrappers.messages import Autoreset, Command, Description, Failure, Start, Step, UnreadableMessage, pack
from agentgym_wrappers.worker_process import WorkerProcess

CLOSE_SECONDS = 10.0
EXIT_SECONDS = 1.0  # from a worker's end of file to its exit status
FAULT_WINDOW = 100  # episodes over which faults are counted
MAX_LOST_IN_A_ROW = 4

# The package's: its modules are no concern of those who read the log.
_log = logging.getLogger("agentgym_wrappers")


class WorkerError(RuntimeError):
    """Workers fail too often, or one could not do what the whole run depends on."""


class EnvironmentFailure(RuntimeError):
    """An environment raised an exception outside of a step, or ended its worker there twice.

    Attributes:
        env_index: Index of the environment.
        kind: Name of the exception's closest class that is Python's or Gymnasium's own.
    """

    def __init__(self, env_index: int, failure: Failure) -> None:
        """Describe what was raised; the original traceback is added as a note."""
        super().__init__(f"environment {env_index}: {failure.message}")
        self.env_index = env_index
        self.kind = failure.kind
        if failure.traceback:
            self.add_note(f"In the worker:\n{failure.traceback}")


class EnvResult(NamedTuple):
    """What one environment returned to `send` or `send_reset`.

    Attributes:
        env_index: Index of the environment.
        observation: The observation.
        reward: The reward; 0.0 after a reset.
        terminated: Whether the task itself ended the episode.
        truncated: Whether a limit or a fault did.
        info: The info. After a fault it has `fault_kind` and `fault` beside the entries of the last step.
    """

    env_index: int
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Slot:
    """What the parent knows about one environment: enough to bring it back in a new worker.

    Attributes:
        index: Its index.
        factory: Cloudpickled function that makes it.
        worker: Number of the worker that holds it.
        description: What it is.
        attributes: What `set_attr` set before its episode began, cloudpickled.
        start: How its episode began; None before the first reset.
        log: Steps and set attributes since then, as far as they are answered and can be replayed.
        steps: Number of steps since then.
        result: What it returned last; None before the first reset.
        ended: Whether it needs a reset before a step.
        final: End of an episode whose result waits for the reset of the same step.
        lost: Why its episode cannot go on, although nobody was told yet; empty otherwise.
        pending: The user's command that is not answered yet.
        expected: Commands whose replies are to come, the pending one last.
        strikes: Workers that died with it since it last answered.
        answer: Reply to a command other than step and reset.
    """

    def __init__(self, index: int, factory: bytes, worker: int) -> None:
        self.index = index
        self.factory = factory
        self.worker = worker
        self.description: Description | None = None
        self.attributes: dict[str, bytes] = {}
        self.start: Start | None = None
        self.log: list[Command] = []
        self.steps = 0
        self.result: EnvResult | None = None
        self.ended = True
        self.final: EnvResult | None = None
        self.lost = ""
        self.pending: Command | None = None
        self.expected: deque[Command] = deque()
        self.strikes = 0
        self.answer: Any = None

    @property
    def recovering(self) -> bool:
        """Whether it is still being brought back."""
        return len(self.expected) > (self.pending is not None)


class WorkerPool:
    """Environments in worker processes.

    Attributes:
        slots: The environments.
        workers: The present worker of each number.
        ready: Results of steps and resets that nobody has taken yet.
        failures: Environments whose reset or call failed, and how, as long as nobody was told.
        fatal: Why the pool cannot go on; None as long as it can.
    """

    def __init__(
        self,
        factories: Sequence[bytes],
        *,
        workers: int,
        thread_per_env: bool,
        autoreset: bool,
        call_seconds: float,
        start_seconds: float,
        fault_limit: int,
    ) -> None:
        """Make a pool; `start` starts the workers.

        Args:
            factories: Cloudpickled functions that make the environments.
            workers: Number of processes.
            thread_per_env: Whether each environment has a thread of its own in its worker.
            autoreset: Whether a step that ends an episode begins the next one as well.
            call_seconds: What a call may take.
            start_seconds: What a worker's start may take.
            fault_limit: Accepted number of faults among the last `FAULT_WINDOW` episodes.
        """
        shares = np.array_split(np.arange(len(factories)), workers)
        self._shares: list[list[int]] = [share.tolist() for share in shares]
        self.slots = [Slot(index, factories[index], number) for number, own in enumerate(self._shares) for index in own]
        self.workers: list[WorkerProcess] = []
        self.ready: deque[EnvResult] = deque()
        self.failures: dict[int, EnvironmentFailure] = {}
        self.fatal: str | None = None
        self.autoreset = autoreset
        self._thread_per_env = thread_per_env
        self._call_seconds = call_seconds
        self._start_seconds = start_seconds
        self._patience = min(1.0, call_seconds / 2, start_seconds / 2)  # between two looks at the workers
        self._fault_limit = fault_limit
        self._faults: deque[bool] = deque(maxlen=FAULT_WINDOW)  # whether the last ended episodes ended by one
        self._lost_in_a_row = [0] * workers
        self._last_look = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._owner = os.getpid()
        self._path = [os.path.abspath(path) for path in sys.path]  # now: the program may change its folder
        self._finalizer = weakref.finalize(self, _close_all, self.workers, self._selector, self._owner)

    def start(self) -> list[Description]:
        """Start the workers, make the environments, and return what they are.

        Raises:
            Exception: What the making of an environment raised, with its index.
        """
        for number, share in enumerate(self._shares):
            self._start_worker(number, share)
        self.request({slot.index: ("make", slot.factory) for slot in self.slots})
        descriptions = cast(list[Description], self.wait_for(range(len(self.slots))))
        for slot, description in zip(self.slots, descriptions, strict=True):
            slot.description = description
        return descriptions

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the environments and end the workers; those not done after `seconds` are killed."""
        self._finalizer.detach()
        _close_all(self.workers, self._selector, self._owner, seconds)

    def request(self, commands: Mapping[int, Command], text: bool = False) -> None:
        """Send environments a command of the user each, in one message a worker.

        Args:
            commands: By index of the environment.
            text: Whether they hold nothing but strings, which a plain pickle sends fastest; other things that
                users give may be of classes of the main module.
        """
        batches: dict[int, list[tuple[int, Command]]] = {}
        for index, command in commands.items():
            batches.setdefault(self.slots[index].worker, []).append((index, command))
        packed: dict[int, bytes] = {}
        for number, batch in batches.items():
            try:
                packed[number] = pack(batch) if text else cloudpickle.dumps(batch)
            except Exception as error:
                raise TypeError(
                    f"environments {', '.join(str(index) for index, _ in batch)}: what they were given cannot be sent "
                    f"to their worker ({error}); give values that can be pickled."
                ) from error
        for number, data in packed.items():
            for index, command in batches[number]:
                slot = self.slots[index]
                slot.pending = command
                slot.expected.append(command)
            self._send(self.workers[number], data)

    def _send(self, worker: WorkerProcess, data: bytes) -> None:
        worker.channel.send(data)
        self._watch(worker)

    def _watch(self, worker: WorkerProcess) -> None:
        """Wait for what a worker says and, as long as there is something left to send, for it to read."""
        worker.heard = time.monotonic()
        events = selectors.EVENT_READ | (0 if worker.channel.flush() else selectors.EVENT_WRITE)
        if self._selector.get_key(worker.channel).events != events:
            self._selector.modify(worker.channel, events, worker)

    def wait_for(self, indices: Sequence[int]) -> list[Any]:
        """Wait for the answers to other commands."""
        slots = [self.slots[index] for index in indices]
        while any(slot.pending is not None for slot in slots):
            self.pump(None)
        self.raise_failures(indices)
        return [slot.answer for slot in slots]

    def raise_failures(self, indices: Iterable[int]) -> None:
        """Raise the first failure of these environments, as an exception of the class that was raised there."""
        failures = [self.failures.pop(index) for index in indices if index in self.failures]
        if failures:
            raise _as_built_in(failures[0]) from failures[0]

    def pump(self, seconds: float | None) -> None:
        """Exchange messages for at most this time, and look after workers that died or hang."""
        patience = self._patience
        now = time.monotonic()
        if now - self._last_look > 2 * patience:  # nobody listened: whoever waits to be heard is not silent
            for worker in self.workers:
                worker.heard = now
        for key, events in self._selector.select(patience if seconds is None else min(seconds, patience)):
            self._exchange(key.data, events)
        now = time.monotonic()
        if now - self._last_look > patience:
            self._last_look = now
            for worker in list(self.workers):
                self._look_after(worker, now)
        if self.fatal is not None:
            raise WorkerError(self.fatal)

    def _exchange(self, worker: WorkerProcess, events: int) -> None:
        """Send what a worker takes now, and take what it says."""
        if events & selectors.EVENT_WRITE:
            self._watch(worker)
        if events & selectors.EVENT_READ:
            try:
                batches = worker.channel.receive()
            except EOFError:
                self._replace(worker)
                return
            except UnreadableMessage as error:
                self.fatal = (
                    f"SubprocVectorEnv: what worker {worker.number} returned cannot be read ({error}); let infos hold "
                    "strings, numbers and booleans."
                )
                return
            worker.heard = time.monotonic()
            worker.answered = worker.answered or bool(batches)
            for batch in batches:
                for index, reply in batch:
                    self._take_reply(self.slots[index], reply)

    def _take_reply(self, slot: Slot, reply: Any) -> None:
        command = slot.expected.popleft()
        if command is not slot.pending:
            self._take_recovery(slot, command, reply)
            return
        slot.pending = None
        slot.strikes = self._lost_in_a_row[slot.worker] = 0
        if command[0] == "step" and not slot.lost and type(reply) is tuple:  # as a rule
            self._take_step(slot, command, reply)
            return
        match command[0], reply:
            case "step", _ if slot.lost:  # it was stepped in a state that is not its own
                self.fault(slot, "lost", slot.lost)
            case "step", Autoreset():
                self._take_autoreset(slot, command, reply)
            case "step", Failure():
                self.fault(slot, "error", f"it raised an exception.\n{reply.traceback}")
            case _, Failure():
                slot.final = None
                slot.ended = slot.ended or command[0] in ("reset", "restore")
                if command[0] == "reset" and command[1] is not None and slot.start is not None and slot.start.stream:
                    slot.start = slot.start._replace(snapshot=None, stream=(command[1], 0))
                self.failures[slot.index] = failure = EnvironmentFailure(slot.index, reply)
                if command[0] == "make":
                    failure.add_note(
                        "A worker does not run the main program: what that registers or defines is not known there. "
                        "Let the function import it, or give an id as 'module:id'."
                    )
            case "reset", _:
                final, result = slot.final, self._begin_episode(slot, reply)
                self.ready.append(result if final is None else self._with_final(slot, final))
            case "restore", _:
                slot.answer = self._begin_episode(slot, reply)
                slot.ended = "end" in reply.info
            case "set_attribute", _:
                slot.log.append(command)
            case _:
                slot.answer = reply

    def _take_step(self, slot: Slot, command: Command, step: Step) -> None:
        result = EnvResult(slot.index, *step)
        slot.steps += 1
        if slot.start and slot.start.snapshot:
            slot.log.append(command)
        slot.result = _own(result)
        if result.terminated or result.truncated:
            slot.ended = True
            self._count_episode("")
        self.ready.append(result)

    def _take_autoreset(self, slot: Slot, command: Command, reply: Autoreset) -> None:
        self._take_step(slot, command, reply.step)
        if isinstance(reply.start, Failure):  # the episode ended soundly, the next one does not begin
            self.failures[slot.index] = EnvironmentFailure(slot.index, reply.start)
        else:
            final = self.ready.pop()
            self._begin_episode(slot, reply.start)
            self.ready.append(self._with_final(slot, final))

    def _with_final(self, slot: Slot, final: EnvResult) -> EnvResult:
        """The result of a step in which the next episode began as well."""
        begun = cast(EnvResult, slot.result)
        info = {"final_obs": final.observation, "final_info": final.info, **begun.info}
        return final._replace(observation=begun.observation, info=info)

    def _begin_episode(self, slot: Slot, start: Start) -> EnvResult:
        slot.attributes.update({command[1]: command[2] for command in slot.log if command[0] == "set_attribute"})
        slot.start = start
        slot.log = []
        slot.steps = 0
        slot.ended = False
        slot.final = None
        slot.lost = ""
        result = EnvResult(slot.index, start.observation, 0.0, False, False, start.info)
        slot.result = _own(result)
        return result

    def fault(self, slot: Slot, kind: str, cause: str) -> None:
        """End an environment's episode with a fault, which answers its step."""
        last = cast(EnvResult, slot.result)
        info = {name: value for name, value in last.info.items() if name not in ("goal", "instruction")}
        task = f" (task {info['task']})" if "task" in info else ""
        text = f"environment {slot.index}{task}, step {slot.steps + 1} of its episode: {cause}"
        info.update(end="fault", fault_kind=kind, fault=text)
        slot.pending = None
        slot.lost = ""
        slot.strikes = 0
        slot.ended = True
        slot.result = EnvResult(slot.index, last.observation, 0.0, False, True, info)
        if self.autoreset:
            slot.final = slot.result
            self.request({slot.index: ("reset", None, None)})
        else:
            self.ready.append(slot.result)
        _log.warning(text)
        if kind != "lost":
            self._count_episode(text)

    def _count_episode(self, fault: str) -> None:
        self._faults.append(bool(fault))
        if sum(self._faults) > self._fault_limit:
            self.fatal = (
                f"SubprocVectorEnv: {sum(self._faults)} of the last {len(self._faults)} episodes ended by a fault, "
                f"more than fault_limit={self._fault_limit}. The last one: {fault}"
            )

    def _look_after(self, worker: WorkerProcess, now: float) -> None:
        """Replace a worker that hangs, or that has ended without a word."""
        if worker.ended:
            self._exchange(worker, selectors.EVENT_READ)  # what it said last
            if worker is self.workers[worker.number]:
                self._replace(worker)
            return
        limit = self._call_seconds if worker.answered else self._start_seconds
        busy = worker.busy()
        slow = {index for index, since in busy.items() if now - since > limit}
        waiting = any(self.slots[index].expected for index in worker.indices)
        if slow or (waiting and not busy and now - worker.heard > limit):
            self._replace(worker, slow)

    def _replace(self, worker: WorkerProcess, slow: set[int] | None = None) -> None:
        """Put a new worker in the place of one that died or hangs, and bring its environments back.

        Args:
            worker: The worker.
            slow: Environments that took too long; None if the worker died by itself.
        """
        culprits = set(worker.busy()) if slow is None else slow
        self._selector.unregister(worker.channel)
        how = worker.end(EXIT_SECONDS if slow is None else 0.0)
        if slow is None:
            kind = "killed" if worker.signalled else "exited"
            cause = f"worker {worker.number} (pid {worker.pid}) {how} meanwhile."
        else:
            kind = "timeout"
            limit = (
                f"call_seconds={self._call_seconds:g}" if worker.answered else f"start_seconds={self._start_seconds:g}"
            )
            cause = f"no answer within {limit}, so worker {worker.number} was killed."
        self._lost_in_a_row[worker.number] += 1
        if self._lost_in_a_row[worker.number] > MAX_LOST_IN_A_ROW:
            self.fatal = (
                f"SubprocVectorEnv: {MAX_LOST_IN_A_ROW + 1} workers in a row have ended without an answer. "
                f"The last one: {cause} What it wrote to stderr may say why."
            )
            raise WorkerError(self.fatal)
        try:
            self._start_worker(worker.number, worker.indices)
        except OSError as error:
            self.fatal = f"SubprocVectorEnv: worker {worker.number} has ended and cannot be replaced: {error}. {cause}"
            raise WorkerError(self.fatal) from error
        batch: list[tuple[int, Command]] = []
        ends: list[Callable[[], None]] = []
        for slot in (self.slots[index] for index in worker.indices):
            guilty = slot.index in culprits and not slot.recovering
            slot.strikes += slot.index in culprits
            slot.expected = deque(self._recovery(slot, cause))
            if slot.pending is not None:
                end = self._end_of_pending(slot, guilty, kind, cause)
                if end is None:
                    slot.expected.append(slot.pending)
                else:
                    ends.append(end)
            batch += [(slot.index, command) for command in slot.expected]
        if batch:
            self._send(self.workers[worker.number], cloudpickle.dumps(batch))
        for end in ends:
            end()

    def _recovery(self, slot: Slot, cause: str) -> list[Command]:
        """What brings an environment back in a new worker; it is lost if nothing does."""
        if slot.description is None:  # it was still to be made
            return []
        attributes: list[Command] = [("set_attribute", name, value) for name, value in slot.attributes.items()]
        commands: list[Command] = [("make", slot.factory), *attributes]
        since: list[Command] = [command for command in slot.log if command[0] == "set_attribute"]
        if slot.start is None:
            return commands + since
        if slot.start.stream is not None:
            commands.append(("resume_stream", slot.start.stream))
        if slot.start.snapshot is not None and slot.strikes < 2:
            return [*commands, ("restore", slot.start.snapshot, tuple(slot.log))]
        if not slot.ended:
            slot.lost = f"it cannot be brought back in a new worker by replay, and {cause}"
        return commands + since

    def _end_of_pending(self, slot: Slot, guilty: bool, kind: str, cause: str) -> Callable[[], None] | None:
        """What answers the pending command of an environment whose worker is gone; None if it is sent again."""
        name = cast(Command, slot.pending)[0]
        if name == "step" and guilty:
            return partial(self.fault, slot, kind, cause)
        if name == "step" and slot.lost:
            return partial(self.fault, slot, "lost", slot.lost)
        if not guilty or (name in ("step", "reset") and slot.strikes < 2):
            return None
        return partial(self._fail, slot, f"{name}: {cause}")

    def _fail(self, slot: Slot, cause: str) -> None:
        """Let the pending command, which is no step, end with a failure."""
        slot.ended = slot.ended or cast(Command, slot.pending)[0] in ("reset", "restore")
        slot.pending = slot.final = None
        slot.strikes = 0
        self.failures[slot.index] = EnvironmentFailure(slot.index, Failure("builtins.RuntimeError", cause, ""))

    def _take_recovery(self, slot: Slot, command: Command, reply: Any) -> None:
        if command[0] == "make" and isinstance(reply, Failure):
            self.fatal = f"environment {slot.index} cannot be made again in a new worker.\n{reply.traceback}"
        elif command[0] == "restore" and not isinstance(reply, Failure):
            self._lost_in_a_row[slot.worker] = 0
            if not slot.ended and not _equal(reply.observation, cast(EnvResult, slot.result).observation):
                slot.lost = "a replay of its actions in a new worker gave another observation; is it deterministic?"
        elif slot.ended:
            pass  # the episode is over; its number is known
        elif isinstance(reply, Failure):
            slot.lost = f"it could not be brought back in a new worker.\n{reply.traceback}"

    def _start_worker(self, number: int, indices: list[int]) -> None:
        lanes = [[index] for index in indices] if self._thread_per_env else [indices]
        worker = WorkerProcess(number, lanes, len(self.slots), self._path)
        self.workers[number : number + 1] = [worker]
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)


def _own(result: EnvResult) -> EnvResult:
    """A result whose observation the user cannot change in place, as one does with arrays."""
    observation = result.observation
    return result if type(observation) is str else result._replace(observation=copy.deepcopy(observation))


def _equal(one: Any, other: Any) -> bool:
    """Whether two observations of whatever kind are the same."""
    return data_equivalence(one, other, exact=True) or pickle.dumps(one) == pickle.dumps(other)  # NaNs


def _as_built_in(failure: EnvironmentFailure) -> Exception:
    """The same as an exception of the class that the environment raised, if it is Python's or Gymnasium's own."""
    module, _, name = failure.kind.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    if not issubclass(kind, Exception) or issubclass(kind, UnicodeError) or kind is Exception:
        kind = RuntimeError
    try:
        return cast(Exception, kind(str(failure)))
    except TypeError:  # it wants other arguments
        return RuntimeError(str(failure))


def _close_all(
    workers: list[WorkerProcess], selector: selectors.BaseSelector, owner: int, seconds: float = CLOSE_SECONDS
) -> None:
    """End all workers; a process that was forked from the owner leaves them alone."""
    if os.getpid() != owner:
        return
    selector.close()
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker.begin_closing()
    for worker in workers:
        worker.end(deadline - time.monotonic())
    workers.clear()
