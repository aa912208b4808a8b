"""Queries of Polars while a worker dies, and with less memory than their data."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from conftest import PATIENCE, Gate
from millrace import Client, LocalCluster
from millrace.polars import Engine, Options
from polars.testing import assert_frame_equal

c = pl.col
ROWS = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 32 MiB in memory, in 8 files."""
    home = tmp_path_factory.mktemp("data")
    for i in range(8):
        row = pl.int_range(i * ROWS // 8, (i + 1) * ROWS // 8)
        frame = pl.select(row=row, k=row * 7919 % 10_007, v=row * 104_729 % ROWS, x=row * 0.5)
        frame.write_parquet(home / f"{i}.parquet")
    return home


def medians(t: pl.LazyFrame) -> pl.LazyFrame:
    return t.group_by("k").agg(c("x").median(), c("v").sum()).sort("k")


QUERIES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "groups": medians,
    "sort": lambda t: t.sort("v").select("v", "row"),
    "join": lambda t: t.join(t.select("v", twin="row"), left_on="row", right_on="v").select("row", "twin").sort("row"),
    "windows": lambda t: t.select("row", r=c("v").rank().over("k")),
}


@pytest.mark.parametrize("stage", [pytest.param("scan", marks=pytest.mark.long), "groups"])
def test_a_worker_dies_in_the_middle_of_a_query(stage: str, data: Path, gate: Gate) -> None:
    """The gate holds the tasks of one stage back: when the worker dies, the rows of some files are
    divided by their keys, or those of some keys are grouped."""
    here, door = gate.path + ".here", gate.path + ".open"

    def behind(column: pl.Series) -> pl.Series:
        if len(column):  # Polars also runs plans without rows
            with open(here, "wb") as pipe:  # noqa: PTH123 - pickled by value
                pipe.write(b"x")
            with open(door, "rb", buffering=0) as pipe:  # noqa: PTH123
                pipe.read(1)
        return column

    lf = pl.scan_parquet(data / "[0-2].parquet")
    want = medians(lf).collect()
    slow = c("x").map_batches(behind, pl.Float64)
    if stage == "scan":
        lf = lf.select("row", "k", "v", slow)
        query = medians(lf)
    else:
        query = medians(lf).select("k", slow, "v")
    options = Options(parts=6, least_bytes=1, broadcast_limit=0, gather_limit=0, fallback_mode="silent")
    with LocalCluster(3, threads_per_worker=1, memory_limit="256MiB", device="host") as own, Client(own) as client:
        client.wait_for_workers(3, timeout=PATIENCE)
        victim = client.submit(os.getppid, pure=False).result(PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda: query.collect(engine=Engine(client, options=options)))
            gate.wait()
            os.kill(victim, signal.SIGKILL)
            gate.open(100)
            assert_frame_equal(found.result(), want)


@pytest.fixture(scope="module")
def little() -> Iterator[Client]:
    """A client of a cluster with half as much memory as the table has."""
    with LocalCluster(2, threads_per_worker=1, memory_limit="8MiB", device="host") as own, Client(own) as client:
        yield client


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.long
def test_a_query_over_twice_the_memory(name: str, data: Path, little: Client) -> None:
    """The table has 32 MiB, and the workers have 16 together. The rest is on the disk."""
    query = QUERIES[name](pl.scan_parquet(data / "*.parquet"))
    options = Options(parts=32, least_bytes=1, broadcast_limit=0, gather_limit=0, fallback_mode="raise")
    assert_frame_equal(query.collect(engine=Engine(little, options=options)), query.collect())
