"""Tests data frames of cuDF on a real GPU: as results, as inputs, in lists and in pickles, and in
pieces. It starts a cluster of its own, takes less than two minutes, and prints one line of JSON.

    export MILLRACE_BINARY=bin/millrace PYTHONPATH=clients/python/src:$PYTHONPATH
    python3 test/gpu/frames.py

Needs cudf, pandas and pyarrow.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import cloudpickle
import cudf
import cupy
import numpy as np
import pandas as pd
from millrace import Client, LocalCluster
from millrace._frames import _pieces
from millrace._values import _cudf

cloudpickle.register_pickle_by_value(sys.modules[__name__])
TIMEOUT = 60
ROWS = 100_000
WIDE = 20_000_000
seconds: dict[str, float] = {}
passed: list[str] = []


def host_frame(rows: int = ROWS) -> pd.DataFrame:
    number = np.arange(rows)
    text = [None if n % 11 == 0 else "é" * (n % 5) + str(n % 97) for n in range(rows)]
    return pd.DataFrame(
        {
            "i64": number % 97,
            "f32": (number / 4).astype("f4"),
            "flag": number % 2 == 0,
            "missing": pd.Series([None if n % 5 == 0 else n for n in range(rows)], dtype="Int64"),
            "text": text,
            "category": pd.Series(text, dtype="category"),
            "when": pd.date_range("2020", periods=rows, freq="s"),
            "lasts": pd.to_timedelta(number, unit="s"),
        }
    ).set_axis(pd.Index(number * 3, name="row"))  # after the columns: pandas would align them


def make(kind: str) -> Any:
    frame = cudf.from_pandas(host_frame())
    few = ROWS // 100
    made = {
        "frame": lambda: frame,
        "slice": lambda: frame.iloc[1003:5009],
        "empty": lambda: frame.iloc[:0],
        "text": lambda: frame["text"],
        "numbers": lambda: frame["i64"],
        "index": lambda: frame.index,
        "range": lambda: cudf.RangeIndex(3, 99, 2, name="r"),
        "multi": lambda: frame.set_index(["i64", "text"]),
        "lists": lambda: cudf.Series([[n, n + 1] if n % 3 else None for n in range(few)]),
        # Not of text: cuDF 26.10 cannot serialise structs with it.
        "structs": lambda: cudf.Series([{"a": n, "b": n / 2} for n in range(few)]),
        "decimals": lambda: cudf.Series(range(few)).astype(cudf.Decimal64Dtype(9, 2)),
        "list": lambda: [frame, frame["text"], 1],
        "pickle": lambda: (frame, {3: frame["text"]}),
    }
    return made[kind]()


KINDS = [
    *("frame", "slice", "empty", "text", "numbers", "index", "range", "multi", "lists", "structs", "decimals"),
    *("list", "pickle"),
]


def same(a: Any, b: Any) -> bool:
    """Compares two objects of cuDF, or trees of them."""
    if isinstance(a, dict):
        return all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if not hasattr(a, "to_arrow"):
        return a == b
    assert type(a) is type(b), (type(a), type(b))
    return a.to_arrow().equals(b.to_arrow())


def check(kind: str, given: Any) -> bool:
    return same(make(kind), given)


def write_to(frame: Any) -> int:
    """Writes to an input, which must not change for others."""
    frame["i64"][:] = -1
    frame.loc[frame.index[0], "f32"] = -1.0
    return int((frame["i64"] == -1).sum())


def address(frame: Any) -> int:
    """Returns where a column lies. `device_serialize` would copy a buffer that shares its memory."""
    _, frames = _cudf.take_apart(frame["x"], on_gpu=True)
    return frames[0].view.pointer


def wide(rows: int, seed: int) -> Any:
    generator = cupy.random.default_rng(seed)
    columns = {c: generator.random(rows) for c in "abc"}
    return cudf.DataFrame({"x": generator.integers(0, 1 << 40, rows), **columns})


def placed(seed: int) -> dict[str, Any]:
    """Returns a frame, and the address of a column."""
    frame = wide(WIDE, seed)
    return {"frame": frame, "at": address(frame)}


def in_place(made: dict[str, Any]) -> bool:
    return address(made["frame"]) == made["at"]


def check_arena() -> None:
    """Checks that results lie in memory of the slab if RMM has it, and measures the difference."""
    os.environ["MILLRACE_EXECUTOR_ARENA_FOR"] = "cupy,rmm"
    for arena in ("0", "8GiB"):
        with LocalCluster(1, threads_per_worker=1, executor_arena=arena) as cluster, Client(cluster) as client:
            for seed in range(3):  # RMM is imported by the first task, and leases are kept by the second
                made = client.submit(placed, seed, pure=False)
                timed(f"a frame of 640 MB, arena of {arena}, run {seed}", [made])
            stays = client.submit(in_place, made, pure=False).result(TIMEOUT)
            passes(
                f"a result is {'not ' if arena != '0' else ''}copied with an arena of {arena}", stays == (arena != "0")
            )
            kept = client.submit(lambda m: same(m["frame"], wide(WIDE, 2)), made, pure=False)
            passes(f"it has its elements, arena of {arena}", kept.result(TIMEOUT))


def split(frame: Any, n: int) -> Any:
    return _pieces.split_by_hash(frame, "x", n)


def join(number: int, *splits: Any) -> Any:
    return _pieces.concatenate([s[number] for s in splits])


def timed(name: str, futures: list[Any]) -> list[Any]:
    begin = time.perf_counter()
    for future in futures:
        future.exception(TIMEOUT)
    seconds[name] = round(time.perf_counter() - begin, 4)
    return futures


def passes(name: str, holds: object) -> None:
    if not holds:
        raise AssertionError(f"{name} failed; passed before: {passed}")
    passed.append(name)


def main() -> None:
    begin = time.perf_counter()
    with LocalCluster(1) as cluster, Client(cluster) as client:
        made = {kind: client.submit(make, kind, pure=False) for kind in KINDS}
        for kind, future in made.items():
            passes(f"task reads {kind}", client.submit(check, kind, future, pure=False).result(TIMEOUT))
            passes(f"client reads {kind}", same(make(kind), future.result(TIMEOUT)))
        scattered = client.scatter(make("frame"))
        passes("task reads a scattered frame", client.submit(check, "frame", scattered).result(TIMEOUT))

        passes("a task writes to its input", client.submit(write_to, made["frame"]).result(TIMEOUT) == ROWS)
        again = client.submit(check, "frame", made["frame"], pure=False).result(TIMEOUT)
        passes("the input stayed as it was", again)

        parts = [client.submit(wide, WIDE, seed, pure=False) for seed in range(2)]
        timed("two frames of 640 MB are made", parts)
        same_frame = client.submit(lambda f: f, parts[0], pure=False)
        timed("a task returns its input", [same_frame])
        # In one task: each process has the slab at addresses of its own.
        shared = client.submit(lambda *frames: len(set(map(address, frames))) == 1, parts[0], same_frame)
        passes("a result that is an input has no copy", shared.result(TIMEOUT))

        for n in range(2):  # the second time is without the start of processes
            splits = timed(f"split, run {n}", [client.submit(split, p, 4, pure=False) for p in parts])
            joined = timed(f"join, run {n}", [client.submit(join, j, *splits, pure=False) for j in range(4)])
        rows = client.gather([client.submit(len, j) for j in joined], timeout=TIMEOUT)
        passes("no row is lost", sum(rows) == 2 * WIDE and min(rows) > WIDE // 3)
        sums = [client.submit(lambda f: float(f["a"].sum()), f) for f in (*joined, *parts)]
        values = client.gather(sums, timeout=TIMEOUT)
        passes("the sums agree", np.isclose(sum(values[:4]), sum(values[4:])))
        distinct = [client.submit(lambda f: int(f["x"].nunique()), f) for f in joined]
        total = client.submit(lambda a, b: int(cudf.concat([a["x"], b["x"]]).nunique()), *parts)
        passes("equal keys meet", sum(client.gather(distinct, timeout=TIMEOUT)) == total.result(TIMEOUT))

    check_arena()
    frame = cudf.from_pandas(host_frame())
    for label in ("i64", "text", "category", "missing"):
        halves = [_pieces.split_by_hash(f, label, 7) for f in (frame.iloc[: ROWS // 3], frame.iloc[ROWS // 3 :])]
        keys = [
            set(map(repr, _pieces.concatenate(list(p))[label].unique().to_arrow().to_pylist()))
            for p in zip(*halves, strict=True)
        ]
        every = set(map(repr, frame[label].unique().to_arrow().to_pylist()))
        passes(f"keys of {label} meet", set.union(*keys) == every and sum(map(len, keys)) == len(every))
    pieces = _pieces.split_by_range(frame, "i64", [10, 50], descending=True)
    passes("ranges", [int(p["i64"].min()) for p in pieces] == [50, 10, 0] and sum(map(len, pieces)) == ROWS)
    pieces = _pieces.split_by_range(frame, "text", ["2", "5"])
    passes("missing values are last", pieces[-1]["text"].isna().sum() == frame["text"].isna().sum())
    whole = round(time.perf_counter() - begin, 1)
    print(json.dumps({"passed": len(passed), "cudf": cudf.__version__, "seconds": seconds, "whole_s": whole}))


main()
