"""The long run: every registered environment in every mode that suits it, and a page of the results.

`python -m leak_tests.soak` (or `make soak`) goes on where it was interrupted: each finished run is a file, which
counts as long as the code that was measured is the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gymnasium
import tyro
from rich.console import Console

import agentgym_envs
import agentgym_wrappers
import leak_tests
from leak_tests.episodes import Mode
from leak_tests.registry import SUBJECTS, Subject
from leak_tests.report import number, read_json, slug, text, write_json
from leak_tests.runner import Record, SubjectError, block_sizes, measure
from leak_tests.terminal import bar, try_plot
from leak_tests.verdict import Finding, judge, overall

_ROW = re.compile(r"\| `(?P<env>[^`]+)` \| `(?P<mode>[^`]+)` \|")


@dataclasses.dataclass
class Options:
    """Soak every registered environment in every mode that suits it, and write a page with plots.

    Interrupted, the same command goes on after the last finished run. Runs are made again once the code of the
    environments, the wrappers or the leak tests has changed; to make them again anyway, remove the folder.
    """

    env: tuple[str, ...] = ()
    """Ids of the environments to soak; without any, all that are registered for it."""
    episodes: int = 5_000
    """Episodes of each run; in mode long, turns. Where one takes seconds, there are fewer."""
    folder: Path = Path("runs/soak")
    """Folder with a file for each finished run."""
    page: Path = Path("docs/results/soak.md")
    """The page; its plots are put beside it. What it says of other environments stays."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments; those of the process by default.

    Returns:
        Exit code: 0 all passed, 1 not all did, 130 stopped by Ctrl-C or SIGTERM.
    """
    options = tyro.cli(Options, prog="python -m leak_tests.soak", args=argv)
    try:
        return 0 if soak(_chosen(options.env), options.episodes, options.folder, options.page) else 1
    except (SubjectError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on after the last finished run", file=sys.stderr)
        return 130


def _chosen(ids: Sequence[str]) -> list[Subject]:
    """The registered subjects with these ids, or all of them."""
    known = {subject.env: subject for subject in SUBJECTS}
    if unknown := [id for id in ids if id not in known]:
        raise ValueError(f"--env {' '.join(unknown)}: registered for the soak are {', '.join(known)}.")
    return [known[id] for id in ids] if ids else list(SUBJECTS)


def soak(subjects: Sequence[Subject], episodes: int, folder: Path, page: Path) -> bool:
    """Make the runs that are not there yet, then write the page.

    Args:
        subjects: What to soak.
        episodes: Episodes of each run, times what the subject says.
        folder: Where finished runs are.
        page: The Markdown file to write. What it already says of other runs stays.

    Returns:
        Whether all runs passed.

    Raises:
        SubjectError: If a run could not be finished.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    folder.mkdir(parents=True, exist_ok=True)
    page.parent.mkdir(parents=True, exist_ok=True)
    code = _hash_of_code()
    records = []
    for subject in subjects:
        for mode in subject.modes:
            count = round(episodes * subject.times.get(mode, 1))
            record = _finished(folder / f"{slug(subject.env, mode)}.json", count, code)
            if record is None:
                record = _run(subject.env, mode, count, console)
                write_json(record, folder / f"{slug(subject.env, mode)}.json", code=code)
            console.print(text(record))
            console.print(try_plot(record, page.parent / _plot_name(record.env, record.mode)), soft_wrap=True)
            records.append(record)
    page.write_text(_page(records, _rows(page)), encoding="utf-8")
    console.print(f"page: {page}", soft_wrap=True)
    return all(overall(judge(record)) == "pass" for record in records)


def _run(env: str, mode: Mode, episodes: int, console: Console) -> Record:
    with bar(console, f"{env} {mode}", len(block_sizes(episodes))) as advance:
        return measure(env, mode, episodes, on_block=advance)


def _finished(path: Path, episodes: int, code: str) -> Record | None:
    if not path.exists():
        return None
    record, content = read_json(path)
    return record if content["code"] == code and record.played[-1] >= episodes else None


def _hash_of_code() -> str:
    """Hash of the sources that a run depends on."""
    digest = hashlib.sha256(sys.version.encode())
    for package in (agentgym_envs, agentgym_wrappers, leak_tests):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _plot_name(env: str, mode: str) -> str:
    return f"soak-{slug(env, mode)}.png"


def _rows(page: Path) -> dict[tuple[str, str], str]:
    """The rows of a page by environment and mode; none if there is no page."""
    lines = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    rows = {}
    for line in lines:
        if match := _ROW.match(line):
            rows[match["env"], match["mode"]] = line
    return rows


def _page(records: Sequence[Record], before: Mapping[tuple[str, str], str]) -> str:
    """Return the page of these runs, and of others as it was before; environments are in the registry's order."""
    rows = dict(before)
    rows.update({(record.env, record.mode): _row(record) for record in records})
    order: list[tuple[str, str]] = [(subject.env, mode) for subject in SUBJECTS for mode in subject.modes]
    runs = sorted(rows, key=lambda run: order.index(run) if run in order else len(order))
    table = [
        "| Environment | Mode | Played | Memory, KB | Python heap, KB | Counts | Smallest visible leak | Verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(rows[run] for run in runs),
    ]
    plots = [f"![{env}, mode {mode}]({_plot_name(env, mode)})" for env, mode in runs]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, Gymnasium {gymnasium.__version__}"
    return "\n".join(
        [
            "# Soak",
            "",
            f"Written by `make soak` ({machine}). Growth per 1,000 episodes (in mode `long`: turns) with its 95 % "
            "interval; the limit is 200 KB for memory and heap, none for the counts (threads, open files, sockets, "
            "child processes, temporary files). [How it is measured](../leak-tests.md).",
            "",
            *table,
            "",
            *(line for plot in plots for line in (plot, "")),
        ]
    )


def _row(record: Record) -> str:
    findings = {finding.quantity.name: finding for finding in judge(record)}
    counts = [finding for finding in findings.values() if not finding.quantity.unit]
    grown = [f"{finding.quantity.name} {_growth(finding)}" for finding in counts if finding.slope != (0, 0, 0)]
    memory, heap = findings.get("memory"), findings.get("JVM live heap")
    cells = [
        f"`{record.env}`",
        f"`{record.mode}`",
        f"{record.played[-1]:,} {record.unit}",
        _growth(memory) if memory else "not judged",
        _growth(findings["Python heap"]) + (f"; Java {_growth(heap)}" if heap else ""),
        ", ".join(grown) or "no change",
        f"{number(memory.smallest)} KB" if memory else "",
        f"**{overall(list(findings.values()))}**",
    ]
    return f"| {' | '.join(cells)} |"


def _growth(finding: Finding) -> str:
    slope = finding.slope
    return f"{number(slope.value)} ({number(slope.low)} to {number(slope.high)})"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    sys.exit(main())
