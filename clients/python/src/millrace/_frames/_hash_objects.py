"""Hashes of objects in arrays of NumPy, which agree with those of columns with a type."""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from millrace._frames._hash_bits import MISSING, of_bytes, of_floats, of_lists

_Hash = Callable[[Any], np.ndarray[Any, Any]]
_EPOCH = datetime.datetime(1970, 1, 1)


def of_objects(values: np.ndarray[Any, Any], hash_of: _Hash) -> np.ndarray[Any, Any]:
    """Hashes objects. Text, numbers, dates, times and tuples are hashed by their values, others by
    their `str`.

    Args:
        values: the objects.
        hash_of: hashes a column of any type.
    """
    import pandas as pd

    missing: Any = pd.isna(values)
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if kind in ("string", "bytes", "empty"):
        out = _of_text([b"" if m else v for v, m in zip(values, missing, strict=True)])
    elif kind in ("integer", "boolean", "floating", "mixed-integer-float"):
        out = _of_numbers(np.where(missing, 0, values))
    elif len(values):
        out = _of_any(values, missing, hash_of)
    else:
        out = np.empty(0, np.uint64)
    out[missing] = MISSING
    return out


def _of_any(values: np.ndarray[Any, Any], missing: Any, hash_of: _Hash) -> np.ndarray[Any, Any]:
    """Hashes objects of several kinds: all of one kind at once."""
    out = np.empty(len(values), np.uint64)
    kinds: dict[str, list[int]] = {}
    for at, (value, gone) in enumerate(zip(values, missing, strict=True)):
        if not gone:
            kinds.setdefault(_kind(value), []).append(at)
    for kind, places in kinds.items():
        some = [values[at] for at in places]
        if kind == "text":
            out[places] = _of_text(some)
        elif kind == "number":
            out[places] = _of_numbers(some)
        elif kind == "tuple":
            elements = np.empty(sum(map(len, some)), object)
            elements[:] = [element for row in some for element in row]
            out[places] = of_lists(hash_of(elements), np.cumsum([0, *map(len, some)], dtype=np.int64))
        elif kind == "other":
            out[places] = _of_text([str(v) for v in some])
        else:
            out[places] = hash_of(np.array([_times[kind](v) for v in some], f"{kind}8[us]"))
    return out


def _kind(value: Any) -> str:
    if isinstance(value, (str, bytes)):
        return "text"
    if isinstance(value, (numbers.Real, decimal.Decimal, np.bool_)):
        return "number"
    if isinstance(value, (tuple, list)):
        return "tuple"
    if isinstance(value, (datetime.date, np.datetime64)):
        return "M"
    if isinstance(value, (datetime.timedelta, np.timedelta64, datetime.time)):
        return "m"
    return "other"


def _of_text(values: list[Any]) -> np.ndarray[Any, Any]:
    raw = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else v for v in values]
    ends = np.cumsum([0, *map(len, raw)], dtype=np.int64)
    return of_bytes(ends, np.frombuffer(b"".join(raw), np.uint8), len(raw))


def _of_numbers(values: Any) -> np.ndarray[Any, Any]:
    try:
        return of_floats(np.asarray(values, np.float64))
    except OverflowError:  # an integer above all floats
        return of_floats(np.array([_float(v) for v in values]))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _instant(value: Any) -> Any:
    """Returns a date or a time without a time zone, in UTC if it had one."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        to_numpy = getattr(value, "to_datetime64", None)
        return to_numpy() if to_numpy is not None else np.datetime64(value, "us")
    return value


def _span(value: Any) -> Any:
    if isinstance(value, datetime.time):
        clock = datetime.datetime.combine(_EPOCH, value.replace(tzinfo=None))
        return clock - _EPOCH
    to_numpy = getattr(value, "to_timedelta64", None)
    return to_numpy() if to_numpy is not None else value


_times: dict[str, Callable[[Any], Any]] = {"M": _instant, "m": _span}
