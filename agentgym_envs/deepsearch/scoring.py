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
_ACCENTED = re.compile("([a-z\u00df-\u024f\u0250-\u02af\u1e00-\u1eff])[\u0300-\u036f]+")  # in NFD, Latin only
# Latin letters that Unicode does not take apart.
_LETTERS = str.maketrans(
    {
        **dict(zip("\u0142\u00f8\u0111\u00f0\u0127\u0131\u0167\u0180\u0268", "loddhitbi", strict=True)),
        **{"\u00e6": "ae", "\u0153": "oe", "\u00fe": "th"},
    }
)
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
_SUPERSCRIPT = re.compile("[\u207a\u207b]?[\u00b2\u00b3\u00b9\u2070\u2074-\u2079]+")
_GROUPS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?: \d{3})+(?!\d)")
_ARTICLE = re.compile(r"""^(["'(]*)(?:a|an|the) (?!(?:a|an|the)?\W*$)""")
# A number keeps its decimals unless they are zeros, its leading zeros (codes) and a minus that stands before it, not
# behind a word; a minus or dash between numbers stays too.
_TOKEN = re.compile(
    r"(?P<sign>(?:(?<![^\W_])|(?<=\butc)|(?<=\bgmt))[-+](?=\d))?"
    r"(?P<number>\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?)(?P<version>(?=\.\d))?"
    r"|(?P<range>(?<=\d)-(?=\d)|(?<=\d )-(?= \d))|(?P<word>[^\W\d_]+)|(?P<symbol>\S)"
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

    The same are: upper and lower case; a Latin letter with and without accents or strokes (`é` and `e`, `Ł` and `L`);
    the kinds of quotes, dashes and spaces; soft hyphens and nothing; HTML entities and what they stand for;
    punctuation and none, `Jean-Claude` and `Jean Claude`; one leading article (a, an, the) and none; `1,000`, `1 000`,
    `1000.0` and `1000`; `+260`, `+ 260` and `260`.

    Not the same are: `-5` and `5`, `UTC-3` and `UTC 3`, `1-0` and `1 0`; `3.5` and `35`, `3.10` and `3.1`; `007` and
    `7`; `10²` and `102`; what differs in a symbol, as `5%` and `5` or `C++` and `C`; other scripts' letters with and
    without a mark (`й` and `и`); an `A` that does not lead, as in `Vitamin A`, and none.

    Where nothing would be left (`The The`, `!!!`), more is kept, so only blank text has an empty normal form.
    """
    plain = _SUPERSCRIPT.sub(lambda match: f"^{match[0]}", html.unescape(text).translate(_INVISIBLE))
    folded = unicodedata.normalize("NFKC", plain).casefold().translate(_FOLDED)
    folded = _ACCENTED.sub(r"\1", unicodedata.normalize("NFD", folded)).translate(_LETTERS)
    folded = " ".join(unicodedata.normalize("NFC", folded).split())
    joined = re.sub(r"(?<=[^\W\d_])['.](?=[^\W\d_])|(?<=[^\W\d_])'", "", folded)  # o'brien, u.s.a
    joined = re.sub(r"^\+ (?=\d)", "+", _ARTICLE.sub(r"\1", joined))
    joined = _GROUPS.sub(lambda match: match[0].replace(" ", ""), joined)
    return " ".join(token for match in _TOKEN.finditer(joined) if (token := _token(match))) or folded


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
        number = match["number"].replace(",", "")
        if match["version"] is None:
            number = re.sub(r"\.0+$", "", number)
        return ("-" if match["sign"] == "-" else "") + number
    if match["range"]:
        return "-"
    if match["word"]:
        return match["word"]
    symbol = match["symbol"]
    return symbol if symbol in "%#" or unicodedata.category(symbol)[0] in "SM" else ""


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    common = sum((Counter(given) & Counter(wanted)).values())
    return 2 * common / (len(given) + len(wanted))
