"""Many environments in worker processes: `SubprocVectorEnv`.

Beside Gymnasium's batched `reset` and `step` there is a pair without a barrier, `send` and `recv`, on which
`step` is built. A worker that dies or hangs is replaced; see `docs/vectorization.md`.
"""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import cloudpickle
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from agentgym_envs import RefusedAction, TextSpace
from agentgym_wrappers.columns import infos_by_column
from agentgym_wrappers.messages import Command, Description
from agentgym_wrappers.worker_pool import CLOSE_SECONDS, FAULT_WINDOW, EnvResult, Slot, WorkerError, WorkerPool

CALL_SECONDS = 300.0
START_SECONDS = 120.0
_RECEIVED = ("step", "reset")  # commands that `recv` answers

Options = Mapping[str, Any] | None
Array = npt.NDArray[Any]


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
        self._pool = WorkerPool(
            factories,
            workers=workers,
            thread_per_env=thread_per_env,
            autoreset=self.autoreset_mode is AutoresetMode.SAME_STEP,
            call_seconds=call_seconds,
            start_seconds=start_seconds,
            fault_limit=fault_limit,
        )
        self.closed = False
        try:
            self._take_descriptions(self._pool.start())
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
            if self._pool.slots[index].result is None:
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
        self._pool.request({index: ("call", name, arguments) for index in range(self.num_envs)})
        answers = tuple(self._pool.wait_for(range(self.num_envs)))
        self._check_not_lost(range(self.num_envs))
        return answers

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
        self._pool.request({index: ("set_attribute", name, value) for index, value in enumerate(pickled)})
        self._pool.wait_for(range(self.num_envs))

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
        self._pool.close(seconds)

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
        self._pool.pump(0)
        while not self._pool.failures:
            at_work = sum(slot.pending is not None for slot in self._pool.slots)
            under_way = at_work + len(self._pool.ready)
            if not under_way:
                raise ValueError("recv: nothing is under way; send() or send_reset() first.")
            left = None if deadline is None else deadline - time.monotonic()
            if len(self._pool.ready) >= min(at_least, under_way) or (left is not None and left <= 0):
                break
            self._pool.pump(left)
        if self._pool.failures:
            raise self._pool.failures.pop(min(self._pool.failures))
        results = list(self._pool.ready)
        self._pool.ready.clear()
        return results

    def snapshot(self, indices: Sequence[int]) -> list[bytes]:
        """Save the states of some environments; see `agentgym_wrappers.snapshot`."""
        indices = self._checked_indices(indices, "snapshot")
        self._pool.request({index: ("snapshot",) for index in indices})
        snapshots = cast(list[bytes], self._pool.wait_for(indices))
        self._check_not_lost(indices)
        return snapshots

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
        self._pool.request({i: ("restore", data, ()) for i, data in zip(indices, snapshots, strict=True)})
        return cast(list[EnvResult], self._pool.wait_for(indices))

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
        results = self.restore(targets, [data] * len(targets))
        for target in targets:
            self._pool.slots[target].ended = self._pool.slots[source].ended
        return results

    @property
    def under_way(self) -> list[int]:
        """Environments whose results `recv` has still to return, or whose failures to raise."""
        at_work = [slot.index for slot in self._pool.slots if slot.pending is not None and slot.pending[0] in _RECEIVED]
        return sorted([*at_work, *(result.env_index for result in self._pool.ready), *self._pool.failures])

    @property
    def replayable(self) -> bool:
        """Whether a replay brings the environments back after their worker's end, so that only faults are lost."""
        return all(slot.description is not None and slot.description.replays for slot in self._pool.slots)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the present workers."""
        return [worker.pid for worker in self._pool.workers]

    # ---- sending ------------------------------------------------------------------------------------

    def _send_steps(self, indices: Sequence[int], actions: Sequence[Any]) -> None:
        text = isinstance(self.single_action_space, TextSpace)
        if not text:
            actions = copy.deepcopy(actions)  # kept for a replay; the caller may use its arrays again
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        commands: dict[int, Command] = {}
        lost: list[Slot] = []
        for index, action in zip(indices, actions, strict=True):
            slot = self._pool.slots[index]
            if slot.ended:
                self._check_can_autoreset(slot)
                commands[index] = ("reset", None, None)
            elif slot.lost:
                lost.append(slot)
            else:
                commands[index] = ("step", action, same_step)
        for slot in lost:
            self._pool.fault(slot, "lost", slot.lost)
        self._pool.request(commands, text)

    def _check_can_autoreset(self, slot: Slot) -> None:
        if slot.result is None:
            raise ResetNeeded(f"environment {slot.index} was never reset; reset it before the first step.")
        if self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"environment {slot.index} has no running episode (it has ended, or its reset failed) and "
                "autoreset is disabled; reset it with send_reset([index]) or reset(options={'reset_mask': mask})."
            )

    def _send_resets(self, indices: Sequence[int], seeds: Sequence[int | None], options: Sequence[Options]) -> None:
        for index, seed in zip(indices, seeds, strict=True):
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
                raise ValueError(f"environment {index}: a seed is an integer or None, not {seed!r}.")
        self._pool.request(
            {
                index: ("reset", None if seed is None else int(seed), None if given is None else dict(given))
                for index, seed, given in zip(indices, seeds, options, strict=True)
            }
        )

    # ---- receiving ----------------------------------------------------------------------------------

    def _collect(self, indices: Sequence[int]) -> list[EnvResult]:
        """Wait for the steps or resets of these environments, while no others are under way."""
        slots = [self._pool.slots[index] for index in indices]
        while any(slot.pending is not None for slot in slots):
            self._pool.pump(None)
        results = {result.env_index: result for result in self._pool.ready}
        self._pool.ready.clear()
        self._pool.raise_failures(indices)
        return [results[index] for index in indices]

    def _observations(self) -> Any:
        observations = [cast(EnvResult, slot.result).observation for slot in self._pool.slots]
        if isinstance(self.single_observation_space, TextSpace):
            return tuple(observations)
        empty: Any = create_empty_array(self.single_observation_space, self.num_envs)
        return concatenate(self.single_observation_space, observations, empty)

    def _take_descriptions(self, descriptions: Sequence[Description]) -> None:
        first = descriptions[0]
        for index, each in enumerate(descriptions):
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
        if self._pool.fatal is not None:
            raise WorkerError(self._pool.fatal)
        # Calls that Ctrl-C interrupted: nobody waits for their answers any more.
        slots = self._pool.slots
        abandoned = [s.index for s in slots if s.pending is not None and s.pending[0] not in _RECEIVED]
        if abandoned:
            with suppress(Exception):
                self._pool.wait_for(abandoned)

    def _check_all_idle(self, what: str) -> None:
        self._check_open()
        if under_way := self.under_way:
            raise ValueError(
                f"{what}: environments {', '.join(map(str, under_way))} have results to come; recv() them first."
            )

    def _check_not_lost(self, indices: Iterable[int]) -> None:
        """A state that is not the episode's must not be taken for it."""
        for index in indices:
            if lost := self._pool.slots[index].lost:
                raise RuntimeError(
                    f"environment {index}: its state is lost; reset it, or step it for the fault: {lost}"
                )

    def _checked_indices(self, indices: Iterable[int], what: str) -> list[int]:
        self._check_open()
        if not isinstance(indices, Iterable):
            raise ValueError(f"{what}: the environments are a list of indices, not {indices!r}.")
        slots = self._pool.slots
        checked: dict[int, None] = {}  # in their order
        for index in indices:
            if type(index) is not int and (isinstance(index, bool) or not isinstance(index, int | np.integer)):
                raise IndexError(f"{what}: an environment is named by its index, not by {index!r}.")
            if not 0 <= index < self.num_envs:
                raise IndexError(f"{what}: there is no environment {index}; accepted are 0 to {self.num_envs - 1}.")
            if index in checked:
                raise ValueError(f"{what}: environment {index} is named twice.")
            if slots[index].pending is not None:
                raise ValueError(f"{what}: environment {index} has not answered yet; recv() its result first.")
            checked[int(index)] = None
        return list(checked)

    def _checked_actions(self, actions: Any, indices: Sequence[int], batched: bool = False) -> list[Any]:
        text = isinstance(self.single_action_space, TextSpace)
        if isinstance(actions, str | bytes) or not isinstance(actions, Iterable):
            raise ValueError(f"the actions must be a list with one for each environment, not {actions!r}.")
        each = list(iterate(self.action_space, actions) if batched and not text else actions)
        if len(each) != len(indices):
            raise ValueError(f"{len(each)} actions for {len(indices)} environments; give one for each.")
        if not text:
            return each
        return [
            action if type(action) is str else _checked_text(index, action)
            for index, action in zip(indices, each, strict=True)
        ]

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


def _pickled(value: Any, what: str) -> bytes:
    try:
        return cast(bytes, cloudpickle.dumps(value))
    except Exception as error:
        raise TypeError(
            f"{what} cannot be sent to a worker ({type(error).__name__}: {error}); let it hold nothing that is bound "
            "to this process, such as open files, locks and live environments."
        ) from error


def _checked_text(index: int, action: Any) -> str:
    """An action of a subclass of `str`, as one that is known in the worker."""
    if not isinstance(action, str):
        raise ValueError(f"environment {index}: an action is a string, not {action!r}.")
    return action if isinstance(action, RefusedAction) else str(action)


def _checked_mask(mask: Any, num_envs: int) -> Array:
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (num_envs,):
        raise ValueError(f"reset: options['reset_mask'] must hold {num_envs} bools, not {mask!r}.")
    if not array.any():
        raise ValueError("reset: options['reset_mask'] is False everywhere; then there is nothing to reset.")
    return array
