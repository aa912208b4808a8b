"""Torch's allocator on the slab of a real GPU. Runs with MILLRACE_GPU_TESTS=1, and needs CuPy and
torch."""

# ruff: noqa: F811

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import test_device
from executor_worker import text_of
from millrace import arrays
from test_device import DeviceWorker
from test_gpu import Real
from test_gpu import fake as fake

test_device.cloudpickle.register_pickle_by_value(__import__(__name__))
MIB = 1 << 20


class OverwritingWorker(DeviceWorker):
    """A worker that overwrites memory that was released to it, and then leases it again."""

    size = 3 << 30

    def __init__(self, gpu: Real, **device: Any) -> None:
        self._leased_ranges: dict[int, tuple[int, int]] = {}
        self._free: list[tuple[int, int]] = []
        #: Ranges that results lie in.
        self.kept: list[tuple[int, int]] = []
        fields = {"arena_bytes": 1 << 30, "arena_libraries": ["cupy", "torch"]}
        super().__init__(gpu, **{**fields, **device})
        self.room = MIB
        self._top = MIB

    def take(self) -> None:
        message = self.receive()
        for request in message.allocation_requests:
            frames = []
            for n in request.frame_bytes:
                frames.append({"offset": self._place(n), "size_bytes": n})
            if not request.HasField("attempt"):
                self.leased.append(request.request_id)
                self._leased_ranges[request.request_id] = (frames[0]["offset"], frames[0]["size_bytes"])
            self.send(allocations=[{"request_id": request.request_id, "frames": frames}])
        for finished in message.finished:
            self.kept += [(f.offset, f.size_bytes) for f in finished.frames]
        self.inbox += message.finished
        self.logs += message.logs
        for r in message.releases:
            self.released.append(r.request_id)
            at, n = self._leased_ranges.pop(r.request_id)
            if not any(at < a + k and a < at + n for a, k in self.kept):
                self.gpu.runtime.memset(self.at + at, 0xEE, n)
                self.gpu.runtime.deviceSynchronize()
                self._free.append((at, n))

    def _place(self, n: int) -> int:
        for entry in self._free:
            if entry[1] == n:
                self._free.remove(entry)
                return entry[0]
        at, self._top = self._top, self._top + (n + MIB - 1) // MIB * MIB
        assert self._top <= self.size, "the slab of the test is full"
        return at

    def drop(self, finished: Any) -> None:
        """Simulates that no client holds a result any more."""
        for f in finished.frames:
            self.kept.remove((f.offset, f.size_bytes))
            if not any(a <= f.offset < a + n for a, n in self._leased_ranges.values()):
                self._free.append((f.offset, f.size_bytes))


@pytest.fixture
def worker(fake: Real) -> Iterator[OverwritingWorker]:
    yield from started(fake)


def started(fake: Real, **device: Any) -> Iterator[OverwritingWorker]:
    w = OverwritingWorker(fake, **device)
    try:
        w.value(w.call(ready))
        yield w
    finally:
        w.end()
        fake.runtime.free(w.at)


@arrays("torch")
def ready() -> str:
    """The first task that uses torch: it tests torch."""
    import torch
    from millrace.executor import _process

    torch.zeros(1, device="cuda")
    ours = _process._process.runner.memory.torch
    assert ours is None or not ours.unsuitable, ours.unsuitable
    return "ready"


def filled(n: int, value: float) -> Any:
    """Makes a tensor, and prints its offset in the slab to the log."""
    import torch
    from millrace.executor import _process

    made = torch.full((n,), value, device="cuda")
    print(made.data_ptr() - _process._process.runner.memory.device.base)
    return made


def where(w: DeviceWorker) -> int:
    return int(text_of(w, w.runs).split()[0])


def test_results_of_torch_are_taken_where_they_are(worker: OverwritingWorker) -> None:
    n = 16 * MIB
    made = worker.call(lambda: filled(n, 1.0))
    # There was no block of that size yet.
    assert not 0 <= where(worker) < worker.size
    results = [made]
    for i in range(2, 8):
        results.append(worker.call(lambda i=i: filled(n, float(i))))
        assert results[-1].frames[0].offset == where(worker)
    for i, made in enumerate(results, 1):
        assert (worker.value(made) == i).all()
    assert len({r.frames[0].offset for r in results}) == len(results)


def test_views_and_parts_of_tensors(worker: OverwritingWorker) -> None:
    def several() -> Any:
        import torch
        from millrace.executor import _process

        x = torch.arange(16 * MIB, device="cuda", dtype=torch.float32).reshape(4096, 4096)
        print(x.data_ptr() - _process._process.runner.memory.device.base)
        return {"whole": x, "turned": x.T, "most": x[1024:], "part": x[:64], "gaps": x[:, ::2], "sum": x[:2].sum()}

    worker.call(several)
    made = worker.call(several)
    x = np.arange(16 * MIB, dtype="float32").reshape(4096, 4096)
    got = worker.value(made)
    for name, expected in (("whole", x), ("turned", x.T), ("most", x[1024:]), ("part", x[:64]), ("gaps", x[:, ::2])):
        assert (got[name] == expected).all(), name
    assert got["sum"] == x[:2].sum()
    at = where(worker)
    inside = [f for f in made.frames if at <= f.offset < at + x.nbytes]
    assert len(inside) >= 3 and {at, at + 1024 * 4096 * 4} <= {f.offset for f in inside}


def test_tensors_that_outlive_their_run(worker: OverwritingWorker) -> None:
    def keep() -> Any:
        import torch

        torch.kept = [filled(16 * MIB, 5.0), torch.full((1000,), 7.0, device="cuda")]
        return torch.kept[0]

    worker.call(keep)
    made = worker.call(keep)
    # The function may write to the tensor that it keeps, so the result is a copy.
    assert 0 <= where(worker) < worker.size and made.frames[0].offset != where(worker)
    for i in range(5):
        worker.call(lambda i=i: filled(16 * MIB, float(i)))

    def look() -> Any:
        import torch

        return float(torch.kept[0].sum()) / len(torch.kept[0]), float(torch.kept[1].sum())

    assert worker.value(worker.call(look)) == (5.0, 7000.0)
    assert (worker.value(made) == 5).all()

    def change() -> None:
        import torch

        torch.kept[0].fill_(9)

    worker.call(change)
    assert (worker.value(made) == 5).all(), "a result was changed after it was stored"

    def drop() -> None:
        import torch

        del torch.kept

    worker.call(drop)
    held = set(worker.leased) - set(worker.released)
    worker.send(release_unused=True)
    while set(worker.leased) - set(worker.released):
        worker.take()
    assert held


def test_many_runs_on_several_streams(worker: OverwritingWorker) -> None:
    """The memory of a run is used again, also by other processes, so no work of the run may still
    read or write it."""

    @arrays("torch")
    def run(seed: int) -> Any:
        import torch

        rng = np.random.default_rng(seed)
        n = int(rng.choice([3, 4, 6, 8])) * MIB
        side = torch.cuda.Stream()
        x = torch.full((n,), float(seed), device="cuda")
        for _ in range(int(rng.integers(1, 4))):
            with torch.cuda.stream(side):
                side.wait_stream(torch.cuda.default_stream())
                y = x * 2
                x.record_stream(side)
                for _ in range(20):
                    y = y + 1
                y -= 20
            torch.cuda.default_stream().wait_stream(side)
            y.record_stream(torch.cuda.default_stream())
            x = y / 2
        return x + 1

    results: list[tuple[int, Any]] = []
    for seed in range(150):
        results.append((seed, worker.call(lambda seed=seed: run(seed))))
        if len(results) > 8:
            old, made = results.pop(seed * 7 % len(results))
            assert (worker.value(made) == old + 1).all(), old
            worker.drop(made)
    for old, made in results:
        assert (worker.value(made) == old + 1).all(), old
    print("REUSE", len(worker.leased), "leases,", len(worker.released), "given back")


def test_graphs_have_memory_of_their_own(worker: OverwritingWorker) -> None:
    def capture() -> Any:
        import torch
        from millrace.executor import _process

        static = torch.zeros(4 * MIB, device="cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            static.add(1).mul(2)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            between = static.add(1)
            out = between.mul(2)
        ours = _process._process.runner.memory.torch
        base, size = _process._process.runner.memory.device.base, _process._process.runner.memory.device.size

        def is_ours(t: Any) -> bool:
            at = t.data_ptr()
            return any(s["address"] <= at < s["address"] + s["total_size"] for s in ours._pool.snapshot())

        after = torch.zeros(4 * MIB, device="cuda")
        assert ours._routed and is_ours(after)
        for t in (out, between):
            assert not is_ours(t) and not base <= t.data_ptr() < base + size
        del between
        torch.captured = graph, static, out
        return 1

    def replay(value: float) -> Any:
        import torch

        graph, static, out = torch.captured
        static.fill_(value)
        others = [torch.full((4 * MIB,), -1.0, device="cuda") for _ in range(8)]
        graph.replay()
        torch.cuda.synchronize()
        return out.mean().item(), others[0].mean().item(), others[-1].mean().item()

    assert worker.value(worker.call(capture)) == 1
    for value in (1.0, 5.0, 7.0):
        for _ in range(3):
            worker.call(lambda: filled(4 * MIB, 9.0))
        assert worker.value(worker.call(lambda value=value: replay(value))) == (2 * (value + 1), -1, -1)


def test_compiled_functions_capture_graphs_unasked(worker: OverwritingWorker) -> None:
    def compiled() -> Any:
        import torch

        torch._dynamo.reset()
        f = torch.compile(lambda x: (x.sin() + 1).cos() * 2, mode="reduce-overhead")
        got = []
        for i in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((4 * MIB,), float(i), device="cuda")
            got.append(f(x).mean().item())
        torch.compiled = f
        return got

    def again() -> Any:
        import torch

        torch.compiler.cudagraph_mark_step_begin()
        return torch.compiled(torch.full((4 * MIB,), 3.0, device="cuda")).mean().item()

    expected = [2 * np.cos(np.sin(i) + 1) for i in range(5)]
    began = time.perf_counter()
    assert worker.value(worker.call(compiled)) == pytest.approx(expected, rel=1e-4)
    print(f"COMPILED in {time.perf_counter() - began:.1f} s")
    for i in range(4):
        worker.call(lambda i=i: filled(4 * MIB, float(i)))
        assert worker.value(worker.call(again)) == pytest.approx(expected[3], rel=1e-4)


def test_pools_of_tasks_themselves(worker: OverwritingWorker) -> None:
    def use() -> Any:
        import torch

        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(16 * MIB, device="cuda")
        assert any(s["address"] == x.data_ptr() for s in pool.snapshot())
        total = float(x.sum())
        del x, pool  # torch would end the process here if nothing kept the pool alive
        torch.cuda.empty_cache()
        y = torch.ones(16 * MIB, device="cuda")
        return total + float(y.sum()), torch.cuda.memory_allocated() >= y.nbytes, torch.cuda.max_memory_allocated() > 0

    for _ in range(3):
        assert worker.value(worker.call(use)) == (2.0 * 16 * MIB, True, True)


def test_autograd_in_a_task(worker: OverwritingWorker) -> None:
    def train() -> Any:
        import torch

        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 64)).cuda()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4096, 2048, device="cuda")
        losses = []
        for _ in range(5):
            optimiser.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses, model[0].weight.detach()

    first, weights = worker.value(worker.call(train))
    for _ in range(3):
        losses, again = worker.value(worker.call(train))
        assert losses == pytest.approx(first, rel=1e-3) and np.allclose(weights, again, atol=1e-3)
    assert first[-1] < first[0]


def test_out_of_memory_is_torchs_own_and_then_comes_from_the_slab(fake: Real, worker: OverwritingWorker) -> None:
    def caught() -> Any:
        import torch

        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as e:
            return str(e)

    assert "1024.00 GiB" in worker.value(worker.call(caught))

    def much(nbytes: int) -> Any:
        import torch
        from millrace.executor import _process

        made = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        made.fill_(3)
        print(made.data_ptr() - _process._process.runner.memory.device.base)
        return made

    free, _ = fake.runtime.memGetInfo()
    filler = fake.runtime.malloc(free - (1 << 30))
    try:
        nbytes = 3 << 29  # 1.5 GiB
        made = worker.call(lambda: much(nbytes))
        assert not made.HasField("error"), made.error
        assert made.frames[0].offset == int(text_of(worker, worker.runs).split()[-1])
        assert worker.gpu.get(worker.at + made.frames[0].offset + nbytes - 8, 8) == b"\3" * 8
    finally:
        fake.runtime.free(filler)


def test_killed_with_memory_of_the_slab(fake: Real, worker: OverwritingWorker) -> None:
    results = [worker.call(lambda i=i: filled(8 * MIB, float(i))) for i in range(4)]
    for r in results[1:]:
        assert 0 <= r.frames[0].offset < worker.size
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait(10)
    for i, made in enumerate(results):
        assert (worker.value(made) == i).all()
