"""Rechunks of Dask's arrays on a cluster of real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster
from millrace._dask._exchange import split_block
from millrace._dask._plan import of_items


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(n_workers=2) as opened:
        yield opened


def values(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype="f8").reshape(shape)


#: Shapes, old chunks and new chunks.
CASES: list[tuple[tuple[int, ...], Any, Any]] = [
    ((120, 90), (10, 90), (120, 9)),
    ((100, 60), (30, 20), (45, 25)),
    ((60, 60), (60, 60), (20, 20)),
    ((60, 60), (20, 20), (60, 60)),
    ((50,), (7,), (20,)),
    ((12, 10, 8), (5, 10, 3), (12, 4, 8)),
    ((40, 0), (10, 1), (20, 1)),
    ((), (), ()),
]


@pytest.mark.parametrize(("shape", "old", "new"), CASES)
def test_values_stay_in_other_chunks(client: Client, shape: Any, old: Any, new: Any) -> None:
    data = values(*shape)
    x = da.from_array(data, chunks=old) + 1
    found = x.rechunk(new)
    assert found.chunks == x.rechunk(new, method="tasks").chunks
    np.testing.assert_array_equal(found.compute(), data + 1)
    blocks = found.to_delayed()
    for index, block in zip(np.ndindex(blocks.shape), dask.compute(*blocks.flat), strict=True):
        assert block.shape == tuple(axis[n] for axis, n in zip(found.chunks, index, strict=True))


def test_large_blocks(client: Client) -> None:
    data = np.random.default_rng(1).random((1200, 1200))
    x = da.from_array(data, chunks=(150, 1200)).persist()
    np.testing.assert_array_equal(x.rechunk((1200, 150)).compute(), data)
    np.testing.assert_array_equal((x.rechunk((1200, 150)).rechunk((500, 500)) * 2).compute(), data * 2)


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "c16", "?"])
def test_types(client: Client, dtype: str) -> None:
    data = np.arange(36).reshape(6, 6).astype(dtype)
    found = da.from_array(data, chunks=(2, 6)).rechunk((6, 2)).compute()
    assert found.dtype == data.dtype
    np.testing.assert_array_equal(found, data)


def test_masked_arrays(client: Client) -> None:
    data = np.ma.masked_less(values(6, 6), 10)
    found = da.from_array(data, chunks=(2, 6), asarray=False).rechunk((6, 2)).compute()
    np.testing.assert_array_equal(found.mask, data.mask)
    np.testing.assert_array_equal(found.filled(0), data.filled(0))


def test_chunks_of_unknown_size(client: Client) -> None:
    x = da.from_array(values(20, 6), chunks=(5, 2))
    some = x[x[:, 0] > 50]
    np.testing.assert_array_equal(some.rechunk({1: 3}).compute(), values(20, 6)[9:])


def splits(x: Any) -> int:
    """Returns the number of tasks that divide blocks."""
    return sum(getattr(node, "func", None) is split_block for node in x.__dask_graph__().values())


def test_a_rechunk_has_one_task_a_block(client: Client) -> None:
    x = da.zeros((80, 80), chunks=(10, 80))
    found = x.rechunk((80, 10))
    assert splits(found) == 8 and len(found.__dask_graph__()) == len(x.__dask_graph__()) + 16
    tasks = x.rechunk((80, 10), method="tasks", threshold=100)
    assert splits(tasks) == 0 and len(tasks.__dask_graph__()) == len(x.__dask_graph__()) + 72


def test_whole_blocks_are_not_divided(client: Client) -> None:
    x = da.zeros((60,), chunks=10).rechunk(20)
    assert splits(x) == 0
    halves = da.zeros((60,), chunks=20).rechunk(10)
    assert splits(halves) == 0
    mixed = da.zeros((60,), chunks=10).rechunk(25)
    assert splits(mixed) == 1


def test_many_parts_are_joined_in_steps(client: Client) -> None:
    x = da.zeros((400, 400), chunks=(1, 400)).rechunk((400, 1))
    parts = sum(len(node.args[0]) for node in x.__dask_graph__().values() if getattr(node, "func", None) is of_items)
    assert 0 < parts < 160_000
    direct = da.zeros((40, 40), chunks=(1, 40)).rechunk((40, 1))
    assert splits(direct) == 40


def test_some_blocks_only(client: Client) -> None:
    x = da.from_array(values(40, 40), chunks=(10, 40)).rechunk((40, 10))
    np.testing.assert_array_equal(x[:, 12:15].compute(), values(40, 40)[:, 12:15])


def test_settings_and_arguments_choose_the_method(client: Client) -> None:
    x = da.zeros((80, 80), chunks=(10, 80))
    assert dask.config.get("array.rechunk.method") == "millrace"
    with dask.config.set({"array.rechunk.method": "tasks"}):
        assert splits(x.rechunk((80, 10))) == 0
        assert splits(x.rechunk((80, 10), method="millrace")) == 8
        assert splits(da.rechunk(x, (80, 10), None, None, False, "millrace")) == 8
    with pytest.raises(NotImplementedError, match="Unknown rechunking method 'absent'"):
        x.rechunk((80, 10), method="absent")


def test_the_method_of_distributed_is_taken_for_ours(client: Client) -> None:
    data = np.arange(400).reshape(20, 20)
    ours = da.from_array(data, chunks=(4, 20)).rechunk((20, 4), method="millrace")
    with dask.config.set({"array.rechunk.method": "p2p"}):
        for found in (
            da.from_array(data, chunks=(4, 20)).rechunk((20, 4)),
            da.from_array(data, chunks=(4, 20)).rechunk((20, 4), method="p2p"),
        ):
            assert len(found.dask) == len(ours.dask)
            np.testing.assert_array_equal(found.compute(), data)


def test_other_schedulers_run_the_same_graph(client: Client) -> None:
    x = da.from_array(values(40, 40), chunks=(10, 40)).rechunk((40, 10))
    np.testing.assert_array_equal(x.compute(scheduler="threads"), values(40, 40))


def block(block_info: Any = None) -> Any:
    """Makes a block of rows: each element is the number of its row."""
    begin, end = block_info[None]["array-location"][0]
    return np.repeat(np.arange(begin, end, dtype="f8")[:, None], 4096, axis=1)


def test_arrays_larger_than_the_memory_of_all_workers() -> None:
    with LocalCluster(2, threads_per_worker=1, memory_limit="32MiB", device="host") as own, Client(own):
        x = da.map_blocks(block, chunks=((96,) * 32, (4096,)), dtype="f8", meta=np.empty((0, 0)))
        sums = x.rechunk((3072, 128)).map_blocks(np.sum, axis=0, keepdims=True, chunks=(1, 128), dtype="f8")
        np.testing.assert_array_equal(sums.compute(), np.full((1, 4096), sum(range(3072))))


IMPORTED_BEFORE = """
import dask.array as da
from dask.array import rechunk
from dask.array.rechunk import rechunk as same
from millrace import Client

with Client(n_workers=1) as client:
    x = da.arange(40, chunks=10)
    assert da.rechunk is not rechunk and rechunk is same
    assert da.rechunk(x, 16).sum().compute() == 780
    assert rechunk(x, 16).sum().compute() == 780
assert x.rechunk(16).sum().compute() == 780
"""


def test_arrays_that_were_imported_before() -> None:
    subprocess.run([sys.executable, "-c", IMPORTED_BEFORE], check=True, timeout=PATIENCE)
