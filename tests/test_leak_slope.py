"""The slope, its interval, and the verdict on them."""

import numpy as np
import pytest

from leak_tests.slope import Slope, theil_sen
from leak_tests.verdict import decide

X = [0.5 * i for i in range(30)]


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    assert theil_sen(X, [7 + 3 * x for x in X]) == pytest.approx((3, 3, 3))


def test_constant_values_have_slope_zero_and_no_doubt() -> None:
    assert theil_sen(X, [5.0] * 30) == (0, 0, 0)


def test_a_fifth_of_wild_samples_hardly_moves_it() -> None:
    values = [2 * x + 0.01 * (-1) ** i for i, x in enumerate(X)]
    for odd in (3, 9, 14, 20, 27, 28):
        values[odd] += 1_000
    slope = theil_sen(X, values)
    assert slope.value == pytest.approx(2, abs=0.02)
    assert slope.low <= 2 <= slope.high


def test_adding_a_line_adds_its_slope() -> None:
    noise = np.random.default_rng(0).normal(size=30)
    before, after = theil_sen(X, list(noise)), theil_sen(X, list(noise + 5 * np.array(X)))
    assert after == pytest.approx([value + 5 for value in before])


@pytest.mark.parametrize("size", [12, 32])
def test_the_interval_holds_the_truth_as_often_as_it_says(size: int) -> None:
    generator = np.random.default_rng(1)
    x = list(range(size))
    slopes = [theil_sen(x, list(generator.standard_t(3, size) + 0.3 * np.array(x))) for _ in range(1_000)]
    assert 0.935 <= np.mean([slope.low <= 0.3 <= slope.high for slope in slopes]) <= 0.985


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([3, 0, 9, 1, 4, 8, 2, 7, 5, 6], 11),  # (45 - 1.96 sqrt(125)) / 2 = 11.5
        ([1, 0, 0, 1, 1, 0, 1, 0, 1, 0], 13),  # two ties of five: (45 - 1.96 sqrt(91.7)) / 2 = 13.1
    ],
)
def test_the_interval_ends_at_the_ranks_of_kendalls_test(values: list[float], rank: int) -> None:
    x = [1.0, 2, 4, 7, 11, 16, 22, 29, 37, 46]
    pairs = [(i, j) for j in range(10) for i in range(j)]
    slopes = sorted((values[j] - values[i]) / (x[j] - x[i]) for i, j in pairs)
    assert theil_sen(x, values) == pytest.approx((slopes[22], slopes[rank - 1], slopes[-rank]))
    assert slopes[rank - 1] != slopes[rank - 2], "the example cannot tell"


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [([1, 2], [1, 2], "at least three"), ([1, 2, 3], [1, 2], "2 values"), ([1, 1, 2], [1, 2, 3], "once")],
)
def test_bad_arguments_are_named(x: list[float], y: list[float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        theil_sen(x, y)


@pytest.mark.parametrize(
    ("slope", "verdict"),
    [
        (Slope(0, -50, 50), "pass"),
        (Slope(-900, -950, -850), "pass"),  # it shrinks
        (Slope(150, 110, 200), "pass"),
        (Slope(150, 110, 201), "fail"),  # perhaps beyond the limit, and the interval is no excuse
        (Slope(9_000, 5_000, 15_000), "fail"),  # wide, but all of it beyond the limit
        (Slope(0, -101, 100), "inconclusive"),
        (Slope(-400, -700, -100), "inconclusive"),
        (Slope(250, 100, 400), "inconclusive"),
    ],
)
def test_verdict(slope: Slope, verdict: str) -> None:
    assert decide(slope, 200.0) == verdict
