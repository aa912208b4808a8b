"""Waits for several futures."""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from millrace import _check
from millrace._check import Seconds
from millrace._steps import Step, Steps, blocking, drive
from millrace.future import Future, ended, listed


class DoneAndNotDone(NamedTuple):
    """The result of `wait`."""

    #: Futures that have ended.
    done: set[Future[Any]]
    #: Futures that have not ended.
    not_done: set[Future[Any]]


@blocking
def wait(
    futures: Future[Any] | Iterable[Future[Any]],
    timeout: Seconds | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> Steps[DoneAndNotDone]:
    """Waits until all futures are done (ALL_COMPLETED), or one is (FIRST_COMPLETED).

    Args:
        futures: one or several, of one client or of several.
        timeout: longest wait, in seconds, as a timedelta or as text ("5s").
        return_when: ALL_COMPLETED or FIRST_COMPLETED.

    Raises:
        TimeoutError: the timeout has passed.
    """
    all_of_them = listed(futures)
    limit = _check.longest(timeout)
    if return_when not in (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED):
        raise ValueError(f"return_when is ALL_COMPLETED or FIRST_COMPLETED, not {return_when!r}")
    first = return_when == concurrent.futures.FIRST_COMPLETED
    if all_of_them and not (yield ended(all_of_them, limit, first)):
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
        # Calls to make when a future was put into the queue; for event loops.
        self._calls: dict[Callable[[], None], None] = {}
        self._left = 0
        self._with_results, self._timeout = with_results, _check.longest(timeout)
        self.update(futures)

    def update(self, futures: Future[Any] | Iterable[Future[Any]]) -> None:
        """Adds futures."""
        for future in listed(futures):
            self._left += 1
            future._session.when_done(future._state, partial(self._arrived, future))

    def add(self, future: Future[Any]) -> None:
        """Adds a future."""
        self.update([future])

    def _arrived(self, future: Future[Any]) -> None:
        self._queue.put(future)
        for call in list(self._calls):
            call()

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._next()

    def _next(self) -> Any:
        try:
            future = self._queue.get(timeout=self._timeout)
        except Empty:
            raise self._late() from None
        self._left -= 1
        return (future, future.result(self._timeout)) if self._with_results else future

    def _late(self) -> TimeoutError:
        return TimeoutError(f"none of {self._left} tasks ended in {self._timeout:g} s")

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._left:
            future = await self._arrival()
            if self._with_results:
                session = future._session
                yield future, (await drive(session.fetch([future._state], self._timeout), session.pool))[0]
            else:
                yield future

    async def _arrival(self) -> Future[Any]:
        while True:
            try:
                future = self._queue.get_nowait()
            except Empty:
                if not await _Arrival(self._queue, self._calls, self._timeout).arrive():
                    raise self._late() from None
            else:
                self._left -= 1
                return future

    def batches(self) -> Iterator[list[Any]]:
        """Iterates over lists of the futures that have ended since the previous list. Waits for at
        least one."""
        while self._left:
            batch = [self._next()]
            while self._left and not self._queue.empty():
                batch.append(self._next())
            yield batch


class _Arrival(Step):
    """A future in a queue."""

    def __init__(
        self, queue: SimpleQueue[Future[Any]], calls: dict[Callable[[], None], None], timeout: float | None
    ) -> None:
        super().__init__(timeout)
        self._queue, self._calls = queue, calls

    def _watch(self, call: Callable[[], None]) -> None:
        self._calls[call] = None
        if not self._queue.empty():
            call()

    def _forget(self, call: Callable[[], None]) -> None:
        self._calls.pop(call, None)
