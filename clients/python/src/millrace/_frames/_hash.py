"""Hashes of columns in host memory. Values that a merge takes for equal have equal hashes: in every
process, in all libraries of data frames, and whatever the storage of their type is.

- A number is hashed as the nearest float of 64 bits: 1, 1.0, True, Decimal("1.00") and UInt64 1 are
  one value, and so are 0.0 and -0.0. Integers from 2**53 on that become the same float share a
  hash: merges of pandas take them for equal if one side has floats.
- A date or a time is hashed as its microseconds, in UTC if it has a time zone. Dates are midnight.
- Text is hashed as its bytes in UTF-8, and a category as its value.
- A list is hashed as its elements, a struct as its fields in the order of their names, an interval
  as its ends.
- None, NaN, NaT and NA are one missing value.

`_cudf.py` computes the same on a GPU, and `worker/tables` in Go; docs/shuffle.md has the rule.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace._frames import _hash_objects
from millrace._frames._hash_bits import (
    FIRST,
    HALF,
    MISSING,
    ROWS,
    mixed,
    of_bytes,
    of_complex,
    of_floats,
    of_lists,
    of_structs,
)

#: Exactly representable powers of ten.
_TENS = np.array([10.0**n for n in range(23)])


def partitions(columns: Sequence[tuple[Any, Any]], n: int) -> np.ndarray[Any, Any]:
    """Returns the partition of each row, from 0 to n-1, by the hash of its values.

    Args:
        columns: labels and arrays of NumPy or pandas, or ChunkedArrays of Arrow, of equal length.
        n: the number of partitions.
    """
    hashes = [named(label, hash_of, column) for label, column in columns]
    rows = len(hashes[0])
    out = np.empty(rows, small_type(n))
    for at in range(0, rows, ROWS):
        out[at : at + ROWS] = numbers([h[at : at + ROWS] for h in hashes], n)
    return out


def named(label: Any, find: Callable[[Any], Any], column: Any) -> Any:
    """Returns the hashes that a function finds for a column. Its TypeErrors name the column."""
    try:
        return find(column)
    except TypeError as e:
        raise TypeError(f"column {label!r}: {e}") from None


def numbers(hashes: Sequence[Any], n: int) -> Any:
    """Returns the partition of each row by the hashes of its columns: arrays of NumPy or CuPy."""
    part = hashes[0]
    for other in hashes[1:]:
        part = part * FIRST + other
    if len(hashes) > 1:
        part = mixed(part)
    # The upper half of the hash, scaled to n: the same as a division, but cheaper.
    return ((part >> HALF) * np.uint64(n)) >> HALF


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
    if kind in "biuf":
        return of_floats(values)
    if kind == "c":
        return of_complex(values)
    if kind in "mM":
        return _of_times(values)
    if kind in ("O", "S", "U"):
        return _hash_objects.of_objects(values.astype(object), hash_of)
    raise TypeError(f"rows cannot be split by the hash of a column of type {values.dtype}")


def _of_pandas(values: Any) -> np.ndarray[Any, Any]:
    dtype = values.dtype
    categories = getattr(dtype, "categories", None)
    if categories is not None and hasattr(values, "codes"):
        return _of_codes(hash_of(categories.array), values.codes)
    name = type(values).__name__
    if hasattr(values, "__arrow_array__") and name.startswith("Arrow"):
        return _of_arrow(values.__arrow_array__())
    if name == "IntervalArray":
        out = of_structs([hash_of(values.left.array), hash_of(values.right.array)], len(values))
        out[values.isna()] = MISSING
        return out
    if name == "PeriodArray":
        out = of_floats(values.asi8)
        out[values.isna()] = MISSING
        return out
    if name == "SparseArray":
        return _of_numpy(np.asarray(values))
    mask = getattr(values, "_mask", None)
    data = getattr(values, "_data" if mask is not None else "_ndarray", None)
    if data is None:
        data = np.asarray(values, object)
    out = _of_numpy(data)
    if mask is not None and mask.any():
        out[mask] = MISSING
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
    array = _plain(array)
    kind = array.type
    if kinds.is_null(kind):
        return np.full(len(array), MISSING)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if kinds.is_dictionary(kind):
        codes = array.indices.fill_null(0) if missing is not None else array.indices
        out = _of_codes(_of_arrow(array.dictionary), codes.to_numpy(zero_copy_only=False))
    elif kinds.is_string(kind) or kinds.is_binary(kind):
        out = _of_text(array, np.int32)
    elif kinds.is_large_string(kind) or kinds.is_large_binary(kind):
        out = _of_text(array, np.int64)
    elif kinds.is_struct(kind):
        fields = sorted(zip([f.name for f in kind], array.flatten(), strict=True), key=lambda field: field[0])
        out = of_structs([_of_arrow(values) for _, values in fields], len(array))
    elif kinds.is_list(kind) or kinds.is_large_list(kind):
        ends = array.offsets.to_numpy().astype(np.int64)
        out = of_lists(_of_arrow(array.values.slice(ends[0], ends[-1] - ends[0])), ends - ends[0])
    elif kinds.is_decimal(kind):
        out = _of_decimals(array)
    else:
        out = _of_numpy(_values(array))
    if missing is not None:
        out[missing] = MISSING
    return out


def _plain(array: Any) -> Any:
    """Returns an array with the same values without views, extensions and sizes of elements."""
    pa: Any = sys.modules["pyarrow"]
    kinds = pa.types
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if kinds.is_string_view(kind):
        return array.cast(pa.large_string())
    if kinds.is_binary_view(kind) or kinds.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    if kinds.is_fixed_size_list(kind):
        return array.cast(pa.large_list(kind.value_type))
    if kinds.is_run_end_encoded(kind):
        compute: Any = importlib.import_module("pyarrow.compute")
        return compute.run_end_decode(array)
    return array


def _values(array: Any) -> np.ndarray[Any, Any]:
    """Returns the values of an Array of fixed width. Those of missing values have no meaning."""
    pa: Any = sys.modules["pyarrow"]
    kinds = pa.types
    kind = array.type
    unit = None
    if kinds.is_date32(kind):
        array = array.cast(pa.timestamp("s"))
    elif kinds.is_date64(kind):
        array = array.cast(pa.timestamp("ms"))
    elif kinds.is_time(kind):
        array, unit = array.cast(pa.int32() if kinds.is_time32(kind) else pa.int64()), kind.unit
    elif not (kinds.is_boolean(kind) or kinds.is_floating(kind) or kinds.is_integer(kind) or kinds.is_temporal(kind)):
        raise TypeError(f"rows cannot be split by the hash of a column of type {kind}")
    if array.null_count:
        array = array.fill_null(False if kinds.is_boolean(kind) else pa.scalar(0, pa.int64()).cast(array.type))
    values = array.to_numpy(zero_copy_only=False)
    return values if unit is None else values.astype(np.int64).view(f"m8[{unit}]")


def _of_decimals(array: Any) -> np.ndarray[Any, Any]:
    """Hashes decimals as the nearest floats, which do not depend on the scale."""
    pa: Any = sys.modules["pyarrow"]
    width, scale = array.type.bit_width // 8, array.type.scale
    values, small = np.zeros(len(array)), np.zeros(len(array), bool)
    if 0 <= scale < len(_TENS):
        # An array of another library without elements may have no buffer.
        data = np.frombuffer(array.buffers()[1] or b"", np.uint8)[
            array.offset * width : (array.offset + len(array)) * width
        ]
        if width == 4:
            whole, small = data.view(np.int32).astype(np.int64), ~small
        else:
            words = data.view(np.int64).reshape(len(array), width // 8)
            whole = words[:, 0]
            # The upper words are the sign of the lowest.
            small = (words[:, 1:] == (whole >> 63)[:, None]).all(axis=1)
        # The quotient of two exact floats is the float nearest to the decimal.
        small &= (whole < 1 << 53) & (whole > -(1 << 53))
        np.divide(whole.astype(np.float64), _TENS[scale], out=values, where=small)
    if not small.all():
        large = np.flatnonzero(~small)
        values[large] = [0.0 if v is None else float(v) for v in array.take(pa.array(large)).to_pylist()]
    return of_floats(values)


def _of_codes(categories: np.ndarray[Any, Any], codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Hashes categorical values; the code -1 is a missing value."""
    return np.append(categories, MISSING)[codes]


def _of_times(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), np.uint64)
    unit = f"{values.dtype.kind}8[us]"
    for at in range(0, len(values), ROWS):
        part = values[at : at + ROWS].astype(unit)
        hashes = mixed(part.view(np.int64).astype(np.uint64))
        hashes[np.isnat(part)] = MISSING
        out[at : at + ROWS] = hashes
    return out


def _of_text(array: Any, offset: Any) -> np.ndarray[Any, Any]:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, offset)[array.offset : array.offset + len(array) + 1] if offsets else np.zeros(1)
    text = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
    return of_bytes(ends.astype(np.int64), text, len(array))
