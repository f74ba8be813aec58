"""The TextCraft environment: prompts, actions, oracle, programmed episodes."""

import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest
from gymnasium.error import ResetNeeded

from agentgym_envs.textcraft import grammar
from agentgym_envs.textcraft.env import TextCraftEnv, _fits
from agentgym_envs.textcraft.prompts import MAX_DISTRACTORS, page
from agentgym_envs.textcraft.recipes import Recipe, RecipeBook, recipe_book
from agentgym_envs.verbs import grammar_table

DOCS = Path(__file__).parents[1] / "docs" / "scenarios" / "textcraft.md"
PROMPTS_OF_SEED_0 = "927648ba6d316f81cd2bae829756df51a6066e444ee375dc79d2bed0fe247488"


@pytest.fixture
def env() -> Iterator[TextCraftEnv]:
    made = cast(TextCraftEnv, gymnasium.make("AgentGym/TextCraft-v0", split="all").unwrapped)
    yield made
    made.close()


def start(env: TextCraftEnv, goal: str, **init: Any) -> str:
    return env.reset(seed=0, options={"init": {"goal": goal, **init}})[0]


def refusal(env: TextCraftEnv, action: str) -> str:
    """Return the answer to an action that must be refused and change nothing."""
    before = env.step("inventory")[0]
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["valid_action"]) == (0.0, False, False, False), observation
    assert env.step("inventory")[0] == before
    return observation


# ---- tasks ---------------------------------------------------------------------------------------------


def test_splits_hold_three_tenths_of_each_depth(env: TextCraftEnv) -> None:
    table = env.task_table()
    assert [task.id for task in table] == [f"textcraft_{index}" for index in range(544)]
    assert table.subsets == ("Depth1", "Depth2", "Depth3", "Depth4")
    for subset in table.subsets:
        test = len(table.select(subset, "test"))
        assert test >= 1
        assert test == pytest.approx(0.3 * len(table.select(subset)), abs=0.5)
    goals = [{env.goal_of(task) for task in table.select(split=split)} for split in ("train", "test")]
    assert goals[0].isdisjoint(goals[1])
    assert len(goals[0] | goals[1]) == 544


def test_index_names_a_fixed_goal(env: TextCraftEnv) -> None:
    named = {index: env.reset(options={"task": index})[1]["goal"] for index in (0, 125, 300, 543)}
    assert named == {
        0: "craft acacia planks",
        125: "craft acacia boat",
        300: "craft mossy stone bricks",
        543: "craft purple banner",
    }


# ---- prompts -------------------------------------------------------------------------------------------

HASH_OF_PROMPTS = """
import gymnasium, hashlib
env = gymnasium.make("agentgym_envs:AgentGym/TextCraft-v0").unwrapped
prompts = [env.reset(seed=0, options={"task": task.id})[0] for task in env.task_table()]
print(hashlib.sha256("\\n\\n".join(prompts).encode()).hexdigest())
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_prompts_are_the_same_on_every_machine(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HASH_OF_PROMPTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == PROMPTS_OF_SEED_0


def test_prompt_has_the_recipes_and_ten_distractors(env: TextCraftEnv) -> None:
    texts = set()
    for seed in range(20):
        observation, info = env.reset(seed=seed, options={"task": env.task_table().find("textcraft_150").id})
        match = re.fullmatch(r"Crafting commands:\n(.*)\n\nGoal: (craft [a-z ]+)\.", observation, re.DOTALL)
        assert match is not None
        assert match[2] == info["goal"]
        goal_page = page(env.goal_of(env.task_table().find(150)))
        lines = match[1].splitlines()
        shown = [recipe_book().by_text[line] for line in lines if line.startswith("craft ")]
        assert set(goal_page.recipes) <= set(shown)
        assert len(set(shown)) == len(shown)
        distractors = [recipe for recipe in shown if recipe in goal_page.distractors]
        assert len(distractors) == min(MAX_DISTRACTORS, len(goal_page.distractors))
        texts.add(observation)
    assert len(texts) == 20


class Reader:
    """An agent that knows nothing but the prompt's text."""

    def __init__(self, prompt: str) -> None:
        self.recipes: dict[str, tuple[int, list[tuple[int, str]]]] = {}
        self.members: dict[str, str] = {}
        for line in prompt.splitlines():
            if match := re.fullmatch(r"craft (\d+) (.+) using (.+)", line):
                parts = [part.split(" ", 1) for part in match[3].split(", ")]
                self.recipes.setdefault(match[2], (int(match[1]), [(int(n), name) for n, name in parts]))
            elif match := re.fullmatch(r"Usable as (.+?): (.+?)(?:, .*)?\.", line):
                self.members[match[1]] = match[2]
            elif match := re.fullmatch(r"Goal: craft (.+)\.", line):
                self.goal = match[1]
        self.have: dict[str, int] = {}

    def provide(self, count: int, item: str) -> Iterator[str]:
        """Yield commands until `count` of the item are there."""
        if item not in self.recipes and self.have.get(item, 0) < count:
            yield f"get {count} {item}"
            self.have[item] = self.have.get(item, 0) + count
        while self.have.get(item, 0) < count:
            made, parts = self.recipes[item]
            chosen = [(number, self.members.get(name, name)) for number, name in parts]
            # To provide one ingredient can use another one up.
            while any(self.have.get(name, 0) < number for number, name in chosen):
                for number, name in chosen:
                    yield from self.provide(number, name)
            yield f"craft {made} {item} using {', '.join(f'{n} {name}' for n, name in chosen)}"
            for number, name in chosen:
                self.have[name] -= number
            self.have[item] = self.have.get(item, 0) + made


@pytest.mark.parametrize("seed", [0, 1])
def test_every_goal_can_be_solved_from_its_prompt_alone(env: TextCraftEnv, seed: int) -> None:
    for task in env.task_table():
        reader = Reader(env.reset(seed=seed, options={"task": task.id})[0])
        info: dict[str, Any] = {"success": False}
        for action in reader.provide(1, reader.goal):
            observation, _, _, _, info = env.step(action)
            assert info["valid_action"], (task.id, action, observation)
        assert info["success"], task.id


# ---- actions -------------------------------------------------------------------------------------------


def test_an_episode(env: TextCraftEnv) -> None:
    start(env, "chest")
    assert env.step("inventory")[0] == "Inventory: You are not carrying anything."
    assert env.step("get 1 oak logs")[0] == "Got 1 oak logs"
    assert env.step("get 1 birch logs")[0] == "Got 1 birch logs"
    assert env.step("craft 4 oak planks using 1 oak logs")[0] == "Crafted 4 minecraft:oak_planks"
    assert env.step("craft 4 birch planks using 1 birch logs")[0] == "Crafted 4 minecraft:birch_planks"
    assert env.step("inventory")[0] == "Inventory: [oak planks] (4) [birch planks] (4) "
    observation, reward, terminated, truncated, info = env.step("craft 1 chest using 4 oak planks, 4 birch planks")
    assert (observation, reward, terminated, truncated) == ("Crafted 1 minecraft:chest", 1.0, True, False)
    assert (info["score"], info["success"], info["end"], info["valid_action"]) == (1.0, True, "success", True)
    assert env.oracle_action() is None
    assert env.available_actions() == []
    with pytest.raises(ResetNeeded):
        env.step("craft 1 chest using 4 oak planks, 4 birch planks")


@pytest.mark.parametrize(
    "action",
    ["GET 2 Oak Logs", "  get 2 oak logs  ", "get 2 oak logs.", "get  2  oak  logs", "get 002 oak logs"],
)
def test_case_space_and_one_full_stop_do_not_matter(env: TextCraftEnv, action: str) -> None:
    start(env, "chest")
    assert env.step(action)[0] == "Got 2 oak logs"


@pytest.mark.parametrize("name", ["oak log", "oak logs", "oak_logs", "minecraft:oak_logs"])
def test_items_go_by_name_or_id(env: TextCraftEnv, name: str) -> None:
    start(env, "chest")
    observation, _, _, _, info = env.step(f"get 1 {name}")
    assert observation == f"Got 1 {name}"
    assert info["valid_action"]


NOT_UNDERSTOOD = [
    "",
    "inventory foo",
    "inventory..",
    "Action: get 1 oak logs",
    "get oak logs",
    "get -1 oak logs",
    "get 1.5 oak logs",
    "get 1 oak logs\nget 1 coal",
    "craft 4 oak planks",
    "craft using 1 oak logs",
    "craft 4 oak planks using ",
    "get 0 oak logs",
    "get 1000001 oak logs",
    "get ٣ oak logs",
    "craft 0 oak planks using 1 oak logs",
    f"get {'9' * 5_000} oak logs",
    f"craft 4 oak planks using {'9' * 5_000} oak logs",
    "\u0000\ud800",
]


@pytest.mark.parametrize("action", NOT_UNDERSTOOD, ids=range(len(NOT_UNDERSTOOD)))
def test_what_is_no_action_is_refused_with_what_is_accepted(env: TextCraftEnv, action: str) -> None:
    start(env, "chest", inventory={"oak logs": 2})
    told = refusal(env, action)
    assert told.startswith("Could not execute ")
    assert "get <count> <item>" in told or "1 to 1,000,000" in told or "one action on one line" in told
    assert len(told) < 300


def test_long_junk_is_refused(env: TextCraftEnv) -> None:
    start(env, "chest")
    rng = random.Random("junk")
    junk = "".join(chr(int(rng.random() * 0x3000)) for _ in range(100_000))
    for text in (junk, "craft " * 1_300, "craft 1 chest using " + "1 oak planks, " * 500, junk[:8_000]):
        assert len(refusal(env, text)) < 500


def test_get_refuses_what_no_one_can_use_or_what_is_crafted(env: TextCraftEnv) -> None:
    start(env, "chest")
    told = "Could not find {}: no recipe has an item {}"
    assert refusal(env, "get 1 tin") == told.format("tin", "tin") + "."
    assert refusal(env, "get 1 oak logss") == told.format("oak logss", "oak logss") + "; there is oak logs."
    assert refusal(env, "get 1 string s") == told.format("string s", "string s") + "."
    assert refusal(env, "get 1 oak planks") == "Could not find oak planks: it cannot be taken, only crafted."
    told = refusal(env, "get 8 planks")
    assert told.startswith("Could not find planks: planks is a group; name one or more of its members: ")
    assert "oak planks" in told


def test_every_item_is_of_use(env: TextCraftEnv) -> None:
    """Whatever `get` provides is an ingredient by that very name, and all ingredients can be had."""
    book = recipe_book()
    used = {name for recipe in book.recipes for name, _ in recipe.items}
    start(env, "netherite block")
    for item in sorted(used):
        accepted = env.step(f"get 1 {item}")[4]["valid_action"]
        assert accepted == (item not in book.by_item), item


def test_group_ingredients(env: TextCraftEnv) -> None:
    start(env, "chest", inventory={"oak planks": 6, "birch planks": 6})
    told = refusal(env, "craft 1 chest using 8 planks")
    assert told.startswith("Could not find a valid recipe for chest: planks is a group; name one or more of")
    assert "birch planks" in told
    told = refusal(env, "craft 4 planks using 1 oak logs")
    assert told.startswith("Could not find a valid recipe for planks: planks is a group")
    assert refusal(env, "craft 1 chest using 4 oak planks, 3 birch planks").endswith(
        "it takes craft 1 chest using 8 planks."
    )
    assert env.step("craft 1 chest using 2 oak planks, 6 birch planks")[4]["success"]


def test_craft_refusals_say_what_is_needed(env: TextCraftEnv) -> None:
    start(env, "chest", inventory={"oak logs": 2, "oak planks": 8})
    no_recipe = "Could not find a valid recipe for"
    assert refusal(env, "craft 64 oak planks using 1 oak logs") == (
        f"{no_recipe} oak planks: these ingredients make 4, not 64; carry the recipe out once with "
        "craft 4 oak planks using 1 oak logs."
    )
    assert refusal(env, "craft 8 oak planks using 2 oak logs") == (
        f"{no_recipe} oak planks: it takes craft 4 oak planks using 1 oak logs."
    )
    assert refusal(env, "craft 1 stick using 1 oak logs") == (
        f"{no_recipe} stick: it takes craft 4 stick using 2 planks or craft 1 stick using 2 bamboo."
    )
    assert refusal(env, "craft 1 oak logs using 4 oak planks") == (
        f"{no_recipe} oak logs: it cannot be crafted; take it with get 1 oak logs."
    )
    assert refusal(env, "craft 1 sofa using 4 oak planks") == f"{no_recipe} sofa: no recipe has an item sofa."
    assert refusal(env, "craft 1 chest using 8 oak plank") == (
        f"{no_recipe} chest: no recipe has an item oak plank; there is oak planks."
    )
    assert refusal(env, "craft 4 birch planks using 1 birch logs") == (
        "Could not find enough items to craft minecraft:birch_planks: it takes 1 birch logs and you carry 0 birch logs."
    )
    assert refusal(env, "craft 1 chest using oak planks").startswith("Wrong item format: oak planks. Each")
    assert refusal(env, "craft 1 chest using 8 oak planks,").startswith("Wrong item format: . Each")


def test_craft_takes_duplicates_together_and_no_count(env: TextCraftEnv) -> None:
    start(env, "chest", inventory={"oak planks": 8, "oak logs": 1})
    assert env.step("craft oak planks using 1 oak logs")[0] == "Crafted 4 minecraft:oak_planks"
    assert env.step("craft chest using 5 oak planks, 3 oak planks")[4]["success"]


def test_an_ingredient_that_fits_two_slots_is_counted_right() -> None:
    """No recipe of the benchmark has an item beside its own group, but the rules allow it."""
    book = recipe_book()
    recipe = Recipe("raft", 1, (), (("oak planks", 2),), (("planks", 4),), "")

    def fits(**ingredients: int) -> bool:
        return _fits(recipe, {f"{wood} planks": count for wood, count in ingredients.items()}, book)

    assert fits(oak=6)
    assert fits(oak=2, birch=4)
    assert fits(oak=3, birch=2, spruce=1)
    assert not fits(oak=1, birch=5)
    assert not fits(oak=2, birch=3)
    assert not fits(oak=7)


def test_nothing_is_printed(env: TextCraftEnv, capfd: pytest.CaptureFixture[str]) -> None:
    start(env, "chest", inventory={"oak logs": 2})
    for action in [*NOT_UNDERSTOOD, "craft 4 oak planks using 2 oak logs", "craft 1 chest using 1 oak logs"]:
        env.step(action)
    assert capfd.readouterr() == ("", "")


# ---- oracle --------------------------------------------------------------------------------------------


def test_oracle_solves_every_goal(env: TextCraftEnv) -> None:
    lengths = []
    for task in env.task_table():
        env.reset(seed=0, options={"task": task.id})
        length = finish(env)
        lengths.append(length)
    assert statistics.median(lengths) == 5
    assert max(lengths) == 48  # nine netherite ingots, each out of four things
    assert sum(lengths) == 3_168


def finish(env: TextCraftEnv) -> int:
    """Let the oracle finish the episode; each action must be listed, accepted and bring the end nearer."""
    shown = {recipe.text for recipe in env._shown}
    plan = env.oracle_plan()
    length, left = len(plan), len(plan)
    for _ in range(length):
        action = env.oracle_action()
        assert action is not None
        assert action in env.available_actions()
        observation, _, terminated, _, info = env.step(action)
        assert info["valid_action"], (action, observation)
        if terminated:
            assert info["success"]
            return length
        assert len(env.oracle_plan()) < left
        left = len(env.oracle_plan())
    raise AssertionError(f"the plan {plan} did not craft the goal; shown were {shown}")


def test_oracle_goes_on_from_any_state(env: TextCraftEnv) -> None:
    rng = random.Random("mid-states")
    for index in range(0, 544, 3):
        env.reset(seed=index, options={"task": index})
        fresh = len(env.oracle_plan())
        for _ in range(int(rng.random() * 15)):
            actions = env.available_actions()
            for action in actions:
                grammar.parse(action)  # raises if it is none
            _, _, terminated, _, info = env.step(actions[int(rng.random() * len(actions))])
            assert info["valid_action"]
            if terminated:
                break
        else:
            # Nothing that was done can make it longer than starting anew.
            assert len(env.oracle_plan()) <= fresh
            finish(env)


def test_oracle_uses_what_is_there(env: TextCraftEnv) -> None:
    start(env, "chest", inventory={"oak planks": 3, "birch planks": 5})
    assert env.oracle_plan() == ["craft 1 chest using 5 birch planks, 3 oak planks"]
    start(env, "oak sign", inventory={"oak planks": 8})
    assert env.oracle_plan() == [
        "craft 4 stick using 2 oak planks",
        "craft 3 oak sign using 6 oak planks, 1 stick",
    ]
    # The sign needs oak, so the stick is made of birch although there is more oak.
    start(env, "oak sign", inventory={"oak planks": 6, "birch planks": 2})
    assert env.oracle_plan()[0] == "craft 4 stick using 2 birch planks"


def test_oracle_keeps_to_the_prompt(env: TextCraftEnv) -> None:
    start(env, "chest", recipes=["craft 1 chest using 8 planks", "craft 4 warped planks using 1 warped stems"])
    assert env.oracle_plan()[0] == "get 2 warped stems"
    start(env, "chest", recipes=["craft 1 chest using 8 planks"])
    assert len(env.oracle_plan()) == 4  # the prompt does not say how to make planks, the book does


def test_oracle_before_reset(env: TextCraftEnv) -> None:
    with pytest.raises(ResetNeeded):
        env.oracle_action()
    with pytest.raises(ResetNeeded):
        env.available_actions()


# ---- programmed episodes -------------------------------------------------------------------------------


def test_init_programs_an_episode(env: TextCraftEnv) -> None:
    lines = ["craft 4 stick using 2 planks", "craft 1 chest using 8 planks"]
    init = {"goal": "minecraft:chest", "recipes": lines, "inventory": {"oak planks": 3}}
    observation, info = env.reset(seed=3, options={"init": init})
    members = ", ".join(recipe_book().groups["planks"])
    assert observation == (
        "Crafting commands:\ncraft 4 stick using 2 planks\ncraft 1 chest using 8 planks\n"
        f"Usable as planks: {members}.\nYou carry: 3 oak planks.\n\nGoal: craft chest."
    )
    assert info["source"] == "custom"
    assert info["task"] == env.task_table().find(recipe_book().goals.index("chest")).id
    assert env.step("inventory")[0] == "Inventory: [oak planks] (3) "
    env.step("get 2 oak logs")
    saved = json.loads(env.snapshot())
    other = cast(TextCraftEnv, gymnasium.make("AgentGym/TextCraft-v0").unwrapped)
    assert other.restore(json.dumps(saved).encode())[0] == "Got 2 oak logs"
    assert other.oracle_plan() == env.oracle_plan()


def test_init_with_the_goal_alone_shows_the_usual_prompt(env: TextCraftEnv) -> None:
    index = recipe_book().goals.index("chest")
    assert start(env, "chest") == env.reset(seed=0, options={"task": index})[0]


def test_goal_in_the_inventory_has_still_to_be_crafted(env: TextCraftEnv) -> None:
    start(env, "stick", inventory={"stick": 5, "bamboo": 2})
    assert env.oracle_plan() == ["craft 1 stick using 2 bamboo"]
    assert env.step("craft 1 stick using 2 bamboo")[4]["success"]


@pytest.mark.parametrize(
    ("init", "told"),
    [
        ({}, "it needs goal"),
        ({"goal": "chest", "inventry": {}}, "may have recipes, inventory"),
        ({"goal": "oak logs"}, "'oak logs' is no craftable item"),
        ({"goal": 3}, "3 is no craftable item"),
        ({"goal": "chest", "recipes": []}, "at least one recipe line"),
        ({"goal": "chest", "recipes": "craft 1 chest using 8 planks"}, "at least one recipe line"),
        (
            {"goal": "chest", "recipes": ["craft 1 chest using 9 planks"]},
            "one is 'craft 1 chest using 8 planks'",
        ),
        ({"goal": "chest", "recipes": [None]}, "None is no recipe"),
        (
            {"goal": "chest", "recipes": ["craft 1 chest using 8 planks"] * 2},
            "recipes has 'craft 1 chest using 8 planks' twice",
        ),
        ({"goal": "chest", "inventory": ["oak logs"]}, "maps items to counts"),
        ({"goal": "chest", "inventory": {"planks": 2}}, "'planks' is no item"),
        ({"goal": "chest", "inventory": {"oak logs": 0}}, "a whole number from 1 to 1,000,000"),
        ({"goal": "chest", "inventory": {"oak logs": True}}, "a whole number from 1 to 1,000,000"),
        ({"goal": "chest", "inventory": {"oak logs": 1.0}}, "a whole number from 1 to 1,000,000"),
    ],
)
def test_init_is_checked(env: TextCraftEnv, init: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        env.reset(seed=0, options={"init": init})
    with pytest.raises(ResetNeeded):
        env.step("inventory")


def test_the_largest_init_there_is_has_a_whole_prompt_and_a_plan(env: TextCraftEnv) -> None:
    book = recipe_book()
    prompt = start(env, "chest", recipes=list(book.by_text), inventory=dict.fromkeys(book.items, 1_000_000))
    assert prompt.endswith("Goal: craft chest.")
    assert env.oracle_action()
    start(env, "lectern", recipes=list(book.by_text))
    assert env.oracle_action()


# ---- docs ----------------------------------------------------------------------------------------------


def test_docs_hold_the_grammar_table() -> None:
    assert grammar_table(TextCraftEnv.verbs) in DOCS.read_text(encoding="utf-8")


def test_docs_transcript_is_real(env: TextCraftEnv) -> None:
    (block,) = re.findall(r"```text\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    observation, *turns = re.split(r"^> ", block, flags=re.MULTILINE)
    assert env.reset(seed=0, options={"task": recipe_book().goals.index("ladder")})[0] == observation.rstrip()
    for turn in turns:
        action, _, answer = turn.partition("\n")
        observation, _, terminated, _, _ = env.step(action)
        assert observation.rstrip() == answer.rstrip()
    assert terminated


def test_digest_depends_on_the_recipes() -> None:
    content = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "a"}],
        "result": "minecraft:b",
    }
    other = {**content, "ingredients": [{"item": "c"}]}
    assert RecipeBook([("b.json", content)]).hash != RecipeBook([("b.json", other)]).hash
    assert hashlib.sha256(TextCraftEnv.data_hash().encode()).digest()
