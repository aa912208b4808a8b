"""as_completed: futures in the order in which they end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from conftest import PATIENCE, Gate
from millrace import AsyncClient, CancelledError, Client, Future, LocalCluster, as_completed, errors, wait


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise KeyError(x)


def pass_through(gate: Gate) -> str:
    gate.pass_through()
    return "through"


def test_an_iterator_that_counts(client: Client, gate: Gate) -> None:
    blocked = client.submit(pass_through, gate, pure=False)
    quick = client.map(inc, range(3))
    wait(quick)
    futures = as_completed([*quick, blocked])
    assert iter(futures) is futures
    assert futures.count() == 4 and not futures.is_empty() and futures.has_ready()
    assert repr(futures) == "<as_completed: waiting=1 done=3>"
    assert {next(futures), futures.next()} < set(quick)
    assert len(futures.next_batch()) == 1
    assert futures.next_batch(block=False) == [] and not futures.has_ready()
    gate.open()
    assert futures.next_batch() == [blocked]
    assert futures.is_empty() and futures.count() == 0
    with pytest.raises(StopIteration):
        futures.next()
    with pytest.raises(StopIteration):
        futures.next_batch()


def test_a_future_comes_as_often_as_it_was_given(client: Client) -> None:
    future = client.submit(inc, 1)
    assert list(as_completed([future, future])) == [future, future]


def test_clear_removes_also_those_that_run(client: Client, gate: Gate) -> None:
    blocked = client.submit(pass_through, gate, pure=False)
    futures = as_completed([blocked, client.submit(inc, 1)])
    futures.clear()
    assert futures.is_empty() and list(futures) == []
    gate.open()
    assert blocked.result(PATIENCE) == "through"
    client.session.flush()
    assert not futures.has_ready()
    futures.add(blocked)
    assert list(futures) == [blocked]


def test_results_and_errors(client: Client, gate: Gate) -> None:
    good, bad = client.submit(inc, 1), client.submit(fail, 7)
    cancelled = client.submit(pass_through, gate, pure=False)
    cancelled.cancel()
    with pytest.raises(KeyError, match="7"):
        list(as_completed([bad], with_results=True))
    found = dict(as_completed([good, bad, cancelled], None, True, False))
    assert found[good] == 2
    kind, error, trace = found[bad]
    assert kind is KeyError and isinstance(error, KeyError) and trace is error.__traceback__
    assert isinstance(found[cancelled], CancelledError)
    batches = client.as_completed([good, bad], with_results=True, raise_errors=False).batches()
    assert {future for batch in batches for future, _ in batch} == {good, bad}


def test_the_timeout_is_that_of_all(client: Client, gate: Gate) -> None:
    blocked = client.submit(pass_through, gate, pure=False)
    futures = as_completed([blocked], timeout="10 ms")
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"1 tasks did not end in 0\.01 s"):
            next(futures)
    gate.open()
    assert blocked.result(PATIENCE) == "through"


async def test_next_in_an_event_loop(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        futures = as_completed(client.map(inc, range(3)), with_results=True)
        assert aiter(futures) is futures
        first: Any = await anext(futures)
        rest = [result async for _, result in futures]
        assert sorted([first[1], *rest]) == [1, 2, 3]
        with pytest.raises(StopAsyncIteration):
            await anext(futures)


async def test_methods_of_futures_are_awaitable(cluster: LocalCluster, gate: Gate) -> None:
    async with AsyncClient(cluster) as client:
        good, bad = client.submit(inc, 1), client.submit(fail, 7)
        assert await good.result() == 2 and await good.exception() is None
        with pytest.raises(KeyError):
            await bad.result(timeout="1 min")
        assert isinstance(await bad.exception(), KeyError)
        assert await bad.traceback() is not None
        await bad.retry()
        assert isinstance(await bad.exception(), KeyError)
        blocked = client.submit(pass_through, gate, pure=False)
        with pytest.raises(TimeoutError):
            await blocked.result(timeout=0.001)
        with pytest.raises(TimeoutError):
            await wait([blocked], timeout=0.001)
        assert (await wait([good, bad])).done == {good, bad}
        assert (await wait(good, return_when="FIRST_COMPLETED")).done == {good}
        await blocked.cancel()
        assert blocked.cancelled()
        # Beside the loop, they wait.
        assert await asyncio.to_thread(lambda: good.result()) == 2
        assert good.client is client and good.executor is client


def test_a_synchronous_future_waits_in_an_event_loop(client: Client) -> None:
    async def main() -> None:
        future = client.submit(inc, 1)
        assert future.result() == 2 and wait(future).done == {future}
        assert await client.gather([future], asynchronous=True) == [2]
        assert await client.scatter({"x": 1}, asynchronous=True)
        assert await client.cancel([future], asynchronous=True) is None

    asyncio.run(main())


def test_arguments_that_need_no_setting_are_named_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    future = client.submit(inc, 1)
    with caplog.at_level(logging.WARNING, "millrace"):
        assert client.gather([future, future], "raise", True) == [2, 2]
        assert client.gather(future, direct=False) == 2
        assert client.gather(client.scatter([5], direct=True, timeout="10s")) == [5]
    said = [r.getMessage() for r in caplog.records]
    assert sum("gather: direct=True has no effect" in s for s in said) <= 1
    assert not any("gather: direct=False" in s for s in said)


def test_futures_change_their_client(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster) as other:
        future: Future[int] = client.submit(inc, 41)
        future.bind_client(other)
        assert future.client is other and future.result() == 42
        with Client(cluster, namespace="elsewhere") as foreign, pytest.raises(ValueError, match="namespace"):
            future.bind_client(foreign)


def test_a_future_is_made_of_a_key(cluster: LocalCluster, client: Client) -> None:
    made = client.submit(inc, 41, key=("of", "a", "key"))
    again = Future(("of", "a", "key"), client)
    made.release()
    assert again.client is client and again.result(PATIENCE) == 42
    with Client(cluster) as other:
        latest: Future[int] = Future(("of", "a", "key"))
        assert latest.client is other and latest.result(PATIENCE) == 42
        with pytest.raises(errors.NotFoundError, match="no such key"):
            Future("no such key", client)


async def test_a_future_of_an_asynchronous_client_is_made_of_a_key(cluster: LocalCluster) -> None:
    async with AsyncClient(cluster) as client:
        made = client.submit(inc, 42, key="of an AsyncClient")
        assert await made == 43
        assert await Future("of an AsyncClient", client) == 43
