"""What a template of tasks is, and the few words that plans and evaluations are written with.

A template's texts have slots, `{name}`, that each row of its data fills. Lines of pages stand in a plan as the
agent sees them, without their ids: `click("link 'Milestone: {name}'")`. `link '{name}' + cell '{owner}'` is a cell that
is the next one after such a link, as in a row of a table or a list; `heading 'Cart' » spinbutton` is the first one
anywhere below such a heading; `combobox *` is one with any name or none (see `oracle`).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from agentgym_envs.webarena.oracle import OPERATOR
from agentgym_envs.webarena.page import quote
from agentgym_envs.webarena.sites.accounts import PRIVILEGED
from agentgym_envs.webarena.sites.interface import Tenant

PER_TEMPLATE = 4
"""Tasks that are made from a template, where there are rows for so many."""

Row = dict[str, Any]
Fields = dict[str, Any]
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'")
_SLOT = re.compile(r"\{(\w+)\}")


class Data:
    """The content of the sites."""

    def __init__(self, sites: Tenant) -> None:
        """Read from a tenant in the pristine state."""
        self._sites = sites
        self._known: dict[str, list[Row]] = {}

    def __call__(self, site: str, name: str, /, **arguments: Any) -> list[Row]:
        """Return the rows that answer one of `sites.queries`' questions, as copies."""
        key = json.dumps([site, name, arguments])
        if key not in self._known:
            self._known[key] = self._sites.query(site, name, **arguments)
        return [dict(row) for row in self._known[key]]


class Step(NamedTuple):
    """One action of a plan.

    Attributes:
        verb: The verb.
        line: The element that it is done to; empty where there is none.
        rest: What follows.
        see: Lines that the page must have besides.
    """

    verb: str
    line: str = ""
    rest: str = ""
    see: tuple[str, ...] = ()


Plan = Sequence[Step | Sequence[Step]]
Rows = Callable[[Data], Iterable[Row]]


@dataclass(frozen=True)
class Template:
    """A kind of task.

    Attributes:
        name: Its name.
        sites: The sites that it needs, the one that it starts on first.
        intent: What the agent is asked.
        rows: What fills the slots, in an order that does not matter; each row is a possible task.
        plan: How it is done, step by step.
        answer: The typed answer that is wanted (see `scoring`).
        url: Path of the page that the agent must stop on, on the first site.
        url_query: Parameters that its address must have.
        state: What questions about the sites must answer at the end.
        login: Account on the shop front.
    """

    name: str
    sites: tuple[str, ...]
    intent: str
    rows: Rows
    plan: Plan
    answer: Fields | None = None
    url: str = ""
    url_query: Mapping[str, str] = field(default_factory=dict)
    state: Sequence[Fields] = ()
    login: str = ""

    def task(self, row: Row) -> Fields:
        """Return the task in WebArena's fields that a row makes."""
        start = f"http://{self.sites[0]}/"
        evaluation: Fields = {}
        if self.answer is not None:
            evaluation["answer"] = _filled(self.answer, row)
        if self.url:
            evaluation["url"] = {"site": self.sites[0], "path": _filled(self.url, row)}
            evaluation["url"] |= {"query": _filled(self.url_query, row)} if self.url_query else {}
        if self.state:
            evaluation["state"] = _filled(list(self.state), row)
        accounts = PRIVILEGED | {"shopping": _filled(self.login, row)}
        return {
            "template": self.name,
            "sites": list(self.sites),
            "intent": _filled(self.intent, row),
            "start_url": start,
            "logins": {site: accounts[site] for site in self.sites if accounts[site]},
            "changes_state": bool(self.state),
            "eval": evaluation,
            "plan": [*(_rule(step, row) for step in reversed(flat(self.plan))), {"see": [], "do": f"goto [{start}]"}],
        }


def _rule(step: Step, row: Row) -> Fields:
    element = f" [{{{_line(step.line, row)}}}]" if step.line else ""
    return {"see": [_line(line, row) for line in step.see], "do": f"{step.verb}{element}{step.rest.format(**row)}"}


def _line(line: str, row: Row) -> str:
    """Fill the slots of a line, with what stands in quotes there quoted as pages show it."""
    parts = _QUOTED.split(line)
    filled = [part.replace("\\'", "'").format(**row) for part in parts]
    if any(OPERATOR.search(name) for name in filled[1::2]):
        raise ValueError(f"{line}: a name with an operator of plans in it: {filled[1::2]}.")
    return "".join(quote(part) if number % 2 else part for number, part in enumerate(filled))


def _filled(value: Any, row: Row) -> Any:
    """Fill all texts in a value; one that is nothing but a slot becomes what the row has, whatever its type."""
    if isinstance(value, str):
        slot = _SLOT.fullmatch(value)
        return row[slot[1]] if slot else value.format(**row)
    if isinstance(value, Mapping):
        return {key: _filled(item, row) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, row) for item in value]
    return value


# ---- steps ---------------------------------------------------------------------------------------------


def click(line: str, *see: str) -> Step:
    """Click an element."""
    return Step("click", line, "", see)


def fill(line: str, text: str, *see: str) -> Step:
    """Type into a field, or choose in a list."""
    return Step("type", line, f" [{text}] [0]", see)


def enter(line: str, text: str, *see: str) -> Step:
    """Type into a field and press Enter."""
    return Step("type", line, f" [{text}] [1]", see)


def stop(answer: str, *see: str) -> Step:
    """End the task where the page shows these lines."""
    return Step("stop", "", f" [{answer}]", see)


def form(fields: Mapping[str, str], submit: str, *see: str) -> list[Step]:
    """Fill fields one after the other, then click; each step sees that those before have had their effect.

    Args:
        fields: Line to text.
        submit: Line of the button.
        see: What else the page shows.
    """
    steps = []
    for line, text in fields.items():
        steps.append(fill(line, text, *see))
        see = (*see, f"{line} value: '{text}'")
    return [*steps, click(submit, *see)]


def flat(plan: Plan) -> list[Step]:
    """Return the steps of a plan that has lists of steps in it."""
    return [step for part in plan for step in ([part] if isinstance(part, Step) else part)]


def in_new_tab(site: str, kept: str, see: Sequence[str], steps: Plan) -> list[Step]:
    """Leave a page open and go on with another site in a new tab.

    Args:
        site: The other site.
        kept: The beginning of the page's title.
        see: What it shows.
        steps: What is done then.
    """
    tab = f"tab '{kept}'"
    return [
        Step("new_tab", see=tuple(see)),
        Step("goto", rest=f" [http://{site}/]", see=(tab, "URL: about:blank")),
        *(step._replace(see=(tab, *step.see)) for step in flat(steps)),
    ]


# ---- answers and states --------------------------------------------------------------------------------


def number(value: str, unit: str = "") -> Fields:
    """A number."""
    return {"type": "number", "value": value} | ({"unit": unit} if unit else {})


def money(value: str) -> Fields:
    """An amount of dollars."""
    return {"type": "money", "value": value, "currency": "USD"}


def text(value: str, also: str = "") -> Fields:
    """A text, or another name for the same."""
    return {"type": "text", "value": value} | ({"also": [also]} if also else {})


def date(value: str) -> Fields:
    """A day."""
    return {"type": "date", "value": value}


def all_of(items: str) -> Fields:
    """All of a list, in any order; the slot holds what `texts` makes."""
    return {"type": "list", "items": items}


def texts(values: Iterable[str]) -> list[Fields]:
    """Texts as items of a list."""
    return [{"type": "text", "value": value} for value in values]


def state(site: str, query: str, equals: Any, /, **arguments: Any) -> Fields:
    """What a question about a site must answer."""
    return {"site": site, "query": query, "arguments": arguments, "equals": equals}


def rows_are(site: str, statement: str, equals: Any, *parameters: Any) -> Fields:
    """What a SELECT statement must give."""
    return state(site, "sql", equals, statement=statement, parameters=list(parameters))


# ---- rows ----------------------------------------------------------------------------------------------


def given(*rows: Row) -> Rows:
    """Rows that do not come from the sites."""
    return lambda _: [dict(row) for row in rows]


def spread(rows: Sequence[Row], count: int, first: int = 0) -> list[Row]:
    """Return so many rows at even distances, all where there are not more."""
    if len(rows) <= count:
        return list(rows)
    return [rows[(first + number * len(rows) // count) % len(rows)] for number in range(count)]


def alternating(rows: Iterable[Row], key: str) -> list[Row]:
    """Return rows so that values of a key take turns, as far as they go; each group begins at its middle."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    for value, group in groups.items():
        groups[value] = [*group[len(group) // 2 :], *group[: len(group) // 2]]
    turns = max(map(len, groups.values()), default=0)
    return [group[turn] for turn in range(turns) for group in groups.values() if turn < len(group)]


def balanced(rows: Iterable[Row], key: str) -> list[Row]:
    """Return as many rows as a template has tasks, with as many values of a key as there are."""
    return alternating(rows, key)[:PER_TEMPLATE]


def only(rows: Iterable[Row], key: str) -> list[Row]:
    """Return the rows whose value of a key no other row has."""
    listed = list(rows)
    seen: dict[Any, int] = {}
    for row in listed:
        seen[row[key]] = seen.get(row[key], 0) + 1
    return [row for row in listed if seen[row[key]] == 1]


def dollars(amount: str | Decimal) -> str:
    """Return an amount as the shop shows it."""
    return f"${Decimal(amount):,.2f}"


def day(time: str) -> str:
    """Return the day of a time."""
    return time[:10]


def month_name(month: str) -> str:
    """Return `2024-05` as `May 2024`."""
    return datetime.date.fromisoformat(f"{month}-01").strftime("%B %Y")


def last_day(month: str) -> str:
    """Return the last day of a month, `2024-05`."""
    first = datetime.date.fromisoformat(f"{month}-01")
    return ((first + datetime.timedelta(days=32)).replace(day=1) - datetime.timedelta(days=1)).isoformat()
