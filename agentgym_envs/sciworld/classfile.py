"""A method that the simulator forgot, added to its class of all things.

It tells things apart by their number (`equals` compares `uuid`), but has no `hashCode` to match. So its sets order
things by where Java has them in memory, which differs from run to run. The number as the hash orders them in the
same way in every run; equal hashes for all would, too, but then each set is searched from end to end.

The format is described in chapter 4 of the Java Virtual Machine Specification.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

# Bytes of an entry of the constant pool after its tag. A text (1) has its own length; 5 and 6 count as two entries.
_ENTRY_BYTES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_TEXT, _FIELD, _NAME_AND_TYPE = 1, 9, 12
_PUBLIC = 1
_ALOAD_0, _GETFIELD, _L2I, _IRETURN = 0x2A, 0xB4, 0x88, 0xAC


def with_hash_code(class_file: bytes, field: str) -> bytes:
    """Add `public int hashCode() { return (int) this.<field>; }` to a compiled class.

    Args:
        class_file: The class, which has no such method yet.
        field: Name of a field of its own, of Java's type `long`.

    Raises:
        ValueError: If it has no such field, or has the method already.
    """
    (entries,) = struct.unpack_from(">H", class_file, 8)
    numbers: dict[bytes, int] = {}
    at = 10
    for number, entry in _constants(class_file, entries):
        numbers[entry] = number
        at += len(entry)
    constants_end = at
    this, interfaces = struct.unpack_from(">2xH2xH", class_file, at)
    methods = _members_end(class_file, at + 8 + 2 * interfaces)  # which is where the fields end
    (count,) = struct.unpack_from(">H", class_file, methods)
    try:
        name_and_type = struct.pack(">BHH", _NAME_AND_TYPE, numbers[_text(field)], numbers[_text("J")])
        reference = numbers[struct.pack(">BHH", _FIELD, this, numbers[name_and_type])]
    except KeyError:
        raise ValueError(f"the class uses no field {field} of its own of the type long") from None
    if _text("hashCode") in numbers:
        raise ValueError("the class names hashCode already")
    code = struct.pack(">BBHBB", _ALOAD_0, _GETFIELD, reference, _L2I, _IRETURN)
    body = struct.pack(">HHI", 2, 1, len(code)) + code + struct.pack(">HH", 0, 0)
    method = struct.pack(">HHHHHI", _PUBLIC, entries, entries + 1, 1, numbers[_text("Code")], len(body)) + body
    return b"".join(
        [
            class_file[:8],
            struct.pack(">H", entries + 2),
            class_file[10:constants_end],
            _text("hashCode"),
            _text("()I"),
            class_file[constants_end:methods],
            struct.pack(">H", count + 1),
            method,
            class_file[methods + 2 :],
        ]
    )


def _constants(class_file: bytes, entries: int) -> Iterator[tuple[int, bytes]]:
    """Yield the entries of the constant pool with their numbers."""
    number, at = 1, 10
    while number < entries:
        tag = class_file[at]
        size = 1 + (2 + struct.unpack_from(">H", class_file, at + 1)[0] if tag == _TEXT else _ENTRY_BYTES[tag])
        yield number, class_file[at : at + size]
        at += size
        number += 2 if tag in (5, 6) else 1


def _members_end(class_file: bytes, at: int) -> int:
    """Return where the fields end that begin here."""
    (count,) = struct.unpack_from(">H", class_file, at)
    at += 2
    for _ in range(count):
        (attributes,) = struct.unpack_from(">6xH", class_file, at)
        at += 8
        for _ in range(attributes):
            at += 6 + struct.unpack_from(">2xI", class_file, at)[0]
    return at


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">BH", _TEXT, len(data)) + data
