"""Data frames of cuDF, on a GPU."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace._frames import _hash
from millrace._frames._hash_bits import MISSING, mixed
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

        columns = [(label, frame if frame.ndim == 1 else frame[label]) for label in by]
        return _hash.numbers([_hash.named(label, _hashes, c) for label, c in columns], n).astype(cupy.int32)

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


def _hashes(column: Any) -> Any:
    """Returns the hash of each value of a Series, as an array of CuPy: that of `_hash.hash_of`."""
    import cupy  # pyright: ignore[reportMissingImports]

    unit = _unit(column.dtype)
    missing = cupy.asarray(column.isna().values)
    if getattr(column.dtype, "kind", "O") in "biuf":
        # Flags cannot be filled with a number, so they become one first. -0.0 becomes 0.0.
        values = column.astype("float64").fillna(0.0).values + 0.0
        out = mixed(values.view(cupy.uint64))
        missing |= values != values
    elif unit is not None:
        factor = {"s": 1_000_000, "ms": 1_000, "us": 1}.get(unit)
        values = column.astype("int64").fillna(0).values
        values = values // 1_000 if factor is None else values * factor
        out = mixed(values.view(cupy.uint64))
    elif _is_text(column.dtype):
        # The distinct values are few, or their text is copied once: the host hashes them.
        codes, known = column.factorize(use_na_sentinel=True)
        hashes = _hash.hash_of(known.to_arrow())
        out = cupy.asarray(np.append(hashes, MISSING))[cupy.asarray(codes)]
    else:  # cuDF gives decimals, structs and lists no codes
        out = cupy.asarray(_hash.hash_of(column.to_arrow()))
    out[missing] = MISSING
    return out


def _unit(dtype: Any) -> str | None:
    """Returns the unit of durations and of times without a time zone. None: a type of others."""
    arrow = getattr(dtype, "pyarrow_dtype", None)
    if arrow is not None:
        return None if getattr(arrow, "tz", None) else getattr(arrow, "unit", None)
    return np.datetime_data(dtype)[0] if isinstance(dtype, np.dtype) and dtype.kind in "mM" else None


def _is_text(dtype: Any) -> bool:
    """Returns whether the values are text or categories."""
    import cudf  # pyright: ignore[reportMissingImports]

    return isinstance(dtype, cudf.CategoricalDtype) or cudf.api.types.is_string_dtype(dtype)
