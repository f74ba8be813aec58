"""Fills the tracker: accounts, components, milestones, tickets with their history, wiki, repositories."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentgym_envs.webarena.sites.accounts import MAINTAINER, session_key
from agentgym_envs.webarena.sites.content import software
from agentgym_envs.webarena.sites.content.draw import Draw
from agentgym_envs.webarena.sites.content.people import Person, people
from agentgym_envs.webarena.sites.content.repositories import Fix, make_repository
from agentgym_envs.webarena.sites.tenants import START, Database
from agentgym_envs.webarena.sites.trac_project import application

DEVELOPERS = 16
TICKETS = 260
_DAY = 86_400

SETTINGS = """\
[trac]
auto_preview_timeout = 0
database = sqlite::memory:
default_charset = utf-8
use_chunked_encoding = false
default_timezone = UTC
default_dateinfo_format = absolute
default_date_format = iso8601
mainnav = wiki,timeline,roadmap,browser,tickets,newticket,search,admin
metanav = login,logout,prefs
permission_policies = DefaultPermissionPolicy
[metanav]
help = disabled
about = disabled
[project]
name = Slipway
descr = shared workbench of four small projects
footer = Slipway, the shared workbench of four small projects
[header_logo]
src =
alt =
[logging]
log_type = none
[notification]
smtp_enabled = false
[git]
cached_repository = true
persistent_cache = true
shortrev_len = 8
[timeline]
default_daysback = 60
[ticket-workflow]
leave = * -> *
leave.operations = leave_status
leave.default = 1
create = <none> -> new
create.default = 1
accept = new,assigned,accepted,reopened -> accepted
accept.permissions = TICKET_MODIFY
accept.operations = set_owner_to_self
resolve = new,assigned,accepted,reopened -> closed
resolve.permissions = TICKET_MODIFY
resolve.operations = set_resolution
reassign = new,assigned,accepted,reopened -> assigned
reassign.permissions = TICKET_MODIFY
reassign.operations = set_owner
reopen = closed -> reopened
reopen.permissions = TICKET_CREATE
reopen.operations = del_resolution
[repositories]
"""


def fill(folder: Path, database: Database, say: Callable[[str], None]) -> None:
    """Fill the empty tracker.

    Args:
        folder: Receives `VERSION`, `trac.ini` and `git/`.
        database: The empty database.
        say: Is told what is being done.
    """
    from trac.db.api import DatabaseManager
    from trac.versioncontrol.api import RepositoryManager

    say("tracker: tables")
    application.load()
    repositories = "".join(
        f"{project.name}.dir = GIT/{project.name}.git\n{project.name}.type = git\n"
        f"{project.name}.description = {project.purpose}\n"
        for project in software.PROJECTS
    )
    (folder / "trac.ini").write_text(SETTINGS + repositories, encoding="utf-8")
    (folder / "VERSION").write_text("Trac Environment Version 1\n", encoding="utf-8")
    workshop = folder / "workshop"
    (workshop / "conf").mkdir(parents=True)
    (workshop / "VERSION").write_bytes((folder / "VERSION").read_bytes())
    settings = (SETTINGS + repositories).replace("GIT/", f"{folder / 'git'}/")
    (workshop / "conf" / "trac.ini").write_text(settings, encoding="utf-8")
    environment = application.TenantEnvironment(workshop, database)
    manager = DatabaseManager(environment)
    manager.init_db()
    manager.insert_default_data()
    say("tracker: content")
    team = people(Draw("developers"), DEVELOPERS)
    with database.connection as connection:
        _frame(connection, team)
        fixes = _tickets(connection, team)
        _wiki(connection, team)
    for project in software.PROJECTS:
        say(f"tracker: repository {project.name}")
        make_repository(folder / "git" / f"{project.name}.git", project, team, fixes[project.name])
        RepositoryManager(environment).get_repository(project.name).sync()
    with database.connection as connection:  # where it was made is of no interest later
        statement = "UPDATE repository SET value = 'git:' || id WHERE name = 'repository_dir'"
        connection.execute(statement)
    environment.shutdown()
    _remove(workshop)


def _remove(workshop: Path) -> None:
    (workshop / "conf" / "trac.ini").unlink()
    (workshop / "VERSION").unlink()
    for path in sorted(workshop.rglob("*"), reverse=True):
        path.rmdir()
    workshop.rmdir()


def _frame(connection: sqlite3.Connection, team: list[Person]) -> None:
    """Accounts, permissions, components, milestones, versions."""
    draw = Draw("tracker")
    for table in ("component", "milestone", "version"):
        connection.execute(f"DELETE FROM {table}")
    accounts = [(person.account, person.name, person.email) for person in team]
    accounts.append((MAINTAINER, "Noor Castellan", "maintainer@slipway.example"))
    for number, (account, name, email) in enumerate(accounts):
        connection.execute("INSERT INTO session VALUES (?, 1, ?)", (account, int(START) - number * 3600))
        for key, value in (("name", name), ("email", email)):
            connection.execute("INSERT INTO session_attribute VALUES (?, 1, ?, ?)", (account, key, value))
        cookie = session_key("gitlab", account)
        connection.execute("INSERT INTO auth_cookie VALUES (?, ?, '127.0.0.1', ?)", (cookie, account, int(START)))
    connection.execute("INSERT INTO permission VALUES (?, 'TRAC_ADMIN')", (MAINTAINER,))
    for action in ("TICKET_APPEND", "TICKET_CHGPROP", "MILESTONE_VIEW", "REPORT_VIEW"):
        connection.execute("INSERT OR IGNORE INTO permission VALUES ('authenticated', ?)", (action,))
    for project in software.PROJECTS:
        for module, about in project.modules.items():
            row = (f"{project.name}/{module}", draw.one(team).account, f"{about[0].upper()}{about[1:]}.")
            connection.execute("INSERT INTO component VALUES (?, ?, ?)", row)
        for name, days in project.milestones:
            due = int(START) + days * _DAY
            completed = due + draw.integer(-3, 9) * _DAY if days < 0 else 0
            text = f"Release {name.split()[-1]} of {project.name}."
            connection.execute("INSERT INTO milestone VALUES (?, ?, ?, ?)", (name, _us(due), _us(completed), text))
            if days < 0:
                connection.execute("INSERT INTO version VALUES (?, ?, ?)", (name, _us(completed), text))


def _us(seconds: int) -> int:
    """Trac counts microseconds."""
    return seconds * 1_000_000


def _tickets(connection: sqlite3.Connection, team: list[Person]) -> dict[str, list[Fix]]:
    draw = Draw("tickets")
    fixes: dict[str, list[Fix]] = {project.name: [] for project in software.PROJECTS}
    starts = sorted(int(START) - draw.integer(1, 560) * _DAY - draw.integer(0, 80_000) for _ in range(TICKETS))
    for number, created in enumerate(starts, 1):
        project = draw.one(software.PROJECTS)
        module = draw.one(list(project.modules))
        what = project.modules[module]
        kind = draw.one(("defect", "defect", "enhancement", "task"))
        template = draw.one(
            {"defect": software.DEFECTS, "enhancement": software.ENHANCEMENTS}.get(kind, software.TASKS)
        )
        words = {"what": what, "What": what[0].upper() + what[1:], "module": module, "other": draw.integer(1, number)}
        reporter, owner = draw.one(team), draw.one(team)
        age = (int(START) - created) // _DAY
        status = (
            "closed" if draw.chance(min(0.85, age / 300)) else draw.one(("new", "assigned", "accepted", "reopened"))
        )
        resolution = draw.one(("fixed", "fixed", "fixed", "wontfix", "duplicate", "invalid", "worksforme"))
        coming = [(name, days) for name, days in project.milestones if days > 0]
        done = [(name, days) for name, days in project.milestones if days < 0 and -days < age]
        milestone = draw.one(done)[0] if status == "closed" and done else draw.one(coming)[0]
        released = [name for name, days in project.milestones if -days > age]
        row: dict[str, Any] = {
            "id": number,
            "type": kind,
            "time": _us(created),
            "component": f"{project.name}/{module}",
            "severity": "",
            "priority": draw.one(("blocker", "critical", "major", "major", "major", "minor", "minor", "trivial")),
            "owner": "" if status == "new" and draw.chance(0.4) else owner.account,
            "reporter": reporter.account,
            "cc": "",
            "version": released[-1] if released else "",
            "milestone": milestone if draw.chance(0.9) else "",
            "status": status,
            "resolution": resolution if status == "closed" else "",
            "summary": template.format(**words, count=draw.integer(2, 9) * 100),
            "description": draw.one(software.DESCRIPTIONS).format(**words, count=draw.integer(2, 9)),
            "keywords": draw.one(("", "", "easy", "needs-review", "help-wanted", "regression")),
        }
        time, comment = created, 0
        changes: list[tuple[int, str, str, str, str]] = []
        for _ in range(draw.skewed(0, 5)):
            time = min(time + draw.skewed(1, 20) * 43_200 + comment, int(START) - 7200 + comment)
            comment += 1
            text = draw.one(software.COMMENTS).format(**words, count=draw.integer(2, 50))
            changes.append((time, draw.one(team).account, "comment", str(comment), text))
        if status == "closed":
            time = min(time + draw.skewed(1, 30) * 43_200, int(START) - 3600)
            comment += 1
            text = "Done." if resolution == "fixed" else f"Closing as {resolution}."
            changes.append((time, owner.account, "comment", str(comment), text))
            changes.append((time, owner.account, "status", "new", "closed"))
            changes.append((time, owner.account, "resolution", "", resolution))
            if resolution == "fixed" and draw.chance(0.6):
                fixes[project.name].append(Fix(number, module, time - 1800, owner))
        row["changetime"] = _us(time)
        connection.execute(
            f"INSERT INTO ticket ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values())
        )
        connection.executemany(
            "INSERT INTO ticket_change VALUES (?, ?, ?, ?, ?, ?)",
            [(number, _us(when), *rest) for when, *rest in changes],
        )
    return fixes


def _wiki(connection: sqlite3.Connection, team: list[Person]) -> None:
    draw = Draw("wiki")
    pages = {
        "WikiStart": "= Slipway =\n\nThe shared workbench of four small projects.\n\n"
        + "".join(f" * [wiki:{p.name.capitalize()}Guide {p.name}]: {p.purpose}\n" for p in software.PROJECTS)
        + "\nSee also [wiki:HouseRules], [wiki:ReleaseChecklist], [wiki:MeetingNotes] and [wiki:OnCallRota].\n"
        + f"\nStill to be written: {', '.join(f'[wiki:{name}]' for name in software.UNWRITTEN)}.\n",
        "HouseRules": "= House rules =\n\n * One ticket for one thing.\n * Name the ticket in the commit message.\n"
        " * Tests before the release, not after.\n * Be kind in reviews.\n",
        "ReleaseChecklist": "= Release checklist =\n\n 1. Close or move all tickets of the milestone.\n"
        " 1. Run the tests twice.\n 1. Tag the commit.\n 1. Write the announcement.\n 1. Complete the milestone.\n",
        "OnCallRota": "= On-call rota =\n\n||= Week =||= Who =||\n"
        + "".join(f"|| {week} || {draw.one(team).name} ||\n" for week in range(11, 27)),
        "MeetingNotes": "= Meeting notes =\n\n"
        + "".join(
            f"== Meeting {number} ==\n\nPresent: {', '.join(p.name for p in draw.some(team, 4))}.\n\n"
            f"Decided: tickets #{draw.integer(1, 250)} and #{draw.integer(1, 250)} come first.\n\n"
            for number in range(1, 9)
        ),
    }
    pages["TitleIndex"] = "= Index =\n\n[[TitleIndex]]\n"
    for project in software.PROJECTS:
        guide = f"{project.name.capitalize()}Guide"
        pages[guide] = (
            f"= {project.name} =\n\n{project.purpose}\n\n== Parts ==\n\n"
            + "".join(f" * `src/{module}.py`: {about}\n" for module, about in project.modules.items())
            + f"\n== Contact ==\n\nMaintained by {draw.one(team).name}. Source: [source:{project.name}].\n"
            + f"\nInstallation: [wiki:{guide}/Install]. Questions: [wiki:{guide}/Faq].\n"
        )
        pages[f"{guide}/Install"] = (
            f"= Installing {project.name} =\n\n{project.name} needs Python 3.{draw.integer(8, 12)} and "
            f"{draw.integer(20, 400)} MB of disk.\n\n{{{{{{\npip install {project.name}\n}}}}}}\n"
        )
        pages[f"{guide}/Faq"] = f"= Questions about {project.name} =\n\n" + "".join(
            f"== Why is {about} done this way? ==\n\n{draw.one(software.COMMENTS[4:7]).format(other=7, count=5)}\n\n"
            for about in list(project.modules.values())[:3]
        )
    for name, text in pages.items():
        time = int(START) - draw.integer(200, 600) * _DAY
        versions = draw.integer(1, 4)
        for version in range(1, versions + 1):
            body = text if version == versions else text[: len(text) * version // versions] + "\n\n(to be continued)\n"
            row = (name, version, _us(time), draw.one(team).account, body, "" if version == 1 else "more", 0)
            connection.execute("INSERT INTO wiki VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            time += draw.integer(2, 40) * _DAY
