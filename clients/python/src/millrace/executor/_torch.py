"""Torch's share of the arena. While a task runs, tensors on the default stream are allocated in
slab memory that was leased beforehand, so that results need no copy.

Torch offers two ways to replace its memory. The first is another allocator
(`CUDAPluggableAllocator` and `change_current_allocator`). There we could not refuse an allocation:
torch does not compare the function's result with null, so out of memory would become an illegal
address. There would also be no cache and no statistics, and CUDA graphs would silently capture
memory that is given to other tasks later. So this module uses the second way, a pool
(`torch.cuda.MemPool`) whose segments come from `_torch_pool.c`. Torch keeps its cache, its
statistics and its own OutOfMemoryError. A pool ends with the first run whose result lies in it, so
that torch does not use that memory again.

A task may begin pools of its own inside of ours: by the capture of a CUDA graph, also by
`torch.compile`, or by `use_mem_pool`. Those must take precedence, although ours was begun before.
Torch 2.11 uses the pool that was begun last, which is right; older versions used the first. Each
process therefore tests once which pool is used, and does not use the arena with a torch that fails
the test.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
import threading
import warnings
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.executor._memory import Lease, is_out_of_memory, rounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from millrace._values._driver import Driver

#: Torch asks for segments of 2 MiB for small tensors, of 20 MiB for those from 1 MiB, and for a
#: segment of the tensor's size for each tensor from 10 MiB. Only the last kind can hold a result
#: that is taken over in place.
SMALLEST = 10 << 20
#: Driver memory that was unused for this number of runs is given back to the driver.
_UNUSED = 8
#: Most numbers that one call into the library returns.
_MOST = 256

_U64 = ctypes.c_uint64


class Unsuitable(Exception):
    """This torch cannot use the arena. The message says why."""


def library() -> Path:
    """Returns the path of the compiled `_torch_pool.c` for this machine."""
    return Path(__file__).with_name(f"_torch_pool.{platform.machine()}.so")


class State(NamedTuple):
    """Counters of the block table: bytes of the slab in use and idle, bytes of the driver in use
    and idle, allocations so far, and since the last query the sizes for which the slab had no block
    and the leaving blocks that torch has given back. The order is that of `millrace_pool_state`."""

    slab: int
    slab_idle: int
    driver: int
    driver_idle: int
    handed_out: int
    missed: int
    left: int


class Segments:
    """The table of blocks that torch takes its segments from, in `_torch_pool.c`."""

    def __init__(self, driver: Driver) -> None:
        self.path = library()
        if not self.path.exists():
            raise Unsuitable(f"there is no {self.path.name} for this machine")
        self._lib = lib = ctypes.CDLL(str(self.path))
        lib.millrace_pool_init.argtypes = [ctypes.c_void_p, ctypes.c_void_p, _U64]
        lib.millrace_pool_add.argtypes = [_U64, _U64]
        lib.millrace_pool_leave.argtypes = [_U64]
        lib.millrace_pool_oldest.argtypes = [_U64]
        lib.millrace_pool_oldest.restype = _U64
        lib.millrace_pool_trim.argtypes = [_U64]
        self._state = (_U64 * len(State._fields))()
        lib.millrace_pool_init(*driver.addresses("cuMemAlloc_v2", "cuMemFree_v2"), SMALLEST)

    def add(self, at: int, size: int) -> bool:
        return bool(self._lib.millrace_pool_add(at, size))

    def leave(self, at: int) -> bool:
        """Withdraws a block from torch: it is not handed out again. Returns True if torch did not
        have it, so that it is forgotten at once. Otherwise `left` names it once torch has given it
        back."""
        return bool(self._lib.millrace_pool_leave(at))

    def left(self) -> list[int]:
        return self._all(self._lib.millrace_pool_left)

    def oldest(self, before: int) -> int:
        return self._lib.millrace_pool_oldest(before)

    def trim(self, before: int = (1 << 64) - 1) -> None:
        self._lib.millrace_pool_trim(before)

    def missed(self) -> list[tuple[int, bool]]:
        """Returns the sizes for which there was no slab block; True: the driver had no memory,
        either."""
        return [(n & ~1, bool(n & 1)) for n in self._all(self._lib.millrace_pool_missed)]

    def state(self) -> State:
        self._lib.millrace_pool_state(self._state)
        return State(*self._state)

    def _all(self, call: Callable[..., int]) -> list[int]:
        out = (_U64 * _MOST)()
        return out[: call(out, _MOST)]


class TorchArena:
    """Torch's share of the arena. All methods are called in the main thread, except `_arrived`."""

    def __init__(
        self,
        driver: Driver,
        base: int,
        limit: int,
        lease: Callable[[int], Lease],
        lease_later: Callable[[int, Callable[[Lease | None], None]], None],
    ) -> None:
        self._driver, self._base, self._limit = driver, base, limit
        self._lease, self._lease_later = lease, lease_later
        self._segments: Segments | None = None
        # Torch's allocator object for _segments.
        self._allocator: Any = None
        #: Why torch does not use the arena; "": no reason is known.
        self.unsuitable = ""
        self._warned = False
        # The pool of the current run. Later runs use it, too, until a run lacked blocks or has its
        # result in the pool. None: the next run makes one.
        self._pool: Any = None
        # True while allocations of the main thread go to _pool.
        self._routed = False
        # Guards the following attributes.
        self._lock = threading.Lock()
        # Leases by address. `_leases`: blocks that torch may use. `_leaving`: blocks that a result
        # lay in while torch still used them; they are released as soon as torch has given them
        # back.
        self._leases: dict[int, Lease] = {}
        self._leaving: dict[int, Lease] = {}
        self._leased_bytes = self._requested_bytes = 0
        # Bytes of _leaving.
        self._leaving_bytes = 0
        self._released: list[int] = []
        # Request numbers of leases that now belong to results.
        self._for_results: list[int] = []
        # Number of leases by size that left with results since the last `settle`. They are to be
        # replaced.
        self._to_replace: Counter[int] = Counter()
        # The allocation counter at the beginning of each of the last runs, including the current
        # one.
        self._began: deque[int] = deque([0], maxlen=_UNUSED)
        # Bytes in use between runs above which torch is told to empty its cache, to find out
        # whether it has just not given them back.
        self._cache_limit = 2 * limit
        # Pools that tasks made. Torch ends the process if a pool is destroyed while any pool is
        # begun, for instance ours. So they are kept alive until the run is over.
        self._task_pools: list[Any] = []

    # ---- before and after runs -------------------------------------------------------------------

    def begin(self, *, first: bool = False) -> None:
        """Directs torch's allocations to the pool until `end`, if the process uses torch on the
        GPU or, with `first`, is about to."""
        torch: Any = sys.modules.get("torch")
        cuda: Any = getattr(torch, "cuda", None)
        if self.unsuitable or getattr(cuda, "MemPool", None) is None or not (first or cuda.is_initialized()):
            return
        if self._segments is None:
            try:
                cuda.init()
                self._install(torch)
            except Exception as e:  # torch's own errors, too: its internals that we use may change
                self._routed, self._pool = False, None
                if is_out_of_memory(e):
                    return  # the next run may find memory
                self.unsuitable = str(e) or type(e).__name__
                return
        assert self._segments is not None
        if self._pool is None:
            self._pool = cuda.MemPool(self._allocator)
        self._routed = True
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, self._pool.id)

    def warning(self) -> str:
        """Returns a warning for the log of a task, once; "": nothing to say."""
        if not self.unsuitable or self._warned:
            return ""
        self._warned = True
        return f"--executor-arena-for torch: it keeps its own memory, and its results are copied: {self.unsuitable}"

    def end(self, *, drop_pool: bool = False) -> None:
        """Ends the use of the pool after a task: torch allocates elsewhere again. With `drop_pool`,
        later runs get another pool."""
        if self._routed:
            torch: Any = sys.modules["torch"]
            self._routed = False
            try:
                torch._C._cuda_endAllocateToPool(0, self._pool.id)
            except RuntimeError:  # the run was stopped between two calls
                pass
            while self._pool.use_count() > 1:
                torch._C._cuda_releasePool(0, self._pool.id)
        if drop_pool:
            self._pool = None

    def settle(self) -> None:
        """Prepares for the next run: processes the blocks that the last run does not hold any more,
        and requests those that it lacked. REQUIRES: `end` was called, no submitted GPU work of
        the run is still running, and its result was stored."""
        if self._segments is None:
            return
        state = self._segments.state()
        if self._task_pools:
            self._task_pools = _held_elsewhere(self._task_pools)
        if state.missed or state.left or self._to_replace:
            self._request_blocks()
        if state.driver_idle:
            self._segments.trim(self._began[0])
        self._began.append(state.handed_out)

    def _request_blocks(self) -> None:
        """Requests blocks to replace those that left or were missing."""
        assert self._segments is not None
        # Dropping the pool makes torch give its segments back. In other cases torch keeps the pool,
        # with its cached segments, for the next run.
        self._pool = None
        self._limit_cache()
        missing = Counter(rounded(size) for size, _ in self._segments.missed() if size >= SMALLEST)
        missing += self._to_replace
        self._to_replace.clear()
        with self._lock:
            self._collect()
            wanted = [size for size in missing.elements() if self._make_room(size)]
        for size in wanted:
            self._lease_later(size, functools.partial(self._arrived, size))

    def _collect(self) -> None:
        """Releases the leaving blocks that torch has given back. REQUIRES: the lock."""
        assert self._segments is not None
        for at in self._segments.left():
            lease = self._leaving.pop(at)
            self._leaving_bytes -= lease.size
            self._released.append(lease.request)

    def _limit_cache(self) -> None:
        """Empties torch's cache if torch seems to use much memory: tensors may outlive the pool of
        their run, and torch gives their segments back only when told to."""
        assert self._segments is not None
        state = self._segments.state()
        if state.slab + state.driver > self._cache_limit:
            sys.modules["torch"].cuda.empty_cache()
            state = self._segments.state()
            self._cache_limit = 2 * (state.slab + state.driver + self._limit)

    def _make_room(self, size: int) -> bool:
        """Reserves room under the limit for another block, and drops old blocks that the last run
        did not use if necessary. False if there is no room. REQUIRES: the lock."""
        assert self._segments is not None
        while self._leased_bytes + self._leaving_bytes + self._requested_bytes + size > self._limit:
            if size > self._limit:
                return False
            at = self._segments.oldest(self._began[-1] + 1)
            if not at:
                return False
            self._drop(at)
        self._requested_bytes += size
        return True

    def _drop(self, at: int) -> None:
        lease = self._leases.pop(at)
        self._leased_bytes -= lease.size
        self._released.append(lease.request)

    def _arrived(self, size: int, lease: Lease | None) -> None:
        """Handles the answer to a requested lease; None: there is no room. Runs in the reader
        thread."""
        with self._lock:
            self._requested_bytes -= size
        if lease is not None:
            self._add(lease)

    def _add(self, lease: Lease) -> None:
        assert self._segments is not None
        at = self._base + lease.offset
        with self._lock:
            if self._segments.add(at, lease.size):
                self._leases[at] = lease
                self._leased_bytes += lease.size
            else:
                self._released.append(lease.request)

    def lease_missed(self) -> None:
        """Leases the blocks that the last run failed to get after it found no memory on the GPU.
        The worker may have to spill to provide them. Raises NoLease if there is no room."""
        if self._segments is None:
            return
        for size in [size for size, failed in self._segments.missed() if failed]:
            self._add(self._lease(rounded(size)))

    def release_all(self) -> None:
        """Releases everything that torch does not use. REQUIRES: `end` was called, and no
        submitted GPU work is still running."""
        if self._segments is None:
            return
        self._pool = None
        if self._leaving:
            # Tensors in the leaving blocks may be gone by now; torch gives their segments back only
            # when told to.
            sys.modules["torch"].cuda.empty_cache()
        self._segments.trim()
        with self._lock:
            self._collect()
        self.release_idle()

    def release_idle(self) -> None:
        """Releases only the blocks that torch has given back already; may be called in the middle
        of a run. Leaving blocks are spared, because a result may be about to be copied from them.
        REQUIRES: before these leases are released, all work submitted so far is done."""
        if self._segments is None:
            return
        with self._lock:
            while at := self._segments.oldest((1 << 64) - 1):
                self._drop(at)

    # ---- results ---------------------------------------------------------------------------------

    def holds(self, at: int, nbytes: int) -> Lease | None:
        """Returns the lease that a result lies in, if the lease may leave with the result. The
        result must fill at least half of it, because it takes all of the memory."""
        with self._lock:
            for start, lease in self._leases.items():
                if start <= at and at + nbytes <= start + lease.size:
                    lease.for_result = lease.for_result or 2 * nbytes >= lease.size
                    return lease if lease.for_result else None
        return None

    def withdraw_results(self) -> None:
        """Withdraws the leases that results lie in from torch. Torch gives back all segments of the
        pool in which no tensor lies. The other leases leave later, when no tensor lies in them.
        REQUIRES: `end` was called, and no submitted GPU work is still running."""
        if self._segments is None:
            return
        with self._lock:
            marked = {at: lease for at, lease in self._leases.items() if lease.for_result}
        if not marked:
            return
        self._pool = None
        with self._lock:
            for at, lease in marked.items():
                del self._leases[at]
                self._leased_bytes -= lease.size
                self._to_replace[lease.size] += 1
                if self._segments.leave(at):
                    self._for_results.append(lease.request)
                else:
                    self._leaving[at] = lease
                    self._leaving_bytes += lease.size

    def unused(self, lease: Lease) -> bool:
        """Returns whether torch has nothing in that memory any more and does not get it again."""
        with self._lock:
            at = self._base + lease.offset
            return at not in self._leases and at not in self._leaving

    def unmark_all(self) -> None:
        """Unmarks all leases that were marked for a result: the result is not stored there."""
        with self._lock:
            for lease in self._leases.values():
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
            return out

    def in_slab(self) -> int:
        """Returns the bytes that torch counts as its own and that lie in the slab."""
        return self._segments.state().slab if self._segments is not None else 0

    # ---- once ------------------------------------------------------------------------------------

    def _install(self, torch: Any) -> None:
        """Makes torch's allocator of segments, and tests it."""
        cuda = torch.cuda
        if cuda.get_allocator_backend() != "native":
            raise Unsuitable(f"its allocator is {cuda.get_allocator_backend()}, which has no pools")
        segments = Segments(self._driver)
        if self._allocator is None:
            pluggable = cuda.memory.CUDAPluggableAllocator(
                str(segments.path), "millrace_pool_alloc", "millrace_pool_free"
            )
            self._allocator = pluggable.allocator()
            cuda.MemPool.__init__ = self._keeping(cuda.MemPool.__init__)
        self._pool = cuda.MemPool(self._allocator)
        self._routed = True
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, self._pool.id)
        try:
            self._try(torch)
        finally:
            self.end(drop_pool=True)
        segments.missed()
        self._segments = segments

    def _keeping(self, init: Any) -> Any:
        @functools.wraps(init)
        def wrapped(pool: Any, *args: Any, **kwargs: Any) -> None:
            if not any(a is self._allocator for a in args):
                self._task_pools.append(pool)  # before init: the task may be stopped at any point
            init(pool, *args, **kwargs)

        return wrapped

    def _try(self, torch: Any) -> None:
        """Raises Unsuitable if tensors of a task would get memory of a wrong pool. REQUIRES: our
        pool is begun."""
        cuda = torch.cuda
        mine = torch.empty(SMALLEST, dtype=torch.uint8, device="cuda")
        if not _has(self._pool, mine.data_ptr()):
            raise Unsuitable("its tensors do not lie in a pool that was begun; is PYTORCH_CUDA_ALLOC_CONF set?")
        other = cuda.MemPool()
        with cuda.use_mem_pool(other):
            theirs = torch.empty(SMALLEST, dtype=torch.uint8, device="cuda")
            if not _has(other, theirs.data_ptr()):
                raise Unsuitable("a pool that a task begins would not be used; those of newer ones are")
            del theirs
        graph, stream = cuda.CUDAGraph(), cuda.Stream()
        with cuda.stream(stream), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is captured
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                at = torch.empty(SMALLEST, dtype=torch.uint8, device="cuda").data_ptr()
            finally:
                graph.capture_end()
        graph.reset()
        if _has(self._pool, at):
            raise Unsuitable("a CUDA graph would keep memory of a task")
        again = torch.empty(SMALLEST, dtype=torch.uint8, device="cuda")
        if not _has(self._pool, again.data_ptr()):
            raise Unsuitable("tensors do not lie in our pool after another one was used")
        cuda.empty_cache()


def _held_elsewhere(objects: list[Any]) -> list[Any]:
    """Returns the objects that something other than this list refers to."""
    objects.append(object())
    counts = [sys.getrefcount(o) for o in objects]
    nobody = counts.pop()
    objects.pop()
    return [o for o, count in zip(objects, counts, strict=True) if count > nobody]


def _has(pool: Any, at: int) -> bool:
    """Returns whether the address lies in a segment of the pool, in use or not."""
    return any(s["address"] <= at < s["address"] + s["total_size"] for s in pool.snapshot())
