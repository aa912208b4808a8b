"""Datasets: values with futures under a name."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from millrace import Client, LocalCluster, errors
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
    def __repr__(self) -> str:
        return "Odd()"


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
    ("data", "text"),
    [
        ({"a": [0, Odd()]}, r"dataset bad: data\['a'\]\[1\]: Odd\(\) of type .*Odd .*scatter"),
        ([{1, 2}], r"data\[0\]: \{1, 2\} of type set .*scatter"),
        ([Point(1, 2)], r"data\[0\]: Point\(x=1, y=2\) of type .*Point .*scatter"),
        ({1: 2}, r"data: key 1 is of type int: the keys of a dict must be str"),
        (2**63, r"data: 9223372036854775808 of type int .*int of 64 bits"),
        ("\ud800", r"data: '\\ud800' of type str"),
        (np.zeros(70_000, np.uint8), r"data: a numpy.ndarray of uint8 and 68\.4 KiB .*up to 64 KiB.*scatter"),
        (np.zeros(2, np.float16), r"data: a numpy.ndarray of float16 .*scatter"),
        (np.array([None]), r"data: a numpy.ndarray of object .*scatter"),
        (np.ma.masked_array([1]), r"data: a numpy.ma.*Array of int64 .*scatter"),
        (deep(31), r"data(\['k'\]){30}: more than 30 lists and dicts .*flatter"),
        (inc, r"data: <function inc.* of type function .*scatter"),
    ],
)
def test_objects_that_other_languages_cannot_read_are_refused(client: Client, data: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        client.publish_dataset("bad", data)
    assert "bad" not in client.list_datasets()


def test_a_dict_key_that_is_no_text_is_named(client: Client) -> None:
    with pytest.raises(ValueError, match=r"data: key '\\ud800'.*not valid Unicode"):
        client.publish_dataset("bad", {"\ud800": 1})


def test_the_future_of_another_client_is_named(client: Client, cluster: LocalCluster) -> None:
    with Client(cluster) as other, pytest.raises(ValueError, match=r"data\['f'\]: future .* belongs to another client"):
        client.publish_dataset("bad", {"f": other.submit(inc, 1)})


def test_more_futures_than_a_dataset_holds_are_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace._datasets._MOST_KEYS", 2)
    with pytest.raises(errors.InvalidRequestError, match=r"3 different futures, and the limit is 2") as caught:
        client.publish_dataset("bad", client.map(inc, range(3)))
    assert caught.value.reason == "TOO_LARGE"


def test_the_scheduler_takes_no_pickles(client: Client) -> None:
    """Another program cannot make the readers of a dataset unpickle anything."""
    request = dataset_pb2.PublishDatasetRequest(client_id=client.session.client_id, name="pickled")
    request.value.opaque_value.encoding = "pickle5"
    with pytest.raises(errors.InvalidRequestError, match=r"pickle5"):
        client.session.call("PublishDataset", request)
