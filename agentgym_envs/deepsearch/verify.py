"""Sweep every embedded question: oracle, and what is right without searching well.

`python -m agentgym_envs.verify --scenario DeepSearch` writes a page by set and a table of questions.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from agentgym_envs.deepsearch import tasks
from agentgym_envs.deepsearch.env import EmbeddedDeepSearchEnv
from agentgym_envs.deepsearch.retrieval import Retriever, open_retriever
from agentgym_envs.deepsearch.scoring import careful, score
from agentgym_envs.deepsearch.tasks import Question, label

LEAK_TOP_K = 5
_MAX_TURNS = 20


class Row(NamedTuple):
    """What the sweep found out about a question.

    Attributes:
        id: The task.
        subset: The set in whose manner it asks.
        split: Its split.
        template: What it was made with.
        kind: `single`, `bridge`, `composition`, `comparison` or `bridge-comparison`.
        hops: Searches of its plan.
        question: The question.
        answer: The answer; aliases are in the data.
        score: Score of the oracle's episode.
        searches: Searches that the oracle made.
        lucky: Whether the title of a random passage out of those that the bare question finds is the answer.
        named: Whether the first thing that a comparison names is the answer.
        shown: Whether the first five passages for the bare question hold an accepted answer.
    """

    id: str
    subset: str
    split: str
    template: str
    kind: str
    hops: int
    question: str
    answer: str
    score: float
    searches: int
    lucky: bool
    named: bool
    shown: bool


def sweep_task(env: EmbeddedDeepSearchEnv, retriever: Retriever, index: int) -> Row:
    """Let oracle and random agent answer one question."""
    task = env.task_table().find(f"{tasks.EMBEDDED}_{index}")
    question = env.question_of(task)
    _, info = env.reset(seed=0, options={"task": task.id})
    for _ in range(_MAX_TURNS):
        if (action := env.oracle_action()) is None:
            break
        *_, info = env.step(action)
        if "end" in info:
            break
    hits = retriever.search([question.text], LEAK_TOP_K)[0]
    titles = [hit.passage.title for hit in hits[:3]]
    rng = random.Random(f"random agent/{index}")
    guess = titles[int(rng.random() * len(titles))] if titles else ""
    compared = question.comparison
    return Row(
        id=task.id,
        subset=task.subset,
        split=task.split,
        template=question.template,
        kind=question.kind,
        hops=len(question.hops),
        question=question.text,
        answer=question.answers[0],
        score=float(info["score"]),
        searches=int(info["searches"]),
        lucky=score(guess, question.answers).exact,
        named=compared is not None and compared.names[0] == question.answers[0],
        shown=shown(question, retriever),
    )


def shown(question: Question, retriever: Retriever) -> bool:
    """Whether the passages that the bare question finds first hold an accepted answer."""
    hits = retriever.search([question.text], LEAK_TOP_K)[0]
    text = " ".join(f"{careful(hit.passage.title)} {careful(hit.passage.text)}" for hit in hits)
    return any(f" {careful(answer)} " in f" {text} " for answer in question.answers)


def closed_book(rows: Iterable[Row]) -> float:
    """Return the share that the best constant answer to each template gets right."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        counts.setdefault(row.template, Counter())[careful(row.answer)] += 1
    return sum(max(found.values()) for found in counts.values()) / sum(found.total() for found in counts.values())


def summary(rows: Sequence[Row], data: str) -> str:
    """Return the page, by set."""
    several = [row for row in rows if row.hops > 1]
    compared = [row for row in rows if row.kind.endswith("comparison")]
    lines = [
        "# DeepSearch: the embedded questions",
        "",
        f"Written by `make verify` over all {len(rows):,} questions with the lexical retriever, three passages each.",
        "Oracle: mean score of the oracle, which reads what its searches return. Random agent: searches for the bare",
        "question and answers with the title of a passage that comes back. Closed book: the best constant answer to",
        "each template. Shown: the five first passages for the bare question hold the answer; in comparisons they",
        "nearly always do, as the question names it.",
        "",
        f"Data: `{data}`",
        "",
        "| Questions | All | Train | Test | 1 hop | 2 | 3 | 4 | Oracle | Random agent | Closed book | Shown |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for subset in [*tasks.SUBSETS, "all"]:
        chosen = [row for row in rows if subset in (row.subset, "all")]
        hops = Counter(row.hops for row in chosen)
        cells = (
            "all (embedded)" if subset == "all" else label(subset, "embedded"),
            len(chosen),
            sum(row.split == "train" for row in chosen),
            sum(row.split == "test" for row in chosen),
            *(hops[number] for number in (1, 2, 3, 4)),
            f"{_mean(row.score for row in chosen):.3f}",
            f"{_mean(row.lucky for row in chosen):.3f}",
            f"{closed_book(chosen):.3f}",
            f"{_mean(row.shown for row in chosen):.2f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    chains = [row for row in several if row not in compared]
    lines += [
        "",
        f"Of the {len(several):,} questions with several hops, {_mean(row.shown for row in several):.1%} have their",
        f"answer in the first five passages; without the comparisons {_mean(row.shown for row in chains):.1%}.",
        f"Of the {len(compared)} comparisons, {_mean(row.named for row in compared):.1%} have the first-named thing",
        "as their answer.",
        "",
        "| Template | Kind | Hops | Questions | Oracle | Closed book | Example |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for template in dict.fromkeys(row.template for row in rows):
        chosen = [row for row in rows if row.template == template]
        first = chosen[0]
        cells = (
            f"`{template}`",
            first.kind,
            first.hops,
            len(chosen),
            f"{_mean(row.score for row in chosen):.3f}",
            f"{closed_book(chosen):.3f}",
            f"{first.question} ({first.answer})",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def verify(folder: Path, console: Console) -> bool:
    """Sweep all questions and write the two files; return whether the oracle answered every one."""
    env = EmbeddedDeepSearchEnv(split="all")
    retriever = open_retriever("lexical", corpus=tasks.CORPUS, progress=True)
    numbers = range(len(env.task_table()))
    rows = [sweep_task(env, retriever, i) for i in track(numbers, "DeepSearch: oracle", console=console)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deepsearch-questions.md").write_text(summary(rows, env.data_hash()), encoding="utf-8")
    with (folder / "deepsearch-questions.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)
    retriever.close()
    env.close()
    wrong = [row.id for row in rows if row.score < 1]
    console.print(f"DeepSearch: {len(rows) - len(wrong)} of {len(rows)} questions answered; see {folder}")
    if wrong:
        console.print(f"[red]not answered:[/red] {', '.join(wrong)}")
    return not wrong


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
