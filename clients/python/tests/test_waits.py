"""Waiting for futures, cancelling them and passing them on, with one client and with several."""

from __future__ import annotations

import concurrent.futures
import datetime
import gc
import operator
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, cast

import millrace
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, as_completed, errors, get_client, wait
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import client_pb2, task_calls_pb2, task_pb2
from millrace._session import _result_holds
from millrace._task_states import _waits
from millrace._task_states._state import State
from millrace._task_states._task_table import TaskTable


def inc(x: int) -> int:
    return x + 1


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


# ---- futures of several clients ------------------------------------------------------------------


def test_futures_of_two_clients_together(cluster: LocalCluster, client: Client, gate: Gate) -> None:
    with Client(cluster) as other:
        mine, theirs = client.submit(inc, 1), other.submit(pass_through, gate, pure=False)
        assert wait([mine, theirs], PATIENCE, "FIRST_COMPLETED").done == {mine}
        with pytest.raises(TimeoutError, match="1 of 2"):
            wait([mine, theirs], 0.01)
        with pytest.raises(TimeoutError, match="1 of 2"):
            client.gather([mine, theirs], timeout=0.01)
        gate.open()
        assert client.gather([mine, {"a": theirs}], timeout=PATIENCE) == [2, {"a": "through"}]
        assert wait([mine, theirs], PATIENCE).not_done == set()
        assert set(client.who_has([mine, theirs])) == {mine.key, theirs.key}
        bad = other.submit(operator.truediv, 1, 0)
        assert client.gather([mine, bad, theirs], errors="skip", timeout=PATIENCE) == [2, "through"]
        client.cancel([bad, mine])


def test_a_future_of_another_client_is_an_input(cluster: LocalCluster, client: Client, gate: Gate) -> None:
    with Client(cluster) as other:
        theirs = other.submit(pass_through, gate, pure=False)
        mine = client.submit(str.upper, theirs)
        nested = client.submit(len, [theirs, theirs])
        gate.wait()
        del theirs  # the tasks hold its result
        gc.collect()
        other.session.flush()
        gate.open()
        assert mine.result(PATIENCE) == "THROUGH"
        assert nested.result(PATIENCE) == 2
        assert client.get({"x": (str.upper, other.submit(str.lower, "ABC"))}, "x") == "ABC"


def test_a_future_of_another_cluster_or_namespace_is_refused(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster, namespace="elsewhere") as other:
        with pytest.raises(errors.InvalidRequestError, match="another namespace"):
            client.submit(inc, other.submit(inc, 1))
        # Pickled and unpickled, it belongs to the client that it came from.
        future = pickle.loads(pickle.dumps(other.submit(inc, 1)))
        assert future._session is other.session
        assert future.result(PATIENCE) == 2
        assert pickle.loads(pickle.dumps(client.submit(inc, 1)))._session.namespace == "default"
    with LocalCluster(1, memory_limit="64MiB", device="host") as second, Client(second) as other:
        with pytest.raises(errors.InvalidRequestError, match="another cluster"):
            client.submit(inc, other.submit(inc, 1))
        data = pickle.dumps(other.submit(inc, 1))
    with pytest.raises(errors.NotFoundError, match="no client in this process has joined"):
        pickle.loads(data)


def test_get_client_after_another_one_was_closed(cluster: LocalCluster, client: Client) -> None:
    assert get_client() is client
    with Client(cluster) as other:
        assert get_client() is other
    assert get_client() is client
    assert pickle.loads(pickle.dumps(client.submit(inc, 1))).result(PATIENCE) == 2


# ---- cancel --------------------------------------------------------------------------------------


def test_futures_are_cancelled_when_cancel_returns(client: Client, gate: Gate) -> None:
    for n in range(50):
        blocking = client.submit(pass_through, gate, pure=False)
        if n % 2:
            gate.wait()
        blocking.cancel()
        assert blocking.status == "cancelled"
    many = client.map(pass_through, [gate] * 200, pure=False)
    client.cancel(many)
    assert {f.status for f in many} == {"cancelled"}


def test_a_task_that_others_want_goes_on_for_them(cluster: LocalCluster, client: Client, gate: Gate) -> None:
    with Client(cluster) as other:
        mine = client.submit(pass_through, gate, key="wanted-by-two")
        theirs = other.submit(pass_through, gate, key="wanted-by-two")
        gate.wait()
        other.session.flush()
        mine.cancel()
        assert mine.status == "cancelled"
        with pytest.raises(errors.CancelledError):
            mine.result(PATIENCE)
        gate.open()
        assert theirs.result(PATIENCE) == "through"
        # The cancellation leaves nothing behind: the task can be submitted again.
        assert client.submit(pass_through, gate, key="wanted-by-two").result(PATIENCE) == "through"


def test_cancel_of_an_unknown_task(client: Client, gate: Gate) -> None:
    lost = client.submit(pass_through, gate, key="lost", pure=False)
    kept = client.submit(pass_through, gate, pure=False)
    client.session.flush()
    # Without the client's knowledge, as another connection with this lease could do.
    request = task_calls_pb2.ReleaseTasksRequest(
        client_id=client.session.client_id, tasks=task_pb2.TaskSet(ids=[lost._state.id])
    )
    client.session.call("ReleaseTasks", request)
    with pytest.raises(errors.NotFoundError, match="lost"):
        client.cancel([lost, kept])
    assert kept.status == "cancelled"


def test_cancel_in_a_callback(client: Client, gate: Gate) -> None:
    blocking = client.submit(pass_through, gate, pure=False)
    client.submit(inc, 1, pure=False).add_done_callback(lambda _: blocking.cancel())
    assert isinstance(blocking.exception(PATIENCE), errors.CancelledError)


def test_callbacks_of_what_ends_in_its_submission(client: Client) -> None:
    """A callback may wait for the sending thread, so it must not run in that thread."""
    before = client.submit(inc, 1)
    assert before.result(PATIENCE) == 2
    for _ in range(200):
        ended = threading.Event()
        # The task fails while it is sent, or ends before the answer to its submission is read.
        future = client.submit(inc, 1, key=f"callback-{_}") if _ % 2 else client.op("no.such", pure=False)
        future.add_done_callback(lambda f, ended=ended: (f._session.flush(), ended.set()))
        assert ended.wait(PATIENCE)


def test_cancelled_futures_of_the_executor_are_told(client: Client, gate: Gate) -> None:
    with client.get_executor() as pool:
        futures = [pool.submit(pass_through, gate) for _ in range(4)]
        assert all(f.cancel() for f in futures)
        assert concurrent.futures.wait(futures, PATIENCE).not_done == set()
        assert set(concurrent.futures.as_completed(futures, PATIENCE)) == set(futures)
        remote = pool.submit(pass_through, gate)
        remote._remote.cancel()  # type: ignore[attr-defined]
        assert concurrent.futures.wait([remote], PATIENCE).done == {remote}
        assert remote.cancelled() and remote.cancel()
        done = pool.submit(inc, 1)
        assert done.result(PATIENCE) == 2
        assert not done.cancel()


# ---- tasks that wait for tasks -------------------------------------------------------------------


def waits_in_a_thread(x: int) -> int:
    """Keeps its slot: other threads of a task may be computing."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(get_client().submit(inc, x, pure=False).result).result()


def test_explain_names_the_wait_for_a_task_that_finds_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SLOTS", "1")
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster, Client(cluster) as client:
        outer = client.submit(waits_in_a_thread, 1, key="outer")
        eventually(lambda: "may be waiting for" in str(client.explain(outer)))
        outer.cancel()
        assert client.submit(inc, 1).result(PATIENCE) == 2


# ---- times and other arguments -------------------------------------------------------------------


def test_times_may_be_text(client: Client, gate: Gate) -> None:
    blocking = client.submit(pass_through, gate, pure=False)
    for timeout in ("10 ms", "0.01s", 0.01, 0, datetime.timedelta(milliseconds=10), "10ms"):
        with pytest.raises(TimeoutError):
            blocking.result(timeout)
    with pytest.raises(TimeoutError):
        blocking.exception("1ms")
    with pytest.raises(TimeoutError):
        wait(blocking, "1ms")
    with pytest.raises(TimeoutError):
        client.gather([blocking], timeout="1 ms")
    with pytest.raises(TimeoutError):
        list(as_completed(blocking, timeout="1ms"))
    gate.open()
    assert wait(blocking).done == {blocking}
    assert [f.result("2 min") for f in as_completed(blocking)] == ["through"]
    assert client.submit(inc, 1, timeout="1 h", pure=False).result(float("inf")) == 2


@pytest.mark.parametrize("timeout", ["soon", "5 parsecs", "", -1, float("nan"), object(), [], "-5s"])
def test_times_that_are_none(client: Client, timeout: Any) -> None:
    future = client.submit(inc, 1)
    for call in (
        lambda: future.result(timeout),
        lambda: future.exception(timeout),
        lambda: future.traceback(timeout),
        lambda: client.gather([future], timeout=timeout),
        lambda: client.wait([future], timeout),
        lambda: as_completed([future], timeout=timeout),
        lambda: client.wait_for_workers(1, timeout=timeout),
        lambda: client.submit(inc, 1, timeout=timeout),
        lambda: Client("127.0.0.1:1", timeout=timeout),
    ):
        with pytest.raises((TypeError, ValueError), match="timeout"):
            call()
    with pytest.raises((TypeError, ValueError), match="start_timeout"):
        LocalCluster(1, start_timeout=timeout)


def submit(name: str, value: Any) -> Any:
    return lambda c: c.submit(inc, 1, **{name: value})


BAD: list[tuple[str, Any]] = [
    *(("priority", submit("priority", v)) for v in (1 << 31, "high", 1.5)),
    *(("retries", submit("retries", v)) for v in (-1, 1.0, "3", True)),
    *(("slots", submit("slots", v)) for v in (0, -1, 1 << 20, 1.0)),
    *(("workers", submit("workers", v)) for v in ([], [1], "", 5, ["\udc80"])),
    *(("resources", submit("resources", v)) for v in (["gpu"], {"": 1}, {"x" * 129: 1}, {1: 1}, {"a": "much"})),
    *(("resources", submit("resources", {"a": v})) for v in (0, -1, float("nan"), float("inf"))),
    *(("timeout", submit("timeout", v)) for v in (0, 1e-9, 1e12)),
    *(("n_workers", lambda c, v=v: c.wait_for_workers(v)) for v in (0, -1, 1.0, "1", None, True)),
    ("workers", lambda c: c.scatter(1, workers=[])),
    ("workers", lambda c: c.run(inc, 1, workers="nobody")),
    ("n ", lambda c: c.replicate([c.submit(inc, 1)], n=-1)),
    ("futures", lambda c: wait(5)),
    ("futures", lambda c: wait([5])),
    ("futures", lambda c: c.cancel("x")),
    ("futures", lambda c: c.retry([None])),
    ("futures", lambda c: c.who_has([1])),
    ("futures", lambda c: as_completed([1])),
    ("futures", lambda c: c.replicate(1)),
    ("return_when", lambda c: wait([], return_when="SOMETIMES")),
    ("errors", lambda c: c.gather([], errors="ignore")),
    ("reason", lambda c: c.cancel([], reason="x" * 2000)),
    ("name", lambda c: c.publish_dataset("x" * 300, [])),
    ("dsk", lambda c: c.get([1], "x")),
    ("numworkers", lambda c: c.get({"x": 1}, "x", numworkers=1)),
    ("namespace", lambda c: Client(c.session.address, namespace="a b")),
    ("token", lambda c: Client(c.session.address, token=5)),
    *(
        ("address", lambda _, a=a: Client(a))
        for a in ("ucx://h:1", "host", "host:", ":1", "h:99999", "", 5, "http://h:1")
    ),
    ("n_workers", lambda _: LocalCluster(-1)),
    ("memory_limit", lambda _: LocalCluster(1, memory_limit=1.5)),  # type: ignore[arg-type]
    ("device", lambda _: LocalCluster(1, device="tpu")),
]


@pytest.mark.parametrize(("name", "call"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_bad_arguments_are_named(client: Client, name: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=name):
        call(client)


def test_no_worker_is_none_and_not_all(client: Client) -> None:
    assert client.run(inc, 1, workers=[]) == {}
    assert client.has_what([]) == {}
    assert len(client.run(inc, 1)) == 2


def test_an_address_may_have_a_scheme(cluster: LocalCluster) -> None:
    with Client(f"tcp://{cluster.address}", token=cluster.token) as client:
        assert client.submit(inc, 1).result(PATIENCE) == 2
        assert client.cluster is None


def test_nobody_at_the_address_says_why() -> None:
    def refused(timeout: float) -> bool:
        with pytest.raises(errors.SchedulerLostError) as caught:
            Client("127.0.0.1:1", timeout=timeout)
        return "refused" in str(caught.value)

    # Before the first try to connect has ended, the client cannot know it.
    assert any(refused(timeout) for timeout in (0.5, 5.0, 60.0))


def test_a_cluster_that_was_made_before(cluster: LocalCluster) -> None:
    with Client(cluster) as client:
        assert client.cluster is cluster
    with Client(cluster) as client:  # it did not end with the first client
        assert client.submit(inc, 1).result(PATIENCE) == 2


def test_get_takes_what_dask_passes_on(client: Client) -> None:
    assert client.get({"x": (inc, 1)}, "x", num_workers=1, optimize_graph=False) == 2
    assert client.get({"x": (inc, 1)}, ["x"], workers=sorted(client.has_what())[:1], resources=None) == [2]


def test_a_call_that_fails_in_the_middle_leaves_nothing_that_waits(client: Client) -> None:
    lock = threading.Lock()
    with pytest.raises(errors.SerialisationError) as caught:
        client.map(operator.is_not, [1, lock], [2, 3])
    assert client.submit(operator.is_not, 1, 2).result(PATIENCE) is True
    with pytest.raises(errors.SerialisationError):
        client.scatter([11.5, lock])
    assert client.scatter([11.5])[0].result(PATIENCE) == 11.5
    with pytest.raises(KeyError):
        client.get({"x": (inc, 1)}, ["x", "y"])
    del caught


# ---- tasks that can never run --------------------------------------------------------------------


def test_waiting_for_what_can_never_run_warns(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waits, "NOTICE_SECONDS", 0.05)
    never = client.submit(inc, 1, resources={"unobtainium": 1})
    after = client.submit(inc, client.submit(inc, never))

    def result_of(future: Any, caught: Any) -> bool:
        with pytest.raises(TimeoutError):
            future.result(1)
        return bool(caught.list)

    with pytest.warns(UserWarning, match=r"still waiting.*NO_WORKER_FITS.*unobtainium") as caught:
        eventually(lambda: result_of(never, caught))
    assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.warns(UserWarning, match=rf"its input '{never.key}': NO_WORKER_FITS") as told:
        eventually(lambda: result_of(after, told))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimeoutError):  # one warning per task
            never.result(0.3)
    assert "NO_WORKER_FITS" in client.explain(never)
    eventually(lambda: "unobtainium" in repr(never))
    eventually(lambda: "unobtainium" in never._repr_html_())
    never.cancel()
    assert "unobtainium" not in repr(never)


def test_waiting_for_what_runs_does_not_warn(client: Client, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waits, "NOTICE_SECONDS", 0.01)
    running = client.submit(pass_through, gate, pure=False)
    gate.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TimeoutError):
            running.result(0.2)
    gate.open()
    assert running.result(PATIENCE) == "through"


# ---- futures in results --------------------------------------------------------------------------


def six() -> int:
    return 6


def one() -> Any:
    return get_client().submit(six)


def several() -> Any:
    return {"list": [get_client().submit(six, pure=False) for _ in range(3)], "n": 1}


class Handle:
    def __init__(self) -> None:
        self.future = get_client().submit(six, pure=False)


@pytest.mark.parametrize("make", [one, several, Handle])
def test_futures_that_tasks_return(client: Client, make: Any) -> None:
    for _ in range(100):
        got = client.submit(make, pure=False).result(PATIENCE)
        futures = got["list"] if isinstance(got, dict) else [got.future if isinstance(got, Handle) else got]
        assert client.gather(futures, timeout=PATIENCE) == [6] * len(futures)


def test_futures_that_tasks_return_wait_for_their_reader(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    task = client.submit(several, pure=False)
    wait(task, PATIENCE)
    names = {f: client.run(collect) for f in range(3)}
    assert names
    assert client.gather(task.result(PATIENCE)["list"], timeout=PATIENCE) == [6, 6, 6]
    # As the input of another task.
    total = client.submit(lambda d: sum(get_client().gather(d["list"])), task)
    assert total.result(PATIENCE) == 18


def collect() -> int:
    return gc.collect()


def shorter() -> None:
    _result_holds.CHECK_SECONDS = 0.01


def test_futures_in_very_many_results_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request may name 100,000 tasks."""
    monkeypatch.setattr(_result_holds, "CHECK_SECONDS", 0.01)
    released, asked, ended = set[int](), list[int](), threading.Event()

    class Scheduler:
        def __init__(self) -> None:
            self.ended = ended

        def call(self, _: str, request: task_calls_pb2.LocateObjectsRequest) -> Any:
            asked.append(len(request.task_ids))
            # Only the first results exist.
            states = [
                task_pb2.TASK_STATE_SUCCEEDED if t <= 100_000 else task_pb2.TASK_STATE_RELEASED
                for t in request.task_ids
            ]
            return task_calls_pb2.LocateObjectsResponse(
                objects=[task_calls_pb2.ObjectLocation(state=s) for s in states]
            )

    lease = Lease("", client_pb2.OpenClientResponse())
    holds = _result_holds.ResultHolds(
        cast(Any, Scheduler()), lease, TaskTable(lease), lambda state: released.add(state.id)
    )
    try:
        for task in range(1, 100_003):
            state = State(str(task))
            state.id = task
            holds.add(task, state)
        eventually(lambda: released == {100_001, 100_002})
        assert max(asked) <= 100_000
    finally:
        ended.set()


def test_futures_in_results_are_freed_with_the_result() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own) as client:
        client.run(shorter)
        task = client.submit(several, pure=False)
        wait(task, PATIENCE)

        def known() -> int:
            return client.scheduler_info()["tasks"]["succeeded"]

        eventually(lambda: known() >= 4)
        del task
        gc.collect()
        client.session.flush()
        eventually(lambda: known() == 0, "the futures are still held")


def test_futures_in_scattered_data(client: Client) -> None:
    inner = client.submit(six, pure=False)
    put = client.scatter({"made-of-futures": (inner, 1)})["made-of-futures"]
    del inner
    gc.collect()
    client.session.flush()
    assert put.result(PATIENCE)[0].result(PATIENCE) == 6


# ---- the end of a program ------------------------------------------------------------------------

ENDS = """
import sys, time, millrace
client = millrace.Client(sys.argv[1], token=sys.argv[2], name="ends-without-close")
future = client.submit(time.sleep, 600)
client.session.flush()
print("ready", flush=True)
{}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError('end')"])
def test_a_script_that_ends_without_close(cluster: LocalCluster, client: Client, tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDS.format(end))
    before = client.scheduler_info()["tasks"]
    subprocess.run(
        [sys.executable, script, cluster.address, cluster.token], timeout=PATIENCE, check=False, capture_output=True
    )
    # The lease has ended with the script, and with it all of its tasks.
    now = client.scheduler_info()["tasks"]
    assert now["waiting"] + now["ready"] + now["assigned"] + now["running"] <= sum(
        before[s] for s in ("waiting", "ready", "assigned", "running")
    )


HANGS = """
import os, signal, sys, time, millrace
cluster = millrace.LocalCluster(1, memory_limit="64MiB", device="host")
client = millrace.Client(cluster)
client.submit(abs, 1).result()
os.kill(cluster._process.pid, signal.SIGSTOP)
futures = client.map(abs, range(10))
"""


def test_a_script_ends_though_nobody_answers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HANGS)
    subprocess.run([sys.executable, script], timeout=PATIENCE, check=True, capture_output=True)


def test_names_are_exported() -> None:
    assert millrace.wait is wait


def test_a_callback_may_wait_for_another_future(client: Client, gate: Gate) -> None:
    """Callbacks that wait must not run in the thread that receives the updates of all tasks."""
    results: list[str] = []
    called = threading.Event()

    def callback(future: millrace.Future[str]) -> None:
        try:
            results.extend(
                f.result(PATIENCE)
                for f in as_completed([client.submit(str.upper, future, pure=False)], timeout=PATIENCE)
            )
        finally:
            called.set()

    first = client.submit(pass_through, gate, pure=False)
    first.add_done_callback(callback)
    gate.open()
    assert called.wait(PATIENCE)
    assert results == ["THROUGH"]
