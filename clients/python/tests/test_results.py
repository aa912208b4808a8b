"""Data and results of tasks, and futures of them."""

from __future__ import annotations

import asyncio
import collections
import functools
import gc
import operator
import os
import pickle
import threading
import traceback
import weakref
from pathlib import Path

import millrace
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, as_completed, errors, get_task_info, wait


def inc(x: int) -> int:
    return x + 1


def add(x: object, y: object = 10) -> object:
    return x + y  # type: ignore[operator]


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


def test_scatter_spreads_evenly(client: Client) -> None:
    for futures in (
        client.scatter([np.full(10_000, n) for n in range(8)], hash=False),
        [client.scatter(np.full(10_000, n), hash=False) for n in range(8)],
    ):
        holders = [worker for names in client.who_has(futures).values() for worker in names]
        assert sorted(collections.Counter(holders).values()) == [4, 4], holders


def test_an_idle_client_keeps_no_released_data(client: Client) -> None:
    inner = client.submit(operator.add, 1, 2, pure=False)
    kept = weakref.ref(inner)
    data = client.scatter([[inner]], hash=False)
    wait(data)
    del inner, data
    gc.collect()
    eventually(lambda: kept() is None)


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
    text = "".join(traceback.format_exception(caught.value))
    assert "in inner" in text and "in outer" in text and "direct cause" in text
    assert [f.name for f in traceback.extract_tb(future.traceback())] == ["outer"]
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
    assert caught.traceback[-1].name == "fail"


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
    assert caught.traceback[-1].name == "fail"
    assert isinstance(future.exception(), errors.RemoteError)
    assert [f.name for f in traceback.extract_tb(future.traceback())] == ["fail"]
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
    assert 'role "task"' in told and "Shutdown" in told, told
    token = client.submit(os.getenv, "MILLRACE_TOKEN", pure=False).result(PATIENCE)
    assert token and cluster.token not in token
    assert token not in cluster.log and token not in repr(client)
    with Client(cluster.address, token=token) as other:
        assert other.submit(inc, 1).result(PATIENCE) == 2
