"""How Python objects become objects of the cluster, and back.

An object is a header (a serialised ``Value``) and frames (contiguous bytes). The ladder, first match wins:

1. None, bool, int of 64 bits, float, complex, str and small bytes: typed values that every language reads.
2. NumPy arrays of supported element types: tensors, one frame each, that native ops and Go read. NumPy scalars: the same
   with no axes. Lists and string-keyed dicts of 1 and 2: typed lists and maps, up to `PLAIN_LIMIT` leaves.
3. Everything else: pickle protocol 5, buffers out of band (pandas, Arrow, torch on the host, ...). What plain pickle does
   not take, or would only store a reference into ``__main__`` for, cloudpickle does.

Whoever decodes gets views of the frames: read-only if the frames are.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from millrace._pb.millrace.v1 import value_pb2

#: Largest byte string that travels in a header, in bytes; also the largest in-band pickle.
INLINE_BYTES = 64 << 10
#: Most leaves of a list or dict that travels as typed values.
PLAIN_LIMIT = 256

_DTYPES: dict[np.dtype[Any], int] = {
    np.dtype(np.bool_): value_pb2.DTYPE_BOOL,
    np.dtype(np.uint8): value_pb2.DTYPE_UINT8,
    np.dtype(np.int32): value_pb2.DTYPE_INT32,
    np.dtype(np.int64): value_pb2.DTYPE_INT64,
    np.dtype(np.float32): value_pb2.DTYPE_FLOAT32,
    np.dtype(np.float64): value_pb2.DTYPE_FLOAT64,
    np.dtype(np.complex64): value_pb2.DTYPE_COMPLEX64,
    np.dtype(np.complex128): value_pb2.DTYPE_COMPLEX128,
}
_NUMPY: dict[int, np.dtype[Any]] = {v: k for k, v in _DTYPES.items()}
_INT64 = range(-(1 << 63), 1 << 63)


class NotPlain(Exception):
    """The object is no typed value: use the next rung."""


class Encoded:
    """One object, ready to be sent."""

    __slots__ = ("frames", "header")

    def __init__(self, header: bytes, frames: list[memoryview]) -> None:
        self.header = header
        self.frames = frames

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return sum(f.nbytes for f in self.frames)


class _Frames:
    """Collects frames while a value is built."""

    __slots__ = ("leaves", "list")

    def __init__(self) -> None:
        self.list: list[memoryview] = []
        self.leaves = 0


def _bytes_view(buffer: Any) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _fill(
    value: value_pb2.Value, obj: Any, frames: _Frames, reference: Callable[[Any], int | None] | None = None
) -> None:
    """Writes a typed value, or raises NotPlain. With `reference` it is an argument: arrays travel inside of the value,
    tuples are lists, and what has a reference becomes an input."""
    small = reference is not None
    if reference is not None and (index := reference(obj)) is not None:
        value.input = index
        return
    frames.leaves += 1
    kind = type(obj)
    if obj is None:
        value.null_value = value_pb2.NULL_VALUE_UNSPECIFIED
    elif kind is bool:
        value.bool_value = obj
    elif kind is int and obj in _INT64:
        value.int_value = obj
    elif kind is float:
        value.double_value = obj
    elif kind is str:
        if len(obj) > INLINE_BYTES:
            raise NotPlain
        try:
            value.string_value = obj
        except (UnicodeEncodeError, ValueError):  # lone surrogates
            raise NotPlain from None
    elif kind is bytes and len(obj) <= INLINE_BYTES:
        value.bytes_value = obj
    elif kind is complex:
        value.complex_value.real, value.complex_value.imaginary = obj.real, obj.imag
    elif (kind is np.ndarray and obj.ndim > 0) or isinstance(obj, np.generic):
        array = np.asarray(obj)
        dtype = _DTYPES.get(array.dtype)
        if dtype is None:
            raise NotPlain
        tensor = value.tensor_value
        tensor.dtype = dtype  # pyright: ignore[reportAttributeAccessIssue]
        tensor.shape.extend(array.shape)
        if array.size:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            if small or (array.ndim == 0 and kind is not np.ndarray):
                if data.nbytes > INLINE_BYTES:
                    raise NotPlain
                tensor.inline_data = bytes(data)
            else:
                tensor.frame = len(frames.list)
                frames.list.append(data)
    elif kind is list or (small and kind is tuple):
        if not small and frames.leaves + len(obj) > PLAIN_LIMIT:
            raise NotPlain
        value.list_value.SetInParent()
        for item in obj:
            _fill(value.list_value.values.add(), item, frames, reference)
    elif kind is dict:
        if not small and frames.leaves + len(obj) > PLAIN_LIMIT:
            raise NotPlain
        value.map_value.SetInParent()
        for key, item in obj.items():
            if type(key) is not str:
                raise NotPlain
            _fill(value.map_value.fields[key], item, frames, reference)
    else:
        raise NotPlain


def fill_argument(value: value_pb2.Value, obj: Any, reference: Callable[[Any], int | None]) -> None:
    """Writes an argument of a native op: what `reference` gives an index for becomes an input. Raises NotPlain."""
    if isinstance(obj, np.dtype) or (isinstance(obj, type) and issubclass(obj, np.generic)):
        obj = np.dtype(obj).name
    _fill(value, obj, _Frames(), reference)


def dumps(obj: Any, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickles by protocol 5, buffers out of band into `buffers` if it is given. What would otherwise be a reference into
    ``__main__`` goes by value."""
    callback = None if buffers is None else buffers.append
    try:
        data = pickle.dumps(obj, protocol=5, buffer_callback=callback)
        if b"__main__" not in data:
            return data
    except Exception:  # whatever a __reduce__ raises: cloudpickle may know better, and else names the trouble
        pass
    if buffers is not None:
        buffers.clear()
    return cloudpickle.dumps(obj, protocol=5, buffer_callback=callback)


def encode(obj: Any) -> Encoded:
    """Encodes a result or a scattered object. Raises what pickling it raises."""
    frames = _Frames()
    value = value_pb2.Value()
    try:
        _fill(value, obj, frames)
        return Encoded(value.SerializeToString(), frames.list)
    except NotPlain:
        pass
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(obj, buffers)
    opaque = value_pb2.Opaque(encoding="pickle5", type_name=_type_name(obj))
    out: list[memoryview] = []
    if len(data) <= INLINE_BYTES:
        opaque.data = data
    else:
        out.append(memoryview(data))
    for buffer in buffers:
        try:
            out.append(_bytes_view(buffer.raw()))
        except BufferError:  # not contiguous
            out.append(memoryview(bytes(buffer)))
    opaque.frames.extend(range(len(out)))
    return Encoded(value_pb2.Value(opaque_value=opaque).SerializeToString(), out)


def _type_name(obj: Any) -> str:
    kind = type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"[:256]


def decode(header: bytes, frames: Sequence[memoryview]) -> Any:
    """Decodes an object. The result shares memory with the frames."""
    if not header:
        return None
    return from_value(value_pb2.Value.FromString(header), frames, ())


def from_value(value: value_pb2.Value, frames: Sequence[memoryview], inputs: Sequence[Any]) -> Any:
    """Python object of a value; `input` leaves become elements of `inputs`."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "tensor_value":
        return _array(value.tensor_value, frames)
    if kind == "opaque_value":
        return from_opaque(value.opaque_value, frames)
    if kind == "list_value":
        return [from_value(v, frames, inputs) for v in value.list_value.values]
    if kind == "map_value":
        return {k: from_value(v, frames, inputs) for k, v in value.map_value.fields.items()}
    if kind == "complex_value":
        return complex(value.complex_value.real, value.complex_value.imaginary)
    if kind == "input":
        return inputs[value.input]
    return getattr(value, kind)


def _array(tensor: value_pb2.Tensor, frames: Sequence[memoryview]) -> Any:
    dtype = _NUMPY.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"tensor of unknown element type {tensor.dtype}: this client is older than the cluster")
    shape = tuple(tensor.shape)
    where = tensor.WhichOneof("location")
    if where is None:
        return np.empty(shape, dtype)
    data = frames[tensor.frame] if where == "frame" else tensor.inline_data
    if tensor.strides:
        array = np.ndarray(shape, dtype, data, tensor.offset_bytes, tuple(tensor.strides))
    else:
        array = np.ndarray(shape, dtype, data, tensor.offset_bytes)
    return array if shape else array[()]


def from_opaque(opaque: value_pb2.Opaque, frames: Sequence[memoryview]) -> Any:
    """Unpickles a payload."""
    if opaque.encoding != "pickle5":
        raise ValueError(f"payload of encoding {opaque.encoding!r}: only pickle5 can be read by Python")
    own = [frames[i] for i in opaque.frames]
    if opaque.data:  # a pickle is never empty
        return pickle.loads(opaque.data, buffers=own)
    return pickle.loads(own[0], buffers=own[1:])


class CallPickler(cloudpickle.Pickler):
    """Pickles (args, kwargs); what `reference` returns an index for becomes the persistent id ("input", index)."""

    def __init__(self, file: io.BytesIO, reference: Callable[[Any], int | None]) -> None:
        super().__init__(file, protocol=5)
        self._reference = reference

    def persistent_id(self, obj: Any) -> Any:
        index = self._reference(obj)
        return None if index is None else ("input", index)


class CallUnpickler(pickle.Unpickler):
    """Reads what CallPickler wrote."""

    def __init__(self, data: bytes, inputs: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._inputs = inputs

    def persistent_load(self, pid: Any) -> Any:
        kind, index = pid
        if kind != "input":
            raise pickle.UnpicklingError(f"unknown persistent id {pid!r} in a call")
        return self._inputs[index]
