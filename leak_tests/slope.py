"""A straight line's slope that single odd samples do not move, with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class Slope(NamedTuple):
    """A slope with the two ends of its confidence interval."""

    value: float
    low: float
    high: float


def theil_sen(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Slope:
    """Median of the slopes between all pairs of points.

    The interval takes in the pairwise slopes whose ranks Kendall's test does not reject, with the test's
    variance corrected for ties (Sen 1968, Estimates of the Regression Coefficient Based on Kendall's Tau,
    sections 3 and 6). It is two-sided, so each end is a one-sided bound at (1 + confidence) / 2.

    Args:
        x: Positions, shape [n], all different.
        y: Values, shape [n].
        confidence: Of the interval, between 0 and 1.

    Raises:
        ValueError: If there are fewer than three points, not as many of one as of the other, or a position twice.
    """
    if len(x) != len(y) or len(x) < 3:
        raise ValueError(f"theil_sen takes at least three points, not {len(x)} positions and {len(y)} values.")
    if len(set(x)) < len(x):
        raise ValueError("theil_sen takes each position once.")
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = xs.size
    first, second = np.triu_indices(n, 1)
    slopes = np.sort((ys[second] - ys[first]) / (xs[second] - xs[first]))
    ties = np.unique(ys, return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - np.sum(ties * (ties - 1) * (2 * ties + 5))) / 18
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance)
    outside = max(int((slopes.size - reach) / 2) - 1, 0)  # slopes beyond the interval, on each side
    return Slope(float(np.median(slopes)), float(slopes[outside]), float(slopes[-1 - outside]))
