"""Is the task done? What the agent answered, where it is and what is in the sites, against what the task asks for.

Two families of rules. The typed ones read an answer as what it is - a number, an amount of money, a date, a
list - and compare addresses by host and path segment; nothing is a substring of anything. The classic ones are
WebArena's, with its substring semantics, for task files that were written for them; a task names its family
with `"rules"`. Nothing here changes any state.
"""

from __future__ import annotations

import datetime
import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

RULES = ("typed", "classic", "verified")

_FOLDED = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bb\u02bc\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    }
)
# Spellings of one word, of which sites and people use either.
_SPELLINGS = {"cancelled": "canceled", "cancelling": "canceling", "grey": "gray", "colour": "color", "centre": "center"}
_UNITS = (
    *(
        ("inch", "inches", "in", '"'),
        ("foot", "feet", "ft"),
        ("cm", "centimeter", "centimetre"),
        ("m", "meter", "metre"),
    ),
    *(("mm", "millimeter", "millimetre"), ("km", "kilometer", "kilometre"), ("mile", "mi"), ("hour", "h", "hr")),
    *(("minute", "min"), ("second", "s", "sec"), ("day", "d"), ("week",), ("month",), ("year", "yr"), ("gram", "g")),
    *(("kg", "kilogram", "kilo"), ("pound", "lb"), ("ounce", "oz"), ("percent", "%"), ("dollar", "$", "usd")),
    *(("euro", "€", "eur"), ("gbp", "£"), ("liter", "litre", "l"), ("ml", "milliliter", "millilitre")),
)
_UNIT_OF = {name: names[0] for names in _UNITS for name in names}
_CURRENCIES = {
    "$": "USD",
    "us$": "USD",
    "usd": "USD",
    "dollar": "USD",
    "£": "GBP",
    "gbp": "GBP",
    "€": "EUR",
    "eur": "EUR",
}
_CURRENCIES |= {"euro": "EUR"}
_SMALL_NUMBERS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}
# A sentence with one of these says something else about its number.
_HEDGES = set("not no never or between about around approximately over under above below than least most n't".split())
_NUMBER = re.compile(r"(?<![\w.,])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d]|[.,]\d)|(?<![\w.,])-?\.\d+(?![\d.])")
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            *("jan january", "feb february", "mar march", "apr april", "may", "jun june", "jul july"),
            *("aug august", "sep sept september", "oct october", "nov november", "dec december"),
        ),
        start=1,
    )
    for name in names.split()
}
_MAX_DATE = 100  # characters; nothing longer is a date
_NOT_POSSIBLE = {"n/a", "na", "not applicable", "not possible", "impossible"}


def normal(text: str) -> str:
    """Return the form in which texts are compared.

    Case, white space, the kind of quotes and dashes, HTML entities, quotes around the whole, a final full stop
    and some double spellings make no difference.
    """
    folded = html.unescape(unicodedata.normalize("NFKC", html.unescape(text))).translate(_FOLDED).casefold()
    folded = " ".join(folded.split())
    folded = _without_stop(folded)
    while len(folded) > 1 and folded[0] == folded[-1] and folded[0] in "'\"`":
        folded = _without_stop(folded[1:-1].strip())
    return re.sub(r"[a-z]+", lambda match: _SPELLINGS.get(match[0], match[0]), folded)


# ---- answers by type -----------------------------------------------------------------------------------


def is_text(answer: str, value: str, also: Sequence[str] = ()) -> bool:
    """Whether the answer is the text or one of its other names."""
    given = normal(answer)
    return bool(given) and given in map(normal, (value, *also))


def is_noun(answer: str, value: str, also: Sequence[str] = ()) -> bool:
    """Whether the answer is the word or words, in singular or plural."""
    given = " ".join(map(_singular, normal(answer).split()))
    return bool(given) and given in (" ".join(map(_singular, normal(name).split())) for name in (value, *also))


def is_number(answer: str, value: float | str, unit: str = "") -> bool:
    """Whether the answer names this number and no other.

    A sentence around it is accepted if it has no other number and no word such as "not" or "about". A unit must
    be the given one; it may be left out.
    """
    wanted = Decimal(str(value))
    text = normal(answer)
    words = re.findall(r"[a-z]+(?:'[a-z]+)?", text)
    if any(word in _HEDGES or word.endswith("n't") for word in words):
        return False
    found = list(_NUMBER.finditer(text))
    if len(re.findall(r"\d+(?:[.,]\d+)*", text)) > len(found) or len({_decimal(match[0]) for match in found}) > 1:
        return False  # "10-20", "v1.2.3", "a1", or two numbers
    if not found:
        numbers = {_SMALL_NUMBERS[word] for word in words if word in _SMALL_NUMBERS}
        return numbers == {wanted}
    match = found[0]
    if _decimal(match[0]) != wanted:
        return False
    after = re.match(r'\s*-?([a-z]+|[%"$€£])', text[match.end() :])
    before = re.search(r"([$€£])\s*$", text[: match.start()])
    named = [_UNIT_OF[name] for near in (after, before) if near and (name := _unit_name(near[1])) in _UNIT_OF]
    return all(name == _UNIT_OF.get(_unit_name(unit.casefold()), unit) for name in named)


def is_money(answer: str, value: float | str, currency: str = "") -> bool:
    """Whether the answer is this amount; the currency may be left out, but not be another one."""
    text = normal(answer)
    for sign, code in _CURRENCIES.items():
        pattern = rf"(?<![a-z]){re.escape(sign)}s?(?![a-z])" if sign.isalpha() else re.escape(sign)
        stripped = re.sub(pattern, " ", text)
        if stripped != text and currency and code != _CURRENCIES.get(currency.casefold(), currency.upper()):
            return False
        text = stripped
    return is_number(text, value)


def is_date(answer: str, value: str) -> bool:
    """Whether the answer is this day (`2023-10-21`), month (`2023-10`) or time of the day (`2023-10-21 14:30`)."""
    wanted = _date(value)
    if wanted is None:
        raise ValueError(f"WebArena: {value!r} is no date; write 2023-10-21, 2023-10 or 2023-10-21 14:30.")
    return _date(normal(answer)) == wanted


def is_list(answer: str, items: Sequence[Mapping[str, Any]], ordered: bool = False) -> bool:
    """Whether the answer is these items and no others, separated by commas, semicolons, lines or "and"."""
    text = html.unescape(answer).strip().removeprefix("[").removesuffix("]")
    candidates = [re.split(r"[;\n|]", text), re.split(r"[,;\n|]|\band\b", text), re.split(r"[,;\n|]", text)]
    return any(_same_items([part for part in parts if part.strip()], items, ordered) for parts in candidates)


def is_pairs(answer: str, pairs: Mapping[str, str], others: Sequence[str] = ()) -> bool:
    """Whether the answer gives each key its value, in any words, and none of another's.

    Args:
        answer: For example `Order 170 is canceled, order 189 is pending`.
        pairs: Key to value.
        others: Further values that a key could have been given.
    """
    text = normal(answer)
    spots = []
    for key in pairs:
        found = list(re.finditer(rf"(?<![\w]){re.escape(normal(key))}(?![\w])", text))
        if len(found) != 1:
            return False
        spots.append((found[0].start(), found[0].end(), key))
    spots.sort()
    vocabulary = {normal(value) for value in (*pairs.values(), *others)}
    for number, (_, end, key) in enumerate(spots):
        part = text[end : spots[number + 1][0] if number + 1 < len(spots) else len(text)]
        words = re.findall(r"[a-z]+(?:'[a-z]+)?", part)
        said = {value for value in vocabulary if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", part)}
        if said != {normal(pairs[key])} or any(word in _HEDGES or word.endswith("n't") for word in words):
            return False
    return bool(pairs)


def is_not_possible(answer: str) -> bool:
    """Whether the answer says that the task cannot be done."""
    return normal(answer) in _NOT_POSSIBLE


def is_empty(answer: str) -> bool:
    """Whether there is no answer, for tasks that ask for none."""
    return not normal(answer)


_ANSWERS: dict[str, Callable[..., bool]] = {
    "text": is_text,
    "noun": is_noun,
    "number": is_number,
    "money": is_money,
    "date": is_date,
    "list": is_list,
    "pairs": is_pairs,
    "not_possible": is_not_possible,
    "empty": is_empty,
}


def is_answer(answer: str, wanted: Mapping[str, Any]) -> bool:
    """Compare an answer with a typed value, such as `{"type": "number", "value": 21, "unit": "inches"}`."""
    options = {name: value for name, value in wanted.items() if name != "type"}
    return _ANSWERS[wanted["type"]](answer, **options)


# ---- addresses and states ------------------------------------------------------------------------------


def is_url(url: str, site: str, path: str, query: Mapping[str, str] | None = None) -> bool:
    """Whether an address is that of a page.

    Args:
        url: As the agent sees it, `http://shopping/catalogue/`.
        site: The site, compared as a whole.
        path: Compared by segments; a segment `*` stands for any one. Slashes that are doubled or at the end, and
            percent-encoding, make no difference; letter case does.
        query: Parameters that the address must have, with these values; it may have others.
    """
    parts = urlsplit(url)
    given, wanted = _segments(parts.path), _segments(path)
    if parts.scheme not in ("http", "https") or parts.netloc.lower() != site.lower() or len(given) != len(wanted):
        return False
    if any(want not in ("*", have) for have, want in zip(given, wanted, strict=True)):
        return False
    have = parse_qs(parts.query, keep_blank_values=True)
    return all(have.get(name) == [value] for name, value in (query or {}).items())


def holds(found: Any, wanted: Any) -> bool:
    """Whether what a question about the state gave is what is wanted; of objects, only the named keys count."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(key in found and holds(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return isinstance(found, Sequence) and len(found) == len(wanted) and all(map(holds, found, wanted))
    if isinstance(wanted, str):
        return isinstance(found, str) and normal(found) == normal(wanted)
    return type(found) is type(wanted) and bool(found == wanted)


# ---- a whole task --------------------------------------------------------------------------------------


def check_evaluation(evaluation: Mapping[str, Any]) -> None:
    """Check a task's `eval` before anybody plays it.

    Raises:
        ValueError: If it could not be scored, or everything would pass.
    """
    rules = evaluation.get("rules", "classic" if "eval_types" in evaluation else "typed")
    if rules not in RULES:
        raise ValueError(f"WebArena: the rules {rules!r} are unknown; accepted are {', '.join(RULES)}.")
    check = {"classic": _check_classic, "verified": _check_verified}.get(rules, _check_typed)
    try:
        check(evaluation)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"WebArena: eval is {evaluation!r}, and its fields are not those of docs/scenarios/webarena.md "
            f"({type(error).__name__}: {error})."
        ) from error


def sites_of(evaluation: Mapping[str, Any]) -> set[str]:
    """Return the sites that a checked evaluation looks at, by the hosts of its addresses too."""
    wanted = [*_listed(evaluation.get("url") or ()), *(evaluation.get("state") or ())]
    opened = [target["url"] for target in _pages(evaluation) if target["url"] != "last"]
    return {one["site"] for one in wanted} | {urlsplit(url).netloc for url in opened}


def score(
    evaluation: Mapping[str, Any],
    answer: str,
    url: str,
    query: Callable[..., Any],
    read: Callable[[str, str], str],
) -> float:
    """Score an episode: 1.0 if everything that the task asks for holds, else 0.0.

    Args:
        evaluation: The task's `eval`.
        answer: What the agent said at the end.
        url: Where it was, as it sees addresses.
        query: `query(site, name, **arguments)` asks about the state of a site.
        read: `read(url, expression)` opens a page and returns a JavaScript expression's value there; an empty
            address is the page that the agent is on.
    """
    if evaluation.get("rules", "classic" if "eval_types" in evaluation else "typed") == "classic":
        return _classic(evaluation, answer, url, read)
    if "answer" in evaluation and not is_answer(answer, evaluation["answer"]):
        return 0.0
    if "url" in evaluation and not any(is_url(url, **wanted) for wanted in _listed(evaluation["url"])):
        return 0.0
    for wanted in evaluation.get("state", ()):
        found = query(wanted["site"], wanted["query"], **wanted.get("arguments", {}))
        if not holds(found, wanted["equals"]):
            return 0.0
    return 1.0


def _check_typed(evaluation: Mapping[str, Any]) -> None:
    if not any(evaluation.get(key) for key in ("answer", "url", "state")):
        raise ValueError("WebArena: the evaluation checks nothing; give at least one of answer, url and state.")
    if "answer" in evaluation:
        try:
            _check_answer(evaluation["answer"])
        except (AttributeError, KeyError, TypeError, InvalidOperation) as error:
            known = ", ".join(_ANSWERS)
            raise ValueError(
                f"WebArena: {evaluation['answer']!r} is no typed answer ({error}); the types are {known}."
            ) from error
    for wanted in _listed(evaluation.get("url") or ()):
        is_url(f"http://{wanted['site']}{wanted['path']}", **wanted)
    for wanted in evaluation.get("state") or ():
        given = {"arguments": {}, **wanted}
        if set(given) != {"site", "query", "arguments", "equals"} or not isinstance(given["arguments"], Mapping):
            raise ValueError(f"WebArena: {wanted!r} is no question; give site, query, equals and arguments, if any.")


def _check_answer(wanted: Mapping[str, Any]) -> None:
    for item in wanted.get("items", ()):
        _check_answer(item)
    is_answer("0", wanted)


def _check_verified(evaluation: Mapping[str, Any]) -> None:
    if not {"task_id", "task_type"} <= set(evaluation):
        raise ValueError("WebArena: the rules 'verified' are for the official tasks; give answer, url or state.")


# ---- WebArena's own rules ------------------------------------------------------------------------------


def _check_classic(evaluation: Mapping[str, Any]) -> None:
    kinds = evaluation.get("eval_types") or []
    known = ("string_match", "url_match", "program_html")
    if not kinds or any(kind not in known for kind in kinds):
        raise ValueError(f"WebArena: eval_types is {kinds!r}; accepted are {', '.join(known)}.")
    if "string_match" in kinds:
        references = evaluation.get("reference_answers") or {}
        if not references or not set(references) <= {"exact_match", "must_include", "fuzzy_match"}:
            raise ValueError(
                f"WebArena: reference_answers is {references!r}; accepted are exact_match, must_include, fuzzy_match."
            )
        if any(not str(text).strip() for value in references.values() for text in _listed(value)):
            raise ValueError(f"WebArena: reference_answers {references!r} has an empty text, which anything matches.")
    if "url_match" in kinds and not (evaluation.get("reference_url") or "").strip():
        raise ValueError("WebArena: url_match needs a reference_url.")
    if "program_html" in kinds and not evaluation.get("program_html"):
        raise ValueError("WebArena: program_html names no page, so anything would pass.")
    for target in _pages(evaluation):
        if target["url"].startswith("func:") or target.get("locator", "").startswith(("func:", "lambda:")):
            raise ValueError(f"WebArena: {target!r} calls a Python function, which is not carried out here.")
        required = target["required_contents"]
        if not isinstance(required, Mapping) or not {"exact_match", "must_include"} & set(required):
            raise ValueError(f"WebArena: {target!r} requires nothing; give exact_match or must_include.")


def _classic(evaluation: Mapping[str, Any], answer: str, url: str, read: Callable[[str, str], str]) -> float:
    result = 1.0
    for kind in evaluation["eval_types"]:
        if kind == "string_match":
            result *= classic_string_match(answer, evaluation["reference_answers"])
        elif kind == "url_match":
            result *= classic_url_match(url, evaluation["reference_url"])
        else:
            result *= all(_classic_page(target, read) for target in _pages(evaluation))
    return float(result)


def _pages(evaluation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The pages that classic rules look at."""
    return evaluation["program_html"] if "program_html" in evaluation.get("eval_types", ()) else ()


def classic_string_match(answer: str, references: Mapping[str, Any]) -> float:
    """WebArena's string_match: exact, or all of some texts being somewhere in the answer.

    One text of one word must be a word of the answer; otherwise, as there, `0` is in `10`. fuzzy_match, which
    asks a language model there, is the comparison of `is_text` here.
    """
    given = _classic_clean(answer)
    result = True
    for kind, value in references.items():
        texts = [_classic_clean(str(text)) for text in _listed(value)]
        if kind == "exact_match":
            result &= given == texts[0]
        elif kind == "must_include":
            words = re.findall(r"\w+|[^\w\s]", given)
            alone = len(texts) == 1 and len(re.findall(r"\w+|[^\w\s]", texts[0])) == 1
            result &= all(text in (words if alone else given) for text in texts)
        else:
            result &= all(is_text(answer, str(text)) for text in _listed(value))
    return float(result)


def classic_url_match(url: str, reference: str) -> float:
    """WebArena's url_match: host and path of a reference are in the address, and its parameters are too."""
    alternatives = [_classic_url(text) for text in reference.split(" |OR| ")]
    have, parameters = _classic_url(url)
    if not any(wanted in have for wanted, _ in alternatives):
        return 0.0
    wanted: dict[str, set[str]] = {}
    for _, query in alternatives:
        for name, value in query:
            wanted.setdefault(name, set()).add(value)
    return float(all(any((name, value) in parameters for value in values) for name, values in wanted.items()))


def _classic_page(target: Mapping[str, Any], read: Callable[[str, str], str]) -> bool:
    url = "" if target["url"] == "last" else target["url"]
    found = html.unescape(read(url, target.get("locator", "")))
    required = target["required_contents"]
    if "exact_match" in required:
        return bool(classic_string_match(found, {"exact_match": required["exact_match"]}))
    return all(
        any(_classic_clean(text) in _classic_clean(found) for text in str(content).split(" |OR| "))
        for content in _listed(required["must_include"])
    )


def _classic_clean(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def _classic_url(url: str) -> tuple[str, list[tuple[str, str]]]:
    parts = urlsplit(url.rstrip("/"))
    return f"{parts.netloc}{parts.path}", parse_qsl(parts.query)


# ---- parts ---------------------------------------------------------------------------------------------


def _without_stop(text: str) -> str:
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _segments(path: str) -> list[str]:
    return [unquote(segment) for segment in path.split("/") if segment]


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _unit_name(name: str) -> str:
    return name if name in _UNIT_OF else _singular(name)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _same_items(parts: Sequence[str], items: Sequence[Mapping[str, Any]], ordered: bool) -> bool:
    if len(parts) != len(items):
        return False
    if ordered:
        return all(map(is_answer, parts, items))
    left = list(items)
    for part in parts:
        match = next((item for item in left if is_answer(part, item)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _date(text: str) -> tuple[int, ...] | None:
    """Read a date, with the time if there is one; None if it is none, or could be two."""
    if len(text) > _MAX_DATE:
        return None
    text = re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", text.casefold())
    text = re.sub(r"^(?:on |in )|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b,?|\bof\b|\bat\b", " ", text)
    clock = re.search(r"(?:[ t])(\d{1,2}):(\d{2})(?::\d{2})?\s*([ap])?\.?m?\.?$", text)
    time: tuple[int, ...] = ()
    if clock:
        hour = int(clock[1]) % 12 + 12 * (clock[3] == "p") if clock[3] else int(clock[1])
        time, text = (hour, int(clock[2])), text[: clock.start()]
    parts = re.findall(r"\d+|[a-z]+", text)
    numbers = [int(part) for part in parts if part.isdigit()]
    months = [_MONTHS.get(part, 0) for part in parts if part.isalpha()]
    if len(months) == 1 and months[0]:
        if len(numbers) == 1 and numbers[0] > 31 and not time:
            return numbers[0], months[0]
        if len(numbers) != 2:
            return None
        day, year = (numbers[1], numbers[0]) if numbers[0] > 31 else (numbers[0], numbers[1])
    elif months:
        return None
    elif len(numbers) == 2 and numbers[0] > 31 and not time:
        return (numbers[0], numbers[1]) if 1 <= numbers[1] <= 12 else None
    elif len(numbers) == 3 and numbers[0] > 31:
        year, months, day = numbers[0], [numbers[1]], numbers[2]
    elif len(numbers) == 3:
        first, second, year = numbers
        if first <= 12 and second <= 12 and first != second:
            return None  # the 3rd of April, or the 4th of March
        day, months = (first, [second]) if first > 12 else (second, [first])
    else:
        return None
    try:
        datetime.date(year, months[0], day)
    except (ValueError, OverflowError):
        return None
    return (year, months[0], day, *time)
