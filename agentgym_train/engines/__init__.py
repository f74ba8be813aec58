"""Engines that sample replies. All take token ids and give token ids."""

from __future__ import annotations

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgym_train.config import EngineConfig
from agentgym_train.engines.base import Completion, Engine, EngineError, Request, refuse_choices

__all__ = ["Completion", "Engine", "EngineConfig", "EngineError", "Request", "make_engine", "refuse_choices"]


def make_engine(
    config: EngineConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    stop_tokens: frozenset[int],
    *,
    precision: str,
    max_context: int,
    max_parallel: int,
    training: bool = True,
) -> Engine:
    """Make the engine that is configured, with the weights of a model.

    Args:
        config: Which one, and its settings.
        model: Model to sample with; it stays the caller's.
        tokenizer: Its tokenizer.
        stop_tokens: Tokens at which a reply ends.
        precision: Type of the engine's weights, `"float32"` or `"bfloat16"`; servers have their own.
        max_context: Largest number of tokens of a context and its reply.
        max_parallel: Largest number of replies that are sampled together.
        training: Whether the weights will change. If not, servers that take no new weights sample with their own.

    Raises:
        EngineError: If it cannot be made; the message says what to do.
    """
    # Each kind is imported when it is asked for: vLLM takes seconds, and need not be installed for the others.
    if config.kind == "hf":
        from agentgym_train.engines.hf import HFEngine, copy_for_sampling

        try:
            return HFEngine(copy_for_sampling(model, precision), stop_tokens)
        except ValueError as error:
            raise EngineError(f"engine.kind=hf: {error}") from error
    if config.kind == "vllm":
        from agentgym_train.engines.vllm import VLLMEngine

        return VLLMEngine(
            model,
            stop_tokens,
            precision=precision,
            max_context=max_context,
            max_parallel=max_parallel,
            memory_share=config.memory_share,
            timeout_s=config.timeout_s,
        )
    from agentgym_train.engines.server import ServerEngine

    engine = ServerEngine(
        config.urls,
        tokenizer,
        stop_tokens,
        max_context=max_context,
        max_parallel=max_parallel,
        weights_dir=config.weights_dir,
        timeout_s=config.timeout_s,
    )
    try:
        if training or config.weights_dir:
            engine.update_weights(model)
    except BaseException:
        engine.close()
        raise
    return engine
