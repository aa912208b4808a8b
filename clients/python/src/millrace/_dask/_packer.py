"""Packs the nodes of Dask's graphs as tasks."""

from __future__ import annotations

import copyreg
import functools
import io
import operator
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from millrace import errors
from millrace._dask._plan import (
    Plan,
    call_method,
    identity,
    input_at,
    make_dict,
    make_list,
    make_set,
    make_tuple,
    of_items,
    run_node,
)
from millrace._pb.millrace.v1 import value_pb2
from millrace._task_states._state import Function, OpKey
from millrace._tasks._constants import Constants
from millrace._tasks._task_maker import TaskMaker
from millrace._values import _numpy, _serialize
from millrace.future import Future

#: Place of a value before the layout of the plan is known: its number times 4, plus its kind.
Code: TypeAlias = int
_INPUT, _OWN, _SHARED, _STEP = 0, 1, 2, 3

_SCALARS: frozenset[type] = frozenset({int, float, bool, type(None), slice, complex})
#: Types whose objects belong to the plan rather than to the task.
_CODE: tuple[type, ...] = (type, types.FunctionType, types.BuiltinFunctionType)
#: Larger constants, in bytes, are stored on workers, and are inputs of their tasks.
LARGE = 64 << 10
#: Larger constants that are nodes of their own are stored as well, instead of being copied to every
#: task that reads them.
_SMALL = 4 << 10


class Packed:
    """One node as a task: its op, inputs and arguments."""

    __slots__ = ("arguments", "function", "inputs", "items", "op")

    def __init__(
        self,
        op: OpKey,
        function: Function,
        inputs: list[str],
        items: list[tuple[int, int, int]],
        arguments: bytes,
    ) -> None:
        self.op, self.function, self.inputs, self.items, self.arguments = op, function, inputs, items, arguments


class Packer:
    """Packs the nodes of one graph.

    Args:
        maker: names and keeps the plans.
        constants: stores large constants on workers.
        wires: the wire keys of tasks, by their keys in the graph.
        find: returns the wire key of any other node; the node itself if it is a small constant.
    """

    def __init__(
        self, maker: TaskMaker, constants: Constants, wires: Mapping[Any, str], find: Callable[[Any], Any]
    ) -> None:
        import dask._task_spec as spec
        from dask.utils import key_split

        self._maker, self._constants, self._key_split = maker, constants, key_split
        self._wires, self._find = wires, find
        self._reference, self._alias, self._data, self._task = spec.TaskRef, spec.Alias, spec.DataNode, spec.Task
        self._node: type = spec.GraphNode
        self._subgraph: Any = getattr(spec, "_execute_subgraph", None)
        self._containers: dict[type, Callable[..., Any]] = {
            spec.List: make_list,
            spec.Tuple: make_tuple,
            spec.Set: make_set,
            spec.Dict: make_dict,
        }
        self._references: tuple[type, ...] = (spec.TaskRef, spec.Alias)
        # Plans by what tasks must have in common to share one.
        self._plans: dict[Any, tuple[OpKey, Function, Plan]] = {}
        # Constants that occurred in a task, by id. At the second task they are made a part of the
        # plan.
        self._seen: set[int] = set()
        # Constants of plans, by id. A plan keeps its constants, so that no id is used again.
        self._common: set[int] = set()
        self._table: Any = {**copyreg.dispatch_table, Future: self._reduce_future}
        if (np := _numpy.loaded()) is not None:
            self._table[np.ndarray] = _serialize.reduce_array
        # The task that is packed: its inputs by wire key, and by that and the item if it needs only
        # one item; those inputs again, as in Spec; its constants, and the plan's constants; the
        # steps, and the same with ids in place of functions.
        self._index: dict[str | tuple[str, int], int] = {}
        self._items: list[tuple[int, int, int]] = []
        self._own: list[Any] = []
        self._shared: list[Any] = []
        self._steps: list[tuple[Callable[..., Any], tuple[Code, ...], tuple[tuple[str, Code], ...]]] = []
        self._marks: list[Any] = []
        # Places of other nodes that the task computes for itself, by key.
        self._fused: dict[Any, Code] = {}

    def pack(self, key: Any, node: Any, wanted: bool) -> Packed:
        """Packs one node. `wanted`: the client reads its result."""
        result = self._walk(node)
        own = self._dump(key)
        if len(own) > LARGE and self._store_large():
            result = self._walk(node)
            own = self._dump(key)
        index = self._index
        layout = (result, len(index), len(self._own), tuple(map(id, self._shared)), tuple(self._marks))
        known = self._plans.get(layout)
        if known is None:
            known = self._plans[layout] = self._plan(key, result)
        inputs = [name if type(name) is str else name[0] for name in index]
        return Packed(known[0], known[1], inputs, self._items, _arguments(own, len(index), wanted))

    def _begin(self) -> None:
        self._index, self._items, self._own, self._shared = {}, [], [], []
        self._steps, self._marks = [], []
        self._fused = {}

    def _walk(self, node: Any) -> Code:
        self._begin()
        try:
            result = self._code(node, None)
        except RecursionError:  # a chain of many calls inside of one node
            self._begin()
            result = self._opaque(node, None)
        if result & 3 != _STEP:
            result = self._step(identity, (result,))
        return result

    def _plan(self, key: Any, result: Code) -> tuple[OpKey, Function, Plan]:
        """Makes the plan of the task that was walked."""
        bases = (
            0,
            len(self._index),
            len(self._index) + len(self._own),
            len(self._index) + len(self._own) + len(self._shared),
        )

        def place(code: Code) -> int:
            return bases[code & 3] + (code >> 2)

        last: dict[int, int] = {}
        for number, (_, codes, named) in enumerate(self._steps):
            for code in (*codes, *(c for _, c in named)):
                last[place(code)] = number
        out = place(result)
        unused: dict[int, list[int]] = {}
        for at, number in last.items():
            if at >= bases[3] and at != out:
                unused.setdefault(number, []).append(at)
        steps = tuple(
            (f, tuple(map(place, codes)), tuple((name, place(c)) for name, c in named), tuple(unused.get(n, ())))
            for n, (f, codes, named) in enumerate(self._steps)
        )
        plan = Plan(steps, tuple(self._shared), out)
        op, function = self._maker.pickled(plan, self._key_split(key)[:64] or "dask")
        return op, function, plan

    # ---- codes -----------------------------------------------------------------------------------

    def _codes(self, values: Iterable[Any], scope: _Scope | None) -> list[Code]:
        """Returns the places of arguments, after adding what they need."""
        own, shared, index, reference = self._own, self._shared, self._index, self._reference
        out: list[Code] = []
        for value in values:
            kind = type(value)
            if kind is reference:
                key = value.key
                wire = self._wires.get(key) if scope is None else None
                if wire is None:
                    out.append(self._refer(key, scope))
                else:
                    at = index.get(wire)
                    if at is None:
                        at = index[wire] = len(index)
                    out.append(at * 4 + _INPUT)
            elif kind in _SCALARS or (kind is str and len(value) <= _SMALL):
                out.append(len(own) * 4 + _OWN)
                own.append(value)
            elif id(value) in self._common:
                out.append(len(shared) * 4 + _SHARED)
                shared.append(value)
            else:
                out.append(self._code(value, scope))
        return out

    def _code(self, value: Any, scope: _Scope | None) -> Code:
        kind = type(value)
        if kind is self._task:
            return self._call(value, scope)
        if kind is self._reference:
            return self._refer(value.key, scope)
        make = self._containers.get(kind)
        if make is not None:
            return self._step(make, tuple(self._codes(value.args, scope)))
        if kind is self._alias:
            return self._refer(value.target, scope)
        if kind is self._data:
            return self._constant(value.value)
        if isinstance(value, self._node):
            return self._opaque(value, scope)
        if isinstance(value, self._references):
            return self._refer(value.key, scope)
        return self._constant(value)

    def _refer(self, key: Any, scope: _Scope | None) -> Code:
        while scope is not None:
            known = scope.codes.get(key)
            if known is not None:
                return known
            if key in scope.given:
                known = scope.codes[key] = self._codes((scope.given[key],), scope.outer)[0]
                return known
            node = scope.nodes.get(key)
            if node is not None:
                known = scope.codes[key] = self._code(node, scope)
                return known
            scope = scope.outer
        known = self._fused.get(key)
        if known is not None:
            return known
        found = self._wires.get(key) or self._find(key)
        if type(found) is str:
            return self._input(found)
        known = self._fused[key] = self._code(found, None)
        return known

    def _input(self, wire: str) -> Code:
        index = self._index.get(wire)
        if index is None:
            index = self._index[wire] = len(self._index)
        return index * 4 + _INPUT

    def _call(self, task: Any, scope: _Scope | None) -> Code:
        function: Any = task.func
        if function is self._subgraph and not task.kwargs:
            return self._inner(task, scope)
        if function is of_items:
            numbers, counts, function, *lists = task.args
            codes = [self._item(*of, scope) for of in zip(lists, numbers, counts, strict=True)]
            return self._apply(function, codes, ())
        codes = self._codes(task.args, scope)
        kwargs = task.kwargs
        named: tuple[tuple[str, Code], ...] = ()
        if kwargs:
            named = tuple(zip(kwargs, self._codes(kwargs.values(), scope), strict=True))
        return self._apply(function, codes, named)

    def _apply(self, function: Any, codes: list[Code], named: tuple[tuple[str, Code], ...]) -> Code:
        """Adds the call of a function, which may be a partial or a bound method."""
        while True:
            kind: Any = type(function)
            if kind is functools.partial:
                given = {name for name, _ in named}
                before = tuple((n, self._constant(a)) for n, a in function.keywords.items() if n not in given)
                codes = [self._constant(a) for a in function.args] + codes
                named = (*before, *named)
                function = function.func
            elif kind is types.MethodType and not isinstance(function.__self__, (type, types.ModuleType)):
                codes = [self._constant(function.__self__), self._constant(function.__name__), *codes]
                function = call_method
            else:
                return self._step(function, tuple(codes), named)

    def _inner(self, task: Any, scope: _Scope | None) -> Code:
        """Puts the nodes of a fused task into the plan, each once."""
        nodes, out, names, *given = task.args
        return self._refer(out, _Scope(nodes, dict(zip(names or (), given, strict=True)), scope))

    def _item(self, items: Any, number: int | None, count: int, scope: _Scope | None) -> Code:
        """Returns the place of one item of a list; number None: of the value itself. `count`: the
        length of the list."""
        if number is None:
            return self._codes((items,), scope)[0]
        wire = self._outside(items.key, scope) if type(items) is self._reference else None
        if wire is None:
            return self._step(operator.getitem, (self._codes((items,), scope)[0], self._constant(number)))
        at = self._index.get((wire, number))
        if at is None:
            at = self._index[wire, number] = len(self._index)
            self._items.append((at, number, count))
        return at * 4 + _INPUT

    def _outside(self, key: Any, scope: _Scope | None) -> str | None:
        """Returns the wire key of a node; None if it is no task of its own."""
        while scope is not None:
            if key in scope.given:
                given = scope.given[key]
                if type(given) is not self._reference:
                    return None
                key = given.key
            elif key in scope.nodes:
                return None
            scope = scope.outer
        found = self._wires.get(key) or self._find(key)
        return found if type(found) is str else None

    def _opaque(self, node: Any, scope: _Scope | None) -> Code:
        names = tuple(node.dependencies)
        codes = [self._constant(node), self._constant(names), *[self._refer(name, scope) for name in names]]
        return self._step(run_node, tuple(codes))

    def _step(
        self, function: Callable[..., Any], codes: tuple[Code, ...], named: tuple[tuple[str, Code], ...] = ()
    ) -> Code:
        self._steps.append((function, codes, named))
        self._marks.append((id(function), codes, named))
        return (len(self._steps) - 1) * 4 + _STEP

    def _constant(self, value: Any) -> Code:
        kind = type(value)
        if kind not in _SCALARS and (kind is not str or len(value) > _SMALL):
            if isinstance(value, Future):
                return self._input(self._constants.adopted(value))
            if id(value) not in self._common:
                stored = self._constants.stored(value, LARGE)
                if stored is not None:
                    return self._input(stored)
                if isinstance(value, _CODE) or id(value) in self._seen:
                    self._common.add(id(value))
                elif kind is not tuple:
                    self._seen.add(id(value))
            if id(value) in self._common:
                self._shared.append(value)
                return (len(self._shared) - 1) * 4 + _SHARED
        self._own.append(value)
        return (len(self._own) - 1) * 4 + _OWN

    # ---- constants -------------------------------------------------------------------------------

    def _dump(self, key: Any) -> bytes:
        """Pickles the constants of the task."""
        if not self._own:
            return b""
        try:
            file = io.BytesIO()
            pickler = pickle.Pickler(file, 5)
            pickler.dispatch_table = self._table
            pickler.dump(self._own)
            data = file.getvalue()
            if b"__main__" not in data:
                return data
        except errors.MillraceError:
            raise
        # Also errors of a __reduce__: cloudpickle may succeed, or raises the error again.
        except Exception:
            pass
        try:
            file = io.BytesIO()
            _ConstantPickler(file, self._reduce_future).dump(self._own)
        except errors.MillraceError:
            raise
        except Exception as e:
            raise errors.SerialisationError(
                f"the constants of task {key!r} cannot be pickled: {type(e).__name__}: {e}"
            ) from e
        return file.getvalue()

    def _store_large(self) -> bool:
        """Stores the constants of the task that are large. Returns whether there are some."""
        values = [v for v in self._own if type(v) not in _SCALARS]
        return any([self._constants.store_if_larger(v, LARGE // max(len(values), 2)) for v in values])

    def _reduce_future(self, future: Future[Any]) -> Any:
        return input_at, (self._input(self._constants.adopted(future)) >> 2,)


class _ConstantPickler(_serialize.CodePickler):
    def __init__(self, file: io.BytesIO, reduce_future: Callable[[Future[Any]], Any]) -> None:
        super().__init__(file, protocol=5)
        self._reduce_future = reduce_future

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Future):
            return self._reduce_future(obj)
        return super().reducer_override(obj)


class _Scope:
    """The nodes inside of a fused task, its arguments by their keys inside, and the places of those
    that were added. `outer`: what lies around the task, in which its arguments have their meaning.
    """

    __slots__ = ("codes", "given", "nodes", "outer")

    def __init__(self, nodes: Mapping[Any, Any], given: Mapping[Any, Any], outer: _Scope | None) -> None:
        self.nodes, self.given, self.outer = nodes, given, outer
        self.codes: dict[Any, Code] = {}


def _arguments(own: bytes, inputs: int, wanted: bool) -> bytes:
    """Returns a serialised Arguments message: the pickle of the task's constants, then all inputs,
    and whether the client reads the result."""
    # Messages of protobuf that are joined are merged.
    return (_own(own) if own else _NO_CONSTANTS) + _inputs(inputs) + (_WANTED if wanted else b"")


def _own(pickled: bytes) -> bytes:
    return value_pb2.Arguments(positional=[value_pb2.Value(bytes_value=pickled)]).SerializeToString()


_NO_CONSTANTS = _own(b"")
_WANTED = value_pb2.Arguments(named={"wanted": value_pb2.Value(bool_value=True)}).SerializeToString()


@functools.lru_cache(1024)
def _inputs(count: int) -> bytes:
    positional = [value_pb2.Value(input=n) for n in range(count)]
    return value_pb2.Arguments(positional=positional).SerializeToString()
