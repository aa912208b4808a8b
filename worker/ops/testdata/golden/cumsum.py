"""Writes cumsum.json: see cases.py."""

import numpy as np
from cases import DTYPES, case, make, strided, write

for d in DTYPES:
    long = [(1100,), (2, 1100)] if d in ("bool", "float32") else []
    for shape in [(3, 4, 5), (30,), (40, 3), (0, 3), (1, 4, 1), (), *long]:
        for special in (False, True):
            x = strided(make(d, shape, special))
            case("array.cumsum", [x], np.cumsum(x), exact=False)
            for axis in range(-1, len(shape)) if shape else ():
                case("array.cumsum", [x], np.cumsum(x, axis=axis), exact=False, axis=axis)
    x = strided(make(d, (4, 6)))
    case("array.cumsum", [x, 2], None)
    case("array.cumsum", [x.T], np.cumsum(x.T, axis=0), exact=False, axis=0)
    case("array.cumsum", [np.broadcast_to(x[:, :1], (4, 6))], np.cumsum(np.broadcast_to(x[:, :1], (4, 6)), axis=1), exact=False, axis=1)
    for to in ["uint8", "int32", "int64", "float32", "float64", "complex64", "complex128"]:
        if np.can_cast(d, to, "same_kind"):
            case("array.cumsum", [x], np.cumsum(x, axis=0, dtype=to), exact=False, axis=0, dtype=to)
case("array.cumsum", [np.full((2, 3), -0.0)], np.cumsum(np.full((2, 3), -0.0), axis=1), axis=1)

write(__file__)
