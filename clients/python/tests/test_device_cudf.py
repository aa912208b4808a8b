"""Tests of objects of cuDF as values, and in pieces. The test plays the worker, on a fake driver with
fakes of CuPy, RMM and cuDF."""

# ruff: noqa: F811

from __future__ import annotations

import decimal
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from executor_worker import text_of
from millrace._frames import _cudf, _pieces
from millrace._pb.millrace.v1 import value_pb2
from millrace._values import _serialize
from test_device import _DELAY, FAKES, DeviceWorker, Fake, Recycling, setup
from test_device import fake as fake

MIB = 1 << 20
ROWS = 3000

#: The fakes, between the tests: no other test may find them.
_KEPT: dict[str, Any] = {}

cloudpickle.register_pickle_by_value(__import__(__name__))


@pytest.fixture
def cudf(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake of cuDF, in this process too."""
    setup(fake, monkeypatch)
    monkeypatch.syspath_prepend(FAKES)
    sys.modules.update(_KEPT)
    import cudf

    yield cudf
    _KEPT.update({n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("cudf", "cupy", "rmm")})
    for name in _KEPT:
        del sys.modules[name]


@pytest.fixture
def worker(cudf: Any, fake: Fake) -> Iterator[Recycling]:
    w = Recycling(fake)
    yield w
    fake.set(_DELAY, 0)
    w.end()


def host_frame(rows: int = ROWS) -> pd.DataFrame:
    number = np.arange(rows)
    text = [None if n % 11 == 0 else "é" * (n % 5) + str(n % 97) for n in range(rows)]
    return pd.DataFrame(
        {
            "i64": number % 97,
            "f32": (number / 4).astype("f4"),
            "missing": pd.Series([None if n % 5 == 0 else n for n in range(rows)], dtype="Int64"),
            "text": pd.Series(text, dtype="str"),
            "category": pd.Series(text, dtype="category"),
        }
    ).set_axis(pd.Index(number * 3, name="row"))  # after the columns: pandas would align them


def made(kind: str) -> Any:
    import cudf

    frame: Any = cudf.from_pandas(host_frame())
    kinds = {
        "frame": lambda: frame,
        "slice": lambda: frame.iloc[1003:2009],
        "empty": lambda: frame.iloc[:0],
        "text": lambda: frame["text"],
        "numbers": lambda: frame["i64"],
        "index": lambda: frame.index,
        "range": lambda: cudf.RangeIndex(3, 99, 2),
        "list": lambda: [frame, frame["text"], 1],
        "pickle": lambda: (frame, {3: frame["text"]}),
        "dtype": lambda: frame["category"].dtype,
    }
    return kinds[kind]()


KINDS = ["frame", "slice", "empty", "text", "numbers", "index", "range", "list", "pickle", "dtype"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "categories"):
        return a.ordered == b.ordered and same(a.categories, b.categories)
    return type(a) is type(b) and (a.to_pandas().equals(b.to_pandas()) if hasattr(a, "to_pandas") else a == b)


def passed_on(kind: str, given: Any) -> Any:
    assert same(made(kind), given), kind
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_objects_of_cudf_are_results_and_inputs(worker: DeviceWorker, fake: Fake, kind: str) -> None:
    fake.set(_DELAY, 2_000)
    first = worker.call(made, kind)
    second = worker.call(passed_on, kind, worker.again(first))
    fake.set(_DELAY, 0)
    assert same(worker.value(second), made(kind)), "a client with cuDF reads it"


def test_frames_of_cudf_stay_where_they_are(worker: DeviceWorker) -> None:
    def address(frame: Any) -> int:
        from millrace.executor import _process

        process: Any = _process._process
        return frame._columns["i64"].data.ptr - process.runner.memory.device.base

    first = worker.call(made, "frame")
    assert worker.value(worker.call(address, worker.again(first))) in {f.offset for f in first.frames}
    again = worker.call(lambda f: f, worker.again(first))
    assert {f.offset for f in again.frames} == {f.offset for f in first.frames}, "a result that is an input"


def test_a_write_to_an_input_is_one_to_a_copy(worker: DeviceWorker) -> None:
    def write(frame: Any) -> int:
        data = frame._columns["i64"].data
        data.write(np.full(data.size // 8, -1))
        return int(frame["i64"].to_pandas().sum())

    first = worker.call(made, "frame")
    # The process checks that its inputs stay as they were.
    assert worker.value(worker.call(write, worker.again(first))) == -ROWS
    assert same(worker.value(first), made("frame"))


def test_results_of_cudf_lie_in_memory_of_the_slab(cudf: Any, fake: Fake) -> None:
    w = Recycling(fake, arena_bytes=4 * MIB, arena_libraries=["rmm"])

    def make() -> Any:
        import cudf
        from millrace.executor import _process

        process: Any = _process._process
        frame = cudf.from_pandas(pd.DataFrame({"x": np.arange(100_000), "y": np.ones(100_000)}))
        print(*[c.data.ptr - process.runner.memory.device.base for c in frame._columns.values()])
        return frame

    w.call(lambda: __import__("cudf") and None)
    got = w.call(make)
    assert set(map(int, text_of(w, w.runs).split())) <= {f.offset for f in got.frames}
    assert w.leased == w.released and len(w.value(got)) == 100_000
    w.end()


@pytest.mark.parametrize("where", ["the writer", "the reader"])
def test_spilling_of_cudf_is_a_matter_of_one_process(
    cudf: Any, fake: Fake, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def make() -> Any:
        frame: Any = made("frame")
        data = frame._columns["i64"].data
        if hasattr(data.owner, "spill"):
            data.owner.spill()
        return frame

    def kind(given: Any) -> str:
        passed_on("frame", given)
        return type(given._columns["f32"].data).__name__

    if where == "the writer":
        monkeypatch.setenv("CUDF_SPILL", "on")
    writer = Recycling(fake)
    first = writer.call(make)
    objects = [bytes(writer.memory(f.offset, f.size_bytes)) for f in first.frames]
    writer.end()
    monkeypatch.setenv("CUDF_SPILL", "on" if where == "the reader" else "off")
    reader = Recycling(fake)
    given = reader.again(first)
    at = 1 << 20
    for frame, data in zip(given.frames, objects, strict=True):
        reader.gpu.put(reader.at + at, data)
        frame.offset, at = at, at + (len(data) + 255) // 256 * 256
    found = reader.value(reader.call(kind, given))
    assert found == ("SpillableBuffer" if where == "the reader" else "Buffer")
    reader.end()


def test_the_header_describes_a_frame_of_cudf(cudf: Any) -> None:
    encoded = _serialize.encode(made("frame"))
    opaque = value_pb2.Value.FromString(encoded.header).opaque_value
    assert opaque.encoding == "cudf" and opaque.table.rows == ROWS
    assert [c.name for c in opaque.table.columns] == ["i64", "f32", "missing", "text", "category"]


def test_a_reader_without_cudf_hears_what_to_do(cudf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = _serialize.encode(made("frame"))
    frames = [f.tobytes() for f in encoded.frames]
    with monkeypatch.context() as patch, pytest.raises(ImportError, match="only where cudf is installed"):
        patch.setitem(sys.modules, "cudf", None)
        _serialize.decode(encoded.header, frames)


# ---- pieces --------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["i64", "f32", "missing", "text", "category"])
def test_equal_keys_of_cudf_meet(cudf: Any, label: str) -> None:
    frame: Any = made("frame")
    halves = [_pieces.split_by_hash(f, label, 7) for f in (frame.iloc[: ROWS // 3], frame.iloc[ROWS // 3 :])]
    joined = [_pieces.concatenate(list(pieces)) for pieces in zip(*halves, strict=True)]
    assert sum(map(len, joined)) == ROWS and sum(len(j) > 0 for j in joined) > 3
    keys = [set(map(repr, j[label].to_pandas())) for j in joined]
    assert sum(map(len, keys)) == len(set(map(repr, frame[label].to_pandas())))


def test_keys_of_cudf_meet_whatever_their_width(cudf: Any) -> None:
    def pieces(dtype: str) -> list[set[Any]]:
        frame = cudf.from_pandas(pd.DataFrame({"k": np.arange(100).astype(dtype)}))
        return [set(p["k"].to_pandas().tolist()) for p in _pieces.split_by_hash(frame, "k", 5)]

    for narrow, wide in (("int32", "int64"), ("uint8", "int64"), ("float32", "float64")):
        assert pieces(narrow) == pieces(wide), narrow
    flags = cudf.from_pandas(pd.DataFrame({"k": pd.Series([True, None, False] * 9, dtype="boolean")}))
    number = [set(p["k"].to_pandas().dropna()) for p in _pieces.split_by_hash(flags, "k", 5)]
    assert [f <= w for f, w in zip(number, pieces("int64"), strict=True)] == [True] * 5
    missing = cudf.from_pandas(pd.DataFrame({"k": pd.Series([None, *range(1, 50)], dtype="Int16")}))
    split = _pieces.split_by_hash(missing, "k", 5)
    whole = pieces("int64")
    for j, piece in enumerate(split):
        assert set(piece["k"].to_pandas().dropna().astype(int)) <= whole[j]


def test_decimals_of_cudf_meet_equal_numbers(cudf: Any) -> None:
    """An Index of cuDF has no decimals, so they have no codes."""
    values = [decimal.Decimal(n) / 4 for n in range(-50, 50)]
    floats = cudf.from_pandas(pd.DataFrame({"k": [float(v) for v in values]}))
    want = [set(p["k"].to_pandas()) for p in _pieces.split_by_hash(floats, "k", 5)]
    for scale in (2, 9):
        frame = cudf.Series([None, *values], dtype=cudf.Decimal128Dtype(38, scale), name="k").to_frame()
        pieces = [p["k"].to_pandas() for p in _pieces.split_by_hash(frame, "k", 5)]
        assert sum(map(len, pieces)) == 101 and [set(map(float, p.dropna())) for p in pieces] == want, scale


@pytest.mark.parametrize(
    ("dtype", "unit"),
    [
        (np.dtype("M8[ms]"), "ms"),
        (np.dtype("m8[ns]"), "ns"),
        (pd.ArrowDtype(pa.timestamp("us")), "us"),
        (pd.ArrowDtype(pa.duration("s")), "s"),
        (pd.ArrowDtype(pa.timestamp("us", "UTC")), None),
        (pd.DatetimeTZDtype("us", "UTC"), None),
        (pd.ArrowDtype(pa.date32()), None),
        (np.dtype("i8"), None),
    ],
)
def test_units_of_times_of_cudf(dtype: Any, unit: str | None) -> None:
    """Series of cuDF have types of NumPy, pandas and Arrow. Times with a zone are hashed by the host."""
    assert _cudf._unit(dtype) == unit


def test_ranges_of_cudf(cudf: Any) -> None:
    frame: Any = made("frame")
    pieces = _pieces.split_by_range(frame, "i64", [10, 50], descending=True)
    assert [int(p["i64"].to_pandas().min()) for p in pieces] == [50, 10, 0]
    for missing, at in (("last", -1), ("first", 0)):
        pieces = _pieces.split_by_range(frame, "missing", [100, 1000], missing=missing)  # pyright: ignore[reportArgumentType]
        assert int(pieces[at]["missing"].to_pandas().isna().sum()) == ROWS // 5 and sum(map(len, pieces)) == ROWS


def test_a_series_of_cudf_is_split_by_its_name(cudf: Any) -> None:
    series: Any = made("numbers")
    pieces = _pieces.split_by_hash(series, "i64", 3)
    assert sum(map(len, pieces)) == ROWS and all(type(p) is cudf.Series for p in pieces)
    assert _pieces.concatenate(pieces[:1]) is pieces[0], "one piece needs no copy"


def test_numbers_of_pieces_are_checked(cudf: Any) -> None:
    import cupy

    frame: Any = made("frame")
    with pytest.raises(ValueError, match="one for each row"):
        _pieces.split_by_number(frame, cupy.arange(3), 4)
    with pytest.raises(ValueError, match="partition numbers from 0 to 2999: from 0 to 3 are allowed"):
        _pieces.split_by_number(frame, cupy.arange(ROWS), 4)
