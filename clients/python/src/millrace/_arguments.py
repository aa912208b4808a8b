"""Packs the arguments and options of tasks into the bytes that are sent."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from millrace import _check, _serialize, errors
from millrace._pb.millrace.v1 import value_pb2
from millrace._session import Session
from millrace.future import Future
from millrace.ops import ExecutorOp, NativeOp

#: Pickled arguments larger than this, in bytes, cause a warning: they are sent through the
#: scheduler.
LARGE_ARGUMENTS = 1 << 20
#: Larger ones are refused: they and a full batch of other tasks must fit into one message of 64
#: MiB.
MOST_ARGUMENTS = 40 << 20


class Call:
    """Packs the arguments of one task: futures become inputs."""

    __slots__ = ("_index", "_input_bytes", "_session", "inputs", "kept")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._index: dict[str, int] = {}
        self._input_bytes = 0
        #: Keys of the inputs, in the order in which the arguments refer to them.
        self.inputs: list[str] = []
        #: Futures of this client in place of other clients' futures. They must live until the task
        #: is submitted.
        self.kept: list[Future[Any]] = []

    def reference(self, obj: Any) -> int | None:
        """Returns the index of the input that an argument stands for; None if the argument is no
        future."""
        if isinstance(obj, Key):
            key = obj.key
        elif isinstance(obj, Future):
            key = obj._state.key if obj._session is self._session else self._adopt(obj)
        else:
            return None
        index = self._index.get(key)
        if index is None:
            index = self._index[key] = len(self.inputs)
            self.inputs.append(key)
            self._input_bytes += len(key)
        return index

    def _adopt(self, future: Future[Any]) -> str:
        """Makes a future of another client an input: this client takes a hold on its task. Returns
        the key."""
        theirs, ours = future._session, self._session
        if theirs.life != ours.life or theirs.namespace != ours.namespace:
            error = errors.InvalidRequestError(
                f"future {future.key!r} belongs to a client of another "
                + ("namespace" if theirs.life == ours.life else "cluster")
                + ": pass its result(), or scatter that with this client"
            )
            error.reason = "FOREIGN_FUTURE"
            raise error
        theirs.check_open()
        theirs.flush()
        self.kept.append(Future[Any](ours, ours.hold(future._state.key)))
        return future._state.key

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> bytes:
        """Returns a serialised Arguments message whose `call` is a pickle."""
        if not args and not kwargs:
            return b""
        file = io.BytesIO()
        try:
            _serialize.CallPickler(file, self.reference).dump((args, kwargs))
        except errors.MillraceError:
            raise
        except Exception as e:
            raise errors.SerialisationError(
                f"the arguments of {what} cannot be pickled: {type(e).__name__}: {e}"
            ) from e
        data = file.getvalue()
        _check_size(len(data) + self._input_bytes, what)
        if len(data) > LARGE_ARGUMENTS:
            warnings.warn(
                f"the arguments of {what} are {_check.size(len(data))} and travel through the scheduler: "
                "use client.scatter() and pass the future",
                stacklevel=_check.outside_stacklevel(),
            )
        return value_pb2.Arguments(call=value_pb2.Opaque(encoding="pickle5", data=data)).SerializeToString()

    def pack_typed(self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> bytes:
        """Returns a serialised Arguments message of typed values."""
        arguments = value_pb2.Arguments()
        for place, obj in [*enumerate(args), *kwargs.items()]:
            value = arguments.named[place] if isinstance(place, str) else arguments.positional.add()
            try:
                _serialize.fill_argument(value, obj, self.reference)
            except _serialize.NotPlain:
                raise errors.SerialisationError(
                    f"argument {place} of {what}: {_described(obj)} is no typed value. Plain values, futures, and arrays of at most "
                    f"{_serialize.INLINE_BYTES} bytes are; scatter larger arrays, and convert other dtypes"
                ) from None
        data = arguments.SerializeToString()
        _check_size(len(data) + self._input_bytes, what)
        return data


def _described(obj: Any) -> str:
    name = f"a {type(obj).__module__}.{type(obj).__qualname__}"
    dtype, size = getattr(obj, "dtype", None), getattr(obj, "nbytes", None)
    return name if dtype is None or size is None else f"{name} of {dtype} and {size} bytes"


def _check_size(size: int, what: str) -> None:
    if size > MOST_ARGUMENTS:
        error = errors.InvalidRequestError(
            f"the arguments of {what} are {_check.above(size, MOST_ARGUMENTS, ' with the keys of its inputs')}: "
            "use client.scatter() and pass the future"
        )
        error.reason = "TOO_LARGE"
        raise error


class Key:
    """Stands for the result of a key, given as on the wire: another task in the arguments of a task
    of a dict graph."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


def name_of(function: Any) -> str:
    if isinstance(function, str):
        return (function.rpartition(":")[2] or function)[:64]
    if isinstance(function, (NativeOp, ExecutorOp)):
        return function.name[:64]
    name = getattr(function, "__name__", None) or type(getattr(function, "func", function)).__name__
    return "lambda" if name == "<lambda>" else str(name)[:64]


def plain_names(named: dict[str, Any]) -> dict[str, Any]:
    rules = {"priority", "retries", "workers", "allow_other_workers", "resources", "timeout", "slots", "no_wait"}
    taken = rules & set(named)
    if taken:
        raise TypeError(f"{', '.join(sorted(taken))}: rules go with client.submit(millrace.native(name), ...)")
    return named
