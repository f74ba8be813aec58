"""Sweep the embedded tasks: does the oracle solve each through the browser, and what do agents get that do not?

`python -m agentgym_envs.verify --scenario WebArena` (part of `make verify`) writes a page by template and a table of
tasks to `docs/results/`. It takes about an hour on two cores. What has been found out about a task is kept in the
cache, so that a sweep which was interrupted, or comes after a change of some tasks, does the rest.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from rich.console import Console
from rich.progress import track

from agentgym_envs.cache import cache_dir, make_folder
from agentgym_envs.core import Fault
from agentgym_envs.tasks import Task
from agentgym_envs.webarena import tasks
from agentgym_envs.webarena.env import WebArenaEnv
from agentgym_envs.webarena.sites import pristine

T = TypeVar("T")

MAX_TURNS = 30
_TRIES = 5
RANDOM_EPISODES = 100
CONSTANT = ("", "N/A")
_STEM = "webarena-tasks"

_OFFERED = re.compile(r"^ *\[(\d+)\] (link|button|textbox|searchbox|combobox|checkbox|radio|option)\b.*$", re.MULTILINE)
_FIELDS = ("textbox", "searchbox")
_WORDS = ("lamp", "hello there", "3", "2025-03-20", "emma@example.com", "")
_ELSEWHERE = ("go_back", "go_forward", "new_tab", "tab_focus [0]", "close_tab", "scroll [down]")
_TEXT = re.compile(r"^ *\[\d+\] (?:StaticText|link|cell|heading) '([^']+)'", re.MULTILINE)


class Row(NamedTuple):
    """What the sweep found out about a task.

    Attributes:
        id: The task.
        subset: Its domain.
        template: The template that it was made from.
        split: Its split.
        sites: Number of sites that it needs.
        kind: `information`, `navigation` or `change`.
        intent: What is asked.
        turns: Actions of the oracle.
        prompt_chars: Characters of the reset observation.
        solved: Whether the oracle succeeded.
        constant: What the best of the constant answers scored, given at once.
    """

    id: str
    subset: str
    template: str
    split: str
    sites: int
    kind: str
    intent: str
    turns: int
    prompt_chars: int
    solved: bool
    constant: float


def any_action(view: str, rng: random.Random, stops: float = 0.0) -> str:
    """Return something that a page offers, or a change of pages or tabs.

    Args:
        view: The observation.
        rng: Draws it.
        stops: The probability of ending the episode with a text of the page.
    """
    if rng.random() < stops:
        return f"stop [{_one_of(_TEXT.findall(view) or [''], rng)}]"
    found = _OFFERED.findall(view)
    forms = [one for one in found if one[1] != "link"]  # they change more than links do
    pool = forms if forms and rng.random() < 0.6 else found
    if not pool or rng.random() < 0.1:
        return _one_of(_ELSEWHERE, rng)
    number, role = _one_of(pool, rng)
    if role in _FIELDS:
        return f"type [{number}] [{_one_of(_WORDS, rng)}] [{int(rng.random() * 2)}]"
    return f"click [{number}]"


def sweep_task(env: WebArenaEnv, task: Task) -> Row:
    """Let the oracle play a task, and see what agents get that answer at once.

    Raises:
        Fault: If the browser or the sites failed.
    """
    web = env.web_task(task)
    observation, _ = env.reset(seed=0, options={"task": task.id})
    constant = max(env._score(answer) for answer in CONSTANT)
    turns, solved = 0, False
    while turns < MAX_TURNS and (action := env.oracle_action()) is not None:
        _, _, terminated, truncated, info = env.step(action)
        turns += 1
        if "fault" in info:
            raise Fault(str(info["fault_kind"]), str(info["fault"]))
        if terminated or truncated:
            solved = bool(info["success"])
            break
    kind = "change" if "state" in web.evaluation else "information" if "answer" in web.evaluation else "navigation"
    return Row(
        task.id,
        task.subset,
        web.template,
        task.split,
        len(web.sites),
        kind,
        web.intent,
        turns,
        len(observation),
        solved,
        constant,
    )


class Luck(NamedTuple):
    """An episode of the random agent: the task's subset, whether it succeeded, and its turns."""

    subset: str
    success: bool
    turns: int


def play_randomly(env: WebArenaEnv, seed: int) -> Luck:
    """Play the task that a seed draws at random."""
    rng = random.Random(f"random agent/{seed}")
    observation, info = env.reset(seed=seed)
    for _ in range(MAX_TURNS):
        observation, _, terminated, truncated, info = env.step(any_action(observation, rng, stops=0.03))
        if terminated or truncated:
            break
    return Luck(str(info["subset"]), bool(info["success"]), int(info["turn"]))


def closed_book() -> int:
    """Return how many tasks the one constant answer solves that solves the most."""
    answers = Counter(
        json.dumps(fields["eval"]["answer"], sort_keys=True)
        for fields in tasks.embedded()
        if "answer" in fields["eval"]
    )
    return max(answers.values())


def summary(rows: Sequence[Row], lucks: Sequence[Luck], data_hash: str, as_before: bool) -> str:
    """Return the page, by domain and by template."""
    actions = sum(luck.turns for luck in lucks)
    lines = [
        "# WebArena: all embedded tasks",
        "",
        "Written by `make verify`. The oracle plays every task through the browser, with at most"
        f" {MAX_TURNS} turns. Constant: tasks that an agent solves which answers nothing, or N/A, at once."
        " The random agent clicks, types and moves about, and stops with a text of the page, in"
        f" {len(lucks)} episodes of at most {MAX_TURNS} turns. Turns of the oracle and characters of the reset"
        " observation are median and maximum.",
        "",
        f"Data: `{data_hash}`",
        "",
        f"{sum(row.turns > 5 for row in rows)} tasks take six or more actions. The best single answer to all tasks"
        f" solves {closed_book()} of them.",
        "",
        f"After the {actions:,} actions of the random agent and a reset, the state of the sites had"
        f" {'the hash that it had before' if as_before else '**another hash than before**'}.",
        "",
        "| Domain | Templates | Tasks | Train | Test | Two sites | Information | Navigation | Change | Oracle | Turns"
        " | Characters | Constant | Random agent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for subset in [*dict.fromkeys(row.subset for row in rows), "all"]:
        chosen = [row for row in rows if subset in (row.subset, "all")]
        played = [luck.success for luck in lucks if subset in (luck.subset, "all")]
        cells = (
            subset,
            len({row.template for row in chosen}),
            len(chosen),
            sum(row.split == "train" for row in chosen),
            sum(row.split == "test" for row in chosen),
            sum(row.sites > 1 for row in chosen),
            *(sum(row.kind == kind for row in chosen) for kind in ("information", "navigation", "change")),
            sum(row.solved for row in chosen),
            _middle([row.turns for row in chosen]),
            _middle([row.prompt_chars for row in chosen]),
            sum(row.constant > 0 for row in chosen),
            f"{sum(played)} of {len(played)}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "| Template | Domain | Kind | Tasks | Oracle | Turns | Example |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for template in dict.fromkeys(row.template for row in rows):
        chosen = [row for row in rows if row.template == template]
        solved, turns = sum(row.solved for row in chosen), _middle([row.turns for row in chosen])
        first = chosen[0]
        cells = (f"`{template}`", first.subset, first.kind, len(chosen), solved, turns, first.intent)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


class _Known:
    """What has been found out with these sites, a line of JSON each."""

    def __init__(self) -> None:
        folder = make_folder(cache_dir("webarena", "sweep"))
        self._file = folder / f"{pristine.data_hash()}.jsonl"
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.is_file() else []
        self._known = dict(json.loads(line) for line in lines)

    def row(self, env: WebArenaEnv, task: Task) -> Row:
        """Return what is known about a task as it is now, or find it out, and keep it if the oracle solved it."""
        key = hashlib.sha256(json.dumps(tasks.embedded()[task.index]).encode()).hexdigest()[:16]
        if key not in self._known:
            row = _patiently(lambda: sweep_task(env, task))
            if not row.solved:
                return row
            self._keep(key, row)
        return Row(task.id, *self._known[key][1:])

    def luck(self, env: WebArenaEnv, seed: int) -> Luck:
        """Return how the random agent fares with a seed, or find it out and keep it."""
        key = f"{tasks.tasks_hash()} random {seed}"
        if key not in self._known:
            self._keep(key, _patiently(lambda: play_randomly(env, seed)))
        return Luck(*self._known[key])

    def _keep(self, key: str, value: Row | Luck) -> None:
        self._known[key] = list(value)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, self._known[key]]) + "\n")


def _patiently(find_out: Callable[[], T]) -> T:
    """Try again where the browser or the sites failed, as on a machine that is busy with other things."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(Fault):
            return find_out()
    return find_out()


def verify(folder: Path, console: Console) -> bool:
    """Sweep all tasks and write the two files; return whether everything is as it should be."""
    env = WebArenaEnv(split="all")
    known = _Known()
    try:
        rows = [known.row(env, task) for task in track(env.task_table(), "WebArena: oracle", console=console)]
        before = _hash_after_reset(env)
        seeds = track(range(RANDOM_EPISODES), "WebArena: random agent", console=console)
        lucks = [known.luck(env, seed) for seed in seeds]
        as_before = _hash_after_reset(env) == before
    finally:
        env.close()
    folder.mkdir(parents=True, exist_ok=True)
    page = summary(rows, lucks, WebArenaEnv.data_hash(), as_before)
    (folder / f"{_STEM}.md").write_text(page, encoding="utf-8")
    with (folder / f"{_STEM}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    wrong = [row.id for row in rows if not row.solved or row.constant]
    console.print(f"WebArena: {len(rows) - len(wrong)} of {len(rows)} tasks as they should be; see {folder / _STEM}.md")
    if wrong:
        console.print(f"[red]not solved, or solved by a constant:[/red] {', '.join(wrong)}")
    return as_before and not wrong


def _hash_after_reset(env: WebArenaEnv) -> str:
    env.reset(seed=0)
    return env.state_hash()


def _one_of(items: Sequence[T], rng: random.Random) -> T:
    return items[int(rng.random() * len(items))]


def _middle(values: Sequence[int]) -> str:
    return f"{statistics.median(values):g}, {max(values)}"
