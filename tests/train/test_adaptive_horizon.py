"""The adaptive horizon on curves of the kinds that runs produce."""

import json
import random
from collections.abc import Callable

import pytest

from agentgym_train.adaptive_horizon import AdaptiveHorizon, Signals, settled

STEPS = 60


def rule() -> AdaptiveHorizon:
    return AdaptiveHorizon(start=10, increment=10, cap=30, window=20, tolerance=0.1)


def measured(rate: float, episodes: int, rng: random.Random) -> float:
    """Success rate of so many episodes."""
    return sum(rng.random() < rate for _ in range(episodes)) / episodes


def raises(horizon: AdaptiveHorizon, rate: Callable[[int], float], episodes: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    told = [horizon.observe(Signals(measured(rate(step), episodes, rng), 1.0, 12.0, 0.9)) for step in range(STEPS)]
    return [step for step, reason in enumerate(told) if reason == "raised"]


@pytest.mark.parametrize("seed", range(5))
def test_it_raises_on_a_plateau(seed: int) -> None:
    horizon = rule()
    steps = raises(horizon, lambda step: 0.6, 128, seed)
    assert len(steps) == 2  # then the cap is reached
    assert 19 <= steps[0] < 40
    assert steps[1] - steps[0] >= 20
    assert horizon.horizon_at(0) == 30


@pytest.mark.parametrize("seed", range(5))
def test_it_waits_while_success_rises_and_raises_once_it_has_settled(seed: int) -> None:
    assert raises(rule(), lambda step: 0.1 + 0.012 * step, 128, seed) == []
    horizon = rule()
    steps = raises(horizon, lambda step: min(0.7, 0.1 + 0.03 * step), 256, seed)
    assert steps
    assert steps[0] >= 28


@pytest.mark.parametrize("seed", range(5))
def test_it_waits_while_noise_hides_what_happens(seed: int) -> None:
    assert raises(rule(), lambda step: 0.5, 4, seed) == []


@pytest.mark.parametrize("seed", range(5))
def test_it_waits_after_a_collapse_even_once_that_is_a_plateau(seed: int) -> None:
    assert raises(rule(), lambda step: 0.6 if step < 15 else 0.05, 128, seed) == []


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (Signals(0.6, 0.1, 12.0, 0.9), "entropy fell from 1.000 to 0.100 nats"),
        (Signals(0.6, 1.0, 60.0, 0.9), "replies went from 12 to 60 tokens"),
        (Signals(0.6, 1.0, 2.0, 0.9), "replies went from 12 to 2 tokens"),
        (Signals(0.6, 1.0, 12.0, 0.5), "the share of accepted actions fell from 0.90 to 0.50"),
        (Signals(0.3, 1.0, 12.0, 0.9), "success fell from 0.60 to 0.30"),
    ],
)
def test_it_says_what_has_collapsed(late: Signals, reason: str) -> None:
    horizon = rule()
    for _ in range(10):
        assert horizon.observe(Signals(0.6, 1.0, 12.0, 0.9)) == ""
    for _ in range(5):
        told = horizon.observe(late)
    assert told == f"collapse: {reason}"
    assert horizon.horizon_at(0) == 10


@pytest.mark.parametrize("success", [0.0, 1.0])
def test_steps_without_an_update_count(success: float) -> None:
    """Where no task is solved, or each one, groups have no variance: nothing is trained, so no entropy is known."""
    horizon = rule()
    told = [horizon.observe(Signals(success, None, 12.0, 0.9)) for _ in range(20)]
    assert told[-1] == "raised"
    assert horizon.horizon_at(0) == 20


def test_the_entropy_is_compared_where_it_is_known() -> None:
    horizon = rule()
    for entropy in (None, 1.0, 1.0, None, 1.0, None, 0.1, None, None):
        assert horizon.observe(Signals(0.6, entropy, 12.0, 0.9)) == ""
    assert horizon.observe(Signals(0.6, 0.1, 12.0, 0.9)) == "collapse: entropy fell from 1.000 to 0.100 nats"


def test_it_goes_on_from_its_state() -> None:
    rng = random.Random(1)
    curve = [Signals(measured(0.5, 128, rng), 1.0, 12.0, 0.9) for _ in range(50)]
    straight, stopped = rule(), rule()
    told = [straight.observe(signals) for signals in curve]
    again = [stopped.observe(signals) for signals in curve[:17]]
    resumed = rule()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert again + [resumed.observe(signals) for signals in curve[17:]] == told
    assert "raised" in told
    assert resumed.state() == straight.state()


def test_settled_by_hand() -> None:
    assert settled([0.5] * 8, window=8, tolerance=0.01)
    assert not settled([0.5] * 7, window=8, tolerance=0.01)
    line = [0.01 * step for step in range(8)]  # exactly 0.08 over its length
    assert settled(line, window=8, tolerance=0.081)
    assert not settled(line, window=8, tolerance=0.079)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 0}, "start must be an integer of at least 1, not 0"),
        ({"cap": 5}, "cap must be an integer of at least 10, not 5"),
        ({"increment": 2.5}, "increment must be an integer of at least 1, not 2.5"),
        ({"window": 3}, "window must be an integer of at least 4, not 3"),
        ({"tolerance": 0}, "tolerance must be between 0 and 1, not 0"),
    ],
)
def test_odd_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveHorizon(**{"start": 10, "increment": 10, "cap": 30, **changes})  # type: ignore[arg-type]
