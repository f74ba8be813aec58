"""SubprocVectorEnv against Gymnasium's SyncVectorEnv, which steps the same environments in this process."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from agentgym_envs import RefusedAction, TextEnv
from agentgym_wrappers import ActionParser, EnvironmentFailure, EnvResult, HorizonCurriculum, SubprocVectorEnv
from agentgym_wrappers.columns import infos_by_column
from tests.rough_env import ONE_WAY_ID, ROUGH_ID

TEXTCRAFT = "AgentGym/TextCraft-v0"
Vec = SubprocVectorEnv
Make = Callable[..., Vec]
modes = pytest.mark.parametrize("mode", list(AutoresetMode))


def short(env: Any) -> Any:
    return HorizonCurriculum(env, 3)


def drifting(env: Any) -> Any:
    """Episodes of growing length, counted by the wrapper itself."""
    return HorizonCurriculum(env, {"kind": "linear", "start": 1, "increment": 1, "every": 1, "cap": 9}, True)


@pytest.fixture
def make() -> Iterator[Make]:
    """`SubprocVectorEnv.make` whose processes end with the test."""
    made: list[Vec] = []

    def make_and_note(id: str = TEXTCRAFT, num_envs: int = 4, **kwargs: Any) -> Vec:
        made.append(Vec.make(id, num_envs, **kwargs))
        return made[-1]

    yield make_and_note
    for vec in made:
        vec.close()


@pytest.fixture
def in_process() -> Iterator[Callable[..., Any]]:
    """The same in this process, by Gymnasium."""
    made: list[Any] = []

    def make_and_note(
        id: str, num_envs: int, mode: Any = AutoresetMode.NEXT_STEP, wrapper: Any = lambda env: env
    ) -> Any:
        made.append(SyncVectorEnv([lambda: wrapper(gymnasium.make(id))] * num_envs, autoreset_mode=mode))
        return made[-1]

    yield make_and_note
    for vec in made:
        vec.close()


def plain(value: Any) -> Any:
    """Arrays as lists with their dtype, so that == compares everything."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, [plain(item) for item in value.tolist()]
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def actions_for(vec: Any, rng: random.Random) -> list[str]:
    """Solutions' steps, bad ones and refusals."""
    wanted = [action or "inventory" for action in vec.call("oracle_action")]
    other = ["get 1 oak logs", "nonsense", RefusedAction("what?", "There is no action in this."), "inventory"]
    return [other[int(rng.random() * 4)] if rng.random() < 0.4 else action for action in wanted]


def transcript(vec: Any, rounds: int, before: Callable[[int], None] = lambda _: None) -> list[Any]:
    """All that a vector environment returns, with a masked reset after each ended episode where that is needed."""
    rng = random.Random(0)
    seen = [plain(vec.reset(seed=7))]
    for number in range(rounds):
        before(number)
        step = vec.step(actions_for(vec, rng))
        seen.append(plain(step))
        ended = step[2] | step[3]
        if vec.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            seen.append(plain(vec.reset(options={"reset_mask": ended})))
    return seen


# ---- Gymnasium's interface ------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("wrapper", [short, drifting])
@modes
def test_transcripts_equal_those_of_gymnasiums_vector_environment(
    make: Make, in_process: Any, mode: AutoresetMode, wrapper: Any, threads: bool
) -> None:
    vec = make(num_envs=5, workers=2, autoreset_mode=mode, env_wrappers=[wrapper], thread_per_env=threads)
    sync = in_process(TEXTCRAFT, 5, mode, wrapper)
    assert transcript(vec, 25) == transcript(sync, 25)
    assert vec.metadata == sync.metadata
    assert vec.observation_space == sync.observation_space
    assert vec.action_space == sync.action_space
    assert vec.render_mode == sync.render_mode


@modes
def test_numeric_environments_are_batched_as_gymnasium_does(make: Make, in_process: Any, mode: AutoresetMode) -> None:
    vec, sync = make("CartPole-v1", 3, workers=2, autoreset_mode=mode), in_process("CartPole-v1", 3, mode)
    assert plain(vec.reset(seed=[3, None, 5])[0][0]) == plain(sync.reset(seed=[3, None, 5])[0][0])
    assert plain(vec.reset(seed=1)) == plain(sync.reset(seed=1))
    for turn in range(40):
        actions = np.array([turn % 2, 0, 1])
        ours, theirs = vec.step(actions), sync.step(actions)
        assert plain(ours) == plain(theirs)
        ended = ours[2] | ours[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended}
            assert plain(vec.reset(seed=turn, options=options)) == plain(sync.reset(seed=turn, options={**options}))
            assert "reset_mask" in options
    assert vec.get_attr("np_random_seed") == sync.get_attr("np_random_seed")


@pytest.mark.parametrize("id", [TEXTCRAFT, "AgentGym/TextCraft-Depth2-v0", "agentgym_envs:AgentGym/TextCraft-v0"])
def test_make_vec_makes_it_and_gymnasiums_vector_wrappers_run_on_it(id: str) -> None:
    vec = gymnasium.make_vec(id, num_envs=3, workers=2, env_wrappers=[ActionParser, short], split="test")
    assert isinstance(vec, SubprocVectorEnv)
    assert vec.spec is not None
    assert vec.spec.id == id.removeprefix("agentgym_envs:")
    table = {task.id: task for task in vec.get_attr("tasks")[0]}
    wrapped: Any = DictInfoToList(RecordEpisodeStatistics(vec))
    try:
        _, infos = wrapped.reset(seed=1)
        for info in infos:
            assert table[info["task"]].split == "test"
            assert info["horizon"] == 3
        for _ in range(3):
            *_, truncations, infos = wrapped.step(["<action>inventory</action>"] * 3)
        assert truncations.all()
        assert [info["episode"]["l"] for info in infos] == [3, 3, 3]
        assert infos[1]["action"] == "inventory"
    finally:
        wrapped.close()


def test_an_id_may_name_the_module_that_registers_it() -> None:
    with Vec.make(f"tests.rough_env:{ROUGH_ID}", 2) as vec:
        assert vec.reset(seed=0, options={"task": 4})[1]["task"].tolist() == ["counter_4", "counter_4"]


def test_each_environment_takes_options_of_its_own(make: Make) -> None:
    vec = make(num_envs=3, workers=2, env_wrappers=[short])
    options = [{"task": 5}, None, {"task": "textcraft_9", "horizon": 7}]
    _, infos = vec.reset(seed=0, options=options)
    assert (infos["task"][0], infos["task"][2]) == ("textcraft_5", "textcraft_9")
    assert infos["horizon"].tolist() == [3, 3, 7]
    _, infos = vec.reset(options={"task": 1})
    assert infos["task"].tolist() == ["textcraft_1"] * 3
    assert options == [{"task": 5}, None, {"task": "textcraft_9", "horizon": 7}]


def test_the_tasks_of_an_environment_depend_on_its_seed_and_count_alone(make: Make) -> None:
    vec = make(num_envs=3, workers=2, env_wrappers=[short], autoreset_mode=AutoresetMode.DISABLED)
    order = random.Random(1)
    alone = gymnasium.make(TEXTCRAFT)
    expected = [[alone.reset(seed=40 + i if k == 0 else None)[1]["task"] for k in range(12)] for i in range(3)]
    vec.send_reset([0, 1, 2], [40, 41, 42])
    seen: list[list[str]] = [[], [], []]
    for result in vec.recv(at_least=3):
        seen[result.env_index].append(result.info["task"])
    while min(map(len, seen)) < 12:
        index = int(order.random() * 3)
        vec.send_reset([index])
        seen[index].append(vec.recv()[0].info["task"])
    assert [tasks[:12] for tasks in seen] == expected


class Reusing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hands out one info all the time."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.told: dict[str, Any] = {}

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        self.told.clear()
        self.told.update(info)
        return observation, self.told

    def step(self, action: Any) -> Any:
        *step, info = super().step(action)
        self.told.clear()
        self.told.update(info)
        return *step, self.told


def test_the_final_info_is_that_of_the_end_even_if_the_environment_uses_it_again(make: Make) -> None:
    vec = make(num_envs=1, autoreset_mode="SameStep", env_wrappers=[short, Reusing])
    vec.reset(seed=0)
    for _ in range(3):
        *_, infos = vec.step(["inventory"])
    assert infos["final_info"]["turn"].tolist() == [3]
    assert infos["turn"].tolist() == [0]


def test_render_call_and_attributes_reach_every_environment(make: Make) -> None:
    vec = make(num_envs=3, workers=2, env_wrappers=[drifting], render_mode="ansi")
    vec.reset(seed=0)
    vec.step(["inventory"] * 3)
    assert all(frame.startswith("> inventory\n") for frame in vec.render())
    assert all(isinstance(actions, list) and actions for actions in vec.call("available_actions"))
    vec.set_attr("global_step", [0, 4, 100])
    assert vec.get_attr("global_step") == (0, 4, 100)
    with pytest.raises(AttributeError, match=r"(?s)environment 0: .*nothing_like_it"):
        vec.call("nothing_like_it")


def test_infos_are_batched_as_gymnasium_batches_them() -> None:
    reference = gymnasium.vector.VectorEnv()
    reference.num_envs = 6
    rng = random.Random(3)
    values: dict[str, Callable[[], Any]] = {
        "text": lambda: str(rng.random()),
        "whole": lambda: int(rng.random() * 9),
        "real": rng.random,
        "flag": lambda: rng.random() < 0.5,
        "array": lambda: np.full((2, 3), rng.random()),
        "number": lambda: np.float32(rng.random()),
        "list": lambda: [1, 2],
        "inner": lambda: {"text": str(rng.random()), "deeper": {"whole": int(rng.random() * 9)}},
        "final_obs": lambda: str(rng.random()),
        "final_info": lambda: {"text": str(rng.random()), "real": rng.random()},
    }
    for _ in range(50):
        infos = [
            (index, {key: draw() for key, draw in values.items() if rng.random() < 0.6})
            for index in range(6)
            if rng.random() < 0.8
        ]
        expected: dict[str, Any] = {}
        for index, info in infos:
            expected = reference._add_info(expected, info, index)
        assert plain(infos_by_column(infos, 6)) == plain(expected)


# ---- without a barrier ----------------------------------------------------------------------------------


def test_recv_returns_what_is_ready_and_leaves_the_slow_ones_to_come(make: Make) -> None:
    vec = make(ROUGH_ID, 3, thread_per_env=True)
    vec.reset(seed=0, options={"task": "counter_4"})
    vec.send([0, 1, 2], ["sleep 3", "add 1", "add 0"])
    assert {result.env_index for result in vec.recv(at_least=2)} == {1, 2}
    vec.send([1], ["add 1"])
    (result,) = vec.recv()
    assert (result.env_index, result.info["turn"]) == (1, 2)
    assert vec.recv(timeout=0.01) == []
    assert vec.snapshot([1])
    (result,) = vec.recv(at_least=5)
    assert (result.env_index, result.observation) == (0, "Slept.")
    with pytest.raises(ValueError, match="nothing is under way"):
        vec.recv()


@modes
def test_send_and_recv_give_each_environment_what_step_gives(make: Make, in_process: Any, mode: AutoresetMode) -> None:
    vec = make(num_envs=4, workers=2, autoreset_mode=mode, env_wrappers=[short])
    sync = in_process(TEXTCRAFT, 4, mode, short)
    vec.reset(seed=7)
    sync.reset(seed=7)
    rng = random.Random(2)
    for _ in range(12):
        actions = actions_for(vec, rng)
        order = sorted(range(4), key=lambda _: rng.random())
        for index in order:
            vec.send([index], [actions[index]])
        results = sorted(vec.recv(at_least=4), key=lambda result: result.env_index)
        observations, rewards, terminations, truncations, infos = sync.step(actions)
        assert [r.observation for r in results] == list(observations)
        assert [r.reward for r in results] == rewards.tolist()
        assert [r.terminated for r in results] == terminations.tolist()
        assert [r.truncated for r in results] == truncations.tolist()
        assert plain(infos_by_column([(r.env_index, r.info) for r in results], 4)) == plain(infos)
        if mode is AutoresetMode.DISABLED and (ended := terminations | truncations).any():
            sync.reset(options={"reset_mask": ended})
            vec.send_reset(np.flatnonzero(ended).tolist())
            assert len(vec.recv(at_least=9)) == ended.sum()


def test_a_main_program_that_is_busy_elsewhere_is_no_sign_of_a_hanging_worker(make: Make) -> None:
    vec = make(num_envs=60, env_wrappers=[ActionParser], call_seconds=1.5)
    vec.reset(seed=0)
    pids = vec.worker_pids
    large = "x" * 100_000 + "\n<action>inventory</action>"
    vec.send(range(60), [large] * 60)  # more than the socket holds
    time.sleep(4)
    assert len(vec.recv(at_least=60)) == 60
    vec.set_attr("instruction", "y" * 1_000_000)
    vec.send_reset(range(60))  # and more than it holds in the other direction
    time.sleep(4)
    assert len(vec.recv(at_least=60)) == 60
    assert vec.worker_pids == pids


def test_large_messages_pass_in_both_directions(make: Make) -> None:
    vec = make(num_envs=8, env_wrappers=[ActionParser])
    vec.reset(seed=0)
    reply = "thinking " * 100_000 + "\n<action>inventory</action>"
    assert vec.step([reply] * 8)[4]["action"].tolist() == ["inventory"] * 8


class Text(str):
    pass


def test_a_string_of_whatever_class_is_an_action(make: Make) -> None:
    vec = make(num_envs=2)
    vec.reset(seed=0)
    assert vec.step([Text("inventory"), np.str_("inventory")])[4]["valid_action"].all()


def test_what_environments_start_gets_the_main_programs_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for outer in ("/some/folder", ""):
        monkeypatch.setenv("PYTHONPATH", outer)
        with Vec.make(ROUGH_ID, 1) as vec:
            assert vec.call("variable", "PYTHONPATH") == (outer or None,)
            assert vec.call("variable", "AGENTGYM_OUTER_PYTHONPATH") == (None,)


def test_any_thread_may_step(make: Make) -> None:
    vec = make(num_envs=2)
    vec.reset(seed=0)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(vec.step(["inventory"] * 2)))
    thread.start()
    thread.join(30)
    assert seen[0][4]["turn"].tolist() == [1, 1]


# ---- snapshots ------------------------------------------------------------------------------------------


def test_a_fork_goes_to_other_workers_and_disturbs_nobody(make: Make) -> None:
    vec = make(num_envs=4, workers=4, autoreset_mode=AutoresetMode.DISABLED, env_wrappers=[drifting])
    vec.reset(seed=3)
    vec.set_attr("global_step", 8)
    vec.reset(seed=3)
    vec.send([1], ["inventory"])
    (state,) = vec.recv()
    siblings = vec.fork_from(1, [0, 3])
    for sibling, index in zip(siblings, (0, 3), strict=True):
        assert sibling.env_index == index
        assert (sibling.observation, sibling.reward) == (state.observation, 0.0)
        assert {**sibling.info} == {**state.info}
    action = vec.call("oracle_action")[1]
    _, _, _, _, infos = vec.step([action, action, "inventory", action])
    assert infos["turn"].tolist() == [2, 2, 1, 2]
    assert len({infos["score"][index] for index in (0, 1, 3)}) == 1
    alone = [gymnasium.make(TEXTCRAFT) for _ in range(4)]
    for index, env in enumerate(alone):
        env.reset(seed=3 + index)
    _, infos = vec.reset()
    assert infos["task"].tolist() == [env.reset()[1]["task"] for env in alone]


def test_a_state_is_restored_where_it_is_wanted(make: Make) -> None:
    vec = make(num_envs=2, workers=2)
    vec.reset(seed=0)
    vec.step(["inventory", "get 1 string"])
    (data,) = vec.snapshot([1])
    wanted = vec.step(["inventory", "inventory"])
    (result,) = vec.restore([0], [data])
    assert result.info["turn"] == 1
    again = vec.step(["inventory", "inventory"])
    assert again[0][0] == wanted[0][1]
    with pytest.raises(ValueError, match=r"environment 0: .*no snapshot"):
        vec.restore([0], [b"nonsense"])
    vec.reset()


def test_a_fork_of_an_ended_episode_has_ended(make: Make) -> None:
    vec = make(num_envs=2, autoreset_mode="Disabled", max_episode_steps=1)
    vec.reset(seed=0)
    vec.send([0], ["inventory"])
    assert vec.recv()[0].truncated
    vec.fork_from(0, [1])
    with pytest.raises(ResetNeeded, match="environment 1 has no running episode"):
        vec.send([1], ["inventory"])


def test_what_has_no_snapshot_says_so(make: Make) -> None:
    vec = make("CartPole-v1", 2)
    vec.reset(seed=0)
    with pytest.raises(ValueError, match=r"(?s)environment 0: .*TextEnv environments have snapshots"):
        vec.fork_from(0, [1])
    vec.step(np.array([0, 1]))


# ---- bad input ------------------------------------------------------------------------------------------


def result_after(vec: Vec) -> Any:
    """A good step, after all those that were refused."""
    return vec.step(["inventory"] * vec.num_envs)[4]["turn"].tolist()


@pytest.mark.parametrize(
    ("bad", "error", "told"),
    [
        (lambda vec: vec.step(["inventory"] * 3), ValueError, "3 actions for 4 environments"),
        (lambda vec: vec.step("inventory"), ValueError, "must be a list with one for each"),
        (lambda vec: vec.step(None), ValueError, "must be a list with one for each"),
        (lambda vec: vec.step(["a", "b", 7, "d"]), ValueError, "environment 2: an action is a string, not 7"),
        (lambda vec: vec.step(["a", None, "c", "d"]), ValueError, "environment 1: an action is a string"),
        (lambda vec: vec.send([4], ["a"]), IndexError, "no environment 4; accepted are 0 to 3"),
        (lambda vec: vec.send([-1], ["a"]), IndexError, "no environment -1"),
        (lambda vec: vec.send(["0"], ["a"]), IndexError, "named by its index"),
        (lambda vec: vec.send([1, 1], ["a", "b"]), ValueError, "environment 1 is named twice"),
        (lambda vec: vec.send([1, 2], ["a"]), ValueError, "1 actions for 2 environments"),
        (lambda vec: vec.reset(seed=[1, 2]), ValueError, "2 seeds for 4 environments"),
        (lambda vec: vec.reset(seed=[1, 2, "x", 3]), ValueError, "environment 2: a seed is an integer"),
        (lambda vec: vec.reset(options=[{}, {}]), ValueError, "2 options for 4 environments"),
        (lambda vec: vec.reset(options=[{}, {}, 3, {}]), ValueError, "options 2: reset options are a mapping"),
        (lambda vec: vec.reset(options={"reset_mask": [1, 0, 1, 0]}), ValueError, "must hold 4 bools"),
        (lambda vec: vec.reset(options={"reset_mask": [True] * 3}), ValueError, "must hold 4 bools"),
        (lambda vec: vec.send_reset([1], seeds=5), ValueError, "seeds are a list .* not 5"),
        (lambda vec: vec.send(5, ["a"]), ValueError, "send: the environments are a list of indices, not 5"),
        (lambda vec: vec.fork_from(0, 1), ValueError, "fork_from: the environments are a list of indices, not 1"),
        (lambda vec: vec.fork_from(0, [1, 1]), ValueError, "fork_from: environment 1 is named twice"),
        (lambda vec: vec.fork_from(9, [1]), IndexError, "fork_from: there is no environment 9"),
        (lambda vec: vec.set_attr("tunr_limit", 5), AttributeError, "environment 0: .* has an attribute 'tunr_limit'"),
        (lambda vec: vec.reset(options={"reset_mask": np.zeros(4, bool)}), ValueError, "is False everywhere"),
        (lambda vec: vec.set_attr("turn_limit", [1, 2]), ValueError, "2 values for 4 environments"),
        (lambda vec: vec.set_attr("turn_limit", threading.Lock()), TypeError, "environment 0 cannot be sent"),
        (lambda vec: vec.call("step", "a"), ValueError, "use vec.step"),
        (lambda vec: vec.restore([0, 1], [b""]), ValueError, "1 snapshots for 2 environments"),
        (lambda vec: vec.recv(), ValueError, "nothing is under way"),
    ],
)
def test_a_bad_argument_is_refused_before_anything_is_sent(make: Make, bad: Any, error: Any, told: str) -> None:
    vec = make(num_envs=4, workers=2)
    vec.reset(seed=0)
    with pytest.raises(error, match=told):
        bad(vec)
    assert result_after(vec) == [1, 1, 1, 1]


def test_an_environments_own_refusal_names_it_and_the_others_are_reset(make: Make) -> None:
    vec = make(num_envs=3, workers=2)
    with pytest.raises(ValueError, match=r"(?s)environment 1: .*there is no task 'spam'") as caught:
        vec.reset(seed=0, options=[{"task": 1}, {"task": "spam"}, {"task": 3}])
    assert "In the worker:" in caught.value.__cause__.__notes__[0]  # type: ignore[union-attr]
    with pytest.raises(gymnasium.error.Error, match=r"environment 0: .*greater or equal to zero"):
        vec.reset(seed=[-1, 0, 1], options=[{"task": 1}, {"task": 2}, {"task": 3}])
    vec.send_reset([0], options={"task": 1})
    vec.recv()
    assert vec.step(["inventory"] * 3)[4]["task"].tolist() == ["textcraft_1", "textcraft_2", "textcraft_3"]
    vec.send_reset([0, 1], options=[{"task": "spam"}, {"task": 2}])
    with pytest.raises(EnvironmentFailure, match=r"environment 0: ValueError: .*'spam'") as failure:
        vec.recv(at_least=2)
    assert failure.value.env_index == 0
    assert [result.env_index for result in vec.recv()] == [1]


def test_what_is_out_of_turn_is_refused(make: Make) -> None:
    vec = make(num_envs=2, autoreset_mode="Disabled", env_wrappers=[short])
    with pytest.raises(ResetNeeded, match="environment 0 was never reset"):
        vec.step(["inventory"] * 2)
    with pytest.raises(ValueError, match="environment 1 was never reset"):
        vec.reset(options={"reset_mask": np.array([True, False])})
    vec.reset(seed=0)
    vec.send([1], ["inventory"])
    for early in (
        lambda: vec.step(["inventory"] * 2),
        vec.reset,
        vec.render,
        lambda: vec.set_attr("global_step", 3),
    ):
        with pytest.raises(ValueError, match=r"environments 1 have results to come; recv\(\) them first"):
            early()
    with pytest.raises(ValueError, match="environment 1 has not answered yet"):
        vec.send([0, 1], ["inventory"] * 2)
    vec.recv()
    for _ in range(2):
        vec.step(["inventory"] * 2)
    with pytest.raises(ResetNeeded, match=r"environment 1 has no running episode .* send_reset\(\[index\]\)"):
        vec.send([1], ["inventory"])


def test_a_result_that_cannot_be_sent_is_an_error_of_its_own_environment(make: Make) -> None:
    vec = make(ROUGH_ID, 2)
    vec.reset(seed=0)
    with pytest.raises(TypeError, match=r"environment 0: .*cannot be sent to the parent"):
        vec.call("unpicklable")
    with pytest.raises(LookupError, match=r"environment 0: LookupError: on purpose"):
        vec.call("fail")
    assert vec.step(["add 1"] * 2)[4]["turn"].tolist() == [1, 1]


def children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self) -> Any:
        return gymnasium.make(TEXTCRAFT)


@pytest.mark.parametrize(
    ("fns", "kwargs", "error", "told"),
    [
        ([], {}, ValueError, "env_fns is empty"),
        ([lambda: gymnasium.make(TEXTCRAFT)], {"workers": 2}, ValueError, "workers must be from 1 to 1"),
        ([lambda: gymnasium.make(TEXTCRAFT)], {"workers": 0}, ValueError, "workers must be from 1 to 1"),
        ([lambda: gymnasium.make(TEXTCRAFT)], {"call_seconds": 0}, ValueError, "call_seconds must be above 0"),
        ([lambda: gymnasium.make(TEXTCRAFT)], {"fault_limit": 101}, ValueError, "from 0 to 100"),
        ([lambda: gymnasium.make(TEXTCRAFT)], {"autoreset_mode": "never"}, ValueError, "never"),
        ([lambda: gymnasium.make(TEXTCRAFT), Locked()], {}, TypeError, "environment 1: its env_fn cannot be sent"),
        (
            [lambda: gymnasium.make(TEXTCRAFT), lambda: gymnasium.make(TEXTCRAFT, subset="Nope")],
            {},
            ValueError,
            "environment 1: ValueError: TextCraft: unknown subset 'Nope'",
        ),
        (
            [lambda: gymnasium.make(TEXTCRAFT), partial(gymnasium.make, gymnasium.spec(ROUGH_ID))],
            {},
            ValueError,
            f"environment 1 has the id {ROUGH_ID}, but environment 0 has {TEXTCRAFT}",
        ),
        ([lambda: os._exit(3)], {}, RuntimeError, r"environment 0: make: worker 0 \(pid \d+\) exited with code 3"),
        ([lambda: time.sleep(60)], {"start_seconds": 3}, RuntimeError, "no answer within start_seconds=3"),
        ([lambda: None], {}, TypeError, "environment 0: .*returned None"),
        (["AgentGym/TextCraft-v0"], {}, ValueError, r"must be functions .*make\(id, num_envs\) takes an id"),
    ],
)
def test_what_cannot_be_made_leaves_nothing_running(
    fns: Sequence[Any], kwargs: dict[str, Any], error: Any, told: str
) -> None:
    before, files = children(), set(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=told):
        SubprocVectorEnv(fns, **kwargs)
    assert children() == before
    assert set(os.listdir("/proc/self/fd")) == files


def test_closing_twice_is_fine_and_using_it_afterwards_is_not(make: Make) -> None:
    before = children()
    vec = make(num_envs=2, workers=2)
    vec.reset(seed=0)
    vec.send([0], ["inventory"])
    vec.close()
    vec.close()
    assert children() == before
    for use in (
        vec.reset,
        vec.render,
        vec.recv,
        lambda: vec.step(["inventory"] * 2),
        lambda: vec.send([0], ["inventory"]),
        lambda: vec.snapshot([0]),
    ):
        with pytest.raises(ClosedEnvironmentError, match="make another one"):
            use()


def test_garbage_collection_closes_it() -> None:
    before = children()
    vec = Vec.make(TEXTCRAFT, 2)
    assert children() != before
    del vec
    assert children() == before


# ---- faults ---------------------------------------------------------------------------------------------


def kill(vec: Vec, worker: int) -> None:
    """Kill a worker and wait for it to be dead."""
    pid = vec.worker_pids[worker]
    os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # it was waited for already
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@modes
def test_environments_of_a_killed_worker_that_were_idle_notice_nothing(
    make: Make, in_process: Any, mode: AutoresetMode
) -> None:
    vec = make(num_envs=4, workers=2, autoreset_mode=mode, env_wrappers=[ActionParser, drifting])
    sync = in_process(TEXTCRAFT, 4, mode, lambda env: drifting(ActionParser(env)))

    def strike(number: int) -> None:
        if number % 3 == 1:
            kill(vec, number % 2)

    assert transcript(vec, 20, strike) == transcript(sync, 20)


def test_a_set_attribute_survives_its_worker(make: Make) -> None:
    vec = make(num_envs=2, env_wrappers=[drifting])
    vec.reset(seed=0)
    vec.set_attr("global_step", 4)
    kill(vec, 0)
    assert vec.get_attr("global_step") == (4, 4)
    kill(vec, 0)
    assert vec.reset()[1]["horizon"].tolist() == [6, 6]


@pytest.mark.parametrize(
    ("action", "kind", "told"),
    [
        ("signal 9", "killed", "was killed by SIGKILL"),
        ("signal 15", "killed", "was killed by SIGTERM"),
        ("signal 11", "killed", "was killed by SIGSEGV"),
        ("exit 3", "exited", "exited with code 3"),
        ("signal 19", "timeout", "no answer within call_seconds=2"),
        ("sleep 60", "timeout", "no answer within call_seconds=2"),
        ("raise spam", "error", "LookupError: spam"),
    ],
)
@modes
def test_only_the_environment_that_was_stepping_faults(
    make: Make, in_process: Any, mode: AutoresetMode, action: str, kind: str, told: str
) -> None:
    vec = make(ROUGH_ID, 4, workers=2, autoreset_mode=mode, call_seconds=2.0)
    twin = in_process(ROUGH_ID, 4, mode)
    options = {"task": "counter_4"}
    for each in (vec, twin):
        each.reset(seed=5, options=options)
        each.step(["add 1"] * 4)
    observations, rewards, terminations, truncations, infos = vec.step(["add 1", action, "add 2", "add 1"])
    expected = twin.step(["add 1", "add 0", "add 2", "add 1"])
    others = [0, 2, 3]
    assert [observations[i] for i in others] == [expected[0][i] for i in others]
    assert rewards[others].tolist() == expected[1][others].tolist()
    assert truncations.tolist() == [False, True, False, False]
    assert not terminations.any()
    assert rewards[1] == 0.0
    if mode is AutoresetMode.SAME_STEP:
        assert infos["task"][1] == twin.envs[1].reset()[1]["task"]
        infos = infos["final_info"]
    assert (infos["end"][1], infos["fault_kind"][1], infos["task"][1]) == ("fault", kind, "counter_4")
    assert infos["_fault"].tolist() == [False, True, False, False]
    assert infos["fault"][1].startswith("environment 1 (task counter_4), step 2 of its episode: ")
    assert told in infos["fault"][1]
    if mode is AutoresetMode.DISABLED:
        mask = {"reset_mask": np.array([False, True, False, False])}
        assert vec.reset(options=mask)[1]["task"][1] == twin.envs[1].reset()[1]["task"]
    elif mode is AutoresetMode.NEXT_STEP:
        assert vec.step(["add 0"] * 4)[4]["task"][1] == twin.envs[1].reset()[1]["task"]
    assert vec.step(["add 0"] * 4)[4]["turn"][1] == 1
    vec.close()


def test_where_replay_is_impossible_all_environments_of_the_worker_fault_and_say_so(
    make: Make, in_process: Any
) -> None:
    vec = make(ONE_WAY_ID, 4, workers=2, autoreset_mode="Disabled")
    vec.reset(seed=5, options={"task": "counter_4"})
    vec.step(["add 1"] * 4)
    vec.send([1], ["signal 9"])
    (killed,) = vec.recv()
    assert (killed.truncated, killed.info["fault_kind"]) == (True, "killed")
    vec.send([0, 2, 3], ["add 1"] * 3)  # 0 was at rest in the same worker
    results = sorted(vec.recv(at_least=3), key=lambda result: result.env_index)
    assert [result.truncated for result in results] == [True, False, False]
    assert [result.info.get("fault_kind") for result in results] == ["lost", None, None]
    assert "cannot be brought back" in results[0].info["fault"]
    assert "was killed by SIGKILL" in results[0].info["fault"]
    twin = in_process(ONE_WAY_ID, 4)
    twin.reset(seed=5, options={"task": "counter_4"})
    ours, theirs = vec.reset()[1], twin.reset()[1]
    assert plain(ours) == plain(theirs)
    kill(vec, 0)  # idle: told at the next step
    *_, truncations, infos = vec.step(["add 0"] * 4)
    assert truncations.tolist() == [True, True, False, False]
    assert infos["fault_kind"].tolist() == ["lost", "lost", None, None]


def test_a_worker_whose_socket_is_held_open_by_what_it_started_is_missed_nevertheless(make: Make) -> None:
    def forks() -> Any:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        return gymnasium.make(TEXTCRAFT)

    with SubprocVectorEnv([forks]) as vec:
        first = vec.reset(seed=0)
        kill(vec, 0)
        assert plain(vec.reset(seed=0)) == plain(first)


def test_what_was_done_in_part_is_known_when_a_worker_dies(make: Make) -> None:
    vec = make(ROUGH_ID, 3, workers=3, autoreset_mode="Disabled", env_wrappers=[SlowToSet])
    vec.reset(seed=0, options={"task": "counter_4"})
    vec.send([0], ["add 3"])
    vec.recv()
    timer = threading.Timer(0.7, kill, (vec, 0))
    timer.start()
    vec.set_attr("delay", [0.0, 0.0, 1.5])  # environment 0 has answered when its worker dies
    timer.join()
    assert vec.get_attr("delay") == (0.0, 0.0, 1.5)
    timer = threading.Timer(0.7, kill, (vec, 1))
    timer.start()
    vec.fork_from(0, [1, 2])  # likewise environment 1
    timer.join()
    vec.send([0, 1, 2], ["add 0"] * 3)
    assert [(r.observation, r.info["turn"]) for r in vec.recv(at_least=3)] == [("The counter shows 4.", 2)] * 3


class SlowToSet(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes its time to set `delay`, and then to be restored."""

    _delay = 0.0

    @property
    def delay(self) -> float:
        return self._delay

    @delay.setter
    def delay(self, value: float) -> None:
        time.sleep(value)
        self._delay = value

    def snapshot_state(self) -> dict[str, Any]:
        return {}

    def restore_state(self, state: Any) -> dict[str, Any]:
        time.sleep(self._delay)
        return {}


def test_a_reset_is_repeated_after_a_step_that_ended_its_worker_too(tmp_path: Any, make: Make) -> None:
    marker = tmp_path / "marker"
    vec = make("Toy/Fragile-v0", 1, marker=str(marker), once=True, autoreset_mode="Disabled")
    vec.reset(seed=0)
    vec.send([0], ["signal 9"])
    assert vec.recv()[0].info["fault_kind"] == "killed"
    marker.touch()
    vec.send_reset([0])
    assert "goal" in vec.recv()[0].info


def test_what_cannot_be_read_ends_the_run_with_the_cause(make: Make) -> None:
    vec = make(num_envs=1, env_wrappers=[Poisoning])
    vec.reset(seed=0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"what worker 0 returned cannot be read .* 'second'"):
            vec.step(["inventory"])


def test_what_cannot_be_read_does_not_keep_it_from_closing() -> None:
    before = children()
    vec = Vec.make(TEXTCRAFT, 1, env_wrappers=[Poisoning, SlowToClose])
    vec.reset(seed=0)
    vec.send([0], ["inventory"])
    vec.close()
    assert children() == before


class SlowToClose(gymnasium.Wrapper[Any, Any, Any, Any]):
    def close(self) -> None:
        time.sleep(0.5)  # its last result is read meanwhile
        super().close()


class Poison(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(first)


class Poisoning(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        *step, info = super().step(action)
        return *step, {**info, "poison": Poison(1, 2)}


def test_a_worker_killed_during_resets_repeats_them(make: Make) -> None:
    vec = make(num_envs=3)
    expected = plain(vec.reset(seed=3))
    kill(vec, 0)
    assert plain(vec.reset(seed=3)) == expected
    following = plain(vec.reset())
    vec.reset(seed=3)
    vec.send_reset([0, 1, 2])
    kill(vec, 0)
    results = sorted(vec.recv(at_least=3))
    assert plain([r.observation for r in results]) == following[0]


def test_a_reset_that_ends_two_workers_is_an_error(tmp_path: Any, make: Make) -> None:
    marker = tmp_path / "marker"
    vec = make("Toy/Fragile-v0", 2, workers=2, marker=str(marker), autoreset_mode="Disabled")
    vec.reset(seed=0)
    marker.touch()
    vec.send_reset([0])
    with pytest.raises(EnvironmentFailure, match=r"environment 0: .*SIGKILL") as caught:
        vec.recv()
    assert caught.value.env_index == 0
    marker.unlink()
    vec.send([1], ["add 0"])
    assert vec.recv()[0].info["turn"] == 1
    vec.reset(seed=1)


def test_a_slow_or_dead_neighbour_does_not_disturb_an_open_send(make: Make) -> None:
    vec = make(ROUGH_ID, 2, thread_per_env=True, call_seconds=2.0)
    vec.reset(seed=0, options={"task": "counter_4"})
    vec.send([0, 1], ["sleep 60", "add 0"])
    assert vec.recv()[0].env_index == 1
    for turn in range(2, 6):
        vec.send([1], ["sleep 0.4"])
        (result,) = vec.recv()
        if result.env_index == 0:
            break
        assert result.info["turn"] == turn
    results = [result] if result.env_index == 0 else vec.recv(at_least=1)
    fault = next(result for result in results if result.env_index == 0)
    assert fault.info["fault_kind"] == "timeout"


def test_an_environment_at_rest_is_brought_back_however_often_its_worker_dies(make: Make) -> None:
    vec = make(num_envs=2, workers=2, autoreset_mode="Disabled")
    vec.reset(seed=0)
    for _ in range(6):
        pid = vec.worker_pids[0]
        kill(vec, 0)
        while vec.worker_pids[0] == pid:  # environment 1 goes on
            vec.send_reset([1])
            vec.recv()
        deadline = time.monotonic() + 60
        while vec._pool.slots[0].recovering and time.monotonic() < deadline:
            vec.send_reset([1])
            vec.recv()
    vec.send([0], ["inventory"])
    assert vec.recv()[0].info["turn"] == 1


def test_too_many_faults_stop_the_run_with_the_cause(make: Make) -> None:
    vec = make(ROUGH_ID, 2, fault_limit=3)
    vec.reset(seed=0)
    for _ in range(2):  # a fault each, then the resets
        vec.step(["raise spam", "add 0"])
    vec.step(["raise spam", "raise spam"])
    vec.step(["add 0", "add 0"])
    with pytest.raises(RuntimeError, match=r"(?s)4 of the last 4 episodes .* fault_limit=3.*LookupError: spam"):
        vec.step(["raise spam", "add 0"])


def test_a_worker_that_can_never_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match=r"5 workers in a row have ended without an answer. .*exited with code 1"):
        Vec.make(TEXTCRAFT, 2)


def test_an_unknown_stateful_wrapper_costs_the_replay_only(make: Make) -> None:
    vec = make(num_envs=2, env_wrappers=[lambda env: Counting(env)])
    vec.reset(seed=0)
    kill(vec, 0)
    *_, truncations, infos = vec.step(["inventory"] * 2)
    assert truncations.all()
    assert infos["fault_kind"].tolist() == ["lost", "lost"]
    vec.step(["inventory"] * 2)
    assert vec.step(["inventory"] * 2)[4]["turn"].tolist() == [1, 1]


class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
    pass


def test_a_reply_that_is_refused_by_the_parser_stays_refused_in_a_replay(make: Make) -> None:
    vec = make(num_envs=1)
    vec.reset(seed=0)
    refused = RefusedAction("what?", "Say one thing only.")
    first = vec.step([refused])
    kill(vec, 0)
    (data,) = vec.snapshot([0])
    env = gymnasium.make(TEXTCRAFT).unwrapped
    assert isinstance(env, TextEnv)
    assert first[0] == ("Say one thing only.",)
    assert vec.restore([0], [data])[0].observation == "Say one thing only."


def test_results_have_one_form(make: Make) -> None:
    vec = make(num_envs=1)
    vec.send_reset([0], [3])
    (begun,) = vec.recv()
    assert isinstance(begun, EnvResult)
    assert (begun.reward, begun.terminated, begun.truncated) == (0.0, False, False)
    assert "goal" in begun.info
