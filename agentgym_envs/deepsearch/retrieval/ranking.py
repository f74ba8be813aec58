"""The order of hits: by score, and of equally good ones by position in the corpus."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_DROPPED_BITS = 8
"""Of the 24 that a single-precision number has. The same terms summed in another order end in other bits; without
rounding, equally good passages would come in an order that their ids do not explain, and that varies."""


def best(
    fetch: Callable[[int], tuple[npt.ArrayLike, Callable[[], npt.ArrayLike]]], top_k: int
) -> list[tuple[float, int]]:
    """Take the best hits of a search engine that breaks ties in a way of its own.

    Args:
        fetch: Gives the scores of the n best hits, best first, and a function for their positions.
        top_k: Number of hits wanted.

    Returns:
        Rounded score and position of each.
    """
    limit = top_k + 1
    while True:
        raw, positions = fetch(limit)
        scores = rounded(raw)
        # One more than asked for shows whether others are as good as the last; then all of those compete.
        if len(scores) < limit or scores[-1] < scores[top_k - 1]:
            break
        limit *= 16
    places = np.asarray(positions(), dtype=np.int64)
    order = np.lexsort((places, -scores))[:top_k]
    return list(zip(scores[order].tolist(), places[order].tolist(), strict=True))


def rounded(scores: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Round scores to the bits that do not depend on the order of summation."""
    bits = np.asarray(scores, dtype=np.float32).view(np.int32)
    half = 1 << (_DROPPED_BITS - 1)
    return ((bits + half) & -(1 << _DROPPED_BITS)).view(np.float32)
