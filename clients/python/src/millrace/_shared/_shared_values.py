"""Variables and queues for all clients and tasks of a cluster."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from millrace import _check, errors
from millrace._calls._coordination import acknowledge, ask, restored, stored
from millrace._check import Seconds
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import coordination_pb2
from millrace._session._session import Session
from millrace._shared._shared import Shared
from millrace.client import AsyncClient, Client

#: Most values of one call that takes from a queue.
_MOST_TAKEN = 10_000


class Variable(Shared):
    """A value with a name that all clients and tasks of a cluster can read and set.

    The value may be a future, or any object of at most 1 MiB, also with futures inside: their
    results are kept until another value replaces it. The variable exists until it is deleted or the
    scheduler ends.

    Args:
        name: processes that give the same name share the variable: text, bytes, a number, or a
            tuple of these. Default: a random name.
        client: default: that of `get_client` at the first use.
    """

    def __init__(self, name: Any = None, client: Client | AsyncClient | None = None) -> None:
        super().__init__("Variable", name, client)

    def set(self, value: Any, timeout: Seconds | None = "30 s") -> None:
        """Sets the value. `timeout`: the longest wait for the scheduler."""
        limit = _check.longest(timeout)

        def steps(session: Session) -> Steps[None]:
            packed, kept = stored(session, value, f"variable {self.name}")
            request = coordination_pb2.SetVariableRequest(name=self._wire, value=packed)
            yield from self._call("SetVariable", request, timeout=limit)
            del kept

        return self._do(steps)

    def get(self, timeout: Seconds | None = None) -> Any:
        """Returns the value, and waits until there is one.

        Raises:
            TimeoutError: the timeout has passed.
        """
        limit = _check.longest(timeout)

        def steps(session: Session) -> Steps[Any]:
            request = coordination_pb2.GetVariableRequest(name=self._wire)
            answer = yield from ask(session, "GetVariable", request, limit)
            if not answer.found:
                raise TimeoutError(f"variable {self.name} got no value within {limit:g} s: somebody must set() it")
            value = restored(session, answer.value)
            if answer.value.keys:
                acknowledge(session, request)
            return value

        return self._do(steps)

    def delete(self) -> None:
        """Forgets the value, for all clients."""

        def steps(_: Session) -> Steps[None]:
            yield from self._call("DeleteVariable", coordination_pb2.DeleteVariableRequest(name=self._wire))

        return self._do(steps)

    def __reduce__(self) -> Any:
        return Variable, (self.name,)


class Queue(Shared):
    """A queue of values for all clients and tasks of a cluster.

    A value may be a future, or any object of at most 1 MiB, also with futures inside: their results
    are kept while it is in the queue. The queue exists until it is empty and all clients that have
    used it are closed.

    Args:
        name: processes that give the same name share the queue: text, bytes, a number, or a
            tuple of these. Default: a random name.
        client: default: that of `get_client` at the first use.
        maxsize: largest number of values; 0: without a limit. The first number that somebody gives
            counts.
    """

    def __init__(self, name: Any = None, client: Client | AsyncClient | None = None, maxsize: int = 0) -> None:
        super().__init__("Queue", name, client)
        self.maxsize = _check.integer(maxsize, "maxsize", 0, (1 << 32) - 1)
        if client is not None and not isinstance(client, AsyncClient):
            self._open()

    def _open(self) -> None:
        """Makes the queue, so that its size holds for others from now on."""
        session = self._session
        session.call(
            "OpenQueue",
            coordination_pb2.OpenQueueRequest(client_id=session.client_id, name=self._wire, max_size=self.maxsize),
        )

    def put(self, value: Any, timeout: Seconds | None = None) -> None:
        """Appends a value, and waits until there is room.

        Raises:
            TimeoutError: the timeout has passed, and the queue is full.
        """
        limit = _check.longest(timeout)

        def steps(session: Session) -> Steps[None]:
            packed, kept = stored(session, value, f"queue {self.name}")
            request = coordination_pb2.PutInQueueRequest(name=self._wire, max_size=self.maxsize, value=packed)
            answer = yield from ask(session, "PutInQueue", request, limit)
            del kept
            if not answer.done:
                raise TimeoutError(f"queue {self.name} had no room within {limit:g} s: somebody must get() from it")

        return self._do(steps)

    def get(self, timeout: Seconds | None = None, batch: bool | int = False) -> Any:
        """Takes a value, and waits until there is one.

        Args:
            timeout: longest wait.
            batch: True: returns all values that are there, as a list, without a wait. A number:
                waits for that many, and returns them as a list; then there can be no timeout.

        Raises:
            TimeoutError: the timeout has passed.
        """
        limit = _check.longest(timeout)
        if batch is False:
            return self._do(lambda session: self._get_one(session, limit))
        if batch is True:
            return self._do(self._get_all)
        count = _check.integer(batch, "batch", 1, 1 << 32)
        if limit is not None:
            raise NotImplementedError(
                "batch: a number of values and a timeout exclude each other: take one value at a time"
            )
        return self._do(lambda session: self._get_some(session, count))

    def _get_one(self, session: Session, limit: float | None) -> Steps[Any]:
        taken = yield from self._take(session, 1, limit)
        if not taken:
            raise TimeoutError(f"queue {self.name} got no value within {limit:g} s: somebody must put() one")
        return taken[0]

    def _get_some(self, session: Session, count: int) -> Steps[list[Any]]:
        taken: list[Any] = []
        while len(taken) < count:
            taken += yield from self._take(session, count - len(taken), None)
        return taken

    def _get_all(self, session: Session) -> Steps[list[Any]]:
        taken: list[Any] = []
        while some := (yield from self._take(session, _MOST_TAKEN, 0.0)):
            taken += some
        return taken

    def _take(self, session: Session, most: int, limit: float | None) -> Steps[list[Any]]:
        request = coordination_pb2.TakeFromQueueRequest(name=self._wire, most=min(most, _MOST_TAKEN))
        answer = yield from ask(session, "TakeFromQueue", request, limit)
        values = [restored(session, value) for value in answer.values]
        if any(value.keys for value in answer.values):
            acknowledge(session, request)
        return values

    def qsize(self) -> int:
        """Returns the number of values in the queue."""

        def steps(_: Session) -> Steps[int]:
            return (yield from self._call("GetQueue", coordination_pb2.GetQueueRequest(name=self._wire))).size

        return self._do(steps)

    def close(self) -> None:
        """Says that this client needs the queue no more. After the last client that has used it, it is
        dropped with all values in it, and waits end with an error."""

        def steps(_: Session) -> Steps[None]:
            yield from self._call("CloseQueue", coordination_pb2.CloseQueueRequest(name=self._wire, leave=True))

        try:
            return self._do(steps)
        except errors.SchedulerLostError:
            return None  # the client is closed, and the queue goes with the last one

    def __await__(self) -> Generator[Any, None, Queue]:
        return self._opened().__await__()

    async def _opened(self) -> Queue:
        await self._session.pool.run(self._open)
        return self

    def __reduce__(self) -> Any:
        return Queue, (self.name, None, self.maxsize)
