"""Memory on the GPU that tasks take for themselves: leased from the slab for the allocators of libraries, and found again
when there is none left."""

from __future__ import annotations

import fcntl
import gc
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from millrace.executor._driver import OUT_OF_MEMORY, CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millrace.executor._device import Device

#: Smaller allocations are left to CuPy's own pool, in bytes: their results are copied, which costs nothing.
SMALLEST = 256 << 10
#: Longest wait for the other processes on the GPU to be idle, in seconds.
_ALONE = 30.0
#: When a process that has nothing to do gives back what its libraries keep, in seconds, and how long that may take.
IDLE = 0.5
_GIVING_BACK = 0.3


class NoLease(Exception):
    """The worker has no room, and says what fills it."""


class Lease:
    """Memory of the slab that is this process's until it is released."""

    __slots__ = ("given", "offset", "request", "size", "stream")

    def __init__(self, request: int, offset: int, size: int) -> None:
        self.request, self.offset, self.size = request, offset, size
        #: A result lies in it, which keeps the memory from then on.
        self.given = False
        #: The stream that it was last handed out for, where it may be handed out again without waiting.
        self.stream = 0


class _Owner:
    """Held by arrays that lie in a lease."""

    __slots__ = ("_arena", "_lease")

    def __init__(self, arena: Arena, lease: Lease) -> None:
        self._arena, self._lease = arena, lease

    def __del__(self) -> None:
        self._arena.free(self._lease)


def rounded(size: int) -> int:
    """Sizes come in eight steps to each power of two, so that what was freed fits again."""
    step = max(1 << max(size.bit_length() - 4, 0), 512)
    return (size + step - 1) // step * step


class Arena:
    """An allocator of CuPy whose memory lies in the slab, so that results need no copy.

    Each block is a lease of its own: what becomes a result leaves with it, and the rest is kept for the next allocation of
    that size on the same stream.
    """

    def __init__(self, device: Device, lease: Callable[[int], Lease], limit: int) -> None:
        self._device, self._lease, self._limit = device, lease, limit
        # Arrays are freed in any thread, also by the garbage collector in the middle of anything: that only puts them here.
        self._freed: deque[Lease] = deque()
        # Guards what follows.
        self._lock = threading.Lock()
        # `_live`: leases whose memory holds an array. `_kept`: leases of freed memory, to be used again for the stream
        # that the memory was allocated for, because work submitted to that stream may still use it. The stream that is
        # current when an array is freed does not matter.
        self._live: dict[int, Lease] = {}
        self._kept: OrderedDict[int, Lease] = OrderedDict()
        # Bytes of leases: in use or asked for, kept, and to be released. Together they are at most the limit.
        self._live_bytes = self._kept_bytes = self._released_bytes = 0
        # Numbers of leases that nothing refers to, to be released once no kernel can use them any more.
        self._released: list[int] = []
        # Numbers of leases that results have taken over, to be released with those.
        self._taken: list[int] = []
        # Everything that the pool of CuPy refuses is taken here, whatever its size.
        self.overflow = False
        #: Why there was no lease, the last time.
        self.refused = ""

    def malloc(self, size: int) -> Any:
        """CuPy's allocator."""
        import cupy  # pyright: ignore[reportMissingImports]

        pool = cupy.get_default_memory_pool()
        if self.overflow:
            try:
                return pool.malloc(size)
            except cupy.cuda.memory.OutOfMemoryError:
                pool.free_all_blocks()
        elif size < SMALLEST or size > self._limit:
            return pool.malloc(size)
        lease = self._take(size, cupy.cuda.get_current_stream().ptr)
        if lease is None:
            return pool.malloc(size)
        memory = cupy.cuda.UnownedMemory(self._device.base + lease.offset, lease.size, _Owner(self, lease), 0)
        return cupy.cuda.MemoryPointer(memory, 0)

    def _take(self, size: int, stream: int) -> Lease | None:
        size = rounded(size)
        with self._lock:
            self._settle()
            for offset, lease in self._kept.items():
                if lease.stream == stream and lease.size == size:
                    del self._kept[offset]
                    self._kept_bytes -= size
                    self._live[offset] = lease
                    self._live_bytes += size
                    return lease
            while self._kept and self._live_bytes + self._kept_bytes + size > self._limit:
                self._drop_oldest()
            # Dropped leases leave at the end of the run, and count until then.
            if not self.overflow and self._live_bytes + self._kept_bytes + self._released_bytes + size > self._limit:
                return None
            self._live_bytes += size  # here and not below: another thread may take some
        try:
            lease = self._lease(size)
        except BaseException as e:
            with self._lock:
                self._live_bytes -= size
            if isinstance(e, NoLease):
                self.refused = str(e)
                return None
            raise
        lease.stream = stream
        with self._lock:
            self._live[lease.offset] = lease
        return lease

    def free(self, lease: Lease) -> None:
        self._freed.append(lease)

    def _settle(self) -> None:
        """Keeps freed leases up to the limit; leases that a result takes over are released. REQUIRES: the lock."""
        while self._freed:
            lease = self._freed.popleft()
            del self._live[lease.offset]
            self._live_bytes -= lease.size
            if lease.given:  # the result has that memory from now on
                self._taken.append(lease.request)
                continue
            self._kept[lease.offset] = lease
            self._kept_bytes += lease.size
            while self._kept_bytes > self._limit:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Releases what was freed first of all that is kept. REQUIRES: the lock, and that something is kept."""
        _, old = self._kept.popitem(last=False)
        self._kept_bytes -= old.size
        self._released_bytes += old.size
        self._released.append(old.request)

    def holds(self, at: int, nbytes: int) -> Lease | None:
        """The memory of this arena that a result lies in, if it may stay there: a small part would keep all of it."""
        with self._lock:
            for lease in self._live.values():
                if lease.offset <= at and at + nbytes <= lease.offset + lease.size:
                    return lease if 2 * nbytes >= lease.size else None
        return None

    def give(self, leases: Iterable[Lease]) -> None:
        """These are to leave with a result, as soon as no array lies in them: nothing takes them for the next one."""
        with self._lock:
            for lease in leases:
                lease.given = True

    def left(self, lease: Lease) -> bool:
        """No array lies in what was given any more. Else something still has one, may read it and write to it for as long as
        it likes, and no result can have that memory."""
        with self._lock:
            self._settle()
            return self._live.get(lease.offset) is not lease

    def forget(self, *, all_of_it: bool = False) -> None:
        """Takes back what was freed, and has everything that is kept released if asked to."""
        with self._lock:
            self._settle()
            if all_of_it:
                while self._kept:
                    self._drop_oldest()

    def keep_all(self) -> None:
        """What was to leave with a result stays: there is none."""
        with self._lock:
            for lease in self._live.values():
                lease.given = False

    def taken(self) -> list[int]:
        """Leases that results have taken over. REQUIRES: they are released in the message that tells the result, or there is none."""
        with self._lock:
            out, self._taken = self._taken, []
            return out

    def released(self) -> list[int]:
        """Leases to be released now, but for those of `taken`. REQUIRES: nothing that was submitted is still running."""
        with self._lock:
            out, self._released = self._released, []
            self._released_bytes = 0
            return out


class Gate:
    """Lets the processes of one worker take turns on the GPU: all share it, unless one has to be alone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def share(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_SH)

    def leave(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def take(self) -> bool:
        """Waits until nobody else runs anything; False if that took too long."""
        self.leave()  # others may want the same
        until = time.monotonic() + _ALONE
        while time.monotonic() < until:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.002)
                continue
            # The others have nothing to do now, and give back what they keep.
            time.sleep(IDLE + _GIVING_BACK)
            return True
        return False


def is_out_of_memory(e: BaseException) -> bool:
    """The GPU had no room for something that the task wanted to allocate."""
    if isinstance(e, CudaError):
        return e.code == OUT_OF_MEMORY
    kind = type(e)
    if kind.__module__.partition(".")[0] not in ("cupy", "cupy_backends", "torch", "numba"):
        return False
    if kind.__name__ == "OutOfMemoryError":
        return True
    text = str(e)
    return any(s in text for s in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "STATUS_ALLOC_FAILED"))


def give_back(e: BaseException | None = None) -> None:
    """Frees what a failed run has left, and what libraries keep for later."""
    while e is not None:
        traceback.clear_frames(e.__traceback__)
        e = e.__context__
    gc.collect()
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def holders(device: Device, in_slab: int = 0) -> str:
    """Who has the GPU's memory, largest first as far as this process knows. `in_slab`: bytes of torch's that the slab has."""
    free, total = device.driver.memory()
    cupy: Any = sys.modules.get("cupy")
    torch: Any = sys.modules.get("torch")
    ours = device.size
    if cupy is not None:
        ours += cupy.get_default_memory_pool().total_bytes()
    if torch is not None and torch.cuda.is_initialized():
        ours += torch.cuda.memory_reserved() - in_slab
    others = _gib(max(total - free - ours, 0))
    parts = [f"of {_gib(total)}, {_gib(free)} are free, the slab takes {_gib(device.size)}, other processes {others}"]
    if cupy is not None:
        found: list[tuple[int, str]] = []
        for obj in gc.get_objects():
            held = list(obj.values()) if type(obj) is dict else [obj]
            found += [(v.nbytes, f"{v.dtype}{v.shape}") for v in held if type(v) is cupy.ndarray]
        pool: Any = cupy.get_default_memory_pool()
        largest = ", ".join(f"{what} of {_gib(n)}" for n, what in sorted(set(found), reverse=True)[:3])
        parts.append(f"CuPy here has {_gib(pool.used_bytes())} in use{f' (largest: {largest})' if largest else ''}")
    if torch is not None and torch.cuda.is_initialized():
        parts.append(f"torch here has {_gib(torch.cuda.memory_allocated())} in use")
    return "; ".join(parts)


def _gib(n: int) -> str:
    return f"{n / (1 << 30):.2f} GiB"
