"""Data frames of cuDF, on a GPU."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from millrace._frames._library import Library


class Cudf(Library):
    """DataFrame and Series. A Series has one column, whose label is its name. Numbers of partitions
    are arrays of CuPy."""

    def has(self, frame: Any) -> bool:
        cudf: Any = sys.modules.get("cudf")
        return cudf is not None and isinstance(frame, (cudf.DataFrame, cudf.Series))

    def columns(self, frame: Any) -> list[Any]:
        return [frame.name] if frame.ndim == 1 else list(frame.columns)

    def by_hash(self, frame: Any, by: Sequence[Any], n: int) -> Any:
        import cupy  # pyright: ignore[reportMissingImports]

        keys = frame.to_frame() if frame.ndim == 1 else frame[list(by)]
        for label, dtype in keys.dtypes.items():
            categories = getattr(dtype, "categories", None)
            if categories is not None:  # the codes differ between frames
                keys[label] = keys[label].astype(categories.dtype)
            elif (widest := _widest(dtype)) is not None:
                keys[label] = keys[label].astype(widest)
        hashes = keys.hash_values(method="xxhash64").values
        half = cupy.uint64(32)
        return (((hashes.astype(cupy.uint64) >> half) * cupy.uint64(n)) >> half).astype(cupy.int32)

    def by_range(self, frame: Any, by: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
        import cudf  # pyright: ignore[reportMissingImports]
        import cupy  # pyright: ignore[reportMissingImports]

        column = frame if frame.ndim == 1 else frame[by]
        missing = column.isna()
        missing = cupy.asarray(missing.values) if missing.any() else None
        limits = cudf.Series(list(edges), dtype=column.dtype)
        return cupy.asarray(limits.searchsorted(column, side="right")), missing

    def split(self, frame: Any, numbers: Any, n: int) -> list[Any]:
        import cupy  # pyright: ignore[reportMissingImports]

        numbers = cupy.asarray(numbers)
        if numbers.shape != (len(frame),):
            raise ValueError(f"{numbers.shape} partition numbers for {len(frame)} rows: one for each row")
        if len(frame) and not (0 <= int(numbers.min()) and int(numbers.max()) < n):
            raise ValueError(
                f"partition numbers from {int(numbers.min())} to {int(numbers.max())}: from 0 to {n - 1} are allowed"
            )
        order = cupy.argsort(numbers, kind="stable")
        ends = [0, *cupy.cumsum(cupy.bincount(numbers, minlength=n)).get().tolist()]
        taken = frame.take(order)
        return [taken.iloc[a:b] for a, b in itertools.pairwise(ends)]

    def concatenate(self, frames: Sequence[Any]) -> Any:
        import cudf  # pyright: ignore[reportMissingImports]

        some = [f for f in frames if len(f)] or [frames[0]]
        return some[0] if len(some) == 1 else cudf.concat(some)


def _widest(dtype: Any) -> Any:
    """Returns the widest type of the same kind: the hash of a number depends on its width. None if
    it is that already, or has none."""
    name = {"i": "int64", "u": "int64", "f": "float64"}.get(getattr(dtype, "kind", ""))
    if name is None or str(dtype).lower() == name:
        return None
    # Types of pandas with missing values have names with a capital letter.
    return name.capitalize() if hasattr(dtype, "numpy_dtype") else name
