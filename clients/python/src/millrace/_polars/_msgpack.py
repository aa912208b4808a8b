"""MessagePack, as far as the serialized plans of Polars use it.

`unpack` and `pack` are exact: packing an unpacked value gives the same bytes. So a part of a plan
that this package does not know passes through unchanged. The package msgpack is not exact: it reads
numbers of 32 and of 64 bits as one type.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np

#: Arrays of at least so many numbers may be the bytes of a data frame: they are read as a block.
_BLOCK = 256
#: Bytes of a block that are read at once.
_PORTION = 1 << 18


class Float32(float):
    """A number that was packed in 32 bits."""


class Bytes8(bytes):
    """An array of numbers from 0 to 255, as Polars packs the bytes of a data frame."""


class Packed(bytes):
    """A value that is packed already. `pack` takes it over; `unpack` never gives one."""


class FormatError(ValueError):
    """The bytes are no MessagePack that this module knows."""


def unpack(data: bytes, start: int = 0) -> Any:
    """Returns the one value that the bytes hold from `start` on.

    Raises:
        FormatError: they hold something else, or more.
    """
    reader = _Reader(data, start)
    try:
        value = reader.value()
    except (IndexError, struct.error, UnicodeDecodeError, TypeError, RecursionError) as e:
        raise FormatError(f"no MessagePack at byte {reader.at}: {e}") from e
    if reader.at != len(data):
        raise FormatError(f"{len(data) - reader.at} bytes after the value")
    return value


def pack(value: Any) -> bytes:
    """Returns the value as bytes."""
    out: list[bytes] = []
    _pack(value, out)
    return b"".join(out)


class _Reader:
    """Reads values one after the other."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        #: Position of the next byte.
        self.at = start

    def value(self) -> Any:
        kind = self.data[self.at]
        self.at += 1
        if kind < 0x80:
            return kind
        if kind < 0x90:
            return self._map(kind & 0x0F)
        if kind < 0xA0:
            return self._array(kind & 0x0F)
        if kind < 0xC0:
            return self._text(kind & 0x1F)
        if kind >= 0xE0:
            return kind - 0x100
        return self._long(kind)

    def _long(self, kind: int) -> Any:
        """Reads a value whose first byte says only its kind."""
        if kind in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[kind]
        if 0xC4 <= kind <= 0xC6:
            return self._take(self._number(1 << (kind - 0xC4)))
        if kind == 0xCA:
            return Float32(struct.unpack(">f", self._take(4))[0])
        if kind == 0xCB:
            return struct.unpack(">d", self._take(8))[0]
        if 0xCC <= kind <= 0xCF:
            return self._number(1 << (kind - 0xCC))
        if 0xD0 <= kind <= 0xD3:
            return int.from_bytes(self._take(1 << (kind - 0xD0)), "big", signed=True)
        if 0xD9 <= kind <= 0xDB:
            return self._text(self._number(1 << (kind - 0xD9)))
        if kind in (0xDC, 0xDD):
            return self._array(self._number(2 << (kind - 0xDC)))
        if kind in (0xDE, 0xDF):
            return self._map(self._number(2 << (kind - 0xDE)))
        raise FormatError(f"unknown kind 0x{kind:02x} at byte {self.at - 1}")

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise FormatError(f"{size} bytes expected at byte {self.at} of {len(self.data)}")
        found = self.data[self.at : end]
        self.at = end
        return found

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _text(self, size: int) -> str:
        return self._take(size).decode()

    def _map(self, size: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(size)}

    def _array(self, size: int) -> Any:
        if size >= _BLOCK:
            block = self._block(size)
            if block is not None:
                return block
        return [self.value() for _ in range(size)]

    def _block(self, size: int) -> Bytes8 | None:
        """Reads so many numbers from 0 to 255; None, at the same place, if there are other values."""
        found: list[bytes] = []
        left, at = size, self.at
        while left:
            values, used = _numbers_in(self.data, at, left)
            if not values:
                return None
            found.append(values)
            left -= len(values)
            at += used
        self.at = at
        return Bytes8(b"".join(found))


def _numbers_in(data: bytes, at: int, most: int) -> tuple[bytes, int]:
    """Returns up to `most` numbers from 0 to 255, and how many bytes they take; none if there are
    other values.

    A number below 128 is one byte, another one has 0xCC before it. In a run of bytes 0xCC every
    second one is such a mark, beginning with the first: the byte before the run ends a number.
    """
    portion = data[at : at + min(2 * most, _PORTION)]
    paired = np.frombuffer(portion.replace(b"\xcc\xcc", b"\xcc\x80"), np.uint8)
    marks = paired == 0xCC
    end = len(paired) - int(marks[-1]) if len(paired) else 0
    numbers = ~marks[:end]
    if int(np.count_nonzero(numbers)) > most:
        end = int(np.flatnonzero(numbers)[most - 1]) + 1
        numbers = numbers[:end]
    # A mark is behind a number, and only a number behind a mark is large.
    large = (paired[:end] >= 0x80) ^ marks[:end]
    if not end or large[0] or not np.array_equal(large[1:], marks[: end - 1]):
        return b"", 0
    return np.frombuffer(portion, np.uint8)[:end][numbers].tobytes(), end


def _pack(value: Any, out: list[bytes]) -> None:
    if isinstance(value, str):
        out.append(_name(value) if len(value) < 64 else _text(value))
    elif value is None:
        out.append(b"\xc0")
    elif isinstance(value, bool):
        out.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        out.append(_integer(value))
    elif isinstance(value, dict):
        out.append(_head(len(value), 0x80, 16, (None, 0xDE, 0xDF)))
        for key, item in value.items():
            _pack(key, out)
            _pack(item, out)
    elif isinstance(value, Bytes8):
        out += (_head(len(value), 0x90, 16, (None, 0xDC, 0xDD)), _numbers(value))
    elif isinstance(value, (list, tuple)):
        out.append(_head(len(value), 0x90, 16, (None, 0xDC, 0xDD)))
        for item in value:
            _pack(item, out)
    elif isinstance(value, Packed):
        out.append(value)
    elif isinstance(value, bytes):
        out += (_head(len(value), 0, 0, (0xC4, 0xC5, 0xC6)), value)
    elif isinstance(value, Float32):
        out.append(struct.pack(">Bf", 0xCA, value))
    elif isinstance(value, float):
        out.append(struct.pack(">Bd", 0xCB, value))
    else:
        raise FormatError(f"a {type(value).__name__} cannot be packed")


def _text(value: str) -> bytes:
    data = value.encode()
    return _head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + data


#: The same for short texts: most are names of fields, which come again and again.
_name = functools.lru_cache(4096)(_text)


def _head(size: int, short: int, below: int, kinds: tuple[int | None, int, int]) -> bytes:
    """Returns the first bytes of a value with a length: the shortest form."""
    if size < below:
        return bytes((short | size,))
    for kind, width in zip(kinds, (1, 2, 4), strict=True):
        if kind is not None and size < 1 << 8 * width:
            return bytes((kind,)) + size.to_bytes(width, "big")
    raise FormatError(f"{size} is too long")


def _integer(value: int) -> bytes:
    if 0 <= value < 0x80 or -0x20 <= value < 0:
        return bytes((value & 0xFF,))
    first, signed = (0xCC, False) if value >= 0 else (0xD0, True)
    for i in range(4):
        bits = 8 << i
        if -(1 << (bits - 1)) <= value < (1 << bits if not signed else 1 << (bits - 1)):
            return bytes((first + i,)) + value.to_bytes(1 << i, "big", signed=signed)
    raise FormatError(f"{value} takes more than 64 bits")


def _numbers(values: bytes) -> bytes:
    """Returns numbers from 0 to 255, each with 0xCC before it if it is 128 or more."""
    raw = np.frombuffer(values, np.uint8)
    large = raw >= 0x80
    out = np.full(len(raw) + int(large.sum()), 0xCC, np.uint8)
    out[np.arange(len(raw)) + np.cumsum(large)] = raw
    return out.tobytes()
