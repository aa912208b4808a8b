"""Data frames as values: how they are recognised and described, and which of them Arrow can say.

No library of data frames is imported to encode: an object of a library exists only if that is
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _arrow

#: Types of data frames by the first part of their module. Subclasses pickle as they like.
_KINDS = {"pandas": ("DataFrame", "Series"), "pyarrow": ("Table", "RecordBatch"), "polars": ("DataFrame", "Series")}
#: Most columns that are described.
_COLUMNS = 256
#: Bytes that an array of Arrow may keep in memory for nothing.
_WASTE = 4 << 10


def library_of(kind: type) -> str:
    """Returns the library that a type of data frames belongs to, "" if it is none."""
    root = kind.__module__.partition(".")[0]
    if root == "cudf":  # also its types, columns and buffers have `device_serialize`
        return root if any(base.__name__ == "Frame" for base in kind.__mro__) else ""
    return root if kind.__name__ in _KINDS.get(root, ()) else ""


def describe(table: value_pb2.TableSummary | value_pb2.Table, library: str, obj: Any, columns: bool) -> None:
    """Fills in the description of a data frame, its columns only if they are asked for."""
    table.rows = obj.num_rows if library == "pyarrow" else len(obj)
    kinds = _columns(library, obj)
    table.column_count = len(kinds)
    if columns:
        for name, kind in kinds[:_COLUMNS]:
            # Text of labels may have lone surrogates.
            table.columns.add(name=str(name).encode("utf-8", "replace").decode(), type=str(kind))


def _columns(library: str, obj: Any) -> list[tuple[Any, Any]]:
    if library == "pyarrow":
        return list(zip(obj.schema.names, obj.schema.types, strict=True))
    if library == "polars":
        return list(obj.schema.items()) if hasattr(obj, "schema") else [(obj.name, obj.dtype)]
    if library == "pandas":
        return list(obj.dtypes.items()) if obj.ndim == 2 else [(obj.name, obj.dtype)]
    if obj.ndim == 2 and hasattr(obj, "dtypes"):
        dtypes = obj.dtypes  # of a DataFrame or a MultiIndex of cuDF
        return list((dtypes.to_pandas() if hasattr(dtypes, "to_pandas") else dtypes).items())
    return [(obj.name, obj.dtype)]


# ---- tables of Arrow -----------------------------------------------------------------------------


def arrow_of(library: str, obj: Any) -> Any:
    """Returns an object of Arrow or Polars as a table or a record batch of Arrow; None if Arrow has
    no such type, or is not installed."""
    if library == "pyarrow":
        return _without_waste(obj)
    try:
        import pyarrow as pa
    except ImportError:
        return None
    polars: Any = sys.modules["polars"]
    frame = obj.to_frame() if isinstance(obj, polars.Series) else obj
    try:
        return _of_polars(polars, frame)
    except (pa.ArrowException, polars.exceptions.PolarsError, TypeError, ValueError):  # Int128, Object
        return None


class Restored:
    """A table of Arrow in a pickle, which is read as an object of a type that it was made from."""

    __slots__ = ("_arguments",)

    def __init__(self, table: Any, type_name: str) -> None:
        self._arguments = table, type_name

    def __reduce__(self) -> Any:
        return restore, self._arguments


def _of_polars(polars: Any, frame: Any) -> Any:
    table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
    # Text of Polars is 16 bytes for each value, and shared memory that may hold the text of many
    # other rows.
    if table.nbytes <= 1.25 * frame.estimated_size() + 16 * frame.height * frame.width + _WASTE:
        return table
    return frame.to_arrow(compat_level=polars.CompatLevel.oldest())


def _without_waste(table: Any) -> Any:
    """Returns a table whose views of text refer to text of this table only."""
    import pyarrow as pa

    kinds = pa.types
    for at, field in enumerate(table.schema):
        kind = field.type
        if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
            plain = pa.large_string() if kinds.is_string_view(kind) else pa.large_binary()
            table = table.set_column(at, field, table.column(at).cast(plain).cast(kind))
    return table


def read(table: value_pb2.Table, frames: Sequence[Any]) -> Any:
    """Returns the object of a table. Its columns lie in the frames."""
    try:
        return restore(_arrow.read(table, frames), table.type_name)
    except ImportError:
        raise ImportError(f"a table came as {table.type_name or 'one of Arrow'}: install pyarrow to read it") from None


def restore(table: Any, type_name: str) -> Any:
    """Returns a table or a record batch of Arrow as an object of the type of this name. Without
    Polars it is a table of Arrow."""
    import pyarrow as pa

    if type_name.endswith(".RecordBatch"):
        return table
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not type_name.startswith("polars."):
        return table
    try:
        import polars as pl
    except ImportError:
        return table
    frame: Any = pl.from_arrow(table, rechunk=False)
    return frame.to_series() if type_name.endswith(".Series") else frame


# ---- arrays of Arrow in pickles ------------------------------------------------------------------
# Arrow's own pickle of a slice has the memory of all rows.


def reducers() -> dict[type, Any]:
    """Returns how objects of Arrow are pickled, by type; nothing if Arrow is not imported."""
    pa: Any = sys.modules.get("pyarrow")
    if pa is None or not hasattr(pa, "ChunkedArray"):
        return {}
    return {pa.ChunkedArray: _reduce_chunked, pa.RecordBatch: _reduce_batch}


def _reduce_chunked(array: Any) -> Any:
    pa: Any = sys.modules["pyarrow"]
    return pa.chunked_array, ([compact(chunk) for chunk in array.chunks], array.type)


def _reduce_batch(batch: Any) -> Any:
    pa: Any = sys.modules["pyarrow"]
    return pa.RecordBatch.from_arrays, ([compact(c) for c in batch.columns], None, batch.schema)


def compact(array: Any) -> Any:
    """Returns an array of Arrow whose memory has its own rows only. Values and text are not
    copied."""
    if array.get_total_buffer_size() <= array.nbytes + _WASTE:
        return array
    pa: Any = sys.modules["pyarrow"]
    kinds = pa.types
    kind = array.type
    if kinds.is_string(kind) or kinds.is_binary(kind):
        return _compact_text(array, "i4")
    if kinds.is_large_string(kind) or kinds.is_large_binary(kind):
        return _compact_text(array, "i8")
    if kinds.is_primitive(kind) and kind.bit_width >= 8:
        _, data = array.buffers()
        width = kind.bit_width // 8
        values = data.slice(array.offset * width, len(array) * width)
        return pa.Array.from_buffers(kind, len(array), [_validity(array), values], array.null_count)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        plain = pa.large_string() if kinds.is_string_view(kind) else pa.large_binary()
        return array.cast(plain).cast(kind)
    return pa.concat_arrays([array])


def _compact_text(array: Any, offset: str) -> Any:
    import numpy as np

    pa: Any = sys.modules["pyarrow"]
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, offset)[array.offset : array.offset + len(array) + 1]
    first, last = int(ends[0]), int(ends[-1])
    text = data.slice(first, last - first) if data is not None else None
    return pa.Array.from_buffers(
        array.type, len(array), [_validity(array), pa.py_buffer(ends - ends[0]), text], array.null_count
    )


def _validity(array: Any) -> Any:
    """Returns the bits that tell which values are there; None: all."""
    import numpy as np

    bits = array.buffers()[0]
    if bits is None or not array.null_count:
        return None
    if array.offset % 8 == 0:
        return bits.slice(array.offset // 8, (len(array) + 7) // 8)
    pa: Any = sys.modules["pyarrow"]
    there = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return pa.py_buffer(np.packbits(there[array.offset : array.offset + len(array)], bitorder="little"))
