"""Actors: objects that live in a process of their own on one worker.

An actor is a task that gives its slot back, makes the object, and answers calls until nobody refers
to it any more. A call is a task, too: it runs on the same worker, and hands the call over through a
local socket. Each call has the one before it as an input, so the calls of one handle run in their
order. So other languages see actors and calls as tasks, and all rules of tasks hold for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pickle
import random
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Client as Connect
from multiprocessing.connection import Listener
from typing import Any, TypeAlias

import cloudpickle

from millrace import _check, errors
from millrace._connection import _slot
from millrace._connection._steps import run
from millrace._pb.millrace.v1 import worker_pb2
from millrace._session import _registry
from millrace._session._session import Session
from millrace._tasks._task_maker import TaskMaker
from millrace._tasks._task_options import TaskOptions
from millrace._values import _keys
from millrace._values._keys import UserKey
from millrace.executor import get_task_info
from millrace.future import Future, future_of_state

#: Seconds between two attempts to reach an actor that is being made.
_PAUSE = 0.01


class ActorLostError(errors.MillraceError):
    """The process of an actor has died, and the object with it."""

    reason = "ACTOR_LOST"


@dataclass(frozen=True)
class _Place:
    """The place of an actor: its worker, and the socket that it listens on."""

    #: Name of the local socket, and the key that callers must have.
    name: str
    secret: bytes
    #: Name of the worker, and the address of its data port.
    worker: str
    address: str
    #: The class, for the names of its methods.
    cls: type
    #: Key of the task whose result is the actor, on the wire.
    key: str

    @property
    def socket(self) -> str:
        # In Linux's abstract namespace: no file is left behind.
        return f"\0millrace-actor-{self.name}"


@dataclass(frozen=True)
class _Outcome:
    """The end of a call: the value that it returned, or the exception that it raised. A call that
    raises is no failed task: the calls after it have it as an input."""

    value: Any = None
    error: BaseException | None = None


#: A pickled future: a function that makes it again, and its arguments. The future itself would be
#: taken for an input.
_Pickled: TypeAlias = "tuple[Callable[..., Future[Any]], tuple[Any, ...]]"


# ---- in the actor's process ----------------------------------------------------------------------


def _live(place: _Place, args: tuple[Any, ...], kwargs: dict[str, Any], restart: bool) -> None:
    """The task of an actor: makes the object and answers calls until the task is stopped."""
    info = get_task_info()
    if info is not None and info.attempt > 1 and not restart:
        raise ActorLostError(
            f"the process of the actor {place.cls.__name__} on worker {place.worker} died, and its state is lost; "
            'submit(..., actor="restart") makes the object again'
        )
    made = place.cls(*args, **kwargs)
    _slot.secede()
    with Listener(place.socket, "AF_UNIX", backlog=128, authkey=place.secret) as listener:
        while True:
            # A caller may end at any time.
            with contextlib.suppress(EOFError, OSError, pickle.PickleError), listener.accept() as caller:
                caller.send_bytes(_answer(made, caller.recv_bytes()))


def _answer(made: Any, request: bytes) -> bytes:
    try:
        method, args, kwargs = pickle.loads(request)
        found = getattr(made, method)
        value = found(*args, **kwargs) if args is not None else found
        return cloudpickle.dumps(_Outcome(value), protocol=5)
    except Exception as e:
        try:
            return cloudpickle.dumps(_Outcome(error=e), protocol=5)
        except Exception:
            return cloudpickle.dumps(_Outcome(error=errors.RemoteError(f"{type(e).__name__}: {e}")), protocol=5)


# ---- in the processes of calls -------------------------------------------------------------------


def _reach(place: _Place, host: Future[Any]) -> Any:
    """Connects to an actor, as soon as it is there."""
    while True:
        if host.done():
            raise host.exception() or ActorLostError(f"the actor {place.cls.__name__} has ended")
        try:
            return Connect(place.socket, "AF_UNIX", authkey=place.secret)
        except (ConnectionError, FileNotFoundError):
            _slot.during(partial(host._session.wait, [host._state], _PAUSE))


def _ready(place: _Place, host: _Pickled) -> Actor:
    """The task whose result is the actor."""
    future = host[0](*host[1])
    _reach(place, future).close()
    return Actor._around(place, future)


def _call(place: _Place, host: _Pickled, method: str, args: Any, kwargs: Any, _before: Any) -> _Outcome:
    """The task of a call. Without arguments (None) it is the value of an attribute."""
    try:
        with _reach(place, host[0](*host[1])) as actor:
            actor.send_bytes(cloudpickle.dumps((method, args, kwargs), protocol=5))
            try:
                return pickle.loads(_slot.during(actor.recv_bytes))
            except (EOFError, ConnectionError) as e:
                raise ActorLostError(
                    f"the actor {place.cls.__name__} on worker {place.worker} ended in the middle of {method}"
                ) from e
    except Exception as e:
        return _Outcome(error=e)


# ---- where actors are used -----------------------------------------------------------------------


class ActorFuture:
    """The result of a call of an actor's method."""

    def __init__(self, outcome: Future[_Outcome]) -> None:
        self._outcome = outcome

    @property
    def key(self) -> Any:
        """Key of the call's task."""
        return self._outcome.key

    @property
    def status(self) -> str:
        """State of the call, as of a Future."""
        return self._outcome.status

    def done(self) -> bool:
        """Returns whether the call has ended."""
        return self._outcome.done()

    def result(self, timeout: Any = None) -> Any:
        """Waits for the result, or raises what the method raised."""
        return _value(self._waited(timeout))

    def exception(self, timeout: Any = None) -> BaseException | None:
        """Waits for the end, and returns what the method raised; None if it returned."""
        return self._waited(timeout).error

    def _waited(self, timeout: Any) -> _Outcome:
        # In the caller's thread, also for a future of an AsyncClient.
        return run(self._outcome._fetched(_check.longest(timeout)))

    def __await__(self) -> Generator[Any, None, Any]:
        return _value((yield from self._outcome.__await__()))

    def __repr__(self) -> str:
        return f"<ActorFuture: {self.status}, key: {self.key}>"


def _value(outcome: _Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


class Actor:
    """An object that lives on a worker. Its methods return ActorFutures, and run one after the
    other. Its other attributes are fetched when they are read.

    `submit(..., actor=True)` makes the object, and the result of its future is an Actor. The
    constructor makes a further Actor of an object that exists.

    `key` is the key of the future that the actor is the result of. `address` and `worker` are the
    address and the name of its worker, unless the object has attributes of these names itself.

    It can be pickled, as an argument or a result. The object lives until no Actor refers to it, and
    no future of it is left.

    Args:
        cls: class of the object.
        address: address of its worker; None: not checked.
        key: key of the future that the actor is the result of.
        worker: name of the worker; None: not checked.

    Raises:
        ValueError: the result of this key is no actor of this class at this place.
    """

    _place: _Place
    _host: Future[Any]

    def __init__(self, cls: type, address: str | None, key: UserKey, worker: str | None = None) -> None:
        session = _registry.default_session()
        (found,) = run(session.fetch([session.hold(_keys.to_wire(key))], None))
        asked = (cls, address, worker)
        if not isinstance(found, Actor) or any(
            a is not None and a != b
            for a, b in zip(asked, (found._place.cls, found._address, found._worker), strict=True)
        ):
            raise ValueError(
                f"{key!r} is {found!r}, and no actor of {cls.__name__}" + (f" at {address}" if address else "")
            )
        self._refer(found._place, found._host)

    def _refer(self, place: _Place, host: Future[Any]) -> None:
        self._place, self._host = place, host
        self._last: Future[_Outcome] | None = None

    @classmethod
    def _around(cls, place: _Place, host: Future[Any]) -> Actor:
        actor = object.__new__(cls)
        actor._refer(place, host)
        return actor

    @property
    def key(self) -> Any:
        """Key of the future that the actor is the result of."""
        return _keys.from_wire(self._place.key)

    @property
    def _address(self) -> str:
        return self._place.address

    @property
    def _worker(self) -> str:
        return self._place.worker

    def __repr__(self) -> str:
        return f"<Actor: {self._place.cls.__name__} on {self._place.worker}, key: {self.key}>"

    def __reduce__(self) -> Any:
        return Actor._made, (self._place, self._host.__reduce__())

    @staticmethod
    def _made(place: _Place, host: _Pickled) -> Actor:
        return Actor._around(place, host[0](*host[1]))

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(n for n in dir(self._place.cls) if not n.startswith("_"))})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = getattr(self._place.cls, name, None)
        if callable(known):
            return partial(self._submit, name)
        if known is None and name not in dir(self._place.cls) and self._host.done():
            raise self._host.exception() or AttributeError(name)
        try:
            return self._submit_call(name, None, None).result()
        except AttributeError:
            if name not in ("address", "worker"):
                raise
            return self._address if name == "address" else self._worker

    def _submit(self, method: str, /, *args: Any, **kwargs: Any) -> ActorFuture:
        return self._submit_call(method, args, kwargs)

    def _submit_call(self, method: str, args: Any, kwargs: Any) -> ActorFuture:
        host = self._host
        options = TaskOptions(workers=[self._place.worker])
        call = (self._place, host.__reduce__(), method, args, kwargs, self._last)
        name = f"{self._place.cls.__name__}.{method}-{uuid.uuid4().hex}"
        self._last = _submit(host._session, _call, call, name, options)
        return ActorFuture(self._last)


def _submit(session: Session, function: Any, args: tuple[Any, ...], key: UserKey, options: TaskOptions) -> Future[Any]:
    spec, state = TaskMaker(session).spec(function, args, {}, key, False, options.pack(), None)
    if spec is not None:  # else the key is taken, and the state has the error
        session.submit([spec])
    return future_of_state(session, state)


def map_actors(
    session: Session,
    cls: Any,
    calls: Iterable[tuple[tuple[Any, ...], UserKey | None]],
    kwargs: Mapping[str, Any],
    options: TaskOptions,
    *,
    restart: bool,
) -> list[Future[Any]]:
    """Makes an actor for each of several tuples of arguments, which come with their keys. Workers
    take turns, those with the fewest tasks first."""
    workers = itertools.cycle(_fitting(session, cls, options))
    return [
        _made(session, cls, args, kwargs, options, restart, key, worker)
        for (args, key), worker in zip(calls, workers, strict=False)
    ]


def submit_actor(
    session: Session,
    cls: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: TaskOptions,
    *,
    restart: bool,
    key: UserKey | None = None,
) -> Future[Any]:
    """Makes an actor, and returns the future of its Actor. It lives on one of the workers that the
    options allow."""
    return _made(session, cls, args, kwargs, options, restart, key, _fitting(session, cls, options)[0])


def _fitting(session: Session, cls: Any, options: TaskOptions) -> list[worker_pb2.Worker]:
    """Returns the workers that options allow for an actor, those with the fewest tasks first."""
    if not isinstance(cls, type):
        raise TypeError(f"actor=True is for a class, not {cls!r}")
    here = [w for w in session.listed_workers() if w.state == worker_pb2.WORKER_STATE_ACTIVE]
    asked = [options.workers] if isinstance(options.workers, str) else options.workers
    fit = [w for w in here if asked is None or w.name in asked or w.host in asked or str(w.worker_id) in asked]
    if not fit:
        raise errors.NoWorkerFitsError(
            f"no worker is there for the actor {cls.__name__}; wait_for_workers() waits for one"
        )
    return sorted(fit, key=lambda w: (w.assigned_tasks, random.random()))


def _made(
    session: Session,
    cls: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: TaskOptions,
    restart: bool,
    key: UserKey | None,
    worker: worker_pb2.Worker,
) -> Future[Any]:
    name = uuid.uuid4().hex
    own: UserKey = f"{cls.__name__}-{name}" if key is None else key
    place = _Place(name, os.urandom(32), worker.name, worker.data_address, cls, _keys.to_wire(own))
    options = dataclasses.replace(options, workers=[worker.name])
    host = _submit(session, _live, (place, args, dict(kwargs), restart), f"{cls.__name__}-actor-{name}", options)
    # Flushed by __reduce__: the reader must find the actor's task.
    future = _submit(session, _ready, (place, host.__reduce__()), own, TaskOptions(workers=[worker.name]))
    future._state.kept = host  # until the result holds it
    return future
