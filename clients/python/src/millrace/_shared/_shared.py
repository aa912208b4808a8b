"""The base of the classes that programs share under a name: locks, queues, variables and others."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from millrace import _check
from millrace._accepted import accept
from millrace._connection._steps import Steps, serve
from millrace._session import _registry
from millrace._session._session import Session
from millrace._values import _keys
from millrace.client import AsyncClient, Client, get_client

R = TypeVar("R")


class Shared:
    """Something with a name that the scheduler keeps.

    Methods that wait return coroutines if the client is an AsyncClient and an event loop runs.
    """

    name: Any

    def __init__(self, kind: str, name: Any, client: Client | AsyncClient | None) -> None:
        if client is not None and not isinstance(client, (Client, AsyncClient)):
            raise TypeError(f"{kind}: client must be a millrace.Client or AsyncClient, not {client!r}")
        if name is None:
            name = f"{kind.lower()}-{uuid.uuid4().hex}"
        # The name as the scheduler knows it.
        self._wire = _keys.to_wire(tuple(name) if isinstance(name, list) else name, f"{kind}: name")
        if not name and isinstance(name, (str, bytes)):
            raise ValueError(f"{kind}: name is empty: give a text, or None for a random name")
        _check.text(self._wire, f"{kind}: name", 256)
        self.name = name
        self._client = client

    @property
    def client(self) -> Client | AsyncClient | None:
        """The client that was given, else that of `get_client` at the first use; None if there is
        no client yet."""
        if self._client is None:
            with contextlib.suppress(ValueError):
                self._client = get_client()
        return self._client

    @property
    def _session(self) -> Session:
        client = self.client
        if client is None:
            raise RuntimeError(f"{self!r} is not properly initialized: {_registry.no_client()}")
        return (client.sync if isinstance(client, AsyncClient) else client).session

    def _do(self, steps: Callable[[Session], Steps[R]]) -> R:
        """Runs an operation, or returns its coroutine."""
        session = self._session
        return serve(steps(session), session.pool, session.asynchronous)

    def _call(self, method: str, request: Any, *, timeout: float | None = None) -> Steps[Any]:
        """Makes a call that does not wait."""
        session = self._session
        request.client_id = session.client_id
        yield from ()
        return session.call(method, request, timeout=timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"


def refuse_rpc(kind: str, scheduler_rpc: Any, loop: Any) -> None:
    """Says why parameters of Dask's distributed have no effect."""
    accept(kind, "scheduler_rpc", scheduler_rpc, "the object uses the connection of its client: give client=")
    accept(kind, "loop", loop, "the object waits in the loop that calls it")
