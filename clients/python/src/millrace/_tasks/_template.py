"""Templates: functions that submit tasks are recorded once, with holes in place of their
arguments."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from millrace import _check, errors
from millrace._pb.millrace.v1 import submission_pb2, task_pb2, value_pb2
from millrace._session._session import Session
from millrace._task_states._state import OpKey
from millrace._tasks._arguments import MOST_ARGUMENTS, name_of, plain_names
from millrace._tasks._task_maker import TaskMaker
from millrace._tasks._task_options import NO_RULES, OPTIONS, TaskOptions
from millrace._values import _serialize
from millrace.future import Future
from millrace.ops import ExecutorOp, NativeOp

_INT64 = range(-(1 << 63), 1 << 63)


class Placeholder:
    """Stands for a value that is not known while a template is recorded.

    Args:
        index: its number among those of its kind.
        what: describes it, with the name of the template, for errors.
    """

    __slots__ = ("index", "what")

    #: The remedy in errors about an attribute.
    _instead = "read it in a task"

    def __init__(self, index: int, what: str) -> None:
        self.index, self.what = index, what

    def __repr__(self) -> str:
        return f"<{self.what}>"

    def _unknown(self, *_: object) -> NoReturn:
        raise TypeError(
            f"{self.what} has no value while the template is recorded: give it to tasks only, or name the parameter in "
            "static=[...] if the shape of the graph depends on it"
        )

    def _operand(self, *_: object) -> NoReturn:
        raise TypeError(
            f"{self.what} has no value while the template is recorded, so that no operator works with it: compute in a "
            "task, such as client.submit(operator.add, x, 1), or name the parameter in static=[...]"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked for by Python and libraries, which know what absence means
            raise AttributeError(name)
        raise AttributeError(
            f"{self.what} has no value while the template is recorded, so that there is no .{name}: {self._instead}"
        )

    __bool__ = __len__ = __iter__ = __int__ = __float__ = __index__ = __str__ = __format__ = _unknown
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __contains__ = __call__ = _unknown
    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = __matmul__ = _operand
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = __rpow__ = _operand
    __rmatmul__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __rand__ = __ror__ = __rxor__ = _operand
    __rlshift__ = __rrshift__ = __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __complex__ = _operand
    __hash__ = object.__hash__


class Hole(Placeholder):
    """Stands for an argument that is no future."""

    __slots__ = ("name",)

    def __init__(self, index: int, name: str, of: str) -> None:
        super().__init__(index, f"argument {name!r} of template {of}")
        self.name = name

    _instead = "read it in a task, or name the parameter in static=[...]"


class Input(Placeholder):
    """Stands for an argument that is a future."""

    __slots__ = ("name",)

    _instead = "give it to tasks, which get its result"

    def __init__(self, index: int, name: str, what: str) -> None:
        super().__init__(index, what)
        #: Its name among the inputs of the tasks.
        self.name = name


class Task(Placeholder):
    """Stands for the future of a task."""

    __slots__ = ("spec",)

    _instead = "give it to tasks, which get its result, or return it: a call of the template returns its future"

    def __init__(self, index: int, spec: task_pb2.TaskSpec, of: str) -> None:
        super().__init__(index, f"the result of task {spec.key!r} of template {of}")
        self.spec = spec


@dataclass(frozen=True)
class Shape:
    """A recorded template.

    Args:
        packed: the serialised Template.
        hash: the digest that names it.
        values: for each hole for a value, the number of the argument, and whether its values are
            sent in the form of native ops.
        held: the ends of the keys of the tasks that the function returned.
        result: what the function returned, with Tasks and Inputs in place of futures; Tasks are
            numbered as in `held`.
        constant: futures that the function had from elsewhere. They follow the other inputs.
        tasks: number of tasks.
    """

    packed: bytes
    hash: bytes
    values: tuple[tuple[int, bool], ...]
    held: tuple[str, ...]
    result: Any
    constant: tuple[Future[Any], ...]
    tasks: int


class Recorder:
    """Stands for the client while a template is recorded: its methods add tasks to the template."""

    def __init__(self, session: Session, maker: TaskMaker, name: str) -> None:
        self.session, self._maker, self._name = session, maker, name
        self._template = submission_pb2.Template()
        self._ops: dict[OpKey, int] = {}
        self._functions: set[bytes] = set()
        self._options: dict[bytes, int] = {}
        # The number of arguments that are holes, and the holes for values: see Shape.values.
        self._arguments = 0
        self._values: dict[tuple[int, bool], int] = {}
        self._inputs: list[Input] = []
        self._tasks: list[Task] = []
        self._keys: set[str] = set()
        # Futures from elsewhere by key, with their inputs.
        self._constant: dict[str, tuple[Input, Future[Any]]] = {}
        self._nbytes = 0

    def hole(self, name: str) -> Hole:
        """Adds an argument that is a value."""
        self._arguments += 1
        return Hole(self._arguments - 1, name, self._name)

    def value(self, hole: Hole, *, typed: bool) -> int:
        """Returns the index of the hole for the values of an argument. Those for native ops and for
        functions may have different forms."""
        index = self._values.get((hole.index, typed))
        if index is None:
            index = self._values[hole.index, typed] = len(self._values)
            self._template.values.add(name=hole.name[:256])
        return index

    def input(self, what: str) -> Input:
        """Adds a hole for a future."""
        made = Input(len(self._inputs), f"input {len(self._inputs)}", f"{what} of template {self._name}")
        self._inputs.append(made)
        self._template.inputs.append(made.name)
        return made

    def submit(
        self,
        func: Callable[..., Any] | str | NativeOp | ExecutorOp,
        /,
        *args: Any,
        key: str | None = None,
        **kwargs: Any,
    ) -> Task:
        """As `Client.submit`. `key` is the end of the key in each instance."""
        rules = {name: kwargs.pop(name) for name in OPTIONS & kwargs.keys()}
        for name in NO_RULES & rules.keys():
            if rules.pop(name) and name != "pure":
                raise TypeError(f"template {self._name}: submit(..., {name}=...): only Client.submit has it")
        return self._add(func, args, kwargs, key, TaskOptions(**rules).pack(self.session))

    def map(
        self, func: Callable[..., Any] | str | NativeOp | ExecutorOp, /, *iterables: Iterable[Any], **options: Any
    ) -> list[Task]:
        """As `Client.map`, without keys."""
        if "key" in options:
            raise TypeError(
                "map(key=...): tasks of a template have no other keys than those that submit(key=...) gives"
            )
        return [self.submit(func, *args, **options) for args in zip(*iterables)]  # noqa: B905 - as in Client.map

    def op(self, name: str, *args: Any, key: str | None = None, **named: Any) -> Task:
        """As `Client.op`."""
        return self.submit(NativeOp(name), *args, key=key, **plain_names(named))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{name}: a template records submit, map and op, and nothing else of the client (in template {self._name}): call it "
            "outside of the function, with the futures that a call of the template returns"
        )

    def _add(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None, options: bytes
    ) -> Task:
        name = name_of(func)
        if key is None:
            key = f"{name}-{len(self._tasks)}"
        elif not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"key: {key!r}: in a template it is a str, the end of the key in each instance")
        if key in self._keys:
            raise ValueError(f"key {key!r} is used by two tasks of the template: give each task a key of its own")
        self._keys.add(key)
        op, function = self._maker.op(func)
        index = self._ops.get(op)
        if index is None:
            index = self._ops[op] = len(self._ops)
            kind, text, digest = op
            self._template.ops.add(kind=kind, name=text, function=digest)  # pyright: ignore[reportArgumentType]
            if function is not None and digest not in self._functions:
                self._functions.add(digest)
                self._template.functions.add(hash=digest, payload=function[0], language=function[1])
        spec = self._template.tasks.add(key=key, op_index=index)
        if options:
            if options not in self._options:
                self._options[options] = len(self._options) + 1
                self._template.options.append(task_pb2.TaskOptions.FromString(options))
            spec.options_index = self._options[options]
        typed = isinstance(func, (NativeOp, ExecutorOp))
        arguments = _Arguments(self, spec, typed=typed)
        for place, obj in [*enumerate(args), *kwargs.items()]:
            value = spec.arguments.named[place] if isinstance(place, str) else spec.arguments.positional.add()
            try:
                arguments.fill(value, obj)
            except _serialize.NotPlain:
                raise errors.SerialisationError(
                    f"argument {place} of {name}: a {type(obj).__module__}.{type(obj).__qualname__} is no typed value"
                ) from None
        self._nbytes += spec.arguments.ByteSize()
        if self._nbytes > MOST_ARGUMENTS:
            raise too_large(f"the arguments in the template, up to task {key!r},", self._nbytes)
        self._tasks.append(Task(len(self._tasks), spec, self._name))
        return self._tasks[-1]

    def reference(self, spec: task_pb2.TaskSpec, obj: Any) -> int | None:
        """Returns the index of the input of a task that an argument stands for; None if it stands
        for none."""
        if isinstance(obj, Task):
            if obj.index >= len(self._tasks) or self._tasks[obj.index] is not obj:
                raise ValueError(f"{obj!r} is of another template")
            name = obj.spec.key
        elif isinstance(obj, Input):
            name = obj.name
        elif isinstance(obj, Future):
            known = self._constant.get(obj._state.key)
            if known is None:
                known = self._constant[obj._state.key] = self.input(f"future {obj.key!r}"), obj
            name = known[0].name
        else:
            return None
        if name not in spec.inputs:
            spec.inputs.append(name)
        return list(spec.inputs).index(name)

    def shape(self, returned: Any) -> Shape:
        """Returns the template of a function that has returned this."""
        held: dict[int, Task] = {}
        result = self._result(returned, held)
        if not held:
            raise TypeError(f"the function of template {self._name} must return futures of tasks that it has submitted")
        template = self._template
        for task in held.values():
            task.spec.hold = True
        order = {index: n for n, index in enumerate(sorted(held))}
        packed = template.SerializeToString()
        return Shape(
            packed=packed,
            hash=hashlib.sha256(packed).digest(),
            values=tuple(self._values),
            held=tuple(held[index].spec.key for index in sorted(held)),
            result=_numbered(result, order),
            constant=tuple(future for _, future in self._constant.values()),
            tasks=len(self._tasks),
        )

    def _result(self, tree: Any, held: dict[int, Task]) -> Any:
        if isinstance(tree, Task):
            held[tree.index] = tree
        elif type(tree) is list or type(tree) is tuple:
            for item in cast("Sequence[Any]", tree):
                self._result(item, held)
        elif type(tree) is dict:
            for item in cast("dict[Any, Any]", tree).values():
                self._result(item, held)
        elif not isinstance(tree, (Input, Future)):
            raise TypeError(
                f"the function of template {self._name} returned a {type(tree).__module__}.{type(tree).__qualname__}: return futures, or "
                "lists, tuples and dicts of them"
            )
        return tree


def _numbered(tree: Any, order: Mapping[int, int]) -> Any:
    """Returns the same tree with the number of each task in `order` in place of the task."""
    if isinstance(tree, Task):
        return order[tree.index]
    return _mapped(tree, lambda item: _numbered(item, order))


def _mapped(tree: Any, convert: Callable[[Any], Any]) -> Any:
    if type(tree) is list:
        return [convert(item) for item in cast("list[Any]", tree)]
    if type(tree) is tuple:
        return tuple(convert(item) for item in cast("tuple[Any, ...]", tree))
    if type(tree) is dict:
        return {key: convert(item) for key, item in cast("dict[Any, Any]", tree).items()}
    return tree


def filled(tree: Any, futures: Sequence[Future[Any]], inputs: Sequence[Future[Any]]) -> Any:
    """Returns what the function of a template returned, with the futures of an instance.

    Args:
        tree: `Shape.result`.
        futures: those of the held tasks.
        inputs: those of the inputs.
    """
    if type(tree) is int:
        return futures[tree]
    if isinstance(tree, Input):
        return inputs[tree.index]
    return _mapped(tree, lambda item: filled(item, futures, inputs))


class _Arguments:
    """Writes the arguments of one task."""

    __slots__ = ("_recorder", "_spec", "_typed")

    def __init__(self, recorder: Recorder, spec: task_pb2.TaskSpec, *, typed: bool) -> None:
        self._recorder, self._spec, self._typed = recorder, spec, typed

    def fill(self, value: value_pb2.Value, obj: Any) -> None:
        """Writes one argument, which may have holes and futures inside of lists and dicts."""
        if isinstance(obj, Hole):
            value.hole = self._recorder.value(obj, typed=self._typed)
            return
        index = self._recorder.reference(self._spec, obj)
        if index is not None:
            value.input = index
            return
        if not _has_placeholder(obj):
            fill_value(value, obj, typed=self._typed)
            return
        if type(obj) is list or (self._typed and type(obj) is tuple):
            value.list_value.SetInParent()
            for item in cast("Sequence[Any]", obj):
                self.fill(value.list_value.values.add(), item)
        elif type(obj) is dict and all(type(key) is str for key in cast("dict[Any, Any]", obj)):
            value.map_value.SetInParent()
            for key, item in cast("dict[str, Any]", obj).items():
                self.fill(value.map_value.fields[key], item)
            value.map_value.order.extend(obj)
        else:
            raise TypeError(
                f"task {self._spec.key!r}: in a template, futures and holes may be in lists, and in dicts with str keys, but not "
                f"in a {type(obj).__module__}.{type(obj).__qualname__}"
            )


def _has_placeholder(obj: Any) -> bool:
    if isinstance(obj, (list, tuple, set, frozenset)):
        return any(_has_placeholder(item) for item in cast("Iterable[Any]", obj))
    if isinstance(obj, dict):
        return any(_has_placeholder(item) for item in cast("dict[Any, Any]", obj).values())
    return isinstance(obj, (Placeholder, Future))


def fill_value(value: value_pb2.Value, obj: Any, *, typed: bool) -> None:
    """Writes an argument without holes. `typed`: in the form of native ops; otherwise all but plain
    scalars are pickled, so that functions get what was given."""
    if typed:
        _serialize.fill_argument(value, obj, _no_reference)
        return
    kind = type(obj)
    if obj is None:
        value.null_value = value_pb2.NULL_VALUE_UNSPECIFIED
    elif kind is bool:
        value.bool_value = obj
    elif kind is int and obj in _INT64:
        value.int_value = obj
    elif kind is float:
        value.double_value = obj
    elif kind is str and (obj.isascii() or _encodable(obj)):
        value.string_value = obj
    elif kind is bytes:
        value.bytes_value = obj
    else:
        file = io.BytesIO()
        try:
            _serialize.CallPickler(file, _no_reference).dump(obj)
        except errors.MillraceError:
            raise
        except Exception as e:
            raise errors.SerialisationError(f"a {kind.__module__}.{kind.__qualname__} cannot be pickled: {e}") from e
        value.opaque_value.encoding, value.opaque_value.data = "pickle5", file.getvalue()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        return False
    return True


def _no_reference(obj: Any) -> None:
    if isinstance(obj, Placeholder):
        obj._unknown()
    if isinstance(obj, Future):
        raise TypeError(
            "a future inside of another argument cannot be replaced by its result in a template: make it an argument of its "
            "own; a function def f(client, *futures) takes any number of them"
        )


def too_large(what: str, nbytes: int) -> errors.InvalidRequestError:
    """Returns the error for arguments that are too large."""
    error = errors.InvalidRequestError(
        f"{what} are {_check.above(nbytes, MOST_ARGUMENTS)}: use client.scatter() and pass the futures"
    )
    error.reason = "TOO_LARGE"
    return error
