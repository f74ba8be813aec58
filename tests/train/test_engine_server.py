"""Servers: real vLLM servers, killed and frozen by real signals, and answers that other servers may give."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.engines import EngineConfig, EngineError, Request, make_engine
from agentgym_train.engines.replica import Replica
from agentgym_train.engines.server import ServerEngine
from agentgym_train.engines.weight_check import check_held
from agentgym_train.lora import plain_weights
from agentgym_train.models import load_model, load_tokenizer
from tests.train.conftest import train_tokenizer
from tests.train.vllm_models import CONTEXTS, change, difference, needs_vllm, save_model

STOP = frozenset([2, 17])
START_S = 200


class Server:
    """A vLLM server of two processes and more, in a process group of its own."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        options = {
            "--model": str(model),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": "float32",
            "--max-model-len": "256",
            "--max-num-seqs": "16",
            "--block-size": "32",
            "--kv-cache-memory-bytes": "16M",
            "--logprobs-mode": "processed_logprobs",
            "--worker-extension-cls": "agentgym_train.engines.vllm_worker.TrainedWeights",
        }
        with log.open("w") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"),
                    *(text for pair in options.items() for text in pair),
                ],
                env=os.environ
                | {
                    "VLLM_SERVER_DEV_MODE": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "VLLM_HOST_IP": "127.0.0.1",
                    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                Replica(self.url).call("/health", None, 5.0)
            except Exception:
                time.sleep(0.2)
            else:
                return
        pytest.fail(f"the server has not started: {self.log.read_text()[-3000:]}")

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        try:
            self.signal(signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "served"
    save_model(folder)
    return folder


@pytest.fixture(scope="module")
def servers(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    logs = tmp_path_factory.mktemp("servers")
    started = [Server(path, logs / f"{number}.log") for number in range(2)]
    try:
        for server in started:
            server.wait()
        yield started
    finally:
        for server in started:
            server.close()


@pytest.fixture
def model(path: Path) -> PreTrainedModel:
    return load_model(str(path))


@pytest.fixture
def tokenizer(path: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(path))


@pytest.fixture
def connect(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Iterator[Callable[..., ServerEngine]]:
    made: list[ServerEngine] = []

    def make(*urls: str, **options: Any) -> ServerEngine:
        settings = {"max_context": 256, "max_parallel": 16, "weights_dir": str(tmp_path / "weights"), "timeout_s": 60.0}
        made.append(ServerEngine(urls, tokenizer, STOP, **{**settings, **options}))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def ask(count: int = 12, max_tokens: int = 8) -> list[Request]:
    return [Request(str(i), CONTEXTS[i % 4], max_tokens, f"seed {i}") for i in range(count)]


def wait_for_error(engine: ServerEngine) -> None:
    while True:
        engine.collect(30.0)


@needs_vllm
def test_replicas_sample_alike_and_as_a_plain_forward(
    servers: list[Server], connect: Callable[..., ServerEngine], model: PreTrainedModel
) -> None:
    one, two, both = connect(servers[0].url), connect(servers[1].url), connect(*(s.url for s in servers))
    replies = both.generate(ask(), 0.7)
    for request, reply in zip(ask(), replies, strict=True):
        assert difference(model, request.tokens, reply, 0.7).max() < 1e-4
    tokens = [reply.tokens for reply in replies]
    assert [reply.tokens for reply in one.generate(ask(), 0.7)] == tokens
    assert [reply.tokens for reply in two.generate(ask(), 0.7)] == tokens
    assert len(set(map(tuple, tokens))) == len(tokens)
    stopped = both.generate([Request(str(i), CONTEXTS[i % 4], 200, f"{i}") for i in range(40)], 2.0)
    assert {reply.finish for reply in stopped} == {"stop", "length"}
    assert all((reply.tokens[-1] in STOP) == (reply.finish == "stop") for reply in stopped)
    with pytest.raises(EngineError, match=r"context of a has 250 tokens"):
        both.generate([Request("a", [5] * 250, 7, "s")], 1.0)


@needs_vllm
def test_new_weights_reach_every_replica_through_the_folder(
    servers: list[Server], connect: Callable[..., ServerEngine], model: PreTrainedModel, tmp_path: Path
) -> None:
    engine = connect(*(s.url for s in servers))
    context = CONTEXTS[1] * 5  # long enough for the servers' prefix caches
    for _ in range(2):
        engine.generate([Request(str(i), context, 4, f"{i}") for i in range(8)], 1.0)
        change(model)
        engine.update_weights(model)
        for reply in engine.generate([Request(str(i), context, 4, f"{i}") for i in range(8)], 1.0):
            assert difference(model, context, reply).max() < 1e-4
    assert list((tmp_path / "weights").iterdir()) == []

    # Another trainer gives one of the servers its own weights: it is not asked any more.
    other = connect(servers[0].url)
    foreign = load_model(str(model.name_or_path))
    for _ in range(3):
        other.update_weights(foreign)
    for reply in engine.generate([Request(str(i), context, 4, f"{i}") for i in range(8)], 1.0):
        assert difference(model, context, reply).max() < 1e-4
    assert "restarted" in engine._replicas[0].down
    engine.update_weights(model)
    assert not engine._replicas[0].down


@needs_vllm
def test_a_server_is_refused_where_it_does_not_fit(
    servers: list[Server], connect: Callable[..., ServerEngine], model: PreTrainedModel, tokenizer: Any
) -> None:
    url = servers[0].url
    with pytest.raises(EngineError, match=r"room for 256 tokens.*--max-model-len 300"):
        connect(url, max_context=300)
    with pytest.raises(EngineError, match="another tokenizer"):
        ServerEngine([url], train_tokenizer(["xyz xyz zyx zyx"]), STOP, max_context=256, max_parallel=2)
    engine = connect(url, weights_dir="")
    assert len(engine.generate(ask(2), 1.0)) == 2
    with pytest.raises(EngineError, match=r"own only\. To train with servers, give engine\.weights_dir"):
        engine.update_weights(model)
    config = EngineConfig(kind="server", urls=(url,))
    settings: dict[str, Any] = {"precision": "float32", "max_context": 256, "max_parallel": 2}
    with pytest.raises(EngineError, match=r"engine\.weights_dir"):
        make_engine(config, model, tokenizer, STOP, **settings)
    make_engine(config, model, tokenizer, STOP, training=False, **settings).close()


@needs_vllm
def test_servers_that_die_and_freeze_in_mid_rollout(
    servers: list[Server], connect: Callable[..., ServerEngine], model: PreTrainedModel
) -> None:
    engine = connect(*(s.url for s in servers), timeout_s=15.0)
    engine.update_weights(model)
    requests = [Request(str(i), CONTEXTS[i % 4], 120, f"{i}") for i in range(16)]
    expected = [reply.tokens for reply in engine.generate(requests, 1.0)]

    engine.submit(requests, 1.0)
    done = engine.collect(0.05)
    servers[0].signal(signal.SIGKILL)
    while len(done) < len(requests):
        done |= engine.collect(30.0)
    assert [done[request.key].tokens for request in requests] == expected  # by the one that is left
    assert engine._replicas[0].down

    impatient = connect(servers[1].url, timeout_s=5.0)
    impatient.submit(requests, 1.0)
    servers[1].signal(signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"no server is left .*no answer within 5 s"):
        wait_for_error(impatient)
    assert time.monotonic() - begun < 30
    with pytest.raises(EngineError, match="no server is left"):
        impatient.update_weights(model)
    servers[1].signal(signal.SIGCONT)
    impatient.update_weights(model)  # it is asked again with each new weights
    assert [reply.tokens for reply in impatient.generate(requests, 1.0)] == expected
    impatient.submit(requests, 1.0)
    impatient.close()  # in the middle, and the replies are given up
    assert threading.active_count() < 60


Answer = dict[str, Any]


class Foreign:
    """A server that answers what a test wants it to."""

    def __init__(self, change: Callable[[str, Answer, Answer], Any], tokenizer: PreTrainedTokenizerBase) -> None:
        foreign = self
        self.tokenizer, self.change = tokenizer, change

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send({"data": [{"id": "m", "max_model_len": 512}]})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(foreign.change(self.path, asked, foreign.completion(asked)))

            def _send(self, answer: Any) -> None:
                if callable(answer):
                    answer(self)
                    return
                status, body = answer if isinstance(answer, tuple) else (200, answer)
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def completion(self, asked: Answer) -> Answer:
        """A sound answer, with log-probabilities at the temperature."""
        prompt = asked.get("prompt", "")
        ids = self.tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt
        count = asked.get("max_tokens", 1)
        logprob = -0.1 / (asked.get("temperature") or 1.0)
        return {
            "choices": [
                {
                    "text": "abc",
                    "finish_reason": "length",
                    "token_ids": [5] * count,
                    "prompt_token_ids": ids,
                    "logprobs": {
                        "token_logprobs": [logprob] * count,
                        "top_logprobs": [{"token_id:5": logprob, "token_id:6": 20 * logprob}] * count,
                    },
                }
            ]
        }

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerBase) -> Iterator[Callable[..., str]]:
    made: list[Foreign] = []

    def make(change: Callable[[str, Answer, Answer], Any] = lambda path, asked, answer: answer) -> str:
        made.append(Foreign(change, tokenizer))
        return made[-1].url

    yield make
    for server in made:
        server.close()


def in_choice(**entries: Any) -> Callable[[str, Answer, Answer], Any]:
    """Change an answer's choice; an entry that is None is left out. Entries may depend on the request."""

    def change(path: str, asked: Answer, answer: Answer) -> Answer:
        choice = answer["choices"][0]
        for name, entry in entries.items():
            choice[name] = entry(asked) if callable(entry) else entry
            if choice[name] is None:
                del choice[name]
        return answer

    return change


def raw(asked: Answer) -> Answer:
    return {"token_logprobs": [-0.1], "top_logprobs": [{"token_id:5": -0.1, "token_id:6": -2.0}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_choice(token_ids=None), "returns the text of a reply but not its token ids.*return_token_ids"),
        (in_choice(logprobs=raw), "before the temperature; start it with --logprobs-mode processed_logprobs"),
        (in_choice(logprobs=None), "no log-probabilities"),
        (in_choice(prompt_token_ids=[1, 2, 3]), "another tokenizer"),
        (lambda path, asked, answer: {"choices": []}, "something else than a completion"),
        (lambda path, asked, answer: (401, {"error": {"message": "no key"}}), "cannot be used: 401 no key"),
        (lambda path, asked, answer: (500, {"error": {"message": "broken"}}), "cannot be used: it answers 500 broken"),
    ],
)
def test_a_server_that_is_not_fit_is_refused_at_start(
    serve: Callable[..., str],
    connect: Callable[..., ServerEngine],
    change: Callable[[str, Answer, Answer], Any],
    message: str,
) -> None:
    with pytest.raises(EngineError, match=message):
        connect(serve(change), weights_dir="")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda asked: [float("nan")] * asked["max_tokens"], "not finite"),
        (lambda asked: [None] * asked["max_tokens"], "not finite"),
        (lambda asked: [-9999.0] * asked["max_tokens"], "not finite"),
        (lambda asked: [-0.1], "8 tokens with 1 log-probabilities"),
    ],
)
def test_log_probabilities_that_are_missing_or_not_finite_are_an_error(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], change: Callable[[Answer], Any], message: str
) -> None:
    def later(path: str, asked: Answer, answer: Answer) -> Answer:
        if asked["max_tokens"] > 1:
            answer["choices"][0]["logprobs"]["token_logprobs"] = change(asked)
        return answer

    engine = connect(serve(later), weights_dir="")
    with pytest.raises(EngineError, match=message):
        engine.generate(ask(2), 1.0)
    assert engine.collect(1.0) == {}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"prompt_token_ids": [5, 6]}, "changed the prompt"),
        ({"finish_reason": "abort"}, r"another reason \(abort\)"),
        ({"finish_reason": "stop"}, r"another reason \(stop\)"),
        ({"token_ids": []}, "0 tokens with 8"),
        ({"token_ids": 5}, "something else than a completion"),
        ({"token_ids": [None] * 8}, "token ids that are none"),
        ({"token_ids": [5.5] * 8}, "token ids that are none"),
        ({"token_ids": [-1] * 8}, "token ids that are none"),
        ({"logprobs": [-0.1] * 8}, "something else than a completion"),
        ({"logprobs": {"token_logprobs": [0.5] * 8}}, r"above 0, such as 0\.5"),
        ({"token_ids": [5, 2, 5, 5, 5, 5, 5, 5]}, "goes on behind a stop token"),
        ({"token_ids": [5, 2, 5, 5, 5, 5, 5, 2], "finish_reason": "stop"}, "goes on behind a stop token"),
        ({"token_ids": [5] * 3, "logprobs": {"token_logprobs": [-0.1] * 3}}, "cut a reply after 3 tokens instead of 8"),
        ({"token_ids": [5] * 9, "logprobs": {"token_logprobs": [-0.1] * 9}}, "after 9 tokens instead of 8"),
    ],
)
def test_an_answer_to_something_else_is_an_error(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], entries: Answer, message: str
) -> None:
    def later(path: str, asked: Answer, answer: Answer) -> Any:
        return in_choice(**entries)(path, asked, answer) if asked["max_tokens"] > 1 else answer

    with pytest.raises(EngineError, match=message):
        connect(serve(later), weights_dir="").generate(ask(2), 1.0)


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Answer a part of what is announced."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices"')


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        ((503, {"error": {"message": "busy"}}), "it answers 503 busy"),
        ((429, {"error": {"message": "slower"}}), "it answers 429 slower"),
        (cut, r"IncompleteRead\(10 bytes read, 990 more expected\)"),
    ],
)
def test_a_failure_that_passes_is_survived(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], failure: Any, told: str
) -> None:
    left = [2]

    def flaky(path: str, asked: Answer, answer: Answer) -> Any:
        if asked["max_tokens"] > 1 and left[0]:
            left[0] -= 1
            return failure
        return answer

    engine = connect(serve(flaky), weights_dir="")
    assert engine.generate(ask(1), 1.0)[0].tokens == [5] * 8
    assert not left[0]
    left[0] = 99
    with pytest.raises(EngineError, match=rf"no server is left \(http://.*: {told}\)"):
        engine.generate(ask(1), 1.0)


@pytest.mark.parametrize("part", ["header", "body"])
def test_an_answer_that_never_ends_is_given_up(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], part: str
) -> None:
    over = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        piece = b"X" if part == "header" else b" "  # each long before the limit
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if part == "header" else b"\r\n"))
        try:
            while not over.wait(0.1):
                handler.wfile.write(piece)
                handler.wfile.flush()
        except OSError:
            pass

    engine = connect(serve(lambda path, asked, answer: trickle if asked["max_tokens"] > 1 else answer), weights_dir="")
    engine._timeout_s = 0.5
    try:
        engine.submit(ask(1), 1.0)
        with pytest.raises(EngineError, match=r"no answer within 0\.5 s"):
            engine.collect(20.0)
    finally:
        over.set()


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (None, "workers' results are None"),
        ([{"weights": {}}], "does not tell which weights it holds"),
        ([{"dtype": "load", "weights": {}}], "does not tell which weights it holds"),
    ],
)
def test_workers_that_tell_nothing_of_their_weights_are_refused(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], results: Any, message: str
) -> None:
    url = serve(lambda path, asked, answer: {"results": results} if path == "/collective_rpc" else answer)
    with pytest.raises(EngineError, match=message):
        connect(url)


def test_closing_ends_an_update_that_a_server_does_not_answer(
    serve: Callable[..., str], connect: Callable[..., ServerEngine], model: PreTrainedModel
) -> None:
    asked_for, over = threading.Event(), threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        asked_for.set()
        over.wait(60)

    def change(path: str, asked: Answer, answer: Answer) -> Any:
        if path != "/collective_rpc":
            return answer
        return hang if asked["method"] == "take_weights" else {"results": [{"dtype": "float32", "weights": {}}]}

    engine = connect(serve(change), timeout_s=300.0)

    def run() -> None:
        with suppress(EngineError):
            engine.update_weights(model)

    update = threading.Thread(target=run, daemon=True)
    update.start()
    try:
        assert asked_for.wait(20)
        closing = threading.Thread(target=engine.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
    finally:
        over.set()
        update.join(20)


def test_a_weight_of_which_nothing_is_told_is_no_match(model: PreTrainedModel) -> None:
    held: Any = {"dtype": "float32", "weights": {name: [] for name, _ in plain_weights(model)}}
    with pytest.raises(EngineError, match="knows of no weight"):
        check_held(plain_weights(model), held, "server")


def test_a_server_that_takes_no_weights_is_refused(
    serve: Callable[..., str], connect: Callable[..., ServerEngine]
) -> None:
    def production(path: str, asked: Answer, answer: Answer) -> Any:
        return (404, {"detail": "Not Found"}) if path == "/collective_rpc" else answer

    # The completion is computed for any body; this route's has no prompt.
    url = serve(lambda path, asked, answer: production(path, asked, answer))
    with pytest.raises(EngineError, match=r"takes no weights: 404 .*VLLM_SERVER_DEV_MODE=1"):
        connect(url)


def test_addresses(connect: Callable[..., ServerEngine]) -> None:
    with pytest.raises(EngineError, match=r"needs engine\.urls"):
        connect()
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://x:port"):
        with pytest.raises(EngineError, match=r"is no address; accepted is"):
            connect(url)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(EngineError, match=r"cannot be used: .*refused"):
            connect(f"http://127.0.0.1:{closed.getsockname()[1]}")
