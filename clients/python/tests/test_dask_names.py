"""Names of Dask's distributed that need no more than the client: locks, states, loops, clients."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from typing import Any

import pytest
from conftest import PATIENCE, eventually
from millrace import (
    AsyncClient,
    Client,
    LocalCluster,
    Lock,
    Status,
    as_completed,
    errors,
    get_client,
    sync,
)


async def double(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


def increment(x: int) -> int:
    return x + 1


def test_a_lock_can_be_looked_at_and_closed(client: Client) -> None:
    lock = Lock("closed-by-others", client=client)
    assert lock.get_value() == 0
    lock.acquire()
    assert lock.get_value() == 1 and lock.locked()
    Lock("closed-by-others", client=client).close()
    assert lock.get_value() == 0
    with pytest.raises(errors.NotHeldError):
        lock.release()


def test_states_are_equal_to_their_names(cluster: LocalCluster) -> None:
    assert cluster.status is Status.running and cluster.status == "running"
    assert f"{cluster.status}" == str(cluster.status) == "running"
    assert cluster.status.name == cluster.status.value == "running"
    assert json.dumps(cluster.status) == '"running"' and Status.lookup["closed"] is Status.closed
    assert pickle.loads(pickle.dumps(Status.failed)) is Status.failed
    assert Status("closing_gracefully") != cluster.status


def test_get_client_finds_the_cluster_of_an_address(cluster: LocalCluster, client: Client) -> None:
    assert get_client(cluster.address) is client
    assert get_client(cluster.scheduler_address, timeout="5s") is client
    named = f"localhost:{cluster.address.rpartition(':')[2]}"
    assert get_client(named) is client
    with LocalCluster(1, memory_limit="64MiB", device="host") as other, get_client(other.address) as found:
        assert found is not client and found.submit(increment, 1).result(PATIENCE) == 2
        assert get_client(other.address) is found and get_client(cluster.address) is client
    with pytest.raises(errors.MillraceError):
        get_client("127.0.0.1:1", timeout=0.1)


def test_get_client_without_resolving(cluster: LocalCluster, client: Client) -> None:
    named = f"localhost:{cluster.address.rpartition(':')[2]}"
    with Client(named, token=cluster.token) as other:
        assert get_client(named, resolve_address=False) is other
        assert get_client(cluster.address, resolve_address=False) is client
        assert get_client(cluster.address) is other


def test_a_task_asks_for_the_client_of_its_cluster(client: Client, cluster: LocalCluster) -> None:
    def inside(address: str) -> int:
        return get_client(address, timeout="30s").submit(increment, 41).result()

    assert client.submit(inside, cluster.address, pure=False).result(PATIENCE) == 42


def test_sync_runs_a_coroutine_in_a_loop(client: Client, cluster: LocalCluster) -> None:
    assert sync(client.loop, double, 4) == 8 == cluster.sync(double, 4)
    assert sync(client.loop.asyncio_loop, double, 5) == 10
    with pytest.raises(TimeoutError, match=r"did not end in 0\.01 s"):
        sync(cluster.loop, asyncio.sleep, 3600, callback_timeout="10 ms")

    async def within() -> None:
        assert client.loop.runs_here
        sync(client.loop, double, 1)

    with pytest.raises(RuntimeError, match="await the coroutine"):
        sync(client.loop, within)
    with pytest.raises(TypeError, match=r"client\.loop"):
        sync(None, double, 1)


def test_a_cluster_has_a_loop(cluster: LocalCluster) -> None:
    told = threading.Event()
    cluster.loop.add_callback(told.set)
    assert told.wait(PATIENCE) and not cluster.called_from_running_loop

    async def within() -> bool:
        return cluster.called_from_running_loop

    assert cluster.sync(within) is True
    coroutine = cluster.sync(double, 3, asynchronous=True)
    assert asyncio.run(coroutine) == 6


def test_an_asynchronous_cluster_uses_the_running_loop() -> None:
    async def main() -> None:
        cluster = LocalCluster(0, device="host", asynchronous=True)
        try:
            assert cluster.status == Status.created and cluster.called_from_running_loop
            assert await cluster.sync(double, 2) == 4
        finally:
            await cluster.close()

    asyncio.run(main())


def test_as_completed_has_a_condition(cluster: LocalCluster) -> None:
    async def main() -> list[int]:
        async with AsyncClient(cluster) as client:
            found = as_completed(client.map(increment, range(3)))
            while True:
                async with found.condition:
                    await asyncio.wait_for(
                        found.condition.wait_for(lambda: found.has_ready() or found.is_empty()), PATIENCE
                    )
                if found.is_empty():
                    return sorted(results)
                results.extend([await f for f in found.next_batch(block=False)])

    results: list[int] = []
    assert asyncio.run(main()) == [1, 2, 3]
    with pytest.raises(RuntimeError):
        as_completed([]).condition  # noqa: B018


def test_a_cluster_is_found_by_its_name() -> None:
    options: dict[str, Any] = {"memory_limit": "64MiB", "device": "host", "name": "the-one"}
    with LocalCluster(2, **options) as cluster:
        assert cluster.name == "the-one" and LocalCluster.from_name("the-one") is cluster
        with pytest.raises(ValueError, match=r"no clusters of the name 'other'; there are: .*'the-one'"):
            LocalCluster.from_name("other")
        cluster.wait_for_workers(2, PATIENCE)
        first, second = sorted(cluster.observed)
        with pytest.raises(ValueError, match="no active worker has the name"):
            cluster.scale_down(["nobody"])
        cluster.scale_down([first])
        assert cluster.observed == {second} == cluster.plan
        cluster.scale_up(2)
        cluster.wait_for_workers(2, PATIENCE)
        assert len(cluster.observed) == 2 and first not in cluster.observed
        cluster.scale_down([])
        with pytest.raises(NotImplementedError, match=r"cluster\.scale"):
            cluster.start_worker()
    eventually(lambda: cluster.status == Status.closed)
    with pytest.raises(ValueError, match="no clusters"):
        LocalCluster.from_name("the-one")
