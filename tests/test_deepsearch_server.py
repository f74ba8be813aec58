"""The retrieval server: a real process, real sockets, real signals."""

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentgym_envs.deepsearch.retrieval import Hit, Retriever, RetrieverFault, open_retriever

QUERIES = [f"What is the number of house {number}?" for number in range(64)]

# A retriever that sleeps and can be told to fail, behind the real application.
SLOW_SERVER = """
import sys, time
from agentgym_envs.deepsearch.retrieval import Hit, Passage, RetrieverFault
from agentgym_envs.deepsearch.retrieval.server import Limits, listen, make_app, serve

class Slow:
    calls = 0
    def search(self, queries, top_k):
        if "fault" in queries: raise RetrieverFault("the retriever is down")
        if "error" in queries: raise OSError("no such index")
        self.calls += 1
        print("searching", flush=True)
        time.sleep(float(sys.argv[1]))
        passage = Passage("1", str(self.calls), "text")
        return [[Hit(passage, float(len(query)))] * top_k for query in queries]
    def close(self):
        print("closed", flush=True)

listener = listen("127.0.0.1", 0)
print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}/retrieve;", flush=True)
queue, batch, threads = map(int, sys.argv[2:])
serve(make_app(Slow(), "slow", limits=Limits(queue, batch, threads)), listener)
print("stopped", flush=True)
"""


@contextmanager
def started(*command: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield line.partition(" at ")[2].partition(";")[0], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


@contextmanager
def slow_server(seconds: float = 0.0, queue: int = 64, batch: int = 64, threads: int = 1) -> Iterator[tuple[str, Any]]:
    with started("-c", SLOW_SERVER, str(seconds), str(queue), str(batch), str(threads)) as (url, process):
        yield url, process


def send(url: str, body: bytes | object, method: str = "POST", path: str = "/retrieve") -> tuple[int, Any, Any]:
    """Status, decoded answer and headers."""
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
    try:
        connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body).encode())
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.headers
    finally:
        connection.close()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGYM_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def corpus_file(cache: Path) -> Path:
    file = cache / "houses.jsonl"
    lines = [
        {"id": str(number), "contents": f'"House {number}"\nHouse {number} stands in street {number % 7}.'}
        for number in range(200)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture(scope="module")
def local(corpus_file: Path) -> Iterator[Retriever]:
    retriever = open_retriever(corpus=corpus_file)
    yield retriever
    retriever.close()


def command(corpus_file: Path, *options: str) -> list[str]:
    return ["-m", "agentgym_train.cli", "serve-retriever", "--corpus", str(corpus_file), "--port", "0", *options]


@pytest.fixture(scope="module")
def url(corpus_file: Path) -> Iterator[str]:
    with started(*command(corpus_file, "--topk", "2")) as (address, _):
        yield address


def test_a_client_finds_what_a_local_retriever_finds(url: str, local: Retriever) -> None:
    remote = open_retriever(url)
    for top_k in (1, 3, 100):
        assert remote.search(QUERIES, top_k) == local.search(QUERIES, top_k)


def test_many_clients_at_once_get_their_own_answers(url: str, local: Retriever) -> None:
    """With different numbers of queries and hits, so that nothing fits by chance."""
    asked = [(QUERIES[n : n + 1 + n % 3], 1 + n % 5) for n in range(60)] * 3
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda pair: send(url, {"queries": pair[0], "topk": pair[1]}), asked))
    found = [[[document["id"] for document in hits] for hits in answer["result"]] for _, answer, _ in answers]
    assert found == [[[hit.passage.id for hit in hits] for hits in local.search(*pair)] for pair in asked]


def test_the_protocol_is_search_r1s(url: str) -> None:
    status, answer, _ = send(url, {"queries": ["house 17", ""], "return_scores": True})
    assert status == 200
    assert [len(hits) for hits in answer["result"]] == [2, 0]
    first = answer["result"][0][0]
    assert first["document"] == {"id": "17", "contents": '"House 17"\nHouse 17 stands in street 3.'}
    assert first["score"] > answer["result"][0][1]["score"]
    _, plain, _ = send(url, {"queries": ["house 17"], "topk": 1})
    assert plain == {"result": [[first["document"]]]}
    assert send(url, {"queries": []})[1] == {"result": []}
    assert send(url, {"queries": ["x"], "topk": None, "other": 1})[0] == 200
    health = send(url, b"", "GET", "/health")
    assert health[:2] == (200, {"status": "ok", "retriever": "lexical", "waiting": 0})


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 422, "body: Invalid JSON"),
        (b"{", 422, "body: Invalid JSON"),
        (b"\xff\xfe", 422, "body: "),
        (b'{"queries": ["\\ud800"]}', 422, "body: Invalid JSON"),
        ([], 422, "body: "),
        ({}, 422, "queries: Field required"),
        ({"queries": "house"}, 422, "queries: "),
        ({"queries": [1]}, 422, "queries.0: "),
        ({"queries": ["x"] * 257}, 422, "queries: List should have at most 256"),
        ({"queries": ["x" * 8193]}, 422, "queries.0: String should have at most 8192"),
        ({"queries": ["x"], "topk": 0}, 422, "topk: "),
        ({"queries": ["x"], "topk": 101}, 422, "topk: "),
        ({"queries": ["x"], "topk": "3"}, 422, "topk: "),
        ({"queries": ["x"], "return_scores": 1}, 422, "return_scores: "),
        (b"[" * 100_000, 422, "body: Invalid JSON"),
        (b" " * 4_000_001, 413, "the body has more than 4000000 bytes"),
    ],
)
def test_bad_requests_are_refused_and_the_server_goes_on(
    body: bytes | object, status: int, reason: str, url: str
) -> None:
    answered, answer, _ = send(url, body)
    assert answered == status
    assert answer["error"].startswith(reason)
    assert send(url, {"queries": ["house 17"]})[0] == 200


def test_waiting_requests_become_one_search() -> None:
    with slow_server(0.3) as (url, _):
        with ThreadPoolExecutor(33) as pool:
            answers = list(pool.map(lambda n: send(url, {"queries": ["x" * n], "return_scores": True}), range(1, 34)))
    assert [answer["result"][0][0]["score"] for _, answer, _ in answers] == list(range(1, 34))
    # The first is searched for alone, or with the few that came before its search began; the others together.
    searches = {answer["result"][0][0]["document"]["contents"] for _, answer, _ in answers}
    assert len(searches) < 12


@pytest.mark.timeout(60)
def test_a_full_queue_is_said_and_nothing_is_lost() -> None:
    with slow_server(0.2, queue=2, batch=1) as (url, _):
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda n: send(url, {"queries": ["x" * n]}), range(20)))
        assert send(url, {"queries": ["x"]})[0] == 200
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503}
    busy = answers[statuses.index(503)]
    assert busy[1] == {"error": "2 requests wait already"}
    assert busy[2]["Retry-After"] == "1"


def test_a_search_that_fails_is_told_and_the_server_goes_on() -> None:
    with slow_server() as (url, _):
        assert send(url, {"queries": ["fault"]})[:2] == (502, {"error": "the retriever is down"})
        assert send(url, {"queries": ["error"]})[:2] == (
            500, {"error": "the search failed: OSError: no such index"},
        )  # fmt: skip
        with pytest.raises(RetrieverFault, match=r"answers 502: .*the retriever is down"):
            open_retriever(url, timeout=5).search(["fault"], 1)
        (hits,) = open_retriever(url).search(["abc"], 1)
        assert hits == [Hit(hits[0].passage, 3.0)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_answer_what_has_begun(number: signal.Signals) -> None:
    with slow_server(1.0) as (url, process), ThreadPoolExecutor(1) as pool:
        pending = pool.submit(send, url, {"queries": ["abc"]})
        assert process.stdout.readline() == "searching\n"
        process.send_signal(number)
        assert pending.result()[0] == 200
        assert process.wait(30) == 0
        assert process.stdout.read() == "closed\nstopped\n"
        assert "Traceback" not in process.stderr.read()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly(number: signal.Signals, corpus_file: Path) -> None:
    with started(*command(corpus_file)) as (url, process):
        assert send(url, {"queries": ["house"]})[0] == 200
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == ""
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--corpus", "missing.jsonl"], "corpus='missing.jsonl' does not exist"),
        (["--corpus", "real"], "run: agentgym data deepsearch"),
        (["--host", "203.0.113.1"], "cannot listen at 203.0.113.1 port 0"),
        (["--port", "70000"], "cannot listen at 127.0.0.1 port 70000"),
        (["--queue", "0"], "queue=0 is not accepted"),
        (["--topk", "0"], "top_k=0 is not accepted"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    options: list[str], reason: str, corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentgym_train.cli import main

    assert main(["serve-retriever", "--corpus", str(corpus_file), "--port", "0", *options]) == 1
    line = capsys.readouterr().err.splitlines()[-1]  # the first run also tells that it builds the index
    assert line.startswith("error: ")
    assert reason in line


def test_a_taken_port_is_told(corpus_file: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    from agentgym_train.cli import main

    port = url.split(":")[2].partition("/")[0]
    assert main(["serve-retriever", "--corpus", str(corpus_file), "--port", port]) == 1
    assert f"cannot listen at 127.0.0.1 port {port}" in capsys.readouterr().err
