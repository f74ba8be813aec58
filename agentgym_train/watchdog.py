"""A watchdog: a run that waits for something too long says for what."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType


class Watchdog:
    """Watches what the run waits for, from a thread of its own.

    It ends nothing: environments and engines have time limits of their own. What it adds is a line that says what
    is waited for, and the stacks of all threads in a file, while the run stands still.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None], file: Path) -> None:
        """Make a watchdog; `with` starts and ends its thread.

        Args:
            seconds: How long a wait may take before it is told; 0 watches nothing.
            tell: Called, from the thread, with a line when a wait is too long, and again when it has become twice as
                long.
            file: Where the stacks are written to.
        """
        self._seconds, self._tell, self._file = seconds, tell, file
        self._lock = threading.Lock()
        self._what: Callable[[], str] | None = None
        self._since = 0.0
        self._told = 0.0  # how long the present wait was when it was told last
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(5)

    @contextmanager
    def waiting(self, what: Callable[[], str]) -> Iterator[None]:
        """Watch a wait; `what` says, if it becomes too long, what is waited for."""
        with self._lock:
            self._what, self._since, self._told = what, time.monotonic(), 0.0
        try:
            yield
        finally:
            with self._lock:
                self._what = None

    def moved(self) -> None:
        """Something has happened; the wait begins anew."""
        with self._lock:
            self._since, self._told = time.monotonic(), 0.0

    def _watch(self) -> None:
        while not self._end.wait(min(1.0, self._seconds / 4)):
            with self._lock:
                if self._what is None:
                    continue
                waited = time.monotonic() - self._since
                if waited < max(self._seconds, 2 * self._told):
                    continue
                self._told = waited
                line = f"nothing has moved for {waited:.0f} s; waiting for {self._what()}."
            self._tell(f"{line} Stacks: {self._write(line)}")

    def _write(self, line: str) -> str:
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
                file.write("\n")
        except OSError as error:
            return f"could not be written ({error})"
        return str(self._file)
