"""Dict graphs: tasks that refer to each other by the keys of a dict."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Hashable, Mapping
from typing import Any, cast

from millrace._session._session import Session
from millrace._task_states._state import Spec, State
from millrace._tasks._arguments import Call, Key
from millrace._tasks._constants import Constants
from millrace._tasks._nested import Nested, has_nested, identity, is_task, run_nested
from millrace._tasks._task_maker import TaskMaker
from millrace._values import _keys
from millrace.future import Future, future_of_state
from millrace.ops import ExecutorOp, NativeOp


def submit_graph(
    session: Session, maker: TaskMaker, dsk: Mapping[Hashable, Any], keys: Any, options: bytes
) -> dict[Hashable, Future[Any]]:
    """Submits a dict graph as a whole. Returns the futures of the keys that are wanted."""
    if not isinstance(dsk, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"dsk must be a dict of tasks by key, not a {type(dsk).__module__}.{type(dsk).__qualname__}")
    token = uuid.uuid4().hex[:12]
    names = {k: _keys.marked(k, token, n) for n, k in enumerate(dsk)}
    futures: dict[Hashable, Future[Any]] = {}
    specs: list[Spec] = []
    constants = Constants(session, maker)
    try:
        _wanted(keys, names, session, futures)
        for k, v in dsk.items():
            future = futures.get(k)
            specs.append(
                _spec(session, maker, k, v, names, None if future is None else future._state, options, constants)
            )
        constants.put()
        session.submit(specs, wait=True)
    except BaseException as e:
        session.abandon([f._state for f in futures.values()], e)
        raise
    return futures


def _spec(
    session: Session,
    maker: TaskMaker,
    key: Hashable,
    body: Any,
    names: Mapping[Any, str],
    state: State | None,
    options: bytes,
    constants: Constants,
) -> Spec:
    call = Call(session, constants)
    node = getattr(sys.modules.get("dask._task_spec"), "GraphNode", ())
    if is_task(body) and not isinstance(body[0], node):
        func, args = body[0], tuple(_converted(a, key, names, node) for a in body[1:])
        nested = any(has_nested(a) for a in args)
    else:
        func, args, nested = identity, (_converted(body, key, names, node),), False
    if nested and isinstance(func, (NativeOp, ExecutorOp)):
        raise TypeError(f"task {key!r}: {func.name} takes no nested tasks: give them keys of their own")
    if nested:
        func, args = run_nested, (Nested(func, list(args)),)
    typed = isinstance(func, (NativeOp, ExecutorOp))
    arguments = (call.pack_typed if typed else call.pack)(args, {}, f"task {key!r}")
    op, function = maker.op(func)
    return Spec(names[key], op, call.inputs, arguments, options, state, function, call.kept, call.items)


def _wanted(tree: Any, names: Mapping[Any, str], session: Session, futures: dict[Hashable, Future[Any]]) -> None:
    """Adds a future to `futures` for each key of a dict graph in nested lists of keys. `names`: the
    tasks of the graph."""
    if isinstance(tree, list):
        for item in cast("list[Any]", tree):
            _wanted(item, names, session, futures)
    elif tree not in names:
        raise KeyError(f"key {tree!r} is not in the graph")
    elif tree not in futures:
        futures[tree] = future_of_state(session, session.state(names[tree])[0])


def by_key(tree: Any, values: Mapping[Hashable, Any]) -> Any:
    """Returns the same nested lists with values in place of the keys."""
    if isinstance(tree, list):
        return [by_key(item, values) for item in cast("list[Any]", tree)]
    return values[tree]


def flat(keys: Any) -> list[Any]:
    """Returns nested lists of keys as one list."""
    if not isinstance(keys, list):
        return [keys]
    return [k for item in cast("list[Any]", keys) for k in flat(item)]


def _converted(tree: Any, task: Hashable, names: Mapping[Any, str], node: Any) -> Any:
    """Returns an argument of a task in a dict graph, with a `Key` for each key of the graph and a
    `Nested` for each task inside of it. `node`: the class of Dask's own tasks."""
    if isinstance(tree, node) or (type(tree) is tuple and tree and isinstance(tree[0], node)):
        kind = type(tree[0] if type(tree) is tuple else tree)
        raise TypeError(
            f"task {task!r} is, or holds, a {kind.__module__}.{kind.__qualname__}: get() runs graphs of tuples, "
            '{"y": (function, "x")}, and none of Dask\'s Task objects'
        )
    if is_task(tree):
        return Nested(tree[0], [_converted(a, task, names, node) for a in tree[1:]])
    if type(tree) is list:
        return [_converted(item, task, names, node) for item in tree]
    try:
        return Key(names[tree]) if tree in names else tree
    except TypeError:  # not hashable: a constant
        return tree
