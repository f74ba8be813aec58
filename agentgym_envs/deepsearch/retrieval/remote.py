r"""The client of a Search-R1 style retrieval server.

The protocol is one request:

    POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
    200             {"result": [[{"document": {"id": "7", "contents": "\"Title\"\ntext"}, "score": 1.5}]]}

Of a hit, `document` is read and in it `contents`, or `title` and `text`. `id` and `score` may be missing, as some
servers over web searches leave them out: the first hit then is "1" with the score 1, the second "2" with 1/2 and so
on. Hits stay in the server's order; everything else in them is left unread.
"""

from __future__ import annotations

import http.client
import io
import json
import math
import random
import socket
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from agentgym_envs.deepsearch.retrieval.corpus import passage_of
from agentgym_envs.deepsearch.retrieval.interface import Hit, RetrieverFault, check_top_k, clean_query

if TYPE_CHECKING:
    from typing_extensions import Buffer  # in collections.abc from Python 3.12 on

ATTEMPTS = 4
FIRST_PAUSE_S = 0.1
"""Least wait before the second attempt, and twice as long before each further one."""
MAX_ANSWER_BYTES = 64_000_000
MAX_REASON_CHARS = 200
"""What is told of a server's own words."""
_PASSING = {500, 502, 503, 504}
"""Answers after which another attempt may succeed."""


class _Passing(Exception):
    """A failure after which another attempt may succeed; says how long the server asks to wait, if it does."""

    def __init__(self, reason: str, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.pause = pause


class RemoteRetriever:
    """Asks a server. Each search has a connection of its own, so threads and forked processes may share this."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        """Name the server; nothing is sent yet.

        Args:
            url: Address of the server; without a path, `/retrieve` is asked.
            timeout: Seconds that one search may take in all, retries included.

        Raises:
            ValueError: If the address or the time limit is not accepted.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"retriever={url!r} is no address ({error}); accepted is {_EXAMPLE}.") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"retriever={url!r} is no address; accepted is {_EXAMPLE}.")
        if not (math.isfinite(timeout) and timeout > 0):
            raise ValueError(f"timeout={timeout} is not accepted; give a number of seconds above 0.")
        self.url = url
        self._timeout = timeout
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = (parts.path if parts.path.strip("/") else "/retrieve") + (f"?{parts.query}" if parts.query else "")

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        check_top_k(top_k)
        if not queries:
            return []
        asked = {"queries": [clean_query(query) for query in queries], "topk": top_k, "return_scores": True}
        body = json.dumps(asked).encode()
        deadline = time.monotonic() + self._timeout
        pause = FIRST_PAUSE_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._read(self._post(body, deadline), len(queries), top_k)
            except _Passing as failure:
                # Clients that were turned away together must not come back together.
                wait = max(pause, failure.pause) * (1 + random.SystemRandom().random())
                if attempt == ATTEMPTS or time.monotonic() + wait >= deadline:
                    raise RetrieverFault(f"the retriever at {self.url} {failure} (attempts: {attempt})") from failure
                time.sleep(wait)
                pause *= 2
        raise AssertionError("unreachable")

    def close(self) -> None:
        """See `Retriever.close`."""

    def _post(self, body: bytes, deadline: float) -> bytes:
        connection = self._connection(max(deadline - time.monotonic(), 1e-3))  # a pause may have gone beyond it
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        try:
            connection.connect()
            reader = _TimedReader(connection.sock, deadline)
            connection.request("POST", self._path, body, headers)
            response = http.client.HTTPResponse(cast(socket.socket, reader), method="POST")
            response.begin()
            answer = response.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError:
            raise RetrieverFault(f"the retriever at {self.url} is slow: no answer in {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Passing(f"is down: {_printable(str(error)) or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status in _PASSING:
            raise _Passing(f"answers {response.status}{_excerpt(answer)}", _retry_after(response))
        if response.status != 200:
            raise RetrieverFault(f"the retriever at {self.url} answers {response.status}{_excerpt(answer)}")
        if len(answer) > MAX_ANSWER_BYTES:
            raise self._nonsense(f"more than {MAX_ANSWER_BYTES} bytes")
        if response.length:
            raise _Passing(f"is down: its answer broke off, {response.length} bytes before the end")
        return answer

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _read(self, answer: bytes, queries: int, top_k: int) -> list[list[Hit]]:
        try:
            result = json.loads(answer)["result"]
            if not isinstance(result, list) or len(result) != queries:
                raise ValueError(f'"result" is no list with an entry for each of {queries} queries')
            return [[_hit(entry, rank) for rank, entry in enumerate(entries[:top_k], 1)] for entries in result]
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self._nonsense(f"{type(error).__name__}: {error}") from error

    def _nonsense(self, reason: str) -> RetrieverFault:
        told = f"the retriever at {self.url} answers nonsense ({_printable(reason)})"
        return RetrieverFault(f"{told}; is it a /retrieve server?")


_EXAMPLE = "e.g. http://127.0.0.1:8000/retrieve"


class _TimedReader(io.RawIOBase):
    """What `HTTPResponse` reads from: a socket until a deadline.

    A socket's own time limit begins anew with every byte, so a server that drips would never reach it.
    """

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


def _hit(entry: object, rank: int) -> Hit:
    if not isinstance(entry, dict):
        raise ValueError(f"a hit is a JSON {type(entry).__name__}, not an object")
    score, document = entry.get("score", 1 / rank), entry["document"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"a score is {score!r}")
    return Hit(passage_of({"id": rank, **document} if isinstance(document, dict) else document), float(score))


def _retry_after(response: http.client.HTTPResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _excerpt(answer: bytes) -> str:
    text = _printable(answer[:MAX_REASON_CHARS].decode(errors="backslashreplace"))
    return f": {text}" if text else ""


def _printable(text: str) -> str:
    """The beginning of a text on one line, with everything escaped that a terminal or a log would not show."""
    line = " ".join(text.split())
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line[:MAX_REASON_CHARS])
    return shown[:MAX_REASON_CHARS]
