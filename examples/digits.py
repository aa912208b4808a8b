"""The main job: the principal components of 1,797 handwritten digits, computed on a cluster.

The digits are scans of 8 x 8 pixels (E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten
Digits, UCI), which are part of scikit-learn. They form a matrix with one row for each digit. The
program cuts the matrix into chunks of rows, and computes the mean, the covariance, a QR
factorisation and the SVD chunk by chunk. It does so twice, each time as one graph:

* by Python functions on arrays in the workers' memory,
* by native operations, which the workers run themselves.

It compares both results with numpy.linalg.svd of the whole matrix. The algorithm is the direct TSQR
of Benson, Gleich and Demmel (2013): QR of each chunk, QR of the stacked R factors, SVD of the last
R.

Then it runs the native graph on 2,000,000 x 100 generated float64 numbers, to measure the
throughput.

On a machine with GPUs each GPU has a worker, and the same functions get arrays of CuPy instead of
NumPy. If every comparison holds, the program exits with 0, and its last line starts with "ok".
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from millrace import Client, Future, as_completed

#: Largest accepted difference to numpy.linalg.svd, relative to the largest singular value.
TOLERANCE = 1e-10


# ---- Python functions, which run in the executors ------------------------------------------------
#
# They accept arrays of several libraries: NumPy's functions dispatch arrays of CuPy to CuPy.

Array = Any


def column_sum(x: Array) -> Array:
    return x.sum(axis=0)


def mean_of(sums: list[Array], rows: int) -> Array:
    return sum(sums[1:], sums[0]) / rows


def centre(x: Array, mean: Array) -> Array:
    return x - mean


def gram(x: Array) -> Array:
    return x.T @ x


def covariance_of(grams: list[Array], rows: int) -> Array:
    return sum(grams[1:], grams[0]) / (rows - 1)


def triangle(x: Array) -> Array:
    return np.linalg.qr(x, mode="r")


def svd_of(triangles: list[Array]) -> tuple[Array, Array]:
    r = np.linalg.qr(np.concatenate(triangles), mode="r")
    _, s, vt = np.linalg.svd(r, full_matrices=False)
    return s, vt


def python_graph(chunks: list[Any], rows: int) -> dict[str, Any]:
    """Returns the whole computation as one dict graph of Python calls. The results are "mean",
    "covariance" and "svd"."""
    n = range(len(chunks))
    graph: dict[str, Any] = {}
    for i, chunk in enumerate(chunks):
        graph[f"py-sum-{i}"] = (column_sum, chunk)
        graph[f"py-centred-{i}"] = (centre, chunk, "py-mean")
        graph[f"py-gram-{i}"] = (gram, f"py-centred-{i}")
        graph[f"py-r-{i}"] = (triangle, f"py-centred-{i}")
    graph["py-mean"] = (mean_of, [f"py-sum-{i}" for i in n], rows)
    graph["py-covariance"] = (covariance_of, [f"py-gram-{i}" for i in n], rows)
    graph["py-svd"] = (svd_of, [f"py-r-{i}" for i in n])
    return graph


# ---- native ops, which the Go workers run themselves ---------------------------------------------


def total(client: Client, parts: list[Future]) -> Future:
    """Sums equally shaped arrays, as one fused element-wise expression."""
    return client.op("array.map", " + ".join(f"x{i}" for i in range(len(parts))), *parts)


def native_graph(client: Client, chunks: list[Future], rows: int) -> dict[str, Future]:
    """Submits the same computation as native ops."""
    mean = client.op(
        "array.map",
        f"x0 / {float(rows)}",
        total(client, [client.op("array.reduce", c, op="sum", axes=[0]) for c in chunks]),
    )
    centred = [client.op("array.map", "x0 - x1", c, mean) for c in chunks]
    grams = [client.op("array.einsum", "ki,kj->ij", c, c) for c in centred]
    triangles = [client.op("array.qr", c, mode="r") for c in centred]
    last = client.op("array.qr", client.op("array.concat", *triangles, axis=0), mode="r")
    svd = client.op("array.svd", last)
    return {
        "mean": mean,
        "covariance": client.op("array.map", f"x0 / {float(rows - 1)}", total(client, grams)),
        "s": client.op("core.item", svd, 1),
        "vt": client.op("core.item", svd, 2),
    }


def moments_graph(client: Client, rows: int, columns: int, chunks: int) -> tuple[list[Future], dict[str, Future]]:
    """Submits sums, Gram matrix and TSQR of generated data in one pass over each chunk, so that
    chunks can be freed early."""
    each = rows // chunks
    sums, grams, triangles = [], [], []
    for i in range(chunks):
        x = client.op("array.random", [each, columns], seed=2026, distribution="normal", offset=i * each * columns)
        sums.append(client.op("array.reduce", x, op="sum", axes=[0]))
        grams.append(client.op("array.einsum", "ki,kj->ij", x, x))
        triangles.append(client.op("array.qr", x, mode="r"))
        del x  # no future holds the chunk: it is freed once its last reader has run
    last = client.op("array.qr", client.op("array.concat", *triangles, axis=0), mode="r")
    results = {
        "sum": total(client, sums),
        "gram": total(client, grams),
        "s": client.op("array.svd", last, vectors=False),
    }
    return [*sums, *grams, *triangles], results


# ---- the report ----------------------------------------------------------------------------------


def progress(futures: list[Future], label: str, show: bool) -> None:
    """Counts finished tasks: on one line of a terminal, otherwise on at most ten lines."""
    terminal, total = sys.stderr.isatty(), len(futures)
    for done, _ in enumerate(as_completed(futures), 1):
        if show and terminal:
            print(f"\r{label}: {done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)
        elif show and 10 * done // total > 10 * (done - 1) // total:
            print(f"{label}: {done}/{total}", file=sys.stderr, flush=True)


def worst(name: str, got: np.ndarray, want: np.ndarray, scale: float) -> float:
    """Returns the largest absolute difference, relative to scale; ends the program if it is too
    large."""
    difference = float(np.max(np.abs(np.asarray(got) - want))) / scale
    if not difference <= TOLERANCE:
        sys.exit(f"failed: {name} differs from NumPy by {difference:.2e} (relative), more than {TOLERANCE:.0e}")
    return difference


def align(vt: np.ndarray, like: np.ndarray, rank: int) -> np.ndarray:
    """Gives right singular vectors the sign of `like`, because they are defined only up to their
    sign. Only the first `rank` are returned."""
    signs = np.sign(np.sum(vt[:rank] * like[:rank], axis=1))
    return vt[:rank] * signs[:, None]


def picture(path: Path, mean: np.ndarray, vt: np.ndarray) -> None:
    """Draws the mean digit and the first fifteen components."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 8, figsize=(12, 3.4))
    for i, ax in enumerate(axes.flat):
        image = mean if i == 0 else vt[i - 1]
        ax.imshow(image.reshape(8, 8), cmap="gray_r" if i == 0 else "RdBu_r")
        ax.set_title("mean" if i == 0 else f"component {i}", fontsize=8)
        ax.axis("off")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def scans(file: Path | None) -> np.ndarray:
    """Returns the scans: a row for each digit, a column for each pixel."""
    if file is not None:  # 64 pixels, then the digit
        return np.loadtxt(file, delimiter=",")[:, :64]
    from sklearn.datasets import load_digits

    return load_digits().data.astype(np.float64)


def where(client: Client) -> str:
    lines = ["  worker       tasks   received       sent"]
    for worker in client.scheduler_info()["workers"].values():
        lines.append(
            f"  {worker['name']:<12}{worker['finished_tasks']:>6}{worker['received_bytes'] / 1e6:>9.1f} MB"
            f"{worker['sent_bytes'] / 1e6:>8.1f} MB"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=8, help="row chunks of the digits (default 8)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the generated case; 0 leaves it out")
    parser.add_argument("--columns", type=int, default=100, help="columns of the generated case")
    parser.add_argument("--data", type=Path, help="the scans as CSV, instead of those inside scikit-learn")
    parser.add_argument("--picture", default="build/digits.png", help="where to draw the components; none: nowhere")
    parser.add_argument("--progress", action="store_true", help="count tasks even if this is not a terminal")
    options = parser.parse_args()
    show = options.progress or sys.stderr.isatty()

    digits = scans(options.data)
    rows = len(digits)
    want_mean = digits.mean(axis=0)
    centred = digits - want_mean
    _, want_s, want_vt = np.linalg.svd(centred, full_matrices=False)
    want_covariance = np.cov(digits, rowvar=False)
    scale, rank = float(want_s[0]), 16

    with Client() as client:
        print(f"cluster: {client}")
        chunks = client.scatter(np.array_split(digits, options.chunks))

        started = time.perf_counter()
        mean, covariance, (s, vt) = client.get(python_graph(chunks, rows), ["py-mean", "py-covariance", "py-svd"])
        python_seconds = time.perf_counter() - started
        differences = {
            "python mean": worst("mean by Python functions", mean, want_mean, 1.0),
            "python covariance": worst("covariance by Python functions", covariance, want_covariance, scale),
            "python singular values": worst("singular values by Python functions", s, want_s, scale),
            "python components": worst("components by Python functions", align(vt, want_vt, rank), want_vt[:rank], 1.0),
        }

        started = time.perf_counter()
        native = native_graph(client, chunks, rows)
        progress(list(native.values()), "native results", show)
        values = dict(zip(native, client.gather(list(native.values())), strict=True))
        native_seconds = time.perf_counter() - started
        differences |= {
            "native mean": worst("mean by native ops", values["mean"], want_mean, 1.0),
            "native covariance": worst("covariance by native ops", values["covariance"], want_covariance, scale),
            "native singular values": worst("singular values by native ops", values["s"], want_s, scale),
            "native components": worst(
                "components by native ops", align(values["vt"], want_vt, rank), want_vt[:rank], 1.0
            ),
        }

        print(f"digits: {rows} scans of {digits.shape[1]} pixels in {options.chunks} chunks")
        print("singular values:", np.array2string(values["s"][:10], precision=2), "...")
        print(f"python functions {python_seconds:.3f} s, native ops {native_seconds:.3f} s")
        for name, difference in differences.items():
            print(f"  {name:<24} differs from NumPy by {difference:.1e}")
        if options.picture != "none":
            picture(Path(options.picture), values["mean"], align(values["vt"], want_vt, rank))
            print(f"picture: {options.picture}")
        print(where(client))

        rate = ""
        if options.rows:
            count = max(1, options.rows // 100_000)
            started = time.perf_counter()
            parts, results = moments_graph(client, options.rows, options.columns, count)
            progress(parts, f"{options.rows:,} x {options.columns}", show)
            values = dict(zip(results, client.gather(list(results.values())), strict=True))
            seconds = time.perf_counter() - started
            used = options.rows // count * count
            # The squared singular values are the eigenvalues of the Gram matrix, so both must
            # agree.
            eigenvalues = np.linalg.eigvalsh(values["gram"])[::-1]
            difference = worst(
                "large case: s**2 against eigenvalues", values["s"] ** 2, eigenvalues, float(eigenvalues[0])
            )
            deviation = float(np.max(np.abs(values["sum"]))) / used**0.5
            if deviation > 6:
                sys.exit(f"failed: a column sum is {deviation:.1f} standard deviations from 0")
            gigabytes = used * options.columns * 8 / 1e9
            rate = f"{gigabytes:.1f} GB in {seconds:.1f} s, {gigabytes / seconds:.2f} GB/s"
            print(
                f"large case: {used:,} x {options.columns} float64 made, reduced and factorised: {rate}; "
                f"s**2 differs by {difference:.1e}"
            )
            print(where(client))
            rate = f"; large case {rate}"
        print(f"ok: largest difference to numpy.linalg.svd {max(differences.values()):.1e}{rate}")


if __name__ == "__main__":
    main()
