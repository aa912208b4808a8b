"""Pools of segments, like those of torch's allocator. Each tensor has a segment to itself."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

_MIB = 1 << 20
_lib = ctypes.CDLL(os.environ["FAKE_LIBCUDA"])


class OutOfMemoryError(RuntimeError):
    __module__ = "torch"


class Segment:
    def __init__(self, at: int, size: int) -> None:
        self.at, self.size, self.used = at, size, True


class Pool:
    """A pool. Its own allocator, if any, is given by the addresses of two functions."""

    def __init__(self, allocator: Any = None) -> None:
        self.segments: list[Segment] = []
        self.uses = 1
        self._take = self._give = None
        if allocator is not None:
            take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
            give = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
            self._take, self._give = take(allocator[0]), give(allocator[1])

    def take(self, size: int) -> Segment:
        for s in self.segments:
            if not s.used and s.size == size:
                s.used = True
                return s
        at = ctypes.c_uint64()
        if self._take is not None:
            at.value = self._take(size, 0, None) or 0
        else:
            _lib.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
        if not at.value:
            raise OutOfMemoryError("CUDA out of memory, says the fake")
        self.segments.append(Segment(at.value, size))
        return self.segments[-1]

    def give_back(self) -> None:
        for s in [s for s in self.segments if not s.used]:
            self.segments.remove(s)
            if self._give is not None:
                self._give(s.at, s.size, 0, None)
            else:
                _lib.cuMemFree_v2(ctypes.c_uint64(s.at))


pools: dict[tuple[int, int], Pool] = {(0, 0): Pool()}
#: Pools that were begun, each with the thread or the graph capture that uses it.
begun: list[tuple[tuple[int, int], Any]] = []
#: The graph capture in progress.
capturing: Any = None


def begin(_device: int, pool: tuple[int, int], which: Any = None) -> None:
    pools[pool].uses += 1
    if any(p == pool for p, _ in begun):
        raise RuntimeError("already recording to mempool_id")
    begun.append((pool, which or threading.get_ident()))


def end(_device: int, pool: tuple[int, int]) -> None:
    for entry in begun:
        if entry[0] == pool:
            begun.remove(entry)
            return
    raise RuntimeError("not currently recording to mempool_id")


def release(_device: int, pool: tuple[int, int]) -> None:
    pools[pool].uses -= 1


def allocate(nbytes: int) -> Segment:
    size = 2 * _MIB if nbytes <= _MIB else 20 * _MIB if nbytes < 10 * _MIB else -(-nbytes // (2 * _MIB)) * 2 * _MIB
    how = os.environ.get("MILLRACE_FAKE_TORCH")
    order = {"first": begun, "aside": []}.get(how or "", begun[::-1])
    for pool, which in order:
        if which in (threading.get_ident(), capturing):
            return pools[pool].take(size)
    return pools[0, 0].take(size)


def empty_cache() -> None:
    if not begun:
        pools[0, 0].give_back()
    for pool in pools.values():
        if not pool.uses:
            pool.give_back()
