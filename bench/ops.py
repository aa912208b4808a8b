"""Measures native operations beside NumPy, or on a GPU beside CuPy, in the same run.

Usage: ops.py [--device cuda] [--threads 1,2] [--only TEXT] [--without TEXT] [--json FILE] [--check]

For each number of threads it starts a cluster whose worker has that share of the processors, and
tells NumPy's BLAS to use as many. NumPy's other functions always use one thread. Each case runs
warm, in turns with NumPy. The time of Millrace is that from the start of the operation in the
worker until its result is stored; the column "call" is the time from submit to result in this
program. Both columns are medians, in milliseconds. A ratio below 1 means that Millrace is faster.

On a GPU, the times of CuPy include the wait for its end, there are larger sizes as well, and no
ratio has a limit.

With --check the program fails if a ratio is above its limit: 1.15 for linear algebra, 1.3 for
element-wise operations, reductions and random numbers. Other groups have no limit.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = Any

#: Seconds before each call. Meanwhile the result of the last call is freed, as NumPy's is at once.
REST = 0.03
#: The same after a call of NumPy's BLAS. The threads of OpenBLAS wait for their next call without
#: sleep for about 0.1 s, and would take a processor from Millrace.
REST_OF_BLAS = 0.2

#: Largest ratios, by group. Groups without one are measured only.
LIMITS = {"linear algebra": 1.15, "element-wise": 1.3, "reductions": 1.3, "random": 1.3}


@dataclass(frozen=True)
class Case:
    """One call of an operation, and the same by NumPy."""

    group: str
    name: str
    op: str
    #: Arrays that lie in the worker before the call. They follow `before` in the call.
    inputs: tuple[np.ndarray, ...]
    #: The same call by NumPy or CuPy: a function of the module and the arrays.
    numpy: Callable[..., Any]
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


def linear_algebra(rng: np.random.Generator) -> Iterator[Case]:
    def case(name: str, op: str, inputs: Sequence[np.ndarray], f: Callable[..., Any], **named: Any) -> Case:
        return Case("linear algebra", name, op, tuple(inputs), f, named=tuple(named.items()))

    for n in (300, 1000, 3000):
        for dtype in ("float32", "float64"):
            a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
            yield case(f"matmul {n} x {n} {dtype}", "array.matmul", [a, b], lambda xp, a, b: a @ b)
    z = rng.standard_normal((600, 600)) + 1j * rng.standard_normal((600, 600))
    yield case("matmul 600 x 600 complex128", "array.matmul", [z, z.T.copy()], lambda xp, a, b: a @ b)
    tall = rng.standard_normal((100_000, 100))
    name, text = "x'x of 100,000 x 100", ("ki,kj->ij",)
    yield Case("linear algebra", name, "array.einsum", (tall, tall), lambda xp, a, b: a.T @ b, text)
    batch = rng.standard_normal((200, 100, 100))
    yield case("matmul of 200 of 100 x 100", "array.matmul", [batch, batch], lambda xp, a, b: a @ b)
    yield case("qr 50,000 x 100", "array.qr", [tall[:50_000]], lambda xp, x: xp.linalg.qr(x))
    yield case("qr r 100,000 x 100", "array.qr", [tall], lambda xp, x: xp.linalg.qr(x, mode="r"), mode="r")
    square = rng.standard_normal((1000, 1000))
    yield case("qr 1000 x 1000", "array.qr", [square], lambda xp, x: xp.linalg.qr(x))
    s = rng.standard_normal((800, 800))
    yield case("svd 800 x 800", "array.svd", [s], lambda xp, x: xp.linalg.svd(x, full_matrices=False))
    yield case(
        "svd values 800 x 800", "array.svd", [s], lambda xp, x: xp.linalg.svd(x, compute_uv=False), vectors=False
    )
    yield case(
        "svd 800 x 800 float32", "array.svd", [s.astype("float32")], lambda xp, x: xp.linalg.svd(x, full_matrices=False)
    )
    thin = rng.standard_normal((5000, 200))
    yield case("svd 5000 x 200", "array.svd", [thin], lambda xp, x: xp.linalg.svd(x, full_matrices=False))
    for n in (300, 2000):
        a = rng.standard_normal((n, n))
        spd = a @ a.T + n * np.eye(n)
        yield case(f"cholesky {n} x {n}", "array.cholesky", [spd], lambda xp, x: xp.linalg.cholesky(x))
        b = rng.standard_normal((n, 100))
        yield case(f"solve {n} x {n}, 100 columns", "array.solve", [a, b], lambda xp, a, b: xp.linalg.solve(a, b))
    yield case(
        "solve 2000 x 2000, float32",
        "array.solve",
        [a.astype("f4"), b.astype("f4")],
        lambda xp, a, b: xp.linalg.solve(a, b),
    )


def element_wise(rng: np.random.Generator) -> Iterator[Case]:
    def case(expr: str, what: str, inputs: Sequence[np.ndarray], f: Callable[..., Any]) -> Case:
        return Case("element-wise", f"{expr}, {what}", "array.map", tuple(inputs), f, before=(expr,))

    for n, size in ((100_000, "1e5"), (1_000_000, "1e6"), (10_000_000, "1e7")):
        x, y, z = (rng.standard_normal(n) for _ in range(3))
        positive = np.abs(x) + 0.1
        single = x.astype("float32")
        whole = rng.integers(-1000, 1000, n)
        yield case("x0 + x1", size, [x, y], lambda xp, x, y: x + y)
        yield case("x0 * 2.5", size, [x], lambda xp, x: x * 2.5)
        yield case("x0 / x1", size, [x, y], lambda xp, x, y: x / y)
        yield case("x0 * x1 + x2", size, [x, y, z], lambda xp, x, y, z: x * y + z)
        yield case("sqrt(x0 * x0 + x1 * x1)", size, [x, y], lambda xp, x, y: xp.sqrt(x * x + y * y))
        yield case("x0 < x1", size, [x, y], lambda xp, x, y: x < y)
        yield case("where(x0 > 0, x0, x1)", size, [x, y], lambda xp, x, y: xp.where(x > 0, x, y))
        yield case("maximum(x0, x1)", size, [x, y], lambda xp, x, y: xp.maximum(x, y))
        yield case("abs(x0)", size, [x], lambda xp, x: xp.abs(x))
        yield case("floor(x0)", size, [x], lambda xp, x: xp.floor(x))
        yield case("x0 + x1", f"{size} float32", [single, single], lambda xp, x, y: x + y)
        yield case("x0 + x1", f"{size} int64", [whole, whole], lambda xp, x, y: x + y)
        yield case("x0 // x1", f"{size} int64", [whole, whole + 1001], lambda xp, x, y: x // y)
        yield case("x0 * x1", f"{size} complex128", [x + 1j * y, y + 1j * x], lambda xp, x, y: x * y)
        for f in ("exp", "sin", "cos", "tan", "tanh", "arctan", "expm1", "cbrt"):
            yield case(f"{f}(x0)", size, [x], lambda xp, x, f=f: getattr(xp, f)(x))
        for f in ("sqrt", "log", "log2", "log10", "log1p"):
            yield case(f"{f}(x0)", size, [positive], lambda xp, x, f=f: getattr(xp, f)(x))
        for f in ("exp", "sin", "tanh"):
            yield case(f"{f}(x0)", f"{size} float32", [single], lambda xp, x, f=f: getattr(xp, f)(x))
        yield case("log(x0)", f"{size} float32", [positive.astype("float32")], lambda xp, x: xp.log(x))
        yield case("x0 ** x1", size, [positive, y], lambda xp, x, y: x**y)
        yield case("arctan2(x0, x1)", size, [x, y], lambda xp, x, y: xp.arctan2(x, y))
        yield case("hypot(x0, x1)", size, [x, y], lambda xp, x, y: xp.hypot(x, y))
        for to in ("float32", "int64"):
            yield Case(
                "element-wise",
                f"cast to {to}, {size}",
                "array.cast",
                (x,),
                lambda xp, x, to=to: x.astype(to),
                after=(to,),
            )


def reductions(rng: np.random.Generator) -> Iterator[Case]:
    def case(what: str, x: np.ndarray, f: Callable[..., Any], op: str = "sum", **named: Any) -> Case:
        return Case("reductions", what, "array.reduce", (x,), f, named=(("op", op), *named.items()))

    for shape, size in (((500, 200), "1e5"), ((1000, 1000), "1e6"), ((5000, 2000), "1e7")):
        x = rng.standard_normal(shape)
        yield case(f"sum, {size}", x, lambda xp, x: x.sum())
        yield case(f"sum along 0, {size}", x, lambda xp, x: x.sum(axis=0), axes=0)
        yield case(f"sum along 1, {size}", x, lambda xp, x: x.sum(axis=1), axes=1)
        yield case(f"mean along 0, {size}", x, lambda xp, x: x.mean(axis=0), "mean", axes=0)
        yield case(f"max, {size}", x, lambda xp, x: x.max(), "max")
        yield case(f"max along 1, {size}", x, lambda xp, x: x.max(axis=1), "max", axes=1)
        yield case(f"prod, {size}", x, lambda xp, x: x.prod(), "prod")
        yield case(f"count, {size}", x, lambda xp, x: xp.count_nonzero(x), "count")
        yield case(f"all, {size}", x != 0, lambda xp, x: x.all(), "all")
        single = x.astype("float32")
        yield case(f"sum, {size} float32", single, lambda xp, x: x.sum())
        yield case(f"sum along 0, {size} float32", single, lambda xp, x: x.sum(axis=0), axes=0)
        yield case(f"sum, {size} int64", (x * 100).astype("int64"), lambda xp, x: x.sum())
        yield case(f"sum, {size} uint8", (x * 10).astype("uint8"), lambda xp, x: x.sum())


def random(rng: np.random.Generator) -> Iterator[Case]:
    def case(what: str, n: int, f: Callable[..., Any], **named: Any) -> Case:
        return Case("random", what, "array.random", (), f, before=([n],), named=(("seed", 7), *named.items()))

    @functools.cache  # CuPy's takes long to make
    def generator(xp: Any) -> Any:
        return xp.random.default_rng(7) if xp is not np else rng

    for n, size in ((100_000, "1e5"), (1_000_000, "1e6"), (10_000_000, "1e7")):
        yield case(f"uniform, {size}", n, lambda xp, n=n: generator(xp).random(n))
        yield case(
            f"uniform, {size} float32", n, lambda xp, n=n: generator(xp).random(n, dtype="float32"), dtype="float32"
        )
        yield case(f"normal, {size}", n, lambda xp, n=n: generator(xp).standard_normal(n), distribution="normal")
        yield case(
            f"normal, {size} float32", n, lambda xp, n=n: generator(xp).standard_normal(n, dtype="float32"),
            distribution="normal", dtype="float32",
        )  # fmt: skip
        yield case(
            f"integers, {size}",
            n,
            lambda xp, n=n: generator(xp).integers(0, 1000, n),
            distribution="integers",
            high=1000,
        )


def moves(rng: np.random.Generator) -> Iterator[Case]:
    def case(
        what: str, op: str, inputs: Sequence[np.ndarray], f: Callable[..., Any], *after: Any, **named: Any
    ) -> Case:
        return Case("copies", what, op, tuple(inputs), f, after=after, named=tuple(named.items()))

    for n, size in ((300, "300"), (3000, "3000")):
        x = rng.standard_normal((n, n))
        yield case(f"transpose, {size} x {size}", "array.transpose", [x], lambda xp, x: xp.ascontiguousarray(x.T))
        yield case(
            f"concat along 1, {size} x {size}",
            "array.concat",
            [x, x],
            lambda xp, x, y: xp.concatenate([x, y], axis=1),
            axis=1,
        )
        yield case(
            f"slice ::2, ::2, {size} x {size}",
            "array.slice",
            [x],
            lambda xp, x: xp.ascontiguousarray(x[::2, ::2]),
            step=[2, 2],
        )
    cube = rng.standard_normal((200, 200, 200))
    yield case(
        "transpose 2, 0, 1 of 200 x 200 x 200", "array.transpose", [cube],
        lambda xp, x: xp.ascontiguousarray(x.transpose(2, 0, 1)), [2, 0, 1],
    )  # fmt: skip


def further(rng: np.random.Generator) -> Iterator[Case]:
    def case(
        what: str,
        op: str,
        inputs: Sequence[np.ndarray],
        f: Callable[..., Any],
        before: tuple[Any, ...] = (),
        **named: Any,
    ) -> Case:
        return Case("further", what, op, tuple(inputs), f, before=before, named=tuple(named.items()))

    for n, size in ((100_000, "1e5"), (1_000_000, "1e6"), (10_000_000, "1e7")):
        x = rng.standard_normal(n)
        for dtype in ("float64", "float32", "int64", "int32"):
            y = (x * 1e6).astype(dtype)
            yield case(f"sort, {size} {dtype}", "array.sort", [y], lambda xp, x: xp.sort(x))
        few = rng.integers(0, 1000, n)
        yield case(f"unique of 1000 values, {size}", "array.unique", [few], lambda xp, x: xp.unique(x))
        index = rng.integers(0, n, n)
        yield case(f"take, {size}", "array.take", [x, index], lambda xp, x, i: xp.take(x, i))
        yield case(f"cumsum, {size}", "array.cumsum", [x], lambda xp, x: xp.cumsum(x))
        yield case(f"where, {size}", "array.where", [x > 0, x, x[::-1].copy()], lambda xp, c, x, y: xp.where(c, x, y))
    square = rng.standard_normal((1000, 1000))
    yield case("sort along 1, 1000 x 1000", "array.sort", [square], lambda xp, x: xp.sort(x))
    yield case("sort along 0, 1000 x 1000", "array.sort", [square], lambda xp, x: xp.sort(x, axis=0), axis=0)
    yield case("cumsum along 0, 1000 x 1000", "array.cumsum", [square], lambda xp, x: xp.cumsum(x, axis=0), axis=0)
    rows = rng.integers(0, 100_000, 100_000)
    wide = rng.standard_normal((100_000, 50))
    yield case("take rows of 50, 1e5", "array.take", [wide, rows], lambda xp, x, i: xp.take(x, i, axis=0), axis=0)
    for n in (1 << 10, 10_007, 1 << 20):
        z = rng.standard_normal(n) + 1j * rng.standard_normal(n)
        yield case(f"fft of {n:,}", "array.fft", [z], lambda xp, z: xp.fft.fft(z))
    yield case("rfft of 1,048,576", "array.fft", [z.real.copy()], lambda xp, x: xp.fft.rfft(x), kind="rfft")
    lanes = rng.standard_normal((1000, 1024)) + 0j
    yield case("fft of 1,000 of 1,024", "array.fft", [lanes], lambda xp, z: xp.fft.fft(z))
    yield case(
        "fft of 1,000 of 1,024, complex64", "array.fft", [lanes.astype("complex64")], lambda xp, z: xp.fft.fft(z)
    )
    yield case("fft2 of 1000 x 1000", "array.fft", [square + 0j], lambda xp, z: xp.fft.fft2(z), axes=[0, 1])
    a, b, c = rng.standard_normal((64, 80, 96)), rng.standard_normal((80, 96, 72)), rng.standard_normal((72, 64))
    text = "ijk,jkl,li->j"
    yield case(f"einsum {text}", "array.einsum", [a, b, c], lambda xp, *x: xp.einsum(text, *x, optimize=True), (text,))


def large(rng: np.random.Generator) -> Iterator[Case]:
    """Sizes with which a GPU is busy for more than a moment."""

    def case(
        what: str, op: str, inputs: Sequence[np.ndarray], f: Callable[..., Any], *before: Any, **named: Any
    ) -> Case:
        return Case("large", what, op, tuple(inputs), f, before=before, named=tuple(named.items()))

    a, b = rng.standard_normal((8192, 8192)), rng.standard_normal((8192, 100))
    for dtype in ("float32", "float64"):
        x = a.astype(dtype)
        yield case(f"matmul 8192 x 8192 {dtype}", "array.matmul", [x, x], lambda xp, x, y: x @ y)
        yield case(
            f"solve 8192 x 8192, 100 columns, {dtype}", "array.solve", [x, b.astype(dtype)],
            lambda xp, a, b: xp.linalg.solve(a, b),
        )  # fmt: skip
        x = x + x.T + 400 * np.eye(8192, dtype=dtype)
        yield case(f"cholesky 8192 x 8192 {dtype}", "array.cholesky", [x], lambda xp, x: xp.linalg.cholesky(x))
    a, b = rng.standard_normal((2000, 64, 64)), rng.standard_normal((2000, 64, 1))
    yield case("solve 2,000 of 64 x 64", "array.solve", [a, b], lambda xp, a, b: xp.linalg.solve(a, b))
    a = a @ a.swapaxes(1, 2) + np.eye(64)
    yield case("cholesky of 2,000 of 64 x 64", "array.cholesky", [a], lambda xp, x: xp.linalg.cholesky(x))
    a = rng.standard_normal((2000, 2000))
    yield case(
        "svd values 2000 x 2000", "array.svd", [a], lambda xp, x: xp.linalg.svd(x, compute_uv=False), vectors=False
    )
    tall = rng.standard_normal((100_000, 1000))
    yield case("qr 100,000 x 1000", "array.qr", [tall], lambda xp, x: xp.linalg.qr(x))
    yield case("qr r 100,000 x 1000", "array.qr", [tall], lambda xp, x: xp.linalg.qr(x, mode="r"), mode="r")
    tall = tall[:20_000]
    yield case("svd 20,000 x 1000", "array.svd", [tall], lambda xp, x: xp.linalg.svd(x, full_matrices=False))
    yield case(
        "svd values 20,000 x 1000", "array.svd", [tall], lambda xp, x: xp.linalg.svd(x, compute_uv=False), vectors=False
    )
    x = rng.standard_normal(100_000_000, dtype="float32")
    yield case("exp(x0), 1e8 float32", "array.map", [x], lambda xp, x: xp.exp(x), "exp(x0)")
    yield case("sum, 1e8 float32", "array.reduce", [x], lambda xp, x: x.sum())
    yield case("sort, 1e8 float32", "array.sort", [x], lambda xp, x: xp.sort(x))
    yield case("cumsum, 1e8 float32", "array.cumsum", [x], lambda xp, x: xp.cumsum(x))
    z = x[: 1 << 24] + 0j
    yield case("fft of 16,777,216, complex64", "array.fft", [z], lambda xp, z: xp.fft.fft(z))


GROUPS = (linear_algebra, element_wise, reductions, random, moves, further)


def cases(only: str = "", without: str = "", gpu: bool = False) -> Iterator[Case]:
    """Yields the cases whose group or name contains one text and not the other. Their arrays are
    the same in each run."""
    for group in (*GROUPS, large) if gpu else GROUPS:
        for case in group(np.random.default_rng(2026)):
            text = f"{case.group}: {case.name}"
            if only in text and not (without and without in text):
                yield case


class Bench:
    """Runs cases on a cluster with one worker that computes, and by NumPy or CuPy."""

    def __init__(self, client: Any, worker: str, module: Any) -> None:
        self._client, self._worker, self._module = client, worker, module

    def _ours(self, case: Case, inputs: Sequence[Any]) -> tuple[float, float]:
        """Returns the seconds of the operation and of the call."""
        from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2

        begin = time.perf_counter()
        future = self._client.submit(
            self._native(case.op),
            *case.before,
            *inputs,
            *case.after,
            **dict(case.named),
            pure=False,
            workers=[self._worker],
        )
        self._client.wait([future])
        call = time.perf_counter() - begin
        if future.status != "finished":
            future.result()
        session = self._client.session
        ref = task_pb2.TaskRef(key=future._state.key, namespace=session.namespace)
        found = session.call("GetTask", task_calls_pb2.GetTaskRequest(task=ref), keys=[future._state.key])
        took = found.task.run_time
        return took.seconds + took.nanos / 1e9, call

    @staticmethod
    def _native(op: str) -> Any:
        from millrace.ops import native

        return native(op)

    def _theirs(self, case: Case, arrays: Sequence[Any]) -> float:
        begin = time.perf_counter()
        case.numpy(self._module, *arrays)
        if self._module is not np:
            self._module.cuda.get_current_stream().synchronize()
        return time.perf_counter() - begin

    def measure(self, case: Case, seconds: float) -> dict[str, Any]:
        """Returns the medians of a case, in seconds. It repeats the case for about the given time."""
        # An array that a case has twice is one object for both.
        distinct = {id(x): x for x in case.inputs}
        held = {k: self._client.scatter(x, workers=[self._worker]) for k, x in distinct.items()}
        theirs = {k: self._module.asarray(x) for k, x in distinct.items()}
        inputs, arrays = [held[id(x)] for x in case.inputs], [theirs[id(x)] for x in case.inputs]
        for _ in range(2):  # warm: pages, plans, caches
            self._ours(case, inputs)
            self._theirs(case, arrays)
        ours, calls, others = [], [], []
        end = time.perf_counter() + seconds
        while len(ours) < 5 or (time.perf_counter() < end and len(ours) < 200):
            others.append(self._theirs(case, arrays))
            blas = case.group == "linear algebra" and os.environ.get("OPENBLAS_NUM_THREADS", "1") != "1"
            time.sleep(REST_OF_BLAS if blas else REST)
            took, call = self._ours(case, inputs)
            ours.append(took)
            calls.append(call)
        mine, other = statistics.median(ours), statistics.median(others)
        limit = LIMITS.get(case.group) if self._module is np else None
        return {
            "group": case.group, "case": case.name, "numpy": other, "millrace": mine, "call": statistics.median(calls),
            "ratio": mine / other, "limit": limit, "samples": len(ours),
        }  # fmt: skip


def run(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Measures all cases in this process. A case that fails has an error in place of figures."""
    from millrace import Client, LocalCluster

    gpu = options.device == "cuda"
    if gpu:
        import cupy as module  # pyright: ignore[reportMissingImports]
    else:
        module = np
    name = "CuPy" if gpu else "NumPy"
    workers = 1 if gpu else max(1, len(os.sched_getaffinity(0)) // threads)
    results: list[dict[str, Any]] = []
    began = time.perf_counter()
    with (
        LocalCluster(n_workers=workers, device=options.device, memory_limit="6GiB") as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        worker = sorted(client.scheduler_info()["workers"])[0]
        bench = Bench(client, worker, module)
        print(f"{'case':<40}{name + ' ms':>11}{'Millrace ms':>13}{'call ms':>10}{'ratio':>8}", flush=True)
        group = ""
        for case in cases(options.only, options.without, gpu):
            if time.perf_counter() - began > options.limit:
                print(f"-- the limit of {options.limit:g} s is over", flush=True)
                break
            if case.group != group:
                group = case.group
                print(f"-- {group}, {'GPU' if gpu else f'{threads} threads'}", flush=True)
            try:
                r = bench.measure(case, options.seconds) | {"threads": threads, "device": options.device}
            except Exception as e:  # the others are measured all the same
                r = {"group": case.group, "case": case.name, "limit": None, "error": f"{type(e).__name__}: {e}"}
                results.append(r)
                print(f"{case.name:<40}  {r['error']:.300}", flush=True)
                continue
            missed = "  above its limit" if r["limit"] and r["ratio"] > r["limit"] else ""
            print(
                f"{r['case']:<40}{1e3 * r['numpy']:>11.3f}{1e3 * r['millrace']:>13.3f}{1e3 * r['call']:>10.3f}{r['ratio']:>8.2f}{missed}",
                flush=True,
            )
            results.append(r)
    return results


def in_child(options: argparse.Namespace, threads: int) -> list[dict[str, Any]]:
    """Measures all cases in a process of its own, because NumPy's BLAS takes its number of threads
    from the environment when it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [sys.executable, __file__, "--child", "--threads", str(threads), "--json", str(file)]
        command += ["--only", options.only, "--without", options.without]
        command += ["--seconds", str(options.seconds), "--limit", str(options.limit)]
        environment = os.environ | {name: str(threads) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        if code := subprocess.run(command, env=environment).returncode:
            sys.exit(code)
        return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["host", "cuda"], default="host", help="where the worker computes")
    parser.add_argument(
        "--threads", default="", help="numbers of threads, such as 1,2; default: 1, and the number of processors"
    )
    parser.add_argument("--only", default="", help="only the cases whose group or name contains this text")
    parser.add_argument("--without", default="", help="only the cases whose group or name does not contain this text")
    parser.add_argument("--limit", type=float, default=3600, help="begin no case after so many seconds")
    parser.add_argument("--seconds", type=float, default=0.6, help="about how long each case is repeated")
    parser.add_argument("--json", help="file for the figures of each case")
    parser.add_argument("--check", action="store_true", help="fail if a ratio is above its limit")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    counts = [int(n) for n in options.threads.split(",") if n] or sorted({1, len(os.sched_getaffinity(0))})
    if options.child or options.device == "cuda":
        results = run(options, counts[-1])
    else:
        results = [r for n in counts for r in in_child(options, n)]
    if options.json:
        Path(options.json).write_text(json.dumps(results))
    if options.child:
        return
    over = [r for r in results if r["limit"] and r["ratio"] > r["limit"]]
    limited = [r for r in results if r["limit"]]
    failed = [r["case"] for r in results if "error" in r]
    print(f"{len(limited) - len(over)} of {len(limited)} cases with a limit are within it; {len(failed)} failed")
    for r in over:
        print(f"  above: {r['case']}, {r['threads']} threads: {r['ratio']:.2f}, limit {r['limit']}")
    if failed or (options.check and over):
        sys.exit(1)


if __name__ == "__main__":
    main()
