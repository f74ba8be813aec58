"""The infos of a vector environment: from one dictionary per environment to one array per key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for index, info in infos:
        for key, value in info.items():
            if key in columns:
                where, values = columns[key]
                where.append(index)
                values.append(value)
            else:
                columns[key] = ([index], [value])
    batch: dict[str, Any] = {}
    for key, (where, values) in columns.items():
        batch[key] = _column(key, where, values, num_envs)
        mask = np.zeros(num_envs, dtype=np.bool_)
        mask[where] = True
        batch[f"_{key}"] = mask
    return batch


def _column(key: str, where: list[int], values: list[Any], num_envs: int) -> Any:
    first = values[0]
    array: Any
    if key != "final_obs":
        if all(isinstance(value, dict) for value in values):
            return infos_by_column(zip(where, values, strict=True), num_envs)
        if type(first) in (int, float, bool) or isinstance(first, np.number):
            array = np.zeros(num_envs, dtype=type(first))
            for index, value in zip(where, values, strict=True):
                array[index] = value
            return array
        if isinstance(first, np.ndarray):
            array = np.zeros((num_envs, *first.shape), dtype=first.dtype)
            for index, value in zip(where, values, strict=True):
                array[index] = value
            return array
    array = np.full(num_envs, None, dtype=object)
    for index, value in zip(where, values, strict=True):  # one by one: a list of sequences would be a matrix
        array[index] = value
    return array
