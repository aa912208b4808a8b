"""RMM's share of the arena: a memory resource whose larger blocks lie in the slab, so that results
of cuDF need no copy.

It is a `CallbackMemoryResource`: RMM calls two functions of ours, in any thread, often from C++
that was called without Python's lock. RMM turns an exception of the first into one of C++. None may
leave the second, which destructors of C++ call. So no stop of a task is raised in either.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from millrace.executor._memory import SMALLEST

if TYPE_CHECKING:
    from millrace.executor._memory import Arena, Lease

#: Free memory, in bytes, that the driver's pool keeps for small blocks.
_KEPT = 256 << 20
#: CUDA's handles for the default stream of all threads, and for the default stream of the calling
#: thread.
_LEGACY, _PER_THREAD = 1, 2


class RmmArena:
    """Makes resources over an arena, and sets them.

    Args:
        arena: the leases; CuPy may have the same.
        base: the slab's address in this process.
    """

    def __init__(self, arena: Arena, base: int) -> None:
        self._arena, self._base = arena, base
        # C++ refers to them by address, and its buffers may live as long as the process.
        self._made: list[_Resource] = []
        # True once the process has set a resource at the beginning of a run.
        self._installed = False

    def install(self) -> None:
        """Sets a resource if RMM is imported, once: a task may replace it."""
        if not self._installed:
            self._installed = self.put() is not None

    def put(self) -> Any:
        """Sets a resource over the current one. Returns the one to set afterwards in order to undo
        this; None if RMM is not imported."""
        # Another thread may be importing it.
        mr: Any = getattr(sys.modules.get("rmm"), "mr", None)
        if not hasattr(mr, "set_current_device_resource"):
            return None
        before = mr.get_current_device_resource()
        if any(before is made.resource for made in self._made):
            return before
        made = next((m for m in self._made if m.over is before), None)
        if made is None:
            made = _Resource(self._arena, self._base, mr, before)
            self._made.append(made)
        mr.set_current_device_resource(made.resource)
        return before

    def undo(self, before: Any) -> None:
        """Sets the resource that `put` has returned."""
        if before is not None:
            sys.modules["rmm"].mr.set_current_device_resource(before)


class _Resource:
    """One resource. Small blocks, and those that the arena has no room for, come from the resource
    `over` that was set before.

    RMM's default one asks the driver for each block, and waits for the GPU when one is freed. A
    pool of the driver takes its place.
    """

    def __init__(self, arena: Arena, base: int, mr: Any, over: Any) -> None:
        self._arena, self._base, self.over = arena, base, over
        self._upstream = _pool(mr) or over if type(over) is mr.CudaMemoryResource else over
        # Leases by address. It is used without a lock: each call on it is atomic in Python.
        self._leases: dict[int, Lease] = {}
        self.resource = mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, size: int, stream: Any) -> int:
        arena = self._arena
        if arena.overflow:
            try:
                return self._upstream.allocate(size, stream)
            except MemoryError:
                pass
        elif size < SMALLEST:
            return self._upstream.allocate(size, stream)
        lease = arena.take(size, _key(stream))
        if lease is None:
            return self._upstream.allocate(size, stream)
        at = self._base + lease.offset
        self._leases[at] = lease
        return at

    def deallocate(self, at: int, size: int, stream: Any) -> None:
        lease = self._leases.pop(at, None)
        if lease is None:
            self._upstream.deallocate(at, size, stream)
            return
        # All work on the block comes before later work on this stream. This may be another stream
        # than that of the allocation.
        lease.stream = _key(stream)
        self._arena.free(lease)


#: Code that no stop of a task may interrupt.
UNINTERRUPTED = frozenset({_Resource.allocate.__code__, _Resource.deallocate.__code__})


def _key(stream: Any) -> int:
    """Returns a number that two streams of RMM share only if they are the same stream."""
    handle: int = stream.__cuda_stream__()[1]
    if handle == _PER_THREAD:
        return -threading.get_ident()
    return 0 if handle == _LEGACY else handle


def _pool(mr: Any) -> Any:
    """Returns a pool of the driver; None if the driver has none for this GPU."""
    try:
        return mr.CudaAsyncMemoryResource(release_threshold=_KEPT)
    except RuntimeError:
        return None
