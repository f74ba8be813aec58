"""The parent's side of one worker: start it, exchange messages, see what it is doing, end it."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from agentgym_wrappers.messages import Channel, UnreadableMessage

OUTER_PATH = "AGENTGYM_OUTER_PYTHONPATH"  # what PYTHONPATH is for what environments start
_POLL_SECONDS = 0.01


class WorkerProcess:
    """A worker of `SubprocVectorEnv` in a process group of its own.

    Attributes:
        number: Which of the vector environment's workers it is.
        indices: Indices of its environments.
        channel: Messages to and from it.
        heard: Monotonic time at which something was last exchanged with it, or nobody listened.
        answered: Whether it ever said anything.
    """

    def __init__(self, number: int, lanes: Sequence[Sequence[int]], num_envs: int, path: Sequence[str]) -> None:
        """Start the process; it does not wait for it.

        Args:
            number: Which of the workers it is.
            lanes: Indices of the environments of each of its threads.
            num_envs: Number of environments in all.
            path: Where it finds modules.
        """
        self.number = number
        self.indices = [index for lane in lanes for index in lane]
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as always:
            ours, theirs = socket.socketpair()
            on_failure.enter_context(ours)
            always.enter_context(theirs)
            # In memory: what is written into a file on a disk may wait for the disk.
            table = always.enter_context(open(os.memfd_create("agentgym-calls"), "r+b"))
            table.truncate(8 * num_envs)
            # What environments leave in it is gone when the worker is, however it ends.
            self._folder = tempfile.mkdtemp(prefix="agentgym-worker-")
            on_failure.callback(shutil.rmtree, self._folder)
            self._table = on_failure.enter_context(mmap.mmap(table.fileno(), 0))
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",  # the current folder is on the path only if it is on ours
                    "-m",
                    "agentgym_wrappers.worker",
                    str(theirs.fileno()),
                    str(table.fileno()),
                    self._folder,
                    ":".join(",".join(map(str, lane)) for lane in lanes),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), table.fileno()),
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(path),
                    OUTER_PATH: os.environ.get("PYTHONPATH", ""),
                    "TMPDIR": self._folder,
                },
                start_new_session=True,  # Ctrl-C is for the parent, and what the worker started dies with it
            )
            on_failure.pop_all()
        ours.setblocking(False)
        self.channel = Channel(ours)
        self.heard = time.monotonic()
        self.answered = False

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    @property
    def signalled(self) -> bool:
        """Whether a signal ended it."""
        return (self._process.returncode or 0) < 0

    @property
    def ended(self) -> bool:
        """Whether the process has ended, though something that it started may keep its socket open."""
        return self._process.poll() is not None

    def busy(self) -> dict[int, float]:
        """Environments that are in a call just now, and the monotonic times at which the calls began."""
        times = np.frombuffer(self._table, dtype=np.float64)[self.indices]
        return {index: since for index, since in zip(self.indices, times.tolist(), strict=True) if since}

    def begin_closing(self) -> None:
        """Let the worker close its environments and end."""
        with contextlib.suppress(OSError):
            self.channel.socket.shutdown(socket.SHUT_WR)

    def end(self, seconds: float) -> str:
        """Wait for the process, kill what is left of its group, and free everything.

        Args:
            seconds: How long to wait before killing it.

        Returns:
            How it ended, e.g. `"was killed by SIGKILL"`.
        """
        if self._table.closed:
            return "has ended before"
        deadline = time.monotonic() + seconds
        while self._process.poll() is None and time.monotonic() < deadline:
            # Take what it still says: it may wait for us to read before it can close anything.
            with contextlib.suppress(EOFError, UnreadableMessage):
                self.channel.receive()
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self.channel.close()
        self._table.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if code < 0:
            known = {number.value for number in signal.Signals}
            return f"was killed by {signal.Signals(-code).name if -code in known else f'signal {-code}'}"
        return f"exited with code {code}"
