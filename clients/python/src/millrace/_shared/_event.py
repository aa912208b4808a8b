"""Events for all clients and tasks of a cluster."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from millrace import _check
from millrace._calls._coordination import ask
from millrace._check import Seconds
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import coordination_pb2
from millrace._session._session import Session
from millrace._shared._shared import Shared
from millrace.client import AsyncClient, Client


class Event(Shared):
    """A flag for which all clients and tasks of a cluster can wait. It is not set at first.

    Args:
        name: processes that give the same name share the event: text, bytes, a number, or a
            tuple of these. Default: a random name.
        client: default: that of `get_client` at the first use.
    """

    def __init__(self, name: Any = None, client: Client | AsyncClient | None = None) -> None:
        super().__init__("Event", name, client)

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Waits until the event is set, and returns True. Returns False if the timeout has
        passed."""
        limit = _check.longest(timeout)

        def steps(session: Session) -> Steps[bool]:
            request = coordination_pb2.GetEventRequest(name=self._wire)
            return (yield from ask(session, "GetEvent", request, limit)).set

        return self._do(steps)

    def set(self) -> None:
        """Sets the event. All waits end."""
        return self._do(lambda _: self._change(clear=False))

    def clear(self) -> None:
        """Clears the event: later waits last until it is set again."""
        return self._do(lambda _: self._change(clear=True))

    def _change(self, *, clear: bool) -> Steps[None]:
        yield from self._call("SetEvent", coordination_pb2.SetEventRequest(name=self._wire, clear=clear))

    def is_set(self) -> bool:
        """Returns whether the event is set."""

        def steps(_: Session) -> Steps[bool]:
            return (yield from self._call("GetEvent", coordination_pb2.GetEventRequest(name=self._wire))).set

        return self._do(steps)

    def __await__(self) -> Generator[Any, None, Event]:
        yield from ()
        return self

    def __reduce__(self) -> Any:
        return Event, (self.name,)
