"""One connection to py4j's gateway server in a Java process: calls, references to objects, a time limit.

It speaks py4j's protocol without py4j's own client. That one logs to the root logger, sends calls again by
itself, and releases objects in finalizers, which may run in any thread and in forked processes.

The server keeps, for each connection, the methods that it has found by the *name* of the class. So one
connection must see the classes of one class loader only.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

try:
    from py4j import protocol
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "SciWorld needs the package scienceworld (and its py4j), which is not installed. Install it with: "
        "pip install 'agentgym-suite[sciworld]'",
        name=error.name,
    ) from error

_CALL = protocol.CALL_COMMAND_NAME
_CONSTRUCT = protocol.CONSTRUCTOR_COMMAND_NAME
_NEW_ARRAY = protocol.ARRAY_COMMAND_NAME + protocol.ARRAY_CREATE_SUB_COMMAND_NAME
_SET_IN_ARRAY = protocol.ARRAY_COMMAND_NAME + protocol.ARRAY_SET_SUB_COMMAND_NAME
_GET_FROM_ARRAY = protocol.ARRAY_COMMAND_NAME + protocol.ARRAY_GET_SUB_COMMAND_NAME
_LENGTH_OF_ARRAY = protocol.ARRAY_COMMAND_NAME + protocol.ARRAY_LEN_SUB_COMMAND_NAME
_RELEASE = protocol.MEMORY_COMMAND_NAME + protocol.MEMORY_DEL_SUBCOMMAND_NAME
_END = protocol.END_COMMAND_PART
_PART_BYTES = 1 << 16


class JavaError(RuntimeError):
    """Java code threw an exception; the message is the exception's."""


class BridgeError(OSError):
    """The connection broke or was not answered in time.

    Attributes:
        timed_out: Whether it was the time limit.
    """

    def __init__(self, message: str, timed_out: bool = False) -> None:
        """Say what happened."""
        super().__init__(message)
        self.timed_out = timed_out


class Ref:
    """An object in the Java process, which keeps it until it is released."""

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:
        """Name an object by the id that the server gave."""
        self.id = id

    def _get_object_id(self) -> str:  # what py4j's encoder asks for
        return self.id


class Connection:
    """A connection for one thread at a time."""

    def __init__(self, port: int, token: str, seconds: float) -> None:
        """Connect and authenticate.

        Args:
            port: The server's port on the loopback interface.
            token: What the server wants to be told first.
            seconds: What each answer may take.

        Raises:
            BridgeError: If that is not possible.
        """
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        except OSError as error:
            raise BridgeError(f"no connection to port {port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Not a buffered file: its lock would keep `close` waiting for an answer, and a forked process for ever.
        self._received = bytearray()
        self._seconds = seconds
        try:
            self._exchange(f"{protocol.AUTH_COMMAND_NAME}\n{token}\n")
        except BaseException:
            self.close()
            raise

    def call(self, target: Ref | str, method: str, *arguments: Any) -> Any:
        """Call a method.

        Args:
            target: An object, or the full name of a class of Java's own for its static methods.
            method: Name of a public method.
            arguments: None, bool, int, float, str or `Ref`.

        Returns:
            The result in the same types.

        Raises:
            JavaError: If the method threw an exception or there is none such.
            BridgeError: If the connection broke or the time was over.
        """
        return self._value(self._exchange(_call(target, method, arguments))[0])

    def calls(self, *calls: tuple[Ref | str, str], release: Sequence[Ref] = ()) -> list[Any]:
        """Make several calls without arguments in one exchange, for the time of one, and release objects after them."""
        commands = [_call(target, method, ()) for target, method in calls]
        answers = self._exchange(*commands, *(_release(ref) for ref in release))
        return [self._value(answer) for answer in answers[: len(calls)]]

    def each(self, target: Ref, method: str, *arguments: Sequence[Any]) -> None:
        """Call a method that returns nothing once for each of several lists of arguments, in one exchange."""
        for answer in self._exchange(*(_call(target, method, each) for each in arguments)):
            self._value(answer)

    def new(self, class_name: str, *arguments: Any) -> Ref:
        """Construct an object of one of Java's own classes."""
        made: Ref = self._value(self._exchange(f"{_CONSTRUCT}{class_name}\n{_encoded(arguments)}{_END}")[0])
        return made

    def array(self, class_name: str, *items: Any) -> Ref:
        """Make an array of one of Java's own classes."""
        made: Ref = self._value(self._exchange(_NEW_ARRAY + _encoded((class_name, len(items))) + _END)[0])
        for index, item in enumerate(items):
            self._value(self._exchange(f"{_SET_IN_ARRAY}{made.id}\n{_encoded((index, item))}{_END}")[0])
        return made

    def item(self, array: Ref, index: int) -> Any:
        """Return an element of an array."""
        return self._value(self._exchange(f"{_GET_FROM_ARRAY}{array.id}\n{_encoded((index,))}{_END}")[0])

    def items(self, array: Ref) -> list[Any]:
        """Return all elements of an array, in two exchanges."""
        length: int = self._value(self._exchange(f"{_LENGTH_OF_ARRAY}{array.id}\n{_END}")[0])
        commands = (f"{_GET_FROM_ARRAY}{array.id}\n{_encoded((index,))}{_END}" for index in range(length))
        return [self._value(answer) for answer in self._exchange(*commands)]

    def release(self, *refs: Ref) -> None:
        """Let Java forget objects."""
        self._exchange(*(_release(ref) for ref in refs))

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or because it broke."""
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close the connection, also under a thread that waits for an answer; a second call does nothing."""
        with contextlib.suppress(OSError):  # where it is closed, or the other side is gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """In a forked process: close this side's copy; for the parent the connection goes on."""
        self._socket.close()

    def _exchange(self, *commands: str) -> list[str]:
        """Send commands and read an answer to each."""
        data = "".join(commands).encode()
        try:
            self._socket.sendall(data)
            lines = [self._line() for _ in commands]
        except BaseException as error:
            self.close()  # what is still to come would be taken for the answer to the next command
            if isinstance(error, TimeoutError):
                raise BridgeError(f"no answer in {self._seconds:g} s", timed_out=True) from error
            if isinstance(error, OSError):
                raise BridgeError(f"the connection broke: {error}") from error
            raise
        return [line.decode().removeprefix(protocol.RETURN_MESSAGE) for line in lines]

    def _line(self) -> bytes:
        # Acknowledges the answer before: the server's socket holds each one back until the last one has been, for
        # which the system would take 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            part = self._socket.recv(_PART_BYTES)
            if not part:
                raise ConnectionResetError("it was closed by the other side")
            self._received += part
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _value(self, answer: str) -> Any:
        state, kind, text = answer[:1], answer[1:2], answer[2:]
        if state == protocol.SUCCESS:
            decode = _DECODERS.get(kind)
            return Ref(text) if decode is None else decode(text)
        if kind == protocol.REFERENCE_TYPE:
            (told,) = self.calls((Ref(text), "toString"), release=[Ref(text)])
            raise JavaError(told)
        raise JavaError(protocol.unescape_new_line(text) or "the call is not possible")


_DECODERS: dict[str, Callable[[str], Any]] = {
    "": lambda _text: None,
    protocol.VOID_TYPE: lambda _text: None,
    protocol.NULL_TYPE: lambda _text: None,
    protocol.BOOLEAN_TYPE: lambda text: text.lower() == "true",
    protocol.INTEGER_TYPE: int,
    protocol.LONG_TYPE: int,
    protocol.DOUBLE_TYPE: float,
    protocol.STRING_TYPE: protocol.unescape_new_line,
}


def _call(target: Ref | str, method: str, arguments: Sequence[Any]) -> str:
    name = target.id if isinstance(target, Ref) else protocol.STATIC_PREFIX + target
    return f"{_CALL}{name}\n{method}\n{_encoded(arguments)}{_END}"


def _encoded(arguments: Sequence[Any]) -> str:
    return "".join(protocol.get_command_part(argument) for argument in arguments)


def _release(ref: Ref) -> str:
    return f"{_RELEASE}{ref.id}\n{_END}"
