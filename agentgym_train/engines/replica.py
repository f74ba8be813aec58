"""One running server, spoken to by JSON over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from agentgym_train.engines.base import EngineError

_MAX_ANSWER_BYTES = 256_000_000
_MAX_REASON_CHARS = 300


class ReplicaDown(Exception):
    """A server does not answer, or says that it is broken; another one may do.

    Attributes:
        passing: Whether the same server may do when it is asked again soon.
    """

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


class RequestRefused(Exception):
    """A server answers that it will not do what it was asked for.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class Replica:
    """A server. Each call has a connection of its own, so many threads may call at the same time.

    Attributes:
        url: Its address.
        busy: Number of replies that it is asked for now; kept by its user.
        down: Why it is not asked any more; empty while it is. Kept by its user, too.
    """

    def __init__(self, url: str) -> None:
        """Name a server; nothing is sent yet.

        Raises:
            EngineError: If the address is none.
        """
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError as error:
            raise _no_address(url) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _no_address(url)
        self._secure, self._host = parts.scheme == "https", parts.hostname
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = url
        self.busy = 0
        self.down = ""
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def call(self, path: str, body: object, timeout_s: float) -> Any:
        """Send a request and return the answer.

        Args:
            path: Such as `/v1/completions`.
            body: Sent as JSON; None sends GET.
            timeout_s: Longest wait for the connection, and then for the answer.

        Raises:
            ReplicaDown: If there is no answer in time, or one of 500 and above.
            RequestRefused: If the answer is another status than 200.
        """
        connection = self._connection(timeout_s)
        with self._lock:
            self._open.add(connection)
        try:
            method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
            connection.request(method, self._path + path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise ReplicaDown(f"no answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaDown(str(error) or type(error).__name__, passing=True) from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        if response.status >= 500:
            raise ReplicaDown(f"it answers {response.status} {_reason(answer)}", passing=True)
        if response.status != 200:
            raise RequestRefused(response.status, _reason(answer))
        try:
            return json.loads(answer) if answer else None
        except ValueError as error:
            raise ReplicaDown(f"its answer is no JSON: {_reason(answer)}") from error

    def hang_up(self) -> None:
        """End all calls that other threads wait for; they raise ReplicaDown."""
        with self._lock:
            for connection in self._open:
                if connection.sock is not None:
                    with suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)


def _no_address(url: str) -> EngineError:
    return EngineError(f"engine.urls: {url!r} is no address; accepted is e.g. http://127.0.0.1:8000")


def _reason(answer: bytes) -> str:
    """A server's own words, shortened to one line."""
    try:
        text = str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = answer[:_MAX_REASON_CHARS].decode(errors="replace")
    return " ".join(text.split())[:_MAX_REASON_CHARS]
