"""Writes relations.json.gz: random tables, and what Polars computes of them by group_by, sort, join
and concat."""

import base64
import datetime
import decimal
import gzip
import json
import pathlib
import random

import polars as pl
import pyarrow as pa

SEED, ROUNDS = 7, 60
NAN = float("nan")
TEXTS = ["", "a", "b", "é", "a longer text that lies outside of a view", "a longer text that lies outside of a vieW"]
START = datetime.datetime(2026, 1, 2, 3, 4, 5)
#: Columns by name: a type, and values of which rows are drawn.
COLUMNS = {
    "i8": (pl.Int8, [-128, -1, 0, 1, 127]),
    "i16": (pl.Int16, [-32768, 5, 32767]),
    "i32": (pl.Int32, [-(2**31), -1, 0, 2**31 - 1]),
    "i64": (pl.Int64, [-(2**63), -7, 0, 3, 2**62]),
    "u8": (pl.UInt8, [0, 1, 255]),
    "u16": (pl.UInt16, [0, 65535]),
    "u32": (pl.UInt32, [0, 7, 2**32 - 1]),
    "u64": (pl.UInt64, [0, 9, 2**64 - 1]),
    "f32": (pl.Float32, [NAN, -0.0, 0.0, 1.5, -2.25, float("inf")]),
    "f64": (pl.Float64, [NAN, -0.0, 0.0, 1e300, -1.5, 2.25, float("-inf")]),
    "bool": (pl.Boolean, [True, False]),
    "text": (pl.String, TEXTS),
    "bytes": (pl.Binary, [t.encode() for t in TEXTS]),
    "date": (pl.Date, [START.date(), datetime.date(1960, 1, 1)]),
    "when": (
        pl.Datetime("us", "UTC"),
        [START.replace(tzinfo=datetime.UTC), datetime.datetime(1950, 1, 1, tzinfo=datetime.UTC)],
    ),
    "time": (pl.Time, [START.time(), datetime.time(0)]),
    "lasts": (pl.Duration("ms"), [datetime.timedelta(-1), datetime.timedelta(0), datetime.timedelta(3)]),
    "decimal": (pl.Decimal(20, 3), [decimal.Decimal("1.250"), decimal.Decimal("-99999.125"), decimal.Decimal(0)]),
    "enum": (pl.Enum(["x", "b", "a"]), ["x", "b", "a"]),
    "category": (pl.Categorical, ["x", "b", "a", ""]),
    "null": (pl.Null, [None]),
}
NUMBERS = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "bool", "decimal"]
FUNCTIONS = {name: ["count", "len", "first", "last", "n_unique", "min", "max"] for name in COLUMNS}
for name in NUMBERS:
    FUNCTIONS[name] += ["sum", "mean", "var", "std"]
FUNCTIONS["lasts"] += ["sum"]


def series(rng, name, rows):
    kind, values = COLUMNS[name]
    some = rng.sample(values, rng.randint(1, len(values)))
    share = rng.choice([0, 0, 0.3, 1])
    return pl.Series(name, [None if rng.random() < share else rng.choice(some) for _ in range(rows)], dtype=kind)


def frame(rng, names, rows):
    return pl.DataFrame([series(rng, name, rows) for name in names])


def stored(df, level):
    table = df.to_arrow(compat_level=level)
    columns = [c.combine_chunks() for c in table.columns]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))
    return base64.b64encode(sink.getvalue().to_pybytes()).decode()


def cases(rng):
    rows = rng.choice([0, 1, 2, 30, 60])
    names = rng.sample(list(COLUMNS), 6)
    x = frame(rng, names, rows)
    by = rng.sample(names, rng.randint(1, 3))
    aggregations = [[n, f, f"{n}.{f}"] for n in names if n not in by for f in FUNCTIONS[n]]
    yield (
        "table.aggregate",
        [x],
        {"by": by, "aggregations": aggregations},
        x.group_by(by, maintain_order=True).agg(getattr(pl.col(n), f)().alias(a) for n, f, a in aggregations),
    )
    descending, last = [rng.random() < 0.5 for _ in by], [rng.random() < 0.5 for _ in by]
    x = x.with_row_index("row")
    options = {"by": by, "descending": descending, "nulls_last": last}
    yield "table.sort", [x], options, x.sort(by, descending=descending, nulls_last=last, maintain_order=True)
    on = [n for n in by if n not in ("category", "enum", "null", "decimal")]
    if not on:
        return
    y = frame(rng, list(dict.fromkeys([*on, *rng.sample(list(COLUMNS), 3)])), rng.choice([0, 1, 20]))
    for how in ("inner", "left", "semi", "anti"):
        equal = rng.random() < 0.5
        order = "left_right" if how in ("inner", "left") else "none"
        want = x.join(y, on=on, how=how, nulls_equal=equal, maintain_order=order)
        if how in ("semi", "anti"):
            want = want.sort("row")
        yield "table.join", [x, y], {"on": on, "how": how, "nulls_equal": equal}, want


def concats(rng):
    names = rng.sample(list(COLUMNS), 8)
    parts = [frame(rng, names, rng.choice([0, 1, 7, 8, 9, 30])) for _ in range(rng.randint(1, 6))]
    yield "table.concat", parts, {}, pl.concat(parts)


def main():
    rng = random.Random(SEED)
    out = []
    for part in [cases] * ROUNDS + [concats] * ROUNDS:
        level = rng.choice([pl.CompatLevel.oldest(), pl.CompatLevel.newest()])
        for op, tables, named, want in part(rng):
            out.append(
                {"op": op, "tables": [stored(t, level) for t in tables], "named": named, "want": stored(want, level)}
            )
    text = gzip.compress(json.dumps(out).encode(), mtime=0)
    (pathlib.Path(__file__).parent / "relations.json.gz").write_bytes(text)


main()
