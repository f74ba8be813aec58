"""What is asked of a server at `/v1/completions`, and what its answers must hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from agentgym_train.engines.base import Completion, EngineError

PATH = "/v1/completions"

_NOT_FINITE = -9999.0  # what vLLM writes for a log-probability of minus infinity
_ROUNDING = 1e-3  # by which a log-probability of 0 may be told too large
_SHOWN_CHARS = 100


def completion_body(
    model: str,
    prompt: str | Sequence[int],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
    stop_tokens: Collection[int] = (),
    logprobs: int = 0,
) -> dict[str, Any]:
    """The request for one reply, sampled from the model's whole distribution.

    Args:
        model: Name under which the server knows it.
        prompt: Token ids; a text for the server's tokenizer.
        max_tokens: Largest number of tokens to sample.
        temperature: Sampling temperature.
        seed: Of the sampling.
        stop_tokens: Tokens at which the reply ends; nothing else ends it.
        logprobs: Number of most probable tokens to tell of, beside the sampled one.
    """
    return {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop_token_ids": sorted(stop_tokens),
        "ignore_eos": True,
        "logprobs": logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
        # Said although they are the usual ones: a server takes what is left out from the model's generation config.
        "n": 1,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }


def read_choice(answer: Any, url: str) -> dict[str, Any]:
    """The reply in an answer.

    Raises:
        EngineError: If it comes without its token ids.
    """
    try:
        choice = answer["choices"][0]
        has_tokens = choice.get("token_ids") is not None and choice.get("prompt_token_ids") is not None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EngineError(f"the server at {url} answers {PATH} with something else than a completion.") from error
    if not has_tokens:
        raise EngineError(
            f"the server at {url} returns the text of a reply but not its token ids, and what the policy sampled "
            "cannot be told from text. Use a server that knows return_token_ids, such as vLLM from 0.10.2 on."
        )
    return dict(choice)


def read_completion(
    answer: Any, prompt: Sequence[int], max_tokens: int, stop_tokens: Collection[int], url: str
) -> Completion:
    """Check an answer and take the reply from it.

    Args:
        answer: The server's answer.
        prompt: The token ids that the reply was asked for.
        max_tokens: Largest number of tokens that was asked for.
        stop_tokens: Tokens at which a reply ends.
        url: The server's address.

    Raises:
        EngineError: If anything is missing or not what was asked for.
    """
    choice = read_choice(answer, url)
    if choice["prompt_token_ids"] != list(prompt):
        raise EngineError(f"the server at {url} changed the prompt, for instance by cutting it.")
    try:
        tokens = list(choice["token_ids"])
        logprobs = list((choice.get("logprobs") or {}).get("token_logprobs") or [])
    except (TypeError, AttributeError) as error:
        raise EngineError(f"the server at {url} answers {PATH} with something else than a completion.") from error
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise EngineError(f"the server at {url} returns token ids that are none: {str(tokens)[:_SHOWN_CHARS]}")
    if len(logprobs) != len(tokens) or not tokens:
        raise EngineError(f"the server at {url} returns {len(tokens)} tokens with {len(logprobs)} log-probabilities.")
    if not all(isinstance(value, int | float) and math.isfinite(value) and value > _NOT_FINITE for value in logprobs):
        raise EngineError(
            f"the server at {url} gives log-probabilities that are not finite; the weights that it holds are damaged."
        )
    if max(logprobs) > _ROUNDING:
        raise EngineError(f"the server at {url} gives log-probabilities above 0, such as {max(logprobs):g}.")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length") or (finish == "stop") != (tokens[-1] in stop_tokens):
        raise EngineError(
            f"the server at {url} ended a reply for another reason ({finish}) than a stop token or its length."
        )
    if any(token in stop_tokens for token in tokens[:-1]):
        raise EngineError(
            f"the server at {url} goes on behind a stop token: it does not obey stop_token_ids, which vLLM does."
        )
    if len(tokens) > max_tokens or (finish == "length" and len(tokens) < max_tokens):
        raise EngineError(f"the server at {url} cut a reply after {len(tokens)} tokens instead of {max_tokens}.")
    return Completion(tokens, [float(value) for value in logprobs], finish)
