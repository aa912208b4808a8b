"""Submits Dask's graphs."""

from __future__ import annotations

import gc
import sys
import threading
import uuid
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from millrace import _mode, errors
from millrace._connection._steps import Steps
from millrace._dask._packer import LARGE, Packer
from millrace._dask._rules import Rules
from millrace._session._session import Session
from millrace._task_states._state import Spec
from millrace._tasks._constants import Constants
from millrace._tasks._task_maker import TaskMaker
from millrace._values import _keys
from millrace.future import Future, future_of_state

#: A constant that is a node of its own and takes at most this number of bytes is copied into the
#: tasks that read it.
_COPIED = 4 << 10


def is_dask_graph(dsk: Any) -> bool:
    """Returns whether a graph has objects of Dask's: an expression, or a dict with nodes, layers or
    futures in it."""
    if not isinstance(dsk, Mapping):
        return hasattr(dsk, "__dask_graph__")
    if hasattr(dsk, "layers"):
        return True
    spec = sys.modules.get("dask._task_spec")
    if spec is None:
        return False
    node: Any = (spec.GraphNode, spec.TaskRef)
    values: Iterable[Any] = dsk.values()
    return any(_has_node(v, node) for v in values)


def _has_node(tree: Any, node: Any) -> bool:
    if isinstance(tree, node):
        return True
    if type(tree) in (tuple, list):
        return any(_has_node(item, node) for item in tree)
    return False


class _Collection:
    """Pauses Python's garbage collector in with blocks that make many objects and no garbage: it
    takes half of their time otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Number of blocks that are being run, and whether the collector was on before the first.
        self._blocks, self._was_on = 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._was_on = gc.isenabled()
                gc.disable()
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks and self._was_on:
                gc.enable()


collector_paused = _Collection()


def materialised(graph: Any) -> tuple[dict[Any, Any], dict[str, dict[Any, Any]]]:
    """Returns the nodes of a graph by key, and the annotations by name and key."""
    from dask._task_spec import convert_legacy_graph
    from dask.utils import ensure_dict

    annotations: dict[str, dict[Any, Any]] = {}
    with collector_paused:
        if hasattr(graph, "__dask_annotations__"):
            annotations = graph.__dask_annotations__()  # NB: before the graph is made, which may drop them
        elif hasattr(graph, "layers"):
            for layer in graph.layers.values():
                for name, value in (layer.annotations or {}).items():
                    annotations.setdefault(name, {}).update({k: value(k) if callable(value) else value for k in layer})
        dsk: Any = ensure_dict(graph if isinstance(graph, Mapping) else graph.__dask_graph__())
        return convert_legacy_graph(dsk), annotations


class Submission:
    """One graph that is submitted.

    Args:
        graph: the graph: nodes by key.
        wanted: the keys whose futures are wanted.
        rules: the options of its tasks.
    """

    def __init__(
        self,
        session: Session,
        maker: TaskMaker,
        graph: dict[Any, Any],
        wanted: Iterable[Hashable],
        rules: Rules,
    ) -> None:
        import dask._task_spec as spec

        self._session, self._maker, self._rules = session, maker, rules
        self._nodes: Any = graph
        self._alias: Any = spec.Alias
        self._data: Any = spec.DataNode
        self._wanted = list(dict.fromkeys(wanted))
        self._token = uuid.uuid4().hex[:12]
        self._constants = Constants(session, maker)
        # Wire keys of the tasks, of stored constants and of results of earlier graphs, by key.
        self._wires: dict[Any, str] = {}

    def put(self) -> Steps[dict[Any, Future[Any]]]:
        """Submits the graph, and returns the futures that are wanted, by key. In the event loop of an
        AsyncClient it waits for nothing: the futures fail if the graph is refused."""
        futures: dict[Any, Future[Any]] = {}
        try:
            with collector_paused:
                specs = self._specs(futures)
            if self._constants.later:
                self._constants.submit(specs)
            else:
                self._session.submit([*self._constants.specs, *specs], wait=True)
                yield from self._constants.write()
        except BaseException as e:
            self._session.abandon([f._state for f in futures.values()], e)
            raise
        kept = list(self._constants.kept.values())
        if kept:
            for future in futures.values():
                future._state.kept = kept
        return futures

    def _specs(self, futures: dict[Any, Future[Any]]) -> list[Spec]:
        """Packs the tasks. Adds the wanted futures to `futures`."""
        tasks, others = self._needed()
        if _mode.distributed:
            for key in tasks:
                _keys.to_wire(key)  # refuses keys that distributed refuses
        self._hold(others)
        for number, key in enumerate(tasks):
            self._wires[key] = _wire(key, self._token, number)
        packer = Packer(self._maker, self._constants, self._wires, self._find)
        for key in self._wanted:
            wire = self._wires[self._target(key)]
            futures[key] = future_of_state(self._session, self._session.state(wire)[0])
        states = {f._state.key: f._state for f in futures.values()}
        specs: list[Spec] = []
        for key in _ordered(tasks):
            wire = self._wires[key]
            packed = packer.pack(key, tasks[key], wire in states)
            specs.append(
                Spec(
                    wire,
                    packed.op,
                    packed.inputs,
                    packed.arguments,
                    self._rules.of(key),
                    states.get(wire),
                    packed.function,
                    items=packed.items,
                )
            )
        return specs

    def _target(self, key: Any) -> Any:
        """Returns the key that an alias stands for in the end."""
        while True:
            node: Any = self._nodes.get(key)
            if not isinstance(node, self._alias) or node.target == key:
                return key
            key = node.target

    def _needed(self) -> tuple[dict[Any, Any], list[Any]]:
        """Returns the tasks that the wanted keys need, without aliases and constants, and the keys
        that the graph does not define."""
        graph, alias, data = self._nodes, self._alias, self._data
        tasks: dict[Any, Any] = {}
        others: dict[Any, None] = {}
        wanted = {self._target(key) for key in self._wanted}
        stack = list(wanted)
        seen = set(stack)
        while stack:
            key = stack.pop()
            node = graph.get(key)
            kind = type(node)
            if kind is alias:
                below: Iterable[Any] = () if node.target == key else (node.target,)
                if node.target == key:
                    others[key] = None
            elif node is None:
                others[key] = None
                below = ()
            elif kind is data and key not in wanted:
                below = ()
            else:
                tasks[key] = node
                below = node.dependencies
            for other in below:
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return tasks, list(others)

    def _hold(self, keys: list[Any]) -> None:
        """Finds the results of earlier graphs: those of persisted collections."""
        if not keys:
            return
        wires: dict[Any, str] = {}
        for key in keys:
            try:
                wires[key] = _keys.to_wire(key)
            except (TypeError, ValueError):
                raise KeyError(f"key {key!r} is not in the graph") from None
        try:
            states = self._session.hold_all(list(wires.values()))
        except errors.NotFoundError as e:
            raise KeyError(
                f"the graph has no task {keys[0]!r}{' and others' if len(keys) > 1 else ''}, and no future holds such a result: "
                f"{e}"
            ) from None
        for key, state in zip(wires, states, strict=True):
            self._wires[key] = self._constants.adopted(future_of_state(self._session, state))

    def _find(self, key: Any) -> Any:
        """Returns the wire key of a task, or a small constant: see Packer."""
        target = self._target(key)
        wire = self._wires.get(target)
        if wire is None:
            node = self._nodes[target]
            if self._constants.store_if_larger(node.value, _COPIED):
                wire = self._constants.stored(node.value, LARGE)
                assert wire is not None
            else:
                return node
        self._wires[key] = wire
        return wire


def _wire(key: Any, token: str, number: int) -> str:
    """Is `_keys.marked`, faster for the keys that Dask makes."""
    if type(key) is tuple and key and type(key[0]) is str:
        text = "=" + repr((f"{key[0]}-{token}", *key[1:]))
        if text.isascii() and len(text) <= 512 and all(type(k) is int or type(k) is str for k in key):
            return text
    return _keys.marked(key, token, number)


def _ordered(tasks: dict[Any, Any]) -> list[Any]:
    """Returns the keys in the order in which the tasks shall run."""
    from dask.order import order

    if len(tasks) < 2:
        return list(tasks)
    places = order(tasks)
    return sorted(tasks, key=places.__getitem__)
