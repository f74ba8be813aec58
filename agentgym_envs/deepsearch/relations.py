"""How the embedded corpus words its facts: written by `build`, read back by the oracle.

A fact is a relation between a subject (the title of a passage) and a value. Each relation has a few wordings,
so that passages do not read alike, and the words that a search for it takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_THE = r"(?:[Tt]he )?"
_STARTS_WITH_THE = tuple(
    "United |Republic of |Democratic Republic|Central African|Dominican Republic|British |U.S. |Isle of "
    "|French Southern|Turks and Caicos".split("|")
)
_ENDS_WITH_THE = tuple(
    " Islands| language|Netherlands|Philippines|Bahamas|Maldives|Comoros|Gambia|Seychelles".split("|")
)


class Relation(NamedTuple):
    """One relation.

    Attributes:
        query: The search for the value of subject `{s}`.
        wordings: Sentences or clauses with `{s}`, `{v}` and, for any further words, `{x}`.
        inverse: The search for the subject whose value is `{v}`; empty where nobody asks that way.
    """

    query: str
    wordings: tuple[str, ...]
    inverse: str = ""


RELATIONS = {
    # countries
    "capital": Relation(
        "capital and continent of {s}",
        ("The capital of {s} is {v}.", "Its capital is {v}.", "{s} is governed from {v}, its capital."),
        "country with the capital {v}, continent, ISO 3166",
    ),
    "area": Relation(
        "area of {s} covers square kilometres",
        ("It covers {v} square kilometres.", "{s} has an area of {v} square kilometres."),
    ),
    "currency": Relation(
        "currency of {s}",
        ("The currency of {s} is the {v}.", "People in {s} pay in its currency, the {v}.", "Its currency is the {v}."),
    ),
    "calling_code": Relation(
        "international calling code of {s}",
        ("The international calling code of {s} is +{v}.", "Calls to {s} from abroad begin with +{v}."),
        "international calling code +{v}",
    ),
    "domain": Relation(
        "internet domain of {s}",
        ("The internet domain {v} belongs to {s}.", "{s} has the internet domain {v} to itself."),
        "internet domain {v} country",
    ),
    "iso3": Relation(
        "three-letter ISO 3166 country code of {s}",
        ("The ISO 3166 standard gives {s} the three-letter code {v}.", "Its three-letter ISO 3166 code is {v}."),
        "country with the three-letter ISO 3166 code {v}",
    ),
    # cities, and what else GeoNames calls populated places
    "city_country": Relation(
        "{s} populated place country",
        ("{s} is a populated place in {v}.", "{s} lies in {v}.", "The place {s} belongs to {v}."),
    ),
    "latitude": Relation(
        "{s} place on the map, latitude",
        ("It stands at latitude {v},", "Its place on the map is latitude {v},"),
    ),
    "city_zone": Relation(
        "time zone of {s}",
        ("Clocks there follow the time zone {v}.", "Its time zone in the IANA database is {v}."),
    ),
    "nearest_airport": Relation(
        "airport nearest to {s} for travellers by air",
        ("The nearest airport is {v}, about {x}.", "Travellers by air use {v}, about {x}."),
    ),
    # airports
    "airport_country": Relation(
        "{s} country",
        ("{s} is an airport in {v}.", "{s} is an airfield of {v}."),
    ),
    "airport_city": Relation(
        "city served by {s}",
        ("It serves {v}.", "The place that it serves is {v}."),
    ),
    "iata": Relation(
        "IATA code of {s}",
        ("Its IATA code is {v}.", "Tickets and baggage tags show it as {v}."),
        "airport IATA code baggage tags {v}",
    ),
    "icao": Relation(
        "ICAO code of {s}",
        ("Its ICAO code is {v}.", "Pilots and controllers know it by the ICAO code {v}."),
    ),
    "elevation": Relation(
        "elevation of {s} above sea level",
        ("The field lies {v} feet above sea level.", "Its elevation is {v} feet above sea level."),
    ),
    # parts of countries
    "part_country": Relation(
        "{s} subdivision country",
        ("{s} is a first-level {x} of {v}.", "{s} is a lower-level {x} of {v}."),
    ),
    "part_code": Relation(
        "ISO 3166-2 code of {s}",
        ("Its ISO 3166-2 code is {v}.", "ISO 3166-2 lists it under {v}."),
    ),
    "county_state": Relation(
        "{s} county of the US state",
        ("{s} is one of the counties of {v}.", "{s} is a county in the US state of {v}."),
    ),
    "county_fips": Relation(
        "FIPS code of {s}",
        ("Its FIPS code is {v}.", "The federal FIPS code of the county is {v}."),
    ),
    "state_capital": Relation(
        "state capital of {s}",
        ("The state capital of {s} is {v}.", "{s} is governed from {v}, the state capital."),
        "US state whose capital is {v}",
    ),
    "statehood": Relation(
        "{s} became a state, admitted to the Union in",
        ("{s} became a state of the Union in {v}.", "{s} was admitted to the Union in {v}."),
    ),
    # elements
    "symbol": Relation(
        "chemical symbol by which chemists write {s}",
        ("Its chemical symbol is {v}.", "Chemists write {s} as {v}."),
        "chemists write the chemical symbol {v}",
    ),
    "atomic_number": Relation(
        "atomic number of {s}",
        ("The atomic number of {s} is {v}.", "{s} has the atomic number {v}."),
        "atomic number {v}, atoms with {v} protons",
    ),
    # currencies
    "currency_code": Relation(
        "{s} ISO 4217 code that banks write",
        ("The ISO 4217 code of the {s} is {v}.", "Banks write the {s} as {v}, its ISO 4217 code."),
        "currency with the ISO 4217 code {v}",
    ),
    "currency_number": Relation(
        "{s} ISO 4217 standard numeric code",
        ("The numeric code of the {s} in the same standard is {v}.", "As a number the standard lists it as {v}."),
    ),
    # languages
    "language_country": Relation(
        "{s} main country",
        ("{s} is spoken mainly in {v}.", "The main country of {s} is {v}."),
    ),
    "language_code": Relation(
        "ISO 639-3 code of {s}",
        ("The ISO 639-3 code of {s} is {v}.", "ISO 639-3 lists {s} as {v}."),
        "language with the ISO 639-3 code {v}",
    ),
    # time zones
    "zone_country": Relation(
        "time zone {s} country",
        ("The time zone {s} is kept in {v}.", "{s} is a time zone of {v}."),
    ),
    # stars
    "constellation": Relation(
        "constellation of the star {s}",
        ("The star {s} belongs to the constellation {v}.", "{s} is a star in the constellation {v}."),
    ),
}


def with_article(name: str) -> str:
    """Return a name as it stands inside a sentence: `the Netherlands`, `France`."""
    needs_the = name.startswith(_STARTS_WITH_THE) or name.endswith(_ENDS_WITH_THE)
    return f"the {name}" if needs_the else name


def sentence(relation: str, wording: int, subject: str, value: str, words: str = "") -> str:
    """Return a fact in one of its wordings (counted round)."""
    wordings = RELATIONS[relation].wordings
    shown = wordings[wording % len(wordings)].format(s=with_article(subject), v=with_article(value), x=words)
    return shown[0].upper() + shown[1:]


def read_value(text: str, relation: str, subject: str) -> str | None:
    """Return the value that a passage gives for its subject, or None if it does not say."""
    for pattern in _patterns(relation, subject, None):
        if match := pattern.search(text):
            return match["value"]
    return None


def states(text: str, relation: str, subject: str, value: str) -> bool:
    """Whether a passage gives this value for its subject."""
    return any(pattern.search(text) for pattern in _patterns(relation, subject, value))


@lru_cache(maxsize=4_096)
def _patterns(relation: str, subject: str, value: str | None) -> tuple[re.Pattern[str], ...]:
    return tuple(_compiled(RELATIONS[relation].wordings, subject, value))


def _compiled(wordings: tuple[str, ...], subject: str, value: str | None) -> Iterator[re.Pattern[str]]:
    slots = {
        "{s}": _THE + re.escape(subject),
        "{v}": _THE + ("(?P<value>.+?)" if value is None else re.escape(value)),
        "{x}": "[^.]+?",
    }
    for wording in wordings:
        parts = re.split(r"(\{[svx]\})", wording)
        yield re.compile("".join(slots.get(part, re.escape(part)) for part in parts) + r"(?=\s|$)")
