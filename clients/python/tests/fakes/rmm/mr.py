"""Resources of memory, and their streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import cupy

_lib = cupy._lib


class Stream:
    def __init__(self, handle: int = 0) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


DEFAULT_STREAM = Stream()


class CudaMemoryResource:
    def allocate(self, nbytes: int, _stream: Stream = DEFAULT_STREAM) -> int:
        at = ctypes.c_uint64()
        code = _lib.cuMemAlloc_v2(ctypes.byref(at), nbytes)
        if code:
            raise MemoryError(f"std::bad_alloc: out_of_memory: CUDA error {code}")
        return at.value

    def deallocate(self, ptr: int, nbytes: int, _stream: Stream = DEFAULT_STREAM) -> None:
        _lib.cuMemFree_v2(ptr)


class CudaAsyncMemoryResource(CudaMemoryResource):
    def __init__(self, initial_pool_size: int | None = None, release_threshold: int | None = None) -> None:
        self.release_threshold = release_threshold


class CallbackMemoryResource:
    def __init__(self, allocate_func: Callable[..., int], deallocate_func: Callable[..., None]) -> None:
        self._allocate, self._deallocate = allocate_func, deallocate_func

    def allocate(self, nbytes: int, stream: Stream = DEFAULT_STREAM) -> int:
        try:
            return self._allocate(nbytes, stream)
        except MemoryError as e:  # C++ is in between
            raise MemoryError(f"std::bad_alloc: out_of_memory: {e}") from None
        except BaseException as e:
            raise RuntimeError(str(e)) from None

    def deallocate(self, ptr: int, nbytes: int, stream: Stream = DEFAULT_STREAM) -> None:
        self._deallocate(ptr, nbytes, stream)


_current: Any = CudaMemoryResource()


def get_current_device_resource() -> Any:
    return _current


def set_current_device_resource(mr: Any) -> None:
    global _current
    _current = mr
