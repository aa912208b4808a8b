"""Converts Python objects to objects of the cluster and back.

An object is a header (a serialised ``Value``) and frames (contiguous bytes). There are four
encodings, and the first that fits is used:

1. None, bool, int of 64 bits, float, complex, str and small bytes: typed values that every
   language reads.
2. NumPy arrays of supported element types: tensors, one frame each, which native ops and Go read.
   NumPy scalars: tensors without axes. Lists and string-keyed dicts of 1 and 2: typed lists and
   maps, up to `PLAIN_LIMIT` leaves. A map stores the order of its keys, unless they are sorted.
3. Data frames, alone or in lists and dicts of 1 and 2. Tables of Arrow and frames of Polars are
   typed tables, which native ops and Go read, with one frame each. Frames of pandas are pickles as
   in 4, because not all of their types are Arrow's. Objects of cuDF are the frames of their
   `device_serialize`, which stay on the GPU. Both have a description that every language reads.
4. Everything else, also dicts with other keys: pickle protocol 5, with large buffers out of band
   (torch and JAX on the host, ...). If plain pickle fails, or would only store a reference into
   ``__main__``, cloudpickle is used.

An array whose memory has no gaps, in C or in Fortran order, is put into a frame without a copy. An
array with gaps is copied once, when its frame is written.

Arrays on a GPU (CuPy, torch, and other types with ``__cuda_array_interface__``) are encoded as the
same tensors, and as the same parts of pickles, as arrays of NumPy. An executor whose slab lies on
that GPU stores them there, without reading the elements. Every other process copies them to the
host, so that the decoder gets NumPy arrays.

Decoding makes views of the frames. Tasks decode with `readonly`: every array is read-only, also if
its elements are in the header. A client decodes private copies of the frames, and may write to all
arrays.
"""

from __future__ import annotations

import collections
import copyreg
import importlib
import io
import math
import pickle
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import cloudpickle

from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _arrays, _arrow, _cudf, _numpy, _source, _tables
from millrace._values._arrays import DeviceFrame, DeviceView
from millrace._values._arrow import TableFrame

if TYPE_CHECKING:
    import numpy as np

    from millrace._values._device import Device

    #: Bytes without gaps, or an object that is copied later by `write` or by the device.
    Frame = memoryview | np.ndarray[Any, Any] | TableFrame | DeviceFrame

# NumPy is imported only when there is an array: this halves the start-up time of an executor.

#: The most bytes of text, byte strings and dict keys in one header, and the size of the largest
#: pickle inside a header. Larger data are put into frames: frames count against a worker's memory,
#: can be spilled, and are sent separately from the header.
INLINE_BYTES = 64 << 10
#: Most bytes of the descriptions of all tables in the lists and dicts of one header, and of the
#: description of one table alone. Further tables are pickled.
TABLES_BYTES, TABLE_BYTES = 256 << 10, 8 << 20
#: Smallest buffer of a pickle that gets a frame of its own, in bytes.
OUT_OF_BAND_BYTES = 4 << 10
#: Most leaves of a list or dict that is encoded as typed values.
PLAIN_LIMIT = 256
#: Deepest nesting of lists and dicts that is encoded as typed values. Protobuf parsers accept 100
#: nested messages, and each dict takes three levels.
DEPTH_LIMIT = 30

#: The encodings of payloads that Python reads.
_ENCODINGS = ("pickle5", "cudf")
#: NumPy's limit.
_MOST_AXES = 64

_NAMES = {
    "bool": value_pb2.DTYPE_BOOL,
    "uint8": value_pb2.DTYPE_UINT8,
    "int32": value_pb2.DTYPE_INT32,
    "int64": value_pb2.DTYPE_INT64,
    "float32": value_pb2.DTYPE_FLOAT32,
    "float64": value_pb2.DTYPE_FLOAT64,
    "complex64": value_pb2.DTYPE_COMPLEX64,
    "complex128": value_pb2.DTYPE_COMPLEX128,
}
# Maps between NumPy element types and DTYPE numbers, in both directions. Filled at the first array,
# because that imports NumPy.
_DTYPES: dict[Any, int] = {}
_NUMPY: dict[int, Any] = {}
_INT64 = range(-(1 << 63), 1 << 63)


def _dtypes() -> dict[Any, int]:
    if not _DTYPES:
        import numpy as np

        _NUMPY.update((number, np.dtype(name)) for name, number in _NAMES.items())
        _DTYPES.update((dtype, number) for number, dtype in _NUMPY.items())
    return _DTYPES


class NotPlain(Exception):
    """The object cannot be a typed value: use the next encoding."""


class Encoded:
    """One encoded object."""

    __slots__ = ("frames", "header")

    def __init__(self, header: bytes, frames: list[Any]) -> None:
        self.header = header
        #: The frames: memoryviews; also arrays and TableFrames after `encode(strided=True)`, and
        #: DeviceFrames with a device.
        self.frames = frames

    @property
    def nbytes(self) -> int:
        """Total bytes of all frames."""
        return sum(f.nbytes for f in self.frames)


class Items(list[Any]):
    """A result of which other tasks read single items (see `_tasks._arguments.Item`). Each element
    is encoded for itself, with frames of its own. It is decoded as a list."""


class _Frames:
    """Collects frames while a value is built."""

    __slots__ = ("counts", "device", "known", "leaves", "list", "room", "root", "strided", "tables")

    def __init__(self, strided: bool = False, device: Device | None = None) -> None:
        self.list: list[Frame] = []
        self.leaves = 0
        #: Bytes of text and byte strings that still fit into the header.
        self.room = INLINE_BYTES
        #: Bytes of the descriptions of tables in lists and dicts that still fit.
        self.tables = TABLES_BYTES
        self.strided = strided
        self.device = device
        #: The object that is encoded. Its first data frame sets it to None.
        self.root: Any = None
        #: True: the tree is only checked, and no data frame is encoded.
        self.counts = False
        #: Data frames that were encoded, by their id: a tree may have one several times.
        self.known: dict[int, value_pb2.Value] = {}


def _fill(
    value: value_pb2.Value,
    obj: Any,
    frames: _Frames,
    reference: Callable[[Any], int | None] | None = None,
    depth: int = 0,
) -> None:
    """Writes an object as a typed value, or raises NotPlain.

    With `reference` the object is an argument: arrays are stored inside of the value, tuples become
    lists, an object with a reference becomes an input, and there is no limit per argument but only
    one on all arguments together, which the caller checks.
    """
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
        _take(frames, obj)
        try:
            value.string_value = obj
        except (UnicodeEncodeError, ValueError):  # lone surrogates
            raise NotPlain from None
    elif kind is bytes:
        _take(frames, obj)
        value.bytes_value = obj
    elif kind is complex:
        value.complex_value.real, value.complex_value.imaginary = obj.real, obj.imag
    elif _is_array(obj, kind, without_axes=small):
        _fill_tensor(value, obj, frames, small)
    elif kind is list or (small and kind is tuple):
        if depth == DEPTH_LIMIT or (not small and frames.leaves + len(obj) > PLAIN_LIMIT and not _only_tables(obj)):
            raise NotPlain
        value.list_value.SetInParent()
        for item in obj:
            _fill(value.list_value.values.add(), item, frames, reference, depth + 1)
    elif kind is dict:
        if depth == DEPTH_LIMIT or (not small and frames.leaves + len(obj) > PLAIN_LIMIT):
            raise NotPlain
        fields = value.map_value
        fields.SetInParent()
        last = ""
        ordered = False
        for key, item in obj.items():
            if type(key) is not str:
                raise NotPlain
            if not small:
                _take(frames, key)
            try:
                field = fields.fields[key]
            except (UnicodeEncodeError, ValueError):  # lone surrogates
                raise NotPlain from None
            _fill(field, item, frames, reference, depth + 1)
            ordered = ordered or key < last
            last = key
        if ordered:
            if not small:
                for key in obj:
                    _take(frames, key)
            fields.order.extend(obj)
    elif (library := _tables.library_of(kind)) and not (small and library == "cudf"):
        if small:
            raise NotPlain
        frames.leaves -= 1  # it is as large as it likes
        if not frames.counts:
            _fill_table(value, obj, library, frames, depth)
    elif (view := _arrays.view_of(obj)) is not None:
        _fill_view(value, view, frames, small)
    else:
        raise NotPlain


def _only_tables(items: list[Any]) -> bool:
    return all(_tables.library_of(type(item)) for item in items)


def _fill_table(value: value_pb2.Value, obj: Any, library: str, frames: _Frames, depth: int) -> None:
    """Writes a data frame."""
    known = frames.known.get(id(obj))
    if known is not None:
        value.CopyFrom(known)
        return
    root, frames.root = frames.root, None
    if root is not None and root is not obj:
        # Before the work is done: does the rest of the tree fit?
        check = _Frames(strided=True)
        check.counts = True
        _fill(value_pb2.Value(), root, check)
    frames.known[id(obj)] = value
    made = _tables.arrow_of(library, obj) if library in ("pyarrow", "polars") else None
    if made is not None and _fill_arrow(value, obj, made, library, frames, depth):
        return
    opaque = value.opaque_value
    if library == "cudf":
        opaque.encoding, opaque.type_name = "cudf", _type_name(obj)
        _put(opaque, *_cudf.take_apart(obj, frames.device is not None), frames)
    else:
        _fill_pickle(opaque, obj if made is None else _tables.Restored(made, _type_name(obj)), frames)
        opaque.type_name = _type_name(obj)
    _tables.describe(opaque.table, library, obj, columns=not depth)


def _fill_arrow(value: value_pb2.Value, obj: Any, made: Any, library: str, frames: _Frames, depth: int) -> bool:
    """Writes a data frame as a table, which was made of it; returns whether it can be one."""
    table = value_pb2.Table(type_name=_type_name(obj))
    frame = _arrow.fill(table, made, len(frames.list))
    if frame is None:
        return False
    _tables.describe(table, library, obj, columns=not depth)
    size = table.ByteSize()
    if size > (frames.tables if depth else TABLE_BYTES):
        return False
    if depth:
        frames.tables -= size
    if frame.nbytes:
        frames.list.append(frame if frames.strided and frames.device is None else frame.view())
    value.table_value.CopyFrom(table)
    return True


def _take(frames: _Frames, text: str | bytes) -> None:
    """Counts the bytes of a text against the limit of the header; raises NotPlain if they do not
    fit."""
    size = len(text)
    if type(text) is str and size <= frames.room and not text.isascii():
        size = len(text.encode("utf-8", "replace"))
    if size > frames.room:
        raise NotPlain
    frames.room -= size


def _fill_view(value: value_pb2.Value, view: DeviceView, frames: _Frames, small: bool) -> None:
    """Writes a tensor whose elements are on a GPU."""
    dtype = _NAMES.get(view.dtype)
    if dtype is None:
        raise NotPlain
    if frames.counts:
        return
    device, size = frames.device, view.nbytes
    if device is None or small or not view.shape or size <= device.inline_bytes:
        host = _on_host(view, device)
        if host is None:
            raise NotPlain
        _fill_tensor(value, host, frames, small or device is not None)
        return
    tensor = value.tensor_value
    tensor.dtype = dtype  # pyright: ignore[reportAttributeAccessIssue]
    tensor.shape.extend(view.shape)
    tensor.frame = len(frames.list)
    order = view.order
    if order == "F":
        tensor.strides.extend(view.strides)
    frames.list.append(DeviceFrame(view, gaps=not order))


def _on_host(view: DeviceView, device: Device | None) -> Any:
    """Returns a NumPy copy; None if NumPy has no such element type."""
    if device is None or view.dtype not in _NAMES:
        return _arrays.to_host(view)
    _dtypes()
    return device.fetch(view, _NUMPY[_NAMES[view.dtype]])


def _is_array(obj: Any, kind: type, without_axes: bool) -> bool:
    """Returns whether the object is a NumPy array or a NumPy scalar. A result that is an array
    without axes does not count, because it would be read back as a scalar; an argument does."""
    np = _numpy.loaded()  # without NumPy there can be no array
    return np is not None and ((kind is np.ndarray and (without_axes or obj.ndim > 0)) or isinstance(obj, np.generic))


def _fill_tensor(value: value_pb2.Value, obj: Any, frames: _Frames, small: bool) -> None:
    import numpy as np

    array = np.asarray(obj)
    dtype = _dtypes().get(array.dtype)
    if dtype is None:
        raise NotPlain
    tensor = value.tensor_value
    tensor.dtype = dtype  # pyright: ignore[reportAttributeAccessIssue]
    tensor.shape.extend(array.shape)
    if not array.size:
        return
    if small or array.ndim == 0:
        if array.nbytes > INLINE_BYTES:
            raise NotPlain
        tensor.inline_data = array.tobytes()
        return
    tensor.frame = len(frames.list)
    if array.flags.c_contiguous:
        frames.list.append(_flat(array))
    elif array.flags.f_contiguous and array.nbytes >= OUT_OF_BAND_BYTES:
        tensor.strides.extend(array.strides)
        frames.list.append(_flat(array.T))
    elif frames.strided:
        frames.list.append(array)
    else:
        frames.list.append(_flat(np.ascontiguousarray(array)))


def _flat(array: Any) -> memoryview:
    """Returns the bytes of an array in C order. Works for all element types, also those that the
    buffer protocol cannot describe."""
    return array.reshape(-1).view("u1").data


def write(frame: Any, room: memoryview) -> None:
    """Copies a frame to its destination."""
    if isinstance(frame, memoryview):
        room[:] = frame
    elif isinstance(frame, TableFrame):
        frame.write(room)
    else:
        import numpy as np

        np.copyto(np.ndarray(frame.shape, frame.dtype, room), frame)


def fill_argument(value: value_pb2.Value, obj: Any, reference: Callable[[Any], int | None]) -> None:
    """Writes an argument of a native op. An object that `reference` returns an index for becomes an
    input. Raises NotPlain."""
    np = _numpy.loaded()
    if np is not None and (isinstance(obj, np.dtype) or (isinstance(obj, type) and issubclass(obj, np.generic))):
        obj = np.dtype(obj).name
    frames = _Frames()
    frames.room = sys.maxsize  # only all arguments together have a limit
    _fill(value, obj, frames, reference)


# ---- pickles -------------------------------------------------------------------------------------


class _Reading(threading.local):
    #: True while this thread decodes for a task.
    readonly = False
    #: The GPU that the frames lie on; None: host memory.
    device: Device | None = None


_reading = _Reading()


class _Buffers:
    """Collects the out-of-band buffers of a pickle."""

    __slots__ = ("device", "list", "stand_ins")

    def __init__(self, device: Device | None = None) -> None:
        self.list: list[Frame] = []
        # Arrays with gaps and arrays on a GPU, by the id of a placeholder buffer: pickle accepts
        # only host buffers without gaps.
        self.stand_ins: dict[int, tuple[pickle.PickleBuffer, Any]] = {}
        self.device = device

    def keep(self, buffer: pickle.PickleBuffer) -> bool:
        """The pickler's buffer callback. Takes a buffer out of band (False), or leaves it in the
        pickle (True)."""
        found = self.stand_ins.get(id(buffer))
        if found is not None:
            self.list.append(found[1])
            return False
        view = buffer.raw()
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        self.list.append(view)
        return False

    def reduce(self, array: Any) -> Any:
        """Pickles an array as NumPy does with protocol 5, except for arrays with gaps, which NumPy
        would copy, and for element types that the buffer protocol cannot describe."""
        if array.dtype.hasobject or not array.nbytes:
            return array.__reduce_ex__(5)
        order, dtype, shape = "C", array.dtype, array.shape
        if array.flags.c_contiguous:
            buffer = pickle.PickleBuffer(_flat(array))
        elif array.flags.f_contiguous:
            order, buffer = "F", pickle.PickleBuffer(_flat(array.T))
        elif array.nbytes < OUT_OF_BAND_BYTES:
            buffer = pickle.PickleBuffer(_flat(array.copy("C")))
        else:
            buffer = pickle.PickleBuffer(bytearray(1))
            self.stand_ins[id(buffer)] = (buffer, array)
        return _restore_array, (buffer, dtype, shape, order)

    def reduce_known(self, array: Any) -> Any:
        """Pickles an array of CuPy or torch."""
        made = self.reduce_view(array)
        return array.__reduce_ex__(5) if made is None else made  # a tensor of torch on the host

    def reduce_jax(self, array: Any) -> Any:
        """Pickles an array of JAX. JAX's own pickle would copy one on the host."""
        made = self.reduce_view(array)
        if made is not None:
            return made
        if array.weak_type or not array.is_fully_addressable:
            return array.__reduce_ex__(5)
        import numpy as np

        return _restore_jax, (np.asarray(array),)

    def reduce_cudf(self, obj: Any) -> Any:
        """Pickles an object of cuDF by its frames."""
        header, frames = _cudf.take_apart(obj, self.device is not None)
        buffers = [pickle.PickleBuffer(bytearray(1) if isinstance(f, DeviceFrame) else f) for f in frames]
        self.stand_ins.update(
            (id(b), (b, f)) for b, f in zip(buffers, frames, strict=True) if isinstance(f, DeviceFrame)
        )
        return _restore_cudf, (header, buffers)

    def reduce_view(self, array: Any) -> Any:
        """Pickles an array on a GPU like a NumPy array; None for everything else."""
        view = _arrays.view_of(array)
        if view is None:
            return None
        order, shape = view.order, view.shape
        if self.device is not None and view.nbytes > self.device.inline_bytes:
            frame: Any = DeviceFrame(view, gaps=not order)
            buffer = pickle.PickleBuffer(bytearray(1))
            self.stand_ins[id(buffer)] = (buffer, frame)
        else:
            order = "C"
            host = _on_host(view, self.device)
            if host is None:  # NumPy lacks the element type
                bits = array.detach().contiguous().view(sys.modules["torch"].uint8)
                host = bits.cpu().numpy()
            import numpy as np

            buffer = pickle.PickleBuffer(_flat(np.ascontiguousarray(host)))
        return _restore_view, (buffer, view.library, view.dtype, shape, order or "C")


def _restore_cudf(header: bytes, frames: list[Any]) -> Any:
    return _cudf.put_together(header, frames, _reading.device)


def _restore_jax(array: Any) -> Any:
    """Restores an array of JAX on the host. Without JAX it stays an array of NumPy."""
    try:
        from jax import numpy  # pyright: ignore[reportMissingImports]
    except ImportError:
        return array
    return numpy.asarray(array)


def _restore_view(buffer: Any, library: str, dtype: str, shape: tuple[int, ...], order: str) -> Any:
    """Restores an array on a GPU. In a process with a GPU it becomes an array of its library again.
    Elsewhere it becomes a NumPy array; an array of torch becomes a host tensor if torch is
    installed, because the objects around it expect a tensor."""
    device = _reading.device
    if device is not None and not isinstance(buffer, (bytes, bytearray, memoryview)):
        return device.restore(buffer, library, dtype, shape, order)
    import numpy as np

    if library == "torch":
        try:
            return _torch_tensor(bytearray(buffer), dtype, shape, order, device is not None)
        except ImportError:
            pass
    if device is None and not _reading.readonly and isinstance(buffer, (bytes, memoryview)):
        buffer = bytearray(buffer)
    flat: Any = np.frombuffer(buffer, dtype)  # pyright: ignore[reportCallIssue, reportArgumentType]
    array = flat.reshape(shape, order=order)
    if device is None or device.library == "numpy":
        return array
    return device.upload(array, library or device.library)


def _torch_tensor(data: bytearray, name: str, shape: tuple[int, ...], order: str, there: bool) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    dtype = getattr(torch, name)
    flat: Any = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape) if order == "C" else flat.reshape(shape[::-1]).permute(*range(len(shape))[::-1])
    return tensor.cuda() if there else tensor


def _restore_array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    import numpy as np

    if not _reading.readonly:
        if isinstance(buffer, bytes):
            buffer = bytearray(buffer)
        elif isinstance(buffer, memoryview) and buffer.readonly:
            # The buffer is read-only because the source array was. Here it can be made writable if
            # it covers an entire array of its own, which then has no other user.
            owner = buffer.obj
            if isinstance(owner, np.ndarray) and owner.flags.writeable and owner.nbytes == buffer.nbytes:
                buffer = owner
    array = np.frombuffer(buffer, dtype).reshape(shape, order=order)
    if _reading.readonly:
        array.flags.writeable = False
    return array


# ---- code ----------------------------------------------------------------------------------------
# Bytecode is valid in one minor version of Python only: another version would run other
# instructions, or crash. So each code object in a pickle records the version that made it. It also
# has its source if that is in no file.


def version() -> tuple[int, int]:
    """Returns the version of Python that can run the code objects of this process."""
    return sys.version_info[:2]


def language() -> str:
    """Returns the same version in the form that is sent to executors."""
    return "python {}.{}".format(*version())


def _reduce_code(code: types.CodeType) -> Any:
    made: Any = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return _restore_code, (version(), _source.of_code(code), made[0], *made[1])


def _restore_code(
    made_by: tuple[int, int], source: tuple[str, dict[int, str]] | None, make: Any, *arguments: Any
) -> Any:
    here = sys.version_info[:2]
    if tuple(made_by) != here:
        raise pickle.UnpicklingError(
            "VERSION_MISMATCH: a function in it was sent as bytecode by Python {}.{}, which Python {}.{} cannot run: use the "
            "same minor version for clients and workers, or put the function into a module that is installed on both "
            "sides".format(*made_by, *here)
        )
    if source is not None:
        _source.remember(*source)
    return make(*arguments)


#: Modules whose functions are the methods of one generator of random numbers.
_RANDOM_MODULES = ("random", "numpy.random")


def _reduce_method(method: Any) -> Any:
    """Refers to the functions of a module's own generator by name. Pickle would send a copy of the
    generator with them, and all processes would draw the same numbers."""
    name = method.__name__
    for module in _RANDOM_MODULES:
        if getattr(sys.modules.get(module), name, None) is method:
            return _function_of, (module, name)
    known: Any = cloudpickle.Pickler.dispatch_table
    return known[types.MethodType](method) if type(method) is types.MethodType else method.__reduce_ex__(5)


def _function_of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _reducing(code: Callable[[types.CodeType], Any]) -> Any:
    known: Any = cloudpickle.Pickler.dispatch_table
    own: Any = {types.CodeType: code, types.BuiltinMethodType: _reduce_method, types.MethodType: _reduce_method}
    return collections.ChainMap(own, *known.maps)


def reduce_array(array: Any) -> Any:
    """Pickles an array as NumPy does, but keeps the order of the bytes of an element. NumPy gives
    times and arrays with gaps the order of the machine."""
    if array.dtype.isnative or array.dtype.hasobject or not array.nbytes:
        return array.__reduce_ex__(5)
    if array.flags.f_contiguous:
        return _restore_array, (pickle.PickleBuffer(_flat(array.T)), array.dtype, array.shape, "F")
    return _restore_array, (pickle.PickleBuffer(_flat(array.copy("C"))), array.dtype, array.shape, "C")


class CodePickler(cloudpickle.Pickler):
    """Cloudpickle, with the Python version in each code object, and with slots of classes."""

    dispatch_table = _reducing(_reduce_code)

    def reducer_override(self, obj: Any) -> Any:
        np = _numpy.loaded()
        if np is not None and type(obj) is np.ndarray and not obj.dtype.isnative:
            return reduce_array(obj)
        made = super().reducer_override(obj)
        if isinstance(obj, type) and made is not NotImplemented and "__slots__" in vars(obj):
            return _with_slots(obj, made)
        return made


def _with_slots(kind: type, made: Any) -> Any:
    """Lets a class that is sent by value keep its slots. Cloudpickle makes a class without any, whose
    objects have a dict: they would not fit into objects of the original class on their way back."""
    slots = vars(kind)["__slots__"]
    if getattr(made[0], "__name__", "") != "_make_skeleton_class" or not isinstance(slots, (str, tuple, list, dict)):
        return made
    arguments = list(made[1])
    arguments[3] = {**arguments[3], "__slots__": slots}
    return made[0], tuple(arguments), *made[2:]


def dump_function(function: Any) -> tuple[bytes, str]:
    """Pickles a function. Also returns the language that an executor must have; it is empty if the
    pickle has no code, but only names of functions and classes that both sides import."""
    file = io.BytesIO()
    by_value = False

    def reduce(code: types.CodeType) -> Any:
        nonlocal by_value
        by_value = True
        return _reduce_code(code)

    pickler: Any = CodePickler.__new__(CodePickler)
    pickler.dispatch_table = _reducing(reduce)
    pickler.__init__(file, protocol=5)
    pickler.dump(function)
    return file.getvalue(), language() if by_value else ""


def _pickle(kind: Any, obj: Any, buffers: _Buffers) -> bytes:
    file = io.BytesIO()
    # NB: the C pickler reads its dispatch_table when it is initialised.
    pickler = kind.__new__(kind)
    if kind is _DevicePickler:
        pickler.buffers = buffers
    np = _numpy.loaded()
    if np is not None:
        # Looked up by exact type: subclasses pickle as they like.
        table = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
        table = {**table, np.ndarray: buffers.reduce}
        for name, what in (("cupy", "ndarray"), ("torch", "Tensor")):
            known = getattr(sys.modules.get(name), what, None)
            if known is not None:
                table[known] = buffers.reduce_known
        jax_array = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None)
        if jax_array is not None:
            table[jax_array] = buffers.reduce_jax
        table.update(_tables.reducers())
        table.update(dict.fromkeys(_cudf.kinds(), buffers.reduce_cudf))
        pickler.dispatch_table = table
    pickler.__init__(file, protocol=5, buffer_callback=buffers.keep)
    pickler.dump(obj)
    return file.getvalue()


def _dumps(obj: Any, device: Device | None = None) -> tuple[bytes, list[Frame]]:
    """Pickles by protocol 5, with large buffers out of band. Objects that would be stored as a
    reference into ``__main__`` are pickled by value."""
    try:
        buffers = _Buffers(device)
        data = _pickle(pickle.Pickler, obj, buffers)
        if b"__main__" not in data:
            return data, buffers.list
    # Also errors of a __reduce__: cloudpickle may succeed, or raises the error again.
    except Exception:
        pass
    buffers = _Buffers(device)
    return _pickle(_DevicePickler, obj, buffers), buffers.list


class _DevicePickler(CodePickler):
    """Recognises arrays on a GPU of any library. Their own pickles hold handles, which are invalid
    in another process."""

    buffers: _Buffers

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if _cudf.is_object(kind):
            return self.buffers.reduce_cudf(obj)
        if hasattr(kind, "__cuda_array_interface__") or hasattr(kind, "__dlpack_device__"):
            made = self.buffers.reduce_view(obj)
            if made is not None:
                return made
        return super().reducer_override(obj)


def encode(obj: Any, *, strided: bool = False, device: Device | None = None) -> Encoded:
    """Encodes a result or a scattered object. Raises the error of pickling it if that fails.

    Args:
        obj: the object.
        strided: frames may be arrays with gaps, for `write`. Otherwise these are copied here.
        device: writes the frames, which may then be DeviceFrames.
    """
    frames, value = _Frames(strided, device), value_pb2.Value()
    if type(obj) is Items:
        value.list_value.SetInParent()
        for item in cast("list[Any]", obj):
            _fill_or_pickle(value.list_value.values.add(), item, frames, 1)
    else:
        _fill_or_pickle(value, obj, frames, 0)
    return Encoded(value.SerializeToString(), frames.list)


def _fill_or_pickle(value: value_pb2.Value, obj: Any, frames: _Frames, depth: int) -> None:
    """Writes an object as a typed value, or else as a pickle. It shares no frame with what was
    written before."""
    first, room = len(frames.list), frames.room
    frames.leaves, frames.root = 0, obj
    frames.known.clear()
    try:
        _fill(value, obj, frames, None, depth)
    except NotPlain:
        del frames.list[first:]
        frames.room = room
        value.Clear()
        _fill_pickle(value.opaque_value, obj, frames)


def _fill_pickle(opaque: value_pb2.Opaque, obj: Any, frames: _Frames) -> None:
    """Writes an object as a pickle."""
    data, buffers = _dumps(obj, frames.device)
    opaque.encoding, opaque.type_name = "pickle5", _type_name(obj)
    _put(opaque, data, buffers, frames)


def _put(opaque: value_pb2.Opaque, data: bytes, buffers: list[Frame], frames: _Frames) -> None:
    """Stores the in-band part of a payload, and its buffers as frames."""
    first = len(frames.list)
    if len(data) <= frames.room:
        frames.room -= len(data)
        opaque.data = data
    else:
        frames.list.append(memoryview(data))
    if frames.strided:
        frames.list += buffers
    else:
        frames.list += [b if isinstance(b, memoryview) else _flat(cast("Any", b).copy("C")) for b in buffers]
    own = frames.list[first:]
    opaque.frames.extend(range(first, first + len(own)))
    opaque.device_frames.extend(i for i, f in enumerate(own) if isinstance(f, DeviceFrame))


def _type_name(obj: Any) -> str:
    kind = type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"[:256]


def decode(header: bytes, frames: Sequence[Any], *, readonly: bool = False, device: Device | None = None) -> Any:
    """Decodes an object. The result shares memory with the frames.

    Args:
        header: a serialised Value.
        frames: its frames.
        readonly: arrays that do not lie in frames are read-only as well.
        device: the GPU that the frames lie on, which are then DeviceRanges.
    """
    if not header:
        return None
    _reading.readonly, _reading.device = readonly, device
    try:
        return from_value(value_pb2.Value.FromString(header), frames, ())
    finally:
        _reading.readonly, _reading.device = False, None


def from_value(value: value_pb2.Value, frames: Sequence[Any], inputs: Sequence[Any]) -> Any:
    """Returns the Python object of a value; `input` leaves become elements of `inputs`."""
    kind = value.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    if kind == "tensor_value":
        return _array(value.tensor_value, frames)
    if kind == "table_value":
        return _tables.read(value.table_value, _on_this_host(value.table_value, frames))
    if kind == "opaque_value":
        return from_opaque(value.opaque_value, frames)
    if kind == "list_value":
        return [from_value(v, frames, inputs) for v in value.list_value.values]
    if kind == "map_value":
        fields = value.map_value.fields
        return {k: from_value(fields[k], frames, inputs) for k in ordered(value.map_value)}
    if kind == "complex_value":
        return complex(value.complex_value.real, value.complex_value.imaginary)
    if kind == "input":
        return inputs[value.input]
    if kind == "hole":
        raise ValueError("an argument is a hole of a template: only tasks of templates have holes")
    return getattr(value, kind)


def _on_this_host(table: value_pb2.Table, frames: Sequence[Any]) -> Sequence[Any]:
    """Returns the frames with those of a table in the memory of the host."""
    device = _reading.device
    if device is None:
        return frames
    used = {place.frame for place in table.buffers if place.bytes}
    return [device.host(f) if i in used else f for i, f in enumerate(frames)]


def ordered(mapping: value_pb2.MapValue) -> Sequence[str]:
    """Returns the keys of a map in the writer's order."""
    order = mapping.order
    if len(order) != len(mapping.fields) or set(order) != set(mapping.fields):
        return sorted(mapping.fields)
    return order


def _array(tensor: value_pb2.Tensor, frames: Sequence[Any]) -> Any:
    import numpy as np

    _dtypes()
    dtype = _NUMPY.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"tensor of unknown element type {tensor.dtype}: this client is older than the cluster")
    shape, strides = tuple(tensor.shape), tuple(tensor.strides)
    where = tensor.WhichOneof("location")
    data: Any = frames[tensor.frame] if where == "frame" else tensor.inline_data if where else None
    have = 0 if data is None else len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
    offset = tensor.offset_bytes
    empty = not _reach(shape, strides, offset, dtype.itemsize, have)
    if empty:
        strides, offset = (), 0  # these were not checked
    if _reading.device is not None and shape:
        return _reading.device.tensor(data, dtype, shape, offset, strides or None)
    if empty:
        array = np.empty(shape, dtype)
    else:
        if where == "inline_data" and not _reading.readonly:
            data = bytearray(data)
        array = np.ndarray(shape, dtype, data, offset, strides or None)
    if not shape:
        return array[()]
    if _reading.readonly:
        array.flags.writeable = False
    return array


def _reach(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, itemsize: int, have: int) -> bool:
    """Returns whether a tensor has elements. Raises ValueError if one of them lies outside of the
    `have` bytes.

    The header may come from any program. NumPy computes the same with 64 bits, which wrap: the
    array that it makes then lies somewhere in memory. Libraries for GPUs check nothing.
    """
    if len(shape) > _MOST_AXES:
        raise ValueError(f"tensor of {len(shape)} axes: at most {_MOST_AXES} can be read")
    if shape and min(shape) <= 0:
        if min(shape) < 0:
            raise ValueError(f"tensor of the impossible shape {shape}")
        return False
    first = offset
    if not strides:
        end = offset + math.prod(shape) * itemsize
    elif len(strides) != len(shape):
        raise ValueError(f"tensor with {len(strides)} strides for {len(shape)} axes")
    else:
        end = offset + itemsize
        for n, stride in zip(shape, strides, strict=True):
            if stride < 0:
                first += (n - 1) * stride
            else:
                end += (n - 1) * stride
    if first < 0 or end > have:
        raise ValueError(
            f"tensor of shape {shape} and strides {strides or 'in C order'} from byte {offset} reaches outside of its {have} bytes"
        )
    return True


def from_opaque(opaque: value_pb2.Opaque, frames: Sequence[Any]) -> Any:
    """Returns the object of a payload."""
    if opaque.encoding not in _ENCODINGS:
        raise ValueError(f"payload of encoding {opaque.encoding!r}: Python reads {', '.join(_ENCODINGS)}")
    own = [frames[i] for i in opaque.frames]
    device = _reading.device
    if device is not None:
        there = set(opaque.device_frames)
        own = [f if i in there else device.host(f) for i, f in enumerate(own)]
    if opaque.encoding == "cudf":
        data, parts = (opaque.data, own) if opaque.data else (bytes(own[0]), own[1:])
        return _cudf.put_together(data, parts, device)
    if opaque.data:  # a pickle is never empty
        return pickle.loads(opaque.data, buffers=own)
    return pickle.loads(own[0], buffers=own[1:])


class CallPickler(CodePickler):
    """Pickles (args, kwargs). An object that `reference` returns an index for becomes the
    persistent id ("input", index)."""

    def __init__(self, file: io.BytesIO, reference: Callable[[Any], int | None]) -> None:
        super().__init__(file, protocol=5)
        self._reference = reference

    def persistent_id(self, obj: Any) -> Any:
        index = self._reference(obj)
        return None if index is None else ("input", index)


class CallUnpickler(pickle.Unpickler):
    """Unpickles the data of a CallPickler."""

    def __init__(self, data: bytes, inputs: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._inputs = inputs

    def persistent_load(self, pid: Any) -> Any:
        kind, index = pid
        if kind != "input":
            raise pickle.UnpicklingError(f"unknown persistent id {pid!r} in a call")
        return self._inputs[index]
