"""Sweep the variations: does the simulator's own path lead to the full score, does the oracle, how long is it?

`python -m agentgym_envs.sciworld.verify` (part of `make verify`) writes a page by task and a table of variations to
`docs/results/`. It takes an hour or two, so each row is kept in `runs/`: the same command goes on where the last one
was stopped, and from the table as it is if that was made with the same simulator and text. Of the topics that AgentGym
leaves out, where one path can take minutes, only a sample is played.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from agentgym_envs.sciworld import oracle, packages, tasks
from agentgym_envs.sciworld.env import SciWorldEnv
from agentgym_envs.sciworld.grammar import normal
from agentgym_envs.sciworld.jvm import Jvm, Settings
from agentgym_envs.sciworld.simulator import Simulator, Variation

HEAP_MB, CODE_MB = 64, 48
LEFT_OUT_EVERY = 40
_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "docs" / "results"
_RUNS = _ROOT / "runs"
_MELTING = "measure-melting-point"


class Row(NamedTuple):
    """What the sweep found out about a variation.

    Attributes:
        id: The task.
        name: The simulator's name of the task.
        variation: Its number.
        subset: The topic.
        split: The simulator's split.
        start_score: `raw_score` at the reset.
        prompt_chars: Characters of the reset observation.
        path: Actions of the simulator's path.
        not_understood: How many of those that were played the simulator itself does not understand.
        raw_score: The last one of the path; 100 is a success.
        turns: The oracle's actions up to the success; 0 where there is none.
        change_seen: Where a melting point is measured, whether the path shows the substance in both states.
    """

    id: str
    name: str
    variation: int
    subset: str
    split: str
    start_score: int
    prompt_chars: int
    path: int
    not_understood: int
    raw_score: int
    turns: int
    change_seen: str

    @property
    def solved(self) -> bool:
        """Whether the oracle succeeds."""
        return self.turns > 0


def sweep(simulator: Simulator, index: int) -> Row:
    """Play the simulator's path of one variation."""
    task = tasks.task_table().find(index)
    name, variation = tasks.name_and_variation(task)
    loaded = Variation(name, variation)
    path = [normal(action) for action in simulator.gold_path(loaded)]
    description, reply = simulator.begin(loaded)
    start, prompt = reply.score, f"{description}\n\n{reply.text}"
    turns = not_understood = 0
    liquid = set()
    for action in path:
        reply = simulator.act(action)
        turns += reply.understood
        not_understood += not reply.understood
        if action.startswith(("examine", "use thermometer")):
            liquid.add("liquid" in f"{action} {reply.text}")
        if reply.solved or reply.failed:
            break
    return Row(
        id=task.id,
        name=name,
        variation=variation,
        subset=task.subset,
        split=task.split,
        start_score=round(100 * start),
        prompt_chars=len(prompt),
        path=len(path),
        not_understood=not_understood,
        raw_score=round(100 * reply.score),
        turns=turns if reply.solved else len(oracle.solve(simulator, loaded, path) or ()),
        change_seen=str(len(liquid) > 1) if name.startswith(_MELTING) else "",
    )


def chosen(every: int) -> Iterator[int]:
    """Yield the data indices of each task's first variation and every so many after it."""
    first = 0
    for family in tasks.FAMILIES:
        left_out = family.subset in tasks.LEFT_OUT_BY_AGENTGYM
        yield from range(first, first + family.variations, max(every, LEFT_OUT_EVERY) if left_out else every)
        first += family.variations


def summary(rows: Sequence[Row], data_hash: str) -> str:
    """Return the page, by task."""
    total = sum(family.variations for family in tasks.FAMILIES)
    melting = [row.change_seen for row in rows if row.change_seen]
    lines = [
        "# SciWorld: the simulator's own paths",
        "",
        "Written by `make verify`. The path of the simulator's own agent is played from the reset of the variation.",
        "Path: how many reach the full score. Oracle: how many do with another answer where that one was wrong.",
        "Turns (of the oracle) and characters of the reset observation are median and maximum. A row for each",
        "variation is in `sciworld-tasks.csv`.",
        "",
        _data_line(data_hash),
        "",
        f"Played: {len(rows)} of {total} variations.",
        "",
        "| Task | Subset | Variations | Played | Path | Oracle | Turns | Prompt characters | Starts above 0 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family in tasks.FAMILIES:
        played = [row for row in rows if row.name == family.name]
        if not played:
            continue
        turns = [row.turns for row in played if row.solved] or [0]
        prompts = [row.prompt_chars for row in played]
        cells = (
            family.name,
            family.subset,
            family.variations,
            len(played),
            sum(row.raw_score == 100 for row in played),
            sum(row.solved for row in played),
            f"{statistics.median(turns):g}, {max(turns)}",
            f"{statistics.median(prompts):g}, {max(prompts)}",
            sum(row.start_score > 0 for row in played),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    unsolved = [f"`{row.id}` ({row.name} {row.variation}, score {row.raw_score})" for row in rows if not row.solved]
    lines += [
        "",
        f"Not solved: {', '.join(unsolved) or 'none'}.",
        "",
        f"Of the {len(melting)} paths that measure a melting point, {melting.count('True')} show the substance both "
        "solid and liquid; the others give the right answer without having seen it change.",
        f"{sum(row.not_understood > 0 for row in rows)} paths hold actions that the simulator does not understand.",
    ]
    return "\n".join(lines) + "\n"


def verify(folder: Path, console: Console, every: int = 1, runs: Path = _RUNS) -> bool:
    """Play the paths that have no row yet and write both files; return whether each solvable one succeeds.

    Args:
        folder: Where both files are, or will be.
        console: Where to tell how it goes.
        every: Play each task's first variation and every so many after it.
        runs: Where rows are kept as soon as they are found.
    """
    data_hash = SciWorldEnv.data_hash()
    page, table = folder / "sciworld-tasks.md", folder / "sciworld-tasks.csv"
    kept = kept_rows(runs)
    rows = {}
    if page.exists() and _data_line(data_hash) in page.read_text(encoding="utf-8").splitlines():
        rows.update(_rows(table))
    rows.update(_rows(kept))
    left = [index for index in chosen(every) if f"sciworld_{index}" not in rows]
    if left:
        rows.update(_played(left, kept, console))
    found = [rows[task.id] for task in tasks.task_table() if task.id in rows]
    folder.mkdir(parents=True, exist_ok=True)
    page.write_text(summary(found, data_hash), encoding="utf-8")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(found)
    unsolved = [row.id for row in found if not row.solved and tasks.task_table().find(row.id).solvable]
    console.print(
        f"SciWorld: of {len(found)} paths that were played {sum(row.solved for row in found)} succeed; see {page}"
    )
    if unsolved:
        console.print(f"[red]marked solvable, but not solved:[/red] {', '.join(unsolved)}")
    return not unsolved


def kept_rows(runs: Path) -> Path:
    """The file in which rows of the present simulator and text are kept."""
    return runs / f"sciworld-sweep-{re.sub('[^a-z0-9]+', '-', SciWorldEnv.data_hash())}.csv"


def _played(indices: Sequence[int], kept: Path, console: Console) -> dict[str, Row]:
    """Play the paths of variations; each row is added to a file as soon as it is known."""
    rows = {}
    kept.parent.mkdir(parents=True, exist_ok=True)
    jvm = Jvm(Settings(packages.find_java(), HEAP_MB, CODE_MB, start_seconds=120, call_seconds=600))
    try:
        simulator = Simulator(jvm)
        with kept.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            for index in track(indices, "SciWorld: the simulator's paths", console=console):
                row = sweep(simulator, index)
                writer.writerow(row)
                file.flush()
                rows[row.id] = row
    finally:
        jvm.end()
    return rows


def _data_line(data_hash: str) -> str:
    return f"Data: `{data_hash}`"


def _rows(path: Path) -> dict[str, Row]:
    """Rows of a table, with or without a line of names, by their task; none if it is not there."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        # The last line may be half of one, where the process was killed.
        lines = [cells for cells in csv.reader(file) if len(cells) == len(Row._fields) and cells[0] != "id"]
    return {cells[0]: _row(cells) for cells in lines}


def _row(cells: Sequence[str]) -> Row:
    numbers = ("variation", "start_score", "prompt_chars", "path", "not_understood", "turns", "raw_score")
    named = dict(zip(Row._fields, cells, strict=True))
    return Row(**{name: int(cell) if name in numbers else cell for name, cell in named.items()})  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep from the command line; 1 if a path failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_envs.sciworld.verify", description=__doc__)
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument(
        "--every", type=int, default=1, help="play each task's first variation and every so many after it"
    )
    options = parser.parse_args(arguments)
    if options.every < 1:
        parser.error(f"--every is a whole number of at least 1, not {options.every}")
    return int(not verify(options.out, Console(), options.every))


if __name__ == "__main__":
    raise SystemExit(main())
