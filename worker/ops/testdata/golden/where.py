"""Writes where.json: see cases.py."""

import numpy as np
from cases import DTYPES, case, make, strided, write


def where(condition, x, y):
    try:
        want = np.where(condition, x, y)
    except (ValueError, OverflowError):
        want = None
    case("array.where", [condition, x, y], want)


for a in DTYPES:
    for b in DTYPES:
        where(strided(make("bool", (3, 1))), strided(make(a, (3, 4), True)), strided(make(b, (4,))))
    x = strided(make(a, (2, 6), True))
    where(x, 1, 0)  # a number is true if it is not zero
    where(strided(make("int64", (2, 6)) % 2), x, 2)
    where(strided(make("bool", (6,))), 1.5, x)
    where(make("bool", (4, 1, 1)), x, True)
    where(True, x, make(a, (6,)))
    where(make("bool", (2, 0)), make(a, (1, 1)), 3)
    where(make("bool", ()), make(a, ()), make(a, (1, 2)))
    where(make("bool", (2, 5)), x, 0)  # the shapes do not fit
where(make("bool", (5,)), 1, 2.5)
where([True, False], [[1, 2], [3, 4]], 7)

write(__file__)
