"""Functions that run on workers beside the tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, Client, LocalCluster, as_completed, errors


def inc(x: int) -> int:
    return x + 1


def busy(client: Client, gate: Gate) -> list[Any]:
    """Occupies all slots of the cluster with tasks that wait for the gate."""
    slots = sum(w["slots"] for w in client.scheduler_info()["workers"].values())
    held = [client.submit(Gate.pass_through, gate, pure=False) for _ in range(slots)]
    gate.wait(slots)
    return held


def release(held: list[Any], gate: Gate) -> None:
    """Ends the tasks of `busy`, one by one: a reader of the pipe may take several bytes."""
    gate.open()
    for n, _ in enumerate(as_completed(held), 1):
        if n < len(held):
            gate.open()


def test_run_on_busy_workers(client: Client, gate: Gate) -> None:
    held = busy(client, gate)
    pids = client.run(os.getpid)
    assert len(set(pids.values())) == 2 and not any(f.done() for f in held)
    # Each process that runs a task called the function.
    client.run(setattr, sys, "set_by_run", 5)
    release(held, gate)
    assert client.gather([client.submit(lambda: sys.set_by_run, pure=False, workers=w) for w in pids]) == [5, 5]  # type: ignore[attr-defined]


def test_run_tells_its_worker(client: Client) -> None:
    def where(x: int, dask_worker: Any = None) -> tuple[int, str, bool]:
        return x, dask_worker.name, Path(dask_worker.local_directory).is_dir()

    assert client.run(where, 3) == {"host-0": (3, "host-0", True), "host-1": (3, "host-1", True)}


def test_run_of_coroutines_imports_and_large_results(client: Client) -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x

    assert set(client.run(later, 4).values()) == {4}
    assert set(client.run("os:getpid").values()) == set(client.run(os.getpid).values())
    for got in client.run(np.arange, 100_000).values():
        np.testing.assert_array_equal(got, np.arange(100_000))
        got[0] = 7  # it is the client's own
    with pytest.raises(errors.TaskFailedError, match="16,777,216 are allowed: submit a task"):
        client.run(bytes, 17 << 20)
    with pytest.raises(errors.InvalidRequestError, match=r"'?bytes|len'? takes"):
        client.run(len, bytes(20 << 20))


def test_run_without_waiting(client: Client, gate: Gate) -> None:
    assert client.run(Gate.pass_through, gate, workers="host-0", wait=False, processes="one") is None
    gate.wait()  # it runs
    gate.open()


def test_errors_of_run(client: Client) -> None:
    def fails(dask_worker: Any) -> str:
        if dask_worker.name == "host-1":
            raise KeyError("lost")
        return "fine"

    with pytest.raises(KeyError, match="lost"):
        client.run(fails)
    assert client.run(fails, on_error="ignore") == {"host-0": "fine"}
    returned = client.run(fails, on_error="return")
    assert returned["host-0"] == "fine" and isinstance(returned["host-1"], KeyError)
    with pytest.raises(ValueError, match="on_error must be 'raise', 'return' or 'ignore', not 'skip'"):
        client.run(fails, on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no nanny process"):
        client.run(fails, nanny=True)
    with pytest.raises(errors.FunctionNotFoundError, match="No module named 'not_there'"):
        client.run("not_there:f")
    with pytest.raises(errors.SerialisationError, match="lambda"):
        lock = threading.Lock()
        client.run(lambda: lock)
    with pytest.raises(errors.RemoteError, match="SystemExit"):
        client.run(sys.exit, 3)


def test_a_process_that_dies_in_run() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own) as client:
        with pytest.raises(errors.WorkerDiedError, match="killed by SIGKILL"):
            client.run(lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert client.submit(inc, 1).result(PATIENCE) == 2
        assert len(client.run(os.getpid)) == 1


def test_call_stack(client: Client, gate: Gate) -> None:
    held = client.submit(Gate.pass_through, gate, key=("held", 1), workers="host-1", pure=False)
    gate.wait()
    # Tasks of the tests before, which the cluster outlives, may still run.
    for stacks in (client.call_stack(), client.call_stack(held), client.call_stack(keys=[("held", 1)])):
        lines = stacks["host-1"]["held", 1]
        assert "in pass_through" in lines[0] and "pipe.read(1)" in lines[-1] + lines[0]
    for stacks in (client.call_stack(held), client.call_stack(keys=[("held", 1)])):
        assert list(stacks) == ["host-1"] and list(stacks["host-1"]) == [("held", 1)]
    assert client.call_stack(keys=["other"]) == {}
    gate.open()
    held.result(PATIENCE)
    assert client.call_stack(held) == {}


def test_versions(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = client.get_versions(check=True, packages=["pytest", "not-there"])
    assert set(versions["workers"]) == {"host-0", "host-1"} and versions["scheduler"]["packages"]["millrace"]
    assert versions["client"]["packages"] == versions["workers"]["host-0"]["packages"]
    assert versions["client"]["packages"]["numpy"] == np.__version__
    assert versions["client"]["packages"]["not-there"] is None
    monkeypatch.setattr("platform.python_version", lambda: "3.1.4")
    with pytest.raises(ValueError, match=r"python: 3\.1\.4 in the client, 3\.\d+\.\d+ on host-0, host-1"):
        client.get_versions(check=True)


async def test_run_in_asyncio(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        assert set((await client.run(inc, 1)).values()) == {2}
