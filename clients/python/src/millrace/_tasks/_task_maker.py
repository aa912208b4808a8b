"""Makes tasks from the calls of users."""

from __future__ import annotations

import hashlib
import uuid
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import cloudpickle

from millrace import _check, errors
from millrace._pb.millrace.v1 import task_pb2
from millrace._session._session import Session
from millrace._task_states._state import Function, OpKey, Spec, State
from millrace._tasks._arguments import Call, Store, name_of
from millrace._values import _keys, _serialize
from millrace._values._keys import UserKey
from millrace.ops import ExecutorOp, NativeOp

#: Largest pickle of a function, in bytes.
_MOST_FUNCTION = 32 << 20
#: A pickle of a function that is larger is sent with a warning, in bytes.
_LARGE_FUNCTION = 10_000_000


class TaskMaker:
    """Pickles functions and arguments, and names the tasks that call them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Functions that were pickled, with the op that calls each.
        self._pickled: weakref.WeakKeyDictionary[Any, OpKey] = weakref.WeakKeyDictionary()
        # Modules that cloudpickle was told to pickle by value, as of the last pickled function.
        self._by_value: set[str] = set()

    def spec(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: UserKey | None,
        pure: bool,
        options: bytes,
        store: Store | None,
        known: tuple[OpKey, Function | None] | None = None,
        prefix: str = "",
        what: str = "",
    ) -> tuple[Spec | None, State]:
        """Makes the task of a call; None if this client has submitted it already. `store` takes
        large arguments. `known` is the result of `op(func)`. `prefix`: the beginning of a key that
        is made; empty: the name of the function. `what`: the name of the call in errors about its
        arguments; empty: that of the function."""
        wire = None if key is None else _keys.to_wire(key)
        op, function = known or self.op(func)
        call = Call(self._session, store)
        name = name_of(func)
        typed = isinstance(func, (NativeOp, ExecutorOp))
        arguments = (call.pack_typed if typed else call.pack)(args, kwargs, what or name)
        body = _token(op, arguments, call) if pure or wire is not None else uuid.uuid4().hex
        if wire is None:
            wire, body = _keys.to_wire(f"{prefix or name}-{body}"), ""
        return self._known(wire, body, op, function, call, arguments, options)

    def _known(
        self,
        key: str,
        body: str,
        op: OpKey,
        function: Function | None,
        call: Call,
        arguments: bytes,
        options: bytes,
    ) -> tuple[Spec | None, State]:
        state, new = self.state_of(key, body)
        if new:
            state.body = body
        elif body and state.body and body != state.body:
            self._session.release(state)
            state = State(key)
            state.failure = conflict(key, "a task that this client submitted with another function or other arguments")
        if not new:
            return None, state
        return Spec(key, op, call.inputs, arguments, options, state, function, call.kept, call.items), state

    def state_of(self, key: str, body: str, *, data: bool = False) -> tuple[State, bool]:
        """As `Session.state`. If another task of this client has the key, or a failed one whose
        futures are all released, the queued releases are sent first."""
        state, new = self._session.state(key, data=data)
        if not new and ((body and state.body and body != state.body) or state.failed_and_released()):
            self._session.release(state)
            self._session.flush()
            state, new = self._session.state(key, data=data)
        return state, new

    def op(self, func: Any) -> tuple[OpKey, Function | None]:
        """Returns the op that calls a function, and its pickle if it is sent by value."""
        if isinstance(func, NativeOp):
            return (task_pb2.OP_KIND_NATIVE, _check.text(func.name, "op", 512), b""), None
        if isinstance(func, ExecutorOp):
            return (task_pb2.OP_KIND_EXEC, _check.text(func.name, "op", 512), b""), None
        if isinstance(func, str):
            if ":" not in func:
                raise ValueError(f"{func!r} is no import path: write package.module:function, or use millrace.native()")
            return (task_pb2.OP_KIND_PYTHON_IMPORT, _check.text(func, "func", 512), b""), None
        if not callable(func):
            raise TypeError(f"{func!r:.100} cannot be called: give a function, and then its arguments")
        by_value = cloudpickle.list_registry_pickle_by_value()
        if by_value != self._by_value:  # the pickles may be different now
            self._by_value = by_value
            self._pickled.clear()
        try:
            known = self._pickled.get(func)
        except TypeError:  # neither hashable nor weakly referable: pickled each time
            known = None
        if known is not None:
            function = self._session.functions.get(known[2])
            if function is not None:
                return known, function
        op, function = self.pickled(func, name_of(func))
        try:
            self._pickled[func] = op
        except TypeError:
            pass
        return op, function

    def pickled(self, func: Any, name: str) -> tuple[OpKey, Function]:
        """Returns the op that calls a function which is sent by value, and its pickle. `name`:
        shown to people."""
        try:
            function = _serialize.dump_function(func)
        except Exception as e:
            raise errors.SerialisationError(
                f"function {name} cannot be pickled: {type(e).__name__}: {e}. "
                "Does it refer to a lock, a file or a connection? Make them inside of it. "
                "To use a client there, call millrace.get_client() inside of it"
            ) from e
        if len(function[0]) > _MOST_FUNCTION:
            error = errors.InvalidRequestError(
                f"function {name} takes {_check.above(len(function[0]), _MOST_FUNCTION, ' pickled')}: "
                "it refers to data; scatter that and pass the future as an argument"
            )
            error.reason = "TOO_LARGE"
            raise error
        if len(function[0]) > _LARGE_FUNCTION:
            warnings.warn(
                f"Sending large graph of size {_check.size(len(function[0]))}: function {name} refers to data, which are sent with "
                "it. Scatter them, and pass the future as an argument",
                UserWarning,
                stacklevel=_check.outside_stacklevel(),
            )
        digest = hashlib.sha256(function[0]).digest()
        self._session.functions.add(digest, function)
        return (task_pb2.OP_KIND_PYTHON_PICKLE, name, digest), function


def _token(op: OpKey, arguments: bytes, call: Call) -> str:
    digest = hashlib.blake2b(op[1].encode() + op[2] + b"\0", digest_size=16)
    digest.update(arguments)
    for key in call.inputs:
        digest.update(b"\0" + key.encode())
    for input_index, item, _ in call.items:
        digest.update(f"\0{input_index}:{item}".encode())
    return digest.hexdigest()


def conflict(key: str, other: str) -> errors.InvalidRequestError:
    """Returns the error for a key that names something else already."""
    error = errors.InvalidRequestError(
        f"key {_keys.from_wire(key)!r} is taken by {other}: choose another key, or release the futures of the first one "
        "[KEY_CONFLICT]"
    )
    error.reason = "KEY_CONFLICT"
    return error


def map_keys(key: Any, count: int) -> list[Any]:
    """Returns the keys of the calls of a `map`. `key`: a prefix, a list of keys, or None."""
    if key is None:
        return [None] * count
    if isinstance(key, str):
        return [f"{key}-{n}" for n in range(count)]
    if isinstance(key, (bytes, int, float)):
        return [(key, n) for n in range(count)]
    own = list(key)
    if len(own) != count:
        raise ValueError(f"map of {count} elements got {len(own)} keys: give one for each, or a prefix")
    for n, one in enumerate(own):
        _keys.to_wire(one, f"key[{n}]")
    return own
