"""Random shuffles and merges of data frames, compared with the merges of their own libraries.

A merge is a seed: the library of each side, the types of the keys, their values, the sizes of the
frames and the kind of the join. Both sides are in several frames. Each is split by the hash of its
keys and put together as `Client.shuffle` does, by the functions of its tasks, and each pair of
partitions is merged. All rows of the partitions together are those of a merge of the whole frames.

`python random_merges.py FIRST LAST PROCESSES` tries the seeds from FIRST to LAST - 1.
"""

from __future__ import annotations

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
_WHOLE = [0, 1, -1, -6, 7, 100, -128]
_LARGE = [*_WHOLE, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**62]
_FLOATS = [0.0, -0.0, 1.0, -6.0, 0.5, -1.25, math.inf, math.nan]
_TEXT = ["", "a", "b", "A", "naïve", "\0", "x" * 64, "x" * 65, "y" * 200]
_TIMES = [_DAY + datetime.timedelta(milliseconds=n) for n in (0, 1, -1, 86_400_000, -(10**12), 10**12)]
_SPANS = [datetime.timedelta(milliseconds=n) for n in (0, 1, -1, 86_400_000, -(10**10))]
_DATES = [datetime.date(1970, 1, 1), datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]
_DECIMALS = [decimal.Decimal(n) for n in ("0", "1", "-6", "1.5", "-1.25", "12345678901234.25")]

#: By kind of key: its values, and the types that a merge of each library compares.
_KINDS: dict[str, tuple[list[Any], dict[str, list[Any]]]] = {
    "whole": (
        _WHOLE,
        {
            "pandas": ["int8", "int16", "int64", "Int8", "Int64", "float64", "float32", "int64[pyarrow]", object],
            "polars": [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.Int128],
            "arrow": [pa.int8(), pa.int16(), pa.int64()],
        },
    ),
    "large": (
        _LARGE,
        {"pandas": ["int64", "Int64", "int64[pyarrow]"], "polars": [pl.Int64, pl.Int128], "arrow": [pa.int64()]},
    ),
    "unsigned": (
        [0, 1, 255, 7],
        {
            "pandas": ["uint8", "uint64", "int16", "UInt32", "float64"],
            "polars": [pl.UInt8, pl.UInt64, pl.Int64],
            "arrow": [pa.uint8(), pa.uint64()],
        },
    ),
    "float": (
        _FLOATS,
        {
            "pandas": ["float32", "float64", "Float64", "double[pyarrow]"],
            "polars": [pl.Float32, pl.Float64],
            "arrow": [pa.float32(), pa.float64()],
        },
    ),
    "flag": ([True, False], {"pandas": ["bool", "boolean"], "polars": [pl.Boolean], "arrow": [pa.bool_()]}),
    "text": (
        _TEXT,
        {
            "pandas": ["str", object, "category", "string[pyarrow]"],
            "polars": [pl.String],
            "arrow": [pa.string(), pa.large_string()],
        },
    ),
    "category": (_TEXT, {"pandas": ["category"], "polars": [pl.Categorical], "arrow": [pa.string()]}),
    "time": (
        _TIMES,
        {
            "pandas": ["M8[ms]", "M8[us]", "M8[ns]", "timestamp[us][pyarrow]"],
            "polars": [pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns")],
            "arrow": [pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")],
        },
    ),
    "span": (
        _SPANS,
        {
            "pandas": ["m8[ms]", "m8[us]", "m8[ns]"],
            "polars": [pl.Duration("ms"), pl.Duration("us")],
            "arrow": [pa.duration("ms"), pa.duration("us")],
        },
    ),
    "date": (_DATES, {"pandas": [object], "polars": [pl.Date], "arrow": [pa.date32(), pa.date64()]}),
    "decimal": (
        _DECIMALS,
        {
            "pandas": [object],
            "polars": [pl.Decimal(38, 2), pl.Decimal(38, 9)],
            "arrow": [pa.decimal128(38, 2), pa.decimal128(38, 9)],
        },
    ),
    "bytes": ([b"", b"a", b"\0", b"x" * 70], {"pandas": [object], "polars": [pl.Binary], "arrow": [pa.binary()]}),
}
_LIBRARIES = ("pandas", "polars", "arrow", "mixed")
#: Joins as pandas names them.
_JOINS = ("inner", "left", "right", "outer")
_POLARS = {"outer": "full"}
_ARROW = {"inner": "inner", "left": "left outer", "right": "right outer", "outer": "full outer"}
#: Types of pandas that hold no missing values.
_FULL = {"int8", "int16", "int64", "uint8", "uint64", "bool"}


def _column(library: str, kind: Any, values: list[Any]) -> Any:
    """Returns a column of a library and a type. Raises what the library raises if it cannot."""
    if library == "polars":
        if kind == pl.Categorical or isinstance(kind, pl.Decimal):
            return pl.Series(values).cast(kind) if any(v is not None for v in values) else pl.Series(values, dtype=kind)
        return pl.Series(values, dtype=kind)
    if library == "arrow":
        return pa.array(values, kind, from_pandas=False)
    if kind is object or kind == "category":
        column = np.empty(len(values), object)
        column[:] = values
        return pd.Series(column, dtype=kind)
    if isinstance(kind, str) and kind in _FULL:
        return pd.Series(values, dtype=kind)
    if isinstance(kind, str) and kind[1:3] == "8[":
        return pd.Series(np.array([None if v is None else v for v in values], kind))
    return pd.Series(values, dtype=kind)


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
        names = draw.sample(sorted(_KINDS), draw.choice([1, 1, 1, 2, 3]))
        self.keys = [f"k{n}" for n in range(len(names))]
        self._sides = []
        sides: tuple[str, str] = (self.library, self.library)
        if self.library == "mixed":
            sides = (draw.choice(("pandas", "polars", "arrow")), draw.choice(("pandas", "polars", "arrow")))
        for side, library in zip("ab", sides, strict=True):
            kinds = [draw.choice(_KINDS[name][1][library]) for name in names]
            frames = [self._values(draw, names, kinds) for _ in range(draw.choice([1, 2, 3]))]
            self._sides.append((side, library, kinds, frames))

    def _values(self, draw: random.Random, names: list[str], kinds: list[Any]) -> list[list[Any]]:
        rows = draw.choice([0, 1, 5, 20])
        # pandas makes floats of integers of other libraries if some are missing, and only then.
        full = {"large"} if self.library == "mixed" else set[str]()
        return [
            [
                None
                if draw.random() < 0.1 and kind not in _FULL and name not in full
                else draw.choice(self._of(name, kind))
                for _ in range(rows)
            ]
            for name, kind in zip(names, kinds, strict=True)
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
        """Returns how the answers differ; None: they do not, or the library refuses the merge."""
        sides = [self._frames(side) for side in range(2)]
        try:
            want = self._merged(*(_tasks.join(*frames) for frames in sides))
        except Refused:
            return None
        pieces = [[_tasks.split(f, self.keys, self.partitions) for f in frames] for frames in sides]
        found: list[tuple[int, int]] = []
        for at in range(self.partitions):
            left, right = (_tasks.join(*(list(split)[at] for split in splits)) for splits in pieces)
            try:
                found += self._merged(left, right)
            except Refused:  # pandas refuses some types that it accepts if both sides have rows
                return None
        if sorted(found) == sorted(want):
            return None
        return f"rows that were lost: {sorted(set(want) - set(found))}, added: {sorted(set(found) - set(want))}"

    def _merged(self, left: Any, right: Any) -> list[tuple[int, int]]:
        """Merges two frames. Returns the numbers of the rows in each row; -1: none."""
        if self.library == "mixed":
            left, right = _as_pandas(left), _as_pandas(right)
        if isinstance(left, pd.DataFrame):
            try:
                both = left.merge(right, on=self.keys, how=self.how)  # pyright: ignore[reportArgumentType]
            except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as e:
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


def _as_pandas(frame: Any) -> pd.DataFrame:
    if isinstance(frame, pl.DataFrame):  # Arrow does not know integers of 128 bits
        frame = frame.with_columns(pl.col(pl.Int128).cast(pl.Int64))
    return frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()


def failures(first: int, last: int) -> list[str]:
    """Tries seeds, and returns a report of each whose answer is wrong."""
    out = []
    for seed in range(first, last):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merge = Merge(seed)
            try:
                found = merge.difference()
            except Exception as e:
                found = f"{type(e).__name__}: {e}"
        if found is not None:
            out.append(f"{merge}\n{found}")
    return out


def _portion(seeds: tuple[int, int]) -> tuple[int, list[str]]:
    return seeds[1] - seeds[0], failures(*seeds)


def main(find: Callable[[tuple[int, int]], tuple[int, list[str]]] = _portion) -> None:
    first, last, processes = (int(a) for a in sys.argv[1:4])
    begin, done, reports = time.monotonic(), 0, 0
    portions = [(at, min(at + 100, last)) for at in range(first, last, 100)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count, found in pool.imap_unordered(find, portions):
            done += count
            reports += len(found)
            for report in found:
                print(report, flush=True)
    took = time.monotonic() - begin
    print(f"seeds {first} to {last}: {done} merges, {reports} differ; {done / took:.0f} merges/s", flush=True)
    sys.exit(1 if reports else 0)


if __name__ == "__main__":
    main()
