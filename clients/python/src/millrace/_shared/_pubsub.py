"""Pub and Sub, by which programs for Dask's distributed use topics."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

from millrace import _check
from millrace._accepted import accept
from millrace._calls._coordination import ask, restored
from millrace._calls._topics import PRIVATE, last, publish
from millrace._check import Seconds
from millrace._connection._steps import Steps, drive, run
from millrace._pb.millrace.v1 import coordination_pb2
from millrace._session._session import Session
from millrace._shared._shared import Shared
from millrace.client import AsyncClient, Client

_log = logging.getLogger("millrace")


#: The reason why `worker` has no effect.
_WORKER = "messages go through the scheduler, by the client"


class Sub(Shared):
    """Reads the messages that are put into a name from now on, oldest first.

    A reader that falls behind by more than 10,000 messages or 16 MiB misses the oldest ones, and
    the log says how many.

    Args:
        name: the name that publishers use.
        worker: a parameter of Dask's distributed that has no effect.
        client: default: that of `get_client`.
    """

    def __init__(self, name: str, worker: Any = None, client: Client | AsyncClient | None = None) -> None:
        super().__init__("Sub", name, client)
        accept("Sub", "worker", worker, _WORKER)
        self._topic = PRIVATE + self._wire
        session = self._session
        self._after, self._life = last(session, self._topic), session.life
        self._ahead: list[Any] = []  # messages that have arrived

    def get(self, timeout: Seconds | None = None) -> Any:
        """Returns the next message, and waits for it.

        Raises:
            TimeoutError: the timeout has passed.
        """
        limit = _check.longest(timeout)
        return self._do(lambda session: self._next(session, limit))

    next = get

    def _next(self, session: Session, limit: float | None) -> Steps[Any]:
        if not self._ahead:
            self._ahead = yield from self._read(session, limit)
            if not self._ahead:
                raise TimeoutError(f"nothing was put into {self.name} within {limit:g} s")
        return self._ahead.pop(0)

    def _read(self, session: Session, limit: float | None) -> Steps[list[Any]]:
        if session.life != self._life:
            self._after, self._life = 0, session.life  # the scheduler was started anew
        request = coordination_pb2.GetTopicRequest(name=self._topic, after=self._after)
        answer = yield from ask(session, "GetTopic", request, limit)
        if answer.missed:
            _log.warning("a reader of %s was too slow and missed %d messages", self.name, answer.missed)
        self._after = answer.number
        return [restored(session, m.value) for m in answer.messages]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return run(self._next(self._session, None))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        session = self._session
        return await drive(self._next(session, None), session.pool)


class Pub(Shared):
    """Puts messages into a name, for all readers (Sub) of that name.

    Args:
        name: the name that readers use.
        worker: a parameter of Dask's distributed that has no effect.
        client: default: that of `get_client`.
    """

    def __init__(self, name: str, worker: Any = None, client: Client | AsyncClient | None = None) -> None:
        super().__init__("Pub", name, client)
        accept("Pub", "worker", worker, _WORKER)

    def put(self, msg: Any) -> None:
        """Puts a message: any object of at most 1 MiB when pickled."""

        def steps(session: Session) -> Steps[None]:
            yield from ()
            publish(session, PRIVATE + self._wire, msg)

        return self._do(steps)
