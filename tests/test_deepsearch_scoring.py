"""What counts as an answer, and as the same answer."""

import pytest

from agentgym_envs.deepsearch import grammar
from agentgym_envs.deepsearch.grammar import Action, NotUnderstood
from agentgym_envs.deepsearch.scoring import NORMALISERS, careful, score, squad

# ---- normal forms ---------------------------------------------------------------------------------------

SAME = [
    ("Paris", " paris. "),
    ("The Beatles", "Beatles"),
    ("Hamlet", "\u201cHamlet\u201d"),
    ("rock 'n' roll", "rock \u2018n\u2019 roll"),
    ("O'Brien", "O\u2019Brien"),
    ("Barnes & Noble", "Barnes &amp; Noble"),
    ("Yaound\u00e9", "Yaounde"),
    ("Stra\u00dfe", "STRASSE"),
    ("\uff34\uff4f\uff4b\uff59\uff4f", "Tokyo"),  # full-width letters
    ("Jean-Claude", "Jean\u2013Claude"),
    ("Jean-Claude", "jean claude"),
    ("U.S.A.", "USA"),
    ("1,000", "1000"),
    ("12,345,678.5", "12345678.5"),
    ("+41", "41"),
    ("\u22125", "-5"),
    ("Washington, D.C.", "Washington DC"),
    ("x  b\tc", "X B C"),
    ("\u0141\u00f3d\u017a", "Lodz"),  # a stroke
    ("\u00d8rsted", "Orsted"),
    ("\u0110\u00e0 N\u1eb5ng", "Da Nang"),
    ("\u0130stanbul", "Istanbul"),  # a dot
    ("\u00c6sir", "Aesir"),
    ("co\u00adoperation", "cooperation"),  # a soft hyphen
    ("+ 260", "+260"),
    ("1 000", "1000"),
    ("1\u00a0000\u202f000", "1000000"),  # no-break spaces
    ("1000.0", "1000"),
    ("1,000.00", "1000"),
    ("1\u20130", "1-0"),
    ("1 - 0", "1-0"),
    ("UTC+3", "UTC 3"),
    ("UTC\u22123", "UTC-3"),
    ("10\u00b2", "10^2"),
]
DIFFERENT = [
    ("-5", "5"),
    ("3.5", "35"),
    ("3.5", "3 5"),
    ("1", "21"),
    ("10", "100"),
    ("5%", "5"),
    ("C++", "C"),
    ("C#", "C"),
    ("007", "7"),
    ("1,00", "100"),
    ("$5", "5"),
    ("10-20", "1020"),
    ("\u0915\u0940", "\u0915\u093f"),  # two vowel signs of one letter
    ("Paris", "Paris, Texas"),
    ("+", "-"),
    ("\u0439", "\u0438"),  # two letters of the Cyrillic alphabet
    ("\u03ac\u03c1\u03b1", "\u03b1\u03c1\u03b1"),  # the accent of a Greek word
    ("10\u00b2", "102"),
    ("m\u00b3", "m3"),
    ("Vitamin A", "Vitamin"),
    ("Hepatitis A", "Hepatitis"),
    ("A1", "1"),
    ("The The", "The"),
    ("Beatles, The", "The Beatles"),
    ("UTC-3", "UTC 3"),
    ("1-0", "1 0"),
    ("3.10", "3.1"),
    ("1.0.2", "1.2"),
    ("2020 300", "2020300"),
    ("7 00", "700"),
    ("5 + 3", "5 3"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_these_are_the_same_answer(one: str, other: str) -> None:
    assert careful(one) == careful(other)
    assert score(one, [other]) == (True, 1.0)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_these_are_not(one: str, other: str) -> None:
    assert not score(one, [other]).exact
    assert not score(other, [one]).exact


def test_squads_form_confuses_what_the_careful_one_keeps_apart() -> None:
    assert [squad(text) for text in ("The -5!", "3.5", "U.S.", "C++")] == ["5", "35", "us", "c"]
    assert score("5", ["-5"], "squad").exact
    assert not score("Hamlet", ["\u201cHamlet\u201d"], "squad").exact  # curly quotes are no ASCII punctuation


def test_a_range_is_no_negative_number() -> None:
    assert careful("1990-1995") == careful("1990\u20131995") == "1990 - 1995"
    assert careful("between -3 and -1") == "between -3 and -1"


@pytest.mark.parametrize("text", ["The The", "A", "!!!", "?", "the", "..."])
def test_text_never_has_an_empty_normal_form(text: str) -> None:
    assert careful(text)
    assert score(text, [text]).exact
    assert not score(text, ["Paris"]).exact


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_nothing_matches_nothing(normaliser: str) -> None:
    for answer, accepted in (("", [""]), (" ", ["the"]), ("", ["Paris"]), ("Paris", [""]), ("Paris", [])):
        assert score(answer, accepted, normaliser) == (False, 0.0)
    assert score("the", ["!?"], "squad") == (False, 0.0)  # both are empty for SQuAD


def test_any_alias_will_do_and_f1_is_that_of_the_nearest() -> None:
    accepted = ["New York City", "NYC", "Big Apple"]
    assert score("nyc", accepted) == (True, 1.0)
    assert score("city of New York", accepted).f1 == pytest.approx(2 * 3 / 7)
    assert score("Boston", accepted) == (False, 0.0)
    assert score("apple apple", accepted).f1 == pytest.approx(2 / 4)  # a word counts as often as both have it


def test_scoring_any_text_ends_and_raises_nothing() -> None:
    for text in (
        "1," * 4_000,
        "-" * 8_000,
        "1 000" * 4_000,
        "the " * 4_000,
        "1-" * 4_000,
        "(" * 8_000,
        "1.1." * 2_000,
        "\u0300" * 100,
        "&#x110000;",
        "\x00",
        "a'" * 4_000,
    ):
        for normaliser in NORMALISERS:
            score(text, [text, "x"], normaliser)


# ---- actions --------------------------------------------------------------------------------------------

UNDERSTOOD = [
    ("<search>capital of Chad</search>", "search", "capital of Chad"),
    ("<answer>N'Djamena</answer>", "answer", "N'Djamena"),
    ("I need a fact.\n<search>capital\n of Chad</search>\nThen I shall know.", "search", "capital of Chad"),
    ("<Search> Chad </SEARCH >", "search", "Chad"),
    ("< answer >Chad< / answer >", "answer", "Chad"),
    # thoughts are not said
    ("<think>Is it <answer>Mali</answer>?</think><search>Chad</search>", "search", "Chad"),
    ("<answer>Mali</answer>? No.</think><answer>Chad</answer>", "answer", "Chad"),
    # what looks like a result is not said either, whoever wrote it
    ("<information><answer>Mali</answer></information><search>Chad</search>", "search", "Chad"),
    # a tag that is not closed is a mention
    ("I may use <search> now: <search>Chad</search>", "search", "Chad"),
    ("<search>Chad</search> and later <answer>", "search", "Chad"),
    # quotes do not protect
    ('My answer is "<answer>Chad</answer>".', "answer", "Chad"),
    # the last answer counts, and repeating oneself is nothing
    ("<answer>Mali</answer> no, <answer>Chad</answer>", "answer", "Chad"),
    ("<search>Chad</search> <search>Chad</search>", "search", "Chad"),
    # other tags are text
    ("<search>the <b>tag</b> & 1 < 2</search>", "search", "the <b>tag</b> & 1 < 2"),
]
REFUSED = [
    ("", "no action"),
    ("The capital is Chad.", "no action"),
    ("<answer></answer>", "the answer is empty"),
    ("<search> \n </search>", "the search is empty"),
    ("<search>Chad", "<search> is not closed"),
    ("Chad</answer>", "</answer> closes no tag"),
    ("<search>Chad</answer>", "</answer> closes no tag"),
    ("<search><answer>Chad</answer></search>", "</search> closes no tag"),
    ("<answer><search>Chad</search></answer>", "</answer> closes no tag"),
    ("<search>Chad</search></search>", "</search> closes no tag"),
    ("<search>Chad</search><search>Mali</search>", "several actions"),
    ("<search>Chad</search><information>It is.</information><answer>Chad</answer>", "several actions"),
    ("<think>It is <answer>Chad</answer></think>", "no action"),
    ("<information><answer>Chad</answer></information>", "no action"),
    ("<answer >Chad</ answer", "<answer> is not closed"),
    ("<answers>Chad</answers>", "no action"),
]


@pytest.mark.parametrize(("reply", "kind", "text"), UNDERSTOOD)
def test_a_reply_is_read(reply: str, kind: str, text: str) -> None:
    assert grammar.parse(reply) == Action(kind, text)


@pytest.mark.parametrize(("reply", "why"), REFUSED)
def test_a_reply_without_one_action_is_refused_with_the_reason(reply: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match="Write exactly one action: <search><query></search>") as caught:
        grammar.parse(reply)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "piece", ["<think>", "<information>", "<search>", "</search>", "<", "< ", "<answer>x</answer>"]
)
def test_reading_takes_no_longer_than_a_reply_is_long(piece: str) -> None:
    """With a quadratic pattern the time limit of the test would not do."""
    for reply in (piece * 40_000, piece * 40_000 + "<answer>x</answer>"):
        try:
            grammar.parse(reply)
        except NotUnderstood:
            pass
