"""Random native operations on arrays, compared with NumPy.

A call is a seed: the operation, the dtypes, shapes and values of its arrays, which have NaN,
infinities and the ends of their ranges, and its other arguments. Shapes of several arrays are such
that they broadcast.

`python random_ops.py FIRST LAST` tries the seeds from FIRST to LAST - 1 on a cluster of its own.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from millrace import Client, LocalCluster

_WHOLE = ["bool", "uint8", "int32", "int64"]
_REAL = ["float32", "float64"]
_COMPLEX = ["complex64", "complex128"]
_ALL = [*_WHOLE, *_REAL, *_COMPLEX]
#: Calls that are in flight at once.
_BATCH = 500

#: Operation, its arguments, its named arguments, the result of NumPy, and whether a sum in another
#: order is as good.
Call = tuple[str, list[Any], dict[str, Any], Callable[[], Any], bool]


def array(rng: random.Random, dtype: str, shape: tuple[int, ...], *, tame: bool = False) -> Any:
    """Returns a random array. `tame`: sums and products of its values do not overflow."""
    n = int(np.prod(shape, dtype=int))
    if dtype == "bool":
        values: list[Any] = [rng.random() < 0.5 for _ in range(n)]
    elif dtype in _WHOLE:
        info = np.iinfo(dtype)
        ends = [info.min, info.max, info.max - 1]
        values = [max(rng.choice([*ends, rng.randint(-5, 9), rng.randint(-5, 9)]), info.min) for _ in range(n)]
    elif dtype in _REAL:
        odd = [np.nan, np.inf, -np.inf, -0.0]
        ends = [] if tame else [float(np.finfo(dtype).max), float(np.finfo(dtype).tiny)]
        values = [rng.choice([*odd, *ends]) if rng.random() < 0.1 else rng.uniform(-9, 9) for _ in range(n)]
    else:
        values = [complex(rng.randint(-9, 9), rng.uniform(-9, 9)) for _ in range(n)]
    return np.array(values, dtype=dtype).reshape(shape)


def shape_of(rng: random.Random, least: int = 0) -> tuple[int, ...]:
    axes = rng.randint(least, 3)
    return tuple(rng.choice([0, 1, 2, 3, 5, 17]) for _ in range(axes))


def narrower(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a shape that broadcasts to another one."""
    return tuple(1 if rng.random() < 0.3 else n for n in shape[rng.randint(0, len(shape)) :])


def _map(rng: random.Random) -> Call:
    shape = shape_of(rng)
    kind = rng.choice(["arithmetic", "compare", "bits", "divide", "one"])
    dtypes = {"bits": _WHOLE, "divide": ["int32", "int64", *_REAL], "one": _REAL}.get(kind, _ALL)
    a = array(rng, rng.choice(dtypes), shape)
    b = array(rng, rng.choice(dtypes), narrower(rng, shape))
    names = {"x0": a, "x1": b, "maximum": np.maximum, "minimum": np.minimum, "where": np.where}
    names |= {
        f: getattr(np, f) for f in ("abs", "floor", "ceil", "trunc", "sqrt", "isnan", "isfinite", "sign", "square")
    }
    expr = {
        "arithmetic": ["x0 + x1", "x0 - x1", "x0 * x1", "-x0 + x1 * 2", "maximum(x0, x1)", "minimum(x0, x1)"],
        "compare": ["x0 == x1", "x0 != x1", "x0 < x1", "x0 >= x1", "where(x0 == x1, x0, x1)"],
        "bits": ["x0 & x1", "x0 | x1", "x0 ^ x1", "~x0 & x1"],
        "divide": ["x0 / x1", "x0 // x1", "x0 % x1"],
        "one": [f"{f}(x0)" for f in ("abs", "floor", "ceil", "trunc", "sqrt", "isnan", "isfinite", "sign", "square")],
    }[kind]
    text = rng.choice(expr)
    inputs = [a] if kind == "one" else [a, b]
    rounded = np.iscomplexobj(a) or np.iscomplexobj(b)
    return "array.map", [text, *inputs], {}, lambda: eval(text, names), rounded


def _reduce(rng: random.Random) -> Call:
    op = rng.choice(["sum", "min", "max", "mean", "any", "all", "count"])
    x = array(rng, rng.choice(_WHOLE + _REAL if op in ("min", "max") else _ALL), shape_of(rng), tame=True)
    axes = sorted(rng.sample(range(x.ndim), rng.randint(0, x.ndim)))
    keep = rng.random() < 0.5
    function: Any = {"any": np.any, "all": np.all, "count": np.count_nonzero}.get(op) or getattr(np, op)
    # NumPy has sums of uint8 in uint64.
    wide = {"dtype": np.int64} if op == "sum" and x.dtype.kind in "bui" else {}
    return (
        "array.reduce",
        [x],
        {"op": op, "axes": axes, "keepdims": keep},
        lambda: function(x, axis=tuple(axes), keepdims=keep, **wide),
        op in ("sum", "mean"),
    )


def _slice(rng: random.Random) -> Call:
    x = array(rng, rng.choice(_ALL), shape_of(rng, 1))

    def bound() -> int | None:
        return rng.choice([None, rng.randint(-20, 20)])

    cuts = [slice(bound(), bound(), rng.choice([None, 1, 2, 3, -1, -2])) for _ in range(rng.randint(1, x.ndim))]
    named = {part: [getattr(c, part) for c in cuts] for part in ("start", "stop", "step")}
    return "array.slice", [x], named, lambda: x[tuple(cuts)], False


def _take(rng: random.Random) -> Call:
    x = array(rng, rng.choice(_ALL), tuple(n or 1 for n in shape_of(rng, 1)))
    axis = rng.randint(-x.ndim, x.ndim - 1)
    n = x.shape[axis]
    at = np.array([rng.randint(-n, n - 1) for _ in range(6)], rng.choice(["int32", "int64"])).reshape(2, 3)
    return "array.take", [x, at], {"axis": axis}, lambda: np.take(x, at, axis), False


def _cumsum(rng: random.Random) -> Call:
    x = array(rng, rng.choice(_ALL), shape_of(rng, 1))
    axis = rng.choice([None, rng.randint(-x.ndim, x.ndim - 1)])
    dtype = np.int64 if x.dtype.kind in "bui" else None
    return "array.cumsum", [x], {"axis": axis}, lambda: np.cumsum(x, axis, dtype), False


def _sort(rng: random.Random) -> Call:
    x = array(rng, rng.choice(_WHOLE + _REAL), shape_of(rng, 1))
    axis = rng.choice([None, rng.randint(-x.ndim, x.ndim - 1)])
    return "array.sort", [x], {"axis": axis}, lambda: np.sort(x, axis), False


def _where(rng: random.Random) -> Call:
    shape = shape_of(rng)
    c = array(rng, rng.choice(_ALL), narrower(rng, shape))
    x, y = array(rng, rng.choice(_ALL), shape), array(rng, rng.choice(_ALL), narrower(rng, shape))
    return "array.where", [c, x, y], {}, lambda: np.where(c, x, y), False


def _concat(rng: random.Random) -> Call:
    shape, axis = shape_of(rng, 1), 0
    xs = [array(rng, rng.choice(_ALL), (rng.randint(0, 4), *shape[1:])) for _ in range(rng.randint(1, 4))]
    return "array.concat", xs, {"axis": axis}, lambda: np.concatenate(xs, axis), False


def _shapes(rng: random.Random) -> Call:
    x = array(rng, rng.choice(_ALL), shape_of(rng, 1))
    if rng.random() < 0.5:
        axes = rng.sample(range(x.ndim), x.ndim)
        return "array.transpose", [x], {"axes": axes}, lambda: np.transpose(x, axes), False
    shape = [x.size // max(x.shape[0], 1), x.shape[0]]
    return "array.reshape", [x, shape], {}, lambda: x.reshape(shape), False


def _matmul(rng: random.Random) -> Call:
    n, k, m = (rng.choice([1, 2, 5, 17]) for _ in range(3))
    batch = rng.choice([(), (2,), (3, 1)])
    a = array(rng, rng.choice(_ALL), (*batch, n, k), tame=True)
    b = array(rng, rng.choice(_ALL), (*narrower(rng, batch), k, m), tame=True)
    if {a.dtype.kind, b.dtype.kind} == {"c", "f"}:  # infinities have no one product with complex numbers
        a, b = np.nan_to_num(a, posinf=1, neginf=1), np.nan_to_num(b, posinf=1, neginf=1)
    return "array.matmul", [a, b], {}, lambda: np.matmul(a, b), True


_CALLS = [_map, _map, _map, _reduce, _reduce, _slice, _take, _cumsum, _sort, _where, _concat, _shapes, _matmul]


def difference(got: Any, want: Any, rounded: bool) -> str:
    """Says how a result differs from NumPy's; empty if it does not."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)} in place of {want.dtype}{list(want.shape)}"
    exact = not rounded or got.dtype.kind in "bui"
    tolerance = 0 if exact else 1e-4 if got.dtype in (np.float32, np.complex64) else 1e-10
    if got.dtype.kind in "bui":
        same = np.array_equal(got, want)
    else:
        same = np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return "" if same else f"{got.tolist()}\nin place of {want.tolist()}"


def failures(client: Client, first: int, last: int) -> list[str]:
    """Tries seeds, and returns those whose results differ, with their calls."""
    found: list[str] = []
    for begin in range(first, last, _BATCH):
        calls: list[tuple[int, Call, Any, Any]] = []
        for seed in range(begin, min(begin + _BATCH, last)):
            rng = random.Random(seed)
            call = rng.choice(_CALLS)(rng)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the mean of nothing
                try:
                    want = call[3]()
                except (TypeError, ValueError):  # NumPy does not define it
                    continue
            calls.append((seed, call, want, client.op(call[0], *call[1], **call[2])))
        client.gather([future for *_, future in calls], errors="skip")
        for seed, (name, args, named, _, rounded), want, future in calls:
            error = future.exception()
            text = repr(error) if error is not None else difference(future.result(), want, rounded)
            if text:
                found.append(f"seed {seed}: {name}(*{args!r}, **{named!r}): {text}")
    return found


def main() -> None:
    first, last = map(int, sys.argv[1:3])
    print(f"seeds {first} to {last - 1}", flush=True)
    with LocalCluster(1, device="host") as cluster, Client(cluster) as client:
        found = failures(client, first, last)
    print("\n\n".join(found))
    sys.exit(f"{len(found)} of {last - first} differ from NumPy" if found else 0)


if __name__ == "__main__":
    main()
