"""The progress bar and the plot that both commands make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from leak_tests.runner import Record

PLOT_NEEDS = (
    "no plot: it needs the package matplotlib, which is not installed; run: "
    "pip install 'agentgym-suite[train]' (in a checkout: make install)"
)


@contextmanager
def bar(console: Console, title: str, blocks: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar while blocks are played, if the output is a terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=blocks)
        yield lambda: progress.advance(task)


def try_plot(record: Record, path: Path) -> str:
    """Draw a run if matplotlib is there; returns what to tell the user."""
    try:
        from leak_tests.plot import write_plot
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        return PLOT_NEEDS
    write_plot(record, path)
    return f"plot: {path}"
