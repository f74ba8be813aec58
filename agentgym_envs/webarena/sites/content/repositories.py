"""Makes the git repositories, commit by commit, with the same commit ids wherever they are made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from agentgym_envs.webarena.sites.content import software
from agentgym_envs.webarena.sites.content.draw import Draw
from agentgym_envs.webarena.sites.content.people import Person
from agentgym_envs.webarena.sites.tenants import START

COMMITS = 60
FORK = 4
"""How many commits before the last one the branch `experiment` begins."""

LICENSE = "You may use, copy and change this program as you like.\nIt comes without any warranty.\n"
_DAY = 86_400
_GIT_SECONDS = 120.0


class Fix(NamedTuple):
    """A commit that a closed ticket names, or that names a ticket.

    Attributes:
        ticket: The ticket's number.
        module: The file that was changed.
        time: Seconds since 1970.
        author: Who changed it.
    """

    ticket: int
    module: str
    time: int
    author: Person


def make_repository(folder: Path, project: software.Project, people: list[Person], fixes: list[Fix]) -> None:
    """Make the bare repository of a project.

    Args:
        folder: Where.
        project: What it holds.
        people: The authors.
        fixes: Commits that name tickets, in any order.

    Raises:
        subprocess.CalledProcessError: If git fails.
        FileNotFoundError: If git is not installed.
    """
    draw = Draw(f"repository {project.name}")
    start = int(START) - 600 * _DAY
    plain = [
        (
            start + draw.integer(1, 590) * _DAY + draw.integer(0, 80_000),
            draw.one(people),
            draw.one(list(project.modules)),
            0,
        )
        for _ in range(COMMITS)
    ]
    changes = sorted(plain + [(fix.time, fix.author, fix.module, fix.ticket) for fix in fixes])
    files = {module: f'"""{about[0].upper()}{about[1:]}."""\n' for module, about in project.modules.items()}
    readme = f"{project.name}\n{'=' * len(project.name)}\n\n{project.purpose}\n"
    stream = _commit(1, start, people[0], "Start", {"README": readme, "LICENSE": LICENSE}, None)
    counts = dict.fromkeys(files, 0)
    tagged = 0
    past = [(name, int(START) + days * _DAY) for name, days in project.milestones if days < 0]
    for number, (time, author, module, ticket) in enumerate(changes, 2):
        while tagged < len(past) and past[tagged][1] < time:
            stream += _tag(past[tagged][0], number - 1, past[tagged][1], people[0])
            tagged += 1
        counts[module] += 1
        what = project.modules[module]
        files[module] += software.FUNCTION.format(
            name=f"step_{counts[module]}", what=what, limit=draw.integer(10, 900), factor=draw.integer(2, 12)
        )
        message = draw.one(software.MESSAGES).format(what=what)
        if ticket:
            message += f" (fixes #{ticket})"
        stream += _commit(number, time, author, message, {f"src/{module}.py": files[module]}, number - 1)
        if number == len(changes) - FORK:
            text = {f"src/{module}.py": files[module] + "\n# An experiment.\n"}
            message = f"Try another way for {what}"
            stream += _commit(len(changes) + 2, time + 60, people[1], message, text, number, "refs/heads/experiment")
    for name, when in past[tagged:]:
        stream += _tag(name, len(changes) + 1, when, people[0])
    _git(["init", "--quiet", "--bare", "--initial-branch=main", "--template=", str(folder)])
    _git(["--git-dir", str(folder), "fast-import", "--quiet"], stream)
    _git(["--git-dir", str(folder), "pack-refs", "--all"])


def _commit(
    mark: int,
    time: int,
    author: Person,
    message: str,
    files: dict[str, str],
    parent: int | None,
    branch: str = "refs/heads/main",
) -> bytes:
    who = f"{author.name} <{author.email}> {time} +0000"
    text = f"commit {branch}\nmark :{mark}\nauthor {who}\ncommitter {who}\n{_data(message)}"
    text += f"from :{parent}\n" if parent else ""
    text += "".join(f"M 100644 inline {path}\n{_data(content)}" for path, content in files.items())
    return text.encode() + b"\n"


def _tag(name: str, mark: int, time: int, tagger: Person) -> bytes:
    label = name.split()[-1]
    return (
        f"tag v{label}\nfrom :{mark}\ntagger {tagger.name} <{tagger.email}> {time} +0000\n{_data(f'Release {label}')}"
    ).encode()


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"


def _git(arguments: list[str], stream: bytes = b"") -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CONFIG_NOSYSTEM": "1", "HOME": os.devnull}
    subprocess.run(["git", *arguments], input=stream, check=True, timeout=_GIT_SECONDS, env=environment)
