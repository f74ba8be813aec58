"""Is an answer right? Exact match against all aliases, and F1, under a normaliser that is chosen by name."""

from __future__ import annotations

import html
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

_ARTICLES = frozenset(("a", "an", "the"))
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FOLDED = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bb\u02bc\u0060\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    }
)
_ACCENT = re.compile("[\u0300-\u036f]")
# A number keeps its decimals, its leading zeros (codes) and a minus that stands before it, not between words.
_TOKEN = re.compile(
    r"(?P<sign>(?<![^\W_])[-+](?=\d))?(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)|(?P<word>[^\W\d_]+)|(?P<symbol>\S)"
)


class Score(NamedTuple):
    """How an answer compares with the accepted ones.

    Attributes:
        exact: Whether its normal form is that of one of them.
        f1: Largest F1 of the words of the normal forms, in [0, 1].
    """

    exact: bool
    f1: float


def careful(text: str) -> str:
    """Return the normal form by which answers are compared unless told otherwise.

    Case, accents of Latin letters, the kind of quotes and dashes, HTML entities, punctuation and the articles
    a, an, the make no difference. Signs, decimals and symbols do: `-5`, `5`, `3.5`, `35`, `5%` and `C++` are
    six things, while `1,000` is `1000`. Where nothing would be left ("The The", "!!!"), more is kept, so only
    blank text has an empty normal form.
    """
    folded = unicodedata.normalize("NFKC", html.unescape(text)).casefold().translate(_FOLDED)
    folded = unicodedata.normalize("NFC", _ACCENT.sub("", unicodedata.normalize("NFD", folded)))
    folded = " ".join(folded.split())
    joined = re.sub(r"(?<=[^\W\d_])['.](?=[^\W\d_])|(?<=[^\W\d_])'", "", folded)  # o'brien, u.s.a
    tokens = [token for match in _TOKEN.finditer(joined) if (token := _token(match))]
    named = [token for token in tokens if token not in _ARTICLES]
    return " ".join(named or tokens) or folded


def squad(text: str) -> str:
    """Return the normal form of SQuAD's script, which Search-R1 uses: it confuses `-5` and `5`, `3.5` and `35`."""
    words = text.lower().translate(_PUNCTUATION).split()
    return " ".join(word for word in words if word not in _ARTICLES)


NORMALISERS: dict[str, Callable[[str], str]] = {"careful": careful, "squad": squad}


def score(answer: str, accepted: Sequence[str], normaliser: str = "careful") -> Score:
    """Compare an answer with the accepted ones. An empty normal form matches nothing.

    Args:
        answer: What the policy wrote.
        accepted: The answer and its aliases.
        normaliser: A name out of `NORMALISERS`.
    """
    normal = NORMALISERS[normaliser]
    given = normal(answer)
    wanted = [form for form in map(normal, accepted) if form]
    if not given or not wanted:
        return Score(False, 0.0)
    return Score(given in wanted, max(_f1(given.split(), form.split()) for form in wanted))


def _token(match: re.Match[str]) -> str:
    if match["number"]:
        sign = "-" if match["sign"] == "-" else ""
        return sign + match["number"].replace(",", "")
    if match["word"]:
        return match["word"]
    symbol = match["symbol"]
    return symbol if symbol in "%#" or unicodedata.category(symbol)[0] in "SM" else ""


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted))
