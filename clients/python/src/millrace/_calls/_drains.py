"""Orders of operators about workers: to drain them, to retire them, to restart them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from millrace import _check, errors
from millrace._check import Seconds
from millrace._cluster._workers import AnyWorker, described, references
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import worker_calls_pb2, worker_pb2
from millrace._session._session import Session
from millrace._session._worker_watch import Workers
from millrace._values import _keys

_log = logging.getLogger("millrace")

#: Longest limit of a drain, in seconds: 30 days.
_MOST_WITHIN = 30 * 86_400.0
#: Number of objects that an error names for each worker.
_NAMED_OBJECTS = 3


def drain(
    session: Session,
    workers: AnyWorker | Sequence[AnyWorker],
    *,
    reason: str,
    undo: bool,
    wait: bool,
    timeout: Seconds | None,
) -> Steps[list[dict[str, Any]]]:
    """See `Client.drain_workers`."""
    limit = _Limit(timeout)
    request = worker_calls_pb2.DrainWorkersRequest(reason=_reason(reason), undo=_check.boolean(undo, "undo"))
    request.workers.extend(references(session, workers))
    return (yield from _ordered(session, "DrainWorkers", request, limit if wait and not undo else None))


def retire(
    session: Session,
    workers: AnyWorker | Sequence[AnyWorker],
    *,
    reason: str,
    within: Seconds | None,
    wait: bool,
    timeout: Seconds | None,
) -> Steps[list[dict[str, Any]]]:
    """See `Client.retire_workers`."""
    limit = _Limit(timeout)
    request = worker_calls_pb2.RetireWorkersRequest(reason=_reason(reason), timeout=_within(within))
    request.workers.extend(references(session, workers))
    return (yield from _ordered(session, "RetireWorkers", request, limit if wait else None))


def restart(
    session: Session,
    workers: AnyWorker | Sequence[AnyWorker],
    *,
    reason: str,
    within: Seconds | None,
    raise_for_error: bool,
    timeout: Seconds | None,
) -> Steps[list[dict[str, Any]]]:
    """See `Client.restart_workers`."""
    limit = _Limit(timeout)
    _reason(reason)
    bound = _within(within)
    out: list[dict[str, Any]] = []
    left = _refused_first(session, references(session, workers, most=None))
    while left:
        worker = left.pop(0)
        request = worker_calls_pb2.RestartWorkersRequest(workers=[worker], reason=reason, timeout=bound)
        try:
            out += yield from _ordered(session, "RestartWorkers", request, limit)
        except (TimeoutError, errors.DrainError, errors.NotFoundError, errors.InvalidRequestError) as e:
            last = raise_for_error or isinstance(e, TimeoutError)
            if last and left and isinstance(e, (TimeoutError, errors.DrainError)):
                e = type(e)(f"{e}; the restart of {', '.join(map(_name, left))} was not begun")
            if raise_for_error:
                raise e from None
            _log.warning("restart_workers: %s was not restarted: %s", _name(worker), e)
            if last:
                break
    return out


def _name(worker: worker_pb2.WorkerRef) -> str:
    return worker.name or f"w{worker.id}"


def _refused_first(session: Session, workers: list[worker_pb2.WorkerRef]) -> list[worker_pb2.WorkerRef]:
    """Moves the first worker that the scheduler will refuse to restart to the front: one that
    has no supervisor or is unknown. The error then comes before any worker is restarted."""
    supervised = [w for w in session.listed_workers() if w.supervised]
    known: set[str | int] = {w.name for w in supervised} | {w.worker_id for w in supervised}
    for i, worker in enumerate(workers):
        if (worker.name or worker.id) not in known:
            return [worker, *workers[:i], *workers[i + 1 :]]
    return workers


class _Limit:
    """The longest wait of a call, from its construction on."""

    def __init__(self, timeout: Seconds | None) -> None:
        #: In seconds; None: without a limit.
        self.seconds = _check.longest(timeout)
        self._ends = None if self.seconds is None else time.monotonic() + self.seconds

    def left(self) -> float | None:
        """Returns the seconds that are left; None: without a limit."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.0)


def _reason(reason: str) -> str:
    return _check.text(reason, "reason", 1024)


def _within(within: Seconds | None) -> Duration | None:
    """Converts the longest time of a drain from seconds to a Duration. None: without a limit."""
    if within is None:
        return None
    seconds = _check.seconds(within, "within")
    if not 0 < seconds <= _MOST_WITHIN:
        raise ValueError(f"within must be longer than 0 and at most 30 days, not {within!r}; None is without a limit")
    out = Duration()
    out.FromNanoseconds(max(round(seconds * 1e9), 1))
    return out


def _ordered(session: Session, method: str, request: Any, limit: _Limit | None) -> Steps[list[dict[str, Any]]]:
    """Sends an order to drain, retire or restart workers. Then waits, at most for `limit`, until
    the drains have ended and restarted workers are active again; None: does not wait. Returns the
    workers as they are then."""
    life = session.life
    ordered: list[worker_pb2.Worker] = list(session.call(method, request).workers)
    if limit is None:
        return [described(w) for w in ordered]
    drains = Drains(ordered, life)
    while not drains.over:
        left = limit.left()
        if left == 0.0:
            raise TimeoutError(f"the drain did not end in {limit.seconds:g} s: {drains.state()}; it goes on")
        yield session.drain_watch.until(drains.see, left)
        if not drains.over and limit.left() != 0.0:
            session.workers()  # the stream broke: raises the error if the scheduler does not answer
    if drains.failures:
        raise errors.DrainError("; ".join(drains.failures))
    return [described(_newest(session, w.name)) for w in ordered]


def _newest(session: Session, name: str) -> worker_pb2.Worker:
    """Returns the newest process of a worker. After a process has ended, the scheduler keeps its
    description for a while, so a retired worker is found as well."""
    request = worker_calls_pb2.GetWorkerRequest(worker=worker_pb2.WorkerRef(name=name))
    return session.call("GetWorker", request).worker


class Drains:
    """The progress of ordered drains, as the Watch stream reports it.

    Args:
        ordered: the workers as the order returned them.
        life: the scheduler's life at that time.
    """

    def __init__(self, ordered: Sequence[worker_pb2.Worker], life: int) -> None:
        self._pending, self._life = list(ordered), life
        # The newest descriptions of the workers, by id.
        self._told = {w.worker_id: w for w in ordered}
        #: Reasons why drains did not end as ordered, each a sentence.
        self.failures: list[str] = []
        #: True when all drains have ended, or one has failed.
        self.over = not self._pending

    def see(self, seen: Workers) -> bool:
        """Takes the workers as they are. Returns whether the wait is over."""
        if self.over:
            return True
        if seen.life != self._life:
            names = ", ".join(w.name for w in self._pending)
            self.failures.append(
                f"the scheduler was started anew, which ends its orders: order the drain of {names} again"
            )
        else:
            for w in self._pending:
                row = seen.rows.get(w.worker_id)
                if row is not None and row.HasField("drain"):  # a lost worker has none
                    self._told[w.worker_id] = row
            self._pending = [w for w in self._pending if not self._ended(w, seen)]
        self.over = bool(self.failures) or not self._pending
        return self.over

    def _ended(self, worker: worker_pb2.Worker, seen: Workers) -> bool:
        """Returns whether a drain has ended as ordered. Adds to `failures` if it has failed."""
        row = seen.rows.get(worker.worker_id)
        purpose = worker.drain.purpose
        if row is not None and row.state == worker_pb2.WORKER_STATE_DRAINED:
            return purpose == worker_pb2.DRAIN_PURPOSE_KEEP
        if row is not None and row.state == worker_pb2.WORKER_STATE_ACTIVE:
            self.failures.append(f"the drain of worker {worker.name} was undone")
            return False
        if row is not None and row.state != worker_pb2.WORKER_STATE_LOST:
            return False
        # The worker is LOST: its process has ended. Without a row, the scheduler has also forgotten
        # it, which happens some time after the loss.
        for death in row.deaths if row is not None else ():
            if death.incarnation == worker.incarnation:
                self.failures.append(
                    f"worker {worker.name} died during its drain: {death.cause}; results that it alone had are computed "
                    "again, or lost if they were scattered"
                )
                return False
        return purpose != worker_pb2.DRAIN_PURPOSE_RESTART or any(
            seen.rows[i].name == worker.name and i > worker.worker_id for i in seen.active
        )

    def state(self) -> str:
        """Describes the drains that have not ended, for people."""
        return "; ".join(_progress(self._told[w.worker_id]) for w in self._pending)


def _progress(worker: worker_pb2.Worker) -> str:
    drain = worker.drain
    text = (
        f"worker {worker.name} has {worker.assigned_tasks} tasks, and {drain.remaining_objects} results "
        f"({_check.size(drain.remaining_bytes)}) that no other worker has"
    )
    if not drain.staying:
        return text
    some = [f"{_keys.name(o.key)} ({_check.size(o.bytes)}): {o.reason}" for o in drain.staying[:_NAMED_OBJECTS]]
    if drain.staying_objects > len(some):
        some.append("...")
    return f"{text}, {drain.staying_objects} of which stay: {', '.join(some)}"
