"""Log-probabilities of trained tokens, with logits made only where a token is trained."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from agentgym_train.packed_attention import PACKED_ATTENTION
from agentgym_train.packing import Row

CHUNK = 256  # trained tokens whose [tokens, vocabulary] values exist at one time
_NEVER = -1e30  # logit of what could not be chosen; not infinite, since 0 * infinity would be NaN
_PLAIN_HEAD: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


def autocast(model: PreTrainedModel, dtype: str) -> AbstractContextManager[object]:
    """Mixed precision for the model's device: `"bfloat16"`, or `"float32"` for none."""
    if dtype == "float32":
        return nullcontext()
    return torch.autocast(model.device.type, dtype=torch.bfloat16)


def hidden_states(body: PreTrainedModel, row: Row) -> Tensor:
    """Run a model's body over a row; returns the states that predict its n trained tokens, [n, hidden].

    Raises:
        ValueError: If the row is packed and the model's attention does not know packed rows.
    """
    output = body(**_inputs(body, row))
    states: Tensor = output.last_hidden_state[0, row.predictors.to(body.device)]
    return states


def token_logprobs(model: PreTrainedModel, row: Row, temperature: float) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of a row's n trained tokens, and the entropy of their distributions.

    Memory for [tokens, vocabulary] is that of a few hundred tokens, however many are trained: the head's work is
    done chunk by chunk, and again in the backward pass.

    Args:
        model: Any causal language model whose forward takes `logits_to_keep`.
        row: A packed row.
        temperature: The sampling temperature; the logits are divided by it, as the engine did.

    Returns:
        Log-probabilities [n], with gradient where enabled, and entropies [n] in nats, without.

    Raises:
        ValueError: If the row is packed and the model's attention does not know packed rows.
    """
    device = model.device
    if _has_plain_head(model):
        head = cast(nn.Module, model.get_output_embeddings())
        states = hidden_states(cast(PreTrainedModel, model.base_model), row)
    else:
        output = model(**_inputs(model, row), logits_to_keep=row.predictors.to(device))
        head, states = nn.Identity(), output.logits[0]
    targets = row.targets.to(device)
    choices = None if row.choices is None else row.choices.to(device)
    if len(targets) <= CHUNK:
        return _logprobs_and_entropy(head, states, targets, choices, temperature or 1.0)
    pieces = []
    for start in range(0, len(targets), CHUNK):
        own = slice(start, start + CHUNK)
        part = states[own], targets[own], None if choices is None else choices[own]
        pieces.append(checkpoint(_logprobs_and_entropy, head, *part, temperature or 1.0, use_reentrant=False))
    return torch.cat([logprobs for logprobs, _ in pieces]), torch.cat([entropy for _, entropy in pieces])


def _inputs(model: PreTrainedModel, row: Row) -> dict[str, object]:
    device = model.device
    inputs: dict[str, object] = {
        "input_ids": row.tokens[None].to(device),
        "position_ids": row.positions[None].to(device),
        "use_cache": False,
    }
    if row.spans is not None:
        if model.config._attn_implementation != PACKED_ATTENTION:  # it would let everything attend to everything
            raise ValueError(
                f"the attention {model.config._attn_implementation!r} does not know packed rows; load the model with "
                f"agentgym_train.models.load_model, or call its set_attn_implementation({PACKED_ATTENTION!r})."
            )
        inputs["spans"] = row.spans
        # A mask of four dimensions is handed on as it is, so that none is made from the positions.
        inputs["attention_mask"] = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
    return inputs


def _logprobs_and_entropy(
    head: nn.Module, states: Tensor, targets: Tensor, choices: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = head(states).float() / temperature
    if choices is not None:
        forbidden = torch.ones_like(logits, dtype=torch.bool).scatter_(1, choices.clamp(min=0), False)
        forbidden &= choices[:, :1] >= 0  # -1: chosen among all
        logits = logits.masked_fill(forbidden, _NEVER)
    distribution = torch.log_softmax(logits, dim=-1)
    chosen = distribution.gather(-1, targets[:, None]).squeeze(1)
    with torch.no_grad():
        entropy = -(distribution.exp() * distribution).sum(-1)
    return chosen, entropy


def _has_plain_head(model: PreTrainedModel) -> bool:
    """Whether logits are the head's output for the body's states; some models also scale or cap them.

    Asked once per model.
    """
    if model not in _PLAIN_HEAD:
        head = model.get_output_embeddings()
        tokens = torch.arange(4, device=model.device)[None]
        with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
            logits = model(input_ids=tokens, use_cache=False).logits
            states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            _PLAIN_HEAD[model] = head is not None and torch.equal(head(states).to(logits.dtype), logits)
    return _PLAIN_HEAD[model]
