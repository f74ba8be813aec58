"""The retrieval server: Search-R1's `/retrieve` protocol over any retriever.

    POST /retrieve  {"queries": ["..."], "topk": 3, "return_scores": true}
    GET  /health    {"status": "ok", "retriever": "lexical", "waiting": 0}

`agentgym serve-retriever` runs it; clients are Search-R1's own, or `open_retriever("http://...")`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from agentgym_envs.deepsearch.retrieval.batching import Batcher, QueueFull
from agentgym_envs.deepsearch.retrieval.corpus import contents_of
from agentgym_envs.deepsearch.retrieval.interface import (
    MAX_QUERY_CHARS,
    MAX_TOP_K,
    Hit,
    MissingPackage,
    Retriever,
    RetrieverFault,
    check_top_k,
)

try:
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from pydantic import BaseModel, Field, ValidationError
except ModuleNotFoundError as error:
    raise MissingPackage("the retrieval server", error.name, "pip install 'agentgym-suite[serve]'") from error

log = logging.getLogger(__name__)

MAX_QUERIES = 256
MAX_BODY_BYTES = 4_000_000
BODY_LIMIT_S = 10.0
STOP_LIMIT_S = 5
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Limits:
    """How much the server takes on.

    Attributes:
        queue: Requests that may wait; further ones are answered 503 with Retry-After.
        batch: Queries that are searched for at once.
        threads: Searches at the same time.
    """

    queue: int = 1_024
    batch: int = 64
    threads: int = 2

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        for name in ("queue", "batch", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not accepted; give 1 or more.")


class _Asked(BaseModel, strict=True):
    queries: Annotated[list[Annotated[str, Field(max_length=MAX_QUERY_CHARS)]], Field(max_length=MAX_QUERIES)]
    topk: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None
    return_scores: bool = False


class _TooLarge(Exception):
    pass


def make_app(retriever: Retriever, name: str, top_k: int = 3, limits: Limits | None = None) -> FastAPI:
    """Make the application.

    Args:
        retriever: Does the searching; closed when the application stops.
        name: What `/health` calls it.
        top_k: Hits for requests that do not say how many.
        limits: How much it takes on.

    Raises:
        ValueError: If `top_k` is out of range.
    """
    check_top_k(top_k)
    limits = limits or Limits()
    batcher = Batcher(retriever, limits.queue, limits.batch, limits.threads)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            async with batcher.running():
                yield
        finally:
            retriever.close()

    app = FastAPI(title="Retriever", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "retriever": name, "waiting": batcher.waiting}

    @app.post("/retrieve")
    async def retrieve(request: Request) -> JSONResponse:
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                body = await _body(request)
            asked = _Asked.model_validate_json(body)
        except _TooLarge:
            return _refusal(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        except TimeoutError:
            return _refusal(408, f"the body did not arrive in {BODY_LIMIT_S:g} s")
        except ValidationError as error:
            return _refusal(422, _reasons(error))
        try:
            found = await batcher.search(asked.queries, asked.topk or top_k) if asked.queries else []
        except QueueFull:
            return _refusal(503, f"{limits.queue} requests wait already", {"Retry-After": str(RETRY_AFTER_S)})
        except RetrieverFault as error:
            return _refusal(502, str(error))
        except Exception as error:
            log.exception("a search failed")
            return _refusal(500, f"the search failed: {type(error).__name__}: {error}")
        return JSONResponse({"result": [[_document(hit, asked.return_scores) for hit in hits] for hits in found]})

    return app


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, then answer what has begun and return.

    Args:
        app: What `make_app` made.
        listener: A listening socket; closed at the end.
    """
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_LIMIT_S)
    # After its shutdown uvicorn sends itself the signal again, for whoever handled it before: nobody needs to.
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Open the port.

    Raises:
        ValueError: If it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not 0 <= port < 2**16:
            raise OSError("ports are 0 to 65535")
        return socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise ValueError(
            f"cannot listen at {host} port {port} ({error}); give an address of this machine and a free port, or 0 "
            "for any free port."
        ) from error


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise _TooLarge
    return bytes(body)


def _document(hit: Hit, with_score: bool) -> dict[str, Any]:
    document = {"id": hit.passage.id, "contents": contents_of(hit.passage)}
    return {"document": document, "score": hit.score} if with_score else document


def _refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason}, status, headers)


def _reasons(error: ValidationError) -> str:
    reasons = [f"{'.'.join(map(str, detail['loc'])) or 'body'}: {detail['msg']}" for detail in error.errors()[:3]]
    accepted = f'{{"queries": [text, ...], "topk": 1 to {MAX_TOP_K}, "return_scores": true}}'
    return f"{'; '.join(reasons)}. Accepted is {accepted}"
