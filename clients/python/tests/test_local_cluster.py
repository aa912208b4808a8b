"""Local clusters by the names and arguments that Dask has for them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import mmap
import socket
import subprocess
import sys
import threading
import urllib.request
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Adaptive, Client, LocalCluster, LocalCUDACluster, _accepted, _check, errors
from millrace._local import _cluster_arguments
from millrace._local._cluster_arguments import BOTH, CUDA, Treatment, plan
from millrace._local._scaling import Scaling

SMALL: dict[str, Any] = {"memory_limit": "64MiB", "device": "host"}


def pass_through(gate: Gate) -> int:
    gate.pass_through()
    return 1


def square(x: int) -> int:
    return x * x


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """The log of this test, in which notes are said again that were said before."""
    monkeypatch.setattr(_accepted, "_said", set())
    caplog.set_level(logging.WARNING, "millrace")
    return caplog


def test_dasks_own_example(told: pytest.LogCaptureFixture) -> None:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, memory_limit="64MiB", processes=True, dashboard_address=":0",
            protocol="tcp", silence_logs=logging.ERROR, device="host", name="ours",
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        assert "LocalCluster: protocol='tcp' has no effect: each pair of workers uses the best way" in told.text
        workers = client.scheduler_info()["workers"].values()
        assert [(w["slots"], w["memory_limit"]) for w in workers] == [(2, 64 << 20)] * 2
        assert sum(client.gather(client.map(square, range(10)))) == 285
        assert client.cluster is cluster and cluster.name == "ours" and cluster.status == "running"
        with urllib.request.urlopen(cluster.dashboard_link, timeout=PATIENCE) as page:
            assert page.status == 200
        with Client(cluster.scheduler_address) as other:
            assert other.submit(square, 5).result(PATIENCE) == 25
    assert cluster.status == "closed"
    cluster.close()
    with pytest.raises(errors.ClusterStartError, match="closed"):
        Client(cluster)


def test_a_client_takes_the_arguments_of_a_cluster() -> None:
    with Client(n_workers=1, threads_per_worker=3, processes=True, dashboard_address=None, **SMALL) as client:
        (worker,) = client.scheduler_info()["workers"].values()
        assert worker["slots"] == 3 and client.dashboard_link == ""
        assert client.cluster is not None
        with pytest.raises(TypeError, match=r"threads_per_worker is for a cluster that the client starts"):
            Client(client.cluster, threads_per_worker=1)
        for name, value in {"n_workers": 4, "memory_limit": "4GB", "device": "cuda"}.items():
            with pytest.raises(TypeError, match=rf"{name} is for a cluster that the client starts, and this one joins"):
                Client(client.cluster.scheduler_address, **{name: value})


def test_settings_reach_the_workers(tmp_path: Path) -> None:
    def look() -> tuple[str | None, str]:
        import os

        return os.environ.get("COLOUR"), os.environ["MILLRACE_WORKER"]

    with (
        LocalCluster(
            1,
            1,
            local_directory=tmp_path / "spill",
            env={"COLOUR": "blue"},
            resources={"licence": 2},
            preload="json",
            **SMALL,
        ) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(look).result(PATIENCE) == ("blue", "host-0")
        assert client.submit(square, 3, resources={"licence": 2}).result(PATIENCE) == 9
        assert (tmp_path / "spill").is_dir()


def test_a_port_that_is_taken_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.warns(UserWarning, match=f"port {port} is taken; the dashboard is at http"):
            cluster = LocalCluster(1, 1, dashboard_address=f":{port}", **SMALL)
        with cluster:
            assert cluster.http and not cluster.http.endswith(f":{port}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with LocalCluster(1, 1, **SMALL), LocalCluster(1, 1, **SMALL):  # both ask for 8787
            pass


def test_an_asynchronous_cluster() -> None:
    async def use() -> None:
        async with (
            LocalCluster(1, 1, asynchronous=True, **SMALL) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            assert await client.submit(square, 4) == 16
        assert cluster.status == "closed"
        second = LocalCluster(1, 1, asynchronous=True, **SMALL)
        assert second.status == "created"
        with pytest.raises(errors.ClusterStartError, match="await"):
            second.check()
        await second
        async with second.get_client() as client:
            assert await client.submit(square, 5) == 25
        await second.close()
        await second.close()

    asyncio.run(use())


def test_get_client() -> None:
    with LocalCluster(1, 1, **SMALL) as cluster, cluster.get_client() as client:
        assert isinstance(client, Client) and client.submit(square, 2).result(PATIENCE) == 4


# ---- memory of functions -------------------------------------------------------------------------


def take(mib: int) -> int:
    return len(b"x" * (mib << 20))


def take_and_keep(mib: int) -> None:
    kept = b"x" * (mib << 20)
    threading.Event().wait(PATIENCE)  # until the worker has measured the memory
    del kept


def test_functions_have_a_limit_of_memory() -> None:
    with (
        LocalCluster(1, 1, function_memory_limit="300MiB", memory_terminate_fraction=0.9, **SMALL) as cluster,
        Client(cluster) as client,
    ):
        with pytest.raises(errors.WorkerDiedError, match=r"ended by its worker.*use .* of the 300 MiB"):
            client.submit(take_and_keep, 1500).result(PATIENCE)
        assert client.submit(take, 1).result(PATIENCE) == 1 << 20
    with LocalCluster(1, 1, function_memory_limit=None, **SMALL) as cluster, Client(cluster) as client:
        assert client.submit(take, 400).result(PATIENCE) == 400 << 20


def anonymous_bytes() -> int:
    """Returns the memory that this process has for itself."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * mmap.PAGESIZE


def take_and_free(mib: int) -> int:
    pieces = [bytearray(1 << 20) for _ in range(mib)]
    for piece in pieces:
        piece[:] = b"x" * len(piece)
    pieces.clear()
    return anonymous_bytes()


def test_idle_executors_return_memory_that_was_freed() -> None:
    with LocalCluster(1, 1, function_memory_limit="1GiB", **SMALL) as cluster, Client(cluster) as client:
        before = client.submit(anonymous_bytes).result(PATIENCE)
        kept = client.submit(take_and_free, 64).result(PATIENCE)
        assert kept - before > 32 << 20  # for the next task
        eventually(lambda: max(client.run(anonymous_bytes).values()) < kept - (32 << 20))


# ---- scaling -------------------------------------------------------------------------------------


def test_scale() -> None:
    with LocalCluster(0, **SMALL) as cluster, Client(cluster) as client:
        assert cluster.workers == {} and cluster.plan == set()
        cluster.scale(2)
        assert cluster.plan == cluster.requested == {"host-0", "host-1"}
        cluster.wait_for_workers(2, timeout=PATIENCE)
        assert cluster.observed == {"host-0", "host-1"}
        assert {(w["slots"], w["memory_limit"]) for w in cluster.workers.values()} == {(1, 64 << 20)}
        held = client.scatter(list(range(20)), broadcast=False)
        big = [client.submit(bytes, 1 << 20, pure=False) for _ in range(4)]
        client.gather(big)
        cluster.scale(1)
        eventually(lambda: len(cluster.scheduler_info["workers"]) == 1)
        assert client.gather(held) == list(range(20)) and len(client.gather(big[0])) == 1 << 20
        assert len(cluster.plan) == 1
        cluster.scale(cores=3)
        assert len(cluster.plan) == 3 and not cluster.plan & {"host-0", "host-1"} == {"host-0", "host-1"}
        cluster.wait_for_workers(3, timeout=PATIENCE)
        logs = cluster.get_logs()
        assert {"Cluster", "Scheduler"} < set(logs) and set(cluster.observed) <= set(logs)
        assert set(cluster.get_logs(cluster=False, scheduler=False, workers=["host-2"])) <= {"host-2"}
        cluster.scale(memory="64MiB")
        eventually(lambda: len(cluster.scheduler_info["workers"]) == 1)
        with pytest.raises(TypeError, match="n, memory or cores"):
            cluster.scale()


def test_further_workers_are_like_the_first_ones() -> None:
    with LocalCluster(1, 2, resources={"licence": 1}, **SMALL) as cluster, Client(cluster) as client:
        cluster.scale(2)
        client.wait_for_workers(2, timeout=PATIENCE)
        assert [
            (w["name"], w["slots"], w["memory_limit"], w["resources"]) for _, w in sorted(cluster.workers.items())
        ] == [
            ("host-0", 2, 64 << 20, {"licence": 1}),
            ("host-1", 2, 64 << 20, {"licence": 1}),
        ]
        assert client.submit(square, 3, workers="host-1").result(PATIENCE) == 9


def test_a_worker_that_was_not_there_yet_is_scaled_away() -> None:
    with LocalCluster(0, **SMALL) as cluster:
        cluster.scale(3)
        cluster.scale(0)
        assert cluster.plan == set()
        eventually(lambda: not cluster.observed)
        with pytest.raises(TimeoutError, match="0 of 1 workers"):
            cluster.wait_for_workers(1, timeout=0)


def test_no_more_workers_than_gpus() -> None:
    scaling = Scaling(cast("Any", None), cast("Any", None), "gpu", 2)
    with pytest.raises(ValueError, match="there are 2 GPUs, and each has one worker; 3 is more"):
        scaling.scale(3)
    assert scaling._numbers({"gpu-1"}, 2) == [0, 2]  # the lowest numbers that are free
    host = Scaling(cast("Any", None), cast("Any", None), "host", None)
    assert host._numbers({"host-0", "host-1"}, 2) == [2, 3]
    assert host._numbers({"host-0"}, 1) == [4]  # no number is used twice


def test_adaptive_classes_of_programs() -> None:
    class Two(Adaptive):
        def target(self) -> int:
            return 2

    with LocalCluster(1, **SMALL) as cluster:
        made = cluster.adapt(maximum=3, interval="20 ms", Adaptive=Two)
        assert type(made) is Two and made.cluster is cluster
        cluster.wait_for_workers(2, PATIENCE)
        whole = Adaptive(cluster, minimum=1, maximum=3, interval="20 ms", wait_count=1, worker_key=lambda w: w["host"])
        eventually(lambda: whole.log or len(whole.plan) == 2)
        assert not made._thread.is_alive(), "another Adaptive has taken over"
        assert whole.plan == whole.requested
    eventually(lambda: not whole._thread.is_alive())
    with pytest.raises(TypeError, match="must be a LocalCluster"):
        Adaptive(cast("Any", 3))


def test_workers_of_one_group_are_retired_together() -> None:
    with LocalCluster(3, **SMALL) as cluster:
        cluster.wait_for_workers(3, PATIENCE)
        _, *others = sorted(cluster.observed)
        scaling = cluster._workers()
        scaling.scale(2, lambda w: w["name"] in others)
        assert cluster.observed == set(others), "the group of one goes"
        scaling.scale(1, lambda w: w["name"] in others)
        assert cluster.observed == set(others), "a group stays together"
        scaling.scale(0, lambda w: w["name"] in others)
        assert not cluster.observed


def test_adapt(gate: Gate) -> None:
    with LocalCluster(0, 1, **SMALL) as cluster, Client(cluster) as client:
        adaptive = cluster.adapt(minimum=0, maximum=2, interval="20 ms", wait_count=2)
        waiting = client.map(pass_through, [gate] * 5, pure=False)
        gate.wait(2)
        assert len(adaptive.plan) == 2  # no more than the maximum
        for ended in range(5):
            gate.open()
            eventually(lambda n=ended: sum(f.done() for f in waiting) > n)
        assert client.gather(waiting) == [1] * 5
        # A worker stays as long as it has results.
        waiting.clear()
        gc.collect()
        eventually(lambda: not cluster.observed)
        assert adaptive.log[0][1] >= 1 and adaptive.log[-1][1] == 0
        assert client.submit(square, 5).result(PATIENCE) == 25  # workers come again
        adaptive.stop()
        with pytest.raises(ValueError, match="maximum"):
            cluster.adapt(minimum=3, maximum=2)
        cluster.adapt(minimum=1)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("4GiB", 4 << 30), ("500 MB", 500_000_000), ("5000M", 5_000_000_000), ("10", 10), (3.5, 3), ("1e3kB", 10**6)],
)
def test_amounts_of_memory(text: Any, bytes_: int) -> None:
    assert _check.byte_count(text, "memory") == bytes_
    for wrong in ("4XB", "", "B", True, -1):
        with pytest.raises((TypeError, ValueError), match="memory"):
            _check.byte_count(wrong, "memory")


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", _cluster_arguments.ARGUMENTS, ids=lambda a: a.name)
def test_no_argument_is_ignored_silently(argument: _cluster_arguments.Argument) -> None:
    """Each is refused with its name, or draws a note with its name, or has a handler."""
    value = object()
    if argument.treatment is Treatment.MAPPED:
        assert argument.name in _cluster_arguments._HANDLERS
    elif argument.treatment is Treatment.REFUSED:
        with pytest.raises(ValueError, match=rf"(?s){argument.name}=.*refused"):
            plan(CUDA, {argument.name: value})
    elif argument.name != "processes":
        assert plan(CUDA, {argument.name: value}).notes == [(argument.name, value, argument.text)]
    for quiet in argument.quiet:
        assert plan(CUDA, {argument.name: quiet}).notes == []
    if argument.of == CUDA:
        with pytest.raises(TypeError, match=f"{argument.name} is an argument of LocalCUDACluster"):
            plan(BOTH, {argument.name: value})


def test_threads_instead_of_processes_are_a_warning() -> None:
    with pytest.warns(UserWarning, match="processes=False has no effect: tasks run in processes of their own"):
        assert plan(BOTH, {"processes": False}).n_workers == 1


def flags(cls: str, **given: Any) -> dict[str, str]:
    out = plan(cls, given).flags
    if out.get("http") == "127.0.0.1:8787":
        del out["http"]
    return out


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"memory_limit": 4e9}, {"memory-limit": "4000000000"}),
        ({"memory_limit": 0.5}, {"memory-limit": "0.5"}),
        ({"memory_limit": "4GB"}, {"memory-limit": "4GB"}),
        ({"memory_limit": 0}, {"memory-limit": "auto", "function-memory-limit": "none"}),
        ({"memory_limit": None}, {"memory-limit": "auto", "function-memory-limit": "none"}),
        ({"memory_pause_fraction": 0.5}, {"function-memory-levels": "0.5,0.5,0.95"}),
        ({"memory_terminate_fraction": False}, {"function-memory-levels": "0.7,0.8,0"}),
        ({"host": "0.0.0.0"}, {"listen": "0.0.0.0:0", "http": "0.0.0.0:8787"}),
        ({"host": "tcp://127.0.0.2:8786"}, {"listen": "127.0.0.2:8786", "http": "127.0.0.2:8787"}),
        ({"host": "::1", "scheduler_port": 1234}, {"listen": "[::1]:1234", "http": "[::1]:8787"}),
        ({"interface": "lo", "dashboard_address": None}, {"listen": "127.0.0.1:0", "http": ""}),
        ({"dashboard_address": "0.0.0.0:0"}, {"http": "0.0.0.0:0"}),
        ({"dashboard_address": 8788}, {"http": "127.0.0.1:8788"}),
        ({"silence_logs": False}, {"log-level": "info"}),
        ({"silence_logs": logging.DEBUG}, {"log-level": "debug"}),
        ({"silence_logs": "critical"}, {"log-level": "error"}),
        ({"nthreads": 2}, {"slots": "2"}),
        ({"scheduler_kwargs": {"port": 99, "worker_ttl": "10s"}}, {"listen": "127.0.0.1:99", "worker-lease": "10s"}),
        ({"preload": ["pandas", "a.b"]}, {"preload": "pandas,a.b"}),
        ({"max_spill": "1GB"}, {"spill-limit": "1GB"}),
    ],
)
def test_mapped(given: dict[str, Any], wanted: dict[str, str]) -> None:
    assert flags(BOTH, **given) == wanted


def test_the_arguments_of_the_notebook() -> None:
    """Those of the notebook that LocalCUDACluster is known by, and of Dask-CUDA's page on UCX."""
    out = plan(
        CUDA,
        {
            "protocol": "ucx", "n_workers": 2, "CUDA_VISIBLE_DEVICES": "0,1", "device_memory_limit": 10 << 30,
            "local_directory": "scratch", "dashboard_address": ":8787", "rmm_pool_size": 11 << 30,
        },
    )  # fmt: skip
    assert out.flags["device-memory-limit"] == str(10 << 30) and "rmm-pool-size" not in out.flags
    assert out.flags["local-directory"] == str(Path("scratch").absolute())
    assert out.env == {"CUDA_VISIBLE_DEVICES": "0,1"} and out.n_workers == 2
    assert [n[0] for n in out.notes] == ["protocol", "rmm_pool_size"]
    out = plan(
        CUDA,
        {
            "protocol": "ucx", "enable_tcp_over_ucx": True, "enable_nvlink": True, "enable_infiniband": True,
            "ucx_net_devices": "auto", "rmm_pool_size": "24GB", "jit_unspill": True,
        },
    )  # fmt: skip
    assert out.flags["rmm-pool-size"] == "24GB" and len(out.notes) == 5


@pytest.mark.parametrize(
    ("value", "wanted"),
    [([0, 1], "0,1"), ("0, 1", "0,1"), (3, "3"), (["GPU-a", "MIG-b"], "GPU-a,MIG-b"), ([], ""), ("", "")],
)
def test_devices(value: Any, wanted: str) -> None:
    assert plan(CUDA, {"CUDA_VISIBLE_DEVICES": value}).env == {"CUDA_VISIBLE_DEVICES": wanted}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"n_worker": 2}, "did you mean n_workers"),
        ({"threads_per_worker": 0}, "threads_per_worker"),
        ({"memory_limit": True}, "memory_limit"),
        ({"dashboard_address": "x"}, "dashboard_address"),
        ({"interface": "nope0"}, "nope0.*there are.*lo"),
        ({"interface": "lo", "host": "h"}, "exclude each other"),
        ({"preload": "code.py"}, "preload.*module"),
        ({"worker_class": int}, "worker_class.*refused"),
        ({"scheduler_kwargs": {"plugins": [1]}}, "'plugins' is refused"),
        ({"CUDA_VISIBLE_DEVICES": [0, 0]}, "twice"),
        ({"CUDA_VISIBLE_DEVICES": "abc"}, "'abc' is no GPU"),
        ({"rmm_managed_memory": True}, "move to host memory"),
        ({"security": object()}, "token"),
        ({"silence_logs": "loud"}, "silence_logs"),
    ],
)
def test_wrong(given: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        plan(CUDA, given)


def test_no_gpu_is_said() -> None:
    code = "import millrace; millrace.LocalCUDACluster()"
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    import os

    out = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert out.returncode == 1
    assert "no GPU for a worker" in out.stderr and "LocalCluster() runs on processors" in out.stderr


def test_a_cuda_cluster_without_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MILLRACE_DEVICE", "host")
    monkeypatch.setenv("DASK_RMM__POOL_SIZE", "1GB")
    cluster = LocalCUDACluster(
        protocol="ucx", n_workers=1, CUDA_VISIBLE_DEVICES="", device_memory_limit=10 << 30, memory_limit="64MiB",
        local_directory=tmp_path, dashboard_address=":0", rmm_pool_size=10 << 30,
    )  # fmt: skip
    assert "protocol='ucx' has no effect" in told.text
    assert "DASK_RMM__POOL_SIZE='1GB' has no effect: clients and schedulers need no memory of a GPU" in told.text
    with cluster, Client(cluster) as client:
        assert client.submit(square, 6).result(PATIENCE) == 36
        assert [w["device"] for w in client.scheduler_info()["workers"].values()] == ["host"]


def test_the_signature_has_what_people_look_for() -> None:
    assert list(inspect.signature(LocalCUDACluster).parameters)[:3] == [
        "CUDA_VISIBLE_DEVICES", "n_workers", "threads_per_worker",
    ]  # fmt: skip


def test_the_table_of_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "local-clusters.md"
    assert page.read_text().endswith("\n\n" + _cluster_arguments.table()), "run tools/cluster-arguments"
