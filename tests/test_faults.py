"""What happens when the simulator behind an environment really dies, hangs or does not start."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs import Fault
from agentgym_wrappers import HorizonCurriculum
from tests.toy_env import CounterEnv, OneWayCounterEnv, kill

TARGET_10 = {"task": "counter_4"}


def children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def env() -> Iterator[CounterEnv]:
    counter = CounterEnv()
    yield counter
    counter.close()


@pytest.fixture
def one_way() -> Iterator[OneWayCounterEnv]:
    counter = OneWayCounterEnv()
    yield counter
    counter.close()


def test_a_killed_simulator_is_replaced_and_the_step_finished(env: CounterEnv) -> None:
    env.reset(seed=0, options=TARGET_10)
    twin = CounterEnv()
    twin.reset(seed=0, options=TARGET_10)
    for action in ("add 2", "nonsense", "add 1"):
        env.step(action)
        twin.step(action)
    kill(env)
    hit, expected = env.step("add 1"), twin.step("add 1")
    assert hit[4].pop("recovered") is True
    assert hit == expected
    after, expected = env.step("add 2"), twin.step("add 2")
    assert "recovered" not in after[4]
    assert after == expected
    twin.close()


def test_a_hanging_simulator_is_replaced_after_its_time_limit() -> None:
    env = CounterEnv(reply_seconds=0.5)
    env.reset(seed=0, options=TARGET_10)
    assert env.child is not None
    os.kill(env.child.pid, signal.SIGSTOP)
    hung = str(env.child.pid)
    *_, truncated, info = env.step("add 1")
    assert info["recovered"] is True
    assert not truncated
    assert hung not in children()
    env.close()


@pytest.mark.parametrize("reward", ["step", "outcome"])
def test_without_replay_a_fault_truncates_and_keeps_the_last_state(reward: str) -> None:
    env = OneWayCounterEnv(reward=reward)
    observation, info = env.reset(seed=0, options=TARGET_10)
    observation, paid, _, _, info = env.step("add 2")
    score = info["score"]
    kill(env)
    again, last, terminated, truncated, info = env.step("add 1")
    assert (again, terminated, truncated) == (observation, False, True)
    assert (info["end"], info["fault_kind"], info["score"]) == ("fault", "died", score)
    assert isinstance(info["fault"], str)
    assert paid + last == pytest.approx(score, abs=1e-9)
    if reward == "step":
        assert last == 0.0
    with pytest.raises(ResetNeeded):
        env.step("add 1")
    assert env.reset(seed=0)[1]["turn"] == 0
    env.close()


def test_a_hang_without_replay_is_a_fault_of_its_own_kind() -> None:
    env = OneWayCounterEnv(reply_seconds=0.3)
    env.reset(seed=0, options=TARGET_10)
    assert env.child is not None
    os.kill(env.child.pid, signal.SIGSTOP)
    *_, truncated, info = env.step("add 1")
    assert truncated
    assert info["fault_kind"] == "timeout"
    env.close()


def test_a_fault_is_no_horizon_cut(one_way: OneWayCounterEnv) -> None:
    env = HorizonCurriculum(one_way, 1)
    env.reset(seed=0, options=TARGET_10)
    kill(one_way)
    *_, terminated, truncated, info = env.step("add 1")
    assert (terminated, truncated, info["end"]) == (False, True, "fault")


def test_a_simulator_that_died_between_episodes_is_started_again(env: CounterEnv) -> None:
    first = env.reset(seed=0)
    kill(env)
    assert env.reset(seed=0) == first
    assert env.step("add 1")[4]["valid_action"]


def test_a_simulator_that_does_not_start_is_a_fault_and_the_next_good_reset_mends_it(env: CounterEnv) -> None:
    expected = env.reset(seed=0)
    kill(env)
    good, env.python = env.python, "/bin/false"
    with pytest.raises(Fault) as caught:
        env.reset(seed=0)
    assert caught.value.kind == "died"
    with pytest.raises(ResetNeeded):
        env.step("add 1")
    with pytest.raises(ResetNeeded):
        env.snapshot()
    env.python = good
    assert env.reset(seed=0) == expected


def test_a_simulator_that_cannot_be_replaced_truncates(env: CounterEnv) -> None:
    observation, _ = env.reset(seed=0, options=TARGET_10)
    kill(env)
    env.python = "/bin/false"
    again, _, _, truncated, info = env.step("add 1")
    assert (again, truncated, info["end"]) == (observation, True, "fault")
    assert "recovered" not in info


def test_an_unexpected_error_is_raised_and_the_environment_then_needs_a_reset(env: CounterEnv) -> None:
    env.reset(seed=0)
    kill(env)
    good, env.python = env.python, "/no/such/python"
    with pytest.raises(FileNotFoundError):
        env.step("add 1")
    env.python = good
    with pytest.raises(ResetNeeded):
        env.step("add 1")
    env.reset(seed=0)
    assert env.step("add 1")[4]["valid_action"]


def test_closing_leaves_no_process_and_twice_is_fine(env: CounterEnv) -> None:
    before, files = children(), open_files()
    for _ in range(3):
        env.reset(seed=0)
        env.step("add 1")
        kill(env)
        env.step("add 1")
    assert len(children()) == len(before) + 1
    env.close()
    env.close()
    assert children() == before
    assert open_files() == files
    with pytest.raises(ResetNeeded):
        env.step("add 1")


def test_init_is_refused_where_a_scenario_has_none(env: CounterEnv) -> None:
    with pytest.raises(ValueError, match=r"options\['init'\] is not supported"):
        env.reset(options={"init": {"value": 3}})
    with pytest.raises(ResetNeeded):
        env.step("add 1")


def test_going_too_far_takes_all_points_away(env: CounterEnv) -> None:
    env.reset(seed=0, options=TARGET_10)
    rewards = [env.step("add 7")[1]]
    _, last, terminated, truncated, info = env.step("add 9")
    assert (terminated, truncated, info["end"], info["success"]) == (True, False, "failure", False)
    assert last < 0
    assert sum([*rewards, last]) == pytest.approx(info["score"], abs=1e-9) == 0.0


def test_the_simulators_own_limit_truncates(env: CounterEnv) -> None:
    env.reset(seed=0, options=TARGET_10)
    for _ in range(29):
        *_, truncated, info = env.step("add 0")
        assert not truncated
    *_, terminated, truncated, info = env.step("add 0")
    assert (terminated, truncated, info["end"], info["turn"]) == (False, True, "simulator_limit", 30)
