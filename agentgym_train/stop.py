"""Stopping cleanly on Ctrl-C and SIGTERM: a run between two pieces of work, other work at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType


class StopRequested(Exception):
    """The user or the system asked the run to stop; raised where nothing is half done."""

    def __init__(self, signal_number: int) -> None:
        """Remember which signal asked."""
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


class StopSignals:
    """While entered, the first SIGINT or SIGTERM is remembered and raised by `check`; a second stops at once."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self._received: int | None = None
        self._previous: dict[int, signal.Handlers | object] = {}

    def check(self) -> None:
        """Raise `StopRequested` if a signal came."""
        if self._received is not None:
            raise StopRequested(self._received)

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            raise KeyboardInterrupt
        self._received = number
        name = signal.Signals(number).name
        text = f"\n{name}: finishing the current piece of work, then writing a checkpoint ...\n"
        # What this raised would be raised in the middle of training, and standard error may be a pipe without a
        # reader: in `agentgym train ... 2>&1 | tee log`, Ctrl-C ends `tee` too.
        with suppress(OSError):
            os.write(2, text.encode())


class StoppedAtOnce(BaseException):
    """The user or the system asked to stop; raised wherever the work stands, so what is half done must be removed."""

    def __init__(self, signal_number: int) -> None:
        """Remember which signal asked."""
        super().__init__(signal.Signals(signal_number).name)
        self.exit_code = 128 + signal_number


@contextmanager
def signals_stop_at_once() -> Iterator[None]:
    """While entered, SIGINT and SIGTERM raise `StoppedAtOnce`: for work that nothing is to be kept of."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StoppedAtOnce(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
