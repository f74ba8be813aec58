"""Conversations and recorded episodes in files, as trajectories that can be trained on.

What stands between the replies comes from the chat template, as in rollouts; the replies are encoded as a teacher's.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_envs.verbs import well_formed
from agentgym_train.chat import Chat
from agentgym_train.config import ConfigError
from agentgym_train.trajectory import Episode, Trajectory, Turn

_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


class Record(NamedTuple):
    """A JSON object of a file, and what to call it in errors."""

    where: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: `"system"`, `"user"` or `"assistant"`.
        content: Its text.
        trained: Whether a reply is trained on.
        ended: Whether a reply has its end; one that was cut has not.
    """

    role: str
    content: str
    trained: bool = True
    ended: bool = True


def read_records(path: str, key: str) -> Iterator[Record]:
    """Read the JSON objects of a file: one a line, or a list of them.

    Args:
        path: The file.
        key: Which option named it, for errors.

    Raises:
        ConfigError: If it cannot be read or holds something else.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")  # some editors put a mark before the text
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}={path!r} cannot be read ({error}); give a file of JSON lines.") from error
    if text.lstrip().startswith("["):
        pieces = [(f"{path}, entry {number}", piece) for number, piece in enumerate(_loaded(text, path), start=1)]
    else:
        lines = enumerate(text.split("\n"), start=1)  # texts may hold the other ends of lines
        named = [(f"{path}, line {number}", line) for number, line in lines if line.strip()]
        pieces = [(where, _loaded(line, where)) for where, line in named]
    if not pieces:
        raise ConfigError(f"{key}={path!r} is empty; give a file of JSON lines.")
    for where, piece in pieces:
        if not isinstance(piece, dict):
            raise ConfigError(f"{where}: {str(piece)[:40]!r} is no JSON object.")
        yield Record(where, piece)


def is_episode(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an episode of a run's trajectories.jsonl."""
    return "turns" in data and "prompt" in data


def refused_episode(record: Record, held_out: Collection[str]) -> str:
    """Why a recorded episode is not trained on, or nothing if it may be.

    Args:
        record: The episode.
        held_out: Tasks that the run is tested on.
    """
    data = record.data
    if data.get("end") == "error" or not data["turns"]:
        return "episodes that ended in an error"
    if str(data.get("task")) in held_out:
        return "episodes of held-out tasks"
    if data.get("trials", 1) != 1:
        return "episodes of several trials"
    return ""


def messages_of(record: Record, key: str = "messages") -> list[Message]:
    """The messages of a conversation or a recorded episode.

    Args:
        record: It.
        key: Which key of a conversation holds its messages.

    Raises:
        ConfigError: If it is neither.
    """
    where, data = record
    if is_episode(data):
        return _messages_of_episode(record)
    listed = data.get(key, data.get("conversations"))
    if not isinstance(listed, list):
        raise ConfigError(
            f"{where} has {', '.join(data) or 'no key'}; accepted are {key}, a list of messages with role and content, "
            "and episodes of a run's trajectories.jsonl."
        )
    return [_message(entry, f"{where}, message {number}") for number, entry in enumerate(listed, start=1)]


def write_down(messages: Sequence[Message], chat: Chat, where: str) -> Trajectory:
    """Write a conversation down as a trajectory whose mask is 1 on the replies that are trained on.

    Args:
        messages: Perhaps a system message, then user and assistant in turn.
        chat: Renders them.
        where: What to call it in errors.

    Raises:
        ConfigError: If the roles come in another order, or nothing is trained on.
    """
    has_system = bool(messages) and messages[0].role == "system"
    system, talk = (messages[0].content, messages[1:]) if has_system else ("", messages)
    for number, message in enumerate(talk):
        if message.role != ("user", "assistant")[number % 2]:
            raise ConfigError(
                f"{where}: the roles are {', '.join(entry.role for entry in messages)}; accepted is a system message "
                "or none, then user and assistant in turn."
            )
    if any(well_formed(message.content) != message.content for message in messages):
        raise ConfigError(f"{where} holds half of a surrogate pair, such as \\ud83d alone, which is no text.")
    last = max((n for n, message in enumerate(talk) if message.role == "assistant" and message.trained), default=-1)
    if last < 0:
        raise ConfigError(f"{where} has no assistant message that is trained on.")
    trajectory = Trajectory(Episode(where, 0, 0, 0, "file"))
    for number, message in enumerate(talk[: last + 1]):
        if number == 0:
            trajectory.append_given(chat.prompt(system, message.content))
            trajectory.prompt_length = len(trajectory.tokens)
        elif message.role == "user":
            trajectory.append_given(chat.after_reply(message.content, ended=talk[number - 1].ended))
        else:
            _append_reply(trajectory, chat, message)
    return trajectory


def episode_trajectory(record: Record, chat: Chat) -> Trajectory:
    """Write a recorded episode down again (see `write_down`), with its task, score and number of turns.

    Raises:
        ConfigError: If something is missing.
    """
    where, data = record
    trajectory = write_down(messages_of(record), chat, where)
    try:
        trajectory.episode = Episode(str(data["task"]), int(data["seed"]), int(data["sample"]), 0, "file")
        trajectory.score, trajectory.success = float(data["score"]), bool(data["success"])
        if not math.isfinite(trajectory.score):
            raise ValueError(f"score {trajectory.score}")
        for turn, stored in zip(trajectory.turns, data["turns"], strict=False):
            turn.acted = bool(stored.get("acted", True))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is no whole episode of a run ({type(error).__name__}: {error}).") from error
    return trajectory


def turns_of(trajectory: Trajectory) -> int:
    """Number of turns in the environment."""
    return sum(turn.acted for turn in trajectory.turns)


def fingerprint(trajectories: Iterable[Trajectory]) -> str:
    """Hash of the tokens and masks of trajectories, in their order."""
    digest = hashlib.sha256()
    for trajectory in trajectories:
        digest.update(json.dumps([trajectory.tokens, trajectory.mask]).encode())
    return digest.hexdigest()[:16]


def _loaded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid JSON ({error}).") from error


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {entry!r}; give a mapping with role and content.")
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    if not isinstance(role, str) or role not in _ROLES or not isinstance(content, str):
        raise ConfigError(
            f"{where}: role {role!r} with content {str(content)[:40]!r}; accepted are the roles system, user and "
            "assistant with a text."
        )
    trained = entry.get("train", entry.get("loss"))
    if trained is not None and trained not in (0, 1):  # which false and true equal
        raise ConfigError(f"{where}: {trained!r} does not say whether it is trained on; give true or false.")
    return Message(_ROLES[role], content, trained=trained is None or bool(trained))


def _messages_of_episode(record: Record) -> list[Message]:
    where, data = record
    try:
        instruction, prompt = str(data["instruction"]), str(data["prompt"])
        messages = [Message("system", instruction), Message("user", prompt.removeprefix(f"{instruction}\n\n"))]
        for turn in data["turns"]:
            messages += [
                Message("assistant", str(turn["reply"]), ended=turn["finish"] == "stop"),
                Message("user", str(turn["observation"])),
            ]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{where} is no whole episode of a run ({type(error).__name__}: {error}).") from error
    return messages


def _append_reply(trajectory: Trajectory, chat: Chat, message: Message) -> None:
    tokens = chat.reply(message.content)
    if not message.ended:
        tokens = tokens[:-1]
    start = len(trajectory.tokens)
    if message.trained:
        trajectory.append_sampled(tokens, [0.0] * len(tokens))
    else:
        trajectory.append_given(tokens)
    finish: Any = "stop" if message.ended else "length"
    trajectory.turns.append(Turn(start, len(trajectory.tokens), message.content, "", "", 0.0, True, finish))
