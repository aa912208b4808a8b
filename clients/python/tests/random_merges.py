"""Random shuffles and merges of data frames, compared with the merges of their own libraries.

A merge is a seed: the library of each side, the types of the keys, their values, the sizes of the
frames and the kind of the join. Both sides are in several frames. Each is split by the hash of its
keys and put together as `Client.shuffle` does, by the functions of its tasks. No row is lost, and
rows of equal keys are in the same partition, whatever the libraries and types are. If a library
merges keys of these types, each pair of partitions is merged: all rows of the partitions together
are those of a merge of the whole frames.

`python random_merges.py FIRST LAST PROCESSES` tries the seeds from FIRST to LAST - 1, and prints
how many of each kind of key were merged.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import math
import multiprocessing
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from millrace._frames import _tasks

_DAY = datetime.datetime(1970, 1, 1)
_UTC = datetime.timezone.utc
_WHOLE = [0, 1, -1, -6, 7, 100, -128]
_LARGE = [*_WHOLE, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**62]
_FLOATS = [0.0, -0.0, 1.0, -6.0, 0.5, -1.25, math.inf, math.nan]
_TEXT = ["", "a", "b", "A", "naïve", "\0", "x" * 64, "x" * 65, "y" * 200]
_TIMES = [_DAY + datetime.timedelta(milliseconds=n) for n in (0, 1, -1, 86_400_000, -(10**12), 10**12)]
_SPANS = [datetime.timedelta(milliseconds=n) for n in (0, 1, -1, 86_400_000, -(10**10))]
_DATES = [datetime.date(1970, 1, 1), datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]
_CLOCKS = [datetime.time(0), datetime.time(23, 59, 59, 999_000), datetime.time(1, 2, 3, 4_000)]
_DECIMALS = [decimal.Decimal(n) for n in ("0", "1", "-6", "1.5", "-1.25", "12345678901234.25")]
_STRUCTS = [{"a": 1, "b": "x"}, {"a": -6, "b": ""}, {"a": 0, "b": None}, {"a": None, "b": "x"}]
_MIXED = [0, 2.5, "a", "", b"a\xff", _DATES[2], _SPANS[3], (1, "a"), decimal.Decimal("-1.25")]


def _arrow(*kinds: pa.DataType) -> list[Any]:
    return [pd.ArrowDtype(kind) for kind in kinds]


def _struct(*kinds: pa.DataType) -> list[pa.DataType]:
    return [pa.struct([("a", kind), ("b", pa.string())]) for kind in kinds]


#: By kind of key: its values, and the types of each library that hold them. Values that are equal
#: in Python are one key.
_KINDS: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {
    "whole": (
        _WHOLE,
        {
            "pandas": [
                *("int8", "int16", "int64", "Int8", "Int64", "float64", "float32", "float16", object),
                *("Sparse[int64]", *_arrow(pa.int64(), pa.int8())),
            ],
            "polars": [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128, pl.Float16],
            "arrow": [pa.int8(), pa.int16(), pa.int64(), pa.float16(), pa.decimal64(9, 1)],
        },
    ),
    "large": (
        _LARGE,
        {"pandas": ["int64", "Int64", "int64[pyarrow]"], "polars": [pl.Int64, pl.Int128], "arrow": [pa.int64()]},
    ),
    "unsigned": (
        [0, 1, 255, 7],
        {
            "pandas": ["uint8", "uint16", "uint64", "int16", "UInt32", "float64"],
            "polars": [pl.UInt8, pl.UInt16, pl.UInt64, pl.UInt128, pl.Int64],
            "arrow": [pa.uint8(), pa.uint16(), pa.uint64()],
        },
    ),
    "float": (
        _FLOATS,
        {
            "pandas": ["float16", "float32", "float64", "Float32", "Float64", "double[pyarrow]"],
            "polars": [pl.Float16, pl.Float32, pl.Float64],
            "arrow": [pa.float16(), pa.float32(), pa.float64()],
        },
    ),
    "complex": ([0j, 1 + 2j, complex(-0.0, -1), 3 + 0j], {"pandas": ["complex64", "complex128", object]}),
    "flag": ([True, False], {"pandas": ["bool", "boolean"], "polars": [pl.Boolean], "arrow": [pa.bool_()]}),
    "text": (
        _TEXT,
        {
            "pandas": ["str", object, "category", "string[pyarrow]"],
            "polars": [pl.String],
            "arrow": [pa.string(), pa.large_string(), pa.string_view()],
        },
    ),
    "category": (
        _TEXT,
        {
            "pandas": ["category", pd.CategoricalDtype(_TEXT, ordered=True)],
            "polars": [pl.Categorical, pl.Enum(_TEXT), pl.Enum(_TEXT[::-1])],
            "arrow": [pa.string(), *(pa.dictionary(t, pa.string()) for t in (pa.int8(), pa.uint32()))],
        },
    ),
    "category of numbers": (
        _WHOLE,
        {"pandas": ["category", "int64"], "arrow": [pa.dictionary(pa.int8(), pa.int64()), pa.int16()]},
    ),
    "time": (
        _TIMES,
        {
            "pandas": ["M8[ms]", "M8[us]", "M8[ns]", "timestamp[us][pyarrow]", object],
            "polars": [pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns")],
            "arrow": [pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")],
        },
    ),
    "zone": (
        [t.replace(tzinfo=_UTC) for t in _TIMES],
        {
            "pandas": [
                *("datetime64[us, UTC]", "datetime64[ms, Asia/Tokyo]", "datetime64[ns, Europe/Berlin]", object),
                *_arrow(pa.timestamp("us", "Asia/Tokyo")),
            ],
            "polars": [pl.Datetime("ms", "UTC"), pl.Datetime("us", "Asia/Tokyo"), pl.Datetime("ns", "Europe/Berlin")],
            "arrow": [pa.timestamp("ms", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("ns", "Europe/Berlin")],
        },
    ),
    "span": (
        _SPANS,
        {
            "pandas": ["m8[ms]", "m8[us]", "m8[ns]", object, *_arrow(pa.duration("us"))],
            "polars": [pl.Duration("ms"), pl.Duration("us"), pl.Duration("ns")],
            "arrow": [pa.duration("ms"), pa.duration("us"), pa.duration("ns")],
        },
    ),
    "date": (
        _DATES,
        {"pandas": [object, *_arrow(pa.date32())], "polars": [pl.Date], "arrow": [pa.date32(), pa.date64()]},
    ),
    "clock": (
        _CLOCKS,
        {
            "pandas": [object, *_arrow(pa.time64("us"))],
            "polars": [pl.Time],
            "arrow": [pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
        },
    ),
    "period": ([pd.Period("2020-01-01", "D") + n for n in range(3)], {"pandas": ["period[D]", object]}),
    "interval": (
        [pd.Interval(n, n + 1) for n in range(4)],
        {"pandas": ["interval[float64]", "interval[int64]", "category", object]},
    ),
    "decimal": (
        _DECIMALS,
        {
            "pandas": [object, *_arrow(pa.decimal128(38, 2), pa.decimal128(38, 9))],
            "polars": [pl.Decimal(38, 2), pl.Decimal(38, 9)],
            "arrow": [pa.decimal128(38, 2), pa.decimal128(38, 9), pa.decimal64(18, 2), pa.decimal256(60, 20)],
        },
    ),
    "bytes": (
        [b"", b"a", b"\0", b"x" * 70],
        {
            "pandas": [object, *_arrow(pa.binary())],
            "polars": [pl.Binary],
            "arrow": [pa.binary(), pa.large_binary(), pa.binary_view()],
        },
    ),
    "struct": (
        _STRUCTS,
        {
            "pandas": [object, *_arrow(*_struct(pa.int64()))],
            "polars": [pl.Struct({"a": t, "b": pl.String}) for t in (pl.Int8, pl.Int64, pl.Int128, pl.Float32)],
            "arrow": _struct(pa.int8(), pa.int64(), pa.float64()),
        },
    ),
    "list": (
        [[], [1, 2], [2, 1], [0], [None], [-6, None]],
        {
            "pandas": [object, *_arrow(pa.list_(pa.int16()))],
            "polars": [pl.List(pl.Int8), pl.List(pl.Int64), pl.List(pl.Int128), pl.List(pl.Float64)],
            "arrow": [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.float32())],
        },
    ),
    "pair": (
        [[1, 2], [2, 1], [0, None]],
        {
            "pandas": [object],
            "polars": [pl.Array(pl.Int8, 2), pl.Array(pl.Int64, 2), pl.List(pl.Int16)],
            "arrow": [pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 2), pa.list_(pa.int16())],
        },
    ),
    "mixed": (_MIXED, {"pandas": [object]}),
}
_LIBRARIES = ("pandas", "polars", "arrow", "mixed")
#: Joins as pandas names them.
_JOINS = ("inner", "left", "right", "outer")
_POLARS = {"outer": "full"}
_ARROW = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
#: Types of pandas that hold no missing values.
_FULL = {"int8", "int16", "int64", "uint8", "uint16", "uint64", "bool", "Sparse[int64]", "interval[int64]"}


def _column(library: str, kind: Any, values: list[Any]) -> Any:
    """Returns a column of a library and a type. Raises what the library raises if it cannot."""
    if library == "polars":
        if kind == pl.Categorical or isinstance(kind, pl.Decimal):
            return pl.Series(values).cast(kind) if any(v is not None for v in values) else pl.Series(values, dtype=kind)
        return pl.Series(values, dtype=kind)
    if library == "arrow":
        return pa.array(values, kind, from_pandas=False)
    if kind is object or isinstance(kind, pd.CategoricalDtype) or kind == "category":
        column = np.empty(len(values), object)
        column[:] = values
        return pd.Series(column, dtype=kind)
    if isinstance(kind, str) and kind[1:3] == "8[":
        return pd.Series(np.array(values, kind))
    return pd.Series(values, dtype=kind)


def _canonical(value: Any) -> Any:
    """Returns a value that is equal to others, and has a hash, if they are one key."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, dict):
        return tuple(sorted((name, _canonical(v)) for name, v in value.items()))
    return tuple(map(_canonical, value)) if isinstance(value, (list, tuple)) else value


#: How pandas refuses to merge keys: also by a KeyError for float16, and by an AssertionError that
#: it asks to report as a bug.
_REFUSALS = (ValueError, TypeError, KeyError, AssertionError, NotImplementedError, pa.ArrowException)


class Merge:
    """A merge that a seed makes.

    Args:
        seed: of its random choices.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.library = draw.choice(_LIBRARIES)
        self.how = draw.choice(_JOINS)
        self.partitions = draw.choice([1, 2, 3, 7, 16])
        #: Whether both the partitions and the whole frames were merged, not only shuffled.
        self.merged = False
        libraries = [self.library] * 2
        if self.library == "mixed":
            libraries = [draw.choice(("pandas", "polars", "arrow")) for _ in range(2)]
        known = [n for n in sorted(_KINDS) if all(self._types(side, libraries[side], n) for side in range(2))]
        self.names = draw.sample(known, draw.choice([1, 1, 1, 2, 3]))
        self.keys = [f"k{n}" for n in range(len(self.names))]
        self._sides = []
        for side, library in enumerate(libraries):
            kinds = [draw.choice(self._types(side, library, name)) for name in self.names]
            missing = [self._missing(draw, name, kind) for name, kind in zip(self.names, kinds, strict=True)]
            frames = [self._values(draw, kinds, missing) for _ in range(draw.choice([1, 2, 3]))]
            self._sides.append(("ab"[side], library, kinds, frames))

    def _types(self, side: int, library: str, name: str) -> list[Any]:
        """Returns the types of a library that a side may have for a kind of key."""
        del side
        return _KINDS[name][1].get(library, [])

    def _missing(self, draw: random.Random, name: str, kind: Any) -> float:
        """Returns how many of a side's values are missing."""
        # pandas makes floats of integers of other libraries if some are missing, and only then.
        full = {"large"} if self.library == "mixed" else set[str]()
        return draw.choice([0, 0.1, 0.4]) if kind not in _FULL and name not in full else 0

    def _values(self, draw: random.Random, kinds: list[Any], missing: list[float]) -> list[list[Any]]:
        rows = draw.choice([0, 1, 5, 20])
        return [
            [None if draw.random() < share else draw.choice(self._of(name, kind)) for _ in range(rows)]
            for name, kind, share in zip(self.names, kinds, missing, strict=True)
        ]

    def _of(self, name: str, kind: Any) -> list[Any]:
        """Returns the values of a key. Left out are those that a library merges one way in a frame,
        and another way in a part of it."""
        values = _KINDS[name][0]
        if name == "float" and self.library == "polars":  # NaN meets NaN, but not if a frame has one row
            return [v for v in values if not math.isnan(v)]
        if kind == "double[pyarrow]":  # 0.0 meets -0.0 unless a value is missing
            return [v for v in values if v != 0 or math.copysign(1, v) > 0]
        return values

    def __str__(self) -> str:
        sides = "; ".join(f"{library} {kinds}: {frames}" for _, library, kinds, frames in self._sides)
        return f"seed {self.seed}: {self.library}, {self.how}, {self.partitions} partitions: {sides}"

    def _frames(self, side: int) -> list[Any]:
        name, library, kinds, frames = self._sides[side]
        out, first = [], 0
        for values in frames:
            columns = {k: _column(library, kind, v) for k, kind, v in zip(self.keys, kinds, values, strict=True)}
            rows = np.arange(first, first + len(values[0]))
            first += len(values[0])
            if library == "pandas":
                out.append(pd.DataFrame({**columns, name: rows}))
            elif library == "polars":
                out.append(pl.DataFrame({**columns, name: rows}))
            else:
                out.append(pa.table({**columns, name: rows}))
        return out

    def difference(self) -> str | None:
        """Returns how the answers differ; None: they do not."""
        sides = [self._frames(side) for side in range(2)]
        pieces = [[list(_tasks.split(f, self.keys, self.partitions)) for f in frames] for frames in sides]
        found = self._shuffled(pieces)
        return found or self._merges(sides, pieces)

    def _shuffled(self, pieces: list[list[list[Any]]]) -> str | None:
        """Returns which rows were lost by the splits, or which equal keys are in two partitions."""
        places: dict[Any, int] = {}
        for (name, _, _, frames), splits in zip(self._sides, pieces, strict=True):
            keys = [tuple(map(_canonical, key)) for values in frames for key in zip(*values, strict=True)]
            rows = [(row, at) for split in splits for at, piece in enumerate(split) for row in _rows(piece, name)]
            if sorted(row for row, _ in rows) != list(range(len(keys))):
                return f"rows of {name}: {sorted(rows)} of {len(keys)}"
            for row, at in rows:
                if places.setdefault(keys[row], at) != at:
                    return f"the key {keys[row]} is in the partitions {places[keys[row]]} and {at}"
        return None

    def _merges(self, sides: list[list[Any]], pieces: list[list[list[Any]]]) -> str | None:
        found: list[tuple[int, int]] = []
        try:
            want = self._merged(*(_tasks.join(*frames) for frames in sides))
            for at in range(self.partitions):
                left, right = (_tasks.join(*(split[at] for split in splits)) for splits in pieces)
                if len(left) or len(right):
                    found += self._merged(left, right)
        except Refused:  # pandas refuses some types that it accepts if both sides have rows
            return None
        self.merged = True
        if sorted(found) == sorted(want):
            return None
        return f"rows that were lost: {sorted(set(want) - set(found))}, added: {sorted(set(found) - set(want))}"

    def _merged(self, left: Any, right: Any) -> list[tuple[int, int]]:
        """Merges two frames. Returns the numbers of the rows in each row; -1: none."""
        if self.library == "mixed":
            left, right = as_pandas(left), as_pandas(right)
        if isinstance(left, pd.DataFrame):
            try:
                both = left.merge(right, on=self.keys, how=self.how)  # pyright: ignore[reportArgumentType]
            except _REFUSALS as e:
                raise Refused from e
            rows = both[["a", "b"]].fillna(-1).astype(int).to_numpy()
            return [tuple(row) for row in rows.tolist()]
        if isinstance(left, pl.DataFrame):
            try:
                both = left.join(right, on=self.keys, how=_POLARS.get(self.how, self.how))  # pyright: ignore
            except pl.exceptions.PolarsError as e:
                raise Refused from e
            return both.select(pl.col("a", "b").fill_null(-1)).rows()
        try:
            both = left.join(right, self.keys, join_type=_ARROW[self.how])
        except pa.ArrowException as e:
            raise Refused from e
        columns = [both.column(side).fill_null(-1).to_pylist() for side in "ab"]
        return list(zip(*columns, strict=True))


class Refused(Exception):
    """A library does not merge these types."""


def _rows(piece: Any, name: str) -> list[int]:
    """Returns the numbers of a piece's rows."""
    column = piece[name]
    if hasattr(column, "to_arrow") and not isinstance(column, pl.Series):  # of cuDF
        column = column.to_arrow()
    return column.to_pylist() if isinstance(column, (pa.Array, pa.ChunkedArray)) else column.to_list()


def as_pandas(frame: Any) -> pd.DataFrame:
    """Returns a frame of pandas. Raises Refused if it has a type that pandas does not take."""
    try:
        if isinstance(frame, pl.DataFrame):  # Arrow does not know integers of 128 bits
            frame = frame.with_columns(pl.col(pl.Int128).cast(pl.Int64), pl.col(pl.UInt128).cast(pl.UInt64))
        return frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()
    except (pa.ArrowException, NotImplementedError) as e:
        raise Refused from e


class Counts:
    """How many merges were tried, by kind of key: all, those that were merged and not only
    shuffled, and those that differ."""

    def __init__(self) -> None:
        self.by_name: collections.Counter[tuple[str, str]] = collections.Counter()
        self.reports: list[str] = []

    def add(self, merge: Merge, report: str | None) -> None:
        for name in (*merge.names, "all"):
            self.by_name[name, "tried"] += 1
            self.by_name[name, "merged"] += merge.merged
            self.by_name[name, "differ"] += report is not None
        if report is not None:
            self.reports.append(f"{merge}\n{report}")

    def update(self, other: Counts) -> None:
        self.by_name.update(other.by_name)
        self.reports += other.reports

    def __str__(self) -> str:
        columns = ("tried", "merged", "differ")
        names = sorted({name for name, _ in self.by_name} - {"all"})
        lines = [f"{'key':<20}" + "".join(f"{c:>9}" for c in columns)]
        lines += [f"{name:<20}" + "".join(f"{self.by_name[name, c]:>9}" for c in columns) for name in (*names, "all")]
        return "\n".join(lines)


def tried(first: int, last: int, make: Callable[[int], Merge] = Merge) -> Counts:
    """Tries seeds. An exception is a difference."""
    out = Counts()
    for seed in range(first, last):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merge = make(seed)
            try:
                found = merge.difference()
            except Exception as e:
                found = f"{type(e).__name__}: {e}"
        out.add(merge, found)
    return out


def failures(first: int, last: int) -> list[str]:
    """Tries seeds, and returns a report of each whose answer is wrong."""
    return tried(first, last).reports


def _portion(seeds: tuple[int, int]) -> Counts:
    return tried(*seeds)


def main() -> None:
    first, last, processes = (int(a) for a in sys.argv[1:4])
    begin, counts = time.monotonic(), Counts()
    portions = [(at, min(at + 100, last)) for at in range(first, last, 100)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for found in pool.imap_unordered(_portion, portions):
            counts.update(found)
            for report in found.reports:
                print(report, flush=True)
    took, done = time.monotonic() - begin, counts.by_name["all", "tried"]
    print(counts)
    print(f"seeds {first} to {last}: {done} shuffles and merges, {len(counts.reports)} differ; {done / took:.0f}/s")
    sys.exit(1 if counts.reports else 0)


if __name__ == "__main__":
    main()
