"""Sweep the first seeds of every level: oracle, minigrid's bot, luck and speed.

`python -m agentgym_envs.verify --scenario BabyAI` writes a page by level and a table of tasks.
"""

from __future__ import annotations

import csv
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from agentgym_envs.babyai import grammar, levels
from agentgym_envs.babyai.env import BabyAIEnv

SEEDS = 50
RANDOM_TURNS = 20
_PRIMITIVES = {verb() for verb in grammar.PRIMITIVES}


class Row(NamedTuple):
    """What the sweep found out about a task.

    Attributes:
        id: The task.
        level: Its level.
        seed: Its seed.
        mission: `info["goal"]`.
        solvable: Whether seeds may choose it.
        solved: Whether the oracle's episode ended as a success.
        turns: Actions that the oracle took.
        steps: minigrid's steps that they were.
        planned: Whether there was a planned action among them.
        bot_steps: Steps of minigrid's own bot; 0 where it does not succeed.
        lucky: Whether a random agent succeeded in `RANDOM_TURNS` turns.
    """

    id: str
    level: str
    seed: int
    mission: str
    solvable: bool
    solved: bool
    turns: int
    steps: int
    planned: bool
    bot_steps: int
    lucky: bool


def sweep_task(env: BabyAIEnv, index: int, max_turns: int) -> tuple[Row, float]:
    """Let oracle, bot and random agent play one task.

    Returns:
        The row, and the processor time in seconds that the environment took for the oracle's turns.
    """
    level, seed = levels.level_and_seed(index)
    _, info = env.reset(seed=0, options={"task": index})
    mission, planned, spent = str(info["goal"]), False, 0.0
    for _ in range(max_turns):
        if (action := env.oracle_action()) is None:
            break
        planned = planned or action not in _PRIMITIVES
        before = time.process_time()
        *_, info = env.step(action)
        spent += time.process_time() - before
        if "end" in info:
            break
    bot = env.bot_plan()
    row = Row(
        id=str(info["task"]),
        level=level,
        seed=seed,
        mission=mission,
        solvable=env.task_table().find(index).solvable,
        solved=bool(info["success"]),
        turns=int(info["turn"]),
        steps=int(info["steps"]),
        planned=planned,
        bot_steps=0 if bot is None else len(bot),
        lucky=_is_lucky(env, index),
    )
    return row, spent


def _is_lucky(env: BabyAIEnv, index: int) -> bool:
    rng = random.Random(f"random agent/{index}")
    _, info = env.reset(seed=0, options={"task": index})
    for _ in range(RANDOM_TURNS):
        actions = env.available_actions()
        *_, info = env.step(actions[int(rng.random() * len(actions))])
        if "end" in info:
            break
    return bool(info["success"])


def summary(rows: Sequence[Row], seconds: Sequence[float], data: str) -> str:
    """Return the page, by level."""
    solvable = [row for row in rows if row.solvable]
    both = [row.turns / row.bot_steps for row in solvable if row.solved and row.bot_steps]
    lines = [
        "# BabyAI: the 40 levels",
        "",
        f"Written by `make verify` over {len(rows) // len(levels.NAMES)} seeds a level, 0 and up. Solvable: tasks that",
        "seeds may choose. Oracle and bot: solvable tasks solved by the text oracle within 100 turns, and by",
        "minigrid's own bot in primitive actions. Turns are the oracle's, steps the bot's (median, maximum).",
        f"Random agent: successes in {RANDOM_TURNS} turns of actions that the environment lists. Turns a second:",
        "of processor time in `step`, with the oracle's actions.",
        "",
        f"Data: `{data}`",
        "",
        f"Of {len(solvable)} solvable tasks the oracle solves {sum(row.solved for row in solvable)}, "
        f"{sum(row.planned for row in solvable) / len(solvable):.1%} of them with planned actions. Where both succeed,",
        f"its turns are {statistics.median(both):.2f} of the bot's steps in the median.",
        "",
        "| Index | Level | Subset | Solvable | Oracle | Bot | Turns | Bot's steps | Random agent | Turns a second |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for place, level in enumerate(levels.NAMES):
        chosen = [(row, spent) for row, spent in zip(rows, seconds, strict=True) if row.level == level and row.solvable]
        played = [row for row, _ in chosen]
        bot = [row.bot_steps for row in played if row.bot_steps]
        cells = (
            place,
            level,
            levels.LEVELS[level],
            f"{len(played)} of {sum(row.level == level for row in rows)}",
            sum(row.solved for row in played),
            len(bot),
            f"{statistics.median(row.turns for row in played):g}, {max(row.turns for row in played)}",
            f"{statistics.median(bot):g}, {max(bot)}" if bot else "",
            sum(row.lucky for row in played),
            round(sum(row.turns for row in played) / max(1e-9, sum(spent for _, spent in chosen))),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def verify(folder: Path, console: Console) -> bool:
    """Sweep the levels and write the two files; return whether the oracle solved every solvable task."""
    env = BabyAIEnv(split="all")
    found = [
        sweep_task(env, index, max_turns=100)
        for index in track(range(SEEDS * len(levels.NAMES)), "BabyAI: oracle, bot, random agent", console=console)
    ]
    rows = [row for row, _ in found]
    folder.mkdir(parents=True, exist_ok=True)
    page = summary(rows, [spent for _, spent in found], env.data_hash())
    (folder / "babyai-levels.md").write_text(page, encoding="utf-8")
    with (folder / "babyai-tasks.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    env.close()
    unsolved = [row.id for row in rows if row.solvable and not row.solved]
    solvable = sum(row.solvable for row in rows)
    console.print(f"BabyAI: {solvable - len(unsolved)} of {solvable} tasks solved; see {folder / 'babyai-levels.md'}")
    if unsolved:
        console.print(f"[red]not solved:[/red] {', '.join(unsolved)}")
    return not unsolved
