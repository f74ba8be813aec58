"""Nearest vectors with `faiss`: finds passages near in meaning that share no word with the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agentgym_envs.cache import build_once
from agentgym_envs.deepsearch.retrieval.corpus import Corpus
from agentgym_envs.deepsearch.retrieval.encoder import Encoder, Floats
from agentgym_envs.deepsearch.retrieval.interface import Hit, MissingPackage, RetrieverFault, check_top_k, clean_query
from agentgym_envs.deepsearch.retrieval.progress import progress_bar
from agentgym_envs.deepsearch.retrieval.ranking import best

try:
    import faiss
except ModuleNotFoundError as error:
    raise MissingPackage("the dense retriever", error.name, "pip install 'agentgym-suite[deepsearch-dense]'") from error

Positions = npt.NDArray[np.int64]

PASSAGES_AT_A_TIME = 256
"""Passages that are encoded together, and that an interrupted build has to encode anew at most."""


class DenseRetriever:
    """Finds the passages whose vectors have the largest inner product with the query's, by looking at all of them.

    The vectors are memory-mapped and shared by all processes; the encoder is not, so for many processes over one
    corpus a server is the better place for it.
    """

    def __init__(self, corpus: Corpus, encoder: Encoder, progress: bool = False) -> None:
        """Open the vectors, which are computed at the first use.

        Args:
            corpus: What to search; closed with the retriever.
            encoder: Makes the vectors.
            progress: Whether to show the progress of computing them.

        Raises:
            RetrieverFault: If the vectors are not those of the corpus.
            ValueError: If the cache cannot be written.
        """
        self._corpus = corpus
        self._encoder = encoder
        folder = corpus.folder / f"dense-{encoder.name}"
        build_once(folder, lambda partial: _encode_corpus(corpus, encoder, partial, progress))
        self._vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        if len(self._vectors) != len(corpus):
            raise RetrieverFault(
                f"{folder} holds {len(self._vectors)} vectors for {len(corpus)} passages; delete that folder, and it "
                "is built anew at the next start."
            )

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        check_top_k(top_k)
        texts = [clean_query(query) for query in queries]
        asked = [row for row, text in enumerate(texts) if any(map(str.isalnum, text))]
        hits: list[list[Hit]] = [[] for _ in texts]
        if asked:
            vectors = self._encoder.encode_queries([texts[row] for row in asked])
            # One pass over the vectors for all queries together: that is what makes batches cheap.
            scores, positions = self._nearest(vectors, top_k + 1)
            for number, row in enumerate(asked):

                def fetch(limit: int, number: int = number) -> tuple[Floats, Callable[[], Positions]]:
                    if limit == top_k + 1:
                        return scores[number], lambda: positions[number]
                    more, places = self._nearest(vectors[number : number + 1], limit)
                    return more[0], lambda: places[0]

                hits[row] = [Hit(self._corpus[position], score) for score, position in best(fetch, top_k)]
        return hits

    def _nearest(self, queries: Floats, limit: int) -> tuple[Floats, Positions]:
        """Scores and positions, each [queries, hits], best first; fewer than `limit` where the corpus is smaller."""
        limit = min(limit, len(self._vectors))
        scores, positions = faiss.knn(queries, self._vectors, limit, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, positions

    def close(self) -> None:
        """See `Retriever.close`."""
        self._corpus.close()


def _encode_corpus(corpus: Corpus, encoder: Encoder, folder: Path, progress: bool) -> None:
    """Write `vectors.npy`, float32 [passages, dimension].

    Passages are encoded in the order of their lengths, as the tokens of equally long texts are multiplied together.
    What is finished lies beside the folder, so that a build that was interrupted goes on from there.
    """
    lengths = corpus.line_lengths()
    order = np.argsort(lengths, kind="stable")
    row_bytes = encoder.encode_passages([""]).shape[1] * np.dtype(np.float32).itemsize
    finished = corpus.folder / f".dense-{encoder.name}.part"
    with finished.open("ab") as out:
        done = out.tell() // row_bytes // PASSAGES_AT_A_TIME * PASSAGES_AT_A_TIME
        out.truncate(done * row_bytes)
        with progress_bar(f"encoding {len(corpus):,} passages", int(lengths.sum()), progress) as advance:
            advance(int(lengths[order[:done]].sum()))
            for start in range(done, len(corpus), PASSAGES_AT_A_TIME):
                positions = order[start : start + PASSAGES_AT_A_TIME]
                passages = (corpus[int(position)] for position in positions)
                vectors = encoder.encode_passages([f"{passage.title}\n{passage.text}" for passage in passages])
                out.write(vectors.astype(np.float32, copy=False).tobytes())
                out.flush()
                advance(int(lengths[positions].sum()))
    places = np.argsort(order)
    rows = np.memmap(finished, np.float32, "r").reshape(len(corpus), -1)
    # Written, not mapped: a full disk is an error in writing, but kills a process that has mapped a file.
    with (folder / "vectors.npy").open("wb") as out:
        np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": rows.shape})
        for start in range(0, len(corpus), PASSAGES_AT_A_TIME):
            out.write(rows[places[start : start + PASSAGES_AT_A_TIME]].tobytes())
    finished.unlink()
