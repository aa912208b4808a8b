"""Data frames in pieces: nothing is lost, equal keys meet, and order is kept."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from millrace._frames import _hash, _pieces

ROWS = 300


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


def test_the_hash_of_text_does_not_depend_on_where_it_lies() -> None:
    """Text is hashed in pieces; long text by itself."""
    texts = ["", "a", "\0", "\0\0", "b" * 70_000, "c" * (1 << 17), "d" * 300_001, "tail"] * 3
    alone = [_hash.hash_of(pa.array([t]))[0] for t in texts]
    np.testing.assert_array_equal(_hash.hash_of(pa.array(texts)), alone)
    np.testing.assert_array_equal(_hash.hash_of(pa.array(["x", *texts]).slice(1)), alone)
    assert len(set(alone)) == 8


def test_hashes_are_the_same_for_ever() -> None:
    """Workers of different versions of a library split alike."""
    assert [int(h) for h in _hash.hash_of(np.array([0, 1, -1]))] == [0, 12258477386215270768, 1663893758788734347]
    text = pa.array(["", "a", "millrace", None])
    assert [int(h) for h in _hash.hash_of(text)] == [0, 16100440180781842370, 3244832412353690222, 7822362180758744021]


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
    with pytest.raises(TypeError, match="by the hash of a column of type list"):
        _pieces.split_by_hash(pa.table({"l": [[1]]}), "l", 2)
    with pytest.raises(TypeError, match=r"a builtins\.list is no data frame"):
        _pieces.split_by_hash([1], "a", 2)
    with pytest.raises(ValueError, match="nothing to put together"):
        _pieces.concatenate([])
    with pytest.raises(TypeError, match=r"frame 1 is a polars\.DataFrame"):
        _pieces.concatenate([frame, pl.DataFrame()])
