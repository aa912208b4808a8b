"""Writes slices.json, arrow.arrow and polars.arrow: tables and what Polars' slice selects of them.

The first batch of each stream is the table. The others are the results of the calls of slices.json,
in their order: [start, length].
"""

import datetime
import decimal
import json
import pathlib

import polars as pl
import pyarrow as pa

ROWS = 21
CASES = [(start, length) for start in (0, 1, 8, 13, 21, 30, -1, -9, -21, -25) for length in (None, 0, 1, 5, 8, 100)]


def cycle(*values):
    return [values[i % len(values)] for i in range(ROWS)]


TEXT = cycle("a", None, "é" * 9, "", "a longer text that lies outside of a view")
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5)


def arrow_table():
    columns = {
        "i64": pa.array(cycle(1, None, -3)),
        "u8": pa.array(list(range(ROWS)), pa.uint8()),
        "f32": pa.array(cycle(1.5, None, float("inf")), pa.float32()),
        "bool": pa.array(cycle(True, None, False, True)),
        "text": pa.array(TEXT),
        "large": pa.array(TEXT, pa.large_string()),
        "view": pa.array(TEXT, pa.string_view()),
        "bytes": pa.array(cycle(b"abc", None, b""), pa.binary()),
        "fixed": pa.array(cycle(b"abc", None), pa.binary(3)),
        "dictionary": pa.array(TEXT).dictionary_encode(),
        "decimal": pa.array(cycle(decimal.Decimal("1.25"), None), pa.decimal128(20, 3)),
        "when": pa.array(cycle(WHEN, None), pa.timestamp("us", "UTC")),
        "date": pa.array(cycle(WHEN.date(), None)),
        "list": pa.array(cycle([1, None], None, [], [2])),
        "texts": pa.array(cycle(["x", None], None, [], ["y" * 20]), pa.list_(pa.string())),
        "pairs": pa.array(cycle([1, 2], None), pa.list_(pa.int32(), 2)),
        "struct": pa.array(cycle({"a": 1, "b": "x"}, None, {"a": None, "b": None})),
        "map": pa.array(cycle([("k", 1)], None, []), pa.map_(pa.string(), pa.int64())),
        "null": pa.nulls(ROWS),
        "deep": pa.array(cycle([{"t": ["u"]}], None, []), pa.list_(pa.struct([("t", pa.list_(pa.string()))]))),
    }
    return pa.table(columns, metadata={"unit": "m"})


def polars_frame():
    return pl.DataFrame(
        {
            "i8": pl.Series(cycle(1, None, 3), dtype=pl.Int8),
            "text": TEXT,
            "category": pl.Series(TEXT, dtype=pl.Categorical),
            "enum": pl.Series(cycle("x", None, "y"), dtype=pl.Enum(["y", "x"])),
            "list": cycle(["a"], None, []),
            "array": pl.Series(cycle([1, 2], None), dtype=pl.Array(pl.Int64, 2)),
            "struct": cycle({"a": 1, "b": "x"}, None),
            "when": pl.Series(cycle(WHEN, None), dtype=pl.Datetime("ns", "Europe/Berlin")),
        }
    )


def batch(table):
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def write(name, batches):
    with pa.ipc.new_stream(HERE / name, batches[0].schema) as stream:
        for b in batches:
            stream.write(b)


HERE = pathlib.Path(__file__).parent
table, frame = arrow_table(), polars_frame()
rows = pl.Series(range(ROWS))
picked = [rows.slice(start, length).to_list() for start, length in CASES]
write("arrow.arrow", [batch(table), *(batch(table.slice(p[0] if p else 0, len(p))) for p in picked)])
write("polars.arrow", [batch(f.to_arrow()) for f in (frame, *(frame.slice(*c) for c in CASES))])
(HERE / "slices.json").write_text(json.dumps(CASES) + "\n")
