"""The infos of a vector environment: from one dictionary per environment to one array per key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def infos_by_column(infos: Iterable[tuple[int, Mapping[str, Any]]], num_envs: int) -> dict[str, Any]:
    """Batch infos as Gymnasium does, a column at a time.

    Args:
        infos: Index of an environment and its info, in rising order of the index.
        num_envs: Number of environments.

    Returns:
        For each key an array of shape [num_envs, ...] and under `_key` a mask of shape [num_envs] that says
        which environments have it. Strings and other objects stand in arrays of objects, dictionaries are
        batched in the same way inside.
    """
    pairs = list(infos)
    batch: dict[str, Any] = {}
    for key, where, values in _columns(pairs):
        batch[key] = _column(key, where, values, num_envs)
        mask = np.zeros(num_envs, dtype=np.bool_)
        mask[where] = True
        batch[f"_{key}"] = mask
    return batch


def _columns(pairs: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterable[tuple[str, list[int], list[Any]]]:
    """Return each key with the indices of the environments that have it, and their values."""
    if not pairs:
        return []
    keys = pairs[0][1].keys()
    if all(info.keys() == keys for _, info in pairs):  # as a rule
        where = [index for index, _ in pairs]
        return [(key, where, [info[key] for _, info in pairs]) for key in keys]
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for index, info in pairs:
        for key, value in info.items():
            indices, values = columns.setdefault(key, ([], []))
            indices.append(index)
            values.append(value)
    return [(key, *column) for key, column in columns.items()]


def _column(key: str, where: list[int], values: list[Any], num_envs: int) -> Any:
    first = values[0]
    array: Any = np.full(num_envs, None, dtype=object)
    if key != "final_obs":
        if all(isinstance(value, dict) for value in values):
            return infos_by_column(zip(where, values, strict=True), num_envs)
        if type(first) in (int, float, bool) or isinstance(first, np.number):
            array = np.zeros(num_envs, dtype=type(first))
        elif isinstance(first, np.ndarray):
            array = np.zeros((num_envs, *first.shape), dtype=first.dtype)
    if all(type(value) is type(first) for value in values) and type(first) in (str, int, float, bool):
        array[where] = values
    else:
        for index, value in zip(where, values, strict=True):  # one by one: sequences would become a matrix
            array[index] = value
    return array
