"""Tests of RMM's memory in the slab. The test plays the worker, on a fake driver with fakes of CuPy
and RMM."""

# ruff: noqa: F811

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from executor_worker import text_of
from millrace.executor import _memory
from test_device import _DELAY, DeviceWorker, Fake, Recycling, setup
from test_device import fake as fake

KIB = 1 << 10
MIB = 1 << 20

cloudpickle.register_pickle_by_value(__import__(__name__))


@pytest.fixture
def worker(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recycling]:
    """A worker that lends memory of its slab to RMM."""
    setup(fake, monkeypatch)
    w = Recycling(fake, arena_bytes=4 * MIB, arena_libraries=["rmm"])
    w.call(import_rmm)
    yield w
    fake.set(_DELAY, 0)
    w.end()


def import_rmm() -> None:
    import rmm  # noqa: F401


def buffer(value: int, size: int = 512 * KIB) -> Any:
    import rmm

    return rmm.DeviceBuffer.to_device(bytes([value]) * size)


def base() -> int:
    from millrace.executor import _process

    process: Any = _process._process
    return process.runner.memory.device.base


def test_results_of_rmm_are_not_copied(worker: DeviceWorker, fake: Fake) -> None:
    def make() -> Any:
        made = buffer(7)
        print(made.ptr - base())
        return made

    fake.set(_DELAY, 20_000)
    made = worker.call(make)
    assert not made.HasField("error"), made.error
    assert made.frames[0].offset == int(text_of(worker, worker.runs))
    assert (worker.value(made) == 7).all()
    assert worker.leased == worker.released, "the memory has left the process"
    again = worker.call(make)
    assert again.frames[0].offset != made.frames[0].offset and (worker.value(made) == 7).all()


def test_a_freed_block_is_used_again_on_its_stream_only(worker: DeviceWorker) -> None:
    def use() -> Any:
        import rmm

        a, b = rmm.mr.Stream(0x100), rmm.mr.Stream(0x200)
        mr = rmm.mr.get_current_device_resource()

        def freed(on: Any) -> int:
            at = mr.allocate(MIB, a)
            mr.deallocate(at, MIB, on)
            return at

        def next_on(stream: Any) -> int:
            at = mr.allocate(MIB, stream)
            mr.deallocate(at, MIB, stream)
            return at

        first = freed(b)
        return [next_on(a) == first, next_on(b) == first]

    # The block was allocated on one stream and freed on another: the latter counts.
    assert worker.value(worker.call(use)) == [False, True]


def test_streams_that_are_the_same_share_blocks(worker: DeviceWorker) -> None:
    def use() -> Any:
        import threading

        import rmm

        legacy, per_thread = rmm.mr.Stream(1), rmm.mr.Stream(2)
        mr = rmm.mr.get_current_device_resource()
        at = mr.allocate(MIB)
        mr.deallocate(at, MIB)
        same = mr.allocate(MIB, legacy) == at
        mine = mr.allocate(MIB, per_thread)
        mr.deallocate(mine, MIB, per_thread)
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(mr.allocate(MIB, per_thread)))
        other.start()
        other.join()
        mr.deallocate(at, MIB)
        mr.deallocate(found[0], MIB)
        return same, found[0] != mine

    assert worker.value(worker.call(use)) == (True, True)


def test_small_blocks_and_what_has_no_room_lie_elsewhere(worker: DeviceWorker) -> None:
    def use() -> Any:
        import rmm

        kept = [rmm.DeviceBuffer(size=n) for n in (100 * KIB, 3 * MIB, 5 * MIB, 2 * MIB)]
        resource = rmm.mr.get_current_device_resource()._allocate.__self__
        below = resource._upstream
        return [0 <= k.ptr - base() < 16 * MIB for k in kept], type(below).__name__, below.release_threshold > 0

    for _ in range(2):
        where, below, bounded = worker.value(worker.call(use))
        assert where == [False, True, False, False] and below == "CudaAsyncMemoryResource" and bounded


def test_a_resource_of_the_function_stays(worker: DeviceWorker) -> None:
    def replace() -> None:
        import rmm

        rmm.mine = rmm.mr.CudaMemoryResource()
        rmm.mr.set_current_device_resource(rmm.mine)

    def make() -> Any:
        import rmm

        assert rmm.mr.get_current_device_resource() is rmm.mine
        return buffer(5)

    worker.call(replace)
    assert (worker.value(worker.call(make)) == 5).all()


def test_a_buffer_that_python_holds_is_not_given_away(worker: DeviceWorker) -> None:
    def keep() -> Any:
        import rmm

        rmm.kept = buffer(1)
        return rmm.kept

    def look() -> Any:
        import cupy
        import rmm

        other = buffer(3)
        return [
            int(np.unique(cupy.ndarray((b.size,), "u1", cupy.cuda.MemoryPointer(b, 0)).get())[0])
            for b in (rmm.kept, other)
        ]

    made = worker.call(keep)
    assert worker.value(worker.call(look)) == [1, 3] and (worker.value(made) == 1).all()


def test_out_of_memory_is_recognised() -> None:
    assert _memory.is_out_of_memory(MemoryError("std::bad_alloc: out_of_memory: CUDA error"))
    assert not _memory.is_out_of_memory(MemoryError())


def test_a_function_without_room_gets_memory_of_the_slab(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt takes from the slab what the driver refuses, without any arena."""
    setup(fake, monkeypatch)
    w = Recycling(fake)
    w.call(import_rmm)

    def large() -> Any:
        import rmm

        before = rmm.mr.get_current_device_resource()
        made = rmm.DeviceBuffer(size=2 * MIB)
        print(0 <= made.ptr - base() < 16 * MIB, type(before).__name__)
        return "made"

    fake.fail("cuMemAlloc_v2", 2, count=1000)
    made = w.call(large)
    fake.fail("", 0, count=0)
    assert w.value(made) == "made" and text_of(w, w.runs).split() == ["True", "CallbackMemoryResource"]

    def after() -> str:
        import rmm

        return type(rmm.mr.get_current_device_resource()).__name__

    assert w.value(w.call(after)) == "CudaMemoryResource"
    w.end()


def test_a_stop_waits_for_the_end_of_a_call(worker: DeviceWorker) -> None:
    """RMM would turn it into another error, or end the process."""
    from millrace.executor import _rmm
    from millrace.executor._stopping import Stopping

    class Control:
        stop = 3

    control: Any = Control()
    stopping = Stopping(control, _rmm.UNINTERRUPTED)
    again: list[int] = []
    calls: list[str] = []

    class Upstream:
        """Gets the signal inside of the call."""

        def allocate(self, size: int, stream: Any) -> int:
            import sys

            stopping._ordinal = 3
            stopping.on_signal(2, sys._getframe())
            calls.append("allocate")
            return 77

    import _thread

    resource = object.__new__(_rmm._Resource)
    resource._arena = type("Arena", (), {"overflow": False})()
    resource._upstream = Upstream()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", lambda *_: again.append(1))
        assert resource.allocate(10, None) == 77
    assert again and calls == ["allocate"] and stopping._ordinal == 3, "the signal comes again"
