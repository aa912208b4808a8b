"""Threads for calls that block."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Most threads of a pool.
_MOST = 32
#: How long a thread waits for the next call before it ends, in seconds.
_IDLE_SECONDS = 10.0


class Pool:
    """Up to `most` threads. One is added for a call that finds all others busy, and ends when it
    was idle for 10 seconds. They are daemon threads: the end of the interpreter does not wait for
    calls, as it would with concurrent.futures.ThreadPoolExecutor."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        # Guards the attributes below. Notified when a call was added, and by `close`.
        self._changed = threading.Condition(threading.Lock())
        self._calls: collections.deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = collections.deque()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Makes a call in a thread. It can be cancelled until it has begun."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        with self._changed:
            self._calls.append((future, call))
            if len(self._calls) > self._idle and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name="millrace-pool", daemon=True).start()
            else:
                self._changed.notify()
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Makes a call in a thread, and waits for its end in the event loop."""
        return await asyncio.wrap_future(self.submit(call))

    def close(self) -> None:
        """Ends threads as soon as they are idle. Calls are still made."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as e:
                    future.set_exception(e)
            del item, future, call  # they may refer to results

    def _next(self) -> tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None:
        """Returns the next call; None if the thread ends."""
        with self._changed:
            while not self._calls:
                self._idle += 1
                called = not self._closed and self._changed.wait(_IDLE_SECONDS)
                self._idle -= 1
                if not called and not self._calls:
                    self._threads -= 1
                    return None
            return self._calls.popleft()
