"""The oracle: a shortest known list of commands that crafts a goal from a given inventory.

The search goes from the goal down. Items are taken in an order in which everything that could need an item
comes before it, so the whole demand for an item is known when it is decided how to meet it: from the
inventory, with one `get`, or with as many crafts as its recipe takes. It branches where an item has several
recipes and where a group has several members, and drops a branch once it is no shorter than the best plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agentgym_envs.textcraft.grammar import craft, get
from agentgym_envs.textcraft.recipes import Recipe, RecipeBook


class Filled(NamedTuple):
    """A `craft` command and what it uses up."""

    text: str
    used: dict[str, int]


class _Plan(NamedTuple):
    """Work to be done, consumers before what they consume."""

    length: int
    gets: tuple[tuple[str, int], ...]
    crafts: tuple[tuple[Recipe, int], ...]


def plan(book: RecipeBook, recipes: Iterable[Recipe], goal: str, inventory: Mapping[str, int]) -> list[str]:
    """Return commands that craft the goal.

    Args:
        book: The recipe book.
        recipes: The recipes to use. If they do not suffice, the whole book is used.
        goal: Name of a craftable item.
        inventory: Item -> count. The goal itself is crafted even if it is there.
    """
    best = _search(book, recipes, goal, inventory) or _search(book, book.recipes, goal, inventory)
    assert best is not None, "every craftable item can be made from base items"
    return _commands(best, book, inventory)


def fill(
    recipe: Recipe, book: RecipeBook, stock: Mapping[str, int], reserved: Mapping[str, int] | None = None
) -> Filled | None:
    """Choose the members for a recipe's groups; return the command, or None if items are missing.

    Args:
        recipe: The recipe.
        book: The recipe book.
        stock: Item -> count in the inventory.
        reserved: Item -> count that groups must leave for other crafts.
    """
    if any(stock.get(item, 0) < count for item, count in recipe.items):
        return None
    kept = reserved or {}
    used = dict(recipe.items)
    for group, count in recipe.groups:
        spare = {
            member: stock[member] - used.get(member, 0) - kept.get(member, 0)
            for member in book.groups[group]
            if member in stock
        }
        # The fullest first: one kind of member wherever one is enough.
        for member in sorted(spare, key=lambda member: -spare[member]):
            taken = min(count, spare[member])
            if taken > 0:
                used[member] = used.get(member, 0) + taken
                count -= taken
        if count:
            return None
    listed = ", ".join(f"{count} {item}" for item, count in used.items())
    return Filled(craft(recipe.count, recipe.item, listed), used)


def _search(book: RecipeBook, recipes: Iterable[Recipe], goal: str, inventory: Mapping[str, int]) -> _Plan | None:
    ways: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        ways.setdefault(recipe.item, []).append(recipe)
    best: _Plan | None = None

    def expand(needed: dict[str, int], done: _Plan) -> None:
        nonlocal best
        # Everything that the inventory does not hold costs at least one command more.
        missing = sum(n > inventory.get(name, 0) for name, n in needed.items() if name not in book.groups)
        if best is not None and done.length + missing >= best.length:
            return
        if not needed:
            best = done
            return
        name = max(needed, key=book.rank.__getitem__)
        rest = {other: count for other, count in needed.items() if other != name}
        if name in book.groups:
            for choice in _group_choices(name, needed[name], rest):
                expand(choice, done)
            return
        lacking = needed[name] - (0 if name == goal else inventory.get(name, 0))
        if lacking <= 0:
            expand(rest, done)
        elif name in book.base:
            expand(rest, _Plan(done.length + 1, (*done.gets, (name, lacking)), done.crafts))
        else:
            for recipe in ways.get(name, ()):
                times = -(-lacking // recipe.count)
                demand = dict(rest)
                for part, count in recipe.ingredients:
                    demand[part] = demand.get(part, 0) + times * count
                expand(demand, _Plan(done.length + times, done.gets, (*done.crafts, (recipe, times))))

    def _group_choices(group: str, count: int, needed: dict[str, int]) -> Iterable[dict[str, int]]:
        """Turn the demand for a group into demand for members: what is left of them, then one to make."""
        choice = dict(needed)
        for member in book.groups[group]:
            taken = min(count, inventory.get(member, 0) - needed.get(member, 0))
            if taken > 0:
                choice[member] = choice.get(member, 0) + taken
                count -= taken
        if not count:
            yield choice
            return
        for member in book.groups[group]:
            if member in ways:
                yield {**choice, member: choice.get(member, 0) + count}

    expand({goal: 1}, _Plan(0, (), ()))
    return best


def _commands(best: _Plan, book: RecipeBook, inventory: Mapping[str, int]) -> list[str]:
    """Write a plan out: everything that `get` provides, then the crafts from the bottom up."""
    commands = [get(count, item) for item, count in reversed(best.gets)]
    stock = dict(inventory)
    for item, count in best.gets:
        stock[item] = stock.get(item, 0) + count
    reserved: dict[str, int] = {}
    for recipe, times in best.crafts:
        for item, count in recipe.items:
            reserved[item] = reserved.get(item, 0) + times * count
    for recipe, times in reversed(best.crafts):
        for _ in range(times):
            for item, count in recipe.items:
                reserved[item] -= count
            filled = fill(recipe, book, stock, reserved)
            assert filled is not None, f"the plan has no items left for {recipe.text}"
            commands.append(filled.text)
            for item, count in filled.used.items():
                stock[item] -= count
            stock[recipe.item] = stock.get(recipe.item, 0) + recipe.count
    return commands
