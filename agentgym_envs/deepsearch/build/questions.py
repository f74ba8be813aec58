"""Makes the questions, and keeps those that pass every check.

A question is kept if the oracle reaches its answer with the default retriever, if its answer is no other's in its
template, does not stand in the question, and, with several hops, is not among the first passages that the bare
question finds. So the best constant answer to a template is right once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from agentgym_envs.deepsearch import oracle
from agentgym_envs.deepsearch.build.names import key
from agentgym_envs.deepsearch.build.passages import Written
from agentgym_envs.deepsearch.build.sources import Entity
from agentgym_envs.deepsearch.build.templates import TEMPLATES, Template
from agentgym_envs.deepsearch.oracle import Shown, query_key
from agentgym_envs.deepsearch.relations import RELATIONS, with_article
from agentgym_envs.deepsearch.retrieval import Retriever
from agentgym_envs.deepsearch.scoring import careful, score
from agentgym_envs.deepsearch.tasks import Comparison, Hop, Question
from agentgym_envs.deepsearch.verify import shown

PER_TEMPLATE = 64
LEAST = 50  # with fewer questions a constant answer would be right more than once in fifty times
TEST_EVERY = 4
# Relation -> kind of what its values name; those that end with `_country` name countries.
_KINDS = {"capital": "city", "currency": "currency", "nearest_airport": "airport", "county_state": "state"}
TOP_K, PASSAGE_CHARS = 3, 1_000  # what the environment shows by default


class Walk(NamedTuple):
    """The way from what a question names to the value at the end.

    Attributes:
        named: What the question names.
        hops: The searches.
        support: Ids of the passages that tell each fact.
        value: What the last hop finds.
        aliases: Other names of it.
    """

    named: str
    hops: tuple[Hop, ...]
    support: tuple[str, ...]
    value: str
    aliases: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """All facts, and where they are told.

    Attributes:
        entities: Title -> what it is about.
        where: (title, relation) -> id of the passage that tells it.
    """

    entities: Mapping[str, Entity]
    where: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, entities: Sequence[Entity], written: Written) -> World:
        """Index the entities."""
        return cls({entity.title: entity for entity in entities}, written.where)

    @cached_property
    def holders(self) -> Counter[tuple[str, str]]:
        """How many entities have a value: (relation, form in which names are compared) -> number."""
        facts = (fact for entity in self.entities.values() for fact in entity.facts.items())
        return Counter((relation, key(value)) for relation, value in facts if RELATIONS[relation].inverse)

    def named(self, value: str, relation: str, subject: Entity) -> Entity | None:
        """Return what a fact's value is the name of, if it is the name of something in the corpus."""
        entity = self.entities.get(value)
        kind = "country" if relation.endswith("_country") else _KINDS.get(relation)
        if entity is None or entity.kind != kind:
            return None
        if relation == "capital" and entity.facts["city_country"] != subject.title:
            return None
        return entity


def make(world: World, retriever: Retriever, progress: Callable[[str], None]) -> list[Question]:
    """Make the questions of all templates, in the order of their ids.

    Raises:
        RuntimeError: If too few questions of a template pass the checks.
    """
    questions: list[Question] = []
    for template in TEMPLATES:
        progress(template.name)
        questions += make_some(template, world, retriever)
    return questions


def make_some(template: Template, world: World, retriever: Retriever) -> list[Question]:
    """Make the questions of one template.

    Raises:
        RuntimeError: If too few pass the checks.
    """
    kept: list[Question] = []
    taken: set[str] = set()
    for question in _candidates(template, world):
        forms = set(map(careful, question.answers))
        if forms & taken or not _is_fair(question) or not _is_solved(question, retriever):
            continue
        if template.kind in ("bridge", "composition") and shown(question, retriever):
            continue
        taken |= forms
        kept.append(question._replace(split="test" if len(kept) % TEST_EVERY == TEST_EVERY - 1 else "train"))
        if len(kept) == PER_TEMPLATE:
            break
    if len(kept) < LEAST:
        raise RuntimeError(f"template {template.name} has {len(kept)} good questions; it needs {LEAST}.")
    return kept


def solve(question: Question, retriever: Retriever) -> str | None:
    """Return the answer that the oracle reaches, or None where it gets stuck."""
    found: dict[str, Sequence[Shown]] = {}
    while (step := oracle.next_step(question, found)) is not None and step.query is not None:
        hits = retriever.search([step.query], TOP_K)[0]
        found[query_key(step.query)] = oracle.shown(hits, PASSAGE_CHARS)
    return None if step is None else step.answer


def _is_solved(question: Question, retriever: Retriever) -> bool:
    reached = solve(question, retriever)
    return reached is not None and score(reached, question.answers).exact


def _is_fair(question: Question) -> bool:
    if question.comparison is not None:
        return True
    text = f" {careful(question.text)} "
    return not any(f" {careful(answer)} " in text for answer in question.answers)


# ---- candidates -------------------------------------------------------------------------------------------


def _candidates(template: Template, world: World) -> Iterator[Question]:
    """The questions of a template, in an order that only its name decides."""
    walks = sorted(_walks(template, world), key=lambda walk: _dice(template.name, walk.named))
    if not template.pick:
        for walk in walks:
            yield _question(template, walk)
        return
    for first, second in zip(walks[::2], walks[1::2], strict=False):
        if _differ(template.path[-1], first, second):
            yield _comparison(template, first, second)


def _walks(template: Template, world: World) -> Iterator[Walk]:
    for entity in world.entities.values():
        if entity.kind != template.start or entity.ambiguous or "(" in entity.title:
            continue
        walk = _walk(template, world, entity)
        if walk is not None:
            yield walk


def _walk(template: Template, world: World, entity: Entity) -> Walk | None:
    """Follow the path from an entity; None where a fact is missing or a value has several subjects."""
    hops: list[Hop] = []
    support: list[str] = []
    named = value = entity.title
    at: Entity | None = entity
    for place, step in enumerate(template.path):
        relation = RELATIONS[step.removeprefix("~")]
        if step.startswith("~"):  # only as a first step
            given = entity.facts.get(step[1:])
            if given is None or world.holders[step[1:], key(given)] > 1:
                return None
            named, holder = given, entity
            hops.append(Hop(relation.inverse.format(v=given), step[1:], value=given))
        else:
            if at is None or step not in at.facts:
                return None
            holder = at
            slot = "{" + str(place - 1) + "}" if place else holder.title
            hops.append(Hop(relation.query.format(s=slot), step, subject=slot))
            value = holder.facts[step]
            at = world.named(value, step, holder)
        support.append(world.where[holder.title, step.removeprefix("~")])
    return Walk(named, tuple(hops), tuple(dict.fromkeys(support)), value, at.aliases if at else ())


def _question(template: Template, walk: Walk) -> Question:
    dice = _dice("phrasing", template.name, walk.named)
    phrasing = template.phrasings[dice[0] % len(template.phrasings)]
    return Question(
        _asked(template, phrasing.format(a=_in_sentence(walk.named))),
        _answers(template.path[-1], walk),
        template.subset,
        "train",
        template.name,
        template.kind,
        walk.support,
        walk.hops,
    )


def _comparison(template: Template, first: Walk, second: Walk) -> Question:
    dice = _dice("phrasing", template.name, first.named)
    phrasing = template.phrasings[dice[0] % len(template.phrasings)]
    length = len(first.hops)
    hops = (*first.hops, *(_moved(hop, length) for hop in second.hops))
    larger = _size(first) > _size(second)
    chosen = first if larger == (template.pick == "max") else second
    return Question(
        _asked(template, phrasing.format(a=_in_sentence(first.named), b=_in_sentence(second.named))),
        (chosen.named,),
        template.subset,
        "train",
        template.name,
        template.kind,
        tuple(dict.fromkeys([*first.support, *second.support])),
        hops,
        Comparison(template.pick, (length - 1, 2 * length - 1), (first.named, second.named)),
    )


def _moved(hop: Hop, by: int) -> Hop:
    """The same hop behind `by` others."""

    def moved(text: str) -> str:
        return "".join(f"{{{int(part) + by}}}" if number % 2 else part for number, part in enumerate(_slots(text)))

    return Hop(moved(hop.query), hop.relation, moved(hop.subject), moved(hop.value))


def _slots(text: str) -> list[str]:
    return oracle.SLOT.split(text)


def _differ(relation: str, first: Walk, second: Walk) -> bool:
    """Whether two values are so far apart that the answer does not hang on how they were measured."""
    one, other = sorted((_size(first), _size(second)))
    if relation in ("area", "elevation"):
        return other >= 1.3 * one and other - one >= 100
    if relation == "latitude":
        return other - one >= 2
    return one != other


def _size(walk: Walk) -> float:
    return oracle.number(walk.value)


def _asked(template: Template, text: str) -> str:
    return text.lower() if template.subset == "NQ" else text[0].upper() + text[1:]


def _in_sentence(name: str) -> str:
    # Phrasings have the article of languages themselves.
    return name if name.endswith(" language") else with_article(name)


def _answers(step: str, walk: Walk) -> tuple[str, ...]:
    """The value, and other ways of writing it."""
    relation, value = step.removeprefix("~"), walk.value
    others: Sequence[str] = walk.aliases
    if relation == "calling_code" and not step.startswith("~"):
        others = [f"+{value}", f"00{value}"]
    elif relation == "elevation":
        others = [f"{value} feet", f"{value} ft"]
    elif relation == "domain" and not step.startswith("~"):
        others = [value.removeprefix(".")]
    forms: dict[str, str] = {}
    for name in [value, *others]:
        forms.setdefault(careful(name), name)
    return tuple(forms.values())


def _dice(*words: str) -> bytes:
    return hashlib.sha256("/".join(words).encode()).digest()
