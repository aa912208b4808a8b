"""Locks and semaphores for all clients and tasks of a cluster."""

from __future__ import annotations

import abc
import collections
import uuid
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from millrace import _check, errors
from millrace._calls._coordination import ask
from millrace._check import Seconds
from millrace._connection._steps import Steps, drive, in_loop, run
from millrace._pb.millrace.v1 import coordination_pb2
from millrace._session._session import Session
from millrace._shared._shared import Shared, refuse_rpc
from millrace.client import AsyncClient, Client

Self = TypeVar("Self", bound="_Held")


class _Grant:
    """The result of one `acquire`."""

    __slots__ = ("client_id", "names", "request_id")

    def __init__(self, client_id: int, request_id: str, names: list[str]) -> None:
        self.client_id, self.request_id, self.names = client_id, request_id, names


class _Held(Shared, abc.ABC):
    """A thing that is acquired and released."""

    def __init__(self, kind: str, name: Any, client: Client | AsyncClient | None) -> None:
        super().__init__(kind, name, client)
        # Oldest first. A copy of this object in another process has leases of its own.
        self._leases: collections.deque[_Grant] = collections.deque()

    def _take(
        self, session: Session, names: Sequence[str], limit: int, needed: int, timeout: float | None
    ) -> Steps[bool]:
        request = coordination_pb2.AcquireRequest(names=names, limit=limit, needed=needed)
        answer = yield from ask(session, "Acquire", request, timeout)
        if answer.acquired:
            self._leases.append(_Grant(request.client_id, request.request_id, list(answer.names)))
        return answer.acquired

    def _check_held(self) -> None:
        if not self._leases:
            raise RuntimeError(f"Released too often: {self!r} is held by this object no more times")

    def _give_back(self, session: Session) -> Steps[bool]:
        yield from ()
        self._check_held()
        # Another thread may release the next lease meanwhile.
        grant = self._leases.popleft()
        try:
            self._release(session, grant)
        except errors.NotHeldError:
            raise
        except BaseException:
            self._leases.appendleft(grant)  # it may be released again
            raise
        return True

    def _release(self, session: Session, grant: _Grant) -> None:
        if not grant.names:
            return  # of a MultiLock without names
        for last in (False, True):
            if grant.client_id != session.client_id:
                raise self._lost(session)
            request = coordination_pb2.ReleaseRequest(
                client_id=grant.client_id, request_id=grant.request_id, names=grant.names
            )
            try:
                # The scheduler remembers a release for a while, so the call can be repeated.
                session.call("Release", request)
                return
            except errors.SchedulerLostError:
                session.check_open()
                if last:
                    raise

    def _lost(self, session: Session) -> errors.NotHeldError:
        error = errors.NotHeldError(
            f"{self!r} was lost while it was held, because {session.renewed_because}: others may have acquired it since. "
            "Acquire it again, and repeat the work"
        )
        error.reason = "NOT_HELD"
        return error

    def _locked(self, session: Session, name: str) -> Steps[int]:
        request = coordination_pb2.GetSemaphoreRequest(client_id=session.client_id, name=name)
        yield from ()
        return len(session.call("GetSemaphore", request).holder_client_ids)

    def __enter__(self: Self) -> Self:
        session = self._session
        if session.asynchronous and in_loop():
            raise RuntimeError(
                f"{self!r}: its client is an AsyncClient, so write `async with`: `with` would block the event loop"
            )
        run(self._acquire_steps(session))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._give_back(self._session))

    async def __aenter__(self: Self) -> Self:
        session = self._session
        await drive(self._acquire_steps(session), session.pool)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._session
        await drive(self._give_back(session), session.pool)

    @abc.abstractmethod
    def _acquire_steps(self, session: Session) -> Steps[bool]:
        """Waits until the object is held, and returns whether it is."""


class _Leased(_Held):
    """A thing with one name, of which there are leases."""

    def get_value(self) -> int:
        """Returns the number of leases that all clients have: of a Lock, 1 if somebody has it."""
        return self._do(lambda session: self._locked(session, self._wire))

    def register(self, **_: Any) -> None:
        """Does nothing: the first `acquire` makes it."""
        return self._do(self._no_steps)

    def _no_steps(self, _: Session) -> Steps[None]:
        yield from ()

    def close(self) -> None:
        """Ends all leases and all waits. A wait ends with an error."""

        def steps(_: Session) -> Steps[None]:
            yield from self._call("CloseSemaphore", coordination_pb2.CloseSemaphoreRequest(name=self._wire))

        return self._do(steps)


class Semaphore(_Leased):
    """A semaphore for all clients and tasks of a cluster.

    Its leases belong to the client of the process that acquired them. They end when the client is
    closed, or silent for 30 s because its process died. Waiting calls are served in the order in
    which they came.

    Args:
        max_leases: how many leases there may be at the same time. Everybody who uses the name must
            give the same number.
        name: processes that give the same name share the semaphore: text, bytes, a number, or a
            tuple of these. Default: a random name.
        scheduler_rpc, loop: parameters of Dask's distributed that have no effect.
        client: default: that of `get_client` at the first use.
    """

    def __init__(
        self,
        max_leases: int = 1,
        name: Any = None,
        scheduler_rpc: Any = None,
        loop: Any = None,
        *,
        client: Client | AsyncClient | None = None,
    ) -> None:
        super().__init__("Semaphore", name, client)
        refuse_rpc("Semaphore", scheduler_rpc, loop)
        self.max_leases = _check.integer(max_leases, "max_leases", 1, (1 << 32) - 1)

    def acquire(self, timeout: Seconds | None = None) -> bool:
        """Waits for a lease, and returns True. Returns False if the timeout has passed."""
        limit = _check.longest(timeout)
        return self._do(lambda session: self._take(session, [self._wire], self.max_leases, 1, limit))

    def _acquire_steps(self, session: Session) -> Steps[bool]:
        return self._take(session, [self._wire], self.max_leases, 1, None)

    def release(self) -> bool:
        """Ends the oldest lease of this object.

        Raises:
            RuntimeError: this object has no lease.
            NotHeldError: the lease had ended before: the client's lease ran out, the scheduler was
                started anew, or the semaphore was closed.
        """
        self._check_held()  # at once, also in a coroutine's place
        return self._do(self._give_back)

    def __await__(self) -> Generator[Any, None, Semaphore]:
        yield from ()
        return self

    def __reduce__(self) -> Any:
        return Semaphore, (self.max_leases, self.name)


class Lock(_Leased):
    """A lock for all clients and tasks of a cluster.

    It belongs to the client of the process that acquired it. It is released when the client is
    closed, or silent for 30 s because its process died. Waiting calls are served in the order in
    which they came. The same process waits for itself if it acquires it twice.

    Args:
        name: processes that give the same name share the lock: text, bytes, a number, or a
            tuple of these. Default: a random name.
        client: default: that of `get_client` at the first use.
        scheduler_rpc, loop: parameters of Dask's distributed that have no effect.
    """

    def __init__(
        self,
        name: Any = None,
        client: Client | AsyncClient | None = None,
        *,
        scheduler_rpc: Any = None,
        loop: Any = None,
    ) -> None:
        super().__init__("Lock", name, client)
        refuse_rpc("Lock", scheduler_rpc, loop)
        #: Names this object among those with its name.
        self.id = uuid.uuid4().hex

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None) -> bool:
        """Waits for the lock, and returns True.

        Args:
            blocking: False: returns False at once if somebody has the lock.
            timeout: longest wait; then the result is False.
        """
        limit = blocking_limit(blocking, timeout)
        return self._do(lambda session: self._take(session, [self._wire], 1, 1, limit))

    def _acquire_steps(self, session: Session) -> Steps[bool]:
        return self._take(session, [self._wire], 1, 1, None)

    def release(self) -> bool:
        """Releases the lock.

        Raises:
            RuntimeError: this object has not acquired it.
            NotHeldError: the lock was lost before: the client's lease ran out, the scheduler was
                started anew, or the lock was closed.
        """
        self._check_held()  # at once, also in a coroutine's place
        return self._do(self._give_back)

    def locked(self) -> bool:
        """Returns whether somebody has the lock."""

        def steps(session: Session) -> Steps[bool]:
            return (yield from self._locked(session, self._wire)) > 0

        return self._do(steps)

    def __reduce__(self) -> Any:
        return Lock, (self.name,)


def blocking_limit(blocking: bool, timeout: Seconds | None) -> float | None:
    """Returns the longest wait that two parameters of `acquire` say."""
    if not blocking:
        if timeout is not None:
            raise ValueError("timeout: a call with blocking=False does not wait: leave it out")
        return 0.0
    return _check.longest(timeout)


class MultiLock(_Held):
    """Several locks that are acquired at the same moment, all or some of them.

    A name is the same lock as that of a Lock. No order of names can lead to a deadlock.

    Args:
        names: names of the locks.
        client: default: that of `get_client` at the first use.
    """

    def __init__(self, names: Sequence[str] | None = None, client: Client | AsyncClient | None = None) -> None:
        super().__init__("MultiLock", None, client)
        if isinstance(names, str):
            raise TypeError(f"MultiLock: names must be several names, not the text {names!r}: give a list")
        self.names = list(names or [])
        for name in self.names:
            if not _check.text(name, "MultiLock: a name", 256):
                raise ValueError("MultiLock: a name is empty")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"MultiLock: names has the same name twice: {self.names}")

    def acquire(self, blocking: bool = True, timeout: Seconds | None = None, num_locks: int | None = None) -> bool:
        """Waits for the locks, and returns True.

        Args:
            blocking: False: returns False at once if the locks are not free.
            timeout: longest wait; then the result is False.
            num_locks: how many of the locks are needed. Default: all.
        """
        limit = blocking_limit(blocking, timeout)
        needed = len(self.names) if num_locks is None else _check.integer(num_locks, "num_locks", 1, len(self.names))
        return self._do(lambda session: self._take_some(session, needed, limit))

    def _take_some(self, session: Session, needed: int, limit: float | None) -> Steps[bool]:
        if not self.names:
            self._leases.append(_Grant(session.client_id, "", []))
            return True
        return (yield from self._take(session, self.names, 1, needed, limit))

    def _acquire_steps(self, session: Session) -> Steps[bool]:
        return self._take_some(session, len(self.names), None)

    def release(self) -> None:
        """Releases the locks that `acquire` took.

        Raises:
            ValueError: this object has not acquired them.
            NotHeldError: they were lost before.
        """
        if not self._leases:
            raise ValueError("Lock is not yet acquired: call acquire() first")
        return self._do(self._released)

    def _released(self, session: Session) -> Steps[None]:
        yield from self._give_back(session)

    def locked(self) -> bool:
        """Returns whether this object has the locks."""
        return bool(self._leases)

    def __reduce__(self) -> Any:
        return MultiLock, (self.names,)

    def __repr__(self) -> str:
        return f"<MultiLock: {', '.join(self.names)}>"
