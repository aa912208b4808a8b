"""The hashes of numbers, of bytes, and of values that consist of others."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Rows that are hashed at a time. Their temporary arrays stay in a processor's cache.
ROWS = 1 << 15
#: The hash of a missing value.
MISSING = np.uint64(0x6C8E9CF570932BD5)
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
HALF = np.uint64(32)
#: The base of the hash of long text: any odd number, because it needs an inverse modulo 2**64.
BASE = 0x5851F42D4C957F2D
#: Text of at most this many bytes is hashed by words of 8 bytes, longer text by a polynomial.
WORDS = 64
#: Bytes of text that are hashed at a time.
_TEXT = 1 << 17
#: By the number of a word's bytes that belong to a text: which of its bits count.
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


def mixed(bits: Any) -> Any:
    """Spreads each bit over all bits of the result. `bits`: an array of NumPy or CuPy."""
    out = bits * FIRST
    out ^= out >> HALF
    out *= SECOND
    out ^= out >> HALF
    return out


def of_floats(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes numbers of any type as floats of 64 bits."""
    out = np.empty(len(values), np.uint64)
    can_miss = values.dtype.kind == "f"
    for at in range(0, len(values), ROWS):
        part = values[at : at + ROWS].astype(np.float64)
        if can_miss:
            part += 0.0  # -0.0 becomes 0.0
        hashes = mixed(part.view(np.uint64))
        if can_miss:
            hashes[part != part] = MISSING
        out[at : at + ROWS] = hashes
    return out


def of_complex(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes complex numbers by their parts. Those without an imaginary part are real numbers."""
    real, imaginary = of_floats(values.real), of_floats(values.imag)
    out = np.where(values.imag == 0, real, of_structs([real, imaginary], len(values)))
    out[values != values] = MISSING
    return out


def of_structs(fields: Sequence[np.ndarray[Any, Any]], rows: int) -> np.ndarray[Any, Any]:
    """Hashes rows that have one value of each of several columns, by the hashes of these. The
    fields of structs are in the order of their names."""
    out = np.full(rows, len(fields), np.uint64)
    for field in fields:
        out = mixed(out * FIRST + field)
    return out


def of_lists(elements: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes lists: row i has the elements of the hashes elements[ends[i]:ends[i + 1]]."""
    places = (np.arange(len(elements)) - np.repeat(ends[:-1], np.diff(ends))).astype(np.uint64)
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(mixed(elements * FIRST + places), out=sums[1:])
    return mixed(sums[ends[1:]] - sums[ends[:-1]] + np.diff(ends).astype(np.uint64))


def of_bytes(ends: np.ndarray[Any, Any], text: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """Hashes rows of bytes: row i is text[ends[i]:ends[i + 1]]."""
    out = np.empty(rows, np.uint64)
    at = 0
    while at < rows:
        # At least one row, and as many as fit into a piece.
        stop = max(int(np.searchsorted(ends, ends[at] + _TEXT, "right")) - 1, at + 1)
        stop = min(stop, at + ROWS, rows)
        if ends[stop] - ends[at] > _TEXT:  # one row that is larger than a piece
            out[at] = _of_long(text[ends[at] : ends[stop]])
        else:
            out[at:stop] = _of_piece(ends[at : stop + 1] - ends[at], text[ends[at] : ends[stop]])
        at = stop
    return mixed(out)


def _of_piece(ends: np.ndarray[Any, Any], text: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    starts, sizes = ends[:-1], np.diff(ends)
    padded = np.zeros(len(text) + 8, np.uint8)
    padded[: len(text)] = text
    # The word that begins at each byte.
    words = np.ndarray(len(text) + 1, "<u8", padded, strides=(1,))
    out = sizes.astype(np.uint64)
    largest = int(sizes.max())
    rows: Any = slice(None)
    for place in range(0, min(largest, WORDS), 8):
        if place:
            rows = np.flatnonzero((sizes > place) & (sizes <= WORDS))
        word = words[starts[rows] + place] & _MASKS[np.minimum(sizes[rows] - place, 8)]
        word = (out[rows] ^ word) * FIRST
        word ^= word >> HALF
        out[rows] = word
    if largest > WORDS:
        rows = np.flatnonzero(sizes > WORDS)
        out[rows] = _polynomials(starts[rows], ends[1:][rows], text)
    return out


def _polynomials(
    starts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], text: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Returns for each row the polynomial of its bytes in `BASE`, modulo 2**64. It is computed for
    all rows at once: the difference of two prefix sums, divided by the power of the row's first
    byte."""
    powers, inverses = _powers()
    sums = np.zeros(len(text) + 1, np.uint64)
    # A byte counts from 1, so that zero bytes count.
    terms = text.astype(np.uint64) + np.uint64(1)
    np.multiply(terms, powers[: len(terms)], out=terms)
    np.cumsum(terms, out=sums[1:])
    return (sums[ends] - sums[starts]) * inverses[starts]


def _of_long(text: np.ndarray[Any, Any]) -> np.uint64:
    powers, _ = _powers()
    total, factor = 0, 1
    for at in range(0, len(text), _TEXT):
        part = text[at : at + _TEXT].astype(np.uint64) + np.uint64(1)
        total += factor * int((part * powers[: len(part)]).sum())
        factor = factor * pow(BASE, _TEXT, 1 << 64) % (1 << 64)
    return np.uint64(total % (1 << 64))


@functools.cache
def _powers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the powers of `BASE` and of its inverse, for all bytes of a piece."""
    return tuple(  # pyright: ignore[reportReturnType]
        np.cumprod(np.array([1, *[base] * _TEXT], np.uint64), dtype=np.uint64)
        for base in (BASE, pow(BASE, -1, 1 << 64))
    )
