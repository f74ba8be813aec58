"""Verbs: a scenario's actions as documented, typed functions.

A verb is an ordinary function that takes typed arguments and returns the action string. Everything that
describes the actions is made from the functions: the `instruction` that agents read, the grammar tables
in the docs, and tool definitions for trainers that want tool calls (they take the functions as they are).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

_QUOTED_CHARS = 80

Verb = Callable[..., str]


def template(verb: Verb) -> str:
    """Return the action with its arguments left open, e.g. `get <count> <item>`."""
    return verb(*(f"<{name}>" for name in inspect.signature(verb).parameters))


def summary(verb: Verb) -> str:
    """Return the first line of the verb's docstring."""
    return _docstring(verb).partition("\n")[0]


def examples(verb: Verb) -> list[str]:
    """Return the actions listed under `Examples:` in the verb's docstring."""
    _, found, section = _docstring(verb).partition("Examples:\n")
    return [line.strip() for line in section.splitlines() if line.strip()] if found else []


def instruction(verbs: Sequence[Verb]) -> str:
    """Return the action format as an agent reads it: one line a verb."""
    lines = [f"{template(verb)} - {summary(verb)}" for verb in verbs]
    return "\n".join(["Reply with one action a turn:", *lines])


def grammar_table(verbs: Sequence[Verb]) -> str:
    """Return the action format as a Markdown table for the docs."""
    rows = ["| Action | Meaning | Example |", "| --- | --- | --- |"]
    for verb in verbs:
        rows.append(f"| `{template(verb)}` | {summary(verb)} | {', '.join(f'`{e}`' for e in examples(verb))} |")
    return "\n".join(rows)


def well_formed(text: str) -> str:
    """The text without lone surrogates, which no file, index, server or pipe takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def quoted(text: str) -> str:
    """Return an agent's text for a message: on one line, shortened where it is long."""
    start = " ".join(text[:_QUOTED_CHARS].split())
    return start if len(text) <= _QUOTED_CHARS else start + "..."


def _docstring(verb: Verb) -> str:
    doc = inspect.getdoc(verb)
    if not doc:
        raise ValueError(f"verb {verb.__name__!r} has no docstring; its first line is what agents read.")
    return doc
