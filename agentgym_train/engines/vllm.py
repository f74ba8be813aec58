"""Sampling with vLLM in this process; new weights reach it in memory.

vLLM batches continuously: a reply that ends makes room at once, and one that comes late joins at the next token.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import random
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from agentgym_train.engines.base import (
    Completion,
    Engine,
    EngineError,
    Request,
    refuse_choices,
    refuse_long,
    seed_number,
)
from agentgym_train.engines.weight_check import check_held
from agentgym_train.lora import plain_weights

NAME = "vllm"
WORKER_EXTENSION = "agentgym_train.engines.vllm_worker.TrainedWeights"

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # weights can be handed over in memory only within one process
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the threads are the trainer's too
    "VLLM_HOST_IP": "127.0.0.1",  # else it looks for an address by which others would reach it
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_BLOCK = 32  # tokens, on a CPU: whole blocks of a context are found again, and vLLM's are of 128 there
_TEMPERATURES = (0.01, 2.0)  # vLLM raises smaller ones, and refuses larger ones


class _UnderWay(NamedTuple):
    request: Request
    until: float


class VLLMEngine(Engine):
    """Samples with vLLM. There can be one at a time in a process."""

    _running: ClassVar[bool] = False

    def __init__(
        self,
        model: PreTrainedModel,
        stop_tokens: frozenset[int],
        *,
        precision: str,
        max_context: int,
        max_parallel: int,
        memory_share: float = 0.3,
        timeout_s: float = 300.0,
    ) -> None:
        """Start vLLM and hand the model's weights over.

        Args:
            model: Model to sample with; it stays the caller's.
            stop_tokens: Tokens at which a reply ends.
            precision: Type of vLLM's weights, `"float32"` or `"bfloat16"`.
            max_context: Largest number of tokens of a context and its reply.
            max_parallel: Largest number of replies that are sampled together.
            memory_share: Share of the accelerator's memory for weights and cache; without an accelerator, largest
                share of the main memory for the cache.
            timeout_s: Longest time for a reply.

        Raises:
            EngineError: If vLLM is not installed, cannot start, or does not know the model.
        """
        if importlib.util.find_spec("vllm") is None:
            raise EngineError("engine.kind=vllm needs vLLM, which is not installed; run: make vllm")
        if VLLMEngine._running:
            raise EngineError("engine.kind=vllm: vLLM runs once in a process, one at a time; close the other engine.")
        self._model_dtype: torch.dtype = getattr(torch, precision)
        self._stop, self._max_context, self._timeout_s = stop_tokens, max_context, timeout_s
        self._under_way: dict[str, _UnderWay] = {}  # by the name that vLLM knows
        self._asked = 0
        self._updates = 0
        self._llm: Any = None
        VLLMEngine._running = True
        self._owns_groups = not torch.distributed.is_initialized()
        memory: dict[str, Any] = {"gpu_memory_utilization": memory_share}
        if not torch.accelerator.is_available():
            memory["block_size"] = _BLOCK
            memory["kv_cache_memory_bytes"] = _cache_bytes(model, precision, max_context, max_parallel, memory_share)
        try:
            with _contained(), tempfile.TemporaryDirectory(prefix="agentgym-vllm-") as folder:
                _write_config(model, folder)
                from vllm import LLM

                self._llm = LLM(
                    folder,
                    load_format="dummy",  # the weights come from the model itself
                    skip_tokenizer_init=True,
                    generation_config="vllm",
                    dtype=precision,
                    max_model_len=max_context,
                    max_num_seqs=max_parallel,
                    max_num_batched_tokens=max(2048, max_context),
                    logprobs_mode="processed_logprobs",  # those of the distribution that tokens are drawn from
                    enable_prefix_caching=True,
                    enforce_eager=not torch.accelerator.is_available(),  # compiling takes minutes on a CPU
                    worker_extension_cls=WORKER_EXTENSION,
                    seed=0,
                    **memory,
                )
            self.update_weights(model)
            self.generate([Request("first", [0], 1, "")], 1.0)  # vLLM finds out late what its kernels cannot do
        except EngineError:
            self.close()
            raise
        except Exception as error:  # vLLM's own errors have no common base
            self.close()
            raise EngineError(f"engine.kind=vllm: vLLM could not be started ({_one_line(error)}).") from error

    def submit(self, requests: Sequence[Request], temperature: float) -> None:
        """Hand requests to vLLM's scheduler (see `Engine.submit`)."""
        refuse_choices(requests, NAME)
        refuse_long(requests, self._max_context, NAME)
        least, largest = _TEMPERATURES
        if temperature != 0 and not least <= temperature <= largest:
            raise EngineError(
                f"engine.kind=vllm samples at temperature 0 or from {least} to {largest}, not at {temperature}."
            )
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        until = time.monotonic() + self._timeout_s
        for request in requests:
            params = SamplingParams(
                temperature=temperature,
                seed=seed_number(request.seed),
                max_tokens=request.max_tokens,
                stop_token_ids=sorted(self._stop),
                ignore_eos=True,  # the stop tokens alone say where a reply ends
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._asked += 1
            name = str(self._asked)
            self._under_way[name] = _UnderWay(request, until)
            with self._failures():
                self._llm.llm_engine.add_request(name, {"prompt_token_ids": list(request.tokens)}, params)

    def collect(self, wait_s: float = 0.0) -> dict[str, Completion]:
        """Let vLLM go on (see `Engine.collect`)."""
        until = time.monotonic() + wait_s
        done: dict[str, Completion] = {}
        while self._under_way and not done:
            with self._failures():
                for output in self._llm.llm_engine.step():
                    asked = self._under_way.pop(output.request_id, None)
                    if asked is not None:
                        done[asked.request.key] = self._completion(output.outputs[0])
            now = time.monotonic()
            late = [asked.request.key for asked in self._under_way.values() if now > asked.until]
            if late:
                self.release()
                raise EngineError(
                    f"vLLM has not completed the reply of {late[0]} within engine.timeout_s={self._timeout_s:g}; give "
                    "it more time, or sample fewer replies at a time (rollout.max_parallel)."
                )
            if now >= until:
                break
        return done

    def update_weights(self, model: nn.Module) -> None:
        """Load the trained weights in place, and compare (see `Engine.update_weights`)."""
        self.release()
        self._updates += 1
        weights = ((name, value.detach().to(self._model_dtype)) for name, value in plain_weights(model))
        with self._failures():
            self._llm.collective_rpc("take_weights", kwargs={"weights_iterator": weights})
            if not self._llm.reset_prefix_cache():
                raise EngineError("vLLM kept its prefix cache, which was computed with older weights.")
            (held,) = self._llm.collective_rpc("held_weights", args=(str(self._updates),))
        check_held(plain_weights(model), held, NAME)

    def release(self, keys: Sequence[str] | None = None) -> None:
        """Drop what is under way (see `Engine.release`); vLLM replaces the oldest in its cache by itself."""
        dropped = [name for name, asked in self._under_way.items() if keys is None or asked.request.key in keys]
        for name in dropped:
            del self._under_way[name]
        if dropped:
            self._llm.llm_engine.abort_request(dropped)

    def close(self) -> None:
        """Stop vLLM (see `Engine.close`)."""
        llm, self._llm = self._llm, None
        self._under_way.clear()
        if not self._running:
            return
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
        if self._owns_groups:
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
        gc.collect()  # vLLM's objects refer to each other
        VLLMEngine._running = False

    def _completion(self, output: Any) -> Completion:
        if output.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM broke a reply off ({output.finish_reason}).")
        tokens = list(output.token_ids)
        logprobs = [entry[token].logprob for token, entry in zip(tokens, output.logprobs or [], strict=True)]
        if not all(map(math.isfinite, logprobs)):
            raise EngineError("the model gives probabilities that are not finite; its weights are damaged.")
        return Completion(tokens, logprobs, output.finish_reason)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn what vLLM raises into an EngineError; nothing is under way then.

        The seed of every reply is its own, yet vLLM draws numbers that it does not use from the global generator.
        """
        if self._llm is None:
            raise EngineError("this engine is closed.")
        try:
            with torch.random.fork_rng(devices=[]):
                yield
        except Exception as error:  # vLLM's own errors have no common base
            with suppress(Exception):  # it may be beyond that
                self.release()
            if isinstance(error, EngineError):
                raise
            raise EngineError(f"vLLM failed ({_one_line(error)}).") from error


@contextmanager
def _contained() -> Iterator[None]:
    """Keep what vLLM does to the process as it starts from everybody else: seeds, threads, warnings."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    state, numpy_state = random.getstate(), np.random.get_state()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_num_threads = set_num_threads
            torch.set_num_threads(threads)
            random.setstate(state)
            np.random.set_state(numpy_state)


def _write_config(model: PreTrainedModel, folder: str) -> None:
    """Write what vLLM reads of a model beside its weights."""
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)


def _cache_bytes(model: PreTrainedModel, precision: str, max_context: int, max_parallel: int, share: float) -> int:
    """Room for the keys and values of all replies, as long as main memory allows."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token: int = 2 * config.num_hidden_layers * heads * size * getattr(torch, precision).itemsize
    main_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(token * (max_context + _BLOCK) * (max_parallel + 1), int(share * main_memory))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__
