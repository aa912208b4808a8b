"""Helps to write golden files: the results of NumPy for the calls that golden_test.go repeats.

A file of cases, such as arrays.py, begins with "from cases import *", calls `case` for each call of
an operation, and ends with `write(__file__)`, which writes the .json file beside it:

    .venv/bin/python worker/ops/testdata/golden/arrays.py     (made with NumPy 2.4.6)
"""

import base64
import json
import pathlib
import warnings

import numpy as np

warnings.simplefilter("ignore")
rng = np.random.default_rng(7)
DTYPES = ["bool", "uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"]
REPLACED = {"float16": "float32", "int8": "uint8", "uint64": "int64"}  # types that we do not have


def make(dtype, shape, special=False):
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "uint8":
        return rng.integers(0, 256, shape).astype(dtype)
    if dtype.startswith("int"):
        return rng.integers(-9, 10, shape).astype(dtype)
    x = rng.normal(size=shape) * 3
    if dtype.startswith("complex"):
        x = x + 1j * rng.normal(size=shape)
    x = np.asarray(x).astype(dtype)
    if special and x.size > 4:
        x.flat[0], x.flat[1], x.flat[2], x.flat[3] = np.nan, np.inf, 0, -np.inf
    return x


def strided(x):
    """Returns x as one of several views with other strides."""
    way = rng.integers(4)
    if way == 1:
        return np.asfortranarray(x)
    if way == 2 and x.ndim:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    if way == 3 and x.ndim:
        return np.ascontiguousarray(x[::-1])[::-1]
    return x


def tensor(x):
    base = x
    while base.base is not None:
        base = base.base
    if not isinstance(base, np.ndarray):
        x = base = np.array(x)
    offset = x.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    raw = np.frombuffer(base.tobytes("A"), "u1")
    text = json.dumps(
        {
            "dtype": str(x.dtype),
            "shape": x.shape,
            "strides": x.strides,
            "offset": offset,
            "data": base64.b64encode(raw).decode(),
        },
        separators=(",", ":"),
    )
    return pool.setdefault(text, len(pool))


pool = {}  # each tensor is written once; calls name its number


def encode(v):
    if isinstance(v, np.ndarray):
        return {"tensor": tensor(v)}
    if isinstance(v, (list, tuple)):
        return [encode(x) for x in v]
    return v


cases = []


def case(op, args, want, exact=True, signs=False, **named):
    """Adds a call. The result is an array; a list of arrays if the operation returns a list; None
    if NumPy raises an error. Results that are not exact may differ by rounding. With signs, the
    signs of the numbers may also differ."""
    call = {"op": op, "args": [encode(a) for a in args], "named": {k: encode(v) for k, v in named.items()}}
    wants = None
    if want is not None:
        wants = []
        for x in want if isinstance(want, (list, tuple)) else [want]:
            x = np.array(x, order="C")
            wants.append(tensor(x.astype(REPLACED.get(str(x.dtype), x.dtype))))
    cases.append(call | {"wants": wants, "exact": exact} | ({"signs": True} if signs else {}))


def write(script):
    """Writes all cases to the .json file beside the script."""
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    text = '{"tensors":[' + ",\n".join(pool) + '],\n"cases":[' + lines + "]}\n"
    pathlib.Path(script).with_suffix(".json").write_text(text)
