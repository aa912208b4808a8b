"""The Python client of `millrace bench data`. Prints one JSON object.

Arguments: FILE WORKER_PID BYTES REPETITIONS GRPC.
"""

import functools
import gc
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import millrace
import numpy as np

T = TypeVar("T")


def status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


def reset() -> int:
    """Resets the peak of resident memory; returns the present resident memory."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def used(worker: int) -> float:
    """Returns the processor seconds that this process and the worker have used."""
    fields = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    own = os.times()
    return own.user + own.system + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    file, worker, size, repetitions = sys.argv[1], *map(int, sys.argv[2:5])
    grpc = sys.argv[5] == "true"
    client = millrace.Client(scheduler_file=file, shared_memory=not grpc)

    def settled() -> None:
        client.session.flush()
        deadline = time.monotonic() + 60
        while True:
            counts = client.scheduler_info()["tasks"]
            left = {s: counts[s] for s in ("waiting", "ready", "assigned", "running", "succeeded") if counts[s]}
            if not left:
                return
            if time.monotonic() > deadline:
                sys.exit(f"tasks are left a minute after all futures were released: {left}")
            time.sleep(0.002)

    out: dict[str, object] = {}
    before = reset()
    data = np.empty(size, np.uint8)
    step = (np.arange(1 << 20, dtype=np.uint32) * 7).astype(np.uint8)
    for at in range(0, size, step.size):
        data[at : at + step.size] = step[: size - at]
    sample = data[:1024].copy()
    future = client.scatter(data, hash=False)
    out["client_write_peak_bytes"] = status("VmHWM") - before
    del data
    before = reset()
    data = client.gather(future, copy=True)
    out["client_read_peak_bytes"] = status("VmHWM") - before
    del future
    runs: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], T]) -> T:
        cpu, began = used(worker), time.perf_counter()
        result = call()
        runs.setdefault(f"{name}_gb_per_s", []).append(size / 1e9 / (time.perf_counter() - began))
        runs.setdefault(f"{name}_cpu_s_per_gb", []).append((used(worker) - cpu) / (size / 1e9))
        return result

    for _ in range(repetitions):
        settled()
        future = timed("write", lambda: client.scatter(data, hash=False))
        back = timed("read", functools.partial(client.gather, future, copy=True))
        assert back.size == size and np.array_equal(back[:1024], sample), "other bytes came back"
        del back
        places = runs.setdefault("in_place_s", [])
        while not grpc and len(places) < 200:
            began = time.perf_counter()
            back = future.result()
            places.append(time.perf_counter() - began)
            del back
        del future
    settled()
    client.close()
    print(json.dumps(out | runs))


main()
