"""Behaviours of Dask's distributed that programs rely on."""

from __future__ import annotations

import array
import concurrent.futures
import contextvars
import logging
import os
import pickle
import random
import sys
import threading
from typing import Any

import dask
import millrace
import pytest
from conftest import PATIENCE
from dask.tokenize import normalize_token
from millrace import AsyncClient, Client, Event, Future, LocalCluster, Lock, Queue, Variable, _dask_functions, _mode
from millrace._client import _remote_text
from millrace._cluster import _inherited


def inc(x: int) -> int:
    return x + 1


def add(x: int, y: int) -> int:
    return x + y


def pid(_: int) -> int:
    return os.getpid()


def address() -> str:
    return millrace.get_worker().address


def scheduler_address() -> tuple[str, str, bool]:
    worker, client = millrace.get_worker(), millrace.get_client()
    return worker.scheduler.address, client.scheduler.address, client.loop is worker.loop


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process run a program of distributed, as millrace.as_distributed does."""
    monkeypatch.setattr(_mode, "distributed", True)


# ---- in programs of distributed only -------------------------------------------------------------


def test_workers_are_named_by_their_addresses(distributed: None, client: Client) -> None:
    told = client.run(lambda dask_worker: dask_worker.address)
    assert set(told) == set(told.values()) == set(client.scheduler_info()["workers"]) == set(client.nthreads())
    assert all(name.startswith("tcp://") for name in told)
    first, second = sorted(told)
    future = client.submit(address, workers=[second], pure=False)
    assert future.result(PATIENCE) == second
    assert client.who_has(future) == client.who_has() == {future.key: [second]}
    assert client.has_what() == {first: [], second: [future.key]} and client.processing() == {first: [], second: []}
    assert client.get_task_stream()[-1]["worker"] == second
    with dask.annotate(workers=[first]):
        assert client.compute(dask.delayed(address)(), sync=True) == first

    class Here:
        def address(self) -> str:
            return millrace.get_worker().address

    actor = client.submit(Here, actor=True, workers=[first]).result(PATIENCE)
    assert actor.address().result(PATIENCE) == first


def test_there_is_no_client(distributed: None) -> None:
    with pytest.raises(ValueError, match=r"No clients found\nStart a client and point it to the scheduler address\n"):
        Client.current()


def test_an_executor_is_pure_and_cancels(distributed: None, client: Client) -> None:
    with client.get_executor() as executor:
        calls = [executor.submit(pid, 1) for _ in range(4)]
        assert len({c.result(PATIENCE) for c in calls}) == 1
        # There, options may be given with a call, too.
        calls = [executor.submit(random.random, pure=False, priority=1) for _ in range(2)]
        assert len({c.result(PATIENCE) for c in calls}) == 2
    executor = client.get_executor()
    call = executor.submit(Event("never").wait)
    executor.shutdown(wait=False)
    with pytest.raises(concurrent.futures.CancelledError):
        call.result(PATIENCE)
    with pytest.raises(TypeError, match=r"unsupported arguments to ClientExecutor: \['bar', 'foo'\]"):
        client.get_executor(foo=1, bar=2)  # pyright: ignore[reportCallIssue]


def test_equal_prefixes_of_a_map_are_other_keys_for_other_calls(distributed: None, client: Client) -> None:
    keys = [[f.key for f in client.map(inc, values, key="mine")] for values in ([1, 2], [1, 2], [3, 4])]
    assert keys[0] == keys[1] and not set(keys[0]) & set(keys[2])
    assert all(k.startswith("mine-") for k in keys[2])


def test_futures_of_others_are_not_gathered(distributed: None, client: Client, cluster: LocalCluster) -> None:
    with Client(cluster) as other:
        future = other.submit(inc, 1)
        with pytest.raises(ValueError, match="Futures created by another client"):
            client.gather([client.submit(inc, 1), future])


def test_a_block_ends_in_the_context_in_which_it_began(distributed: None, cluster: LocalCluster) -> None:
    client = Client(cluster)
    contextvars.copy_context().run(client.__enter__)
    with pytest.raises(ValueError, match="was created in a different Context"):
        client.__exit__(None, None, None)
    assert client.status == "closed"


def test_an_asynchronous_client_needs_a_loop(distributed: None, cluster: LocalCluster) -> None:
    with pytest.raises(RuntimeError, match="without a running loop is not supported"):
        Client(cluster, asynchronous=True)


def test_keys_of_a_graph_are_plain(distributed: None, client: Client) -> None:
    made = dask.delayed(inc)(1, dask_key_name=("z", object()))
    with pytest.raises(TypeError, match="key"):
        client.compute(made)


def test_texts_of_tasks_come_without_a_mark(
    distributed: None, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def says() -> None:
        _remote_text.print("Hello!", 123, sep=":", end="")
        _remote_text.print("meow", file=sys.stderr)
        _remote_text.warn(DeprecationWarning("old"))

    def writes_to_a_file() -> None:
        _remote_text.print("meow", file="a file")

    shown = threading.Event()
    with pytest.warns(DeprecationWarning, match="old"), Client(cluster, namespace="texts", output=False) as client:
        client.subscribe_topic("after", lambda _: shown.set())
        client.submit(says).result(PATIENCE)
        client.log_event("after", "texts")
        assert shown.wait(PATIENCE)
        with pytest.raises(TypeError, match=r"file must be sys.stdout, sys.stderr or None"):
            client.submit(writes_to_a_file).result(PATIENCE)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("Hello!:123", "meow\n")
    _remote_text.print("here")
    assert capsys.readouterr().out == "here\n"


# ---- in all programs -----------------------------------------------------------------------------


def test_the_scheduler_has_an_address(client: Client, cluster: LocalCluster) -> None:
    expected = cluster.scheduler_address
    assert client.scheduler.address == cluster.scheduler.address == expected
    assert client.scheduler.status == cluster.scheduler.status == "running"
    assert client.submit(scheduler_address, pure=False).result(PATIENCE) == (expected, expected, True)


def test_the_card_of_a_client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(cluster), "dashboard_link", property(lambda _: "http://dashboard.example/"))
    with Client(cluster) as client:
        assert "http://dashboard.example/" in client._repr_html_()
    assert "No scheduler connected." in client._repr_html_()


@pytest.mark.parametrize(("kind", "use"), [(Event, "is_set"), (Lock, "acquire"), (Queue, "qsize"), (Variable, "get")])
def test_shared_objects_are_unpickled_without_a_client(kind: Any, use: str, cluster: LocalCluster) -> None:
    with Client(cluster):
        made = kind(f"unpickled {kind.__name__}")
        data = pickle.dumps(made)
    found = pickle.loads(data)
    assert found.client is None and found.name == made.name
    with pytest.raises(RuntimeError, match=f"<{kind.__name__}: unpickled {kind.__name__}> is not properly initialized"):
        getattr(found, use)()
    with Client(cluster) as client:
        assert found.client is client


@pytest.mark.parametrize("name", [1, ("a", 1), ["a", 1], b"123", "=x"])
def test_names_of_locks(client: Client, name: Any) -> None:
    lock, same = Lock(name), Lock(name)
    assert lock.name == name and lock.id != same.id
    with lock:
        assert not same.acquire(blocking=False) and not Lock(repr(name)).locked()
    assert same.acquire(blocking=False)
    same.release()


def test_persisted_parts_are_found(client: Client) -> None:
    first = dask.delayed(inc)(1)
    second = dask.delayed(inc)(first)
    total: Any = dask.delayed(inc)(second)
    persisted = client.persist(second)
    found = client.normalize_collection(total)
    assert isinstance(found.dask[second.key], Future) and len(found.dask) == 2 < len(total.dask)
    assert client.compute(found, sync=True) == 4
    del persisted, found
    assert client.normalize_collection(total) is total


def test_a_task_runs_here(client: Client) -> None:
    parts = [client.submit(inc, x) for x in (1, 2)]
    future = client.submit(add, *parts)
    assert client.recreate_task_locally(future) == 5
    assert client.recreate_task_locally(client.submit(pid, 1)) == os.getpid()


class Named:
    """Its instances have one name for Dask."""


def test_scattered_data_have_their_own_tokens(client: Client) -> None:
    seen: list[Any] = []

    @normalize_token.register(Named)
    def token(obj: Named) -> str:
        seen.append(obj)
        return "one"

    first, second = Named(), Named()
    assert client.scatter(first).key == client.scatter(second).key
    assert seen[0] is first


def test_a_large_function_is_warned_of(client: Client) -> None:
    data = array.array("d", b"0" * 10_000_000)
    with pytest.warns(UserWarning, match=r"Sending large graph of size .*function .*lambda.*Scatter"):
        client.submit(lambda: len(data)).result(PATIENCE)


@pytest.mark.parametrize("number", [None, 0, 1.0])
def test_no_number_of_workers(client: Client, number: Any) -> None:
    with pytest.raises(ValueError, match="n_workers"):
        client.wait_for_workers(number)


def test_datasets_are_iterated(client: Client) -> None:
    client.publish_dataset(iterated=1)
    assert "iterated" in list(client.datasets)
    with pytest.raises(TypeError, match="AsyncClient"):
        client.datasets.__aiter__()
    for given in ((1,), (1, "x"), ({"x": 1}, {"y": 2})):
        with pytest.raises(ValueError, match="If name is omitted, positional argument must be"):
            client.publish_dataset(*given)


def test_a_cancelled_future_is_not_put_into_a_queue(client: Client) -> None:
    future = client.submit(inc, 1)
    future.cancel()
    with pytest.raises(millrace.CancelledError, match="unknown to scheduler"):
        Queue("of cancelled").put(future)


async def test_an_asynchronous_cluster_is_shut_down() -> None:
    async with (
        LocalCluster(1, memory_limit="64MiB", device="host", asynchronous=True) as cluster,
        AsyncClient(cluster) as client,
    ):
        await client.shutdown()
        assert cluster.status == cluster.scheduler.status == client.status == "closed"


def test_workers_inherit_the_settings_of_dask() -> None:
    assert dask.config.serialize({}) and "scheduler" not in _settings()
    with dask.config.set({"mine": {"a": 1, "b": object()}, "dataframe.shuffle.method": "tasks"}):
        assert _settings()["mine"] == {"a": 1}
        assert "method" not in _settings().get("dataframe", {}).get("shuffle", {})


def _settings() -> dict[str, Any]:
    return dask.config.deserialize(_inherited.environment()["DASK_INTERNAL_INHERIT_CONFIG"])


async def test_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @_dask_functions.log_errors
    def fails() -> None:
        raise ValueError("sync")

    @_dask_functions.log_errors()
    async def fails_later() -> None:
        raise ValueError("async")

    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match=r"^sync$"):
        fails()
    with pytest.raises(ValueError, match=r"^async$"):
        await fails_later()
    assert caplog.messages == ["sync", "async"]
    assert "python" in str(_dask_functions.get_versions()).lower() and _dask_functions.MEMORY_LIMIT > 1 << 20
