"""Waits for changes of the cluster's workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import grpc

from millrace._connection._callbacks import run
from millrace._connection._connection import Connection
from millrace._connection._steps import Step
from millrace._pb.millrace.v1 import watch_pb2, worker_pb2


class Workers:
    """The workers of the cluster at one revision of the catalogue. Never changed."""

    def __init__(self, rows: Mapping[int, worker_pb2.Worker], life: int) -> None:
        #: All worker incarnations that the scheduler remembers, lost ones too, by id.
        self.rows = rows
        #: Life of the scheduler in which these ids are valid.
        self.life = life
        #: Ids of the active workers.
        self.active = frozenset(i for i, w in rows.items() if w.state == worker_pb2.WORKER_STATE_ACTIVE)


#: Returns whether a wait ends with these workers. It is called in the watching thread, and must not
#: wait or raise.
Condition = Callable[[Workers], bool]


class WorkerWatch:
    """Follows the workers of the cluster for waits. Its thread and its stream exist only while
    somebody waits.

    Args:
        connection: the scheduler.
        view: fields of the workers in the stream.
    """

    def __init__(self, connection: Connection, view: worker_pb2.WorkerView = worker_pb2.WORKER_VIEW_BASIC) -> None:
        self._connection, self._view = connection, view
        self._lock = threading.Lock()
        # Guarded by _lock. The calls to make, with their conditions.
        self._waiting: dict[Callable[[], None], Condition] = {}
        self._thread: threading.Thread | None = None
        # The open stream, and the workers as it told them; None before its first snapshot.
        self._stream: Any = None
        self._seen: Workers | None = None

    def changed(self, known: Collection[int], timeout: float | None) -> Step:
        """Returns a step that ends when the active workers are others than those of these ids, or
        when the stream breaks."""
        ids = frozenset(known)
        return self.until(lambda seen: seen.active != ids, timeout)

    def until(self, condition: Condition, timeout: float | None) -> Step:
        """Returns a step that ends when a condition holds, or when the stream breaks. After the
        latter, the caller asks the scheduler itself, and so gets its error."""
        return _Until(self, condition, timeout)

    def add(self, call: Callable[[], None], condition: Condition) -> None:
        """Makes a call as soon as a condition holds, or the stream breaks."""
        with self._lock:
            holds = self._seen is not None and condition(self._seen)
            if not holds:
                self._waiting[call] = condition
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="millrace-workers", daemon=True)
                    self._thread.start()
        if holds:
            call()

    def discard(self, call: Callable[[], None]) -> None:
        """Takes back a call that was not made."""
        with self._lock:
            self._waiting.pop(call, None)
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        """Ends the stream if nobody waits. REQUIRES: the lock."""
        if not self._waiting and self._stream is not None:
            self._stream.cancel()

    def _run(self) -> None:
        request = watch_pb2.WatchRequest(workers=True, worker_view=self._view)
        while True:
            with self._lock:
                self._seen = None
                if not self._waiting:
                    self._thread = self._stream = None
                    return
                try:
                    stream = self._stream = self._connection.watch(request)
                except ValueError:  # the channel is closed
                    stream = self._stream = None
            cancelled = False
            try:
                if stream is not None:
                    self._follow(stream)
            except grpc.RpcError:
                cancelled = stream is not None and stream.cancelled()
            if not cancelled:
                self._connection.ended.wait(0.2)
                self._tell(None)

    def _follow(self, stream: Any) -> None:
        rows: dict[int, worker_pb2.Worker] = {}
        life = 0
        for response in stream:
            life = response.life or life
            for worker in response.workers:
                rows[worker.worker_id] = worker
            for worker_id in response.removed_worker_ids:
                rows.pop(worker_id, None)
            if not response.more:
                self._tell(Workers(dict(rows), life))

    def _tell(self, seen: Workers | None) -> None:
        """Makes the calls whose conditions hold; all calls if the workers are unknown."""
        with self._lock:
            self._seen = seen
            told = [call for call, holds in self._waiting.items() if seen is None or holds(seen)]
            for call in told:
                del self._waiting[call]
            self._end_if_idle()
        run(told)


class _Until(Step):
    def __init__(self, watch: WorkerWatch, condition: Condition, timeout: float | None) -> None:
        super().__init__(timeout)
        self._of, self._condition = watch, condition

    def _watch(self, call: Callable[[], None]) -> None:
        self._of.add(call, self._condition)

    def _forget(self, call: Callable[[], None]) -> None:
        self._of.discard(call)
