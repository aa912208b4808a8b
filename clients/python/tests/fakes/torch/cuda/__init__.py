from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from typing import Any

from torch import _C, _allocator
from torch.cuda import memory
from torch.cuda.memory import MemPool, empty_cache

__all__ = ["CUDAGraph", "MemPool", "Stream", "empty_cache", "memory", "use_mem_pool"]
_initialised = False


def init() -> None:
    global _initialised
    if not _initialised:
        context = ctypes.c_void_p()
        assert not _allocator._lib.cuInit(0)
        assert not _allocator._lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        assert not _allocator._lib.cuCtxSetCurrent(context)
        _initialised = True


def is_initialized() -> bool:
    return _initialised


def get_allocator_backend() -> str:
    return os.environ.get("MILLRACE_FAKE_TORCH_BACKEND", "native")


def memory_reserved() -> int:
    return sum(s.size for pool in _allocator.pools.values() for s in pool.segments)


def memory_allocated() -> int:
    return sum(s.size for pool in _allocator.pools.values() for s in pool.segments if s.used)


def mem_get_info() -> tuple[int, int]:
    """Returns the free memory of the GPU, and all of it."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert not _allocator._lib.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def write(at: int, data: bytes) -> None:
    ctypes.memmove(at, data, len(data))


def read(at: int, n: int) -> bytes:
    return ctypes.string_at(at, n)


class Stream:
    cuda_stream = 0


def current_stream() -> Stream:
    return Stream()


@contextlib.contextmanager
def stream(_stream: Stream) -> Iterator[None]:
    yield


@contextlib.contextmanager
def use_mem_pool(pool: Any) -> Iterator[None]:
    memory._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
    try:
        yield
    finally:
        _C._cuda_endAllocateToPool(0, pool.id)
        _C._cuda_releasePool(0, pool.id)


class CUDAGraph:
    def capture_begin(self, capture_error_mode: str = "global") -> None:
        self._pool = memory.MemPool.__new__(memory.MemPool)
        memory.MemPool.create(self._pool)
        if os.environ.get("MILLRACE_FAKE_TORCH") == "broken":
            return
        _allocator.capturing = self
        _allocator.begin(0, self._pool.id, self)

    def capture_end(self) -> None:
        if _allocator.capturing is self:
            _allocator.end(0, self._pool.id)
            _allocator.release(0, self._pool.id)
            _allocator.capturing = None

    def reset(self) -> None:
        if hasattr(self, "_pool"):
            self._pool.forget()
