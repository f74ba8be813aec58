"""One running server, spoken to by JSON over HTTP."""

from __future__ import annotations

import http.client
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        self._open: set[socket.socket] = set()

    def call(self, path: str, body: object, timeout_s: float) -> Any:
        """Send a request and return the answer.

        Args:
            path: Such as `/v1/completions`.
            body: Sent as JSON; None sends GET.
            timeout_s: Longest wait for the connection, and then for the whole answer.

        Raises:
            ReplicaDown: If there is no whole answer in time, or one that says busy (429) or broken (500 and above).
            RequestRefused: If the answer is another status than 200.
        """
        connection = self._connection(timeout_s)
        until = math.inf
        try:
            connection.connect()
            until = time.monotonic() + timeout_s
            with self._open_until_late(connection.sock, timeout_s):
                method, data = ("GET", None) if body is None else ("POST", json.dumps(body))
                connection.request(method, self._path + path, data, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = response.read(_MAX_ANSWER_BYTES)
                if response.length:  # bytes that it announced and did not send
                    raise http.client.IncompleteRead(answer, response.length)
            if time.monotonic() >= until:  # what ended was the call, and perhaps not the answer
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= until:
                raise ReplicaDown(f"no answer within {timeout_s:g} s") from error
            raise ReplicaDown(str(error) or type(error).__name__, passing=True) from error
        finally:
            connection.close()
        if response.status >= 500 or response.status == http.client.TOO_MANY_REQUESTS:
            raise ReplicaDown(f"it answers {response.status} {_reason(answer)}", passing=True)
        if response.status != 200:
            raise RequestRefused(response.status, _reason(answer))
        try:
            return json.loads(answer) if answer else None
        except (ValueError, RecursionError) as error:
            raise ReplicaDown(f"its answer is no JSON: {_reason(answer)}") from error

    def ask(self, path: str, body: object, timeout_s: float, key: str) -> Any:
        """Send a request (see `call`) and return one entry of the answer.

        Raises:
            ReplicaDown, RequestRefused: As `call`; ReplicaDown also if the answer has no such entry.
        """
        answer = self.call(path, body, timeout_s)
        if not isinstance(answer, dict) or key not in answer:
            raise ReplicaDown(f"it answers {path} without {key}")
        return answer[key]

    def hang_up(self) -> None:
        """End all calls that other threads wait for; they raise ReplicaDown."""
        with self._lock:
            for sock in self._open:
                _shut(sock)

    @contextmanager
    def _open_until_late(self, sock: socket.socket, timeout_s: float) -> Iterator[None]:
        """End a call after a while, and when `hang_up` says so.

        The socket's own limit is for each piece of an answer, and an answer may come in ever so many pieces.
        """
        late = threading.Timer(timeout_s, _shut, [sock])
        late.daemon = True
        with self._lock:
            self._open.add(sock)
        late.start()
        try:
            yield
        finally:
            late.cancel()
            with self._lock:
                self._open.discard(sock)

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _no_address(url: str) -> EngineError:
    return EngineError(f"engine.urls: {url!r} is no address; accepted is e.g. http://127.0.0.1:8000")


def _reason(answer: bytes) -> str:
    """A server's own words, shortened to one line."""
    try:
        text = str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = answer[:_MAX_REASON_CHARS].decode(errors="replace")
    return " ".join(text.split())[:_MAX_REASON_CHARS]
