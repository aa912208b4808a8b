"""A rebalance evens out the bytes that workers hold."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import AsyncClient, Client, Future, LocalCluster, RebalanceReport, errors
from proxy import Proxy

#: Elements of an array of 1 MiB.
MEBI = 1 << 17


def numbers(first: int) -> Any:
    return np.arange(first, first + MEBI, dtype=float)


@pytest.fixture
def own() -> Iterator[LocalCluster]:
    with LocalCluster(2, memory_limit="256MiB", device="host") as made:
        yield made


@pytest.fixture
def ours(own: LocalCluster) -> Iterator[Client]:
    with Client(own) as made:
        made.wait_for_workers(2, timeout=PATIENCE)
        yield made


def skewed(client: Client, n: int = 40) -> list[Future[Any]]:
    """Puts everything on one worker."""
    return client.scatter([numbers(i) for i in range(n)], workers="host-0")


def check(futures: list[Future[Any]]) -> None:
    for i, future in enumerate(futures):
        assert (future.result(PATIENCE) == numbers(i)).all(), i


def even(report: RebalanceReport) -> bool:
    held = [w.bytes / w.memory_limit for w in report.workers]
    mean = sum(held) / len(held)
    return all(abs(h - mean) <= 0.06 * mean for h in held)


def test_a_skewed_scatter_is_evened_out(ours: Client) -> None:
    futures = skewed(ours)
    plan = ours.rebalance(dry_run=True)
    assert [w.name for w in plan.workers] == ["host-0", "host-1"]
    full, empty = plan.workers
    assert (plan.moved_objects, plan.failures) == (0, ()) and not even(plan)
    assert 18 <= plan.planned_objects <= 22 and plan.planned_bytes >= plan.planned_objects * 8 * MEBI
    assert full.initial_bytes == full.bytes >= 40 * 8 * MEBI and empty.bytes == 0
    assert full.planned_bytes + empty.planned_bytes == full.bytes
    assert {tuple(w) for w in ours.who_has(futures).values()} == {("host-0",)}

    done = ours.rebalance()
    assert (done.moved_objects, done.moved_bytes) == (plan.planned_objects, plan.planned_bytes)
    assert done.failed_objects == 0 and even(done)
    where = [holder for holders in ours.who_has(futures).values() for holder in holders]
    assert len(where) == 40 and where.count("host-1") == done.moved_objects
    check(futures)
    assert ours.rebalance(workers=["host-0", "host-1"]).planned_objects == 0


class Begun:
    """The address of a proxy that knows whether a rebalance has begun."""

    def __init__(self, target: str) -> None:
        self.proxy = Proxy(target)
        self.proxy.responses["Rebalance"] = self._note
        self.address = self.proxy.address
        self.told = 0

    def _note(self, data: bytes) -> list[bytes]:
        self.told += 1
        return [data]

    def wait(self) -> None:
        eventually(lambda: self.told)


@pytest.fixture
def begun(own: LocalCluster) -> Iterator[Begun]:
    made = Begun(own.address)
    yield made
    made.proxy.close()


@pytest.fixture
def second(ours: Client) -> Iterator[int]:
    """The process of host-1. Tests stop it, so that no move can end, as late as they can: its
    supervisor kills it after 20 s."""
    pid = ours.scheduler_info()["workers"]["host-1"]["pid"]
    yield pid
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def refused(client: Client) -> bool:
    """Returns whether another rebalance is in progress. REQUIRES: if not, this one ends."""
    try:
        client.rebalance(timeout=PATIENCE)
    except errors.InvalidRequestError as e:
        assert e.reason == "REBALANCE_RUNNING" and str(e).endswith("wait for its end [REBALANCE_RUNNING]")
        return True
    return False


async def test_the_end_of_a_coroutine_ends_its_rebalance(
    own: LocalCluster, ours: Client, begun: Begun, second: int
) -> None:
    async with AsyncClient(begun.address, token=own.token) as client:
        futures = skewed(ours)
        os.kill(second, signal.SIGSTOP)
        waiting = asyncio.create_task(client.rebalance())
        while not begun.told:
            await asyncio.sleep(0.005)
        assert refused(ours)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        os.kill(second, signal.SIGCONT)
        eventually(lambda: not refused(ours))
        done = await client.rebalance()
        assert done.planned_objects == 0 and even(done)
        check(futures)


def test_a_worker_dies_in_the_middle(own: LocalCluster, ours: Client, begun: Begun, second: int) -> None:
    futures = skewed(ours)
    want = r"rebalance did not end in 1 s, and was ended: \d+ of (19|2\d) results \(.*have moved"
    with Client(begun.address, token=own.token) as other, concurrent.futures.ThreadPoolExecutor() as threads:
        os.kill(second, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match=want):
            ours.rebalance(timeout=1)
        waiting = threads.submit(other.rebalance)
        begun.wait()
        assert refused(ours)
        os.kill(second, signal.SIGKILL)
        report = waiting.result(PATIENCE)
    assert report.planned_objects == report.moved_objects + report.failed_objects
    assert len(report.failures) == min(report.failed_objects, 20)
    for failure in report.failures:
        assert (failure.source, failure.target) == ("host-0", "host-1") and failure.bytes >= 8 * MEBI and failure.reason
        assert failure.key in {f.key for f in futures}
    check(futures)
    ours.wait_for_workers(2, timeout=PATIENCE)
    assert even(ours.rebalance())
    check(futures)


def test_rebalances_that_make_no_sense(client: Client) -> None:
    with pytest.raises(ValueError, match="workers is empty"):
        client.rebalance(workers=[])
    with pytest.raises(TypeError, match="workers: 7 is no name"):
        client.rebalance(workers=[7])  # pyright: ignore[reportArgumentType]
    with pytest.raises(errors.InvalidRequestError, match="rebalance: worker host-0 alone cannot be evened out"):
        client.rebalance(workers="host-0")
    with pytest.raises(errors.NotFoundError, match='rebalance: there is no worker "nobody": see'):
        client.rebalance(workers=["host-0", "nobody"])
    with pytest.raises(TypeError, match="host-0"):
        client.rebalance(["host-0"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="timeout must be 0 or longer"):
        client.rebalance(timeout=-1)
    with pytest.raises(TypeError, match="dry_run must be True or False, not 'yes'"):
        client.rebalance(dry_run="yes")  # pyright: ignore[reportArgumentType]
    token = client.submit(os.getenv, "MILLRACE_TOKEN", pure=False).result(PATIENCE)
    with Client(client.session.address, token=token) as other, pytest.raises(errors.AuthenticationError):
        other.rebalance(dry_run=True)


def test_futures_are_waited_for(ours: Client, gate: Gate) -> None:
    held = ours.submit(Gate.pass_through, gate, pure=False)
    with pytest.raises(TimeoutError, match="1 of 1 tasks did not end"):
        ours.rebalance([held], timeout="100 ms")
    gate.open()
    assert len(ours.rebalance(held, timeout=PATIENCE).workers) == 2


def test_a_drained_worker_takes_no_part(ours: Client) -> None:
    ours.drain_workers("host-1")
    with pytest.raises(errors.InvalidRequestError, match="only active workers take part") as caught:
        ours.rebalance(workers=["host-0", "host-1"])
    assert caught.value.reason == "WORKER_NOT_ACTIVE"
    assert [w.name for w in ours.rebalance().workers] == ["host-0"]


def test_a_closed_client_waits_for_no_rebalance(own: LocalCluster, ours: Client, begun: Begun, second: int) -> None:
    futures = skewed(ours)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        with Client(begun.address, token=own.token) as other:
            os.kill(second, signal.SIGSTOP)
            waiting = threads.submit(other.rebalance)
            begun.wait()
        with pytest.raises(errors.SchedulerLostError, match="closed"):
            waiting.result(PATIENCE)
    os.kill(second, signal.SIGCONT)
    check(futures)
