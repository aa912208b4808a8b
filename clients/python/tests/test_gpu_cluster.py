"""Tasks of CuPy and torch in a cluster on two real GPUs, and their failures. Runs with
MILLRACE_GPU_TESTS=1."""

# The fixture comes from the other module.
# ruff: noqa: F811

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from millrace import Client, arrays, wait
from millrace.errors import TaskFailedError
from test_device_cluster import client as client
from test_device_cluster import cloudpickle, double, make, workers

cloudpickle.register_pickle_by_value(sys.modules[__name__])
LONG = 2 * PATIENCE


def test_cupy_and_torch_in_turn(client: Client) -> None:
    one, two = workers(client)

    @arrays("torch")
    def gram(x: Any) -> Any:
        return x.T @ x

    def norm(x: Any) -> Any:
        import cupy

        return cupy.linalg.norm(x)

    data = np.random.default_rng(2).random((4096, 512))
    x = client.submit(double, client.scatter(data, workers=one), workers=one)
    y = client.submit(gram, x, workers=two)
    z = client.submit(norm, y, workers=one)
    assert float(z.result(LONG)) == pytest.approx(np.linalg.norm(4 * data.T @ data), rel=1e-10)


def test_results_of_torch_are_taken_where_they_are(client: Client) -> None:
    one, _ = workers(client)

    @arrays("torch")
    def filled(value: float) -> Any:
        import torch

        made = torch.full((64 << 20,), value, device="cuda")
        return {"made": made, "at": made.data_ptr()}

    @arrays("torch")
    def look(given: Any) -> Any:
        made = given["made"]
        return made.data_ptr() == given["at"], float(made[-1])

    took = []
    for i in range(10):
        began = time.perf_counter()
        f = client.submit(filled, float(i), workers=one)
        wait([f], LONG)
        took.append((time.perf_counter() - began) * 1e6)
        same, value = client.submit(look, f, workers=one).result(LONG)
        assert value == i and (same or i < 2)
    print(f"COST 256 MiB of torch, in place: p50 {statistics.median(took[2:]):.0f} us, the first {took[0]:.0f} us")
    kept = client.submit(filled, 77.0, workers=one)
    pid = client.submit(os.getpid, workers=one, pure=False).result(LONG)
    os.kill(pid, signal.SIGKILL)
    # The dead process's memory is returned to the worker, and its results stay valid.
    for i in range(100, 110):
        assert client.submit(look, client.submit(filled, float(i), workers=one), workers=one).result(LONG)[1] == i
    assert client.submit(look, kept, workers=one).result(LONG)[1] == 77


def test_large_arrays_cross(client: Client) -> None:
    one, two = workers(client)
    n = 32 << 20  # 256 MiB

    def check(x: Any) -> float:
        return float(x.sum())

    a = client.submit(make, n, workers=one)
    for _ in range(3):
        b = client.submit(double, a, workers=two, pure=False)
        assert client.submit(check, b, workers=one).result(LONG) == float(n) * (n - 1)


def test_costs_of_a_task(client: Client) -> None:
    one, two = workers(client)
    x = client.submit(make, 8192, workers=one)
    x.result(LONG)

    def same(x: Any) -> Any:
        return x

    def add(x: Any) -> Any:
        return x + 1

    for name, function, where in (("same", same, one), ("x + 1", add, one), ("x + 1 on the other GPU", add, two)):
        client.submit(function, x, workers=where, pure=False).result(LONG)
        times = []
        for _ in range(100):
            began = time.perf_counter()
            f = client.submit(function, x, workers=where, pure=False)
            wait([f], LONG)
            times.append((time.perf_counter() - began) * 1e6)
        print(f"COST {name}: p50 {statistics.median(times):.0f} us, p90 {sorted(times)[90]:.0f} us")
    for name, where in (("on one GPU", [one]), ("across GPUs", [one, two])):
        began = time.perf_counter()
        f = x
        for i in range(200):
            f = client.submit(add, f, workers=where[i % len(where)], pure=False)
        got = f.result(LONG)
        took = time.perf_counter() - began
        assert (got == np.arange(8192) + 200).all()
        print(f"COST chain of 64 KiB {name}: {took / 200 * 1e6:.0f} us a task")
    began = time.perf_counter()
    many = [client.submit(add, x, workers=one, pure=False) for _ in range(1000)]
    client.gather(
        [client.submit(lambda *parts: len(parts), *many[i::10], workers=one) for i in range(10)], timeout=LONG
    )
    print(f"COST 1000 tasks at once: {(time.perf_counter() - began) * 1e3:.0f} us a task")


def test_a_kernel_that_never_ends_is_killed(client: Client) -> None:
    one, _ = workers(client)
    x = client.submit(make, 8192, workers=one)
    x.result(LONG)

    def forever(x: Any) -> Any:
        import cupy

        code = 'extern "C" __global__ void f(volatile double* x, double* y) { for (;;) y[threadIdx.x] += x[0] + 1; }'
        made = cupy.zeros(65_536)
        cupy.RawKernel(code, "f")((8,), (1024,), (x, made))
        return made

    began = time.perf_counter()
    with pytest.raises(Exception, match="timeout") as e:
        client.submit(forever, x, workers=one, timeout=2.0).result(LONG)
    print(f"KILLED after {time.perf_counter() - began:.2f} s: {str(e.value)[:300]}")
    assert (client.submit(double, x, workers=one).result(LONG) == 2 * np.arange(8192.0)).all()
    print(f"AGAIN after {time.perf_counter() - began:.2f} s")


def test_an_executor_killed_in_the_middle_of_a_kernel(client: Client, tmp_path: Path) -> None:
    one, _ = workers(client)
    x = client.submit(make, 8192, workers=one)
    x.result(LONG)

    def once(x: Any, started: str) -> Any:
        import cupy

        if Path(started).exists():
            return x * 2
        code = 'extern "C" __global__ void f(volatile double* x, double* y) { for (;;) y[threadIdx.x] += x[0] + 1; }'
        made = cupy.zeros(1024)
        cupy.RawKernel(code, "f")((8,), (1024,), (x, made))
        Path(started + ".new").write_text(str(os.getpid()))
        Path(started + ".new").rename(started)
        cupy.cuda.runtime.deviceSynchronize()  # does not return
        return x

    f = client.submit(once, x, str(tmp_path / "started"), workers=one)
    eventually((tmp_path / "started").exists)
    began = time.perf_counter()
    os.kill(int((tmp_path / "started").read_text()), signal.SIGKILL)
    assert (f.result(LONG) == 2 * np.arange(8192.0)).all()  # tried again, in another process
    print(f"KILLED IN A KERNEL: the task's result after {time.perf_counter() - began:.2f} s")
    assert (x.result(LONG) == np.arange(8192.0)).all()
    assert (client.submit(double, x, workers=one, pure=False).result(LONG) == 2 * np.arange(8192.0)).all()


def test_an_illegal_address_is_its_tasks_alone(client: Client) -> None:
    one, _ = workers(client)
    x = client.submit(make, 9000, workers=one)
    x.result(LONG)

    def crash(x: Any) -> Any:
        import cupy

        cupy.RawKernel('extern "C" __global__ void f(double* x) { *(x - (1ll << 45)) = 1; }', "f")((1,), (1,), (x,))
        return x

    with pytest.raises(TaskFailedError, match="ILLEGAL_ADDRESS") as e:
        client.submit(crash, x, workers=one).result(LONG)
    print("ILLEGAL", str(e.value)[:300])
    assert (client.submit(double, x, workers=one).result(LONG) == 2 * np.arange(9000.0)).all()


def test_out_of_memory(client: Client) -> None:
    one, _ = workers(client)

    def kept_by_cupy() -> int:
        import cupy

        x = cupy.empty(90 << 30, "uint8")  # is freed into CuPy's pool
        return x.nbytes

    def by_torch() -> int:
        import torch

        return torch.empty(60 << 30, dtype=torch.uint8, device="cuda").numel()

    assert client.submit(kept_by_cupy, workers=one).result(LONG) == 90 << 30
    began = time.perf_counter()
    assert client.submit(by_torch, workers=one).result(LONG) == 60 << 30
    print(f"OOM repeated with success: {time.perf_counter() - began:.2f} s with the import of torch")

    def too_much() -> Any:
        import cupy

        kept = cupy.empty(40 << 30, "uint8")
        return kept, cupy.empty(120 << 30, "uint8")

    began = time.perf_counter()
    with pytest.raises(Exception, match="twice") as e:
        client.submit(too_much, workers=one).result(LONG)
    print(f"OOM after {time.perf_counter() - began:.2f} s: {type(e.value).__name__} {e.value}")
    assert (client.submit(make, 5000, workers=one).result(LONG) == np.arange(5000.0)).all()
