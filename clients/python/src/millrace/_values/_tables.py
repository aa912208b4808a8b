"""Data frames as values: how they are recognised and described, and Arrow's streams.

No library of data frames is imported to encode: an object of a library exists only if that is
imported.
"""

from __future__ import annotations

import sys
from typing import Any

from millrace._pb.millrace.v1 import value_pb2

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


def describe(table: value_pb2.Table, library: str, obj: Any, columns: bool) -> None:
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


# ---- streams of Arrow ----------------------------------------------------------------------------


class ArrowFrame:
    """A table of Arrow that is written as a stream when it gets its place."""

    __slots__ = ("_table", "nbytes")

    def __init__(self, table: Any) -> None:
        import pyarrow as pa

        self._table = table
        counted: Any = pa.MockOutputStream()
        self._write(counted)
        self.nbytes = counted.size()

    def _write(self, sink: Any) -> None:
        import pyarrow as pa

        with pa.ipc.new_stream(sink, self._table.schema) as stream:
            stream.write(self._table)

    def write(self, room: Any) -> None:
        """Writes the stream to memory of exactly `nbytes` bytes."""
        import pyarrow as pa

        self._write(pa.FixedSizeBufferWriter(pa.py_buffer(room)))

    def view(self) -> memoryview:
        """Returns the stream in memory of its own."""
        import pyarrow as pa

        room: Any = pa.allocate_buffer(self.nbytes)
        self.write(room)
        return memoryview(room).toreadonly()

    def tobytes(self) -> bytes:
        return bytes(self.view())


def arrow_frame(library: str, obj: Any) -> ArrowFrame | None:
    """Returns an object of Arrow or Polars as a stream; None if Arrow has no such type, or is not
    installed."""
    if library == "pyarrow":
        return ArrowFrame(_without_waste(obj))
    try:
        import pyarrow as pa
    except ImportError:
        return None
    polars: Any = sys.modules["polars"]
    frame = obj.to_frame() if isinstance(obj, polars.Series) else obj
    try:
        return ArrowFrame(_of_polars(polars, frame))
    except (pa.ArrowException, polars.exceptions.PolarsError, TypeError, ValueError):  # Int128, Object
        return None


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


def from_arrow(data: Any, type_name: str) -> Any:
    """Returns the table of a stream, as an object of the type that it was made from. Without Polars
    it is a table of Arrow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError(f"a {type_name} came as a stream of Arrow: install pyarrow to read it") from None
    stream: Any = pa.ipc.open_stream(pa.py_buffer(data))
    if type_name.endswith(".RecordBatch"):
        batches = list(stream)
        return batches[0] if batches else pa.RecordBatch.from_pylist([], stream.schema)
    table = stream.read_all()
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
