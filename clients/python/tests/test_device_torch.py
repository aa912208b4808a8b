"""Torch's allocator on the slab. The test plays the worker, on a fake driver with a fake torch."""

# ruff: noqa: F811

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import platform
import random
import re
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import millrace.executor
import numpy as np
import pytest
from conftest import eventually
from executor_worker import text_of
from test_device import FAKES, DeviceWorker, Fake, cloudpickle
from test_device import fake as fake

cloudpickle.register_pickle_by_value(sys.modules[__name__])
MIB = 1 << 20
FOLDER = Path(millrace.executor.__file__).parent


class TorchWorker(DeviceWorker):
    size = 256 << 20


def started(fake: Fake, monkeypatch: pytest.MonkeyPatch, **device: Any) -> Iterator[TorchWorker]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    w = TorchWorker(fake, **{"arena_bytes": 64 * MIB, "arena_libraries": ["torch"], **device})
    w.call(prepared)
    yield w
    w.end()
    fake.lib.cuMemFree_v2(ctypes.c_uint64(w.at))


@pytest.fixture
def worker(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[TorchWorker]:
    yield from started(fake, monkeypatch)


def prepared() -> None:
    import torch

    torch.cuda.init()


def filled(n: int, value: float) -> Any:
    """Makes a tensor, and prints its offset in the slab to the log."""
    import torch
    from millrace.executor import _process

    made = torch.full(n, value)
    print(made.data_ptr() - _process._process.runner.memory.device.base)
    return made


def where(w: DeviceWorker) -> int:
    return int(text_of(w, w.runs).split()[-1])


def test_the_programs_are_those_of_their_source() -> None:
    # The hash of tools/torch-pool: that of the source without comments and blank lines.
    lines = (re.sub(r"\s*//.*", "", line) for line in (FOLDER / "_torch_pool.c").read_text().splitlines())
    source = hashlib.sha256("".join(f"{line}\n" for line in lines if line).encode()).hexdigest()
    for machine in ("x86_64", "aarch64"):
        made = (FOLDER / f"_torch_pool.{machine}.so").read_bytes()
        assert source.encode() in made, "_torch_pool.c was changed: run tools/torch-pool"


def test_results_in_the_arena_are_not_copied(worker: TorchWorker) -> None:
    n = 4 * MIB  # 16 MiB
    results = [worker.call(lambda i=i: filled(n, float(i))) for i in range(5)]
    assert where(worker) == results[-1].frames[0].offset
    for i, made in enumerate(results):
        assert (worker.value(made) == i).all()
    # The first run found no block of that size. After each result that takes a block along, another
    # block is requested.
    assert len(worker.leased) == 5 and len({r.frames[0].offset for r in results}) == 5
    while len(worker.released) < 4:
        worker.take()
    assert worker.released == worker.leased[:4]


def test_a_result_with_several_tensors_takes_their_memory_along(worker: TorchWorker) -> None:
    def several() -> Any:
        x, y = filled(4 * MIB, 1.0), filled(5 * MIB, 2.0)
        return {"x": x, "most": x[: 3 * MIB], "y": [y, {"again": y}], "part": y[:2000]}

    worker.call(several)
    made = worker.call(several)
    got = worker.value(made)
    assert (got["x"] == 1).all() and (got["y"][0] == 2).all() and (got["part"] == 2).all()
    places = {int(text) for text in text_of(worker, worker.runs).split()}
    assert len(places) == 2 and places <= {f.offset for f in made.frames}
    while set(worker.released) < set(worker.leased[:2]):
        worker.take()


def test_a_part_is_copied_and_the_block_stays(worker: TorchWorker) -> None:
    def part() -> Any:
        return filled(4 * MIB, 3.0)[:2000]

    for _ in range(3):
        made = worker.call(part)
        assert (worker.value(made) == 3).all() and made.frames[0].size_bytes == 8000
    assert len(worker.leased) == 1 and not worker.released
    assert 0 <= where(worker) < worker.size


def test_memory_that_outlives_its_run_is_not_given_to_others(worker: TorchWorker) -> None:
    def keep() -> Any:
        import torch

        torch.kept = filled(4 * MIB, 5.0)
        return torch.kept

    def look() -> Any:
        import torch

        filled(4 * MIB, 6.0)
        return np.frombuffer(torch.kept.get(), "float32").max()

    worker.call(keep)
    made = worker.call(keep)
    # The function has the tensor and may write to it, so the result is a copy. A result never lies
    # in memory that a process keeps.
    assert 0 <= where(worker) < worker.size and made.frames[0].offset != where(worker)
    for _ in range(3):
        assert worker.value(worker.call(look)) == 5
    assert (worker.value(made) == 5).all()
    lease = worker.leased[0]
    assert lease not in worker.released

    def change() -> None:
        import torch

        torch.cuda.write(torch.kept.data_ptr(), np.full(4 * MIB, 9.0, "float32").tobytes())

    worker.call(change)
    assert (worker.value(made) == 5).all(), "a result was changed after it was stored"

    def drop() -> None:
        import torch

        del torch.kept

    worker.call(drop)
    assert lease not in worker.released, "torch gives it back when it is told to"
    worker.send(release_unused=True)
    while lease not in worker.released:
        worker.take()


def test_memory_that_torch_keeps_counts(worker: TorchWorker) -> None:
    def keep() -> Any:
        import torch

        torch.all = [*getattr(torch, "all", []), filled(4 * MIB, 5.0)]
        return torch.all[-1]

    results = [worker.call(keep) for _ in range(9)]
    for made in results:
        assert (worker.value(made) == 5).all()
    # The limit is 4 blocks of 16 MiB. The other tensors lie in torch's own memory.
    assert len(worker.leased) == 4 and not worker.released


def test_a_pool_is_kept_until_a_result_lies_in_it(worker: TorchWorker) -> None:
    def use() -> Any:
        from millrace.executor import _process

        return [filled(4 * MIB, 1.0).data_ptr(), _process._process.runner.memory.torch._pool.id[1]]

    first, second, third, fourth = [worker.value(worker.call(use)) for _ in range(4)]
    assert first != second == third == fourth  # the first run found no block
    made = worker.call(lambda: filled(4 * MIB, 2.0))
    assert made.frames[0].offset == where(worker)
    at, pool = worker.value(worker.call(use))
    assert at != fourth[0] and pool != fourth[1]
    assert (worker.value(made) == 2).all()


def test_new_tensors_do_not_take_the_place_of_a_result(worker: TorchWorker) -> None:
    class Leaving:
        def __del__(self) -> None:
            filled(4 * MIB, -1.0)

    def make(value: float) -> Any:
        made = filled(4 * MIB, value)
        made.companion = Leaving()  # is freed after the memory of the tensor
        return made

    for i in range(4):
        made = worker.call(lambda i=i: make(float(i)))
        assert (worker.value(made) == i).all()
    assert made.frames[0].offset == int(text_of(worker, worker.runs).split()[0])


def test_a_failed_run_gives_nothing_away(worker: TorchWorker) -> None:
    def fails() -> Any:
        return filled(4 * MIB, 1.0), (i for i in ())  # cannot be pickled

    for _ in range(3):
        assert worker.call(fails).error.reason == "RESULT_NOT_SERIALISABLE"
    assert len(worker.leased) == 1 and not worker.released


def test_the_limit_holds_and_the_oldest_make_room(worker: TorchWorker) -> None:
    def several(n: int) -> int:
        kept = [filled(n * MIB, 1.0) for _ in range(3)]
        return len(kept)

    for n in (4, 4, 5, 5, 5):
        worker.call(lambda n=n: several(n))
    # 3 blocks of 16 MiB, which are released to make room when 3 of 20 MiB are wanted instead.
    assert len(worker.leased) == 6 and sorted(worker.released) == worker.leased[:3]
    assert 0 <= where(worker) < worker.size


def test_pools_of_others_come_before_ours(worker: TorchWorker) -> None:
    def use() -> Any:
        import torch
        from millrace.executor import _process

        ours = _process._process.runner.memory.torch._pool
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            at = torch.empty(16 * MIB).data_ptr()
        assert any(s["address"] == at for s in pool.snapshot())
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        captured = torch.empty(16 * MIB)
        graph.capture_end()
        mine = torch.empty(16 * MIB)
        found = [any(s["address"] == t.data_ptr() for s in ours.snapshot()) for t in (captured, mine)]
        del pool  # torch would end the process here if nothing kept the pool alive
        del captured
        graph.reset()
        return found

    for _ in range(3):
        assert worker.value(worker.call(use)) == [False, True]


def test_out_of_memory_is_repeated_with_that_of_the_slab(worker: TorchWorker, fake: Fake) -> None:
    n = 6 * MIB
    fake.fail("cuMemAlloc_v2", 2, count=1)
    worker.call(prepared)  # no memory for the test of torch
    assert worker.value(worker.call(lambda: filled(4 * MIB, 1.0)[0:4].shape)) == (4,)
    fake.fail("cuMemAlloc_v2", 2, count=2)
    made = worker.call(lambda: filled(n, 4.0))
    assert (worker.value(made) == 4).all() and made.frames[0].offset == where(worker)

    def caught() -> Any:
        import torch

        try:
            torch.empty(7 * MIB)
        except torch.OutOfMemoryError:
            return True
        return False

    fake.fail("cuMemAlloc_v2", 2, count=2)
    assert worker.value(worker.call(caught))


def test_a_stopped_run_leaves_torch_as_it_was(worker: TorchWorker, tmp_path: Path) -> None:
    def endless(started: str) -> None:
        kept = [filled(4 * MIB, 1.0)]
        Path(started).touch()
        while kept:  # no free here: an exception in a __del__ would be ignored
            pass

    for i in range(10):
        started = tmp_path / str(i)
        worker.runs += 1
        worker.define(worker.runs, endless)
        worker.runs -= 1
        worker.start(worker.runs + 1, str(started))
        eventually(started.exists)
        struct.pack_into("<Q", worker.page, 16, worker.word(0))
        worker.process.send_signal(signal.SIGINT)
        assert worker.finished().error.reason == "STOPPED"
        made = worker.call(lambda i=i: filled(5 * MIB, float(i)))
        assert (worker.value(made) == i).all()
    assert made.frames[0].offset == where(worker)


def test_an_idle_process_gives_everything_back(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for w in started(fake, monkeypatch, executor_count=2):
        made = [w.call(lambda i=i: filled(4 * MIB, float(i))) for i in range(3)]
        while len(w.leased) < 3 or set(w.released) != set(w.leased):
            w.take()
        for i, m in enumerate(made):
            assert (w.value(m) == i).all()
        made = [w.call(lambda i=i: filled(4 * MIB, float(i))) for i in range(3)]
        assert made[-1].frames[0].offset == where(w)


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("MILLRACE_FAKE_TORCH", "first", "a pool that a task begins would not be used"),
        ("MILLRACE_FAKE_TORCH", "broken", "a CUDA graph would keep memory"),
        ("MILLRACE_FAKE_TORCH", "aside", "do not lie in a pool"),
        ("MILLRACE_FAKE_TORCH_BACKEND", "cudaMallocAsync", "cudaMallocAsync"),
    ],
)
def test_a_torch_that_is_not_fit_is_left_alone(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, why: str
) -> None:
    monkeypatch.setenv(variable, value)
    for w in started(fake, monkeypatch):
        for i in range(3):
            made = w.call(lambda i=i: filled(4 * MIB, float(i)))
            assert (w.value(made) == i).all() and not 0 <= where(w) < w.size
            said = text_of(w, w.runs, stderr=True)
            assert (why in said) == (i == 0) and len(said.splitlines()) == (i == 0)
        assert not w.leased


def test_torch_is_left_alone_unless_asked_for(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    for w in started(fake, monkeypatch, arena_libraries=["cupy"]):
        for i in range(3):
            w.call(lambda i=i: filled(4 * MIB, float(i)))
            assert not 0 <= where(w) < w.size
        assert not w.leased


def test_segments_never_overlap(fake: Fake, tmp_path: Path) -> None:
    """Tests the table of blocks with many random calls."""
    path = tmp_path / "pool.so"  # a copy, which has its own table
    path.write_bytes((FOLDER / f"_torch_pool.{platform.machine()}.so").read_bytes())
    lib = ctypes.CDLL(str(path))
    lib.millrace_pool_alloc.restype = lib.millrace_pool_oldest.restype = ctypes.c_uint64
    places = itertools.count(1 << 40, 1 << 30)
    driver: set[int] = set()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64)
    def take(at: Any, _size: int) -> int:
        at[0] = next(places)
        driver.add(at[0])
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64)
    def give(at: int) -> int:
        driver.remove(at)
        return 0

    u64, pointer = ctypes.c_uint64, ctypes.c_void_p
    lib.millrace_pool_init(take, give, u64(10 * MIB))
    rng = random.Random(7)
    slab: dict[int, int] = {}
    idle: set[int] = set()
    used: dict[int, tuple[int, int]] = {}
    leaving: set[int] = set()
    for _ in range(20_000):
        what = rng.random()
        if what < 0.1:
            at, size = next(places), rng.choice([10, 16, 20, 32]) * MIB
            if lib.millrace_pool_add(u64(at), u64(size)):
                slab[at] = size
                idle.add(at)
        elif what < 0.5:
            size, stream = rng.choice([2, 10, 15, 20, 30]) * MIB, rng.choice([0, 0, 0, 77])
            at = lib.millrace_pool_alloc(u64(size), 0, pointer(stream))
            assert at and at not in used and at not in leaving
            if at in slab:
                assert not stream and size <= slab[at] <= size * 9 // 8
                idle.remove(at)
            else:
                assert at in driver
            used[at] = size, stream
        elif what < 0.9 and used:
            at = rng.choice(list(used))
            size, stream = used.pop(at)
            lib.millrace_pool_free(pointer(at), u64(size), 0, pointer(stream))
            if at in leaving:
                leaving.remove(at)
                out = (u64 * 4)()
                assert lib.millrace_pool_left(out, 4) == 1 and out[0] == at
                del slab[at]
            elif at in slab:
                idle.add(at)
        elif what < 0.95 and slab:
            at = rng.choice(list(slab))
            if at in leaving:
                continue
            if lib.millrace_pool_leave(u64(at)):
                assert at not in used
                idle.discard(at)
                del slab[at]
            else:
                leaving.add(at)
        elif what < 0.98:
            at = lib.millrace_pool_oldest(u64((1 << 64) - 1))
            if at:
                idle.remove(at)
                del slab[at]
        else:
            lib.millrace_pool_trim(u64((1 << 64) - 1))
            assert driver == {at for at in used if at not in slab}
    out = (u64 * 7)()
    lib.millrace_pool_state(out)
    assert out[0] == sum(slab[at] for at in slab if at in used) and out[1] == sum(slab[at] for at in idle)
