"""The slot of the running task, which it gives back while it waits for other tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from millrace._connection import _slot
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace.executor._failure import TaskStopped
from millrace.executor._memory import DeviceLock
from millrace.executor._outbox import Outbox

T = TypeVar("T")


class RunSlot:
    """Tells the worker that the run of the main thread waits, and waits until it may go on.

    All methods but `granted` belong to the main thread. A wait in another thread of a task keeps
    the slot, because the main thread may be computing.

    Args:
        out: messages to the worker.
        device_lock: the lock of the processes that share a GPU: a run that waits does not hold it;
            None if there is none.
    """

    def __init__(self, out: Outbox, device_lock: DeviceLock | None) -> None:
        self._out, self._device_lock = out, device_lock
        #: Priority of the run's task; 0 if there is no run.
        self.priority = 0
        self._main = threading.main_thread().ident
        # The run; None: there is none.
        self._run: executor_pb2.AttemptRef | None = None
        # How many waits the run is inside of; more than one if a signal handler or a destructor
        # waits inside of a wait.
        self._depth = 0
        # The run has given its slot back by itself.
        self._seceded = False
        self._granted = threading.Event()
        # The worker was told to keep the process.
        self._kept = False

    def begin(self, run: executor_pb2.ExecutorRun) -> None:
        """Notes that a run has begun."""
        self._run = executor_pb2.AttemptRef(task_id=run.task_id, attempt=run.attempt)
        self.priority = run.priority

    def end(self) -> None:
        """Notes that the run has ended."""
        if self._seceded:
            self._seceded = False
            self._out.resume()
        self._run, self._depth, self.priority = None, 0, 0

    def _running(self) -> executor_pb2.AttemptRef | None:
        return self._run if threading.get_ident() == self._main else None

    def during(self, wait: Callable[[], T]) -> T:
        run = self._running()
        if run is None or self._seceded or self._depth:
            return wait()
        self._depth += 1
        self._block(run)
        try:
            value = wait()
        except TaskStopped:
            self._out.resume()  # no slot is needed: the run ends
            raise
        except BaseException:
            self._resume(run)
            raise
        finally:
            self._depth -= 1
        self._resume(run)
        return value

    def secede(self) -> None:
        run = self._running()
        if run is None:
            raise ValueError("secede() is for the thread in which the function of a task runs")
        if not self._seceded:
            self._seceded = True
            self._block(run)
            self._out.flush()

    def rejoin(self) -> None:
        run = self._running()
        if run is None:
            raise ValueError("rejoin() is for the thread in which the function of a task runs")
        if self._seceded:
            self._resume(run)
            self._seceded = False

    def keep_process(self) -> None:
        if not self._kept:
            self._kept = True
            self._out.needed()

    def _block(self, run: executor_pb2.AttemptRef) -> None:
        _slot.flush()
        if self._device_lock is not None:
            self._device_lock.unlock()
        self._out.block(run)

    def _resume(self, run: executor_pb2.AttemptRef) -> None:
        self._granted.clear()
        if self._out.resume(run):
            self._granted.wait()
        if self._device_lock is not None:
            self._device_lock.share()

    def granted(self, run: executor_pb2.AttemptRef) -> None:
        """Handles the worker's answer: a run may go on. Any thread may call this."""
        if run == self._run:
            self._granted.set()
