"""The process that holds environments for `SubprocVectorEnv`: `python -m agentgym_wrappers.worker`.

Commands are carried out by lanes, threads that own environments: one lane for all of them, or one for each
(a browser or JVM can then wait for several at once). An environment is made, stepped and closed in its lane,
since some simulators do not stand a change of thread. A single lane reads its commands itself, which saves
a change of thread for each message; the main thread hands them out to several, and in any case notices the
parent's end whatever the lanes are doing.

End of file on the socket means that the parent is done or dead: environments are closed, and then
everything in the worker's process group is killed, the worker included.
"""

from __future__ import annotations

import argparse
import atexit
import copy
import mmap
import os
import queue
import select
import shutil
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import cloudpickle
import gymnasium
import numpy as np
import numpy.typing as npt

from agentgym_envs import TextEnv
from agentgym_wrappers.messages import Autoreset, Channel, Command, Description, Failure, Start, Step, pack
from agentgym_wrappers.snapshot import can_replay, restore, snapshot
from agentgym_wrappers.worker_process import OUTER_PATH

# Sending wakes the main program, which costs as much as some steps. So results wait for further ones, a batch for
# the first time and fewer for the second.
BATCH_RESULTS = 8
BATCH_SECONDS = (5e-4, 2e-3)
# What closing all environments may take after the end of file.
CLOSE_SECONDS = 5.0
PARENT_CHECK_SECONDS = 1.0

AnyEnv = gymnasium.Env[Any, Any]
Batch = Sequence[tuple[int, Command]]


class Host:
    """One environment and the commands that it understands."""

    env: AnyEnv

    def __init__(self, still_alive: Callable[[], None]) -> None:
        """Make a host without its environment.

        Args:
            still_alive: Called between the steps of a replay, each of which may take as long as a call.
        """
        self._still_alive = still_alive

    def make(self, factory: bytes) -> Description:
        """Make the environment with a cloudpickled factory."""
        env = cloudpickle.loads(factory)()
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"what should make an environment returned {env!r}; does each wrapper function return one?")
        self.env = env
        name = type(env.unwrapped).__qualname__ if env.spec is None else env.spec.id
        self._replays = can_replay(env)
        return Description(
            name, env.observation_space, env.action_space, dict(env.metadata), env.render_mode, self._replays
        )

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Start:
        """Start an episode."""
        return self._started(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any, autoreset: bool) -> Step | Autoreset:
        """Take a step and, where the episode ends and `autoreset` says so, start the next one."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        step = (observation, cast(float, reward), terminated, truncated, info)
        if not autoreset or not (terminated or truncated):
            return step
        step = copy.deepcopy(step)  # some environments write the next episode into the same objects
        try:
            return Autoreset(step, self.reset(None, None))
        except Exception as error:
            return Autoreset(step, failure(error))

    def restore(self, data: bytes, log: Sequence[Command]) -> Start:
        """Go to a saved state and on from there as before; the next episode stays this environment's own."""
        stream = self._stream
        observation, info = restore(self.env, data)
        if stream is not None and isinstance(self.env.unwrapped, TextEnv):
            self.env.unwrapped.stream = stream
        started = self._started(observation, info)
        for name, *arguments in log:
            self._still_alive()
            if name == "step":
                observation, _, _, _, info = self.env.step(arguments[0])
            else:
                self.set_attribute(*arguments)
        return started._replace(observation=observation, info=info)

    def resume_stream(self, stream: tuple[int, int]) -> None:
        """Let the next reset without a seed start the episode that it would have started elsewhere."""
        assert isinstance(self.env.unwrapped, TextEnv)
        self.env.unwrapped.stream = stream

    def snapshot(self) -> bytes:
        """Save the state."""
        return snapshot(self.env)

    def call(self, name: str, arguments: bytes) -> Any:
        """Call a method, or get an attribute, of the outermost wrapper that has it."""
        attribute = self.env.get_wrapper_attr(name)
        if not callable(attribute):
            return attribute
        args, kwargs = cloudpickle.loads(arguments)
        return attribute(*args, **kwargs)

    def set_attribute(self, name: str, value: bytes) -> None:
        """Set an attribute of the outermost wrapper that has it."""
        if not self.env.has_wrapper_attr(name):
            raise AttributeError(f"neither the environment nor a wrapper has an attribute {name!r} to set")
        self.env.set_wrapper_attr(name, cloudpickle.loads(value))

    def close(self) -> None:
        """Close the environment if it was made."""
        if hasattr(self, "env"):
            self.env.close()

    @property
    def _stream(self) -> tuple[int, int] | None:
        return self.env.unwrapped.stream if isinstance(self.env.unwrapped, TextEnv) else None

    def _started(self, observation: Any, info: dict[str, Any]) -> Start:
        return Start(observation, info, snapshot(self.env) if self._replays else None, self._stream)


class Lane:
    """A thread that owns environments and carries out the commands for them in their order."""

    def __init__(
        self,
        indices: Sequence[int],
        batches: Iterable[Batch],
        busy_since: npt.NDArray[np.float64],
        reply: Callable[[Any], None],
    ) -> None:
        """Start the thread.

        Args:
            indices: Indices of its environments in the vector environment.
            batches: Its commands, as they come; everything is closed at their end.
            busy_since: For each environment of the vector environment the monotonic time at which its
                present call began, 0 outside of calls; the parent reads it.
            reply: Sends a list of (index, result or `Failure`).
        """
        self._hosts = {index: Host(partial(self._begin_call, index)) for index in indices}
        self._busy_since = busy_since
        self._reply = reply
        self._batches = batches
        self._thread = threading.Thread(target=self._run, name=f"lane-{indices[0]}", daemon=True)
        self._thread.start()

    def _begin_call(self, index: int) -> None:
        self._busy_since[index] = time.monotonic()

    def join(self, seconds: float) -> None:
        """Wait for the lane to have closed everything."""
        self._thread.join(max(seconds, 0.0))

    def _run(self) -> None:
        for commands in self._batches:
            results: list[tuple[int, Any]] = []
            since = time.monotonic()
            for index, command in commands:
                now = time.monotonic()
                if results and now - since > BATCH_SECONDS[len(results) < BATCH_RESULTS]:
                    self._reply(results)  # may wait for the parent: before the call begins
                    now = time.monotonic()
                    results, since = [], now
                self._busy_since[index] = now
                results.append((index, self._result(self._hosts[index], command)))
                self._busy_since[index] = 0.0
            self._reply(results)
        for host in self._hosts.values():
            try:
                host.close()
            except BaseException:
                traceback.print_exc()

    @staticmethod
    def _result(host: Host, command: Command) -> Any:
        try:
            return getattr(host, command[0])(*command[1:])
        except BaseException as error:  # SystemExit of a simulator must not end the others either
            return failure(error)


def failure(error: BaseException) -> Failure:
    """Describe an exception for the parent."""
    known = ("builtins", "gymnasium.error")
    kind = next(f"{base.__module__}.{base.__name__}" for base in type(error).__mro__ if base.__module__ in known)
    message = "".join(traceback.format_exception_only(error)).strip()
    return Failure(kind, message, "".join(traceback.format_exception(error)))


class Worker:
    """All lanes of the process, and its end of the socket."""

    def __init__(self, channel: Channel, lanes: Sequence[Sequence[int]], busy_since: npt.NDArray[np.float64]) -> None:
        """Start a lane for each group of environments."""
        self._channel = channel
        self._sending = threading.Lock()
        self._queues: dict[int, queue.SimpleQueue[Batch | None]] = {}  # by environment; none for a single lane
        self._lanes = []
        for indices in lanes:
            batches: Iterable[Batch] = _read(channel)
            if len(lanes) > 1:
                commands: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
                self._queues.update(dict.fromkeys(indices, commands))
                batches = iter(commands.get, None)
            self._lanes.append(Lane(indices, batches, busy_since, self._send))

    def serve(self) -> None:
        """Wait for the end of the parent, handing out commands meanwhile, then close all environments."""
        parent = os.getppid()
        poll = select.poll()
        poll.register(self._channel, select.POLLIN if self._queues else select.POLLRDHUP)
        with suppress(EOFError):
            # A process that the parent forked may hold the other end open, so the parent is looked at too.
            while os.getppid() == parent:
                if poll.poll(PARENT_CHECK_SECONDS * 1000):
                    if not self._queues:
                        break
                    for batch in self._channel.receive():
                        for index, command in batch:
                            self._queues[index].put([(index, command)])
        # A thread that some simulator started may keep the interpreter from ending.
        last = threading.Timer(2 * CLOSE_SECONDS, atexit._run_exitfuncs)
        last.daemon = True
        last.start()
        deadline = time.monotonic() + CLOSE_SECONDS
        with suppress(OSError):
            self._channel.socket.shutdown(socket.SHUT_RD)  # the end of what a single lane reads
        for commands in self._queues.values():
            commands.put(None)
        for lane in self._lanes:
            lane.join(deadline - time.monotonic())

    def _send(self, results: list[tuple[int, Any]]) -> None:
        with self._sending:
            try:
                data = pack(results)
            except Exception:  # something in there cannot be pickled: find out which
                data = pack([(index, _picklable(result)) for index, result in results])
            self._channel.send(data)


def _read(channel: Channel) -> Iterator[Batch]:
    """Yield what the parent sends until it is gone."""
    with suppress(EOFError):
        while True:
            yield from channel.receive()


def _picklable(result: Any) -> Any:
    try:
        pack(result)
    except Exception as error:
        return failure(TypeError(f"the result cannot be sent to the parent process: {error!r}"))
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve environments to the parent process that started this one."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_wrappers.worker", description=main.__doc__)
    parser.add_argument("socket", type=int, help="inherited file descriptor of the socket to the parent")
    parser.add_argument("progress", type=int, help="inherited file descriptor of the table of running calls")
    parser.add_argument("folder", help="folder for temporary files, removed at the end")
    parser.add_argument("lanes", help="indices of the environments of each thread, e.g. 0,1,2:3,4")
    given = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.environ.pop(OUTER_PATH, "")
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]
    if os.getpgrp() == os.getpid():  # what is registered first comes last
        atexit.register(os.killpg, os.getpgrp(), signal.SIGKILL)
    atexit.register(shutil.rmtree, given.folder, ignore_errors=True)
    lanes = [[int(index) for index in lane.split(",")] for lane in given.lanes.split(":")]
    os.set_inheritable(given.socket, False)  # what environments start must not keep it open
    table = mmap.mmap(given.progress, 0)
    os.close(given.progress)
    Worker(Channel(socket.socket(fileno=given.socket)), lanes, np.frombuffer(table, dtype=np.float64)).serve()


if __name__ == "__main__":
    main()
