"""From a language model's reply to an environment's action."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from agentgym_envs import RefusedAction, TextEnv, TextSpace
from agentgym_envs.core import checked_record

MAX_REPLY_CHARS = 1_048_576

# How each format is written, for the answer to replies that hold no action.
_EXAMPLES = {
    "tags": "<action>your action</action>",
    "react": "a line 'Action: your action'",
    "fence": "```your action```",
    "bare": "the action alone on one line",
}
FORMATS = tuple(_EXAMPLES)

# Every pattern is a plain token or is matched once per line: the time stays linear in the reply's length.
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_ACTION_TAG = re.compile(r"<(/?)action>", re.IGNORECASE)
_ACTION_LINE = re.compile(r"[*_]{0,3}action[*_]{0,3}:[*_]{0,3}", re.IGNORECASE)
_THOUGHT_LINE = re.compile(r"[*_]{0,3}thought[*_]{0,3}:", re.IGNORECASE)
_FENCE = re.compile(r"`{3,}")
_LANGUAGE_LINE = re.compile(r"[\w+-]*[ \t]*\n")
_SEEN = "<action/>"  # stands where an <action> was taken out of the text


class _NoAction(Exception):
    """What is wrong with a reply."""


def parse_reply(reply: str, formats: Sequence[str] = FORMATS) -> str | RefusedAction:
    """Find the one action in a reply.

    Thoughts in `<think>...</think>` are dropped first. Then `<action>...</action>` and ReAct's `Action:`
    lines count (both around the same action are one), if there are none fenced blocks, and if there are
    none of those either, a reply that is a single line is the action.

    Args:
        reply: What the agent said; any string.
        formats: Formats that are accepted, of `"tags"`, `"react"`, `"fence"` and `"bare"`.

    Returns:
        The action, or a `RefusedAction` that says why there is none.

    Raises:
        ValueError: If a format is unknown.
    """
    formats = _checked_formats(formats)
    try:
        return _find_action(reply, formats)
    except _NoAction as problem:
        return RefusedAction(reply, f"{problem} Write exactly one action, as {_EXAMPLES[formats[0]]}.")


def _find_action(reply: str, formats: Sequence[str]) -> str:
    text = _without_thoughts(reply)
    actions: list[str] = []
    if "tags" in formats:
        actions, text = _tagged(text)
    if "react" in formats:
        actions += [action for action in _action_lines(text) if action.strip() != _SEEN]
    if not actions and "fence" in formats:
        actions = _fenced(text)
    if not actions and "bare" in formats:
        actions = _bare(text)
    if not actions:
        raise _NoAction("No action was found.")
    if len(actions) > 1:
        raise _NoAction("Several actions were found.")
    action = _unwrapped(actions[0])
    if not action:
        raise _NoAction("The action is empty.")
    return action


def _without_thoughts(reply: str) -> str:
    """Drop thoughts. A closing tag alone closes what a chat template had opened before the reply."""
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THINK_TAG.finditer(reply):
        if tag[1]:
            if not thinking:
                kept.clear()
            start, thinking = tag.end(), False
        elif not thinking:
            kept.append(reply[start : tag.start()])
            thinking = True
    if thinking:
        raise _NoAction("The reply ended before </think>.")
    return "\n".join([*kept, reply[start:]])


def _tagged(text: str) -> tuple[list[str], str]:
    """The contents of `<action>` tags, and the text with `_SEEN` in their place."""
    actions: list[str] = []
    outside: list[str] = []
    end = 0  # of the last tag pair
    start: int | None = None  # of the open tag's content
    for tag in _ACTION_TAG.finditer(text):
        if not tag[1]:
            if start is not None:
                raise _NoAction("An <action> stands inside another.")
            outside += [text[end : tag.start()], _SEEN]
            start = tag.end()
        elif start is not None:
            actions.append(text[start : tag.start()])
            start, end = None, tag.end()
    if start is not None:
        raise _NoAction("The <action> was not closed with </action>.")
    return actions, "".join([*outside, text[end:]])


def _action_lines(text: str) -> list[str]:
    """What follows each `Action:`, on its line or else on the next line that is not empty."""
    actions: list[str] = []
    waiting = False  # for the action of an `Action:` that ended its line
    lines = iter([line.strip() for line in text.splitlines()])
    for line in lines:
        marker = _ACTION_LINE.match(line)
        if not marker and not waiting:
            continue
        if marker and waiting:
            actions.append("")
        rest = line[marker.end() :].strip() if marker else line
        waiting = not rest
        if rest:
            actions.append(_block(rest, lines) if rest.startswith("```") else rest)
        if len(actions) > 1:
            return actions
    return [*actions, ""] if waiting else actions


def _block(start: str, following: Iterator[str]) -> str:
    """The content of the fenced block that `start` begins with; takes its further lines from `following`."""
    block: list[str] = []
    rest = start.lstrip("`")
    while not (fence := _FENCE.search(rest)):
        block.append(rest)
        try:
            rest = next(following)
        except StopIteration:
            raise _NoAction("The fenced block was not closed.") from None
    return _one_line("\n".join([*block, rest[: fence.start()]]))


def _fenced(text: str) -> list[str]:
    """The contents of fenced blocks, without the line that names a language."""
    fences = list(_FENCE.finditer(text))
    if len(fences) % 2:
        raise _NoAction("The fenced block was not closed.")
    return [
        _one_line(text[opening.end() : closing.start()])
        for opening, closing in zip(fences[::2], fences[1::2], strict=True)
    ]


def _one_line(block: str) -> str:
    language = _LANGUAGE_LINE.match(block)
    lines = [line for line in block[language.end() if language else 0 :].splitlines() if line.strip()]
    if len(lines) > 1:
        raise _NoAction("The fenced block has several lines.")
    return lines[0] if lines else ""


def _bare(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines if len(lines) == 1 and not _THOUGHT_LINE.match(lines[0].strip()) else []


def _unwrapped(action: str) -> str:
    """Drop a second marker inside the first, and backticks around the action."""
    action = action.strip()
    if marker := _ACTION_LINE.match(action):
        action = action[marker.end() :].strip()
    if action.startswith("`") and action.endswith("`"):
        action = action.strip("`").strip()
    return action


def _checked_formats(formats: Sequence[str]) -> tuple[str, ...]:
    names = (formats,) if isinstance(formats, str) else tuple(formats)
    for name in names:
        if name not in FORMATS:
            near = difflib.get_close_matches(str(name), FORMATS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"unknown action format {name!r}; accepted are {', '.join(FORMATS)}.{hint}")
    if not names:
        raise ValueError(f"formats is empty; give at least one of {', '.join(FORMATS)}.")
    return names


class ActionParser(gymnasium.ActionWrapper[str, str, str], RecordConstructorArgs):
    """Take a language model's whole replies as actions (see `parse_reply`).

    A reply without a single action is forwarded as a `RefusedAction`: the environment spends the turn,
    changes nothing and answers with what was wrong. One outer step is always one inner step.
    """

    def __init__(self, env: gymnasium.Env[str, str], formats: Sequence[str] = FORMATS) -> None:
        """Wrap a text environment.

        Args:
            env: A `TextEnv`, wrapped or not.
            formats: Formats that are accepted, of `"tags"`, `"react"`, `"fence"` and `"bare"`.

        Raises:
            ValueError: If a format is unknown or `env` is no text environment.
        """
        self.formats = _checked_formats(formats)
        if not isinstance(getattr(env, "unwrapped", None), TextEnv):
            raise ValueError(f"ActionParser wraps agentgym_envs.TextEnv environments, not {env!r}.")
        RecordConstructorArgs.__init__(self, formats=list(self.formats))
        super().__init__(env)
        self.action_space = TextSpace(MAX_REPLY_CHARS)
        self._told: dict[str, Any] = {}  # what the last info has from this wrapper

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        self._told = {}
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step with the action in a reply, which `info["action"]` repeats; it is empty if the reply held none."""
        parsed = self.action(action)
        observation, reward, terminated, truncated, info = self.env.step(parsed)
        self._told = {"action": "" if isinstance(parsed, RefusedAction) else str(parsed)}
        return observation, reward, terminated, truncated, {**info, **self._told}

    def action(self, action: str) -> str:
        """Return the action in a reply. What is no reply (not a string, already refused) passes as it is."""
        if not isinstance(action, str) or isinstance(action, RefusedAction):
            return action
        return parse_reply(action, self.formats)

    def snapshot_state(self) -> dict[str, Any]:
        """Return the wrapper's part of `agentgym_wrappers.snapshot`: what it told last."""
        return {"told": self._told}

    def restore_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Take over a saved state; returns the entries that this wrapper adds to `info`.

        Raises:
            ValueError: If it is no state of this wrapper.
        """
        told: dict[str, Any] = checked_record("the state", state, told=dict)["told"]
        if told:
            checked_record("what was told", told, action=str)
        self._told = told
        return told
