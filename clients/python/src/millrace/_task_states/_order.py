"""The order in which the user sees what a task has written and published, and its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

#: The longest time without progress, in seconds, for which handlers delay the ends of tasks.
_STUCK = 3.0


class Order:
    """Delays the ends of tasks until handlers have handled what came before.

    The handlers run in threads of their own. The thread that receives the ends waits for them, but
    not if one of them waits for the end of a task itself, and not for long if they are stuck.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed. The number of steps that handlers have made; the threads that handle
        # something, and how many of them wait for tasks.
        self._steps = 0
        self._handlers: set[int] = set()
        self._waiting = 0
        self._ended = False

    def step(self) -> None:
        """Notes that a handler has made progress."""
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Delays nothing any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def until(self, reached: Callable[[], bool]) -> bool:
        """Waits until handlers have reached something. Returns False if it has given up."""
        with self._changed:
            while not reached():
                before = self._steps
                free = self._changed.wait_for(
                    lambda: self._ended or self._waiting or self._steps != before,  # noqa: B023
                    _STUCK,
                )
                if self._ended or self._waiting or not free:
                    return False
        return True

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Surrounds the work of a handler in its thread."""
        me = threading.get_ident()
        with self._changed:
            self._handlers.add(me)
        try:
            yield
        finally:
            with self._changed:
                self._handlers.discard(me)
                self._steps += 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Surrounds a wait for tasks in any thread."""
        handles = threading.get_ident() in self._handlers
        if handles:
            with self._changed:
                self._waiting += 1
                self._changed.notify_all()
        try:
            yield
        finally:
            if handles:
                with self._changed:
                    self._waiting -= 1
