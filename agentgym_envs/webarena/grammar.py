"""The actions: what agents may write, and how it is read. The grammar is WebArena's."""

from __future__ import annotations

import re
from typing import NamedTuple

from agentgym_envs.verbs import Verb, quoted, template


def click(id: int) -> str:
    """Click an element; an option of a list is chosen.

    Args:
        id: Number of the element in the observation.

    Examples:
        click [12]
    """
    return f"click [{id}]"


def type(id: int, text: str, enter: int) -> str:
    """Replace what is in a field by the text, and press Enter if the last number is 1 (also if it is left out).

    Args:
        id: Number of the field in the observation.
        text: The new content; for a list, the option to choose.
        enter: 1 to press Enter afterwards, else 0.

    Examples:
        type [7] [blue mug] [1]
    """
    return f"type [{id}] [{text}] [{enter}]"


def hover(id: int) -> str:
    """Move the pointer over an element.

    Args:
        id: Number of the element in the observation.

    Examples:
        hover [12]
    """
    return f"hover [{id}]"


def press(keys: str) -> str:
    """Press a key, or keys together.

    Args:
        keys: Names joined by `+`: ctrl, shift, alt, meta, enter, tab, escape, backspace, delete, space, home,
            end, pageup, pagedown, up, down, left, right, insert, f1 to f12, or one character.

    Examples:
        press [ctrl+a]
        press [Enter]
    """
    return f"press [{keys}]"


def scroll(direction: str) -> str:
    """Scroll by the height of the window: up or down.

    Args:
        direction: `up` or `down`.

    Examples:
        scroll [down]
    """
    return f"scroll [{direction}]"


def new_tab() -> str:
    """Open an empty tab and go to it.

    Examples:
        new_tab
    """
    return "new_tab"


def tab_focus(index: int) -> str:
    """Go to a tab.

    Args:
        index: Number of the tab, from 0.

    Examples:
        tab_focus [0]
    """
    return f"tab_focus [{index}]"


def close_tab() -> str:
    """Close the current tab.

    Examples:
        close_tab
    """
    return "close_tab"


def goto(url: str) -> str:
    """Open an address of one of the sites.

    Args:
        url: The address.

    Examples:
        goto [http://shopping/]
    """
    return f"goto [{url}]"


def go_back() -> str:
    """Open the page before in this tab again.

    Examples:
        go_back
    """
    return "go_back"


def go_forward() -> str:
    """Undo `go_back`.

    Examples:
        go_forward
    """
    return "go_forward"


def stop(answer: str) -> str:
    """End the task; the answer is what was asked for, empty if nothing was, N/A if the task cannot be done.

    Args:
        answer: The answer alone, without a sentence around it.

    Examples:
        stop [42]
        stop []
    """
    return f"stop [{answer}]"


VERBS: tuple[Verb, ...] = (
    click,
    type,
    hover,
    press,
    scroll,
    new_tab,
    tab_focus,
    close_tab,
    goto,
    go_back,
    go_forward,
    stop,
)
WITH_ELEMENT = (click, type, hover)
_BY_NAME = {verb.__name__: verb for verb in VERBS}
_BARE = {name for name, verb in _BY_NAME.items() if "[" not in template(verb)}
_ACCEPTED = "; ".join(map(template, VERBS))
_ACTION = re.compile(r"(\w+)\s*(.*)", re.DOTALL)
_ARGUMENT = re.compile(r"\[(.*)\]", re.DOTALL)
_TYPE = re.compile(r"\[\s*(\d+)\s*\]\s*\[(.*?)\](?:\s*\[([^\[\]]*)\])?", re.DOTALL)
_MAX_DIGITS = 9

_MODIFIERS = {"ctrl": "Control", "control": "Control", "shift": "Shift", "alt": "Alt", "meta": "Meta", "cmd": "Meta"}
_KEYS = {
    **{name.lower(): name for name in ("Enter", "Tab", "Escape", "Backspace", "Delete", "Home", "End", "Insert")},
    **{name.lower(): name for name in ("PageUp", "PageDown", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight")},
    **{way.lower(): f"Arrow{way}" for way in ("Up", "Down", "Left", "Right")},
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
    "return": "Enter",
    "esc": "Escape",
    "space": "Space",
}
_CLIPBOARD = {"Control+c", "Control+x", "Control+v", "Control+Insert", "Shift+Insert", "Shift+Delete"}


class Command(NamedTuple):
    """A parsed action.

    Attributes:
        verb: The verb.
        number: Number of the element or tab, else -1.
        text: Text, key names as the browser has them, direction, address or answer.
        enter: Whether to press Enter after typing.
    """

    verb: Verb
    number: int = -1
    text: str = ""
    enter: bool = False


class NotUnderstood(ValueError):
    """The text is no action; the message says what is accepted."""


def parse(action: str) -> Command:
    """Read an action. The verb's case and space around brackets make no difference.

    Raises:
        NotUnderstood: If it is none.
    """
    match = _ACTION.fullmatch(action.strip())
    verb = _BY_NAME.get(match[1].lower()) if match else None
    if match is None or verb is None:
        raise NotUnderstood(f"Could not execute {quoted(action)}. Accepted are: {_ACCEPTED}.")
    rest = match[2].strip()
    if verb is type:
        return _parse_type(action, rest)
    if verb is stop and not rest:
        return Command(stop)
    if match[1].lower() in _BARE:
        if rest not in ("", "[]"):
            raise _malformed(action, verb)
        return Command(verb)
    argument = _ARGUMENT.fullmatch(rest)
    if argument is None:
        raise _malformed(action, verb)
    text = argument[1].strip()
    if verb is stop:
        return Command(stop, text=text)
    if "\n" in text:
        raise NotUnderstood(f"Could not execute {quoted(action)}: write one action on one line.")
    if verb in (click, hover, tab_focus):
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise _malformed(action, verb)
        return Command(verb, int(text))
    if verb is scroll:
        direction = text.lower().removeprefix("direction=")
        if direction not in ("up", "down"):
            raise _malformed(action, verb)
        return Command(scroll, text=direction)
    if verb is press:
        return Command(press, text=_keys(action, text))
    if not text:
        raise _malformed(action, verb)
    return Command(goto, text=text)


def _parse_type(action: str, rest: str) -> Command:
    match = _TYPE.fullmatch(rest)
    if match is None or len(match[1]) > _MAX_DIGITS or not match[1].isascii():
        raise _malformed(action, type)
    text, flag = match[2], match[3]
    flag = flag if flag is None else flag.strip()
    if flag is not None and flag.lower() not in ("0", "1", "press_enter_after=0", "press_enter_after=1"):
        raise NotUnderstood(
            f"Could not execute {quoted(action)}: the last number is 1 to press Enter or 0, not {quoted(flag)!r}."
        )
    return Command(type, int(match[1]), text, enter=flag is None or flag.endswith("1"))


def _keys(action: str, text: str) -> str:
    """Return a key combination as the browser names it.

    Raises:
        NotUnderstood: If there is no such key, or it would reach the clipboard.
    """
    names = [name.strip() for name in text.split("+")] if text != "+" else ["+"]
    *held, last = names
    modifiers = [_MODIFIERS.get(name.lower(), "") for name in held]
    key = _KEYS.get(last.lower(), last if len(last) == 1 and last.isprintable() else "")
    if not all(modifiers) or not key:
        raise NotUnderstood(f"Could not execute {quoted(action)}: accepted are {_KEY_NAMES}.")
    if modifiers and key.isalpha() and len(key) == 1:
        key = key.lower()
    combination = "+".join([*dict.fromkeys(modifiers), key])
    if combination.replace("Meta", "Control") in _CLIPBOARD:
        raise NotUnderstood(f"Could not execute {quoted(action)}: there is no clipboard; use type to enter text.")
    return combination


_KEY_NAMES = f"one character or {', '.join(sorted(set(_KEYS)))}, after any of {', '.join(_MODIFIERS)}, joined by +"


def _malformed(action: str, verb: Verb) -> NotUnderstood:
    return NotUnderstood(f"Could not execute {quoted(action)}: write {template(verb)}.")
