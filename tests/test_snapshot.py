"""Snapshots, restores and forks of wrapped environments, on a scenario whose simulator is a process."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import (
    Autoreset,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformReward,
)

from agentgym_wrappers import ActionParser, HorizonCurriculum, LinearHorizon, fork, restore, snapshot
from tests.toy_env import COUNTER_ID, CounterEnv

AnyEnv = gymnasium.Env[Any, Any]
TARGET_10 = {"task": "counter_4"}
SCHEDULE = LinearHorizon(3, 1, 1, 9)


def bare() -> AnyEnv:
    return gymnasium.make(COUNTER_ID)


def limited() -> AnyEnv:
    return ActionParser(gymnasium.make(COUNTER_ID, max_episode_steps=4))


def trained() -> AnyEnv:
    return HorizonCurriculum(
        RecordEpisodeStatistics(ActionParser(gymnasium.make(COUNTER_ID, max_episode_steps=2))),
        SCHEDULE,
        count_episodes=True,
    )


def outcome() -> AnyEnv:
    return HorizonCurriculum(gymnasium.make(COUNTER_ID, reward="outcome"), 4)


def autoreset() -> AnyEnv:
    return Autoreset(TransformReward(limited(), lambda reward: float(reward) * 2))


STACKS = [bare, limited, trained, outcome, autoreset]
MOMENTS: dict[str, list[str]] = {
    "at the start": [],
    "in mid-episode": ["add 1", "add 2"],
    "after a refused action": ["add 1", "what\nnow?"],
    "at the end": ["add 1", "add 9"],
    "after a cut": ["add 1", "add 0", "add 0", "add 1"],
}


@pytest.fixture
def closing() -> Iterator[Callable[[AnyEnv], AnyEnv]]:
    """Registers an environment for being closed."""
    opened: list[AnyEnv] = []

    def register(env: AnyEnv) -> AnyEnv:
        opened.append(env)
        return env

    yield register
    for env in opened:
        env.close()


def comparable(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """A step's or reset's result without the wall time that RecordEpisodeStatistics reports."""
    info = dict(result[-1])
    if "episode" in info:
        info["episode"] = {key: value for key, value in info["episode"].items() if key != "t"}
    return *result[:-1], info


def future(env: AnyEnv, episodes: int = 3) -> list[Any]:
    """What an environment does from here on, resets included; also that it has to be reset at an end."""
    seen: list[Any] = []
    for _ in range(episodes):
        for action in ("add 1", "", "add 0", "add 1"):
            try:
                seen.append(comparable(env.step(action)))
            except ResetNeeded as error:
                seen.append(str(error))
        seen.append(comparable(env.reset()))
    return seen


def played(make: Callable[[], AnyEnv], actions: list[str]) -> AnyEnv:
    env = make()
    env.reset(seed=3)
    env.reset(options=TARGET_10)
    for action in actions:
        env.step(action)
    return env


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("make", STACKS)
def test_a_fork_goes_on_as_the_original(make: Callable[[], AnyEnv], moment: str, closing: Any) -> None:
    env = closing(played(make, MOMENTS[moment]))
    before = snapshot(env)
    twin = closing(fork(env))
    third = closing(fork(twin))
    assert str(twin) == str(env)
    ahead = future(twin)
    assert future(env) == ahead
    # The first two going on has not touched the third, nor can it be told from the saved state.
    assert future(third) == ahead
    restore(env, before)
    assert future(env) == ahead


@pytest.mark.parametrize("moment", MOMENTS)
def test_restore_returns_the_last_observation_and_info(moment: str, closing: Any) -> None:
    env = closing(played(trained, []))
    last = comparable(env.reset(options={**TARGET_10, "horizon": 4}))
    for action in MOMENTS[moment]:
        last = comparable(env.step(action))
    observation, info = restore(closing(trained()), snapshot(env))
    assert observation == last[0]
    ignored = ("episode", "goal", "instruction")
    assert info == {key: value for key, value in last[-1].items() if key not in ignored}


def test_the_cut_of_an_earlier_episode_is_forgotten(closing: Any) -> None:
    env = closing(played(trained, MOMENTS["after a cut"]))
    assert restore(closing(trained()), snapshot(env))[1]["end"] == "horizon"
    env.reset()
    assert "end" not in restore(closing(trained()), snapshot(env))[1]


def test_a_snapshot_is_json_and_is_restored_in_another_process(closing: Any) -> None:
    env = closing(played(trained, MOMENTS["after a refused action"]))
    data = snapshot(env)
    assert isinstance(json.loads(data), dict)
    code = (
        "import base64, sys\n"
        "from agentgym_wrappers import restore\n"
        "from tests.test_snapshot import future, trained\n"
        "env = trained()\n"
        "restore(env, base64.b64decode(sys.stdin.read()))\n"
        "print(repr(future(env)))\n"
        "env.close()\n"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=base64.b64encode(data).decode(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == repr(future(env))


def test_the_counters_of_every_wrapper_go_along(closing: Any) -> None:
    env = closing(played(trained, ["add 1"]))
    twin = closing(fork(env))
    assert isinstance(twin, HorizonCurriculum)
    assert (twin.global_step, twin.horizon) == (1, 4)
    statistics, original = twin.env, env.env
    assert isinstance(statistics, RecordEpisodeStatistics)
    assert (statistics.episode_lengths, statistics.episode_returns) == (1, original.episode_returns)


def test_a_time_limit_counts_on_and_stays_off_under_the_curriculum(closing: Any) -> None:
    env = closing(played(limited, ["add 0", "add 0"]))
    twin = closing(fork(env))
    assert [twin.step("add 0")[3] for _ in range(2)] == [False, True]
    env = closing(played(trained, ["add 0"]))  # TimeLimit of 2 inside, horizon 4
    twin = closing(fork(env))
    assert [twin.step("add 0")[3] for _ in range(3)] == [False, False, True]


def test_a_turn_limit_that_was_told_goes_along(closing: Any) -> None:
    env = closing(gymnasium.make(COUNTER_ID, reward="outcome", max_episode_steps=3))
    env.unwrapped.turn_limit = 3
    env.reset(seed=3, options=TARGET_10)
    env.step("add 1")
    ahead = future(closing(fork(env)))
    assert future(env) == ahead
    assert ahead[1][1] > 0


def test_an_episode_that_starts_from_a_snapshot_has_the_limit_of_its_own_environment(closing: Any) -> None:
    saved = closing(played(outcome, ["add 1"])).unwrapped.snapshot()
    env = closing(HorizonCurriculum(gymnasium.make(COUNTER_ID, reward="outcome"), 2))
    env.reset(options={"snapshot": saved})
    assert [float(env.step("add 0")[1]) > 0 for _ in range(2)] == [False, True]


def test_an_episode_that_started_from_a_snapshot_forks_with_its_own_turn_count(closing: Any) -> None:
    env = closing(played(trained, ["add 1", "add 1"]))
    start = env.unwrapped.snapshot()
    for actions in ([], ["add 0"]):
        env.reset(options={"snapshot": start, "horizon": 3})
        for action in actions:
            env.step(action)
        twin = closing(fork(env))
        assert twin.unwrapped._info()["turn"] == len(actions)
        assert future(twin) == future(env)


def test_an_unwrapped_environment_can_be_restored(closing: Any) -> None:
    env, other = closing(CounterEnv()), closing(CounterEnv())
    env.reset(seed=1)
    env.step("add 1")
    restore(other, snapshot(env))
    assert future(env) == future(other)


# ---- refusals -------------------------------------------------------------------------------------------


class Remembering(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """A user's wrapper with a state."""

    def __init__(self, env: AnyEnv) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.last = ""

    def step(self, action: Any) -> Any:
        self.last = action
        return super().step(action)


class Saving(Remembering):
    """The same with the two methods."""

    def snapshot_state(self) -> dict[str, Any]:
        return {"last": self.last}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        self.last = state["last"]
        return {"last": self.last}


class GraceLimit(TimeLimit[Any, Any]):
    """A subclass of a known wrapper may have a state of its own."""


class Unrecorded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The two methods, but no record of the constructor's arguments."""

    def snapshot_state(self) -> dict[str, Any]:
        return {}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def test_a_users_wrapper_takes_part_with_two_methods(closing: Any) -> None:
    env = closing(played(lambda: Saving(limited()), ["add 1"]))
    twin = closing(fork(env))
    assert twin.last == "add 1"
    assert restore(twin, snapshot(env))[1]["last"] == "add 1"


@pytest.mark.parametrize("wrap", [Remembering, lambda env: GraceLimit(env, 2)])
def test_a_wrapper_with_an_unknown_state_is_refused_by_name(wrap: Any, closing: Any) -> None:
    env = closing(wrap(bare()))
    env.reset(seed=0)
    for use in (snapshot, fork):
        with pytest.raises(ValueError, match=f"{type(env).__name__} is not known.*snapshot_state"):
            use(env)


def test_what_cannot_be_made_again_is_not_forked(closing: Any) -> None:
    plain = closing(HorizonCurriculum(CounterEnv(), 3))
    unrecorded = closing(Unrecorded(bare()))
    twice = closing(TimeLimit(bare(), 3))
    for env, message in (
        (plain, "has no spec"),
        (unrecorded, "Unrecorded does not record"),
        (twice, "one TimeLimit"),
    ):
        env.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            fork(env)
    other = closing(TimeLimit(bare(), 3))
    restore(other, snapshot(twice))
    assert future(other) == future(twice)


def test_only_text_environments_have_snapshots() -> None:
    with pytest.raises(ValueError, match="TextEnv environments have snapshots"):
        snapshot(gymnasium.make("CartPole-v1", disable_env_checker=True))


@pytest.mark.parametrize("make", STACKS)
def test_before_a_reset_there_is_nothing_to_save(make: Callable[[], AnyEnv], closing: Any) -> None:
    with pytest.raises(ResetNeeded):
        snapshot(closing(make()))


def test_bytes_that_are_no_snapshot_of_this_environment_are_refused(closing: Any) -> None:
    env = closing(played(trained, ["add 1"]))
    good = json.loads(snapshot(env))
    ahead = future(closing(fork(env)))
    wrong: list[tuple[Any, str]] = [
        (b"", "this is no snapshot"),
        (b"[]", "this is no snapshot"),
        (b"\x80\x04.", "this is no snapshot"),
        (None, "this is no snapshot"),
        (env.unwrapped.snapshot(), "TextEnv.restore"),
        (json.dumps({**good, "format": 99}).encode(), "format is 99"),
        (
            json.dumps({**good, "wrappers": []}).encode(),
            "has the wrappers none, but this environment has Horizon",
        ),
    ]
    for data, message in wrong:
        with pytest.raises(ValueError, match=message):
            restore(env, data)
    assert future(env) == ahead


def changed(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a record with another value at a path; `DROPPED` drops the key."""
    record = json.loads(json.dumps(record))
    *way, last = path
    part = record
    for key in way:
        part = part[key]
    if value is DROPPED:
        del part[last]
    else:
        part[last] = value
    return record


DROPPED = object()
NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        *[((key,), DROPPED, f"has no '{key}'") for key in ("format", "turn_limit", "stream", "start", "prefix")],
        (("format",), "1", "of type int"),
        (("turn_limit",), 2.0, "of type int or NoneType"),
        (("stream",), "ab", "of type list"),
        (("stream",), ["a", "b"], "not a seed and a number"),
        (("stream",), [1, 2, 3], "not a seed and a number"),
        (("start",), [], "of type dict"),
        (("start", "task"), DROPPED, "has no 'task'"),
        (("start", "task"), "nope_1", "no task 'nope_1'"),
        (("start", "init"), 5, "of type dict or NoneType"),
        (("start", "episode"), None, "of type int"),
        (("prefix",), "a", "of type int"),
        (("prefix",), True, "of type int"),
        (("prefix",), 5, "its prefix is 5, but there are 1 actions"),
        (("prefix",), -1, "its prefix is -1"),
        (("actions",), "add 1", "of type list"),
        (("actions",), [5], "is 5, not an object"),
        (("actions",), [{"refused": 5}], "of type str"),
        (("actions",), [{}], "has no 'refused'"),
        (("observation",), None, "of type str"),
    ],
)
def test_a_malformed_record_is_refused(path: tuple[Any, ...], value: Any, message: str, closing: Any) -> None:
    env = closing(played(bare, ["add 1"]))
    bad = json.dumps(changed(json.loads(env.unwrapped.snapshot()), path, value)).encode()
    for use in (env.unwrapped.restore, lambda data: env.reset(options={"snapshot": data})):
        with pytest.raises(ValueError, match=message):
            use(bad)
        with pytest.raises(ResetNeeded):
            env.unwrapped.step("add 1")
        env.reset(seed=0)


def test_what_is_nested_too_deeply_is_refused(closing: Any) -> None:
    env = closing(played(trained, ["add 1"]))
    for use in (lambda data: restore(env, data), env.unwrapped.restore):
        with pytest.raises(ValueError, match=r"this is no snapshot \(RecursionError"):
            use(NESTED.encode())
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"x": deep}
    with pytest.raises(ValueError, match="JSON values only"):
        env.reset(options={"init": deep})
    while deep:
        deep = deep["x"]  # freed from outside, as deep as it is


STATISTICS, CURRICULUM = 1, 0


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("env",), {}, "of type str"),
        (("env",), "\ud800", "this is no snapshot"),
        (("wrappers",), {}, "of type list"),
        (("wrappers", 0), "a", "is 'a', not an object"),
        (("wrappers", 0, "class"), 5, "of type str"),
        (("wrappers", 0, "state"), None, "of type dict"),
        (("wrappers", CURRICULUM, "state", "turn"), DROPPED, "HorizonCurriculum cannot .* has no 'turn'"),
        (("wrappers", CURRICULUM, "state", "horizon"), "4", "HorizonCurriculum cannot .* of type int"),
        (("wrappers", CURRICULUM, "state", "global_step"), -1, "at least 0, not -1"),
        (("wrappers", STATISTICS, "state", "times"), 5, "RecordEpisodeStatistics cannot .* of type list"),
        (("wrappers", STATISTICS, "state", "lengths"), ["a"], "RecordEpisodeStatistics cannot"),
        (("wrappers", STATISTICS, "state", "count"), "0", "RecordEpisodeStatistics cannot .* of type int"),
        (("wrappers", 3, "state", "_elapsed_steps"), "1", "TimeLimit cannot .* of type int or NoneType"),
        (("wrappers", 4, "state", "_has_reset"), DROPPED, "OrderEnforcing cannot .* has no '_has_reset'"),
    ],
)
def test_a_malformed_snapshot_is_refused(path: tuple[Any, ...], value: Any, message: str, closing: Any) -> None:
    env = closing(played(trained, ["add 1"]))
    good = json.loads(snapshot(env))
    with pytest.raises(ValueError, match=message):
        restore(env, json.dumps(changed(good, path, value)).encode())
    if "state" in path[:-1]:
        with pytest.raises(ResetNeeded):
            env.step("add 1")
    restore(env, json.dumps(good).encode())
    env.step("add 1")


def test_a_users_wrapper_that_cannot_take_its_state_is_named(closing: Any) -> None:
    env = closing(played(lambda: Saving(limited()), ["add 1"]))
    bad = changed(json.loads(snapshot(env)), ("wrappers", 0, "state"), {})
    with pytest.raises(ValueError, match=r"Saving cannot .*KeyError: 'last'"):
        restore(env, json.dumps(bad).encode())


def test_a_failed_restore_needs_a_reset(closing: Any) -> None:
    env = closing(played(trained, ["add 1"]))
    record = json.loads(snapshot(env))
    inner = json.loads(record["env"])
    other_data = {**record, "env": json.dumps({**inner, "data": "other"})}
    other_text = {**record, "env": json.dumps({**inner, "observation": "0" * 32})}
    for bad, error in ((other_data, ValueError), (other_text, RuntimeError)):
        with pytest.raises(error):
            restore(env, json.dumps(bad).encode())
        with pytest.raises(ResetNeeded):
            env.step("add 1")
        env.reset(seed=0)
        env.step("add 1")
