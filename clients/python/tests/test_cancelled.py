"""Cancelled futures, and errors, as programs that were written for Dask's distributed expect them."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from conftest import PATIENCE
from dask.tokenize import tokenize
from millrace import AsyncClient, CancelledError, Client, Future, LocalCluster, Queue, as_completed, futures_of, wait


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise KeyError(x)


def test_results_that_exist_are_given_up_by_cancel(client: Client) -> None:
    done, bad, same = client.submit(inc, 1, key=("x", 0)), client.submit(fail, 1), client.submit(inc, 1, key=("x", 0))
    wait([done, bad])
    client.cancel([done, bad], reason="enough")
    assert {f.status for f in (done, bad, same)} == {"cancelled"}
    for future in (done, bad, same):
        with pytest.raises(CancelledError, match="enough"):
            future.result(PATIENCE)
    assert ("x", 0) not in client.has_what()
    assert client.submit(inc, 1, key=("x", 0)).result(PATIENCE) == 2  # a new task


def test_submit_with_a_cancelled_future_raises(client: Client) -> None:
    future = client.submit(inc, 1)
    wait(future)
    future.cancel()
    with pytest.raises(CancelledError):
        client.submit(inc, future)


def test_other_clients_keep_results_that_one_cancels(cluster: LocalCluster, client: Client) -> None:
    with Client(cluster) as other:
        mine, theirs = client.submit(inc, 41), other.submit(inc, 41)
        wait([mine, theirs])
        mine.cancel()
        assert mine.cancelled() and not theirs.cancelled()
        assert other.submit(inc, theirs).result(PATIENCE) == 43


def test_as_completed_yields_the_error_of_a_cancelled_future(client: Client) -> None:
    done = client.submit(inc, 1)
    wait(done)
    found = as_completed([done], with_results=True, raise_errors=False)
    done.cancel()
    ((future, result),) = found
    assert future is done and isinstance(result, CancelledError)


def test_futures_of_one_task_have_their_own_names_in_dask(client: Client) -> None:
    one, two = client.submit(inc, 1), client.submit(inc, 1)
    assert tokenize(one) == tokenize(one) != tokenize(two)


def test_a_future_shows_the_type_of_a_small_result(client: Client) -> None:
    future: Future[int] = client.submit(inc, 1)
    wait(future)
    assert ", type: int, " in repr(future) and "int" in future._repr_html_()


def test_a_class_of_collections_has_no_futures() -> None:
    import dask.array as da

    assert futures_of([da.Array]) == []


def test_wait_explains_that_it_takes_a_list(client: Client) -> None:
    with pytest.raises(TypeError, match=r"as a list, wait\(\[x, y\]\)"):
        wait(client.submit(inc, 1), client.submit(inc, 2))  # pyright: ignore[reportArgumentType]


def test_a_class_is_no_cluster() -> None:
    with pytest.raises(TypeError, match="a Cluster instance, not the class LocalCluster"):
        Client(LocalCluster)  # pyright: ignore[reportArgumentType]


def test_scatter_without_a_worker_is_a_timeout(client: Client) -> None:
    with LocalCluster(0, device="host") as empty, Client(empty) as own:
        with pytest.raises(TimeoutError, match=r"no active worker in 0\.01 s"):
            own.scatter(1, timeout=0.01)


def test_a_cancelled_future_has_no_place_in_a_queue(client: Client) -> None:
    future = client.submit(inc, 1)
    future.cancel()
    with pytest.raises(CancelledError):
        Queue(client=client).put(future)


# ---- tracebacks ----------------------------------------------------------------------------------


def test_tracebacks_have_no_frames_of_the_client(client: Client) -> None:
    future = client.submit(fail, 1)

    async def fetched() -> list[list[str]]:
        async with AsyncClient(client.session.address, token=client.session.connection.token) as own:
            mine = own.submit(fail, 1)
            return [await names_of(mine.result()), await names_of(own.gather([mine])), await names_of(mine)]

    for call in (future.result, lambda: client.gather([future])):
        with pytest.raises(KeyError) as caught:
            call()
        assert len(frames(caught.value)) <= 4
    assert all(len(found) <= 3 for found in asyncio.run(fetched()))


def frames(e: BaseException) -> list[str]:
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(e.__traceback__)]


async def names_of(awaitable: Any) -> list[str]:
    with pytest.raises(KeyError) as caught:
        await awaitable
    return frames(caught.value)
