"""Changes of the set of active workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import grpc

from millrace._callbacks import run
from millrace._connection import Connection
from millrace._pb.millrace.v1 import watch_pb2, worker_pb2
from millrace._steps import Step


class WorkerWatch:
    """Follows the workers of the cluster while somebody waits for a change. Its thread and its
    stream exist only then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        # Guarded by _lock. For each call to make: the numbers of the workers that its caller knows.
        self._waiting: dict[Callable[[], None], frozenset[int]] = {}
        self._thread: threading.Thread | None = None
        # The open stream, and the active workers by it; None before its first snapshot.
        self._stream: Any = None
        self._active: frozenset[int] | None = None

    def changed(self, known: Collection[int], timeout: float | None) -> Step:
        """Returns a step that ends when the active workers are others than those of these numbers,
        or when the scheduler cannot be asked."""
        return _Changed(self, frozenset(known), timeout)

    def add(self, call: Callable[[], None], known: frozenset[int]) -> None:
        """Makes a call as soon as the active workers are others than `known`."""
        with self._lock:
            differs = self._active is not None and self._active != known
            if not differs:
                self._waiting[call] = known
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="millrace-workers", daemon=True)
                    self._thread.start()
        if differs:
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
        request = watch_pb2.WatchRequest(workers=True)
        while True:
            with self._lock:
                self._active = None
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
                # The callers ask the scheduler themselves, and raise its error.
                self._connection.ended.wait(0.2)
                self._tell(None)

    def _follow(self, stream: Any) -> None:
        active: set[int] = set()
        for response in stream:
            for worker in response.workers:
                if worker.state == worker_pb2.WORKER_STATE_ACTIVE:
                    active.add(worker.worker_id)
                else:
                    active.discard(worker.worker_id)
            active.difference_update(response.removed_worker_ids)
            if not response.more:
                self._tell(frozenset(active))

    def _tell(self, active: frozenset[int] | None) -> None:
        """Makes the calls of those who know other workers; all calls if the workers are unknown."""
        with self._lock:
            self._active = active
            told = [call for call, known in self._waiting.items() if known != active]
            for call in told:
                del self._waiting[call]
            self._end_if_idle()
        run(told)


class _Changed(Step):
    def __init__(self, watch: WorkerWatch, known: frozenset[int], timeout: float | None) -> None:
        super().__init__(timeout)
        self._of, self._known = watch, known

    def _watch(self, call: Callable[[], None]) -> None:
        self._of.add(call, self._known)

    def _forget(self, call: Callable[[], None]) -> None:
        self._of.discard(call)
