"""Are the weights that an engine holds those of the trained model? Compared by fingerprints, exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

import torch
from torch import Tensor

from agentgym_train.engines.base import EngineError

_CHUNK = 1 << 16  # numbers whose 64-bit values exist at one time; they fit into a CPU's cache
_WITHIN, _BETWEEN = -7046029254386353131, -4417276706812531889  # odd numbers of 64 random-looking bits, as signed ones
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint(TypedDict):
    """A fingerprint of one weight, or of some of its columns.

    Attributes:
        columns: Indices of the columns; None for the whole weight.
        value: See `fingerprint`.
    """

    columns: list[int] | None
    value: int


class Held(TypedDict):
    """What an engine holds.

    Attributes:
        dtype: Type of its weights, such as `"bfloat16"`.
        weights: Fingerprints by the names that the weights have in a checkpoint.
    """

    dtype: str
    weights: dict[str, list[Fingerprint]]


@torch.no_grad()
def fingerprint(tensor: Tensor) -> int:
    """Return a number that depends on every bit of a tensor but the sign of zeros, and not on its device.

    It is the sum, modulo 2**64, of each number's bits times an odd number that depends on the place.
    """
    numbers = (tensor.detach() + 0).contiguous()
    bits = numbers.view(_BITS[numbers.element_size()]).flatten()
    odd = _odd_numbers(min(len(bits), _CHUNK), _WITHIN, bits.device)
    sums = torch.stack([(piece.long() * odd[: len(piece)]).sum() for piece in bits.split(_CHUNK)])
    return int((sums * _odd_numbers(len(sums), _BETWEEN, bits.device)).sum()) % (1 << 64)


def _odd_numbers(count: int, multiplier: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device) * multiplier | 1


def check_held(weights: Iterable[tuple[str, Tensor]], held: Held, engine: str) -> None:
    """Compare the trained model's weights, rounded to the engine's type, with what the engine holds.

    Args:
        weights: Name and value of each of the trained model's weights.
        held: What the engine told.
        engine: What the user calls the engine.

    Raises:
        EngineError: If a weight differs or is missing.
    """
    dtype: torch.dtype = getattr(torch, held["dtype"])
    unseen = set(held["weights"])
    for name, value in weights:
        unseen.discard(name)
        if not held["weights"].get(name):
            raise EngineError(
                f"{engine} knows of no weight {name}, so it cannot be checked that it samples with the trained "
                "weights: models of this architecture are sampled from with engine.kind=hf."
            )
        rounded = value.detach().to(dtype)
        for entry in held["weights"][name]:
            own = rounded if entry["columns"] is None else rounded[:, entry["columns"]]
            if fingerprint(own) != entry["value"] and own.isfinite().all():
                raise EngineError(f"after the update {engine} holds another {name} than the trained model.")
    if unseen:
        raise EngineError(f"{engine} samples with a weight {min(unseen)} that the trained model has not.")
