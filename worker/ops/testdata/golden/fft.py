"""Writes fft.json, the cases of array.fft: see cases.py."""

import numpy as np
from cases import DTYPES, case, make, strided, write

ONE = {"fft": np.fft.fft, "ifft": np.fft.ifft, "rfft": np.fft.rfft, "irfft": np.fft.irfft}
MANY = {"fft": np.fft.fftn, "ifft": np.fft.ifftn, "rfft": np.fft.rfftn, "irfft": np.fft.irfftn}


def fft(x, kind, **named):
    options = {"norm": named["norm"]} if "norm" in named else {}
    try:
        if isinstance(named.get("axes"), list):
            want = MANY[kind](x, named.get("n"), named["axes"], **options)
        else:
            want = ONE[kind](x, named.get("n"), named.get("axes", -1), **options)
    except (ValueError, TypeError, IndexError):
        want = None
    case("array.fft", [x, kind], want, exact=False, **named)


for d in DTYPES:
    for kind in ONE:
        x = strided(make(d, (3, 4, 10)))
        fft(x, kind)
        if d in ("bool", "uint8", "int32"):
            continue
        fft(x, kind, axes=1, norm="ortho")
        fft(x, kind, axes=0, n=8, norm="forward")
        fft(x, kind, n=7, norm="backward")
        fft(x, kind, n=15)
        fft(x, kind, n=1)
        fft(x, kind, axes=[0, 2])
        fft(x, kind, axes=[2, 0, 1], norm="ortho")
        fft(x, kind, axes=[1, 2], n=[3, 12], norm="forward")
for kind in ONE:
    for d in ["float32", "complex64", "float64", "complex128"]:
        if kind == "rfft" and d.startswith("complex"):
            continue
        single = d in ("float32", "complex64")
        for n in [3, 8, 30, 97, 128] if single else [*range(2, 18), 25, 30, 49, 64, 77, 97, 121, 210, 243, 1000, 1009, 1024]:
            fft(make(d, (n,)), kind, n=n)
    fft(make("float64", ()), kind)
    fft(make("float64", (3, 0)), kind)
    fft(make("float64", (0, 3)), kind)
    fft(make("float64", (3, 0)), kind, n=4)
    fft(make("float64", (3, 4)), kind, n=0)
    fft(make("float64", (1,)), kind)
    fft(make("float64", (40, 6)), kind, axes=0)
    fft(make("float64", (3, 4)), kind, axes=2)
    fft(make("float64", (3, 4)), kind, axes=[0, 1], n=[3])
    fft(make("float64", (3, 4)), kind, norm="none")

write(__file__)
