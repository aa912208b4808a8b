"""Tasks with arrays on GPUs in a whole cluster: on the fake driver with a fake CuPy, or on two GPUs
with MILLRACE_GPU_TESTS=1."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import test_device
from conftest import PATIENCE, eventually
from millrace import Client, arrays
from millrace.cluster import find_binary
from millrace.errors import TaskFailedError

REAL = bool(os.environ.get("MILLRACE_GPU_TESTS"))

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Cluster:
    """`millrace up` with a worker for each of two GPUs."""

    def __init__(self, directory: Path, env: dict[str, str], *arguments: str) -> None:
        file = directory / "scheduler.json"
        self.log = directory / "log"
        command = [find_binary(), "up", "--device", "cuda", "--workers", "2", "--scheduler-file", str(file)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--python", sys.executable, "--executors", "1", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )
        deadline = time.monotonic() + PATIENCE
        while not file.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(0.01)
        info = json.loads(file.read_text())
        self.address: str = info["address"]
        self.token: str = info.get("token", "")

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("cluster")
    before = dict(os.environ)
    limits = ["--device-memory-limit", "64MiB", "--pinned-limit", "16MiB", "--executor-arena", "4MiB"]
    path = [str(Path(test_device.__file__).parent), *sys.path]
    if REAL:
        limits = ["--device-memory-limit", "16GiB", "--pinned-limit", "1GiB", "--executor-arena", "2GiB"]
        limits += ["--executor-arena-for", "cupy,torch"]
        limits += ["--slots", "1"]  # each Python process has a context, which takes half a GiB
    else:
        fake = test_device.Fake(directory, devices=2)
        limits += ["--cuda-library", str(fake.library)]
        path = [str(test_device.FAKES), *path]
    cluster = Cluster(directory, {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)}, *limits)
    try:
        with Client(cluster.address, token=cluster.token) as made:
            made.wait_for_workers(2, timeout=PATIENCE)
            yield made
    finally:
        cluster.close()
        os.environ.clear()
        os.environ.update(before)
        print(cluster.log.read_text()[-20_000:])


#: Elements of the smallest array that an arena takes, and of one MiB of float64.
SMALL, MEBI = 32 << 10, 128 << 10


def stamp(value: float, n: int, *inputs: Any) -> Any:
    """Returns an array of one number that depends on all inputs. Each input is checked as a
    whole."""
    import cupy

    for x in inputs:
        first = float(x[:1].sum())
        assert float(x.sum()) == first * x.size, "an input has elements of two objects"
        value += first
    return cupy.ones(n) * (value % 1021)


@arrays("torch")
def stamp_by_torch(value: float, n: int, *inputs: Any) -> Any:
    """The same function with tensors of torch."""
    import torch

    for x in inputs:
        first = float(x[0])
        assert bool((x == first).all()), "an input has elements of two objects"
        value += first
    return torch.full((n,), value % 1021, dtype=torch.float64, device="cuda")


def executors_of(pid: int) -> list[int]:
    """Returns the process ids of a worker's executors, including spare ones."""
    out = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"millrace.executor" in Path(f"/proc/{child}/cmdline").read_bytes():
                out.append(int(child))
    return out


@pytest.mark.long
def test_work_goes_on_under_kills_with_arenas_in_most_of_the_slab(client: Client, tmp_path: Path) -> None:
    """Executors and workers are killed while executors keep arrays, results lie in arenas, and
    everything is spilled."""
    scale = 16 if REAL else 1
    limits = ["--device-memory-limit", f"{64 * scale}MiB", "--pinned-limit", f"{32 * scale}MiB"]
    # Three quarters of the slab in total, for one library or for two.
    limits += ["--executor-arena", f"{(12 if REAL else 24) * scale}MiB", "--slots", "2"]
    limits += ["--executor-arena-for", "cupy,torch" if REAL else "cupy"]
    path = [str(Path(test_device.__file__).parent), *([] if REAL else [str(test_device.FAKES)]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)}
    if not REAL:
        limits += ["--cuda-library", os.environ["FAKE_LIBCUDA"]]
    cluster = Cluster(tmp_path, env, *limits)
    rng = random.Random(15)
    try:
        with Client(cluster.address, token=cluster.token) as own:
            own.wait_for_workers(2, timeout=PATIENCE)
            window: list[tuple[Any, float, int]] = []
            for i in range(60):
                chosen = rng.sample(window, min(len(window), rng.randint(0, 3)))
                n = rng.choice([1, SMALL, MEBI, MEBI, 3 * MEBI, 5 * MEBI, 7 * MEBI]) * (scale if i % 2 else 1)
                function = stamp_by_torch if REAL and i % 4 > 1 else stamp
                future = own.submit(function, float(i), n, *(f for f, _, _ in chosen), pure=False)
                window.append((future, (i + sum(v for _, v, _ in chosen)) % 1021, n))
                if len(window) > 30:
                    future, value, n = window.pop(0)
                    got = np.asarray(future.result(PATIENCE))
                    assert got.shape == (n,) and (got == value).all(), i
                if i % 20 == 19:
                    pids = [w["pid"] for w in own.scheduler_info()["workers"].values()]
                    executors = [pid for worker in pids for pid in executors_of(worker)]
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(pids if i % 40 == 19 else executors or pids), signal.SIGKILL)
            for future, value, n in window:
                got = np.asarray(future.result(PATIENCE))
                assert got.shape == (n,) and (got == value).all()
    finally:
        cluster.close()
        print(cluster.log.read_text()[-20_000:])


def workers(client: Client) -> list[str]:
    return sorted(client.scheduler_info()["workers"])


def make(n: int) -> Any:
    import cupy

    return cupy.arange(n, dtype="float64")


def double(x: Any) -> Any:
    assert type(x).__module__.startswith("cupy"), type(x)
    return x * 2


def test_chain_across_gpus(client: Client) -> None:
    one, two = workers(client)
    n = 200_000
    a = client.submit(make, n, workers=one)
    b = client.submit(double, a, workers=two)
    c = client.submit(double, b, workers=one)
    got = client.gather([a, b, c], timeout=PATIENCE)
    assert all(type(g) is np.ndarray for g in got)
    for g, factor in zip(got, (1, 2, 4), strict=True):
        assert (g == factor * np.arange(n)).all()
    if not REAL:
        assert "cupy" not in sys.modules


def test_arrays_of_the_host_arrive_on_the_gpu(client: Client) -> None:
    data = np.random.default_rng(1).random((300, 100))
    future = client.scatter(data)
    assert (client.submit(double, future).result(PATIENCE) == data * 2).all()

    @arrays("numpy")
    def host(x: Any) -> Any:
        assert type(x) is np.ndarray
        return x + 1

    assert (client.submit(host, client.submit(double, future)).result(PATIENCE) == data * 2 + 1).all()


def test_many_small_tasks(client: Client) -> None:
    parts = [client.submit(make, 1000 + i) for i in range(50)]
    sums = client.map(lambda x: float(x.sum()), [client.submit(double, p) for p in parts])
    assert client.gather(sums, timeout=PATIENCE) == [float((1000 + i) * (999 + i)) for i in range(50)]


def test_objects_with_arrays_inside(client: Client) -> None:
    future = client.submit(make, 4096)
    kept = client.submit(lambda x: {"x": x, "n": 1}, future)
    got = kept.result(PATIENCE)
    assert got["n"] == 1 and (got["x"] == np.arange(4096.0)).all()


def test_a_killed_executor_takes_nothing_along(client: Client) -> None:
    one, _ = workers(client)
    data = client.submit(make, 100_000, workers=one)
    data.result(PATIENCE)

    def die(x: Any) -> None:
        import os
        import signal

        y = x + x
        os.kill(os.getpid(), signal.SIGKILL)
        return y

    with pytest.raises(TaskFailedError, match=r"SIGKILL|killed"):
        client.submit(die, data, workers=one).result(PATIENCE)
    assert (client.submit(double, data, workers=one).result(PATIENCE) == 2 * np.arange(100_000.0)).all()


def use(size: int) -> int:
    import cupy

    return cupy.empty(size, "uint8").nbytes


def see() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


@contextlib.contextmanager
def another_program(gpu: str, leaves: int) -> Iterator[None]:
    """Runs another program that takes all free memory of a GPU except this many bytes."""
    code = f"""if True:
        import sys, cupy
        x = cupy.empty(cupy.cuda.runtime.memGetInfo()[0] - {leaves}, "uint8")
        print("taken", flush=True)
        sys.stdin.read()
    """
    path = os.pathsep.join([*([] if REAL else [str(test_device.FAKES)]), *(p for p in sys.path if p)])
    env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": gpu}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True, env=env) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        yield
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_another_program_takes_the_memory(client: Client) -> None:
    one, _ = workers(client)
    unit = 1 << 30 if REAL else 4 << 20
    assert client.submit(use, 1, workers=one).result(PATIENCE) == 1  # now it has a context
    with another_program(client.run(see, workers=[one])[one], leaves=2 * unit):
        # Memory that is not free any more is lent by the slab. A request that exceeds the slab
        # fails.
        assert client.submit(use, 6 * unit, workers=one, pure=False).result(PATIENCE) == 6 * unit
        want = r"out of memory on the GPU, twice.* are free, the slab takes .*, other processes \d"
        with pytest.raises(TaskFailedError, match=want) as e:
            client.submit(use, 60 * unit, workers=one, pure=False).result(PATIENCE)
        print("TAKEN", e.value)
    assert client.submit(use, 60 * unit, workers=one, pure=False).result(PATIENCE) == 60 * unit


def test_every_worker_has_its_own_gpu(client: Client) -> None:
    seen = client.run(see)
    assert len(set(seen.values())) == 2, seen
    eventually(lambda: len(client.scheduler_info()["workers"]) == 2)


def test_a_cluster_of_ones_own_is_on_the_gpus(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL:
        monkeypatch.setenv("MILLRACE_CUDA_LIBRARY", os.environ["FAKE_LIBCUDA"])
        monkeypatch.setenv("MILLRACE_NVML_LIBRARY", "none")
    monkeypatch.setenv("MILLRACE_DEVICE_MEMORY_LIMIT", "16MiB")
    monkeypatch.setenv("MILLRACE_PINNED_LIMIT", "16MiB")
    with Client() as own:
        # The other cluster has two GPUs. This one uses all GPUs of the machine, which may be more.
        assert workers(own)[:2] == workers(client) == ["gpu-0", "gpu-1"]
        assert own.submit(lambda x: x + 1, 1).result(PATIENCE) == 2


def test_the_main_job_by_python_functions(client: Client) -> None:
    spec = importlib.util.spec_from_file_location("digits", Path(__file__).parents[3] / "examples" / "digits.py")
    assert spec is not None and spec.loader is not None
    digits = importlib.util.module_from_spec(spec)
    sys.modules["digits"] = digits
    spec.loader.exec_module(digits)
    cloudpickle.register_pickle_by_value(digits)
    data = np.random.default_rng(3).random((800, 20))
    chunks = client.scatter(np.array_split(data, 4))
    mean, covariance, (s, vt) = client.get(
        digits.python_graph(chunks, len(data)), ["py-mean", "py-covariance", "py-svd"]
    )
    _, want_s, want_vt = np.linalg.svd(data - data.mean(axis=0), full_matrices=False)
    assert np.allclose(mean, data.mean(axis=0)) and np.allclose(covariance, np.cov(data, rowvar=False))
    assert np.allclose(s, want_s) and np.allclose(digits.align(vt, want_vt, 20), want_vt)
