"""Operators drain, retire and restart workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import AsyncClient, Client, LocalCluster, errors
from millrace._local._local_process import find_binary, python_path
from proxy import Proxy
from test_life import Restartable, restartable  # noqa: F401 - a fixture

#: Elements of an array of 1 MiB.
MEBI = 1 << 17


def numbers(first: int) -> Any:
    return np.arange(first, first + MEBI, dtype=float)


def made(gate: Gate) -> Any:
    gate.pass_through()
    return numbers(5)


class Two:
    """A cluster with the workers host-0 and second-0, and a client of it."""

    def __init__(
        self, stack: contextlib.ExitStack, directory: Path, memory: str, *environment: tuple[str, str]
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment:
                patch.setenv(name, value)
            self.cluster = stack.enter_context(LocalCluster(1, memory_limit=memory, device="host"))
        self.second = subprocess.Popen(
            [
                find_binary(), "worker", "--address", self.cluster.address, "--workers", "1", "--memory-limit", "256MiB",
                "--device", "host", "--name", "second", "--local-directory", str(directory), "--python", sys.executable,
            ],
            env={**os.environ, "MILLRACE_TOKEN": self.cluster.token, "PYTHONPATH": python_path()},
        )  # fmt: skip
        stack.callback(self.second.wait)
        stack.callback(self.second.terminate)
        self.client = stack.enter_context(Client(self.cluster))
        self.client.wait_for_workers(2, timeout=PATIENCE)

    def worker(self, name: str = "second-0") -> dict[str, Any]:
        return self.client.scheduler_info()["workers"].get(name, {"pid": 0, "state": "gone"})


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with contextlib.ExitStack() as stack:
        yield Two(stack, tmp_path, "256MiB")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Two]:
    """Two workers, of which host-0 has room for a part of what second-0 may hold."""
    with contextlib.ExitStack() as stack:
        yield Two(stack, tmp_path, "16MiB", ("MILLRACE_SPILL_LIMIT", "none"))


@pytest.fixture
def threads() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        yield pool


def test_the_life_of_a_worker(two: Two, gate: Gate, threads: concurrent.futures.ThreadPoolExecutor) -> None:
    """No result is lost or computed again while workers are drained, killed, restarted, retired."""
    client = two.client
    data = client.scatter(numbers(7), workers="second-0")
    computed = client.submit(made, gate, workers="second-0", allow_other_workers=True)
    gate.wait()

    def check() -> None:
        assert (data.result(PATIENCE) == numbers(7)).all() and (computed.result(PATIENCE) == numbers(5)).all()

    # The drain waits for the task, and hands over its result and the data.
    drain = threads.submit(client.drain_workers, "second-0", reason="a loud fan", timeout=PATIENCE)
    eventually(lambda: two.worker()["state"] == "draining")
    assert two.worker()["drain"]["purpose"] == "keep"
    assert not drain.done()
    gate.open()
    (drained,) = drain.result(PATIENCE)
    assert drained["name"] == "second-0" and drained["state"] == "drained"
    told = drained["drain"]
    assert (told["reason"], told["copied_objects"], told["remaining_objects"], told["staying"]) == (
        "a loud fan",
        2,
        0,
        [],
    )
    assert told["copied_bytes"] >= 2 * 8 * MEBI
    # Its process can end. The next one gets no tasks either.
    os.kill(drained["pid"], signal.SIGKILL)
    eventually(lambda: two.worker()["state"] == "drained" and two.worker()["pid"] != drained["pid"])
    check()
    blocked = client.submit(os.getpid, workers="second-0", pure=False)
    eventually(lambda: "second-0: drained: a loud fan" in client.explain(blocked))
    (again,) = client.drain_workers(two.worker(), undo=True)
    assert again["state"] == "active" and again["drain"] is None
    assert isinstance(blocked.result(PATIENCE), int)

    more = client.scatter(numbers(11), workers="second-0")
    old = {w["name"]: w for w in client.scheduler_info()["workers"].values()}
    for wrong in ("nobody", {"id": 4_000_000_000}):  # an error before any worker is restarted
        with pytest.raises(errors.NotFoundError, match="restart_workers: there is no worker"):
            client.restart_workers(["second-0", wrong])
    assert two.worker()["pid"] == old["second-0"]["pid"] and two.worker()["state"] == "active"
    new = client.restart_workers(["second-0", f"w{old['host-0']['id']}"], reason="a new driver", timeout=PATIENCE)
    assert [w["name"] for w in new] == ["second-0", "host-0"]
    for worker in new:
        before = old[worker["name"]]
        assert worker["state"] == "active" and worker["pid"] != before["pid"] and worker["id"] > before["id"]
        assert len(worker["deaths"]) == len(before["deaths"])  # a restart is no death
    check()
    with pytest.raises(errors.NotFoundError, match=r"restart_workers: .*lost.*client\.scheduler_info"):
        client.restart_workers(old["second-0"])  # the description names a process that has ended

    (gone,) = client.retire_workers("second-0", timeout=PATIENCE)
    assert gone["state"] == "lost" and two.second.wait(PATIENCE) == 0
    assert list(client.scheduler_info()["workers"]) == ["host-0"]
    check()
    assert (more.result(PATIENCE) == numbers(11)).all()
    assert gate.nobody_there(), "the task ran twice"
    with pytest.raises(errors.NotFoundError, match="or it is lost"):
        client.retire_workers("second-0")


def test_a_drain_that_cannot_end(
    small: Two, threads: concurrent.futures.ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names results that stay, and why. Then the worker is killed: the results that were
    handed over are there, and the others are computed again."""
    client = small.client
    scattered = [client.scatter(numbers(i), workers="second-0", key=("part", i)) for i in range(4)]
    computed = client.map(numbers, range(30), key=[("made", i) for i in range(30)], workers="second-0")
    client.wait(computed, PATIENCE)
    (begun,) = client.drain_workers("second-0", wait=False)
    assert begun["state"] == "draining"
    eventually(lambda: small.worker()["drain"]["staying_objects"] > 0)
    want = r"in 0\.5 s: worker second-0 has 0 tasks, and \d+ results \(.* MiB\) that no other worker has, \d+ of which stay: .*'made', \d+\) \(1\.0 MiB\): .*host-0, has room for"
    with pytest.raises(TimeoutError, match=want) as caught:
        client.drain_workers("second-0", timeout=0.5)
    assert "=(" not in str(caught.value)  # keys are as users write them
    drain = small.worker()["drain"]
    assert drain["copied_objects"] + drain["remaining_objects"] == 34
    assert {s["key"][0] for s in drain["staying"]} == {"made"} and drain["staying"][0]["bytes"] >= 8 * MEBI
    with pytest.raises(TimeoutError, match=r"; the restart of host-0 was not begun$"):
        client.restart_workers(["second-0", "host-0"], timeout="500 ms")
    for given in (["second-0", "host-0"], ["nobody"]):
        caplog.clear()
        assert client.restart_workers(given, raise_for_error=False, timeout="500 ms") == []
        assert caplog.messages[-1].startswith(f"restart_workers: {given[0]} was not restarted: ")
        assert ("; the restart of host-0 was not begun" in caplog.messages[-1]) == (len(given) == 2)
    assert small.worker("host-0")["state"] == "active"

    client.drain_workers("second-0", wait=False)  # it takes the place of the restart
    waiting = threads.submit(client.drain_workers, "second-0")
    eventually(lambda: len(client.session.drain_watch._waiting) == 1)
    pid = small.worker()["pid"]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(errors.DrainError, match=r"worker second-0 died during its drain: .*(SIGKILL|killed)"):
        waiting.result(PATIENCE)
    eventually(lambda: small.worker()["state"] == "drained" and small.worker()["pid"] != pid)
    for i, future in enumerate(scattered):
        assert (future.result(PATIENCE) == numbers(i)).all()
    client.drain_workers("second-0", undo=True)
    for i, future in enumerate(computed):
        assert (future.result(PATIENCE) == numbers(i)).all()


def test_a_limit_ends_the_process_all_the_same(small: Two) -> None:
    client = small.client
    data = client.scatter(np.ones(40 * MEBI), workers="second-0")
    (gone,) = client.retire_workers("second-0", within="200 ms", timeout=PATIENCE)
    assert gone["state"] == "lost"
    with pytest.raises(errors.TaskFailedError, match=r"OBJECT_LOST.*left the cluster"):
        client.submit(np.sum, data).result(PATIENCE)


async def test_drains_of_the_async_client(two: Two) -> None:
    async with AsyncClient(two.cluster) as client:
        data = await client.scatter(numbers(3), workers="second-0")
        (drained,) = await client.drain_workers("second-0", timeout=PATIENCE)
        assert drained["state"] == "drained"
        (back,) = await client.drain_workers("second-0", undo=True)
        assert back["state"] == "active"
        (new,) = await client.restart_workers(drained, timeout=PATIENCE)
        assert new["pid"] != drained["pid"]
        # Both workers: neither copies the results of the other, so the drain cannot end.
        waiting = [asyncio.create_task(client.drain_workers(["host-0", "second-0"])) for _ in range(20)]
        watch = client.sync.session.drain_watch
        while len(watch._waiting) < 20:
            await asyncio.sleep(0.005)
        assert "no other worker is active" in str((await client.scheduler_info())["workers"])
        with pytest.raises(TimeoutError, match=r"has 0 tasks, and 1 results .* of which stay"):
            await client.drain_workers(["host-0", "second-0"], timeout=0.2)
        await client.drain_workers(["host-0", "second-0"], undo=True)
        for failed in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(failed, errors.DrainError) and "was undone" in str(failed)
        (gone,) = await client.retire_workers("second-0", timeout=PATIENCE)
        assert gone["state"] == "lost"
        assert (await data == numbers(3)).all()


def test_a_wait_for_a_drain_does_not_ask(two: Two, gate: Gate, threads: concurrent.futures.ThreadPoolExecutor) -> None:
    """It follows the Watch stream, also when that breaks."""
    proxy = Proxy(two.cluster.address)
    try:
        # Output that is shown would ask for the workers from time to time.
        with Client(proxy.address, token=two.cluster.token, output=False) as client:
            blocked = client.submit(Gate.pass_through, gate, workers="second-0", pure=False)
            gate.wait()
            waiting = threads.submit(client.drain_workers, "second-0", timeout=PATIENCE)
            eventually(lambda: client.session.drain_watch._seen is not None)
            before = dict(proxy.calls)
            proxy.fail("Watch", grpc.StatusCode.UNAVAILABLE)
            client.session.drain_watch._stream.cancel()
            eventually(lambda: proxy.calls["Watch"] >= before["Watch"] + 2)
            assert not waiting.done()
            gate.open()
            assert [w["state"] for w in waiting.result(PATIENCE)] == ["drained"]
            assert proxy.calls["ListWorkers"] - before["ListWorkers"] <= 1
            assert proxy.calls["DrainWorkers"] == proxy.calls["GetWorker"] == 1
            eventually(lambda: client.session.drain_watch._thread is None)
            blocked.result(PATIENCE)
    finally:
        proxy.close()


def test_the_scheduler_is_started_anew(restartable: Restartable, threads: Any) -> None:  # noqa: F811
    with Client(restartable.address, token=restartable.token, timeout=PATIENCE) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        data = client.scatter(numbers(1))
        (name,) = client.scheduler_info()["workers"]
        waiting = threads.submit(client.drain_workers, name)
        eventually(lambda: client.session.drain_watch._seen is not None)
        restartable.stop()
        restartable.start()
        with pytest.raises(
            errors.DrainError, match=f"the scheduler was started anew.* order the drain of {name} again"
        ):
            waiting.result(PATIENCE)
        del data


def test_a_closed_client_waits_for_no_drain(two: Two, threads: concurrent.futures.ThreadPoolExecutor) -> None:
    with Client(two.cluster) as client:
        data = two.client.scatter(numbers(1), workers="second-0")
        waiting = threads.submit(client.drain_workers, ["host-0", "second-0"])
        eventually(lambda: client.session.drain_watch._seen is not None)
    with pytest.raises(errors.SchedulerLostError, match="closed"):
        waiting.result(PATIENCE)
    assert [w["state"] for w in two.client.drain_workers("host-0", undo=True)] == ["active"]
    del data


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"workers": []}, ValueError, "workers is empty"),
        ({"workers": None}, ValueError, "workers: name them"),
        ({"workers": ""}, ValueError, "workers: the name of a worker cannot be empty"),
        ({"workers": 7}, TypeError, "workers: 7 is no name"),
        ({"workers": [["a"]]}, TypeError, r"workers: \['a'\] is no name"),
        ({"workers": [{"name": "host-0"}]}, TypeError, "workers: the id of a description must be a whole number, not None"),
        ({"workers": {"id": 0}}, ValueError, "workers: the id of a description must be from 1"),
        ({"workers": [f"w{n}" for n in range(1001)]}, ValueError, "workers: one order takes at most 1,000 workers, not 1,001"),
        ({"workers": "host-0", "reason": 5}, TypeError, "reason must be text"),
        ({"workers": "host-0", "reason": "x" * 1025}, ValueError, "reason has at most 1024"),
        ({"workers": "host-0", "timeout": -1}, ValueError, "timeout must be 0 or longer"),
        ({"workers": "host-0", "timeout": "soon"}, ValueError, "timeout: 'soon' is no time"),
        ({"workers": "host-0", "within": 0}, ValueError, "within must be longer than 0 and at most 30 days, not 0"),
        ({"workers": "host-0", "within": "31 days"}, ValueError, "within must be longer than 0 and at most 30 days"),
        ({"workers": "nobody"}, errors.NotFoundError, 'retire_workers: there is no worker "nobody"'),
        ({"workers": {"id": 4_000_000_000}}, errors.NotFoundError, "w4000000000"),
    ],
)  # fmt: skip
def test_orders_that_make_no_sense(client: Client, given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        client.retire_workers(**given)
    assert {w["state"] for w in client.scheduler_info()["workers"].values()} == {"active"}


def test_a_task_may_not_give_orders(client: Client) -> None:
    token = client.submit(os.getenv, "MILLRACE_TOKEN", pure=False).result(PATIENCE)
    address = client.session.address
    with Client(address, token=token) as other, pytest.raises(errors.AuthenticationError):
        other.drain_workers(list(client.scheduler_info()["workers"]), wait=False)
