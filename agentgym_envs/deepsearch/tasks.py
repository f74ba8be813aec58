"""The questions: how they are kept, and the table of tasks of the embedded ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_envs.core import check_init_keys
from agentgym_envs.deepsearch.relations import RELATIONS
from agentgym_envs.tasks import Task, TaskTable

SUBSETS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2WikiMultiHopQA", "MuSiQue", "Bamboogle")
DATA = Path(__file__).with_name("embedded")
CORPUS = DATA / "corpus.jsonl.gz"
QUESTIONS = DATA / "questions.jsonl.gz"
MANIFEST = DATA / "manifest.json"
EMBEDDED = "deepsearch-embedded"


class Hop(NamedTuple):
    """One search of a plan; `{0}`, `{1}`, ... stand for what earlier hops found.

    Attributes:
        query: The search.
        relation: The fact to read (see `relations`).
        subject: Title of the passage that tells it; empty if the title is what is asked for.
        value: The value whose subject is asked for; empty if the value is what is asked for.
    """

    query: str
    relation: str
    subject: str = ""
    value: str = ""


class Comparison(NamedTuple):
    """How a plan ends that compares: the name whose value is the largest or smallest is the answer.

    Attributes:
        pick: `"max"` or `"min"`.
        by: Numbers of the hops whose values are compared.
        names: The name that each of them stands for.
    """

    pick: str
    by: tuple[int, ...]
    names: tuple[str, ...]


class Question(NamedTuple):
    """A question record.

    Attributes:
        text: The question.
        answers: The answer, and its aliases.
        subset: The set in whose manner it is.
        split: `"train"` or `"test"`.
        template: What it was made with.
        kind: `single`, `bridge`, `comparison`, `bridge-comparison` or `composition`.
        support: Ids of the passages that hold the facts.
        hops: The searches that lead to the answer; empty where no plan is known.
        comparison: How the plan ends, if it compares.
    """

    text: str
    answers: tuple[str, ...]
    subset: str = "custom"
    split: str = "train"
    template: str = ""
    kind: str = ""
    support: tuple[str, ...] = ()
    hops: tuple[Hop, ...] = ()
    comparison: Comparison | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as it is kept in the file."""
        record = {**self._asdict(), "hops": [_without_empty(hop._asdict()) for hop in self.hops]}
        record["comparison"] = None if self.comparison is None else self.comparison._asdict()
        return _without_empty(record)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Question:
        """Read a record of the file."""
        known = dict(record)
        known["answers"] = tuple(record["answers"])
        known["support"] = tuple(record.get("support", ()))
        known["hops"] = tuple(Hop(**hop) for hop in record.get("hops", ()))
        if found := record.get("comparison"):
            known["comparison"] = Comparison(found["pick"], tuple(found["by"]), tuple(found["names"]))
        return cls(**known)


@cache
def embedded_questions() -> tuple[Question, ...]:
    """Return the embedded questions, in the order of their ids."""
    with gzip.open(QUESTIONS, "rt", encoding="utf-8") as lines:
        return tuple(Question.from_json(json.loads(line)) for line in lines)


@cache
def manifest() -> dict[str, Any]:
    """Return what is known about the embedded data: hash, counts, packages and their licences."""
    record: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return record


@cache
def embedded_table() -> TaskTable:
    """Return the tasks of the embedded questions."""
    return TaskTable(
        "DeepSearch",
        (
            Task(f"{EMBEDDED}_{i}", i, question.subset, question.split, "embedded")
            for i, question in enumerate(embedded_questions())
        ),
    )


def label(subset: str, source: str) -> str:
    """Return the name of a subset for tables of results, where embedded questions must not pass for real ones."""
    return f"{subset}-style (embedded)" if source == "embedded" else subset


def question_of_init(init: Mapping[str, Any]) -> Question:
    """Read `options["init"]`.

    Args:
        init: `question` and `answers` (the answer and its aliases); `hops` and `comparison`, as in the embedded
            questions, let the oracle solve it by searching.

    Raises:
        ValueError: If it is not accepted; the message says what is.
    """
    where = "DeepSearch: options['init']"
    check_init_keys(where, init, "question", ["answers", "hops", "comparison"])
    text, answers = init["question"], init.get("answers")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: question is a text, not {text!r}.")
    if not isinstance(answers, list) or not answers or not all(isinstance(one, str) and one.strip() for one in answers):
        raise ValueError(f"{where}: answers is a list of at least one accepted answer, not {answers!r}.")
    hops = tuple(_checked_hop(where, hop) for hop in _list(where, init, "hops"))
    comparison = _checked_comparison(where, init["comparison"], len(hops)) if init.get("comparison") else None
    return Question(" ".join(text.split()), tuple(answers), hops=hops, comparison=comparison)


def _list(where: str, init: Mapping[str, Any], key: str) -> Sequence[Any]:
    found = init.get(key, [])
    if not isinstance(found, list):
        raise ValueError(f"{where}: {key} is a list, not {found!r}.")
    return found


def _checked_hop(where: str, hop: Any) -> Hop:
    texts = isinstance(hop, Mapping) and all(isinstance(value, str) for value in hop.values())
    if not texts or set(hop) not in ({"query", "relation", "subject"}, {"query", "relation", "value"}):
        raise ValueError(f"{where}: a hop has query, relation and either subject or value, all texts; it is {hop!r}.")
    if hop["relation"] not in RELATIONS:
        raise ValueError(f"{where}: relation {hop['relation']!r} is unknown; accepted are {', '.join(RELATIONS)}.")
    return Hop(**hop)


def _checked_comparison(where: str, found: Any, hops: int) -> Comparison:
    told = (
        f"{where}: comparison is like {{'pick': 'max', 'by': [0, 1], 'names': ['A', 'B']}} with numbers of hops, "
        f"not {found!r}."
    )
    if not isinstance(found, Mapping) or set(found) != {"pick", "by", "names"} or found["pick"] not in ("max", "min"):
        raise ValueError(told)
    by, names = found["by"], found["names"]
    if not isinstance(by, list) or not isinstance(names, list) or not by or len(by) != len(names):
        raise ValueError(told)
    if not all(type(n) is int and 0 <= n < hops for n in by) or not all(isinstance(name, str) for name in names):
        raise ValueError(told)
    return Comparison(found["pick"], tuple(by), tuple(names))


def _without_empty(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value}
