"""Data frames of pandas."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace._frames import _hash
from millrace._frames._host import order_of
from millrace._frames._library import Library


class Pandas(Library):
    """DataFrame and Series. A Series has one column, whose label is its name."""

    def has(self, frame: Any) -> bool:
        pd: Any = sys.modules.get("pandas")
        return pd is not None and isinstance(frame, (pd.DataFrame, pd.Series))

    def columns(self, frame: Any) -> list[Any]:
        return [frame.name] if frame.ndim == 1 else list(frame.columns)

    def _column(self, frame: Any, label: Any) -> Any:
        return frame.array if frame.ndim == 1 else frame[label].array

    def by_hash(self, frame: Any, by: Sequence[Any], n: int) -> Any:
        return _hash.partitions([(label, self._plain(self._column(frame, label))) for label in by], n)

    @staticmethod
    def _plain(array: Any) -> Any:
        """Returns the NumPy array inside of an array of pandas that is only its cover."""
        return array.to_numpy() if type(array).__name__ == "NumpyExtensionArray" else array

    def by_range(self, frame: Any, by: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
        import pandas as pd

        values = self._column(frame, by)
        missing: Any = pd.isna(values)
        if not missing.any():
            missing = None
        if getattr(values.dtype, "ordered", None) is not None:
            known = values.categories.get_indexer(list(edges))
            values, edges = np.asarray(values.codes), known
        elif missing is not None:
            there = ~missing
            out = np.zeros(len(values), np.int64)
            out[there] = self._places(values[there], edges)
            return out, missing
        return self._places(values, edges), missing

    @staticmethod
    def _places(values: Any, edges: Sequence[Any]) -> Any:
        import pandas as pd

        plain = Pandas._plain(values)
        if isinstance(plain, np.ndarray) and plain.dtype.kind in "biuf":
            return np.searchsorted(np.asarray(edges), plain, side="right")
        return pd.Index(pd.Series(list(edges), dtype=values.dtype)).searchsorted(values, side="right")

    def split(self, frame: Any, numbers: Any, n: int) -> list[Any]:
        order, ends = order_of(numbers, n, len(frame))
        if order is not None:
            frame = frame.take(order)
        return [frame.iloc[a:b] for a, b in itertools.pairwise(ends)]

    def concatenate(self, frames: Sequence[Any]) -> Any:
        import pandas as pd

        # Frames without rows add nothing, but their types could change those of the result.
        some = [f for f in frames if len(f)] or [frames[0]]
        if len(some) == 1:
            return some[0]
        return pd.concat(_with_equal_categories(some))


def _with_equal_categories(frames: Sequence[Any]) -> list[Any]:
    """Returns frames whose categorical columns have the same categories in each: pandas would make
    objects of others."""
    import pandas as pd

    frames = list(frames)
    first = frames[0]
    if first.ndim == 1:
        if isinstance(first.dtype, pd.CategoricalDtype) and any(f.dtype != first.dtype for f in frames):
            return _with_union(frames)
        return frames
    for at, dtype in enumerate(first.dtypes):
        if not isinstance(dtype, pd.CategoricalDtype) or all(f.dtypes.iloc[at] == dtype for f in frames):
            continue
        for n, column in enumerate(_with_union([f.iloc[:, at] for f in frames])):
            frames[n] = frames[n].copy(deep=False)
            frames[n].isetitem(at, column)
    return frames


def _with_union(columns: list[Any]) -> list[Any]:
    import pandas as pd

    if not all(isinstance(c.dtype, pd.CategoricalDtype) for c in columns):
        return columns
    # Categories of missing values alone have another type than those of values.
    some = [c for c in columns if len(c.cat.categories)] or columns[:1]
    try:
        union = pd.api.types.union_categoricals(some, ignore_order=False)
    except TypeError:  # their types or orders differ: pandas makes objects of them
        return columns
    return [c.cat.set_categories(union.categories) for c in columns]
