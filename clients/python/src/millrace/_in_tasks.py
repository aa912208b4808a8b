"""Functions for tasks that use their own cluster."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from millrace import _check
from millrace._check import Seconds
from millrace._connection import _slot
from millrace.client import Client, get_client
from millrace.executor._worker import Worker
from millrace.future import Future, listed

# Futures whose tasks run for their own sake, by id, until they have ended.
_kept: dict[int, Future[Any]] = {}


def get_worker() -> Worker:
    """Returns the worker whose task runs in this process. Attributes that are set on it stay for
    later tasks of the process.

    Raises:
        ValueError: this process belongs to no worker.
    """
    if _slot.worker is None:
        raise ValueError("get_worker() is for the function of a task, and this process runs none")
    return _slot.worker


def fire_and_forget(obj: Future[Any] | Iterable[Future[Any]]) -> None:
    """Lets tasks run to their end, even if their futures are released. Their client stays open.

    Args:
        obj: a future, or several.
    """
    for future in listed(obj):
        _kept[id(future)] = future
        future._session.when_done(future._state, partial(_kept.pop, id(future), None))


def local_client(*args: Any, **kwargs: Any) -> Any:
    """Is `worker_client`, by the name that it had in older versions of Dask's distributed."""
    warnings.warn("local_client has moved to worker_client", UserWarning, stacklevel=2)
    return worker_client(*args, **kwargs)


@contextlib.contextmanager
def worker_client(timeout: Seconds | None = None, separate_thread: bool = True) -> Iterator[Client]:
    """Gives a task a client of its cluster, and its slot to other tasks inside of the with block.

    Waits for tasks give the slot back by themselves: `get_client` is enough for them.

    Args:
        timeout: has no effect: the scheduler of a running task is there. Kept for programs that
            were written for Dask's distributed.
        separate_thread: give the slot back.

    Raises:
        ValueError: no task runs in this process.
    """
    _check.longest(timeout)
    slot = _slot.of_task("worker_client")
    seceded = separate_thread and slot.secede()
    try:
        yield get_client()
    finally:
        if seceded:
            slot.rejoin()
