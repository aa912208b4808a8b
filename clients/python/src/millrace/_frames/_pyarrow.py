"""Tables of Arrow."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace._frames import _hash
from millrace._frames._host import order_of
from millrace._frames._library import Library


class PyArrow(Library):
    """Table and RecordBatch."""

    def has(self, frame: Any) -> bool:
        pa: Any = sys.modules.get("pyarrow")
        return pa is not None and isinstance(frame, (pa.Table, pa.RecordBatch))

    def columns(self, frame: Any) -> list[Any]:
        return list(frame.schema.names)

    def by_hash(self, frame: Any, by: Sequence[Any], n: int) -> Any:
        return _hash.partitions([(label, frame.column(label)) for label in by], n)

    def by_range(self, frame: Any, by: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
        import pyarrow as pa

        column = frame.column(by)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        if missing is not None:
            column = column.fill_null(column.drop_null()[0]) if column.null_count < len(column) else None
        if column is None:
            return np.zeros(frame.num_rows, np.int64), missing
        limits = pa.array(list(edges), column.type).to_numpy(zero_copy_only=False)
        return np.searchsorted(limits, column.to_numpy(zero_copy_only=False), side="right"), missing

    def split(self, frame: Any, numbers: Any, n: int) -> list[Any]:
        order, ends = order_of(numbers, n, frame.num_rows)
        if order is not None:
            frame = _taken(frame, order)
        return [frame.slice(a, b - a) for a, b in itertools.pairwise(ends)]

    def concatenate(self, frames: Sequence[Any]) -> Any:
        import pyarrow as pa

        some = [f for f in frames if f.num_rows] or [frames[0]]
        if len(some) == 1:
            return some[0]
        if isinstance(some[0], pa.RecordBatch):
            return pa.concat_batches(some)
        return pa.concat_tables(some)


def _taken(frame: Any, order: Any) -> Any:
    """Returns the rows in another order."""
    import pyarrow as pa

    kinds = pa.types
    # Arrow cannot take from views of text, and is slow if a column has several chunks.
    plain = {}
    for at, kind in enumerate(frame.schema.types):
        if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
            plain[at] = frame.schema.field(at)
            kind = pa.large_string() if kinds.is_string_view(kind) else pa.large_binary()
            frame = frame.set_column(at, plain[at].with_type(kind), frame.column(at).cast(kind))
    if isinstance(frame, pa.Table):
        frame = frame.combine_chunks()
    frame = frame.take(pa.array(order))
    for at, field in plain.items():
        frame = frame.set_column(at, field, frame.column(at).cast(field.type))
    return frame
