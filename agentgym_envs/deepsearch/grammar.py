"""The actions: what agents may write, and how it is read.

The grammar is Search-R1's. A reply may hold any text around its action. What counts is a pair of tags:

- Thoughts in `<think>...</think>` and anything in `<information>...</information>` (which only the environment
  writes) are dropped first, so nothing in them is an action.
- An opening tag that is not closed is a mention. Quotes do not protect: a closed pair in quotes is an action.
- Of several answers the last counts. A search beside another search or beside an answer is refused: one turn is
  one action.
- Tags inside one another, crossed or closed twice are refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agentgym_envs.verbs import template

_TAG = re.compile(r"<\s*(/?)\s*(search|answer)\s*>", re.IGNORECASE)
_NOT_SAID = re.compile(r"<(/?)(think|thinking|information)>", re.IGNORECASE)


def search(query: str) -> str:
    """Search the corpus; the best passages come back.

    Args:
        query: What to look for, in a few words.

    Examples:
        <search>capital of Burkina Faso</search>
    """
    return f"<search>{query}</search>"


def answer(text: str) -> str:
    """Give the final answer, which ends the episode: a name, number or date, without a sentence around it.

    Args:
        text: The answer.

    Examples:
        <answer>Ouagadougou</answer>
    """
    return f"<answer>{text}</answer>"


VERBS = (search, answer)
ACCEPTED = " or ".join(template(verb) for verb in VERBS)


class Action(NamedTuple):
    """A parsed action: `search` or `answer`, and what stands between the tags."""

    kind: str
    text: str


class NotUnderstood(ValueError):
    """The reply holds no single action; the message says what was wrong and what is accepted."""


def parse(reply: str) -> Action:
    """Read the one action of a reply.

    Raises:
        NotUnderstood: If there is none, or more than one.
    """
    found, unclosed = _pairs(_said(reply))
    if not found:
        told = f"<{unclosed}> is not closed with </{unclosed}>" if unclosed else "it has no action"
        raise _refusal(told)
    searches = [action for action in dict.fromkeys(found) if action.kind == "search"]
    if searches and (len(searches) > 1 or len(searches) < len(set(found))):
        raise _refusal("it has several actions")
    action = found[-1]
    if not action.text:
        raise _refusal(f"the {action.kind} is empty")
    return action


def _said(reply: str) -> str:
    """Drop thoughts and results. The time is linear in the reply's length."""
    # A closing tag alone closes what a chat template had opened before the reply.
    head, closed, tail = reply.partition("</think>")
    text = tail if closed and "<think>" not in head else reply
    tags = list(_NOT_SAID.finditer(text))
    last_close = {tag[2].lower(): tag.start() for tag in tags if tag[1]}
    kept: list[str] = []
    end, inside = 0, ""
    for tag in tags:
        kind = tag[2].lower()
        if not inside and not tag[1] and last_close.get(kind, -1) > tag.start():
            kept.append(text[end : tag.start()])
            inside = kind
        elif tag[1] and kind == inside:
            end, inside = tag.end(), ""
    return " ".join([*kept, text[end:]])


def _pairs(text: str) -> tuple[list[Action], str]:
    """Return the closed pairs in order, and the kind of a tag that is left open at the end, if any."""
    found: list[Action] = []
    opened: re.Match[str] | None = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag
        elif opened is None or opened[2].lower() != tag[2].lower():
            raise _refusal(f"</{tag[2].lower()}> closes no tag that stands just before it")
        else:
            content = " ".join(text[opened.end() : tag.start()].split())
            found.append(Action(tag[2].lower(), content))
            opened = None
    return found, "" if opened is None else opened[2].lower()


def _refusal(told: str) -> NotUnderstood:
    return NotUnderstood(f"Could not read your reply: {told}. Write exactly one action: {ACCEPTED}.")
