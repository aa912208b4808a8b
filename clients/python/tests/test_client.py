"""Tests of the client with real scheduler, worker and executor processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import math
import operator
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import millrace
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, as_completed, errors, get_task_info, native, wait


def inc(x: int) -> int:
    return x + 1


def add(x: object, y: object = 10) -> object:
    return x + y  # type: ignore[operator]


# ---- submitting ----------------------------------------------------------------------------------


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


# ---- data ----------------------------------------------------------------------------------------


def test_scatter(client: Client) -> None:
    array = np.random.default_rng(1).standard_normal((1000, 300))
    one = client.scatter(array)
    assert np.array_equal(one.result(), array)
    assert client.submit(np.shape, one).result() == (1000, 300)
    several = client.scatter([1, "two", {"three": array[:3]}])
    got = client.gather(several)
    assert got[:2] == [1, "two"] and np.array_equal(got[2]["three"], array[:3])
    named = client.scatter({"x": 1, "y": b"z" * 100_000})
    assert client.gather(named) == {"x": 1, "y": b"z" * 100_000}
    assert client.scatter(array).key == one.key
    assert client.scatter(array, hash=False).key != one.key
    assert client.scatter(5, key="five").key == "five"
    assert client.scatter((1, 2))[1].result() == 2


def test_scatter_to_and_broadcast(client: Client) -> None:
    names = sorted(client.scheduler_info()["workers"])
    there = client.scatter(np.ones(50_000), workers=names[1], hash=False)
    assert client.who_has(there) == {there.key: [names[1]]}
    assert there.key in client.has_what(names[1])[names[1]]
    everywhere = client.scatter(np.zeros(50_000), broadcast=True, hash=False)
    # The first copy makes the data a result. The scheduler knows the other copies when their
    # workers report them.
    eventually(lambda: sorted(client.who_has(everywhere)[everywhere.key]) == names)
    listed = client.has_what()
    assert all(everywhere.key in listed[n] for n in names)


def test_scatter_a_large_object_and_many_frames(client: Client) -> None:
    frames = {f"part-{n}": np.full(1_500_000 + n, n, np.float64) for n in range(4)}
    back = client.submit(lambda d: {k: v * 2 for k, v in d.items()}, client.scatter([frames])[0]).result()
    assert all(np.array_equal(back[k], v * 2) for k, v in frames.items())


def test_results_of_every_size(client: Client) -> None:
    for n in (0, 1, 1 << 10, 1 << 16, (1 << 16) + 1, 500_000):
        data = os.urandom(n)
        assert client.submit(lambda x: x, data).result() == data
    for n in (1 << 20, (1 << 21) + 3):
        assert client.submit(bytes, n).result() == bytes(n)


def test_released_results_are_freed(client: Client) -> None:
    future = client.submit(np.ones, 100_000, pure=False)
    wait([future])
    key = future.key

    def held() -> bool:
        return key in functools.reduce(operator.iadd, client.has_what().values(), [])

    eventually(held)
    other = client.submit(np.sum, future)
    assert other.result() == 100_000
    del future
    eventually(lambda: not held(), "the result is still there")


def test_a_future_in_use_keeps_its_input(client: Client, gate: Gate) -> None:
    blocked = client.submit(Gate.pass_through, gate, pure=False)
    source = client.submit(np.ones, 1000, pure=False)
    result = client.submit(lambda _, x: x.sum(), blocked, source)
    del source
    gate.wait()
    client.session.flush()
    gate.open()
    assert result.result(PATIENCE) == 1000


def test_release_and_submit_again_races(client: Client) -> None:
    for n in range(300):
        assert client.submit(inc, n % 3).result(PATIENCE) == n % 3 + 1


# ---- futures -------------------------------------------------------------------------------------


def test_future(client: Client, gate: Gate) -> None:
    future = client.submit(Gate.pass_through, gate, pure=False)
    gate.wait()
    assert not future.done() and future.status == "pending"
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        future.result(timeout=0.01)
    called = threading.Event()
    future.add_done_callback(lambda f: called.set() if f is future else None)
    gate.open()
    assert future.result(PATIENCE) is None and called.wait(PATIENCE)
    assert future.done() and not future.cancelled() and future.status == "finished"
    assert future.exception() is None and future.traceback() is None
    assert "finished" in repr(future) and future.key in future._repr_html_()
    again = threading.Event()
    future.add_done_callback(lambda _: again.set())
    assert again.is_set()


def test_wait_and_as_completed(client: Client, gate: Gate) -> None:
    slow = client.submit(Gate.pass_through, gate, pure=False)
    quick = client.map(inc, range(4), pure=False)
    gate.wait()
    done, rest = wait([slow, *quick], return_when="FIRST_COMPLETED", timeout=PATIENCE)
    assert slow in rest and done
    with pytest.raises(TimeoutError, match="1 of 5"):
        wait(quick)
        wait([slow, *quick], timeout=0.01)
    order = as_completed([slow, *quick])
    first = [next(iter(order)) for _ in quick]
    assert set(first) == set(quick)
    gate.open()
    assert list(order) == [slow]
    assert wait([]).done == set()
    assert sorted(r for _, r in as_completed(client.map(inc, range(5)), with_results=True)) == [1, 2, 3, 4, 5]
    assert sum(len(b) for b in as_completed(client.map(inc, range(5))).batches()) == 5
    growing = as_completed([client.submit(inc, 0)])
    seen = []
    for future in growing:
        seen.append(future.result())
        if len(seen) < 4:
            growing.add(client.submit(inc, len(seen)))
    assert seen == [1, 2, 3, 4]


def test_exceptions_travel_with_traceback_and_chain(client: Client) -> None:
    def inner() -> None:
        raise KeyError("lost key")

    def outer() -> None:
        try:
            inner()
        except KeyError as e:
            raise ValueError("outer trouble") from e

    future = client.submit(outer)
    with pytest.raises(ValueError, match="outer trouble") as caught:
        future.result()
    assert isinstance(caught.value.__cause__, KeyError)
    text = future.traceback() or ""
    assert "in inner" in text and "in outer" in text and "direct cause" in text
    assert future.status == "error"
    dependent = client.submit(inc, future)
    with pytest.raises(ValueError, match="outer trouble"):
        dependent.result()


def test_an_exception_that_does_not_pickle(client: Client) -> None:
    def fail() -> None:
        class Odd(Exception):
            def __init__(self) -> None:
                super().__init__("odd one")
                self.lock = threading.Lock()

        raise Odd

    with pytest.raises(errors.RemoteError, match="odd one") as caught:
        client.submit(fail).result()
    assert "in fail" in str(caught.value)


class OfTwo(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b


class Unwilling(OfTwo):
    def __reduce__(self) -> str:
        raise TypeError("never")


@pytest.mark.parametrize("kind", [OfTwo, Unwilling])
def test_an_exception_whose_init_takes_other_arguments(client: Client, kind: type[OfTwo]) -> None:
    def fail() -> None:
        try:
            raise kind(1, 2)
        except OfTwo as e:
            raise KeyError("outer") from e

    with pytest.raises(KeyError, match="outer") as caught:
        client.submit(fail, pure=False).result(PATIENCE)
    cause = caught.value.__cause__
    assert isinstance(cause, kind)
    assert (str(cause), cause.a, cause.b) == ("1 and 2", 1, 2)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(0),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseException("own"),
    ],
    ids=repr,
)
def test_exceptions_that_end_programs_become_remote_errors(client: Client, error: BaseException) -> None:
    def fail() -> None:
        raise error

    future = client.submit(fail, pure=False)
    with pytest.raises(errors.RemoteError, match=type(error).__name__) as caught:
        future.result(PATIENCE)
    assert "in fail" in str(caught.value)
    assert isinstance(future.exception(), errors.RemoteError)
    assert type(error).__name__ in (future.traceback() or "")
    with client.get_executor() as pool:
        assert isinstance(pool.submit(fail).exception(PATIENCE), errors.RemoteError)


def test_retry(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    future = client.submit(Path.read_text, marker)
    with pytest.raises(FileNotFoundError):
        future.result()
    after = client.submit(str.upper, future)
    with pytest.raises(FileNotFoundError):
        after.result()
    marker.write_text("there")
    client.retry([future])
    assert future.result(PATIENCE) == "there"
    after.retry()
    assert after.result(PATIENCE) == "THERE"


def test_retries(client: Client, tmp_path: Path) -> None:
    def third_time(path: Path) -> int:
        info = get_task_info()
        assert info is not None
        with path.open("a") as f:
            f.write("x")
        if len(path.read_text()) < 3:
            raise RuntimeError("not yet")
        return info.attempt

    assert client.submit(third_time, tmp_path / "a", retries=2).result(PATIENCE) == 3
    with pytest.raises(RuntimeError, match="not yet"):
        client.submit(third_time, tmp_path / "b", retries=1).result(PATIENCE)


def test_a_future_in_another_client(cluster: LocalCluster, client: Client) -> None:
    future = client.submit(np.arange, 100_000)
    data = pickle.dumps(future)
    with Client(cluster) as second:
        copy = pickle.loads(data)  # through the client that was opened last
        assert copy._session is second.session
        assert copy.result()[-1] == 99_999
        key = future.key
        del future
        client.session.flush()
        assert second.submit(np.sum, copy).result() == 99_999 * 50_000
        assert second.who_has(copy)[key]
    missing = data.replace(key.encode(), key.encode()[:-2] + b"__")
    assert missing != data
    with Client(cluster), pytest.raises(errors.NotFoundError, match=key[:-2]):
        pickle.loads(missing)


def test_a_client_inside_of_a_task(client: Client) -> None:
    def launch(n: int) -> int:
        with Client() as inner:
            assert millrace.get_client() is inner
            return len(inner.scheduler_info()["workers"]) * 100 + sum(inner.gather(inner.map(inc, range(n))))

    # Two workers: this is the test's cluster, not one that the task has started itself.
    assert client.submit(launch, 5, pure=False).result(PATIENCE) == 215


def test_the_client_of_a_task(cluster: LocalCluster, client: Client) -> None:
    def launch() -> tuple[float, float, bool]:
        mine = millrace.get_client()
        # Bulk data are sent and fetched with the task's own token.
        own = mine.scatter(np.full(300_000, 2.0), hash=False)
        total = mine.submit(np.sum, own).result(PATIENCE)
        return float(total), float(own.result()[0]), mine is millrace.get_client()

    assert client.submit(launch, pure=False).result(PATIENCE) == (600_000.0, 2.0, True)


def test_the_token_of_a_task_is_not_the_operators(cluster: LocalCluster, client: Client) -> None:
    def shut() -> str:
        try:
            Client().shutdown()
        except errors.AuthenticationError as e:
            return str(e)
        return "the task has stopped the cluster"

    told = client.submit(shut, pure=False).result(PATIENCE)
    assert "role" in told and "client" in told, told
    token = client.submit(os.getenv, "MILLRACE_TOKEN", pure=False).result(PATIENCE)
    assert token and cluster.token not in token
    assert token not in cluster.log and token not in repr(client)
    with Client(cluster.address, token=token) as other:
        assert other.submit(inc, 1).result(PATIENCE) == 2


# ---- rules ---------------------------------------------------------------------------------------


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
    def hang(gate: Gate) -> None:
        try:
            gate.arrive()
            while True:
                pass
        finally:
            gate.arrive()

    future = client.submit(hang, gate, timeout=3, pure=False)
    gate.wait(2)
    with pytest.raises(errors.TaskTimeoutError) as caught:
        future.result(PATIENCE)
    assert caught.value.reason == "TIMEOUT"
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ValueError, match="positive"):
        client.submit(inc, 1, timeout=0)


def test_cancel_a_running_function(client: Client, gate: Gate) -> None:
    def hang(gate: Gate) -> None:
        try:
            gate.arrive()
            while True:
                pass
        finally:
            gate.arrive()

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


# ---- the cluster ---------------------------------------------------------------------------------


def test_run(client: Client) -> None:
    pids = client.run(os.getpid)
    assert sorted(pids) == sorted(client.scheduler_info()["workers"])
    assert len(set(pids.values())) == 2
    one = sorted(pids)[:1]
    assert client.run(add, 1, y=2, workers=one) == {one[0]: 3}


def test_scheduler_info(cluster: LocalCluster, client: Client) -> None:
    info = client.scheduler_info()
    assert info["address"] == cluster.address and len(info["workers"]) == 2
    for worker in info["workers"].values():
        assert worker["slots"] >= 1 and worker["memory_limit"] > 1 << 20 and worker["pid"] > 0
        assert worker["linear_algebra"].startswith("OpenBLAS")  # of the wheel, or NumPy's
    assert cluster.address in repr(client) and "2 workers" in client._repr_html_()
    assert client.dashboard_link.startswith("http://")
    assert cluster.address in repr(cluster) and cluster.address in cluster._repr_html_()
    with pytest.raises(TimeoutError, match="of 99"):
        client.wait_for_workers(99, timeout=0.01)


def test_executor(client: Client, gate: Gate) -> None:
    with client.get_executor(retries=1) as pool:
        assert pool.submit(inc, 1).result(PATIENCE) == 2
        assert list(pool.map(inc, range(5))) == [1, 2, 3, 4, 5]
        with pytest.raises(ZeroDivisionError):
            pool.submit(operator.truediv, 1, 0).result(PATIENCE)
        futures = [pool.submit(pow, 2, n) for n in range(5)]
        assert sorted(f.result() for f in concurrent.futures.as_completed(futures)) == [1, 2, 4, 8, 16]
        assert len(pool.submit(bytes, 1 << 20).result(PATIENCE)) == 1 << 20
        held = pool.submit(Gate.pass_through, gate)
        gate.wait()
        assert held.cancel() and held.cancelled()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(inc, 1)


def test_arguments_with_the_names_of_options(client: Client) -> None:
    """An executor and `run` have no options per call, so all of these are the function's own."""

    def told(*args: object, **kwargs: object) -> tuple[object, ...]:
        return (*args, kwargs)

    own = {"timeout": 5, "key": "k", "priority": 1, "pure": True, "retries": 2, "x": 3}
    with client.get_executor() as pool:
        assert pool.submit(told, 1, **own).result(PATIENCE) == (1, own)
        assert pool.submit(told, 1, workers="w").result(PATIENCE) == (1, {"workers": "w"})
        with pytest.raises(TypeError, match="key: an import path or an op"):
            pool.submit("operator:add", 1, key=2)  # pyright: ignore[reportArgumentType]
    assert list(client.run(told, 1, **own).values()) == [(1, own)] * 2


def test_functions_may_have_arguments_of_any_name(client: Client) -> None:
    def told(**kwargs: object) -> dict[str, object]:
        return kwargs

    own = {"self": 1, "func": 2, "function": 3, "args": 4}
    assert client.submit(told, **own).result(PATIENCE) == own
    assert client.gather(client.map(lambda x, **kwargs: (x, kwargs), [5], **own)) == [(5, own)]
    assert list(client.run(told, **own).values()) == [own] * 2


def test_skipping_errors(client: Client) -> None:
    bad = client.submit(operator.truediv, 1, 0)
    assert client.gather([bad, {"x": bad}], errors="skip") == [{}]
    with pytest.raises(ZeroDivisionError):  # it is in no collection
        client.gather(bad, errors="skip")


def test_names_of_workers_that_do_not_exist(client: Client) -> None:
    want = "workers: no active worker has the name, id or host 'nobody'; there are: host-0, host-1"
    with pytest.raises(ValueError, match=want):
        client.run(inc, 1, workers="nobody")
    with pytest.raises(ValueError, match=want):
        client.replicate(client.submit(inc, 1), workers=["host-0", "nobody"])
    with pytest.raises(ValueError, match=want):
        client.has_what("nobody")


def test_a_cluster_that_is_closed() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as own:
        pass
    with pytest.raises(errors.ClusterStartError, match="the cluster is closed"):
        Client(own)


def test_gather_reads_iterators(client: Client) -> None:
    named = {"a": client.submit(inc, 1), "b": client.submit(inc, 2)}
    assert client.gather(named.values()) == client.gather(f for f in named.values()) == [2, 3]
    with pytest.raises(TypeError, match="among them is 5"):
        as_completed().add(5)  # pyright: ignore[reportArgumentType]


def test_a_client_that_waits_for_ever(cluster: LocalCluster) -> None:
    with Client(cluster, timeout=math.inf) as client:
        assert client.submit(inc, 1).result(math.inf) == 2


def test_map_of_an_executor(client: Client, gate: Gate, tmp_path: Path) -> None:
    """As in concurrent.futures: the calls are made at once, whether their results are read or not;
    the end of the executor waits for them, or cancels them."""

    def touch(name: str) -> str:
        gate.pass_through()
        (tmp_path / name).touch()
        return name

    with client.get_executor(slots=1, workers=sorted(client.scheduler_info()["workers"])[0]) as pool:
        pool.map(touch, ["a"])
        gate.wait()
        gate.open()
    assert (tmp_path / "a").exists()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.map(touch, ["b"])

    pool = client.get_executor()
    results = pool.map(touch, ["c", "d"], timeout=0.2)
    with pytest.raises(TimeoutError):
        next(results)
    eventually(lambda: not pool._mapped)  # they are cancelled
    results = pool.map(touch, ["e"])
    pool.shutdown(cancel_futures=True)
    with pytest.raises(errors.CancelledError):
        next(results)


async def test_async_client(cluster: LocalCluster) -> None:
    async with Client(cluster, asynchronous=True) as client:
        await client.wait_for_workers(2)
        future = client.submit(inc, 1)
        assert await future == 2
        assert await future == 2
        big = client.submit(np.ones, 1 << 20)
        assert (await big).sum() == 1 << 20
        assert await client.gather(client.map(inc, range(10))) == list(range(1, 11))
        found = [await f async for f in as_completed(client.map(inc, range(5)))]
        assert sorted(found) == [1, 2, 3, 4, 5]
        with pytest.raises(ZeroDivisionError):
            await client.submit(operator.truediv, 1, 0)
        data = await client.scatter(np.arange(10))
        assert list(await client.who_has(data))
        assert await client.get({"a": (inc, 1)}, "a") == 2
        assert len(await client.run(os.getpid)) == 2
        assert len((await client.scheduler_info())["workers"]) == 2
        together = await asyncio.gather(*client.map(inc, range(100)))
        assert sum(together) == 5050
        await client.cancel(client.submit(inc, 1, resources={"none": 1}))
        assert "AsyncClient" in repr(client)


def test_closed_while_waiting(cluster: LocalCluster, gate: Gate) -> None:
    client = Client(cluster)
    future = client.submit(Gate.pass_through, gate, pure=False)
    gate.wait()
    seen: list[BaseException] = []
    waiting = threading.Event()

    def wait_for_it() -> None:
        waiting.set()
        try:
            future.result()
        except errors.SchedulerLostError as e:
            seen.append(e)

    thread = threading.Thread(target=wait_for_it)
    thread.start()
    waiting.wait()
    client.close()
    thread.join(PATIENCE)
    assert seen and "closed" in str(seen[0])
    assert future.status == "lost" and "closed" in repr(client)
    for call in (client.scheduler_info, lambda: client.submit(inc, 1), lambda: client.who_has(future)):
        with pytest.raises(errors.SchedulerLostError, match="closed"):
            call()
    client.close()
    gate.open()


def test_a_client_of_ones_own_leaves_nothing_behind(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    code = """
from millrace import Client
with Client(n_workers=1, memory_limit="64MiB", device="host") as c:
    up = c.cluster._process
    print(*[w["pid"] for w in c.scheduler_info()["workers"].values()], *c.run(__import__("os").getpid).values(), up.pid)
assert up.returncode == 0, up.returncode  # it has ended by itself, and was not killed
"""
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert out.returncode == 0, out.stderr
    pids = [int(p) for p in out.stdout.split()]
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_dies_with_its_owner(tmp_path: Path) -> None:
    code = """
import os, millrace
c = millrace.LocalCluster(1, memory_limit="64MiB", device="host")
print(c._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    pid = int(out.stdout)

    def gone() -> bool:
        stat = Path(f"/proc/{pid}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    eventually(gone)


def test_shutdown() -> None:
    cluster = LocalCluster(1, memory_limit="64MiB", device="host")
    client = Client(cluster)
    process = cluster._process
    assert process is not None
    client.shutdown()
    assert process.wait(PATIENCE) == 0
    cluster.close()


def test_large_arguments_draw_a_warning(client: Client) -> None:
    with pytest.warns(UserWarning, match="scatter"):
        assert client.submit(len, bytes(3 << 20)).result() == 3 << 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.submit(len, bytes(1000)).result()


# ---- the interface -------------------------------------------------------------------------------

NAMES = (
    "submit map gather scatter get wait as_completed cancel retry run who_has has_what scheduler_info wait_for_workers "
    "close shutdown get_executor op explain publish_dataset get_dataset list_datasets unpublish_dataset dashboard_link "
    "drain_workers retire_workers restart_workers rebalance"
).split()


@pytest.mark.parametrize("kind", [Client, millrace.AsyncClient])
def test_names_are_those_that_users_know(kind: type) -> None:
    for name in NAMES:
        assert getattr(kind, name).__doc__, name
    for name in "result exception traceback status done cancelled cancel retry release add_done_callback key".split():
        assert getattr(millrace.Future, name).__doc__, name


def test_rules_are_keywords_only_and_documented() -> None:
    rules = {"priority", "retries", "workers", "resources", "timeout", "key", "pure", "slots", "no_wait"}
    for method in (Client.submit, Client.map):
        parameters = inspect.signature(method).parameters
        assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in rules)
    assert all(f"{name}:" in (Client.submit.__doc__ or "") for name in rules)


def test_a_callback_that_fails_does_no_harm(client: Client, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    future = client.submit(Gate.pass_through, gate, pure=False)
    gate.wait()
    second = threading.Event()
    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: second.set())
    gate.open()
    assert second.wait(PATIENCE)
    future.add_done_callback(lambda f: [][0])
    assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2
    eventually(lambda: "ZeroDivisionError" in caplog.text and "IndexError" in caplog.text)


def test_waiting_by_the_client(client: Client) -> None:
    futures = client.map(inc, range(4), pure=False)
    assert client.wait(futures, timeout=PATIENCE).done == set(futures)
    assert sorted(f.result() for f in client.as_completed(futures)) == [1, 2, 3, 4]
    assert sorted(r for _, r in client.as_completed(futures, with_results=True)) == [1, 2, 3, 4]


async def test_the_async_client_has_the_rest_too(cluster: LocalCluster) -> None:
    async with millrace.AsyncClient(cluster) as client:
        futures = client.map(inc, range(4), pure=False)
        assert (await client.wait(futures, timeout=PATIENCE)).done == set(futures)
        assert sorted([(await f) async for f in client.as_completed(futures)]) == [1, 2, 3, 4]
        assert "SUCCEEDED" in await client.explain(futures[0]) or "finished" in await client.explain(futures[0])
        await client.publish_dataset("async-data", futures)
        assert "async-data" in await client.list_datasets()
        assert await client.gather(await client.get_dataset("async-data")) == [1, 2, 3, 4]
        await client.unpublish_dataset("async-data")
        loop = asyncio.get_running_loop()
        with client.get_executor() as pool:
            assert await loop.run_in_executor(pool, inc, 41) == 42
        assert client.dashboard_link.startswith("http://") and "AsyncClient" in client._repr_html_()


def test_a_future_inside_of_an_object_in_a_task(client: Client) -> None:
    class Box:
        def __init__(self, future: object) -> None:
            self.future = future

    inner = client.submit(inc, 1)
    assert client.submit(lambda box: box.future, Box(inner)).result(PATIENCE) == 2

    # The future is pickled as its key: a task that gets the pickle holds the result through a
    # client of its own.
    def use(pickled: bytes) -> tuple[str, int]:
        future = pickle.loads(pickled)
        return type(future).__name__, future.result(PATIENCE)

    assert client.submit(use, pickle.dumps(inner), pure=False).result(PATIENCE) == ("Future", 2)


def test_dicts_and_arrays_come_back_as_they_were(client: Client) -> None:
    made = {"z": 1, "a": {"y": [2], "b": 3}, "m": np.arange(3)}
    back = client.submit(lambda x: x, made).result(PATIENCE)
    assert list(back) == ["z", "a", "m"] and list(back["a"]) == ["y", "b"] and back["m"].flags.writeable
    for n in (3, 300_000):
        for order in "CF":
            array = np.asarray(np.arange(2.0 * n).reshape(n, 2), order=order)
            twice = client.submit(lambda x: (x * 2, x.flags.writeable, x[::2]), client.scatter(array)).result(PATIENCE)
            np.testing.assert_array_equal(twice[0], array * 2)
            np.testing.assert_array_equal(twice[2], array[::2])
            assert twice[1] is False and twice[0].flags.writeable and twice[2].flags.writeable
            same = client.submit(lambda x: x.T, client.scatter(array)).result(PATIENCE)
            np.testing.assert_array_equal(same, array.T)
            assert same.flags.writeable
            summed = client.op("array.reduce", client.submit(np.transpose, client.scatter(array)), "sum")
            assert summed.result(PATIENCE) == array.sum()
