from __future__ import annotations

import ctypes
import itertools
import os
from typing import Any

from torch import _allocator
from torch._allocator import empty_cache
from torch._C import _cuda_beginAllocateCurrentThreadToPool

__all__ = ["CUDAPluggableAllocator", "MemPool", "_cuda_beginAllocateCurrentThreadToPool", "empty_cache"]
_numbers = itertools.count(1)


class CUDAPluggableAllocator:
    def __init__(self, path: str, take: str, give: str) -> None:
        self._lib = ctypes.CDLL(path)
        self._found = [ctypes.cast(getattr(self._lib, name), ctypes.c_void_p).value for name in (take, give)]

    def allocator(self) -> Any:
        return self._found


class MemPool:
    def __init__(self, allocator: Any = None) -> None:
        self.create(allocator)

    def create(self, allocator: Any = None) -> None:
        self.id = (0, next(_numbers))
        self._mine = True
        _allocator.pools[self.id] = _allocator.Pool(allocator)

    def use_count(self) -> int:
        return _allocator.pools[self.id].uses

    def snapshot(self) -> list[dict[str, int]]:
        return [{"address": s.at, "total_size": s.size} for s in _allocator.pools[self.id].segments]

    def forget(self) -> None:
        self._mine = False
        pool = _allocator.pools[self.id]
        pool.uses -= 1
        pool.give_back()

    def __del__(self) -> None:
        if not self._mine:
            return
        if _allocator.begun:
            os.abort()  # as torch does, because an exception in a destructor ends the process
        assert self.use_count() == 1
        self.forget()
