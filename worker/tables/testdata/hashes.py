"""Writes hashes.arrow: columns of many types, and for each the hashes of the Python client."""

import datetime
import decimal
import pathlib
import random

import pyarrow as pa
from millrace._frames import _hash

ROWS = 60
rng = random.Random(37)


def column(make, kind):
    return pa.array([None if rng.random() < 0.2 else make() for _ in range(ROWS + 3)], kind)[3:]


def whole(bits, signed=True):
    low = -(1 << (bits - 1)) if signed else 0
    return lambda: rng.choice([0, 1, low, low + (1 << bits) - 1, rng.randrange(low, low + (1 << bits))])


def real():
    return rng.choice([0.0, -0.0, 1.0, float("nan"), float("inf"), rng.gauss(0, 1)])


def text():
    return "".join(rng.choice("aé€\0") for _ in range(rng.choice([0, 1, 7, 8, 9, 12, 13, 40, 64, 65, 200])))


def decimals(digits, scale):
    return lambda: decimal.Decimal(rng.randrange(-(10**digits) + 1, 10**digits)).scaleb(-scale)


def day():
    return datetime.date(1970, 1, 1) + datetime.timedelta(rng.randrange(-50000, 50000))


decimal.getcontext().prec = 80
columns = {"null": pa.nulls(ROWS), "bool": column(lambda: rng.random() < 0.5, pa.bool_())}
for bits in (8, 16, 32, 64):
    columns[f"int{bits}"] = column(whole(bits), getattr(pa, f"int{bits}")())
    columns[f"uint{bits}"] = column(whole(bits, False), getattr(pa, f"uint{bits}")())
for kind in (pa.float32(), pa.float64()):
    columns[str(kind)] = column(real, kind)
columns["float16"] = columns["float"].cast(pa.float16())
for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
    columns[str(kind)] = column(text, pa.string()).cast(kind)
columns["fixed"] = column(lambda: rng.randbytes(9), pa.binary(9))
for unit in ("s", "ms", "us", "ns"):
    ticks = column(lambda: rng.randrange(-(10**12), 10**12), pa.int64())
    columns[f"timestamp {unit}"] = ticks.cast(pa.timestamp(unit, "UTC"))
    columns[f"duration {unit}"] = ticks.cast(pa.duration(unit))
    small = column(lambda: rng.randrange(86400), pa.int32() if unit in ("s", "ms") else pa.int64())
    columns[f"time {unit}"] = small.cast(pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
columns["date32"], columns["date64"] = column(day, pa.date32()), column(day, pa.date64())
for digits, scale in ((12, 2), (38, 5), (38, 30), (5, -3)):
    columns[f"decimal128 {digits} {scale}"] = column(decimals(digits, scale), pa.decimal128(digits, scale))
columns["decimal256"] = column(decimals(70, 4), pa.decimal256(76, 4))
columns["dictionary"] = column(lambda: rng.choice(["a", "b", "long " * 20]), pa.string()).dictionary_encode()
columns["list"] = column(lambda: [rng.choice([None, 1, 2]) for _ in range(rng.randrange(5))], pa.list_(pa.int32()))
columns["large_list"] = column(lambda: [text() for _ in range(rng.randrange(4))], pa.large_list(pa.string()))
columns["fixed_list"] = column(lambda: [real(), None], pa.list_(pa.float64(), 2))
pairs = pa.struct({"b": pa.int64(), "a": pa.list_(pa.string())})
columns["struct"] = column(lambda: {"b": 1, "a": rng.choice([None, [text()]])}, pairs)

fields = {}
for name, values in columns.items():
    fields[name] = values
    fields[name + " hash"] = pa.array(_hash.hash_of(values))
keys = [(name, columns[name]) for name in ("int64", "string", "list")]
fields["partition"] = pa.array(_hash.partitions(keys, 7), pa.uint32())
table = pa.table(fields)
with pa.OSFile(str(pathlib.Path(__file__).with_suffix(".arrow")), "wb") as file:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
