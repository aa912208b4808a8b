"""A client's description of itself, and the arguments that Dask's client has as well."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import json
import logging
import threading
from pathlib import Path
from typing import Any

import millrace
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import AsyncClient, Client, LocalCluster, default_client, get_client


def inc(x: int) -> int:
    return x + 1


def test_numbers_and_futures(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        assert client.id == f"Client-{client.session.client_id}"
        assert client.status == "running" and client.asynchronous is False
        x, y = client.submit(inc, 1), client.submit(inc, 2, key=("y", 2))
        assert client.futures[("y", 2)].result() == 3
        again = client.submit(inc, 1)
        gc.collect()
        eventually(lambda: client.refcount == {x.key: 2, ("y", 2): 1})
        again.release()
        y.release()
        eventually(lambda: client.refcount == {x.key: 1} and list(client.futures) == [x.key])
        assert client.start() is None
        with pytest.raises(AttributeError, match="rebalance"):
            client.amm  # noqa: B018
    assert client.status == "closed"


def test_the_current_client(cluster: LocalCluster) -> None:
    with Client(cluster) as first, Client(cluster) as second:
        assert get_client() is default_client() is Client.current() is second
        assert default_client(first) is first
        assert Client.current(allow_global=False) is second
        with first.as_current():
            assert get_client() is Client.current(allow_global=False) is first
            with second.as_current():
                assert Client.current() is second
            seen: list[Any] = []
            thread = threading.Thread(target=lambda: seen.append(get_client()))
            thread.start()
            thread.join(PATIENCE)
            assert seen == [second], "it holds for one thread"
        with Client(cluster, set_as_default=False) as third:
            assert get_client() is Client.current() is second
            with third.as_current():
                assert Client.current() is third
        with first.as_current():
            first.close()
            assert get_client() is second


def test_a_client_that_is_no_default_is_not_the_default_client(cluster: LocalCluster) -> None:
    with Client(cluster, set_as_default=False) as only:
        for found in default_client, Client.current:
            with pytest.raises(ValueError, match="is the default one"):
                found()
        assert get_client() is only and default_client(only) is only
        with only.as_current():
            assert default_client() is Client.current() is only


async def test_the_current_client_of_an_event_loop(cluster: LocalCluster) -> None:
    client = AsyncClient(cluster)
    assert client.status == "newly-created" and client.asynchronous
    await client.start()
    try:
        assert client.status == "running" and client.id == client.sync.id
        assert get_client() is client and AsyncClient.current() is client
        assert await asyncio.to_thread(get_client) is client.sync
        with client.as_current():
            assert AsyncClient.current(allow_global=False) is client
        x = client.submit(inc, 1)
        assert set(client.futures) == set(client.refcount) == {x.key}
        done = asyncio.Event()
        client.loop.add_callback(done.set)
        await asyncio.wait_for(done.wait(), PATIENCE)
        assert client.cluster is cluster
    finally:
        await client.close(timeout="1 min")


def test_coroutines_of_the_clients_loop(client: Client) -> None:
    async def add(a: int, b: int = 0) -> int:
        await asyncio.sleep(0)
        return a + b

    async def fail() -> None:
        raise KeyError("inside")

    assert client.sync(add, 1, b=2) == 3
    assert client.sync(lambda: 4) == 4
    assert asyncio.run(client.sync(add, 1, asynchronous=True)) == 1
    with pytest.raises(KeyError, match="inside"):
        client.sync(fail)
    with pytest.raises(TimeoutError):
        client.sync(asyncio.Event().wait, callback_timeout="10 ms")
    called = threading.Event()
    client.loop.add_callback(called.set)
    assert called.wait(PATIENCE)
    values: list[int] = []

    async def note(value: int) -> None:
        values.append(await add(value))

    client.loop.add_callback(note, 7)
    eventually(lambda: values == [7])


def test_scheduler_files(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    client.write_scheduler_file(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["address"] == client.session.address
    with Client(scheduler_file=file) as other:
        assert other.submit(inc, 1).result() == 2


def test_arguments_of_distributed(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "millrace"):
        for _ in range(2):
            with Client(
                cluster, loop=object(), heartbeat_interval="5s", direct_to_workers=True, connection_limit=9,
                serializers=["dask", "pickle"], security=None, extensions={}, timeout="20s",
            ) as client:  # fmt: skip
                assert client.submit(inc, 1, retries=None, fifo_timeout="60s").result() == 2
                assert client.gather(client.map(inc, range(3), batch_size=2, fifo_timeout="1s")) == [1, 2, 3]
    for name in ("loop", "heartbeat_interval", "direct_to_workers", "connection_limit", "serializers", "batch_size"):
        assert sum(f" {name}=" in r.getMessage() for r in caplog.records) == 1, name
    for name, value in (("security", True), ("serializers", ["msgpack"]), ("extensions", {"x": 1})):
        with pytest.raises(ValueError, match=name):
            Client(cluster, **{name: value})


def test_a_function_may_have_parameters_of_these_names(client: Client) -> None:
    def f(batch_size: int = 0, fifo_timeout: int = 0) -> tuple[int, int]:
        return batch_size, fifo_timeout

    with client.get_executor() as pool:
        assert pool.submit(f, batch_size=1, fifo_timeout=2).result() == (1, 2)


def test_names_of_the_package() -> None:
    assert millrace.default_client is default_client


def test_waits_for_workers_take_a_time(client: Client, gate: Gate) -> None:
    client.wait_for_workers(1, "1 min")
    with pytest.raises(TimeoutError):
        client.wait_for_workers(99, "10 ms")


def test_types_of_results(client: Client, gate: Gate) -> None:
    assert client.submit(str, 1).result() == "1" and client.submit(str, 1).type is str
    large, bad = client.submit(bytes, 1 << 20), client.submit(divmod, 1, 0)
    millrace.wait([large, bad])
    received = sum(w["received_bytes"] for w in client.scheduler_info()["workers"].values())
    assert large.type is bytes and large.type is bytes and bad.type is None
    assert sum(w["received_bytes"] for w in client.scheduler_info()["workers"].values()) - received < 1 << 20
    waiting = client.submit(gate.pass_through, pure=False)
    assert waiting.type is None
    gate.wait()
    gate.open()
    waiting.result()


async def test_types_of_results_for_asyncio(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        large = client.submit(bytearray, 1 << 20)
        await large
        assert large.type is bytearray


def namespace_of_the_client_in_a_task() -> str:
    return get_client().session.namespace


def test_a_client_in_a_task_has_the_namespace_of_the_task(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster, namespace="apart") as other:
        for own, name in ((other, "apart"), (client, "default"), (other, "apart")):
            future = own.submit(namespace_of_the_client_in_a_task, workers="host-0", pure=False)
            assert future.result(PATIENCE) == name


def test_with_blocks_nest_their_clients(cluster: LocalCluster) -> None:
    with Client(cluster) as outer:
        with Client(cluster) as inner, Client(cluster, set_as_default=False) as other:
            assert Client.current(allow_global=False) is get_client() is inner
            with other.as_current():
                assert Client.current() is other
            later = Client(cluster)
            assert Client.current() is inner
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                assert threads.submit(get_client).result() is later
                with pytest.raises(ValueError, match="no current client"):
                    threads.submit(Client.current, allow_global=False).result()
            later.close()
        assert Client.current(allow_global=False) is outer


async def test_async_blocks_nest_their_clients(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as outer:
        async with AsyncClient(cluster) as inner:
            assert AsyncClient.current(allow_global=False) is inner
        assert AsyncClient.current(allow_global=False) is outer
