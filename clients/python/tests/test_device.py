"""Tests of the executor on a GPU. The test plays the worker, on a fake driver with a fake CuPy."""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import PATIENCE, eventually
from executor_worker import Worker, text_of
from millrace import arrays
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _serialize
from millrace._values._driver import LOST
from millrace.executor import _memory

FAKES = Path(__file__).parent / "fakes"
DRIVER = Path(__file__).parents[3] / "memory/cuda/cudatest/driver/fake.c"
HEADER = b"MILLRACE" + bytes(range(56))
ROOM = 4096
_MAGIC = 0x4D52464B
# Offsets of fields in the driver's state, in bytes.
_DELAY, _FAIL_CODE, _FAIL_COUNT, _FAIL_CALL, _STICKY, _STICKY_PID = 32, 48, 64, 72, 136, 144

cloudpickle.register_pickle_by_value(__import__(__name__))


class Fake:
    """The fake driver in this process, which plays the worker, and the settings that tests
    change."""

    def __init__(self, directory: Path, devices: int = 1) -> None:
        self.library, self._state = directory / "libcuda.so.1", directory / "state"
        compiler = os.environ.get("CC", "cc")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", self.library, DRIVER, "-lpthread"],
            check=True,
            capture_output=True,
        )
        self._state.write_bytes(struct.pack("<QQQ", _MAGIC, devices, 1 << 30) + bytes(1 << 20))
        os.environ["MILLRACE_FAKE_CUDA"] = os.environ["FAKE_CUDA_STATE"] = str(self._state)
        os.environ["FAKE_LIBCUDA"] = str(self.library)
        self.lib = ctypes.CDLL(str(self.library))
        context = ctypes.c_void_p()
        assert not self.lib.cuInit(0)
        assert not self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        assert not self.lib.cuCtxSetCurrent(context)

    def set(self, at: int, value: int) -> None:
        with self._state.open("r+b") as f:
            f.seek(at)
            f.write(struct.pack("<Q", value))

    def fail(self, call: str, code: int, count: int = 1) -> None:
        with self._state.open("r+b") as f:
            f.seek(_FAIL_CALL)
            f.write(call.encode().ljust(64, b"\0"))
        self.set(_FAIL_CODE, code)
        self.set(_FAIL_COUNT, count)

    uuid = bytes([0xFA] * 15 + [0])

    def put(self, at: int, data: bytes) -> None:
        ctypes.memmove(at, data, len(data))

    def get(self, at: int, n: int) -> bytes:
        return ctypes.string_at(at, n)

    def slab(self, size: int) -> tuple[int, bytes]:
        """Allocates a slab. Returns its address in this process and its handle."""
        at, handle = ctypes.c_uint64(), ctypes.create_string_buffer(64)
        assert not self.lib.cuMemAlloc_v2(ctypes.byref(at), size)
        assert not self.lib.cuIpcGetMemHandle(handle, at)
        return at.value, handle.raw


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    before = dict(os.environ)
    yield Fake(tmp_path_factory.mktemp("cuda"))
    os.environ.clear()
    os.environ.update(before)


class DeviceWorker(Worker):
    """Plays a worker whose slab lies on a GPU."""

    def __init__(self, gpu: Any, **device: Any) -> None:
        self.gpu = gpu
        self.at, handle = gpu.slab(self.size)
        gpu.put(self.at, HEADER)
        fields = {
            "uuid": gpu.uuid,
            "memory_handle": handle,
            "slab_header": HEADER,
            "alignment_bytes": 256,
            "driver_library": str(gpu.library),
        }
        self.hello = {"device": executor_pb2.ExecutorDevice(**{**fields, **device})}
        self.leases: dict[int, Any] = {}
        super().__init__()

    def memory(self, at: int, n: int) -> memoryview:
        return memoryview(self.gpu.get(self.at + at, n))

    def given(self, at: int, obj: Any) -> executor_pb2.ExecutorInput:
        """Stores an object as another worker would have."""
        encoded = _serialize.encode(obj)
        made = executor_pb2.ExecutorInput(header=encoded.header)
        for frame in encoded.frames:
            self.gpu.put(self.at + at, frame.tobytes())
            made.frames.add(offset=at, size_bytes=frame.nbytes)
            at += (frame.nbytes + 255) // 256 * 256
        return made

    def again(self, finished: Any) -> executor_pb2.ExecutorInput:
        """Returns the result of a run as an input of another one."""
        assert not finished.HasField("error"), finished.error
        return executor_pb2.ExecutorInput(header=finished.header, frames=finished.frames)

    def call(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Runs a function. An ExecutorInput becomes an input of the run; any other value is passed
        as an argument."""
        self.runs += 1
        self.define(self.runs, function)
        file = io.BytesIO()
        given, inputs = inputs, tuple(i for i in inputs if isinstance(i, executor_pb2.ExecutorInput))
        refs = tuple(Reference() if isinstance(i, executor_pb2.ExecutorInput) else i for i in given)
        places = {id(r): i for i, r in enumerate(r for r in refs if isinstance(r, Reference))}
        _serialize.CallPickler(file, lambda o: places.get(id(o))).dump((refs, {}))
        call = value_pb2.Opaque(encoding="pickle5", data=file.getvalue())
        arguments = value_pb2.Arguments(call=call).SerializeToString()
        run = executor_pb2.ExecutorRun(
            task_id=self.runs, attempt=1, op_id=self.runs, arguments=arguments, inputs=inputs
        )
        self.send(runs=[run])
        return self.finished()

    def value(self, finished: Any) -> Any:
        assert not finished.HasField("error"), finished.error
        if finished.inline_frames:
            return super().value(finished)
        frames = [self.memory(f.offset, f.size_bytes) for f in finished.frames]
        return _serialize.decode(finished.header, frames)


class Reference:
    """Stands for an input in the arguments of a run."""


class Recycling(DeviceWorker):
    """A worker whose slab is nearly full: a range is overwritten as soon as nothing holds it any
    more, and the range that was freed last is allocated first."""

    def __init__(self, gpu: Any, **device: Any) -> None:
        # Ranges of the slab by offset: size in bytes, and holders, which are ("lease", request) or
        # ("result", task).
        self._held: dict[int, tuple[int, set[tuple[str, int]]]] = {}
        self._free: list[tuple[int, int]] = []
        super().__init__(gpu, **device)

    def take(self) -> None:
        before = len(self.released)
        super().take()
        for finished in self.inbox:
            for f in finished.frames:
                for at, (n, holders) in self._held.items():
                    if at <= f.offset < at + n:
                        holders.add(("result", finished.task_id))
            self._let_go(("run", finished.task_id))
        for request in self.released[before:]:
            self._let_go(("lease", request))

    def place(self, request: Any, n: int) -> int:
        holder = ("run", request.attempt.task_id) if request.HasField("attempt") else ("lease", request.request_id)
        for i in range(len(self._free) - 1, -1, -1):
            at, there = self._free[i]
            if n <= there:
                del self._free[i]
                self._held[at] = there, {holder}
                return at
        at = super().place(request, n)
        self._held[at] = n, {holder}
        return at

    def drop(self, finished: Any) -> None:
        """Simulates that the last client has dropped a result."""
        self._let_go(("result", finished.task_id))

    def _let_go(self, holder: tuple[str, int]) -> None:
        for at, (n, holders) in list(self._held.items()):
            holders.discard(holder)
            if not holders:
                del self._held[at]
                self.gpu.put(self.at + at, b"\xee" * n)
                self._free.append((at, n))


def setup(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment of an executor: the fake libraries if the GPU is a fake, and the check
    of inputs after each run."""
    if isinstance(fake, Fake):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MILLRACE_CHECK_INPUTS", "1")


@pytest.fixture
def worker(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recycling]:
    setup(fake, monkeypatch)
    w = Recycling(fake)
    yield w
    fake.set(_DELAY, 0)
    fake.set(_FAIL_COUNT, 0)
    w.end()


def test_inputs_are_arrays_of_cupy_in_the_slab(worker: DeviceWorker) -> None:
    data = np.arange(10_000.0).reshape(100, 100)
    given = worker.given(ROOM, data)

    def use(x: Any) -> Any:
        import cupy
        from millrace.executor import _process

        device = _process._process.runner.memory.device
        return type(x) is cupy.ndarray, x.data.ptr - device.base, float(x.sum().get()), x.shape, x.dtype.name

    got = worker.value(worker.call(use, given))
    assert got == (True, ROOM, data.sum(), (100, 100), "float64")


def test_results_stay_on_the_gpu_and_are_waited_for(worker: DeviceWorker, fake: Fake) -> None:
    data = np.arange(50_000.0)
    given = worker.given(ROOM, data)
    fake.set(_DELAY, 20_000)
    made = worker.call(lambda x: x * 2 + 1, given)
    assert len(made.frames) == 1 and not made.inline_frames
    # The frame has the final values, however late its kernel was.
    assert (worker.value(made) == data * 2 + 1).all()
    fake.set(_DELAY, 0)
    again = worker.call(lambda x: x + x, worker.again(made))
    assert (worker.value(again) == (data * 2 + 1) * 2).all()


def test_views_of_inputs_cost_nothing(worker: DeviceWorker) -> None:
    data = np.arange(40_000.0).reshape(200, 200)
    given = worker.given(ROOM, data)
    made = worker.call(lambda x: x[50:100], given)
    assert (made.frames[0].offset, made.frames[0].size_bytes) == (ROOM + 50 * 1600, 50 * 1600)
    assert (worker.value(made) == data[50:100]).all()
    made = worker.call(lambda x: x.T, given)
    assert made.frames[0].offset == ROOM
    assert (worker.value(made) == data.T).all()
    made = worker.call(lambda x: x[:, ::2], given)  # with gaps: copied by CuPy
    assert made.frames[0].offset != ROOM
    assert (worker.value(made) == data[:, ::2]).all()
    made = worker.call(lambda x: x[::-1], given)
    assert (worker.value(made) == data[::-1]).all()


def test_small_and_odd_results(worker: DeviceWorker) -> None:
    def several() -> Any:
        import cupy

        return {
            "scalar": cupy.arange(5).sum(),
            "small": cupy.arange(5),
            "large": cupy.arange(3000.0),
            "half": cupy.ones((64, 64), "float16"),
            "host": np.arange(2000),
            "empty": cupy.ones((0, 3)),
            "text": "x",
        }

    made = worker.call(several)
    got = worker.value(made)
    assert got["scalar"] == 10 and (got["small"] == np.arange(5)).all() and got["empty"].shape == (0, 3)
    assert (got["large"] == np.arange(3000.0)).all() and (got["host"] == np.arange(2000)).all()
    assert got["half"].dtype == np.float16 and got["half"].sum() == 4096

    def look(d: Any) -> Any:
        return {k: f"{type(v).__module__}.{type(v).__name__}" for k, v in d.items()}

    kinds = worker.value(worker.call(look, worker.again(made)))
    # After unpickling, arrays of the host and of the GPU are told apart.
    assert kinds["large"] == kinds["half"] == kinds["small"] == "cupy.ndarray"
    assert kinds["host"] == "numpy.ndarray" and kinds["text"] == "builtins.str"

    made = worker.call(lambda: [np.arange(5), np.arange(100_000)])
    kinds = worker.value(worker.call(lambda x: [type(v).__module__ for v in x], worker.again(made)))
    assert kinds == ["cupy", "cupy"]


def test_tasks_that_want_numpy_get_copies(worker: DeviceWorker) -> None:
    data = np.arange(3000.0)

    @arrays("numpy")
    def use(x: Any) -> Any:
        assert type(x) is np.ndarray and not x.flags.writeable
        return x + 1

    made = worker.call(use, worker.given(ROOM, data))
    assert made.frames  # the result was copied to the GPU
    assert (worker.value(made) == data + 1).all()


def test_tasks_that_want_numpy_get_it_inside_of_pickles(worker: DeviceWorker) -> None:
    def several() -> Any:
        import cupy

        return {1: cupy.arange(3), 2: cupy.arange(5000.0), 3: np.arange(4)}

    made = worker.call(several)

    @arrays("numpy")
    def look(d: Any) -> Any:
        return [(type(v).__module__, float(v.sum())) for v in d.values()]

    got = worker.value(worker.call(look, worker.again(made)))
    assert [list(g) for g in got] == [["numpy", 3.0], ["numpy", 4999 * 2500.0], ["numpy", 6.0]]


def test_pickles_with_buffers_on_the_host(worker: DeviceWorker) -> None:
    class Table:
        def __init__(self, columns: Any) -> None:
            self.columns = columns

    def make() -> Any:
        return Table({"a": np.arange(20_000), "b": b"x" * 100_000})

    made = worker.call(make)
    assert made.frames
    got = worker.value(worker.call(lambda t: (int(t.columns["a"].sum()), len(t.columns["b"])), worker.again(made)))
    assert got == (sum(range(20_000)), 100_000)


def test_failed_runs_are_waited_for(worker: DeviceWorker, fake: Fake) -> None:
    def bad() -> None:
        import cupy

        x = cupy.arange(100_000)
        y = x + x
        with cupy.cuda.Stream(non_blocking=True):
            z = y + y
            raise ValueError(f"{z.shape}")

    made = worker.call(bad)
    assert made.error.reason == "PYTHON_EXCEPTION" and "100000" in made.error.message


def test_a_lost_gpu_ends_the_process_and_nothing_else(fake: Fake, worker: DeviceWorker) -> None:
    pid = worker.process.pid

    def crash(pid: int) -> None:
        import os
        from pathlib import Path

        with Path(os.environ["MILLRACE_FAKE_CUDA"]).open("r+b") as f:
            for at, value in ((144, os.getpid()), (136, 700)):
                f.seek(at)
                f.write(value.to_bytes(8, "little"))

    worker.define(50, crash)
    worker.start(50, pid)
    error = worker.finished().error
    fake.set(_STICKY, 0)
    assert error.reason == "DEVICE_ERROR" and "CUDA_ERROR_ILLEGAL_ADDRESS" in error.message
    assert worker.process.wait(PATIENCE) == 70
    assert worker.word(0) == worker.word(1) == 1


def test_a_gpu_that_fails_again_and_again_is_lost(worker: Recycling, fake: Fake) -> None:
    def bad() -> None:
        raise ValueError

    worker.call(bad)
    # Fails at the end of the function, and at the check after it.
    fake.fail("cuCtxSynchronize", 999, count=2)
    assert worker.call(lambda: 5).error.reason == "DEVICE_ERROR"
    assert worker.value(worker.call(lambda: 5)) == 5
    fake.fail("cuCtxSynchronize", 999, count=3)
    assert worker.call(lambda: 5).error.reason == "DEVICE_ERROR"
    assert worker.process.wait(PATIENCE) == 70


def test_both_sides_know_the_same_errors() -> None:
    folder = Path(__file__).parents[3] / "memory" / "cuda"
    numbers = dict(re.findall(r"^\s+(\w+)\s+result = (\d+)$", (folder / "api.go").read_text(), re.MULTILINE))
    listed = re.search(r"var sticky = \[\]result\{(.*?)\}", (folder / "errors.go").read_text(), re.DOTALL)
    assert listed is not None
    assert {int(numbers[name]) for name in re.findall(r"\w+", listed[1])} == LOST


def test_the_wrong_memory_is_refused(fake: Fake) -> None:
    with pytest.raises(EOFError):
        DeviceWorker(fake, slab_header=b"MILLRACE" + bytes(56))
    with pytest.raises(EOFError):
        DeviceWorker(fake, uuid=bytes(16))


def test_without_cupy_arrays_have_the_interface(fake: Fake) -> None:
    w = DeviceWorker(fake)
    data = np.arange(2000.0)

    def use(x: Any) -> Any:
        assert type(x).__name__ == "DeviceArray" and (x.get() == np.arange(2000.0)).all()
        return x

    made = w.call(use, w.given(ROOM, data))
    assert made.frames[0].offset == ROOM
    assert (w.value(made) == data).all()
    w.end()


def test_numba_is_given_arrays_in_the_slab(worker: DeviceWorker) -> None:
    data = np.arange(3000.0)

    @arrays("numba")
    def use(x: Any, small: Any) -> Any:
        from millrace.executor import _process

        device = _process._process.runner.memory.device
        at = x.__cuda_array_interface__["data"][0] - device.base
        names = {type(a).__module__.partition(".")[0] for a in (x, small)}
        assert names == {"numba"} and (x.copy_to_host() == np.arange(3000.0)).all()
        assert (small.copy_to_host() == np.arange(4)).all()
        return {"at": at, "same": x, "pickled": {1: x, 2: small}}

    given = worker.given(ROOM, data)
    small = worker.call(lambda: __import__("cupy").arange(4))  # small: stored in its header
    made = worker.call(use, given, executor_pb2.ExecutorInput(header=small.header))
    got = worker.value(made)
    assert got["at"] == ROOM and (got["same"] == data).all()
    assert (got["pickled"][1] == data).all() and (got["pickled"][2] == np.arange(4)).all()
    made = worker.call(arrays("numba")(lambda x: {"same": x}), given)
    # Shares the input's memory.
    assert [f.offset for f in made.frames] == [ROOM] and (worker.value(made)["same"] == data).all()

    @arrays("numba")
    def too_much(x: Any) -> Any:
        from numba import cuda

        raise cuda.CudaAPIError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")

    error = worker.call(too_much, given).error
    assert error.reason == "OUT_OF_MEMORY" and "twice" in error.message


class Foreign:
    """An array on a GPU that only supports DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.handle = ctypes.c_void_p(1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **how: Any) -> Any:
        capsule = getattr(self.array, "__dlpack__", None)  # the fake CuPy has none
        return self.array if capsule is None else capsule(**how)


def test_arrays_are_recognised_by_dlpack(worker: DeviceWorker) -> None:
    data = np.arange(3000.0)
    given = worker.given(ROOM, data)
    made = worker.call(lambda x: Foreign(x), given)
    assert [f.offset for f in made.frames] == [ROOM] and (worker.value(made) == data).all()
    made = worker.call(lambda x: ({1: Foreign(x)}, lambda: 3), given)
    got = worker.value(made)
    assert (got[0][1] == data).all() and got[1]() == 3 and ROOM in [f.offset for f in made.frames]


def test_modules_are_imported_while_there_is_nothing_to_do(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, also in (("heavy", ""), ("broken", "raise ValueError"), ("torch", "")):
        text = f"import pathlib; pathlib.Path({str(tmp_path)!r}, {name!r} + '-was-imported').touch(); {also}"
        (tmp_path / f"{name}.py").write_text(text)

    class Idle(DeviceWorker):
        def __init__(self, gpu: Any) -> None:
            self.hello_preload = ["cupy", "missing_module", "broken", "heavy"]
            super().__init__(gpu)

        def send(self, **fields: Any) -> None:
            if "hello" in fields:
                fields["hello"].preload_modules.extend(self.hello_preload)
            super().send(**fields)

    # Without CuPy, torch is preloaded, because tasks are then given its tensors.
    for path, wanted in ((tmp_path, {"heavy", "broken", "torch"}), (f"{tmp_path}:{FAKES}", {"heavy", "broken"})):
        for left in tmp_path.glob("*-was-imported"):
            left.unlink()
        monkeypatch.setenv("PYTHONPATH", f"{path}:{os.environ.get('PYTHONPATH', '')}")
        w = Idle(fake)

        def imported() -> set[str]:
            return {p.name.removesuffix("-was-imported") for p in tmp_path.glob("*-was-imported")}

        eventually(lambda wanted=wanted, imported=imported: wanted <= imported())
        assert w.value(w.call(lambda: 7)) == 7
        assert imported() == wanted
        w.end()
        monkeypatch.undo()


@pytest.fixture
def with_arena(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recycling]:
    """A worker that lends memory of its slab to CuPy."""
    setup(fake, monkeypatch)
    w = Recycling(fake, arena_bytes=1 << 20, arena_libraries=["cupy"])
    w.call(import_cupy)
    yield w
    fake.set(_DELAY, 0)
    w.end()


def import_cupy() -> None:
    import cupy  # noqa: F401


def test_results_in_the_arena_are_not_copied(with_arena: DeviceWorker) -> None:
    data = np.arange(65_536.0)  # 512 KiB

    def make(x: Any) -> Any:
        import cupy
        from millrace.executor import _process

        made = x + 1
        assert type(made) is cupy.ndarray
        print(made.data.ptr - _process._process.runner.memory.device.base)
        return made

    made = with_arena.call(make, with_arena.given(ROOM, data))
    assert made.frames[0].offset == int(text_of(with_arena, with_arena.runs))
    assert (with_arena.value(made) == data + 1).all()
    # The result has left the arena, so the next one is elsewhere. The executor has released its
    # leases.
    assert with_arena.leased == with_arena.released
    again = with_arena.call(make, with_arena.again(made))
    assert again.frames[0].offset != made.frames[0].offset
    assert (with_arena.value(again) == data + 2).all() and (with_arena.value(made) == data + 1).all()


def test_the_arena_keeps_what_is_used_again(with_arena: DeviceWorker) -> None:
    def use() -> float:
        import cupy

        x = cupy.ones(65_536)
        return float((x + x)[:1].get()[0])

    for _ in range(3):
        assert with_arena.value(with_arena.call(use)) == 2
    assert len(with_arena.leased) == 2 and not with_arena.released

    # A result that is a small part of a block is copied, and the block stays.
    def part() -> Any:
        import cupy

        return cupy.ones(65_536)[:1000]

    made = with_arena.call(part)
    assert made.frames and (with_arena.value(made) == 1).all() and not with_arena.released


def test_memory_that_outlives_its_run_is_not_given_to_others(with_arena: DeviceWorker) -> None:
    def keep() -> Any:
        import cupy

        cupy.kept = cupy.ones(65_536)
        return cupy.kept

    def look() -> Any:
        import cupy

        other = cupy.ones(65_536) * 3
        return float(other.sum().get()), float(cupy.kept.sum().get())

    made = with_arena.call(keep)
    assert with_arena.value(with_arena.call(look)) == (3 * 65_536, 65_536)
    assert (with_arena.value(made) == 1).all()


def ones() -> Any:
    import cupy

    return cupy.ones(65_536)


def fill(n: int) -> Any:
    """Makes results on the GPU that fill the slab."""
    import cupy

    return [cupy.asarray(np.full(65_536, 7.0)) for _ in range(n)]


def test_results_that_python_holds_are_not_given_away(with_arena: Recycling) -> None:
    def weights(value: float = 0) -> Any:
        import cupy

        if not hasattr(cupy, "weights"):
            cupy.weights = cupy.ones(65_536)
        if value:  # the owner of the array may write to it
            cupy.weights[...] = cupy.ones(65_536) * value
        return cupy.weights

    first = with_arena.call(weights)
    assert (with_arena.value(first) == 1).all()
    with_arena.drop(first)
    for _ in range(3):
        with_arena.drop(with_arena.call(fill, 4))
    second = with_arena.call(weights)
    assert (with_arena.value(second) == 1).all()
    third = with_arena.call(weights, 5.0)
    assert (with_arena.value(third) == 5).all()
    assert (with_arena.value(second) == 1).all(), "a result was changed after it was stored"
    assert not set(with_arena.leased[:1]) & set(with_arena.released)

    def forget() -> None:
        import cupy

        del cupy.weights

    def look() -> Any:
        import cupy

        return float((cupy.ones(65_536) * 3).sum().get())

    with_arena.call(forget)
    assert with_arena.value(with_arena.call(look)) == 3 * 65_536


def test_a_result_that_is_held_in_part_is_copied_in_part(with_arena: Recycling) -> None:
    def make() -> Any:
        import cupy

        cupy.weights = cupy.ones(65_536)
        return {"kept": cupy.weights, "mine": cupy.ones(65_536) * 2, "small": cupy.ones(1024), "n": 3}

    made = with_arena.call(make)
    for _ in range(3):
        with_arena.drop(with_arena.call(fill, 4))
    got = with_arena.value(made)
    assert (got["kept"] == 1).all() and (got["mine"] == 2).all() and (got["small"] == 1).all() and got["n"] == 3


def test_the_same_array_twice_in_a_result(with_arena: Recycling) -> None:
    def make() -> Any:
        import cupy

        x = cupy.ones(65_536)
        return [x, x, {1: x, "f": lambda: x}]

    for _ in range(2):
        made = with_arena.call(make)
        with_arena.call(fill, 4)
        got = with_arena.value(made)
        assert (got[0] == 1).all() and (got[1] == 1).all() and (got[2][1] == 1).all()


def test_a_block_is_used_again_on_the_stream_that_it_was_allocated_for(with_arena: Recycling) -> None:
    def use() -> Any:
        import threading

        import cupy

        def where(stream: Any = None) -> int:
            if stream is None:
                return cupy.ones(32_768).data.ptr
            with stream:
                return cupy.ones(32_768).data.ptr

        side, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        with side:
            t = cupy.ones(32_768)
            at = t.data.ptr
        # Freed while another stream is current, and in another thread: kernels of the block's own
        # stream may still use it.
        del t
        first = where(), where(other)
        with side:
            again = cupy.ones(32_768)
        held = [again]
        del again

        def let_go() -> None:
            with other:
                held.clear()

        thread = threading.Thread(target=let_go)
        thread.start()
        thread.join()
        second = where(), where(other)
        return at in first, at in second, where(side) == at

    assert with_arena.value(with_arena.call(use)) == (False, False, True)


def test_an_executor_gives_back_what_is_free(with_arena: Recycling) -> None:
    made = with_arena.call(fill, 1)

    def use() -> float:
        return float(fill(1)[0].sum().get())

    with_arena.call(use)
    assert set(with_arena.leased) - set(with_arena.released), "nothing was kept for the next run"
    with_arena.send(release_unused=True)
    while set(with_arena.leased) - set(with_arena.released):
        with_arena.take()
    assert (with_arena.value(made)[0] == 7).all()
    assert (with_arena.value(with_arena.call(fill, 1))[0] == 7).all()


class Short(Recycling):
    """A worker that has no room for a result until the process has released its unused leases."""

    def place(self, request: Any, n: int) -> int:
        if request.HasField("attempt") and set(self.leased) - set(self.released):
            self.send(release_unused=True)
            while set(self.leased) - set(self.released):
                self.take()
        return super().place(request, n)


def test_a_run_that_waits_for_room_gives_back_what_its_process_keeps(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(fake, monkeypatch)
    w = Short(fake, arena_bytes=1 << 20, arena_libraries=["cupy"])
    w.call(import_cupy)

    def use() -> float:
        return float(fill(1)[0].sum().get())

    for _ in range(3):
        w.call(use)
        assert set(w.leased) - set(w.released), "nothing was kept for the next run"
        assert (w.value(w.call(lambda: np.ones(5000))) == 1).all()
    w.end()


class Pressed(Recycling):
    """A worker that, when asked for room for a result, first asks the process to give memory back,
    and answers after it has released a lease."""

    def place(self, request: Any, n: int) -> int:
        if request.HasField("attempt"):
            before = len(self.released)
            self.send(release_unused=True)
            while len(self.released) == before:
                self.take()
        return super().place(request, n)


def test_memory_that_a_result_takes_over_is_not_given_back_before_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(fake, monkeypatch)
    w = Pressed(fake, arena_bytes=4 << 20, arena_libraries=["cupy"])
    w.call(import_cupy)

    def use() -> float:
        return sum(float(x.sum().get()) for x in fill(6))

    def make() -> Any:
        import cupy

        cupy.weights = cupy.ones(65_536)
        return {"kept": cupy.weights, "mine": cupy.ones(65_536) * 2}

    for _ in range(3):
        w.call(use)
        got = w.value(w.call(make))
        assert (got["kept"] == 1).all() and (got["mine"] == 2).all()
    w.end()


class Counting(Recycling):
    """A worker that records the largest number of leases that a process had at the same time."""

    most = 0

    def take(self) -> None:
        super().take()
        self.most = max(self.most, len(set(self.leased) - set(self.released)))


def test_the_arena_takes_no_more_than_its_limit(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    setup(fake, monkeypatch)
    with_arena = Counting(fake, arena_bytes=1 << 20, arena_libraries=["cupy"])
    with_arena.call(import_cupy)

    def several(n: int) -> Any:
        kept = fill(n)
        return [float(x.sum().get()) for x in kept], kept[-1]

    for n in (3, 5, 1, 4):
        sums, last = with_arena.value(with_arena.call(several, n))
        assert sums == [7.0 * 65_536] * n and (last == 7).all()
    # The limit is two arrays of 512 KiB. The others lie in CuPy's own memory.
    assert with_arena.most == 2

    def larger() -> Any:
        import cupy

        return float(cupy.ones(131_072).sum().get())

    for _ in range(2):  # the first time, blocks of another size make room
        assert with_arena.value(with_arena.call(larger)) == 131_072
    assert len(set(with_arena.leased) - set(with_arena.released)) == 1 and with_arena.most == 2
    with_arena.end()


# ---- order on the GPU ----------------------------------------------------------------------------


class Lazy:
    """Computes its contents on the GPU while it is encoded."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __reduce__(self) -> Any:
        # In one expression: freeing GPU memory would wait for the kernel.
        return list, ([self.x * 2],)


class Queued:
    """An array on the GPU that another stream is about to write."""

    def __init__(self, array: Any, stream: Any) -> None:
        self.array, self.stream = array, stream

    @property
    def __cuda_array_interface__(self) -> Any:
        return {
            "version": 3,
            "typestr": self.array.dtype.str,
            "shape": self.array.shape,
            "data": (self.array.data.ptr, False),
            "stream": self.stream.ptr,
        }


def test_encoding_is_complete_before_the_copy(worker: Recycling, fake: Fake) -> None:
    data = np.arange(50_000.0)
    given = worker.given(ROOM, data)
    worker.call(import_cupy)
    fake.set(_DELAY, 20_000)
    made = worker.call(lambda x: Lazy(x), given)
    assert len(made.frames) == 1 and (worker.value(made)[0] == data * 2).all()
    # A small array is read by another code path.
    made = worker.call(lambda x: Lazy(x[:10]), given)
    assert (worker.value(made)[0] == data[:10] * 2).all()

    def by_dlpack(x: Any) -> Any:
        return Foreign(x + 1)

    assert (worker.value(worker.call(by_dlpack, given)) == data + 1).all()


def on_a_side_stream(x: Any) -> Any:
    import cupy

    with cupy.cuda.Stream(non_blocking=True):
        y = x + 1
    return y


def queued(x: Any) -> Any:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = x + 1
    return Queued(y, stream)


@pytest.mark.parametrize("make", [on_a_side_stream, queued, arrays("cupy", streams="current")(queued)])
@pytest.mark.parametrize("n", [10, 50_000])
def test_a_run_ends_when_all_that_it_started_on_the_gpu_is_done(
    worker: Recycling, fake: Fake, make: Callable[..., Any], n: int
) -> None:
    data = np.arange(n * 1.0)
    given = worker.given(ROOM, np.arange(50_000.0))
    worker.call(import_cupy)
    fake.set(_DELAY, 20_000)
    assert (worker.value(worker.call(_with_streams(make, n), given)) == data + 1).all()


def _with_streams(make: Callable[..., Any], n: int) -> Callable[..., Any]:
    """Returns the function for a shorter input, with the same setting of streams."""

    def call(x: Any) -> Any:
        return make(x[:n])

    return arrays("cupy", streams=getattr(make, "__millrace_streams__", "all"))(call)


def test_only_current_streams_are_waited_for_if_a_function_wants_it(worker: Recycling) -> None:
    def count() -> Any:
        from millrace.executor import _process

        driver = _process._process.runner.memory.device.driver
        if not hasattr(driver, "waits"):
            driver.waits, wait = [], driver.wait_for_all
            driver.wait_for_all = lambda: (driver.waits.append(1), wait())[1]
        driver.waits.clear()

    def look() -> int:
        from millrace.executor import _process

        return len(_process._process.runner.memory.device.driver.waits)

    for streams, waits in (("current", 0), ("all", 1)):
        worker.call(arrays("cupy", streams="current")(count))
        worker.call(arrays("cupy", streams=streams)(lambda: 5))
        assert worker.value(worker.call(arrays("cupy", streams="current")(look))) == waits
    with pytest.raises(ValueError, match="all or current"):
        arrays("cupy", streams="mine")


# ---- inputs --------------------------------------------------------------------------------------


def test_a_change_of_an_input_is_an_error(worker: Recycling) -> None:
    data = np.arange(50_000.0)
    given, other = worker.given(ROOM, data), worker.given(1 << 19, np.arange(10_000.0))

    def change(x: Any, y: Any) -> Any:
        y[...] = x[:10_000] + 1
        return 5

    error = worker.call(change, given, other).error
    assert error.reason == "INPUT_CHANGED"
    for word in ("argument 1", "input 1", "in place", "copy()"):
        assert word in error.message, error.message
    assert worker.value(worker.call(lambda x, y: float(x.sum().get()), given, other)) == data.sum()


@pytest.mark.parametrize("library", ["cupy", "none"])
def test_an_input_on_the_gpu_that_outlives_its_run_is_kept(worker: Recycling, library: str) -> None:
    check_kept(worker, library)


def test_an_input_of_numba_that_outlives_its_run_is_kept(worker: Recycling) -> None:
    check_kept(worker, "numba")


def check_kept(worker: Recycling, library: str) -> None:
    given, other = worker.given(ROOM, np.arange(5_000.0)), worker.given(1 << 19, {1: np.arange(5_000.0)})

    def keep(x: Any, d: Any) -> None:
        import cupy

        cupy.kept = x if library == "numba" else x[10:]

    def through_an_interface(x: Any, d: Any) -> None:
        import cupy
        from millrace._values._device import DeviceArray

        assert type(x) is DeviceArray
        cupy.kept = [x]

    if library == "none":
        marked: Any = through_an_interface
        setattr(marked, "__millrace_arrays__", "")  # noqa: B010
    else:
        marked = arrays(library)(keep)
    finished = worker.call(marked, given, other)
    assert [k.input_index for k in finished.retained_inputs] == [0]
    assert not worker.call(
        lambda x, d: (x[5:], d[1] + 1), given, other
    ).retained_inputs  # the result shares the input, and nothing keeps it

    def forget() -> None:
        import cupy

        del cupy.kept

    worker.call(forget)
    while not worker.released:
        worker.take()
    assert worker.released == [finished.retained_inputs[0].request_id]


# ---- a process in reserve ------------------------------------------------------------------------


class Spare(Recycling):
    """A worker that starts the process as a spare one."""

    preload: tuple[str, ...] = ("cupy",)

    def send(self, **fields: Any) -> None:
        if "hello" in fields:
            fields["hello"].spare = True
            fields["hello"].preload_modules.extend(self.preload)
        super().send(**fields)


def test_a_process_in_reserve_does_not_touch_the_gpu(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    setup(fake, monkeypatch)
    # It becomes ready without noticing yet that the slab is not the expected one.
    w = Spare(fake, slab_header=b"MILLRACE" + bytes(56))
    w.define(50, import_cupy)
    w.start(50)
    with pytest.raises(EOFError):
        w.finished()
    assert w.process.wait(PATIENCE) == 1
    assert w.word(0) == 0, "it began a run without the slab"
    w = Spare(fake)
    data = np.arange(3000.0)
    assert (w.value(w.call(lambda x: x + 1, w.given(ROOM, data))) == data + 1).all()
    w.end()


def test_a_process_in_reserve_outlives_the_time_after_which_others_free_memory(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(fake, monkeypatch)
    w = Spare(fake, executor_count=2)
    with pytest.raises(subprocess.TimeoutExpired):
        w.process.wait(_memory.IDLE + 1)
    data = np.arange(3000.0)
    assert (w.value(w.call(lambda x: x + 1, w.given(ROOM, data))) == data + 1).all()
    w.end()


# ---- memory --------------------------------------------------------------------------------------


def test_without_memory_a_run_is_repeated_with_that_of_the_slab(worker: DeviceWorker, fake: Fake) -> None:
    def use(x: Any) -> Any:
        import cupy

        cupy.times = getattr(cupy, "times", 0) + 1
        return cupy.times, (x + 1)

    given = worker.given(ROOM, np.arange(2000.0))
    worker.call(import_cupy)
    fake.fail("cuMemAlloc_v2", 2, count=2)
    times, array = worker.value(worker.call(use, given))
    assert times == 2 and (array == np.arange(2000.0) + 1).all()
    assert worker.leased


def test_without_any_memory_the_holders_are_named(worker: DeviceWorker, fake: Fake) -> None:
    def use() -> Any:
        import cupy

        kept = cupy.ones((100, 20))
        raise cupy.cuda.memory.OutOfMemoryError(f"out of memory allocating for {kept.shape}")

    error = worker.call(use).error
    assert error.reason == "OUT_OF_MEMORY"
    for word in ("out of memory allocating", "twice", "alone", "the slab takes", "CuPy here has"):
        assert word in error.message, error.message


CLIENT = """
import sys
from millrace._values import _serialize
import numpy as np
assert "cupy" not in sys.modules
_serialize.encode({"a": np.arange(5000)})
assert "cupy" not in sys.modules
import cupy
x = cupy.arange(20_000.0)
for made in (x, {"x": x, 3: x}):
    encoded = _serialize.encode(made)
    assert all(isinstance(f, memoryview) for f in encoded.frames) and encoded.frames
    got = _serialize.decode(encoded.header, encoded.frames)
    got = got if made is x else got[3]
    assert type(got) is np.ndarray and (got == np.arange(20_000.0)).all()
"""


def test_clients_send_arrays_of_cupy_as_bytes_and_import_nothing(fake: Fake) -> None:
    path = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", CLIENT], check=True, env={**os.environ, "PYTHONPATH": path})


def test_a_run_without_memory_waits_to_be_alone(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    w = DeviceWorker(fake, executor_count=2)
    w.call(import_cupy)

    def use() -> Any:
        import cupy

        cupy.times = getattr(cupy, "times", 0) + 1
        print("attempt", cupy.times)
        if cupy.times == 1:
            raise cupy.cuda.memory.OutOfMemoryError("out of memory")
        return cupy.times

    fcntl.lockf(w.slab_fd, fcntl.LOCK_SH)  # another executor is running a task
    w.define(50, use)
    w.start(50)
    while "\n" not in text_of(w, w.runs):
        w.take()
    assert text_of(w, w.runs) == "attempt 1\n"
    fcntl.lockf(w.slab_fd, fcntl.LOCK_UN)
    assert w.value(w.finished()) == 2
    # After the run, the GPU is not locked any more.
    fcntl.lockf(w.slab_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    w.end()


OTHER_PROCESS = """
import fcntl, sys
fd = int(sys.argv[1])
fcntl.lockf(fd, fcntl.LOCK_SH)
print(flush=True)
sys.stdin.readline()
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("alone", flush=True)
except OSError:
    print("not alone", flush=True)
"""


def test_a_process_that_did_not_get_the_gpu_alone_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory, "_EXCLUSIVE_WAIT", 0.05)
    with tempfile.TemporaryFile() as file:
        device_lock = _memory.DeviceLock(file.fileno())
        device_lock.share()
        with subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS, str(file.fileno())],
            pass_fds=[file.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None and other.stdout is not None
            assert other.stdout.readline() == "\n"
            assert not device_lock.lock_exclusively()
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "not alone\n"


def test_gpus_of_this_machine_are_counted(fake: Fake) -> None:
    """Tests the program that `make build` runs to decide whether to install CuPy."""
    program = Path(__file__).parents[3] / "tools" / "gpus"
    there = {**os.environ, "LD_LIBRARY_PATH": str(fake.library.parent)}
    assert subprocess.run([program], capture_output=True, text=True, env=there, check=True).stdout == "1 13\n"
    fake.fail("cuInit", 100)
    none = subprocess.run([program], capture_output=True, text=True, env=there)
    fake.set(_FAIL_COUNT, 0)
    assert (none.returncode, none.stdout, none.stderr) == (1, "", "")
