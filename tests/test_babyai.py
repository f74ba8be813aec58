"""BabyAI: the text is true, listed actions do what they say, missions are judged as minigrid judges them."""

import json
import random
import re
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs.babyai import grammar, levels, planner, simulator
from agentgym_envs.babyai.env import BabyAIEnv
from agentgym_envs.babyai.grammar import Command
from agentgym_envs.babyai.view import OWN, VIEW, visible_places
from agentgym_envs.verbs import grammar_table

DOCS = Path(__file__).parents[1] / "docs" / "scenarios" / "babyai.md"
ROOMS = ["GoToLocalS8N7", "BossLevel", "KeyCorridorS6R3", "UnlockToUnlock", "OneRoomS20", "PutNextS7N4Carrying"]


@pytest.fixture
def env() -> Iterator[BabyAIEnv]:
    made = cast(BabyAIEnv, gymnasium.make("AgentGym/BabyAI-v0", split="all").unwrapped)
    yield made
    made.close()


def start(env: BabyAIEnv, level: str, seed: int = 0, *actions: str) -> str:
    return env.reset(options={"init": {"level": level, "seed": seed, "actions": list(actions)}})[0]


def wander(env: BabyAIEnv, seed: int, turns: int) -> Iterator[str]:
    """Play actions from the list at random; yield each observation."""
    rng = random.Random(f"wander/{seed}")
    for _ in range(turns):
        actions = env.available_actions()
        text, _, terminated, truncated, info = env.step(actions[int(rng.random() * len(actions))])
        assert info["valid_action"]
        if terminated or truncated:
            return
        if not text.startswith("You can:"):
            yield text


def solve(env: BabyAIEnv, turns: int = 100) -> dict[str, Any]:
    """Let the oracle play on; return the last info."""
    for _ in range(turns):
        action = env.oracle_action()
        assert action is not None
        *_, terminated, truncated, info = env.step(action)
        assert info["valid_action"]
        if terminated or truncated:
            return info
    raise AssertionError(f"not solved in {turns} turns")


# ---- the text ------------------------------------------------------------------------------------------


def told(text: str, line: str) -> str:
    return str(re.findall(rf"^{line}: (.*)\.$", text, re.MULTILINE)[0])


def offset(text: str) -> tuple[int, int]:
    """Steps ahead and to the right that `2 ahead, 1 left` means."""
    ahead = re.search(r"(\d+) ahead", text)
    side = re.search(r"(\d+) (left|right)", text)
    right = 0 if side is None else int(side[1]) * (-1 if side[2] == "left" else 1)
    return int(ahead[1]) if ahead else 0, right


def walls_of(text: str) -> set[tuple[int, int]]:
    cells: set[tuple[int, int]] = set()
    for run in [] if told(text, "Walls") == "none" else told(text, "Walls").split("; "):
        if row := re.fullmatch(r"(\d+) ahead from (.+) to (.+)", run):
            first, last = offset(row[2])[1], offset(row[3])[1]
            cells |= {(int(row[1]), right) for right in range(first, last + 1)}
        elif column := re.fullmatch(r"(.+) from (\d+) to (\d+) ahead", run):
            right = offset(column[1])[1]
            cells |= {(ahead, right) for ahead in range(int(column[2]), int(column[3]) + 1)}
        else:
            cells.add(offset(run))
    return cells


def check_view(env: BabyAIEnv, text: str) -> None:
    """The lines of an observation are all that minigrid's own observation shows, and nothing else."""
    level = env._known.level
    image = level.gen_obs()["image"]
    seen = {(6 - j, i - 3): (i, j) for i in range(VIEW) for j in range(VIEW) if (i, j) != (3, 6)}
    kinds = {at: int(image[i, j, 0]) for at, (i, j) in seen.items()}
    assert walls_of(text) == {at for at, kind in kinds.items() if kind == 2}

    listed: dict[tuple[int, int], str] = {}
    for item in [] if told(text, "In view") == "none" else told(text, "In view").split("; "):
        match = re.fullmatch(r"((\w+) (\w+) \d+(?: \((\w+)\))?) \(([^()]*)\)", item)
        assert match is not None, item
        at = offset(match[5])
        i, j = seen[at]
        kind, color, state = (int(code) for code in image[i, j])
        assert (match[2], match[3]) == (
            {0: "red", 1: "green", 2: "blue", 3: "purple", 4: "yellow", 5: "grey"}[color],
            {4: "door", 5: "key", 6: "ball", 7: "box"}[kind],
        )
        assert match[4] == (["open", "closed", "locked"][state] if kind == 4 else None)
        listed[at] = match[1]
    assert set(listed) == {at for at, kind in kinds.items() if kind > 2}

    ways = re.search(r"^Ahead: (.*)\. Left: (.*)\. Right: (.*)\.$", text, re.MULTILINE)
    assert ways is not None
    for way, (ahead, right), length in zip(ways.groups(), [(1, 0), (0, -1), (0, 1)], [6, 3, 3], strict=True):
        cells = [(ahead * n, right * n) for n in range(1, length + 1)]
        free = next((n for n, at in enumerate(cells) if kinds[at] != 1), length)
        assert int((re.findall(r"free for (\d+)", way) or ["0"])[0]) == free
        if free == length:
            assert way.endswith("as far as you see")
        else:
            end = {0: "out of sight", 2: "a wall"}.get(kinds[cells[free]], listed.get(cells[free], ""))
            assert way.endswith(end)
            assert end

    carried = level.carrying
    assert told(text, "Carrying") == (env._known.names[carried] if carried else "nothing")
    here = level.grid.get(*level.agent_pos)
    assert ("You stand in the doorway of" in text) == (here is not None)


@pytest.mark.parametrize("level", ROOMS)
def test_the_text_says_all_that_is_seen_and_nothing_else(env: BabyAIEnv, level: str) -> None:
    for seed in range(3):
        check_view(env, start(env, level, seed))
        for text in wander(env, seed, 40):
            check_view(env, text)


@pytest.mark.parametrize("level", ROOMS)
def test_a_numbered_object_stays_the_same_object(env: BabyAIEnv, level: str) -> None:
    """Names never move to another object, and what was seen before is still as it was seen."""
    for seed in range(2):
        start(env, level, seed)
        known = env._known
        names: dict[str, Any] = {}
        for text in wander(env, seed, 40):
            for name, thing in names.items():
                assert known.named[name] is thing
            names = dict(known.named)
            assert len(set(map(id, names.values()))) == len(names)
            contents = {cell: thing for cell, thing in enumerate(known.cells) if known.seen[cell]}
            kept = {cell: thing for cell, thing in contents.items() if thing is not None and thing.type != "wall"}
            assert known.things == kept
            listed = re.findall(r"\w+ \w+ \d+(?= \(| ?;|\.)", text.partition("In view: ")[2].partition("Walls")[0])
            remembered = re.findall(r"\w+ \w+ \d+", text.partition("Out of view: ")[2])
            own = {known.names[kept[known.cell]]} if known.cell in kept else set()
            assert {*listed, *remembered, *own} == {known.names[thing] for thing in kept.values()}


def test_visibility_is_minigrids(env: BabyAIEnv) -> None:
    def lets_through(k: int) -> bool:
        thing = env._known.cells[env._known.window(env._known.pose)[k]]
        return k == OWN or planner.passable(thing) or thing.type not in ("wall", "door")

    for level in ROOMS:
        start(env, level, 1)
        for _ in wander(env, 1, 30):
            image = env._known.level.gen_obs()["image"][:, :, 0].ravel()
            assert set(visible_places(lets_through)) - {OWN} == set(np.flatnonzero(image).tolist()) - {OWN}


def test_what_is_carried_from_the_start_is_told(env: BabyAIEnv) -> None:
    text = start(env, "PutNextS7N4Carrying")
    assert "Carrying: yellow box 1." in text
    assert text.startswith("Mission: put the yellow box next to ")
    assert "drop" in env.available_actions()


# ---- actions -------------------------------------------------------------------------------------------


def every_action(env: BabyAIEnv) -> list[str]:
    """All actions that could be meant, possible or not."""
    names = [*env._known.named, "red ball 9"]
    planned = [grammar.with_object(verb, name) for verb in grammar.PLANNED for name in names]
    return [*(verb() for verb in grammar.PRIMITIVES), *planned]


@pytest.mark.parametrize("level", ["BossLevel", "UnlockPickupDist", "KeyInBox", "GoToDoor", "MiniBossLevel"])
def test_what_is_listed_happens_and_what_is_not_listed_is_refused(env: BabyAIEnv, level: str) -> None:
    trial = BabyAIEnv(split="all")
    for seed in range(2):
        start(env, level, seed)
        for count, _ in enumerate(wander(env, seed, 24)):
            if count % 6:
                continue
            saved, listed = env.snapshot(), env.available_actions()
            assert len(set(listed)) == len(listed)
            for action in [*listed, *set(every_action(env)) - set(listed)]:
                trial.restore(saved)
                known = trial._known
                front, carried = known.things.get(known.front), known.level.carrying
                steps = known.level.step_count
                text, _, terminated, truncated, info = trial.step(action)
                assert info["valid_action"] == (action in listed), (action, text)
                if not info["valid_action"]:
                    assert text.startswith(f"Could not execute {action}: ")
                    assert known.level.step_count == steps
                elif not terminated and not truncated:
                    check_effect(trial, action, text, front, carried)


def check_effect(env: BabyAIEnv, action: str, text: str, front: Any, carried: Any) -> None:
    known = env._known
    command = grammar.parse(action)
    thing: Any = known.named.get(command.name)
    if command.verb is grammar.go_to:
        assert known.things[known.front] is thing
    elif command.verb is grammar.pick_up_object:
        assert known.level.carrying is thing
    elif command.verb is grammar.pick_up:
        assert known.level.carrying is front
    elif command.verb is grammar.drop:
        assert known.things[known.front] is carried
    elif command.verb in (grammar.go_through, grammar.toggle_and_go_through):
        assert thing.is_open
        behind = known.cell - known.steps[known.direction]
        assert known.things[behind if "You stopped" not in text else known.cell] is thing
    elif command.verb is grammar.toggle:
        assert known.things.get(known.front) is (front.contains if front.type == "box" else front)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("", "Accepted are: turn left; turn right; "),
        ("fly", "Could not execute fly. Accepted are: "),
        ("turn left\nturn left", "write one action on one line"),
        ("go to red ball", "there is no red ball that you have seen; you have seen grey box 1, "),
        ("go to red ball 99999999999999999999", "that you have seen"),
        ("go to red ball -1", "there is no red ball -1 that you have seen"),
        ("pick up", "nothing is in the next cell ahead"),
        ("drop", "you carry nothing"),
        ("toggle", "nothing is in the next cell ahead"),
        ("x" * 5_000, "Accepted are: "),
    ],
)
def test_bad_actions_are_answered_and_take_no_step(env: BabyAIEnv, action: str, told: str) -> None:
    start(env, "GoToLocalS8N7", 1)
    text, reward, terminated, truncated, info = env.step(action)
    assert told in text
    assert len(text) < 700
    assert (reward, terminated, truncated, info["valid_action"], info["steps"]) == (0.0, False, False, False, 0)


def test_case_space_and_a_full_stop_make_no_difference() -> None:
    assert grammar.parse("  Go  To RED ball 1.") == Command(grammar.go_to, "red ball 1")
    assert grammar.parse("Turn left.") == Command(grammar.turn_left)


def test_a_planned_action_stops_where_the_world_is_not_as_planned(env: BabyAIEnv) -> None:
    """Behind a closed door the agent knows nothing: an object there ends the walk in the doorway."""
    for seed in range(60):
        start(env, "UnblockPickup", seed)
        known = env._known
        for door in [thing for thing in known.things.values() if thing.type == "door"]:
            action = grammar.with_object(grammar.toggle_and_go_through, known.names[door])
            if action not in env.available_actions():
                continue
            text = env.step(action)[0]
            if "You stopped" in text:
                assert re.search(r"You stopped after \d+ steps?: \w+ \w+ \d+ is in the next cell ahead\.", text)
                assert f"You stand in the doorway of {known.names[door]}." in text
                return
            break
    raise AssertionError("no door was blocked in 60 levels")


# ---- what the public text version gets wrong ------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_open_red_door_is_won_with_the_offered_door_action(env: BabyAIEnv, seed: int) -> None:
    """minigrid ends the episode when the door opens, in the middle of the planned action."""
    start(env, "OpenRedDoor", seed)
    for _ in range(4):
        if "toggle and go through red door 1" in env.available_actions():
            break
        env.step("turn left")
    _, reward, terminated, truncated, info = env.step("toggle and go through red door 1")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["score"], info["success"], info["end"]) == (1.0, True, "success")


def test_a_late_success_is_a_success(env: BabyAIEnv) -> None:
    start(env, "GoToRedBallNoDists", 0)
    for _ in range(50):
        env.step("turn left")
    level = env._known.level
    assert level.step_count / level.max_steps > 0.56
    assert solve(env)["score"] == 1.0


def test_refused_actions_and_looks_add_nothing_to_the_score(env: BabyAIEnv) -> None:
    start(env, "BossLevel", 0)
    for action in ("check available actions", "nonsense", "go to no thing 1") * 3:
        _, reward, _, _, info = env.step(action)
        assert (reward, info["score"]) == (0.0, 0.0)


def test_the_mission_is_untouched(env: BabyAIEnv) -> None:
    words = set()
    for level in levels.NAMES:
        for seed in range(3):
            text, info = env.reset(options={"init": {"level": level, "seed": seed}})
            mission = simulator.make_level(level, seed)[0].mission
            assert info["goal"] == mission
            assert text.splitlines()[0] == f"Mission: {mission}"
            words |= {word for word in (", then ", " after you ", " and ") if word in mission}
    assert words == {", then ", " after you ", " and "}


def test_the_step_limit_truncates_and_pays_nothing(env: BabyAIEnv) -> None:
    text = start(env, "GoToObjS6", 0)
    assert "Step limit: 36" in text
    rewards = []
    for _ in range(36):
        text, reward, terminated, truncated, info = env.step("turn left")
        rewards.append(reward)
        assert info["max_steps"] == 36
        if terminated or truncated:
            break
    assert (info["turn"], terminated, truncated, info["end"], info["success"]) == (
        36,
        False,
        True,
        "simulator_limit",
        False,
    )
    assert "The limit of 36 steps is reached." in text
    assert not any(rewards)
    with pytest.raises(ResetNeeded):
        env.step("turn left")


def test_success_in_the_last_step_is_a_success_not_a_limit(env: BabyAIEnv) -> None:
    start(env, "GoToRedBallNoDists", 0)
    level = env._known.level
    while (action := env.oracle_action()) is not None and not action.startswith("go to"):
        env.step(action)
    steps = len(planner.plan(env._known, grammar.parse(cast(str, action))))
    level.step_count = level.max_steps - steps
    *_, terminated, truncated, info = env.step(cast(str, action))
    assert (terminated, truncated, info["end"]) == (True, False, "success")


def test_key_in_box_is_solved_by_opening_the_box(env: BabyAIEnv) -> None:
    for seed in range(5):
        start(env, "KeyInBox", seed)
        seen = []
        while not env._outcome.end:
            seen.append(cast(str, env.oracle_action()))
            env.step(seen[-1])
        assert env._outcome.success
        assert "toggle" in seen


def test_forward_is_offered_exactly_where_it_moves(env: BabyAIEnv) -> None:
    offered = 0
    for level in ROOMS:
        start(env, level, 2)
        for _ in wander(env, 2, 40):
            ahead = env._known.level.grid.get(*env._known.level.front_pos)
            free = ahead is None or ahead.can_overlap()
            assert ("move forward" in env.available_actions()) == free
            offered += not free
    assert offered


def test_a_wrong_door_in_a_strict_mission_is_a_failure(env: BabyAIEnv) -> None:
    start(env, "OpenRedBlueDoorsDebug", 0)
    for _ in range(4):
        wrong = [a for a in env.available_actions() if a.startswith("toggle and go through blue")]
        if wrong:
            break
        env.step("turn left")
    text, reward, terminated, truncated, info = env.step(wrong[0])
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["score"], info["success"], info["end"]) == (0.0, False, "failure")
    assert "The mission has failed for good." in text


# ---- score ---------------------------------------------------------------------------------------------


def test_reward_time_is_minigrids_own_value() -> None:
    env = BabyAIEnv(split="all", reward="time")
    env.reset(options={"task": 1})
    paid = 0.0
    while not env._outcome.end:
        _, reward, *_, info = env.step(cast(str, env.oracle_action()))
        paid += reward
    assert info["success"]
    level = env._known.level
    assert info["score"] == pytest.approx(1 - 0.9 * level.step_count / level.max_steps)
    assert paid == pytest.approx(info["score"], abs=1e-9)
    with pytest.raises(ValueError, match="'dense'; accepted are step, outcome, time"):
        BabyAIEnv(reward="dense")
    with pytest.raises(ValueError, match="reward is 'time'"):
        BabyAIEnv(split="all").restore(env.snapshot())


# ---- levels and tasks ----------------------------------------------------------------------------------


def test_the_index_is_level_and_seed(env: BabyAIEnv) -> None:
    assert len(levels.NAMES) == 40
    assert levels.level_and_seed(0) == ("GoToRedBallGrey", 0)
    assert levels.level_and_seed(93) == ("OpenDoorLoc", 2)
    for index in range(40):
        _, info = env.reset(options={"task": index})
        assert info["level"] == levels.NAMES[index]
        assert info["task"] == f"babyai_{index}"
        level = gymnasium.make(simulator.registered()[levels.NAMES[index]])
        level.reset(seed=0)
        assert info["goal"] == cast(Any, level.unwrapped).mission
        level.close()
    assert simulator.registered()["GoToObjS6"] == "BabyAI-GoToObjS6-v1"


def test_splits_go_by_seed_and_unsolved_tasks_keep_their_index() -> None:
    table = levels.task_table()
    assert len(table) == 41_000
    assert {task.index // 40 < 25 for task in table.select(split="test")} == {True}
    assert {task.index // 40 < 25 for task in table.select(split="train")} == {False}
    assert set(table.subsets) == {"GoTo", "Open", "Pickup", "PutNext", "Unlock", "Synth"}
    impossible = table.find(levels.task_index("OpenDoorsOrderN4Debug", 0))
    assert not impossible.solvable
    assert impossible not in table.select()


def test_no_training_task_is_a_test_task_again() -> None:
    def generated(level: str, seed: int) -> tuple[Any, ...]:
        made, _ = simulator.make_level(level, seed)
        return made.mission, made.grid.encode().tobytes(), tuple(made.agent_pos), int(made.agent_dir)

    table = levels.task_table()
    train = {task.index for task in table.select(split="train")}
    for level in ("OpenRedDoor", "OpenRedBlueDoorsDebug", "GoToRedBallNoDists"):
        tested = {generated(level, seed) for seed in range(25)}
        repeated = {seed for seed in range(25, 325) if generated(level, seed) in tested}
        assert repeated == {seed for seed in levels.repeats()[level] if seed < 325}
        assert not train & {levels.task_index(level, seed) for seed in levels.repeats()[level]}
    again = table.find(levels.task_index("OpenRedDoor", min(levels.repeats()["OpenRedDoor"])))
    assert again.solvable
    assert again not in table.select()


def test_strict_missions_in_a_sequence_cannot_be_won_and_are_left_out() -> None:
    """minigrid judges the second part by the toggle that completes the first, and finds the wrong door."""
    for seed in range(100):
        mission = simulator.make_level("OpenDoorsOrderN4Debug", seed)[0].instrs
        in_sequence = not isinstance(mission, simulator.verifier.ActionInstr)
        assert in_sequence == (seed in levels.unsolved()["OpenDoorsOrderN4Debug"])


def test_a_wrong_task_is_named(env: BabyAIEnv) -> None:
    for task in (-1, 41_000):
        with pytest.raises(ValueError, match=re.escape(f"data index {task}; accepted are 0 to 40999")):
            env.reset(options={"task": task})


@pytest.mark.parametrize("id", sorted(simulator.registered().values()))
def test_every_level_of_minigrid_can_be_started(env: BabyAIEnv, id: str) -> None:
    text, info = env.reset(options={"init": {"level": id, "seed": 1}})
    assert info["source"] == "custom"
    check_view(env, text)
    assert env.oracle_action() in env.available_actions()
    saved = env.snapshot()
    assert BabyAIEnv(split="all").restore(saved)[0] == text


@pytest.mark.parametrize(
    ("init", "told"),
    [
        ({}, "it needs level"),
        ({"level": "GoTo", "sead": 1}, "may have seed, actions"),
        ({"level": "GoToRedBal"}, "Did you mean 'GoToRedBall'?"),
        ({"level": 3}, "there is no level 3"),
        ({"level": "MiniGrid-Empty-5x5-v0"}, "there is no level"),
        ({"level": "BabyAI-GoTo-v99"}, "there is no level 'BabyAI-GoTo-v99'"),
        ({"level": "x" * 100_000}, "x..."),
        ({"level": "GoTo", "seed": -1}, "a whole number from 0 to 2147483647, not -1"),
        ({"level": "GoTo", "seed": True}, "not True"),
        ({"level": "GoTo", "actions": "turn left"}, "actions is a list"),
        ({"level": "GoTo", "actions": [1]}, "actions is a list"),
        ({"level": "GoTo", "actions": ["turn left", "fly"]}, "action 2 of options['init'] is refused"),
    ],
)
def test_init_is_checked(env: BabyAIEnv, init: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as error:
        env.reset(options={"init": init})
    assert len(str(error.value)) < 3_000
    with pytest.raises(ResetNeeded):
        env.step("turn left")


def test_init_actions_come_before_the_episode(env: BabyAIEnv) -> None:
    start(env, "BossLevel", 4)
    expected = env.step("turn right")[0].partition("\n")[2]
    text = start(env, "BossLevel", 4, "turn right")
    assert text.endswith(expected)
    *_, info = env.step("turn left")
    assert (info["turn"], info["steps"]) == (1, 2)
    assert start(env, "BossLevel", 4, " turn right. ") == text  # cleaned as those of step
    with pytest.raises(ValueError, match=r"action 1 of options\['init'\] is refused") as error:
        start(env, "BossLevel", 4, "\ud800")
    assert str(error.value).encode()


# ---- oracle --------------------------------------------------------------------------------------------


def test_oracle_solves_every_level_and_takes_few_turns(env: BabyAIEnv) -> None:
    ratios, planned = [], []
    primitives = {verb() for verb in grammar.PRIMITIVES}
    for index in [level + 40 * seed for level in range(40) for seed in (25, 49)]:
        if not env.task_table().find(index).solvable:
            continue
        env.reset(options={"task": index})
        actions: list[str] = []
        while not env._outcome.end:
            action = env.oracle_action()
            assert action in env.available_actions()
            actions.append(action)
            env.step(actions[-1])
        assert env._outcome.success, index
        planned.append(not primitives.issuperset(actions))
        if (steps := env.bot_plan()) is not None:
            ratios.append(len(actions) / len(steps))
    assert statistics.mean(planned) >= 0.9
    assert statistics.median(ratios) <= 0.5


def test_oracle_goes_on_from_any_state(env: BabyAIEnv) -> None:
    """After some random turns, without opened boxes, which can make a mission impossible."""
    rng = random.Random("mid-states")
    for index in range(0, 40):
        if not env.task_table().find(index).solvable or "Debug" in levels.NAMES[index]:
            continue
        env.reset(options={"task": index})
        for _ in range(8):
            front = env._known.things.get(env._known.front)
            actions = [
                action
                for action in env.available_actions()
                if action != "toggle" or (front is not None and front.type == "door")
            ]
            if env.step(actions[int(rng.random() * len(actions))])[2]:
                break
        else:
            assert solve(env)["success"], index


def test_the_oracle_puts_down_a_box_to_open_it(env: BabyAIEnv) -> None:
    """Of `KeyInBox`, where the only key is in the box."""
    start(env, "KeyInBox", 0)
    for action in ("turn left", "turn left", "pick up yellow box 1"):
        assert env.step(action)[-1]["valid_action"]
    assert solve(env)["success"]


def test_bot_plan_is_carried_out_in_the_text(env: BabyAIEnv) -> None:
    for index in (1, 8, 16, 24, 38):
        env.reset(options={"task": index})
        steps = env.bot_plan()
        assert steps is not None
        for action in steps:
            *_, info = env.step(action)
        assert info["success"]
        assert info["steps"] == len(steps)


def test_the_bot_that_searches_without_end_is_stopped(env: BabyAIEnv) -> None:
    start(env, "GoToImpUnlock", 6)  # the key is behind the door that it opens
    assert env.bot_plan() is None


def test_an_opened_box_that_the_mission_wants_leaves_no_solution(env: BabyAIEnv) -> None:
    for seed in range(100):
        mission = env.reset(options={"init": {"level": "PickupDist", "seed": seed}})[1]["goal"]
        boxes = [name for name in env._known.named if " box " in name]
        if re.fullmatch(r"pick up the \w+ box", str(mission)) and boxes:
            wanted = next((name for name in boxes if name.startswith(str(mission).split()[3])), None)
            action = f"go to {wanted}"
            if wanted and action in env.available_actions():
                env.step(action)
                assert "opened" in env.step("toggle")[0]
                assert wanted not in " ".join(env.available_actions())
                for _ in range(30):  # it looks for another one
                    if (following := env.oracle_action()) is None:
                        return
                    assert not env.step(following)[4]["success"]
                raise AssertionError("the oracle goes on for ever")
    raise AssertionError("no such level was found")


def test_before_a_reset_there_is_nothing(env: BabyAIEnv) -> None:
    for ask in (env.oracle_action, env.available_actions, env.bot_plan):
        with pytest.raises(ResetNeeded):
            ask()


# ---- rendering, output, installation -------------------------------------------------------------------


def test_rgb_array_shows_the_grid() -> None:
    env = BabyAIEnv(split="all", render_mode="rgb_array")
    env.reset(options={"task": 0})
    before = env.render()
    assert before.shape == (8 * 32, 8 * 32, 3)
    assert before.dtype == np.uint8
    env.step("turn left")
    assert (env.render() != before).any()


def test_nothing_is_printed_and_other_threads_prints_are_kept(
    env: BabyAIEnv, capfd: pytest.CaptureFixture[str]
) -> None:
    done = threading.Event()

    def speak() -> None:
        for _ in range(200):
            print("kept", flush=True)
            done.wait(0.001)

    thread = threading.Thread(target=speak)
    thread.start()
    for seed in range(30):
        start(env, "GoToRedBlueBall", seed)  # rejects samples often
    thread.join()
    assert capfd.readouterr() == ("kept\n" * 200, "")


def test_without_minigrid_the_command_that_installs_it_is_named() -> None:
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'minigrid':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import gymnasium, agentgym_envs\n"
        "gymnasium.make('AgentGym/TextCraft-v0')\n"
        "gymnasium.make('AgentGym/BabyAI-v0')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "Install it with: pip install 'agentgym-suite[babyai]'" in done.stderr
    assert done.returncode == 1
    assert done.stdout == ""


# ---- docs ----------------------------------------------------------------------------------------------


def test_docs_hold_the_grammar_table_and_the_subsets() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert grammar_table(BabyAIEnv.verbs) in page
    for subset in levels.task_table().subsets:
        names = ", ".join(name for name, of in levels.LEVELS.items() if of == subset)
        assert f"| `AgentGym/BabyAI-{subset}-v0` | {names} |" in page
    for level, seeds in levels.unsolved().items():
        assert f"| `{level}` | {len(seeds)} |" in page


def test_docs_transcript_is_real(env: BabyAIEnv) -> None:
    drawing, block = re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    observation, *turns = re.split(r"^> ", block, flags=re.MULTILINE)
    assert start(env, "UnlockPickupDist", 4) == observation.rstrip()
    drawn = [line.rstrip() for line in env._known.level.pprint_grid().splitlines()]
    assert [line.rstrip() for line in drawing.splitlines()] == drawn
    for turn in turns:
        action, _, answer = turn.partition("\n")
        observation, *_, info = env.step(action)
        assert observation.rstrip() == answer.rstrip()
    assert info["success"]


def test_snapshots_are_json_and_refused_for_another_minigrid(env: BabyAIEnv) -> None:
    start(env, "BossLevel", 0)
    record = json.loads(env.snapshot())
    assert record["data"].startswith("minigrid 3.")
    record["data"] = "minigrid 2.0, text 1"
    with pytest.raises(ValueError, match=re.escape("'minigrid 2.0, text 1'")):
        env.restore(json.dumps(record).encode())
