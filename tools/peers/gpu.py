"""Compares Dask-CUDA over UCX with Millrace on the GPUs of this machine, and prints the ratios.

    gpu.py --millrace BINARY --out FOLDER [--their-path FOLDER] [--cpu]

The two run one after the other, with the same work. Each repetition makes new arrays of float64
before the time begins, and the time ends when the whole result is there. Dask computes with CuPy.
Millrace computes once by its native ops and once by Python functions with CuPy.

--their-path names a folder with Dask's packages. Only the child processes of Dask see it. --cpu
rehearses on a machine without GPUs, with small sizes.

Writes peers.json and the output of both sides into the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Folder of the examples: part of a checkout, or beside this file in a bundle.
EXAMPLES = next((p for p in (HERE / "examples", HERE.parent.parent / "examples") if p.is_dir()), HERE)

TRANSPOSES = [(40_000, 10_000, 5), (10_000, 2_500, 7)]
#: Rows, rows of a chunk, and repetitions. There are 1,000 columns.
SVDS = [(100_000, 10_000, 5), (4_000_000, 100_000, 2)]
SCATTERED = 256 << 20
HOP = 64 << 10
HOPS = 60
#: Longest time of each side, in seconds.
LIMIT = 60

Seconds = list[float]


def sizes(cpu: bool) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]], int, int]:
    """Returns the transposes, the SVDs, the columns of these, and the scattered bytes."""
    if not cpu:
        return TRANSPOSES, SVDS, 1_000, SCATTERED
    return [(2_500, 625, 2), (625, 125, 2)], [(8_000, 800, 2)], 100, SCATTERED >> 4


class Told:
    """Stores the results so far: a measurement that takes too long loses only its own result."""

    def __init__(self, file: Path) -> None:
        self._file, self._all = file, {}

    def tell(self, name: str, seconds: Seconds, **more: Any) -> None:
        """Adds a measurement. Its first time is that of the warm-up."""
        warm = seconds[1:] or seconds
        self._all[name] = {"seconds": statistics.median(warm), "all": seconds, **more}
        print(f"{name}: {statistics.median(warm):.6f} s, all {[round(s, 5) for s in seconds]}", flush=True)
        self._file.write_text(json.dumps(self._all) + "\n")

    def tried(self, name: str, limit: int, run: Callable[[], Any]) -> None:
        def late(*_: object) -> None:
            raise TimeoutError(f"more than {limit} s")

        signal.signal(signal.SIGALRM, late)
        signal.alarm(limit)
        try:
            run()
        except Exception as e:
            print(f"{name}: {type(e).__name__}: {e}"[:600], flush=True)
        finally:
            signal.alarm(0)


# ---- task bodies of both -------------------------------------------------------------------------


def make(nbytes: int, value: int, cpu: bool) -> Any:
    if cpu:
        import numpy as xp
    else:
        import cupy as xp  # pyright: ignore[reportMissingImports]
    out = xp.full(nbytes, value & 255, xp.uint8)
    if not cpu:
        xp.cuda.get_current_stream().synchronize()
    return out


def touch(x: Any) -> int:
    return int(x[-1])


def hops(
    client: Any, submit: Callable[..., Any], wait: Callable[[Any], Any], workers: list[str], cpu: bool
) -> tuple[Seconds, Seconds]:
    """Makes an array on the first worker, uses it there, and then on the second one."""
    here: Seconds = []
    there: Seconds = []
    for i in range(HOPS):
        f = submit(make, HOP, i, cpu, workers[0])
        wait(f)
        for at, into in ((workers[0], here), (workers[1], there)):
            began = time.perf_counter()
            assert submit(touch, f, at).result() == i & 255
            into.append(time.perf_counter() - began)
    return here, there


# ---- Dask ----------------------------------------------------------------------------------------


def synchronised(cpu: bool) -> int:
    if not cpu:
        import cupy  # pyright: ignore[reportMissingImports]

        cupy.cuda.Device().synchronize()
    return 1


def theirs(told: Told, cpu: bool) -> None:
    import dask
    import numpy as np
    from dask import array as da
    from distributed import Client, wait

    scratch = tempfile.mkdtemp()
    dask.config.set({"distributed.comm.timeouts.connect": "20s"})
    if cpu:
        import numpy as xp
        from distributed import LocalCluster

        cluster: Any = LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=None, local_directory=scratch
        )
    else:
        import cupy as xp  # pyright: ignore[reportMissingImports]
        from dask_cuda import LocalCUDACluster  # pyright: ignore[reportMissingImports]

        cluster = LocalCUDACluster(
            CUDA_VISIBLE_DEVICES="0,1",
            protocol="ucx",
            memory_limit=None,
            dashboard_address=None,
            local_directory=scratch,
            rmm_pool_size="110GB",
            rmm_allocator_external_lib_list="cupy",
            pre_import="cupy",
        )
    client = Client(cluster)
    client.wait_for_workers(2, timeout=60)
    workers = sorted(client.scheduler_info()["workers"])
    transposes, svds, columns, scattered = sizes(cpu)

    def fresh(shape: tuple[int, int], chunks: tuple[int, int]) -> Any:
        x = da.random.RandomState(RandomState=xp.random.RandomState).random(shape, chunks=chunks).persist()
        wait(x)
        client.run(synchronised, cpu)
        return x

    def transposed(n: int, chunk: int, repetitions: int) -> None:
        times = []
        for _ in range(repetitions + 1):
            x = fresh((n, n), (chunk, chunk))
            began = time.perf_counter()
            y = client.persist((x + x.T).sum())
            wait(y)
            client.run(synchronised, cpu)
            times.append(time.perf_counter() - began)
            assert abs(float(y.compute()) / (n * n) - 1) < 0.05
            del x, y
        told.tell(f"transpose_sum {n}/{chunk}", times)

    def svd(rows: int, chunk: int, repetitions: int) -> None:
        times = []
        for _ in range(repetitions + 1):
            x = fresh((rows, columns), (chunk, columns))
            began = time.perf_counter()
            u, s, vt = client.persist(list(np.linalg.svd(x)))
            wait([u, s, vt])
            client.run(synchronised, cpu)
            times.append(time.perf_counter() - began)
            del x, u, s, vt
        told.tell(f"svd {rows} x {columns}", times)

    def scatter(direct: bool) -> None:
        data = np.random.default_rng(0).random(scattered // 8)
        out: Seconds = []
        back: Seconds = []
        for i in range(4):
            data[0] = i
            began = time.perf_counter()
            f = client.scatter(data, workers=[workers[0]], direct=direct, hash=False)
            out.append(time.perf_counter() - began)
            began = time.perf_counter()
            got = client.gather(f, direct=direct)
            back.append(time.perf_counter() - began)
            assert got[0] == i
            del f, got
        how = ", direct" if direct else ""
        told.tell(f"scatter {scattered >> 20} MiB{how}", out, bytes=scattered)
        told.tell(f"gather {scattered >> 20} MiB{how}", back, bytes=scattered)

    def hop() -> None:
        here, there = hops(
            client, lambda f, *a: client.submit(f, *a[:-1], workers=[a[-1]], pure=False), wait, workers, cpu
        )
        _told_hops(told, here, there)

    for n, chunk, repetitions in reversed(transposes):
        told.tried(f"transpose_sum {n}", 20, lambda n=n, c=chunk, r=repetitions: transposed(n, c, r))
    for rows, chunk, repetitions in svds:
        told.tried(f"svd {rows}", 25, lambda n=rows, c=chunk, r=repetitions: svd(n, c, r))
    told.tried("hop", 10, hop)
    told.tried("scatter", 15, lambda: scatter(False))
    told.tried("scatter, direct", 15, lambda: scatter(True))


def _told_hops(told: Told, here: Seconds, there: Seconds) -> None:
    told.tell("64 KiB, local", here)
    told.tell("64 KiB, hop", there)
    told.tell("64 KiB, hop less local", [max(b - a, 1e-6) for a, b in zip(here, there, strict=True)])


# ---- Millrace ------------------------------------------------------------------------------------


def ours(told: Told, cpu: bool) -> None:
    sys.path.insert(0, str(EXAMPLES))
    import arrays
    import cloudpickle
    import measuring
    import numpy as np
    import svd
    from millrace import Client

    for module in (arrays, svd):  # the executors cannot import them
        cloudpickle.register_pickle_by_value(module)
    client = Client()
    client.wait_for_workers(2, timeout=60)
    cluster = measuring.Cluster(client)
    transposes, svds, columns, scattered = sizes(cpu)
    graphs = arrays.Arrays(cluster, measuring.Report(argparse.Namespace(progress=False)))

    def transposed(n: int, chunk: int, repetitions: int, way: str) -> None:
        times = []
        for _ in range(repetitions + 1):
            x = graphs.blocks(n, chunk)
            began = time.perf_counter()
            if way == "kernel":
                y = graphs.transpose_sum_kernel(x, chunk)
            else:
                y = getattr(graphs, f"transpose_sum_{way}")(x)
            got = float(y.result())
            times.append(time.perf_counter() - began)
            assert abs(got / (n * n) - 1) < 0.05
            del x, y
        told.tell(f"transpose_sum {n}/{chunk} {way}", times)

    def factored(rows: int, chunk: int, repetitions: int, way: str) -> None:
        times = []
        count = rows // chunk
        for repetition in range(repetitions + 1):
            x = [
                cluster.run(
                    "array.random",
                    [chunk, columns],
                    seed=repetition,
                    offset=i * chunk * columns,
                    at=cluster.home(i, count),
                    pure=False,
                )
                for i in range(count)
            ]
            cluster.settle(x)
            began = time.perf_counter()
            u, s, vt = svd.GRAPHS[way](cluster, x, columns)
            cluster.settle([*u, s, vt])
            times.append(time.perf_counter() - began)
            del x, u, s, vt
        told.tell(f"svd {rows} x {columns} {way}", times)

    def scatter() -> None:
        data = np.random.default_rng(0).random(scattered // 8)
        out: Seconds = []
        back: Seconds = []
        copied: Seconds = []
        for i in range(6):
            data[0] = i
            began = time.perf_counter()
            f = client.scatter(data, workers=cluster.names[0], hash=False)
            client.wait([f])
            out.append(time.perf_counter() - began)
            for copy, into in ((False, back), (True, copied)):
                began = time.perf_counter()
                got = client.gather(f, copy=copy)
                into.append(time.perf_counter() - began)
                assert got[0] == i
                del got
            del f
        told.tell(f"scatter {scattered >> 20} MiB", out, bytes=scattered)
        told.tell(f"gather {scattered >> 20} MiB", back, bytes=scattered)
        told.tell(f"gather {scattered >> 20} MiB, a copy", copied, bytes=scattered)

    def hop() -> None:
        here, there = hops(
            client,
            lambda f, *a: client.submit(f, *a[:-1], workers=a[-1], pure=False),
            lambda f: client.wait([f]),
            cluster.names,
            cpu,
        )
        _told_hops(told, here, there)

    for way in ("native", "python", *([] if cpu else ["kernel"])):
        for n, chunk, repetitions in reversed(transposes):
            told.tried(
                f"transpose_sum {n} {way}", 20, lambda n=n, c=chunk, r=repetitions, w=way: transposed(n, c, r, w)
            )
    for way in ("native", "python"):
        for rows, chunk, repetitions in svds:
            told.tried(f"svd {rows} {way}", 25, lambda n=rows, c=chunk, r=repetitions, w=way: factored(n, c, r, w))
    told.tried("hop", 10, hop)
    told.tried("scatter", 15, scatter)
    client.close()


# ---- both ----------------------------------------------------------------------------------------


def side(name: str, options: argparse.Namespace, env: dict[str, str]) -> dict[str, Any]:
    file = options.out / f"{name}.json"
    command = [sys.executable, __file__, "--side", name, "--out", str(options.out), *(["--cpu"] if options.cpu else [])]
    with (options.out / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            print(f"{name}: more than {LIMIT} s", flush=True)
        try:  # this ends Dask's workers as well
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    if not file.exists():
        print((options.out / f"{name}.log").read_text(errors="replace")[-3000:], flush=True)
        return {}
    return json.loads(file.read_text())


def our_cluster(options: argparse.Namespace, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    file = options.out / "scheduler.json"
    command = [options.millrace, "up", "--device", "host" if options.cpu else "cuda", "--workers", "2"]
    command += ["--scheduler-file", str(file), "--slots", str(options.slots), "--python", sys.executable]
    command += [] if options.cpu else ["--executor-arena", "16GiB"]
    with (options.out / "cluster.log").open("wb") as log:
        cluster = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    end = time.monotonic() + 60
    while "\nready" not in (options.out / "cluster.log").read_text(errors="replace"):
        if cluster.poll() is not None or time.monotonic() > end:
            raise SystemExit("the cluster did not start:\n" + (options.out / "cluster.log").read_text()[-4000:])
        time.sleep(0.02)
    return cluster, dict(env, MILLRACE_SCHEDULER_FILE=str(file))


def table(report: dict[str, dict[str, Any]]) -> None:
    dask, mine = report["dask"], report["millrace"]
    print(
        f"{'seconds, medians':<32}{'Dask-CUDA':>12}{'native ops':>12}{'better by':>11}{'CuPy tasks':>12}{'better by':>11}{'kernel':>12}{'better by':>11}"
    )
    names = {name.removesuffix(", direct") for name in dask}
    names |= {name for name in mine if name.removesuffix(", a copy") in names}
    for name in sorted(names):
        same = name.removesuffix(", a copy")
        # Takes the faster one of Dask's ways.
        their = min(dask[n]["seconds"] for n in (same, f"{same}, direct") if n in dask)
        line = f"{name:<32}{their:12.6f}"
        found = [
            mine.get(f"{name} {way}") or (mine.get(name) if way == "native" else None)
            for way in ("native", "python", "kernel")
        ]
        if "64 KiB" in name:
            found = [None, mine.get(name), None]
        for r in found:
            line += f"{r['seconds']:12.6f}{their / r['seconds']:10.1f}x" if r else " " * 23
        nbytes = dask.get(same, {}).get("bytes")
        if nbytes and found[0]:
            line += f"   {nbytes / their / 1e9:.2f} and {nbytes / found[0]['seconds'] / 1e9:.2f} GB/s"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millrace", help="the program")
    parser.add_argument("--out", type=Path, required=True, help="where results go")
    parser.add_argument("--their-path", default="", help="a folder of Python packages for Dask's side")
    parser.add_argument("--slots", type=int, default=1, help="of each of our workers (default 1)")
    parser.add_argument("--cpu", action="store_true", help="rehearse without GPUs")
    parser.add_argument("--side", choices=["dask", "millrace"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.side:
        told = Told(options.out / f"{options.side}.json")
        (theirs if options.side == "dask" else ours)(told, options.cpu)
        sys.stdout.flush()
        os._exit(0)  # Dask ends slowly, and its group is ended anyway
    env = dict(os.environ)
    path = os.pathsep.join(p for p in (options.their_path, env.get("PYTHONPATH", "")) if p)
    report = {"dask": side("dask", options, dict(env, PYTHONPATH=path))}
    cluster, joined = our_cluster(options, env)
    try:
        report["millrace"] = side("millrace", options, joined)
    finally:
        cluster.terminate()
        cluster.wait(20)
    (options.out / "peers.json").write_text(json.dumps(report, indent=1) + "\n")
    table(report)
    if not report["dask"] or not report["millrace"]:
        sys.exit("failed: one side has no results")
    print(f"ok: {len(report['dask'])} and {len(report['millrace'])} figures")


if __name__ == "__main__":
    main()
