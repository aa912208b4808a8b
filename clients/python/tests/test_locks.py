"""Locks and semaphores, in clients, in tasks and in event loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import AsyncClient, Client, LocalCluster, Lock, MultiLock, Semaphore, errors
from millrace._pb.millrace.v1 import client_pb2, coordination_pb2
from proxy import Proxy


def waiting(client: Client, name: str) -> int:
    """Returns how many calls wait for a lock."""
    return client.session.call("GetSemaphore", coordination_pb2.GetSemaphoreRequest(name=name)).waiting


def in_thread(call: Callable[[], Any]) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_lock_excludes_other_clients(client: Client, cluster: LocalCluster) -> None:
    with Client(cluster) as other:
        lock, theirs = Lock("excludes", client=client), Lock("excludes", client=other)
        assert lock.acquire() is True
        assert lock.locked() and theirs.locked()
        assert theirs.acquire(timeout="10 ms") is False
        assert theirs.acquire(blocking=False) is False
        got = in_thread(theirs.acquire)
        eventually(lambda: waiting(client, "excludes") == 1)
        assert lock.release() is True
        assert got.result(PATIENCE) is True
        theirs.release()
        assert not lock.locked()


def test_a_lock_is_given_in_the_order_of_the_calls(client: Client) -> None:
    lock = Lock("in order", client=client)
    order: list[int] = []

    def take(i: int) -> None:
        with Lock("in order", client=client):
            order.append(i)

    with lock:
        threads = []
        for i in range(5):
            threads.append(in_thread(lambda i=i: take(i)))
            eventually(lambda i=i: waiting(client, "in order") == i + 1)
    for t in threads:
        t.result(PATIENCE)
    assert order == list(range(5))


def test_misuse_of_a_lock_is_an_error(client: Client) -> None:
    lock = Lock(client=client)
    with pytest.raises(RuntimeError, match="Released too often"):
        lock.release()
    with pytest.raises(ValueError, match="blocking=False does not wait"):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(TypeError, match="client must be"):
        Lock("x", "y")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="is empty"):
        Lock("", client=client)
    with pytest.raises(TypeError, match="names must be several"):
        MultiLock("xy", client=client)
    with pytest.raises(ValueError, match="same name twice"):
        MultiLock(["x", "x"], client=client)
    with pytest.raises(ValueError, match="not yet acquired"):
        MultiLock(["x"], client=client).release()
    sem = Semaphore(2, "misuse", client=client)
    with sem, pytest.raises(errors.InvalidRequestError, match="at most"):
        Semaphore(3, "misuse", client=client).acquire()


def test_a_pickled_lock_has_the_name_and_not_the_lease(client: Client) -> None:
    lock = Lock("pickled", client=client)
    with lock:
        copy = pickle.loads(pickle.dumps(lock))
        assert copy.name == "pickled"
        with pytest.raises(RuntimeError):
            copy.release()
    sem = pickle.loads(pickle.dumps(Semaphore(3, "sem", client=client)))
    assert (sem.name, sem.max_leases) == ("sem", 3)
    assert pickle.loads(pickle.dumps(MultiLock(["a", "b"], client=client))).names == ["a", "b"]


def count_up(lock: Lock, path: str) -> None:
    with lock:
        n = int(Path(path).read_text())
        Path(path).write_text(str(n + 1))


def test_tasks_exclude_each_other(client: Client, tmp_path: Path) -> None:
    # Few tasks: one executor process starts for each that waits for the lock.
    path = tmp_path / "count"
    path.write_text("0")
    client.gather(client.map(count_up, [Lock("count", client=client)] * 8, [str(path)] * 8, pure=False))
    assert path.read_text() == "8"


def test_a_semaphore_has_a_number_of_leases(client: Client) -> None:
    sem = Semaphore(2, "two", client=client)
    sem.register()
    assert sem.acquire() and sem.acquire(timeout=PATIENCE)
    assert sem.get_value() == 2
    assert sem.acquire(timeout=0) is False
    assert sem.release() is True
    with sem:
        assert sem.get_value() == 2
    assert sem.get_value() == 1
    waits = in_thread(Semaphore(2, "two", client=client).acquire)
    assert waits.result(PATIENCE) is True
    blocked = in_thread(Semaphore(2, "two", client=client).acquire)
    eventually(lambda: waiting(client, "two") == 1)
    sem.close()
    with pytest.raises(errors.ClosedError, match="two"):
        blocked.result(PATIENCE)
    with pytest.raises(errors.NotHeldError, match="two"):
        sem.release()


def test_several_locks_are_acquired_at_once(client: Client) -> None:
    both, one = MultiLock(["ma", "mb"], client=client), Lock("mb", client=client)
    with one:
        assert both.acquire(timeout=0) is False
        assert both.acquire(num_locks=1) is True
        assert both.locked()
        assert Lock("ma", client=client).locked()
        both.release()
    with both:
        assert one.acquire(timeout=0) is False
    with MultiLock([], client=client):
        pass


def test_locks_wait_in_the_event_loop(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with AsyncClient(cluster) as client:
            lock = Lock("loop", client=client)
            assert await lock.acquire() is True
            others = [asyncio.create_task(hold(client)) for _ in range(50)]
            while waiting(client.sync, "loop") < 50:
                await asyncio.sleep(0.01)
            before = threading.active_count()
            assert before < 60
            # A task that is cancelled leaves the line.
            others.pop().cancel()
            while waiting(client.sync, "loop") > 49:
                await asyncio.sleep(0.01)
            await lock.release()
            await asyncio.gather(*others)
            assert not await lock.locked()
            async with Semaphore(3, "loop sem", client=client) as sem:
                assert await sem.get_value() == 1
            async with MultiLock(["loop", "x"], client=client) as both:
                assert both.locked()
            with pytest.raises(RuntimeError, match="async with"), lock:
                pass

    async def hold(client: AsyncClient) -> None:
        async with Lock("loop", client=client):
            await asyncio.sleep(0)

    asyncio.run(main())


def test_the_default_client_is_used(client: Client) -> None:
    lock = Lock("default")
    with lock:
        assert lock.client is client
        assert Lock("default", client=client).locked()


HOLDER = """
import sys
from millrace import Client, Lock
client = Client(sys.argv[1], token=sys.argv[2])
Lock("held by a process").acquire()
print("held", flush=True)
sys.stdin.read()
{end}
"""


@pytest.mark.parametrize("kill", [False, True])
def test_the_locks_of_a_process_end_with_it(client: Client, cluster: LocalCluster, kill: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(end="client.close()"), cluster.address, cluster.token],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "held\n"
        lock = Lock("held by a process", client=client)
        assert lock.acquire(timeout=0) is False
        if kill:
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.close()
        assert lock.acquire(timeout=PATIENCE) is True
        lock.release()
    finally:
        process.kill()
        process.wait()


def hold_and_die(gate: Gate) -> None:
    Lock("held by a task").acquire()
    gate.arrive()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_locks_of_a_task_end_with_its_process(client: Client, gate: Gate) -> None:
    future = client.submit(hold_and_die, gate, retries=0)
    gate.wait()
    lock = Lock("held by a task", client=client)
    assert lock.acquire(timeout=PATIENCE) is True
    lock.release()
    future.cancel()


def test_a_lock_that_was_lost_says_so() -> None:
    with LocalCluster(1, memory_limit="256MiB", device="host") as cluster, Client(cluster) as client:
        lock = Lock("lost", client=client)
        lock.acquire()
        # As after a scheduler that was started anew: the lease is another one.
        client.session.call("CloseClient", client_pb2.CloseClientRequest(client_id=client.session.client_id))
        client.session.replace_lease(client.session.client_id)
        with pytest.raises(errors.NotHeldError, match=r"was lost while it was held.*lease"):
            lock.release()
        with lock:
            pass


def test_a_wait_for_a_lock_outlives_the_time_limit_of_calls(cluster: LocalCluster) -> None:
    proxy = Proxy(cluster.address)
    try:
        with Client(proxy.address, token=cluster.token) as client:
            client.session.connection.timeout = 0.05
            proxy.fail("Acquire", grpc.StatusCode.UNAVAILABLE, times=5)
            lock = Lock("after-an-outage", client=client)
            lock.acquire()
            assert not proxy.left("Acquire")
            client.session.connection.timeout = 30.0
            lock.release()
    finally:
        proxy.close()


def test_a_lock_can_be_released_after_the_release_has_failed(cluster: LocalCluster) -> None:
    proxy = Proxy(cluster.address)
    try:
        with Client(proxy.address, token=cluster.token) as client, Client(cluster) as other:
            lock = Lock("released-later", client=client)
            lock.acquire()
            proxy.fail("Release", grpc.StatusCode.UNAVAILABLE, times=2)
            with pytest.raises(errors.SchedulerLostError):
                lock.release()
            assert lock.locked()
            lock.release()
            assert not lock.locked() and Lock("released-later", client=other).acquire(timeout=PATIENCE)
            with pytest.raises(RuntimeError, match="Released too often"):
                lock.release()
    finally:
        proxy.close()


def test_a_second_try_to_release_tells_that_the_lock_was_lost(cluster: LocalCluster) -> None:
    proxy = Proxy(cluster.address)
    try:
        with Client(proxy.address, token=cluster.token) as client, Client(cluster) as other:
            lock = Lock("lost-while-away", client=client)
            lock.acquire()
            Lock("lost-while-away", client=other).close()
            proxy.fail("Release", grpc.StatusCode.UNAVAILABLE)
            with pytest.raises(errors.NotHeldError):
                lock.release()
            assert not proxy.left("Release")
    finally:
        proxy.close()


def test_a_release_whose_answer_was_lost_is_repeated(cluster: LocalCluster) -> None:
    proxy = Proxy(cluster.address)
    try:
        with Client(proxy.address, token=cluster.token) as client:
            lock = Lock("answer-was-lost", client=client)
            lock.acquire()
            proxy.lost.add("Release")
            lock.release()
            assert not proxy.lost and proxy.calls["Release"] == 2
            assert not lock.locked()
    finally:
        proxy.close()
