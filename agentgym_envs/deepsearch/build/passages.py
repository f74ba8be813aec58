"""Writes the passages: the facts of an entity in sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentgym_envs.deepsearch.build.sources import Entity
from agentgym_envs.deepsearch.relations import sentence
from agentgym_envs.deepsearch.retrieval.interface import Passage

# Kind -> its passages, each as the relations that it tells; further sentences go to the first one.
_SECTIONS: dict[str, Sequence[Sequence[str]]] = {
    "country": (
        ("capital", "area"),
        ("iso3", "domain", "calling_code"),
        ("currency",),
    ),
    "city": (("city_country", "latitude", "city_zone", "nearest_airport"),),
    "airport": (("airport_country", "airport_city", "iata", "icao", "elevation"),),
    "part": (("part_country", "part_code"),),
    "state": (("state_capital", "statehood"),),
    "county": (("county_state", "county_fips"),),
    "element": (("symbol", "atomic_number"),),
    "currency": (("currency_code", "currency_number"),),
    "language": (("language_country", "language_code"),),
    "zone": (("zone_country",),),
    "star": (("constellation",),),
}


class Written(NamedTuple):
    """The corpus.

    Attributes:
        passages: All passages, in order of id.
        where: (title, relation) -> id of the passage that tells it.
    """

    passages: list[Passage]
    where: dict[tuple[str, str], str]


def write(entities: Iterable[Entity]) -> Written:
    """Write the passages of all entities."""
    passages: list[Passage] = []
    where: dict[tuple[str, str], str] = {}
    for entity in entities:
        for number, section in enumerate(_SECTIONS[entity.kind]):
            told = [relation for relation in section if relation in entity.facts]
            sentences = _sentences(entity, told)
            if number == 0:
                sentences = _with_notes(entity, told, sentences)
            if not sentences:
                continue
            name = f"{entity.kind}-{entity.key}" + (f"-{number + 1}" if number else "")
            passages.append(Passage(name, entity.title, " ".join(sentences)))
            where.update({(entity.title, relation): name for relation in told})
    passages.sort()
    return Written(passages, where)


def _sentences(entity: Entity, told: Iterable[str]) -> list[str]:
    """Word each fact; which wording it is follows from the entity's key."""
    dice = hashlib.sha256(f"{entity.kind}/{entity.key}".encode()).digest()
    found = []
    for place, relation in enumerate(told):
        wording = dice[place]
        if relation == "part_country":
            wording = int(entity.words["level"] == "lower")
        found.append(sentence(relation, wording, entity.title, entity.facts[relation], entity.words.get(relation, "")))
    return found


def _with_notes(entity: Entity, told: Sequence[str], sentences: list[str]) -> list[str]:
    """Put the notes behind the facts; a city's first one ends the clause of its latitude."""
    if entity.kind != "city":
        return [*sentences, *entity.notes]
    after = told.index("latitude") + 1
    return [*sentences[:after], entity.notes[0], *sentences[after:], *entity.notes[1:]]
