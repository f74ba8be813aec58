"""What counts as done: typed answers, addresses, states, and WebArena's own rules."""

from typing import Any

import pytest

from agentgym_envs.webarena import scoring
from agentgym_envs.webarena.scoring import (
    classic_string_match,
    classic_url_match,
    is_answer,
    is_date,
    is_list,
    is_money,
    is_noun,
    is_number,
    is_pairs,
    is_text,
    is_url,
)
from agentgym_envs.webarena.tasks import web_task


def score(evaluation: dict[str, Any], answer: str = "", url: str = "http://shopping/", found: Any = None) -> float:
    scoring.check_evaluation(evaluation)
    return scoring.score(evaluation, answer, url, lambda *_, **__: found, lambda *_: "the page")


# ---- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "value", "unit", "right"),
    [
        ("21", 21, "inches", True),
        ("21 inches", 21, "inches", True),
        ("21 inch", 21, "inches", True),
        ('21"', 21, "inches", True),
        ("The width is 21 inches.", 21, "inches", True),
        ("21 cm", 21, "inches", False),
        ("21%", 21, "", False),
        ("21 reviews", 21, "", True),
        ("There are 21.", 21, "", True),
        ("21.0", 21, "", True),
        ("1,021", 1021, "", True),
        ("1021", 1021, "", True),
        ("1", 21, "", False),
        ("21", 1, "", False),
        ("10", 100, "", False),
        ("100", 10, "", False),
        ("0", 10, "", False),
        ("-21", 21, "", False),
        ("2021", 21, "", False),
        ("21.5", 21, "", False),
        ("v21", 21, "", False),
        ("1.2.21", 21, "", False),
        ("20-21", 21, "", False),
        ("20 or 21", 21, "", False),
        ("not 21", 21, "", False),
        ("isn't 21", 21, "", False),
        ("about 21", 21, "", False),
        ("at least 21", 21, "", False),
        ("more than 21", 21, "", False),
        ("twelve", 12, "", True),
        ("two or three", 3, "", False),
        ("21 21", 21, "", True),
        ("", 0, "", False),
        ("N/A", 0, "", False),
        ("none", 0, "", False),
    ],
)
def test_numbers(answer: str, value: int, unit: str, right: bool) -> None:
    assert is_number(answer, value, unit) is right


@pytest.mark.parametrize(
    ("answer", "value", "currency", "right"),
    [
        ("$21.00", 21, "USD", True),
        ("21", "21.00", "USD", True),
        ("21 USD", 21, "USD", True),
        ("US$ 1,021.50", "1021.5", "USD", True),
        ("21 dollars", 21, "USD", True),
        ("It costs £21.", 21, "GBP", True),
        ("€21", 21, "USD", False),
        ("$21", 21, "GBP", False),
        ("$21.01", 21, "USD", False),
        ("$121", 21, "USD", False),
        ("between $20 and $21", 21, "USD", False),
    ],
)
def test_money(answer: str, value: Any, currency: str, right: bool) -> None:
    assert is_money(answer, value, currency) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("2023-10-21", True),
        ("October 21st, 2023", True),
        ("Oct 21 2023", True),
        ("21 Oct. 2023", True),
        ("Saturday, 21st of October 2023", True),
        ("10/21/2023", True),
        ("21.10.2023", True),
        ("2023/10/21", True),
        ("2023-10-2", False),
        ("Oct 21", False),
        ("October 2023", False),
        ("Oct 12 2023", False),
        ("2023-10-21 10:00", False),
        ("2023-10-21 or 2023-10-22", False),
        ("2023-13-45", False),
        ("", False),
    ],
)
def test_days(answer: str, right: bool) -> None:
    assert is_date(answer, "2023-10-21") is right


def test_numbers_of_any_length_are_no_date() -> None:
    for answer in ("9" * 30 + "-01-01", "9" * 5000 + "-01-01", "1 May " + "9" * 30, "0-0-0"):
        assert not is_date(answer, "2023-10-21")


def test_dates_that_could_be_two_and_parts_of_dates() -> None:
    assert not is_date("03/04/2023", "2023-03-04")
    assert not is_date("03/04/2023", "2023-04-03")
    assert is_date("04/04/2023", "2023-04-04")
    assert is_date("Oct 2023", "2023-10")
    assert not is_date("Oct 21 2023", "2023-10")
    assert is_date("October 21, 2023 at 2:30 pm", "2023-10-21 14:30")
    assert not is_date("October 21, 2023 at 2:30 am", "2023-10-21 14:30")
    with pytest.raises(ValueError, match="is no date"):
        is_date("x", "soon")


def test_texts() -> None:
    assert is_text(" \u201cHamlet\u201d. ", "Hamlet")
    assert is_text("rock \u2019n\u2019 roll", "Rock 'n' Roll")
    assert is_text("Acme&trade; Mug", "Acme\u2122 mug")
    assert is_text("Cancelled", "canceled")
    assert is_text("Big Blue", "IBM", also=["big blue"])
    assert not is_text("Hamlet and Macbeth", "Hamlet")
    assert not is_text("", "")
    assert not is_text("''", "'")
    assert not is_text("'", "x")
    assert is_noun("racing cars", "racing car")
    assert is_noun("batteries", "battery")
    assert not is_noun("cart", "car")
    assert not is_noun("glass", "glas")


def test_lists() -> None:
    items = [{"type": "text", "value": "Red mug"}, {"type": "text", "value": "Blue mug"}]
    for answer in ("red mug, blue mug", "Blue mug and red mug", "[Red mug; Blue mug]", "Red mug\nBlue mug"):
        assert is_list(answer, items)
    for answer in ("red mug", "red mug, blue mug, green mug", "red mug, red mug", ""):
        assert not is_list(answer, items)
    assert not is_list("blue mug, red mug", items, ordered=True)
    numbers = [{"type": "number", "value": 1}, {"type": "number", "value": 2}]
    assert is_list("2, 1", numbers)
    assert not is_list("12", numbers)
    assert is_list(
        "Nuts, bolts; Screws", [{"type": "text", "value": "nuts, bolts"}, {"type": "text", "value": "screws"}]
    )


def test_pairs() -> None:
    pairs = {"170": "canceled", "189": "pending"}
    assert is_pairs("Order number 170 is Canceled, order number 189 is Pending", pairs)
    assert is_pairs("189: pending; 170: cancelled", pairs)
    assert not is_pairs("170: pending; 189: canceled", pairs)
    assert not is_pairs("170: canceled", pairs)
    assert not is_pairs("170 is not canceled, 189 is pending", pairs)
    assert not is_pairs("170: canceled or pending, 189: pending", pairs)
    assert not is_pairs("1700: canceled, 189: pending", pairs)
    assert not is_pairs("", {})


def test_tasks_that_cannot_be_done() -> None:
    impossible = {"answer": {"type": "not_possible"}}
    assert score(impossible, "N/A") == score(impossible, "not possible.") == 1.0
    assert score(impossible, "") == score(impossible, "0") == 0.0
    for wanted in ({"type": "number", "value": 0}, {"type": "text", "value": "x"}, {"type": "empty"}):
        assert not is_answer("N/A", wanted)


# ---- addresses and states ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("http://cms/admin/viewed", True),
        ("http://cms/admin/viewed/", True),
        ("http://cms//admin//viewed/?page=2", True),
        ("http://cms/admin/view%65d", True),
        ("http://cms/admin/viewedasdf", False),
        ("http://cms/admin/viewed/more", False),
        ("http://cms/admin", False),
        ("http://cms/Admin/viewed", False),
        ("http://evil/cms/admin/viewed", False),
        ("http://cms.evil/admin/viewed", False),
        ("http://evil/?http://cms/admin/viewed", False),
        ("about:blank", False),
        ("", False),
    ],
)
def test_addresses(url: str, right: bool) -> None:
    assert is_url(url, "cms", "/admin/viewed") is right


def test_addresses_with_parameters_and_open_segments() -> None:
    assert is_url("http://shopping/search/?q=mug&page=2", "shopping", "/search", {"q": "mug"})
    assert not is_url("http://shopping/search/?q=mugs", "shopping", "/search", {"q": "mug"})
    assert not is_url("http://shopping/search/?q=mug&q=cup", "shopping", "/search", {"q": "mug"})
    assert is_url("http://shopping/catalogue/mug_7/", "shopping", "/catalogue/*")
    assert not is_url("http://shopping/catalogue/", "shopping", "/catalogue/*")
    assert is_url("http://shopping/", "shopping", "/")
    assert not is_url("http://shopping/anything", "shopping", "/")


def test_states() -> None:
    wanted = {"state": [{"site": "cms", "query": "orders", "equals": [{"status": "Cancelled"}]}]}
    assert score(wanted, found=[{"status": "canceled", "id": 4}]) == 1.0
    assert score(wanted, found=[{"status": "pending"}]) == 0.0
    assert score(wanted, found=[]) == 0.0
    assert score(wanted, found=[{"status": "canceled"}, {"status": "canceled"}]) == 0.0
    assert scoring.holds(True, True)
    assert not scoring.holds(1, True)
    assert not scoring.holds("", None)


def test_everything_must_hold() -> None:
    both = {"answer": {"type": "number", "value": 3}, "url": {"site": "shopping", "path": "/a"}}
    assert score(both, "3", "http://shopping/a") == 1.0
    assert score(both, "3", "http://shopping/b") == 0.0
    assert score(both, "4", "http://shopping/a") == 0.0


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ({}, "checks nothing"),
        ({"state": []}, "checks nothing"),
        ({"rules": "loose"}, "rules 'loose' are unknown"),
        ({"answer": {"type": "colour", "value": "red"}}, "the types are text, noun"),
        ({"answer": {"type": "number"}}, "no typed answer"),
        ({"answer": "text"}, "no typed answer"),
        ({"answer": {"type": "text", "value": 5}}, "no typed answer"),
        ({"answer": {"type": "list", "items": [{"type": "text"}, {"type": "text"}]}}, "no typed answer"),
        ({"url": {"site": "shopping"}}, "KeyError: 'path'"),
        ({"url": {"site": "shopping", "path": "/", "query": 5}}, "its fields are not those"),
        ({"state": [{"site": "shopping", "query": "orders"}]}, "is no question"),
        ({"state": {"site": "shopping", "query": "orders", "equals": []}}, "its fields are not those"),
        ({"rules": "verified"}, "for the official tasks"),
        ({"eval_types": 5}, "its fields are not those"),
        ({"eval_types": ["url_match"], "reference_url": 5}, "its fields are not those"),
        ({"eval_types": ["program_html"], "program_html": []}, "names no page"),
        ({"eval_types": ["program_html"], "program_html": [{"url": "last", "required_contents": {}}]}, "requires noth"),
        ({"eval_types": []}, "eval_types"),
        ({"eval_types": ["llm"]}, "eval_types"),
        ({"eval_types": ["string_match"], "reference_answers": {}}, "reference_answers"),
        ({"eval_types": ["string_match"], "reference_answers": {"must_include": [""]}}, "which anything matches"),
        ({"eval_types": ["url_match"], "reference_url": ""}, "needs a reference_url"),
        (
            {"eval_types": ["program_html"], "program_html": [{"url": "func:x()", "required_contents": {}}]},
            "not carried out here",
        ),
    ],
)
def test_evaluations_that_would_score_nothing_are_refused(evaluation: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        scoring.check_evaluation(evaluation)


# ---- WebArena's own rules ------------------------------------------------------------------------------


def test_classic_strings_keep_their_semantics() -> None:
    assert classic_string_match("21", {"exact_match": "21"}) == 1.0
    assert classic_string_match("21 inches", {"exact_match": "21"}) == 0.0
    assert classic_string_match("There are 10", {"must_include": ["0"]}) == 0.0  # one word: a word of the answer
    assert classic_string_match("10 of 20", {"must_include": ["0", "1"]}) == 1.0  # several: somewhere in it
    assert classic_string_match("'Yes'", {"must_include": ["yes"]}) == 1.0
    assert classic_string_match("no", {"fuzzy_match": ["No."]}) == 1.0


def test_classic_addresses_keep_their_semantics() -> None:
    assert classic_url_match("http://cms/admin/viewedasdf", "http://cms/admin/viewed") == 1.0
    assert classic_url_match("http://cms/", "http://cms/admin |OR| http://cms/") == 1.0
    assert classic_url_match("http://cms/a?x=1&y=2", "http://cms/a?y=2") == 1.0
    assert classic_url_match("http://cms/a?x=1", "http://cms/a?y=2") == 0.0
    assert classic_url_match("http://reddit/admin", "http://cms/admin") == 0.0


def test_classic_pages() -> None:
    def evaluation(**required: Any) -> dict[str, Any]:
        targets = [{"url": "last", "locator": "", "required_contents": required}]
        return {"eval_types": ["program_html"], "program_html": targets}

    assert score(evaluation(must_include=["PAGE", "cat |OR| the"])) == 1.0
    assert score(evaluation(must_include=["page", "cat"])) == 0.0
    assert score(evaluation(exact_match="The page")) == 1.0
    assert score(evaluation(exact_match="page")) == 0.0


def test_classic_task_files_are_read() -> None:
    task = web_task(
        {
            "sites": ["shopping_admin"],
            "task_id": 3,
            "require_login": True,
            "start_url": "__SHOPPING_ADMIN__ |AND| __REDDIT__/f/books",
            "intent": "Count the orders.",
            "eval": {"eval_types": ["url_match"], "reference_url": "__SHOPPING_ADMIN__/orders"},
        }
    )
    assert task.sites == ["cms"]
    assert task.start_urls == ["http://cms", "http://reddit/f/books"]
    assert task.evaluation["reference_url"] == "http://cms/orders"
    for bad in (
        *({"intent": ""}, {"intent": "x", "sites": ["map"]}, {"intent": "x", "logins": {"shopping": 1}}),
        *({"intent": "x", "sites": "cms"}, {"intent": "x", "sites": [["cms"]]}, {"intent": "x", "logins": ["cms"]}),
        {"intent": "x", "eval": {"url": {"site": "elsewhere", "path": "/"}}},
    ):
        with pytest.raises(ValueError, match="WebArena: "):
            web_task({"eval": {"answer": {"type": "empty"}}, **bad})
