"""Futures: references to the results of tasks."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import traceback as _traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar

from millrace import _check, _keys, _registry, errors
from millrace._check import Seconds
from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2
from millrace._session import Session
from millrace._state import State
from millrace._steps import drive, run
from millrace._waits import Ended

T = TypeVar("T")

Status = Literal["pending", "finished", "error", "cancelled", "lost"]


class Future(Generic[T]):
    """The result of a task, wherever it is stored.

    The cluster keeps the result as long as some future for it exists, in this client or another. A
    future can be an argument of other tasks, be awaited in any event loop, and be pickled:
    unpickled in another process, it holds the result through that process's client. If a task
    returns a future, also inside of a list or dict, the future's result is kept for the readers of
    the task's result: as long as that result exists and the process that made the future lives.
    """

    def __init__(self, session: Session, state: State) -> None:
        """Takes ownership of one reference to the state."""
        self._session = session
        self._state: State = state
        self._released = False

    @property
    def key(self) -> Any:
        """Name of the result, unique in the namespace: the str, bytes, int, float or tuple that was
        given."""
        return _keys.from_wire(self._state.key)

    @property
    def status(self) -> Status:
        """Status of the task."""
        state = self._state
        if state.failure is not None:
            return "lost" if isinstance(state.failure, errors.SchedulerLostError) else "error"
        if state.state == task_pb2.TASK_STATE_SUCCEEDED:
            return "finished"
        if state.state == task_pb2.TASK_STATE_FAILED:
            return "error"
        return "cancelled" if state.state == task_pb2.TASK_STATE_CANCELLED else "pending"

    def done(self) -> bool:
        """Returns whether the task has ended, in any way."""
        return self._state.done

    def cancelled(self) -> bool:
        """Returns whether the task was cancelled."""
        return self.status == "cancelled"

    def result(self, timeout: Seconds | None = None) -> T:
        """Waits for the task and returns its result, or raises its exception.

        Args:
            timeout: longest wait, in seconds, as a timedelta or as text ("5s", "2 min"); then
                TimeoutError is raised, and the task continues.
        """
        return run(self._session.fetch([self._state], _check.longest(timeout)))[0]

    def exception(self, timeout: Seconds | None = None) -> BaseException | None:
        """Waits for the task and returns its exception; None if it succeeded."""
        limit = _check.longest(timeout)
        if not self._session.wait([self._state], limit):
            raise TimeoutError(f"{self.key!r} did not end in {limit:g} s")
        return self._state.exception()

    def traceback(self, timeout: Seconds | None = None) -> str | None:
        """Waits for the task and returns the text of its exception's traceback, as it was on the
        worker."""
        exception = self.exception(timeout)
        if exception is None:
            return None
        if self._state.error is not None and self._state.error.traceback:
            return self._state.error.traceback
        return "".join(_traceback.format_exception(type(exception), exception, exception.__traceback__))

    def cancel(self, *, force: bool = False, reason: str = "") -> None:
        """Stops the task. This future is cancelled when the call returns, unless the task had ended
        before. If other clients hold the task too, it continues for them and only this client's
        hold ends, unless `force` is given."""
        cancel([self], force=force, reason=reason)

    def retry(self) -> None:
        """Runs the failed or cancelled task again, together with its inputs that failed."""
        retry([self])

    def release(self) -> None:
        """Gives up this future; the result is freed once no future holds it. The garbage collector
        does this as well."""
        if not self._released:
            self._released = True
            self._session.release(self._state)

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Calls the callback with this future once it is done: at once if it is, else in a thread
        of the client that runs such callbacks one after the other. A callback may wait for other
        futures; later callbacks are delayed until it returns."""
        self._session.when_done(self._state, lambda: callback(self), may_wait=True)

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        session, state = self._session, self._state
        await session.waits.end_of(state)
        if state.inline is not None or state.exception() is not None:
            return self.result(0)  # without a thread: there is nothing to wait for
        return (await drive(session.fetch([state], None), session.pool))[0]

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self._released = True
            self._session.release(self._state)

    def __reduce__(self) -> Any:
        session, state = self._session, self._state
        if not state.id and not state.done:
            session.flush()  # the reader must find the task
        if _pickled.futures is not None:
            _pickled.futures.append(self)
        else:
            executor = sys.modules.get("millrace.executor")
            info = None if executor is None else executor.get_task_info()
            if info is not None:
                session.hold_with_result(info.task_id, state)
        return _restore, (state.key, session.life, session.namespace)

    def __repr__(self) -> str:
        size = f", {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        why = self._session.why(self._state)
        return f"<Future: {self.status}, key: {self.key}{size}{why and ', ' + why}>"

    def _repr_html_(self) -> str:
        colour = {"finished": "#2a7", "error": "#c33", "lost": "#c33", "cancelled": "#888"}.get(self.status, "#36c")
        size = f" &middot; {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        key, why = html.escape(str(self.key)), html.escape(self._session.why(self._state))
        text = f'<b>Future</b> <span style="color:{colour}">{self.status}</span> <code>{key}</code>{size}'
        return text + (f"<br>{why}" if why else "")


class _Pickled(threading.local):
    #: Futures that this thread has pickled, so that they can be kept alive; None: they are not
    #: collected.
    futures: list[Future[Any]] | None = None


_pickled = _Pickled()


@contextlib.contextmanager
def pickled_futures() -> Iterator[list[Future[Any]]]:
    """Collects the futures that are pickled inside of the with block."""
    before, _pickled.futures = _pickled.futures, []
    try:
        yield _pickled.futures
    finally:
        _pickled.futures = before


def _restore(key: str, life: int, namespace: str) -> Future[Any]:
    session = _registry.session_of(life, namespace)
    return Future(session, session.hold(key))


def by_session(futures: Iterable[Future[Any]]) -> dict[Session, list[Future[Any]]]:
    """Groups futures by the session of their client."""
    groups: dict[Session, list[Future[Any]]] = {}
    for future in futures:
        groups.setdefault(future._session, []).append(future)
    return groups


def listed(futures: Any, what: str = "futures") -> list[Future[Any]]:
    """Returns one future or several as a list. Raises TypeError for other objects."""
    if isinstance(futures, Future):
        return [futures]
    try:
        out = list(futures)
    except TypeError:
        raise TypeError(f"{what} must be a future or several, not {futures!r}") from None
    for future in out:
        if not isinstance(future, Future):
            raise TypeError(f"{what} must be futures, and among them is {future!r}")
    return out


def ended(futures: Iterable[Future[Any]], timeout: float | None, first: bool = False) -> Ended:
    """Returns the step that waits until all futures (or, with `first`, one of them) have ended.
    They may be of several clients."""
    groups = by_session(futures)
    return Ended([(session.waits, [f._state for f in group]) for session, group in groups.items()], timeout, first)


def _refs(futures: Iterable[Future[Any]]) -> tuple[list[int], list[str]]:
    ids: list[int] = []
    keys: list[str] = []
    for future in futures:
        if future._state.id:
            ids.append(future._state.id)
        elif future._state.failure is not None:
            raise future._state.failure
        elif future.done():
            raise errors.SchedulerLostError(
                f"{future.key!r} is from before the scheduler was started anew, or the lease ran out: submit it again"
            )
        else:
            keys.append(future._state.key)
    return ids, keys


def cancel(futures: Iterable[Future[Any]], *, force: bool, reason: str) -> None:
    """Cancels the tasks of futures. They have ended when this returns."""
    _check.text(reason, "reason", 1024)
    for session, group in by_session(futures).items():
        session.check_open()
        session.flush()
        active = [f for f in group if not f._released and not f.done()]
        if not active:
            continue
        ids, keys = _refs(active)
        request = task_calls_pb2.CancelTasksRequest(
            client_id=session.client_id, tasks=task_pb2.TaskSet(ids=ids, keys=keys), force=force, reason=reason
        )
        unknown: set[int] = set()
        try:
            unknown.update(session.call("CancelTasks", request).unknown_task_ids)
        except errors.NotFoundError:
            if not all(f.done() for f in active):
                raise
        session.settle_cancelled([f._state for f in active if f._state.id not in unknown], reason)
        session.settle_unknown([f._state for f in active if f._state.id in unknown])


def retry(futures: Iterable[Future[Any]]) -> None:
    """Runs failed tasks again."""
    for session, group in by_session(futures).items():
        _retry(session, group)


def _retry(session: Session, futures: list[Future[Any]]) -> int:
    session.flush()
    ids, keys = _refs(futures)
    with session.changed:
        # From here on the tasks are pending: a wait that starts after this call must not see their
        # old end. NB: the update for the next failure may be the first one that arrives.
        before = [(f._state, f._state.state, f._state.error, f._state.joined_failure) for f in futures]
        for state, *_ in before:
            if state.state in (task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_CANCELLED):
                state.state, state.error, state.joined_failure = task_pb2.TASK_STATE_WAITING, None, False
    try:
        request = task_calls_pb2.RetryTasksRequest(
            client_id=session.client_id, tasks=task_pb2.TaskSet(ids=ids, keys=keys)
        )
        return session.call("RetryTasks", request).retried_tasks
    except BaseException:
        with session.changed:
            for state, was, error, joined in before:
                state.state, state.error, state.joined_failure = was, error, joined
            session.changed.notify_all()
        raise
