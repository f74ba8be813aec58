"""Warm start, training and test never share a task, and each step's draw is a pure function."""

import pytest

from agentgym_envs.textcraft.env import TextCraftEnv
from agentgym_train.config import Config, ConfigError, from_dict
from agentgym_train.task_pools import draw, episode_seed, shares, task_pools


def test_the_three_pools_are_disjoint_and_keep_to_the_splits() -> None:
    config = from_dict({"env": {"subsets": ["Depth1", "Depth2"]}, "warm_start": {"tasks": 40}})
    pools = task_pools(config)
    warm, train, test = map(set, (pools.warm_start, pools.train, pools.test))
    assert (len(warm), len(test)) == (40, 32)
    assert len(warm | train | test) == len(warm) + len(train) + len(test)
    table = TextCraftEnv.task_table()
    for names, split in ((warm | train, "train"), (test, "test")):
        tasks = [table.find(name) for name in names]
        assert {task.split for task in tasks} == {split}
        assert {task.subset for task in tasks} == {"Depth1", "Depth2"}
    assert len(warm | train) == sum(len(table.select(depth, "train")) for depth in ("Depth1", "Depth2"))


def test_the_pools_do_not_depend_on_the_seed() -> None:
    assert task_pools(Config(seed=1)) == task_pools(Config(seed=2))


def test_without_a_warm_start_every_training_task_is_trained_on() -> None:
    pools = task_pools(from_dict({"warm_start": {"kind": "none"}}))
    assert pools.warm_start == ()
    assert len(pools.train) == len(TextCraftEnv.task_table().select(None, "train"))


@pytest.mark.parametrize(
    "env", [{"id": "AgentGym/TextCraft-Depth2-v0"}, {"options": {"subset": "Depth2"}}, {"subsets": ["Depth2"]}]
)
def test_an_ids_own_subset_holds(env: dict[str, object]) -> None:
    pools = task_pools(from_dict({"env": env, "warm_start": {"tasks": 5}, "evaluate": {"tasks": 5}}))
    table = TextCraftEnv.task_table()
    assert {table.find(name).subset for name in (*pools.warm_start, *pools.train, *pools.test)} == {"Depth2"}


@pytest.mark.parametrize("name", ["tasks", "split"])
def test_options_that_a_run_cannot_follow_are_refused(name: str) -> None:
    options = {"tasks": ["textcraft_3"], "split": "all"}
    with pytest.raises(ConfigError, match=rf"env\.options\.{name} is not accepted: .*env\.subsets"):
        task_pools(from_dict({"env": {"options": {name: options[name]}}}))


@pytest.mark.parametrize("count", [1, 3, 7])
def test_each_lap_covers_the_pool_in_an_order_of_its_own(count: int) -> None:
    pool = tuple("abcdefghijk")
    starts = range(0, 44 + count, count)
    drawn = [task for start in starts for task in draw(pool, range(start, start + count), seed=5)]
    laps = ["".join(drawn[start : start + 11]) for start in range(0, 44, 11)]
    assert all(sorted(lap) == list(pool) for lap in laps)
    assert len(set(laps)) == 4
    assert draw(pool, range(2 * count, 3 * count), seed=5) == drawn[2 * count : 3 * count]
    assert draw(pool, range(11), seed=6) != draw(pool, range(11), seed=5)


def test_a_step_larger_than_the_pool_goes_on_with_the_next_lap() -> None:
    assert sorted(draw(("a", "b"), range(5), seed=0))[:2] == ["a", "a"]


def test_episode_seeds_differ_by_purpose() -> None:
    seeds = {episode_seed(*parts) for parts in [(0, 1, 2), (0, 12), ("evaluate", "t"), ("warm_start", "t")]}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert episode_seed(0, 1, 2) == episode_seed(0, 1, 2)


def test_shares_follow_the_weights_and_leave_no_place_out() -> None:
    steps = [shares([3, 1], step, 4) for step in range(50)]
    for own, expected in zip(zip(*steps, strict=True), (150, 50), strict=True):
        assert [place for places in own for place in places] == list(range(sum(map(len, own))))
        assert abs(sum(map(len, own)) - expected) <= 2
    assert all(sum(map(len, step)) == 4 for step in steps)
    assert all(len(step[0]) in (2, 3, 4) for step in steps)  # from the first steps on
    assert shares([1], 7, 4) == [range(28, 32)]
