"""The infos of a vector environment: from one dictionary per environment to one array per key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    if not pairs:
        return {}
    keys = tuple(pairs[0][1])
    columns: Iterable[tuple[str, list[int], Sequence[Any]]]
    if all(tuple(info) == keys for _, info in pairs):  # as a rule
        where = [index for index, _ in pairs]
        rows = zip(*(info.values() for _, info in pairs), strict=True)
        columns = ((key, where, values) for key, values in zip(keys, rows, strict=True))
    else:
        columns = _gathered(pairs)
    batch: dict[str, Any] = {}
    for key, where, values in columns:
        batch[key] = _column(key, where, values, num_envs)
        batch[f"_{key}"] = mask = np.zeros(num_envs, dtype=np.bool_)
        mask[_selection(where, num_envs)] = True
    return batch


def _gathered(pairs: Sequence[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[str, list[int], list[Any]]]:
    """Yield each key with the indices of the environments that have it, and their values."""
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for index, info in pairs:
        for key, value in info.items():
            indices, values = columns.setdefault(key, ([], []))
            indices.append(index)
            values.append(value)
    for key, (indices, values) in columns.items():
        yield key, indices, values


def _column(key: str, where: list[int], values: Sequence[Any], num_envs: int) -> Any:
    first = values[0]
    alike = len(set(map(type, values))) == 1
    array: Any = np.empty(num_envs, dtype=object)  # None everywhere
    if key != "final_obs":
        if isinstance(first, dict) and all(isinstance(value, dict) for value in values):
            return infos_by_column(zip(where, values, strict=True), num_envs)
        if type(first) in (int, float, bool) or isinstance(first, np.number):
            array = np.zeros(num_envs, dtype=type(first))
        elif isinstance(first, np.ndarray):
            array = np.zeros((num_envs, *first.shape), dtype=first.dtype)
    if alike and type(first) in (str, int, float, bool):
        array[_selection(where, num_envs)] = values
    else:
        for index, value in zip(where, values, strict=True):  # one by one: sequences would become a matrix
            array[index] = value
    return array


def _selection(where: list[int], num_envs: int) -> Any:
    """The same as an index into an array; a slice, if it is all environments, is the fastest."""
    return slice(None) if len(where) == num_envs else where
