"""Compiles the kernels that most CuPy tasks need, or loads them from CuPy's cache, before the first
task needs them."""

from __future__ import annotations

from typing import Any


def warm_up() -> None:
    """Runs each of these kernels once, on a stream of its own. REQUIRES: CuPy is imported."""
    try:
        import cupy  # pyright: ignore[reportMissingImports]

        with cupy.cuda.Stream(non_blocking=True):
            for dtype in ("float64", "float32"):
                x: Any = cupy.ones((8, 8), dtype)
                y: Any = (x + x) * x - x / 2
                for made in (
                    y.sum(),
                    y.max(),
                    y.min(),
                    y.mean(),
                    y.sum(axis=0),
                    y @ x,
                    cupy.sqrt(y),
                    y.astype("float64"),
                ):
                    del made
            cupy.arange(8).sum()
            cupy.cuda.get_current_stream().synchronize()
    except Exception:  # a task that needs a kernel will compile it, or report the error
        return
