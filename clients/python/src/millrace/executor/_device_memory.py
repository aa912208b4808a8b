"""The memory of a process whose slab lies on a GPU."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._values._device import Device
from millrace.executor._kernels import warm_up
from millrace.executor._memory import Arena, Lease, NoLease
from millrace.executor._outbox import Outbox
from millrace.executor._rmm import RmmArena
from millrace.executor._torch import TorchArena


class DeviceMemory:
    """The slab on the GPU, and the allocators of this process that lease memory from it.

    Args:
        hello: the worker's description of the slab.
        out: requests to the worker.
        meanwhile: called while the main thread waits for memory, as in `Outbox.ask`.
    """

    def __init__(self, hello: executor_pb2.ExecutorHello, out: Outbox, meanwhile: Callable[[], None]) -> None:
        self._out, self._meanwhile = out, meanwhile
        arena_bytes = hello.device.arena_bytes
        self.device = device = Device(hello.device, hello.slab_bytes)
        # The libraries that are pointed at the arena. It has as much memory as they may have
        # together.
        self._shares = shares = {"cupy", "rmm"}.intersection(hello.device.arena_libraries if arena_bytes else ())
        #: Leases for CuPy and RMM, and for the second attempt of a run.
        self.arena = Arena(device, self._lease, arena_bytes * len(shares) or arena_bytes)
        self._rmm = RmmArena(self.arena, device.base)
        #: Leases for torch; None if the worker's configuration gives it none.
        self.torch: TorchArena | None = None
        if arena_bytes and "torch" in hello.device.arena_libraries:
            self.torch = TorchArena(device.driver, device.base, arena_bytes, self._lease, self._lease_later)
        # True once CuPy allocates from the arena.
        self._cupy_installed = False

    def _lease(self, size: int) -> Lease:
        """Leases slab memory that belongs to the process, not to a run. Raises NoLease if there is
        none. Only the second attempt of a run (`overflow`) waits until there is room."""
        main = threading.current_thread() is threading.main_thread()
        answer = self._out.ask(
            [size], None, no_wait=not self.arena.overflow, meanwhile=self._meanwhile if main else None
        )
        if answer.HasField("error"):
            raise NoLease(answer.error.message)
        return Lease(answer.request_id, answer.frames[0].offset, size)

    def _lease_later(self, size: int, arrived: Callable[[Lease | None], None]) -> None:
        """Like `_lease`, but does not wait: calls `arrived` in the reader thread, with None if
        there is no room."""

        def put(answer: executor_pb2.ExecutorAllocation) -> None:
            arrived(None if answer.HasField("error") else Lease(answer.request_id, answer.frames[0].offset, size))

        self._out.ask_later([size], put, no_wait=True)

    def prepare(self, *names: str) -> None:
        """Makes libraries do their one-time initialisation now, so that the first task that uses
        them does not wait for it. By default, for all of CuPy, RMM and torch that are imported."""
        names = names or tuple(name for name in ("cupy", "rmm", "torch") if name in sys.modules)
        if "rmm" in names and "rmm" in self._shares:
            self._rmm.install()
        if "cupy" in names:
            self.install_allocators()
            threading.Thread(target=warm_up, name="millrace-warm-up", daemon=True).start()
        if "torch" in names and self.torch is not None:
            self.torch.begin(first=True)
            self.torch.end()
            self.torch.settle()

    def install_allocators(self) -> None:
        """Points the allocators of CuPy, RMM and torch at the slab, as far as the worker's
        configuration says so and the libraries are imported."""
        if self.torch is not None:
            self.torch.begin(first=self.device.library == "torch")
            if text := self.torch.warning():
                print(text, file=sys.stderr)
        cupy: Any = sys.modules.get("cupy")
        if "cupy" in self._shares and cupy is not None and not self._cupy_installed:
            self._cupy_installed = True
            cupy.cuda.set_allocator(self.arena.malloc)
        if "rmm" in self._shares:
            self._rmm.install()

    @contextlib.contextmanager
    def overflowing(self) -> Iterator[None]:
        """Leases memory from the slab inside of the with block for all allocations that the
        libraries' own pools have no room for, whatever the worker's configuration says."""
        arena = self.arena
        cupy: Any = sys.modules.get("cupy")
        before: Any = cupy.cuda.get_allocator() if cupy is not None else None
        arena.overflow, arena.refused = True, ""
        resource = None
        try:
            resource = self._rmm.put()
            if cupy is not None:
                cupy.cuda.set_allocator(arena.malloc)
            yield
        finally:
            arena.overflow = False
            if cupy is not None:
                cupy.cuda.set_allocator(before)
            self._rmm.undo(resource)

    def unmark_all(self) -> None:
        """Unmarks all leases after a failed run, which has no result: they stay with the process,
        because work of the run may still use them."""
        self.arena.unmark_all()
        if self.torch is not None:
            self.torch.unmark_all()

    def drop_caches(self) -> None:
        """Releases the memory that is cached for later runs."""
        self.arena.forget(all_of_it=True)
        if self.torch is not None:
            self.torch.release_all()

    def released(self) -> list[int]:
        """Collects the leases to be released now. REQUIRES: no submitted GPU work is still
        running."""
        return self.arena.released() + (self.torch.released() if self.torch is not None else [])

    def result_leases(self) -> list[int]:
        """Collects the leases that now belong to the run's result. They are released in the message
        that reports the result, not sooner."""
        return self.arena.result_leases() + (self.torch.result_leases() if self.torch is not None else [])

    def unused(self, lease: Lease) -> bool:
        """Returns whether the memory of a marked lease is free: nothing in this process refers to
        it, and no allocator of this process can hand it out again."""
        return self.arena.unused(lease) and (self.torch is None or self.torch.unused(lease))

    def holds(self, offset: int, nbytes: int) -> Lease | None:
        """Returns the lease that a range of the slab lies in; None if it lies in none."""
        lease = self.arena.holds(offset, nbytes)
        if lease is None and self.torch is not None:
            lease = self.torch.holds(self.device.base + offset, nbytes)
        return lease
