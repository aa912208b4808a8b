"""A cluster as a concurrent.futures.Executor."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from millrace import _check, errors
from millrace._task_options import SubmitOptions, bound
from millrace._waiting import wait as wait_for
from millrace.future import Future, cancel

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Submitter(Protocol):
    """The part of a client that an executor uses."""

    def submit(self, func: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]: ...

    def map(self, func: Callable[..., T], /, *iterables: Iterable[Any], **kwargs: Any) -> list[Future[T]]: ...


class ClientExecutor(concurrent.futures.Executor):
    """A cluster as a concurrent.futures.Executor.

    Args:
        client: the client.
        options: keyword options of `Client.submit` for every call.
    """

    def __init__(self, client: Submitter, **options: Unpack[SubmitOptions]) -> None:
        self._client, self._options = client, options
        # Futures that have not ended: those of `submit`, and those of `map`.
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._mapped: set[Future[Any]] = set()
        self._shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Calls a function on the cluster. All keyword arguments go to the function. See
        `concurrent.futures.Executor.submit`."""
        self._check_open()
        fn, kwargs = bound(fn, kwargs)
        remote = self._client.submit(fn, *args, **{"pure": False, **self._options}, **kwargs)
        local = _Bridge(remote)
        self._open.add(local)
        local.add_done_callback(self._open.discard)
        return local  # pyright: ignore[reportReturnType]

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        """Calls a function with each element, all at once; `chunksize` has no effect. Returns an
        iterator over the results, which are fetched one after the other. See
        `concurrent.futures.Executor.map`."""
        self._check_open()
        limit = _check.longest(timeout)
        futures = self._client.map(fn, *iterables, **{"pure": False, **self._options})
        for future in futures:
            self._mapped.add(future)
            future._session.when_done(future._state, partial(self._mapped.discard, future))
        return _results(futures, None if limit is None else time.monotonic() + limit)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuses further calls, and waits for those that were made. See
        `concurrent.futures.Executor.shutdown`."""
        self._shut = True
        pending, mapped = list(self._open), list(self._mapped)
        if cancel_futures:
            for future in pending:
                future.cancel()
            cancel(mapped, force=False, reason="")
        if wait:
            concurrent.futures.wait(pending)
            wait_for(mapped)

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot submit after shutdown")


def _results(futures: list[Future[T]], deadline: float | None) -> Iterator[T]:
    """Yields results in order. If the iterator ends early, the futures that are left are cancelled,
    as in concurrent.futures."""
    futures.reverse()
    try:
        while futures:
            yield futures[-1].result(None if deadline is None else max(deadline - time.monotonic(), 0.0))
            futures.pop()
    finally:
        with contextlib.suppress(errors.MillraceError):  # the client may be closed
            cancel(futures, force=False, reason="")


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
        exception = remote.exception(0)
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
            self.set_result(remote.result())
        except BaseException as e:
            self.set_exception(e)

    def cancel(self) -> bool:
        if not self._take():
            return self.cancelled()
        self._end_cancelled()
        self._remote.cancel()
        return True
