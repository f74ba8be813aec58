"""Makes `data/tasks.json` from the content of the sites: intents, truths and plans.

python -m agentgym_envs.webarena.build_tasks          # writes the file
python -m agentgym_envs.webarena.build_tasks --check  # fails if the file is not what would be written
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentgym_envs.webarena.page import quote
from agentgym_envs.webarena.sites.accounts import PRIVILEGED
from agentgym_envs.webarena.sites.interface import Tenant, start_sites

Fields = dict[str, Any]
FILE = Path(__file__).with_name("data") / "tasks.json"
PER_TEMPLATE = 4
_TEST_EVERY = 4

_TICKETS = (
    ("Sieve the test data", "task", "minor"),
    ("The legend hides the last bar", "defect", "critical"),
    ("Offer a dark style", "enhancement", "trivial"),
    ("Start fails without a home folder", "defect", "blocker"),
)
_TOPICS = (
    ("Swapping spare seedlings", "I have a tray too many. Who would like some?"),
    ("Meeting on Saturday", "Shall we meet at the library at ten?"),
    ("A word of thanks", "Thank you all for the advice of last week."),
    ("Lost and found", "Somebody left a blue scarf behind."),
)


def build(sites: Tenant) -> list[Fields]:
    """Return all tasks' fields, template by template."""
    tasks: list[Fields] = []
    for template in TEMPLATES:
        for number, fields in enumerate(_first(template(sites), PER_TEMPLATE)):
            fields["template"] = template.__name__
            fields["split"] = "test" if number % _TEST_EVERY == _TEST_EVERY - 1 else "train"
            tasks.append(fields)
    return tasks


# ---- tracker -------------------------------------------------------------------------------------------


def active_tickets_of_milestone(sites: Tenant) -> Iterator[Fields]:
    """A number that the roadmap shows."""
    for row in _open_milestones(sites):
        yield _task(
            "gitlab",
            f'How many active tickets does the milestone "{row["name"]}" have? Answer with the number.',
            {"answer": {"type": "number", "value": row["open"], "unit": "ticket"}},
            [
                (_link(f"Milestone: {row['name']}"), f"link 'active: {row['open']}'", f"stop [{row['open']}]"),
                (f"click {_at(_link('ROADMAP'))}",),
            ],
        )


def page_of_milestone(sites: Tenant) -> Iterator[Fields]:
    """A page to be opened."""
    for row in _open_milestones(sites):
        path, link = f"/milestone/{row['name'].replace(' ', '%20')}", _link(f"Milestone: {row['name']}")
        yield _task(
            "gitlab",
            f'Open the page of the milestone "{row["name"]}".',
            {"url": {"site": "gitlab", "path": path}},
            [
                (f"URL: http://gitlab{path}", "stop []"),
                (f"click {_at(link)}",),
                (f"click {_at(_link('ROADMAP'))}",),
            ],
        )


def new_ticket(sites: Tenant) -> Iterator[Fields]:
    """A form with lists to choose from."""
    last = max(row["id"] for row in sites.query("gitlab", "tickets"))
    for summary, kind, priority in _TICKETS:
        summaries, types, priorities = "textbox 'Summary:'", "combobox 'Type:'", "combobox 'Priority:'"
        filled = f"{summaries} value: {quote(summary)}"
        typed = f"{types} value: {quote(kind)}"
        ranked = f"{priorities} value: {quote(priority)}"
        yield _task(
            "gitlab",
            f'Create a ticket with the summary "{summary}", of type "{kind}" and with the priority "{priority}".',
            {
                "state": [
                    {
                        "site": "gitlab",
                        "query": "sql",
                        "arguments": {
                            "statement": "SELECT summary, type, priority FROM ticket WHERE id > ?",
                            "parameters": [last],
                        },
                        "equals": [{"summary": summary, "type": kind, "priority": priority}],
                    }
                ]
            },
            [
                (_link("Previous Ticket"), f"heading {quote(summary)}", "stop []"),
                (filled, typed, ranked, f"click {_at(_button('Create ticket'))}"),
                (filled, typed, f"type {_at(priorities)} [{priority}] [0]"),
                (filled, f"type {_at(types)} [{kind}] [0]"),
                (f"type {_at(summaries)} [{summary}] [0]",),
                (f"click {_at(_link('NEW TICKET'))}",),
            ],
            changes_state=True,
        )


# ---- forum ---------------------------------------------------------------------------------------------


def topics_of_forum(sites: Tenant) -> Iterator[Fields]:
    """A number on the first page."""
    for row in _spread(sites.query("reddit", "forums")):
        yield _task(
            "reddit",
            f'How many topics does the forum "{row["name"]}" have? Answer with the number.',
            {"answer": {"type": "number", "value": row["topics"], "unit": "topic"}},
            [(_link(row["name"]), f"StaticText '{row['topics']}'", f"stop [{row['topics']}]")],
        )


def author_of_topic(sites: Tenant) -> Iterator[Fields]:
    """A name in a list."""
    for forum in _spread(sites.query("reddit", "forums"), first=1):
        topics = [row for row in sites.query("reddit", "topics", forum=forum["name"]) if row["approved"]]
        newest = max(topics, key=lambda row: (row["last_post_on"], row["id"]))
        yield _task(
            "reddit",
            f'Who started the topic "{newest["subject"]}" in the forum "{forum["name"]}"? Give the account.',
            {"answer": {"type": "text", "value": newest["account"]}},
            [
                (
                    f"heading {quote(forum['name'])} level: 1",
                    _link(newest["subject"]),
                    _link(newest["account"]),
                    f"stop [{newest['account']}]",
                ),
                (f"click {_at(_link(forum['name']))}",),
            ],
        )


def new_topic(sites: Tenant) -> Iterator[Fields]:
    """A form with an editor."""
    forums = list(_spread(sites.query("reddit", "forums"), first=2))
    for (subject, text), forum in zip(_TOPICS, forums, strict=False):
        subjects = "textbox 'Subject'"
        filled = f"{subjects} value: {quote(subject)}"
        yield _task(
            "reddit",
            f'Start a topic with the subject "{subject}" and the text "{text}" in the forum "{forum["name"]}".',
            {
                "state": [
                    {
                        "site": "reddit",
                        "query": "topics",
                        "arguments": {"subject": subject},
                        "equals": [{"forum": forum["name"], "account": PRIVILEGED["reddit"], "posts": 1}],
                    },
                    {
                        "site": "reddit",
                        "query": "sql",
                        "arguments": {
                            "statement": "SELECT content FROM forum_conversation_post WHERE subject = ?",
                            "parameters": [subject],
                        },
                        "equals": [{"content": text}],
                    },
                ]
            },
            [
                (f"heading {quote(subject)} level: 1", "stop []"),
                (filled, f"textbox value: {quote(text)}", f"click {_at(_button('Submit'))}"),
                (filled, f"type {_at('textbox')} [{text}] [0]"),
                (f"type {_at(subjects)} [{subject}] [0]",),
                (f"heading {quote(forum['name'])} level: 1", f"click {_at(_link('New topic'))}"),
                (f"click {_at(_link(forum['name']))}",),
            ],
            changes_state=True,
        )


# ---- merchant ------------------------------------------------------------------------------------------


def total_of_order(sites: Tenant) -> Iterator[Fields]:
    """An amount that is found by a search."""
    numbers = "textbox 'Order number:'"
    for row in _spread(sites.query("cms", "orders")):
        yield _task(
            "cms",
            f"What is the total of the order {row['number']}? Answer with the amount.",
            {"answer": {"type": "money", "value": row["total"], "currency": "USD"}},
            [
                (_cell(f"${_grouped(row['total'])}"), _link(row["number"]), f"stop [${_grouped(row['total'])}]"),
                (f"heading 'Order #{row['number']}' level: 1", f"stop [${_grouped(row['total'])}]"),
                (f"type {_at(numbers)} [{row['number']}] [1]",),
                (f"click {_at(_link('Orders'))}",),
                (f"click {_at(_button('Fulfilment'))}",),
            ],
        )


def status_of_order(sites: Tenant) -> Iterator[Fields]:
    """A word in a list."""
    newest = sorted(sites.query("cms", "orders"), key=lambda row: row["placed"])[-8:]
    for row in newest[::2]:
        yield _task(
            "cms",
            f"What is the status of the order {row['number']}?",
            {"answer": {"type": "text", "value": row["status"]}},
            [
                (_link(row["number"]), _cell(row["status"]), f"stop [{row['status']}]"),
                (f"click {_at(_link('Orders'))}",),
                (f"click {_at(_button('Fulfilment'))}",),
            ],
        )


# ---- customer ------------------------------------------------------------------------------------------


def total_of_latest_order(sites: Tenant) -> Iterator[Fields]:
    """An amount in the account's history."""
    for account, orders in _customers_with_orders(sites):
        total = f"${_grouped(orders[-1]['total'])}"
        yield _task(
            "shopping",
            "What is the total of my latest order? Answer with the amount.",
            {"answer": {"type": "money", "value": orders[-1]["total"], "currency": "USD"}},
            [
                ("URL: http://shopping/accounts/orders/", _cell(total), f"stop [{total}]"),
                (f"click {_at(_link('Order History'))}",),
                (f"click {_at(_link('Account'))}",),
            ],
            login=account,
        )


def day_of_registration(sites: Tenant) -> Iterator[Fields]:
    """A date in the account's profile."""
    for account, _ in _customers_with_orders(sites):
        joined = sites.query("shopping", "customers", account=account)[0]["joined"]
        day = datetime.datetime.fromisoformat(joined).date().isoformat()
        yield _task(
            "shopping",
            "On which day was my account registered? Answer with the date as year-month-day.",
            {"answer": {"type": "date", "value": day}},
            [("rowheader 'Date registered'", f"stop [{day}]"), (f"click {_at(_link('Account'))}",)],
            login=account,
        )


TEMPLATES: Sequence[Callable[[Tenant], Iterator[Fields]]] = (
    active_tickets_of_milestone,
    page_of_milestone,
    new_ticket,
    topics_of_forum,
    author_of_topic,
    new_topic,
    total_of_order,
    status_of_order,
    total_of_latest_order,
    day_of_registration,
)


# ---- parts ---------------------------------------------------------------------------------------------


def _task(
    site: str,
    intent: str,
    evaluation: Fields,
    rules: Sequence[tuple[str, ...]],
    *,
    login: str = "",
    changes_state: bool = False,
) -> Fields:
    """Put a task together; a rule is the lines that it must see, and the action."""
    start = f"http://{site}/"
    plan = [{"see": list(see), "do": action} for *see, action in (*rules, (f"goto [{start}]",))]
    return {
        "sites": [site],
        "intent": intent,
        "start_url": start,
        "logins": {site: login or PRIVILEGED[site]},
        "changes_state": changes_state,
        "eval": evaluation,
        "plan": plan,
    }


def _open_milestones(sites: Tenant) -> list[Fields]:
    return [row for row in sites.query("gitlab", "milestones") if row["completed"] is None]


def _customers_with_orders(sites: Tenant) -> Iterator[tuple[str, list[Fields]]]:
    """Accounts with at least two orders and those, oldest first."""
    orders: dict[str, list[Fields]] = {}
    for row in sites.query("shopping", "orders"):
        orders.setdefault(row["account"], []).append(row)
    for account in sorted(account for account, rows in orders.items() if account and len(rows) > 1):
        yield account, orders[account]


def _spread(rows: Sequence[Fields], first: int = 0) -> Iterator[Fields]:
    """Rows at even distances, as many as a template has tasks."""
    for number in range(PER_TEMPLATE):
        yield rows[(first + number * len(rows) // PER_TEMPLATE) % len(rows)]


def _first(rows: Iterator[Fields], count: int) -> Iterator[Fields]:
    for _, fields in zip(range(count), rows, strict=False):
        yield fields


def _at(line: str) -> str:
    """The id of an element, in an action of a plan."""
    return f"[{{{line}}}]"


def _button(name: str) -> str:
    return f"button {quote(name)}"


def _link(name: str) -> str:
    return f"link {quote(name)}"


def _cell(text: str) -> str:
    return f"cell {quote(text)}"


def _grouped(amount: str) -> str:
    return f"{float(amount):,.2f}"


def main() -> None:
    """Write the file, or check it."""
    server = start_sites()
    try:
        sites = server.open_tenant()
        sites.reset({})
        text = json.dumps(build(sites), indent=1, ensure_ascii=False) + "\n"
    finally:
        server.close()
    if "--check" in sys.argv[1:]:
        if FILE.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{FILE} is not what the sites give; run python -m agentgym_envs.webarena.build_tasks")
    else:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
