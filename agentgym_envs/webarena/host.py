"""The site server that environments of this process share: joining it, leaving it, replacing it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from agentgym_envs.webarena.sites.interface import SiteServer

StartSites = Callable[[], SiteServer]


class _Host:
    def __init__(self, start: StartSites) -> None:
        self.start = start
        self.server = start()
        self.taken = 0


_lock = threading.RLock()  # reentrant: a garbage collection may leave a server while one is joined
_hosts: list[_Host] = []


def join(start: StartSites) -> SiteServer:
    """Take a place in the server that was started in this way; a new one is started where it is none or dead.

    Args:
        start: What starts it.

    Raises:
        Fault: If a new one does not start.
    """
    with _lock:
        for host in list(_hosts):
            if not host.server.alive:
                _hosts.remove(host)
                host.server.close()
            elif host.start == start:
                host.taken += 1
                return host.server
        host = _Host(start)
        host.taken = 1
        _hosts.append(host)
        return host.server


def leave(server: SiteServer) -> None:
    """Give a place back; the server ends with the last one."""
    with _lock:
        host = next((host for host in _hosts if host.server is server), None)
        if host is None:  # it died, and another environment has found that
            return
        host.taken -= 1
        if host.taken == 0:
            _hosts.remove(host)
            server.close()


def _end_all() -> None:
    for host in list(_hosts):
        host.server.close()


def _after_fork() -> None:
    """The servers stay with the parent; a forked process starts its own."""
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it
    _hosts.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_after_fork)
