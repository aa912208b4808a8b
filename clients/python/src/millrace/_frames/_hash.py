"""Hashes of columns in host memory. Equal values have equal hashes in every process and whatever
the width of their type is: integers of 32 and of 64 bits, dates in seconds and in nanoseconds, text
in NumPy objects and in Arrow memory. So the two sides of a join are split alike."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Rows that are hashed at a time. Their temporary arrays stay in a processor's cache.
_ROWS = 1 << 15
#: Bytes of text that are hashed at a time.
_TEXT = 1 << 17
#: The hash of a missing value.
_MISSING = np.uint64(0x6C8E9CF570932BD5)
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
#: The base of the hash of text: any odd number, because it needs an inverse modulo 2**64.
_BASE = 0x5851F42D4C957F2D
_HALF = np.uint64(32)


def partitions(columns: Sequence[Any], n: int) -> np.ndarray[Any, Any]:
    """Returns the partition of each row, from 0 to n-1, by the hash of its values.

    Args:
        columns: arrays of NumPy or pandas, or ChunkedArrays of Arrow, of equal length.
        n: the number of partitions.
    """
    rows = len(columns[0])
    out = np.empty(rows, small_type(n))
    hashes = [hash_of(c) for c in columns]
    for at in range(0, rows, _ROWS):
        part = hashes[0][at : at + _ROWS]
        for other in hashes[1:]:
            part = part * _FIRST + other[at : at + _ROWS]
        if len(hashes) > 1:
            part = _mixed(part)
        # The upper half of the hash, scaled to n: the same as a division, but cheaper.
        out[at : at + _ROWS] = ((part >> _HALF) * np.uint64(n)) >> _HALF
    return out


def small_type(n: int) -> Any:
    """Returns the smallest unsigned type for numbers below n. NumPy sorts by radix up to 16
    bits."""
    return np.uint16 if n <= 1 << 16 else np.uint32


def hash_of(column: Any) -> np.ndarray[Any, Any]:
    """Returns the hash of each value of a column, as unsigned numbers of 64 bits. Raises TypeError
    if the type has no hash."""
    if isinstance(column, np.ndarray):
        return _of_numpy(column)
    module = type(column).__module__.partition(".")[0]
    if module == "pyarrow":
        return _of_arrow(column)
    return _of_pandas(column)


def _of_numpy(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kind = values.dtype.kind
    if kind in "biu":
        return _of_numbers(values)
    if kind == "f":
        return _of_floats(values)
    if kind in "mM":
        return _of_times(values)
    if kind in ("O", "S", "U"):
        return _of_objects(values)
    raise TypeError(f"rows cannot be split by the hash of a column of type {values.dtype}")


def _of_pandas(values: Any) -> np.ndarray[Any, Any]:
    dtype = values.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None and hasattr(values, "codes"):
        return _of_codes(hash_of(categories.array), values.codes)
    if hasattr(values, "__arrow_array__") and type(values).__name__.startswith("Arrow"):
        return _of_arrow(values.__arrow_array__())
    mask = getattr(values, "_mask", None)
    data = getattr(values, "_data" if mask is not None else "_ndarray", None)
    if data is None:
        data = np.asarray(values, object)
    out = _of_numpy(data)
    if mask is not None and mask.any():
        out[mask] = _MISSING
    return out


def _of_arrow(column: Any) -> np.ndarray[Any, Any]:
    """Hashes an Array or a ChunkedArray of Arrow."""
    chunks = getattr(column, "chunks", [column])
    if not chunks:
        return np.empty(0, np.uint64)
    parts = [_of_chunk(c) for c in chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _of_chunk(array: Any) -> np.ndarray[Any, Any]:
    pa: Any = sys.modules["pyarrow"]
    kinds = pa.types
    kind = array.type
    if kinds.is_dictionary(kind):
        codes = array.indices.fill_null(-1) if array.null_count else array.indices
        return _of_codes(_of_arrow(array.dictionary), codes.to_numpy(zero_copy_only=False))
    if kinds.is_string_view(kind):
        array = array.cast(pa.large_string())
    elif kinds.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    if kinds.is_null(kind):
        return np.full(len(array), _MISSING)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if kinds.is_string(array.type) or kinds.is_binary(array.type):
        out = _of_text(array, np.int32)
    elif kinds.is_large_string(array.type) or kinds.is_large_binary(array.type):
        out = _of_text(array, np.int64)
    else:
        out = _of_numpy(_values(array))
    if missing is not None:
        out[missing] = _MISSING
    return out


def _values(array: Any) -> np.ndarray[Any, Any]:
    """Returns the values of an Array of fixed width. Those of missing values have no meaning."""
    pa: Any = sys.modules["pyarrow"]
    kinds = pa.types
    kind = array.type
    if kinds.is_decimal(kind):
        return np.array([None if v is None else str(v.normalize()) for v in array.to_pylist()], object)
    if kinds.is_date32(kind):
        array = array.cast(pa.timestamp("s"))
    elif kinds.is_date64(kind):
        array = array.cast(pa.timestamp("ms"))
    elif kinds.is_time(kind):
        array = array.cast(pa.int32() if kinds.is_time32(kind) else pa.int64())
    if kinds.is_nested(kind):
        raise TypeError(f"rows cannot be split by the hash of a column of type {kind}")
    if array.null_count:
        array = array.fill_null(False if kinds.is_boolean(kind) else pa.scalar(0, pa.int64()).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def _of_codes(categories: np.ndarray[Any, Any], codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes categorical values; the code -1 is a missing value."""
    return np.append(categories, _MISSING)[codes]


def _of_numbers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), np.uint64)
    for at in range(0, len(values), _ROWS):
        whole = values[at : at + _ROWS].astype(np.int64 if values.dtype.kind != "u" else np.uint64)
        out[at : at + _ROWS] = _mixed(whole.view(np.uint64))
    return out


def _of_floats(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), np.uint64)
    for at in range(0, len(values), _ROWS):
        part = values[at : at + _ROWS].astype(np.float64) + 0.0  # -0.0 becomes 0.0
        hashes = _mixed(part.view(np.uint64))
        hashes[part != part] = _MISSING
        out[at : at + _ROWS] = hashes
    return out


def _of_times(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), np.uint64)
    unit = f"{values.dtype.kind}8[us]"
    for at in range(0, len(values), _ROWS):
        part = values[at : at + _ROWS].astype(unit)
        hashes = _mixed(part.view(np.int64).astype(np.uint64))
        hashes[np.isnat(part)] = _MISSING
        out[at : at + _ROWS] = hashes
    return out


def _of_text(array: Any, offset: Any) -> np.ndarray[Any, Any]:
    """Hashes text or bytes: the polynomial of the bytes in `_BASE`, modulo 2**64. It is computed for
    all rows of a piece at once: the difference of two prefix sums, divided by the power of the
    row's first byte."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, offset)[array.offset : array.offset + len(array) + 1] if offsets else np.zeros(1)
    ends = ends.astype(np.int64)
    text = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    return _of_bytes(ends, text, len(array))


def _of_bytes(ends: np.ndarray[Any, Any], text: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    """Hashes rows of bytes: row i is text[ends[i]:ends[i + 1]]."""
    out = np.empty(rows, np.uint64)
    powers, inverses = _powers()
    at = 0
    while at < rows:
        # At least one row, and as many as fit into a piece.
        stop = max(int(np.searchsorted(ends, ends[at] + _TEXT, "right")) - 1, at + 1)
        stop = min(stop, at + _ROWS, rows)
        if ends[stop] - ends[at] > _TEXT:  # one row that is larger than a piece
            out[at] = _of_long(text[ends[at] : ends[stop]])
        else:
            places = ends[at : stop + 1] - ends[at]
            sums = np.zeros(int(places[-1]) + 1, np.uint64)
            # A byte counts from 1, so that zero bytes count.
            terms = text[ends[at] : ends[stop]].astype(np.uint64) + np.uint64(1)
            np.multiply(terms, powers[: len(terms)], out=terms)
            np.cumsum(terms, out=sums[1:])
            out[at:stop] = (sums[places[1:]] - sums[places[:-1]]) * inverses[places[:-1]]
        at = stop
    return _mixed(out)


def _of_long(text: np.ndarray[Any, Any]) -> np.uint64:
    powers, _ = _powers()
    total, factor = 0, 1
    for at in range(0, len(text), _TEXT):
        part = text[at : at + _TEXT].astype(np.uint64) + np.uint64(1)
        total += factor * int((part * powers[: len(part)]).sum())
        factor = factor * pow(_BASE, _TEXT, 1 << 64) % (1 << 64)
    return np.uint64(total % (1 << 64))


@functools.cache
def _powers() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the powers of `_BASE` and of its inverse, for all bytes of a piece."""
    return tuple(  # pyright: ignore[reportReturnType]
        np.cumprod(np.array([1, *[base] * _TEXT], np.uint64), dtype=np.uint64)
        for base in (_BASE, pow(_BASE, -1, 1 << 64))
    )


def _of_objects(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes objects of NumPy: text and bytes like those of Arrow, others by pandas."""
    import pandas as pd
    from pandas import util

    missing: Any = pd.isna(values)
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("string", "bytes", "empty"):
        raw = [
            b"" if m else v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v
            for v, m in zip(values, missing, strict=True)
        ]
        ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
        out = _of_bytes(ends, np.frombuffer(b"".join(raw), np.uint8), len(raw))
    elif kind in ("integer", "boolean", "floating", "mixed-integer-float"):
        whole = np.where(missing, 0, values)
        out = _of_numpy(whole.astype(np.float64 if "float" in kind else np.int64))
    else:
        pandas_util: Any = util
        out = pandas_util.hash_array(values, categorize=False)
    out[missing] = _MISSING
    return out


def _mixed(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Spreads each bit over all bits of the result. Changes its argument, if that is possible."""
    out = bits * _FIRST
    out ^= out >> _HALF
    out *= _SECOND
    out ^= out >> _HALF
    return out
