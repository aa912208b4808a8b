"""Futures: handles on results."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
import traceback as _traceback
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from millrace import _keys, errors
from millrace._pb.millrace.v1 import task_pb2
from millrace._session import Session
from millrace._state import State

if TYPE_CHECKING:
    from millrace.client import Client

T = TypeVar("T")

Status = Literal["pending", "finished", "error", "cancelled", "lost"]


class Future(Generic[T]):
    """The result of a task, wherever it is.

    The cluster keeps the result as long as some future for it exists, in this client or another. A future can be an
    argument of other tasks, be awaited in any event loop, and be pickled: unpickled in another process, it holds the
    result through that process's client.
    """

    def __init__(self, session: Session, state: State) -> None:
        """Takes over one reference to the state."""
        self._session = session
        self._state: State = state
        self._released = False

    @property
    def key(self) -> Any:
        """Name of the result, unique in the namespace: as it was given, a str, bytes, int, float or tuple."""
        return _keys.from_wire(self._state.key)

    @property
    def status(self) -> Status:
        """Where the task is."""
        state = self._state
        if state.failure is not None:
            return "lost" if isinstance(state.failure, errors.SchedulerLostError) else "error"
        if state.state == task_pb2.TASK_STATE_SUCCEEDED:
            return "finished"
        if state.state == task_pb2.TASK_STATE_FAILED:
            return "error"
        return "cancelled" if state.state == task_pb2.TASK_STATE_CANCELLED else "pending"

    def done(self) -> bool:
        """The task has ended, one way or another."""
        return self._state.done

    def cancelled(self) -> bool:
        """The task was cancelled."""
        return self.status == "cancelled"

    def result(self, timeout: float | None = None) -> T:
        """Waits for the task and returns its result, or raises its exception.

        Args:
            timeout: longest wait in seconds; then TimeoutError, and the task goes on.
        """
        return self._session.fetch([self._state], timeout)[0]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the task and returns its exception; None if it succeeded."""
        if not self._session.wait([self._state], timeout):
            raise TimeoutError(f"{self.key} did not end in {timeout:g} s")
        return self._state.exception()

    def traceback(self, timeout: float | None = None) -> str | None:
        """Waits for the task and returns the text of its exception's traceback, as it was on the worker."""
        exception = self.exception(timeout)
        if exception is None:
            return None
        if self._state.error is not None and self._state.error.traceback:
            return self._state.error.traceback
        return "".join(_traceback.format_exception(type(exception), exception, exception.__traceback__))

    def cancel(self, *, force: bool = False, reason: str = "") -> None:
        """Stops the task. If other clients hold it too, only this one's hold ends, unless `force` is given."""
        cancel(self._session, [self], force=force, reason=reason)

    def retry(self) -> None:
        """Runs the failed or cancelled task again, with the inputs that failed."""
        retry(self._session, [self])

    def release(self) -> None:
        """Gives up this future; the result is freed once nobody holds it. Done by the garbage collector as well."""
        if not self._released:
            self._released = True
            self._session.release(self._state)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls back with this future once it is done, from a thread of the client. Keep it short."""
        self._session.when_done(self._state, lambda: callback(self))

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        self._session.when_done(self._state, lambda: loop.call_soon_threadsafe(settle))
        await done
        if self._state.inline is not None or self._state.exception() is not None:
            return self.result(0)
        return await loop.run_in_executor(None, self.result)

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self._released = True
            self._session.release(self._state)

    def __reduce__(self) -> Any:
        return _restore, (self._state.key,)

    def __repr__(self) -> str:
        size = f", {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        return f"<Future: {self.status}, key: {self.key}{size}>"

    def _repr_html_(self) -> str:
        colour = {"finished": "#2a7", "error": "#c33", "lost": "#c33", "cancelled": "#888"}.get(self.status, "#36c")
        size = f" &middot; {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        return f'<b>Future</b> <span style="color:{colour}">{self.status}</span> <code>{self.key}</code>{size}'


def _restore(key: str) -> Future[Any]:
    from millrace.client import get_client

    session = get_client().session
    return Future(session, session.hold(key))


def _refs(futures: Iterable[Future[Any]]) -> tuple[list[int], list[str]]:
    ids: list[int] = []
    keys: list[str] = []
    for future in futures:
        if future._state.id:
            ids.append(future._state.id)
        else:
            keys.append(future._state.key)
    return ids, keys


def cancel(session: Session, futures: Iterable[Future[Any]], *, force: bool, reason: str) -> int:
    """Cancels the tasks of futures; returns how many ended by it."""
    from millrace._pb.millrace.v1 import scheduler_service_pb2

    session.flush()
    ids, keys = _refs(futures)
    request = scheduler_service_pb2.CancelTasksRequest(
        client_id=session.client_id, task_ids=ids, keys=keys, force=force, reason=reason
    )
    return session.call("CancelTasks", request).cancelled_tasks


def retry(session: Session, futures: Iterable[Future[Any]]) -> int:
    """Runs failed tasks again; returns how many."""
    from millrace._pb.millrace.v1 import scheduler_service_pb2

    session.flush()
    futures = list(futures)
    ids, keys = _refs(futures)
    with session.changed:
        # From now on they are pending: a wait that starts after this call must not see the old end.
        before = [(f._state, f._state.state, f._state.error) for f in futures]
        for state, _, _ in before:
            if state.state in (task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_CANCELLED):
                state.state, state.error = task_pb2.TASK_STATE_WAITING, None
    try:
        request = scheduler_service_pb2.RetryTasksRequest(client_id=session.client_id, task_ids=ids, keys=keys)
        return session.call("RetryTasks", request).retried_tasks
    except BaseException:
        with session.changed:
            for state, was, error in before:
                state.state, state.error = was, error
            session.changed.notify_all()
        raise


class DoneAndNotDone(NamedTuple):
    """What `wait` returns."""

    #: Futures that have ended.
    done: set[Future[Any]]
    #: Futures that have not.
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]],
    timeout: float | None = None,
    return_when: str = concurrent.futures.ALL_COMPLETED,
) -> DoneAndNotDone:
    """Waits until all futures are done (ALL_COMPLETED), or one is (FIRST_COMPLETED).

    Raises:
        TimeoutError: the time is up.
    """
    listed = list(futures)
    if return_when not in (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED):
        raise ValueError(f"return_when is ALL_COMPLETED or FIRST_COMPLETED, not {return_when!r}")
    first = return_when == concurrent.futures.FIRST_COMPLETED
    if listed and not listed[0]._session.wait([f._state for f in listed], timeout, first):
        raise TimeoutError(f"{sum(not f.done() for f in listed)} of {len(listed)} tasks did not end in {timeout:g} s")
    done = {f for f in listed if f.done()}
    return DoneAndNotDone(done, set(listed) - done)


class as_completed:
    """Iterates over futures in the order in which they end, for both `for` and `async for`.

    Args:
        futures: the futures; more can be added while iterating.
        with_results: yield (future, result) pairs; the first error is raised.
        timeout: longest wait for the next one in seconds.
    """

    def __init__(
        self, futures: Iterable[Future[Any]] = (), *, with_results: bool = False, timeout: float | None = None
    ) -> None:
        self._queue: SimpleQueue[Future[Any]] = SimpleQueue()
        self._left = 0
        self._with_results, self._timeout = with_results, timeout
        self.update(futures)

    def update(self, futures: Iterable[Future[Any]]) -> None:
        """Adds futures."""
        for future in futures:
            self.add(future)

    def add(self, future: Future[Any]) -> None:
        """Adds a future."""
        self._left += 1
        future.add_done_callback(self._queue.put)

    def __iter__(self) -> Iterator[Any]:
        while self._left:
            yield self._next()

    def _next(self) -> Any:
        from queue import Empty

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
        """Iterates over lists of what has ended since the last one."""
        while self._left:
            batch = [self._next()]
            while self._left and not self._queue.empty():
                batch.append(self._next())
            yield batch


class ClientExecutor(concurrent.futures.Executor):
    """A cluster as a concurrent.futures.Executor.

    Args:
        client: the client.
        options: keyword options of `Client.submit` for every call.
    """

    def __init__(self, client: Client, **options: Any) -> None:
        self._client, self._options = client, options
        self._open: set[concurrent.futures.Future[Any]] = set()
        self._shut = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        if self._shut:
            raise RuntimeError("cannot submit after shutdown")
        remote = self._client.submit(fn, *args, **{"pure": False, **self._options}, **kwargs)
        local = _Bridge(remote)
        self._open.add(local)
        local.add_done_callback(self._open.discard)
        return local  # pyright: ignore[reportReturnType]

    def map(
        self, fn: Callable[..., T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[T]:
        deadline = None if timeout is None else time.monotonic() + timeout
        futures = self._client.map(fn, *iterables, **{"pure": False, **self._options})
        for future in futures:
            yield future.result(None if deadline is None else max(deadline - time.monotonic(), 0.0))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut = True
        pending = list(self._open)
        if cancel_futures:
            for future in pending:
                future.cancel()
        if wait:
            concurrent.futures.wait(pending)


class _Bridge(concurrent.futures.Future[Any]):
    """A concurrent future that follows one of ours. It is never "running": it can be cancelled until it is done."""

    def __init__(self, remote: Future[Any]) -> None:
        super().__init__()
        self._remote = remote
        remote.add_done_callback(self._follow)

    def _follow(self, remote: Future[Any]) -> None:
        exception = remote.exception(0)
        if exception is not None and isinstance(exception, errors.CancelledError):
            super().cancel()
            return
        if not self.set_running_or_notify_cancel():
            return
        if exception is not None:
            self.set_exception(exception)
            return
        if remote._state.inline is not None:
            self._settle(remote)
        else:  # bulk is not fetched on the thread that reads the stream
            import threading

            threading.Thread(target=self._settle, args=(remote,), daemon=True).start()

    def _settle(self, remote: Future[Any]) -> None:
        try:
            self.set_result(remote.result())
        except BaseException as e:
            self.set_exception(e)

    def cancel(self) -> bool:
        if self.done():
            return self.cancelled()
        self._remote.cancel()
        return super().cancel()
