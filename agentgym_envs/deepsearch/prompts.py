"""What the agent reads: the question, and passages in Search-R1's form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym_envs.deepsearch.retrieval import Hit

# Tags that mean something in a conversation; a passage that holds them must not look like one.
_TAG = re.compile(r"<(\s*/?\s*(?:search|answer|information|think(?:ing)?)\s*)>", re.IGNORECASE)
_CUT = " [...]"


def statement(question: str, searches: int) -> str:
    """Return the text of a task."""
    times = "once" if searches == 1 else f"{searches} times"
    return f"Answer the question. You may search the corpus up to {times} before you answer.\nQuestion: {question}"


def information(hits: Sequence[Hit], passage_chars: int) -> str:
    """Return found passages as Search-R1 shows them, each text cut at a word to `passage_chars` characters."""
    docs = [
        f"Doc {number}(Title: {harmless(one_line(hit.passage.title))}) {harmless(shown_text(hit, passage_chars))}"
        for number, hit in enumerate(hits, start=1)
    ]
    return "\n".join(["<information>", *(docs or ["Nothing was found."]), "</information>"])


def shown_text(hit: Hit, passage_chars: int) -> str:
    """Return a passage's text as it is shown."""
    text = one_line(hit.passage.text)
    if len(text) <= passage_chars:
        return text
    head = text[:passage_chars]
    if " " in head and not text[passage_chars].isspace():
        head = head.rpartition(" ")[0]
    return head.rstrip() + _CUT


def harmless(text: str) -> str:
    """Return text whose tags cannot be taken for those of a conversation."""
    return _TAG.sub("\u2039\\1\u203a", text)


def one_line(text: str) -> str:
    """Return text with each run of white space as one space."""
    return " ".join(text.split())
