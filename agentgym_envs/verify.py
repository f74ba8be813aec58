"""Sweep every task of every scenario: does the oracle solve it, how long is its plan, what does luck do?

`python -m agentgym_envs.verify` (or `make verify`) writes one summary and one table of tasks a scenario to
`docs/results/`. `verify` plays every task of a scenario; one with too many for that has a sweep of its own.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import gymnasium
from rich.console import Console
from rich.progress import track

from agentgym_envs.core import TextEnv
from agentgym_envs.tasks import Task

RANDOM_EPISODES = 100
_RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


class Row(NamedTuple):
    """What the sweep found out about a task.

    Attributes:
        id: The task.
        goal: `info["goal"]`.
        subset: The task's subset.
        split: The task's split.
        plan_length: Actions that the oracle took.
        prompt_chars: Characters of the reset observation for seed 0.
        solved: Whether the oracle's episode ended as a success.
    """

    id: str
    goal: str
    subset: str
    split: str
    plan_length: int
    prompt_chars: int
    solved: bool


class Luck(NamedTuple):
    """One episode of the random agent: the subset that it was in and whether it succeeded."""

    subset: str
    success: bool


def make(scenario: str) -> tuple[TextEnv, int]:
    """Return a scenario's environment over all tasks, and the turns after which its id ends an episode."""
    env = gymnasium.make(f"AgentGym/{scenario}-v0", split="all")
    assert env.spec is not None
    assert env.spec.max_episode_steps is not None
    return cast(TextEnv, env.unwrapped), env.spec.max_episode_steps


def sweep_task(env: TextEnv, task: Task, max_turns: int) -> Row:
    """Let the oracle play one task from seed 0."""
    observation, info = env.reset(seed=0, options={"task": task.id})
    goal, turns, success = str(info["goal"]), 0, False
    while turns < max_turns and (action := env.oracle_action()) is not None:
        _, _, terminated, truncated, step_info = env.step(action)
        turns += 1
        if terminated or truncated:
            success = bool(step_info["success"])
            break
    return Row(task.id, goal, task.subset, task.split, turns, len(observation), success)


def play_randomly(env: TextEnv, seed: int, max_turns: int) -> Luck:
    """Play the task that a seed draws with random actions out of those that the environment lists."""
    rng = random.Random(f"random agent/{seed}")
    _, info = env.reset(seed=seed)
    subset = str(info["subset"])
    for _ in range(max_turns):
        actions = env.available_actions()
        _, _, terminated, truncated, info = env.step(actions[int(rng.random() * len(actions))])
        if terminated or truncated:
            break
    return Luck(subset, bool(info["success"]))


def summary(scenario: str, data_hash: str, rows: Sequence[Row], lucks: Sequence[Luck]) -> str:
    """Return the summary page, by subset."""
    lines = [
        f"# {scenario}: all tasks",
        "",
        "Written by `make verify`. The oracle plays every task from seed 0. The random agent plays the tasks",
        f"that {len(lucks)} seeds draw, choosing uniformly among the actions that the environment lists, the",
        "oracle's next one included. Both have the turns that the registered id allows. Lengths and",
        "characters are given as median and maximum.",
        "",
        f"Data hash: `{data_hash}`",
        "",
        "| Subset | Tasks | Train | Test | Solved | Plan length | Prompt characters | Random agent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for subset in [*dict.fromkeys(row.subset for row in rows), "all"]:
        chosen = [row for row in rows if subset in (row.subset, "all")]
        played = [luck for luck in lucks if subset in (luck.subset, "all")]
        cells = (
            subset,
            len(chosen),
            sum(row.split == "train" for row in chosen),
            sum(row.split == "test" for row in chosen),
            sum(row.solved for row in chosen),
            _median_and_maximum(row.plan_length for row in chosen),
            _median_and_maximum(row.prompt_chars for row in chosen),
            f"{sum(luck.success for luck in played)} of {len(played)}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def verify(scenario: str, folder: Path, console: Console) -> bool:
    """Sweep a scenario and write its two files; return whether the oracle solved every solvable task."""
    env, max_turns = make(scenario)
    tasks = env.task_table().select()
    rows = [sweep_task(env, task, max_turns) for task in track(tasks, f"{scenario}: oracle", console=console)]
    lucks = [
        play_randomly(env, seed, max_turns)
        for seed in track(range(RANDOM_EPISODES), f"{scenario}: random agent", console=console)
    ]
    stem = f"{scenario.lower()}-tasks"
    folder.mkdir(parents=True, exist_ok=True)
    page = summary(scenario, env.data_hash(), rows, lucks)
    (folder / f"{stem}.md").write_text(page, encoding="utf-8")
    with (folder / f"{stem}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    env.close()
    unsolved = [row.id for row in rows if not row.solved]
    console.print(f"{scenario}: {len(rows) - len(unsolved)} of {len(rows)} tasks solved; see {folder / stem}.md")
    if unsolved:
        console.print(f"[red]not solved:[/red] {', '.join(unsolved)}")
    return not unsolved


def _verify_babyai(folder: Path, console: Console) -> bool:
    from agentgym_envs.babyai.verify import verify  # minigrid may be missing

    return verify(folder, console)


def _verify_sciworld(folder: Path, console: Console) -> bool:
    from agentgym_envs.sciworld.verify import verify  # scienceworld may be missing

    return verify(folder, console)


def _verify_deepsearch(folder: Path, console: Console) -> bool:
    from agentgym_envs.deepsearch.verify import verify  # tantivy may be missing

    return verify(folder, console)


def _verify_webarena(folder: Path, console: Console) -> bool:
    from agentgym_envs.webarena.verify import verify  # playwright may be missing

    return verify(folder, console)


# Scenario -> its sweep; `verify` needs an oracle and `available_actions`.
SCENARIOS: dict[str, Callable[[Path, Console], bool]] = {
    "TextCraft": lambda folder, console: verify("TextCraft", folder, console),
    "BabyAI": _verify_babyai,
    "SciWorld": _verify_sciworld,
    "DeepSearch": _verify_deepsearch,
    "WebArena": _verify_webarena,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep from the command line; 1 if a task was not solved, else 0."""
    parser = argparse.ArgumentParser(prog="python -m agentgym_envs.verify", description=__doc__)
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="only this one (default: all)")
    options = parser.parse_args(arguments)
    console = Console()
    return int(not all([SCENARIOS[name](options.out, console) for name in options.scenario or SCENARIOS]))


def _median_and_maximum(values: Iterable[int]) -> str:
    listed = list(values)
    return f"{statistics.median(listed):g}, {max(listed)}"


if __name__ == "__main__":
    raise SystemExit(main())
