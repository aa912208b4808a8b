"""Data frames of Polars."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace._frames import _hash
from millrace._frames._host import order_of
from millrace._frames._library import Library


class Polars(Library):
    """DataFrame and Series. A Series has one column, whose label is its name."""

    def has(self, frame: Any) -> bool:
        pl: Any = sys.modules.get("polars")
        return pl is not None and isinstance(frame, (pl.DataFrame, pl.Series))

    def columns(self, frame: Any) -> list[Any]:
        import polars as pl

        return [frame.name] if isinstance(frame, pl.Series) else frame.columns

    def _column(self, frame: Any, label: Any) -> Any:
        import polars as pl

        return frame if isinstance(frame, pl.Series) else frame.get_column(label)

    def by_hash(self, frame: Any, by: Sequence[Any], n: int) -> Any:
        return _hash.partitions([(label, self._plain(self._column(frame, label))) for label in by], n)

    @staticmethod
    def _plain(column: Any) -> Any:
        """Returns an array of Arrow with the same values."""
        import polars as pl

        if column.dtype == pl.Object:
            return np.array(column.to_list(), object)
        if (known := _known_to_arrow(column.dtype)) != column.dtype:
            column = column.cast(known)
        return column.to_arrow(compat_level=pl.CompatLevel.oldest())

    def by_range(self, frame: Any, by: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
        import polars as pl

        column = self._column(frame, by)
        missing = column.is_null().to_numpy() if column.null_count() else None
        limits = pl.Series(list(edges), dtype=column.dtype)
        return limits.search_sorted(column, side="right").to_numpy(), missing

    def split(self, frame: Any, numbers: Any, n: int) -> list[Any]:
        order, ends = order_of(numbers, n, len(frame))
        if order is not None:
            frame = frame[order]
        return [frame.slice(a, b - a) for a, b in itertools.pairwise(ends)]

    def concatenate(self, frames: Sequence[Any]) -> Any:
        import polars as pl

        some = [f for f in frames if len(f)] or [frames[0]]
        return some[0] if len(some) == 1 else pl.concat(some, rechunk=False)


def _known_to_arrow(kind: Any) -> Any:
    """Returns a type with floats of 64 bits in place of the numbers that Arrow does not know."""
    import polars as pl

    if kind in (pl.Int128, pl.UInt128, pl.Float16):
        return pl.Float64
    if isinstance(kind, pl.List):
        return pl.List(_known_to_arrow(kind.inner))
    if isinstance(kind, pl.Array):
        return pl.Array(_known_to_arrow(kind.inner), kind.size)
    if isinstance(kind, pl.Struct):
        return pl.Struct({field.name: _known_to_arrow(field.dtype) for field in kind.fields})
    return kind
