"""What a process and all that it started hold, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# A process that ends while it is read has no file there (any more), or one that cannot be read.
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


@dataclass(frozen=True)
class Process:
    """A reading of one process; of one that ended and that nobody waited for, all but the id is 0.

    Attributes:
        pid: Process id.
        memory_kb: Anonymous and shared memory, see `memory_kb`.
        threads: Threads.
        files: Open file descriptors other than sockets.
        sockets: Open sockets.
    """

    pid: int
    memory_kb: float
    threads: int
    files: int
    sockets: int


def members(root: int, marker: str) -> list[int]:
    """Ids of a process and of all that it started, directly or not.

    Args:
        root: Id of the process.
        marker: `NAME=value` in the environment of `root`, unique to it. By inheriting it a process is found
            whose parent has ended; by its parent, one that has ended itself or has another environment.
    """
    parents = dict(_parents())
    found = {root, *marked(marker)}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        if not more:
            return sorted(found & parents.keys())
        found |= more


def marked(marker: str) -> list[int]:
    """Ids of the processes with this `NAME=value` in their environment."""
    return [pid for pid, _ in _parents() if _has_marker(pid, marker.encode())]


def read(pid: int) -> Process | None:
    """Return what a process holds, or None if it is gone."""
    try:
        status = _fields(PROC / str(pid) / "status")
    except _GONE:
        return None
    if status["State"].startswith("Z"):
        return Process(pid, 0.0, 0, 0, 0)
    try:
        memory, links = memory_kb(pid), list(_links(PROC / str(pid) / "fd"))
    except _GONE:
        return None
    sockets = sum(link.startswith("socket:") for link in links)
    return Process(pid, memory, int(status["Threads"]), len(links) - sockets, sockets)


def memory_kb(pid: int) -> float:
    """Return the proportional set size (PSS) of a process without its pages of files, swapped pages included.

    Pages of files (the code of libraries) cannot leak, but their share changes whenever any process on the
    machine that uses the same library starts or ends. Kernels without PSS give the resident set size (RSS)
    of the same pages, which counts pages that processes share once for each.
    """
    try:
        fields = _fields(PROC / str(pid) / "smaps_rollup")
        names = "Pss_Anon", "Pss_Shmem", "SwapPss"
        return float(sum(_kb(fields[name]) for name in names))
    except (*_GONE, KeyError):
        fields = _fields(PROC / str(pid) / "status")
        return float(sum(_kb(fields[name]) for name in ("RssAnon", "RssShmem", "VmSwap")))


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir(PROC):
        if entry.isdecimal():
            with suppress(*_GONE):
                # The name, in brackets, may hold spaces and brackets itself.
                fields = (PROC / entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                yield int(entry), int(fields[1])


def _has_marker(pid: int, marker: bytes) -> bool:
    try:
        return marker in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except _GONE:
        return False


def _links(folder: Path) -> Iterator[str]:
    for entry in os.listdir(folder):
        with suppress(FileNotFoundError):
            yield os.readlink(folder / entry)


def _fields(path: Path) -> dict[str, str]:
    lines = (line.partition(":") for line in path.read_text(errors="replace").splitlines())
    return {name: value.strip() for name, _, value in lines}


def _kb(value: str) -> int:
    return int(value.removesuffix(" kB"))
