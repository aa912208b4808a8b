"""GPU memory for the allocations of tasks: leases of slab memory for the allocators of CuPy and RMM,
and the recovery after a task has run out of memory."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any

from millrace._values._driver import OUT_OF_MEMORY, CudaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millrace._values._device import Device

#: Smaller allocations, in bytes, are left to the libraries' own pools: copying their results costs
#: next to nothing.
SMALLEST = 256 << 10
#: Longest wait for an exclusive lock, until the other processes on the GPU are idle, in seconds.
_EXCLUSIVE_WAIT = 30.0
#: Time without a run, in seconds, after which a process gives back the memory that its libraries
#: cache; and the time that this may take.
IDLE = 0.5
_FREEING = 0.3
#: Time without a run, in seconds, after which a process returns the memory that malloc keeps for
#: later allocations.
UNUSED = 2.0


class NoLease(Exception):
    """The worker has no room. The message says which objects fill the slab."""


class Lease:
    """A range of the slab that belongs to this process until the lease is released."""

    __slots__ = ("for_result", "offset", "request", "size", "stream")

    def __init__(self, request: int, offset: int, size: int) -> None:
        self.request, self.offset, self.size = request, offset, size
        #: True if the memory is to become that of a result. Then no allocation gets it again.
        self.for_result = False
        #: The stream that the memory was last allocated for, or freed on. For the same stream it
        #: can be allocated again without a wait.
        self.stream = 0


class _Owner:
    """Keeps a lease in use: every array in its memory refers to one. Its destruction frees the
    lease."""

    __slots__ = ("_arena", "_lease")

    def __init__(self, arena: Arena, lease: Lease) -> None:
        self._arena, self._lease = arena, lease

    def __del__(self) -> None:
        self._arena.free(self._lease)


def rounded(size: int) -> int:
    """Rounds a size up to one of eight steps per power of two, so that freed memory fits later
    allocations of similar size."""
    step = max(1 << max(size.bit_length() - 4, 0), 512)
    return (size + step - 1) // step * step


class Arena:
    """Leases of slab memory for the allocations of libraries, so that results need no copy, and the
    allocator of CuPy.

    Each block is a lease of its own. The lease of a block that becomes a result leaves with that
    result. Other freed blocks are kept for the next allocation of the same size on the same stream.
    """

    def __init__(self, device: Device, lease: Callable[[int], Lease], limit: int) -> None:
        self._device, self._lease, self._limit = device, lease, limit
        # Freed leases. Arrays are freed in any thread, also by the garbage collector at any point
        # in other code, so freeing takes no lock and only appends to this queue.
        self._freed: deque[Lease] = deque()
        # Guards the following attributes.
        self._lock = threading.Lock()
        # `_live`: leases whose memory holds an array. `_kept`: leases of freed memory, by offset,
        # oldest first. They may be allocated again only for their stream, because work submitted to
        # that stream may still use the memory. With CuPy it is the stream of the allocation: the
        # stream that is current when an array is freed does not matter. RMM names it when it frees.
        self._live: dict[int, Lease] = {}
        self._kept: OrderedDict[int, Lease] = OrderedDict()
        # Bytes of leases that are in use or requested, that are kept, and that are to be released.
        # Their sum is at most the limit, except in overflow mode.
        self._live_bytes = self._kept_bytes = self._released_bytes = 0
        # Request numbers of leases that nothing refers to, to be released once no kernel can use
        # them any more.
        self._released: list[int] = []
        # Request numbers of leases that now belong to results, to be released with those.
        self._for_results: list[int] = []
        # Overflow mode, for the second attempt of a run: allocations of any size that a library's
        # own pool refuses are leased from the slab.
        self.overflow = False
        #: The worker's reason for the last refused lease.
        self.refused = ""

    def malloc(self, size: int) -> Any:
        """Allocates memory. This is the function that is set as CuPy's allocator."""
        import cupy  # pyright: ignore[reportMissingImports]

        pool = cupy.get_default_memory_pool()
        if self.overflow:
            try:
                return pool.malloc(size)
            except cupy.cuda.memory.OutOfMemoryError:
                pool.free_all_blocks()
        elif size < SMALLEST:
            return pool.malloc(size)
        lease = self.take(size, cupy.cuda.get_current_stream().ptr)
        if lease is None:
            return pool.malloc(size)
        memory = cupy.cuda.UnownedMemory(self._device.base + lease.offset, lease.size, _Owner(self, lease), 0)
        return cupy.cuda.MemoryPointer(memory, 0)

    def take(self, size: int, stream: int) -> Lease | None:
        """Leases memory for a stream; None if there is no room."""
        if size > self._limit and not self.overflow:
            return None
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
            # Dropped leases are released at the end of the run, and count until then.
            if not self.overflow and self._live_bytes + self._kept_bytes + self._released_bytes + size > self._limit:
                return None
            # Before the lock is left: another thread may allocate meanwhile.
            self._live_bytes += size
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
        """Moves freed leases to the kept ones, as far as the limit allows. Leases that are marked
        for a result go to `_for_results`. REQUIRES: the lock."""
        while self._freed:
            lease = self._freed.popleft()
            del self._live[lease.offset]
            self._live_bytes -= lease.size
            if lease.for_result:  # the memory belongs to the result from now on
                self._for_results.append(lease.request)
                continue
            self._kept[lease.offset] = lease
            self._kept_bytes += lease.size
            while self._kept_bytes > self._limit:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Releases the kept lease that was freed first. REQUIRES: the lock, and at least one kept
        lease."""
        _, old = self._kept.popitem(last=False)
        self._kept_bytes -= old.size
        self._released_bytes += old.size
        self._released.append(old.request)

    def holds(self, at: int, nbytes: int) -> Lease | None:
        """Returns the lease that a result lies in, if the result may stay there. It must fill at
        least half of the lease, because it would keep all of the memory."""
        with self._lock:
            for lease in self._live.values():
                if lease.offset <= at and at + nbytes <= lease.offset + lease.size:
                    return lease if 2 * nbytes >= lease.size else None
        return None

    def mark_for_result(self, leases: Iterable[Lease]) -> None:
        """Marks leases that are to become a result's as soon as no array lies in them. They are not
        allocated again."""
        with self._lock:
            for lease in leases:
                lease.for_result = True

    def unused(self, lease: Lease) -> bool:
        """Returns whether no array lies in a marked lease. Otherwise something still refers to an
        array there and may read and write it at any time, so that no result can have that
        memory."""
        with self._lock:
            self._settle()
            return self._live.get(lease.offset) is not lease

    def forget(self, *, all_of_it: bool = False) -> None:
        """Processes the freed leases. With `all_of_it`, it also releases all kept leases."""
        with self._lock:
            self._settle()
            if all_of_it:
                while self._kept:
                    self._drop_oldest()

    def unmark_all(self) -> None:
        """Takes `mark_for_result` back for all live leases: the result is not stored there."""
        with self._lock:
            for lease in self._live.values():
                lease.for_result = False

    def result_leases(self) -> list[int]:
        """Returns the leases that now belong to results. REQUIRES: they are released in the message
        that reports the result, or there is no result."""
        with self._lock:
            out, self._for_results = self._for_results, []
            return out

    def released(self) -> list[int]:
        """Returns the leases to be released now, without those of `result_leases`. REQUIRES: no
        submitted GPU work is still running."""
        with self._lock:
            out, self._released = self._released, []
            self._released_bytes = 0
            return out


class DeviceLock:
    """A lock between the processes of one worker on the same GPU: normally all share it; a process
    that needs the GPU alone takes it exclusively."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def share(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_SH)

    def unlock(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def lock_exclusively(self) -> bool:
        """Waits until no other process runs a task, takes the lock exclusively, and returns True.
        After `_EXCLUSIVE_WAIT` seconds it shares the lock again and returns False."""
        self.unlock()  # another process may also want to be alone
        until = time.monotonic() + _EXCLUSIVE_WAIT
        while time.monotonic() < until:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.002)
                continue
            # The other processes are idle now. Wait until they have given back the memory that
            # their libraries cache.
            time.sleep(IDLE + _FREEING)
            return True
        self.share()  # without the lock, another process would seem to be alone
        return False


def is_out_of_memory(e: BaseException) -> bool:
    """Returns whether an exception means that an allocation on the GPU failed for lack of
    memory."""
    if isinstance(e, CudaError):
        return e.code == OUT_OF_MEMORY
    kind = type(e)
    if kind is MemoryError:  # of RMM; Python's own has no text
        return "bad_alloc" in str(e)
    if kind.__module__.partition(".")[0] not in ("cupy", "cupy_backends", "torch", "numba"):
        return False
    if kind.__name__ == "OutOfMemoryError":
        return True
    text = str(e)
    return any(s in text for s in ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "STATUS_ALLOC_FAILED"))


def free_caches(e: BaseException | None = None) -> None:
    """Frees the memory that the frames of a failed run refer to, and the memory that libraries
    cache."""
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


def return_unused() -> None:
    """Returns the freed memory that malloc keeps to the system. It does nothing without glibc."""
    trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def describe_memory(device: Device, in_slab: int = 0) -> str:
    """Describes for an error message how the GPU's memory is used, with the largest arrays of CuPy
    first. `in_slab`: bytes that torch counts as its own, but that lie in the slab."""
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
