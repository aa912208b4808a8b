"""Tables of Arrow in frames: their buffers are written to places in one frame, and read there.

The layout is that of ``Table`` in ``value.proto``. pyarrow's own writer of streams takes slices
apart and shifts their bitmaps and offsets; it hands each buffer over without a copy, so that the
bytes are copied once, to their place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from millrace._pb.millrace.v1 import value_pb2

#: Multiple of bytes at which buffers begin in their frame.
_ALIGNMENT = 64

# Fields of Message and RecordBatch in Arrow's Message.fbs, by their places in the table of fields.
_HEADER_TYPE, _HEADER = 6, 8
_NODES, _BUFFERS, _VIEW_BUFFERS = 6, 8, 12
_RECORD_BATCH = 3


class TableFrame:
    """The buffers of a table, which are copied when the frame gets its place."""

    __slots__ = ("_buffers", "nbytes")

    def __init__(self, buffers: list[tuple[int, Any]], nbytes: int) -> None:
        self._buffers = buffers
        self.nbytes = nbytes

    def write(self, room: Any) -> None:
        """Writes the buffers to memory of exactly `nbytes` bytes, and zeros between them."""
        import pyarrow as pa

        file: Any = pa.FixedSizeBufferWriter(pa.py_buffer(room))  # copies without the interpreter's lock
        end = 0
        for start, buffer in self._buffers:
            file.write(bytes(start - end))
            file.write(buffer)
            end = start + len(buffer)
        file.write(bytes(self.nbytes - end))

    def view(self) -> memoryview:
        """Returns the bytes in memory of their own."""
        import pyarrow as pa

        room: Any = pa.allocate_buffer(self.nbytes)
        self.write(room)
        return memoryview(room).cast("B").toreadonly()

    def tobytes(self) -> bytes:
        return bytes(self.view())


class _Sink:
    """A file that keeps the buffers of the record batch that is written to it, and forgets the other
    messages."""

    closed = False

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int]] = []
        self.buffers: list[Any] = []
        self.view_buffers: list[int] = []
        self._message = bytearray()
        self._metadata = 8  # bytes of the prefix and the metadata that are still to come
        self._lengths: Iterator[int] = iter(())
        self._left = 0  # bytes of the body that are still to come
        self._padding = False
        self._kept = False

    def write(self, data: Any) -> int:
        size = len(data)
        if not self._metadata:
            self._body(data, size)
        else:
            self._message += data
            self._metadata -= size
            if not self._metadata and len(self._message) == 8:
                self._metadata = struct.unpack_from("<i", self._message, 4)[0]
            if not self._metadata and len(self._message) > 8:
                self._begin(memoryview(self._message)[8:])
        return size

    def _begin(self, message: memoryview) -> None:
        root = struct.unpack_from("<I", message)[0]
        at, self._left = _field(message, root, 10), 0
        if at:
            self._left = struct.unpack_from("<q", message, at)[0]
        at = _field(message, root, _HEADER_TYPE)
        self._kept = bool(at) and message[at] == _RECORD_BATCH
        if self._kept:
            batch = _field(message, root, _HEADER)
            batch += struct.unpack_from("<I", message, batch)[0]
            self.nodes = _vector(message, batch, _NODES, "qq")
            lengths = [length for _, length in _vector(message, batch, _BUFFERS, "qq")]
            self.view_buffers = [n for (n,) in _vector(message, batch, _VIEW_BUFFERS, "q")]
            self._lengths = iter(lengths)
        self._end()

    def _body(self, data: Any, size: int) -> None:
        self._left -= size
        if self._kept:
            if self._padding:
                self._padding = False
            else:
                for length in self._lengths:
                    if length:
                        break
                    self.buffers.append(b"")
                self.buffers.append(data)
                self._padding = size % 8 != 0
        self._end()

    def _end(self) -> None:
        """Waits for the next message if this one is over."""
        if self._left <= 0:
            if self._kept:
                self.buffers.extend(b"" for _ in self._lengths)
            self._kept, self._metadata = False, 8
            self._message = bytearray()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _field(message: memoryview, table: int, field: int) -> int:
    """Returns the place of a field of a table of a flatbuffer; 0: it is absent."""
    fields = table - struct.unpack_from("<i", message, table)[0]
    if field >= struct.unpack_from("<H", message, fields)[0]:
        return 0
    offset = struct.unpack_from("<H", message, fields + field)[0]
    return table + offset if offset else 0


def _vector(message: memoryview, table: int, field: int, form: str) -> list[Any]:
    at = _field(message, table, field)
    if not at:
        return []
    at += struct.unpack_from("<I", message, at)[0]
    count = struct.unpack_from("<I", message, at)[0]
    numbers = struct.unpack_from(f"<{count * len(form)}q", message, at + 4)
    return [numbers[i : i + len(form)] for i in range(0, len(numbers), len(form))]


def fill(table: value_pb2.Table, obj: Any, frame: int) -> TableFrame | None:
    """Describes a table or a record batch of Arrow, and returns its frame. Returns None if it cannot be
    one batch: the text of a column may have too many bytes for the type, and a table without
    columns may have rows."""
    import pyarrow as pa

    batch = _one_batch(obj)
    if batch is None:
        return None
    table.rows = batch.num_rows
    table.schema = bytes(batch.schema.serialize())
    places: list[tuple[int, Any]] = []
    end = _add(table, places, batch, 0, frame)
    dictionaries = [d for column in batch.columns for d in _dictionaries(column)]
    for dictionary in dictionaries:  # the list grows: there are dictionaries inside of dictionaries
        end = _add(table, places, pa.RecordBatch.from_arrays([dictionary], ["dictionary"]), end, frame)
        dictionaries.extend(_dictionaries(dictionary))
    return TableFrame(places, end)


def _one_batch(obj: Any) -> Any:
    import pyarrow as pa

    if isinstance(obj, pa.RecordBatch):
        return obj
    if not obj.num_rows:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in obj.schema], schema=obj.schema)
    columns = obj.combine_chunks().columns
    if not columns or any(c.num_chunks > 1 for c in columns):
        return None
    arrays = [c.chunk(0) for c in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=obj.schema)


def _add(table: value_pb2.Table, places: list[tuple[int, Any]], batch: Any, end: int, frame: int) -> int:
    """Adds the nodes and buffers of a batch, and returns the new end of the frame."""
    import pyarrow as pa

    sink: Any = _Sink()
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)  # 2^31 rows and more
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), batch.schema, options=options) as stream:
        stream.write_batch(batch)
    for rows, nulls in sink.nodes:
        table.nodes.add(rows=rows, nulls=nulls)
    for buffer in sink.buffers:
        size = len(buffer)
        if not size:
            table.buffers.add()
            continue
        table.buffers.add(frame=frame, offset_bytes=end, bytes=size)
        places.append((end, buffer))
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    table.view_buffers.extend(sink.view_buffers)
    return end


def _dictionaries(array: Any) -> Iterator[Any]:
    """Yields the dictionaries in an array, depth first, without those inside of dictionaries."""
    import pyarrow as pa

    kind = array.type
    if isinstance(array, pa.DictionaryArray):
        yield array.dictionary
    elif isinstance(array, pa.ExtensionArray):
        yield from _dictionaries(array.storage)
    elif kind.num_fields and _has_dictionary(kind):
        for part in _parts(array):
            yield from _dictionaries(part)


def _has_dictionary(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _parts(array: Any) -> list[Any]:
    """Returns the arrays inside of an array."""
    import pyarrow as pa

    if isinstance(array, pa.MapArray):
        return [array.keys, array.items]
    if isinstance(array, (pa.StructArray, pa.UnionArray)):
        return [array.field(i) for i in range(array.type.num_fields)]
    return [array.values]  # lists, and runs, whose ends are numbers


# ---- reading -------------------------------------------------------------------------------------


class _Column:
    """A column whose dictionary may come later."""

    __slots__ = ("buffers", "children", "dictionary", "kind", "nulls", "rows")

    def __init__(self, kind: Any, rows: int, nulls: int, buffers: list[Any], children: list[_Column]) -> None:
        self.kind, self.rows, self.nulls = kind, rows, nulls
        self.buffers, self.children = buffers, children
        self.dictionary: _Column | None = None


class _Reader:
    """Takes nodes and buffers off the fronts of their lists."""

    def __init__(self, table: value_pb2.Table, frame: Callable[[int], Any]) -> None:
        self._nodes, self._buffers, self._views = iter(table.nodes), iter(table.buffers), iter(table.view_buffers)
        self._frame = frame
        #: Columns of indices whose dictionaries come later.
        self.encoded: list[_Column] = []

    def column(self, kind: Any) -> _Column:
        import pyarrow as pa

        kinds = pa.types
        node = _next(self._nodes)
        stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        encoded = kinds.is_dictionary(stored)
        physical = stored.index_type if encoded else stored
        union = kinds.is_union(physical)
        if kinds.is_null(physical) or kinds.is_run_end_encoded(physical):
            buffers: list[Any] = [None]
        else:
            buffers = [None] if union else [self._validity(node)]
            buffers += [self._buffer() for _ in range(physical.num_buffers - 1)]
            if physical.has_variadic_buffers:
                buffers += [self._buffer() for _ in range(_next(self._views))]
        children = [] if encoded else [self.column(stored.field(i).type) for i in range(stored.num_fields)]
        column = _Column(kind, node.rows, node.nulls, buffers, children)
        if encoded:
            self.encoded.append(column)
        return column

    def _validity(self, node: Any) -> Any:
        buffer = self._buffer()
        if not node.nulls:
            return None
        if buffer.size * 8 < node.rows:
            raise ValueError(f"a table with {node.rows} rows and {buffer.size} bytes of validity")
        return buffer

    def _buffer(self) -> Any:
        import pyarrow as pa

        place = _next(self._buffers)
        if not place.bytes:
            return pa.py_buffer(bytes(8))  # also an offset of 0
        frame = self._frame(place.frame)
        if place.offset_bytes % 8 or place.offset_bytes + place.bytes > frame.size:
            raise ValueError(
                f"a table with a buffer of {place.bytes} bytes at {place.offset_bytes} of a frame of {frame.size} bytes"
            )
        return frame.slice(place.offset_bytes, place.bytes)

    def end(self) -> None:
        if [*self._nodes, *self._buffers, *self._views]:
            raise ValueError("a table with more nodes or buffers than its schema needs")


def _next(items: Iterator[Any]) -> Any:
    for item in items:
        return item
    raise ValueError("a table with fewer nodes or buffers than its schema needs")


def read(table: value_pb2.Table, frames: Sequence[Any]) -> Any:
    """Returns the table as a record batch whose buffers are the bytes of the frames. The table may
    come from any program: ValueError if a buffer is not in its frame or too short for its column.
    Offsets and indices inside of buffers are not read."""
    import pyarrow as pa

    known: dict[int, Any] = {}

    def frame(number: int) -> Any:
        if table.inline_data:
            number = -1
        if number not in known:
            if number >= len(frames):
                raise ValueError(f"a table refers to frame {number} of an object with {len(frames)} frames")
            known[number] = pa.py_buffer(table.inline_data if number < 0 else frames[number])
        return known[number]

    schema = pa.ipc.read_schema(pa.py_buffer(table.schema))
    reader = _Reader(table, frame)
    columns = [reader.column(field.type) for field in schema]
    for column in reader.encoded:  # the list grows
        kind = column.kind.storage_type if isinstance(column.kind, pa.BaseExtensionType) else column.kind
        column.dictionary = reader.column(kind.value_type)
    reader.end()
    for column in columns:
        if column.rows != table.rows:
            raise ValueError(f"a table of {table.rows} rows with a column of {column.rows}")
    if not columns:
        rows: Any = pa.Array.from_buffers(pa.struct([]), table.rows, [None])
        return pa.RecordBatch.from_struct_array(rows).replace_schema_metadata(schema.metadata)
    batch = pa.RecordBatch.from_arrays([_array(c) for c in columns], schema=schema)
    batch.validate()
    return batch


def _array(column: _Column) -> Any:
    import pyarrow as pa

    kind = column.kind
    if isinstance(kind, pa.BaseExtensionType):
        stored = _Column(kind.storage_type, column.rows, column.nulls, column.buffers, column.children)
        stored.dictionary = column.dictionary
        return pa.ExtensionArray.from_storage(kind, _array(stored))
    if column.dictionary is not None:
        indices = pa.Array.from_buffers(kind.index_type, column.rows, column.buffers, column.nulls)
        indices.validate()
        return pa.DictionaryArray.from_arrays(indices, _array(column.dictionary), ordered=kind.ordered, safe=False)
    children = [_array(c) for c in column.children]
    return pa.Array.from_buffers(kind, column.rows, column.buffers, column.nulls, children=children)
