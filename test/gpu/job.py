"""Runs a small job on every GPU of a running cluster: scatter, native ops, CuPy tasks, gather.

Prints the duration of each step.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import cloudpickle
import numpy as np
from millrace import Client, native

cloudpickle.register_pickle_by_value(sys.modules[__name__])
times: dict[str, float] = {}


class Timed:
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        self.begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        times[self.name] = round(time.perf_counter() - self.begin, 4)


def square(x: Any) -> Any:
    import cupy

    assert isinstance(x, cupy.ndarray), type(x)
    return x * x


def main() -> None:
    timeout = 60
    with Client() as client:
        names = sorted(client.scheduler_info()["workers"])
        data = [np.random.default_rng(i).random(4 << 20) for i in range(len(names))]  # 32 MiB each
        with Timed("scatter"):
            parts = [client.scatter(d, workers=name) for d, name in zip(data, names, strict=True)]
        with Timed("native sums"):
            sums = [
                client.submit(native("array.reduce"), p, "sum", workers=n) for p, n in zip(parts, names, strict=True)
            ]
            got = [float(s.result(timeout)) for s in sums]
        assert np.allclose(got, [d.sum() for d in data]), got
        with Timed("first CuPy task on each GPU"):
            squares = [client.submit(square, p, workers=n) for p, n in zip(parts, names, strict=True)]
            for s in squares:
                s.result(timeout)
        with Timed("CuPy tasks on the next GPU"):
            again = [
                client.submit(square, s, workers=n, pure=False)
                for s, n in zip(squares, names[1:] + names[:1], strict=True)
            ]
            client.gather([client.submit(native("array.reduce"), a, "sum") for a in again], timeout=timeout)
        with Timed("gather"):
            back = client.gather(again, timeout=timeout)
        for b, d in zip(back, data, strict=True):
            assert np.allclose(b, d**4), "wrong numbers came back"
        with Timed("1000 small tasks"):
            small = client.map(native("array.full"), [[8]] * 1000, [1.0] * 1000)
            client.gather(small, timeout=timeout)
    print(json.dumps({"workers": names, "seconds": times}))


main()
