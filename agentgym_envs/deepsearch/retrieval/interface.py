"""What a retriever is, and how one is opened by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agentgym_envs.verbs import well_formed

if TYPE_CHECKING:
    from agentgym_envs.deepsearch.retrieval.corpus import Corpus

LOCAL = ("lexical", "dense", "hybrid")

MAX_TOP_K = 100
MAX_QUERY_CHARS = 8_192
"""What is read of a query; the rest is left out."""


class Passage(NamedTuple):
    """One passage of a corpus.

    Attributes:
        id: Its name, unique in the corpus.
        title: Title of the page that it is from; may be empty.
        text: The passage itself, without the title.
    """

    id: str
    title: str
    text: str


class Hit(NamedTuple):
    """A passage that was found.

    Attributes:
        passage: The passage.
        score: Larger is better; only comparable within one retriever.
    """

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds passages for queries. One object may be used by several threads."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Find the best passages for each query.

        Any text is a query: nothing in it is syntax, and text without a word finds nothing.

        Args:
            queries: The queries.
            top_k: Largest number of hits for each, 1 to `MAX_TOP_K`.

        Returns:
            A list for each query: its hits, best first, of equal ones the smaller passage id first.

        Raises:
            RetrieverFault: If the retriever cannot answer.
            ValueError: If `top_k` is out of range.
        """
        ...

    def close(self) -> None:
        """Free what the retriever holds; a second call does nothing."""
        ...


class RetrieverFault(Exception):
    """A retriever is down, slow, or answers nonsense; the message says which."""


class MissingPackage(ModuleNotFoundError):
    """A package that is not installed by default is needed; the message has the command that installs it."""

    def __init__(self, needed_by: str, package: str | None, command: str) -> None:
        """Say what is missing.

        Args:
            needed_by: What needs it.
            package: Its name.
            command: What installs it.
        """
        super().__init__(
            f"{needed_by} needs the package {package}, which is not installed; run: {command}", name=package
        )


def open_retriever(
    spec: str = "lexical", *, corpus: str | Path | None = None, timeout: float = 10.0, progress: bool | None = None
) -> Retriever:
    """Open a retriever.

    Args:
        spec: `"lexical"` (BM25), `"dense"` (MiniLM vectors), `"hybrid"` (both), or the `http://` address of a
            Search-R1 style server, e.g. `http://127.0.0.1:8000/retrieve`.
        corpus: The JSON-lines file to search (see `corpus.py`); an address needs none. Its index is built at the
            first use and kept in the cache folder, where all processes share it.
        timeout: For an address: seconds that one search may take in all, retries included.
        progress: Whether to show the progress of building an index; None shows it for vectors, which take minutes.

    Returns:
        The retriever; close it after use.

    Raises:
        ValueError: If `spec` is unknown, the corpus is missing or broken, or the cache cannot be written.
        RetrieverFault: If the index cannot be opened.
        MissingPackage: If a package of the extra is missing; the message has the command that installs it.
    """
    if spec.startswith(("http://", "https://")):
        from agentgym_envs.deepsearch.retrieval.remote import RemoteRetriever

        return RemoteRetriever(spec, timeout)
    if spec not in LOCAL:
        near = difflib.get_close_matches(spec, LOCAL, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"retriever={spec!r} is unknown; accepted are {', '.join(LOCAL)} and http:// addresses.{hint}")
    if corpus is None:
        raise ValueError(f"retriever={spec!r} needs a corpus; give the path of a JSON-lines file of passages.")
    return _open_local(spec, Path(corpus), progress)


def _open_local(spec: str, source: Path, progress: bool | None) -> Retriever:
    from agentgym_envs.deepsearch.retrieval.corpus import open_corpus

    corpus = open_corpus(source, bool(progress))
    try:
        if spec == "lexical":
            return _lexical(corpus, progress)
        if spec == "dense":
            return _dense(corpus, progress)
        from agentgym_envs.deepsearch.retrieval.hybrid import HybridRetriever

        return HybridRetriever([_lexical(corpus, progress), _dense(corpus, progress)])
    except BaseException:
        corpus.close()
        raise


def _lexical(corpus: Corpus, progress: bool | None) -> Retriever:
    from agentgym_envs.deepsearch.retrieval.lexical import LexicalRetriever

    return LexicalRetriever(corpus, bool(progress))


def _dense(corpus: Corpus, progress: bool | None) -> Retriever:
    from agentgym_envs.deepsearch.retrieval.dense import DenseRetriever
    from agentgym_envs.deepsearch.retrieval.encoder import BertEncoder, minilm_folder

    return DenseRetriever(corpus, BertEncoder(minilm_folder()), progress is not False)


def check_top_k(top_k: int) -> None:
    """Refuse a number of hits that is out of range.

    Raises:
        ValueError: If it is.
    """
    if not 1 <= top_k <= MAX_TOP_K:
        raise ValueError(f"top_k={top_k} is not accepted; give 1 to {MAX_TOP_K}.")


def clean_query(query: str) -> str:
    """The part of a query that is read."""
    return well_formed(query[:MAX_QUERY_CHARS])
