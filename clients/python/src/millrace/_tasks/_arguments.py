"""Packs the arguments and options of tasks into the bytes that are sent."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millrace import _check, errors
from millrace._pb.millrace.v1 import value_pb2
from millrace._session._session import Session
from millrace._values import _serialize
from millrace.future import Future, future_of_state
from millrace.ops import ExecutorOp, NativeOp

#: If the pickled arguments of a task are larger than this, in bytes, those among them that are
#: larger than STORED are stored on workers. The rest is sent through the scheduler.
LARGE_ARGUMENTS = 1 << 20
STORED = 64 << 10
#: Of many arrays that are too large together, those are stored that are larger than this, in bytes.
_SMALL = 1 << 10
#: Larger ones are refused: they and a full batch of other tasks must fit into one message of 64
#: MiB.
MOST_ARGUMENTS = 40 << 20


class Store(Protocol):
    """Stores large arguments on workers: see Constants."""

    def stored(self, value: Any, limit: int) -> str | None: ...

    def store_if_larger(self, value: Any, limit: int) -> bool: ...


class Call:
    """Packs the arguments of one task: futures and large arguments become inputs.

    Args:
        session: the client's.
        store: stores large arguments; None: none is stored.
    """

    __slots__ = ("_index", "_input_bytes", "_limit", "_session", "_store", "inputs", "items", "kept")

    def __init__(self, session: Session, store: Store | None) -> None:
        self._session, self._store = session, store
        # Larger arrays and byte strings among the arguments are stored; 0: none is.
        self._limit = 0
        # The inputs by key and item.
        self._index: dict[tuple[str, int | None], int] = {}
        self._input_bytes = 0
        #: Keys of the inputs, in the order in which the arguments refer to them.
        self.inputs: list[str] = []
        #: The inputs that are items of lists: index of the input, item, length of the list.
        self.items: list[tuple[int, int, int]] = []
        #: Futures of this client in place of other clients' futures. They must live until the task
        #: is submitted.
        self.kept: list[Future[Any]] = []

    def reference(self, obj: Any) -> int | None:
        """Returns the index of the input that an argument stands for; None if the argument is no
        future."""
        item: Item | None = None
        if isinstance(obj, Item):
            item, obj = obj, obj.source
        if isinstance(obj, Key):
            key = obj.key
        elif isinstance(obj, Future):
            if obj.cancelled() and (error := obj._state.exception()) is not None:
                raise error
            obj = obj._as_input()
            key = obj._state.key if obj._session is self._session else self._adopt(obj)
        elif self._limit and self._store is not None and (stored := self._store.stored(obj, self._limit)) is not None:
            key = stored
        else:
            return None
        name = key, None if item is None else item.index
        index = self._index.get(name)
        if index is None:
            index = self._index[name] = len(self.inputs)
            self.inputs.append(key)
            if item is not None:
                self.items.append((index, item.index, item.count))
            self._input_bytes += len(key)
        return index

    def _adopt(self, future: Future[Any]) -> str:
        """Makes a future of another client an input. Returns the key."""
        own = adopt(self._session, future)
        self.kept.append(own)
        return own._state.key

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> bytes:
        """Returns a serialised Arguments message whose `call` is a pickle."""
        if not args and not kwargs:
            return b""
        self._limit = STORED if any(size_of(a) > LARGE_ARGUMENTS for a in (*args, *kwargs.values())) else 0
        data = self._pickled(args, kwargs, what)
        if len(data) > LARGE_ARGUMENTS and not self._limit:
            self._limit = STORED
            self._forget()
            data = self._pickled(args, kwargs, what)
        if len(data) > LARGE_ARGUMENTS and self._store is not None:
            # The bytes are in other objects: lists of texts, data frames.
            if any([self._store.store_if_larger(a, STORED) for a in (*args, *kwargs.values())]):
                self._forget()
                data = self._pickled(args, kwargs, what)
        _check_size(len(data) + self._input_bytes, what)
        return value_pb2.Arguments(call=value_pb2.Opaque(encoding="pickle5", data=data)).SerializeToString()

    def _forget(self) -> None:
        self._index, self.inputs, self.items, self._input_bytes = {}, [], [], 0

    def _pickled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> bytes:
        file = io.BytesIO()
        try:
            _serialize.CallPickler(file, self.reference).dump((args, kwargs))
        except errors.MillraceError:
            raise
        except Exception as e:
            raise errors.SerialisationError(
                f"the arguments of {what} cannot be pickled: {type(e).__name__}: {e}"
            ) from e
        return file.getvalue()

    def pack_typed(self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> bytes:
        """Returns a serialised Arguments message of typed values."""
        self._limit = _serialize.INLINE_BYTES
        data = self._typed(args, kwargs, what)
        if len(data) > LARGE_ARGUMENTS:
            self._limit = _SMALL
            self._forget()
            data = self._typed(args, kwargs, what)
        _check_size(len(data) + self._input_bytes, what)
        return data

    def _typed(self, args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> bytes:
        arguments = value_pb2.Arguments()
        for place, obj in [*enumerate(args), *kwargs.items()]:
            value = arguments.named[place] if isinstance(place, str) else arguments.positional.add()
            try:
                _serialize.fill_argument(value, obj, self.reference)
            except _serialize.NotPlain:
                raise errors.SerialisationError(
                    f"argument {place} of {what}: {_described(obj)} is no typed value. Plain values, futures, and "
                    "arrays of element types that native ops know are: convert other dtypes"
                ) from None
        return arguments.SerializeToString()


def adopt(ours: Session, future: Future[Any]) -> Future[Any]:
    """Returns a future of this client for the task of another client's future: this client takes a
    hold on it."""
    theirs = future._session
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
    return future_of_state(ours, ours.hold(future._state.key))


def _described(obj: Any) -> str:
    name = f"a {type(obj).__module__}.{type(obj).__qualname__}"
    dtype, size = getattr(obj, "dtype", None), getattr(obj, "nbytes", None)
    return name if dtype is None or size is None else f"{name} of {dtype} and {size} bytes"


def _check_size(size: int, what: str) -> None:
    if size > MOST_ARGUMENTS:
        error = errors.InvalidRequestError(
            f"the arguments of {what} are {_check.above(size, MOST_ARGUMENTS, ' with the keys of its inputs')}: "
            "use client.scatter() and pass the futures"
        )
        error.reason = "TOO_LARGE"
        raise error


class Key:
    """Stands for the result of a key, given as on the wire: another task in the arguments of a task
    of a dict graph."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


class Item:
    """Stands for one item of a result that is a list, in the arguments of a task. The worker of the
    task reads only the bytes of this item.

    The list must be one of typed values: a list of up to 256 elements that are data frames, arrays,
    or any objects (see `_values`).

    Args:
        source: the future of the list, or its key.
        index: index of the item, from 0.
        count: length of the list, for estimates of the item's size; 0: unknown.
    """

    __slots__ = ("count", "index", "source")

    def __init__(self, source: Future[Any] | Key, index: int, count: int = 0) -> None:
        if index < 0 or (count and index >= count):
            raise ValueError(f"item {index} of a list of {count or 'unknown length'}: count from 0")
        self.source, self.index, self.count = source, index, count


def size_of(value: Any) -> int:
    """Returns the size of an array or a byte string in bytes; 0 for other objects."""
    if isinstance(value, (bytes, bytearray)):
        return len(value)
    np: Any = sys.modules.get("numpy")
    if np is not None and type(value) is np.ndarray and not value.dtype.hasobject:
        return value.nbytes
    return 0


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
