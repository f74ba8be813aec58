"""Horizon schedules, and the wrapper that enforces them on any environment."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from agentgym_envs import TextEnv
from agentgym_wrappers import (
    FixedHorizon,
    HorizonCurriculum,
    LinearHorizon,
    Schedule,
    StagedHorizon,
    schedule_from,
)
from tests.toy_env import COUNTER_ID, CounterEnv

SCHEDULES = [
    FixedHorizon(7),
    LinearHorizon(2, 3, 10, 30),
    StagedHorizon([(0, 10), (0.25, 20), (0.5, 30)], 100),  # type: ignore[arg-type]
]
TARGET_10 = {"task": "counter_4"}


class Endless(gymnasium.Env[Any, Any]):
    """No text environment: counts its steps, terminates on action 1, is cut by action 2."""

    observation_space = gymnasium.spaces.Discrete(1_000)
    action_space = gymnasium.spaces.Discrete(3)
    steps = 0
    broken = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if self.broken:
            raise OSError("broken")
        self.steps = 0
        return 0, dict(options or {})

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.steps, 0.0, action == 1, action == 2, {"end": "own"} if action == 2 else {}


def turns(env: gymnasium.Env[Any, Any], action: object, **reset: Any) -> int:
    """Play an episode and count its turns."""
    env.reset(**reset)
    for count in range(1, 2_000):
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            return count
    raise AssertionError("the episode does not end")


# ---- schedules ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "step", "expected"), [((1, 1, 100, 4), 350, 4), ((2, 2, 150, 20), 400, 6)])
def test_linear_schedule_follows_the_papers_rule(args: tuple[int, ...], step: int, expected: int) -> None:
    assert LinearHorizon(*args).horizon_at(step) == expected


def test_a_stage_holds_from_its_first_step_on() -> None:
    """Three stages at thirds: the published trainer skips one when it resumes at a boundary."""
    schedule = StagedHorizon(((0, 10), (1 / 3, 20), (2 / 3, 30)), 300)
    assert [schedule.horizon_at(t) for t in (0, 99, 100, 101, 199, 200, 299, 300, 9_999)] == [
        *(10, 10, 20, 20, 20, 30, 30, 30, 30)
    ]


def test_a_stage_begins_at_the_step_that_its_fraction_was_written_for() -> None:
    """As floats, 0.07 * 100 is above 7 and 5 / 6 above five sixths."""
    for total in (6, 7, 100, 300, 1_000):
        for first in range(1, total):
            for fraction in (first / total, round(1 - (total - first) / total, 15)):
                schedule = StagedHorizon(((0, 1), (fraction, 2)), total)
                assert [schedule.horizon_at(step) for step in (first - 1, first)] == [1, 2], (first, total)
    assert StagedHorizon(((0, 1), (0.071, 2)), 100).horizon_at(7) == 1
    assert StagedHorizon(((0, 1), (1e-9, 2)), 100).horizon_at(0) == 1


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
def test_schedules_never_fall_and_survive_json(schedule: Schedule) -> None:
    horizons = [schedule.horizon_at(step) for step in range(200)]
    assert horizons == sorted(horizons)
    plain = json.loads(json.dumps(schedule.to_dict()))
    assert schedule_from(plain) == schedule
    assert schedule_from(schedule) is schedule
    assert hash(schedule) == hash(schedule_from(plain))


def test_a_number_alone_is_a_fixed_schedule() -> None:
    assert schedule_from(5) == FixedHorizon(5) == schedule_from(np.int64(5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "turns must be an integer of at least 1, not 0"),
        (True, "not True"),
        (2.5, "not 2.5"),
        ("linear", "not 'linear'"),
        (None, "not None"),
        ({"turns": 3}, "kind None is unknown; accepted are fixed, linear, staged"),
        ({"kind": "liner", "start": 1}, "Did you mean 'linear'"),
        ({"kind": "fixed", "turn": 3}, "key 'turn' is unknown; accepted are turns. Did you mean 'turns'"),
        ({"kind": "linear", "start": 1, "increment": 1, "every": 5}, "cap must be given"),
        (
            {"kind": "linear", "start": 0, "increment": 1, "every": 1, "cap": 5},
            "start must be .* at least 1, not 0",
        ),
        (
            {"kind": "linear", "start": 1, "increment": -1, "every": 1, "cap": 5},
            "increment must be .* not -1",
        ),
        ({"kind": "linear", "start": 1, "increment": 1, "every": 0, "cap": 5}, "every must be .* not 0"),
        (
            {"kind": "linear", "start": 6, "increment": 1, "every": 1, "cap": 5},
            "cap must be at least start=6, not 5",
        ),
        ({"kind": "staged", "stages": [], "total_steps": 9}, "first stage must begin at fraction 0"),
        ({"kind": "staged", "stages": [[0.5, 1]], "total_steps": 9}, "first stage must begin at fraction 0"),
        ({"kind": "staged", "stages": [[0, 5], [0.5, 4]], "total_steps": 9}, "turns must not fall"),
        ({"kind": "staged", "stages": [[0, 5], [0, 6]], "total_steps": 9}, "fractions must rise"),
        ({"kind": "staged", "stages": [[0, 5], [1, 6]], "total_steps": 9}, "stay below 1"),
        ({"kind": "staged", "stages": [[0, 5], [float("nan"), 6]], "total_steps": 9}, "stay below 1"),
        ({"kind": "staged", "stages": [[0, 5], [float("nan"), 6], [0.5, 7]], "total_steps": 9}, "fractions must rise"),
        ({"kind": "staged", "stages": [5, 6], "total_steps": 9}, "stages must be pairs"),
        ({"kind": "staged", "stages": 5, "total_steps": 9}, "stages must be pairs"),
        ({"kind": "staged", "stages": [[0, 5]], "total_steps": 0}, "total_steps must be .* not 0"),
    ],
)
def test_a_wrong_schedule_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule_from(value)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
def test_a_negative_step_is_refused(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match="step must be an integer of at least 0, not -1"):
        schedule.horizon_at(-1)


# ---- the limit ------------------------------------------------------------------------------------------


def test_the_limit_moves_up_and_down_whatever_limits_were_inside() -> None:
    env = HorizonCurriculum(TimeLimit(gymnasium.make(COUNTER_ID, max_episode_steps=4), 6), LinearHorizon(2, 2, 1, 10))
    for step, expected in [(0, 2), (4, 10), (1, 4), (3, 8)]:
        env.global_step = step
        assert turns(env, "add 0", options=TARGET_10) == expected
    assert turns(env, "add 0", options={**TARGET_10, "horizon": 12}) == 12
    assert turns(env, "add 0", options=TARGET_10) == 8
    env.close()


def test_the_simulators_own_limit_stays() -> None:
    env = HorizonCurriculum(gymnasium.make(COUNTER_ID), 99)
    env.reset(seed=0, options=TARGET_10)
    for _ in range(30):
        *_, truncated, info = env.step("add 0")
    assert (truncated, info["end"], info["turn"], info["horizon"]) == (True, "simulator_limit", 30, 99)
    env.close()


def test_the_limit_of_a_running_episode_does_not_move() -> None:
    env = HorizonCurriculum(Endless(), LinearHorizon(2, 2, 1, 10))
    env.reset()
    env.global_step = 4
    assert [env.step(0)[3] for _ in range(2)] == [False, True]
    assert turns(env, 0) == 10


def test_the_cut_says_horizon_and_only_a_reset_goes_on() -> None:
    env = HorizonCurriculum(Endless(), 2)
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert env.reset() == (0, {"horizon": 2})
    assert env.step(0) == (1, 0.0, False, False, {"horizon": 2})
    assert env.step(0) == (2, 0.0, False, True, {"horizon": 2, "end": "horizon"})
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert turns(env, 0) == 2


@pytest.mark.parametrize(("action", "flags"), [(1, (True, False)), (2, (False, True))])
def test_an_end_of_its_own_in_the_last_turn_wins(action: int, flags: tuple[bool, bool]) -> None:
    env = HorizonCurriculum(Endless(), 1)
    env.reset()
    *_, terminated, truncated, info = env.step(action)
    assert (terminated, truncated) == flags
    assert info.get("end") == (None if action == 1 else "own")
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_termination_at_the_limit_of_a_time_limit_is_no_truncation() -> None:
    env = HorizonCurriculum(gymnasium.make(COUNTER_ID, max_episode_steps=1), 1)
    env.reset(seed=0, options=TARGET_10)
    *_, terminated, truncated, info = env.step("add 8" if env.unwrapped.value == 2 else "add 9")  # type: ignore[attr-defined]
    assert (terminated, truncated, info["end"]) == (True, False, "success")
    env.close()


def test_options_that_are_no_mapping_are_refused() -> None:
    env = HorizonCurriculum(CounterEnv(), 2)
    for options in (5, "horizon", [], [("horizon", 3)]):
        with pytest.raises(ValueError, match="reset options are a mapping"):
            env.reset(options=options)  # type: ignore[arg-type]


@pytest.mark.parametrize("horizon", [0, -1, 1.0, "3", None, True])
def test_a_wrong_horizon_is_refused_and_leaves_the_environment_unusable(horizon: Any) -> None:
    env = HorizonCurriculum(Endless(), 2)
    env.reset()
    with pytest.raises(ValueError, match=r"options\['horizon'\] must be an integer of at least 1"):
        env.reset(options={"horizon": horizon})
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_a_failed_reset_leaves_the_environment_unusable_and_does_not_count() -> None:
    inner = Endless()
    env = HorizonCurriculum(inner, 2, count_episodes=True)
    env.reset()
    inner.broken = True
    with pytest.raises(OSError, match="broken"):
        env.reset()
    with pytest.raises(ResetNeeded):
        env.step(0)
    inner.broken = False
    env.reset()
    assert env.global_step == 1


def test_other_options_are_passed_on_and_the_callers_dict_is_left_alone() -> None:
    env = HorizonCurriculum(Endless(), 2)
    options = {"horizon": 5, "other": 1}
    assert env.reset(options=options)[1] == {"other": 1, "horizon": 5}
    assert options == {"horizon": 5, "other": 1}


def test_without_the_wrapper_the_option_names_it() -> None:
    env = CounterEnv()
    with pytest.raises(ValueError, match="needs agentgym_wrappers"):
        env.reset(options={"horizon": 3})


# ---- the global step ------------------------------------------------------------------------------------


def test_episodes_count_from_the_second_reset_on() -> None:
    env = HorizonCurriculum(Endless(), LinearHorizon(1, 1, 2, 9), count_episodes=True)
    assert [turns(env, 0) for _ in range(6)] == [1, 1, 2, 2, 3, 3]
    assert env.global_step == 5


@pytest.mark.parametrize("step", [-1, 1.5, "1", None, False])
def test_a_wrong_global_step_is_refused(step: Any) -> None:
    env = HorizonCurriculum(Endless(), 2)
    with pytest.raises(ValueError, match="global_step must be an integer of at least 0"):
        env.global_step = step
    assert env.global_step == 0


def test_vector_environments_set_the_global_step_and_count_for_themselves() -> None:
    vec = SyncVectorEnv(
        [lambda: HorizonCurriculum(Endless(), LinearHorizon(1, 1, 1, 9))] * 2,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    vec.set_attr("global_step", np.int64(1))
    vec.reset()
    vec.set_attr("global_step", [2, 4])
    vec.step(np.array([0, 0]))
    *_, truncated, _ = vec.step(np.array([0, 0]))
    assert truncated.tolist() == [True, True]
    vec.reset(options={"reset_mask": np.array([True, False])})
    assert vec.get_attr("horizon") == (3, 2)
    vec.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_under_every_autoreset_mode_infos_keep_one_type(mode: AutoresetMode) -> None:
    vec = SyncVectorEnv([lambda: HorizonCurriculum(gymnasium.make(COUNTER_ID), 2)] * 2, autoreset_mode=mode)
    vec.reset(seed=0)
    for _ in range(2):
        _, _, _, truncated, infos = vec.step(["add 0", "add 0"])
    assert truncated.tolist() == [True, True]
    last = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert list(last["end"]) == ["horizon", "horizon"]
    assert infos["horizon"].dtype == np.int64
    vec.close()


# ---- construction ---------------------------------------------------------------------------------------


def test_two_curricula_and_vector_environments_are_refused() -> None:
    with pytest.raises(ValueError, match="there is one inside already"):
        HorizonCurriculum(TimeLimit(HorizonCurriculum(Endless(), 2), 5), 3)
    vec = SyncVectorEnv([Endless])
    with pytest.raises(ValueError, match="wrap them inside it"):
        HorizonCurriculum(vec, 3)  # type: ignore[arg-type]
    vec.close()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
def test_the_spec_survives_json_and_makes_the_same_environment(schedule: Schedule) -> None:
    env = HorizonCurriculum(gymnasium.make(COUNTER_ID, max_episode_steps=9), schedule, count_episodes=True)
    env.reset(seed=0)
    spec = env.spec
    assert spec is not None
    assert spec.max_episode_steps == 9
    again = gymnasium.make(type(spec).from_json(spec.to_json()))
    assert isinstance(again, HorizonCurriculum)
    assert (again.schedule, again.count_episodes) == (schedule, True)
    assert str(again) == str(env)
    env.close()
    again.close()


# ---- rewards under a cut --------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["step", "outcome"])
@pytest.mark.parametrize("length", [1, 2, 5])
def test_rewards_add_up_to_the_score_under_a_horizon_cut(reward: str, length: int) -> None:
    env = HorizonCurriculum(gymnasium.make(COUNTER_ID, reward=reward), length)
    _, info = env.reset(seed=0, options=TARGET_10)
    assert info["score"] > 0
    rewards = [float(env.step("add 1")[1]) for _ in range(length - 1)]
    _, last, _, truncated, info = env.step("add 1")
    assert truncated
    assert sum(rewards) + float(last) == pytest.approx(info["score"], abs=1e-9)
    assert info["score"] > 0.1
    if reward == "outcome":
        assert not any(rewards)
    env.close()


def test_outcome_is_paid_at_the_registered_time_limit() -> None:
    env = gymnasium.make(COUNTER_ID, reward="outcome")
    env.reset(seed=0, options=TARGET_10)
    rewards = []
    truncated = False
    while not truncated:
        _, reward, _, truncated, info = env.step("add 0")
        rewards.append(float(reward))
    assert len(rewards) == 20
    assert not any(rewards[:-1])
    assert rewards[-1] == info["score"] > 0
    env.close()


def test_outcome_is_paid_at_another_limit_that_is_told() -> None:
    env = gymnasium.make(COUNTER_ID, reward="outcome", max_episode_steps=3)
    base = env.unwrapped
    assert isinstance(base, TextEnv)
    base.turn_limit = 3
    env.reset(seed=0, options=TARGET_10)
    assert [float(env.step("add 0")[1]) > 0 for _ in range(3)] == [False, False, True]
    env.close()
