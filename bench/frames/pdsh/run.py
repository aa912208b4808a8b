"""Runs the queries of PDS-H on a cluster of Millrace and by Polars' own in-memory engine, in turns,
and compares their answers.

    python bench/frames/pdsh/run.py SCHEDULER_FILE DIRECTORY [QUERY ...]

DIRECTORY has the tables that data.py makes. Prints one JSON object for each query: its number, and
the seconds of both. Each is the least of REPS runs after one more: other work on the machine only
adds to a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from millrace import Client
from millrace.polars import Engine
from polars.testing import assert_frame_equal
from queries import QUERIES, Tables

REPS = 3


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(query: pl.LazyFrame, engine: Engine) -> dict[str, float]:
    """Returns the seconds of both engines. Raises AssertionError if their answers differ."""
    runs: dict[str, Callable[[], pl.DataFrame]] = {
        "polars": lambda: query.collect(engine="in-memory"),
        "millrace": lambda: query.collect(engine=engine),
    }
    assert_frame_equal(runs["millrace"](), runs["polars"](), rel_tol=1e-9)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPS):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return {name: min(found) for name, found in times.items()}


def main() -> None:
    where, home, *only = sys.argv[1:]
    info = json.loads(Path(where).read_text())
    os.environ["MILLRACE_TOKEN"] = info["token"]
    tables = Tables(Path(home))
    with Client(info["address"]) as client:
        client.wait_for_workers(2, timeout=60)
        engine = Engine(client)
        for number, query in QUERIES.items():
            if not only or str(number) in only:
                print(json.dumps({"query": number, **compare(query(tables), engine)}), flush=True)


if __name__ == "__main__":
    main()
