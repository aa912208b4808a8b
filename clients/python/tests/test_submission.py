"""Submitting tasks through a client, and the rules of tasks."""

from __future__ import annotations

import asyncio
import functools
import operator
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import PATIENCE, Gate
from millrace import Client, LocalCluster, errors, get_task_info, native


def inc(x: int) -> int:
    return x + 1


def add(x: object, y: object = 10) -> object:
    return x + y  # type: ignore[operator]


def hang(gate: Gate) -> None:
    """Runs until it is ended. Arrives when it begins, and when it ends."""
    try:
        gate.arrive()
        while True:
            pass
    finally:
        gate.arrive()


def test_submit(client: Client) -> None:
    assert client.submit(inc, 1).result(PATIENCE) == 2
    assert client.submit(add, 1, y=2).result() == 3
    assert client.submit(lambda: None).result() is None
    assert client.submit("operator:mul", 6, 7).result() == 42
    assert client.submit(abs, -3).result() == 3
    a = client.submit(inc, 1)
    assert client.submit(add, a, y=a).result() == 4
    assert client.submit(lambda d: d["deep"][0][1], {"deep": [(0, a)]}).result() == 2


def test_submit_a_coroutine_function(client: Client) -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    assert client.submit(later, 4).result() == 8


def test_task_info(client: Client) -> None:
    info = client.submit(get_task_info, key="what-am-i", pure=False).result()
    assert info is not None
    assert (info.key, info.attempt, info.namespace) == ("what-am-i", 1, "default")
    assert info.worker in client.scheduler_info()["workers"]
    assert get_task_info() is None


def test_map(client: Client) -> None:
    futures = client.map(inc, range(200))
    assert client.gather(futures) == list(range(1, 201))
    assert client.gather(client.map(add, [1, 2, 3], [10, 20])) == [11, 22]
    assert client.gather(client.map(add, [1, 2], y=5)) == [6, 7]
    assert [f.key for f in client.map(inc, [5, 6], key="named", pure=False)] == ["named-0", "named-1"]
    assert [f.key for f in client.map(inc, [7, 8], key=["p", "q"])] == ["p", "q"]
    assert client.map(inc, []) == []
    with pytest.raises(ValueError, match=r"3 elements.*2 keys"):
        client.map(inc, [1, 2, 3], key=["a", "b"])


def test_gather_nests(client: Client) -> None:
    a, b = client.map(inc, [1, 2])
    assert client.gather([a, {"x": b, "y": [a, (b, 7)]}]) == [2, {"x": 3, "y": [2, (3, 7)]}]
    assert client.gather({a}) == {2}
    assert client.gather(a) == 2
    assert client.gather([]) == []
    bad = client.submit(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError):
        client.gather([a, bad])
    assert client.gather([a, bad, b], errors="skip") == [2, 3]


def test_gather_takes_named_tuples(client: Client) -> None:
    import collections

    Pair = collections.namedtuple("Pair", "left right")
    assert client.gather(Pair(client.submit(inc, 1), 5)) == Pair(2, 5)


def test_pure_calls_are_one_task(client: Client) -> None:
    assert client.submit(inc, 41).key == client.submit(inc, 41).key
    assert client.submit(inc, 41).key != client.submit(inc, 42).key
    assert client.submit(inc, 41, pure=False).key != client.submit(inc, 41, pure=False).key
    same = client.submit(os.urandom, 8)
    assert client.submit(os.urandom, 8).result() == same.result()
    assert client.submit(os.urandom, 8, pure=False).result() != same.result()


def test_same_key_with_another_body(client: Client) -> None:
    first = client.submit(inc, 1, key="taken")
    again = client.submit(inc, 1, key="taken")
    other = client.submit(inc, 2, key="taken")
    with pytest.raises(errors.InvalidRequestError, match="taken") as caught:
        other.result(PATIENCE)
    assert caught.value.reason == "KEY_CONFLICT"
    assert first.result() == again.result() == 2


def test_two_clients_and_one_key(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster) as second:
        futures = [c.submit(os.urandom, 8, key="shared-key") for c in (client, second)]
        assert futures[0].result() == futures[1].result()
        with pytest.raises(errors.InvalidRequestError, match="shared-key"):
            second.submit(os.urandom, 9, key="shared-key").result(PATIENCE)


def test_namespaces_do_not_see_each_other(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster, namespace="elsewhere") as other:
        mine, theirs = client.submit(inc, 1, key="same"), other.submit(inc, 2, key="same")
        assert (mine.result(), theirs.result()) == (2, 3)
        assert "same" in functools.reduce(operator.iadd, client.has_what().values(), [])
        with pytest.raises(errors.NotFoundError):
            other.explain("no-such-key")


def test_get_dict_graph(client: Client) -> None:
    graph = {
        "a": 1,
        "b": (inc, "a"),
        ("t", 0): (add, (inc, (inc, "a")), "b"),
        "all": (sum, ["a", "b", ("t", 0)]),
        "same": "b",
        "text": (str.upper, "not a key"),
    }
    assert client.get(graph, "all") == 8
    assert client.get(graph, [["a", "b"], [("t", 0)], "same", "text"]) == [[1, 2], [5], 2, "NOT A KEY"]
    future = client.get(graph, "all", sync=False)
    assert future.result() == 8
    with pytest.raises(KeyError, match="nothing"):
        client.get(graph, "nothing")


def test_cycle_names_its_tasks(client: Client) -> None:
    with pytest.raises(errors.InvalidRequestError, match="circle") as caught:
        client.get({"free": 1, "first": (inc, "third"), "second": (inc, "first"), "third": (inc, "second")}, "third")
    assert caught.value.reason == "GRAPH_HAS_CYCLE"
    assert all(name in str(caught.value) for name in ("first", "second", "third"))
    assert "free" not in str(caught.value)
    assert client.submit(inc, 1).result() == 2


def test_native_ops(client: Client) -> None:
    a = client.op("array.arange", 0, 6, 1)
    b = client.scatter(np.arange(6.0))
    assert np.array_equal(client.op("array.map", "a * 2 + b", a=a, b=b).result(), np.arange(6) * 3.0)
    assert client.submit(native("array.reduce"), b, "sum").result() == 15.0
    assert client.submit(np.sum, b).result() == 15.0


def test_arrays_as_arguments_of_native_operations(client: Client) -> None:
    """An array without axes is a tensor; an array that cannot be an argument is described."""
    assert client.op("array.map", "x + y", x=np.array(2.0), y=np.arange(3)).result().tolist() == [2, 3, 4]
    with pytest.raises(
        errors.SerialisationError,
        match=r"argument 0 of .*numpy.ndarray of datetime64\[D\] and 8 bytes is no typed value",
    ):
        client.op("array.map", np.array(["2026-01-01"], "datetime64[D]"))


def test_workers(client: Client) -> None:
    for name in sorted(client.scheduler_info()["workers"]):
        info = client.submit(get_task_info, workers=name, pure=False).result(PATIENCE)
        assert info is not None and info.worker == name
    assert client.submit(inc, 1, workers="nobody", allow_other_workers=True, pure=False).result(PATIENCE) == 2


def test_priority(client: Client, gate: Gate, tmp_path: Path) -> None:
    info = client.scheduler_info()["workers"]
    name = sorted(info)[0]
    log = tmp_path / "log"

    def note(what: str) -> None:
        with log.open("a") as f:
            f.write(what)

    slots = info[name]["slots"]
    blocked = [client.submit(Gate.pass_through, gate, workers=name, slots=slots, pure=False)]
    gate.wait()
    # A task that needs all slots waits in the scheduler's order, also behind tasks that were
    # pre-assigned.
    low = client.map(note, "l" * 20, workers=name, slots=slots, pure=False)
    client.session.flush()
    high = client.map(note, "h" * 5, workers=name, slots=slots, priority=10, pure=False)
    client.session.flush()
    gate.open()
    client.gather([blocked, low, high])
    text = log.read_text()
    assert sorted(text) == ["h"] * 5 + ["l"] * 20
    assert text.rindex("h") < text.rindex("l") and text.index("h") < 20


def test_resources_that_nobody_has(client: Client) -> None:
    future = client.submit(inc, 1, resources={"unobtainium": 2}, pure=False)
    told = client.explain(future)
    assert "NO_WORKER_FITS" in told and "unobtainium" in told, told
    assert future.status == "pending"
    future.cancel()
    with pytest.raises(errors.CancelledError):
        future.result(PATIENCE)
    nobody = client.submit(inc, 1, workers="nobody", pure=False)
    assert "NO_WORKER_FITS" in client.explain(nobody)


def test_timeout_stops_the_function(client: Client, gate: Gate) -> None:
    # The limit includes the start of the executor, and its import of this module.
    one = sorted(client.scheduler_info()["workers"])[0]
    slots = client.scheduler_info()["workers"][one]["slots"]
    ready = [client.submit(Gate.pass_through, gate, workers=one, pure=False) for _ in range(slots)]
    gate.wait(slots)
    for _ in ready:
        gate.open()
    client.gather(ready, timeout=PATIENCE)
    future = client.submit(hang, gate, timeout=5, workers=one, pure=False)
    gate.wait(2)
    with pytest.raises(errors.TaskTimeoutError) as caught:
        future.result(PATIENCE)
    assert caught.value.reason == "TIMEOUT"
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ValueError, match="positive"):
        client.submit(inc, 1, timeout=0)


def test_cancel_a_running_function(client: Client, gate: Gate) -> None:
    future = client.submit(hang, gate, pure=False)
    after = client.submit(add, future)
    gate.wait()
    future.cancel(reason="enough")
    with pytest.raises(errors.CancelledError, match="enough"):
        future.result(PATIENCE)
    gate.wait()
    assert future.cancelled() and future.status == "cancelled"
    with pytest.raises(errors.CancelledError):
        after.result(PATIENCE)


def test_cancel_a_queued_task(client: Client, gate: Gate) -> None:
    first = client.submit(Gate.pass_through, gate, pure=False)
    queued = client.submit(inc, first)
    gate.wait()
    client.cancel([queued])
    assert isinstance(queued.exception(PATIENCE), errors.CancelledError)
    gate.open()
    first.result(PATIENCE)
    assert client.submit(inc, 1, pure=False).result() == 2
    assert queued.cancelled()
