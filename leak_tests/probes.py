"""What is measured at the end of each block of episodes, and how much of it may grow.

A quantity of a scenario's own (a JVM's live heap, a browser's contexts) is an entry more in `INSIDE`.
"""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leak_tests.process_tree import Process, members, read

MEMORY_LIMIT_KB = 200.0
# Fewer than one in 5,000 episodes: none at all, in a run of that length.
COUNT_LIMIT = 0.2


@dataclass(frozen=True)
class Quantity:
    """Something that must not grow.

    Attributes:
        name: What it is called in reports and records.
        limit: Largest growth per 1,000 episodes.
        unit: "KB", or "" for a count.
    """

    name: str
    limit: float
    unit: str = ""


@dataclass(frozen=True)
class Tree:
    """The process that plays and all that it started, read from outside, with its folder for temporary files."""

    processes: list[Process]
    temp_folder: Path


def read_tree(root: int, marker: str, temp_folder: Path) -> Tree:
    """Read the processes of a tree (see `process_tree.members`)."""
    readings = (read(pid) for pid in members(root, marker))
    return Tree([process for process in readings if process is not None], temp_folder)


# Measured by the harness, in the whole process tree.
OUTSIDE: dict[Quantity, Callable[[Tree], float]] = {
    Quantity("memory", MEMORY_LIMIT_KB, "KB"): lambda tree: sum(process.memory_kb for process in tree.processes),
    Quantity("threads", COUNT_LIMIT): lambda tree: sum(process.threads for process in tree.processes),
    Quantity("open files", COUNT_LIMIT): lambda tree: sum(process.files for process in tree.processes),
    Quantity("sockets", COUNT_LIMIT): lambda tree: sum(process.sockets for process in tree.processes),
    Quantity("child processes", COUNT_LIMIT): lambda tree: len(tree.processes) - 1,
    Quantity("temporary files", COUNT_LIMIT): lambda tree: _entries(tree.temp_folder),
}

# Measured in the process that plays, after a garbage collection. They are given the environment (or vector
# environment) that is open, None between two of mode `cycles`, and return None where they do not apply.
INSIDE: dict[Quantity, Callable[[Any], float | None]] = {
    Quantity("Python heap", MEMORY_LIMIT_KB, "KB"): lambda _env: tracemalloc.get_traced_memory()[0] / 1024,
    Quantity("JVM live heap", MEMORY_LIMIT_KB, "KB"): lambda _env: _jvm_live_heap(),
}

QUANTITIES = {quantity.name: quantity for quantity in (*OUTSIDE, *INSIDE)}


def _jvm_live_heap() -> float | None:
    """What is alive in the Java processes that this process has started, if it has any."""
    host = sys.modules.get("agentgym_envs.sciworld.host")  # not imported for the sake of others
    return None if host is None else host.live_heap_kb()


def _entries(folder: Path) -> int:
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))
