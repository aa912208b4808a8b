"""Templates: graphs of one shape, which are submitted again and again by short messages."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, Generic, TypeVar, overload

from millrace import errors
from millrace._pb.millrace.v1 import submission_pb2, value_pb2
from millrace._session import _registry
from millrace._session._session import Session
from millrace._task_states._state import Instances, Spec
from millrace._tasks._arguments import MOST_ARGUMENTS, adopt
from millrace._tasks._task_maker import TaskMaker
from millrace._tasks._template import Recorder, Shape, fill_value, filled, too_large
from millrace._values import _serialize
from millrace.future import Future, future_of_state

R = TypeVar("R")

#: Most bytes of instances in one message.
_MESSAGE_BYTES = 4 << 20

_Kinds = tuple[Any, ...]

#: Stands for the element after the last one.
_END: Any = object()


class Template(Generic[R]):
    """A function that submits tasks, recorded as a template. `Client.template` and
    `millrace.template` make it.

    A call submits the tasks of an instance, and returns futures for what the function returned. The
    function itself, which submits the same tasks plainly, is `__wrapped__`; its first argument is a
    client.
    """

    #: The function itself.
    __wrapped__: Callable[..., R]

    def __init__(self, func: Callable[..., R], client: Any, static: Iterable[str]) -> None:
        functools.update_wrapper(self, func)
        self._func, self._client = func, client
        self._static = frozenset((static,) if isinstance(static, str) else static)
        self._name = getattr(func, "__name__", type(func).__name__)[:64].replace("<lambda>", "lambda")
        parameters = list(inspect.signature(func).parameters.values())
        if not parameters:
            raise TypeError(f"{self._name}() has no parameter for the client: the first one must be it")
        self._names = [p.name for p in parameters[1:] if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        unknown = self._static - {p.name for p in parameters[1:]}
        if unknown:
            raise TypeError(f"static: {self._name}() has no parameter {', '.join(sorted(unknown))}")
        self._lock = threading.Lock()
        # Guarded by _lock. The recorded templates by the kinds of their arguments.
        self._shapes: dict[_Kinds, Shape] = {}
        # The beginning of the keys, and the number of the next call.
        self._prefix, self._calls = f"{self._name}-{uuid.uuid4().hex[:10]}-", itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Submits the tasks of one instance.

        Raises:
            TypeError: the function cannot be recorded; the message says why.
            SerialisationError: an argument cannot be pickled.

        If the scheduler refuses the tasks, the futures raise the error.
        """
        return self._submit([(args, kwargs)])[0]

    def map(self, *iterables: Iterable[Any], **kwargs: Any) -> list[R]:
        """Submits one instance for each element (of several iterables: for one of each), all of them
        together, and returns what a call would return, for each. `kwargs` are the same for all.

        Raises:
            ValueError: the iterables have different lengths.
        """
        if not iterables:
            raise TypeError(f"{self._name}.map() needs an iterable, whose elements are arguments of the instances")
        return self._submit([(args, kwargs) for args in self._rows(iterables)])

    def _rows(self, iterables: Sequence[Iterable[Any]]) -> list[tuple[Any, ...]]:
        """Returns the arguments of each instance."""
        rows: list[tuple[Any, ...]] = []
        for row in itertools.zip_longest(*iterables, fillvalue=_END):
            if any(item is _END for item in row):
                lengths = (
                    len(of) if isinstance(of, Sized) else len(rows) if item is _END else f"more than {len(rows)}"
                    for of, item in zip(iterables, row, strict=True)
                )
                raise ValueError(
                    f"{self._name}.map(): the iterables have different lengths: {', '.join(map(str, lengths))}; a value that "
                    "is the same for all instances is given by keyword"
                )
            rows.append(row)
        return rows

    def _submit(self, calls: list[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> list[R]:
        session: Session = _registry.default_session() if self._client is None else self._client.session
        session.check_open()
        prefix = f"{self._prefix}{next(self._calls)}/"
        results: list[R] = []
        specs: list[Spec] = []
        groups: list[tuple[Shape, submission_pb2.TemplateInstances]] = []
        kept: list[Future[Any]] = []
        nbytes = 0
        single = len(calls) == 1
        try:
            for n, (args, kwargs) in enumerate(calls):
                shape, values, inputs = self._bound(session, args, kwargs)
                if not groups or groups[-1][0] is not shape or nbytes > _MESSAGE_BYTES:
                    groups.append(
                        (shape, submission_pb2.TemplateInstances(template_hash=shape.hash, key_prefix=prefix))
                    )
                    nbytes = 0
                key = "" if single else f"{n}/"
                instance = groups[-1][1].instances.add(key=key)
                for at, typed in shape.values:
                    value = value_pb2.Value()
                    try:
                        fill_value(value, values[at], typed=typed)
                    except _serialize.NotPlain:
                        kind = type(values[at])
                        raise errors.SerialisationError(
                            f"a value for {self._name}: a {kind.__module__}.{kind.__qualname__} is no typed value, "
                            "and an op that is not Python's uses it"
                        ) from None
                    packed = value.SerializeToString()
                    nbytes += len(packed)
                    if len(packed) > MOST_ARGUMENTS:
                        raise too_large(f"the values for {self._name}", len(packed))
                    instance.packed_values.append(packed)
                all_inputs = [*inputs, *shape.constant]
                for future in all_inputs:
                    instance.inputs.append(self._key(session, future, kept))
                keys = list(instance.inputs)
                futures: list[Future[Any]] = []
                for suffix in shape.held:
                    state, _ = session.state(prefix + key + suffix)
                    specs.append(Spec(state.key, (0, "", b""), keys, b"", b"", state, None, kept))
                    futures.append(future_of_state(session, state))
                results.append(filled(shape.result, futures, all_inputs))
        except BaseException as e:
            session.abandon([spec.state for spec in specs if spec.state is not None], e)
            raise
        if specs:
            definitions = {shape.hash: shape.packed for shape, _ in groups}
            tasks = sum(shape.tasks * len(group.instances) for shape, group in groups)
            session.submit_instances(specs, Instances(definitions, [group for _, group in groups], tasks))
        return results

    @staticmethod
    def _key(session: Session, future: Future[Any], kept: list[Future[Any]]) -> str:
        if future.cancelled() and (error := future._state.exception()) is not None:
            raise error
        own = future._as_input()
        if own._session is not session:
            own = adopt(session, own)
        kept.append(own)
        return own._state.key

    def _bound(
        self, session: Session, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Shape, list[Any], list[Future[Any]]]:
        """Returns the template for a call, with the values and the futures of its holes."""
        names = self._names
        values: list[Any] = []
        inputs: list[Future[Any]] = []
        kinds: list[Any] = []
        for place, obj in [*enumerate(args), *kwargs.items()]:
            name = place if isinstance(place, str) else names[place] if place < len(names) else f"argument {place}"
            if name in self._static:
                kinds.append((name, obj))
            elif isinstance(obj, Future):
                inputs.append(obj)
                kinds.append(name if isinstance(place, str) else Future)
            else:
                values.append(obj)
                kinds.append((name,) if isinstance(place, str) else None)
        chosen = (len(args), *kinds)
        try:
            shape = self._shapes.get(chosen)
        except TypeError:
            raise TypeError(f"{self._name}(): the arguments named in static must be hashable") from None
        if shape is None:
            with self._lock:
                shape = self._shapes.get(chosen) or self._recorded(session, args, kwargs)
                self._shapes[chosen] = shape
        return shape, values, inputs

    def _recorded(self, session: Session, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shape:
        recorder = Recorder(session, TaskMaker(session), self._name)

        def stand_in(place: int | str, obj: Any) -> Any:
            name = place if isinstance(place, str) else self._names[place] if place < len(self._names) else str(place)
            if name in self._static:
                return obj
            return recorder.input(f"argument {name!r}") if isinstance(obj, Future) else recorder.hole(name)

        given = [stand_in(place, obj) for place, obj in enumerate(args)]
        named = {name: stand_in(name, obj) for name, obj in kwargs.items()}
        return recorder.shape(self._func(recorder, *given, **named))


@overload
def template(func: Callable[..., R], /) -> Template[R]: ...


@overload
def template(*, static: Iterable[str] = ()) -> Callable[[Callable[..., R]], Template[R]]: ...


def template(func: Callable[..., Any] | None = None, /, *, static: Iterable[str] = ()) -> Any:
    """Makes a template of a function whose first parameter is a client, as `Client.template`. Calls
    use the client of `get_client`."""
    return made(func, None, static)


def made(func: Callable[..., Any] | None, client: Any, static: Iterable[str]) -> Any:
    """Returns a template, or a decorator that makes one."""
    if func is None:
        return lambda func: Template(func, client, static)
    return Template(func, client, static)
