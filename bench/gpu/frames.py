"""Measures data frames of cuDF on the GPUs of this machine: python frames.py MILLRACE_BINARY [small].

The work is that of two benchmarks of Dask-CUDA, with the same sizes and keys, so that they can be
run beside it:

1. local_cudf_shuffle: 32 frames with a column of random numbers, 256 MiB each, are shuffled by it.
2. local_cudf_merge: on each GPU a frame with 100 million different keys, and one in which 30 % of
   the keys match those; all are merged. Both are shuffled by their keys, and each pair of
   partitions is merged by one task.

A run makes new frames before its time begins; the time ends when all partitions are there. The
first run is not counted. A run with the wrong number of rows ends the program.

Each line on stdout is one figure: a name, a number, a unit. The sizes are counted as Dask-CUDA
counts them. With `small` the frames are small and of pandas, on the host. The exit code is 77 if
cuDF is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
from millrace import Client, LocalCluster

#: Longest time of one run, in seconds.
TIMEOUT = 60
RUNS = 4
MATCH = 0.3
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Sizes:
    def __init__(self, small: bool) -> None:
        self.parts, self.part_bytes = (4, 64 << 10) if small else (32, 256 << 20)
        self.chunk = 4_000 if small else 100_000_000
        #: The packages that make the arrays and the frames.
        self.packages = ("numpy", "pandas") if small else ("cupy", "cudf")


def random_frame(rows: int, packages: tuple[str, str]) -> Any:
    xp, frames = map(importlib.import_module, packages)
    return frames.DataFrame({"data": xp.random.random(rows)})


def build(chunk: int, rows: int, packages: tuple[str, str]) -> Any:
    """Makes the frame of a GPU that has all keys from chunk * rows on."""
    xp, frames = map(importlib.import_module, packages)
    keys = xp.random.permutation(xp.arange(chunk * rows, (chunk + 1) * rows, dtype="int64"))
    return frames.DataFrame({"key": keys, "payload": xp.random.permutation(xp.arange(rows, dtype="int64"))})


def matching(rows: int, chunks: int) -> int:
    """Returns the number of keys of one frame that are also in the frame of one GPU."""
    return max(int(rows // chunks * MATCH), 1)


def other(chunk: int, chunks: int, rows: int, packages: tuple[str, str]) -> Any:
    """Makes the frame whose keys match in part: as many in each frame of `build`."""
    xp, frames = map(importlib.import_module, packages)
    part = rows // chunks
    found = [
        xp.random.permutation(xp.arange(i * rows + chunk * part, i * rows + (chunk + 1) * part, dtype="int64"))
        for i in range(chunks)
    ]
    keys = [f[: matching(rows, chunks)] for f in found]
    missing = rows - sum(map(len, keys))
    first = rows * chunks + rows * chunk
    keys.append(xp.arange(first, first + missing, dtype="int64"))
    all_keys = xp.random.permutation(xp.concatenate(keys))
    return frames.DataFrame({"key": all_keys, "payload": xp.random.permutation(xp.arange(rows, dtype="int64"))})


def merge(left: Any, right: Any) -> Any:
    return left.merge(right, on=["key"], how="inner")


class Bench:
    def __init__(self, client: Client, sizes: Sizes) -> None:
        self._client, self._sizes = client, sizes
        self._workers = sorted(client.scheduler_info()["workers"])

    def shuffle(self) -> tuple[float, float]:
        """Returns the seconds of a shuffle, and the bytes as Dask-CUDA counts them."""
        s, client, workers = self._sizes, self._client, self._workers
        rows = s.part_bytes // 8
        frames = [
            client.submit(random_frame, rows, s.packages, workers=workers[i * len(workers) // s.parts], pure=False)
            for i in range(s.parts)
        ]
        seconds = self._timed(frames, lambda: client.shuffle(frames, "data", s.parts), s.parts * rows)
        return seconds, 2 * s.parts * s.part_bytes

    def merge(self) -> tuple[float, float]:
        s, client, workers = self._sizes, self._client, self._workers
        n = len(workers)
        left = [client.submit(build, i, s.chunk, s.packages, workers=w, pure=False) for i, w in enumerate(workers)]
        right = [client.submit(other, i, n, s.chunk, s.packages, workers=w, pure=False) for i, w in enumerate(workers)]

        def merged() -> list[Any]:
            return client.map(merge, client.shuffle(left, "key", n), client.shuffle(right, "key", n), pure=False)

        return self._timed([*left, *right], merged, n * n * matching(s.chunk, n)), 32 * n * s.chunk

    def _timed(self, inputs: list[Any], run: Callable[[], list[Any]], rows: int) -> float:
        """Returns the seconds of a run whose results have this many rows together."""
        self._wait(inputs)
        begin = time.perf_counter()
        made = run()
        self._wait(made)
        seconds = time.perf_counter() - begin
        found = sum(self._client.gather([self._client.submit(len, f, pure=False) for f in made], timeout=TIMEOUT))
        if found != rows:
            raise SystemExit(f"{found:,} rows, not {rows:,}")
        return seconds

    def _wait(self, futures: list[Any]) -> None:
        for future in futures:
            if (error := future.exception(TIMEOUT)) is not None:
                raise error


def main() -> None:
    os.environ["MILLRACE_BINARY"] = sys.argv[1]
    small = "small" in sys.argv[2:]
    if not small:
        if importlib.util.find_spec("cudf") is None:
            print("cuDF is not installed", file=sys.stderr)
            raise SystemExit(77)
        os.environ["MILLRACE_EXECUTOR_ARENA_FOR"] = "cupy,rmm"
    options: dict[str, Any] = (
        {"n_workers": 2, "device": "host"} if small else {"device": "cuda", "executor_arena": "16GiB"}
    )
    with LocalCluster(threads_per_worker=1, **options) as cluster, Client(cluster) as client:
        bench = Bench(client, Sizes(small))
        for name, run in (("shuffle of cuDF", bench.shuffle), ("merge of cuDF", bench.merge)):
            times: list[float] = []
            for number in range(RUNS + 1):
                seconds, size = run()
                print(f"{name}, run {number}: {seconds:.4f} s", file=sys.stderr, flush=True)
                times.append(seconds)
            middle = statistics.median(times[1:])
            print(f"{name + ', median':<55} {1e3 * middle:10.1f} ms")
            print(f"{name + ', least':<55} {1e3 * min(times[1:]):10.1f} ms")
            print(f"{name + ', rate':<55} {size / middle / (1 << 30):10.2f} GiB/s", flush=True)


main()
