"""The next action of a solution, found in the current observation and nothing else.

A task's plan is a list of rules, the one nearest to the goal first. A rule applies if the page shows all that it
names; its action may name elements by their lines, whose ids are looked up. So the plan is right from whatever
page the agent has come to, and follows only links, forms and addresses that it has been shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BELOW = " » "
ANY = " *"
_NAMED = re.compile(r"\[\{(.+?)\}\]")


def next_action(plan: Sequence[Mapping[str, Any]], view: str) -> str | None:
    """Return the next action.

    Args:
        plan: Rules `{"see": [lines], "do": action}`. A line is the beginning of one, without its id:
            `link 'Orders'`; in an action, `[{link 'Orders'}]` is its id. `cell '17' » link 'View'` is the first
            such link below the first such cell, and `combobox *` one with any name. `URL: ...` is the line of the
            address as a whole, and `tab '...'` the beginning of a tab's title.
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
    start, number = 0, None
    for part in line.split(BELOW):
        role = part.removesuffix(ANY)
        rest = "(?=$| )" if role != part else "(?=$| [a-z]+: )"
        match = re.compile(rf"^ *\[(\d+)\] {re.escape(role)}{rest}", re.MULTILINE).search(view, start)
        if match is None:
            return None
        start, number = match.end(), match[1]
    return number
