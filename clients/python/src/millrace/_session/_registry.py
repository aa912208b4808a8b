"""The open clients of this process.

A future that is unpickled finds its session here, and so does `get_client`. This module knows
clients only as objects with a session.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

from millrace import _mode, errors
from millrace._connection import _address
from millrace._session._session import Session


class Registered(Protocol):
    """A client, as far as this module knows it."""

    @property
    def session(self) -> Session: ...


def no_client() -> str:
    """Returns the text of the error that there is no client."""
    if _mode.distributed:
        return (
            "No clients found\nStart a client and point it to the scheduler address\n  from distributed import Client\n"
            "  client = Client('ip-addr-of-scheduler:8786')"
        )
    return "there is no client in this process: open one with millrace.Client(...)"


def no_default() -> str:
    """Returns the text of the error that no client is a default."""
    return (
        "no client of this process is the default one: all were opened with set_as_default=False. Pass the client, or "
        "use it in a block of `with client.as_current():`"
    )


_lock = threading.Lock()
# Open clients: those that are no default, then the others, the most recently opened one last.
# Guarded by _lock.
_open: list[weakref.ref[Registered]] = []
# Sessions that were opened for futures inside of a task's arguments, by namespace. They stay open
# until the process ends. Guarded by _lock.
_kept: dict[str, Session] = {}
# Clients that `get_client` has opened inside of tasks, by namespace. They stay open until the
# process ends. Guarded by _lock.
_of_tasks: dict[str, Registered] = {}


def task_namespace() -> str | None:
    """Returns the namespace of the task that runs in this process; None outside of a task."""
    executor = sys.modules.get("millrace.executor")
    info = None if executor is None else executor.get_task_info()
    return None if info is None else info.namespace


def add_of_task(client: Registered) -> None:
    """Registers a client for tasks of its namespace only: a process runs tasks of several."""
    with _lock:
        _of_tasks[client.session.namespace] = client


def add(client: Registered, *, default: bool = True) -> None:
    """Registers a client that was opened. It is forgotten when it is closed or freed. One that is
    no `default` is behind all others."""
    with _lock:
        _open.insert(len(_open) if default else 0, weakref.ref(client))


# The client of the innermost `current` of this thread or asyncio task.
_current: contextvars.ContextVar[Registered | None] = contextvars.ContextVar("millrace_client", default=None)


@contextlib.contextmanager
def current(client: Registered) -> Iterator[None]:
    """Puts a client first in the with block, in this thread or asyncio task."""
    token = _current.set(client)
    try:
        yield
    finally:
        try:
            _current.reset(token)
        except ValueError:  # a generator is ended elsewhere than it has begun
            if _mode.distributed:
                raise


def current_client() -> Registered | None:
    """Returns the client of the innermost `current`, if it is open."""
    client = _current.get()
    return None if client is None or client.session.closed else client


def opened() -> list[Registered]:
    """Returns the open clients: that of `current`, then the most recently opened one first, and last
    those that are no default. In a task, those that tasks of other namespaces have opened are left
    out."""
    with _lock:
        alive = [(r, c) for r in _open if (c := r()) is not None and (not c.session.closed or c.session.forked)]
        _open[:] = [r for r, _ in alive]
        foreign = list(_of_tasks.values())
    namespace, first = task_namespace(), current_client()
    others = [
        c
        for _, c in reversed(alive)
        if c is not first and (namespace in (None, c.session.namespace) or not any(c is f for f in foreign))
    ]
    return others if first is None else [first, *others]


def default_session() -> Session:
    """Returns the session of the client that `get_client` returns. Inside of a task without a client
    it opens one with the worker's cluster."""
    for session in [*(c.session for c in opened()), *kept()]:
        if session.forked:
            session.check_open()
        return session
    session = _of_worker(task_namespace() or "")
    if session is None:
        raise ValueError(no_client())
    with _lock:
        _kept[session.namespace] = session
    return session


def _of_worker(namespace: str) -> Session | None:
    """Opens a session with the cluster of the worker that this process belongs to; None if there is
    none."""
    where = _address.find(None, None, None) if os.environ.get("MILLRACE_ADDRESS") else None
    return None if where is None else Session(*where, name="", namespace=namespace, timeout=30.0, shared_memory=True)


def kept() -> list[Session]:
    """Returns the open sessions that no client has opened; in a task, that of its namespace."""
    namespace = task_namespace()
    with _lock:
        return [s for s in _kept.values() if not s.closed and namespace in (None, s.namespace)]


def session_of(life: int, namespace: str) -> Session:
    """Returns the session of a future that was pickled in another process, for its scheduler
    process (`life`) and namespace. Inside a task without such a client, it opens a session with the
    worker's cluster."""
    others = False
    with _lock:
        others_kept = [s for s in _kept.values() if not s.closed]
    for session in [*(c.session for c in opened()), *others_kept]:
        if session.forked:
            session.check_open()
        if session.life == life and session.namespace == namespace:
            return session
        others = True
    session = _of_worker(namespace)
    if session is None:
        if others:
            raise errors.NotFoundError(
                f"the future is of a cluster, or of a namespace ({namespace}), that no client in this process has joined: open "
                "a client there first"
            )
        raise ValueError(no_client())
    if session.life != life:
        session.close()
        raise errors.NotFoundError(
            "the future is of another cluster than this task, or of an earlier life of its scheduler"
        )
    with _lock:
        _kept[session.namespace] = session
    return session


def _close_all() -> None:
    """Closes all sessions when the interpreter exits. Otherwise the scheduler would run their tasks
    until the leases expire."""
    for session in [*(c.session for c in opened()), *kept()]:
        with contextlib.suppress(Exception):
            session.close(timeout=1.0)


atexit.register(_close_all)
