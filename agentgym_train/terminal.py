"""What a run shows in the terminal. Output never ends a run: where it cannot be written, it is left out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_TELL_EVERY_S = 60.0
"""How often long work is told of where there is no terminal to show a bar in."""

# By phase: heading, key, format.
_COLUMNS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "train": (
        ("horizon", "horizon", "{:d}"),
        ("success", "success/mean", "{:.2f}"),
        ("reward", "reward/mean", "{:.2f}"),
        ("turns", "turns/mean", "{:.1f}"),
        ("valid", "valid_action_share", "{:.2f}"),
        ("no variance", "groups/zero_variance", "{:d}"),
        ("KL", "kl", "{:.4f}"),
        ("entropy", "entropy", "{:.3f}"),
        ("rollout s", "seconds/rollout", "{:.1f}"),
        ("update s", "seconds/update", "{:.1f}"),
    ),
    "explore": (
        ("round", "round", "{:d}"),
        ("horizon", "horizon", "{:d}"),
        ("success", "success/mean", "{:.2f}"),
        ("score", "score/mean", "{:.2f}"),
        ("turns", "turns/mean", "{:.1f}"),
        ("valid", "valid_action_share", "{:.2f}"),
        ("kept", "kept", "{:d}"),
        ("rollout s", "seconds/rollout", "{:.1f}"),
    ),
    "dpo": (
        ("horizon", "horizon", "{:d}"),
        ("loss", "loss", "{:.4f}"),
        ("accuracy", "accuracy", "{:.2f}"),
        ("margin", "margin", "{:.3f}"),
        ("grad norm", "grad_norm", "{:.3f}"),
        ("update s", "seconds/update", "{:.1f}"),
    ),
    "sft": (
        ("horizon", "horizon", "{:d}"),
        ("turns", "turns/mean", "{:.1f}"),
        ("loss", "loss", "{:.4f}"),
        ("tokens", "tokens", "{:.0f}"),
        ("grad norm", "grad_norm", "{:.3f}"),
        ("update s", "seconds/update", "{:.1f}"),
    ),
}
_COLUMNS["learn"] = (("round", "round", "{:d}"), *_COLUMNS["sft"][2:])


class _Output:
    """A stream that is silent for good once it cannot be written to: its reader is gone, or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._silence()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _silence(self) -> None:
        # What the stream still holds goes there too; Python would fail to write it at exit.
        with suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


def say_error(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=cast(IO[str], _Output(sys.stderr)), flush=True)


class Terminal:
    """Progress bars for long work and one line for each step, on standard output."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        # Texts hold paths and errors, in which brackets and colons are no markup.
        output = cast(IO[str], _Output(sys.stdout))
        self.console = Console(file=output, highlight=False, markup=False, emoji=False)
        self._lines = 0
        self._phase = ""

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line, perhaps in a style of rich's such as `bold red`."""
        self.console.print(text, style=style, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar; call what is given to advance it by one.

        Where output is not a terminal a line now and then stands for it, so that a log shows what a run is at.
        """
        if not self.console.is_terminal:
            yield self._told_now_and_then(title, total)
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)

    def _told_now_and_then(self, title: str, total: int) -> Callable[[], None]:
        begun = told = time.monotonic()
        done = 0

        def advance() -> None:
            nonlocal done, told
            done, now = done + 1, time.monotonic()
            if now - told >= _TELL_EVERY_S and done < total:
                told = now
                self.say(f"{title}: {done} of {total} after {now - begun:.0f} s")

        return advance

    def step(self, row: dict[str, Any], steps: int) -> None:
        """Print the line of a step, in the columns of its phase."""
        columns = _COLUMNS[row["phase"]]
        if row["phase"] != self._phase:
            self._phase, self._lines = row["phase"], 0
        if self._lines % 20 == 0:
            headings = "".join(f"{name:>13}" for name, _, _ in columns)
            self.say(f"{'step':>9}{headings}", style="bold")
        self._lines += 1
        cells = "".join(f"{form.format(row[key]) if key in row else '-':>13}" for _, key, form in columns)
        self.say(f"{row['step'] + 1:>4}/{steps:<4}{cells}")
