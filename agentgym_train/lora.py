"""Low-rank adapters (LoRA, arXiv 2106.09685), by peft: a few trained numbers beside weights that stay as they are.

The adapter's layers are put into the model, which is used as before. They are saved alone, in peft's format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # names that peft reads
_NAME = "default"


class AdapterError(ValueError):
    """An adapter cannot be made or loaded."""


def add_adapter(model: PreTrainedModel, rank: int, alpha: float, seed: int) -> None:
    """Put a new adapter into a model, beside every linear layer but the head; all other weights are frozen.

    It begins as no change at all. Its weights are kept in float32, whatever the model's type.

    Args:
        model: A plain model.
        rank: Rank of each layer's change.
        alpha: The change is scaled by `alpha / rank`.
        seed: Seed of its first weights.

    Raises:
        AdapterError: If peft is not installed, or the model has no layer that it can adapt.
    """
    _require_peft()
    from peft import LoraConfig

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # any number does
        target_modules="all-linear",
        base_model_name_or_path=model.name_or_path,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        _put_in(model, config)
    restart_adapter(model, seed)


def restart_adapter(model: PreTrainedModel, seed: int) -> None:
    """Let a model's adapter be as `add_adapter` made it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers: list[Any] = [module for module in model.modules() if _is_adapted(module)]
        for layer in layers:
            layer.reset_lora_parameters(_NAME, init_lora_weights=True)


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write a model's adapter, and where the model under it was loaded from, in peft's format."""
    model.peft_config[_NAME].save_pretrained(str(folder))
    weights = {_name_in_file(name): weight.detach().contiguous() for name, weight in _parts(model).items()}
    save_file(weights, folder / ADAPTER_WEIGHTS)


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put a saved adapter into a plain model, to be trained further.

    Raises:
        AdapterError: If it is damaged or of another model.
    """
    _require_peft()
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder), local_files_only=True)
        _put_in(model, config)
    except Exception as error:  # damaged files end in errors of many kinds
        raise AdapterError(f"{folder} holds no adapter that fits: {' '.join(str(error).split())}") from error
    weights = adapter_weights(folder, model.device)
    own = _parts(model)
    if {name: weight.shape for name, weight in own.items()} != {name: weight.shape for name, weight in weights.items()}:
        raise AdapterError(f"{folder} holds the adapter of another model: its weights do not fit.")
    for name, parameter in own.items():
        parameter.data = weights[name].float()


def has_adapter(model: nn.Module) -> bool:
    """Whether there is an adapter in a model."""
    return any(map(_is_adapted, model.modules()))


def adapter_weights(folder: Path, device: torch.device) -> dict[str, Tensor]:
    """The weights of a saved adapter, by their names in the model.

    Raises:
        AdapterError: If the file is missing or damaged.
    """
    try:
        state = load_file(folder / ADAPTER_WEIGHTS, device=str(device))
    except Exception as error:  # damaged files end in errors of many kinds
        raise AdapterError(f"{folder} holds no adapter: {' '.join(str(error).split())}") from error
    return {_name_in_model(name): weight for name, weight in state.items()}


@contextmanager
def adapter_as(model: PreTrainedModel, weights: dict[str, Tensor]) -> Iterator[PreTrainedModel]:
    """The model with other weights in its adapter, for as long as the context lasts.

    So a policy with an adapter is its own reference, and no second model is held.
    """
    parts = _parts(model)
    own = {name: parameter.data for name, parameter in parts.items()}
    try:
        for name, parameter in parts.items():
            parameter.data = weights[name]
        yield model
    finally:
        for name, parameter in parts.items():
            parameter.data = own[name]


@torch.no_grad()
def plain_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model as it acts: an adapter is merged into what it adapts, one weight at a time.

    Yields:
        Name in the plain model, and value.
    """
    adapted = {name: module for name, module in model.named_modules() if _is_adapted(module)}
    for name, parameter in model.named_parameters():
        owner, base, leaf = name.rpartition(".base_layer.")
        if base and leaf == "weight":
            yield f"{owner}.{leaf}", parameter.float() + adapted[owner].get_delta_weight(_NAME).float()
        elif base:
            yield f"{owner}.{leaf}", parameter
        elif ".lora_" not in name:
            yield name, parameter


@torch.no_grad()
def merge_adapter(model: PreTrainedModel) -> None:
    """Make an adapter part of the weights; the model is a plain one afterwards, with all weights trainable."""
    for name, module in list(model.named_modules()):
        if _is_adapted(module):
            base = module.get_base_layer()
            base.weight += module.get_delta_weight(_NAME).to(base.weight.dtype)
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, base)
    model.requires_grad_(True)
    del model.peft_config


def _put_in(model: PreTrainedModel, config: Any) -> None:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, model, _NAME)
    for name, weight in model.named_parameters():
        weight.requires_grad_(".lora_" in name)
        if weight.requires_grad:
            weight.data = weight.data.float()


def _require_peft() -> None:
    try:
        import peft  # noqa: F401
    except ModuleNotFoundError as error:
        raise AdapterError(
            "adapters need the package peft, which is not installed; run: pip install 'agentgym-suite[lora]' "
            "(in a checkout: make install)"
        ) from error


def _parts(model: nn.Module) -> dict[str, nn.Parameter]:
    """The adapter's weights by name."""
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def _name_in_file(name: str) -> str:
    return f"base_model.model.{name.replace(f'.{_NAME}.', '.')}"


def _name_in_model(name: str) -> str:
    plain = name.removeprefix("base_model.model.")
    return re.sub(r"(\.lora_[AB])\.", rf"\1.{_NAME}.", plain)


def _is_adapted(module: nn.Module) -> bool:
    return hasattr(module, "get_delta_weight")
