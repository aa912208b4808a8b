"""Measures programs on data frames and arrays of Dask on a running cluster, with distributed or
with Millrace as the scheduler, and prints one JSON object of seconds. The same code drives both.

    workload.py dask ADDRESS GIGABYTES [PROGRAM ...]
    workload.py millrace SCHEDULER_FILE GIGABYTES [PROGRAM ...]

The data are made on the workers, as a part of each program: the whole data need not fit into
memory. Each figure is the time of one run, after a run with little data.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

#: Columns of 8 bytes in each frame.
COLUMNS = 4
#: Size of a partition in bytes. Smaller frames have at least 8 partitions.
PARTITION_BYTES = 100 << 20
#: The share of the keys of a merge that are on both sides.
MATCH = 0.3


def partitions_of(size: float) -> tuple[int, int]:
    """Returns the number of partitions of a frame of this size in bytes, and the rows of each."""
    parts = max(8, round(size / PARTITION_BYTES))
    return parts, int(size / parts / 8 / COLUMNS)


def mixed(numbers: Any) -> Any:
    """Returns other numbers of 32 bits, different ones for different numbers."""
    x = numbers.astype(np.uint32)
    for by, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(by)
    return (x ^ (x >> np.uint32(16))).astype(np.int64)


def part(number: int, rows: int, first: int = 0) -> pd.DataFrame:
    """Makes a partition: each key is in the frame once, in an order like a random one."""
    ids = np.arange(rows, dtype=np.int64) + number * rows + first
    return pd.DataFrame({"k": mixed(ids), "a": ids, "b": ids * 0.5, "c": -ids})


def frame(size: float, first: int = 0) -> tuple[Any, int]:
    """Returns a frame of this size in bytes, and the number of its rows."""
    parts, rows = partitions_of(size)
    return dd.from_map(part, range(parts), rows=rows, first=first, meta=part(0, 1)), parts * rows


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"rows": [len(rows)], "sum": [int(rows.a.sum())]})


def total(df: Any) -> tuple[int, int]:
    """Returns the number of rows, and the sum of column a."""
    found = df.map_partitions(summary, meta=summary(part(0, 1))).compute().sum()
    return int(found["rows"]), int(found["sum"])


def expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise SystemExit(f"wrong result: {found}, and {wanted} is right")


def make(size: float) -> None:
    df, rows = frame(size)
    expect(total(df), (rows, rows * (rows - 1) // 2))


def shuffle(size: float) -> None:
    df, rows = frame(size)
    expect(total(df.shuffle("k")), (rows, rows * (rows - 1) // 2))


def merge(size: float) -> None:
    left, rows = frame(size / 2)
    first = rows - int(rows * MATCH)
    right, _ = frame(size / 2, first)
    found = left.merge(right[["k", "b"]].rename(columns={"b": "other"}), on="k")
    expect(total(found), (rows - first, sum(range(first, rows))))


def groupby(size: float) -> None:
    df, rows = frame(size)
    df["k"] = df["k"] % (rows // 20)
    found = df.groupby("k", sort=False).agg({"a": "sum", "b": "mean"}, split_out=df.npartitions).reset_index()
    expect(total(found)[1], rows * (rows - 1) // 2)


def set_index(size: float) -> None:
    df, rows = frame(size)
    expect(total(df.set_index("k")), (rows, rows * (rows - 1) // 2))


def block(rows: int, columns: int) -> np.ndarray:
    return (np.arange(rows * columns, dtype=np.int64) % 1024).astype(np.float64).reshape(rows, columns)


def rechunk(size: float) -> None:
    """From blocks of rows to blocks of columns."""
    parts, numbers = partitions_of(size)
    columns = 64 * parts
    rows = max(1, numbers * COLUMNS // columns)
    x = da.map_blocks(block, rows, columns, chunks=((rows,) * parts, (columns,)), dtype="f8", meta=block(0, 0))
    found = x.rechunk((rows * parts, 64)).map_blocks(np.sum, keepdims=True, chunks=(1, 1), dtype="f8")
    expect(float(found.compute().sum()), parts * float(block(rows, columns).sum()))


PROGRAMS: dict[str, Callable[[float], None]] = {
    "make the frame": make,
    "shuffle": shuffle,
    "merge": merge,
    "groupby": groupby,
    "set_index": set_index,
    "rechunk": rechunk,
}


def main() -> None:
    library, where, gigabytes, *only = sys.argv[1:]
    if library == "dask":
        from distributed import Client

        client = Client(where)
    else:
        from millrace import Client

        info = json.loads(Path(where).read_text())
        os.environ["MILLRACE_TOKEN"] = info["token"]
        client = Client(info["address"])
    client.wait_for_workers(2, timeout=60)
    out: dict[str, float] = {}
    with client:
        for name, program in PROGRAMS.items():
            if only and name not in only:
                continue
            program(4e6)
            start = time.perf_counter()
            program(float(gigabytes) * 1e9)
            out[name] = time.perf_counter() - start
            print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
