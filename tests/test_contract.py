"""The contract that every registered scenario keeps; a new one is covered as soon as it is registered.

The whole set runs on each scenario's base id, a light one on the ids of its subsets. What the tests must
know about a scenario beyond its ids stands in `NEEDS`.
"""

import copy
import functools
import gc
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import agentgym_envs  # noqa: F401 (registers the ids)
from agentgym_envs import RefusedAction, TextEnv
from agentgym_envs.tasks import REPEAT
from agentgym_envs.verbs import examples
from agentgym_envs.webarena.packages import has_chromium
from agentgym_wrappers import ActionParser, HorizonCurriculum, fork, restore, snapshot

ROOT = Path(__file__).resolve().parents[1]
AnyEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class Needs:
    """What the tests have to know about a scenario.

    Attributes:
        init: An accepted `options["init"]` that the oracle solves; None where it is not supported.
        bad_init: One that is refused.
        idle: An action that is understood and achieves nothing.
        make: Keywords for `make` in the tests that play: tasks that are short, where most are not.
        seeds: Episodes that the oracle and the random agent play.
        few: Episodes that are played to see something that holds in each.
        listed: At most how many of the listed actions are tried in each state.
        splits: Its splits.
        keep_open: Whether one environment stays open meanwhile, because its simulator takes long to start.
    """

    init: Mapping[str, Any] | None = None
    bad_init: Mapping[str, Any] | None = None
    idle: str = ""
    make: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 100
    few: int = 5
    listed: int = 1_000
    splits: tuple[str, ...] = ("train", "test")
    keep_open: bool = False


NEEDS = {
    "TextCraft": Needs(
        init={"goal": "chest", "inventory": {"oak planks": 3}},
        bad_init={"goal": "no such item"},
        idle="inventory",
    ),
    "BabyAI": Needs(
        init={"level": "BossLevel", "seed": 3, "actions": ["turn left"]},
        bad_init={"level": "no such level"},
        idle="check available actions",
    ),
    "SciWorld": Needs(
        init={"task": "sciworld_2936", "actions": ["look around", "open door to kitchen"]},
        bad_init={"task": "no such task"},
        idle="look around",
        make={"tasks": ["sciworld_2936", "sciworld_3236", "sciworld_3536", "sciworld_4240"]},
        seeds=8,
        listed=2,
        splits=("train", "dev", "test"),
        keep_open=True,
    ),
    "DeepSearch": Needs(
        init={
            "question": "What is the capital of Burkina Faso?",
            "answers": ["Ouagadougou"],
            "hops": [
                {"query": "continent and capital of Burkina Faso", "relation": "capital", "subject": "Burkina Faso"}
            ],
        },
        bad_init={"question": "Who?", "answers": []},
        idle="<search>nothing in particular</search>",
    ),
    "WebArena": Needs(
        init={
            "intent": "Open the roadmap.",
            "sites": ["gitlab"],
            "eval": {"url": {"site": "gitlab", "path": "/roadmap"}},
            "plan": [
                {"see": ["URL: http://gitlab/roadmap"], "do": "stop []"},
                {"see": [], "do": "click [{link 'ROADMAP'}]"},
            ],
        },
        bad_init={"intent": "Do nothing."},
        idle="scroll [down]",
        seeds=4,
        few=2,
        keep_open=True,
    ),
}

ALL_IDS = sorted(name for name in gymnasium.registry if name.startswith("AgentGym/"))
BASE_IDS = [name for name in ALL_IDS if "-" not in name.removesuffix("-v0")]
SUBSET_IDS = [name for name in ALL_IDS if name not in BASE_IDS]
# Where there is no Chromium, `conftest.py` leaves out the tests of WebArena.
RUNNING_IDS = [name for name in BASE_IDS if "WebArena" not in name or has_chromium()]
JUNK = (
    "",
    " \n\t",
    "\0\x07\x1b[31m",
    "\ud800\udfff",
    "\U0001f9ea e\u0301 \u202e",
    "x" * 100_000,
    "{}[]()<>%s\\",
)

base = pytest.mark.parametrize("id", BASE_IDS)
both_rewards = pytest.mark.parametrize("reward", ["step", "outcome"])


def needs(id: str) -> Needs:
    return NEEDS.get(id.removeprefix("AgentGym/").removesuffix("-v0").partition("-")[0], Needs())


def make_one(id: str) -> AnyEnv:
    """Make a base id as the tests play it."""
    return gymnasium.make(id, **needs(id).make)


def inner(env: AnyEnv) -> TextEnv:
    return cast(TextEnv, env.unwrapped)


@pytest.fixture(scope="module", autouse=True)
def kept_open() -> Iterator[None]:
    """Simulators that several environments share stay warm from test to test."""
    envs = [make_one(id) for id in RUNNING_IDS if needs(id).keep_open]
    for env in envs:
        env.reset(seed=0)
    yield
    for env in envs:
        env.close()


@pytest.fixture
def make() -> Iterator[Callable[..., AnyEnv]]:
    """`gymnasium.make` whose environments are closed at the end of the test."""
    made: list[AnyEnv] = []

    def make_and_note(id: str | EnvSpec, **kwargs: Any) -> AnyEnv:
        if id in BASE_IDS:
            kwargs = {**needs(id).make, **kwargs}
        env: AnyEnv = gymnasium.make(id, **kwargs)
        made.append(env)
        return env

    yield make_and_note
    for env in made:
        env.close()


# ---- agents ---------------------------------------------------------------------------------------------


def listed(env: AnyEnv) -> list[str]:
    """The available actions, or where they cannot be listed the verbs' examples."""
    try:
        return inner(env).available_actions()
    except NotImplementedError:
        return [example for verb in inner(env).verbs for example in examples(verb)]


def oracle(env: AnyEnv, turn: int) -> str:
    return inner(env).oracle_action() or ""


def mixed(env: AnyEnv, turn: int) -> str:
    """Steps of a solution, other actions and nonsense in turns, the same ones for the same state."""
    if turn % 4 == 3:
        return f"nonsense {turn}"
    choices = listed(env)
    return oracle(env, turn) if turn % 2 == 0 or not choices else choices[turn % len(choices)]


Agent = Callable[[AnyEnv, int], str]
Steps = list[tuple[str, float, bool, bool, dict[str, Any]]]


def rest_of_episode(env: AnyEnv, agent: Agent, turns: int = 1_000) -> Steps:
    """Play on until the episode ends or `turns` are over."""
    steps: Steps = []
    for turn in range(turns):
        steps.append(cast(Any, env.step(agent(env, turn))))
        if steps[-1][2] or steps[-1][3]:
            break
    return steps


def transcript(env: AnyEnv, seed: int, turns: int = 20) -> list[Any]:
    """Everything that the environment returns during some turns, further episodes included."""
    seen: list[Any] = [env.reset(seed=seed)]
    while turns > 0:
        steps = rest_of_episode(env, mixed, turns)
        seen += steps
        turns -= len(steps)
        seen.append(env.reset())
    return seen


def succeeded(env: AnyEnv, agent: Agent, **reset: Any) -> bool:
    env.reset(**reset)
    return cast(bool, rest_of_episode(env, agent)[-1][4]["success"])


# ---- making ---------------------------------------------------------------------------------------------


def test_scenarios_are_registered_and_the_table_names_none_else() -> None:
    assert BASE_IDS
    assert {f"AgentGym/{name}-v0" for name in NEEDS} <= set(BASE_IDS)


@pytest.mark.parametrize("id", ALL_IDS)
def test_gymnasiums_checker_has_no_complaint(id: str, make: Any) -> None:
    check_env(make(id).unwrapped)


@pytest.mark.parametrize("id", ALL_IDS)
def test_the_spec_survives_json(id: str, make: Any) -> None:
    env = make(id)
    assert isinstance(gymnasium.spec(id).entry_point, str)
    again = make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec
    assert again.reset(seed=3) == env.reset(seed=3)


@pytest.mark.parametrize("way", ["import agentgym_envs; id = '{}'", "id = 'agentgym_envs:{}'"])
@base
def test_a_bare_interpreter_makes_it_in_both_ways(id: str, way: str) -> None:
    done = python(f"import gymnasium; {way.format(id)}; gymnasium.make(id).close(); print('made')")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "made\n"


@base
def test_closing_twice_is_fine_and_stepping_after_it_is_not(id: str, make: Any) -> None:
    env = make(id)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(ResetNeeded):
        inner(env).step("")
    make(id).close()  # never reset


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("subset", "Nope", "accepted are"),
        ("split", "nope", "test, all"),
        ("reward", "dense", "step, outcome"),
        ("render_mode", "human", "'ansi'"),
        ("tasks", ["nope_1"], "accepted are"),
        ("tasks", [], "at least one"),
        ("tasks", [1.5], "id (str) or data index (int)"),
        ("tasks", "missing.json", "JSON"),
    ],
)
@base
def test_a_wrong_argument_is_named_with_what_is_accepted(id: str, option: str, value: Any, accepted: str) -> None:
    entry_point = gymnasium.spec(id).entry_point
    assert isinstance(entry_point, str)
    env_class: Any = gymnasium.envs.registration.load_env_creator(entry_point)
    given = value[0] if isinstance(value, list) and value else value
    with pytest.raises(ValueError, match=re.escape(repr(given))) as caught:
        env_class(**{option: value})
    assert accepted in str(caught.value)


# ---- resets ---------------------------------------------------------------------------------------------


@base
def test_a_wrong_reset_option_is_refused_and_the_environment_then_needs_a_reset(id: str, make: Any) -> None:
    env = make(id)
    task = inner(env).tasks[0].id
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"task": "nope_1"}, "no task 'nope_1'"),
        ({"task": 10**9}, "1000000000"),
        ({"task": None}, "not by None"),
        ({"tsk": task}, "unknown reset option 'tsk'; accepted are .* Did you mean 'task'"),
        ({"task": task, "snapshot": b""}, "exclude each other"),
        ({"snapshot": b"{}"}, "no snapshot"),
        ({"snapshot": None}, "no snapshot"),
        ({"init": 3}, "must be a mapping, not 3"),
        ({"init": None}, "must be a mapping, not None"),
        ({"init": needs(id).bad_init or {"x": 1}}, r"options\['init'\]"),
        ({"init": {"goal": {1, 2}}}, "JSON values only"),
        ({"horizon": 3}, "HorizonCurriculum"),
        (cast(Any, 5), "options are a mapping .* not 5"),
        (cast(Any, []), "options are a mapping"),
    ]
    good = env.reset(seed=0)
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            env.reset(options=options)
        with pytest.raises(ResetNeeded):
            env.step("")
        assert env.reset(seed=0) == good


@pytest.mark.parametrize("id", ALL_IDS)
def test_a_first_reset_that_failed_leaves_nothing_behind(id: str, make: Any) -> None:
    env, other = make(id), make(id)
    with pytest.raises(ValueError, match="no task 'nope_1'"):
        env.reset(options={"task": "nope_1"})
    with pytest.raises(ResetNeeded):
        env.step("")
    assert env.reset(seed=0) == other.reset(seed=0)
    assert rest_of_episode(env, mixed, 3) == rest_of_episode(other, mixed, 3)


@base
def test_steps_before_a_reset_and_after_the_end_are_refused(id: str, make: Any) -> None:
    env = make(id)
    for some in (env, env.unwrapped):
        with pytest.raises(ResetNeeded):
            some.step("")
    env.reset(seed=0)
    rest_of_episode(env, oracle)
    for _ in range(2):
        with pytest.raises(ResetNeeded):
            env.step("")
    _, info = env.reset()
    assert info["turn"] == 0


@base
def test_episode_k_depends_on_the_seed_and_k_only(id: str, make: Any) -> None:
    env, other = make(id), make(id)
    expected = [env.reset(seed=5), *(env.reset() for _ in range(3))]
    assert len({repr(start) for start in expected}) > 1
    transcript(other, 9)
    found = []
    for number in range(4):
        found.append(other.reset(seed=5) if number == 0 else other.reset())
        rest_of_episode(other, mixed, turns=2 + number)
        # Another task in between would use up an episode; another environment does not.
        env.reset(seed=number)
    assert found == expected


@base
def test_a_task_is_chosen_by_id_and_repeats_exactly(id: str, make: Any) -> None:
    env = make(id)
    task = inner(env).tasks[-1]
    first = env.reset(seed=7, options={"task": task.id})
    assert first[1]["task"] == task.id
    steps = rest_of_episode(env, mixed, 10)
    assert env.reset(seed=7, options={"task": task.id}) == first
    assert rest_of_episode(env, mixed, 10) == steps
    # A chosen task is an episode of its seed like any other.
    second = env.reset()
    env.reset(seed=7)
    assert env.reset() == second
    if task.source == "real":
        assert env.reset(seed=7, options={"task": task.index}) == first


@base
def test_explicit_tasks_and_item_id_files_are_the_only_ones_chosen(id: str, make: Any, tmp_path: Path) -> None:
    chosen = [task.id for task in inner(make(id)).tasks[:3]]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"item_id": name} for name in chosen]))
    for tasks in (chosen, str(path), path):
        env = make(id, tasks=tasks)
        assert {env.reset(seed=seed)[1]["task"] for seed in range(4 * needs(id).few)} == set(chosen)


@base
def test_splits_are_disjoint_and_hold_every_solvable_task(id: str, make: Any) -> None:
    table = inner(make(id)).task_table()
    splits = [table.select(None, split) for split in needs(id).splits]
    assert all(splits)
    everything = {task for task in table if task.solvable and task.split != REPEAT}
    assert set().union(*splits) == set(table.select(None, "all")) == everything
    assert sum(map(len, splits)) == len(everything)


@base
def test_init_starts_a_programmed_episode(id: str, make: Any) -> None:
    env = make(id)
    init = needs(id).init
    if init is None:
        with pytest.raises(ValueError, match=r"options\['init'\]"):
            env.reset(options={"init": {}})
        return
    start = env.reset(seed=1, options={"init": init})
    assert start[1]["source"] == "custom"
    assert env.reset(seed=1, options={"init": init}) == start
    assert rest_of_episode(env, oracle)[-1][4]["success"]


@base
def test_an_episode_keeps_its_init_whatever_becomes_of_the_callers(id: str, make: Any) -> None:
    env = make(id)
    init = needs(id).init
    if init is None:
        return
    given = copy.deepcopy(dict(init))
    start = env.reset(seed=1, options={"init": given})
    for value in given.values():
        if isinstance(value, dict | list):
            value.clear()
    given.clear()
    assert restore(make(id), snapshot(env))[0] == start[0]


# ---- determinism ----------------------------------------------------------------------------------------


def print_transcripts() -> None:
    """Print a transcript of each scenario as JSON; run in other processes."""
    found = {}
    for id in RUNNING_IDS:
        env = make_one(id)
        if os.environ.get("OTHER_EPISODES_FIRST"):
            transcript(env, 11)
        found[id] = transcript(env, 4)
        env.close()
    print(json.dumps(found))


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@functools.cache
def transcripts_of_another_process(**variables: str) -> dict[str, Any]:
    done = python("from tests.test_contract import print_transcripts as p; p()", **variables)
    assert done.returncode == 0, done.stderr
    return cast(dict[str, Any], json.loads(done.stdout))


@pytest.mark.parametrize(
    "variables",
    [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "OTHER_EPISODES_FIRST": "yes"}],
    ids=["fresh", "after-others"],
)
@base
def test_transcripts_are_equal_in_every_process(id: str, variables: dict[str, str], make: Any) -> None:
    here = json.loads(json.dumps(transcript(make(id), 4)))
    assert transcripts_of_another_process(**variables)[id] == here


@base
def test_no_global_random_state_is_touched_and_nothing_is_printed(id: str, make: Any, capfd: Any) -> None:
    state, numpy_state = random.getstate(), np.random.get_state()
    env = make(id)
    transcript(env, 0)
    for text in JUNK:
        env.step(text)
    assert random.getstate() == state
    assert repr(np.random.get_state()) == repr(numpy_state)
    assert tuple(capfd.readouterr()) == ("", "")


# ---- what is returned -----------------------------------------------------------------------------------


@base
def test_infos_are_fresh_plain_and_of_one_type_per_key(id: str, make: Any) -> None:
    env = make(id)
    types: dict[str, type] = {}
    always = {"task", "subset", "source", "score", "success", "valid_action", "turn"}
    previous: dict[str, Any] = {}
    for seed in range(needs(id).few):
        results = [env.reset(seed=seed)]
        assert {"goal", "instruction"} <= set(results[0][1])
        for agent in (mixed, oracle):
            for turn in range(100):
                if "end" in results[-1][-1]:
                    break
                action = JUNK[turn] if agent is mixed and turn < len(JUNK) else agent(env, turn)
                results.append(env.step(action))
                if agent is mixed and turn > 15:
                    break
        for result in results:
            info = result[-1]
            assert info is not previous
            assert always <= set(info)
            assert type(result[0]) is str
            assert env.observation_space.contains(result[0])
            for key, value in info.items():
                assert type(value) in (str, int, float, bool), key
                assert types.setdefault(key, type(value)) is type(value), key
            previous = info
        for _, reward, terminated, truncated, info in results[1:]:
            assert type(reward) is float
            assert type(terminated) is type(truncated) is bool
            assert 0.0 <= info["score"] <= 1.0
            assert ("end" in info) == (terminated or truncated)


@base
def test_what_a_caller_does_to_an_info_has_no_effect(id: str, make: Any) -> None:
    env, other = make(id), make(id)
    for some in (env, other):
        some.reset(seed=0)[1].clear() if some is env else some.reset(seed=0)
    for turn in range(3):
        result, expected = env.step(mixed(env, turn)), other.step(mixed(other, turn))
        assert result == expected
        result[-1].clear()
        if result[2]:
            break


@base
def test_odd_actions_are_answered_and_change_nothing(id: str, make: Any) -> None:
    env = make(id)
    keys = env.reset(seed=2)[1].keys() - {"goal", "instruction"}
    action = oracle(env, 0)
    for count, text in enumerate((*JUNK, RefusedAction("I wonder", "Write one action.")), start=1):
        observation, _, *ended, info = env.step(text)
        assert (info["valid_action"], info["turn"], *ended) == (False, count, False, False)
        assert observation
        assert info.keys() == keys
        assert env.observation_space.contains(observation)
        assert oracle(env, 0) == action
    assert observation == "Write one action."
    assert env.step(RefusedAction("", "Not \ud800 this."))[0] == "Not \ufffd this."
    with pytest.raises(ValueError, match="an action is a string, not 3"):
        env.step(3)
    twin = fork(env)
    assert env.step(np.str_(f" {action}\n")) == twin.step(action)
    assert env.unwrapped.snapshot()
    twin.close()


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 8])
@both_rewards
@base
def test_rewards_add_up_to_the_score_under_any_cut(id: str, reward: str, cut: int, make: Any) -> None:
    env = HorizonCurriculum(make(id, reward=reward), cut)
    for seed in range(needs(id).few):
        env.reset(seed=seed)
        steps = rest_of_episode(env, mixed if seed % 2 else oracle)
        assert len(steps) <= cut
        assert sum(step[1] for step in steps) == pytest.approx(steps[-1][4]["score"], abs=1e-9)
        if reward == "outcome":
            assert not any(step[1] for step in steps[:-1])


@both_rewards
@base
def test_rewards_add_up_to_the_score_at_the_registered_limit(id: str, reward: str, make: Any) -> None:
    env = make(id, reward=reward)
    env.reset(seed=0)
    steps = rest_of_episode(env, lambda env, turn: oracle(env, turn) if turn < 2 else "")
    assert sum(step[1] for step in steps) == pytest.approx(steps[-1][4]["score"], abs=1e-9)


@base
def test_rendering_shows_the_last_turn(id: str, make: Any) -> None:
    env = make(id, render_mode="ansi")
    start, _ = env.reset(seed=0)
    assert env.render() == start
    action = oracle(env, 0)
    observation = env.step(action)[0]
    assert action in env.render()
    assert observation in env.render()


# ---- agents ---------------------------------------------------------------------------------------------


@base
def test_the_oracle_solves_and_a_random_agent_does_much_less(id: str, make: Any, record_property: Any) -> None:
    env = HorizonCurriculum(make(id), 20)
    rng = random.Random("agent")

    def at_random(env: AnyEnv, turn: int) -> str:
        choices = listed(env)
        return choices[int(rng.random() * len(choices))]

    solved = lucky = 0
    seeds = needs(id).seeds
    for seed in range(seeds):
        env.reset(seed=seed, options={"horizon": 1_000})
        end = rest_of_episode(env, oracle)[-1]
        solved += end[2] and end[4]["end"] in ("success", "answer") and end[4]["score"] == 1.0
        lucky += succeeded(env, at_random, seed=seed)
    record_property(f"{id}: successes of a random agent in {seeds} episodes of 20 turns", lucky)
    print(f"{id}: oracle {solved}/{seeds}, random agent {lucky}/{seeds} in 20 turns")
    assert solved == seeds
    assert lucky <= 0.7 * seeds


@base
def test_an_agent_that_does_nothing_never_succeeds(id: str, make: Any) -> None:
    env = make(id)
    for seed in range(needs(id).few):
        for text in ("", needs(id).idle):
            assert not succeeded(env, lambda env, turn, text=text: text, seed=seed)  # type: ignore[misc]


@base
def test_listed_actions_are_accepted_and_the_oracles_is_among_them(id: str, make: Any) -> None:
    env, trial = make(id), make(id)
    rng = random.Random("listed")
    try:
        env.reset(seed=0)
        inner(env).available_actions()
    except NotImplementedError:
        return  # a scenario whose actions cannot be listed
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(50):
            actions, best = inner(env).available_actions(), oracle(env, 0)
            assert best in actions
            assert len(actions) == len(set(actions))
            saved = snapshot(env)
            for action in rng.sample(actions, min(len(actions), needs(id).listed)):
                restore(trial, saved)
                assert trial.step(action)[4]["valid_action"], action
            if env.step(best)[2]:
                break
        else:
            raise AssertionError("the oracle takes more than 50 turns")


# ---- snapshots ------------------------------------------------------------------------------------------

STACKS: dict[str, Callable[[AnyEnv], AnyEnv]] = {
    "bare": lambda env: env,
    "wrapped": lambda env: HorizonCurriculum(ActionParser(env), 6, count_episodes=True),
}


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("last", ["", "nonsense\nin two lines"], ids=["mid-episode", "after-a-refused-action"])
@base
def test_forks_and_restores_go_on_as_the_original(id: str, stack: str, last: str, make: Any) -> None:
    wrap = STACKS[stack]
    env, other = wrap(make(id)), wrap(make(id))
    env.reset(seed=6)
    env.reset()
    env.step(oracle(env, 0))
    if last:
        env.step(last)
    data = snapshot(env)
    twin = fork(env)
    restore(other, data)

    def future(some: AnyEnv) -> list[Any]:
        return [rest_of_episode(some, mixed, 6), some.reset(), rest_of_episode(some, oracle, 6), some.reset()]

    ahead = future(env)
    assert future(twin) == ahead
    assert future(other) == ahead
    restore(env, data)
    assert future(env) == ahead
    twin.close()


@both_rewards
@base
def test_an_episode_starts_from_a_snapshot(id: str, reward: str, make: Any) -> None:
    env, other = (
        HorizonCurriculum(make(id, reward=reward), 50),
        HorizonCurriculum(make(id, reward=reward), 50),
    )
    env.reset(seed=1)
    observation, *_, before = env.step(oracle(env, 0))
    saved = inner(env).snapshot()
    for _ in range(2):
        start, info = other.reset(seed=8, options={"snapshot": saved})
        assert start == observation
        assert (info["turn"], info["score"], info["task"]) == (0, before["score"], before["task"])
        assert info["goal"]
        steps = rest_of_episode(other, oracle)
        assert steps[-1][4]["success"]
        assert sum(step[1] for step in steps) == pytest.approx(steps[-1][4]["score"], abs=1e-9)
    rest_of_episode(env, oracle)
    with pytest.raises(ValueError, match="has ended"):
        other.reset(options={"snapshot": inner(env).snapshot()})


# ---- vectors --------------------------------------------------------------------------------------------


def vector_transcript(id: str, mode: AutoresetMode, turns: int = 25) -> list[list[Any]]:
    """What each of two environments in a SyncVectorEnv returns: observation, reward, flags and score."""
    vec = SyncVectorEnv([lambda: make_one(id)] * 2, autoreset_mode=mode)
    observations, infos = vec.reset(seed=40)
    seen: list[list[Any]] = [[(text,)] for text in observations]
    for turn in range(turns):
        observations, rewards, terminated, truncated, infos = vec.step([oracle(env, turn) for env in vec.envs])
        done = terminated | truncated
        for i in range(2):
            result = (observations[i], float(rewards[i]), bool(terminated[i]), bool(truncated[i]))
            last = infos["final_obs"][i] if mode is AutoresetMode.SAME_STEP and done[i] else None
            seen[i].append((*result, float(infos["score"][i]), last))
        if mode is AutoresetMode.DISABLED and done.any():
            observations, infos = vec.reset(options={"reset_mask": done})
            for i in np.flatnonzero(done).tolist():
                seen[i].append((observations[i],))
    vec.close()
    return seen


def single_transcript(id: str, seed: int, mode: AutoresetMode, turns: int = 25) -> list[Any]:
    """The same from an environment of its own."""
    env = make_one(id)
    observation, info = env.reset(seed=seed)
    seen: list[Any] = [(observation,)]
    done = False
    for turn in range(turns):
        if mode is AutoresetMode.NEXT_STEP and done:
            observation, info = env.reset()
            seen.append((observation, 0.0, False, False, info["score"], None))
            done = False
            continue
        observation, reward, terminated, truncated, info = env.step(oracle(env, turn))
        done = terminated or truncated
        last = None
        if mode is AutoresetMode.SAME_STEP and done:
            last = observation
            observation, info = env.reset()
        seen.append((observation, reward, terminated, truncated, info["score"], last))
        if mode is AutoresetMode.DISABLED and done:
            seen.append((env.reset()[0],))
    env.close()
    return seen


@pytest.mark.parametrize("mode", list(AutoresetMode))
@base
def test_vector_environments_return_what_single_ones_do(id: str, mode: AutoresetMode) -> None:
    seen = vector_transcript(id, mode)
    assert any(len(step) > 2 and step[2] for step in seen[0])
    assert seen == [single_transcript(id, 40 + i, mode) for i in range(2)]


@base
def test_shared_memory_is_refused_and_without_it_processes_agree(id: str) -> None:
    """Gymnasium's shared memory returns a constant for its own Text spaces; ours it must not take."""
    make_both = [lambda: make_one(id)] * 2
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv(make_both)
    gc.collect()
    vec = AsyncVectorEnv(make_both, shared_memory=False)
    sync = SyncVectorEnv(make_both)
    assert vec.reset(seed=40)[0] == sync.reset(seed=40)[0]
    for turn in range(12):
        actions = [oracle(env, turn) for env in sync.envs]
        found, expected = vec.step(actions), sync.step(actions)
        assert found[0] == expected[0]
        assert all(np.array_equal(a, b) for a, b in zip(found[1:4], expected[1:4], strict=True))
        assert found[4]["task"].tolist() == expected[4]["task"].tolist()
    vec.close()
    sync.close()


# ---- subsets --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", SUBSET_IDS)
def test_a_subset_has_its_own_tasks_in_every_split_and_the_oracle_solves_them(id: str, make: Any) -> None:
    subset = id.removesuffix("-v0").rpartition("-")[2]
    for split in ("train", "test", "all"):
        env = make(id, split=split)
        assert {task.subset for task in inner(env).tasks} == {subset}
        assert {task.split for task in inner(env).tasks} <= ({split} if split != "all" else set(needs(id).splits))
        if split == "all" or not needs(id).keep_open:
            assert succeeded(env, oracle, seed=0)
        assert env.reset(seed=0)[1]["subset"] == subset


@base
def test_every_subset_has_an_id(id: str, make: Any) -> None:
    subsets = {task.subset for task in inner(make(id)).task_table().select()}
    stem = id.removesuffix("-v0")
    assert {f"{stem}-{subset}-v0" for subset in subsets} == {name for name in SUBSET_IDS if name.startswith(f"{stem}-")}
