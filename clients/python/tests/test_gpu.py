"""Tests of the executor on a real GPU. They run with MILLRACE_GPU_TESTS=1, and need CuPy and
torch."""

from __future__ import annotations

import os
import signal
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import test_device
from millrace import arrays
from test_device import ROOM, DeviceWorker, Recycling, import_cupy, setup
from test_device import (
    test_a_block_is_used_again_on_the_stream_that_it_was_allocated_for as test_a_block_is_used_again_on_the_stream_that_it_was_allocated_for,
)
from test_device import test_a_change_of_an_input_is_an_error as test_a_change_of_an_input_is_an_error
from test_device import (
    test_a_result_that_is_held_in_part_is_copied_in_part as test_a_result_that_is_held_in_part_is_copied_in_part,
)
from test_device import (
    test_a_run_ends_when_all_that_it_started_on_the_gpu_is_done as test_a_run_ends_when_all_that_it_started_on_the_gpu_is_done,
)
from test_device import test_an_executor_gives_back_what_is_free as test_an_executor_gives_back_what_is_free
from test_device import (
    test_an_input_on_the_gpu_that_outlives_its_run_is_kept as test_an_input_on_the_gpu_that_outlives_its_run_is_kept,
)
from test_device import (
    test_encoding_is_complete_before_the_copy as test_encoding_is_complete_before_the_copy,
)
from test_device import test_failed_runs_are_waited_for as test_failed_runs_are_waited_for
from test_device import test_inputs_are_arrays_of_cupy_in_the_slab as test_inputs_are_arrays_of_cupy_in_the_slab
from test_device import (
    test_only_current_streams_are_waited_for_if_a_function_wants_it as test_only_current_streams_are_waited_for_if_a_function_wants_it,
)
from test_device import test_pickles_with_buffers_on_the_host as test_pickles_with_buffers_on_the_host
from test_device import (
    test_results_that_python_holds_are_not_given_away as test_results_that_python_holds_are_not_given_away,
)
from test_device import test_small_and_odd_results as test_small_and_odd_results
from test_device import test_tasks_that_want_numpy_get_copies as test_tasks_that_want_numpy_get_copies
from test_device import test_the_same_array_twice_in_a_result as test_the_same_array_twice_in_a_result
from test_device import test_the_wrong_memory_is_refused as test_the_wrong_memory_is_refused
from test_device import test_views_of_inputs_cost_nothing as test_views_of_inputs_cost_nothing

test_device.cloudpickle.register_pickle_by_value(__import__(__name__))


class Real:
    """The GPU in this process, which plays the worker. Used in place of test_device.Fake."""

    library = "libcuda.so.1"

    def __init__(self) -> None:
        import cupy

        self.runtime = cupy.cuda.runtime
        self.uuid = bytes(self.runtime.getDeviceProperties(0)["uuid"])

    def set(self, _at: int, _value: int) -> None:
        """A real GPU has no settings to change."""

    def put(self, at: int, data: bytes) -> None:
        host = np.frombuffer(data, np.uint8)
        self.runtime.memcpy(at, host.ctypes.data, host.nbytes, 1)

    def get(self, at: int, n: int) -> bytes:
        host = np.empty(n, np.uint8)
        self.runtime.memcpy(host.ctypes.data, at, n, 2)
        return host.tobytes()

    def slab(self, size: int) -> tuple[int, bytes]:
        at = self.runtime.malloc(size)
        return at, bytes(self.runtime.ipcGetMemHandle(at))


@pytest.fixture(scope="module")
def fake() -> Real:
    return Real()


@pytest.fixture
def worker(fake: Real, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceWorker]:
    setup(fake, monkeypatch)
    w = Recycling(fake)
    yield w
    w.end()


@pytest.fixture
def plain(fake: Real) -> Iterator[DeviceWorker]:
    """A worker without the check of inputs after each run."""
    w = DeviceWorker(fake)
    yield w
    w.end()


@pytest.fixture
def with_arena(fake: Real, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recycling]:
    setup(fake, monkeypatch)
    w = Recycling(fake, arena_bytes=1 << 20, arena_libraries=["cupy"])
    w.call(import_cupy)
    yield w
    w.end()


def test_torch_in_the_slab(worker: DeviceWorker) -> None:
    data = np.arange(20_000.0, dtype="float32").reshape(100, 200)
    given = worker.given(ROOM, data)

    @arrays("torch")
    def use(x: Any) -> Any:
        import torch
        from millrace.executor import _process

        assert isinstance(x, torch.Tensor) and x.is_cuda
        assert x.data_ptr() == _process._process.runner.memory.device.base + ROOM
        return x @ x.T

    made = worker.call(use, given)
    assert np.allclose(worker.value(made), data @ data.T, rtol=1e-4)

    def both(x: Any) -> Any:
        import torch

        t = torch.from_dlpack(x)
        assert t.data_ptr() == x.data.ptr
        return {"half": t.to(torch.bfloat16), "cupy": x + 1, "layer": torch.nn.Linear(200, 64, device="cuda"), "n": 3}

    made = worker.call(both, worker.again(made))

    def look(d: Any) -> Any:
        import torch

        assert d["half"].dtype is torch.bfloat16 and d["half"].is_cuda
        assert next(iter(d["layer"].parameters())).is_cuda
        return type(d["cupy"]).__module__, d["half"].float().sum().item(), float(d["cupy"].sum())

    kind, half, whole = worker.value(worker.call(look, worker.again(made)))
    expected = (data @ data.T).sum()
    assert kind == "cupy" and half == pytest.approx(expected, rel=1e-2) and whole == pytest.approx(expected, rel=1e-3)

    @arrays("torch")
    def transposed(x: Any) -> Any:
        return x.T

    made = worker.call(transposed, given)
    assert made.frames[0].offset == ROOM and (worker.value(made) == data.T).all()


def test_costs_of_a_run(plain: DeviceWorker) -> None:
    data = np.arange(8192.0)  # 64 KiB
    given = plain.given(ROOM, data)

    def same(x: Any) -> Any:
        return x

    def add(x: Any) -> Any:
        return x + 1

    def nothing(_: Any) -> None:
        return None

    def cost(function: Any) -> str:
        plain.call(function, given)
        times = []
        for _ in range(200):
            plain.room = 1 << 20
            began = time.perf_counter()
            made = plain.call(function, given)
            times.append((time.perf_counter() - began) * 1e6)
            assert not made.HasField("error")
        return f"{function.__name__}: p50 {statistics.median(times):.0f} us, p90 {sorted(times)[180]:.0f} us"

    for function in (nothing, same, add, arrays("numpy")(lambda x: x)):
        print("COST", cost(function))
    print("START", f"{plain.started:.2f} s")


def test_killed_in_the_middle_of_a_kernel(fake: Real, worker: DeviceWorker) -> None:
    data = np.arange(8192.0)
    given = worker.given(ROOM, data)

    def forever(x: Any) -> Any:
        import cupy

        kernel = cupy.RawKernel(
            'extern "C" __global__ void f(volatile double* x, double* y) { for (;;) y[threadIdx.x] += x[0] + 1; }', "f"
        )
        made = cupy.zeros(1024)
        kernel((8,), (1024,), (x, made))
        return made

    worker.runs += 1
    worker.define(worker.runs, forever)
    file = test_device.io.BytesIO()
    ref = test_device.Reference()
    test_device._serialize.CallPickler(file, lambda o: 0 if o is ref else None).dump(((ref,), {}))
    call = test_device.value_pb2.Opaque(encoding="pickle5", data=file.getvalue())
    arguments = test_device.value_pb2.Arguments(call=call).SerializeToString()
    worker.send(runs=[{"task_id": 1, "attempt": 1, "op_id": worker.runs, "arguments": arguments, "inputs": [given]}])
    deadline = time.monotonic() + 20
    while worker.word(0) == 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(1.0)  # until the kernel is compiled and runs
    assert worker.word(1) == 0
    # The run does not end on an interrupt while its kernel may still write to its memory.
    struct.pack_into("<Q", worker.page, 16, 1)
    os.kill(worker.process.pid, signal.SIGINT)
    time.sleep(0.3)
    assert worker.word(1) == 0
    began = time.monotonic()
    worker.process.kill()
    worker.process.wait(10)
    print("REAPED", f"{(time.monotonic() - began) * 1e3:.0f} ms")
    assert fake.get(worker.at + ROOM, data.nbytes) == data.tobytes()


def test_an_illegal_address_ends_the_process_and_nothing_else(fake: Real, worker: DeviceWorker) -> None:
    data = np.arange(8192.0)
    given = worker.given(ROOM, data)

    def crash(x: Any) -> Any:
        import cupy

        cupy.RawKernel('extern "C" __global__ void f(double* x) { *(x - (1ll << 45)) = 1; }', "f")((1,), (1,), (x,))
        return x

    error = worker.call(crash, given).error
    print("ILLEGAL", error.reason, error.message)
    assert error.reason == "DEVICE_ERROR" and "ILLEGAL_ADDRESS" in error.message
    assert worker.process.wait(10) == 70
    assert fake.get(worker.at + ROOM, data.nbytes) == data.tobytes()
