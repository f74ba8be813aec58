"""The actions: what agents may write, and how it is read."""

from __future__ import annotations

import re
from typing import NamedTuple

from agentgym_envs.textcraft.recipes import PREFIX
from agentgym_envs.verbs import quoted, template

MAX_COUNT = 1_000_000


def craft(count: int, item: str, ingredients: str) -> str:
    """Carry out one recipe; name all its ingredients with their counts, separated by commas.

    Args:
        count: How many the recipe makes.
        item: Name of the item to make.
        ingredients: What to make it of, e.g. `1 stick, 1 coal`.

    Examples:
        craft 4 oak planks using 1 oak logs
        craft 4 torch using 1 stick, 1 coal
    """
    return f"craft {count} {item} using {ingredients}"


def get(count: int, item: str) -> str:
    """Take raw material, which nothing has to be crafted for.

    Args:
        count: How many to take.
        item: Name of an item that cannot be crafted.

    Examples:
        get 2 oak logs
    """
    return f"get {count} {item}"


def inventory() -> str:
    """List what you carry.

    Examples:
        inventory
    """
    return "inventory"


VERBS = (craft, get, inventory)
_ACCEPTED = "; ".join([template(verb) for verb in VERBS])
_EXAMPLE = craft(4, "torch", "1 stick, 1 coal")
_INGREDIENTS = f"Each ingredient is a count and an item, as in {template(craft)}: {_EXAMPLE}."


class Craft(NamedTuple):
    """A parsed `craft`: the stated number (None if left out), the item, and the ingredients in all."""

    number: int | None
    item: str
    ingredients: dict[str, int]


class Get(NamedTuple):
    """A parsed `get`: the number, and the item as written and by name."""

    number: int
    written: str
    item: str


class Inventory(NamedTuple):
    """A parsed `inventory`."""


class NotUnderstood(ValueError):
    """The text is no action; the message says what was wrong and what is accepted."""


_CRAFT = re.compile(r"craft (?:([0-9]+) )?(.+?) using (.+)")
_GET = re.compile(r"get ([0-9]+) (.+)")
_PART = re.compile(r"([0-9]+) (.+)")


def parse(action: str) -> Craft | Get | Inventory:
    """Read an action. Case, further spaces and one final full stop make no difference.

    Raises:
        NotUnderstood: If it is none.
    """
    if "\n" in action:
        raise NotUnderstood(f"Could not execute {quoted(action)}: write one action on one line.")
    text = " ".join(action.lower().removesuffix(".").split())
    if match := _GET.fullmatch(text):
        return Get(_count(match[1], action), match[2], named(match[2]))
    if match := _CRAFT.fullmatch(text):
        ingredients: dict[str, int] = {}
        for part in match[3].split(","):
            part = part.strip()
            if not (of_part := _PART.fullmatch(part)):
                raise NotUnderstood(f"Wrong item format: {quoted(part)}. {_INGREDIENTS}")
            name = named(of_part[2])
            ingredients[name] = ingredients.get(name, 0) + _count(of_part[1], action)
        number = None if match[1] is None else _count(match[1], action)
        return Craft(number, named(match[2]), ingredients)
    if text == inventory():
        return Inventory()
    raise NotUnderstood(f"Could not execute {quoted(action)}. Accepted are: {_ACCEPTED}.")


def named(text: str) -> str:
    """Return the name of an item that is written as a name or as an id."""
    return text.removeprefix(PREFIX).replace("_", " ")


def _count(digits: str, action: str) -> int:
    # The length is looked at first: Python refuses to convert thousands of digits.
    significant = digits.lstrip("0")
    if not significant or len(significant) > len(str(MAX_COUNT)) or int(significant) > MAX_COUNT:
        raise NotUnderstood(f"Could not execute {quoted(action)}: a count is a whole number from 1 to {MAX_COUNT:,}.")
    return int(significant)
