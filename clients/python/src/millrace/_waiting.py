"""Waits for several futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from millrace import _check
from millrace._check import Seconds
from millrace.future import Future, listed, wait_for


class DoneAndNotDone(NamedTuple):
    """The result of `wait`."""

    #: Futures that have ended.
    done: set[Future[Any]]
    #: Futures that have not ended.
    not_done: set[Future[Any]]


def wait(
    futures: Future[Any] | Iterable[Future[Any]],
    timeout: Seconds | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> DoneAndNotDone:
    """Waits until all futures are done (ALL_COMPLETED), or one is (FIRST_COMPLETED).

    Args:
        futures: one or several, of one client or of several.
        timeout: longest wait, in seconds, as a timedelta or as text ("5s").
        return_when: ALL_COMPLETED or FIRST_COMPLETED.

    Raises:
        TimeoutError: the timeout has passed.
    """
    all_of_them = listed(futures)
    limit = _check.patience(timeout)
    if return_when not in (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED):
        raise ValueError(f"return_when is ALL_COMPLETED or FIRST_COMPLETED, not {return_when!r}")
    first = return_when == concurrent.futures.FIRST_COMPLETED
    if all_of_them and not wait_for(all_of_them, limit, first):
        left = sum(not f.done() for f in all_of_them)
        raise TimeoutError(f"{left} of {len(all_of_them)} tasks did not end in {limit:g} s")
    done = {f for f in all_of_them if f.done()}
    return DoneAndNotDone(done, set(all_of_them) - done)


class as_completed:
    """Iterates over futures in the order in which they end, for both `for` and `async for`.

    Args:
        futures: the futures; more can be added while iterating.
        with_results: yield (future, result) pairs; the first error is raised.
        timeout: longest wait for the next one, in seconds, as a timedelta or as text ("5s").
    """

    def __init__(
        self,
        futures: Future[Any] | Iterable[Future[Any]] = (),
        *,
        with_results: bool = False,
        timeout: Seconds | None = None,
    ) -> None:
        self._queue: SimpleQueue[Future[Any]] = SimpleQueue()
        self._left = 0
        self._with_results, self._timeout = with_results, _check.patience(timeout)
        self.update(futures)

    def update(self, futures: Future[Any] | Iterable[Future[Any]]) -> None:
        """Adds futures."""
        for future in listed(futures):
            self.add(future)

    def add(self, future: Future[Any]) -> None:
        """Adds a future."""
        self._left += 1
        future._session.when_done(future._state, lambda: self._queue.put(future))

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._next()

    def _next(self) -> Any:
        try:
            future = self._queue.get(timeout=self._timeout)
        except Empty:
            raise TimeoutError(f"none of {self._left} tasks ended in {self._timeout:g} s") from None
        self._left -= 1
        return (future, future.result(self._timeout)) if self._with_results else future

    async def __aiter__(self) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        while self._left:
            yield await loop.run_in_executor(None, self._next)

    def batches(self) -> Iterator[list[Any]]:
        """Iterates over lists of the futures that have ended since the previous list. Waits for at
        least one."""
        while self._left:
            batch = [self._next()]
            while self._left and not self._queue.empty():
                batch.append(self._next())
            yield batch
