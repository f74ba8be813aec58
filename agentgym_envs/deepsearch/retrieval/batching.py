"""Searches of many clients put together: a batch costs a retriever far less than its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentgym_envs.deepsearch.retrieval.interface import Hit, Retriever


class QueueFull(Exception):
    """So many requests wait that this one was turned away."""


@dataclass
class _Request:
    queries: Sequence[str]
    top_k: int
    answer: asyncio.Future[list[list[Hit]]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Runs searches in threads: each takes whatever waits, as one search."""

    def __init__(self, retriever: Retriever, queue_size: int, batch_queries: int, threads: int) -> None:
        """Make a batcher; `running` starts it.

        Args:
            retriever: Does the searching.
            queue_size: Requests that may wait.
            batch_queries: Queries that one search takes, unless a single request has more.
            threads: Searches at the same time.
        """
        self._retriever = retriever
        self._waiting: asyncio.Queue[_Request] = asyncio.Queue(queue_size)
        self._batch_queries = batch_queries
        self._threads = threads

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return self._waiting.qsize()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Search while entered; requests that still wait at the end are cancelled."""
        with ThreadPoolExecutor(self._threads, thread_name_prefix="search") as pool:
            workers = [asyncio.create_task(self._work(pool)) for _ in range(self._threads)]
            try:
                yield
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                while not self._waiting.empty():
                    self._waiting.get_nowait().answer.cancel()

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Search, perhaps together with others.

        Raises:
            QueueFull: If too many requests wait.
            Exception: What the retriever raised.
        """
        request = _Request(queries, top_k)
        try:
            self._waiting.put_nowait(request)
        except asyncio.QueueFull:
            raise QueueFull from None
        return await request.answer

    async def _work(self, pool: ThreadPoolExecutor) -> None:
        while True:
            batch = [await self._waiting.get()]
            size = len(batch[0].queries)
            while not self._waiting.empty() and size < self._batch_queries:
                batch.append(self._waiting.get_nowait())
                size += len(batch[-1].queries)
            batch = [request for request in batch if not request.answer.done()]  # whose client has gone
            queries = [query for request in batch for query in request.queries]
            top_k = max((request.top_k for request in batch), default=1)
            try:
                found = await asyncio.get_running_loop().run_in_executor(pool, self._retriever.search, queries, top_k)
            except Exception as error:  # each client is told, and the server goes on
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            except asyncio.CancelledError:
                for request in batch:
                    request.answer.cancel()
                raise
            hits = iter(found)
            for request in batch:
                own = [next(hits)[: request.top_k] for _ in request.queries]
                if not request.answer.done():
                    request.answer.set_result(own)
