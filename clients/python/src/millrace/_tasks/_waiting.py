"""Waits for several futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from millrace import _check, errors
from millrace._check import Seconds
from millrace._connection import _slot
from millrace._connection._steps import Step, Steps, drive, run
from millrace.future import Future, ended, listed, served


class DoneAndNotDone(NamedTuple):
    """The result of `wait`."""

    #: Futures that have ended.
    done: set[Future[Any]]
    #: Futures that have not ended.
    not_done: set[Future[Any]]


def wait(
    fs: Future[Any] | Iterable[Future[Any]],
    timeout: Seconds | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> DoneAndNotDone:
    """Waits until all futures are done (ALL_COMPLETED), or one is (FIRST_COMPLETED). In an event
    loop, it returns a coroutine if the futures are of an AsyncClient.

    Args:
        fs: the futures: one or several, of one client or of several.
        timeout: longest wait, in seconds, as a timedelta or as text ("5s").
        return_when: ALL_COMPLETED or FIRST_COMPLETED.

    Raises:
        TimeoutError: the timeout has passed.
    """
    if isinstance(timeout, Future):
        raise TypeError("timeout: a future is no time: give several futures as a list, wait([x, y])")
    all_of_them = listed(fs)
    return served(all_of_them, waited(all_of_them, timeout, return_when))


def waited(
    futures: Future[Any] | Iterable[Future[Any]],
    timeout: Seconds | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> Steps[DoneAndNotDone]:
    """Is the operation of `wait`."""
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
        futures: the futures; more can be added while iterating. A future that is given twice comes
            twice.
        loop: not used: it takes no event loop to wait. Dask's distributed has it here.
        with_results: yield (future, result) pairs. The result of a cancelled future is its
            CancelledError.
        raise_errors: with `with_results`, raise the error of a future that has failed. Otherwise
            its result is the error as a tuple, like that of sys.exc_info().
        timeout: longest time until the last one ends, in seconds, as a timedelta or as text ("5s");
            it begins here. Then TimeoutError is raised.
    """

    def __init__(
        self,
        futures: Future[Any] | Iterable[Future[Any]] | None = None,
        loop: object = None,
        with_results: bool = False,
        raise_errors: bool = True,
        *,
        timeout: Seconds | None = None,
    ) -> None:
        self._with_results, self._raise_errors, self._timeout = with_results, raise_errors, _check.longest(timeout)
        self._deadline = None if self._timeout is None else time.monotonic() + self._timeout
        # Guards the attributes below. NB: `_arrived` runs in the thread of updates.
        self._lock = threading.Lock()
        # Futures that have ended, in this order, and how often each other one was added.
        self._ready: deque[Future[Any]] = deque()
        self._waiting: Counter[Future[Any]] = Counter()
        # Calls to make when a future has ended.
        self._calls: dict[Callable[[], None], None] = {}
        self._condition: asyncio.Condition | None = None
        self.update(() if futures is None else futures)

    # ---- the futures -----------------------------------------------------------------------------

    def update(self, futures: Future[Any] | Iterable[Future[Any]]) -> None:
        """Adds futures."""
        for future in listed(futures):
            with self._lock:
                self._waiting[future] += 1
            future._session.when_done(future._state, partial(self._arrived, future))

    def add(self, future: Future[Any]) -> None:
        """Adds a future."""
        self.update([future])

    def clear(self) -> None:
        """Removes all futures."""
        with self._lock:
            self._ready.clear()
            self._waiting.clear()
        self._tell()

    def count(self) -> int:
        """Returns the number of futures that will still come."""
        with self._lock:
            return len(self._ready) + self._waiting.total()

    def is_empty(self) -> bool:
        """Returns whether no future will come any more."""
        return not self.count()

    def has_ready(self) -> bool:
        """Returns whether a future has ended, so that the next one comes without a wait."""
        return bool(self._ready)

    @property
    def condition(self) -> asyncio.Condition:
        """A condition of asyncio that is notified whenever a future has ended or `clear` was called.
        It belongs to the event loop in which it is read first.

        Raises:
            RuntimeError: no event loop runs in this thread.
        """
        loop = asyncio.get_running_loop()
        if self._condition is None:
            condition = self._condition = asyncio.Condition()

            async def notify() -> None:
                async with condition:
                    condition.notify_all()

            def tell() -> None:
                task = loop.create_task(notify())
                tasks.add(task)  # asyncio itself refers to it weakly
                task.add_done_callback(tasks.discard)

            def call() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(tell)

            tasks: set[asyncio.Task[None]] = set()
            self._calls[call] = None
        return self._condition

    def _arrived(self, future: Future[Any]) -> None:
        with self._lock:
            if not self._waiting[future]:  # removed by `clear`
                del self._waiting[future]
                return
            self._waiting[future] -= 1
            if not self._waiting[future]:
                del self._waiting[future]
            self._ready.append(future)
        self._tell()

    def _tell(self) -> None:
        for call in list(self._calls):
            call()

    # ---- iteration -------------------------------------------------------------------------------

    def __iter__(self) -> as_completed:
        return self

    def __next__(self) -> Any:
        while (future := self._taken(StopIteration)) is None:
            if not _slot.during(self._arrival().block):
                raise self._late()
        return run(self._item(future))

    def next(self) -> Any:
        """Returns the next future; StopIteration if there is none."""
        return self.__next__()

    def __aiter__(self) -> as_completed:
        return self

    async def __anext__(self) -> Any:
        while (future := self._taken(StopAsyncIteration)) is None:
            if not await self._arrival().arrive():
                raise self._late()
        return await drive(self._item(future), future._session.pool) if self._with_results else future

    def next_batch(self, block: bool = True) -> list[Any]:
        """Returns all futures that have ended since the last one. With `block`, waits for at least
        one; StopIteration if there is none."""
        batch = [self.__next__()] if block else []
        while (future := self._taken(None)) is not None:
            batch.append(run(self._item(future)))
        return batch

    def batches(self) -> Iterator[list[Any]]:
        """Iterates over lists of the futures that have ended since the previous list. Waits for at
        least one."""
        while True:
            try:
                batch = self.next_batch()
            except StopIteration:
                return
            yield batch

    def _taken(self, at_end: type[Exception] | None) -> Future[Any] | None:
        """Takes a future that has ended; None if there is none. Raises `at_end` if no future will
        come any more."""
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            if at_end is not None and not self._waiting:
                raise at_end
            return None

    def _item(self, future: Future[Any]) -> Steps[Any]:
        """Returns what is yielded for a future that has ended."""
        if not self._with_results:
            return future
        error = future._state.exception()
        if error is None:
            raw = (yield from future._session.fetch([future._state], self._left()))[0]
            try:
                return future, future._value(raw)
            except Exception as e:  # of an actor's method
                error = e
        if isinstance(error, errors.CancelledError):
            return future, error
        if self._raise_errors:
            try:
                raise error
            finally:
                del error  # no circle with the traceback
        return future, (type(error), error, error.__traceback__)

    def _left(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def _arrival(self) -> _Arrival:
        return _Arrival(self._changed, self._calls, self._left())

    def _changed(self) -> bool:
        with self._lock:
            return bool(self._ready) or not self._waiting

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self.count()} tasks did not end in {self._timeout:g} s")

    def __repr__(self) -> str:
        with self._lock:
            return f"<as_completed: waiting={self._waiting.total()} done={len(self._ready)}>"


class _Arrival(Step):
    """A change of the futures that `as_completed` waits for."""

    def __init__(
        self, happened: Callable[[], bool], calls: dict[Callable[[], None], None], timeout: float | None
    ) -> None:
        super().__init__(timeout)
        self._happened, self._calls = happened, calls

    def _watch(self, call: Callable[[], None]) -> None:
        self._calls[call] = None
        if self._happened():
            call()

    def _forget(self, call: Callable[[], None]) -> None:
        self._calls.pop(call, None)
