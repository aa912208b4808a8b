"""Datasets: values with futures under a name."""

from __future__ import annotations

import math
import threading
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from millrace import AsyncClient, Client, LocalCluster, errors
from millrace._pb.millrace.v1 import dataset_pb2


def inc(x: int) -> int:
    return x + 1


def test_datasets(cluster: LocalCluster, client: Client) -> None:
    client.publish_dataset("numbers", {"a": client.submit(inc, 1), "b": [client.submit(inc, 2), 5]})
    with pytest.raises(errors.InvalidRequestError, match="numbers"):
        client.publish_dataset("numbers", client.submit(inc, 3))
    with Client(cluster) as second:
        assert "numbers" in second.list_datasets()
        assert second.gather(second.get_dataset("numbers")) == {"a": 2, "b": [3, 5]}
        second.publish_dataset("numbers", second.submit(inc, 9), override=True)
    assert client.get_dataset("numbers").result() == 10
    client.unpublish_dataset("numbers")
    assert "numbers" not in client.list_datasets()
    with pytest.raises(errors.NotFoundError, match="numbers"):
        client.get_dataset("numbers")


def test_values_arrive_as_they_were(cluster: LocalCluster, client: Client) -> None:
    data: dict[str, Any] = {
        "z": None, "a": [True, -(2**63), 2**63 - 1, 1.5, 1 - 2j, "t\u00e9xt", b"\x00\xff"],
        "empty": [[], {}, "", b""], "\u00e9": {"z": 1, "a": {"inner": [None]}},
    }  # fmt: skip
    array = np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1]
    client.publish_dataset("plain", [data, array, np.float32(0.5), np.array(7), (1, (2, "x"))], override=True)
    with Client(cluster) as reader:
        got, gaps, scalar, zero_d, nested = reader.get_dataset("plain")
    assert got == data
    assert list(got) == list(data) and list(got["\u00e9"]) == ["z", "a"]
    assert gaps.dtype == np.int32 and (gaps == array).all() and gaps.flags.writeable
    assert type(scalar) is np.float32 and scalar == 0.5
    assert zero_d == 7 and zero_d.ndim == 0
    assert nested == [1, [2, "x"]]  # tuples become lists
    client.publish_dataset("plain", math.nan, override=True)
    assert math.isnan(client.get_dataset("plain"))
    client.unpublish_dataset("plain")


def test_each_result_is_held_once_and_by_one_call(client: Client, cluster: LocalCluster) -> None:
    futures = client.map(inc, range(2000))
    client.publish_dataset("many", {"all": futures, "again": [futures[7], futures[7]]})
    for f in futures:
        f.release()
    with Client(cluster) as reader:
        calls: list[str] = []
        call = reader.session.call
        reader.session.call = lambda method, *args, **kwargs: [calls.append(method), call(method, *args, **kwargs)][1]
        found = reader.get_dataset("many")
        assert calls == ["GetDataset", "HoldTasks"]
        assert found["again"][0] is found["again"][1] is found["all"][7]
        client.unpublish_dataset("many")
        assert reader.gather(found["all"]) == list(range(1, 2001))


def test_a_dataset_whose_result_is_gone_holds_nothing(client: Client) -> None:
    known = client.submit(inc, 41, key="known-of-two")
    client.session.flush()
    with pytest.raises(errors.NotFoundError, match="fresh-key"):
        client.session.hold_all(["known-of-two", "fresh-key"])
    eventually(lambda: known._state.refs == 1)
    assert client.session.state("fresh-key")[1], "the key is still in the table"
    assert known.result(PATIENCE) == 42


Point = namedtuple("Point", "x y")


class Odd:
    def __eq__(self, other: object) -> bool:
        return type(other) is Odd

    __hash__ = None  # type: ignore[assignment]


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = {"k": tree}
    return tree


def test_the_deepest_value_is_read(client: Client) -> None:
    client.publish_dataset("deep", deep(30), override=True)
    assert client.get_dataset("deep") == deep(30)
    client.unpublish_dataset("deep")


@pytest.mark.parametrize(
    "data",
    [
        {"a": [0, Odd()], "b": 1},
        [{1, 2}, 3],
        [Point(1, 2), {"k": Point(3, 4)}],
        {1: 2, (3, "x"): [4]},
        2**63,
        "\ud800",
        {"\ud800": 1},
        np.zeros(70_000, np.uint8),
        [np.zeros(2, np.float16), "beside"],
        np.array([None]),
        np.ma.masked_array([1, 2], [False, True]),
        deep(31),
        deep(60),
        list(range(300_000)),
        {"a": ["x" * 700_000, Odd(), "y" * 700_000]},
        inc,
        {"stored object": 1, "its futures": []},
    ],
)
def test_objects_that_other_languages_cannot_read_are_stored(cluster: LocalCluster, client: Client, data: Any) -> None:
    with Client(cluster) as publisher:
        publisher.publish_dataset("odd", data)
    got = client.get_dataset("odd")
    assert type(got) is type(data)
    if type(data) is list and len(data) > 1000:
        assert got == data  # NumPy compares objects one by one
    else:
        np.testing.assert_equal(got, data)
    client.unpublish_dataset("odd")


def test_one_round_trip_fetches_all_stored_objects(client: Client) -> None:
    client.publish_dataset("odd", [Odd() for _ in range(50)] + [Point(1, 2)] * 50)
    calls: list[str] = []
    call = client.session.call
    client.session.call = lambda method, *args, **kwargs: [calls.append(method), call(method, *args, **kwargs)][1]
    assert client.get_dataset("odd") == [Odd()] * 50 + [Point(1, 2)] * 50
    assert len(calls) < 10, calls
    client.unpublish_dataset("odd")


def test_futures_inside_of_a_stored_object_are_kept(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster) as publisher:
        inside = publisher.submit(inc, 41, pure=False)
        publisher.publish_dataset("odd", [Point(inside, 1), {2: inside}])
        del inside
    point, mapping = client.get_dataset("odd")
    assert point.x.result(PATIENCE) == mapping[2].result(PATIENCE) == 42
    client.unpublish_dataset("odd")


def test_an_object_that_cannot_be_pickled_is_refused(client: Client) -> None:
    with pytest.raises(errors.SerialisationError, match="lock"):
        client.publish_dataset("bad", [1, threading.Lock()])
    assert "bad" not in client.list_datasets()


def test_the_future_of_another_client_is_named(client: Client, cluster: LocalCluster) -> None:
    with Client(cluster) as other, pytest.raises(ValueError, match=r"data\['f'\]: future .* belongs to another client"):
        client.publish_dataset("bad", {"f": other.submit(inc, 1)})


def test_more_futures_than_a_dataset_holds_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace._calls._datasets._MOST_KEYS", 2)
    with pytest.raises(errors.InvalidRequestError, match=r"4 different futures, and the limit is 2") as caught:
        client.publish_dataset("bad", client.map(inc, range(3)))
    assert caught.value.reason == "TOO_LARGE"


def test_the_scheduler_takes_no_pickles(client: Client) -> None:
    """Another program cannot make the readers of a dataset unpickle anything."""
    request = dataset_pb2.PublishDatasetRequest(client_id=client.session.client_id, name="pickled")
    request.value.opaque_value.encoding = "pickle5"
    with pytest.raises(errors.InvalidRequestError, match=r"pickle5"):
        client.session.call("PublishDataset", request)


def test_the_forms_of_publishing(client: Client) -> None:
    future = client.submit(inc, 1)
    client.publish_dataset(x=future, y=[1, future])
    client.publish_dataset(5, name="z")
    client.publish_dataset(1, 2, name=("t", 0))
    client.publish_dataset({"w": "text", 7: None})
    assert set(client.list_datasets()) == {"x", "y", "z", ("t", 0), "w", 7}
    assert client.get_dataset("x").result() == 2
    assert client.get_dataset(["z", ("t", 0), "w", 7]) == [5, [1, 2], "text", None]
    assert client.get_dataset("none", None) is None and client.get_dataset(["none", "z"], default=0) == [0, 5]
    with pytest.raises(KeyError, match=r"dataset 'none' not found in this namespace: client\.datasets lists them"):
        client.get_dataset("none")
    for call in (
        lambda: client.publish_dataset(),
        lambda: client.publish_dataset(future),
        lambda: client.publish_dataset(1, 2, 3),
        lambda: client.publish_dataset(name="x"),
    ):
        with pytest.raises(ValueError, match="publish_dataset"):
            call()
    client.unpublish_dataset(["x", "none"])
    client.unpublish_dataset("none")
    for name in ("y", "z", ("t", 0), "w", 7):
        client.unpublish_dataset(name)
    assert client.list_datasets() == []


def test_datasets_as_a_dict(client: Client) -> None:
    datasets = client.datasets
    datasets["x"] = client.submit(inc, 1)
    datasets["y"] = 3
    with pytest.raises(errors.InvalidRequestError, match="x"):
        datasets["x"] = 4
    assert list(datasets) == ["x", "y"] and len(datasets) == 2 and "x" in datasets and "z" not in datasets
    assert repr(datasets) == "<datasets: 'x', 'y'>"
    assert client.gather(dict(datasets)) == {"x": 2, "y": 3}
    assert datasets.get("z") is None
    with pytest.raises(KeyError):
        datasets["z"]
    del datasets["x"]
    assert datasets.pop("y") == 3
    assert not datasets


async def test_datasets_in_an_event_loop(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        await client.publish_dataset(x=client.submit(inc, 1))
        assert await (await client.datasets["x"]).result() == 2
        assert [name async for name in client.datasets] == ["x"]
        with pytest.raises(TypeError, match="publish_dataset"):
            client.datasets["y"] = 1
        with pytest.raises(TypeError, match="unpublish_dataset"):
            del client.datasets["x"]
        with pytest.raises(TypeError, match="async for"):
            iter(client.datasets)  # pyright: ignore[reportUnknownVariableType]
        with pytest.raises(TypeError, match="list_datasets"):
            len(client.datasets)
        await client.unpublish_dataset("x")


def test_a_name_that_is_taken_is_a_key_error(client: Client) -> None:
    client.publish_dataset("taken", 1)
    with pytest.raises(KeyError, match="override=True"):
        client.publish_dataset("taken", 2)
    client.unpublish_dataset("taken")
