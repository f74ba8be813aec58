"""Sweep the tasks: does the simulator's own path succeed, how long is it, what is the score at the start?

`python -m agentgym_envs.sciworld.verify` writes a summary and a table of tasks to `docs/results/`. All 7,207
take hours; `--every 20` looks at each task's first variation and every twentieth after it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import gymnasium
from rich.console import Console
from rich.progress import track

import agentgym_envs  # noqa: F401 (registers the ids)
from agentgym_envs.sciworld import tasks
from agentgym_envs.sciworld.env import SciWorldEnv

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
_MAX_TURNS = 1_000


class Row(NamedTuple):
    """What the sweep found out about a variation.

    Attributes:
        id: The task.
        name: The simulator's name of the task.
        variation: Its number.
        subset: The topic.
        split: The simulator's split.
        start_score: Score at the reset.
        path_length: Actions of the simulator's path up to the success; 0 where it does not succeed.
        prompt_chars: Characters of the reset observation.
        solved: Whether the oracle's episode ended as a success.
    """

    id: str
    name: str
    variation: int
    subset: str
    split: str
    start_score: float
    path_length: int
    prompt_chars: int
    solved: bool


def sweep_task(env: SciWorldEnv, index: int) -> Row:
    """Let the oracle play one task."""
    task = env.task_table().find(index)
    observation, info = env.reset(seed=0, options={"task": task.id})
    name, variation = tasks.name_and_variation(task)
    turns, success, score = 0, False, float(info["score"])
    while turns < _MAX_TURNS and (action := env.oracle_action()) is not None:
        *_, step_info = env.step(action)
        turns, success = turns + 1, bool(step_info["success"])
    length = turns if success else 0
    return Row(task.id, name, variation, task.subset, task.split, round(score, 4), length, len(observation), success)


def chosen(every: int) -> Iterator[int]:
    """Yield the data indices of each task's first variation and every so many after it."""
    first = 0
    for family in tasks.FAMILIES:
        yield from range(first, first + family.variations, every)
        first += family.variations


def summary(rows: Sequence[Row], data_hash: str) -> str:
    """Return the summary page, by task."""
    lines = [
        "# SciWorld: the simulator's own paths",
        "",
        "Written by `python -m agentgym_envs.sciworld.verify`. The oracle, which follows the path of the simulator's",
        "own agent, plays from the reset. Lengths (of paths that succeed) and characters are median and maximum. A row",
        "for each variation is in `sciworld-tasks.csv`.",
        "",
        f"Data hash: `{data_hash}`",
        "",
        "| Task | Subset | Variations | Played | Solved | Path length | Prompt characters | Starts above 0 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for family in tasks.FAMILIES:
        played = [row for row in rows if row.name == family.name]
        if not played:
            continue
        lengths = [row.path_length for row in played if row.solved] or [0]
        prompts = [row.prompt_chars for row in played]
        cells = (
            family.name,
            family.subset,
            family.variations,
            len(played),
            sum(row.solved for row in played),
            f"{statistics.median(lengths):g}, {max(lengths)}",
            f"{statistics.median(prompts):g}, {max(prompts)}",
            sum(row.start_score > 0 for row in played),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    unsolved = [f"{row.name} {row.variation}" for row in rows if not row.solved]
    lines += ["", f"Not solved: {', '.join(unsolved) or 'none'}."]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep from the command line; 1 if a path failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_envs.sciworld.verify", description=__doc__)
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument("--every", type=int, default=1, help="play only every so many variations (default: all)")
    options = parser.parse_args(arguments)
    if options.every < 1:
        parser.error(f"--every is a whole number of at least 1, not {options.every}")
    console = Console()
    env = cast(SciWorldEnv, gymnasium.make("AgentGym/SciWorld-v0", split="all").unwrapped)
    indices = list(chosen(options.every))
    rows = [sweep_task(env, index) for index in track(indices, "SciWorld: oracle", console=console)]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "sciworld-tasks.md").write_text(summary(rows, env.data_hash()), encoding="utf-8")
    with (options.out / "sciworld-tasks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    env.close()
    unsolved = [row.id for row in rows if not row.solved]
    console.print(f"SciWorld: {len(rows) - len(unsolved)} of {len(rows)} solved; see {options.out}/sciworld-tasks.md")
    return int(bool(unsolved))


if __name__ == "__main__":
    raise SystemExit(main())
