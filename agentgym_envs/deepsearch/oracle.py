"""The oracle: follows a question's plan, and knows of the answer only what the passages on the page say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agentgym_envs.deepsearch import prompts
from agentgym_envs.deepsearch.relations import read_value, states
from agentgym_envs.deepsearch.retrieval import Hit
from agentgym_envs.deepsearch.tasks import Comparison, Hop, Question

SLOT = re.compile(r"\{(\d+)\}")  # what an earlier hop found
_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")


class Shown(NamedTuple):
    """A passage as it was shown."""

    title: str
    text: str


def shown(hits: Iterable[Hit], passage_chars: int) -> list[Shown]:
    """Return passages as the agent sees them."""
    return [Shown(prompts.one_line(hit.passage.title), prompts.shown_text(hit, passage_chars)) for hit in hits]


class Step(NamedTuple):
    """What a plan wants next: a search, or the answer if `query` is None."""

    query: str | None
    answer: str = ""


def query_key(query: str) -> str:
    """Return a query in the form in which two are the same."""
    return " ".join(query.casefold().split())


def next_step(question: Question, found: Mapping[str, Sequence[Shown]]) -> Step | None:
    """Follow the plan as far as the passages that were found allow.

    Args:
        question: The question; one without hops is searched for as it stands, then answered from the record.
        found: `query_key` -> the passages that were shown for it.

    Returns:
        The next step, or None if the passages do not say what the plan needs.
    """
    if not question.hops:
        return Step(None, question.answers[0]) if query_key(question.text) in found else Step(question.text)
    values: list[str] = []
    for hop in question.hops:
        query = _filled(hop.query, values)
        passages = found.get(query_key(query))
        if passages is None:
            return Step(query)
        value = _read(hop, values, passages)
        if value is None:
            return None
        values.append(value)
    if question.comparison is None:
        return Step(None, values[-1])
    return Step(None, _compared(question.comparison, values))


def _read(hop: Hop, values: Sequence[str], passages: Sequence[Shown]) -> str | None:
    if hop.value:
        value = _filled(hop.value, values)
        return next((p.title for p in passages if states(p.text, hop.relation, p.title, value)), None)
    subject = _filled(hop.subject, values)
    about = [passage for passage in passages if passage.title.casefold() == subject.casefold()]
    found = (read_value(passage.text, hop.relation, passage.title) for passage in about)
    return next((value for value in found if value is not None), None)


def _compared(comparison: Comparison, values: Sequence[str]) -> str:
    sizes = [number(values[place]) for place in comparison.by]
    chosen = max(sizes) if comparison.pick == "max" else min(sizes)
    return _filled(comparison.names[sizes.index(chosen)], values)


def number(text: str) -> float:
    """Return the size that a value states; degrees south and west are negative."""
    match = _NUMBER.search(text)
    size = float(match[0].replace(",", "")) if match else 0.0
    return -size if text.endswith((" S", " W")) else size


def _filled(text: str, values: Sequence[str]) -> str:
    return SLOT.sub(lambda slot: values[int(slot[1])] if int(slot[1]) < len(values) else slot[0], text)
