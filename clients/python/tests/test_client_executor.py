"""The cluster as a concurrent.futures.Executor: `map`, and the executor's options."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from millrace import Client


def square(x: int) -> int:
    return x * x


def test_calls_in_chunks(client: Client) -> None:
    with client.get_executor() as pool:
        assert list(pool.map(square, range(10), chunksize=4)) == [x * x for x in range(10)]
        assert list(pool.map(pow, [2, 3, 4], itertools.repeat(2), chunksize=2)) == [4, 9, 16]
        assert list(pool.map("operator:neg", range(3), chunksize=2)) == [0, -1, -2]  # pyright: ignore[reportArgumentType]
        assert list(pool.map(square, [], chunksize=2)) == list(pool.map(square, [])) == []
        results = pool.map(lambda x: 1 // x, [2, 1, 0, 1], chunksize=2)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_a_buffer_of_tasks(client: Client) -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for n in itertools.count():
            taken.append(n)
            yield n

    with client.get_executor() as pool:
        results = pool.map(square, numbers(), buffersize=3)  # it has no end
        assert len(taken) == 3
        assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
        assert len(taken) == 8
        results = pool.map(square, numbers(), buffersize=2, chunksize=10)
        assert [next(results) for _ in range(11)] == [x * x for x in range(11)]


def test_wrong_arguments_are_refused_at_once(client: Client) -> None:
    with pytest.raises(TypeError, match=r"unsupported arguments to ClientExecutor: \['fifo'\]; there are: .*retries"):
        client.get_executor(fifo=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="retries"):
        client.get_executor(retries=-1)
    with client.get_executor() as pool:
        with pytest.raises(ValueError, match="chunksize"):
            pool.map(square, [1], chunksize=0)
        with pytest.raises(ValueError, match="buffersize"):
            pool.map(square, [1], buffersize=0)


def test_the_number_of_calls_at_the_same_time(client: Client) -> None:
    """Dask computes with any executor, and asks it for this number."""
    import dask

    with client.get_executor() as pool:
        assert pool._max_workers == 2
        assert dask.delayed(square)(dask.delayed(square)(3)).compute(scheduler=pool) == 81
