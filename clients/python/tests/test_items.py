"""Tasks that need one item of a list (see `millrace._tasks._arguments.Item`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE
from millrace import Client, LocalCluster, TaskFailedError, native
from millrace._tasks._arguments import Item
from millrace._values import _serialize
from millrace._values._serialize import Items


@pytest.fixture(scope="module", params=["auto", "borrow", "grpc"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_PROTOCOL", request.param)
        with LocalCluster(n_workers=2) as cluster, Client(cluster) as client:
            yield client


def split(number: int, count: int, size: int) -> Items:
    return Items({"from": number, "to": j, "data": np.full(size, 1000 * number + j)} for j in range(count))


def join(*parts: Any) -> list[tuple[int, int, int]]:
    for part in parts:
        assert (part["data"] == 1000 * part["from"] + part["to"]).all()
    return [(part["from"], part["to"], len(part["data"])) for part in parts]


def same(*args: Any) -> tuple[Any, ...]:
    return args


@pytest.mark.parametrize("size", [3, 10_000, 200_000])
def test_each_joining_task_gets_its_items(client: Client, size: int) -> None:
    lists = [client.submit(split, i, 5, size, pure=False) for i in range(6)]
    joined = [client.submit(join, *(Item(f, j, 5) for f in lists)) for j in range(5)]
    for j, future in enumerate(joined):
        assert future.result(PATIENCE) == [(i, j, size) for i in range(6)]


def test_lists_that_are_larger_than_the_memory(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=2, memory_limit="64MiB", local_directory=tmp_path) as cluster,
        Client(cluster) as client,
    ):
        lists = [client.submit(split, i, 10, 100_000, pure=False) for i in range(40)]  # 8 MB each
        joined = [client.submit(join, *(Item(f, j, 10) for f in lists)) for j in range(10)]  # 32 MB each
        for j, future in enumerate(joined):
            assert future.result(PATIENCE) == [(i, j, 100_000) for i in range(40)]


def test_items_and_whole_lists_mix(client: Client) -> None:
    a = client.submit(Items, [1, ("x", 2), None, [3, "y"]])
    b = client.submit(same, a)  # no list, and read whole
    got = client.submit(same, Item(a, 3), Item(a, 1), a, Item(a, 2), b, Item(a, 1)).result(PATIENCE)
    assert got == ([3, "y"], ("x", 2), [1, ("x", 2), None, [3, "y"]], None, ([1, ("x", 2), None, [3, "y"]],), ("x", 2))


def test_native_ops_read_items(client: Client) -> None:
    lists = [client.submit(Items, [np.arange(4) + i, np.ones(3)], pure=False) for i in range(3)]
    total = client.submit(native("array.concat"), *(Item(f, 0) for f in lists), axis=0)
    assert total.result(PATIENCE).tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5]


def test_other_items_are_other_tasks(client: Client) -> None:
    a = client.submit(Items, ["x", "y"])
    assert [client.submit(same, Item(a, i)).result(PATIENCE) for i in (0, 1, 0)] == [("x",), ("y",), ("x",)]


@pytest.mark.parametrize("made, why", [(Items([1, 2, 3]), "a list of 3 items"), ({"a": 1}, "no list of typed values")])
def test_an_item_that_is_not_there_fails_the_task(client: Client, made: Any, why: str) -> None:
    a = client.submit(lambda: made, pure=False)
    with pytest.raises(TaskFailedError, match=rf"input 0, item 3 of the result of task {a.key}: .*{why}"):
        client.submit(same, Item(a, 3)).result(PATIENCE)


def test_impossible_items_are_refused() -> None:
    for index, count in [(-1, 0), (3, 3)]:
        with pytest.raises(ValueError, match="count from 0"):
            Item(None, index, count)  # pyright: ignore[reportArgumentType]


def test_items_are_encoded_apart() -> None:
    parts = [{"a": np.arange(5)}, "text", object, ("t", np.arange(3000)), [np.ones(2)], None]
    encoded = _serialize.encode(Items(parts))
    got = _serialize.decode(encoded.header, encoded.frames)
    assert type(got) is list and len(got) == len(parts)
    assert got[0]["a"].tolist() == [0, 1, 2, 3, 4] and got[1:3] == ["text", object]
    assert got[3][0] == "t" and got[3][1].sum() == sum(range(3000))
    assert got[4][0].tolist() == [1.0, 1.0] and got[5] is None
    assert len(encoded.frames) == 3
