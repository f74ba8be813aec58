"""What a run shows in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_COLUMNS = (
    # heading, key, format
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
)


class Terminal:
    """Progress bars for long work and one line for each step."""

    def __init__(self, console: Console | None = None) -> None:
        """Write to a console (standard output by default)."""
        self.console = console or Console(highlight=False)
        self._lines = 0

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show a progress bar; call what is given to advance it by one."""
        columns = (
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        # Where output is not a terminal, a bar would print once per refresh.
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(title, total=total)
            yield lambda: progress.advance(task)

    def step(self, row: dict[str, Any], steps: int) -> None:
        """Print the line of a training step."""
        if self._lines % 20 == 0:
            headings = "".join(f"{name:>13}" for name, _, _ in _COLUMNS)
            self.console.print(f"[bold]{'step':>9}{headings}", soft_wrap=True)
        self._lines += 1
        cells = "".join(f"{form.format(row[key]) if key in row else '-':>13}" for _, key, form in _COLUMNS)
        self.console.print(f"{row['step'] + 1:>4}/{steps:<4}{cells}", soft_wrap=True)
