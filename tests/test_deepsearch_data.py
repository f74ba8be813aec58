"""`agentgym data deepsearch`: local files, and downloads from a real server that resumes, breaks off and lies."""

import gzip
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentgym_envs.deepsearch import data
from agentgym_envs.deepsearch.env import make
from agentgym_envs.deepsearch.ingest import QUESTIONS_AT
from agentgym_envs.deepsearch.retrieval import open_retriever
from agentgym_envs.deepsearch.retrieval.download import DownloadError, download
from agentgym_train.cli import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "deepsearch"


def rows(count: int) -> bytes:
    """Questions as FlashRAG has them."""
    lines = (
        {"id": f"test_{n}", "question": f"What is {n}?", "golden_answers": [str(n), f"number {n}"], "metadata": {}}
        for n in range(count)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def passages(count: int) -> bytes:
    """Passages as Search-R1 has them."""
    lines = ({"id": str(n), "contents": f'"Page {n}"\nText number {n} of the book.'} for n in range(count))
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def agentgym(*arguments: object) -> int:
    return main(["data", "deepsearch", *map(str, arguments)])


# ---- the layout ---------------------------------------------------------------------------------------------


def test_the_ranges_of_the_data_index_leave_no_gap() -> None:
    end = 0
    for entry in data.QUESTION_SETS:
        assert entry.first == end
        end += entry.count
    assert end == 221_328
    assert [data.question_set(f"{name}/test").first for name in ("nq", "triviaqa", "popqa", "hotpotqa")] == [
        0, 3610, 14923, 29190,
    ]  # fmt: skip
    assert [data.question_set(key).first for key in ("2wikimultihopqa/test", "musique/test", "bamboogle/test")] == [
        36595, 49171, 51588,
    ]  # fmt: skip
    assert [data.question_set(key).first for key in ("nq/train", "hotpotqa/train")] == [51713, 130881]


def test_an_empty_cache_has_nothing() -> None:
    assert data.question_files() == {}
    assert data.corpus_folder() is None


# ---- local files --------------------------------------------------------------------------------------------


def test_local_files_are_taken(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, more, corpus = tmp_path / "q.jsonl", tmp_path / "t.jsonl.gz", tmp_path / "c.jsonl.gz"
    questions.write_bytes(rows(3))
    search_r1 = {"question": " who? ", "golden_answers": ["I"], "data_source": "hotpotqa", "prompt": [{"content": "x"}]}
    more.write_bytes(gzip.compress(json.dumps(search_r1).encode()))
    corpus.write_bytes(gzip.compress(passages(50)))
    assert agentgym("--from-files", f"hotpotqa/train={more}", f"nq/test={questions}", f"corpus={corpus}") == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"hotpotqa/train: 1 questions from {more}, data indexes from 130,881; the public file has 90,447",
        f"nq/test: 3 questions from {questions}, data indexes from 0; the public file has 3,610",
        f"corpus: 50 passages from {corpus}",
    ]
    files = data.question_files()
    assert [entry.key for entry in files] == ["nq/test", "hotpotqa/train"]
    first, second = (list(data.read_questions(path)) for path in files.values())
    assert first == [data.Question(f"test_{n}", f"What is {n}?", (str(n), f"number {n}")) for n in range(3)]
    assert second == [data.Question("1", "who?", ("I",))]
    # The index is there already, and the files that it came from are not needed any more.
    corpus.unlink()
    folder = data.corpus_folder()
    assert folder is not None
    assert any(path.name.startswith("lexical-") for path in folder.iterdir())
    retriever = open_retriever(corpus=folder)
    assert retriever.search(["page 31"], 1)[0][0].passage.title == "Page 31"
    retriever.close()


def test_files_are_replaced(tmp_path: Path) -> None:
    for count in (5, 2):
        (tmp_path / "q.jsonl").write_bytes(rows(count))
        (tmp_path / "c.jsonl").write_bytes(passages(count))
        assert agentgym("--from-files", f"nq/test={tmp_path}/q.jsonl", f"corpus={tmp_path}/c.jsonl") == 0
    (path,) = data.question_files().values()
    assert len(list(data.read_questions(path))) == 2
    folder = data.corpus_folder()
    assert folder is not None
    assert json.loads((folder / "corpus.json").read_text())["passages"] == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "no JSON"),
        (b"[]", "a JSON list, not an object"),
        (b'{"golden_answers": ["x"]}', '"question" is None'),
        (b'{"question": " ", "golden_answers": ["x"]}', "\"question\" is ' '"),
        (b'{"question": "q"}', '"golden_answers" is None'),
        (b'{"question": "q", "golden_answers": "x"}', "\"golden_answers\" is 'x'"),
        (b'{"question": "q", "golden_answers": []}', '"golden_answers" is []'),
        (b'{"question": "q", "golden_answers": [1]}', '"golden_answers" is [1]'),
    ],
)
def test_a_broken_question_is_named(
    line: bytes, reason: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.jsonl"
    file.write_bytes(rows(1) + line)
    assert agentgym("--from-files", f"nq/test={file}") == 1
    error = capsys.readouterr().err
    assert f"{file}, line 2: " in error
    assert reason in error
    assert 'accepted is one JSON object a line with "question" and "golden_answers"' in error
    assert data.question_files() == {}
    assert list((cache / "questions" / "nq").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--from-files", "nq=q.jsonl"], "there is no question set 'nq'; accepted are nq/test, "),
        (["--from-files", "q.jsonl"], "give NAME=FILE, with a name of: nq/test, "),
        (["--from-files", "nq/test="], "give NAME=FILE"),
        (["--from-files", "nq/test=missing.jsonl"], "missing.jsonl: cannot be read"),
        (["--from-files", "corpus=missing.jsonl"], "'missing.jsonl' does not exist"),
        (["--from-files"], "--from-files names no file; give NAME=FILE, with a name of: nq/test, "),
        (["--sets", "nq/dev"], "there is no question set 'nq/dev'"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert agentgym(*arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert reason in line


def test_more_rows_than_the_range_has_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.jsonl").write_bytes(rows(126))
    assert agentgym("--from-files", f"bamboogle/test={tmp_path}/q.jsonl") == 1
    assert "holds more than 125 questions; bamboogle/test has 1 to 125" in capsys.readouterr().err
    (tmp_path / "q.jsonl").write_bytes(b"")
    assert agentgym("--from-files", f"bamboogle/test={tmp_path}/q.jsonl") == 1
    assert "holds no questions" in capsys.readouterr().err


def test_the_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data"]) == 2
    assert main(["data", "--help"]) == 0
    assert main(["data", "textcraft"]) == 2
    assert "there is no data for 'textcraft'" in capsys.readouterr().err


# ---- downloads ----------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """Serves `files`; where `stop_after` has a number of bytes left, it hangs up after them."""

    files: dict[str, bytes]
    requests: list[tuple[str, str | None]]
    stop_after: list[int]
    ranges = True
    tag = ""

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.requests.append((self.path, wanted))
        content = self.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start > len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted and self.ranges else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if self.tag:
            self.send_header("ETag", f'"{self.tag}"')
        self.end_headers()
        end = start + self.stop_after.pop(0) if self.stop_after else len(content)
        self.wfile.write(content[start:end])

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def hub(files: dict[str, bytes], **options: Any) -> Iterator[tuple[str, type[Hub]]]:
    handler = type("Serving", (Hub,), {"files": files, "requests": [], "stop_after": [], **options})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CONTENT = bytes(range(256)) * 8_000


def test_a_download_that_breaks_off_goes_on(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file"
    with hub({"/file": CONTENT}, stop_after=[900_000, 0, 500_000]) as (url, handler):
        download(f"{url}/file", target, hashlib.sha256(CONTENT).hexdigest())
        download(f"{url}/file", target)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in handler.requests] == [
        None, "bytes=900000-", "bytes=900000-", "bytes=1400000-",
    ]  # fmt: skip
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_the_next_attempt_goes_on_too(tmp_path: Path) -> None:
    with hub({"/file": CONTENT}, stop_after=[900_000, 0, 0, 0, 0, 0]) as (url, handler):
        with pytest.raises(DownloadError, match="900000 of 2048000 bytes arrived"):
            download(f"{url}/file", tmp_path / "file")
        assert not (tmp_path / "file").exists()
        download(f"{url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert handler.requests[-1][1] == "bytes=900000-"


def test_a_server_that_is_gone_is_asked_once(tmp_path: Path) -> None:
    """Also when an earlier attempt had begun: nobody waits for retries where there is no network."""
    (tmp_path / "file.part").write_bytes(CONTENT[:10])
    with hub({"/file": CONTENT}, stop_after=[0, 0]) as (url, handler):
        with pytest.raises(DownloadError, match="cannot be fetched"):
            download(f"{url}/file", tmp_path / "file")
    assert len(handler.requests) == 1
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:10]


def test_a_server_without_ranges_begins_anew(tmp_path: Path) -> None:
    with hub({"/file": CONTENT}, stop_after=[900_000], ranges=False) as (url, _):
        download(f"{url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize("named_by_server", [False, True])
def test_a_wrong_hash_is_told_and_the_file_removed(named_by_server: bool, tmp_path: Path) -> None:
    wrong = "0" * 64
    with hub({"/file": CONTENT}, tag=wrong if named_by_server else "") as (url, _):
        with pytest.raises(DownloadError, match=f"not {wrong}: damaged, or changed since"):
            download(f"{url}/file", tmp_path / "file", "" if named_by_server else wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_has_become_shorter_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    with hub({"/file": b"short"}) as (url, _):
        with pytest.raises(DownloadError, match="416"):
            download(f"{url}/file", tmp_path / "file")
        download(f"{url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"short"


def test_questions_are_fetched_from_the_hub_once(
    monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hub({f"/{QUESTIONS_AT}/bamboogle/test.jsonl": rows(125)}) as (url, handler):
        monkeypatch.setenv("HF_ENDPOINT", url + "/")
        for _ in range(2):
            assert agentgym("--sets", "bamboogle/test", "--no-corpus") == 0
    assert len(handler.requests) == 1
    assert capsys.readouterr().out == "in the cache: bamboogle/test\n" * 2
    ((entry, path),) = data.question_files().items()
    assert (entry.first, len(list(data.read_questions(path)))) == (51588, 125)
    assert [file for file in (cache / "downloads").rglob("*") if file.is_file()] == []


def test_another_version_of_a_question_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with hub({f"/{QUESTIONS_AT}/bamboogle/test.jsonl": rows(124)}) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert agentgym("--sets", "bamboogle/test", "--no-corpus") == 1
    assert "bamboogle/test.jsonl of the hub has 124 questions, not 125" in capsys.readouterr().err
    assert data.question_files() == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["closed port", "no such host", "404"])
def test_an_unreachable_hub_is_told_with_what_to_do(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    with hub({}) as (url, _):
        places = {"closed port": f"http://127.0.0.1:{closed}", "no such host": "http://hub.invalid", "404": url}
        monkeypatch.setenv("HF_ENDPOINT", places[kind])
        assert agentgym() == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{places[kind]}/{QUESTIONS_AT}/nq/test.jsonl" in line
    assert "HF_ENDPOINT" in line
    files = " ".join(f"{entry.key}=FILE" for entry in data.QUESTION_SETS)
    assert line.endswith(f"agentgym data deepsearch --from-files {files} corpus=FILE")
    assert data.question_files() == {}


def test_only_what_is_missing_is_to_be_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_bytes(rows(2))
    assert agentgym("--from-files", f"nq/test={tmp_path}/q.jsonl") == 0
    with hub({}) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        assert agentgym("--sets", "nq/test", "musique/test", "--no-corpus") == 1
    assert capsys.readouterr().err.rstrip().endswith("--from-files musique/test=FILE")


# ---- environments over what is there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "needs nq/train or hotpotqa/train, not fetched; run: agentgym data deepsearch --sets nq/train hotpotqa"),
        ({}, "These sets are here: nq/test (for those pass split='test')."),
        ({"subset": "MuSiQue", "split": "test"}, "run: agentgym data deepsearch --sets musique/test. These sets are"),
        ({"tasks": [51_700]}, "51700 is one of bamboogle/test, which is not fetched; run: agentgym data deepsearch"),
    ],
)
def test_sets_that_are_not_fetched_are_told_with_the_command(
    options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "q.jsonl").write_bytes(rows(2))
    assert agentgym("--from-files", f"nq/test={tmp_path}/q.jsonl") == 0
    with pytest.raises(ValueError, match="not fetched") as failed:
        make("real", **options)
    assert reason in str(failed.value)


def test_an_unknown_option_is_told_with_the_accepted_ones() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'topk'; accepted are source, retriever, top_k, .*split, "):
        make(topk=3)
