"""The data that random queries of Polars read: data frames and files of each type of column."""

from __future__ import annotations

import math
import os
import random
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

#: The columns of a frame, by their names.
KINDS = {
    "i": pl.Int64(), "j": pl.Int32(), "i8": pl.Int8(), "i16": pl.Int16(), "i128": pl.Int128(), "u": pl.UInt8(), "u16": pl.UInt16(), "u64": pl.UInt64(),
    "f": pl.Float64(), "g": pl.Float32(), "b": pl.Boolean(), "s": pl.String(), "bin": pl.Binary(), "c": pl.Categorical(), "e": pl.Enum(["no", "yes", "perhaps"]),
    "d": pl.Date(), "w": pl.Datetime("us"), "ns": pl.Datetime("ns"), "zone": pl.Datetime("ms", "Europe/Berlin"), "time": pl.Time(), "v": pl.Duration("ms"), "m": pl.Decimal(12, 2),
    "l": pl.List(pl.Int64), "arr": pl.Array(pl.Int32, 2), "n": pl.Struct({"a": pl.Int64, "z": pl.String}), "null": pl.Null(),
}  # fmt: skip
#: Columns that a file of CSV may have, and of NDJSON.
IN_CSV = ("i", "j", "i8", "i128", "u16", "u64", "f", "g", "b", "s", "e", "d", "w", "zone", "time", "m")
IN_JSON = ("i", "j", "i128", "u64", "f", "b", "s", "d", "l", "n")
NUMBERS = (
    *(pl.Int64, pl.Int32, pl.Int8, pl.Int16, pl.Int128, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64),
    *(pl.Float64, pl.Float32, pl.Decimal),
)
INTEGERS = tuple(n for n in NUMBERS if n not in (pl.Float64, pl.Float32, pl.Decimal))
#: Integers that a Float64 may not hold.
WIDE = (pl.Int128, pl.UInt64)
UNSIGNED = (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
#: Rows of frames. They are few, so that many queries run in a second.
SIZES = (0, 1, 5, 9, 14, 20, 26, 30)
FRAMES = 48
_SUMMER = datetime(2024, 3, 30, 22, tzinfo=timezone.utc)


def value(kind: str, r: random.Random) -> Any:
    """Returns a random value of a column. Numbers are multiples of 0.5, so that sums are exact."""
    if r.random() < 0.12:
        return None
    match kind:
        case "i":
            return r.choice([r.randrange(-5, 60), r.randrange(-1 << 40, 1 << 40)])
        case "i128":
            return r.choice([r.randrange(-3, 4), r.randrange(-1 << 80, 1 << 80), 1 << 70])
        case "u64":
            return r.choice([r.randrange(4), (1 << 63) + r.randrange(3), (1 << 53) + 1])
        case "i8" | "i16":
            return r.choice([r.randrange(-3, 4), r.randrange(-128, 128)])
        case "j" | "u" | "u16":
            return r.randrange(5)
        case "f" | "g":
            return r.choice(
                [r.randrange(-8, 40) / 2, r.randrange(3) / 2, 0.0, -0.0, math.nan, math.inf, -math.inf, 1.5]
            )
        case "b":
            return r.random() < 0.5
        case "s":
            return r.choice(["", "a", "b", "ab", "é", "zz", "a" * 30, 'two "lines",\n'])
        case "bin":
            return r.choice([b"", b"a", b"a\0", b"\xff", b"b" * 20])
        case "c":
            return r.choice(["x", "y", "zeta", ""])
        case "e":
            return r.choice(["no", "yes", "perhaps"])
        case "d":
            return date(2024, 2, 27) + timedelta(r.randrange(6))
        case "w" | "ns":
            return datetime(2024, 1, 1) + timedelta(hours=r.randrange(90))
        case "zone":  # an hour of the zone is missing
            return _SUMMER + timedelta(hours=r.randrange(8))
        case "time":
            return r.choice([time(r.randrange(24), 30), time(0), time(23, 59, 59, 999999)])
        case "m":
            return Decimal(r.randrange(-300, 300)) / 100
        case "v":
            return timedelta(minutes=r.randrange(6))
        case "l":
            return r.choice([[], [1], [None], [r.randrange(3) for _ in range(r.randrange(4))]])
        case "arr":
            return [r.choice([0, 1, None]), r.randrange(3)]
        case "null":
            return None
        case _:
            return {"a": r.randrange(3), "z": r.choice(["p", "q", None])}


@cache
def frame(number: int) -> pl.DataFrame:
    """Returns one of the data frames that queries read. Each has the columns of `KINDS`, and `row`."""
    r = random.Random(number)
    size = SIZES[number % len(SIZES)]
    columns = {k: pl.Series(k, [value(k, r) for _ in range(size)], dtype=t) for k, t in KINDS.items()}
    return pl.DataFrame({"row": pl.Series(range(size), dtype=pl.Int64), **columns})


class Folder:
    """The directory of the files that queries read."""

    def __init__(self) -> None:
        self.path = Path()


FOLDER = Folder()


def scan(number: int, form: str, files: int = 1, **options: Any) -> pl.LazyFrame:
    """Returns a scan of the rows of a frame in files, which are written when they are first needed.

    Args:
        number: the frame.
        form: "parquet", "ipc", "csv" or "ndjson".
        files: number of files.
        options: of the scan.
    """
    paths = _files(FOLDER.path, number, form, files)
    if form in ("csv", "ndjson"):
        names = IN_CSV if form == "csv" else IN_JSON
        options["schema"] = {"row": pl.Int64(), **{n: KINDS[n] for n in names}}
    return getattr(pl, f"scan_{form}")(paths, **options)


def _files(folder: Path, number: int, form: str, files: int) -> list[Path]:
    paths = [folder / f"{number}-{files}-{i}.{form}" for i in range(files)]
    for i, path in enumerate(paths):
        if not path.exists():
            whole = frame(number)
            if form in ("csv", "ndjson"):
                whole = whole.select("row", *(IN_CSV if form == "csv" else IN_JSON))
            options = {"parquet": {"row_group_size": 2 + number % 9}, "ipc": {"record_batch_size": 3 + number % 9}}
            rows = whole[len(whole) * i // files : len(whole) * (i + 1) // files]
            part = path.with_suffix(f".{os.getpid()}")  # another process may write the same file
            getattr(rows, f"write_{form}")(part, **options.get(form, {}))
            part.rename(path)
    return paths


def chain(t: pl.LazyFrame, name: str, times: int) -> pl.LazyFrame:
    """Returns a query that changes a column so many times."""
    for i in range(times):
        t = t.with_columns((pl.col(name) + i).alias(name))
    return t


def any_of(name: str, times: int) -> pl.Expr:
    """Returns a predicate of so many parts."""
    found = pl.col(name) == 0
    for i in range(1, times):
        found |= pl.col(name) == i
    return found


@cache
def _compiled(step: str) -> Any:
    return compile(step, "step", "eval")


def run(step: str, t: pl.LazyFrame | None) -> pl.LazyFrame:
    """Returns the result of a step of a query on the lazy frame `t`."""
    names = {"pl": pl, "c": pl.col, "frame": frame, "scan": scan, "t": t, "chain": chain, "any_of": any_of}
    return eval(_compiled(step), names)
