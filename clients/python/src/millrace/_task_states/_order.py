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
    not if one of them waits for the end of a task itself, and not for long if one is stuck.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed. The threads that handle something, and how many of them wait for
        # tasks. A thread looks for itself without the lock: no other one adds or removes it.
        self._handlers: set[int] = set()
        self._waiting = 0
        self._ended = False

    def step(self) -> None:
        """Tells those that wait that a handler has made progress."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Delays nothing any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def until(self, reached: Callable[[], bool], progress: Callable[[], int]) -> bool:
        """Waits until a handler has reached something. Returns False if it has given up.

        Args:
            reached: returns whether that is so.
            progress: returns a number that changes with each step of this handler.
        """
        with self._changed:
            while not reached():
                before = progress()
                free = self._changed.wait_for(
                    lambda: self._ended or self._waiting or reached() or progress() != before,  # noqa: B023
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
