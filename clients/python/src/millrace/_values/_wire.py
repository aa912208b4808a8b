"""The form of protobuf messages on the wire, for the few that are parsed or written by hand: those
with large fields, which protobuf would copy, and those of packages that are not installed."""

from __future__ import annotations


def fields(data: bytes | memoryview) -> list[tuple[int, int | memoryview]]:
    """Returns the fields of a serialised message: varints as int, length-delimited ones as views.
    Other wire types raise ValueError."""
    out: list[tuple[int, int | memoryview]] = []
    view, at, end = memoryview(data), 0, len(data)
    while at < end:
        tag, at = _varint(view, at)
        if tag & 7 == 0:
            number, at = _varint(view, at)
            out.append((tag >> 3, number))
        elif tag & 7 == 2:
            length, at = _varint(view, at)
            out.append((tag >> 3, view[at : at + length]))
            at += length
        else:
            raise ValueError(f"unexpected wire type {tag & 7}")
    return out


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def varint(number: int) -> bytes:
    """Returns a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
