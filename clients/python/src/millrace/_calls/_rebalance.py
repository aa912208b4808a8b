"""Evens out the bytes that workers hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from millrace import _check, errors
from millrace._check import Seconds
from millrace._cluster._workers import AnyWorker, references
from millrace._connection._steps import Step, Steps
from millrace._pb.millrace.v1 import worker_calls_pb2
from millrace._session._session import Session
from millrace._values import _keys


@dataclass(frozen=True)
class FailedMove:
    """A result that a rebalance could not move. It stays where it was, unless it was released or
    computed again meanwhile."""

    #: Key of the result; None if its task was forgotten meanwhile.
    key: Any
    #: Namespace of the key.
    namespace: str
    #: Its size, in bytes.
    bytes: int
    #: Names of the worker that had it, and of the one that was to get it.
    source: str
    target: str
    #: Why it could not move, for people.
    reason: str


@dataclass(frozen=True)
class RebalancedWorker:
    """A worker that took part in a rebalance. Its bytes are those of the results that it holds, in
    memory and on disk."""

    #: Name of the worker.
    name: str
    #: Bytes that it held when the rebalance began, or when it joined.
    initial_bytes: int
    #: Bytes that it holds now; 0 if it is lost.
    bytes: int
    #: Bytes that it holds after all planned moves, if nothing else changes.
    planned_bytes: int
    #: Bytes of `bytes` that may not move: of results that several workers have, that an assigned
    #: task needs, or that are small. Counted for workers above the mean only.
    staying_bytes: int
    #: Limit of its memory, in bytes; 0: it has none.
    memory_limit: int


@dataclass(frozen=True)
class RebalanceReport:
    """The result of a rebalance, or of the plan of one."""

    #: Number and bytes of the results that were to move, with those that have moved and failed.
    planned_objects: int
    planned_bytes: int
    #: Number and bytes of those that have moved.
    moved_objects: int
    moved_bytes: int
    #: Number and bytes of those that could not move.
    failed_objects: int
    failed_bytes: int
    #: The first 20 of the latter.
    failures: tuple[FailedMove, ...]
    #: The workers that took part, by name, also those that were lost meanwhile.
    workers: tuple[RebalancedWorker, ...]


def rebalance(
    session: Session, workers: AnyWorker | Sequence[AnyWorker] | None, *, dry_run: bool, timeout: Seconds | None
) -> Steps[RebalanceReport]:
    """See `Client.rebalance`."""
    limit = _check.longest(timeout)
    named = [] if workers is None else references(session, workers)
    only_plan = _check.boolean(dry_run, "dry_run")
    session.check_open()
    request = worker_calls_pb2.RebalanceRequest(workers=named, dry_run=only_plan)
    order = _Order(lambda: session.connection.rebalance(request), limit)
    ended = yield order
    told = order.told
    if not ended:
        how_far = "it has not begun" if told is None else _progress(told)
        raise TimeoutError(f"the rebalance did not end in {limit:g} s, and was ended: {how_far}")
    if told is not None and told.done:
        return _report(told)
    session.check_open()
    if order.error is None:
        raise errors.SchedulerLostError("rebalance: the scheduler has ended the call before the end: order it again")
    raise errors.from_rpc(order.error, "rebalance") from None


class _Order(Step):
    """The end of a rebalance. The rebalance begins with the wait, and ends with it at the
    latest."""

    def __init__(self, begin: Callable[[], Any], timeout: float | None) -> None:
        super().__init__(timeout)
        self._begin = begin
        self._stream: Any = None
        #: The last response; None before the first one.
        self.told: worker_calls_pb2.RebalanceResponse | None = None
        #: The error that ended the call.
        self.error: grpc.RpcError | None = None

    def _watch(self, call: Callable[[], None]) -> None:
        try:
            self._stream = self._begin()
        except ValueError:  # the channel is closed
            call()
            return
        threading.Thread(target=self._read, args=(self._stream, call), name="millrace-rebalance", daemon=True).start()

    def _forget(self, call: Callable[[], None]) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def _read(self, stream: Any, call: Callable[[], None]) -> None:
        try:
            for response in stream:
                self.told = response
        except grpc.RpcError as e:
            self.error = e
        call()


def _progress(told: worker_calls_pb2.RebalanceResponse) -> str:
    size = _check.size
    return (
        f"{told.moved_objects} of {told.planned_objects} results ({size(told.moved_bytes)} of "
        f"{size(told.planned_bytes)}) have moved, and stay so"
    )


def _report(told: worker_calls_pb2.RebalanceResponse) -> RebalanceReport:
    names = {w.worker_id: w.name for w in told.workers}
    return RebalanceReport(
        planned_objects=told.planned_objects,
        planned_bytes=told.planned_bytes,
        moved_objects=told.moved_objects,
        moved_bytes=told.moved_bytes,
        failed_objects=told.failed_objects,
        failed_bytes=told.failed_bytes,
        failures=tuple(
            FailedMove(
                key=_keys.from_wire(f.key) if f.key else None,
                namespace=f.namespace,
                bytes=f.bytes,
                source=names.get(f.source_worker_id, f"w{f.source_worker_id}"),
                target=names.get(f.target_worker_id, f"w{f.target_worker_id}"),
                reason=f.reason,
            )
            for f in told.failures
        ),
        workers=tuple(
            RebalancedWorker(
                name=w.name,
                initial_bytes=w.initial_bytes,
                bytes=w.bytes,
                planned_bytes=w.planned_bytes,
                staying_bytes=w.staying_bytes,
                memory_limit=w.memory_limit_bytes,
            )
            for w in sorted(told.workers, key=lambda w: (w.name, w.worker_id))
        ),
    )
