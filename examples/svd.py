"""The singular value decomposition x = u * diag(s) * vt of a tall matrix, with all three factors.

The matrix is cut into chunks of rows. The algorithm is the direct TSQR of Benson, Gleich and Demmel
(2013): a QR of each chunk, the SVD of the stacked R factors, and the product of each chunk's Q with
its part of the small U. The example computes it by native operations, and by Python functions,
which get arrays of CuPy from workers with GPUs and arrays of NumPy from others.

The numbers are random float64 in [0, 1). Each repetition gets new ones, which are made before the
measured time begins. The time ends when u, s and vt are complete.

    svd.py                                   100,000 x 1,000 in chunks of 10,000, all workers
    svd.py --rows 1000000 --gpus 1,2,4       strong scaling
    svd.py --rows 100000,1000000 --plain     without a cluster: one program, one GPU, plain CuPy

The program joins the cluster that MILLRACE_SCHEDULER_FILE names, or starts one. It checks three
things: u * diag(s) * vt is x; u and vt are orthonormal; the squared singular values are the
eigenvalues of x.T @ x. If all checks hold, it exits with 0, and its last line starts with "ok".
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Cluster, Report, flags, since
from millrace import Client, Future

TOLERANCE = 1e-10
#: Default number of chunks of a large matrix, so that each of four GPUs has four.
CHUNKS = 16

# ---- Python functions, which run in the executors ------------------------------------------------


def library(x: Any) -> Any:
    """Returns the library of an array: CuPy or NumPy."""
    return sys.modules[type(x).__module__.partition(".")[0]]


def factor(x: Any) -> tuple[Any, Any]:
    q, r = library(x).linalg.qr(x)
    return q, r


def svd_of(*triangles: Any) -> tuple[Any, Any, Any]:
    xp = library(triangles[0])
    u, s, vt = xp.linalg.svd(xp.concatenate(triangles), full_matrices=False)
    return u, s, vt


def left(factors: tuple[Any, Any], small: Any, i: int) -> Any:
    """Returns the rows of u that belong to chunk i."""
    q, r = factors
    return q @ small[i * len(r) : (i + 1) * len(r)]


# ---- graphs --------------------------------------------------------------------------------------


def native_svd(cluster: Cluster, chunks: list[Future[Any]], columns: int) -> tuple[list[Future[Any]], Any, Any]:
    """Returns u in chunks, s and vt. REQUIRES: chunks have at least as many rows as columns."""
    run, homes = cluster.run, [cluster.home(i, len(chunks)) for i in range(len(chunks))]
    # Tasks on a chunk's factors run on the chunk's worker: to select R on another worker would
    # transfer Q as well. The small factors stay on one worker, the same in each repetition, because
    # the first SVD on a GPU loads code for 0.1 s.
    root = homes[0]
    factors = [run("array.qr", c, at=at) for c, at in zip(chunks, homes, strict=True)]
    triangles = [run("core.item", f, 1, at=at) for f, at in zip(factors, homes, strict=True)]
    orthogonal = [run("core.item", f, 0, at=at) for f, at in zip(factors, homes, strict=True)]
    svd = run("array.svd", run("array.concat", *triangles, axis=0, at=root), at=root)
    small = run("core.item", svd, 0, at=root)
    # Each worker selects its own part. On the root, the selections would wait for the root's own
    # products.
    parts = [run("array.slice", small, start=i * columns, stop=(i + 1) * columns, at=at) for i, at in enumerate(homes)]
    u = [run("array.matmul", q, part, at=at) for q, part, at in zip(orthogonal, parts, homes, strict=True)]
    return u, run("core.item", svd, 1, at=root), run("core.item", svd, 2, at=root)


def python_svd(cluster: Cluster, chunks: list[Future[Any]], columns: int) -> tuple[list[Future[Any]], Any, Any]:
    run, homes = cluster.run, [cluster.home(i, len(chunks)) for i in range(len(chunks))]
    factors = [run(factor, c, at=at) for c, at in zip(chunks, homes, strict=True)]
    root = homes[0]
    svd = run(svd_of, *[run(operator.getitem, f, 1, at=at) for f, at in zip(factors, homes, strict=True)], at=root)
    small = run(operator.getitem, svd, 0, at=root)
    u = [run(left, f, small, i, at=homes[i]) for i, f in enumerate(factors)]
    return u, run(operator.getitem, svd, 1, at=root), run(operator.getitem, svd, 2, at=root)


GRAPHS = {"native": native_svd, "python": python_svd}


# ---- checks --------------------------------------------------------------------------------------


def worst(cluster: Cluster, chunks: list[Future[Any]], u: list[Future[Any]], s: Any, vt: Any, columns: int) -> float:
    """Returns the largest difference to a property that must hold, relative to the largest singular
    value or to one."""
    run, client = cluster.run, cluster.client
    scaled = run("array.map", "x0 * reshaped", vt, reshaped=run("array.reshape", s, [columns, 1]))
    errors, grams, inner = [], [], []
    for x, part in zip(chunks, u, strict=True):
        back = run("array.map", "abs(x0 - x1)", run("array.matmul", part, scaled), x)
        errors.append(run("array.reduce", back, "max"))
        inner.append(run("array.matmul", run("array.transpose", part), part))
        grams.append(run("array.matmul", run("array.transpose", x), x))
    values, right = np.asarray(client.gather(s)), np.asarray(client.gather(vt))
    unit, eye = sum(client.gather(inner)), np.eye(columns)
    eigenvalues = np.linalg.eigvalsh(sum(client.gather(grams)))[::-1]
    return max(
        float(max(client.gather(errors))) / values[0],
        float(np.max(np.abs(unit - eye))),
        float(np.max(np.abs(right @ right.T - eye))),
        float(np.max(np.abs(values**2 - eigenvalues))) / float(eigenvalues[0]),
    )


# ---- measurements --------------------------------------------------------------------------------


def measure(cluster: Cluster, report: Report, way: str, rows: int, columns: int, chunk: int) -> float:
    count = rows // chunk

    def once(repetition: int) -> tuple[float, float]:
        chunks = [
            cluster.run(
                "array.random",
                [chunk, columns],
                seed=2026 + repetition,
                offset=i * chunk * columns,
                at=cluster.home(i, count),
                pure=False,
            )
            for i in range(count)
        ]
        cluster.settle(chunks)
        began = time.perf_counter()
        u, s, vt = GRAPHS[way](cluster, chunks, columns)
        report.progress([*u, s, vt], f"svd by {way}")
        cluster.settle([*u, s, vt])
        seconds = since(began)
        # A check takes longer than the measured computation, so only one repetition is checked.
        return seconds, worst(cluster, chunks, u, s, vt, columns) if repetition == 1 else 0.0

    times, difference = report.timed(once)
    what = f"svd {rows:,} x {columns:,} chunk {chunk:,} on {cluster}"
    label = "native ops" if way == "native" else cluster.python
    # Operations of Householder's method, counted once: 2 m n^2 for r, the same for q, and for u.
    return report.row(
        what,
        label,
        times,
        difference,
        TOLERANCE,
        nbytes=8 * rows * columns,
        flop=6 * rows * columns**2,
        name="svd",
        rows=rows,
        columns=columns,
        chunk=chunk,
        workers=len(cluster.names),
        by=way,
    )


def plain(options: argparse.Namespace, sizes: list[int]) -> None:
    """Measures one program on one GPU: QR of the whole matrix, SVD of R, and the product."""
    import cupy as xp  # pyright: ignore[reportMissingImports]

    report = Report(options)
    for rows in sizes:

        def once(repetition: int, rows: int = rows) -> tuple[float, float]:
            x = xp.random.RandomState(2026 + repetition).random_sample((rows, options.columns))
            xp.cuda.Device().synchronize()
            began = time.perf_counter()
            q, r = xp.linalg.qr(x)
            small, s, _ = xp.linalg.svd(r, full_matrices=False)
            u = q @ small
            xp.cuda.Device().synchronize()
            seconds = since(began)
            del q
            unit = float(xp.max(xp.abs(u.T @ u - xp.eye(options.columns))))
            del u
            eigenvalues = xp.linalg.eigvalsh(x.T @ x)[::-1]
            return seconds, max(unit, float(xp.max(xp.abs(s**2 - eigenvalues)) / eigenvalues[0]))

        try:
            times, difference = report.timed(once)
        except (xp.cuda.memory.OutOfMemoryError, RuntimeError, OverflowError, ValueError) as e:
            print(f"svd {rows:,} x {options.columns:,}: plain CuPy cannot: {type(e).__name__}: {e}"[:300], flush=True)
            xp.get_default_memory_pool().free_all_blocks()
            continue
        report.row(
            f"svd {rows:,} x {options.columns:,}",
            "plain CuPy",
            times,
            difference,
            TOLERANCE,
            nbytes=8 * rows * options.columns,
            flop=6 * rows * options.columns**2,
            name="svd",
            rows=rows,
            columns=options.columns,
            workers=1,
            by="plain",
        )
        xp.get_default_memory_pool().free_all_blocks()
    report.end(example="svd", on="one GPU, plain CuPy")


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--rows", default="", help="one or several, by commas (default 100000; without GPUs 8000)")
    parser.add_argument("--columns", type=int, default=0, help="default 1000; without GPUs 100")
    parser.add_argument(
        "--chunk",
        default="",
        help="rows of a chunk, one for all or one for each of --rows (default a tenth or a sixteenth)",
    )
    parser.add_argument("--ways", default="native,python", help="native, python (default both)")
    parser.add_argument("--gpus", default="", help="how many workers to use, one after the other: 1,2,4 (default all)")
    parser.add_argument("--plain", action="store_true", help="measure CuPy in this process instead, without a cluster")
    parser.add_argument("--beside", type=Path, help="what --plain wrote with --json, to compare with")
    options = parser.parse_args()
    if options.plain:
        options.columns = options.columns or 1_000
        plain(options, [int(r) for r in (options.rows or "100000").split(",")])
        return
    with Client() as client:
        all_workers, report = Cluster(client), Report(options)
        columns = options.columns or (1_000 if all_workers.on_gpus else 100)
        sizes = [int(r) for r in (options.rows or ("100000" if all_workers.on_gpus else "8000")).split(",")]
        chunks = [int(c) for c in options.chunk.split(",")] if options.chunk else [0]
        chunks = [
            c or (r // 10 if r <= 100_000 else r // CHUNKS) for r, c in zip(sizes, chunks * len(sizes), strict=False)
        ]
        if any(c < columns or r % c for r, c in zip(sizes, chunks, strict=True)):
            parser.error(f"--chunk: {chunks} do not divide {sizes} or are less than the {columns} columns")
        counts = [int(n) for n in options.gpus.split(",")] if options.gpus else [len(all_workers.names)]
        before = {}
        if options.beside:
            before = {r["rows"]: r["seconds"] for r in json.loads(options.beside.read_text())["rows"]}
        print(f"svd on {all_workers}; float64; medians of {options.repetitions} [shortest-longest]")
        for rows, chunk in zip(sizes, chunks, strict=True):
            for way in options.ways.split(","):
                seconds: dict[int, float] = {}
                for count in counts:
                    seconds[count] = measure(Cluster(client, count), report, way, rows, columns, chunk)
                    if rows in before:
                        print(f"  {before[rows] / seconds[count]:.2f} times as fast as plain CuPy on one GPU")
                if len(counts) > 1:
                    scaling = ", ".join(
                        f"{n}: {seconds[counts[0]] * counts[0] / seconds[n] / n:.0%}" for n in counts[1:]
                    )
                    print(f"  efficiency of strong scaling from {counts[0]} to {scaling}")
        report.end(example="svd", on=str(all_workers))


if __name__ == "__main__":
    main()
