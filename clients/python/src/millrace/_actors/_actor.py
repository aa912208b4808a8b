"""Actors: objects that live in a process of their own on one worker.

An actor is a task that gives its slot back, makes the object, and answers calls until nobody refers
to it any more. The scheduler places it like any other task. A call is a task, too: it runs on the
same worker, and hands the call over through a local socket. Each call has the one before it as an
input, so the calls of one handle run in their order. So other languages see actors and calls as
tasks, and all rules of tasks hold for them.

The task of an actor writes its place into a variable each time that it has made the object, and
deletes these variables at its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import os
import pickle
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import cloudpickle

from millrace import errors
from millrace._actors import _host
from millrace._actors._host import Host, Outcome
from millrace._calls._coordination import Reply, ask, restored, stored
from millrace._cluster._workers import matching
from millrace._connection import _slot
from millrace._connection._steps import Steps, in_loop, run
from millrace._pb.millrace.v1 import coordination_pb2, worker_pb2
from millrace._session import _registry
from millrace._session._session import Session
from millrace._task_states._state import State
from millrace._task_states._waits import NOTICE_SECONDS
from millrace._tasks._arguments import Key
from millrace._tasks._constants import Constants
from millrace._tasks._task_maker import TaskMaker
from millrace._tasks._task_options import TaskOptions
from millrace._values import _keys
from millrace._values._keys import UserKey
from millrace.executor import get_task_info
from millrace.executor._worker import Worker
from millrace.future import Future, future_of_state, results_of


class ActorLostError(errors.MillraceError, RuntimeError):
    """The process of an actor has died, and the object with it."""

    reason = "ACTOR_LOST"


@dataclass(frozen=True)
class _Identity:
    """All that is known of an actor before it is made."""

    #: Its own name, and the key that callers must have.
    name: str
    secret: bytes
    #: The class, for the names of its methods.
    cls: type
    #: Key of the task whose result is the actor, on the wire.
    key: str
    #: Life of the scheduler, and the namespace.
    life: int
    namespace: str

    def variable(self, life: int) -> str:
        """Returns the name of the variable with the place of the object that was made for the
        `life`-th time."""
        return f"millrace-actor-{self.name}-{life}"


@dataclass(frozen=True)
class _Place:
    """The place of an actor."""

    #: How often the object was made, with this time.
    life: int
    #: Name of the worker, and the address of its data port.
    worker: str
    address: str


@dataclass(frozen=True)
class _Request:
    """A call of a method, without its arguments; or the value of an attribute."""

    identity: _Identity
    place: _Place
    method: str
    attribute: bool

    @property
    def name(self) -> str:
        return f"{self.identity.cls.__name__}.{self.method}"


#: A pickled future: a function that makes it again, and its arguments. The future itself would be
#: taken for an input.
_Pickled: TypeAlias = "tuple[Callable[..., Future[Any]], tuple[Any, ...]]"


# ---- in the actor's process ----------------------------------------------------------------------


def _live(identity: _Identity, restart: bool, /, *args: Any, **kwargs: Any) -> None:
    """The task of an actor: makes the object and answers calls until the task is stopped."""
    info, worker = get_task_info(), _slot.worker
    assert info is not None and isinstance(worker, Worker)
    session = _registry.session_of(identity.life, identity.namespace)
    life = 1
    while info.attempt > life and _written(session, identity, life):
        life += 1
    if life > 1 and not restart:
        _forget(session, identity, life - 1)
        raise ActorLostError(
            f"the process of the actor {identity.cls.__name__} died, and its state is lost; "
            'submit(..., actor="restart") makes the object again'
        )
    made = identity.cls(*args, **kwargs)
    _slot.secede()
    with contextlib.closing(Host(made, identity.name, life, identity.secret)) as host:
        try:
            _write(session, identity, _Place(life, worker.name, worker.address.removeprefix("tcp://")))
            host.serve()
        finally:
            _forget(session, identity, life)


def _written(session: Session, identity: _Identity, life: int) -> bool:
    request = coordination_pb2.GetVariableRequest(client_id=session.client_id, name=identity.variable(life))
    return session.call("GetVariable", request).found


def _write(session: Session, identity: _Identity, place: _Place) -> None:
    packed, _ = stored(session, dataclasses.asdict(place), "the place of an actor")
    name = identity.variable(place.life)
    session.call(
        "SetVariable", coordination_pb2.SetVariableRequest(client_id=session.client_id, name=name, value=packed)
    )


def _forget(session: Session, identity: _Identity, last: int) -> None:
    """Deletes the variables of an actor that has ended."""
    for life in range(1, last + 1):
        with contextlib.suppress(errors.MillraceError):
            request = coordination_pb2.DeleteVariableRequest(client_id=session.client_id, name=identity.variable(life))
            session.call("DeleteVariable", request)


# ---- in the processes of calls -------------------------------------------------------------------


def _place(identity: _Identity, host: Future[Any], life: int) -> _Place:
    """Waits until an actor was made for the `life`-th time, and returns its place.

    Raises:
        ActorLostError: its task has ended, and will make it no more.
    """
    session = host._session
    request = coordination_pb2.GetVariableRequest(name=identity.variable(life))
    calls: list[Reply] = []

    def give_up() -> None:
        for call in calls:
            call.give_up()

    def began(call: Reply) -> None:
        calls[:] = [call]
        if host.done():
            call.give_up()

    session.when_done(host._state, give_up)
    try:
        answer = run(ask(session, "GetVariable", request, NOTICE_SECONDS, began))
        if not answer.found:
            session.waits.warn([host._state])  # if it can never run
            answer = run(ask(session, "GetVariable", request, None, began))
    except errors.SchedulerLostError:
        if not host.done():
            raise
        raise host.exception() or ActorLostError(f"the actor {identity.cls.__name__} has ended") from None
    return _Place(**restored(session, answer.value))


def _ready(identity: _Identity, host: _Pickled) -> Actor:
    """The task whose result is the actor."""
    future = host[0](*host[1])
    return Actor._around(identity, _place(identity, future, 1), future)


def _call(request: _Request, host: _Pickled, _before: Any, /, *args: Any, **kwargs: Any) -> Outcome:
    """The task of a call."""
    info = get_task_info()
    assert info is not None
    identity, place, method = request.identity, request.place, request.method
    try:
        future = host[0](*host[1])
        while True:
            try:
                actor = _host.connect(identity.name, place.life, identity.secret)
            except ConnectionError:
                # It has died, or its worker is lost: otherwise this task would run there.
                place = _place(identity, future, place.life + 1)
                if place.worker != info.worker:
                    request = dataclasses.replace(request, place=place)
                    state = _called(request, future, None, args, kwargs)
                    return results_of([future_of_state(future._session, state)])[0]
                continue
            with actor:
                try:
                    call = (method, None, None) if request.attribute else (method, args, kwargs)
                    _host.send(actor, cloudpickle.dumps(call, protocol=5))
                    return pickle.loads(_slot.during(partial(_host.receive, actor)))
                except (EOFError, ConnectionError) as e:
                    raise ActorLostError(
                        f"the actor {identity.cls.__name__} on worker {place.worker} ended in the middle of {method}"
                    ) from e
    except Exception as e:
        return Outcome(error=e)


# ---- where actors are used -----------------------------------------------------------------------


class ActorFuture(Future[Any]):
    """The result of a call of an actor's method: what the method has returned or raised. It can be
    awaited. Its methods wait in the caller's thread, also with an AsyncClient."""

    # The future of the result as it is, for tasks that have this one among their arguments.
    _plain: Future[Any] | None = None

    def _value(self, raw: Any) -> Any:
        return _value(raw)

    def _as_input(self) -> Future[Any]:
        if self._plain is None:
            state = _submitted(
                self._session, _value, (Key(self._state.key),), {}, f"{self.key}-value", TaskOptions(), "a result"
            )
            self._plain = future_of_state(self._session, state)
        return self._plain

    def _serve(self, steps: Steps[Any]) -> Any:
        return run(steps)

    def _ended(self, limit: float | None) -> Steps[BaseException | None]:
        error = yield from super()._ended(limit)
        if error is None:
            error = (yield from self._session.fetch([self._state], limit))[0].error
        return error

    def __reduce__(self) -> Any:
        return _restored, super().__reduce__()[1]

    def __repr__(self) -> str:
        return f"<ActorFuture: {self.status}, key: {self.key}>"


def _restored(key: str, life: int, namespace: str) -> ActorFuture:
    session = _registry.session_of(life, namespace)
    return _of_call(session, session.hold(key))


def _of_call(session: Session, state: State) -> ActorFuture:
    """Returns the future of a call. It owns one reference to the state."""
    future = object.__new__(ActorFuture)
    future._session, future._state, future._released = session, state, False
    return future


def _value(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


class Actor:
    """An object that lives on a worker. Its methods return ActorFutures, and run one after the
    other. Methods that are coroutines run together: each begins after the calls before it have
    ended, and later calls do not wait for it.

    Large arguments of the constructor and of methods are stored on workers as those of
    `Client.submit` are: neither the caller nor the object must write to them.

    Other attributes are fetched when they are read. In the event loop of an AsyncClient they are
    awaited, and the class must name them: `await actor.n`.

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

    _identity: _Identity
    _place: _Place
    _host: Future[Any]

    def __init__(self, cls: type, address: str | None, key: UserKey, worker: str | None = None) -> None:
        session = _registry.default_session()
        (found,) = run(session.fetch([session.hold(_keys.to_wire(key))], None))
        asked = (cls, address, worker)
        if not isinstance(found, Actor) or any(
            a is not None and a != b for a, b in zip(asked, (found._cls, found._address, found._worker), strict=True)
        ):
            raise ValueError(
                f"{key!r} is {found!r}, and no actor of {cls.__name__}" + (f" at {address}" if address else "")
            )
        self._refer(found._identity, found._place, found._host)

    def _refer(self, identity: _Identity, place: _Place, host: Future[Any]) -> None:
        self._identity, self._place, self._host = identity, place, host
        # The last call that the next one waits for.
        self._last: ActorFuture | None = None

    @classmethod
    def _around(cls, identity: _Identity, place: _Place, host: Future[Any]) -> Actor:
        actor = object.__new__(cls)
        actor._refer(identity, place, host)
        return actor

    @property
    def key(self) -> Any:
        """Key of the future that the actor is the result of."""
        return _keys.from_wire(self._identity.key)

    @property
    def _cls(self) -> type:
        return self._identity.cls

    @property
    def _address(self) -> str:
        return self._place.address

    @property
    def _worker(self) -> str:
        return self._place.worker

    def __repr__(self) -> str:
        return f"<Actor: {self._cls.__name__} on {self._worker}, key: {self.key}>"

    def __reduce__(self) -> Any:
        return Actor._made, (self._identity, self._place, self._host.__reduce__())

    @staticmethod
    def _made(identity: _Identity, place: _Place, host: _Pickled) -> Actor:
        return Actor._around(identity, place, host[0](*host[1]))

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *(n for n in dir(self._cls) if not n.startswith("_"))})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = getattr(self._cls, name, None)
        if callable(known):
            return partial(self._submit, name)
        named = known is not None or name in _names(self._cls)
        if self._host._session.asynchronous and in_loop():
            return self._submit_call(name, (), {}, attribute=True) if named else self._own(name)
        if not named and self._host.done():
            raise self._host.exception() or AttributeError(name)
        try:
            return self._submit_call(name, (), {}, attribute=True).result()
        except AttributeError:
            return self._own(name)

    def _own(self, name: str) -> str:
        """Returns an attribute of this handle that the object does not have."""
        if name not in ("address", "worker"):
            raise AttributeError(f"an actor of {self._cls.__name__} has no attribute {name!r} that its class names")
        return self._address if name == "address" else self._worker

    def _submit(self, method: str, /, *args: Any, separate_thread: object = None, **kwargs: Any) -> ActorFuture:
        # `separate_thread` is an argument of actors in Dask's distributed, and has no effect here.
        return self._submit_call(method, args, kwargs)

    def _submit_call(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, attribute: bool = False
    ) -> ActorFuture:
        before = None if self._last is None else Key(self._last._state.key)
        request = _Request(self._identity, self._place, method, attribute)
        state = _called(request, self._host, before, args, kwargs)
        future = _of_call(self._host._session, state)
        if not inspect.iscoroutinefunction(getattr(self._cls, method, None)):
            self._last = future
        return future


def _names(cls: type) -> set[str]:
    """Returns the names of a class: its attributes, also those that it only annotates."""
    return {*dir(cls), *itertools.chain.from_iterable(vars(c).get("__annotations__", ()) for c in cls.__mro__)}


def _called(
    request: _Request, host: Future[Any], before: Key | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> State:
    """Submits a call. It runs where the actor lives; elsewhere, if that worker is lost."""
    key = f"{request.name}-{uuid.uuid4().hex}"
    options = TaskOptions(workers=[request.place.worker], allow_other_workers=True)
    positional = (request, host.__reduce__(), before, *args)
    return _submitted(host._session, _call, positional, kwargs, key, options, request.name)


def _submitted(
    session: Session,
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    key: UserKey,
    options: TaskOptions,
    what: str,
) -> State:
    """Submits a task. The result has a reference that the caller owns. `what`: the name of the call
    in errors about its arguments."""
    maker = TaskMaker(session)
    constants = Constants(session, maker)
    spec, state = maker.spec(function, args, kwargs, key, False, options.pack(session), constants, what=what)
    if spec is not None:  # else the key is taken, and the state has the error
        if constants.kept:
            state.kept = list(constants.kept.values())
        constants.submit([spec])
    return state


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
    take turns, those with the fewest tasks first, if the options leave the choice."""
    choices = _choices(session, cls, options)
    return [
        _made(session, cls, args, kwargs, chosen, restart, key)
        for (args, key), chosen in zip(calls, choices, strict=False)
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
    return _made(session, cls, args, kwargs, next(_choices(session, cls, options)), restart, key)


def _choices(session: Session, cls: Any, options: TaskOptions) -> Iterator[TaskOptions]:
    """Returns the options of actors, without an end: the scheduler chooses among the workers that
    the user allows, and without rules each actor prefers the next worker, those with the fewest
    tasks first.

    Raises:
        NoWorkerFitsError: no worker that is there could ever run the actor.
    """
    if not isinstance(cls, type):
        raise TypeError(f"actor=True is for a class, not {cls!r}")
    here = [w for w in session.listed_workers() if w.state == worker_pb2.WORKER_STATE_ACTIVE]
    if not any(_fits(w, options) for w in here):
        raise errors.NoWorkerFitsError(
            f"no worker is there for the actor {cls.__name__}{_rules(options)}; wait_for_workers() waits for one"
        )
    if options.workers is not None or options.resources or options.slots != 1:
        return itertools.repeat(options)
    here.sort(key=lambda w: (w.assigned_tasks, random.random()))
    return itertools.cycle(dataclasses.replace(options, workers=[w.name], allow_other_workers=True) for w in here)


def _fits(worker: worker_pb2.Worker, options: TaskOptions) -> bool:
    asked = [options.workers] if isinstance(options.workers, str) else options.workers
    return (
        (asked is None or options.allow_other_workers or bool(matching([worker], asked)))
        and all(worker.resources.get(name, 0.0) >= amount for name, amount in (options.resources or {}).items())
        and worker.slots >= options.slots
    )


def _rules(options: TaskOptions) -> str:
    """Describes the rules of options, for an error."""
    rules = {"workers": options.workers, "resources": options.resources, "slots": options.slots}
    text = ", ".join(f"{name}={value!r}" for name, value in rules.items() if value and value != 1)
    return text and f" with {text}"


def _made(
    session: Session,
    cls: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: TaskOptions,
    restart: bool,
    key: UserKey | None,
) -> Future[Any]:
    name = uuid.uuid4().hex
    own: UserKey = f"{cls.__name__}-{name}" if key is None else key
    secret = os.urandom(_host.KEY_BYTES)
    identity = _Identity(name, secret, cls, _keys.to_wire(own), session.life, session.namespace)
    what = cls.__name__
    state = _submitted(session, _live, (identity, restart, *args), kwargs, f"{what}-actor-{name}", options, what)
    host = future_of_state(session, state)
    # Flushed by __reduce__: the reader must find the actor's task.
    place = TaskOptions(
        priority=options.priority, workers=options.workers, allow_other_workers=options.allow_other_workers
    )
    state = _submitted(session, _ready, (identity, host.__reduce__()), {}, own, place, what)
    future = future_of_state(session, state)
    future._state.kept = host  # until the result holds it
    return future
