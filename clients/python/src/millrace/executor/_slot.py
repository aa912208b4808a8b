"""The slot of the running task, which it gives back while it waits for other tasks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from millrace._connection import _slot
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace.executor._memory import DeviceLock
from millrace.executor._outbox import Outbox
from millrace.executor._stopping import Stopping

T = TypeVar("T")


class RunSlot:
    """Tells the worker that the run of the main thread waits, and waits until it may go on.

    The run has no slot while it waits for anything: in the main thread, in coroutines of an event
    loop in the main thread, or between `secede` and `rejoin` in any of its threads. Other waits in
    other threads keep the slot, because the main thread may be computing.

    Args:
        out: messages to the worker.
        device_lock: the lock of the processes that share a GPU: a run that waits does not hold it;
            None if there is none.
        stopping: stops of the run. A stopped run needs no slot any more.
    """

    def __init__(self, out: Outbox, device_lock: DeviceLock | None, stopping: Stopping) -> None:
        self._out, self._device_lock, self._stopping = out, device_lock, stopping
        #: Priority of the run's task; 0 if there is no run.
        self.priority = 0
        self._main = threading.main_thread().ident
        # The run; None: there is none.
        self._run: executor_pb2.AttemptRef | None = None
        # Guards the attributes below. A signal handler or a destructor may wait inside of a wait.
        self._lock = threading.RLock()
        # How many waits the run is inside of.
        self._waits = 0
        # Threads of the run that have given its slot back by themselves.
        self._seceded: set[int] = set()
        self._granted = threading.Event()
        # The worker was told to keep the process.
        self._kept = False

    def begin(self, run: executor_pb2.ExecutorRun) -> None:
        """Notes that a run has begun."""
        self._run = executor_pb2.AttemptRef(task_id=run.task_id, attempt=run.attempt)
        self.priority = run.priority

    def end(self) -> None:
        """Notes that the run has ended."""
        with self._lock:
            if self._waits:
                self._waits = 0
                self._seceded.clear()
                self._out.resume()
            self._run, self.priority = None, 0

    def _running(self) -> executor_pb2.AttemptRef | None:
        return self._run if threading.get_ident() == self._main else None

    def during(self, wait: Callable[[], T]) -> T:
        with self.awaiting():
            return wait()

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        run = self._running()
        if run is None:
            yield
            return
        self._leave(run)
        try:
            yield
        finally:
            self._return(run)

    def secede(self) -> bool:
        run, thread = self._of_run("secede"), threading.get_ident()
        with self._lock:
            if thread in self._seceded:
                return False
            self._leave(run)
            self._seceded.add(thread)
        self._out.flush()
        return True

    def rejoin(self) -> None:
        run, thread = self._of_run("rejoin"), threading.get_ident()
        with self._lock:
            if thread in self._seceded:
                self._return(run)
                self._seceded.discard(thread)

    def _of_run(self, what: str) -> executor_pb2.AttemptRef:
        run = self._run
        if run is None:
            raise ValueError(f"{what}() is for threads of a running task, and no task runs in this process")
        return run

    def keep_process(self) -> None:
        if not self._kept:
            self._kept = True
            self._out.needed()

    def _leave(self, run: executor_pb2.AttemptRef) -> None:
        """Notes that the run waits once more. The first wait gives the slot back."""
        with self._lock:
            if run is not self._run:
                return  # the run has ended
            self._waits += 1
            if self._waits > 1:
                return
            _slot.flush()
            if self._device_lock is not None:
                self._device_lock.unlock()
            self._out.block(run)

    def _return(self, run: executor_pb2.AttemptRef) -> None:
        """Notes that a wait has ended. After the last one, waits for a slot."""
        with self._lock:
            if run is not self._run:
                return  # the run has ended
            self._waits -= 1
            if self._waits:
                return
            if self._stopping.stopped:
                self._out.resume()
                return
            self._granted.clear()
            if self._out.resume(run):
                self._granted.wait()
            if self._device_lock is not None:
                self._device_lock.share()

    def granted(self, run: executor_pb2.AttemptRef) -> None:
        """Handles the worker's answer: a run may go on. Any thread may call this."""
        if run == self._run:
            self._granted.set()
