"""Data frames as values: nothing of them changes, their bytes are stored once, and pieces have
frames of their own."""

from __future__ import annotations

import datetime
import decimal
import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from conftest import PATIENCE
from millrace import Client, native
from millrace._frames import _pieces
from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _arrow, _serialize, _tables

ROWS = 5000
WHEN = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)


def stored(encoded: _serialize.Encoded) -> list[memoryview]:
    """Returns the frames as a worker stores them."""
    out: list[memoryview] = []
    for frame in encoded.frames:
        room = bytearray(frame.nbytes)
        _serialize.write(frame, memoryview(room))
        out.append(memoryview(room))
    return out


def there_and_back(obj: Any, *, readonly: bool = True) -> Any:
    encoded = _serialize.encode(obj, strided=True)
    plain = _serialize.encode(obj)
    assert [bytes(f) for f in plain.frames] == [bytes(f) for f in stored(encoded)]
    return _serialize.decode(encoded.header, [f.toreadonly() for f in stored(encoded)], readonly=readonly)


def value_of(obj: Any) -> value_pb2.Value:
    return value_pb2.Value.FromString(_serialize.encode(obj, strided=True).header)


def cycle(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(ROWS)]


TEXT = cycle("a", None, "é" * 9, "", "a longer text that lies outside of a view")
PANDAS: dict[str, Any] = {
    **{
        t: np.arange(ROWS).astype(t)
        for t in ("i1", "u2", "i4", "u8", "f2", "f4", "c8", "M8[ns]", "M8[s]", "m8[ms]", "?")
    },
    "text": pd.Series(TEXT),
    "python text": pd.Series(TEXT, dtype=pd.StringDtype("python")),
    "objects": pd.Series(TEXT, dtype=object),
    "tuples": pd.Series(cycle((1, "a"), None, {2: 3}), dtype=object),
    "category": pd.Series(TEXT, dtype="category"),
    "ordered": pd.Series(pd.Categorical(cycle("x", "y"), ["y", "x"], ordered=True)),
    "Int16": pd.Series(cycle(1, None, 3), dtype="Int16"),
    "Float32": pd.Series(cycle(1.5, None), dtype="Float32"),
    "boolean": pd.Series(cycle(True, None), dtype="boolean"),
    "zone": pd.Series(cycle(WHEN, None)).dt.tz_localize("Europe/Berlin"),
    "period": pd.Series(cycle(pd.Period("2020-01"), None)),
    "interval": pd.Series(pd.interval_range(0, ROWS)),
    "sparse": pd.Series(pd.arrays.SparseArray(cycle(0, 0, 1))),
    "arrow int": pd.Series(cycle(1, None), dtype="int8[pyarrow]"),
    "arrow bool": pd.Series(cycle(True, None, False), dtype="bool[pyarrow]"),
    "arrow list": pd.Series(cycle([1], None, []), dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    "arrow view": pd.Series(
        pd.array(pa.array(TEXT, pa.string_view()).to_pylist(), dtype=pd.ArrowDtype(pa.large_string()))
    ),
}
INDEXES: dict[str, Any] = {
    "range": pd.RangeIndex(7, 7 + 2 * ROWS, 2, name="r"),
    "text": pd.Index([str(i) for i in range(ROWS)], name=("a", 1)),
    "dates": pd.date_range("2020", periods=ROWS, freq="h"),
    "multi": pd.MultiIndex.from_arrays([cycle(1, 2), cycle("x", "y", "z")], names=["n", None]),
    "category": pd.CategoricalIndex(cycle("p", "q")),
}
#: Rows that are taken before the encoding: everything, the first, the last, and some.
PARTS = {
    "all": slice(None),
    "first": slice(0, 9),
    "inner": slice(1003, 2009),
    "none": slice(4, 4),
    "steps": slice(3, None, 7),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", PANDAS)
def test_columns_of_pandas(name: str, part: str) -> None:
    frame = pd.DataFrame({"k": range(ROWS), name: PANDAS[name]}).iloc[PARTS[part]]
    frame.attrs["unit"] = "m"
    back = there_and_back(frame)
    pd.testing.assert_frame_equal(back, frame, check_freq=True)
    assert back.attrs == {"unit": "m"} and back.columns.equals(frame.columns)
    pd.testing.assert_series_equal(there_and_back(frame[name]), frame[name])


@pytest.mark.parametrize("name", INDEXES)
def test_indexes_of_pandas(name: str) -> None:
    frame = pd.DataFrame({("x", 1): range(ROWS), ("y", 2): TEXT}, index=INDEXES[name])
    pd.testing.assert_frame_equal(there_and_back(frame), frame)
    pd.testing.assert_frame_equal(there_and_back([frame.iloc[5:50]])[0], frame.iloc[5:50])


def arrow_table() -> pa.Table:
    base = {"i": range(ROWS), "t": TEXT, "f": cycle(1.5, None, float("nan")), "b": cycle(True, None)}
    table = pa.table(base, metadata={"from": "here"})
    text = table.column("t")
    more = {
        "large": text.cast(pa.large_string()),
        "view": text.cast(pa.string_view()),
        "bytes": text.cast(pa.binary()),
        "dictionary": text.dictionary_encode(),
        "fixed": pa.array(cycle(b"abc", None), pa.binary(3)),
        "decimal": pa.array(cycle(decimal.Decimal("1.25"), None), pa.decimal128(20, 3)),
        "when": pa.array(cycle(WHEN, None), pa.timestamp("us", "UTC")),
        "date": pa.array(cycle(WHEN.date(), None), pa.date32()),
        "time": pa.array(cycle(WHEN.time(), None), pa.time64("us")),
        "lasts": pa.array(cycle(datetime.timedelta(1), None), pa.duration("ns")),
        "list": pa.array(cycle([1, None], None, [])),
        "struct": pa.array(cycle({"a": 1, "b": "x"}, None)),
        "map": pa.array(cycle([("k", 1)], None), pa.map_(pa.string(), pa.int64())),
        "null": pa.nulls(ROWS),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


@pytest.mark.parametrize("part", ["all", "first", "inner", "none"])
@pytest.mark.parametrize("batch", [False, True])
def test_tables_of_arrow(part: str, batch: bool) -> None:
    rows = PARTS[part].indices(ROWS)
    table: Any = pa.concat_tables([arrow_table().slice(0, 1500), arrow_table().slice(1500)])
    table = table.slice(rows[0], rows[1] - rows[0])
    if batch:
        table = table.combine_chunks().to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], table.schema)
    back = there_and_back(table)
    assert type(back) is type(table)
    assert back.schema.equals(table.schema, check_metadata=True)
    assert repr(back.to_pylist()) == repr(table.to_pylist())  # NaN equals no NaN
    assert sum(f.nbytes for f in _serialize.encode(table).frames) <= 1.2 * sum(c.nbytes for c in table.columns) + 20_000


def polars_frame() -> pl.DataFrame:
    number = cycle(1, None, 3)
    return pl.DataFrame(
        {
            "i8": pl.Series(number, dtype=pl.Int8),
            "u64": pl.Series(number, dtype=pl.UInt64),
            "f32": pl.Series(cycle(1.5, None, float("nan")), dtype=pl.Float32),
            "b": cycle(True, None),
            "text": TEXT,
            "bytes": cycle(b"a", None, b""),
            "category": pl.Series(TEXT, dtype=pl.Categorical),
            "enum": pl.Series(cycle("x", None, "y"), dtype=pl.Enum(["y", "x"])),
            "when": pl.Series(cycle(WHEN, None), dtype=pl.Datetime("ns", "Europe/Berlin")),
            "date": cycle(WHEN.date(), None),
            "time": cycle(WHEN.time(), None),
            "lasts": cycle(datetime.timedelta(1), None),
            "decimal": pl.Series(cycle(decimal.Decimal("1.25"), None), dtype=pl.Decimal(20, 3)),
            "list": cycle(["a"], None, []),
            "array": pl.Series(cycle([1, 2], None), dtype=pl.Array(pl.Int64, 2)),
            "struct": cycle({"a": 1, "b": "x"}, None),
            "null": cycle(None),
            "categories": pl.Series(cycle(["a"], None), dtype=pl.List(pl.Categorical)),
        }
    )


@pytest.mark.parametrize("part", PARTS)
def test_frames_of_polars(part: str) -> None:
    frame = polars_frame()[PARTS[part]]
    back = there_and_back(frame)
    assert back.schema == frame.schema
    assert back.equals(frame)
    assert b"pickle" not in _serialize.encode(frame).header
    for series in frame:
        assert there_and_back(series).equals(series, check_names=True, check_dtypes=True)


def test_types_that_arrow_lacks() -> None:
    """Frames of Polars with them are pickled by Polars."""
    frame = pl.DataFrame({"wide": pl.Series([1, None], dtype=pl.Int128)})
    assert there_and_back(frame).equals(frame)


def test_bytes_are_stored_once() -> None:
    """A frame of one type is one frame, without a copy of its bytes; a slice has its own rows
    only."""
    frame = pd.DataFrame(np.random.default_rng(0).random((ROWS, 4)))
    encoded = _serialize.encode(frame, strided=True)
    assert len(encoded.frames) == 1 and encoded.nbytes == frame.to_numpy().nbytes
    assert np.shares_memory(np.frombuffer(encoded.frames[0], np.uint8), frame.to_numpy())
    text = pd.DataFrame({"t": pd.Series(TEXT * 4), "n": range(4 * ROWS)})
    whole = _serialize.encode(text, strided=True).nbytes
    parts = [_serialize.encode(text.iloc[a : a + ROWS], strided=True) for a in range(0, 4 * ROWS, ROWS)]
    assert sum(p.nbytes for p in parts) <= 1.01 * whole


def frames_of(value: value_pb2.Value) -> list[int]:
    return list(value.opaque_value.frames) or sorted({b.frame for b in value.table_value.buffers if b.bytes})


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars"])
def test_pieces_have_frames_of_their_own(kind: str) -> None:
    frame: Any = pd.DataFrame({"k": np.arange(40_000) % 97, "t": TEXT * 8})
    if kind != "pandas":
        frame = pa.Table.from_pandas(frame) if kind == "arrow" else pl.from_pandas(frame)
    pieces = _pieces.split_by_hash(frame, "k", 5)
    encoded = _serialize.encode(pieces, strided=True)
    values = value_pb2.Value.FromString(encoded.header).list_value.values
    assert len(values) == 5
    frames = [i for v in values for i in frames_of(v)]
    assert frames == list(range(len(encoded.frames))), "the frames of a piece follow each other"
    assert encoded.nbytes <= 1.4 * _serialize.encode(frame, strided=True).nbytes
    back = _serialize.decode(encoded.header, stored(encoded), readonly=True)
    for a, b in zip(back, pieces, strict=True):
        pd.testing.assert_frame_equal(*(f if kind == "pandas" else f.to_pandas() for f in (a, b)))
    for v, piece in zip(values, pieces, strict=True):
        table = v.opaque_value.table if kind == "pandas" else v.table_value
        assert table.rows == len(piece) and table.column_count == 2


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars"])
def test_many_pieces_have_a_small_header(kind: str) -> None:
    frame: Any = pd.DataFrame({"k": np.arange(10_000), "t": TEXT * 2, **{c: np.arange(1e4) for c in "abcdef"}})
    if kind != "pandas":
        frame = pa.Table.from_pandas(frame) if kind == "arrow" else pl.from_pandas(frame)
    pieces = _pieces.split_by_hash(frame, "k", 2000)
    encoded = _serialize.encode(pieces, strided=True)
    assert len(value_pb2.Value.FromString(encoded.header).list_value.values) == 2000
    assert len(encoded.header) < 512 << 10
    back = _serialize.decode(encoded.header, stored(encoded), readonly=True)
    assert {type(b) for b in back} == {type(frame)}
    # The pieces are compared as one: 2,000 conversions to pandas take seconds.
    assert [len(b) for b in back] == [len(p) for p in pieces]
    concat: Any = {"pandas": pd.concat, "arrow": pa.concat_tables, "polars": pl.concat}[kind]
    whole, expected = (t if kind == "pandas" else t.to_pandas() for t in map(concat, (back, pieces)))
    pd.testing.assert_frame_equal(whole, expected)


def test_descriptions() -> None:
    frame = pd.DataFrame({"a": [1.5], 2: ["x"], "\ud800": [True]})
    table = value_of(frame).opaque_value.table
    assert table.rows == 1 and table.column_count == 3
    assert [(c.name, c.type) for c in table.columns] == [("a", "float64"), ("2", "str"), ("?", "bool")]
    table: Any = value_of(pa.table({"t": [datetime.date(2020, 1, 1)]})).table_value
    assert [(c.name, c.type) for c in table.columns] == [("t", "date32[day]")]
    table = value_of(pl.Series("s", [[1]])).table_value
    assert [(c.name, c.type) for c in table.columns] == [("s", "List(Int64)")]
    table = value_of(pd.Series([1], name="n")).opaque_value.table
    assert [(c.name, c.type) for c in table.columns] == [("n", "int64")]
    wide = value_of(pd.DataFrame(np.zeros((2, 1000)))).opaque_value.table
    assert wide.column_count == 1000 and len(wide.columns) == 256
    assert (
        not value_of([frame])[0:0] if False else not value_of([frame]).list_value.values[0].opaque_value.table.columns
    )


def more_columns() -> list[Any]:
    """Columns of types that the tables above lack; all have three rows."""
    ids, codes = pa.array([0, 1, 0], pa.int8()), pa.array([0, None, 1], pa.int8())
    words = pa.array(["u", "v"])
    inner = pa.DictionaryArray.from_arrays(codes, words)
    outer = pa.DictionaryArray.from_arrays(codes, pa.StructArray.from_arrays([inner[:2], inner[1:]], ["x", "y"]))
    return [
        pa.UnionArray.from_sparse(ids, [pa.array([1, 2, 3]), inner]),
        pa.UnionArray.from_dense(ids, pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]),
        pa.RunEndEncodedArray.from_arrays([2, 3], ["r", None]),
        pa.array([[1], None, []], pa.list_view(pa.int64())),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, None, b"b" * 16], pa.binary(16))),
        pa.StructArray.from_arrays([inner, pa.array(["x" * 20, "", None], pa.string_view())], ["d", "v"]),
        pa.MapArray.from_arrays([0, 1, 1, 2], pa.array(["k", "l"]), pa.DictionaryArray.from_arrays([1, 0], words)),
        outer,
    ]


@pytest.mark.parametrize("at", range(8))
def test_rare_types_of_arrow(at: int) -> None:
    column = more_columns()[at]
    for first in range(4):
        table = pa.table({"a": [1, 2, 3], "x": column}, schema=pa.schema([("a", pa.int64()), ("x", column.type)]))
        part = table.slice(first)
        back = there_and_back([part])[0]
        back.validate(full=True)
        assert back.schema.equals(part.schema) and repr(back.to_pylist()) == repr(part.to_pylist())
        assert value_of(part).WhichOneof("kind") == "table_value"


def test_tables_without_columns_keep_their_rows() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), 7, [None]))
    assert there_and_back(batch).num_rows == 7
    assert there_and_back(pa.table({})).num_columns == 0


def test_tables_of_many_rows() -> None:
    """Arrow writes 2^31 rows and more only if it is told to."""
    table = pa.table({"n": pa.nulls(1 << 31)})
    assert there_and_back(table).num_rows == 1 << 31


def test_buffers_are_aligned() -> None:
    encoded = _serialize.encode(arrow_table().slice(3), strided=True)
    places = value_pb2.Value.FromString(encoded.header).table_value.buffers
    assert all(p.offset_bytes % 64 == 0 for p in places) and len(encoded.frames) == 1


def test_a_column_with_too_much_text_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its chunks have no place in one batch."""
    table = pa.table({"t": pa.chunked_array([TEXT, TEXT])})
    monkeypatch.setattr(_arrow, "_one_batch", lambda obj: None)
    assert value_of(table).opaque_value.table.rows == 2 * ROWS
    assert there_and_back(table).equals(table)


@pytest.mark.parametrize("seed", range(300))
def test_hostile_tables_are_errors(seed: int) -> None:
    """Any program may have written the header. A wrong number is an error, or a table whose buffers
    are inside of the frames."""
    encoded = _serialize.encode(arrow_table().slice(0, 50))
    value = value_pb2.Value.FromString(encoded.header)
    table, random = value.table_value, np.random.default_rng(seed)
    lists = [(n, f) for n in table.nodes for f in ("rows", "nulls")]
    lists += [(b, f) for b in table.buffers for f in ("frame", "offset_bytes", "bytes")]
    message, field = lists[random.integers(len(lists))]
    setattr(message, field, int(random.choice([0, 1, 7, 8, 49, 51, 1 << 20, (1 << 32) - 1])))
    try:
        _serialize.decode(value.SerializeToString(), encoded.frames, readonly=True)
    except (ValueError, pa.ArrowException):
        pass


def test_tables_of_other_programs() -> None:
    """They may have several frames, and no name of a type."""
    value = value_pb2.Value()
    table = value.table_value
    table.rows, table.schema = 3, bytes(pa.schema([("a", pa.int32()), ("b", pa.string())]).serialize())
    table.nodes.add(rows=3)
    table.nodes.add(rows=3, nulls=1)
    table.buffers.add()
    table.buffers.add(frame=1, bytes=12)
    table.buffers.add(frame=0, offset_bytes=8, bytes=1)
    table.buffers.add(frame=0, offset_bytes=16, bytes=16)
    table.buffers.add(frame=2, bytes=3)
    frames = [
        bytes(8) + b"\x05" + bytes(7) + np.array([0, 1, 1, 3], np.int32).tobytes(),
        np.arange(3, dtype=np.int32).tobytes(),
        b"xyz",
    ]
    back = _serialize.decode(value.SerializeToString(), [memoryview(f) for f in frames])
    assert back.to_pydict() == {"a": [0, 1, 2], "b": ["x", None, "yz"]}
    del table.buffers[-1]
    with pytest.raises(ValueError, match="fewer nodes or buffers"):
        _serialize.decode(value.SerializeToString(), [memoryview(f) for f in frames])


def test_decoded_tables_share_the_frame() -> None:
    for obj in (pa.table({"x": np.arange(ROWS)}), pl.DataFrame({"x": np.arange(ROWS)})):
        encoded = _serialize.encode(obj, strided=True)
        (room,) = stored(encoded)
        back = _serialize.decode(encoded.header, [room], readonly=True)
        before = back["x"].to_numpy().copy()
        memory = np.frombuffer(room, np.uint8)
        at = bytes(room).index(before.tobytes())
        memory[at] = 77
        assert back["x"].to_numpy()[0] == 77


def test_trees_with_frames() -> None:
    frame = pd.DataFrame({"x": np.arange(float(ROWS))})
    tree = {"f": frame, "l": [frame, 1, np.arange(3)], "p": frame.iloc[:3]}
    encoded = _serialize.encode(tree, strided=True)
    assert encoded.nbytes < 1.2 * frame["x"].nbytes, "the frame is stored once"
    back = there_and_back(tree)
    pd.testing.assert_frame_equal(back["f"], frame)
    pd.testing.assert_frame_equal(back["l"][0], frame)
    assert value_of(tree).WhichOneof("kind") == "map_value"


def test_a_tree_that_is_no_value_is_pickled_once() -> None:
    class Counted(pd.DataFrame):
        pass

    frame = pd.DataFrame({"x": [1]})
    tree = [frame, (1, 2)]  # tuples are no typed values
    assert value_of(tree).WhichOneof("kind") == "opaque_value"
    back = there_and_back(tree)
    pd.testing.assert_frame_equal(back[0], frame)
    assert back[1] == (1, 2)
    assert _tables.library_of(Counted) == "", "subclasses pickle as they like"


def test_slices_in_pickles_are_compact() -> None:
    """Objects around tables of Arrow, which are no data frames themselves."""
    table = arrow_table()
    for part in (table.slice(1003, 100), table.combine_chunks().to_batches()[0].slice(1003, 100)):
        encoded = _serialize.encode((1, part), strided=True)
        # 16 columns of 100 rows, and the dictionary.
        assert encoded.nbytes + len(encoded.header) < 40_000 < len(pickle.dumps(table))
        assert repr(there_and_back((1, part))[1].to_pylist()) == repr(part.to_pylist())


@pytest.mark.parametrize("array", [c.combine_chunks() for c in arrow_table().columns], ids=arrow_table().schema.names)
@pytest.mark.parametrize("at", [0, 8, 1003])
def test_compact_arrays_are_equal(array: Any, at: int) -> None:
    part = array.slice(at, 501)
    small = _tables.compact(part)
    small.validate(full=True)
    assert repr(small.to_pylist()) == repr(part.to_pylist()) and small.type == part.type


def test_a_payload_of_another_encoding_is_refused() -> None:
    value = value_of(pd.DataFrame({"x": [1]}))
    value.opaque_value.encoding = "feather"
    with pytest.raises(ValueError, match="payload of encoding 'feather'"):
        _serialize.decode(value.SerializeToString(), [memoryview(b"")])


# ---- in a cluster --------------------------------------------------------------------------------


def split(frame: Any, n: int) -> Any:
    return _pieces.split_by_hash(frame, "i", n)


def join(number: int, *splits: Any) -> Any:
    return _pieces.concatenate([s[number] for s in splits])


@pytest.mark.parametrize("kind", ["pandas", "arrow", "polars"])
def test_a_shuffle_by_tasks(client: Client, kind: str) -> None:
    frame: Any = pd.DataFrame({"i": np.arange(20_000) % 311, "t": TEXT * 4})
    half = frame.iloc[:9000], frame.iloc[9000:]
    if kind != "pandas":
        half = tuple(pa.Table.from_pandas(h) if kind == "arrow" else pl.from_pandas(h) for h in half)
    splits = [client.submit(split, client.scatter(h), 3) for h in half]
    joined = client.gather([client.submit(join, n, *splits) for n in range(3)])
    assert {type(j) for j in joined} == {type(half[0])}
    keys = [set(np.asarray(j["i"]).tolist()) for j in joined]
    assert sum(map(len, keys)) == 311 and set.union(*keys) == set(range(311))
    assert sum(len(j) for j in joined) == 20_000


@pytest.mark.parametrize("kind", ["arrow", "polars"])
def test_the_pieces_of_the_operation_are_those_of_the_client(client: Client, kind: str) -> None:
    """Each column is a key once, also beside another one."""
    frame = arrow_table().slice(7, 600).combine_chunks() if kind == "arrow" else polars_frame()[7:607]
    stored = client.scatter(frame)
    names = [n for n in (frame.column_names if kind == "arrow" else frame.columns) if n != "map"]
    keys = [[n] for n in names] + [[n, "date"] for n in names[:4]]
    native_pieces = client.gather([client.submit(native("table.partition"), stored, key, 7) for key in keys])
    for key, pieces in zip(keys, native_pieces, strict=True):
        for got, want in zip(pieces, _pieces.split_by_hash(frame, key, 7), strict=True):
            assert got.schema == want.schema, key
            if kind == "polars":
                assert got.equals(want), key
            else:
                assert repr(got.to_pylist()) == repr(want.to_pylist()), key  # NaN equals no NaN


@pytest.mark.parametrize("rows", [0, 3, ROWS])
def test_results_of_every_size(client: Client, rows: int) -> None:
    """Small ones come with the header, larger ones from the slab."""
    for frame in (
        pd.DataFrame({"t": TEXT[:rows]}),
        pa.table({"t": pa.array(TEXT[:rows], pa.string())}),
        pl.DataFrame({"t": TEXT[:rows]}, schema={"t": pl.String}),
    ):
        back = client.submit(lambda f: [f, f[:2]], frame, pure=False).result(PATIENCE)
        assert back[0].equals(frame) and len(back[1]) == min(rows, 2)
        again = client.submit(lambda f: f, client.scatter(frame), pure=False).result(PATIENCE)
        assert again.equals(frame)
