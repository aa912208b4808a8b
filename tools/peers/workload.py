"""Measures one client library against a running cluster of two one-thread workers, and prints one
JSON object.

    workload.py dask ADDRESS | workload.py millrace SCHEDULER_FILE

The same code drives both libraries: they share the names submit, map, gather, scatter and get. Each
figure is the median of REPS runs after one warm-up run; for arrays, of 7 runs after ARRAY_WARMUPS.
A GB is 10**9 bytes.
"""

from __future__ import annotations

import json
import operator
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPS = 3
# The first use of memory pages is a cost of the machine, not of a library. Every worker therefore
# handles two arrays before arrays are measured.
ARRAY_WARMUPS = 5
TASKS = 5_000
LATENCY_SAMPLES = 300
ARRAY_BYTES = 256 << 20


def median_seconds(run: Callable[[int], None], warmups: int = 1, reps: int = REPS) -> float:
    for rep in range(warmups):
        run(rep)
    seconds = []
    for rep in range(warmups, warmups + reps):
        start = time.perf_counter()
        run(rep)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


Graph = dict[str, Any]


def merge(tag: str) -> tuple[Graph, str]:
    graph: Graph = {f"{tag}-{i}": (abs, i) for i in range(TASKS)}
    keys = list(graph)
    graph[f"{tag}-end"] = (sum, keys)
    return graph, f"{tag}-end"


def tree(tag: str) -> tuple[Graph, str]:
    level = [f"{tag}-0-{i}" for i in range(4096)]
    graph: Graph = {key: (abs, 1) for key in level}
    height = 0
    while len(level) > 1:
        height += 1
        upper = [f"{tag}-{height}-{i}" for i in range(len(level) // 2)]
        for i, key in enumerate(upper):
            graph[key] = (operator.add, level[2 * i], level[2 * i + 1])
        level = upper
    return graph, level[0]


def stencil(tag: str) -> tuple[Graph, str]:
    width, steps = 64, 80
    graph: Graph = {f"{tag}-0-{i}": (abs, 1) for i in range(width)}
    for step in range(1, steps):
        for i in range(width):
            near = [f"{tag}-{step - 1}-{j}" for j in (i - 1, i, i + 1) if 0 <= j < width]
            graph[f"{tag}-{step}-{i}"] = (max, near)
    graph[f"{tag}-end"] = (sum, [f"{tag}-{steps - 1}-{i}" for i in range(width)])
    return graph, f"{tag}-end"


def chain(tag: str) -> tuple[Graph, str]:
    graph: Graph = {f"{tag}-0": (abs, 1)}
    for i in range(1, 1000):
        graph[f"{tag}-{i}"] = (operator.add, f"{tag}-{i - 1}", 1)
    return graph, f"{tag}-999"


def measure(client: Any) -> dict[str, float]:
    import numpy as np

    out: dict[str, float] = {}

    def independent(_: int) -> None:
        client.gather(client.map(abs, range(TASKS), pure=False))

    out["map + gather, tasks/s"] = TASKS / median_seconds(independent)

    samples = []
    for i in range(LATENCY_SAMPLES + 20):
        start = time.perf_counter()
        client.submit(abs, i, pure=False).result()
        samples.append(time.perf_counter() - start)
    out["submit + result, us p50"] = statistics.median(samples[20:]) * 1e6

    for shape in (merge, tree, stencil, chain):
        count = len(shape("n")[0])

        def run(rep: int, shape: Callable[[str], tuple[Graph, str]] = shape) -> None:
            graph, key = shape(f"{shape.__name__}{os.getpid()}{rep}")
            client.get(graph, key)

        out[f"{shape.__name__}, us/task"] = median_seconds(run) / count * 1e6

    array = np.random.default_rng(0).random(ARRAY_BYTES // 8)

    def roundtrip(rep: int) -> None:
        array[0] = rep
        (back,) = client.gather(client.scatter([array]))
        assert back[0] == rep and back.nbytes == array.nbytes

    # Both directions count.
    out["scatter + gather 256 MiB, GB/s"] = 2 * ARRAY_BYTES / median_seconds(roundtrip, ARRAY_WARMUPS, 7) / 1e9
    return out


def main() -> None:
    library, where = sys.argv[1:]
    if library == "dask":
        from distributed import Client

        client = Client(where)
        client.wait_for_workers(2, timeout=60)
    else:
        from millrace import Client

        info = json.loads(Path(where).read_text())
        os.environ["MILLRACE_TOKEN"] = info["token"]
        client = Client(info["address"])
        client.wait_for_workers(2, timeout=60)
    with client:
        print(json.dumps(measure(client)))


if __name__ == "__main__":
    main()
