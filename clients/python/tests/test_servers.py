"""Schedulers and workers as objects."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE
from millrace import AsyncClient, Client, Nanny, Scheduler, Status, SubprocessCluster, Worker, errors, servers

ROOT = Path(__file__).parents[3]


def square(x: int) -> int:
    return x * x


def colour() -> str | None:
    return os.environ.get("COLOUR")


async def test_a_scheduler_and_workers(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    async with Scheduler(port=0, scheduler_file=file, worker_ttl="10s") as scheduler:
        assert scheduler.status == Status.running and scheduler.address.startswith("tcp://127.0.0.1:")
        assert (
            json.loads(file.read_text())["address"].endswith(f":{scheduler.port}") and file.stat().st_mode & 0o77 == 0
        )
        one = await Worker(scheduler.address, nthreads=2, name="alice", memory_limit="64MiB", env={"COLOUR": "red"})
        async with Worker("127.0.0.1", scheduler.port, nthreads=1, memory_limit="64MiB", resources={"r": 2}) as two:
            assert one.name == "alice-0" and one.status == "running" and one.scheduler_address == scheduler.address
            async with AsyncClient(scheduler.address) as client:
                workers = (await client.scheduler_info())["workers"]
                assert set(workers) == {one.name, two.name} == set(scheduler.workers)
                assert workers["alice-0"]["slots"] == 2 and f"tcp://{workers['alice-0']['address']}" == one.address
                assert workers[two.name]["resources"] == {"r": 2}
                assert await client.gather(client.map(square, range(10))) == [x * x for x in range(10)]
                assert await client.submit(colour, workers=one.name) == "red"
                await one.close()
                assert one.status == Status.closed
                assert await client.submit(square, 11, workers=two.name) == 121
        await asyncio.wait_for(one.finished(), PATIENCE)
    assert scheduler.status == "closed" and not file.exists()


def test_without_an_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    with (
        Scheduler(scheduler_file=file, dashboard=False) as scheduler,
        Worker(scheduler_file=file, nthreads=1, memory_limit="64MiB") as worker,
        Client(scheduler.address) as client,
    ):
        assert scheduler.dashboard_link == "" and scheduler.token
        assert client.submit(square, 3).result(PATIENCE) == 9
        assert list(client.nthreads()) == [worker.name] and worker.name in repr(client.scheduler_info())
        assert "worker" in worker.log


async def test_a_killed_worker_is_started_again() -> None:
    async with (
        Scheduler() as scheduler,
        Nanny(scheduler.address, nthreads=1, name="n", memory_limit="64MiB") as nanny,
        AsyncClient(scheduler.address) as client,
    ):
        before = (await client.scheduler_info())["workers"]["n-0"]
        await asyncio.wait_for(nanny.kill(), PATIENCE)
        await client.wait_for_workers(1, timeout=PATIENCE)
        after = (await client.scheduler_info())["workers"]["n-0"]
        assert after["pid"] != before["pid"] and after["id"] != before["id"]
        assert await client.submit(square, 4) == 16


def test_a_worker_that_cannot_join() -> None:
    with Scheduler() as scheduler:
        worker = Worker(scheduler.address, token="wrong", nthreads=1, memory_limit="64MiB")
        with pytest.raises(errors.MillraceError):
            worker._start()
        assert worker.status == Status.closed
    with pytest.raises(ValueError, match="give the address of a scheduler"):
        Worker()
    with pytest.raises(ValueError, match="scheduler_port=8786 needs scheduler_ip"):
        Worker(scheduler_port=8786)


def test_closed_servers_stay_closed() -> None:
    with Scheduler() as scheduler, Worker(scheduler.address, nthreads=1, memory_limit="64MiB") as worker:
        pass
    for closed in (scheduler, worker):
        with pytest.raises(RuntimeError, match="is closed: make another one"), closed:
            pass


def test_every_argument_of_dask_is_known() -> None:
    known: dict[str, Any] = json.loads((ROOT / "tools/coming-from-dask/names.json").read_text())["distributed"]
    own = {"scheduler_file", "worker_ttl", "dashboard"}
    assert set(known["Scheduler"]) <= own | set(servers.SCHEDULER_MAPPED) | set(servers.SCHEDULER_REFUSED)
    assert set(known["Worker"]) | set(known["Nanny"]) <= servers.worker_arguments()
    for name, why in servers.SCHEDULER_REFUSED.items():
        with pytest.raises(ValueError, match=f"Scheduler: {name}=1 is refused"):
            Scheduler(**{name: 1})
        assert why
    with pytest.raises(TypeError, match="Scheduler has no argument 'prot'"):
        Scheduler(prot=1)
    with pytest.raises(TypeError, match="Worker has no argument nthread"):
        Worker("127.0.0.1:1", nthread=1)
    with pytest.raises(ValueError, match="executor=1 is refused: tasks run in processes"):
        Worker("127.0.0.1:1", executor=1)


def test_a_subprocess_cluster() -> None:
    with (
        SubprocessCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=":0", device="host",
            worker_kwargs={"memory_limit": "64MiB", "env": {"COLOUR": "blue"}},
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        assert client.submit(colour).result(PATIENCE) == "blue" and list(client.nthreads().values()) == [2]
    with pytest.raises(TypeError, match="memory_limit is given twice"):
        SubprocessCluster(worker_kwargs={"memory_limit": 1}, memory_limit=1)
    with pytest.raises(ValueError, match="worker_class"):
        SubprocessCluster(worker_class=dict)
