"""Data frames in pieces: nothing is lost, equal keys meet, and order is kept."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from millrace._frames import _hash, _pieces

ROWS = 300
#: Numbers of Polars that Arrow does not know.
WIDE = (pl.Int128, pl.UInt128, pl.Float16)


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Returns one column of each type that can be split by."""
    rng = np.random.default_rng(7)
    number = rng.integers(-50, 50, rows)
    start = datetime.datetime(2020, 1, 1)
    return {
        "i64": number,
        "i8": number.astype(np.int8),
        "u64": number.astype(np.uint64),
        "f64": [None if n % 7 == 0 else n / 4 for n in number.tolist()],
        "f32": (number / 4).astype(np.float32),
        "flag": number > 0,
        "when": np.array([start + datetime.timedelta(days=int(n)) for n in number], "M8[ns]"),
        "lasts": number.astype("m8[s]"),
        "text": [None if n % 11 == 0 else "é" * (n % 5) + str(n) for n in number.tolist()],
    }


def pandas_frame() -> pd.DataFrame:
    frame = pd.DataFrame(columns())
    frame["object"] = frame["text"].astype(object)
    frame["category"] = frame["text"].astype("category")
    frame["Int64"] = frame["i64"].astype("Int64").mask(frame["i64"] % 5 == 0)
    frame["boolean"] = frame["flag"].astype("boolean").mask(frame["i64"] % 5 == 0)
    frame["arrow"] = frame["i64"].astype("int64[pyarrow]")
    frame["zone"] = frame["when"].dt.tz_localize("Europe/Berlin")
    frame["period"] = frame["when"].dt.to_period("D")
    frame.index = pd.Index(np.arange(ROWS) * 3, name="row")
    return frame


def arrow_table() -> pa.Table:
    table = pa.table(columns())
    text = table.column("text")
    return (
        table.append_column("large", text.cast(pa.large_string()))
        .append_column("view", text.cast(pa.string_view()))
        .append_column("bytes", text.cast(pa.binary()))
        .append_column("dictionary", text.dictionary_encode())
        .append_column("decimal", pa.array([decimal.Decimal(int(n)) for n in columns()["i64"]], pa.decimal128(9, 2)))
        .append_column("date", table.column("when").cast(pa.date32()))
        .append_column("nothing", pa.nulls(ROWS))
    )


def polars_frame() -> pl.DataFrame:
    frame = pl.DataFrame({name: c.astype("m8[ms]") if name == "lasts" else c for name, c in columns().items()})
    return frame.with_columns(category=pl.col("text").cast(pl.Categorical))


FRAMES = {"pandas": pandas_frame(), "arrow": arrow_table(), "polars": polars_frame()}
CASES = [
    (kind, label)
    for kind, frame in FRAMES.items()
    for label in (frame.schema.names if kind == "arrow" else frame.columns)
]


def rows_of(frame: Any) -> list[Any]:
    """Returns the rows as text, which can be compared where values are missing."""
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        frame = frame.to_pandas()
    elif isinstance(frame, pl.DataFrame):
        return [repr(row) for row in frame.rows()]
    return [repr(row) for row in frame.itertuples()]


def keys_of(frame: Any, label: str) -> list[str]:
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        return [repr(v) for v in frame.column(label).to_pylist()]
    return [repr(v) for v in (frame[label].to_list())]


@pytest.mark.parametrize(("kind", "label"), CASES)
@pytest.mark.parametrize("n", [1, 7, 300])
def test_equal_keys_meet_and_no_row_is_lost(kind: str, label: str, n: int) -> None:
    frame = FRAMES[kind]
    pieces = _pieces.split_by_hash(frame, label, n)
    assert len(pieces) == n and all(type(p) is type(frame) for p in pieces)
    seen: dict[str, int] = {}
    for at, piece in enumerate(pieces):
        for key in keys_of(piece, label):
            assert seen.setdefault(key, at) == at
    if n == 7 and len(seen) > 70:
        assert min(map(len, map(rows_of, pieces))) > 0, "the hash spreads the keys"
    back = _pieces.concatenate(pieces)
    index = kind == "pandas"
    assert sorted(rows_of(back)) == sorted(rows_of(frame)) if index else len(rows_of(back)) == ROWS


@pytest.mark.parametrize("kind", FRAMES)
def test_two_columns_are_one_key(kind: str) -> None:
    pieces = _pieces.split_by_hash(FRAMES[kind], ["flag", "text"], 5)
    seen: dict[tuple[str, str], int] = {}
    for at, piece in enumerate(pieces):
        for key in zip(keys_of(piece, "flag"), keys_of(piece, "text"), strict=True):
            assert seen.setdefault(key, at) == at
    assert len({at for at in seen.values()}) == 5


def test_the_hash_does_not_depend_on_the_storage() -> None:
    frame, table = pandas_frame(), arrow_table()
    for names in (["i64", "i8", "arrow"], ["text", "object", "category"]):
        first, *others = (_hash.hash_of(frame[n].array) for n in names)
        for other in others:
            np.testing.assert_array_equal(first, other)
    for name in ("large", "view", "dictionary", "bytes"):
        np.testing.assert_array_equal(_hash.hash_of(table.column("text")), _hash.hash_of(table.column(name)))
    np.testing.assert_array_equal(_hash.hash_of(table.column("text")), _hash.hash_of(frame["text"].array))
    np.testing.assert_array_equal(_hash.hash_of(table.column("when")), _hash.hash_of(table.column("date")))
    np.testing.assert_array_equal(
        _hash.hash_of(np.array(["2020-01-01"], "M8[ns]")), _hash.hash_of(np.array(["2020-01-01"], "M8[s]"))
    )
    assert _hash.hash_of(np.array([0.0])) == _hash.hash_of(np.array([-0.0]))


def alike() -> dict[str, list[Any]]:
    """Returns columns whose rows are equal, in different libraries and storages, by what they are."""
    day, time = datetime.date(1969, 12, 30), datetime.datetime(1969, 12, 30, 1, 2, 3, 4000)
    zone = datetime.timezone(datetime.timedelta(hours=5))
    lasts, clock = datetime.timedelta(days=-3, milliseconds=7), datetime.time(1, 2, 3, 4000)
    price = decimal.Decimal("-6.50")
    great = 10**30 + 1
    text = ["a", "\0", "naïve", "x" * 63, "y" * 64, "z" * 65, None]

    def objects(*values: Any) -> np.ndarray[Any, Any]:
        out = np.empty(len(values), object)
        out[:] = values
        return out

    return {
        "whole numbers": [
            *(np.array([-6, 0, 1]).astype(t) for t in ("i1", "i2", "i4", "i8", "f2", "f4", "f8")),
            *(pl.Series([-6, 0, 1], dtype=t) for t in (pl.Int8, pl.Int32, pl.Int64, pl.Int128, pl.Float16, pl.Float32)),
            *(pa.array([-6, 0, 1], t) for t in (pa.int8(), pa.int64(), pa.float32(), pa.decimal128(9, 2))),
            *(pl.Series([-6, 0, 1]).cast(pl.Decimal(20, s)) for s in (0, 1, 9)),
            objects(-6, False, True),
            objects(decimal.Decimal("-6.00"), -0.0, np.float32(1)),
            pd.array([-6, 0, 1], "Int16"),
            pd.array([-6, 0, 1], "int32[pyarrow]"),
            pd.Categorical([-6, 0, 1]),
            pd.arrays.SparseArray([-6, 0, 1]),
        ],
        "flags": [np.array([True, False]), np.array([1, 0]), pl.Series([True, False]), pa.array([True, False])],
        "large numbers": [
            np.array([2**53, 2**63], "u8"),
            np.array([2**53 + 1, 2**63], "u8"),
            np.array([2.0**53, 2.0**63]),
            objects(2**53 + 1, 2**63),
            pl.Series([2**53 + 1, 2**63], dtype=pl.UInt128),
            pa.array([decimal.Decimal(2**53 + 1), decimal.Decimal(2**63)], pa.decimal128(38, 9)),
        ],
        "greater numbers": [objects(great), objects(decimal.Decimal(great)), np.array([float(great)])],
        "endless": [
            objects(10**400),
            objects(
                10**400,
            ),
        ],
        "decimals": [
            *(pa.array([price], t) for t in (pa.decimal32(4, 2), pa.decimal64(9, 3), pa.decimal128(38, 30))),
            pa.array([price], pa.decimal256(60, 40)),
            objects(price),
            np.array([-6.5], "f4"),
            pl.Series([price], dtype=pl.Decimal(38, 20)),
        ],
        "missing": [
            np.array([np.nan]),
            objects(None),
            objects(np.nan),
            objects(pd.NA),
            pd.array([None], "Int64"),
            pd.array([None], "string"),
            pd.Categorical([None]),
            np.array(["NaT"], "M8[s]"),
            *(pl.Series([None], dtype=t) for t in (pl.Null, pl.Int8, pl.String, pl.Categorical, pl.Decimal(9, 2))),
            pl.Series([float("nan")]),
            pa.array([None], pa.dictionary(pa.uint32(), pa.string())),
            pa.array([None], pa.decimal128(9, 2)),
        ],
        "dates": [
            objects(day),
            pa.array([day], pa.date32()),
            pa.array([day], pa.date64()),
            pl.Series([day]),
            np.array([day], "M8[D]"),
            np.array([day], "M8[ns]"),
        ],
        "times": [
            *(np.array([time], f"M8[{u}]") for u in ("ms", "us", "ns")),
            *(pl.Series([time], dtype=pl.Datetime(u)) for u in ("ms", "us", "ns")),
            pl.Series([time]).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
            *(pa.array([time], pa.timestamp(u, tz="Asia/Tokyo")) for u in ("ms", "us", "ns")),
            objects(time),
            objects(pd.Timestamp(time)),
            objects(time.replace(tzinfo=datetime.timezone.utc).astimezone(zone)),
            pd.DatetimeIndex([time]).tz_localize("UTC").tz_convert("Europe/Berlin").array,
        ],
        "durations": [
            *(np.array([lasts], f"m8[{u}]") for u in ("ms", "us", "ns")),
            *(pl.Series([lasts], dtype=pl.Duration(u)) for u in ("ms", "us", "ns")),
            pa.array([lasts], pa.duration("ms")),
            objects(lasts),
            objects(pd.Timedelta(lasts)),
        ],
        "times of a day": [
            *(pa.array([clock], t) for t in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
            pl.Series([clock]),
            objects(clock),
        ],
        "text": [
            objects(*text),
            pd.array(text, "string"),
            pd.Categorical(text),
            *(pa.array(text, t) for t in (pa.string(), pa.large_string(), pa.string_view())),
            *(pa.array(text).dictionary_encode().cast(pa.dictionary(t, pa.string())) for t in (pa.int8(), pa.uint32())),
            pa.chunked_array([text[:3], text[3:]]),
            *(pl.Series(text, dtype=t) for t in (pl.String, pl.Categorical)),
            pl.Series(text, dtype=pl.Enum(["z" * 65, "a", "\0", "naïve", "x" * 63, "y" * 64])),
            pa.array([None if t is None else t.encode() for t in text], pa.binary()),
        ],
        "bytes": [
            pa.array([b"abc"], pa.binary(3)),
            pa.array([b"abc"]),
            pl.Series([b"abc"]),
            objects(b"abc"),
            objects(memoryview(b"abc")),
        ],
        "structs": [
            *(
                pa.array([{"a": 1, "b": "x"}], pa.struct([("a", t), ("b", pa.string())]))
                for t in (pa.int8(), pa.int64())
            ),
            pl.Series([{"a": 1, "b": "x"}]),
            pl.Series([{"b": "x", "a": 1}]),
            *(pl.Series([{"b": "x", "a": 1}], dtype=pl.Struct({"b": pl.String, "a": t})) for t in WIDE),
            objects({"a": 1, "b": "x"}),
            objects({"b": "x", "a": 1.0}),
        ],
        "lists": [
            pa.array([[1, 2], [], [3]]),
            pa.array([[9], [1, 2], [], [3]]).slice(1),
            pa.array([[1, 2], [], [3]], pa.large_list(pa.int8())),
            *(pl.Series([[1, 2], [], [3]], dtype=pl.List(t)) for t in (pl.UInt16, *WIDE)),
            objects((1, 2), (), (3,)),
            objects([1, 2], [], [3]),
            objects(np.array([1, 2]), np.array([], "f4"), np.array([3.0])),
        ],
        "lists of lists": [
            pa.array([[[1, 2], [3, 4]]]),
            objects([[1, 2], [3, 4]]),
            objects([np.array([1, 2]), np.array([3, 4])]),
            objects(np.array([[1, 2], [3, 4]])),
        ],
        "lists of structs": [
            pa.array([[{"a": 1}, {"a": None}]]),
            objects([{"a": 1}, {"a": None}]),
        ],
        "arrays": [
            *(pl.Series([[1, 2]], dtype=pl.Array(t, 2)) for t in (pl.Int8, *WIDE)),
            pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
            pa.array([[1, 2]]),
        ],
        "intervals": [
            *(
                pd.arrays.IntervalArray.from_tuples([(1, 2), None, (0, 1)]).astype(f"interval[{t}]")
                for t in ("f8", "f4")
            ),
            pd.cut(pd.Series([1.5, None, 0.5]), [0, 1, 2]).array,
            objects(pd.Interval(1, 2), None, pd.Interval(0.0, 1.0)),
            pa.array([{"left": 1, "right": 2}, None, {"left": 0, "right": 1}]),
        ],
        "intervals of times": [
            pd.IntervalIndex.from_breaks(pd.DatetimeIndex([time, time + lasts * -1])).array,
            objects(pd.Interval(pd.Timestamp(time), pd.Timestamp(time - lasts))),
        ],
        "periods": [pd.period_range("2020-01", periods=1, freq="M").array, objects(pd.Period("2020-01", "M"))],
        "no periods": [pd.array([pd.NaT], "period[M]"), objects(None)],
        "complex numbers": [
            objects(1 + 2j, 3 + 0j, 0 - 1j),
            objects(np.complex64(1 + 2j), 3, complex(-0.0, -1)),
            *(np.array([1 + 2j, 3, -1j], t) for t in ("c8", "c16")),
        ],
        "sets": [objects(frozenset([1, 9, 17])), objects(frozenset([17.0, 9, True]))],
        "clocks of zones": [
            objects(clock.replace(hour=7, tzinfo=zone)),
            objects(clock.replace(hour=2, tzinfo=datetime.timezone.utc)),
        ],
        "mixed": [objects(1, "a", (2, "b"), day, None), objects(1.0, "a", (2.0, "b"), day, np.nan)],
        "others": [objects(uuid.UUID(int=5), "x"), objects(uuid.UUID(int=5), "x")],
    }


def numbers_of(column: Any) -> list[int]:
    """Returns the partition of each value of a column, as a shuffle finds it."""
    if isinstance(column, pl.Series):
        frame: Any = pl.DataFrame({"k": column})
    elif isinstance(column, (pa.Array, pa.ChunkedArray)):
        frame = pa.table({"k": column})
    else:  # pandas 2 looks into objects for numbers, and some of them are too large
        frame = pd.DataFrame({"k": pd.Series(column, dtype=object) if column.dtype == object else column})
    return _pieces._library(frame).by_hash(frame, ["k"], 1 << 16).tolist()


def test_equal_values_meet_whatever_their_library_and_type() -> None:
    """A merge after two shuffles finds what a merge of the whole frames finds."""
    for kind, (first, *others) in alike().items():
        want = numbers_of(first)
        for other in others:
            assert numbers_of(other) == want, (kind, getattr(other, "dtype", getattr(other, "type", None)))


def test_decimals_without_a_buffer() -> None:
    """A column of another library without rows may have none."""
    none = pa.Array.from_buffers(pa.decimal128(9, 2), 0, [None, None])
    assert len(_hash.hash_of(none)) == 0


def test_intervals_meet_in_a_merge() -> None:
    """`pd.cut` makes categories of intervals; their values alone are objects."""
    cut = pd.cut(pd.Series([0.5, 1.5, 2.5]), [0, 1, 2, 3])
    left, right = pd.DataFrame({"k": cut, "a": [0, 1, 2]}), pd.DataFrame({"k": cut.astype(object), "b": [0, 1, 2]})
    pieces = zip(_pieces.split_by_hash(left, "k", 16), _pieces.split_by_hash(right, "k", 16), strict=True)
    assert sum(len(a.merge(b, on="k")) for a, b in pieces) == len(left.merge(right, on="k")) == 3


class Nameless:
    """Equal to others of its class, but its str is its address."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nameless)

    def __hash__(self) -> int:
        return 0


def test_objects_without_a_text_are_refused() -> None:
    with pytest.raises(
        TypeError, match=r"column 'who': .*test_frames\.Nameless, whose str\(\) is .* use a column with"
    ):
        _pieces.split_by_hash(pd.DataFrame({"who": [Nameless()]}), "who", 2)


def test_the_hash_of_text_does_not_depend_on_where_it_lies() -> None:
    """Text is hashed in pieces; long text by itself."""
    texts = ["", "a", "\0", "\0\0", "b" * 70_000, "c" * (1 << 17), "d" * 300_001, "tail"] * 3
    alone = [_hash.hash_of(pa.array([t]))[0] for t in texts]
    np.testing.assert_array_equal(_hash.hash_of(pa.array(texts)), alone)
    np.testing.assert_array_equal(_hash.hash_of(pa.array(["x", *texts]).slice(1)), alone)
    assert len(set(alone)) == 8


def test_hashes_are_the_same_for_ever() -> None:
    """Workers of different versions of a library split alike."""
    assert [int(h) for h in _hash.hash_of(np.array([0, 1, -1]))] == [0, 14730296289054721646, 15771317048433375563]
    text = pa.array(["", "a", "millrace", None])
    assert [int(h) for h in _hash.hash_of(text)] == [0, 16988867205281553178, 3618517422414009944, 7822362180758744021]


RANGES: dict[str, list[Any]] = {
    "i64": [-20, 0, 0, 30],
    "f64": [-5.0, 2.5],
    "when": [pd.Timestamp("2019-12-20"), pd.Timestamp("2020-01-05")],
    "text": ["-2", "2", "é"],
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("label", RANGES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("missing", ["first", "last"])
def test_ranges_follow_each_other(kind: str, label: str, descending: bool, missing: Any) -> None:
    edges = RANGES[label]
    pieces = _pieces.split_by_range(FRAMES[kind], label, edges, descending=descending, missing=missing)
    assert len(pieces) == len(edges) + 1
    assert sum(len(rows_of(p)) for p in pieces) == ROWS
    for at, piece in enumerate(pieces):
        values = [
            v
            for v in pd.Series(piece.column(label).to_pylist() if kind == "arrow" else piece[label].to_list())
            if not pd.isna(v)
        ]
        without = len(keys_of(piece, label)) - len(values)
        assert not without or at == (0 if missing == "first" else len(edges))
        place = len(edges) - at if descending else at
        if place:
            assert all(v >= edges[place - 1] for v in values)
        if place < len(edges):
            assert all(v < edges[place] for v in values)


def test_ordered_categories_are_split_by_their_order() -> None:
    kind = pd.CategoricalDtype(["low", "middle", "high"], ordered=True)
    frame = pd.DataFrame({"c": pd.Series(["high", "low", None, "middle", "low"], dtype=kind)})
    pieces = _pieces.split_by_range(frame, "c", ["middle", "high"])
    assert [p["c"].tolist()[:2] for p in pieces[:2]] == [["low", "low"], ["middle"]]
    assert pieces[2]["c"].tolist()[0] == "high" and len(pieces[2]) == 2


@pytest.mark.parametrize("kind", FRAMES)
def test_rows_of_a_piece_keep_their_order(kind: str) -> None:
    frame = FRAMES[kind]
    numbers = np.arange(ROWS) % 3
    pieces = _pieces.split_by_number(frame, numbers, 4)
    assert rows_of(pieces[3]) == []
    everything = rows_of(frame)
    if kind == "pandas":
        assert [rows_of(p) for p in pieces[:3]] == [everything[k::3] for k in range(3)]
    assert [keys_of(p, "i64") for p in pieces[:3]] == [keys_of(frame, "i64")[k::3] for k in range(3)]


def test_rows_that_are_in_order_are_not_copied() -> None:
    frame = pd.DataFrame({"a": np.arange(100.0)})
    pieces = _pieces.split_by_number(frame, np.repeat([0, 1], 50), 2)
    assert np.shares_memory(pieces[1]["a"].to_numpy(), frame["a"].to_numpy())


def test_series_are_frames_of_one_column() -> None:
    for series in (pd.Series([3, 1, 3], name="x"), pl.Series("x", [3, 1, 3])):
        pieces = _pieces.split_by_hash(series, "x", 2)
        assert sorted(len(p) for p in pieces) in ([1, 2], [0, 3])
        assert sorted(_pieces.concatenate(pieces).to_list()) == [1, 3, 3]


def test_categories_are_united() -> None:
    a, b = (pd.DataFrame({"c": pd.Series(list(t), dtype="category"), "x": range(2)}) for t in ("ab", "bc"))
    both = _pieces.concatenate([a, a.iloc[:0], b])
    assert both["c"].tolist() == list("abbc") and list(both["c"].cat.categories) == list("abc")
    assert a["c"].cat.categories.tolist() == ["a", "b"], "the input is as it was"
    assert _pieces.concatenate([a["c"], b["c"]]).tolist() == list("abbc")
    missing = pd.DataFrame({"c": pd.Series([None], dtype="category"), "x": [1]})
    both = _pieces.concatenate([missing, a])
    assert both["c"].isna().tolist() == [True, False, False] and list(both["c"].cat.categories) == ["a", "b"]
    numbers = pd.DataFrame({"c": pd.Series([1], dtype="category"), "x": [1]})
    assert _pieces.concatenate([numbers, a])["c"].tolist() == [1, "a", "b"]


def test_frames_without_rows() -> None:
    for frame in FRAMES.values():
        none = frame.slice(0, 0) if not isinstance(frame, pd.DataFrame) else frame.iloc[:0]
        pieces = _pieces.split_by_hash(none, "text", 3)
        assert [len(rows_of(p)) for p in pieces] == [0, 0, 0]
        back = _pieces.concatenate(pieces)
        assert len(rows_of(back)) == 0 and list(back.dtypes if isinstance(back, pd.DataFrame) else back.schema) == list(
            none.dtypes if isinstance(none, pd.DataFrame) else none.schema
        )


def test_bad_requests_are_named() -> None:
    frame = pd.DataFrame({"a": [1, 2], "l": [[1], [2]]})
    with pytest.raises(KeyError, match="no column 'b'; there are 'a', 'l'"):
        _pieces.split_by_hash(frame, "b", 2)
    with pytest.raises(ValueError, match="at least 1 piece"):
        _pieces.split_by_hash(frame, "a", 0)
    with pytest.raises(ValueError, match="from 0 to 1 are allowed"):
        _pieces.split_by_number(frame, [0, 2], 2)
    with pytest.raises(ValueError, match="one for each row"):
        _pieces.split_by_number(frame, [0], 2)
    with pytest.raises(ValueError, match="integers"):
        _pieces.split_by_number(frame, [0.5, 1.0], 2)
    with pytest.raises(TypeError, match=r"column 'm': rows cannot be split by .* type map"):
        _pieces.split_by_hash(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), "m", 2)
    with pytest.raises(TypeError, match=r"a builtins\.list is no data frame"):
        _pieces.split_by_hash([1], "a", 2)
    with pytest.raises(ValueError, match="nothing to put together"):
        _pieces.concatenate([])
    with pytest.raises(TypeError, match=r"frame 1 is a polars\.DataFrame"):
        _pieces.concatenate([frame, pl.DataFrame()])
