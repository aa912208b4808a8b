"""Tests of the client with real scheduler, worker and executor processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import math
import operator
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import millrace
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, as_completed, errors


def inc(x: int) -> int:
    return x + 1


def add(x: object, y: object = 10) -> object:
    return x + y  # type: ignore[operator]


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
    want = "workers: no active worker has the name, id, host or address 'nobody'; there are: host-0, host-1"
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


def test_a_server_that_is_no_scheduler() -> None:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(ConnectionError, match="another server than a scheduler"):
            Client(f"127.0.0.1:{port}", timeout=PATIENCE)
    finally:
        server.stop(0).wait()


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


@pytest.mark.long
def test_large_arguments_are_stored_on_workers(client: Client) -> None:
    def total(*parts: Any, extra: Any = b"") -> int:
        return sum(map(len, parts)) + len(extra)

    data = bytes(60 << 20)  # larger than a message to the scheduler
    future = client.submit(total, data)
    assert future.result() == 60 << 20
    assert client.submit(total, data) is not future and client.submit(total, data).key == future.key
    assert client.submit(total, [data], ["x" * 2_000_000], extra=np.zeros(1 << 20)).result() == 2 + (1 << 20)
    assert client.submit(total, list(map(str, range(300_000))), {"f": future}).result() == 300_001
    assert client.gather(client.map(total, [data] * 3, range(3) and [data] * 3)) == [120 << 20] * 3
    stored = [client.submit(total, np.full(1 << 20, n)) for n in range(2)]
    assert client.gather(stored) == [1 << 20] * 2
    assert client.op("array.matmul", np.ones((1, 50_000)), np.ones((50_000, 1))).result() == 50_000
    assert client.op("bench.noop", *[np.zeros(8000)] * 700).exception() is None
    assert client.get({"x": (total, data), "y": (total, data, [data])}, ["x", "y"]) == [60 << 20, (60 << 20) + 1]


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
