"""Progress of long work, on standard error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 30.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress_bar(title: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; call what is given with the amount of work that was done.

    Where standard error is no terminal, a line says what is being done, and further ones now and then how far it is.

    Args:
        title: What is being done.
        total: Amount of work.
        show: False shows nothing.
    """
    # Titles hold paths, in which brackets and colons are no markup.
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, quiet=not show)
    if not console.is_terminal:
        console.print(title, soft_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task(title, total=total)
        done, told = 0, time.monotonic()

        def advance(amount: int) -> None:
            nonlocal done, told
            progress.advance(task, amount)
            done += amount
            if not console.is_terminal and total and time.monotonic() - told > LINE_EVERY_S:
                told = time.monotonic()
                console.print(f"{title}: {done / total:.0%}", soft_wrap=True)

        yield advance
