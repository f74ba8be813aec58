"""BM25 with `tantivy`: the default retriever.

The index lies beside the corpus, is memory-mapped, and holds no text: a hit is a position in the corpus.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgym_envs.cache import build_once
from agentgym_envs.deepsearch.retrieval.corpus import Corpus
from agentgym_envs.deepsearch.retrieval.interface import Hit, MissingPackage, RetrieverFault, check_top_k, clean_query
from agentgym_envs.deepsearch.retrieval.progress import progress_bar
from agentgym_envs.deepsearch.retrieval.ranking import best

try:
    import tantivy
except ModuleNotFoundError as error:
    raise MissingPackage("the lexical retriever", error.name, "pip install 'agentgym-suite[deepsearch]'") from error

VERSION = 1
MAX_TERMS = 64
"""Different words of a query that are searched for, the first ones."""
WRITER_BYTES = 1_000_000_000
"""An index is one segment as long as it is built in this much memory: more than a million passages."""

STOP_WORDS = (
    "a an and are as at be but by for from how if in into is it no not of on or such that the their then there "
    "these they this to was were what when where which who whom whose why will with"
)


class LexicalRetriever:
    """Finds the passages that share the rarest words with a query (BM25, k1 = 1.2, b = 0.75).

    Words are stemmed and freed of case and accents. Stop words count only in a query that has no others. A word
    counts once, however often the query has it.
    """

    def __init__(self, corpus: Corpus, progress: bool = False) -> None:
        """Open the index, which is built at the first use.

        Args:
            corpus: What to search; closed with the retriever.
            progress: Whether to show the progress of building.

        Raises:
            RetrieverFault: If the index cannot be opened.
            ValueError: If the cache cannot be written.
        """
        self._corpus = corpus
        self._schema, self._analyzer = _schema(), _analyzer()
        self._stop_words = frozenset(self._analyzer.analyze(STOP_WORDS))
        # Another version of tantivy may write other files or stem in another way.
        folder = corpus.folder / f"lexical-{VERSION}-{importlib.metadata.version('tantivy')}"
        build_once(folder, lambda partial: build_index(corpus, partial, progress=progress))
        self._folder = folder
        with _faults(folder):
            self._searcher = open_index(folder)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        check_top_k(top_k)
        return [self._search(query, top_k) for query in queries]

    def close(self) -> None:
        """See `Retriever.close`."""
        self._corpus.close()

    def _search(self, text: str, top_k: int) -> list[Hit]:
        terms = list(dict.fromkeys(self._analyzer.analyze(clean_query(text))))
        terms = [term for term in terms if term not in self._stop_words] or terms
        if not terms:
            return []
        query = tantivy.Query.boolean_query(
            [
                (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "contents", term, "freq"))
                for term in terms[:MAX_TERMS]
            ]
        )

        def fetch(limit: int) -> tuple[list[float], Callable[[], list[Any]]]:
            found = self._searcher.search(query, limit, count=False).hits
            addresses = [address for _, address in found]
            return [score for score, _ in found], lambda: self._searcher.fast_field_values("position", addresses)

        with _faults(self._folder):
            found = best(fetch, top_k)
        return [Hit(self._corpus[position], score) for score, position in found]


def open_index(folder: Path) -> tantivy.Searcher:
    """Open an index without writing to its folder.

    tantivy wants to make a lock file beside the files that it opens, so it is given links to them. Once they are
    open, the links are needed no more.

    Args:
        folder: What `build_index` filled.
    """
    with tempfile.TemporaryDirectory(prefix="agentgym-index-") as links:
        for file in folder.iterdir():
            if file.suffix != ".lock":
                (Path(links) / file.name).symlink_to(file.resolve())
        return tantivy.Index.open(links).searcher()


def build_index(corpus: Corpus, folder: Path, writer_bytes: int = WRITER_BYTES, progress: bool = False) -> None:
    """Write the index of a corpus.

    Args:
        corpus: The corpus.
        folder: An empty folder.
        writer_bytes: Memory after which a segment is closed and another begun.
        progress: Whether to show progress.

    Raises:
        OSError: If it cannot be written.
    """
    try:
        index = tantivy.Index(_schema(), str(folder))
        index.register_tokenizer("english", _analyzer())
        writer = index.writer(writer_bytes, num_threads=1)  # more threads would deal out the passages by chance
        with progress_bar(f"indexing {len(corpus):,} passages", len(corpus), progress) as advance:
            for position in range(len(corpus)):
                passage = corpus[position]
                document = tantivy.Document(position=position, contents=f"{passage.title}\n{passage.text}")
                writer.add_document(document)
                if position % 1000 == 999:
                    advance(1000)
            writer.commit()
            writer.wait_merging_threads()
    except ValueError as error:  # by which tantivy reports a full disk, too
        raise OSError(str(error)) from error


@contextmanager
def _faults(folder: Path) -> Iterator[None]:
    """Turn what tantivy raises over a damaged index into a fault."""
    try:
        yield
    except BaseException as error:
        # A panic in Rust code is a BaseException of a class that cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise RetrieverFault(
            f"the index in {folder} cannot be searched ({type(error).__name__}: {error}); if it is damaged, delete "
            "that folder, and it is built anew at the next start."
        ) from error


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("position", fast=True)
    builder.add_text_field("contents", tokenizer_name="english", index_option="freq")
    return builder.build()


def _analyzer() -> tantivy.TextAnalyzer:
    """Letters and digits make words; everything else only separates them."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (
        tantivy.Filter.remove_long(256),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    ):
        builder = builder.filter(step)
    return builder.build()
