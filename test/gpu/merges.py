"""Random shuffles and merges of data frames of cuDF on a real GPU, compared with whole merges.

Each seed is a merge of clients/python/tests/random_merges.py, of which one side or both are frames
of cuDF, with keys of the types that cuDF has. Rows of equal keys are in the same partition, also if
the other side is of pandas, Polars or Arrow, and no row is lost. Two sides of cuDF are then merged
by cuDF, one side of cuDF and another by pandas: all partitions together are the whole merge.

    export PYTHONPATH=clients/python/src:clients/python/tests:$PYTHONPATH
    python3 test/gpu/merges.py FIRST LAST [SECONDS]

tries the seeds from FIRST to LAST - 1, or as many of them as SECONDS allow. It prints those that
differ and a table of the keys, and ends with 1 if any differs, or if cuDF does not take a type.
Needs cudf, pandas, polars and pyarrow.
"""

from __future__ import annotations

import collections
import random
import sys
import time
from typing import Any

import cudf
import pandas as pd
import polars as pl
import pyarrow as pa
from random_merges import Counts, Merge, Refused, as_pandas, tried

#: By library: the names of the types that frames of cuDF are not made of.
_LACKS = {
    "pandas": (
        *("float16", "complex", "period", "Sparse", "time64", "binary"),
        *("date32", "timestamp[us, tz", "list", "struct"),
    ),
    "polars": ("Int128", "UInt128", "Float16", "Time", "Binary", "Array", "List(Int128", "Struct({'a': Int128"),
    "arrow": ("halffloat", "time32", "time64", "date64", "binary", "large_binary", "decimal256", "string_view"),
}
#: Seeds between two looks at the clock.
_SEEDS = 10


def has(library: str, name: str, kind: Any) -> bool:
    """Returns whether cuDF makes a column of values of a library's type.

    Args:
        library: pandas, polars or arrow.
        name: the kind of key.
        kind: the type.
    """
    if library == "pandas" and kind is object:
        return name == "text"
    if library == "pandas" and name == "interval":
        return kind != "category"
    if library == "arrow" and (pa.types.is_fixed_size_list(kind) or name == "category of numbers"):
        return False
    return not str(kind).startswith(_LACKS[library])


class CudfMerge(Merge):
    """A merge that a seed makes, with frames of cuDF on one side or both."""

    def __init__(self, seed: int) -> None:
        #: Which sides are on the GPU.
        self.on_gpu = random.Random(~seed).choice(((True, True), (True, True), (True, False), (False, True)))
        super().__init__(seed)

    def _types(self, side: int, library: str, name: str) -> list[Any]:
        kinds = super()._types(side, library, name)
        return [k for k in kinds if has(library, name, k)] if self.on_gpu[side] else kinds

    def _missing(self, draw: random.Random, name: str, kind: Any) -> float:
        share = super()._missing(draw, name, kind)
        # pandas makes floats of integers of cuDF if some are missing.
        return share if all(self.on_gpu) or name != "large" else 0

    def __str__(self) -> str:
        return f"cuDF {self.on_gpu}, {super().__str__()}"

    def _frames(self, side: int) -> list[Any]:
        frames = super()._frames(side)
        if not self.on_gpu[side]:
            return frames
        # Of a frame without values cuDF finds no type: it has that of the others.
        some = [f for f in frames if len(f)] or frames[:1]
        made = [_to_cudf(f) for f in some]
        return made if len(some) == len(frames) else [*made, made[0].iloc[:0]]

    def _merged(self, left: Any, right: Any) -> list[tuple[int, int]]:
        if not all(self.on_gpu):
            self.library = "mixed"
            return super()._merged(_on_host(left), _on_host(right))
        try:
            both = left.merge(right, on=self.keys, how=self.how)
        except (TypeError, ValueError, NotImplementedError, RuntimeError, AttributeError) as e:
            raise Refused from e  # AttributeError: times of two units of which one side has no value
        rows = both[["a", "b"]].fillna(-1).astype("int64").to_pandas().to_numpy()
        return [tuple(row) for row in rows.tolist()]


class NotTaken(Exception):
    """cuDF does not make a frame with these types."""


def _to_cudf(frame: Any) -> cudf.DataFrame:
    if isinstance(frame, pl.DataFrame):
        frame = frame.to_arrow()
    try:
        if isinstance(frame, pa.Table):
            return cudf.DataFrame.from_arrow(frame.cast(pa.schema([_known(f) for f in frame.schema])))
        return cudf.from_pandas(frame)
    except Exception as e:
        raise NotTaken(f"{type(e).__name__}: {e}") from e


def _known(field: pa.Field) -> pa.Field:
    """Returns a field whose lists have offsets of 32 bits: cuDF takes no others."""
    kind = field.type
    return field.with_type(pa.list_(kind.value_type)) if pa.types.is_large_list(kind) else field


def _on_host(frame: Any) -> pd.DataFrame:
    try:
        return frame.to_pandas() if isinstance(frame, cudf.DataFrame) else as_pandas(frame)
    except (TypeError, ValueError, NotImplementedError) as e:
        raise Refused from e


def main() -> None:
    first, last = (int(a) for a in sys.argv[1:3])
    limit = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    begin, counts, at = time.monotonic(), Counts(), first
    while at < last and time.monotonic() - begin < limit:
        found = tried(at, min(at + _SEEDS, last), CudfMerge)
        for report in found.reports:
            print(report, flush=True)
        counts.update(found)
        at = min(at + _SEEDS, last)
    took = time.monotonic() - begin
    print(counts)
    causes = collections.Counter(report.rpartition("\n")[2][:160] for report in counts.reports)
    for cause, count in causes.most_common(20):
        print(f"{count:>6} {cause}")
    print(
        f"cuDF {cudf.__version__}: seeds {first} to {at}: {counts.by_name['all', 'tried']} shuffles and merges,"
        f" {len(counts.reports)} differ; {took:.0f} s"
    )
    sys.exit(1 if counts.reports else 0)


if __name__ == "__main__":
    main()
