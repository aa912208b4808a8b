"""The client for asyncio: waits take no threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import operator
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import PATIENCE, Gate, eventually
from dask._task_spec import Task
from dask.delayed import delayed
from millrace import AsyncClient, Client, Future, LocalCluster, errors, get_client
from millrace._connection import _pool
from millrace._connection._pool import Pool
from proxy import Proxy


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


def big(text: str) -> Any:
    return np.full(100_000, len(text))


class Exhausted:
    """Gives the running loop a default executor whose only thread is busy."""

    def __enter__(self) -> None:
        self._end = threading.Event()
        pool = concurrent.futures.ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(self._end.wait)

    def __exit__(self, *_: object) -> None:
        self._end.set()


# ---- waits ---------------------------------------------------------------------------------------


async def test_a_thousand_waits_take_no_thread(cluster: LocalCluster, gate: Gate) -> None:
    async with AsyncClient(cluster) as client:
        with Exhausted():
            first = client.submit(pass_through, gate, pure=False)
            gate.wait()
            small = client.map(str.upper, [first] * 1000, pure=False)
            large = client.map(big, [first] * 50, pure=False)
            client.sync.session.flush()
            await client.scheduler_info()
            before = threading.active_count()
            waits = [asyncio.ensure_future(f) for f in small]
            gathers = [asyncio.create_task(client.gather(large)) for _ in range(20)]
            others = [asyncio.create_task(client.wait([f])) for f in small[:100]]
            turns = asyncio.create_task(anext_of(client.as_completed(small[:1])))
            # Calls to the scheduler are answered while all of these wait.
            for _ in range(3):
                assert len((await client.scheduler_info())["workers"]) == 2
            assert not any(t.done() for t in (*waits, *gathers, *others, turns))
            # The starts of the gathers ran in threads of the client, which are idle by now.
            assert threading.active_count() <= before + 32
            eventually(lambda: sum(t.name == "millrace-pool" for t in threading.enumerate()) <= 32)
            gate.open()
            assert await asyncio.gather(*waits) == ["THROUGH"] * 1000
            assert all(len(done.done) == 1 for done in await asyncio.gather(*others))
            for arrays in await asyncio.gather(*gathers):
                assert [int(a[0]) for a in arrays] == [7] * 50
            assert await turns is small[0]


async def result_of(future: Future[Any]) -> Any:
    return await future


async def until(condition: Callable[[], bool]) -> None:
    """Lets the event loop turn until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0)


async def anext_of(futures: Any) -> Any:
    async for future in futures:
        return future
    return None


async def test_single_waits_start_no_thread_at_all(cluster: LocalCluster, gate: Gate) -> None:
    async with AsyncClient(cluster) as client:
        first = client.submit(pass_through, gate, pure=False)
        gate.wait()
        futures = client.map(str.upper, [first] * 2000, pure=False)
        client.sync.session.flush()
        threads = set(threading.enumerate())
        waits = [asyncio.ensure_future(f) for f in futures]
        await asyncio.sleep(0)  # each of them has begun
        assert set(threading.enumerate()) <= threads
        gate.open()
        assert await asyncio.gather(*waits) == ["THROUGH"] * 2000
        assert set(threading.enumerate()) <= threads


async def test_a_cancelled_wait_leaves_nothing(cluster: LocalCluster, gate: Gate) -> None:
    async with AsyncClient(cluster) as client:
        first = client.submit(pass_through, gate, pure=False)
        gate.wait()
        futures = client.map(str.upper, [first] * 10, pure=False)

        state = futures[0]._state
        waits = [asyncio.create_task(result_of(futures[0])) for _ in range(100)]
        waits += [asyncio.create_task(client.gather(futures)) for _ in range(10)]
        waits += [asyncio.create_task(client.wait(futures, return_when="FIRST_COMPLETED")) for _ in range(10)]
        await until(lambda: len(state.callbacks) == 120)
        for wait in waits:
            wait.cancel()
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert all(isinstance(e, asyncio.CancelledError) for e in ended)
        assert not any(f._state.callbacks for f in futures)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(result_of(futures[0]), 0.01)
        with pytest.raises(TimeoutError, match="10 of 10"):
            await client.wait(futures, timeout=0.01)
        with pytest.raises(TimeoutError, match="did not arrive"):
            await client.gather(futures, timeout=0.01)
        assert not any(f._state.callbacks for f in futures)
        gate.open()
        assert await client.gather(futures) == ["THROUGH"] * 10
        # The results are freed with their futures: nothing else refers to them.
        key = futures[3].key
        del futures, wait, waits, ended
        gc.collect()
        client.sync.session.flush()
        assert key not in client.sync.session._tasks._states


async def test_one_of_several_is_enough(cluster: LocalCluster, gate: Gate) -> None:
    async with AsyncClient(cluster) as client, AsyncClient(cluster) as other:
        blocked = client.submit(pass_through, gate, pure=False)
        gate.wait()
        quick = [client.submit(len, "abc", pure=False), other.submit(len, "abcd", pure=False)]
        first = await client.wait([blocked, *quick], timeout=PATIENCE, return_when="FIRST_COMPLETED")
        assert first.done and blocked in first.not_done
        assert not blocked._state.callbacks
        # Of two clients.
        assert await client.gather({"a": quick[0], "b": [quick[1]]}) == {"a": 3, "b": [4]}
        with pytest.raises(TimeoutError, match="1 tasks did not end"):
            await anext_of(client.as_completed([blocked], timeout=0.01))
        gate.open()
        assert [r async for _, r in client.as_completed([blocked], with_results=True)] == ["through"]


async def test_errors_of_awaited_tasks(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        bad = client.map(divmod, [1] * 3, [0] * 3, pure=False)
        for wait in (bad[0], client.gather(bad), client.get({"x": (divmod, 1, 0)}, "x")):
            with pytest.raises(ZeroDivisionError):
                await wait
        assert await client.gather([bad[0], client.submit(len, "ab")], errors="skip") == [2]
        with pytest.raises(ValueError, match="errors is"):
            await client.gather(bad, errors="ignore")
        lost = client.submit(len, "abc", workers="nobody")
        waits = [asyncio.ensure_future(lost), asyncio.create_task(client.gather([lost]))]
        await until(lambda: len(lost._state.callbacks) == 2)
        await client.close()
        for wait in waits:
            with pytest.raises(errors.SchedulerLostError, match="closed"):
                await wait


def test_a_loop_that_has_ended_is_not_called(
    cluster: LocalCluster, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(cluster) as client:
        blocked = client.submit(pass_through, gate, pure=False)
        gate.wait()

        async def begin() -> None:
            waits.append(asyncio.ensure_future(blocked))
            await until(lambda: bool(blocked._state.callbacks))

        waits: list[Any] = []
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        gate.open()
        assert blocked.result(PATIENCE) == "through"
        client.session.flush()
        assert not [r for r in caplog.records if r.name == "millrace"]
        waits.clear()


# ---- the interface -------------------------------------------------------------------------------


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, Any]:
        return {n: m for n, m in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")}

    theirs, ours = methods(Client), methods(AsyncClient)
    theirs.pop("sync")  # AsyncClient.sync is the Client underneath
    assert set(theirs) == set(ours)
    at_once = {
        "submit", "map", "op", "get", "as_completed", "get_executor", "as_current", "compute", "persist", "scheduler_info",
        "normalize_collection", "futures_of", "shuffle", "template", "subscribe_topic", "unsubscribe_topic",
    }  # fmt: skip
    for name, method in ours.items():
        assert inspect.iscoroutinefunction(method) == (name not in at_once), name
        assert method.__doc__ and method.__name__ == name
        if name not in ("close", "start", "as_current", "scheduler_info", "compute"):
            assert method.__doc__ == theirs[name].__doc__
            assert inspect.signature(method) == inspect.signature(theirs[name])
    # The methods that wait are shown with their results.
    assert inspect.signature(Client.run).return_annotation == "dict[str, T]"
    assert not any("Steps" in str(inspect.signature(m)) for m in theirs.values())


async def test_get_returns_futures_or_a_coroutine(cluster: LocalCluster) -> None:
    graph = {"x": 1, "y": (operator.add, "x", 2)}
    async with AsyncClient(cluster) as client:
        assert await client.get(graph, "y") == 3
        future = client.get(graph, "y", sync=False)
        assert isinstance(future, Future) and await future == 3
        [nodes] = client.get({"x": Task("x", operator.add, 1, 2)}, ["x"], sync=False)
        assert await nodes == 3


async def test_a_client_that_is_made_asynchronous(cluster: LocalCluster) -> None:
    with Exhausted():
        client = Client(cluster, asynchronous=True, name="of-a-loop")
        assert isinstance(client, AsyncClient)
        with pytest.raises(RuntimeError, match="not open"):
            client.submit(len, "a")
        assert await client is client and await client is client
        assert get_client() is client and isinstance(client.sync, Client)
        await client.close()
        with pytest.raises(errors.SchedulerLostError, match="closed"):
            client.submit(len, "a")
        with pytest.raises(errors.SchedulerLostError):
            await AsyncClient("127.0.0.1:1", timeout=0.1)
    await AsyncClient(cluster).close()


async def test_workers_and_data_of_the_async_client(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        with Exhausted():
            await client.wait_for_workers(2, timeout=PATIENCE)
            with pytest.raises(TimeoutError, match="2 of 3 workers"):
                await client.wait_for_workers(3, timeout=0.01)
            data = await client.scatter({"x": np.arange(100_000)}, broadcast=True, hash=False)
            assert len((await client.who_has(data["x"]))[data["x"].key]) == 2
            await client.replicate(data["x"])
            assert (await data["x"]).sum() == np.arange(100_000).sum()
            assert set((await client.run(len, "abc")).values()) == {3}
            assert await client.get({"x": (len, "abc"), "y": (str, "x")}, ["y"]) == ["3"]


# ---- threads -------------------------------------------------------------------------------------


def test_a_pool_grows_only_when_all_are_busy() -> None:
    pool, names, end = Pool(3), set[str](), threading.Event()

    def note() -> None:
        names.add(threading.current_thread().name + str(threading.get_ident()))

    for _ in range(20):
        pool.submit(note).result(PATIENCE)
        eventually(lambda: pool._idle == 1)
    assert len(names) == pool._threads == 1
    blocked = [pool.submit(end.wait) for _ in range(5)]
    assert pool._threads == 3
    queued = pool.submit(note)
    assert queued.cancel()
    assert not end.is_set() and not any(b.done() for b in blocked)
    end.set()
    assert all(b.result(PATIENCE) for b in blocked)
    failing = pool.submit(lambda: 1 / 0)
    assert isinstance(failing.exception(PATIENCE), ZeroDivisionError)
    pool.close()
    eventually(lambda: pool._threads == 0)
    assert pool.submit(lambda: 5).result(PATIENCE) == 5


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pool, "_IDLE_SECONDS", 0.01)
    pool = Pool(2)
    for n in range(50):
        assert pool.submit(lambda n=n: n).result(PATIENCE) == n
        if n % 10 == 0:
            eventually(lambda: pool._threads == 0)


def test_the_interpreter_does_not_wait_for_blocked_calls(cluster: LocalCluster) -> None:
    code = (
        "import asyncio, millrace\n"
        "async def main():\n"
        f"    client = await millrace.AsyncClient({cluster.address!r}, token={cluster.token!r})\n"
        "    asyncio.create_task(client.wait_for_workers(99))\n"
        "    client.sync.session.pool.submit(__import__('threading').Event().wait)\n"
        "    print(await client.submit(len, 'abc'))\n"
        "asyncio.run(main())\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
    assert time.monotonic() - began < PATIENCE


class Total:
    def of(self, *arrays: Any) -> int:
        return sum(int(a.sum()) for a in arrays)


async def test_submissions_do_not_hold_up_the_loop(cluster: LocalCluster) -> None:
    """The scheduler's answers wait for a coroutine: a call that waited for them would wait for
    ever."""
    opened, in_time, proxy = threading.Event(), list[bool](), Proxy(cluster.address)

    def held(data: bytes) -> list[bytes]:
        in_time.append(opened.wait(10))
        return [data]

    async def opens() -> None:
        opened.set()

    large = [np.full(300_000, n, np.int64) for n in range(5)]
    frame = pd.DataFrame({"x": large[0]})
    try:
        with Client(cluster) as other:
            known = other.submit(len, "four", key="known")
            other.wait([known])
            async with AsyncClient(proxy.address, token=cluster.token) as client:
                actor: Any = await client.submit(Total, actor=True)
                for method in ("SubmitBatch", "Submit", "HoldTasks"):
                    proxy.responses[method] = held
                opening = asyncio.create_task(opens())
                found = Future("known", client)
                sums = [client.submit(np.sum, large[1]), *client.map(np.sum, large[2:4])]
                persisted = client.persist(delayed(np.sum)(large[4]))
                computed = client.compute(delayed(np.max)(large[4]))
                parts = client.shuffle([frame], "x", npartitions=2)
                total = actor.of(large[0], large[1] + 5)
                await opening
                assert await total == 1_800_000
                assert await client.gather(sums) == [300_000, 600_000, 900_000]
                assert await computed == 4 and await client.compute(persisted) == 1_200_000
                assert sum(len(part) for part in await client.gather(parts)) == 300_000
                assert await found == 4
                with pytest.raises(errors.NotFoundError):
                    await Future("unknown", client)
        assert in_time and all(in_time)
    finally:
        proxy.close()
