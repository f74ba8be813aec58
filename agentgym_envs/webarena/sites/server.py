"""The server process: `python -m agentgym_envs.webarena.sites.server PRISTINE SCRATCH`.

It serves the sites over HTTP on a loopback port that the system chooses, and tenants to the parent process over a
socket in the scratch folder, one connection a tenant. It ends when its standard input does, or when its parent is
gone, so also when the parent dies in any way.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from agentgym_envs.webarena.sites import queries
from agentgym_envs.webarena.sites.accounts import session_key
from agentgym_envs.webarena.sites.build import start_django
from agentgym_envs.webarena.sites.interface import SITES
from agentgym_envs.webarena.sites.tenants import DATABASE_OF, Pristine, Tenant, Tracker, visit
from agentgym_envs.webarena.sites.wsgi import Application, Sites

THREADS = 8
"""Requests that are handled at once."""

CHANNEL_SECONDS = 30
"""How long a connection may stay silent, in the middle of a request or between two."""

BODY_BYTES = 16 * 2**20
SOCKET = "control"
COOKIES = {"shopping": "sessionid", "cms": "sessionid", "reddit": "sessionid", "gitlab": "trac_auth"}


class Server:
    """The sites and their tenants."""

    def __init__(self, pristine: Path, scratch: Path) -> None:
        """Load applications and pristine state.

        Args:
            pristine: The folder that `build` has written.
            scratch: A folder for the socket and the trackers' files, removed at the end.
        """
        start_django()
        from django.core.handlers.wsgi import WSGIHandler

        from agentgym_envs.webarena.sites.django_project.database.base import prepare
        from agentgym_envs.webarena.sites.trac_project import application as trac

        trac.load()
        self._prepare = prepare
        self._start_tracker = trac.TenantEnvironment
        self._pristine = Pristine(pristine)
        self._scratch = scratch
        self._count = 0
        self._lock = threading.Lock()
        django: Application = WSGIHandler()
        applications = dict.fromkeys(SITES, django)
        applications["gitlab"] = lambda environ, start: trac.answer(visit().tenant.tracker.application, environ, start)
        self.sites = Sites(applications, _find_static)

    def open_tenant(self) -> Tenant:
        """Make a tenant under host names that nobody can guess."""
        with self._lock:
            self._count += 1
            label = f"t{self._count}x{secrets.token_hex(4)}"
        tracker = Tracker(self._scratch / label, self._pristine, self._start_tracker)
        tenant = Tenant(label, self._pristine, tracker, self._prepare)
        self.sites.tenants[label] = tenant
        return tenant

    def close_tenant(self, tenant: Tenant) -> None:
        """Forget a tenant."""
        self.sites.tenants.pop(tenant.label, None)
        tenant.close()

    def listen(self, listener: Listener) -> None:
        """Serve tenants over the socket, a thread for each connection."""
        while True:
            connection = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Serve one tenant until its connection ends."""
        tenant = self.open_tenant()
        commands: dict[str, Callable[..., Any]] = {
            "label": lambda: tenant.label,
            "reset": lambda logins: _reset(tenant, logins),
            "snapshot": tenant.snapshot,
            "restore": tenant.restore,
            "state_hash": tenant.state_hash,
            "clock": lambda: tenant.now,
            "query": lambda site, name, arguments: _query(tenant, site, name, arguments),
        }
        try:
            while True:
                command, arguments = connection.recv()
                try:
                    reply: tuple[str, Any] = ("done", commands[command](*arguments))
                except ValueError as error:
                    reply = ("refused", str(error))
                except Exception as error:  # anything else is the server's own failure; the parent must hear of it
                    reply = ("failed", f"{type(error).__name__}: {error}")
                connection.send(reply)
        except (EOFError, OSError):
            pass  # the tenant's owner has left
        finally:
            connection.close()
            self.close_tenant(tenant)


def _reset(tenant: Tenant, logins: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Reset a tenant and return name and value of each site's session cookie."""
    unknown = set(logins) - set(SITES)
    if unknown:
        raise ValueError(f"there are no sites {', '.join(sorted(unknown))}; accepted are {', '.join(SITES)}.")
    tenant.reset()
    cookies = {}
    for site, account in logins.items():
        key = session_key(site, account)
        statement = "SELECT 1 FROM django_session WHERE session_key = ?"
        if site == "gitlab":
            statement = "SELECT 1 FROM auth_cookie WHERE cookie = ?"
        with tenant.locked():
            known = tenant.databases[DATABASE_OF[site]].connection.execute(statement, (key,)).fetchone()
        if not known:
            names = ", ".join(_accounts(tenant, site))
            raise ValueError(f"{site}: there is no account {account!r} to log in with; accepted are {names}.")
        cookies[site] = (COOKIES[site], key)
    return cookies


def _accounts(tenant: Tenant, site: str) -> list[str]:
    if site == "gitlab":
        return [row["account"] for row in _query(tenant, site, "users", {})]
    condition = "WHERE is_staff = 1" if site == "cms" else ""
    statement = f"SELECT username FROM auth_user {condition} ORDER BY username"
    return [row["username"] for row in _query(tenant, site, "sql", {"statement": statement})]


def _query(tenant: Tenant, site: str, name: str, arguments: dict[str, Any]) -> Any:
    if site not in SITES:
        raise ValueError(f"there is no site {site!r}; accepted are {', '.join(SITES)}.")
    with tenant.visit(site, tick=False) as current:
        return queries.ask(current.database, site, name, arguments)


def _find_static(site: str, path: str) -> Path | None:
    """The file of the applications that a path names, e.g. a style sheet."""
    if site == "gitlab":
        import trac

        root = Path(trac.__file__).parent / "htdocs"
        name = path.removeprefix("/chrome/common/")
        file = (root / name).resolve()
        return file if name != path and file.is_relative_to(root) and file.is_file() else None
    from django.contrib.staticfiles import finders

    name = path.removeprefix("/static/")
    found = finders.find(name) if name != path and ".." not in name else None
    return Path(found) if found and Path(found).is_file() else None


def _wait_for_the_end(parent: int) -> None:
    """Return when standard input ends or the parent is gone."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0] and not os.read(sys.stdin.fileno(), 1):
            return


def main(pristine: Path, scratch: Path, parent: int) -> None:
    """Serve until the parent ends."""
    from waitress.server import create_server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the parent, which ends this process itself
    logging.disable(logging.CRITICAL)
    server = Server(pristine, scratch)
    http = create_server(
        server.sites,
        host="127.0.0.1",
        port=0,
        threads=THREADS,
        channel_timeout=CHANNEL_SECONDS,
        cleanup_interval=5,
        max_request_body_size=BODY_BYTES,
        connection_limit=1000,
        asyncore_use_poll=True,
        ident=None,
        clear_untrusted_proxy_headers=True,
    )
    listener = Listener(str(scratch / SOCKET), "AF_UNIX", backlog=64)  # before anybody is told that it is there
    threading.Thread(target=server.listen, args=(listener,), daemon=True).start()
    threading.Thread(target=http.run, daemon=True).start()
    gc.collect()
    gc.freeze()  # what is loaded stays; later collections need not look at it
    print(json.dumps({"port": http.effective_port}), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _wait_for_the_end(parent)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
