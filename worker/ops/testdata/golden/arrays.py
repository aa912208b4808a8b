"""Writes arrays.json: see cases.py."""

import numpy as np
from cases import DTYPES, case, make, strided, write

ENV = {
    f: getattr(np, f)
    for f in """where clip minimum maximum power arctan2 hypot abs sqrt square cbrt reciprocal sign exp exp2
expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh floor ceil trunc
isnan isinf isfinite conj real imag angle pi e nan inf""".split()
} | {"round": np.rint}


def expr(source, *inputs):
    if inputs[0].dtype == bool and source in ("conj(x0)", "angle(x0)", "x0**2", "-x0**2"):
        return  # NumPy returns int8; we do not follow it
    names = {f"x{i}": x for i, x in enumerate(inputs)}
    try:
        want = eval(source, {"__builtins__": {}}, ENV | names)  # our own expressions
        if np.asarray(want).dtype == "float16":
            want = eval(source, {"__builtins__": {}}, ENV | {k: x.astype("float32") for k, x in names.items()})
    except (TypeError, np.exceptions.DTypePromotionError):
        want = None
    except (ValueError, OverflowError):
        want = None
    case("array.map", [source, *inputs], want, exact=False)


BINARY = "x0+x1 x0-x1 x0*x1 x0/x1 x0//x1 x0%x1 x0==x1 x0!=x1 x0<x1 x0<=x1 x0>x1 x0>=x1 x0&x1 x0|x1 x0^x1 minimum(x0,x1) maximum(x0,x1) where(x0>0,x0,x1)".split()
for a in DTYPES:
    for b in DTYPES:
        x, y = strided(make(a, (3, 4), True)), strided(make(b, (4,)))
        for source in BINARY:
            expr(source, x, y)
    x = strided(make(a, (2, 6), True))
    for (
        source
    ) in """-x0 ~x0 abs(x0) sign(x0) floor(x0) ceil(x0) trunc(x0) isnan(x0) isinf(x0) isfinite(x0) conj(x0) real(x0)
            imag(x0) angle(x0) square(x0) x0**2 x0**2.0 x0**3 x0*2 x0+1.5 x0/2 x0*2j 1-x0 2*x0+1 (1/2)*x0 where(x0!=0,1,0) where(x0!=0,x0,0.5)
            x0<300 x0==-1 maximum(x0,0) sqrt(2)*x0 pi*x0 x0+True x0//2 x0%3 x0//0.7 2**3**1*x0 -x0**2 x0-1-1 x0<1|x0>2""".split():
        expr(source, x)
    x = strided(make(a, (9,)))
    for f in "sqrt exp log log2 log10 sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh exp2 expm1 log1p cbrt".split():
        if a.startswith("complex") and f in (
            "exp2",
            "expm1",
            "log1p",
            "arcsin",
            "arccos",
            "arctan",
            "arcsinh",
            "arccosh",
            "arctanh",
        ):
            continue  # we have no complex form, or choose another branch cut
        expr(f"{f}(x0)", x)
expr("x0**x1", make("float64", (5,)), make("int32", (5,)))
expr("arctan2(x0,x1)+hypot(x0,x1)", make("float64", (5,)), make("float32", (2, 5)))

for d in DTYPES:
    for shape in [(3, 4, 5), (150,), (140, 3), (3, 140), (0, 3), ()]:
        for special in (False, True):
            x = strided(make(d, shape, special))
            for op, f in {
                "sum": np.sum,
                "prod": np.prod,
                "min": np.min,
                "max": np.max,
                "mean": np.mean,
                "any": np.any,
                "all": np.all,
                "count": np.count_nonzero,
            }.items():
                if op == "prod" and x.size > 100:
                    continue
                for axes in {None, (0,), (len(shape) - 1,), (0, len(shape) - 1), ()}:
                    if axes is not None and (not shape or len(set(axes)) < len(axes)):
                        continue
                    try:
                        kw = {"axis": axes, "keepdims": True}
                        want = f(x, **kw)
                        if op == "count":
                            want = want.astype("int64") if hasattr(want, "astype") else want
                    except (ValueError, TypeError):
                        want = None
                    case(
                        "array.reduce",
                        [x, op],
                        want,
                        exact=False,
                        keepdims=True,
                        **({} if axes is None else {"axes": list(axes)}),
                    )
    for to in DTYPES:
        x = strided(make(d, (3, 5)))
        if to == "uint8":
            x = np.abs(x) if x.dtype != bool else x
        case("array.cast", [x, to], x.astype(to))
    for e in DTYPES:
        for sa, sb in [
            ((3, 4), (4, 2)),
            ((4,), (4, 2)),
            ((3, 4), (4,)),
            ((4,), (4,)),
            ((2, 1, 3, 4), (5, 4, 2)),
            ((3, 0), (0, 2)),
        ]:
            x, y = strided(make(d, sa)), strided(make(e, sb))
            case("array.matmul", [x, y], x @ y, exact=False)
        x, y = strided(make(d, (2, 3))), strided(make(e, (2, 1)))
        case("array.concat", [x, y], np.concatenate([x, y], axis=1), axis=1)
    x = strided(make(d, (4, 5, 6)))
    case("array.transpose", [x], x.T)
    case("array.transpose", [x, [1, -1, 0]], x.transpose(1, 2, 0))
    case("array.reshape", [x, [-1, 10]], x.reshape(-1, 10))
    for start, stop, step in [
        ((1, None, -2), (3, None, None), (1, 2, 1)),
        ((None,) * 3, (-1, -9, 99), (-1, 1, 2)),
        ((3, 9), (0, -9), (-2, -1)),
    ]:
        index = tuple(slice(*s) for s in zip(start, stop, step, strict=True))
        case("array.slice", [x], x[index], start=list(start), stop=list(stop), step=list(step))
x = make("float64", (5, 300))
x[2, 7] = np.nan
case("array.matmul", [np.zeros((2, 5)), x], np.zeros((2, 5)) @ x, exact=False)
for a in [(0.0, 1.0, 0.1), (5, -5, -3), (0, 10, 0.7), (1, 1)]:
    case("array.arange", a, np.arange(*a))
    case("array.arange", a, np.arange(*a, dtype="float32"), dtype="float32")

write(__file__)
