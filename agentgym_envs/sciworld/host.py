"""Java processes that environments of this process share: joining one, leaving it, replacing it."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from agentgym_envs.core import Fault
from agentgym_envs.sciworld.jvm import Jvm, Settings
from agentgym_envs.sciworld.simulator import Simulator


class Host:
    """A Java process, the simulators in it and the number of environments. It ends when the last one has left.

    Simulators that an environment has left are used again: what a class loader has loaded stays for good.
    """

    def __init__(self, settings: Settings, places: int) -> None:
        """Start the process.

        Raises:
            Fault: If it does not start.
        """
        self.jvm = Jvm(settings)
        self.places = places
        self.taken = 0
        self._idle: list[Simulator] = []
        self._scratch: Simulator | None = None
        self._scratching = threading.Lock()

    def simulator(self) -> Simulator:
        """Return a simulator for an environment that has a place here.

        Raises:
            Fault: If the process died.
        """
        with _lock:
            idle = self._idle.pop() if self._idle else None
        return idle if idle is not None and idle.usable else Simulator(self.jvm)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Simulator]:
        """Lend a simulator in which things can be tried out, one borrower at a time.

        Raises:
            Fault: If the process died.
        """
        if not self.jvm.alive:  # in a forked process nobody would open the lock that a thread of the parent has
            raise Fault("died", "the Java process has died")
        with self._scratching:
            if self._scratch is None or not self._scratch.usable:
                self._scratch = Simulator(self.jvm)
            yield self._scratch

    def leave(self, simulator: Simulator | None) -> None:
        """Give a place back, and the simulator that was used in it."""
        with _lock:
            self.taken -= 1
            if simulator is not None and simulator.hand_over():
                self._idle.append(simulator)
            if self.taken == 0:
                if self in _hosts:
                    _hosts.remove(self)
                self.jvm.end()


_lock = threading.RLock()  # reentrant: a garbage collection may leave a host while one is joined
_hosts: list[Host] = []


def join(settings: Settings, places: int) -> Host:
    """Take a place in a Java process of these settings; a new one is started where all are full or dead.

    Args:
        settings: How it is, or was, started.
        places: Environments that share one.

    Raises:
        Fault: If a new one does not start.
    """
    with _lock:
        for host in list(_hosts):
            if not host.jvm.alive:
                _hosts.remove(host)
                host.jvm.end()
            elif host.jvm.settings == settings and host.places == places and host.taken < places:
                host.taken += 1
                return host
        host = Host(settings, places)
        host.taken = 1
        _hosts.append(host)
        return host


def live_heap_kb() -> float | None:
    """Return what is alive in the heaps of all Java processes, after a garbage collection; None without any."""
    with _lock:
        jvms = [host.jvm for host in _hosts if host.jvm.alive]
    try:
        return sum(jvm.live_heap_kb() for jvm in jvms) if jvms else None
    except Fault:  # one has died meanwhile
        return None


def _after_fork() -> None:
    """The Java processes stay with the parent; a forked process starts its own."""
    global _lock
    _lock = threading.RLock()
    for host in _hosts:
        host.jvm.forget()
    _hosts.clear()


# A process that is being started is in no list yet, and its files would stay open in the forked one.
os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork)
