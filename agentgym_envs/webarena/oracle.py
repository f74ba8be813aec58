"""The next action of a solution, found in the current observation and nothing else.

A task's plan is a list of rules, the one nearest to the goal first. A rule applies if the page shows all that it
names; its action may name elements by their lines, whose ids are looked up. So the plan is right from whatever
page the agent has come to, and follows only links, forms and addresses that it has been shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BELOW = "»"
NEXT = "+"
ANY = " *"
_NAMED = re.compile(r"\[\{(.+?)\}\]")
OPERATOR = re.compile(f" ([{BELOW}{NEXT}]) ")
_ELEMENT = re.compile(r"^ *\[(\d+)\] (.+)$", re.MULTILINE)


def next_action(plan: Sequence[Mapping[str, Any]], view: str) -> str | None:
    """Return the next action.

    Args:
        plan: Rules `{"see": [lines], "do": action}`. A line is the beginning of one, without its id:
            `link 'Orders'`; in an action, `[{link 'Orders'}]` is its id. `heading 'Cart' » button 'Save'` is the
            first such button anywhere below such a heading. `cell '17' + link 'View'` is one that is the next link
            after such a cell, so that the two are in one row, whether or not the page has tables. `combobox *` is
            one with any name or none. `URL: ...` is the line of the address as a whole, and `tab '...'` the
            beginning of a tab's title.
        view: The page as the agent sees it, with the lines of its tabs and its address.

    Returns:
        The action, or None where no rule applies.
    """
    for rule in plan:
        if all(_number(view, line) is not None for line in rule["see"]):
            action = _filled(view, rule["do"])
            if action is not None:
                return action
    return None


def _filled(view: str, action: str) -> str | None:
    numbers = {line: _number(view, line) for line in _NAMED.findall(action)}
    if None in numbers.values():
        return None
    return _NAMED.sub(lambda match: f"[{numbers[match[1]]}]", action)


def _number(view: str, line: str) -> str | None:
    """Return the id of the first element whose line begins so; an empty text for lines that have none."""
    if line.startswith("URL: "):
        return "" if f"\n{line}\n" in f"\n{view}\n" else None
    if line.startswith("tab '"):
        title = re.escape(line.removeprefix("tab ").removesuffix("'"))
        return "" if re.search(rf"(?:^|\| )Tab \d+(?: \(current\))?: {title}", view, re.MULTILINE) else None
    first, *more = OPERATOR.split(line)
    steps = [(BELOW, _Kind(first)), *((more[place], _Kind(more[place + 1])) for place in range(0, len(more), 2))]
    return _found(_ELEMENT.findall(view), steps)


class _Kind:
    """The elements whose lines begin so."""

    def __init__(self, line: str) -> None:
        name = line.removesuffix(ANY)
        self.role = line.split(" ", 1)[0]
        self.matches = re.compile(re.escape(name) + ("(?=$| )" if name != line else "(?=$| [a-z]+: )")).match


def _found(elements: Sequence[tuple[str, str]], steps: Sequence[tuple[str, _Kind]]) -> str | None:
    """Return the id of the first of the elements (id, line) that the last step can mean, the others before it."""
    (operator, kind), *rest = steps
    for place, (number, text) in enumerate(elements, start=1):
        if kind.matches(text):
            found = _found(elements[place:], rest) if rest else number
            if found is not None or operator == NEXT:
                return found
        elif operator == NEXT and text.split(" ", 1)[0] == kind.role:
            return None
    return None
