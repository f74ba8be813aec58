"""Group advantages, against numbers computed by hand."""

import math

import pytest

from agentgym_train.advantages import group_advantages

HALF_ROOT_3 = math.sqrt(3) / 2  # 0.5 / (1 / sqrt(3)): two of four solve; the sample standard deviation is 1/sqrt(3)


def test_two_of_four() -> None:
    result = group_advantages([1.0, 1.0, 0.0, 0.0], ["g"] * 4, [True] * 4)
    assert result.values == pytest.approx([HALF_ROOT_3, HALF_ROOT_3, -HALF_ROOT_3, -HALF_ROOT_3])
    assert result.trained == [True] * 4
    assert (result.groups, result.zero_variance) == (1, 0)


def test_without_the_division() -> None:
    assert group_advantages([1.0, 1.0, 0.0, 0.0], ["g"] * 4, [True] * 4, normalise_std=False).values == [
        0.5,
        0.5,
        -0.5,
        -0.5,
    ]


def test_groups_need_not_stand_together_nor_be_equally_large() -> None:
    rewards = [1.0, 0.2, 0.0, 0.6, 0.0, 0.1]
    groups = [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("a", 1), ("b", 1)]
    result = group_advantages(rewards, groups, [True] * 6, normalise_std=False)
    assert result.values == pytest.approx([2 / 3, -0.1, -1 / 3, 0.3, -1 / 3, -0.2])
    alone = group_advantages([0.2, 0.6, 0.1], ["b"] * 3, [True] * 3)
    together = group_advantages(rewards, groups, [True] * 6)
    assert together.values[1::2] == pytest.approx(alone.values)
    assert together.groups == 2


def test_invalid_members_do_not_move_the_others() -> None:
    result = group_advantages([1.0, 1.0, 0.0, 0.0], ["g"] * 4, [True, False, True, True], normalise_std=False)
    assert result.values == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert result.trained == [True, False, True, True]
    # z-scores: the sample standard deviation of 1, 0, 0 is 1/sqrt(3)
    result = group_advantages([1.0, math.nan, 0.0, 0.0], ["g"] * 4, [True, False, True, True])
    assert result.values == pytest.approx([2 / math.sqrt(3), 0.0, -1 / math.sqrt(3), -1 / math.sqrt(3)])


@pytest.mark.parametrize(
    ("rewards", "valid"),
    [
        ([0.3, 0.3, 0.3], [True] * 3),
        ([0.1 + 0.2, 0.3, 0.3], [True] * 3),  # equal but for rounding
        ([1.0, 0.0, 0.0], [False, True, True]),
        ([1.0, 0.0, 0.0], [True, False, False]),  # one member has nothing to be compared with
        ([1.0, 0.0, 0.0], [False] * 3),
    ],
)
def test_groups_without_variance_are_dropped_and_counted(rewards: list[float], valid: list[bool]) -> None:
    result = group_advantages([*rewards, 1.0, 0.0], ["g"] * 3 + ["h"] * 2, [*valid, True, True])
    assert result.values[:3] == [0.0] * 3
    assert result.trained == [False] * 3 + [True] * 2
    assert (result.groups, result.zero_variance) == (2, 1)
    assert all(map(math.isfinite, result.values))


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_an_error(reward: float) -> None:
    with pytest.raises(ValueError, match=r"the reward of trajectory 1 \(group 'g'\) is -?(nan|inf)"):
        group_advantages([0.0, reward], ["g"] * 2, [True] * 2)
