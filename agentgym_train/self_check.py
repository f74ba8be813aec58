"""Does this model compute in packed rows what it computes in plain ones? Asked once, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgym_train.logprobs import token_logprobs
from agentgym_train.models import ModelError
from agentgym_train.packing import pack
from agentgym_train.trajectory import Episode, Trajectory

_TOLERANCE = 1e-2  # nats; float32 agrees to 1e-4, a mask or position that is ignored is off by far more


def check_packing(model: PreTrainedModel, path: str) -> None:
    """Compare two short trajectories with a common prompt, packed and one by one.

    Args:
        model: The model, in float32.
        path: Its name for the message.

    Raises:
        ModelError: If the log-probabilities differ: the model ignores attention masks or positions.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") == "dynamic":
        raise ModelError(
            f"model.path={path!r}: its rotary embedding depends on the length of the input (rope_type dynamic), so a "
            "reply has other probabilities when it is sampled than when it is trained on; use another type."
        )
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
        raise ModelError(f"model.path={path!r} cannot take packed rows: {error}") from error
    difference = float((packed - plain).abs().max())
    if not difference < _TOLERANCE:
        raise ModelError(
            f"model.path={path!r} computes other probabilities in packed rows (difference {difference:.3g} nats): it "
            "ignores the attention mask or the positions that it is given, and cannot be trained here."
        )


def _logprobs(model: PreTrainedModel, trajectories: list[Trajectory], shared: bool) -> Tensor:
    rows = pack(trajectories, token_budget=64, share_prompts=shared)
    with torch.no_grad():
        return torch.cat([token_logprobs(model, row, temperature=1.0)[0] for row in rows])
