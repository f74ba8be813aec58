"""Reciprocal rank fusion: what several retrievers agree on comes first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from agentgym_envs.deepsearch.retrieval.corpus import id_key
from agentgym_envs.deepsearch.retrieval.interface import MAX_TOP_K, Hit, Passage, Retriever, check_top_k

SMOOTHING = 60
"""The constant of Cormack, Clarke and Buettcher (2009): how little the first ranks differ."""


class HybridRetriever:
    """Scores a passage by the sum of 1 / (60 + rank) over the retrievers that have it in their first 100."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        """Fuse retrievers.

        Args:
            retrievers: Retrievers over one corpus; closed with this one.
        """
        self._retrievers = tuple(retrievers)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        check_top_k(top_k)
        found = [retriever.search(queries, MAX_TOP_K) for retriever in self._retrievers]
        return [_fuse(lists)[:top_k] for lists in zip(*found, strict=True)]

    def close(self) -> None:
        """See `Retriever.close`."""
        for retriever in self._retrievers:
            retriever.close()


def _fuse(lists: Sequence[list[Hit]]) -> list[Hit]:
    scores: dict[Passage, float] = defaultdict(float)
    for hits in lists:
        for rank, hit in enumerate(hits, 1):
            scores[hit.passage] += 1 / (SMOOTHING + rank)
    fused = [Hit(passage, score) for passage, score in scores.items()]
    return sorted(fused, key=lambda hit: (-hit.score, id_key(hit.passage.id)))
