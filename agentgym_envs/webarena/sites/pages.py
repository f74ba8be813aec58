"""Differences between two databases, page by page: a snapshot holds what an episode changed and no more."""

from __future__ import annotations

import struct

PAGE = 4096
"""SQLite's page size in bytes."""


def difference(base: bytes, data: bytes) -> bytes:
    """Return the pages of `data` that `base` does not have in the same place.

    Args:
        base: What both sides know.
        data: What is to be described.

    Returns:
        The length of `data`, then for each page its number and contents.
    """
    parts = [struct.pack(">Q", len(data))]
    for start in range(0, len(data), PAGE):
        page = data[start : start + PAGE]
        if page != base[start : start + PAGE]:
            parts.append(struct.pack(">I", start // PAGE) + page.ljust(PAGE, b"\0"))
    return b"".join(parts)


def apply_difference(base: bytes, changes: bytes) -> bytes:
    """Return the data that `difference(base, data)` described."""
    (length,) = struct.unpack_from(">Q", changes)
    data = bytearray(base[:length].ljust(length, b"\0"))
    for start in range(8, len(changes), PAGE + 4):
        (number,) = struct.unpack_from(">I", changes, start)
        offset = number * PAGE
        data[offset : offset + PAGE] = changes[start + 4 : start + 4 + min(PAGE, length - offset)]
    return bytes(data)
