"""The actions: what agents may write, and how it is read."""

from __future__ import annotations

import re
from typing import NamedTuple

from agentgym_envs.verbs import Verb, quoted, template


def turn_left() -> str:
    """Turn left by 90 degrees.

    Examples:
        turn left
    """
    return "turn left"


def turn_right() -> str:
    """Turn right by 90 degrees.

    Examples:
        turn right
    """
    return "turn right"


def move_forward() -> str:
    """Move one step ahead.

    Examples:
        move forward
    """
    return "move forward"


def pick_up() -> str:
    """Pick up the key, ball or box in the next cell ahead; you can carry one object.

    Examples:
        pick up
    """
    return "pick up"


def drop() -> str:
    """Put what you carry into the next cell ahead, which must be free.

    Examples:
        drop
    """
    return "drop"


def toggle() -> str:
    """Open or close the door in the next cell ahead (a locked one takes the key of its color), or open the box.

    Examples:
        toggle
    """
    return "toggle"


def go_to(object: str, number: int) -> str:
    """Walk until the object or door is in the next cell ahead.

    Args:
        object: Color and kind of an object or door that you have seen.
        number: Its number.

    Examples:
        go to red ball 1
    """
    return f"go to {object} {number}"


def pick_up_object(object: str, number: int) -> str:
    """Walk to the object and pick it up.

    Args:
        object: Color and kind of a key, ball or box that you have seen.
        number: Its number.

    Examples:
        pick up blue key 1
    """
    return f"pick up {object} {number}"


def go_through(door: str, number: int) -> str:
    """Walk through an open door, to the cell behind it.

    Args:
        door: Color and kind of a door that you have seen.
        number: Its number.

    Examples:
        go through green door 1
    """
    return f"go through {door} {number}"


def toggle_and_go_through(door: str, number: int) -> str:
    """Walk to a closed door, open it and walk through it (a locked one takes the key of its color).

    Args:
        door: Color and kind of a door that you have seen.
        number: Its number.

    Examples:
        toggle and go through green door 1
    """
    return f"toggle and go through {door} {number}"


def check_available_actions() -> str:
    """List the actions that are possible now.

    Examples:
        check available actions
    """
    return "check available actions"


PRIMITIVES: tuple[Verb, ...] = (turn_left, turn_right, move_forward, pick_up, drop, toggle)
PLANNED: tuple[Verb, ...] = (go_to, pick_up_object, go_through, toggle_and_go_through)
VERBS: tuple[Verb, ...] = (*PRIMITIVES, *PLANNED, check_available_actions)
_WITHOUT_ARGUMENTS = {verb(): verb for verb in (*PRIMITIVES, check_available_actions)}
_WITH_OBJECT = {verb("", "").strip(): verb for verb in PLANNED}
_ACCEPTED = "; ".join(map(template, VERBS))
_OBJECT = re.compile(rf"({'|'.join(sorted(_WITH_OBJECT, key=len, reverse=True))}) (.+)")


class Command(NamedTuple):
    """A parsed action: the verb, and the object's name with its number for planned actions."""

    verb: Verb
    name: str = ""


class NotUnderstood(ValueError):
    """The text is no action; the message says what is accepted."""


def parse(action: str) -> Command:
    """Read an action. Case, further spaces and one final full stop make no difference.

    Raises:
        NotUnderstood: If it is none.
    """
    if "\n" in action:
        raise NotUnderstood(f"Could not execute {quoted(action)}: write one action on one line.")
    text = " ".join(action.lower().removesuffix(".").split())
    if text in _WITHOUT_ARGUMENTS:
        return Command(_WITHOUT_ARGUMENTS[text])
    if match := _OBJECT.fullmatch(text):
        return Command(_WITH_OBJECT[match[1]], match[2])
    raise NotUnderstood(f"Could not execute {quoted(action)}. Accepted are: {_ACCEPTED}.")


def with_object(verb: Verb, name: str) -> str:
    """Return a planned action for an object with its number, e.g. `red ball 1`."""
    kind, _, number = name.rpartition(" ")
    return verb(kind, number)
