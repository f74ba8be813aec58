"""Messages between `SubprocVectorEnv` and its workers: pickles with their length, over a socket pair.

The pair is private to the two processes, so pickle is safe here; nothing that comes from a network is
ever read with it.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, NamedTuple, cast

import cloudpickle
import gymnasium

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16

Command = tuple[Any, ...]  # (name of a method of worker.Host, arguments ...)


class Description(NamedTuple):
    """What the parent has to know about an environment.

    Attributes:
        id: Id in the registry, or the class's name.
        observation_space: Its observation space.
        action_space: Its action space.
        metadata: Its metadata.
        render_mode: Its render mode.
        replays: Whether a replay of the actions restores an episode.
    """

    id: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    replays: bool


class Start(NamedTuple):
    """The beginning of an episode.

    Attributes:
        observation: The first observation.
        info: The first info.
        snapshot: State in which the episode begins; None where a replay does not restore it.
        stream: `TextEnv.stream` at that time.
    """

    observation: Any
    info: dict[str, Any]
    snapshot: bytes | None
    stream: tuple[int, int] | None


class Failure(NamedTuple):
    """An exception in a worker.

    Attributes:
        kind: Name, with its module, of the most special class of Python's or Gymnasium's that it belongs to.
        message: Class and message, as in the last line of a traceback.
        traceback: The whole traceback.
    """

    kind: str
    message: str
    traceback: str


# What a step returned: observation, reward, terminated, truncated, info. Plain tuples travel four times as fast
# as named ones.
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Autoreset(NamedTuple):
    """The end of an episode and, from the same step, the beginning of the next one.

    Attributes:
        step: What the step returned.
        start: The next episode, or why it does not begin.
    """

    step: Step
    start: Start | Failure


class UnreadableMessage(ValueError):
    """Something was pickled that cannot be unpickled."""


def pack(message: Any) -> bytes:
    """Pickle a message; with cloudpickle if need be, which sends classes that the other end cannot import."""
    try:
        return pickle.dumps(message, protocol=5)
    except Exception:
        return cast(bytes, cloudpickle.dumps(message))


class Channel:
    """One end of the socket pair. It never waits if its socket does not."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected stream socket."""
        self.socket = end
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        """The socket's file descriptor, for selectors."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Send a packed message, or what the socket takes of it at once; `flush` sends the rest."""
        self._unsent += _LENGTH.pack(len(data))
        self._unsent += data
        self.flush()

    def flush(self) -> bool:
        """Send what is left over; returns whether nothing is left now."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError:  # the other end is gone; whoever reads will see that
            self._unsent.clear()
        return True

    def receive(self) -> list[Any]:
        """Read once and return the messages that are complete now.

        Raises:
            EOFError: If the other end is closed.
            UnreadableMessage: If what was sent cannot be made again here.
        """
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError("the other end was closed")
        self._received += data
        messages = []
        start = 0
        while len(self._received) >= start + _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(self._received, start)[0]
            if len(self._received) < end:
                break
            with memoryview(self._received) as view, view[start + _LENGTH.size : end] as message:
                try:
                    messages.append(pickle.loads(message))
                except Exception as error:
                    raise UnreadableMessage(f"{type(error).__name__}: {error}") from error
            start = end
        del self._received[:start]
        return messages

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
