"""What keeps a run's memory small: layers that recompute, models that wait elsewhere, freed memory given back."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

_C = ctypes.CDLL(None)


def recompute_layers(model: PreTrainedModel) -> None:
    """Keep the input of each layer only, and compute the rest again in the backward pass (gradient checkpointing).

    It costs one more forward pass.
    """
    model.activation_checkpointing_enable({"use_reentrant": False})


def set_update_mode(model: nn.Module) -> None:
    """Put a model into the mode of an update: without dropout, which the engine that sampled has not either.

    Layers that recompute do so in training mode only, so they alone are put into it; what is in them is not.
    """
    model.eval()
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True


@contextmanager
def on_device(model: PreTrainedModel, device: torch.device) -> Iterator[PreTrainedModel]:
    """A model that waits on another device, such as the CPU, on this one for as long as the context lasts."""
    home = model.device
    module: nn.Module = model  # whose `to` has types
    module.to(device)
    try:
        yield model
    finally:
        module.to(home)
        give_back()


def give_back() -> None:
    """Return freed memory to the operating system, and the accelerator's to other processes.

    glibc keeps what tensors of a few megabytes have freed, in pieces that fit nothing else. A rollout's cache
    grows by such pieces, so without this the process keeps what the largest rollout took, beside what the
    update takes.
    """
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()
