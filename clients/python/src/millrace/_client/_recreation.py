"""Runs a task in the process of the client."""

from __future__ import annotations

from typing import Any

from millrace import errors
from millrace._connection._steps import run
from millrace._pb.millrace.v1 import task_pb2
from millrace._session._session import Session
from millrace._task_states._state import State
from millrace._values import _keys
from millrace.executor._inputs import Inputs
from millrace.executor._op import Functions, Op

_OF_PYTHON = (task_pb2.OP_KIND_PYTHON_IMPORT, task_pb2.OP_KIND_PYTHON_PICKLE)


def recreate_error(session: Session, state: State) -> Any:
    """Calls the function of the task that failed, with its arguments, in this thread. The task is
    that of the state, or the one among its inputs that failed first."""
    session.wait([state], None)
    if state.error is None or state.state != task_pb2.TASK_STATE_FAILED:
        raise ValueError(f"No errored futures passed: {_keys.from_wire(state.key)!r} has not failed")
    return recreate(session, state.error.origin_key or state.key)


def recreate(session: Session, key: str) -> Any:
    """Calls the function of a task of this client, with its arguments, in this thread."""
    task = session.recent.get(key)
    function = None if task is None else session.functions.get(task[0][2])
    if task is None or (task[0][2] and function is None):
        raise errors.NotFoundError(
            f"{_keys.from_wire(key)!r} is not among the tasks that this client has submitted lately: call its function here"
        )
    (kind, name, digest), inputs, arguments, items = task
    if kind not in _OF_PYTHON:
        raise ValueError(f"{_keys.from_wire(key)!r} runs {name}, which is no function of Python")
    functions = Functions()
    if function is not None:
        payload, language = function
        functions.add(task_pb2.Function(hash=digest, payload=payload, language=language))
    call = Op(task_pb2.Op(kind=kind, name=name, function=digest)).resolve(functions, "of this client")  # pyright: ignore[reportArgumentType]
    values = _values(session, inputs)
    for index, item, _ in items:
        values[index] = values[index][item]
    args, kwargs = Inputs.unpacked(arguments, values)
    return call(*args, **kwargs)


def _values(session: Session, keys: list[str]) -> list[Any]:
    states = session.hold_all(keys)
    try:
        return run(session.fetch(states, None))
    finally:
        for state in states:
            session.release(state)
