"""The slot of the task that runs in this process.

A task that waits for other tasks gives its slot back meanwhile. The executor sets `current`; waits
of the client use it. This module knows neither of them, so that both can import it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Reschedule(Exception):
    """Raised by the function of a task, so that the task runs again: on another worker if there is
    one that may run it. It does not count as a retry."""


class Slot(Protocol):
    """The slot of a running task."""

    #: Priority of the task; 0 if none runs.
    priority: int

    def during(self, wait: Callable[[], T]) -> T:
        """Calls a function that waits for other tasks. Others run in the slot meanwhile."""
        ...

    def awaiting(self) -> contextlib.AbstractContextManager[object]:
        """Returns a context in which a coroutine of the task waits for other tasks. Others run in
        the slot meanwhile."""
        ...

    def secede(self) -> bool:
        """Gives the slot to others until `rejoin`, or until the task ends. Returns False if this
        thread has done so already."""
        ...

    def rejoin(self) -> None:
        """Waits until the task has a slot again."""
        ...

    def keep_process(self) -> None:
        """Tells the worker that this process must not end for being idle."""
        ...


class Submitting(Protocol):
    """A client, as far as this module knows it."""

    def flush(self) -> None: ...


#: The worker that the process belongs to; None: the process is no executor.
worker: Any = None
#: The clients of this process.
clients: weakref.WeakSet[Submitting] = weakref.WeakSet()
#: The slot of this process; None: the process is no executor.
current: Slot | None = None


def priority() -> int:
    """Returns the priority of the task that runs in this process; 0: none runs."""
    return 0 if current is None else current.priority


def during(wait: Callable[[], T]) -> T:
    """Calls a function that waits for other tasks. Inside of a task, other tasks run in its slot
    meanwhile."""
    return wait() if current is None else current.during(wait)


def awaiting() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which a coroutine waits for other tasks. Inside of a task, other tasks run
    in its slot meanwhile."""
    return _NOTHING if current is None else current.awaiting()


_NOTHING = contextlib.nullcontext()


def flush() -> None:
    """Waits until the scheduler has what the clients of this process have submitted. Then it can send
    these tasks to run in the slot of a task that waits for them."""
    for client in list(clients):
        with contextlib.suppress(Exception):  # the wait itself will fail
            client.flush()


def of_task(what: str) -> Slot:
    """Returns the slot of this process. Raises ValueError, which names the function `what`, if the
    process runs no tasks."""
    if current is None:
        raise ValueError(f"{what}() is for the function of a task, and this process runs none")
    return current


def secede() -> None:
    """Gives the slot of the running task to other tasks, until `rejoin` or the end of the task.

    A task that waits for other tasks need not call this: `result`, `gather`, `wait`, `as_completed`
    and `await` do so. It is for tasks that wait for something else for long, such as a user or
    another service, and for threads of a task: waits there keep the slot, because the task may
    compute meanwhile. Each thread that calls this must call `rejoin` before the task has its slot
    again.

    Raises:
        ValueError: no task runs in this process.
    """
    of_task("secede").secede()


def rejoin() -> None:
    """Ends `secede` in this thread, and waits until the running task has a slot again. It does not
    wait while other threads of the task have seceded.

    Raises:
        ValueError: no task runs in this process.
    """
    of_task("rejoin").rejoin()
