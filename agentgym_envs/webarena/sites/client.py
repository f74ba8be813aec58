"""The side of the environments: starts the server process, and asks it for tenants over its socket."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentgym_envs.core import Fault
from agentgym_envs.webarena.sites.interface import SITES, Cookie
from agentgym_envs.webarena.sites.pristine import environment, pristine_folder

_END_SECONDS = 10.0
_STDERR_BYTES = 1000
_SOCKET = "control"


class SiteProcess:
    """The server process; see `interface.SiteServer`."""

    def __init__(self, start_seconds: float, call_seconds: float) -> None:
        """Start it and wait until it serves.

        Args:
            start_seconds: What that may take, once the pristine state is in the cache.
            call_seconds: What the answer to a call may take.

        Raises:
            Fault: If it does not start.
            ModuleNotFoundError: If a package is missing.
        """
        pristine = pristine_folder()
        self._owner = os.getpid()
        self._call_seconds = call_seconds
        self._closed = False
        self._closing = threading.RLock()  # reentrant: a garbage collection may close it once more
        # Not a TemporaryDirectory: a forked process would remove it at its end. The server removes it at its own.
        self._scratch = Path(tempfile.mkdtemp(prefix="sites-"))
        self._stderr = tempfile.TemporaryFile()
        module = "agentgym_envs.webarena.sites.server"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, str(pristine), str(self._scratch), str(self._owner)],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        try:
            self._port = int(json.loads(self._first_line(start_seconds))["port"])
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as is known, and belongs to this process."""
        return not self._closed and self._owner == os.getpid() and self._process.poll() is None

    def open_tenant(self) -> RemoteTenant:
        """Make a tenant.

        Raises:
            Fault: If the server died or does not answer in time.
        """
        if not self.alive:
            raise self._death()
        try:
            connection = Client(str(self._scratch / _SOCKET), "AF_UNIX")
        except OSError as error:
            raise self.broken(str(error)) from error
        return RemoteTenant(self, connection, self._port, self._call_seconds)

    def broken(self, what: str) -> Fault:
        """Give the server up after a call failed, and say why as a fault."""
        if self._owner != os.getpid():
            return Fault("died", "the site server belongs to the process that this one was forked from")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # a connection ends a moment before its process does
        if self._process.poll() is not None:
            return self._death()
        self.close()
        return Fault("timeout", f"the site server was ended: {what}")

    def close(self) -> None:
        """End the process; a second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._owner == os.getpid():
                self._process.kill()
                self._process.wait(_END_SECONDS)
                shutil.rmtree(self._scratch, ignore_errors=True)
            for file in (self._process.stdin, self._process.stdout, self._stderr):
                assert file is not None
                file.close()

    def _first_line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Fault("start", f"the site server did not start within {seconds:g} s{self._said()}")
            part = os.read(self._process.stdout.fileno(), 4096)
            if not part:
                self._process.wait(_END_SECONDS)
                raise Fault("start", f"the site server ended at its start{self._said()}")
            data += part
        return data.decode()

    def _death(self) -> Fault:
        if self._owner != os.getpid():
            return Fault("died", "the site server belongs to the process that this one was forked from")
        if self._closed:
            return Fault("died", "the site server has been closed")
        return Fault("died", f"the site server has died (exit status {self._process.poll()}{self._said()})")

    def _said(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        text = os.pread(self._stderr.fileno(), _STDERR_BYTES, max(0, size - _STDERR_BYTES)).decode(errors="replace")
        return f"; it said: {' '.join(text.split())}" if text else ""


class RemoteTenant:
    """A tenant of the server process; see `interface.Tenant`."""

    def __init__(self, server: SiteProcess, connection: Connection, port: int, call_seconds: float) -> None:
        """Take over a connection, which makes the tenant and keeps it."""
        self._server = server
        self._connection = connection
        self._call_seconds = call_seconds
        self._lock = threading.Lock()
        label = self._call("label")
        self.origins: Mapping[str, str] = MappingProxyType(
            {site: f"http://{site}.{label}.localhost:{port}" for site in SITES}
        )

    def reset(self, logins: Mapping[str, str]) -> dict[str, list[Cookie]]:
        """Put everything back to the pristine state; return the cookies of each login."""
        cookies = self._call("reset", dict(logins))
        return {site: [Cookie(name, value, self.origins[site])] for site, (name, value) in cookies.items()}

    def snapshot(self) -> bytes:
        """The whole state, as a difference to the pristine one."""
        return bytes(self._call("snapshot"))

    def restore(self, data: bytes) -> None:
        """Put the state of a snapshot back."""
        self._call("restore", data)

    def state_hash(self) -> str:
        """Hash of the whole state."""
        return str(self._call("state_hash"))

    def clock(self) -> float:
        """The tenant's time in seconds since 1970."""
        return float(self._call("clock"))

    def query(self, site: str, name: str, **arguments: Any) -> Any:
        """Ask a read-only question."""
        return self._call("query", site, name, arguments)

    def close(self) -> None:
        """Give the tenant up; the server frees it when it sees the connection's end."""
        self._connection.close()

    def _call(self, command: str, *arguments: Any) -> Any:
        if not self._server.alive:
            raise self._server.broken("it is no longer running")
        with self._lock:
            try:
                self._connection.send((command, arguments))
                if not self._connection.poll(self._call_seconds):
                    raise self._server.broken(f"it did not answer {command!r} within {self._call_seconds:g} s")
                outcome, value = self._connection.recv()
            except (EOFError, OSError) as error:
                raise self._server.broken(f"its connection broke during {command!r} ({error})") from error
        if outcome == "refused":
            raise ValueError(value)
        if outcome == "failed":
            raise Fault("site", f"the site server failed at {command!r}: {value}")
        return value
