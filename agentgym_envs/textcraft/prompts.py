"""The prompt of a goal: the recipes that it takes, and some that it does not take."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from agentgym_envs.core import shuffled
from agentgym_envs.textcraft.recipes import Recipe, RecipeBook, recipe_book

MAX_DISTRACTORS = 10


class Page(NamedTuple):
    """What is the same in all prompts of one goal.

    Attributes:
        recipes: Recipes below the goal, up to groups of which it takes any member.
        choices: For each such group the recipes of each of its members that take the fewest. A prompt shows
            those of one member, which keeps it short: other members open no shorter way.
        groups: Groups among the ingredients of `recipes`.
        distractors: Recipes with an ingredient in common with `recipes`, but without use for the goal.
    """

    recipes: tuple[Recipe, ...]
    choices: tuple[tuple[tuple[Recipe, ...], ...], ...]
    groups: tuple[str, ...]
    distractors: tuple[Recipe, ...]


@cache  # at most one page a goal
def page(goal: str) -> Page:
    """Return the page of a goal of the benchmark's recipe book."""
    book = recipe_book()
    recipes = _below(goal, book)
    made = {recipe.item for recipe in recipes}
    groups = dict.fromkeys(group for recipe in recipes for group, _ in recipe.groups)
    choices: list[tuple[tuple[Recipe, ...], ...]] = []
    for group in groups:
        if made.isdisjoint(book.groups[group]):
            ways = [
                tuple(recipe for recipe in _below(member, book) if recipe not in recipes)
                for member in book.groups[group]
            ]
            fewest = min(map(len, ways))
            choices.append(tuple(way for way in ways if len(way) == fewest))
    useful = {*recipes, *(recipe for choice in choices for way in choice for recipe in way)}
    parts = dict.fromkeys(name for recipe in recipes for name, _ in recipe.ingredients)
    users = dict.fromkeys(recipe for name in parts for recipe in book.users[name])
    distractors = tuple(recipe for recipe in users if recipe not in useful)
    return Page(recipes, tuple(choices), tuple(groups), distractors)


def draw(goal_page: Page, rng: random.Random) -> list[Recipe]:
    """Draw the recipes of one prompt, in the order in which it shows them."""
    drawn = list(goal_page.recipes)
    for choice in goal_page.choices:
        drawn += choice[int(rng.random() * len(choice))]
    pool = list(goal_page.distractors)
    for _ in range(min(MAX_DISTRACTORS, len(pool))):
        place = int(rng.random() * len(pool))
        drawn.append(pool[place])
        pool[place] = pool[-1]
        pool.pop()
    return shuffled(drawn, rng)


def prompt(book: RecipeBook, goal: str, recipes: Sequence[Recipe], groups: Iterable[str], notes: str = "") -> str:
    """Return the text of a task.

    Args:
        book: The recipe book.
        goal: Name of the goal.
        recipes: The recipes to show.
        groups: Groups that the agent must know members of: those shown here, or else all.
        notes: Further lines to put below the recipes.
    """
    lines = [recipe.text for recipe in recipes]
    for group in groups:
        members = book.groups[group]
        shown = dict.fromkeys(recipe.item for recipe in recipes if recipe.item in members)
        lines.append(f"Usable as {group}: {', '.join(shown or members)}.")
    if notes:
        lines.append(notes)
    listed = "\n".join(lines)
    return f"Crafting commands:\n{listed}\n\nGoal: craft {goal}."


def _below(goal: str, book: RecipeBook) -> tuple[Recipe, ...]:
    """Return the recipes of an item and of everything that it is made of; groups are not followed."""
    found: dict[Recipe, None] = {}
    seen = {goal}
    pending = [goal]
    while pending:
        for recipe in book.by_item.get(pending.pop(), ()):
            found[recipe] = None
            for name, _ in recipe.items:
                if name not in seen:
                    seen.add(name)
                    pending.append(name)
    return tuple(found)
