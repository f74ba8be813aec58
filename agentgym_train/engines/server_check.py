"""What a server must be fit for, asked once before anything is sampled."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from agentgym_train.engines.base import EngineError
from agentgym_train.engines.completions import PATH, completion_body, read_choice
from agentgym_train.engines.replica import Replica, ReplicaDown, RequestRefused

_PROBE_TOKENS = 200
_CLEAR = 0.05  # nats; two tokens that differ by less do not tell at which temperature a server tells probabilities


def check_server(replica: Replica, tokenizer: PreTrainedTokenizerBase, max_context: int, timeout_s: float) -> str:
    """Check that a server has room, the trainer's tokenizer, token ids, and log-probabilities at any temperature.

    Args:
        replica: The server.
        tokenizer: The trainer's tokenizer.
        max_context: Largest number of tokens of a context and its reply.
        timeout_s: Longest wait for an answer.

    Returns:
        The name under which the server knows its model.

    Raises:
        EngineError: If it is not fit; the message says what to change.
    """
    try:
        card = _model_card(replica, timeout_s)
        room = card.get("max_model_len")
        if isinstance(room, int) and room < max_context:
            raise EngineError(
                f"the server at {replica.url} has room for {room} tokens, less than rollout.max_context={max_context}; "
                f"start it with --max-model-len {max_context}."
            )
        model = str(card["id"])
        _check_tokenizer(replica, model, tokenizer, max_context, timeout_s)
        _check_temperature(replica, model, tokenizer, timeout_s)
        return model
    except (ReplicaDown, RequestRefused) as error:
        raise EngineError(f"the server at {replica.url} cannot be used: {error}") from error


def _model_card(replica: Replica, timeout_s: float) -> dict[str, Any]:
    answer = replica.call("/v1/models", None, timeout_s)
    try:
        return dict(answer["data"][0], id=answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"the server at {replica.url} answers /v1/models with no model; is it an OpenAI-compatible server?"
        ) from error


def _check_tokenizer(
    replica: Replica, model: str, tokenizer: PreTrainedTokenizerBase, max_context: int, timeout_s: float
) -> None:
    """Let the server tokenize a text with tokens from the whole vocabulary, the special ones among them."""
    tokens = min(_PROBE_TOKENS, max_context // 8)  # single ones may be parts of characters, and become several
    text = "".join(map(str, tokenizer.all_special_tokens[:tokens]))
    text += str(tokenizer.decode(list(range(0, len(tokenizer), max(1, len(tokenizer) // tokens)))))
    own = list(tokenizer.encode(text, add_special_tokens=False))
    body = completion_body(model, text, max_tokens=1, temperature=1.0, seed=0)
    if read_choice(replica.call(PATH, body, timeout_s), replica.url)["prompt_token_ids"] != own:
        raise EngineError(
            f"the server at {replica.url} has another tokenizer than the trainer, so its token ids mean something "
            f"else; let it serve the model that is trained (it serves {model})."
        )


def _check_temperature(replica: Replica, model: str, tokenizer: PreTrainedTokenizerBase, timeout_s: float) -> None:
    """Compare two tokens' log-probabilities at temperatures 1 and 1/2; at the latter their difference is twice."""
    prompt = tokenizer.encode("a b c", add_special_tokens=False)
    tops = []
    for temperature in (1.0, 0.5):
        body = completion_body(model, prompt, max_tokens=1, temperature=temperature, seed=0, logprobs=5)
        choice = read_choice(replica.call(PATH, body, timeout_s), replica.url)
        try:
            tops.append({str(name): float(value) for name, value in choice["logprobs"]["top_logprobs"][0].items()})
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"the server at {replica.url} returns no log-probabilities of tokens.") from error
    both = sorted(tops[0].keys() & tops[1].keys(), key=lambda name: tops[0][name])
    plain, scaled = (top[both[-1]] - top[both[0]] if both else 0.0 for top in tops)
    if plain > _CLEAR and scaled < 1.5 * plain:
        raise EngineError(
            f"the server at {replica.url} tells log-probabilities as they are before the temperature; start it with "
            "--logprobs-mode processed_logprobs."
        )
