"""Runs callbacks, and has the thread for those that may block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue

_log = logging.getLogger("millrace")


def run(calls: Iterable[Callable[[], object]]) -> None:
    """Makes these calls in order. An exception of one is logged, and the next one is made."""
    for call in calls:
        try:
            call()
        except Exception:  # a user's callback must not end the thread that it runs on
            _log.exception("a callback of a future failed")


class CallbackThread:
    """A thread that makes calls one after the other. It starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # None ends the thread.
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        # Guarded by _lock.
        self._thread: threading.Thread | None = None
        self._ended = False

    def soon(self, call: Callable[[], object]) -> None:
        """Queues a call for the thread. After `end`, makes the call here, before it returns."""
        with self._lock:
            if not self._ended:
                self._calls.put(call)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="millrace-callbacks", daemon=True)
                    self._thread.start()
                return
        run([call])

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            run([call])

    def end(self, timeout: float) -> None:
        """Ends the thread after the queued calls. Waits at most `timeout` seconds for that, and not
        at all if the thread itself calls this."""
        with self._lock:
            self._ended = True
            self._calls.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
