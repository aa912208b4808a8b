"""Torch's allocator on the arena: while a task runs, what it makes on the default stream lies in memory of the slab that was
leased beforehand, so that results need no copy.

Torch has two ways in. As a replacement for its allocator (`CUDAPluggableAllocator` and `change_current_allocator`) we could not
refuse: what the function answers is not compared with null, so that out of memory would become an illegal address. There would
also be no cache, no statistics, and graphs would be captured without a word, of memory that is then given to others. So it is
the second one, a pool (`torch.cuda.MemPool`) whose segments come from `_torch_pool.c`: torch keeps its cache, its statistics
and its own OutOfMemoryError. A pool ends with the first run whose result lies in it, so that torch does not use that memory again.

Others may have pools of their own inside of a task: a CUDA graph that is captured, also by `torch.compile`, and `use_mem_pool`.
Theirs must come first, although ours was begun before. Torch 2.11 uses the pool that was begun last, as it should be; older
ones used the first. So it is tried out once in each process what they get, and a torch that is not fit is left alone.
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

    from millrace.executor._driver import Driver

#: Torch asks for segments of 2 MiB to put small tensors in, 20 MiB for those from 1 MiB, and for one of its own size for each
#: from 10 MiB: only the latter can be results that are taken where they are.
SMALLEST = 10 << 20
#: Memory of the driver that was not used in as many runs is given back to it.
_UNUSED = 8
#: Most numbers that one call returns.
_MOST = 256

_U64 = ctypes.c_uint64


class Unsuitable(Exception):
    """This torch cannot be pointed at the arena, and why."""


def library() -> Path:
    """The compiled `_torch_pool.c` for this machine."""
    return Path(__file__).with_name(f"_torch_pool.{platform.machine()}.so")


class State(NamedTuple):
    """Bytes of the slab and of the driver that torch has, and that lie idle; how many blocks were handed out so far; how many
    sizes were missed, and how many blocks left, since somebody asked."""

    slab: int
    slab_idle: int
    driver: int
    driver_idle: int
    handed_out: int
    missed: int
    left: int


class Segments:
    """Blocks that torch takes its segments from: `_torch_pool.c`."""

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
        """Has a block forgotten as soon as torch does not have it; True: that was at once."""
        return bool(self._lib.millrace_pool_leave(at))

    def left(self) -> list[int]:
        return self._all(self._lib.millrace_pool_left)

    def oldest(self, before: int) -> int:
        return self._lib.millrace_pool_oldest(before)

    def trim(self, before: int = (1 << 64) - 1) -> None:
        self._lib.millrace_pool_trim(before)

    def missed(self) -> list[tuple[int, bool]]:
        """Sizes that there was no block for; True: nor any other memory."""
        return [(n & ~1, bool(n & 1)) for n in self._all(self._lib.millrace_pool_missed)]

    def state(self) -> State:
        self._lib.millrace_pool_state(self._state)
        return State(*self._state)

    def _all(self, call: Callable[..., int]) -> list[int]:
        out = (_U64 * _MOST)()
        return out[: call(out, _MOST)]


class TorchArena:
    """Torch's share of the arena. The methods are the main thread's, except `_arrived`."""

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
        # Torch's name for _segments.
        self._allocator: Any = None
        #: Why torch is left alone; "": it is not, as far as is known.
        self.unsuitable = ""
        self._warned = False
        # That of the run at work, and of the runs before until one is over that lacked something or has its result there.
        self._pool: Any = None
        # Allocations of the main thread go to _pool.
        self._routed = False
        # Guards what follows.
        self._lock = threading.Lock()
        # Leases that torch may have blocks of, by address, those apart that are released as soon as it has none: a result
        # lay in them.
        self._leases: dict[int, Lease] = {}
        self._leaving: dict[int, Lease] = {}
        self._held = self._asked = 0
        # Bytes of _leaving.
        self._kept_back = 0
        self._released: list[int] = []
        # Those that results have taken over.
        self._taken: list[int] = []
        # Sizes of leases that results have taken along since the last `settle`.
        self._parted: Counter[int] = Counter()
        # Hand-outs when the last runs began, and the one at work.
        self._began: deque[int] = deque([0], maxlen=_UNUSED)
        # Bytes in use between runs at which it is found out whether torch just has not given them back.
        self._many = 2 * limit
        # Pools of others. Torch ends the process if one is destroyed while any is begun, ours for instance: they live on until
        # the run is over.
        self._others: list[Any] = []

    # ---- before and after runs -------------------------------------------------------------------------------------

    def begin(self, *, first: bool = False) -> None:
        """Has torch take its memory from here until `leave`, if the process uses it on the GPU; `first`: if it is about to."""
        torch: Any = sys.modules.get("torch")
        cuda: Any = getattr(torch, "cuda", None)
        if self.unsuitable or getattr(cuda, "MemPool", None) is None or not (first or cuda.is_initialized()):
            return
        if self._segments is None:
            try:
                cuda.init()
                self._install(torch)
            except Exception as e:  # torch's own, too: what we use of it may change
                self._routed, self._pool = False, None
                if is_out_of_memory(e):
                    return  # the next run may find some
                self.unsuitable = str(e) or type(e).__name__
                return
        assert self._segments is not None
        if self._pool is None:
            self._pool = cuda.MemPool(self._allocator)
        self._routed = True
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, self._pool.id)

    def warning(self) -> str:
        """What the log of a task should say, once; "": nothing."""
        if not self.unsuitable or self._warned:
            return ""
        self._warned = True
        return f"--executor-arena-for torch: it keeps its own memory, and its results are copied: {self.unsuitable}"

    def leave(self, *, for_good: bool = False) -> None:
        """The task is over: torch takes its memory from elsewhere again. `for_good`: what it had is not needed, either."""
        if self._routed:
            torch: Any = sys.modules["torch"]
            self._routed = False
            try:
                torch._C._cuda_endAllocateToPool(0, self._pool.id)
            except RuntimeError:  # the run was stopped between two calls
                pass
            while self._pool.use_count() > 1:
                torch._C._cuda_releasePool(0, self._pool.id)
        if for_good:
            self._pool = None

    def settle(self) -> None:
        """Takes back what the last run does not hold any more, and asks for what it lacked. REQUIRES: `leave`; nothing that it
        submitted is still running, and its result was stored."""
        if self._segments is None:
            return
        state = self._segments.state()
        if self._others:
            self._others = _held_elsewhere(self._others)
        if state.missed or state.left or self._parted:
            self._exchange()
        if state.driver_idle:
            self._segments.trim(self._began[0])
        self._began.append(state.handed_out)

    def _exchange(self) -> None:
        """Asks for other blocks in place of those that left or were missing."""
        assert self._segments is not None
        # Torch gives its segments back. Otherwise it keeps them, and what it has made of them, for the next run.
        self._pool = None
        self._look_after()
        lacked = Counter(rounded(size) for size, _ in self._segments.missed() if size >= SMALLEST)
        lacked += self._parted
        self._parted.clear()
        with self._lock:
            self._collect()
            wanted = [size for size in lacked.elements() if self._make_room(size)]
        for size in wanted:
            self._lease_later(size, functools.partial(self._arrived, size))

    def _collect(self) -> None:
        """Releases the blocks that were to leave and that torch has given back. REQUIRES: the lock."""
        assert self._segments is not None
        for at in self._segments.left():
            lease = self._leaving.pop(at)
            self._kept_back -= lease.size
            self._released.append(lease.request)

    def _look_after(self) -> None:
        """Tensors may outlive their run's pool. What they leave when they go, torch only gives back if it is told to."""
        assert self._segments is not None
        state = self._segments.state()
        if state.slab + state.driver > self._many:
            sys.modules["torch"].cuda.empty_cache()
            state = self._segments.state()
            self._many = 2 * (state.slab + state.driver + self._limit)

    def _make_room(self, size: int) -> bool:
        """There may be another block of that size, perhaps for old ones that the last run did not use. REQUIRES: the lock."""
        assert self._segments is not None
        while self._held + self._kept_back + self._asked + size > self._limit:
            if size > self._limit:
                return False
            at = self._segments.oldest(self._began[-1] + 1)
            if not at:
                return False
            self._drop(at)
        self._asked += size
        return True

    def _drop(self, at: int) -> None:
        lease = self._leases.pop(at)
        self._held -= lease.size
        self._released.append(lease.request)

    def _arrived(self, size: int, lease: Lease | None) -> None:
        """What was asked for is here, or there is none. In the thread that reads the link."""
        with self._lock:
            self._asked -= size
        if lease is not None:
            self._add(lease)

    def _add(self, lease: Lease) -> None:
        assert self._segments is not None
        at = self._base + lease.offset
        with self._lock:
            if self._segments.add(at, lease.size):
                self._leases[at] = lease
                self._held += lease.size
            else:
                self._released.append(lease.request)

    def lacked(self) -> None:
        """After a run that found no memory on the GPU: leases what it failed to get, which may take the worker's spilling."""
        if self._segments is None:
            return
        for size in [size for size, failed in self._segments.missed() if failed]:
            self._add(self._lease(rounded(size)))

    def give_back(self) -> None:
        """Releases everything that torch does not have. REQUIRES: `leave`; nothing that was submitted is still running."""
        if self._segments is None:
            return
        self._pool = None
        if self._leaving:
            # Tensors that lay beside a result may have gone since; torch gives their segments back only if it is told to.
            sys.modules["torch"].cuda.empty_cache()
        self._segments.trim()
        with self._lock:
            self._collect()
        self.drop_idle()

    def drop_idle(self) -> None:
        """The same for blocks that torch has given back already, also in the middle of a run. It spares those that are to leave,
        from which a result may be about to be copied. REQUIRES: before these are released, all that was submitted so far is
        done."""
        if self._segments is None:
            return
        with self._lock:
            while at := self._segments.oldest((1 << 64) - 1):
                self._drop(at)

    # ---- results -------------------------------------------------------------------------------------------------

    def holds(self, at: int, nbytes: int) -> Lease | None:
        """The memory of this arena that a result lies in, if it may leave with that: a small part would take all of it along."""
        with self._lock:
            for start, lease in self._leases.items():
                if start <= at and at + nbytes <= start + lease.size:
                    lease.given = lease.given or 2 * nbytes >= lease.size
                    return lease if lease.given else None
        return None

    def let_go(self) -> None:
        """Lets leases leave that results lie in. Torch gives all segments of the pool back in which no tensor lies; the
        others, too, leave later, when none does. REQUIRES: `leave`; nothing that was submitted is still running."""
        if self._segments is None:
            return
        with self._lock:
            given = {at: lease for at, lease in self._leases.items() if lease.given}
        if not given:
            return
        self._pool = None
        with self._lock:
            for at, lease in given.items():
                del self._leases[at]
                self._held -= lease.size
                self._parted[lease.size] += 1
                if self._segments.leave(at):
                    self._taken.append(lease.request)
                else:
                    self._leaving[at] = lease
                    self._kept_back += lease.size

    def left(self, lease: Lease) -> bool:
        """Torch has nothing in that memory any more, and does not get it again."""
        with self._lock:
            at = self._base + lease.offset
            return at not in self._leases and at not in self._leaving

    def keep_all(self) -> None:
        """What was to leave with a result stays: there is none."""
        with self._lock:
            for lease in self._leases.values():
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
            return out

    def in_slab(self) -> int:
        """Bytes that torch counts as its own and that the slab has."""
        return self._segments.state().slab if self._segments is not None else 0

    # ---- once ------------------------------------------------------------------------------------------------------

    def _install(self, torch: Any) -> None:
        """Makes torch's allocator of segments, and tries it out."""
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
            self.leave(for_good=True)
        segments.missed()
        self._segments = segments

    def _keeping(self, init: Any) -> Any:
        @functools.wraps(init)
        def wrapped(pool: Any, *args: Any, **kwargs: Any) -> None:
            if not any(a is self._allocator for a in args):
                self._others.append(pool)  # first: the task may be stopped anywhere
            init(pool, *args, **kwargs)

        return wrapped

    def _try(self, torch: Any) -> None:
        """Fails if something in a task would get memory of a wrong kind. REQUIRES: our pool is begun."""
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
    """Those that not only this list refers to."""
    objects.append(object())
    counts = [sys.getrefcount(o) for o in objects]
    nobody = counts.pop()
    objects.pop()
    return [o for o, count in zip(objects, counts, strict=True) if count > nobody]


def _has(pool: Any, at: int) -> bool:
    """The address lies in a segment of the pool, whether it is in use or not."""
    return any(s["address"] <= at < s["address"] + s["total_size"] for s in pool.snapshot())
