"""Futures: references to the results of tasks."""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import types
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

from millrace import _check, errors
from millrace._check import Seconds
from millrace._connection._steps import Steps, drive, in_loop, making, run, serve
from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2
from millrace._session import _log_reading, _registry
from millrace._session._session import Session
from millrace._task_states._state import State
from millrace._task_states._waits import Ended
from millrace._values import _keys
from millrace._values._exceptions import hidden
from millrace._values._keys import UserKey

T = TypeVar("T")
R = TypeVar("R")

Status = Literal["pending", "finished", "error", "cancelled", "lost"]


class Future(Generic[T]):
    """The result of a task, wherever it is stored.

    The cluster keeps the result as long as some future for it exists, in this client or another. A
    future can be an argument of other tasks, be awaited in any event loop, and be pickled:
    unpickled in another process, it holds the result through that process's client. If a task
    returns a future, also inside of a list or dict, the future's result is kept for the readers of
    the task's result: as long as that result exists and the process that made the future lives.

    In an event loop, the methods `result`, `exception`, `traceback`, `cancel` and `retry` of a
    future of an AsyncClient are coroutines.

    Calls of a client return futures. A future of a task that exists is also made of its key:

    Args:
        key: name of the result.
        client: the client of the future, a Client or an AsyncClient. Default: that of `get_client`.

    Raises:
        NotFoundError: no task of the client's namespace has this key. In the event loop of an
            AsyncClient the future raises it when it is awaited.
    """

    #: Dask replaces a future in a graph by a reference to its key.
    __dask_future__ = True
    # The type of the result, once a worker was asked for it.
    _kind: Any = None
    # Tells futures of one task apart, once Dask has asked for it.
    _token: str | None = None

    def __init__(self, key: UserKey, client: Any = None) -> None:
        self._session: Session = _registry.default_session() if client is None else client.session
        hold = self._session.hold_later if self._session.asynchronous and in_loop() else self._session.hold
        self._state: State = hold(_keys.to_wire(key))
        self._released = False

    @property
    def key(self) -> Any:
        """Name of the result, unique in the namespace: the str, bytes, int, float or tuple that was
        given."""
        return _keys.from_wire(self._state.key)

    @property
    def client(self) -> Any:
        """The client of this future: a Client, or an AsyncClient."""
        return self._session.owner

    @property
    def executor(self) -> Any:
        """The same as `client`; the name is that of Dask's distributed."""
        return self.client

    def bind_client(self, client: Any) -> None:
        """Makes this a future of another client of the same cluster and namespace. It is useful
        after unpickling: a future then belongs to the client that was opened last."""
        session: Session = client.session
        if session is self._session:
            return
        if (session.life, session.namespace) != (self._session.life, self._session.namespace):
            raise ValueError(f"future {self.key!r} is of another cluster or namespace than {client!r}")
        self._session.flush()
        state = session.hold(self._state.key)
        self.release()
        self._session, self._state, self._released = session, state, False

    @property
    def type(self) -> Any:
        """Type of the result, as functions get it; None while the task has not succeeded. Of a
        result that the client does not have, a worker that holds it tells the type: the first look
        waits for that, and the result is not fetched."""
        state = self._state
        if not state.done or state.exception() is not None:
            return None
        if state.inline is not None:
            return type(results_of([self], 0)[0])
        owner = self._session.owner
        if self._kind is None and owner is not None:
            client = owner.sync if self._session.asynchronous else owner
            self._kind = results_of([client.submit(type, self)])[0]
        return self._kind

    @property
    def status(self) -> Status:
        """Status of the task."""
        state = self._state
        if isinstance(state.failure, errors.CancelledError):
            return "cancelled"
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
        __tracebackhide__ = True
        try:
            return self._serve(self._fetched(_check.longest(timeout)))
        except BaseException as e:
            raise hidden(e)  # noqa: B904

    def _serve(self, steps: Steps[R]) -> R:
        session = self._session
        return serve(steps, session.pool, session.asynchronous)

    def _fetched(self, limit: float | None) -> Steps[T]:
        return self._value((yield from self._session.fetch([self._state], limit))[0])

    def _value(self, raw: Any) -> Any:
        """Returns the future's result for the result of its task, or raises its exception."""
        return raw

    def _as_input(self) -> Future[Any]:
        """Returns the future whose task has this one's result, for tasks that read it."""
        return self

    def exception(self, timeout: Seconds | None = None) -> BaseException | None:
        """Waits for the task and returns its exception; None if it succeeded."""
        return self._serve(self._ended(_check.longest(timeout)))

    def _ended(self, limit: float | None) -> Steps[BaseException | None]:
        if not (yield ended([self], limit)):
            raise TimeoutError(f"{self.key!r} did not end in {limit:g} s")
        return self._state.exception()

    def traceback(self, timeout: Seconds | None = None) -> types.TracebackType | None:
        """Waits for the task and returns the traceback of its exception, with the frames and the
        source of the worker; None if it succeeded, or failed for another reason than an exception.
        `traceback.format_tb` makes text of it."""
        return self._serve(self._traceback(_check.longest(timeout)))

    def _traceback(self, limit: float | None) -> Steps[types.TracebackType | None]:
        exception = yield from self._ended(limit)
        return None if exception is None else exception.__traceback__

    def logs(self) -> str:
        """Returns what the task has written to stdout and stderr in all its attempts, as far as
        workers keep it: the last 64 KiB of each attempt."""
        return self._serve(making(self._logs))

    def _logs(self) -> str:
        session, state = self._session, self._state
        if not state.id:
            session.flush()
        ids, keys = ([state.id], None) if state.id else ((), [state.key])
        return "".join(_log_reading.output(session, session.workers(), keys, ids).values())

    def cancel(self, reason: str | None = None, msg: str | None = None, *, force: bool = False) -> None:
        """Stops the task, or gives up its result. All futures of it in this client are cancelled
        when the call returns. If other clients hold the task too, it continues for them and only
        this client's hold ends, unless `force` is given. `reason` and `msg` are shown in the
        error."""
        return self._serve(making(partial(cancel, [self], force=force, reason=cancel_reason(reason, msg))))

    def retry(self) -> None:
        """Runs the failed or cancelled task again, together with its inputs that failed."""
        return self._serve(making(partial(retry, [self])))

    def release(self) -> None:
        """Gives up this future; the result is freed once no future holds it. The garbage collector
        does this as well."""
        if not self._released:
            self._released = True
            self._session.release(self._state)

    def add_done_callback(self, fn: Callable[[Future[T]], Any]) -> None:
        """Calls `fn` with this future once it is done: at once if it is, else in a thread
        of the client that runs such callbacks one after the other. A callback may wait for other
        futures; later callbacks are delayed until it returns."""
        self._session.when_done(self._state, lambda: fn(self), may_wait=True)

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        __tracebackhide__ = True
        session, state = self._session, self._state
        try:
            await session.waits.end_of(state)
            if state.inline is not None or state.exception() is not None:
                return run(self._fetched(0))  # without a thread: there is nothing to wait for
            return await drive(self._fetched(None), session.pool)
        except BaseException as e:
            raise hidden(e)  # noqa: B904

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

    def __dask_tokenize__(self) -> Any:
        """Returns the name of this future for Dask's tokenize. Another future of the same task has
        another: names of Dask's tasks that are made of it must not outlive the result."""
        if self._token is None:
            self._token = uuid.uuid4().hex
        return "millrace.Future", self._session.life, self._session.namespace, self._state.key, self._token

    def __repr__(self) -> str:
        size = f", {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        why = self._session.why(self._state)
        kind = self._known_type()
        return f"<Future: {self.status}{kind and f', type: {kind}'}, key: {self.key}{size}{why and ', ' + why}>"

    def _known_type(self) -> str:
        """Returns the name of the result's type; empty if it takes a worker to tell it."""
        kind = self._kind
        if kind is None and self._state.inline is not None and self.status == "finished":
            with contextlib.suppress(Exception):  # it cannot be decoded here
                kind = self.type
        return "" if kind is None else f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")

    def _repr_html_(self) -> str:
        colour = {"finished": "#2a7", "error": "#c33", "lost": "#c33", "cancelled": "#888"}.get(self.status, "#36c")
        size = f" &middot; {self._state.nbytes:,} bytes" if self._state.nbytes else ""
        key, why = html.escape(str(self.key)), html.escape(self._session.why(self._state))
        kind = html.escape(self._known_type())
        kind = f" &middot; {kind}" if kind else ""
        text = f'<b>Future</b> <span style="color:{colour}">{self.status}</span> <code>{key}</code>{kind}{size}'
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
    return future_of_state(session, session.hold(key))


def future_of_state(session: Session, state: State) -> Future[Any]:
    """Returns a future that owns one reference to the state."""
    future = cast("Future[Any]", Future.__new__(Future))
    future._session, future._state, future._released = session, state, False
    return future


def by_session(futures: Iterable[Future[Any]]) -> dict[Session, list[Future[Any]]]:
    """Groups futures by the session of their client."""
    groups: dict[Session, list[Future[Any]]] = {}
    for future in futures:
        groups.setdefault(future._session, []).append(future)
    return groups


def futures_of(o: Any, client: object = None) -> list[Future[Any]]:
    """Returns the futures in Dask's collections, and in lists, tuples, sets and dicts of these and
    of futures; each once.

    Args:
        o: the objects. A collection has futures if it was persisted.
        client: not used: futures know their clients.
    """
    found: dict[int, Future[Any]] = {}
    _find_futures(o, found)
    return list(found.values())


def _find_futures(tree: Any, found: dict[int, Future[Any]]) -> None:
    if isinstance(tree, Future):
        found[id(cast("Any", tree))] = tree
    elif isinstance(tree, type):
        return  # a class of collections has no graph
    elif hasattr(tree, "__dask_graph__"):
        graph = tree.__dask_graph__()
        if graph is not None:
            _find_futures(list((graph if isinstance(graph, Mapping) else graph.__dask_graph__()).values()), found)
    elif isinstance(tree, Mapping):
        for value in cast("Mapping[Any, Any]", tree).values():
            _find_futures(value, found)
    elif isinstance(tree, (list, tuple, set, frozenset)):
        for item in cast("Iterable[Any]", tree):
            _find_futures(item, found)


def state_of(future: Future[Any]) -> tuple[Session, State]:
    """Returns the session and the state of a future."""
    return future._session, future._state


def listed(futures: Any, what: str = "futures") -> list[Future[Any]]:
    """Returns one future or several as a list, and the futures of Dask's collections among them.
    Raises TypeError for other objects."""
    if isinstance(futures, Future):
        return [futures]
    if hasattr(futures, "__dask_graph__"):
        return futures_of(futures)
    try:
        given = list(futures)
    except TypeError:
        raise TypeError(f"{what} must be a future or several, not {futures!r}") from None
    out: list[Future[Any]] = []
    for future in given:
        if isinstance(future, Future):
            out.append(future)
        elif hasattr(future, "__dask_graph__"):
            out += futures_of(future)
        else:
            raise TypeError(f"{what} must be futures, and among them is {future!r}")
    return out


def results_of(futures: Sequence[Future[T]], timeout: float | None = None) -> list[T]:
    """Waits in this thread for futures of one client, and returns their results."""
    raw = run(futures[0]._session.fetch([f._state for f in futures], timeout))
    return [f._value(r) for f, r in zip(futures, raw, strict=True)]


def served(futures: Iterable[Future[Any]], steps: Steps[R]) -> R:
    """Runs an operation on futures: see `serve`. It returns a coroutine in an event loop if one of
    them is of an AsyncClient, or if there are none and the client that was opened last is one."""
    sessions = list(by_session(futures)) or [c.session for c in _registry.opened()[:1]]
    asynchronous = [s for s in sessions if s.asynchronous]
    return serve(steps, asynchronous[0].pool, True) if asynchronous else run(steps)


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


def cancel_reason(reason: str | None, msg: str | None) -> str:
    """Returns the reason of a cancellation from the two texts that Dask's distributed takes."""
    return ": ".join(_check.text(t, w) for t, w in ((reason, "reason"), (msg, "msg")) if t is not None)


def cancel(futures: Iterable[Future[Any]], *, force: bool, reason: str) -> None:
    """Cancels the tasks of futures, and gives up the results of those that have ended. All futures
    are cancelled when this returns."""
    _check.text(reason, "reason", 1024)
    for session, group in by_session(futures).items():
        session.check_open()
        session.flush()
        held = [f for f in group if not f._released]
        try:
            _stop(session, [f for f in held if not f.done()], force, reason)
        finally:
            over = {id(f._state): f._state for f in held if f.status in ("finished", "error")}
            if over:
                session.forget(list(over.values()), errors.CancelledError(reason or "cancelled by request"))


def _stop(session: Session, active: list[Future[Any]], force: bool, reason: str) -> None:
    if not active:
        return
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
