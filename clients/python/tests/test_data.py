"""The data path: scattered data arrive even if the worker that took them first is lost."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import gc
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, errors
from millrace._pb.millrace.host.v1 import borrow_pb2
from millrace._pb.millrace.v1 import data_service_pb2, worker_pb2
from millrace._transfer import _data, _share
from millrace._transfer._locator import Locator
from millrace._transfer._shares import Shares
from millrace.future import future_of_state


class Vanishing:
    """A worker that takes objects and is gone before it could report them."""

    def __init__(self) -> None:
        self.taken = 0
        handler = grpc.stream_unary_rpc_method_handler(
            self._write, response_serializer=data_service_pb2.WriteObjectResponse.SerializeToString
        )
        self._server = grpc.server(ThreadPoolExecutor(4), maximum_concurrent_rpcs=4)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("millrace.v1.DataService", {"WriteObject": handler}),)
        )
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.worker = worker_pb2.Worker(worker_id=4711, name="vanishing", data_address=f"127.0.0.1:{port}")

    def _write(self, messages: Iterator[bytes], _: grpc.ServicerContext) -> data_service_pb2.WriteObjectResponse:
        size = sum(len(m) for m in messages)
        self.taken += 1
        return data_service_pb2.WriteObjectResponse(bytes=size)

    def close(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def vanishing() -> Iterator[Vanishing]:
    made = Vanishing()
    yield made
    made.close()


def test_scatter_goes_to_another_worker_if_one_dies_before_it_reports(
    client: Client, vanishing: Vanishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = client.session.workers

    def workers(fresh: bool = True) -> list[worker_pb2.Worker]:
        return [vanishing.worker] if vanishing.taken == 0 else real(fresh)

    monkeypatch.setattr(client.session, "workers", workers)
    data = np.arange(300_000)
    future = client.scatter(data, hash=False)
    assert vanishing.taken == 1
    assert future.status == "finished"
    assert np.array_equal(future.result(PATIENCE), data)


def test_scatter_skips_a_worker_that_is_not_there(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    real = client.session.workers
    gone = worker_pb2.Worker(worker_id=4711, name="gone", data_address="127.0.0.1:1")

    def workers(fresh: bool = True) -> list[worker_pb2.Worker]:
        return [gone, *real(fresh)]

    monkeypatch.setattr(client.session, "workers", workers)
    futures = client.scatter([np.full(10_000, n) for n in range(3)], hash=False)
    assert [int(a[0]) for a in client.gather(futures)] == [0, 1, 2]


def test_equal_data_of_another_client_whose_news_come_late(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = np.arange(300_000) + 3
    refused = threading.Event()
    with Client(cluster) as first, Client(cluster) as second:
        tasks, plane = second.session._tasks, second.session._data
        receive, write = tasks.receive, plane._write

        def late(*news: Any) -> None:
            assert refused.wait(PATIENCE)
            receive(*news)

        def told(*object: Any) -> bool:
            try:
                return write(*object)
            finally:
                refused.set()

        kept = first.scatter(data, hash=True)
        monkeypatch.setattr(tasks, "receive", late)
        monkeypatch.setattr(plane, "_write", told)
        for name in [w.name for w in first.session.workers()]:  # one has the data, the others refuse them
            refused.clear()
            again = second.scatter(data, workers=name, hash=True)
            assert again.key == kept.key and np.array_equal(again.result(PATIENCE), data)
            again.release()
            del again


def test_data_that_is_scattered_while_workers_drop_it(client: Client) -> None:
    data = [{"part": i} for i in range(4)]
    results: list[Any] = []
    for _ in range(100):  # the result keeps the tasks of the data, so they have the same ids each time
        futures = client.scatter(data)
        results.append(client.map(len, futures, pure=False))
        futures.clear()
        client.gather(results[-1], timeout=PATIENCE)
        del results[:-1]


def test_large_data_is_not_hashed_unless_asked(client: Client) -> None:
    data = np.zeros((16 << 20) + 8, np.uint8)
    assert client.scatter(data).key != client.scatter(data).key
    one = client.scatter(data, hash=True)
    assert client.scatter(data, hash=True).key == one.key


def used(client: Client) -> int:
    return sum(w["memory_used"] for w in client.scheduler_info()["workers"].values())


def test_gathered_arrays_are_used_in_place_until_they_are_garbage(client: Client) -> None:
    eventually(lambda: used(client) < 1 << 20)
    future = client.submit(np.arange, 1_000_000, pure=False)
    result = future.result()
    assert result[-1] == 999_999 and not result.flags.owndata
    again = future.result()
    again[:] = 7  # the written pages are private
    assert result[10] == 10
    del again
    assert set(client.session.paths().values()) == {"shared memory"} and "shared memory" in repr(client)
    part = result[10:20]
    del future, result
    gc.collect()
    client.session.flush()
    eventually(lambda: client.scheduler_info()["tasks"]["succeeded"] == 0)
    # The lease keeps the bytes, though no client holds the object any more.
    assert list(part) == list(range(10, 20))
    del part
    eventually(lambda: used(client) < 1 << 20, "a lease was not given back")


class Elsewhere:
    """An object that can be unpickled only in tasks."""

    def __init__(self, size: int) -> None:
        self.data = bytes(size)

    def __reduce__(self) -> Any:
        return elsewhere, (self.data,)


def elsewhere(data: bytes) -> Elsewhere:
    if not os.environ.get("MILLRACE_EXECUTOR"):
        raise ImportError("only tasks can have it")
    return Elsewhere(len(data))


@pytest.mark.parametrize("shared", [True, False])
def test_results_of_several_workers_of_which_one_cannot_be_decoded(cluster: LocalCluster, shared: bool) -> None:
    """The error is raised in the thread that gathers, whichever thread has fetched the result. The
    other results are not kept in the worker's memory."""
    with Client(cluster, shared_memory=shared) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        one, two = sorted(client.scheduler_info()["workers"])
        good = client.submit(np.ones, 1 << 20, workers=one, pure=False)
        bad = client.submit(Elsewhere, 1 << 20, workers=two, pure=False)
        more = client.map(np.full, [1 << 20] * 3, range(3), workers=two, pure=False)
        for futures in ([good, bad], [bad, good], [good, bad, *more], [*more, bad, good]):
            with pytest.raises(ImportError, match="only tasks can have it"):
                client.gather(futures)
        assert [int(a[0]) for a in client.gather(more)] == [0, 1, 2]
        eventually(lambda: used(client) > 24 << 20)
        del good, bad, more, futures
        gc.collect()
        client.session.flush()
        eventually(lambda: used(client) < 1 << 20, "a lease was not given back")


@pytest.mark.parametrize("most", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_many_results_of_one_worker(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """One request to a worker may name 10,000 objects."""
    monkeypatch.setattr(_data, "_MOST_READ", most)
    monkeypatch.setenv("MILLRACE_INLINE_RESULT", "16B")
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own, shared_memory=False) as client:
        futures = client.map(np.full, [5] * (most + 1), range(most + 1))
        assert [int(a[0]) for a in client.gather(futures, timeout=PATIENCE)] == list(range(most + 1))


def test_the_holder_of_a_result_cannot_be_reached(
    cluster: LocalCluster, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_data, "FETCH_SECONDS", 0.3)
    with Client(cluster, shared_memory=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        workers = client.scheduler_info()["workers"]
        future = client.submit(np.arange, 100_000, key="far", workers="host-0")
        real, places = Locator.locate, [workers["host-1"]["address"]]

        def locate(
            self: Locator, tasks: Sequence[int], timeout: float | None = None
        ) -> tuple[Sequence[Any], dict[int, str]]:
            found, addresses = real(self, tasks, timeout)
            return found, {w: places[0] if places else a for w, a in addresses.items()}

        monkeypatch.setattr(Locator, "locate", locate)
        want = r"the result of far could not be fetched for 0\.3 s: worker at .*: .*not here"
        with pytest.raises(errors.ResultUnreachableError, match=want):
            future.result(PATIENCE)
        places[0] = "127.0.0.1:1"
        with pytest.raises(errors.ResultUnreachableError, match=r"for 0\.3 s: worker at 127\.0\.0\.1:1: .*[Cc]onnect"):
            client.gather([future])
        with pytest.raises(TimeoutError, match=r"1 results could not be fetched in 0\.1 s, such as far: worker at 127"):
            future.result(0.1)

        # The time in which the task runs does not count.
        late = client.submit(pass_through, gate, pure=False)
        gate.wait()
        with ThreadPoolExecutor(1) as threads:
            fetched = threads.submit(late.result, PATIENCE)
            began = time.monotonic()
            eventually(lambda: time.monotonic() > began + 0.5)
            monkeypatch.setattr(_data._Tries, "failed", lambda *_: places.clear())
            gate.open()
            assert len(fetched.result(PATIENCE)) == 100_000
        assert len(future.result(PATIENCE)) == 100_000


def pass_through(gate: Gate) -> Any:
    gate.pass_through()
    return np.ones(100_000)


def test_gathered_futures_are_released_without_the_collector(client: Client) -> None:
    gc.disable()
    try:
        futures = {"a": [client.submit(np.ones, 10, pure=False)]}
        assert client.gather(futures)["a"][0].sum() == 10
        del futures
        client.session.flush()
        eventually(lambda: client.scheduler_info()["tasks"]["succeeded"] == 0)
    finally:
        gc.enable()


def left_to_the_collector(use: Callable[[], None]) -> list[str]:
    """Calls a function and returns the names of the client's functions that it leaves in reference
    cycles. Such a function keeps alive everything that it refers to."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        use()
        gc.collect()
        names = [
            f.__qualname__ for f in gc.garbage if isinstance(f, FunctionType) and f.__module__ == "millrace.client"
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return names


def test_datasets_leave_nothing_to_the_collector(client: Client) -> None:
    def publish() -> None:
        futures = {"a": [client.submit(np.ones, 10, pure=False)]}
        client.publish_dataset("in-cycles", futures)
        futures = client.get_dataset("in-cycles")
        client.unpublish_dataset("in-cycles")
        assert client.gather(futures)["a"][0].sum() == 10

    assert left_to_the_collector(publish) == []


@pytest.mark.parametrize("sync", [True, False])
def test_dict_graphs_leave_nothing_to_the_collector(client: Client, sync: bool) -> None:
    def compute() -> None:
        given = client.submit(np.ones, 10, pure=False)
        graph = {"a": (np.sum, given), "b": (np.add, "a", (np.sum, ["a", 1]))}
        found = client.get(graph, [["a"], "b"], sync=sync)
        assert (found if sync else client.gather(found)) == [[10], 21]

    assert left_to_the_collector(compute) == []


def test_the_futures_of_a_dict_graph_are_released_without_the_collector(client: Client) -> None:
    gc.collect()
    client.session.flush()
    eventually(lambda: client.scheduler_info()["tasks"]["succeeded"] == 0)
    gc.disable()
    try:
        given = client.submit(np.ones, 10, pure=False)
        found = client.get({"a": (np.sum, given)}, [["a"]], sync=False)
        assert client.gather(found) == [[10]]
        del given, found
        client.session.flush()
        eventually(lambda: client.scheduler_info()["tasks"]["succeeded"] == 0)
    finally:
        gc.enable()


def test_copies_hold_no_memory_of_the_worker(client: Client) -> None:
    future = client.submit(np.zeros, 1_000_000, pure=False)
    (copy,) = client.gather([future], copy=True)
    del future
    eventually(lambda: used(client) < 1 << 20)
    copy[0] = 1
    assert not copy[1:].any()


def test_gathered_results_outlive_the_worker() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        data = np.random.default_rng(1).standard_normal(500_000)
        mine = client.scatter(data, hash=False).result()
        (worker,) = client.scheduler_info()["workers"].values()
        os.kill(worker["pid"], signal.SIGKILL)
        eventually(lambda: [w for w in client.session.workers() if w.worker_id != worker["id"]])
        assert np.array_equal(mine, data)
        assert np.array_equal(client.scatter(data, hash=False).result(), data)


def test_lost_data_may_be_scattered_again() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        data = np.arange(300_000)
        lost = [client.scatter(data), client.scatter(data + 1, key="named")]
        (worker,) = client.scheduler_info()["workers"].values()
        os.kill(worker["pid"], signal.SIGKILL)
        for future in lost:
            eventually(lambda future=future: future.status == "error")
            assert isinstance(future.exception(), errors.ObjectLostError)
        again = [client.scatter(data), client.scatter(data + 1, key="named")]
        assert np.array_equal(again[0].result(PATIENCE), data)
        assert np.array_equal(again[1].result(PATIENCE), data + 1)
        assert [f.status for f in lost] == ["error", "error"]
        lost.clear()  # this must not release the new ones
        assert client.submit(np.sum, again[0], pure=False).result(PATIENCE) == data.sum()


def test_without_shared_memory_all_bytes_travel(cluster: LocalCluster) -> None:
    with Client(cluster, shared_memory=False) as client:
        data = np.arange(300_000)
        back = client.scatter(data, hash=False).result()
        assert np.array_equal(back, data) and back.flags.writeable
        assert set(client.session.paths().values()) == {"grpc"}


def test_a_stranger_is_told_no(cluster: LocalCluster, client: Client) -> None:
    data = np.arange(300_000)
    future = client.scatter(data, hash=False)
    with Client(cluster) as other:
        other.session._data._shares._token = "wrong"
        mine = other.submit(np.sum, 0, pure=False)  # the calls themselves have the right token
        assert mine.result() == 0
        copy = other.session.hold(future.key)
        assert np.array_equal(future_of_state(other.session, copy).result(PATIENCE), data)
        assert "UNAUTHENTICATED" in next(iter(other.session.paths().values()))


def test_replicate_makes_as_many_copies_as_asked() -> None:
    with LocalCluster(4, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        client.wait_for_workers(4, timeout=PATIENCE)
        names = sorted(client.scheduler_info()["workers"])
        made = client.submit(np.arange, 200_000, workers=names[0], pure=False)
        client.replicate(made, n=3)
        eventually(lambda: len(client.who_has(made)[made.key]) == 3)
        everywhere = client.scatter(np.arange(200_000), broadcast=True, hash=False)
        eventually(lambda: sorted(client.who_has(everywhere)[everywhere.key]) == names)


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 100_001])
def test_large_copies_by_threads_are_complete(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_share, "_COPY_BYTES", 1 << 10)
    data = np.random.default_rng(1).integers(0, 255, nbytes, np.uint8)
    to = np.zeros(nbytes, np.uint8)
    _share._copy(to, data)
    assert np.array_equal(to, data)


def test_an_input_that_a_task_keeps_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task keeps an input as a cache while the worker's memory is filled several times."""
    monkeypatch.setenv("MILLRACE_SLOTS", "1")
    size = 32 << 20

    def make(value: int) -> np.ndarray:
        return np.full(size // 8, float(value))

    def keep(x: np.ndarray) -> float:
        import sys

        sys.kept = x  # type: ignore[attr-defined]
        return float(x.sum())

    def look() -> float:
        import sys

        return float(sys.kept.sum())  # type: ignore[attr-defined]

    def forget() -> None:
        import sys

        del sys.kept  # type: ignore[attr-defined]

    with LocalCluster(1, memory_limit="256MiB", device="host") as cluster, Client(cluster) as client:
        model = client.submit(make, 3)
        told = client.submit(keep, model).result(PATIENCE)
        assert told == 3 * size / 8
        del model
        gc.collect()
        for round in range(3):
            futures = [client.submit(make, 100 * round + i) for i in range(6)]
            for future in futures:
                future.result(PATIENCE)
            assert client.submit(look, pure=False).result(PATIENCE) == told
            del futures, future
            gc.collect()
        client.submit(forget).result(PATIENCE)
        # All memory is free again: seven arrays fit at once, beside the slab's own overhead.
        total = client.submit(
            lambda *parts: sum(p[0] for p in parts), *[client.submit(make, 1000 + i) for i in range(7)]
        )
        assert total.result(PATIENCE) == sum(range(1000, 1007))


def test_memory_that_could_shrink_is_not_mapped() -> None:
    """Reading what lies beyond a file's end kills the process."""
    descriptor = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, 2 << 20)
        welcome = borrow_pb2.BorrowWelcome(memory_bytes=2 << 20, worker_uuid=bytes(16), incarnation=bytes(16))
        os.pwrite(descriptor, struct.pack("<8sI4x16s16sQQ", b"MILLRACE", 1, bytes(16), bytes(16), 0, 2 << 20), 0)
        with pytest.raises(_share.NotSharedError, match="shrink"):
            _share._map(descriptor, welcome, False)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        _share._map(descriptor, welcome, False).close()
        # A file without room for the header page is no worker's memory.
        small = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(small, 16)
            fcntl.fcntl(small, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            with pytest.raises(_share.NotSharedError):
                _share._map(small, borrow_pb2.BorrowWelcome(memory_bytes=16), False)
        finally:
            os.close(small)
    finally:
        os.close(descriptor)


class Silent:
    """Looks like a worker's socket for its memory, and does not answer."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0millrace/" + address)
        self._socket.listen()

    def accept(self) -> socket.socket:
        return self._socket.accept()[0]

    def waiting(self) -> int:
        """Returns how many more connections were made, and ends them."""
        self._socket.settimeout(0)
        made = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.accept().close()
                made += 1
        self._socket.settimeout(None)
        return made


def test_a_handshake_that_lasts_delays_no_other_worker() -> None:
    shares = Shares("", enabled=True)
    address = f"silent-{os.getpid()}:1"
    silent = Silent(address)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(shares.get(address, write=False))) for _ in range(2)]
    for thread in threads:
        thread.start()
    connection = silent.accept()
    assert shares.get(f"nobody-{os.getpid()}:1", write=False) is None  # answered while the other one waits
    assert not shares.reads(address)
    assert found == []
    connection.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == [None, None]
    assert silent.waiting() == 0  # the second thread waited for the first one's handshake
    assert "handshake failed" in shares.paths()[address]

    # A handshake that ends after `close` makes no connection.
    late = threading.Thread(target=lambda: found.append(shares.get(address, write=True)))
    shares._refused.clear()
    late.start()
    connection = silent.accept()
    shares.close()
    connection.close()
    late.join(PATIENCE)
    assert found == [None] * 3 and shares.get(address, write=True) is None


class Bunch(dict[str, Any]):
    """A dict with a class of its own, as scikit-learn has."""


class Pair(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize("data", [[1, 2], (1, 2), {1, 2}, frozenset([1, 2]), Pair(1, 2)], ids=repr)
def test_each_element_of_a_collection_gets_a_future(client: Client, data: Any) -> None:
    futures = client.scatter(data)
    assert type(futures) is type(data) and sorted(f.result(PATIENCE) for f in futures) == [1, 2]


def test_each_element_of_an_iterator_gets_a_future(client: Client) -> None:
    for data in (range(1, 3), iter([1, 2]), (n for n in (1, 2))):
        assert [f.result(PATIENCE) for f in client.scatter(data)] == [1, 2]
    named = client.scatter({("each", 1): 1, "element": [2]})
    assert {f.key: f.result(PATIENCE) for f in named.values()} == {("each", 1): 1, "element": [2]}
    for whole in (Bunch(a=1), collections.OrderedDict(a=1), collections.Counter("ab"), "ab", np.arange(2)):
        back = client.scatter(whole).result(PATIENCE)
        assert type(back) is type(whole) and len(back) == len(whole)
