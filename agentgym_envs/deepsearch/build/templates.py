"""The templates: how each set asks, from which kind of thing a question starts, and over which facts it goes."""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """A way of asking.

    Attributes:
        subset: The set in whose manner it asks.
        start: Kind of the entity that the question names.
        path: Relations from there to the answer. `~relation` goes from a value to its subject: the question then
            names the value.
        phrasings: The question with `{a}` for what it names, in a few forms. Comparisons name `{a}` and `{b}`.
        pick: For comparisons: `max` or `min` of the values at the end of the path. The answer is then one of the
            two things that the question names.
    """

    subset: str
    start: str
    path: tuple[str, ...]
    phrasings: tuple[str, ...]
    pick: str = ""

    @property
    def name(self) -> str:
        """Its name, unique."""
        return ".".join([self.subset, self.start, *self.path, *filter(None, [self.pick])])

    @property
    def kind(self) -> str:
        """`single`, `bridge` (two hops), `composition` (more), `comparison` or `bridge-comparison`."""
        if self.pick:
            return "comparison" if len(self.path) == 1 else "bridge-comparison"
        return {1: "single", 2: "bridge"}.get(len(self.path), "composition")


def _paths(subset: str, *rows: tuple[str, str, tuple[str, ...]]) -> tuple[Template, ...]:
    return tuple(Template(subset, start, tuple(path.split()), phrasings) for start, path, phrasings in rows)


def _comparisons(subset: str, *rows: tuple[str, str, str, tuple[str, ...]]) -> tuple[Template, ...]:
    return tuple(Template(subset, start, tuple(path.split()), phrasings, pick) for start, path, pick, phrasings in rows)


_NQ = _paths(
    "NQ",
    ("country", "capital", ("what is the capital of {a}", "name the capital city of {a}")),
    ("country", "currency", ("what currency do they use in {a}", "what is the money in {a} called")),
    ("country", "calling_code", ("what is the country code for calling {a}", "dialling code for {a}")),
    ("country", "~domain", ("what country uses the domain {a}", "which country does {a} belong to on the internet")),
    ("element", "atomic_number", ("what is the atomic number of {a}", "how many protons does {a} have")),
    ("county", "county_fips", ("what is the fips code of {a}", "fips county code for {a}")),
    ("zone", "zone_country", ("which country keeps the time zone {a}", "country of the time zone {a}")),
    ("airport", "icao", ("what is the icao code for {a}", "icao airport code of {a}")),
    ("currency", "currency_code", ("what is the iso code for the {a}", "currency code of the {a}")),
)

_TRIVIA = _paths(
    "TriviaQA",
    ("element", "~symbol", ("Which chemical element goes by the symbol {a}?", "{a} is the symbol of which element?")),
    ("element", "~atomic_number", ("Which element stands at place {a} in the periodic table?",)),
    (
        "country",
        "~capital",
        ("Of which country is {a} the capital?", "{a} is the capital city of which country?"),
    ),
    (
        "airport",
        "~iata",
        ("A suitcase tagged {a} is on its way to which airport?", "To which airport does the IATA code {a} belong?"),
    ),
    ("language", "~language_code", ("Which language does ISO 639-3 list as {a}?",)),
    ("country", "~calling_code", ("Which country do you ring if the number begins with +{a}?",)),
)

_POPQA = _paths(
    "PopQA",
    ("city", "city_country", ("In what country is {a}?", "What country is {a} in?")),
    ("airport", "airport_country", ("In what country is {a}?", "What country is {a} located in?")),
    ("language", "language_country", ("In what country is the {a} mainly spoken?",)),
    ("part", "part_country", ("What country is {a} a part of?", "To what country does {a} belong?")),
    ("airport", "airport_city", ("What place does {a} serve?",)),
    ("city", "city_zone", ("What is the time zone of {a}?",)),
    ("language", "language_code", ("What is the ISO 639-3 code of the {a}?",)),
    ("part", "part_code", ("What is the ISO 3166-2 code of {a}?",)),
    ("airport", "iata", ("What is the IATA code of {a}?",)),
    ("city", "nearest_airport", ("What is the airport nearest to {a}?",)),
)

_HOTPOT = _paths(
    "HotpotQA",
    (
        "airport",
        "airport_country capital",
        ("What is the capital of the country in which {a} is located?", "{a} is in a country with which capital?"),
    ),
    (
        "city",
        "city_country currency",
        ("Which currency is used in the country where {a} lies?", "In {a}, which currency would a visitor pay with?"),
    ),
    (
        "language",
        "language_country calling_code",
        ("What is the international calling code of the country where the {a} is mainly spoken?",),
    ),
    (
        "airport",
        "airport_country currency",
        ("What is the currency of the country in which {a} is situated?", "What would you pay with close to {a}?"),
    ),
    ("city", "nearest_airport iata", ("What is the IATA code of the airport nearest to {a}?",)),
) + _comparisons(
    "HotpotQA",
    ("country", "area", "max", ("Which country has the larger area, {a} or {b}?", "Which is larger, {a} or {b}?")),
    (
        "airport",
        "elevation",
        "max",
        ("Which airport lies higher above the sea, {a} or {b}?", "Of {a} and {b}, which has the greater elevation?"),
    ),
    ("element", "atomic_number", "max", ("Whose atoms have more protons, those of {a} or those of {b}?",)),
)

_WIKI = _paths(
    "2WikiMultiHopQA",
    ("language", "language_country capital", ("What is the capital of the main country of the {a}?",)),
    (
        "airport",
        "airport_country domain",
        ("What is the internet domain of the country where {a} is located?",),
    ),
    ("zone", "zone_country currency", ("What is the currency of the country where the time zone {a} is kept?",)),
) + _comparisons(
    "2WikiMultiHopQA",
    ("city", "latitude", "max", ("Which place lies farther north, {a} or {b}?",)),
    ("city", "latitude", "min", ("Which of the two places is the more southern one, {a} or {b}?",)),
    (
        "airport",
        "airport_country area",
        "max",
        ("Which airport is in the country with the larger area, {a} or {b}?",),
    ),
    (
        "county",
        "county_state statehood",
        "min",
        ("Which county is in the state that joined the Union first, {a} or {b}?",),
    ),
)

_MUSIQUE = _paths(
    "MuSiQue",
    (
        "airport",
        "airport_country currency currency_code",
        ("What is the ISO 4217 code of the currency used in the country where {a} is located?",),
    ),
    (
        "language",
        "language_country currency currency_number",
        ("Which numeric code stands for the currency of the country where the {a} is mainly spoken?",),
    ),
    (
        "part",
        "part_country capital city_zone",
        ("Which time zone do clocks follow in the capital of the country that {a} belongs to?",),
    ),
    (
        "country",
        "~domain currency currency_code",
        ("What ISO 4217 code has the currency of the country with the internet domain {a}?",),
    ),
    (
        "zone",
        "zone_country currency currency_number",
        ("Which number does ISO 4217 give the currency of the country that keeps the time zone {a}?",),
    ),
    (
        "airport",
        "~iata airport_country currency",
        ("What do people pay with in the country whose airport has the IATA code {a}?",),
    ),
    (
        "city",
        "city_country capital nearest_airport iata",
        ("What is the IATA code of the airport nearest to the capital of the country that {a} is in?",),
    ),
    (
        "language",
        "language_country capital nearest_airport icao",
        ("What is the ICAO code of the airport nearest to the capital of the country where the {a} is mainly spoken?",),
    ),
    (
        "part",
        "part_country capital nearest_airport elevation",
        ("How many feet above the sea lies the airport nearest to the capital of the country that {a} is part of?",),
    ),
    (
        "airport",
        "~iata airport_country currency currency_number",
        ("What is the numeric code of the currency used where the airport with the IATA code {a} is?",),
    ),
    (
        "airport",
        "~iata airport_country capital city_zone",
        ("Which time zone has the capital of the country whose airport is shortened to {a}?",),
    ),
)

_BAMBOOGLE = _paths(
    "Bamboogle",
    ("country", "~capital calling_code", ("What is the calling code of the country whose capital is {a}?",)),
    ("country", "~domain capital", ("What is the capital of the country that owns the internet domain {a}?",)),
    ("country", "~calling_code currency", ("What is the currency of the country that you call with +{a}?",)),
    ("country", "~iso3 capital", ("What is the capital of the country that ISO 3166 shortens to {a}?",)),
    ("part", "part_country calling_code", ("What is the calling code of the country that {a} is in?",)),
    (
        "airport",
        "~iata airport_country capital",
        ("What is the capital of the country whose airport has the IATA code {a}?",),
    ),
)

TEMPLATES = (*_NQ, *_TRIVIA, *_POPQA, *_HOTPOT, *_WIKI, *_MUSIQUE, *_BAMBOOGLE)
