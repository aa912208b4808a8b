"""Stops of the running task."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType

from millrace.executor._failure import TaskStopped
from millrace.executor._link import ControlPage

# The methods of a condition that take or give back its lock, and a part of the path of the files of
# grpcio.
_LOCKING = frozenset(
    method.__code__
    for method in (
        threading.Condition.__enter__,
        threading.Condition.__exit__,
        threading.Condition.notify,
        threading.Condition.notify_all,
    )
)
_GRPC = f"{os.sep}grpc{os.sep}"


class Stopping:
    """Raises TaskStopped in the running task when the worker asks for it. The worker writes the
    ordinal of the run to the control page, then sends SIGINT. All methods belong to the main
    thread, in which Python runs signal handlers.

    Args:
        control: the control page.
        uninterrupted: the code of functions in whose calls no stop is raised.
    """

    def __init__(self, control: ControlPage, uninterrupted: frozenset[CodeType] = frozenset()) -> None:
        self._control, self._uninterrupted = control, uninterrupted
        # Ordinal of the run that may be stopped now; 0: none.
        self._ordinal = 0
        #: The run was stopped.
        self.stopped = False

    def begin(self, ordinal: int) -> None:
        """Allows stops of a run. Raises TaskStopped if the worker has asked for one already."""
        self._ordinal, self.stopped = ordinal, False
        if self._control.stop == ordinal:
            raise TaskStopped("the task was stopped before it began")

    def end(self) -> None:
        """Allows no stop any more."""
        self._ordinal = 0

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Allows no stop inside of the with block. A stop that was asked for meanwhile is raised at
        its end."""
        ordinal, self._ordinal = self._ordinal, 0
        yield
        self._ordinal = ordinal
        if ordinal and self._control.stop == ordinal:
            raise TaskStopped("the task was stopped")

    def on_signal(self, _signum: int, frame: FrameType | None) -> None:
        """The handler of SIGINT."""
        if not self._ordinal or self._control.stop != self._ordinal:
            return
        if self._is_busy(frame):
            # NB: only the low-level call is safe here: the main thread may hold a lock of
            # `threading`.
            _thread.start_new_thread(_interrupt_again, (threading.get_ident(),))
            return
        self._ordinal, self.stopped = 0, True
        raise TaskStopped("the task was stopped")

    def _is_busy(self, frame: FrameType | None) -> bool:
        """Returns whether a frame is within an import, within a call that no stop interrupts, or
        where grpcio takes or gives back a lock.

        An exception in an import would leave a package half imported: its submodules stay in
        `sys.modules` and the package does not, so that no later task of the process could import
        it. An exception behind the taking of the lock of a channel would leave it locked, so that
        all later calls of the process's client would wait for ever.
        """
        while frame is not None:
            code = frame.f_code
            if code in self._uninterrupted or code.co_filename.startswith("<frozen importlib"):
                return True
            if code in _LOCKING and frame.f_back is not None and _GRPC in frame.f_back.f_code.co_filename:
                return True
            frame = frame.f_back
        return False


def _interrupt_again(thread: int) -> None:
    """Sends SIGINT to a thread after 10 ms. The handler repeats this as long as the import or
    the call lasts; if the task does not stop within its grace period, the worker kills the process."""
    time.sleep(0.01)
    signal.pthread_kill(thread, signal.SIGINT)
