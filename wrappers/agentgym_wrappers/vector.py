"""Many environments in worker processes: `SubprocVectorEnv`.

Beside Gymnasium's batched `reset` and `step` there is a pair without a barrier, `send` and `recv`, on which
`step` is built. A worker that dies or hangs is replaced; see `docs/vectorization.md`.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import selectors
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import cloudpickle
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from agentgym_envs import TextSpace
from agentgym_wrappers.columns import infos_by_column
from agentgym_wrappers.messages import Command, Description, Failure, Start, Step, UnreadableMessage
from agentgym_wrappers.worker_process import WorkerProcess

CALL_SECONDS = 300.0
START_SECONDS = 120.0
CLOSE_SECONDS = 10.0
EXIT_SECONDS = 1.0  # from a worker's end of file to its exit status
FAULT_WINDOW = 100  # episodes over which faults are counted
MAX_LOST_IN_A_ROW = 4
_RECEIVED = ("step", "reset")  # commands that `recv` answers

_log = logging.getLogger(__name__)

Options = Mapping[str, Any] | None
Array = npt.NDArray[Any]


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


class _Slot:
    """What the parent knows about one environment: enough to bring it back in a new worker.

    Attributes:
        index: Its index.
        factory: Cloudpickled function that makes it.
        worker: Number of the worker that holds it.
        description: What it is.
        attributes: What `set_attr` set, cloudpickled.
        start: How its episode began; None before the first reset.
        actions: What it was sent since, and has answered.
        result: What it returned last; None before the first reset.
        ended: Whether it needs a reset before a step.
        final: End of an episode whose result waits for the reset of the same step.
        lost: Why its episode cannot go on, although nobody was told yet; empty otherwise.
        pending: The user's command that is not answered yet.
        expected: Commands whose replies are to come, the pending one last.
        strikes: Workers that died with it since it last answered.
        answer: Reply to a command other than step and reset, or `Failure`.
    """

    def __init__(self, index: int, factory: bytes, worker: int) -> None:
        self.index = index
        self.factory = factory
        self.worker = worker
        self.description: Description | None = None
        self.attributes: dict[str, bytes] = {}
        self.start: Start | None = None
        self.actions: list[Any] = []
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


class SubprocVectorEnv(VectorEnv[Any, Any, Array]):
    """A vector environment whose environments live in worker processes and survive them.

    Environment i is reset with `seed + i` and behaves in every mode of `autoreset_mode` as in Gymnasium's
    `SyncVectorEnv`. Not to be used from two threads at a time.

    Faults: if a worker dies, or an environment takes longer than `call_seconds` for one call, the worker is
    replaced. Environments that were not in a call are brought back by replay and notice nothing. The one
    that was reports `truncated=True` with `info["end"] == "fault"`, `info["fault_kind"]` (`killed`,
    `exited`, `timeout`, `error` for an exception, `lost` where a replay was impossible) and `info["fault"]`,
    a text that names the environment, its task, how the worker ended, and holds the original traceback.
    Its next reset starts the episode that would have been next anyway.

    Close it, or use it as a context manager. If that is forgotten, or the main program dies in any way, the
    workers end by themselves.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        workers: int = 1,
        thread_per_env: bool = False,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        call_seconds: float = CALL_SECONDS,
        start_seconds: float = START_SECONDS,
        fault_limit: int = 20,
    ) -> None:
        """Start the workers and make the environments.

        Args:
            env_fns: One function per environment that makes it. It is sent to a worker with cloudpickle; the
                main module is not imported again there.
            workers: Number of processes, each with an equal share of the environments. A process costs
                about as much memory as `import gymnasium` does, and what the scenario loads once.
            thread_per_env: Whether a worker steps its environments in a thread each, rather than one after
                the other. Right for those that wait for something outside Python, such as a JVM or browser.
            autoreset_mode: One of Gymnasium's modes; `AutoresetMode.DISABLED` for `send` and `recv`.
            call_seconds: What one reset, step or call of one environment may take before its worker is
                taken to hang.
            start_seconds: What a new worker may take until its first environment is made.
            fault_limit: Number of faults among the last 100 ended episodes (`lost` ones not counted: they have
                their cause in another) beyond which `WorkerError` is raised.

        Raises:
            ValueError: If an argument is not accepted.
            TypeError: If a function cannot be sent.
            Exception: What a function raised, with the index of its environment; everything is closed then.
        """
        self.closed = True  # until there is something to close
        env_fns = list(env_fns)
        if not all(map(callable, env_fns)):
            raise ValueError(
                f"SubprocVectorEnv: env_fns must be functions that make one environment each, not {env_fns!r}; "
                "SubprocVectorEnv.make(id, num_envs) takes an id."
            )
        self.num_envs = len(env_fns)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if not env_fns:
            raise ValueError("SubprocVectorEnv: env_fns is empty; give one function per environment.")
        if not 1 <= workers <= self.num_envs:
            raise ValueError(f"SubprocVectorEnv: workers must be from 1 to {self.num_envs} (num_envs), not {workers}.")
        for name, seconds in (("call_seconds", call_seconds), ("start_seconds", start_seconds)):
            if not seconds > 0:
                raise ValueError(f"SubprocVectorEnv: {name} must be above 0, not {seconds}.")
        if not 0 <= fault_limit <= FAULT_WINDOW:
            raise ValueError(f"SubprocVectorEnv: fault_limit must be from 0 to {FAULT_WINDOW}, not {fault_limit}.")
        factories = [_pickled(function, f"environment {i}: its env_fn") for i, function in enumerate(env_fns)]
        self._thread_per_env = thread_per_env
        self._call_seconds = call_seconds
        self._start_seconds = start_seconds
        self._fault_limit = fault_limit
        self._lost_in_a_row = [0] * workers
        self._faults: deque[bool] = deque(maxlen=FAULT_WINDOW)  # whether the last ended episodes ended by one
        self._fatal: str | None = None
        self._ready: deque[EnvResult] = deque()
        self._failures: dict[int, EnvironmentFailure] = {}
        self._last_look = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _close_all, self._workers, self._selector, os.getpid())
        self.closed = False
        try:
            shares = [share.tolist() for share in np.array_split(np.arange(self.num_envs), workers)]
            self._slots = [
                _Slot(index, factories[index], number) for number, share in enumerate(shares) for index in share
            ]
            for number, share in enumerate(shares):
                self._start_worker(number, share)
            self._request({slot.index: ("make", slot.factory) for slot in self._slots})
            self._take_descriptions(self._wait_for(range(self.num_envs)))
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(
        cls,
        id: str | EnvSpec,
        num_envs: int = 1,
        *,
        env_wrappers: Sequence[Callable[[Any], gymnasium.Env[Any, Any]]] = (),
        workers: int = 1,
        thread_per_env: bool = False,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        call_seconds: float = CALL_SECONDS,
        start_seconds: float = START_SECONDS,
        fault_limit: int = 20,
        **env_kwargs: Any,
    ) -> SubprocVectorEnv:
        """Make a vector environment of `num_envs` times one id; `gymnasium.make_vec(id, ...)` calls this.

        Args:
            id: Registered id, with the module that registers it if need be (`module:id`), or a spec.
            num_envs: Number of environments.
            env_wrappers: Functions put around each environment, the first one innermost.
            workers: See the constructor, as for the others below.
            thread_per_env: See there.
            autoreset_mode: See there.
            call_seconds: See there.
            start_seconds: See there.
            fault_limit: See there.
            **env_kwargs: Passed to `gymnasium.make`.
        """
        if num_envs < 1:
            raise ValueError(f"SubprocVectorEnv: num_envs must be at least 1, not {num_envs}.")
        if isinstance(id, str):
            module, _, name = id.rpartition(":")  # "module:id" imports what registers the id, as in gymnasium.make
            if module:
                importlib.import_module(module)
            spec = gymnasium.spec(name)
        else:
            spec = id
        factory = partial(_make_one, spec, tuple(env_wrappers), env_kwargs)
        return cls(
            [factory] * num_envs,
            workers=workers,
            thread_per_env=thread_per_env,
            autoreset_mode=autoreset_mode,
            call_seconds=call_seconds,
            start_seconds=start_seconds,
            fault_limit=fault_limit,
        )

    # ---- Gymnasium's interface ----------------------------------------------------------------------

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Options | Sequence[Options] = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in those that a mask names.

        Args:
            seed: Environment i gets `seed + i`, or its element of a list; without one it starts the next
                episode of its last seed.
            options: Reset options for all, or a list with those of each environment. `reset_mask`, an
                array of `num_envs` bools, leaves out the environments where it is False.

        Returns:
            The observations of all environments, and the infos of those that were reset.

        Raises:
            ValueError: If an argument is not accepted, by an environment or before.
        """
        self._check_all_idle("reset")
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if isinstance(options, Mapping) and "reset_mask" in options:
            mask = _checked_mask(options["reset_mask"], self.num_envs)
            options = {name: value for name, value in options.items() if name != "reset_mask"}
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + i for i in range(self.num_envs)]
        else:
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"reset: {len(seeds)} seeds for {self.num_envs} environments; give one for each, or one integer."
                )
        each = self._options_of_each(options, self.num_envs)
        indices = np.flatnonzero(mask).tolist()
        for index in np.flatnonzero(~mask).tolist():
            if self._slots[index].result is None:
                raise ValueError(
                    f"reset: environment {index} was never reset, so it has no observation to return; "
                    "leave it in reset_mask at first."
                )
        self._send_resets(indices, [seeds[i] for i in indices], [each[i] for i in indices])
        results = self._collect(indices)
        return self._observations(), infos_by_column(((r.env_index, r.info) for r in results), self.num_envs)

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Take a step in every environment.

        Args:
            actions: `num_envs` actions.

        Returns:
            Observations, rewards (float64 [num_envs]), terminations and truncations (bool [num_envs]), infos.

        Raises:
            ValueError: If there are too many or too few actions, or one is of the wrong type.
            gymnasium.error.ResetNeeded: If an environment was never reset or, with autoreset disabled, its episode
                has ended.
        """
        self._check_all_idle("step")
        indices = range(self.num_envs)
        self._send_steps(indices, self._checked_actions(actions, indices, batched=True))
        results = self._collect(indices)
        return (
            self._observations(),
            np.array([result.reward for result in results], dtype=np.float64),
            np.array([result.terminated for result in results], dtype=np.bool_),
            np.array([result.truncated for result in results], dtype=np.bool_),
            infos_by_column(((result.env_index, result.info) for result in results), self.num_envs),
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method, or get an attribute, of every environment.

        Raises:
            Exception: What an environment raised, with its index.
        """
        if name in ("reset", "step", "close"):
            raise ValueError(f"call: {name!r} has a method of its own here; use vec.{name}(...).")
        self._check_all_idle("call")
        arguments = _pickled((args, kwargs), f"call: an argument of {name!r}")
        self._request({index: ("call", name, arguments) for index in range(self.num_envs)})
        return tuple(self._wait_for(range(self.num_envs)))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every environment, from the outermost wrapper that has it."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment; workers that replace others get it again.

        Args:
            name: The attribute; the outermost wrapper that has it is changed.
            values: A list or tuple with a value for each environment, or one value for all.
        """
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                f"set_attr: {len(each)} values for {self.num_envs} environments; give one for each, or one for all."
            )
        pickled = [_pickled(value, f"set_attr: the value for environment {i}") for i, value in enumerate(each)]
        self._check_all_idle("set_attr")
        self._request({index: ("set_attribute", name, value) for index, value in enumerate(pickled)})
        self._wait_for(range(self.num_envs))

    def render(self) -> tuple[Any, ...]:
        """Return what each environment renders."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """The random generators of the environments (copies)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> Any:
        """The seeds of the environments' random generators."""
        return self.get_attr("np_random_seed")

    def close_extras(self, seconds: float = CLOSE_SECONDS) -> None:
        """Close the environments and end the workers; those not done after `seconds` are killed."""
        self._finalizer.detach()
        _close_all(self._workers, self._selector, os.getpid(), seconds)

    def __enter__(self) -> SubprocVectorEnv:
        """Use the vector environment and close it at the end."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close everything, whatever happened."""
        self.close()

    # ---- without a barrier --------------------------------------------------------------------------

    def send(self, indices: Sequence[int], actions: Sequence[Any]) -> None:
        """Let some environments take a step; `recv` returns what comes of it.

        Args:
            indices: Environments that have answered all they were sent.
            actions: One action for each.

        Raises:
            IndexError: If there is no such environment.
            ValueError: If an environment is still at work, or an action is not accepted.
            gymnasium.error.ResetNeeded: If an environment was never reset or, with autoreset disabled, its episode
                has ended. Nothing was sent then.
        """
        indices = self._checked_indices(indices, "send")
        self._send_steps(indices, self._checked_actions(actions, indices))

    def send_reset(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None] | None = None,
        options: Options | Sequence[Options] = None,
    ) -> None:
        """Let some environments start an episode; `recv` returns the beginning with reward 0.

        Args:
            indices: Environments that have answered all they were sent.
            seeds: One for each, or None: the next episode of the last seed.
            options: Reset options for all of them, or one for each.

        Raises:
            IndexError: If there is no such environment.
            ValueError: If an environment is still at work, or there are too few or too many seeds or options.
        """
        indices = self._checked_indices(indices, "send_reset")
        if seeds is not None and not isinstance(seeds, Iterable):
            raise ValueError(f"send_reset: seeds are a list with one for each environment, not {seeds!r}.")
        seeds = [None] * len(indices) if seeds is None else list(seeds)
        if len(seeds) != len(indices):
            raise ValueError(f"send_reset: {len(seeds)} seeds for {len(indices)} environments; give one for each.")
        self._send_resets(indices, seeds, self._options_of_each(options, len(indices)))

    def recv(self, at_least: int = 1, timeout: float | None = None) -> list[EnvResult]:
        """Return the results of `send` and `send_reset` that are there, in the order of their arrival.

        Args:
            at_least: Number of results to wait for; all that are under way if there are fewer.
            timeout: Seconds to wait; then what has arrived is returned, perhaps nothing. None waits as
                long as `call_seconds` lets the environments take.

        Raises:
            ValueError: If nothing is under way.
            EnvironmentFailure: If a reset raised an exception; the other results are kept.
            WorkerError: If faults are too frequent.
        """
        self._check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._pump(0)
        while not self._failures:
            under_way = len(self.under_way)
            if not under_way:
                raise ValueError("recv: nothing is under way; send() or send_reset() first.")
            left = None if deadline is None else deadline - time.monotonic()
            if len(self._ready) >= min(at_least, under_way) or (left is not None and left <= 0):
                break
            self._pump(left)
        if self._failures:
            raise self._failures.pop(min(self._failures))
        results = list(self._ready)
        self._ready.clear()
        return results

    def snapshot(self, indices: Sequence[int]) -> list[bytes]:
        """Save the states of some environments; see `agentgym_wrappers.snapshot`."""
        indices = self._checked_indices(indices, "snapshot")
        self._request({index: ("snapshot",) for index in indices})
        return cast(list[bytes], self._wait_for(indices))

    def restore(self, indices: Sequence[int], snapshots: Sequence[bytes]) -> list[EnvResult]:
        """Put some environments into saved states.

        The episodes that they start afterwards stay those of their own seeds.

        Args:
            indices: The environments.
            snapshots: One for each.

        Returns:
            Observation and info of each in its state.

        Raises:
            ValueError: If a snapshot does not fit.
        """
        indices = self._checked_indices(indices, "restore")
        if len(snapshots) != len(indices):
            raise ValueError(f"restore: {len(snapshots)} snapshots for {len(indices)} environments; give one for each.")
        self._request({i: ("restore", data, ()) for i, data in zip(indices, snapshots, strict=True)})
        return cast(list[EnvResult], self._wait_for(indices))

    def fork_from(self, source: int, targets: Sequence[int]) -> list[EnvResult]:
        """Put other environments, of whatever worker, into the state of one: a group of siblings for GRPO.

        Args:
            source: Environment to copy, which goes on undisturbed.
            targets: Environments that take over its state.

        Returns:
            Observation and info of each target.

        Raises:
            ValueError: If the state of this kind of environment cannot be saved.
        """
        targets = self._checked_indices(targets, "fork_from")
        self._checked_indices([source], "fork_from")
        (data,) = self.snapshot([source])
        return self.restore(targets, [data] * len(targets))

    @property
    def under_way(self) -> list[int]:
        """Environments whose results `recv` has still to return, or whose failures to raise."""
        at_work = [slot.index for slot in self._slots if slot.pending is not None and slot.pending[0] in _RECEIVED]
        return sorted([*at_work, *(result.env_index for result in self._ready), *self._failures])

    @property
    def replayable(self) -> bool:
        """Whether a replay brings the environments back after their worker's end, so that only faults are lost."""
        return all(slot.description is not None and slot.description.replays for slot in self._slots)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the present workers."""
        return [worker.pid for worker in self._workers]

    # ---- sending ------------------------------------------------------------------------------------

    def _send_steps(self, indices: Sequence[int], actions: Sequence[Any]) -> None:
        slots = [self._slots[index] for index in indices]
        for slot in slots:
            if slot.result is None:
                raise ResetNeeded(f"environment {slot.index} was never reset; reset it before the first step.")
            if slot.ended and self.autoreset_mode is AutoresetMode.DISABLED:
                raise ResetNeeded(
                    f"environment {slot.index} has no running episode (it has ended, or its reset failed) and "
                    "autoreset is disabled; reset it with send_reset([index]) or reset(options={'reset_mask': mask})."
                )
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        commands: dict[int, Command] = {}
        for slot, action in zip(slots, actions, strict=True):
            if slot.ended:
                commands[slot.index] = ("reset", None, None)
            elif slot.lost:
                self._fault(slot, "lost", slot.lost)
            else:
                commands[slot.index] = ("step", action, same_step)
        self._request(commands)

    def _send_resets(self, indices: Sequence[int], seeds: Sequence[int | None], options: Sequence[Options]) -> None:
        for index, seed in zip(indices, seeds, strict=True):
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
                raise ValueError(f"environment {index}: a seed is an integer or None, not {seed!r}.")
        self._request(
            {
                index: ("reset", None if seed is None else int(seed), None if given is None else dict(given))
                for index, seed, given in zip(indices, seeds, options, strict=True)
            }
        )

    def _request(self, commands: Mapping[int, Command]) -> None:
        """Send environments a command of the user each, in one message a worker."""
        batches: dict[int, list[tuple[int, Command]]] = {}
        for index, command in commands.items():
            batches.setdefault(self._slots[index].worker, []).append((index, command))
        packed: dict[int, bytes] = {}
        for number, batch in batches.items():
            try:
                packed[number] = self._packed(batch)
            except Exception as error:
                raise TypeError(
                    f"environments {', '.join(str(index) for index, _ in batch)}: what they were given cannot be sent "
                    f"to their worker ({error}); give values that can be pickled."
                ) from error
        for number, data in packed.items():
            for index, command in batches[number]:
                slot = self._slots[index]
                slot.pending = command
                slot.expected.append(command)
            self._send(self._workers[number], data)

    def _packed(self, batch: list[tuple[int, Command]]) -> bytes:
        """Pickle commands; other than text, what users give may be of classes of the main module."""
        text = all(command[0] == "step" for _, command in batch) and isinstance(self.single_action_space, TextSpace)
        return pickle.dumps(batch, protocol=5) if text else cast(bytes, cloudpickle.dumps(batch))

    def _send(self, worker: WorkerProcess, data: bytes) -> None:
        worker.channel.send(data)
        self._watch(worker)

    def _watch(self, worker: WorkerProcess) -> None:
        """Wait for what a worker says and, as long as there is something left to send, for it to read."""
        worker.heard = time.monotonic()
        events = selectors.EVENT_READ | (0 if worker.channel.flush() else selectors.EVENT_WRITE)
        if self._selector.get_key(worker.channel).events != events:
            self._selector.modify(worker.channel, events, worker)

    # ---- receiving ----------------------------------------------------------------------------------

    def _collect(self, indices: Sequence[int]) -> list[EnvResult]:
        """Wait for the steps or resets of these environments, while no others are under way."""
        slots = [self._slots[index] for index in indices]
        while any(slot.pending is not None for slot in slots):
            self._pump(None)
        self._ready.clear()
        self._raise_failures(indices)
        return [cast(EnvResult, slot.result) for slot in slots]

    def _wait_for(self, indices: Sequence[int]) -> list[Any]:
        """Wait for the answers to other commands."""
        slots = [self._slots[index] for index in indices]
        while any(slot.pending is not None for slot in slots):
            self._pump(None)
        self._raise_failures(indices)
        return [slot.answer for slot in slots]

    def _raise_failures(self, indices: Iterable[int]) -> None:
        failures = [self._failures.pop(index) for index in indices if index in self._failures]
        if failures:
            raise _as_built_in(failures[0]) from failures[0]

    def _pump(self, seconds: float | None) -> None:
        """Exchange messages for at most this time, and look after workers that died or hang."""
        patience = min(1.0, self._call_seconds / 2, self._start_seconds / 2)
        now = time.monotonic()
        if now - self._last_look > 2 * patience:  # nobody listened: whoever waits to be heard is not silent
            for worker in self._workers:
                worker.heard = now
        for key, events in self._selector.select(patience if seconds is None else min(seconds, patience)):
            self._exchange(key.data, events)
        now = time.monotonic()
        if now - self._last_look > patience:
            self._last_look = now
            for worker in list(self._workers):
                self._look_after(worker, now)
        if self._fatal is not None:
            raise WorkerError(self._fatal)

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
                self._fatal = (
                    f"SubprocVectorEnv: what worker {worker.number} returned cannot be read ({error}); let infos hold "
                    "strings, numbers and booleans."
                )
                return
            worker.heard = time.monotonic()
            worker.answered = worker.answered or bool(batches)
            for batch in batches:
                for index, reply in batch:
                    self._take_reply(self._slots[index], reply)

    def _take_reply(self, slot: _Slot, reply: Any) -> None:
        command = slot.expected.popleft()
        if command is not slot.pending:
            self._take_recovery(slot, command, reply)
            return
        slot.pending = None
        slot.strikes = self._lost_in_a_row[slot.worker] = 0
        match command[0], reply:
            case "step", _ if slot.lost:  # it was stepped in a state that is not its own
                self._fault(slot, "lost", slot.lost)
            case "step", Failure():
                self._fault(slot, "error", f"it raised an exception.\n{reply.traceback}")
            case "step", _:
                self._take_step(slot, command[1], reply)
            case _, Failure():
                slot.final = None
                slot.ended = slot.ended or command[0] in ("reset", "restore")
                self._failures[slot.index] = failure = EnvironmentFailure(slot.index, reply)
                if command[0] == "make":
                    failure.add_note(
                        "A worker does not run the main program: what that registers or defines is not known there. "
                        "Let the function import it, or give an id as 'module:id'."
                    )
            case "reset", _:
                final, result = slot.final, self._begin_episode(slot, reply)
                self._ready.append(result if final is None else self._with_final(slot, final))
            case "restore", _:
                slot.answer = self._begin_episode(slot, reply)
            case "set_attribute", _:
                slot.attributes[command[1]] = command[2]
            case _:
                slot.answer = reply

    def _take_step(self, slot: _Slot, action: Any, step: Step) -> None:
        result = EnvResult(slot.index, step.observation, step.reward, step.terminated, step.truncated, step.info)
        slot.actions.append(action)
        slot.result = result
        slot.ended = step.terminated or step.truncated
        if slot.ended:
            self._count_episode("")
        if step.start is not None:
            self._begin_episode(slot, step.start)
            result = self._with_final(slot, result)
        self._ready.append(result)

    def _with_final(self, slot: _Slot, final: EnvResult) -> EnvResult:
        """The result of a step in which the next episode began as well."""
        begun = cast(EnvResult, slot.result)
        info = {"final_obs": final.observation, "final_info": final.info, **begun.info}
        slot.result = final._replace(observation=begun.observation, info=info)
        return slot.result

    def _begin_episode(self, slot: _Slot, start: Start) -> EnvResult:
        slot.start = start
        slot.actions = []
        slot.ended = False
        slot.final = None
        slot.lost = ""
        slot.result = EnvResult(slot.index, start.observation, 0.0, False, False, start.info)
        return slot.result

    def _observations(self) -> Any:
        observations = [cast(EnvResult, slot.result).observation for slot in self._slots]
        if isinstance(self.single_observation_space, TextSpace):
            return tuple(observations)
        empty: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, observations, empty)

    # ---- faults -------------------------------------------------------------------------------------

    def _fault(self, slot: _Slot, kind: str, cause: str) -> None:
        """End an environment's episode with a fault, which answers its step."""
        last = cast(EnvResult, slot.result)
        dropped = ("goal", "instruction", "final_obs", "final_info")
        info = {name: value for name, value in last.info.items() if name not in dropped}
        task = f" (task {info['task']})" if "task" in info else ""
        text = f"environment {slot.index}{task}, step {len(slot.actions) + 1} of its episode: {cause}"
        info.update(end="fault", fault_kind=kind, fault=text)
        slot.pending = None
        slot.lost = ""
        slot.strikes = 0
        slot.ended = True
        slot.result = EnvResult(slot.index, last.observation, 0.0, False, True, info)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            slot.final = slot.result
            self._request({slot.index: ("reset", None, None)})
        else:
            self._ready.append(slot.result)
        _log.warning(text)
        if kind != "lost":
            self._count_episode(text)

    def _count_episode(self, fault: str) -> None:
        self._faults.append(bool(fault))
        if sum(self._faults) > self._fault_limit:
            self._fatal = (
                f"SubprocVectorEnv: {sum(self._faults)} of the last {len(self._faults)} episodes ended by a fault, "
                f"more than fault_limit={self._fault_limit}. The last one: {fault}"
            )

    def _look_after(self, worker: WorkerProcess, now: float) -> None:
        """Replace a worker that hangs, or that has ended without a word."""
        if worker.ended:
            with suppress(EOFError):  # what it said last
                self._exchange(worker, selectors.EVENT_READ)
            if worker is self._workers[worker.number]:
                self._replace(worker)
            return
        limit = self._call_seconds if worker.answered else self._start_seconds
        busy = worker.busy()
        slow = {index for index, since in busy.items() if now - since > limit}
        waiting = any(self._slots[index].expected for index in worker.indices)
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
            self._fatal = (
                f"SubprocVectorEnv: {MAX_LOST_IN_A_ROW + 1} workers in a row have ended without an answer. "
                f"The last one: {cause} What it wrote to stderr may say why."
            )
            raise WorkerError(self._fatal)
        self._start_worker(worker.number, worker.indices)
        batch: list[tuple[int, Command]] = []
        ends: list[Callable[[], None]] = []
        for slot in (self._slots[index] for index in worker.indices):
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
            self._send(self._workers[worker.number], self._packed(batch))
        for end in ends:
            end()

    def _recovery(self, slot: _Slot, cause: str) -> list[Command]:
        """What brings an environment back in a new worker; it is lost if nothing does."""
        if slot.description is None:  # it was still to be made
            return []
        attributes: list[Command] = [("set_attribute", name, value) for name, value in slot.attributes.items()]
        commands: list[Command] = [("make", slot.factory), *attributes]
        if slot.start is None:
            return commands
        if slot.start.stream is not None:
            commands.append(("resume_stream", slot.start.stream))
        if slot.start.snapshot is not None and slot.strikes < 2:
            # A restore may put attributes back to what they were at the beginning of the episode.
            return [*commands, ("restore", slot.start.snapshot, tuple(slot.actions)), *attributes]
        if not slot.ended:
            slot.lost = f"it cannot be brought back in a new worker by replay, and {cause}"
        return commands

    def _end_of_pending(self, slot: _Slot, guilty: bool, kind: str, cause: str) -> Callable[[], None] | None:
        """What answers the pending command of an environment whose worker is gone; None if it is sent again."""
        name = cast(Command, slot.pending)[0]
        if name == "step" and guilty:
            return partial(self._fault, slot, kind, cause)
        if name == "step" and slot.lost:
            return partial(self._fault, slot, "lost", slot.lost)
        if not guilty or (name in ("step", "reset") and slot.strikes < 2):
            return None
        return partial(self._fail, slot, f"{name}: {cause}")

    def _fail(self, slot: _Slot, cause: str) -> None:
        slot.pending = slot.final = None
        slot.strikes = 0
        slot.ended = True
        self._failures[slot.index] = EnvironmentFailure(slot.index, Failure("builtins.RuntimeError", cause, ""))

    def _take_recovery(self, slot: _Slot, command: Command, reply: Any) -> None:
        if command[0] == "make" and isinstance(reply, Failure):
            self._fatal = f"environment {slot.index} cannot be made again in a new worker.\n{reply.traceback}"
        elif slot.ended:
            pass  # the episode is over; its number is known
        elif isinstance(reply, Failure):
            slot.lost = f"it could not be brought back in a new worker.\n{reply.traceback}"
        elif command[0] == "restore" and not _equal(reply.observation, cast(EnvResult, slot.result).observation):
            slot.lost = "a replay of its actions in a new worker gave another observation; is it deterministic?"

    # ---- starting -----------------------------------------------------------------------------------

    def _start_worker(self, number: int, indices: list[int]) -> None:
        lanes = [[index] for index in indices] if self._thread_per_env else [indices]
        worker = WorkerProcess(number, lanes, self.num_envs)
        self._workers[number : number + 1] = [worker]
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _take_descriptions(self, descriptions: Sequence[Description]) -> None:
        first = descriptions[0]
        for index, each in enumerate(descriptions):
            self._slots[index].description = each
            for what in ("id", "observation_space", "action_space"):
                mine, theirs = getattr(each, what), getattr(first, what)
                if mine != theirs:
                    raise ValueError(
                        f"environment {index} has the {what} {mine}, but environment 0 has {theirs}; "
                        "make one SubprocVectorEnv for each kind of environment."
                    )
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    # ---- checking -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("SubprocVectorEnv: it is closed; make another one.")
        if self._fatal is not None:
            raise WorkerError(self._fatal)

    def _check_all_idle(self, what: str) -> None:
        self._check_open()
        if under_way := self.under_way:
            raise ValueError(
                f"{what}: environments {', '.join(map(str, under_way))} have results to come; recv() them first."
            )

    def _checked_indices(self, indices: Iterable[int], what: str) -> list[int]:
        self._check_open()
        if not isinstance(indices, Iterable):
            raise ValueError(f"{what}: the environments are a list of indices, not {indices!r}.")
        checked: list[int] = []
        for index in indices:
            if isinstance(index, bool) or not isinstance(index, int | np.integer):
                raise IndexError(f"{what}: an environment is named by its index, not by {index!r}.")
            if not 0 <= index < self.num_envs:
                raise IndexError(f"{what}: there is no environment {index}; accepted are 0 to {self.num_envs - 1}.")
            if index in checked:
                raise ValueError(f"{what}: environment {index} is named twice.")
            if self._slots[index].pending is not None:
                raise ValueError(f"{what}: environment {index} has not answered yet; recv() its result first.")
            checked.append(int(index))
        return checked

    def _checked_actions(self, actions: Any, indices: Sequence[int], batched: bool = False) -> list[Any]:
        text = isinstance(self.single_action_space, TextSpace)
        if isinstance(actions, str | bytes) or not isinstance(actions, Iterable):
            raise ValueError(f"the actions must be a list with one for each environment, not {actions!r}.")
        each = list(iterate(self.action_space, actions) if batched and not text else actions)
        if len(each) != len(indices):
            raise ValueError(f"{len(each)} actions for {len(indices)} environments; give one for each.")
        if text:
            for index, action in zip(indices, each, strict=True):
                if not isinstance(action, str):
                    raise ValueError(f"environment {index}: an action is a string, not {action!r}.")
        return each

    @staticmethod
    def _options_of_each(options: Options | Sequence[Options], count: int) -> list[Options]:
        each = [options] * count if options is None or isinstance(options, Mapping) else list(options)
        if len(each) != count:
            raise ValueError(f"{len(each)} options for {count} environments; give one for each, or one mapping.")
        for position, given in enumerate(each):
            if given is not None and not isinstance(given, Mapping):
                raise ValueError(f"options {position}: reset options are a mapping or None, not {given!r}.")
        return each


def _make_one(
    spec: EnvSpec, wrappers: Sequence[Callable[[Any], gymnasium.Env[Any, Any]]], kwargs: Mapping[str, Any]
) -> gymnasium.Env[Any, Any]:
    """What a worker does to make one environment of `SubprocVectorEnv.make`."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(spec, **kwargs)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _equal(one: Any, other: Any) -> bool:
    """Whether two observations of whatever kind are the same."""
    return data_equivalence(one, other, exact=True) or pickle.dumps(one) == pickle.dumps(other)  # NaNs


def _pickled(value: Any, what: str) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(value))
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to a worker ({type(error).__name__}: {error}); let it hold nothing that is bound "
            "to this process, such as open files, locks and live environments."
        ) from error


def _checked_mask(mask: Any, num_envs: int) -> Array:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (num_envs,):
        raise ValueError(f"reset: options['reset_mask'] must hold {num_envs} bools, not {mask!r}.")
    if not array.any():
        raise ValueError("reset: options['reset_mask'] is False everywhere; then there is nothing to reset.")
    return array


def _as_built_in(failure: EnvironmentFailure) -> Exception:
    """The same as an exception of the class that the environment raised, if it is Python's or Gymnasium's own."""
    module, _, name = failure.kind.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    if not issubclass(kind, Exception) or issubclass(kind, UnicodeError) or kind is Exception:
        kind = RuntimeError
    return cast(Exception, kind(str(failure)))


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
