"""Clients whose scheduler restarts, drops their lease, is full, or sends answers in parts."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from google.protobuf.json_format import MessageToDict
from millrace import Client, LocalCluster, errors
from millrace._local._local_process import find_binary, python_path
from millrace._pb.millrace.v1 import client_pb2, scheduler_service_pb2_grpc, task_calls_pb2, task_pb2, watch_pb2
from millrace._session import _sender
from proxy import Proxy
from restartable import Restartable


def inc(x: int) -> int:
    return x + 1


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[Restartable]:
    made = Restartable(tmp_path)
    yield made
    made.close()


def test_a_scheduler_that_is_started_anew(restartable: Restartable, gate: Gate) -> None:
    with Client(restartable.address, token=restartable.token, timeout=PATIENCE) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        small = client.submit(inc, 1)
        assert small.result(PATIENCE) == 2
        large = client.submit(np.ones, 100_000)
        failed = client.submit(lambda: 1 / 0)
        assert large.exception(PATIENCE) is None and isinstance(failed.exception(PATIENCE), ZeroDivisionError)
        running = client.submit(pass_through, gate, pure=False)
        waiting = client.submit(str.upper, running)
        gate.wait()
        before, life = client.session.client_id, client.session.life
        restartable.stop()
        eventually(lambda: "no answer for" in repr(client))
        late = client.submit(str.lower, running)  # on its way when the scheduler is started anew
        restartable.start()
        for future in (running, waiting, late):
            with pytest.raises(errors.SchedulerLostError, match=r"started anew.*submit it again"):
                future.result(PATIENCE)
            assert future.status == "lost"
        with pytest.raises(errors.SchedulerLostError, match="started anew"):
            large.result(PATIENCE)
        # Results that had arrived are still known.
        assert small.result(PATIENCE) == 2
        assert isinstance(failed.exception(), ZeroDivisionError)
        assert client.session.client_id != before and client.session.life != life
        gate.open()
        # Later tasks run, also under keys of earlier ones.
        client.wait_for_workers(1, timeout=PATIENCE)
        assert client.submit(inc, 1).result(PATIENCE) == 2
        assert client.submit(inc, 41).result(PATIENCE) == 42
        assert client.submit(np.sum, client.scatter(np.ones(100_000))).result(PATIENCE) == 100_000
        assert "lease 2: the scheduler was started anew" in repr(client)
        for future in (failed, small, large):
            with pytest.raises(errors.SchedulerLostError):
                client.retry(future)
        running.cancel()
        del running, waiting, large, small, failed, future
        gc.collect()
        client.session.flush()
        assert client.submit(inc, 42).result(PATIENCE) == 43


def test_a_result_that_is_fetched_before_the_restart_is_noticed(
    restartable: Restartable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    noticed = threading.Event()
    with Client(restartable.address, token=restartable.token, timeout=PATIENCE, shared_memory=False) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        large = client.submit(np.ones, 100_000)
        assert large.exception(PATIENCE) is None
        renew = client.session._renew
        watcher = client.session._watcher

        def late(client_id: int) -> None:
            noticed.wait(PATIENCE)
            renew(client_id)

        monkeypatch.setattr(watcher, "_renew", late)
        restartable.stop()
        restartable.start()
        try:
            with pytest.raises(errors.SchedulerLostError, match=r"started anew.*submit it again"):
                large.result(PATIENCE)
        finally:
            noticed.set()
        assert large.status == "lost"
        assert any("a client without a name at 127.0.0.1:" in record.getMessage() for record in caplog.records)


def test_submissions_while_the_scheduler_is_away(restartable: Restartable) -> None:
    with Client(restartable.address, token=restartable.token, timeout=PATIENCE) as client:
        client.wait_for_workers(1, timeout=PATIENCE)
        assert client.submit(inc, 1).result(PATIENCE) == 2
        restartable.stop()
        futures = client.map(inc, range(100, 120))
        restartable.start()
        assert client.gather(futures, timeout=PATIENCE) == list(range(101, 121))


def test_two_clients_do_not_become_each_other(restartable: Restartable, gate: Gate) -> None:
    """Ids of the new scheduler process are not mistaken for those of the old one."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(Client(restartable.address, token=restartable.token, timeout=PATIENCE))
            for _ in range(3)
        ]
        clients[0].wait_for_workers(1, timeout=PATIENCE)
        old = [c.submit(pass_through, gate, pure=False) for c in clients]
        for c in clients:
            c.session.flush()
        restartable.stop()
        restartable.start()
        for future in old:
            with pytest.raises(errors.SchedulerLostError):
                future.result(PATIENCE)
        clients[0].wait_for_workers(1, timeout=PATIENCE)
        new = [c.map(inc, range(10 * n, 10 * n + 5)) for n, c in enumerate(clients)]
        del old
        gc.collect()
        for n, (c, futures) in enumerate(zip(clients, new, strict=True)):
            assert c.gather(futures, timeout=PATIENCE) == list(range(10 * n + 1, 10 * n + 6))
        assert len({c.session.client_id for c in clients}) == 3
        gate.open(3)


@pytest.fixture
def proxy(cluster: LocalCluster) -> Iterator[Proxy]:
    made = Proxy(cluster.address)
    yield made
    made.close()


@pytest.fixture
def through(proxy: Proxy, cluster: LocalCluster) -> Iterator[Client]:
    """A client behind the proxy."""
    with Client(proxy.address, token=cluster.token) as made:
        made.wait_for_workers(2, timeout=PATIENCE)
        yield made


def forget(cluster: LocalCluster, client: Client) -> None:
    """Ends a client's lease without the client's knowledge, as the scheduler does if a client is
    silent for too long."""
    with Client(cluster) as other:
        request = client_pb2.CloseClientRequest(client_id=client.session.client_id)
        other.session.call("CloseClient", request)


def test_a_lease_that_ran_out(cluster: LocalCluster, gate: Gate) -> None:
    with Client(cluster) as client:
        running = client.submit(pass_through, gate, pure=False)
        gate.wait()
        forget(cluster, client)
        with pytest.raises(errors.SchedulerLostError, match="its lease had run out"):
            running.result(PATIENCE)
        assert client.submit(inc, 1).result(PATIENCE) == 2
        assert "its lease had run out" in repr(client)
        for _ in range(20):
            forget(cluster, client)
            # Succeeds, or is lost with the lease.
            client.submit(inc, 1, pure=False).exception(PATIENCE)
        eventually(lambda: client.submit(inc, 1, pure=False).exception(PATIENCE) is None)


def test_a_lease_that_ran_out_in_the_middle_of_a_submission(through: Client, proxy: Proxy) -> None:
    proxy.fail("SubmitBatch", grpc.StatusCode.NOT_FOUND, "UNKNOWN_CLIENT")
    assert through.submit(inc, 1, pure=False).result(PATIENCE) == 2
    assert through.session.renewals == 1


def test_a_full_scheduler_is_tried_again(through: Client, proxy: Proxy) -> None:
    proxy.fail("SubmitBatch", grpc.StatusCode.RESOURCE_EXHAUSTED, "SCHEDULER_FULL", times=3)
    futures = through.map(inc, range(10), pure=False)
    assert through.gather(futures, timeout=PATIENCE) == list(range(1, 11))
    assert proxy.calls["SubmitBatch"] == 4


def test_a_scheduler_that_stays_full(through: Client, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sender, "FULL_SECONDS", 0.2)
    proxy.fail("SubmitBatch", grpc.StatusCode.RESOURCE_EXHAUSTED, "SCHEDULER_FULL", times=10_000)
    with through.session.changed:
        futures = [through.submit(inc, n, pure=False) for n in range(5)]
    for future in futures:
        with pytest.raises(errors.SchedulerFullError, match=r"for 0\.2 s.*SCHEDULER_FULL"):
            future.result(PATIENCE)
    proxy.errors.clear()
    assert through.submit(inc, 1, pure=False).result(PATIENCE) == 2


def test_releases_make_room_for_what_waits_for_it(through: Client, proxy: Proxy) -> None:
    """Releases are sent while a submission is repeated, except those of tasks that the submission
    needs."""
    kept, dropped = through.submit(inc, 1, pure=False), through.submit(inc, 2, pure=False)
    assert through.gather([kept, dropped], timeout=PATIENCE) == [2, 3]
    proxy.fail("SubmitBatch", grpc.StatusCode.RESOURCE_EXHAUSTED, "SCHEDULER_FULL", times=10_000)
    after = through.submit(inc, kept, pure=False)
    tried = proxy.calls["SubmitBatch"]
    eventually(lambda: proxy.calls["SubmitBatch"] > tried + 1)
    behind = through.submit(inc, after, pure=False)
    released = proxy.calls.get("ReleaseTasks", 0)
    key = dropped.key
    del kept, dropped
    gc.collect()
    eventually(lambda: proxy.calls.get("ReleaseTasks", 0) > released)
    eventually(lambda: key not in through.session._tasks._states)
    proxy.errors.clear()
    assert through.gather([after, behind], timeout=PATIENCE) == [3, 4]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_a_release_that_fails_is_repeated(through: Client, proxy: Proxy, code: grpc.StatusCode) -> None:
    future = through.submit(inc, 1, pure=False)
    assert future.result(PATIENCE) == 2
    number = future._state.id
    proxy.fail("ReleaseTasks", code, times=3)
    del future
    gc.collect()
    through.session.flush()

    def state() -> int:
        request = task_calls_pb2.LocateObjectsRequest(task_ids=[number])
        return through.session.call("LocateObjects", request).objects[0].state

    eventually(lambda: state() in (task_pb2.TASK_STATE_UNSPECIFIED, task_pb2.TASK_STATE_RELEASED))
    assert proxy.calls["ReleaseTasks"] >= 4


def test_a_release_that_is_repeated_spares_what_is_held_anew(through: Client, proxy: Proxy) -> None:
    proxy.fail("ReleaseTasks", grpc.StatusCode.UNAVAILABLE, times=2)
    for _ in range(5):
        first = through.submit(np.ones, 100_000, key="held-anew")
        assert first.exception(PATIENCE) is None
        del first
        gc.collect()
        again = through.submit(np.ones, 100_000, key="held-anew")
        assert again.result(PATIENCE).sum() == 100_000
        del again
        proxy.fail("ReleaseTasks", grpc.StatusCode.UNAVAILABLE)


def test_a_snapshot_in_parts(proxy: Proxy, cluster: LocalCluster, gate: Gate) -> None:
    """A task that is in no part of a snapshot does not exist; a task that is only in the last part
    does."""
    hidden: set[int] = set()
    whole: list[Any] = []

    def divide(data: bytes) -> list[bytes]:
        response = watch_pb2.WatchResponse.FromString(data)
        if not response.snapshot or not response.tasks:
            return [data]
        whole.append(len(response.tasks))
        tasks = [t for t in response.tasks if t.task_id not in hidden]
        parts: list[bytes] = []
        for n, task in enumerate(tasks):
            part = watch_pb2.WatchResponse(
                revision=response.revision, snapshot=True, tasks=[task], more=n + 1 < len(tasks), life=response.life
            )
            parts.append(part.SerializeToString())
        return parts

    proxy.responses["Watch"] = divide
    with Client(proxy.address, token=cluster.token) as client:
        first = client.submit(pass_through, gate, pure=False)
        futures = client.map(str.upper, [first] * 6, pure=False)
        # A change after their acceptance: a later snapshot includes them.
        client.submit(inc, 1, pure=False).cancel()
        client.session.flush()
        hidden.add(futures[3]._state.id)
        # The stream breaks, and its revision is too old to resume, so that a snapshot is sent.
        proxy.fail("Watch", grpc.StatusCode.OUT_OF_RANGE, "REVISION_TOO_OLD")
        client.session._watcher.cancel()
        with pytest.raises(errors.SchedulerLostError, match="does not know it any more"):
            futures[3].result(PATIENCE)
        gate.open()
        assert client.gather(futures[:3] + futures[4:], timeout=PATIENCE) == ["THROUGH"] * 5
        assert whole and max(whole) >= 6


def be_away(proxy: Proxy, client: Client) -> None:
    """Makes the scheduler unreachable for the stream of updates."""
    proxy.fail("Watch", grpc.StatusCode.UNAVAILABLE, times=10_000)
    client.session._watcher.cancel()


def test_futures_outlive_the_time_limit_of_calls(
    proxy: Proxy, cluster: LocalCluster, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal keeps the tasks of a scheduler that is away for long."""
    with Client(proxy.address, token=cluster.token) as client:
        running = client.submit(pass_through, gate, pure=False)
        gate.wait()
        client.session.connection.timeout = 0.1
        be_away(proxy, client)
        eventually(lambda: "still trying, for 600 s in all" in caplog.text)
        assert running.status == "pending"
        with pytest.raises(TimeoutError):
            running.result(0.1)
        # A task submitted meanwhile is pending, too: its tries take longer than the time limit.
        proxy.fail("SubmitBatch", grpc.StatusCode.UNAVAILABLE, times=4)
        meanwhile = client.submit(inc, 1, pure=False)
        eventually(lambda: not proxy.left("SubmitBatch"))
        proxy.errors.clear()
        gate.open()
        assert meanwhile.result(PATIENCE) == 2
        assert running.result(PATIENCE) == "through"
        assert "is back after" in caplog.text


def test_a_scheduler_that_comes_back_late(cluster: LocalCluster) -> None:
    """Waiting futures fail after the longest outage, but the client continues to work."""
    proxy = Proxy(cluster.address)
    try:
        with Client(proxy.address, token=cluster.token, reconnect_timeout="0.2 s") as client:
            never = client.submit(inc, 1, workers="nobody")
            client.session.flush()
            be_away(proxy, client)
            with pytest.raises(errors.SchedulerLostError, match="reconnect_timeout"):
                never.result(PATIENCE)
            assert never.status == "lost"
            proxy.errors.clear()
            eventually(lambda: not client.session.silent_since)
            assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2
    finally:
        proxy.close()


def test_a_scheduler_that_reads_its_journal_is_not_away(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = Proxy(cluster.address)
    starting = grpc.StatusCode.UNAVAILABLE, "SCHEDULER_STARTING"
    try:
        proxy.fail("OpenClient", *starting, times=3)
        with Client(proxy.address, token=cluster.token) as client:
            client.session.connection.timeout = client.session.connection.reconnect_timeout = 0.1
            waits = client.submit(inc, 1, workers="nobody")
            # No call was begun, so those that change something are repeated, too.
            proxy.fail("PublishDataset", *starting, times=3)
            future = client.submit(inc, 1, pure=False)
            client.publish_dataset("once", future)
            assert "because the scheduler reads its journal" in caplog.text
            client.unpublish_dataset("once")
            proxy.fail("Watch", *starting, times=6)
            proxy.fail("SubmitBatch", *starting, times=6)
            client.session._watcher.cancel()
            assert client.submit(inc, 2, pure=False).result(PATIENCE) == 3
            eventually(lambda: not proxy.left("Watch"))
            eventually(lambda: not client.session.silent_since)
            assert waits.status == "pending"
    finally:
        proxy.close()


def test_a_result_far_away_while_the_scheduler_is_away(proxy: Proxy, cluster: LocalCluster) -> None:
    """The limit of a wait for a result is not that of calls."""
    with Client(proxy.address, token=cluster.token, shared_memory=False) as client:
        far = client.submit(np.ones, 100_000)
        assert far.exception(PATIENCE) is None
        be_away(proxy, client)
        eventually(lambda: client.session.silent_since)
        proxy.close()
        client.session.connection.timeout = 0.1
        with pytest.raises(TimeoutError):
            far.result(0.2)
        asked = threading.Event()
        call = client.session.connection.call

        def limits(method: str, request: Any, *, timeout: float | None = None, keys: Iterable[str] = ()) -> Any:
            if method == "LocateObjects":
                assert timeout is not None and 100 < timeout <= 200
                asked.set()
                raise errors.SchedulerLostError("the test knows enough")
            return call(method, request, timeout=timeout, keys=keys)

        client.session.connection.call = limits
        with pytest.raises(errors.SchedulerLostError, match="knows enough"):
            far.result(200)
        assert asked.is_set()


def test_a_flush_does_not_wait_as_long_as_futures(proxy: Proxy, cluster: LocalCluster) -> None:
    with Client(proxy.address, token=cluster.token) as client:
        proxy.fail("SubmitBatch", grpc.StatusCode.UNAVAILABLE, times=10_000)
        be_away(proxy, client)
        eventually(lambda: client.session.silent_since)
        client.session.connection.timeout = 0.1
        queued = client.submit(inc, 1, pure=False)
        with pytest.raises(errors.SchedulerLostError, match="is sent when it is back"):
            client.session.flush()
        proxy.errors.clear()
        assert queued.result(PATIENCE) == 2


def test_a_journal_keeps_what_waits_in_a_long_outage(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    restartable = Restartable(tmp_path, "--journal", str(tmp_path / "journal"))
    try:
        with Client(restartable.address, token=restartable.token, timeout=PATIENCE) as client:
            client.wait_for_workers(1, timeout=PATIENCE)
            running = client.submit(pass_through, gate, pure=False)
            waiting = client.submit(str.upper, running)
            gate.wait()
            restartable.stop()
            client.session.connection.timeout = 0.5
            eventually(lambda: "still trying" in caplog.text)
            meanwhile = client.submit(str.lower, waiting)
            client.session.connection.timeout = PATIENCE
            restartable.start()
            gate.open()
            assert client.gather([running, waiting, meanwhile], timeout=PATIENCE) == ["through", "THROUGH", "through"]
    finally:
        restartable.close()


def test_small_results_are_answered_after_a_restart(tmp_path: Path) -> None:
    """The scheduler has lost its copies of them, and asks the worker."""
    restartable = Restartable(tmp_path, "--journal", str(tmp_path / "journal"))
    try:
        with Client(restartable.address, token=restartable.token) as client:
            small, null = client.submit(inc, 1), client.submit(print, "x")
            assert client.gather([small, null], timeout=PATIENCE) == [2, None]
            restartable.stop()
            restartable.start()
            for future, value in ((small, 2.0), (null, None)):
                request = task_calls_pb2.GetResultRequest(task=task_pb2.TaskRef(key=future.key))
                request.wait.FromSeconds(int(PATIENCE) // 2)
                answer = client.session.call("GetResult", request, timeout=PATIENCE)
                assert MessageToDict(answer.json) == value
            assert client.gather([small, null], timeout=PATIENCE) == [2, None]
    finally:
        restartable.close()


def test_futures_of_a_local_cluster_end_with_it() -> None:
    """Nobody starts that scheduler again."""
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own) as client:
        never = client.submit(inc, 1, workers="nobody")
        client.session.flush()
        assert own._process is not None
        os.kill(own._process.pid, signal.SIGKILL)
        with pytest.raises(errors.SchedulerLostError, match="the cluster was killed by signal 9"):
            never.result(PATIENCE)


def test_closing_does_not_wait_for_a_scheduler_that_is_away(restartable: Restartable) -> None:
    client = Client(restartable.address, token=restartable.token)
    client.wait_for_workers(1, timeout=PATIENCE)
    futures = client.map(inc, range(3))
    restartable.stop()
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < PATIENCE
    assert all(f.done() for f in futures)


def test_reads_are_repeated_when_the_connection_breaks(through: Client, proxy: Proxy) -> None:
    proxy.fail("ListWorkers", grpc.StatusCode.UNAVAILABLE, times=3)
    before = proxy.calls.get("ListWorkers", 0)
    assert len(through.session.workers()) == 2
    assert proxy.calls["ListWorkers"] == before + 4
    # A refusal of the scheduler is none, and neither is a call that might be applied twice.
    proxy.fail("ListDatasets", grpc.StatusCode.UNAVAILABLE, "DRAINING")
    with pytest.raises(errors.SchedulerLostError, match="DRAINING"):
        through.list_datasets()
    proxy.fail("PublishDataset", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(errors.SchedulerLostError):
        through.publish_dataset("once", 1)
    assert "once" not in through.list_datasets()


def test_holds_are_repeated_when_the_connection_breaks(through: Client, proxy: Proxy, cluster: LocalCluster) -> None:
    """A dataset is read by holding its results: the client holds each of them once, however often
    it asks."""
    with Client(cluster.address, token=cluster.token) as other:
        future = other.submit(inc, 1, pure=False)
        assert future.result(PATIENCE) == 2
        other.publish_dataset("held", future)
    proxy.fail("HoldTasks", grpc.StatusCode.UNAVAILABLE, times=2)
    assert through.get_dataset("held").result(PATIENCE) == 2
    assert proxy.calls["HoldTasks"] == 3
    through.unpublish_dataset("held")


def test_a_lease_is_opened_again_over_a_connection_that_breaks(through: Client, proxy: Proxy) -> None:
    assert through.submit(inc, 1, pure=False).result(PATIENCE) == 2
    before = through.session.client_id
    proxy.fail("OpenClient", grpc.StatusCode.UNAVAILABLE, times=3)
    proxy.fail("SubmitBatch", grpc.StatusCode.NOT_FOUND, "UNKNOWN_CLIENT")
    assert through.submit(inc, 2, pure=False).result(PATIENCE) == 3
    assert through.session.client_id != before
    # A refusal of the scheduler is not repeated.
    proxy.fail("OpenClient", grpc.StatusCode.UNAVAILABLE, "DRAINING")
    proxy.fail("SubmitBatch", grpc.StatusCode.NOT_FOUND, "UNKNOWN_CLIENT")
    with pytest.raises(errors.SchedulerLostError, match="opening a new lease"):
        through.submit(inc, 3, pure=False).result(PATIENCE)


def test_a_scheduler_that_does_not_answer_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with grpc.insecure_channel(f"127.0.0.1:{silent.getsockname()[1]}") as channel:
            monkeypatch.setattr(
                client.session.connection, "stub", scheduler_service_pb2_grpc.SchedulerServiceStub(channel)
            )
            with pytest.raises(errors.SchedulerLostError) as caught:
                client.session.call("LocateObjects", task_calls_pb2.LocateObjectsRequest(), timeout=0.1)
            client.session._locator.lease_replaced()  # it knows no workers from before
            began = time.monotonic()
            assert "unreachable" in repr(client)
            assert time.monotonic() - began < 20  # the limit of other calls is 30 s
            monkeypatch.undo()
    text = str(caught.value)
    assert client.session.address in text
    assert "no answer within 0.1 s" in text
    assert "millrace status" in text


# ---- workers -------------------------------------------------------------------------------------


def test_a_wait_for_workers_is_told_of_them(tmp_path: Path) -> None:
    """It asks when the workers have changed, and not at intervals."""
    with LocalCluster(1, memory_limit="64MiB", device="host") as own:
        proxy = Proxy(own.address)
        worker: subprocess.Popen[bytes] | None = None
        try:
            with Client(proxy.address, token=own.token) as client:
                client.wait_for_workers(1, timeout=PATIENCE)
                before = proxy.calls["ListWorkers"]
                with pytest.raises(TimeoutError, match="1 of 2 workers came within 1 s"):
                    client.wait_for_workers(2, timeout=1)
                assert proxy.calls["ListWorkers"] - before <= 3
                waits = [
                    threading.Thread(target=client.wait_for_workers, args=(2,), kwargs={"timeout": PATIENCE})
                    for _ in range(3)
                ]
                for wait in waits:
                    wait.start()
                eventually(lambda: len(client.session.worker_watch._waiting) == 3)
                worker = subprocess.Popen(
                    [
                        find_binary(), "worker", "--address", own.address, "--workers", "1", "--memory-limit", "64MiB",
                        "--device", "host", "--local-directory", str(tmp_path), "--python", sys.executable,
                    ],
                    env={**os.environ, "MILLRACE_TOKEN": own.token, "PYTHONPATH": python_path()},
                )  # fmt: skip
                for wait in waits:
                    wait.join(PATIENCE)
                    assert not wait.is_alive()
                assert len(client.scheduler_info()["workers"]) == 2
                # Its stream exists only while somebody waits, and survives a failure.
                eventually(lambda: client.session.worker_watch._thread is None)
                proxy.fail("Watch", grpc.StatusCode.UNAVAILABLE)
                with pytest.raises(TimeoutError, match="2 of 3 workers"):
                    client.wait_for_workers(3, timeout=1)
                waiting = threading.Thread(target=closed_while_waiting, args=(client,))
                waiting.start()
                eventually(lambda: bool(client.session.worker_watch._waiting))
            waiting.join(PATIENCE)
            assert not waiting.is_alive()
        finally:
            if worker is not None:
                worker.terminate()
                worker.wait()
            proxy.close()


def closed_while_waiting(client: Client) -> None:
    with pytest.raises(errors.SchedulerLostError):
        client.wait_for_workers(3)


def test_a_submission_that_meets_a_closed_lease(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` ends the lease while tasks are being sent. They fail because of the close."""
    client = Client(cluster)
    session = client.session
    sent, ended = threading.Event(), threading.Event()
    submit, end_lease = session._sender._submit, session.connection.end_lease

    def late(*args: Any) -> Any:
        sent.set()
        assert ended.wait(PATIENCE)
        return submit(*args)

    def end(*args: Any, **options: Any) -> None:
        end_lease(*args, **options)
        ended.set()

    monkeypatch.setattr(session._sender, "_submit", late)
    monkeypatch.setattr(session.connection, "end_lease", end)
    future = client.submit(inc, 1)
    assert sent.wait(PATIENCE)
    client.close()
    with pytest.raises(errors.SchedulerLostError, match="closed"):
        future.result(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_whose_sender_has_failed_says_so(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for an answer that nobody will give ends with an error."""
    with Client(cluster) as client:
        sender = client.session._sender

        def fail() -> bool:
            raise ZeroDivisionError

        monkeypatch.setattr(sender, "_round", fail)
        assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2  # the last round
        sender.thread.join(PATIENCE)
        client.submit(inc, 1, pure=False)
        with pytest.raises(errors.SchedulerLostError, match="the thread that sends the tasks"):
            client.session.flush()
