"""Does this model compute in packed rows what it computes in plain ones? Asked once, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from agentgym_train.logprobs import token_logprobs
from agentgym_train.models import ModelError
from agentgym_train.packing import pack
from agentgym_train.trajectory import Episode, Trajectory

# Nats. The same sums in another order differ by 1e-4 in float32, 0.1 in bfloat16; a position or a limit of attention
# that is ignored is off by far more.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.3}


def check_model(model: PreTrainedModel, path: str) -> None:
    """Refuse a model that gives a reply other probabilities when it is sampled than when it is trained on.

    Args:
        model: The model.
        path: Its name for the message.

    Raises:
        ModelError: If it is one.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        raise ModelError(
            f"model.path={path!r}: its rotary embedding depends on the length of the input (rope_type dynamic), so a "
            "reply has other probabilities when it is sampled than when it is trained on; use another type."
        )


def packing_problem(model: PreTrainedModel) -> str:
    """Why a model cannot take packed rows, or nothing if it can.

    Two short trajectories with a common prompt are computed packed and one by one.
    """
    if others := _kinds_of_layers(model.config) - {"full_attention"}:
        return f"it has layers of {', '.join(sorted(others))}"
    vocabulary = model.config.get_text_config().vocab_size
    prompt = [(7 * i + 3) % vocabulary for i in range(9)]
    trajectories = []
    for sample, length in enumerate((5, 8)):
        trajectory = Trajectory(Episode("self-check", 0, sample, 1, ""), prompt_length=len(prompt))
        trajectory.append_given(prompt)
        trajectory.append_sampled([(11 * i + 5 + sample) % vocabulary for i in range(length)], [0.0] * length)
        trajectories.append(trajectory)
    try:
        packed, plain = (_logprobs(model, trajectories, shared) for shared in (True, False))
    except (ValueError, RuntimeError, TypeError) as error:
        return f"it does not accept them ({' '.join(str(error).split())})"
    difference = float((packed - plain).abs().max())
    if not difference < _TOLERANCE.get(model.dtype, _TOLERANCE[torch.bfloat16]):
        return f"its log-probabilities differ there by up to {difference:.3g} nats"
    return ""


def _kinds_of_layers(config: PreTrainedConfig) -> set[str]:
    text = config.get_text_config()
    if kinds := getattr(text, "layer_types", None):
        return set(kinds)
    return {"sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"}


def _logprobs(model: PreTrainedModel, trajectories: list[Trajectory], shared: bool) -> Tensor:
    rows = pack(trajectories, token_budget=64, share_prompts=shared)
    with torch.no_grad():
        return torch.cat([token_logprobs(model, row, temperature=1.0)[0] for row in rows])
