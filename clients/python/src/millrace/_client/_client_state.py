"""The client's methods and attributes that describe itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace import _check
from millrace._accepted import accept
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._cluster._scheduler_place import SchedulerPlace
from millrace._connection._event_loop import EventLoop
from millrace._session import _registry
from millrace._status import Status
from millrace.future import Future, future_of_state


class ClientState(ClientPart):
    """Describes a client: its number, its state, its futures and its event loop."""

    _loop: EventLoop

    #: Whether methods return coroutines: False for a Client, True for an AsyncClient.
    asynchronous = False

    @property
    def id(self) -> str:
        """Name of this client's lease in the cluster: "Client-7"."""
        return f"Client-{self.session.client_id}"

    @property
    def status(self) -> str:
        """ "running", "connecting" while the scheduler does not answer, or "closed"."""
        if self.session.closed:
            return "closed"
        return "connecting" if self.session.silent_since else "running"

    @property
    def scheduler(self) -> SchedulerPlace:
        """The scheduler's address and state: it is a process of its own, not an object."""
        session = self.session
        return SchedulerPlace(session.address, lambda: Status.closed if session.closed else Status.running)

    @property
    def futures(self) -> dict[Any, Future[Any]]:
        """The futures of this client, by key. This is a copy: it keeps their results."""
        return {f.key: f for f in (future_of_state(self.session, s) for s in self.session.held())}

    @property
    def refcount(self) -> dict[Any, int]:
        """How many futures of this client exist, by key."""
        return self.session.references()

    @property
    def loop(self) -> EventLoop:
        """An event loop in a thread of its own, for `sync` and for programs that use the loop of
        Dask's distributed. The client itself does not need it."""
        return self._loop

    def sync(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        asynchronous: bool | None = None,
        callback_timeout: Seconds | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a coroutine function in the client's event loop, waits, and returns its result.

        Args:
            func: the function. A result that is no coroutine is returned as it is.
            asynchronous: True: return the coroutine instead.
            callback_timeout: longest wait, in seconds, as a timedelta or as text ("5s").
            args, kwargs: arguments of the function.
        """
        limit = _check.longest(callback_timeout, "callback_timeout")
        return self._loop.call(func, args, kwargs, asynchronous, limit)

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Makes this the client that `get_client` and unpickled futures use in the with block, in
        this thread or asyncio task."""
        with _registry.current(self):
            yield

    def write_scheduler_file(self, scheduler_file: str | os.PathLike[str]) -> None:
        """Writes a file with the address and the token of the cluster. Other clients and workers
        take it as `scheduler_file`. Only this user can read it."""
        session = self.session
        info = {
            "address": session.address,
            "token": session.connection.token,
            "http": session.cluster.http_address,
            "id": session.cluster.cluster_id,
        }
        path = Path(scheduler_file)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            json.dump(info, out, indent=2)

    def start(self, **kwargs: Any) -> None:
        """Does nothing: a client is open once it is made."""
        for name, value in kwargs.items():
            accept("start", name, value, "a client is open once it is made")

    @property
    def amm(self) -> Any:
        """Not there: see the error's message."""
        raise AttributeError(
            "amm: there is no memory manager to start or stop: workers free copies that nobody reads, "
            "drain_workers() moves results away from workers, and rebalance() evens them out"
        )


#: Arguments of distributed's Client that need no setting, with the reason.
_NEEDLESS = {
    "loop": "the client has threads of its own, and an AsyncClient uses the loop that it is opened in",
    "heartbeat_interval": "a lease is kept by the stream of updates; the scheduler gives its length",
    "direct_to_workers": "clients always exchange bulk data with the workers themselves",
    "connection_limit": "all calls to a process share one connection",
}
#: Serialisers that Millrace has, by the names of distributed.
_SERIALISERS = frozenset({"pickle", "dask", "msgpack", "cupy", "cuda", "error"})


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Checks those arguments of Client that only distributed has."""
    for name, why in _NEEDLESS.items():
        accept("Client", name, arguments.get(name), why)
    if arguments.get("security"):
        raise ValueError(
            "security: Millrace has no TLS: clients prove themselves by a token, Client(address, token=...), and "
            "bytes are encrypted by the network (docs/security.md)"
        )
    for name in ("serializers", "deserializers"):
        value = arguments.get(name)
        if value is not None:
            if "pickle" not in value or not set(value) <= _SERIALISERS:
                raise ValueError(
                    f"{name}: {value!r}: functions and other objects travel as pickles, arrays and plain values without: "
                    'give a list with "pickle", or leave it out'
                )
            accept("Client", name, value, "arrays and plain values have forms of their own, other objects are pickled")
    if arguments.get("extensions"):
        raise ValueError("extensions: the client takes no extensions: call it from your own class instead")


class AsyncClientState(AsyncPart):
    """The methods of `ClientState`."""

    asynchronous = True

    @property
    def id(self) -> str:
        """See `Client.id`."""
        return self.sync.id

    @property
    def scheduler(self) -> SchedulerPlace:
        """See `Client.scheduler`."""
        return self.sync.scheduler

    @property
    def futures(self) -> dict[Any, Future[Any]]:
        """See `Client.futures`."""
        return self.sync.futures

    @property
    def refcount(self) -> dict[Any, int]:
        """See `Client.refcount`."""
        return self.sync.refcount

    @property
    def loop(self) -> EventLoop:
        """The event loop that runs in this thread."""
        return EventLoop(asyncio.get_running_loop())

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """See `Client.as_current`."""
        with _registry.current(self.sync):
            yield

    write_scheduler_file = awaited(ClientState.write_scheduler_file)
    amm = ClientState.amm
