"""The open clients of this process.

A future that is unpickled finds its session here, and so does `get_client`. This module knows
clients only as objects with a session.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import Protocol

from millrace import _address, errors
from millrace._session import Session


class Registered(Protocol):
    """A client, as far as this module knows it."""

    @property
    def session(self) -> Session: ...


_lock = threading.Lock()
# Open clients, the most recently opened one last. Guarded by _lock.
_open: list[weakref.ref[Registered]] = []
# Sessions that were opened for futures inside of a task's arguments, by namespace. They stay open
# until the process ends. Guarded by _lock.
_kept: dict[str, Session] = {}


def add(client: Registered) -> None:
    """Registers a client that was opened. It is forgotten when it is closed or freed."""
    with _lock:
        _open.append(weakref.ref(client))


def opened() -> list[Registered]:
    """Returns the open clients, the most recently opened one first."""
    with _lock:
        alive = [(r, c) for r in _open if (c := r()) is not None and (not c.session.closed or c.session.forked)]
        _open[:] = [r for r, _ in alive]
    return [c for _, c in reversed(alive)]


def kept() -> list[Session]:
    """Returns the open sessions that no client has opened."""
    with _lock:
        return [s for s in _kept.values() if not s.closed]


def session_of(life: int, namespace: str) -> Session:
    """Returns the session of a future that was pickled in another process, for its scheduler
    process (`life`) and namespace. Inside a task without such a client, it opens a session with the
    worker's cluster."""
    others = False
    for session in [*(c.session for c in opened()), *kept()]:
        if session.forked:
            session.check_open()
        if session.life == life and session.namespace == namespace:
            return session
        others = True
    where = _address.find(None, None, None) if os.environ.get("MILLRACE_ADDRESS") else None
    if where is None:
        if others:
            raise errors.NotFoundError(
                f"the future is of a cluster, or of a namespace ({namespace}), that no client in this process has joined: open "
                "a client there first"
            )
        raise ValueError("there is no client in this process: open one with millrace.Client(...)")
    session = Session(*where, name="", namespace=namespace, timeout=30.0, shared_memory=True)
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
