"""Statistics on results by task."""

from collections.abc import Mapping

import numpy as np


def paired_bootstrap(
    before: Mapping[str, float], after: Mapping[str, float], seed: int = 0, samples: int = 10_000
) -> tuple[float, float, float]:
    """Mean gain over tasks, with its 95 % percentile bootstrap interval.

    Tasks are resampled with replacement and each keeps its pair of values, so differences between tasks
    do not widen the interval (Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3).

    Args:
        before: A task's mean success before training, by task id.
        after: The same tasks after training.
        seed: Of the generator that resamples; the same arguments give the same interval.
        samples: How many times the tasks are resampled.

    Returns:
        The mean of `after - before` over tasks, and the interval's low and high end.

    Raises:
        ValueError: If there is no task, or the two sides do not hold the same tasks.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ValueError(f"before and after must hold the same tasks; {len(odd)} are in only one, such as {odd[0]!r}")
    if not before:
        raise ValueError("before and after hold no task; a gain needs at least one")
    if samples < 1:
        raise ValueError(f"samples is {samples}; it must be at least 1")
    return bootstrap({task: after[task] - before[task] for task in before}, seed, samples)


def bootstrap(values: Mapping[str, float], seed: int = 0, samples: int = 10_000) -> tuple[float, float, float]:
    """Mean over tasks, with its 95 % percentile bootstrap interval (the same book, section 13.3).

    Args:
        values: A task's mean, by task id.
        seed: Of the generator that resamples; the same arguments give the same interval.
        samples: How many times the tasks are resampled.

    Returns:
        The mean, and the interval's low and high end.
    """
    # In the order of their names, so that the interval does not hang on the order of the mapping.
    numbers = np.array([values[task] for task in sorted(values)], dtype=np.float64)
    generator = np.random.default_rng(seed)
    # One resample at a time: memory stays at the number of tasks.
    means = [generator.choice(numbers, numbers.size).mean() for _ in range(samples)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(numbers.mean()), float(low), float(high)
