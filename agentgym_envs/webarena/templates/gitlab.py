"""Tasks on the tracker: tickets, milestones, wiki and source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from agentgym_envs.webarena.sites.accounts import MAINTAINER
from agentgym_envs.webarena.sites.content import software
from agentgym_envs.webarena.sites.tenants import START
from agentgym_envs.webarena.templates.common import (
    Data,
    Fields,
    Plan,
    Row,
    Rows,
    Step,
    Template,
    all_of,
    alternating,
    balanced,
    click,
    date,
    day,
    enter,
    fill,
    flat,
    form,
    given,
    number,
    only,
    rows_are,
    spread,
    state,
    stop,
    text,
    texts,
)

SITES = ("gitlab",)
_NOW = int(START) * 1_000_000
_EXPERIMENT = "Try another way"  # how messages on the other branch begin
_OTHER = {"blocker": "major", "critical": "minor", "major": "blocker", "minor": "critical", "trivial": "major"}
_SUMMARIES = (
    ("Sieve the test data", "task", "minor", "seedvault/importer"),
    ("The legend hides the last bar", "defect", "critical", "tidebook/plot"),
    ("Offer a dark style", "enhancement", "trivial", "nightline/web"),
    ("Start fails without a home folder", "defect", "blocker", "kilnlog/settings"),
    ("Sort stations by country", "enhancement", "minor", "nightline/stations"),
    ("Translate the error messages", "task", "trivial", "tidebook/cli"),
    ("Alarm sounds twice", "defect", "critical", "kilnlog/alarm"),
    ("Show the weight of a lot in ounces", "enhancement", "blocker", "seedvault/lots"),
)
_MILESTONES = (
    ("tidebook 1.3", "Small repairs only."),
    ("seedvault 1.1", "Labels with pictures."),
    ("nightline 3.4", "Faster searches."),
    ("kilnlog 0.7", "Several kilns at once."),
    ("Summer clean-up", "Old code goes out."),
    ("Translations", "All texts in three languages."),
)
_DESCRIPTIONS = (
    "Only what the harbours asked for.",
    "Everything that did not make it before.",
    "A quiet one: documentation and tests.",
    "To be tested by two libraries first.",
    "Needs a new data format.",
    "No new features after April.",
)
_UNWRITTEN = (
    "Words that we use, and what we mean by them.",
    "Two people read every change before it goes in.",
    "We meet at the lake on the first Saturday of July.",
    "Write to the maintainer, and to nobody else.",
    "Look for tickets with the keyword easy.",
    "We measure each release on the same machine.",
)
_WATCHED = ("needs-docs", "easy, quick", "regression, urgent", "design", "help-wanted, docs", "performance")

# ---- what fills the slots ------------------------------------------------------------------------------


def names(data: Data) -> dict[str, str]:
    """Full names by account."""
    return {row["account"]: row["name"] for row in data("gitlab", "users")}


def _matches(count: int) -> str:
    return f"{count} match" if count == 1 else f"{count} matches"


def milestones(data: Data, completed: bool = False) -> list[Row]:
    """Milestones, with the way to their pages."""
    rows = [row for row in data("gitlab", "milestones") if bool(row["completed"]) is completed]
    return [row | {"path": row["name"].replace(" ", "%20"), "day": day(row["due"])} for row in rows]


def tickets(data: Data) -> list[Row]:
    """Tickets, with full names."""
    known = names(data)
    rows = data("gitlab", "tickets")
    for row in rows:
        row["owner_name"], row["reporter_name"] = known.get(row["owner"], ""), known[row["reporter"]]
        end = f": {row['resolution']}" if row["resolution"] else ""
        row["result"] = f"#{row['id']}: {row['type']}: {row['summary']} ({row['status']}{end})"
    return rows


def owned(data: Data) -> list[Row]:
    """Tickets that somebody else owns than who reported them."""
    return [row for row in tickets(data) if row["owner"] and row["owner"] != row["reporter"]]


def open_tickets(data: Data) -> list[Row]:
    """Tickets that are not closed, of each priority in turn."""
    return alternating((row for row in tickets(data) if row["status"] != "closed"), "priority")


def comments(data: Data) -> Iterator[Row]:
    """The third comments of tickets whose comments are of different people."""
    known = names(data)
    for row in data("gitlab", "tickets"):
        made = [change for change in row["changes"] if change["field"] == "comment"]
        if len(made) > 3 and len({change["author"] for change in made}) == len(made):
            yield row | {"account": made[2]["author"], "who": known[made[2]["author"]]}


def files(data: Data) -> Iterator[Row]:
    """Source files and the last commits that changed them."""
    last: dict[tuple[str, str], Row] = {}
    for commit in data("gitlab", "commits"):
        if not commit["message"].startswith(_EXPERIMENT):
            last |= {(commit["repository"], path): commit for path in commit["paths"] if path.startswith("src/")}
    for (repository, path), commit in last.items():
        author = re.sub(r" <.*", "", commit["author"])
        shown = commit["time"].removesuffix("+00:00") + "Z"
        yield {"repository": repository, "file": path.removeprefix("src/"), "author": author} | {
            "day": day(commit["time"]),
            "shown": shown,
        }


def fixes(data: Data) -> Iterator[Row]:
    """Commits that fixed tickets, of the newest, which a repository's log shows first."""
    for project in software.PROJECTS:
        made = data("gitlab", "commits", repository=project.name)
        for commit in [row for row in made if not row["message"].startswith(_EXPERIMENT)][-30:]:
            found = re.search(r" \(fixes #(\d+)\)$", commit["message"])
            if found:
                author = re.sub(r" <.*", "", commit["author"])
                yield {"repository": project.name, "ticket": int(found[1]), "author": author}


def page_text(data: Data, name: str) -> str:
    """Source of a wiki page."""
    return next(str(row["text"]) for row in data("gitlab", "wiki") if row["name"] == name)


def weeks(data: Data) -> Iterator[Row]:
    """Weeks and who is on call."""
    page = page_text(data, "OnCallRota")
    for week, who in re.findall(r"\|\| (\d+) \|\| (.+?) \|\|", page):
        yield {"week": week, "who": who}


def meetings(data: Data) -> Iterator[Row]:
    """Meetings, who was there and what was decided."""
    page = page_text(data, "MeetingNotes")
    for meeting in re.finditer(
        r"== Meeting (\d+) ==\s+Present: (.+?)\.\s+Decided: tickets #(\d+) and #(\d+) come first", page
    ):
        present = meeting[2].split(", ")
        first, second = meeting[3], meeting[4]
        yield {"meeting": meeting[1], "present": texts(present), "shown": "; ".join(present)} | {
            "tickets": [{"type": "number", "value": value} for value in (first, second)],
            "pair": f"{first}; {second}",
        }


def components(data: Data) -> list[Row]:
    """Components and the names of their owners."""
    known = names(data)
    return [row | {"owner_name": known[row["owner"]]} for row in data("gitlab", "components")]


def versions(data: Data) -> list[Row]:
    """Versions and the days of their releases."""
    return [row | {"day": day(row["time"]), "shown": row["time"].removesuffix("+00:00") + "Z"} for row in
            data("gitlab", "versions")]  # fmt: skip


def pages(data: Data) -> Iterator[Row]:
    """Wiki pages and who changed them last."""
    known = names(data)
    for row in data("gitlab", "wiki"):
        if row["author"] in known and row["version"] > 1 and "/" not in row["name"]:
            yield row | {"who": known[row["author"]], "link": row["name"]}


def projects(data: Data) -> Iterator[Row]:
    """Projects with what installing them needs."""
    for row in data("gitlab", "wiki"):
        found = re.search(r"(\w+) needs Python 3\.\d+ and (\d+) MB", row["text"])
        if found:
            yield {"project": found[1], "size": int(found[2]), "guide": row["name"].split("/")[0]} | {
                "sentence": re.search(r".*needs Python.*", row["text"])[0]  # type: ignore[index]
            }


def open_of_owner(data: Data) -> list[Row]:
    """Developers and how many open tickets they own."""
    counts: dict[str, int] = {}
    for row in data("gitlab", "tickets"):
        if row["status"] != "closed" and row["owner"]:
            counts[row["owner"]] = counts.get(row["owner"], 0) + 1
    return balanced(
        (
            {"account": account, "count": count, "who": names(data)[account], "matches": _matches(count)}
            for account, count in counts.items()
        ),
        "count",
    )


def new_tickets(data: Data) -> Iterator[Row]:
    """Tickets that are not there yet."""
    following = 1 + max(row["id"] for row in data("gitlab", "tickets"))
    for summary, kind, priority, component in _SUMMARIES:
        yield {"id": following, "summary": summary, "type": kind, "priority": priority, "component": component}


def refiled(data: Data) -> Iterator[Row]:
    """Open tickets with another type and component than theirs."""
    others = [row["name"] for row in components(data)]
    for row in open_tickets(data):
        kind = {"defect": "enhancement", "enhancement": "task", "task": "defect"}[row["type"]]
        place = (others.index(row["component"]) + 7) % len(others)
        yield row | {"new_type": kind, "new_component": others[place]}


def reassigned(data: Data) -> Iterator[Row]:
    """Open tickets with somebody who does not own them."""
    accounts = [row["account"] for row in data("gitlab", "users")]
    for place, row in enumerate(open_tickets(data)):
        account = accounts[place * 5 % len(accounts)]
        if account not in (row["owner"], MAINTAINER):
            yield row | {"new_owner": account}


def watched(data: Data) -> Iterator[Row]:
    """Open tickets with keywords and somebody who is to hear of them."""
    accounts = [row["account"] for row in data("gitlab", "users") if row["account"] != MAINTAINER]
    chosen = spread(open_tickets(data), len(_WATCHED))
    for place, (row, keywords) in enumerate(zip(chosen, _WATCHED, strict=True)):
        yield row | {"new_keywords": keywords, "watcher": accounts[place * 3 % len(accounts)]}


def added_components(data: Data) -> Iterator[Row]:
    """Components that are not there yet, and how the list looks with them."""
    accounts = [row["account"] for row in data("gitlab", "users") if row["account"] != MAINTAINER]
    names_ = ("tidebook/export", "seedvault/photos", "nightline/maps", "kilnlog/export", "tidebook/moon", "website")
    for place, name in enumerate(names_):
        added = {"name": name, "owner": accounts[place * 4 % len(accounts)]}
        known = [{"name": row["name"], "owner": row["owner"]} for row in components(data)]
        yield added | {"account": added["owner"], "all": sorted([*known, added], key=lambda row: row["name"])}


def moved_components(data: Data) -> Iterator[Row]:
    """Components with a new owner, and how the list looks then."""
    accounts = [row["account"] for row in data("gitlab", "users") if row["account"] != MAINTAINER]
    known = [{"name": row["name"], "owner": row["owner"]} for row in components(data)]
    for place, row in enumerate(known):
        account = accounts[(place * 3 + 1) % len(accounts)]
        if account != row["owner"]:
            moved = [other | {"owner": account} if other is row else other for other in known]
            yield row | {"account": account, "all": moved, "count": len(known)}


def give(*more: Row) -> Rows:
    """Open tickets at even distances, each with something to be done with it."""

    def rows(data: Data) -> Iterator[Row]:
        chosen = open_tickets(data)
        for place, extra in enumerate(more):
            yield chosen[(2 * place + 1) * len(chosen) // (2 * len(more))] | extra

    return rows


# ---- what is often done --------------------------------------------------------------------------------

JUMP = enter("textbox", "#{id}", "link 'WIKI'")
"""The search field on each page opens a ticket by its number."""

TICKET = "tab '#{id} ('"
DONE = "StaticText 'by Noor Castellan,'"
"""The maintainer's own change, in a ticket's history."""


def fact(name: str, intent: str, line: str, answer: str, rows: Rows) -> Template:
    """Something that a ticket's page says."""
    return Template(name, SITES, intent, rows, [JUMP, stop(answer, TICKET, line)], text(answer))


def modify(name: str, intent: str, rows: Rows, steps: Plan, changed: Row) -> Template:
    """A change of a ticket's properties."""
    plan = [
        JUMP,
        click("link 'Modify Ticket'", TICKET),
        *(step._replace(see=(TICKET, "group 'Change Properties'", *step.see)) for step in flat(steps)),
        stop("", TICKET, DONE),
    ]
    return Template(name, SITES, intent, rows, plan, state=changes(changed))


def changes(columns: Row) -> list[Fields]:
    """The ticket, and no other, was changed or made, and is now so."""
    touched = "SELECT id FROM ticket WHERE changetime > ? OR time > ? ORDER BY id"
    return [
        rows_are("gitlab", touched, [{"id": "{id}"}], _NOW, _NOW),
        state("gitlab", "tickets", [columns], number="{id}"),
    ]


def admin(panel: str, *steps: Step | Sequence[Step]) -> Plan:
    """Do something on a panel of the administration."""
    return [click("link 'ADMIN'"), click(f"link '{panel}'", "heading 'Administration'"), *steps]


def by_source(*steps: Step) -> Plan:
    """Do something in a repository's folder `src`."""
    return [
        click("link 'BROWSE SOURCE'"),
        click("link '{repository}'", "heading 'Repository Index'"),
        click("link 'src'", "heading 'source: {repository}'"),
        *(step._replace(see=("heading 'source: {repository} / src'", *step.see)) for step in steps),
    ]


TEMPLATES = (
    Template(
        "active_tickets_of_milestone",
        SITES,
        'How many active tickets does the milestone "{name}" have? Answer with the number.',
        milestones,
        [
            click("link 'ROADMAP'"),
            click("link 'Milestone: {name}'"),
            stop("{open}", "heading 'Milestone {name}' level: 1", "link 'active: {open}'"),
        ],
        number("{open}", "ticket"),
    ),
    Template(
        "due_day_of_milestone",
        SITES,
        'On which day is the milestone "{name}" due? Answer with the date as year-month-day.',
        milestones,
        [click("link 'ROADMAP'"), stop("{day}", "link 'Milestone: {name}' + StaticText 'Due in'")],
        date("{day}"),
    ),
    Template(
        "closed_tickets_of_completed_milestone",
        SITES,
        'The milestone "{name}" is completed. How many closed tickets does it have? Answer with the number.',
        lambda data: milestones(data, completed=True),
        [
            click("link 'ROADMAP'"),
            click("checkbox 'Show completed milestones' checked: false"),
            click("button 'Update'", "checkbox 'Show completed milestones' checked: true"),
            stop("{closed}", "link 'Milestone: {name}' + link * + link '{closed}/{closed} closed'"),
        ],
        number("{closed}", "ticket"),
    ),
    fact(
        "owner_of_ticket",
        "Who owns ticket #{id}? Answer with the full name.",
        "rowheader 'Owned by:' + link '{owner_name}'",
        "{owner_name}",
        owned,
    ),
    fact(
        "reporter_of_ticket",
        "Who reported ticket #{id}? Answer with the full name.",
        "rowheader 'Reported by:' + link '{reporter_name}'",
        "{reporter_name}",
        owned,
    ),
    fact(
        "component_of_ticket",
        "Which component is ticket #{id} about? Answer with the component's name.",
        "rowheader 'Component:' + link '{component}'",
        "{component}",
        lambda data: balanced(tickets(data), "component"),
    ),
    fact(
        "author_of_comment",
        "Who wrote comment 3 on ticket #{id}? Answer with the full name.",
        "link 'comment:3' + StaticText 'by {who},'",
        "{who}",
        comments,
    ),
    Template(
        "open_tickets_of_owner",
        SITES,
        "How many tickets that are not closed does {who} (account {account}) own? Answer with the number.",
        open_of_owner,
        [
            click("link 'VIEW TICKETS'"),
            click("link 'New Custom Query'", "heading 'Available Reports'"),
            fill("rowheader 'Owner' » textbox", "{account}"),
            click("button 'Update'", "rowheader 'Owner' » textbox value: '{account}'"),
            stop("{count}", "rowheader 'Owner' » textbox value: '{account}'", "heading 'Custom Query ({matches})'"),
        ],
        number("{count}", "ticket"),
    ),
    Template(
        "last_change_of_file",
        SITES,
        'On which day was the file "src/{file}" of the repository {repository} last changed on the branch main? '
        "Answer with the date as year-month-day.",
        files,
        by_source(stop("{day}", "link '{file}' + link * + link * + link * + link '{shown}'")),
        date("{day}"),
    ),
    Template(
        "last_author_of_file",
        SITES,
        'Who last changed the file "src/{file}" of the repository {repository} on the branch main? '
        "Answer with the full name.",
        files,
        by_source(stop("{author}", "link '{file}' + cell * + cell * + cell * + cell '{author}'")),
        text("{author}"),
    ),
    Template(
        "author_of_fix",
        SITES,
        "Who committed the change in the repository {repository} whose message says that it fixes ticket #{ticket}? "
        "Answer with the full name.",
        fixes,
        [
            click("link 'BROWSE SOURCE'"),
            click("link '{repository}'", "heading 'Repository Index'"),
            click("link 'Revision Log'", "heading 'source: {repository}'"),
            stop("{author}", "heading 'source: {repository}'", "cell '{author}' + cell * + link '#{ticket}'"),
        ],
        text("{author}"),
    ),
    Template(
        "on_call",
        SITES,
        "Who is on call in week {week}, according to the on-call rota in the wiki? Answer with the full name.",
        weeks,
        [click("link 'WIKI'"), click("link 'OnCallRota'"), stop("{who}", "cell '{week}' + cell '{who}'")],
        text("{who}"),
    ),
    Template(
        "people_at_meeting",
        SITES,
        "Who was present at meeting {meeting}, according to the meeting notes in the wiki? "
        "List the full names, separated by semicolons.",
        meetings,
        [click("link 'WIKI'"), click("link 'MeetingNotes'"), stop("{shown}", "heading 'Meeting {meeting}'")],
        all_of("{present}"),
    ),
    Template(
        "tickets_of_meeting",
        SITES,
        "Which two tickets were to come first, according to the notes of meeting {meeting} in the wiki? "
        "Give their two numbers, separated by a semicolon.",
        meetings,
        [click("link 'WIKI'"), click("link 'MeetingNotes'"), stop("{pair}", "heading 'Meeting {meeting}'")],
        all_of("{tickets}"),
    ),
    Template(
        "space_for_installation",
        SITES,
        "How many megabytes of disk does {project} need, according to its installation page in the wiki? "
        "Answer with the number.",
        projects,
        [
            click("link 'WIKI'"),
            click("link '{project}'", "heading 'Slipway' » link 'OnCallRota'"),
            click("link '{guide}/Install'"),
            stop("{size}", "heading 'Installing {project}'"),
        ],
        number("{size}", "MB"),
    ),
    Template(
        "owner_of_component",
        SITES,
        'Which account owns the component "{name}"? Answer with the name of the account.',
        components,
        admin("Components", stop("{owner}", "link '{name}' + cell '{owner}'")),
        text("{owner}", also="{owner_name}"),
    ),
    Template(
        "release_day_of_version",
        SITES,
        'On which day was the version "{name}" released? Answer with the date as year-month-day.',
        versions,
        admin("Versions", stop("{day}", "link '{name}' + cell '{shown}'")),
        date("{day}"),
    ),
    Template(
        "last_author_of_page",
        SITES,
        'Who made the latest change to the wiki page "{name}"? Answer with the full name.',
        pages,
        [
            click("link 'WIKI'"),
            click("link 'Index'", "heading 'Slipway' » link 'OnCallRota'"),
            click("link '{name}'", "heading 'Index'"),
            click("link 'History'", "URL: http://gitlab/wiki/{name}"),
            stop("{who}", "heading 'Change History for {name}'", "link '{version}' + cell * + cell '{who}'"),
        ],
        text("{who}"),
    ),
    # ---- pages to be opened ----
    Template(
        "page_of_milestone",
        SITES,
        'Open the page of the milestone "{name}".',
        milestones,
        [
            click("link 'ROADMAP'"),
            click("link 'Milestone: {name}'"),
            stop("", "URL: http://gitlab/milestone/{path}"),
        ],
        url="/milestone/{path}",
    ),
    Template(
        "page_of_ticket",
        SITES,
        'Open the page of the ticket "{summary}".',
        lambda data: only(tickets(data), "summary"),
        [
            enter("textbox", "{summary}", "link 'WIKI'"),
            click("link '{result}'", "heading 'Search'"),
            stop("", TICKET),
        ],
        url="/ticket/{id}",
    ),
    Template(
        "page_of_file",
        SITES,
        'Show the source file "src/{file}" of the repository {repository}, as it is on the branch main.',
        files,
        [*by_source(click("link '{file}'")), stop("", "URL: http://gitlab/browser/{repository}/src/{file}")],
        url="/browser/{repository}/src/{file}",
    ),
    Template(
        "history_of_page",
        SITES,
        'Show the history of the wiki page "{name}", that is, the list of its versions.',
        lambda data: [row for row in data("gitlab", "wiki") if "/" not in row["name"] and row["name"] != "TitleIndex"],
        [
            click("link 'WIKI'"),
            click("link 'Index'", "heading 'Slipway' » link 'OnCallRota'"),
            click("link '{name}'", "heading 'Index'"),
            click("link 'History'", "URL: http://gitlab/wiki/{name}"),
            stop("", "heading 'Change History for {name}'"),
        ],
        url="/wiki/{name}",
        url_query={"action": "history"},
    ),
    # ---- changes ----
    Template(
        "new_ticket",
        SITES,
        'Create a ticket with the summary "{summary}", of type "{type}", with the priority "{priority}" and for the '
        'component "{component}". Leave everything else as it is.',
        new_tickets,
        [
            click("link 'NEW TICKET'"),
            *form(
                {
                    "textbox 'Summary:'": "{summary}",
                    "combobox 'Type:'": "{type}",
                    "combobox 'Priority:'": "{priority}",
                    "combobox 'Component:'": "{component}",
                },
                "button 'Create ticket'",
            ),
            stop("", TICKET, "heading '{summary}'"),
        ],
        state=changes({"summary": "{summary}", "type": "{type}", "priority": "{priority}", "component": "{component}"}),
    ),
    Template(
        "comment_on_ticket",
        SITES,
        'Add the comment "{comment}" to ticket #{id}, and change nothing else about it.',
        give(
            {"comment": "Fixed in my branch, please test."},
            {"comment": "This blocks the release."},
            {"comment": "I could not reproduce this on Windows."},
            {"comment": "Let us talk about it on Monday."},
            {"comment": "The same happens with the old parser."},
            {"comment": "Two users have written to me about this."},
            {"comment": "A smaller example is attached to the mail."},
            {"comment": "Needs a test before it can go in."},
        ),
        [
            JUMP,
            *form(
                {"heading 'Add Comment' » textbox 'You may use WikiFormatting here.'": "{comment}"},
                "button 'Submit changes'",
                TICKET,
            ),
            stop("", TICKET, DONE),
        ],
        state=[
            *changes({"status": "{status}", "owner": "{owner}", "priority": "{priority}"}),
            rows_are(
                "gitlab",
                "SELECT ticket, newvalue AS text FROM ticket_change WHERE time > ? AND field = 'comment'"
                " AND newvalue <> ''",
                [{"ticket": "{id}", "text": "{comment}"}],
                _NOW,
            ),
        ],
    ),
    modify(
        "close_ticket",
        "Close ticket #{id} with the resolution {resolution}.",
        give(*({"resolution": name} for name in ("fixed", "wontfix", "duplicate", "invalid", "worksforme", "fixed"))),
        [
            click("radio 'resolve' checked: false"),
            *form({"radio 'resolve' checked: true » combobox": "{resolution}"}, "button 'Submit changes'"),
        ],
        {"status": "closed", "resolution": "{resolution}", "summary": "{summary}"},
    ),
    modify(
        "change_priority",
        'Change the priority of ticket #{id} to "{new}".',
        lambda data: [row | {"new": _OTHER[row["priority"]]} for row in balanced(open_tickets(data), "priority")],
        form({"combobox 'Priority:'": "{new}"}, "button 'Submit changes'"),
        {"priority": "{new}", "status": "{status}", "type": "{type}"},
    ),
    modify(
        "change_type_and_component",
        'Ticket #{id} is filed wrongly. Make it of type "{new_type}" and move it to the component "{new_component}".',
        refiled,
        form({"combobox 'Type:'": "{new_type}", "combobox 'Component:'": "{new_component}"}, "button 'Submit changes'"),
        {"type": "{new_type}", "component": "{new_component}", "status": "{status}"},
    ),
    modify(
        "reassign_ticket",
        "Assign ticket #{id} to the account {new_owner}.",
        reassigned,
        [
            click("radio 'reassign' checked: false"),
            *form({"radio 'reassign' checked: true » textbox": "{new_owner}"}, "button 'Submit changes'"),
        ],
        {"owner": "{new_owner}", "status": "assigned"},
    ),
    modify(
        "accept_ticket",
        "Accept ticket #{id}, so that it is yours.",
        lambda data: balanced((row for row in open_tickets(data) if row["status"] != "accepted"), "status"),
        [click("radio 'accept' checked: false"), click("button 'Submit changes'", "radio 'accept' checked: true")],
        {"owner": MAINTAINER, "status": "accepted"},
    ),
    modify(
        "set_keywords",
        'Set the keywords of ticket #{id} to "{new_keywords}", and put the account {watcher} into its Cc field.',
        watched,
        form({"textbox 'Keywords:'": "{new_keywords}", "textbox 'Cc:'": "{watcher}"}, "button 'Submit changes'"),
        {"keywords": "{new_keywords}", "cc": "{watcher}", "status": "{status}"},
    ),
    Template(
        "new_wiki_page",
        SITES,
        'The start page of the wiki links to the page "{name}", which nobody has written yet. '
        'Write it: its whole text is "{text}"',
        given(*({"name": name, "text": text_} for name, text_ in zip(software.UNWRITTEN, _UNWRITTEN, strict=True))),
        [
            click("link 'WIKI'"),
            click("link '{name}?'", "heading 'Slipway'"),
            click("button 'Create this page'"),
            *form(
                {"link 'Image: [[Image()]]' » textbox": "{text}"}, "button 'Submit changes'", "heading 'Editing {name}'"
            ),
            stop("", "link 'wiki:' » link '{name}'", "StaticText '{text}'"),
        ],
        state=[
            rows_are(
                "gitlab",
                "SELECT name, version, author, text FROM wiki WHERE time > ?",
                [{"name": "{name}", "version": 1, "author": MAINTAINER, "text": "{text}"}],
                _NOW,
            )
        ],
    ),
    Template(
        "new_milestone",
        SITES,
        'Create a milestone "{name}" without a due date, with the description "{text}"',
        given(*({"name": name, "text": text_} for name, text_ in _MILESTONES)),
        [
            click("link 'ROADMAP'"),
            click("button 'Add new milestone'"),
            *form(
                {
                    "textbox 'Name:'": "{name}",
                    "textbox 'Description: You may use WikiFormatting here.'": "{text}",
                },
                "button 'Add milestone'",
            ),
            stop("", "heading 'Roadmap'", "link 'Milestone: {name}'"),
        ],
        state=[
            rows_are(
                "gitlab",
                "SELECT name, due, completed, description FROM milestone ORDER BY rowid DESC LIMIT 1",
                [{"name": "{name}", "due": 0, "completed": 0, "description": "{text}"}],
            ),
        ],
    ),
    Template(
        "describe_milestone",
        SITES,
        'Replace the description of the milestone "{name}" by "{text}"',
        lambda data: [row | {"text": text_} for row, text_ in zip(milestones(data), _DESCRIPTIONS, strict=False)],
        [
            click("link 'ROADMAP'"),
            click("link 'Milestone: {name}'"),
            click("button 'Edit milestone'", "heading 'Milestone {name}'"),
            *form(
                {"textbox 'Description: You may use WikiFormatting here.'": "{text}"},
                "button 'Submit changes'",
                "heading 'Edit Milestone {name}'",
            ),
            stop("", "heading 'Milestone {name}'", "StaticText 'Your changes have been saved.'"),
        ],
        state=[
            rows_are(
                "gitlab",
                "SELECT name, description FROM milestone WHERE description NOT LIKE 'Release %'",
                [{"name": "{name}", "description": "{text}"}],
            ),
        ],
    ),
    Template(
        "new_component",
        SITES,
        'Add a component "{name}" to the ticket system, owned by the account {account}.',
        added_components,
        admin(
            "Components",
            *form(
                {"textbox 'Name:'": "{name}", "textbox 'Owner:'": "{account}"}, "button 'Add'", "group 'Add Component:'"
            ),
            stop("", "link '{name}' + cell '{account}'"),
        ),
        state=[state("gitlab", "components", "{all}")],
    ),
    Template(
        "new_owner_of_component",
        SITES,
        'Make the account {account} the owner of the component "{name}".',
        moved_components,
        admin(
            "Components",
            click("link '{name}'", "heading 'Manage Components ({count})'"),
            *form({"textbox 'Owner:'": "{account}"}, "button 'Submit changes'", "textbox 'Name:' value: '{name}'"),
            stop("", "link '{name}' + cell '{account}'"),
        ),
        state=[state("gitlab", "components", "{all}")],
    ),
)
