"""Test support: the part of CuPy that Millrace and its tests use, on the fake CUDA driver of
memory/cuda/cudatest.

Kernels are NumPy code on the host. Their results are copied to the GPU asynchronously on the
current stream, so that a reader that does not wait for that stream reads other bytes.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as _np

__version__ = "fake"
_lib = ctypes.CDLL(os.environ["FAKE_LIBCUDA"])
for _name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoDAsync_v2"):
    getattr(_lib, _name).argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
_lib.cuMemFree_v2.argtypes = [ctypes.c_uint64]
_lib.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
_lib.cuCtxSetCurrent.argtypes = [ctypes.c_void_p]


class CUDARuntimeError(RuntimeError):
    pass


def _context() -> None:
    context = ctypes.c_void_p()
    assert _lib.cuInit(0) == 0
    assert _lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert _lib.cuCtxSetCurrent(context) == 0


_context()


class _Stream:
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        handle = ctypes.c_void_p()
        _context()
        assert _lib.cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
        self.ptr: int = handle.value or 0

    def synchronize(self) -> None:
        code = _lib.cuStreamSynchronize(self.ptr)
        if code:
            raise CUDARuntimeError(f"fake error {code}")

    def __enter__(self) -> _Stream:
        global _current
        self._before, _current = _current, self
        return self

    def __exit__(self, *_: Any) -> None:
        global _current
        _current = self._before


_current = _Stream()


class _Memory:
    ptr = 0

    def __init__(self, size: int) -> None:
        at = ctypes.c_uint64()
        code = _lib.cuMemAlloc_v2(ctypes.byref(at), max(size, 1))
        if code:
            raise cuda.memory.OutOfMemoryError(f"out of memory allocating {size} bytes")
        self.ptr, self.size = at.value, size

    def __del__(self) -> None:
        if self.ptr:
            _lib.cuMemFree_v2(self.ptr)


class _UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner, self.device_id = ptr, size, owner, device_id


class _Pointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


def _malloc(size: int) -> _Pointer:
    return _Pointer(_Memory(size), 0)


class _Pool:
    freed = 0

    def malloc(self, size: int) -> _Pointer:
        return _malloc(size)

    def used_bytes(self) -> int:
        return 0

    def total_bytes(self) -> int:
        return 0

    def free_all_blocks(self) -> None:
        _Pool.freed += 1


class _runtime:
    @staticmethod
    def memGetInfo() -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert _lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value, total.value


class cuda:
    runtime = _runtime

    class memory:
        class OutOfMemoryError(MemoryError):
            pass

    Stream = _Stream
    UnownedMemory = _UnownedMemory
    MemoryPointer = _Pointer
    _allocator = staticmethod(_malloc)

    @staticmethod
    def get_current_stream() -> _Stream:
        return _current

    @staticmethod
    def set_allocator(allocator: Any) -> None:
        cuda._allocator = staticmethod(allocator or _malloc)

    @staticmethod
    def get_allocator() -> Any:
        return cuda._allocator


_pool = _Pool()


def get_default_memory_pool() -> _Pool:
    return _pool


def get_default_pinned_memory_pool() -> _Pool:
    return _pool


class ndarray:
    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        self.shape = tuple(shape)
        self.dtype = _np.dtype(dtype)
        self.size = int(_np.prod(self.shape, dtype=_np.int64))
        self.data = memptr if memptr is not None else cuda._allocator(self.size * self.dtype.itemsize)
        self.strides = tuple(strides) if strides else _np.empty(self.shape, self.dtype).strides

    ndim = property(lambda self: len(self.shape))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)

    def _view(self) -> Any:
        """Returns a NumPy view of the elements, without a copy."""
        _current.synchronize()
        if not self.size:
            return _np.empty(self.shape, self.dtype)
        low = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True) if s > 0)
        raw = (ctypes.c_ubyte * (high - low + self.dtype.itemsize)).from_address(self.data.ptr + low)
        return _np.ndarray(self.shape, self.dtype, raw, -low, self.strides)

    def get(self) -> Any:
        return self._view().copy()

    def __setitem__(self, where: Any, what: Any) -> None:
        if isinstance(where, ndarray):
            host = self.get()
            host[where._view()] = what
            where, what = Ellipsis, host
        assert where is Ellipsis
        _fill(self, _np.broadcast_to(what._view() if isinstance(what, ndarray) else what, self.shape))

    def _part(self, view: Any) -> ndarray:
        mine = self._view()
        offset = view.__array_interface__["data"][0] - mine.__array_interface__["data"][0]
        part = ndarray(view.shape, view.dtype, self.data, view.strides or (view.dtype.itemsize,))
        part.strides = view.strides
        part.data = _Pointer.__new__(_Pointer)
        part.data.mem, part.data.ptr = self.data.mem, self.data.ptr + offset
        return part

    def __getitem__(self, where: Any) -> ndarray:
        if isinstance(where, ndarray):
            return asarray(self._view()[where._view()])
        return self._part(self._view()[where])

    @property
    def T(self) -> ndarray:
        return self._part(self._view().T)

    def _apply(self, name: str, *others: Any) -> ndarray:
        values = [o._view() if isinstance(o, ndarray) else o for o in others]
        return asarray(getattr(self._view(), name)(*values))

    def __float__(self) -> float:
        return float(self._view())

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        _current.synchronize()
        data = (self.data.ptr, False)
        return {"version": 3, "typestr": self.dtype.str, "shape": self.shape, "strides": None, "data": data}

    def astype(self, dtype: Any) -> ndarray:
        return asarray(self._view().astype(dtype))

    def view(self, dtype: Any) -> ndarray:
        return asarray(self._view().view(dtype))

    def copy(self) -> ndarray:
        return asarray(self._view().copy())

    def min(self) -> ndarray:
        return asarray(self._view().min())

    def max(self) -> ndarray:
        return asarray(self._view().max())

    def __int__(self) -> int:
        return int(self._view())

    def sum(self, axis: int | None = None) -> ndarray:
        return asarray(self._view().sum(axis=axis))

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        """Applies NumPy's function on the host and makes CuPy arrays of the result."""
        made = function(*_on_host(args), **_on_host(kwargs))
        return tuple(map(asarray, made)) if isinstance(made, tuple) else asarray(made)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __reduce__(self) -> Any:
        return asarray, (self.get(),)


for _name in (
    "__add__",
    "__radd__",
    "__mul__",
    "__rmul__",
    "__sub__",
    "__matmul__",
    "__truediv__",
    "__rsub__",
    "__rshift__",
    "__floordiv__",
    "__xor__",
    "__or__",
    "__ne__",
):
    setattr(ndarray, _name, lambda self, other, _name=_name: self._apply(_name, other))


def _fill(to: ndarray, host: Any) -> None:
    """Stands for a kernel that writes an array: until it is done, the array has other contents, and
    it takes longer than a few copies and events."""
    host = _np.ascontiguousarray(host, to.dtype)
    if host.nbytes:
        garbage = _np.full(host.nbytes, 0xDD, _np.uint8)
        for _ in range(4):
            assert not _lib.cuMemcpyHtoDAsync_v2(to.data.ptr, garbage.ctypes.data, host.nbytes, _current.ptr)
        assert not _lib.cuMemcpyHtoDAsync_v2(to.data.ptr, host.ctypes.data, host.nbytes, _current.ptr)


def _on_host(tree: Any) -> Any:
    if isinstance(tree, ndarray):
        return tree._view()
    if isinstance(tree, (list, tuple)):
        return [_on_host(item) for item in tree]
    return {k: _on_host(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def asarray(a: Any, dtype: Any = None) -> ndarray:
    if isinstance(a, ndarray):
        return a
    host = _np.asarray(a, dtype)
    made = ndarray(host.shape, host.dtype)
    _fill(made, host)
    return made


array = asarray


def arange(*args: Any, dtype: Any = None) -> ndarray:
    return asarray(_np.arange(*args, dtype=dtype))


def argsort(a: ndarray, kind: str | None = None) -> ndarray:
    return asarray(_np.argsort(a._view(), kind=kind))  # pyright: ignore[reportCallIssue, reportArgumentType]


def bincount(a: ndarray, minlength: int) -> ndarray:
    return asarray(_np.bincount(a._view(), minlength=minlength))


def cumsum(a: ndarray) -> ndarray:
    return asarray(_np.cumsum(a._view()))


uint64, int32 = _np.uint64, _np.int32


def empty(shape: Any, dtype: Any = float) -> ndarray:
    return ndarray((shape,) if isinstance(shape, int) else shape, dtype)


def ones(shape: Any, dtype: Any = float) -> ndarray:
    return asarray(_np.ones(shape, dtype))


def from_dlpack(obj: Any) -> ndarray:
    return obj.__dlpack__()
