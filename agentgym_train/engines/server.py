"""Sampling with running vLLM servers, by token ids.

Several servers share the work: each reply goes to the one with the least to do. A server that fails is left out
until the next weights, and another one samples its replies.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from agentgym_train.engines.base import (
    Completion,
    Engine,
    EngineError,
    Request,
    refuse_choices,
    refuse_long,
    seed_number,
)
from agentgym_train.engines.completions import PATH, completion_body, read_completion
from agentgym_train.engines.replica import Replica, ReplicaDown, RequestRefused
from agentgym_train.engines.server_check import check_server
from agentgym_train.engines.weight_check import Held, check_held
from agentgym_train.lora import plain_weights

NAME = "server"
_DTYPES = ("float32", "bfloat16", "float16")  # of weights
_HOW_TO_TRAIN = (
    "To train with servers, give engine.weights_dir, a folder that they can read, and start each with "
    "VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls agentgym_train.engines.vllm_worker.TrainedWeights."
)
_ATTEMPTS = 3  # at one server, where a failure may pass
_PAUSE_S = 0.5
_DRAIN_S = 30.0  # for replies that were given up, which still hold a server's cache


class ServerEngine(Engine):
    """Samples with vLLM's OpenAI-compatible servers."""

    def __init__(
        self,
        urls: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        stop_tokens: frozenset[int],
        *,
        max_context: int,
        max_parallel: int,
        weights_dir: str = "",
        timeout_s: float = 300.0,
    ) -> None:
        """Check that all servers are there and fit.

        Args:
            urls: Their addresses.
            tokenizer: The trainer's tokenizer, which theirs must equal.
            stop_tokens: Tokens at which a reply ends.
            max_context: Largest number of tokens of a context and its reply.
            max_parallel: Largest number of replies that are asked for at the same time.
            weights_dir: Folder under which the servers read new weights; empty if there will be none.
            timeout_s: Longest wait for an answer.

        Raises:
            EngineError: If a server does not answer or is not fit.
        """
        if not urls:
            raise EngineError("engine.kind=server needs engine.urls, such as http://127.0.0.1:8000.")
        self._replicas = [Replica(url) for url in urls]
        self._tokenizer, self._stop, self._max_context = tokenizer, stop_tokens, max_context
        self._weights_dir, self._timeout_s = weights_dir, timeout_s
        self._dtype: torch.dtype | None = None  # of the servers' weights, known where they take new ones
        self._models = {replica.url: self._check(replica) for replica in self._replicas}
        self._version = ""  # of the weights; empty while they are the servers' own
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Completion]] = {}
        self._given_up = threading.Event()
        self._threads = ThreadPoolExecutor(max_parallel + len(urls), thread_name_prefix="engine")

    def submit(self, requests: Sequence[Request], temperature: float) -> None:
        """Ask for replies (see `Engine.submit`)."""
        refuse_choices(requests, NAME)
        refuse_long(requests, self._max_context, NAME)
        for request in requests:
            self._under_way[request.key] = self._threads.submit(self._ask, request, temperature, self._given_up)

    def collect(self, wait_s: float = 0.0) -> dict[str, Completion]:
        """Wait for replies (see `Engine.collect`)."""
        wait(self._under_way.values(), wait_s, FIRST_COMPLETED)
        done = {key: future for key, future in self._under_way.items() if future.done()}
        for key in done:
            del self._under_way[key]
        try:
            return {key: future.result() for key, future in done.items()}
        except BaseException:
            self.release()
            raise

    def update_weights(self, model: nn.Module) -> None:
        """Write the weights to a folder, let the servers read it, and compare (see `Engine.update_weights`)."""
        if not self._weights_dir:
            raise EngineError(f"these servers sample with weights of their own only. {_HOW_TO_TRAIN}")
        self.release()
        version = f"{int(self._version or 0) + 1}"
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self._made_weights_dir()))
                Path(folder).chmod(0o755)  # servers may run as another user
                self._write(model, Path(folder) / "model.safetensors")
            except (OSError, SafetensorError) as error:
                raise EngineError(f"engine.weights_dir={self._weights_dir!r} cannot be written: {error}") from error
            tasks = [self._threads.submit(self._update, replica, folder, version) for replica in self._replicas]
            held = [task.result() for task in tasks]
        present = [one for one in held if one is not None]
        if not present:
            raise self._none_left()
        for place, one in enumerate(present):
            if place == 0 or one != present[0]:
                check_held(plain_weights(model), one, NAME)
        self._version = version

    def release(self, keys: Sequence[str] | None = None) -> None:
        """Give up replies that are under way (see `Engine.release`); servers manage their caches themselves."""
        if keys is not None:
            for key in keys:
                self._under_way.pop(key, None)
            return
        if not self._under_way:
            return
        self._given_up.set()
        for replica in self._replicas:
            replica.hang_up()  # which also ends the sampling there
        self._given_up = threading.Event()
        self._under_way.clear()

    def close(self) -> None:
        """Give up what is under way and end the threads (see `Engine.close`); the servers go on."""
        self.release()
        for replica in self._replicas:
            replica.hang_up()  # an update may be under way, too
        self._threads.shutdown(cancel_futures=True)

    def _check(self, replica: Replica) -> str:
        model = check_server(replica, self._tokenizer, self._max_context, self._timeout_s)
        if self._weights_dir:
            try:
                dtype: torch.dtype = getattr(torch, self._held(replica, "start")["dtype"])
            except (ReplicaDown, RequestRefused) as error:
                raise EngineError(f"the server at {replica.url} takes no weights: {error}. {_HOW_TO_TRAIN}") from error
            if self._dtype not in (None, dtype):
                raise EngineError(f"the server at {replica.url} computes in {dtype}, another in {self._dtype}.")
            self._dtype = dtype
        return model

    def _ask(self, request: Request, temperature: float, given_up: threading.Event) -> Completion:
        """Get one reply from any server; runs in a thread."""
        while True:
            with self._lock:
                fit = [replica for replica in self._replicas if not replica.down]
                if not fit or given_up.is_set():
                    raise self._none_left()
                replica = min(fit, key=lambda one: one.busy)
                replica.busy += 1
            try:
                return self._reply(replica, request, temperature, given_up)
            except ReplicaDown as error:
                if not given_up.is_set():
                    replica.down = replica.down or str(error)
            except RequestRefused as error:
                raise EngineError(f"the server at {replica.url} refused a request: {error}") from error
            finally:
                with self._lock:
                    replica.busy -= 1

    def _reply(self, replica: Replica, request: Request, temperature: float, given_up: threading.Event) -> Completion:
        """Get one reply from one server, which may fail for a moment."""
        body = completion_body(
            self._models[replica.url],
            request.tokens,
            max_tokens=request.max_tokens,
            temperature=temperature,
            seed=seed_number(request.seed),
            stop_tokens=self._stop,
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = replica.call(PATH, body, self._timeout_s)
                break
            except ReplicaDown as error:
                if not error.passing or attempt == _ATTEMPTS or given_up.wait(_PAUSE_S * attempt):
                    raise
        if self._version:
            # A server that was started anew, by whoever watches it, has the weights that it began with.
            version = replica.ask("/weight_info", None, self._timeout_s, "weight_version")
            if version != self._version:
                raise ReplicaDown(f"its weights are not those of the last update but {version!r}: it was restarted")
        return read_completion(answer, request.tokens, request.max_tokens, self._stop, replica.url)

    def _update(self, replica: Replica, folder: str, version: str) -> Held | None:
        """Let one server take new weights; returns what it holds then, or None if it fails."""
        try:
            if replica.down:
                self._models[replica.url] = self._check(replica)
            self._rpc(replica, "take_weights", weights_path=folder)
            until = time.monotonic() + _DRAIN_S
            while not replica.ask("/reset_prefix_cache", {}, self._timeout_s, "success"):
                if time.monotonic() > until:
                    raise ReplicaDown("it keeps its prefix cache, which was computed with older weights")
                time.sleep(_PAUSE_S)
            replica.call("/update_weight_version", {"new_version": version}, self._timeout_s)
            held = self._held(replica, version)
            replica.down = ""
            return held
        except (EngineError, ReplicaDown, RequestRefused) as error:
            replica.down = str(error)
            return None

    def _held(self, replica: Replica, seed: str) -> Held:
        answer = self._rpc(replica, "held_weights", seed=seed)
        if len(answer) != 1:
            raise EngineError(
                f"the server at {replica.url} divides the model among {len(answer)} workers; for training, start one "
                "server for each accelerator instead."
            )
        (held,) = answer
        if not (isinstance(held, dict) and held.get("dtype") in _DTYPES and isinstance(held.get("weights"), dict)):
            raise EngineError(
                f"the server at {replica.url} does not tell which weights it holds; install the trainer's version of "
                "this package where it runs."
            )
        return cast(Held, held)

    def _rpc(self, replica: Replica, method: str, **kwargs: str) -> list[Any]:
        """Call a method of a server's workers."""
        results = replica.ask("/collective_rpc", {"method": method, "kwargs": kwargs}, self._timeout_s, "results")
        if not isinstance(results, list):
            raise ReplicaDown(f"its workers' results are {results!r}")
        return results

    def _made_weights_dir(self) -> Path:
        path = Path(self._weights_dir).expanduser().resolve()
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _write(self, model: nn.Module, file: Path) -> None:
        weights = {
            name: value.detach().to(device="cpu", dtype=self._dtype).contiguous()
            for name, value in plain_weights(model)
        }
        save_file(weights, file, {"format": "pt"})

    def _none_left(self) -> EngineError:
        reasons = "; ".join(f"{replica.url}: {replica.down}" for replica in self._replicas if replica.down)
        return EngineError(f"no server is left ({reasons or 'given up'}).")
