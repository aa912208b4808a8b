"""Large constants of tasks. They are stored on workers like scattered data, and are inputs of the
tasks: the scheduler never has their bytes, and each is sent once."""

from __future__ import annotations

from functools import partial
from typing import Any

from millrace._connection._steps import Steps, in_loop, run
from millrace._session._session import Session
from millrace._task_states._state import Spec, State
from millrace._tasks._arguments import adopt, size_of
from millrace._tasks._scatter import Scatter, data_task, encode
from millrace._tasks._task_maker import TaskMaker
from millrace._values import _serialize
from millrace.future import Future, pickled_futures

#: Longest wait for a worker that takes the constants, in seconds.
_PLACE_SECONDS = 30.0


class Constants:
    """The constants and futures in the tasks of one submission."""

    def __init__(self, session: Session, maker: TaskMaker) -> None:
        self._session, self._maker = session, maker
        # Wire keys by the id of the object. The objects are kept, so that no id is used again.
        self._stored: dict[int, tuple[str, Any]] = {}
        # Stored objects that this client has not stored before.
        self._fresh: list[tuple[Spec, _serialize.Encoded]] = []
        #: Futures of the stored objects, and others that must live until the tasks are submitted.
        self.kept: dict[str, Future[Any]] = {}

    def adopted(self, future: Future[Any]) -> str:
        """Returns the wire key of a future, which may be of another client."""
        if future._session is self._session:
            self.kept[future._state.key] = future
            return future._state.key
        own = adopt(self._session, future)
        self.kept[own._state.key] = own
        return own._state.key

    def stored(self, value: Any, limit: int) -> str | None:
        """Returns the wire key of an object that is stored, or is an array or a byte string larger
        than this number of bytes; None for all others."""
        known = self._stored.get(id(value))
        if known is not None:
            return known[0]
        return self._store(value, encode(value)) if size_of(value) > limit else None

    def store_if_larger(self, value: Any, limit: int) -> bool:
        """Stores an object whose encoding is larger than this number of bytes. Returns whether it
        is stored. Objects with futures inside are not."""
        if id(value) in self._stored:
            return True
        with pickled_futures() as inside:
            encoded = encode(value)
        if inside or encoded.nbytes + len(encoded.header) <= limit:
            return False
        self._store(value, encoded)
        return True

    def _store(self, value: Any, encoded: _serialize.Encoded) -> str:
        future, spec = data_task(self._session, self._maker, value, encoded, None, hashed=True)
        wire = future._state.key
        self._stored[id(value)] = wire, value
        if wire in self.kept:
            return wire
        self.kept[wire] = future
        if spec is not None:
            self._fresh.append((spec, encoded))
        return wire

    @property
    def specs(self) -> list[Spec]:
        """The tasks that stand for the stored objects."""
        return [spec for spec, _ in self._fresh]

    @property
    def later(self) -> bool:
        """Whether the caller must not wait: its thread runs the event loop of an AsyncClient."""
        return self._session.asynchronous and in_loop()

    def submit(self, specs: list[Spec]) -> None:
        """Submits tasks that need the objects. Returns when workers have their bytes; in an event
        loop at once, and the tasks fail if the objects cannot be stored."""
        if not self.later:
            self.put()
            self._session.submit(specs)
            return
        self._session.submit([*self.specs, *specs])
        if self._fresh:
            states = [s.state for s in (*self.specs, *specs) if s.state is not None]
            self._session.pool.submit(partial(self._put_later, states))

    def _put_later(self, states: list[State]) -> None:
        try:
            self._session.flush()
            run(self.write())
        except BaseException as e:
            self._session.forget([s for s in states if not s.done], e)

    def put(self) -> None:
        """Stores the objects: returns when workers have their bytes."""
        if not self._fresh:
            return
        try:
            self._session.submit(self.specs, wait=True)
            run(self.write())
        except BaseException as e:
            self._session.abandon([s.state for s in self.specs if s.state is not None], e)
            raise

    def write(self) -> Steps[None]:
        """Sends the bytes of the objects to workers. REQUIRES: their tasks are submitted."""
        # Another client may have stored equal data already.
        todo = [(s.state, e) for s, e in self._fresh if s.state is not None and not s.state.done]
        if todo:
            place = Scatter(
                self._session, self._maker, workers=None, broadcast=False, by_hash=True, timeout=_PLACE_SECONDS
            )
            yield from self._session.scatter([s for s, _ in todo], [e for _, e in todo], place.targets)
        self._fresh = []
