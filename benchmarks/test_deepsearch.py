"""DeepSearch's retrieval: speed beside bm25s in one run, memory, cost against corpus size, the server under load.

Times of single searches are of the processor, which other load on the machine disturbs less; those of the server are
of the wall clock. The plot docs/results/deepsearch-size.png and its numbers are written anew by `test_corpus_size`.
"""

import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from agentgym_envs.deepsearch.retrieval import Passage, open_retriever
from agentgym_envs.deepsearch.retrieval.corpus import read_corpus
from agentgym_envs.deepsearch.tasks import CORPUS, QUESTIONS

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SIZES = (10_000, 100_000, 1_000_000)
VOCABULARY = 200_000
WORDS = 70
STOP_WORDS = 50
"""So many of the most frequent words are left out of the queries, as the retriever leaves stop words out."""
TOP_K = 3


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def passages() -> list[Passage]:
    return [passage for _, passage in read_corpus(CORPUS)]


@pytest.fixture(scope="module")
def queries() -> list[str]:
    """Every eighth embedded question."""
    with gzip.open(QUESTIONS, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in islice(lines, 0, None, 8)]


def medians(search: Callable[[str], object], queries: list[str]) -> float:
    """Median processor time of a search, in ms."""
    times = []
    for query in queries:
        start = time.process_time_ns()
        search(query)
        times.append(time.process_time_ns() - start)
    return statistics.median(times) / 1e6


# ---- one thread, beside bm25s -------------------------------------------------------------------------------


def test_lexical_search_beside_bm25s(passages: list[Passage], queries: list[str]) -> None:
    import bm25s

    position = {passage.id: number for number, passage in enumerate(passages)}
    retriever = open_retriever(corpus=CORPUS)
    theirs = bm25s.BM25()
    texts = [f"{passage.title}\n{passage.text}" for passage in passages]
    theirs.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)

    def ask_theirs(query: str) -> list[int]:
        tokens = bm25s.tokenize(query, show_progress=False)
        found, _ = theirs.retrieve(tokens, k=TOP_K, show_progress=False)
        return cast(list[int], found[0].tolist())

    def ask_ours(query: str) -> list[int]:
        return [position[hit.passage.id] for hit in retriever.search([query], TOP_K)[0]]

    overlap = [len(set(ask_ours(query)) & set(ask_theirs(query))) / TOP_K for query in queries]
    mine, other = medians(ask_ours, queries), medians(ask_theirs, queries)
    retriever.close()
    print(
        f"\n{len(passages):,} passages, {len(queries)} questions: median {mine:.2f} ms, bm25s ({theirs.backend}) "
        f"{other:.2f} ms; {other / mine:.2f} times its queries/s; top-{TOP_K} overlap {statistics.mean(overlap):.2f}"
    )
    assert mine < 2
    assert other / mine >= 0.8


MEMORY = """
import sys
import psutil
import agentgym_envs.deepsearch.retrieval.lexical
from agentgym_envs.deepsearch.retrieval import open_retriever
corpus, queries = sys.argv[1], sys.stdin.read().splitlines()
used = lambda: psutil.Process().memory_full_info().uss
before = used()
retriever = open_retriever(corpus=corpus)
for query in queries:
    retriever.search([query], 3)
print(used() - before, flush=True)
"""


def test_private_memory(queries: list[str]) -> None:
    """While this process has the same index open, as in a pool of environments."""
    retriever = open_retriever(corpus=CORPUS)
    retriever.search(queries, TOP_K)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(CORPUS)],
        input="\n".join(queries[:100]), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    retriever.close()
    assert done.returncode == 0, done.stderr
    print(f"\nopening and 100 queries: {int(done.stdout) / 1e6:.1f} MB of private memory")
    assert int(done.stdout) < 5e6


# ---- corpus size --------------------------------------------------------------------------------------------


def zipf_words(rng: random.Random, count: int, first: int = 1) -> list[str]:
    """Words of which the n-th is about 1/n as frequent as the first, as in written language.

    Args:
        rng: Its random() is used.
        count: Number of words.
        first: Rank of the most frequent one that may come.
    """
    return [f"w{int(first * (VOCABULARY / first) ** rng.random()):x}" for _ in range(count)]


def synthetic(path: Path, size: int) -> None:
    rng = random.Random("corpus")
    with path.open("w") as out:
        for number in range(size):
            words = zipf_words(rng, WORDS)
            out.write(json.dumps({"id": number, "title": " ".join(words[:2]), "text": " ".join(words[2:])}) + "\n")


SIZE = """
import json, random, resource, sys, time
from benchmarks.test_deepsearch import STOP_WORDS, TOP_K, medians, zipf_words
from agentgym_envs.deepsearch.retrieval import open_retriever
start = time.monotonic()
retriever = open_retriever(corpus=sys.argv[1])
built = time.monotonic() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rng = random.Random("queries")
queries = [" ".join(zipf_words(rng, 8, STOP_WORDS)) for _ in range(300)]
retriever.search(queries, TOP_K)
median = medians(lambda query: retriever.search([query], TOP_K), queries)
print(json.dumps({"index s": built, "peak MB": peak / 1024, "query ms": median}))
"""


@pytest.mark.timeout(3_600)
def test_corpus_size(tmp_path: Path) -> None:
    """Index time, memory and query time of synthetic corpora, with eight words a query."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        corpus = tmp_path / f"{size}.jsonl"
        synthetic(corpus, size)
        done = subprocess.run(
            [sys.executable, "-c", SIZE, str(corpus)], capture_output=True, text=True, timeout=1_800,
            cwd=Path(__file__).parents[1], env={**os.environ, "AGENTGYM_CACHE": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        rows.append({"passages": size, **json.loads(done.stdout)})
        print("\n", {key: round(value, 2) for key, value in rows[-1].items()})
        corpus.unlink()
    _plot(rows)
    largest = rows[-1]
    assert largest["index s"] < 600
    assert largest["peak MB"] < 2_048
    assert largest["query ms"] < 20


def _plot(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    units = {"query ms": "one query, median (ms)", "index s": "building the index (s)", "peak MB": "peak memory (MB)"}
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, (key, label) in zip(axes, units.items(), strict=True):
        axis.plot([row["passages"] for row in rows], [row[key] for row in rows], "o-")
        axis.set(xscale="log", yscale="log", xlabel="passages", title=label)
        axis.grid(which="both", alpha=0.3)
    figure.savefig(RESULTS / "deepsearch-size.png", dpi=110)
    pyplot.close(figure)
    text = json.dumps([{key: round(value, 3) for key, value in row.items()} for row in rows], indent=1)
    (RESULTS / "deepsearch-size.json").write_text(text + "\n")


# ---- the server ---------------------------------------------------------------------------------------------

CLIENTS = 64

# Clients that cost little, so that it is the server that is measured; each request has a connection of its own.
CLIENT = """
import asyncio, json, sys, time
port, clients, queries = int(sys.argv[1]), int(sys.argv[2]), sys.stdin.read().splitlines()
async def ask(query):
    body = json.dumps({"queries": [query], "topk": 3, "return_scores": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /retrieve HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    assert b" 200 OK" in answer.splitlines()[0], answer
    assert len(json.loads(answer.partition(b"\\r\\n\\r\\n")[2])["result"]) == 1
async def client(left):
    for query in left:
        await ask(query)
async def main():
    await ask(queries[0])
    start, left = time.monotonic(), iter(queries)
    await asyncio.gather(*(client(left) for _ in range(clients)))
    print(len(queries) / (time.monotonic() - start), flush=True)
asyncio.run(main())
"""


def per_second(port: str, clients: int, queries: list[str]) -> float:
    """Queries per second of so many clients in another process."""
    command = [sys.executable, "-c", CLIENT, port, str(clients)]
    done = subprocess.run(command, input="\n".join(queries), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", ["lexical", "dense"])
def test_server_with_many_clients(kind: str, tmp_path: Path, passages: list[Passage], queries: list[str]) -> None:
    """Over a part of the embedded corpus that MiniLM encodes in half a minute.

    One thread of the matrix library for each search, so that searches rather than matrices share the cores.
    """
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage._asdict()) + "\n" for passage in passages[::16]))
    options = ["--retriever", kind, "--corpus", str(corpus), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "agentgym_train.cli", "serve-retriever", *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().partition("http://127.0.0.1:")[2].partition("/")[0]
            alone = per_second(port, 1, queries[:100])
            together = per_second(port, CLIENTS, queries)
        finally:
            server.terminate()
    print(f"\n{kind}: one client {alone:.0f} queries/s, {CLIENTS} clients {together:.0f}: {together / alone:.1f} times")
    if kind == "dense":  # one lexical search costs less than its request, so there is little to share
        assert together >= 3 * alone
