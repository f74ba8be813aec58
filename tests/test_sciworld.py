"""The SciWorld environment: tasks, actions, menus, endings, oracle, determinism."""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs.sciworld import grammar, routes, simulator, tasks
from agentgym_envs.sciworld.classfile import with_hash_code
from agentgym_envs.sciworld.env import SciWorldEnv
from agentgym_envs.sciworld.oracle import solution
from agentgym_envs.sciworld.packages import simulator_jar, things_with_hash_code
from agentgym_envs.verbs import grammar_table, template

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "scenarios" / "sciworld.md"


@pytest.fixture(scope="module")
def env() -> Iterator[SciWorldEnv]:
    made = make(split="all")
    yield made
    made.close()


def make(**options: Any) -> SciWorldEnv:
    return cast(SciWorldEnv, gymnasium.make("AgentGym/SciWorld-v0", **options).unwrapped)


def start(env: SciWorldEnv, name: str, variation: int, actions: Sequence[str] = ()) -> tuple[str, dict[str, Any]]:
    """Begin a variation of one of the simulator's tasks."""
    init = {"task": tasks.index_of(name, variation), "actions": list(actions)}
    return env.reset(seed=0, options={"init": init})


def solve(env: SciWorldEnv) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
    """Let the oracle play on."""
    steps: list[Any] = []
    while (action := env.oracle_action()) is not None:
        steps.append(env.step(action))
    return steps


# ---- tasks ---------------------------------------------------------------------------------------------


def test_the_index_is_agentgyms_and_goes_on_with_what_it_leaves_out(env: SciWorldEnv) -> None:
    table = env.task_table()
    assert len(table) == 7_207
    assert [task.index for task in table] == list(range(7_207))
    left_out = [task.index for task in table if task.subset in tasks.LEFT_OUT_BY_AGENTGYM]
    assert left_out == list(range(4_639, 7_207))
    assert [tasks.name_and_variation(table.find(index)) for index in (0, 29, 30, 4_638, 4_639)] == [
        ("boil", 0),
        ("boil", 29),
        ("melt", 0),
        ("identify-life-stages-2", 9),
        ("grow-plant", 0),
    ]
    for family in tasks.FAMILIES:
        index = tasks.index_of(family.name, family.variations - 1)
        assert tasks.name_and_variation(table.find(index)) == (family.name, family.variations - 1)
    assert {task.subset for task in env.tasks}.isdisjoint(tasks.LEFT_OUT_BY_AGENTGYM)
    with pytest.raises(ValueError, match="the variations 0 to 29, not 30"):
        tasks.index_of("boil", 30)
    with pytest.raises(ValueError, match="no task 'bake'; accepted are boil"):
        tasks.index_of("bake", 0)


def test_variations_and_splits_are_the_simulators_own(env: SciWorldEnv) -> None:
    """Asked with the package's own names, for every task."""
    package = json.loads(simulator_jar().with_name("tasks.json").read_text())
    names = {family.number: family.name for family in tasks.FAMILIES}
    assert {task["task_id"]: task["task_name"] for task in package} == names
    start(env, "boil", 0)
    simulator = env._world
    java, server = simulator._connection, simulator._server
    for family in tasks.FAMILIES:
        java.call(server, "taskStr_$eq", family.name)
        assert java.call(server, "getTaskMaxVariations", family.name) == family.variations
        for split, method in (("train", "Train"), ("dev", "Dev"), ("test", "Test")):
            listed = java.call(java.call(server, f"getVariations{method}"), "toString")
            ours = [
                tasks.name_and_variation(task)[1]
                for task in env.task_table().select(family.subset, split)
                if tasks.name_and_variation(task)[0] == family.name
            ]
            unsolved = tasks.UNSOLVED.get(family.name, ())
            assert [number for number in json.loads(listed) if number not in unsolved] == ours, (family.name, split)


def test_a_task_and_prefix_actions_start_an_episode_and_wrong_ones_are_refused(env: SciWorldEnv) -> None:
    observation, info = start(env, "boil", 3, ["open door to kitchen", "go to kitchen"])
    assert info["task_name"] == "boil"
    assert info["variation"] == 3
    assert info["source"] == "custom"
    assert info["turn"] == 0
    assert info["goal"] in observation
    assert "This room is called the" in observation
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "it needs task"),
        ({"task": 0, "variation": 2}, "it needs task and may have actions"),
        ({"task": 10**6}, "no task with data index 1000000"),
        ({"task": 0, "actions": "look around"}, "a list of actions"),
        ({"task": 0, "actions": ["x" * 9_000]}, "action 1 of .* is refused: The action has 9000 characters"),
        ({"task": 0, "actions": ["look \ud800"]}, "action 1 of .* is refused: No known action"),
        ({"task": 0, "actions": ["dance"]}, "action 1 of .* is refused: No known action"),
        ({"task": 0, "actions": ["look around", "focus on agent"]}, "action 2 of .* ends the episode"),
    ]
    for init, message in wrong:
        with pytest.raises(ValueError, match=message):
            env.reset(options={"init": init})
        with pytest.raises(ResetNeeded):
            env.step("look around")


# ---- actions -------------------------------------------------------------------------------------------


def test_the_documented_grammar_is_the_verbs() -> None:
    assert grammar_table(grammar.VERBS) in DOCS.read_text(encoding="utf-8")


def test_verbs_are_the_simulators_actions(env: SciWorldEnv) -> None:
    """All but the one that sets the task back."""
    start(env, "boil", 0)
    simulator = env._world
    listed = simulator._lines(simulator._connection.call(simulator._server, "getPossibleActions"))
    theirs = {action.replace("go OBJ", "go to OBJ").replace("[on OBJ]", "on OBJ") for action in listed}
    theirs = {re.sub("^(pour|dunk) OBJ in ", r"\1 OBJ into ", action) for action in theirs}
    ours = {re.sub(r"<\w+>", "OBJ", template(verb)) for verb in grammar.VERBS}
    assert theirs == {*ours, "reset task"}


@pytest.mark.parametrize("action", ["reset task", "Reset the task.", "resettask", "reset  task", "reset task now"])
def test_the_agent_cannot_set_the_task_back(env: SciWorldEnv, action: str) -> None:
    start(env, "boil", 0)
    env.step("open door to kitchen")
    observation, _, *ended, info = env.step(action)
    assert "cannot be set back" in observation
    assert (info["valid_action"], *ended) == (False, False, False)
    assert "already open" in env.step("open door to kitchen")[0]


@pytest.mark.parametrize("action", ["help", "objects", "dance", "go to", "focus on", "0", "open door to nowhere"])
def test_what_is_no_action_is_answered_with_what_is(env: SciWorldEnv, action: str) -> None:
    start(env, "boil", 0)
    observation, _, *ended, info = env.step(action)
    assert (info["valid_action"], *ended) == (False, False, False)
    assert "Accepted are look around; look at <object>" in observation


def test_case_articles_space_and_a_full_stop_make_no_difference(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    assert env.step("  Open THE  door to the Kitchen. ")[4]["valid_action"]
    assert "already open" in env.step("open door to kitchen")[0]


def test_turns_count_whatever_they_cost_in_the_simulator(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    for turn, action in enumerate(["look around", "inventory", "task", "wait", "nonsense", "open door"], start=1):
        assert env.step(action)[4]["turn"] == turn


def test_an_ambiguous_command_shows_a_menu_and_a_number_chooses(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    observation, *_, info = env.step("open door")
    options = re.findall(r"^(\d+): (.+)$", observation, re.MULTILINE)
    assert [number for number, _ in options] == [str(number) for number in range(len(options))]
    assert len({text for _, text in options}) == len(options) >= 2
    assert info["valid_action"]
    assert env.available_actions()[: len(options)] == [number for number, _ in options]
    observation, *_, info = env.step(str(len(options)))
    assert "the numbers go from 0" in observation
    assert not info["valid_action"]
    assert not env.step("nonsense")[4]["valid_action"]  # changes nothing, so the menu is still there
    number = options[-1][0]
    observation, *_, info = env.step(number)
    assert info["valid_action"]
    assert "open" in observation
    assert not env.step(number)[4]["valid_action"]  # no menu any more


def test_water_that_runs_away_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator keeps each unit of it in the sewer for good; taking it out changes nothing that can be read."""

    def sink_left_on(between_cleanings: int) -> tuple[list[str], set[str], str | None]:
        monkeypatch.setattr(simulator, "_STEPS_BETWEEN_CLEANINGS", between_cleanings)
        with contextlib.closing(make()) as env:
            start(env, "freeze", 6, ["activate sink"])
            texts = [env.step(("look around", "wait1", "look in sink")[turn % 3])[0] for turn in range(250)]
            contents = env.object_tree()["contents"]
            (sewer,) = (place for name, place in contents.items() if name.startswith("sewer-"))
            return texts, set(sewer["contents"]), env.oracle_action()

    kept, all_water, action = sink_left_on(10_000)
    emptied, last_water, same_action = sink_left_on(100)
    assert emptied == kept
    assert same_action == action
    assert len(all_water) > 200
    assert len(last_water) < 60
    assert {name for name in last_water if name.startswith("terminal")} <= all_water


def test_past_actions_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds what it was done to; those that goals may ask for stay, and what an episode says is the same."""
    with contextlib.closing(make(envs_per_jvm=1)) as env:

        def played(between_cleanings: int) -> tuple[list[str], list[str]]:
            monkeypatch.setattr(simulator, "_STEPS_BETWEEN_CLEANINGS", between_cleanings)
            start(env, "freeze", 6)
            texts = [env.step(("wait1", "inventory", "look at agent", "nonsense")[turn % 4])[0] for turn in range(119)]
            world = env._world
            agent = world._connection.call(world._agent, "agent")
            past: str = world._connection.call(world._connection.call(agent, "actionHistory"), "mkString", " ")
            return texts, past.split()

        texts, kept = played(10_000)
        same_texts, shortened = played(40)  # the last time with the last step
        assert same_texts == texts
        assert "null" not in kept
        assert shortened == [name if "LookAt" in name else "null" for name in kept]


def test_a_menu_does_not_keep_its_world_alive() -> None:
    """What describes options of the same text are objects of Java; held in a later episode, they hold their world."""
    with contextlib.closing(make(envs_per_jvm=1)) as env:

        def heap_after(episodes: int) -> float:
            for _ in range(episodes):
                start(env, "find-plant", 1)
                assert "(containing red paint)" in env.step("pick up cup")[0]
            start(env, "find-plant", 1)
            assert env._host is not None
            return env._host.jvm.live_heap_kb()

        before = heap_after(5)
        assert heap_after(20) < before + 2_000  # each world that is kept is hundreds of KB


def test_an_ordinary_command_after_a_menu_is_carried_out(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    assert env.step("open door")[0].startswith("Ambiguous request")
    observation, *_, info = env.step("inventory")
    assert observation.startswith("In your inventory")
    assert info["valid_action"]


def test_options_of_the_same_text_can_be_told_apart(env: SciWorldEnv) -> None:
    """In every room, for every kind of thing that comes more than once."""
    seen = 0
    for variation in range(3):
        start(env, "chemistry-mix-paint-secondary-color", variation)
        for action in (
            "look at cup",
            "pick up wood cup",
            "open door",
            "pour cup into cup",
            "look at paint",
            "look at chair",
        ):
            observation = env.step(action)[0]
            options = re.findall(r"^\d+: (.+)$", observation, re.MULTILINE)
            assert len(set(options)) == len(options), observation
            seen += len(options) > 1
    assert seen


def test_listing_actions_changes_nothing_that_comes_after(env: SciWorldEnv) -> None:
    """The simulator draws random numbers for the list, from the generator that it plays with."""
    name, variation = "grow-plant", 2

    def play(listing: bool) -> list[str]:
        start(env, name, variation)
        seen = []
        for action in [*solution_of(env)[:6], *["wait"] * 2, "open door", "look around"]:
            if listing:
                env._world.valid_actions()
            seen.append(env.step(action)[0])
        return seen

    assert play(True) == play(False)


def solution_of(env: SciWorldEnv) -> tuple[str, ...]:
    assert env._host is not None
    return solution(env._host, env._variation) or ()


def test_listed_actions_are_understood_as_one_action_each(env: SciWorldEnv) -> None:
    """A sample of them, in states that a random agent comes to."""
    rng = random.Random("listed")
    for index in (0, 1_500, 4_200):
        env.reset(seed=0, options={"task": index})
        for _ in range(2):
            listed = env.available_actions()
            assert len(listed) == len(set(listed))
            assert "reset task" not in listed
            ambiguous = []
            for action in rng.sample(listed, 6):
                saved = env.snapshot()
                observation, *_, info = env.step(action)
                assert info["valid_action"], action
                if observation.startswith("Ambiguous"):
                    ambiguous.append(action)
                env.restore(saved)
            assert not ambiguous
            env.step(rng.choice([action for action in listed if not action.startswith("focus")]))


def test_the_simulators_things_are_hashed_by_their_number(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    java = env._world._connection
    agent = java.call(env._world._agent, "agent")
    things = [agent, java.call(java.call(agent, "getContainer"), "get"), java.call(agent, "getInventoryContainer")]
    numbers = [java.call(thing, "uuid") for thing in things]
    assert [java.call(thing, "hashCode") for thing in things] == numbers
    assert len(set(numbers)) == len(things)


def test_a_class_that_is_not_as_expected_is_left_alone() -> None:
    class_file = things_with_hash_code()
    for field, told in (("uuid", "names hashCode already"), ("weight", "uses no field weight")):
        with pytest.raises(ValueError, match=told):
            with_hash_code(class_file, field)


# ---- score and endings ---------------------------------------------------------------------------------


def test_a_wrong_focus_fails_the_task_and_says_why(env: SciWorldEnv) -> None:
    start(env, "boil", 0)
    observation, reward, terminated, truncated, info = env.step("focus on agent")
    assert (terminated, truncated, info["end"], info["success"]) == (True, False, "failure", False)
    assert (info["score"], info["raw_score"]) == (0.0, -100)
    assert reward <= 0.0
    assert "The task has failed: what you focused on does not fit the step" in observation


def test_success_comes_with_the_full_score_only(env: SciWorldEnv) -> None:
    start(env, "find-living-thing", 0)
    steps = solve(env)
    assert [step[4]["success"] for step in steps] == [False] * (len(steps) - 1) + [True]
    scores = [step[4]["score"] for step in steps]
    assert scores == sorted(scores)
    assert scores[-2] < 1.0 == scores[-1]
    assert steps[-1][4]["raw_score"] == 100
    assert steps[-1][4]["end"] == "success"


def test_the_score_that_a_variation_starts_with_is_paid_with_the_first_step(env: SciWorldEnv) -> None:
    _, info = start(env, "lifespan-longest-lived", 3)
    assert info["score"] == 0.5
    _, reward, *_, info = env.step("look around")
    assert reward == 0.5
    steps = solve(env)
    assert reward + sum(step[1] for step in steps) == pytest.approx(1.0, abs=1e-9)


# ---- oracle --------------------------------------------------------------------------------------------


def test_the_oracles_map_is_the_simulators_and_its_walks_pass_every_place() -> None:
    ways = {frozenset(door) for door in routes.DOORS}
    with contextlib.closing(make(simplifications="teleportAction", split="all")) as env:
        start(env, "boil", 0)
        for place in routes.PLACES:
            env.step(f"teleport to {place}")
            doors = set(re.findall(r"A door to the ([\w ]+) \(", env.look()))
            assert {frozenset((place, other)) for other in doors} == {way for way in ways if place in way}
            walk = [place, *routes.walk_past_everything(place)]
            assert set(walk) == set(routes.PLACES)
            assert {frozenset(pair) for pair in pairwise(walk)} <= ways


@pytest.mark.parametrize("name", ["boil", "power-component", "chemistry-mix", "identify-life-stages-1"])
def test_the_oracle_solves_and_all_its_actions_are_understood(env: SciWorldEnv, name: str) -> None:
    start(env, name, 0)
    steps = solve(env)
    assert steps[-1][4]["success"]
    assert all(step[4]["valid_action"] for step in steps)


def test_the_oracle_helps_an_agent_that_left_the_path_or_says_none(env: SciWorldEnv) -> None:
    start(env, "find-living-thing", 0)
    first = env.oracle_action()
    for action in ("look around", "nonsense", "inventory"):
        env.step(action)
        assert env.oracle_action() == first
    env.step("wait1")
    assert env.oracle_action() == first  # tried out beside
    assert solve(env)[-1][4]["success"]
    assert env.oracle_action() is None
    start(env, "boil", 0)
    there = env.oracle_action()
    assert there is not None
    room = re.findall(r"A door to the ([\w ]+) \(", env.look())[-1]
    env.step(f"open door to {room}")
    env.step(f"go to {room}")
    helped = env.oracle_action()
    assert helped is None or solve(env)[-1][4]["success"]


# ---- what is asked for beside the turns ----------------------------------------------------------------


def test_the_rest_is_there_on_request(env: SciWorldEnv) -> None:
    observation, _ = start(env, "boil", 0)
    assert env.look() in observation
    assert env.inventory().startswith("In your inventory")
    assert "Sequential Subgoals" in env.progress()
    assert env.object_tree()
    assert env.step("look around")[4]["turn"] == 1


# ---- options -------------------------------------------------------------------------------------------


def test_simplifications_are_checked_and_change_the_world() -> None:
    for given, message in (
        ("fly", "has 'fly'; accepted are easy, teleportAction"),
        (["easy", "openDoors"], "'easy' stands alone"),
        ("noElectricalAction", "needs electricity"),
        (5, "simplifications=5 is neither"),
    ):
        with pytest.raises(ValueError, match=message):
            make(simplifications=given)
    with contextlib.closing(make(simplifications="easy", subset="Matter")) as env:
        assert "teleport to <place>" in env.instruction
        env.reset(seed=0)
        assert env.step("teleport to foundry")[4]["valid_action"]
        assert "foundry" in env.look()
    with contextlib.closing(make(simplifications=["openDoors", "noElectricalAction"], subset="Find")) as env:
        assert "connect" not in env.instruction
        assert "(that is open)" in env.reset(seed=0)[0]
        with pytest.raises(ValueError, match="needs electricity"):
            env.reset(options={"task": tasks.index_of("power-component", 0)})


def test_a_snapshot_is_refused_by_an_environment_with_other_simplifications(env: SciWorldEnv) -> None:
    task = {"task": tasks.index_of("boil", 0)}
    with contextlib.closing(make(simplifications="selfWateringFlowerPots")) as watered:
        observation, _ = watered.reset(options=task)
        saved = watered.snapshot()
        assert env.reset(options=task)[0] == observation  # it looks the same, and is another world
        with pytest.raises(ValueError, match=r"are 'selfWateringFlowerPots', but .* are ''"):
            env.restore(saved)
        assert watered.restore(saved)[0] == observation


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("envs_per_jvm", 0),
        ("envs_per_jvm", True),
        ("call_seconds", 0),
        ("call_seconds", float("inf")),
        ("start_seconds", "1"),
        ("start_seconds", True),
    ],
)
def test_wrong_options_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} is .* not {value!r}"):
        make(**{option: value})


# ---- determinism ---------------------------------------------------------------------------------------

# Among them those in which stock runs differ: paints and cups, animals, unknown substances.
PLAYED = (
    ("chemistry-mix-paint-secondary-color", 1),
    ("find-plant", 1),
    ("find-animal", 5),
    ("lifespan-shortest-lived", 2),
    ("measure-melting-point-unknown-substance", 0),
)
TRANSCRIPTS = """
import json, sys
sys.path.insert(0, {root!r})
from tests.test_sciworld import transcripts
print(json.dumps(transcripts({order!r}, interleaved={interleaved!r})))
"""


def transcripts(order: Sequence[int], interleaved: bool, turns: int = 6) -> dict[str, list[Any]]:
    """Play the tasks in some order, one after the other or in turns in one Java process."""
    envs = [make(split="all") for _ in (order if interleaved else [0])]
    seen: dict[str, list[Any]] = {}

    def begin(env: SciWorldEnv, number: int) -> None:
        name, variation = PLAYED[number]
        seen[str(number)] = [env.reset(seed=0, options={"task": tasks.index_of(name, variation)})[0]]

    def turn(env: SciWorldEnv, number: int, count: int) -> None:
        if count < 3:
            action = ("open door", "0", "pick up cup")[count]
        else:
            listed = [action for action in env._world.valid_actions() if not action.startswith("focus")]
            rng = random.Random(f"play {number} {count}")
            action = listed[int(rng.random() * len(listed))]
            seen[str(number)].append(listed)
        seen[str(number)] += [action, env.step(action)[0]]
        if count == turns - 1:
            seen[str(number)].append(env.available_actions())

    if interleaved:
        for env, number in zip(envs, order, strict=True):
            begin(env, number)
        for count in range(turns):
            for env, number in zip(envs, order, strict=True):
                turn(env, number, count)
    else:
        for number in order:
            begin(envs[0], number)
            for count in range(turns):
                turn(envs[0], number, count)
    for env in envs:
        env.close()
    return seen


def test_transcripts_are_equal_in_every_process_alone_and_beside_others() -> None:
    here = transcripts(range(len(PLAYED)), interleaved=True)
    for seed, order in (("1", [4, 2, 0, 1, 3]), ("2", [0, 1])):
        done = subprocess.run(
            [sys.executable, "-c", TRANSCRIPTS.format(root=str(ROOT), order=order, interleaved=False)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        there = json.loads(done.stdout)
        assert there == {str(number): here[str(number)] for number in order}


def test_ten_java_processes_give_one_text() -> None:
    """Of what the package's own way of starting Java orders anew in about one process of six."""
    name, variation = PLAYED[1]
    seen = set()
    for _ in range(10):
        with contextlib.closing(make(split="all", envs_per_jvm=1)) as env:
            observation, _ = env.reset(seed=0, options={"task": tasks.index_of(name, variation)})
            seen.add(
                (observation, *(env.step(action)[0] for action in ("open door", "0", "pick up cup", "look around")))
            )
    assert len(seen) == 1
