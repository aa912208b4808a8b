"""The groups of rows of a Parquet file, as its footer lists them. Polars does not tell them.

The footer is a structure in Thrift's compact form: fields, each with a type and a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MAGIC = b"PAR1"
#: Longer footers are not read: it would take seconds.
_LONGEST = 8 << 20
#: Types of values in Thrift's compact form.
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
#: Numbers of fields: the groups of a file, the rows of a group.
_GROUPS, _ROWS = 4, 3


def rows_of_groups(path: str) -> list[int] | None:
    """Returns the number of rows in each group; None if the footer is encrypted, too long, or of
    another form."""
    with Path(path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(size - 8, 0))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or not 0 < length <= min(size - 8, _LONGEST):
            return None
        file.seek(size - 8 - length)
        footer = _Footer(file.read(length))
    try:
        return footer.groups()
    except (IndexError, ValueError):
        return None


class _Footer:
    """Reads values one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        #: Position of the next byte.
        self._at = 0

    def groups(self) -> list[int]:
        for number, kind in self._fields():
            if number == _GROUPS and kind in _LISTS:
                return [self._rows() for _ in range(self._list()[0])]
            self._skip(kind)
        raise ValueError("no groups")

    def _rows(self) -> int:
        """Reads one group."""
        rows = None
        for number, kind in self._fields():
            if number == _ROWS:
                rows = _signed(self._number())
            else:
                self._skip(kind)
        if rows is None:
            raise ValueError("no rows")
        return rows

    def _fields(self) -> Iterator[tuple[int, int]]:
        """Yields the number and the type of each field of a structure. Its value is read between."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else _signed(self._number())
            yield number, head & 0x0F

    def _list(self) -> tuple[int, int]:
        """Returns how many values a list has, and their type."""
        head = self._byte()
        return (self._number() if head >> 4 == 15 else head >> 4), head & 0x0F

    def _skip(self, kind: int, *, in_list: bool = False) -> None:
        if kind in _BOOLEANS:
            self._at += in_list  # of a field, the type is the value
        elif kind == _BYTE:
            self._at += 1
        elif kind in _INTEGERS:
            self._number()
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            size = self._number()
            self._at += size
        elif kind in _LISTS:
            size, inner = self._list()
            for _ in range(size):
                self._skip(inner, in_list=True)
        elif kind == _MAP:
            size = self._number()
            kinds = self._byte() if size else 0
            for _ in range(size):
                self._skip(kinds >> 4, in_list=True)
                self._skip(kinds & 0x0F, in_list=True)
        elif kind == _STRUCT:
            for _, inner in self._fields():
                self._skip(inner)
        else:
            raise ValueError(f"type {kind} at byte {self._at}")

    def _byte(self) -> int:
        found = self._data[self._at]
        self._at += 1
        return found

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


def _signed(value: int) -> int:
    return (value >> 1) ^ -(value & 1)
