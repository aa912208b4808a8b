"""Writes order.json, the cases of array.sort, array.unique and array.take: see cases.py."""

import numpy as np
from cases import DTYPES, case, make, rng, strided, write


def special(dtype, shape):
    """Returns an array with several NaNs, infinities, zeros of both signs and equal values."""
    x = make(dtype, shape)
    if x.dtype.kind in "fc" and x.size >= 10:
        x = x.round()
        x.flat[[1, 4, -1]] = np.nan
        x.flat[[2, 5]] = np.inf, -np.inf
        x.flat[[3, 6]] = 0.0, -0.0
        if x.dtype.kind == "c":
            x.flat[[7, 8, 9]] = complex(np.nan, 1), complex(1, np.nan), complex(-1, np.nan)
    return x


def sort(x, **named):
    axis = named.get("axis", -1)
    try:
        want = np.sort(x, axis=axis)
    except np.exceptions.AxisError:
        want = None
    if want is not None and named.get("descending"):
        want = np.flip(want, 0 if axis is None else axis)
    case("array.sort", [x], want, **named)


def unique(x, **named):
    want = np.unique(x, return_inverse=named.get("inverse", False), return_counts=named.get("counts", False))
    case("array.unique", [x], list(want) if named else want, **named)


def take(x, indices, **named):
    try:
        want = np.take(x, indices, axis=named.get("axis"))
    except (IndexError, TypeError):
        want = None
    case("array.take", [x, indices], want, **named)


for d in DTYPES:
    for shape in [(), (1,), (300,), (4, 17), (3, 5, 6), (2, 0, 3), (0,)]:
        x = strided(special(d, shape))
        sort(x, axis=None)
        sort(x)
        sort(x, descending=True)
        if len(shape) > 1:
            sort(x, axis=0)
            sort(x, axis=1, descending=True)
        unique(x)
        unique(x, inverse=True)
        unique(x, counts=True)
        unique(x, inverse=True, counts=True)
    sort(strided(special(d, (2000,))))
    for i in ["uint8", "int32", "int64"]:
        x = strided(make(d, (3, 4, 5)))
        take(x, strided(rng.integers(0, 60, (2, 7)).astype(i)))
        take(x, strided(rng.integers(0, 3, (6,)).astype(i)), axis=0)
        take(x, strided(rng.integers(0, 4, (2, 3)).astype(i)), axis=1)
        take(x, np.array(4, i), axis=-1)
        take(x, np.array([], i), axis=1)
        if i != "uint8":
            take(x, strided(rng.integers(-60, 0, (9,)).astype(i)))
            take(x, strided(rng.integers(-4, 0, (9,)).astype(i)), axis=1)
            take(x, np.array([3, -5], i), axis=1)
        take(x, np.array([0, 60], i))
        take(x, np.array([0, 3], i), axis=0)
x = make("float64", (2, 0))
take(x, np.array([], "int64"))
take(x, np.array([0]))
take(x, np.array([0, 1, 1]), axis=0)
take(x, np.array([0.0, 1.0]), axis=0)
take(np.array(3.5), np.array([[0, -1]]))
for i in ["int32", "int64"]:
    far = np.array([-(2**31), 2**31 - 1, 0, -1, 5], i)
    sort(far)
    unique(far)
sort(np.array([2**63 - 1, -(2**63), 2**53 + 1, 2**53]))
tiny = np.array([5e-324, -5e-324, 0.0, -0.0, 1e308, -1e308, np.inf, -np.inf, np.nan, -np.nan])
sort(tiny)
unique(tiny)
sort(tiny.astype("float32"))

write(__file__)
