"""Measures a GPU worker's memory from a Python client. Arguments: MILLRACE_BINARY [host].

Starts `millrace up --device cuda` with a slab of 4 GiB and 24 GiB of pinned memory below it.
Scatters and gathers 256 MiB of NumPy data. Then makes 12.9 GB in chunks of 512 MiB by native ops,
and reduces them twice: a working set of three times the slab. Each line is one figure. For a
scatter or gather it is the median of all but the first repetition, because later ones use memory
that was used before. With "host" the worker has host memory, and all sizes are small.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import millrace
import numpy as np
from millrace.ops import native


def main() -> None:
    binary, host = sys.argv[1], sys.argv[2:] == ["host"]
    scale = 256 if host else 1
    directory = tempfile.mkdtemp()
    file = Path(directory) / "scheduler.json"
    command = [
        binary,
        "up",
        "--workers",
        "1",
        "--slots",
        "2",
        "--scheduler-file",
        str(file),
        "--local-directory",
        directory,
    ]
    limits = [f"{4352 // scale}MiB", "--pinned-limit", f"{25600 // scale}MiB"]
    command += (
        ["--device", "host", "--memory-limit", limits[0]]
        if host
        else ["--device", "cuda", "--device-memory-limit", *limits]
    )
    began = time.perf_counter()
    up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        for line in up.stdout:
            if line.startswith("ready"):
                break
        figure("start of a cluster", time.perf_counter() - began, "s")
        for shared in (True, False):
            with millrace.Client(scheduler_file=str(file), shared_memory=shared) as client:
                clients(client, "shared memory" if shared else "streams", (256 << 20) // scale)
        with millrace.Client(scheduler_file=str(file)) as client:
            streamed(client, (64 << 20) // scale)
    finally:
        up.terminate()
        up.wait(20)


def figure(name: str, value: float, unit: str) -> None:
    print(f"{'python client, ' + name:<55} {value:8.2f} {unit}", flush=True)


def clients(client: millrace.Client, how: str, size: int) -> None:
    data = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    took: dict[str, list[float]] = {"scatter": [], "gather": [], "gather with copy": []}
    for _ in range(4):
        began = time.perf_counter()
        future = client.scatter(data, hash=False)
        took["scatter"].append(time.perf_counter() - began)
        began = time.perf_counter()
        back = client.gather(future)
        took["gather"].append(time.perf_counter() - began)
        began = time.perf_counter()
        copied = client.gather(future, copy=True)
        took["gather with copy"].append(time.perf_counter() - began)
        assert np.array_equal(back, data) and np.array_equal(copied, data)
        del back, copied, future
    for what, seconds in took.items():
        figure(f"{how}: {what} {size >> 20} MiB", size / statistics.median(seconds[1:]) / 1e9, "GB/s")


def streamed(client: millrace.Client, elements: int, chunks: int = 24) -> None:
    total = chunks * elements * 8
    began = time.perf_counter()
    made = [client.submit(native("array.full"), [elements], float(i + 1)) for i in range(chunks)]
    client.wait(made)
    took = time.perf_counter() - began
    figure(f"create {total / 1e9:.2f} GB", total / took / 1e9, "GB/s")
    for turn in ("first", "second"):
        began = time.perf_counter()
        sums = [client.submit(native("array.reduce"), f, "sum", key=f"sum-{turn}-{i}") for i, f in enumerate(made)]
        values = client.gather(sums)
        took = time.perf_counter() - began
        assert [float(v) for v in values] == [float(elements * (i + 1)) for i in range(chunks)], values
        figure(f"reduce {total / 1e9:.2f} GB, {turn} time", total / took / 1e9, "GB/s")


if __name__ == "__main__":
    main()
