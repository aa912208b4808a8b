"""A cluster as a concurrent.futures.Executor."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from millrace import _check, _mode, errors
from millrace._connection import _slot
from millrace._connection._steps import run
from millrace._session._session import Session
from millrace._tasks._task_options import SubmitOptions, bound, checked
from millrace._tasks._waiting import waited
from millrace.future import Future, cancel, results_of
from millrace.ops import ExecutorOp, NativeOp

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Submitter(Protocol):
    """The part of a client that an executor uses."""

    @property
    def session(self) -> Session: ...

    def submit(self, func: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]: ...

    def map(self, func: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[Future[T]]: ...


class ClientExecutor(concurrent.futures.Executor):
    """A cluster as a concurrent.futures.Executor.

    Every call runs, also one that equals another: `pure` is False, unless it is among the options.
    After `import millrace.as_distributed` it is True by default, as in Dask's distributed.

    Args:
        client: the client.
        options: keyword options of `Client.submit` for every call.

    Raises:
        TypeError, ValueError: an option does not exist, or has a wrong value.
    """

    def __init__(self, client: Submitter, **options: Unpack[SubmitOptions]) -> None:
        self._client = client
        self._options: dict[str, Any] = {"pure": _mode.distributed, **checked(options, "ClientExecutor")}
        # Futures that have not ended: those of `submit`, and those of `map`.
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._mapped: set[Future[Any]] = set()
        self._shut = False

    @property
    def _max_workers(self) -> int:
        """Number of calls that run at the same time. Dask asks an executor for it."""
        return max(sum(worker.slots for worker in self._client.session.workers()), 1)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Calls a function on the cluster. All keyword arguments go to the function; after
        `import millrace.as_distributed`, options of `Client.submit` do not, as in Dask's
        distributed. See `concurrent.futures.Executor.submit`."""
        self._check_open()
        if not _mode.distributed:
            fn, kwargs = bound(fn, kwargs)
        remote = self._client.submit(fn, *args, **{**self._options, **kwargs})
        local = _Bridge(remote)
        self._open.add(local)
        local.add_done_callback(self._open.discard)
        return local  # pyright: ignore[reportReturnType]

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Calls a function with each element, and returns an iterator over the results, which are
        fetched one after the other. See `concurrent.futures.Executor.map`.

        Args:
            fn, iterables: as for the builtin `map`.
            timeout: longest time from now to the last result, in seconds.
            chunksize: number of calls that are one task. More than one is faster for calls of less
                than 0.1 ms.
            buffersize: most tasks whose results were not read; further elements are taken as
                results are read. None: all calls are made at once.
        """
        self._check_open()
        limit = _check.longest(timeout)
        _check.integer(chunksize, "chunksize", 1, 1 << 32)
        if buffersize is not None:
            _check.integer(buffersize, "buffersize", 1, 1 << 32)
        calls = _Calls(fn, iterables, chunksize)
        futures = deque(self._send(calls, buffersize))
        return self._results(calls, futures, None if limit is None else time.monotonic() + limit)

    def _send(self, calls: _Calls, most: int | None) -> list[Future[Any]]:
        """Submits further calls of a `map`: so many tasks at most, or all."""
        arguments = calls.take(most)
        futures = self._client.map(calls.function, *arguments, **self._options) if arguments else []
        for future in futures:
            self._mapped.add(future)
            future._session.when_done(future._state, partial(self._mapped.discard, future))
        return futures

    def _results(self, calls: _Calls, futures: deque[Future[Any]], deadline: float | None) -> Iterator[Any]:
        """Yields results in order. If the iterator ends early, the futures that are left are
        cancelled, as in concurrent.futures."""
        try:
            while futures:
                limit = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                result = results_of([futures[0]], limit)[0]
                futures.popleft()
                if not self._shut:
                    futures.extend(self._send(calls, 1))
                yield from calls.single_results(result)
        finally:
            with contextlib.suppress(errors.MillraceError):  # the client may be closed
                cancel(list(futures), force=False, reason="")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool | None = None) -> None:
        """Refuses further calls. See `concurrent.futures.Executor.shutdown`.

        Args:
            wait: wait for the calls that were made. Otherwise they continue without this executor.
            cancel_futures: cancel them, also those that run. Default: False; after `import
                millrace.as_distributed`, that they are not waited for.
        """
        if cancel_futures is None:
            cancel_futures = _mode.distributed and not wait
        self._shut = True
        pending, mapped = list(self._open), list(self._mapped)
        if cancel_futures:
            for future in pending:
                future.cancel()
            cancel(mapped, force=False, reason="")
        if wait:
            _slot.during(partial(concurrent.futures.wait, pending))
            run(waited(mapped))

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot submit after shutdown")


class _Calls:
    """The calls of a `map`, several of them in a task."""

    def __init__(self, function: Any, iterables: tuple[Iterable[Any], ...], size: int) -> None:
        # An import path or an op is a task by itself.
        own_task = isinstance(cast(object, function), (str, NativeOp, ExecutorOp))
        self._size = 1 if own_task else size
        #: The function of the tasks.
        self.function: Any = function if self._size == 1 else partial(_call_each, function)
        self._left: Iterator[tuple[Any, ...]] = zip(*iterables)  # noqa: B905 - the shortest ends it, as in map

    def take(self, most: int | None) -> list[tuple[Any, ...]]:
        """Takes so many tasks at most, or all; returns the arguments of `Client.map` for them."""
        if self._size == 1:
            return list(zip(*islice(self._left, most), strict=True))
        chunks: Iterator[list[tuple[Any, ...]]] = iter(lambda: list(islice(self._left, self._size)), [])
        taken = tuple(islice(chunks, most))
        return [taken] if taken else []

    def single_results(self, result: Any) -> Iterable[Any]:
        """Returns the results of the calls of one task."""
        return [result] if self._size == 1 else result


def _call_each(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Any]:
    return [function(*args) for args in calls]


class _Bridge(concurrent.futures.Future[Any]):
    """A concurrent.futures.Future that follows one of ours. It is never "running": it can be
    cancelled until it is done."""

    def __init__(self, remote: Future[Any]) -> None:
        super().__init__()
        self._remote = remote
        self._lock = threading.Lock()
        # True once a thread has begun to settle it. Guarded by _lock.
        self._taken = False
        remote._session.when_done(remote._state, lambda: self._follow(remote))

    def _take(self) -> bool:
        with self._lock:
            taken, self._taken = self._taken, True
            return not taken

    def _end_cancelled(self) -> None:
        super().cancel()
        self.set_running_or_notify_cancel()  # notifies concurrent.futures.wait and as_completed

    def _follow(self, remote: Future[Any]) -> None:
        if not self._take():
            return
        exception = remote._state.exception()
        if exception is not None and isinstance(exception, errors.CancelledError):
            self._end_cancelled()
            return
        self.set_running_or_notify_cancel()
        if exception is not None:
            self.set_exception(exception)
            return
        if remote._state.inline is not None:
            self._settle(remote)
        else:  # bulk data are not fetched in the thread that reads the stream
            remote._session.pool.submit(lambda: self._settle(remote))

    def _settle(self, remote: Future[Any]) -> None:
        try:
            self.set_result(results_of([remote])[0])
        except BaseException as e:
            self.set_exception(e)

    def cancel(self) -> bool:
        if not self._take():
            return self.cancelled()
        self._end_cancelled()
        cancel([self._remote], force=False, reason="")
        return True

    def result(self, timeout: float | None = None) -> Any:
        return _slot.during(partial(super().result, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return _slot.during(partial(super().exception, timeout))
