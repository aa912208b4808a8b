"""Measures Dask's collections on a running cluster of two one-thread workers, with distributed or
with Millrace as the scheduler, and prints one JSON object of seconds.

    collections_workload.py dask ADDRESS | collections_workload.py millrace SCHEDULER_FILE

The same code drives both. Each figure is the least of REPS runs after one warm-up run: other work
on the machine only adds to a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

REPS = 3


@dask.delayed(pure=False)
def inc(x: int) -> int:
    return x + 1


@dask.delayed(pure=False)
def add(x: int, y: int) -> int:
    return x + y


@dask.delayed(pure=False)
def total(values: list[int]) -> int:
    return sum(values)


def tree() -> None:
    level: list[Any] = [inc(i) for i in range(4096)]
    while len(level) > 1:
        level = [add(level[i], level[i + 1]) for i in range(0, len(level), 2)]
    assert level[0].compute() == sum(range(1, 4097))


def tiny_chunks() -> None:
    x = da.ones((2000, 2000), chunks=(20, 20)) * np.random.default_rng().integers(1 << 30)
    assert x.sum().compute() > 0


def bag() -> None:
    found = (
        db.from_sequence(range(100_000), npartitions=100)
        .map(lambda x: x * 2)
        .foldby(lambda x: x % 10, lambda a, b: a + b, 0)
    )
    assert len(found.compute()) == 5


def transposed_sum() -> None:
    x = da.random.default_rng().random((20_000, 20_000), chunks=(2000, 2000))
    assert (x + x.T).sum().compute() > 0


def svd() -> None:
    x = da.random.default_rng().random((50_000, 400), chunks=(5000, 400)).persist()
    u, s, v = da.linalg.svd(x)
    u, s, v = dask.persist(u, s, v)
    assert s.compute().shape == (400,)


def frame(rows: int, keys: int, npartitions: int) -> Any:
    rng = np.random.default_rng()
    data = pd.DataFrame({"k": rng.integers(0, keys, rows), "a": rng.random(rows), "b": rng.random(rows)})
    return dd.from_pandas(data, npartitions=npartitions).persist()


def groupby() -> Callable[[], None]:
    data = frame(10_000_000, 1000, 10)

    def run() -> None:
        assert len(data.groupby("k").agg({"a": "mean", "b": "sum"}).compute()) == 1000

    return run


def merge() -> Callable[[], None]:
    left, right = frame(2_000_000, 400_000, 10), frame(400_000, 400_000, 4)

    def run() -> None:
        assert len(left.merge(right, on="k", shuffle_method="tasks").compute()) > 0

    return run


def shuffle() -> Callable[[], None]:
    data = frame(1_600_000, 1_000_000, 16)

    def run() -> None:
        assert len(data.shuffle("k", shuffle_method="tasks").map_partitions(len).compute()) == 16

    return run


def many_delayed() -> None:
    assert total([inc(i) for i in range(10_000)]).compute() == sum(range(1, 10_001))


#: The programs by name, and the greatest ratio to the time with distributed that is wanted.
PROGRAMS: dict[str, tuple[Any, float]] = {
    "tree of 8,191 delayed": (tree, 0.08),
    "array of 10,000 tiny chunks": (tiny_chunks, 0.15),
    "bag of 100,000, foldby": (bag, 0.3),
    "(x + x.T).sum(), 3.2 GB": (transposed_sum, 0.6),
    "persist, svd of 160 MB": (svd, 0.7),
    "groupby of 10,000,000 rows": (groupby, 0.85),
    "merge of 2,000,000 rows": (merge, 0.85),
    "shuffle by tasks": (shuffle, 0.8),
    "10,000 delayed and a sum": (many_delayed, 1.0),
}
#: Programs that prepare data first, and return what is measured.
PREPARED = (groupby, merge, shuffle)


def least_seconds(run: Callable[[], None]) -> float:
    run()
    seconds = []
    for _ in range(REPS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def own_seconds() -> float:
    """Returns the time that Dask itself takes for the graph of `many_delayed`, in this process."""
    from dask._expr import FinalizeCompute
    from dask.base import collections_to_expr

    def run() -> None:
        graph = total([inc(i) for i in range(10_000)])
        FinalizeCompute(collections_to_expr((graph,), True)).optimize().__dask_graph__()

    return least_seconds(run)


def main() -> None:
    library, where = sys.argv[1:3]
    only = sys.argv[3:]
    if library == "dask":
        from distributed import Client

        client = Client(where)
        client.wait_for_workers(2, timeout=60)
    else:
        from millrace import Client

        info = json.loads(Path(where).read_text())
        os.environ["MILLRACE_TOKEN"] = info["token"]
        client = Client(info["address"])
        client.wait_for_workers(2, timeout=60)
    out: dict[str, float] = {}
    with client:
        for name, (program, _) in PROGRAMS.items():
            if only and not any(text in name for text in only):
                continue
            out[name] = least_seconds(program() if program in PREPARED else program)
            if program is many_delayed:
                out[f"{name}, without Dask's own work"] = out[name] - own_seconds()
        print(json.dumps(out))


if __name__ == "__main__":
    main()
