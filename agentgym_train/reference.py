"""The policy that divergence is measured from: as it was after its warm start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedModel

from agentgym_train.lora import adapter_as, adapter_weights, has_adapter
from agentgym_train.memory import on_device
from agentgym_train.models import load_model

Reference = Callable[[], AbstractContextManager[PreTrainedModel]]
"""Opens a context in which the reference can be asked; between two of them it takes little memory, or none."""


def load_reference(policy: PreTrainedModel, folder: Path, offload: bool) -> Reference:
    """Load the reference.

    Args:
        policy: The model that is trained. If it has an adapter it serves as the reference itself, with the adapter
            that it had.
        folder: Where the reference was saved.
        offload: Let a model of its own wait on the CPU.

    Raises:
        ModelError, AdapterError: If it cannot be loaded.
    """
    if has_adapter(policy):
        return partial(adapter_as, policy, adapter_weights(folder, policy.device))
    model = load_model(str(folder), torch.device("cpu") if offload else policy.device)
    return partial(on_device, model.eval().requires_grad_(False), policy.device)
