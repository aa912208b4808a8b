"""Computations on large arrays that are cut into blocks. Each block is a task of a graph.

    transpose_sum   (x + x.T).sum()
    dot             the product of two matrices
    fft             the two-dimensional Fourier transform: along the rows, then an exchange of
                    blocks, then along the columns
    map_overlap     the mean of 3 x 3 neighbours, with periodic borders
    scatter         256 MiB of NumPy arrays from the client to a worker, and back

The example computes each of them by native operations, and by Python functions, which get arrays of
CuPy from workers with GPUs and arrays of NumPy from others. It also computes transpose_sum by one
CUDA kernel.

The matrices have random float64 numbers in [0, 1). Each repetition gets new ones, which are made
before the measured time begins. The time ends when the whole result exists; a sum must have arrived
at the client.

On GPUs the default sizes are those of Dask-CUDA's benchmarks; on host workers they are small. The
program joins the cluster that MILLRACE_SCHEDULER_FILE names, or starts one. If all checks hold, it
exits with 0, and its last line starts with "ok".
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import Cluster, Report, flags, since
from millrace import Client, Future

#: A matrix in square blocks, by row and column.
Blocks = dict[tuple[int, int], Future[Any]]

TOLERANCE = 1e-10
SCATTERED = 256 << 20

# ---- Python functions, which run in the executors ------------------------------------------------


def library(x: Any) -> Any:
    """Returns the library of an array: CuPy or NumPy."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def transposed_sum(x: Any, y: Any) -> Any:
    return (x + y.T).sum()


def total(*parts: Any) -> float:
    return float(sum(float(p) for p in parts))


def product(*blocks: Any) -> Any:
    """Multiplies a row of blocks, which are the first half of the arguments, by a column of
    blocks."""
    k = len(blocks) // 2
    out = blocks[0] @ blocks[k]
    for a, b in zip(blocks[1:k], blocks[k + 1 :], strict=True):
        out += a @ b
    return out


def transform_rows(*parts: Any) -> Any:
    xp = library(parts[0])
    return xp.fft.fft(xp.concatenate(parts, axis=1), axis=1)


def transform_columns(*parts: Any) -> Any:
    xp = library(parts[0])
    return xp.fft.fft(xp.concatenate(parts, axis=0), axis=0)


def three_rows(above: Any, x: Any, below: Any) -> Any:
    """Returns the sum of each element with those above and below it."""
    out = x.copy()
    out[1:] += x[:-1]
    out[:-1] += x[1:]
    out[:1] += above
    out[-1:] += below
    return out


def three_columns(left: Any, x: Any, right: Any) -> Any:
    out = x.copy()
    out[:, 1:] += x[:, :-1]
    out[:, :-1] += x[:, 1:]
    out[:, :1] += left
    out[:, -1:] += right
    out /= 9
    return out


# ---- the kernel ----------------------------------------------------------------------------------

#: Sums x + y.T of two square blocks in one pass, in tiles of 32 x 32. The tiles of y go through
#: shared memory, so that both blocks are read contiguously.
KERNEL = """
extern "C" __global__ void transposed_sum(const double *x, const double *y, long long n, double *out) {
  __shared__ double tile[32][33];
  __shared__ double sums[8];
  const long long tiles = (n + 31) / 32;
  double sum = 0;
  for (long long t = blockIdx.x; t < tiles * tiles; t += gridDim.x) {
    const long long row = t / tiles * 32, column = t % tiles * 32;
    for (int k = threadIdx.y; k < 32; k += 8)
      if (column + k < n && row + threadIdx.x < n) tile[k][threadIdx.x] = y[(column + k) * n + row + threadIdx.x];
    __syncthreads();
    for (int k = threadIdx.y; k < 32; k += 8)
      if (row + k < n && column + threadIdx.x < n) sum += x[(row + k) * n + column + threadIdx.x] + tile[threadIdx.x][k];
    __syncthreads();
  }
  for (int s = 16; s > 0; s /= 2) sum += __shfl_down_sync(0xffffffffu, sum, s);
  if (threadIdx.x == 0) sums[threadIdx.y] = sum;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    for (int k = 1; k < 8; k++) sum += sums[k];
    out[blockIdx.x] = sum;
  }
}"""
GRID = 2048

# ---- graphs --------------------------------------------------------------------------------------


class Arrays:
    def __init__(self, cluster: Cluster, report: Report) -> None:
        self.cluster, self.report = cluster, report
        self._seed = 0

    def blocks(self, n: int, chunk: int) -> Blocks:
        """Makes a matrix of random numbers, and waits until it is complete. Neighbouring rows of
        blocks are on the same worker."""
        k, run = n // chunk, self.cluster.run
        self._seed += 1
        out: Blocks = {}
        for i, j in itertools.product(range(k), repeat=2):
            at = self.cluster.home(i, k)
            offset = (i * k + j) * chunk * chunk
            out[i, j] = run("array.random", [chunk, chunk], seed=self._seed, offset=offset, at=at)
        self.cluster.settle(list(out.values()))
        return out

    def sum_of(self, parts: list[Future[Any]]) -> Future[Any]:
        return self.cluster.run("array.map", " + ".join(f"x{i}" for i in range(len(parts))), *parts)

    def sum_all(self, blocks: Blocks) -> float:
        parts = [self.cluster.run("array.reduce", b, "sum") for b in blocks.values()]
        return float(sum(float(v) for v in self.cluster.client.gather(parts)))

    # Each of the following methods returns the futures whose results end the measured time.

    def transpose_sum_native(self, x: Blocks) -> Future[Any]:
        run = self.cluster.run
        parts = []
        for (i, j), block in x.items():
            both = run("array.map", "x0 + x1", block, run("array.transpose", x[j, i]))
            parts.append(run("array.reduce", both, "sum"))
        return self.sum_of(parts)

    def transpose_sum_python(self, x: Blocks) -> Future[Any]:
        run = self.cluster.run
        return run(total, *[run(transposed_sum, block, x[j, i]) for (i, j), block in x.items()])

    def transpose_sum_kernel(self, x: Blocks, chunk: int) -> Future[Any]:
        run, grid = self.cluster.run, min(GRID, (chunk + 31) // 32 * ((chunk + 31) // 32))
        outputs = [{"dtype": "float64", "shape": [grid]}]
        parts = [
            run("cuda.kernel", KERNEL, "transposed_sum", [grid], [32, 8], outputs, block, x[j, i], chunk)
            for (i, j), block in x.items()
        ]
        return run("array.reduce", self.sum_of(parts), "sum")

    def dot_native(self, a: Blocks, b: Blocks, k: int) -> Blocks:
        run = self.cluster.run
        rows = [run("array.concat", *[a[i, m] for m in range(k)], axis=1) for i in range(k)]
        columns = [run("array.concat", *[b[m, j] for m in range(k)], axis=0) for j in range(k)]
        return {(i, j): run("array.matmul", rows[i], columns[j]) for i in range(k) for j in range(k)}

    def dot_python(self, a: Blocks, b: Blocks, k: int) -> Blocks:
        run = self.cluster.run
        return {
            (i, j): run(product, *[a[i, m] for m in range(k)], *[b[m, j] for m in range(k)])
            for i in range(k)
            for j in range(k)
        }

    def fft(self, x: Blocks, k: int, chunk: int) -> list[Future[Any]]:
        """Returns the transform as panels of columns."""
        run = self.cluster.run
        rows = [run(transform_rows, *[x[i, j] for j in range(k)]) for i in range(k)]
        pieces = [
            [run("array.slice", r, start=[0, j * chunk], stop=[chunk, (j + 1) * chunk]) for j in range(k)] for r in rows
        ]
        return [run(transform_columns, *[pieces[i][j] for i in range(k)]) for j in range(k)]

    def overlap(self, x: Blocks, k: int, chunk: int, native: bool) -> Blocks:
        """Sums triples along columns first, then along rows. Each block needs one edge of each
        neighbour."""
        run = self.cluster.run

        def band(block: Future[Any], axis: int, start: int, length: int) -> Future[Any]:
            starts = [start, 0] if axis == 0 else [0, start]
            stops = [start + length, None] if axis == 0 else [None, start + length]
            return run("array.slice", block, start=starts, stop=stops)

        def pass_along(blocks: Blocks, axis: int) -> Blocks:
            first = {at: band(b, axis, 0, 1) for at, b in blocks.items()}
            last = {at: band(b, axis, chunk - 1, 1) for at, b in blocks.items()}
            out: Blocks = {}
            for (i, j), b in blocks.items():
                before = ((i - 1) % k, j) if axis == 0 else (i, (j - 1) % k)
                after = ((i + 1) % k, j) if axis == 0 else (i, (j + 1) % k)
                if native:
                    wide = run("array.concat", last[before], b, first[after], axis=axis)
                    sums = "x0 + x1 + x2" if axis == 0 else "(x0 + x1 + x2) / 9"
                    out[i, j] = run("array.map", sums, *[band(wide, axis, s, chunk) for s in range(3)])
                else:
                    out[i, j] = run(three_rows if axis == 0 else three_columns, last[before], b, first[after])
            return out

        return pass_along(pass_along(x, 0), 1)

    # ---- measurements ----------------------------------------------------------------------------

    def measure_transpose_sum(self, n: int, chunk: int, ways: list[str]) -> None:
        ways_of: dict[str, tuple[str, Callable[[Blocks], Future[Any]]]] = {
            "native": ("native ops", self.transpose_sum_native),
            "python": (self.cluster.python, self.transpose_sum_python),
        }
        if self.cluster.on_gpus:
            ways_of["kernel"] = "CUDA kernel", lambda x: self.transpose_sum_kernel(x, chunk)
        for way in [w for w in ways if w in ways_of]:
            label, graph = ways_of[way]

            def once(_: int, graph: Callable[[Blocks], Future[Any]] = graph) -> tuple[float, float]:
                x = self.blocks(n, chunk)
                began = time.perf_counter()
                got = float(graph(x).result())
                seconds = since(began)
                return seconds, abs(got / (2 * self.sum_all(x)) - 1)

            times, difference = self.report.timed(once)
            self._row("transpose_sum", n, chunk, label, times, difference, nbytes=8 * n * n)

    def measure_dot(self, n: int, chunk: int, ways: list[str]) -> None:
        k = n // chunk
        for way in [w for w in ways if w != "kernel"]:

            def once(_: int, way: str = way) -> tuple[float, float]:
                a, b = self.blocks(n, chunk), self.blocks(n, chunk)
                began = time.perf_counter()
                out = (self.dot_native if way == "native" else self.dot_python)(a, b, k)
                self.report.progress(out.values(), f"dot by {way}")
                self.cluster.settle(list(out.values()))
                seconds = since(began)
                # The sum of all elements of a product is the inner product of the first factor's
                # column sums with the second factor's row sums.
                gather, run = self.cluster.client.gather, self.cluster.run
                columns = gather([[run("array.reduce", a[i, m], "sum", axes=[0]) for m in range(k)] for i in range(k)])
                rows = gather([[run("array.reduce", b[m, j], "sum", axes=[1]) for m in range(k)] for j in range(k)])
                want = float(np.sum(columns, axis=0).ravel() @ np.sum(rows, axis=0).ravel())
                return seconds, abs(self.sum_all(out) / want - 1)

            times, difference = self.report.timed(once)
            label = "native ops" if way == "native" else self.cluster.python
            self._row("dot", n, chunk, label, times, difference, nbytes=24 * n * n, flop=2 * n**3)

    def measure_fft(self, n: int, chunk: int, ways: list[str]) -> None:
        if "python" not in ways:
            return
        k = n // chunk

        def once(_: int) -> tuple[float, float]:
            x = self.blocks(n, chunk)
            began = time.perf_counter()
            panels = self.fft(x, k, chunk)
            self.report.progress(panels, "fft")
            self.cluster.settle(panels)
            seconds = since(began)
            run, gather = self.cluster.run, self.cluster.client.gather
            if n <= 2_000:
                want = np.fft.fft2(np.block([[gather(x[i, j]) for j in range(k)] for i in range(k)]))
                return seconds, float(
                    np.max(np.abs(np.concatenate(gather(panels), axis=1) - want)) / np.abs(want[0, 0])
                )
            # Check: the first element is the sum of x, and the sum of squares is n * n times that
            # of x (Parseval).
            first = abs(gather(run("array.slice", panels[0], start=[0, 0], stop=[1, 1]))[0, 0] / self.sum_all(x) - 1)
            power = "real(x0) * real(x0) + imag(x0) * imag(x0)"
            got = gather([run("array.reduce", run("array.map", power, p), "sum") for p in panels])
            want = gather([run("array.reduce", run("array.map", "x0 * x0", b), "sum") for b in x.values()])
            return seconds, max(first, abs(float(sum(got)) / float(sum(want)) / (n * n) - 1))

        times, difference = self.report.timed(once)
        self._row("fft", n, chunk, self.cluster.python, times, difference, nbytes=24 * n * n)

    def measure_map_overlap(self, n: int, chunk: int, ways: list[str]) -> None:
        k = n // chunk
        for way in [w for w in ways if w != "kernel"]:

            def once(_: int, way: str = way) -> tuple[float, float]:
                x = self.blocks(n, chunk)
                began = time.perf_counter()
                out = self.overlap(x, k, chunk, way == "native")
                self.report.progress(out.values(), f"map_overlap by {way}")
                self.cluster.settle(list(out.values()))
                seconds = since(began)
                return seconds, max(self._patch(x, out, k, chunk), abs(self.sum_all(out) / self.sum_all(x) - 1))

            times, difference = self.report.timed(once)
            label = "native ops" if way == "native" else self.cluster.python
            self._row("map_overlap", n, chunk, label, times, difference, nbytes=16 * n * n)

    def _patch(self, x: Blocks, out: Blocks, k: int, chunk: int) -> float:
        """Returns the largest difference to NumPy around the corner where the first four blocks
        meet."""
        side, rows = min(32, chunk - 1), (0, 1 % k)

        def corner(blocks: Blocks, margin: int) -> np.ndarray[Any, Any]:
            width = side + margin
            low, high = {"start": chunk - width, "stop": chunk}, {"start": 0, "stop": width}

            def part(i: int, j: int) -> Future[Any]:
                ends = [high if i else low, high if j else low]
                return self.cluster.run(
                    "array.slice",
                    blocks[rows[i], rows[j]],
                    start=[e["start"] for e in ends],
                    stop=[e["stop"] for e in ends],
                )

            return np.block(self.cluster.client.gather([[part(i, j) for j in (0, 1)] for i in (0, 1)]))

        around = corner(x, 1)
        size = 2 * side
        want = sum(around[i : i + size, j : j + size] for i in range(3) for j in range(3)) / 9
        return float(np.max(np.abs(corner(out, 0) - want)))

    def measure_scatter(self, nbytes: int) -> None:
        client = self.cluster.client
        data = np.random.default_rng(0).random(nbytes // 8)
        placed: list[float] = []
        copied: list[float] = []

        def once(i: int) -> tuple[float, float]:
            data[0] = i
            began = time.perf_counter()
            f = client.scatter(data, workers=self.cluster.names[0], hash=False)
            client.wait([f])
            seconds = since(began)
            difference = 0.0
            for copy, into in ((False, placed), (True, copied)):
                began = time.perf_counter()
                back = client.gather(f, copy=copy)
                into.append(since(began))
                difference = max(difference, float(np.max(np.abs(back - data))))
                del back
            return seconds, difference

        times, difference = self.report.timed(once)
        what = f"{nbytes >> 20} MiB of NumPy"
        self.report.row(what, "scatter", times, difference, 0, nbytes=nbytes)
        self.report.row(what, "gather", placed, difference, 0, nbytes=nbytes)
        self.report.row(what, "gather, a copy", copied, difference, 0, nbytes=nbytes)

    def _row(
        self, name: str, n: int, chunk: int, way: str, times: list[float], difference: float, **work: float
    ) -> None:
        what = f"{name} N={n:,} chunk {chunk:,} ({8 * n * n / 1e9:.3g} GB)"
        self.report.row(what, way, times, difference, TOLERANCE, **work, name=name, n=n, chunk=chunk)


#: N and chunk on GPUs, and elsewhere.
SIZES = {
    "transpose_sum": ([(40_000, 10_000), (10_000, 2_500)], [(2_000, 500)]),
    "dot": ([(20_000, 5_000)], [(800, 200)]),
    "fft": ([(20_000, 5_000)], [(800, 200)]),
    "map_overlap": ([(40_000, 10_000)], [(1_000, 250)]),
}


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--operations", default=",".join([*SIZES, "scatter"]), help="which of them (default all)")
    parser.add_argument("--ways", default="native,python,kernel", help="which of these (default all)")
    parser.add_argument("--n", type=int, default=0, help="rows and columns, with --chunk; default see above")
    parser.add_argument("--chunk", type=int, default=0, help="rows and columns of a block, a divisor of --n")
    parser.add_argument("--workers", type=int, default=0, help="use so many workers (default all)")
    options = parser.parse_args()
    wanted = options.operations.split(",")
    if unknown := set(wanted) - {*SIZES, "scatter"}:
        parser.error(f"--operations: {', '.join(sorted(unknown))}; there are {', '.join([*SIZES, 'scatter'])}")
    if bool(options.n) != bool(options.chunk) or (options.n and options.n % options.chunk):
        parser.error("--n and --chunk belong together, and --chunk divides --n")
    with Client() as client:
        cluster, report = Cluster(client, options.workers), Report(options)
        print(f"arrays on {cluster}; float64; medians of {options.repetitions} [shortest-longest]")
        arrays = Arrays(cluster, report)
        for name in wanted:
            if name == "scatter":
                arrays.measure_scatter(SCATTERED if cluster.on_gpus else SCATTERED // 16)
                continue
            on_gpus, elsewhere = SIZES[name]
            sizes = [(options.n, options.chunk)] if options.n else on_gpus if cluster.on_gpus else elsewhere
            for n, chunk in sizes:
                getattr(arrays, f"measure_{name}")(n, chunk, options.ways.split(","))
        report.end(example="arrays", on=str(cluster))


if __name__ == "__main__":
    main()
