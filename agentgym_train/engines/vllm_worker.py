"""What is added to vLLM's workers, in this process and in servers (`--worker-extension-cls`)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from agentgym_train.engines.weight_check import Fingerprint, Held, fingerprint

_COLUMNS = 32  # of each packed weight


class TrainedWeights:
    """Takes new weights, and tells what a worker holds."""

    model_runner: Any

    reload_weights: Any

    def take_weights(self, **source: Any) -> None:
        """Load weights in place; the arguments are those of vLLM's `reload_weights`.

        On a CPU a head that shares the embedding's weight computes with a packed copy, which vLLM leaves as it was.
        """
        self.reload_weights(**source)
        for module in self.model_runner.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)

    def held_weights(self, seed: str) -> Held:
        """Return fingerprints of all weights.

        vLLM's own `compute_weight_checksums` does not see packed weights: on a CPU, linear layers keep theirs in a
        layout of the kernel's, and the parameter is empty. There the layer is asked for single columns, which it
        computes exactly.

        Args:
            seed: Of the choice of columns.
        """
        model: nn.Module = self.model_runner.get_model()
        dtype: torch.dtype = self.model_runner.model_config.dtype
        packed = getattr(model, "packed_modules_mapping", {})
        weights: dict[str, list[Fingerprint]] = {}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for alias, parameter in model.named_parameters(remove_duplicate=False):
            name = names[id(parameter)]  # a shared weight has one name in a checkpoint
            path, _, leaf = name.rpartition(".")
            module = model.get_submodule(alias.rpartition(".")[0])
            owner, _, last = path.rpartition(".")
            parts = packed.get(last, [last])
            for columns, value in _values(module, leaf, parameter, random.Random(f"{seed}/{name}")):
                for part, rows in zip(parts, _split(module, value.to(dtype), len(parts)), strict=True):
                    entry = Fingerprint(columns=columns, value=fingerprint(rows))
                    weights.setdefault(".".join(filter(None, [owner, part, leaf])), []).append(entry)
        return Held(dtype=str(dtype).removeprefix("torch."), weights=weights)


def _values(
    module: nn.Module, leaf: str, parameter: Tensor, chance: random.Random
) -> Iterator[tuple[list[int] | None, Tensor]]:
    """The numbers that a layer computes with: all of a weight, and some columns of a packed copy of it."""
    if parameter.numel():
        yield None, parameter
    kernel = getattr(module, "cpu_linear", None)
    if kernel is None or leaf != "weight":
        return
    inputs = int(getattr(module, "input_size", 0)) or int(parameter.shape[1])
    columns = sorted(chance.sample(range(inputs), min(_COLUMNS, inputs)))
    one_hot = torch.zeros(len(columns), inputs, dtype=parameter.dtype)
    one_hot[torch.arange(len(columns)), torch.tensor(columns)] = 1
    yield columns, kernel(one_hot, parameter, None).T


def _split(module: nn.Module, value: Tensor, parts: int) -> list[Tensor]:
    """Undo what vLLM does to a checkpoint's weight: rows that pad the vocabulary, several weights in one."""
    vocabulary = getattr(module, "org_vocab_size", None)
    if vocabulary is not None:
        value = value[:vocabulary]
    if parts == 1:
        return [value]
    return list(value.split([int(size) for size in module.output_sizes]))  # type: ignore[union-attr]
