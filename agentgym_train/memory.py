"""Giving memory back between the phases of a run."""

from __future__ import annotations

import ctypes

_C = ctypes.CDLL(None)


def give_back() -> None:
    """Return freed memory to the operating system.

    glibc keeps what tensors of a few megabytes have freed, in pieces that fit nothing else. A rollout's cache
    grows by such pieces, so without this the process keeps what the largest rollout took, beside what the
    update takes.
    """
    if hasattr(_C, "malloc_trim"):
        _C.malloc_trim(0)
