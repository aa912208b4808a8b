"""Hashes of objects in arrays of NumPy, which agree with those of columns with a type."""

from __future__ import annotations

import datetime
import decimal
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

import numpy as np

from millrace._frames._hash_bits import MISSING, of_bytes, of_complex, of_floats, of_lists, of_structs

_Hash = Callable[[Any], np.ndarray[Any, Any]]
_EPOCH = datetime.datetime(1970, 1, 1)


def of_objects(values: np.ndarray[Any, Any], hash_of: _Hash) -> np.ndarray[Any, Any]:
    """Hashes objects. Text, numbers, dates, times, intervals and collections are hashed by their
    values, others by their `str`. Raises TypeError for an object whose `str` is only its address.

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
    known: dict[type, str] = {}
    for at, (value, gone) in enumerate(zip(values, missing, strict=True)):
        if not gone:
            cls = type(value)
            kind = known.get(cls) or known.setdefault(cls, _kind(cls))
            kinds.setdefault(kind, []).append(at)
    for kind, places in kinds.items():
        out[places] = _of_kind(kind, [values[at] for at in places], hash_of)
    return out


def _of_kind(kind: str, values: list[Any], hash_of: _Hash) -> np.ndarray[Any, Any]:
    if kind == "text":
        return _of_text(values)
    if kind == "number":
        return _of_numbers(values)
    if kind == "complex":
        return of_complex(np.array(values, np.complex128))
    if kind == "interval":
        ends = [hash_of(_objects(v.left for v in values)), hash_of(_objects(v.right for v in values))]
        return of_structs(ends, len(values))
    if kind == "period":
        return of_floats(np.array([v.ordinal for v in values], np.int64))
    if kind == "list":
        return of_lists(*_elements(values, hash_of))
    if kind == "set":
        hashes, ends = _elements(values, hash_of)
        rows = np.repeat(np.arange(len(values)), np.diff(ends))
        return of_lists(hashes[np.lexsort((hashes, rows))], ends)
    if kind == "dict":
        return _of_dicts(values, hash_of)
    if kind == "other":
        return _of_text([_text(v) for v in values])
    return hash_of(np.array([_times[kind](v) for v in values], f"{kind}8[us]"))


def _kind(cls: type) -> str:
    import pandas as pd

    for kind, classes in (
        ("text", (str, bytes, bytearray, memoryview)),
        ("number", (numbers.Real, decimal.Decimal, np.bool_)),
        ("complex", numbers.Complex),
        ("list", (tuple, list, np.ndarray)),
        ("period", pd.Period),
        ("interval", pd.Interval),
        ("M", (datetime.date, np.datetime64)),
        ("m", (datetime.timedelta, np.timedelta64, datetime.time)),
        ("dict", Mapping),
        ("set", Set),
    ):
        if issubclass(cls, classes):
            return kind
    return "other"


def _objects(values: Iterable[Any]) -> np.ndarray[Any, Any]:
    return np.fromiter(values, object)


def _elements(rows: list[Collection[Any]], hash_of: _Hash) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the hashes of the elements of all rows, and where each row begins and ends there."""
    ends = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return hash_of(_objects(element for row in rows for element in row)), ends


def _of_dicts(values: list[Mapping[Any, Any]], hash_of: _Hash) -> np.ndarray[Any, Any]:
    """Hashes dicts as structs with their items: all with the same keys at once."""
    out = np.empty(len(values), np.uint64)
    alike: dict[tuple[Any, ...], list[int]] = {}
    for at, value in enumerate(values):
        alike.setdefault(tuple(sorted(value, key=str)), []).append(at)
    for keys, places in alike.items():
        fields = [hash_of(_objects(values[at][key] for at in places)) for key in keys]
        out[places] = of_structs(fields, len(places))
    return out


def _text(value: Any) -> str:
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        raise TypeError(
            f"rows cannot be split by objects of type {kind.__module__}.{kind.__qualname__}, whose str() is their"
            " address in memory: use a column with a number or a text for each, or give the class a __str__ that"
            " is the same for equal objects"
        )
    return str(value)


def _of_text(values: list[Any]) -> np.ndarray[Any, Any]:
    raw = [v.encode("utf-8", "surrogatepass") if isinstance(v, str) else bytes(v) for v in values]
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
        return clock - _EPOCH - (value.utcoffset() or datetime.timedelta())
    to_numpy = getattr(value, "to_timedelta64", None)
    return to_numpy() if to_numpy is not None else value


_times: dict[str, Callable[[Any], Any]] = {"M": _instant, "m": _span}
