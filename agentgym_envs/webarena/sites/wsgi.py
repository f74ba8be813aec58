"""The WSGI application of the server: finds the tenant and the site by the host name, and has the site answer."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_envs.webarena.sites.interface import SITES
from agentgym_envs.webarena.sites.tenants import Busy, Tenant

StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]

_HOST = re.compile(rf"({'|'.join(SITES)})\.([a-z0-9]+)\.localhost(?::\d+)?", re.IGNORECASE)

_MAX_STATICS = 1_000

# Whatever a page names, the browser loads nothing but from the site itself.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"


class Answer(NamedTuple):
    """A response that is complete.

    Attributes:
        status: Code and phrase.
        headers: Names and values.
        body: The bytes.
    """

    status: str
    headers: list[tuple[str, str]]
    body: bytes


class Sites:
    """All sites of all tenants as one WSGI application."""

    def __init__(self, applications: dict[str, Application], statics: Callable[[str, str], Path | None]) -> None:
        """Make the application.

        Args:
            applications: Site to the application that answers its requests, called inside `Tenant.visit`.
            statics: Finds the file of a site's path that is the same for all tenants.
        """
        self.tenants: dict[str, Tenant] = {}
        self._applications = applications
        # Bounded: whatever path a browser asks for is looked for.
        self._statics = lru_cache(maxsize=_MAX_STATICS)(statics)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        """Answer a request."""
        answer = self._answer(environ)
        start_response(answer.status, [*answer.headers, ("Content-Security-Policy", _POLICY)])
        return [answer.body]

    def _answer(self, environ: dict[str, Any]) -> Answer:
        host = _HOST.fullmatch(environ.get("HTTP_HOST", ""))
        tenant = self.tenants.get(host[2].lower()) if host else None
        if host is None or tenant is None:
            return _text("404 Not Found", "There is no such site.")
        site, path = host[1].lower(), environ.get("PATH_INFO", "/")
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            if path == "/favicon.ico":  # browsers ask for it when they like, so it must not count
                return Answer("204 No Content", [], b"")
            file = self._statics(site, path)
            if file is not None:
                return _file(path, file.read_bytes(), "public, max-age=86400")
            if path.startswith("/media/"):
                return self._upload(tenant, site, path.removeprefix("/media/"))
        # What a page asks for by itself comes at times that depend on the machine, so it must not move the clock.
        by_page = environ.get("HTTP_SEC_FETCH_DEST", "document") not in ("document", "iframe")
        try:
            with tenant.visit(site, tick=not by_page):
                return _completed(self._applications[site], environ)
        except Busy as busy:
            return _text("503 Service Unavailable", f"The site is busy: {busy}.")

    def _upload(self, tenant: Tenant, site: str, path: str) -> Answer:
        with tenant.visit(site, tick=False):
            data = tenant.upload(path)
        return _text("404 Not Found", "There is no such file.") if data is None else _file(path, data, "no-cache")


def _completed(application: Application, environ: dict[str, Any]) -> Answer:
    """Run an application to the end of its response."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        del exc_info  # nothing has been sent yet, so an error may still replace the response
        started.append((status, headers))
        return written.append

    chunks = application(environ, start_response)
    try:
        written.extend(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    status, headers = started[-1]
    return Answer(status, headers, b"".join(written))


def _text(status: str, text: str) -> Answer:
    return Answer(status, [("Content-Type", "text/plain; charset=utf-8")], text.encode())


def _file(path: str, data: bytes, caching: str) -> Answer:
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    headers = [("Content-Type", kind), ("Cache-Control", caching), ("X-Content-Type-Options", "nosniff")]
    return Answer("200 OK", headers, data)
