"""Random queries of Polars, divided within this process and compared with Polars' own engine.

A query is a list of steps, which are Python: a query that fails is printed as a program, after the
steps that do not matter were removed. `python random_plans.py FIRST LAST PROCESSES` tries the seeds
from FIRST up to LAST.

A query is only made if Polars itself has one answer to it. The generator therefore follows whether
the rows have an order, and which columns are exact: sums of floating-point numbers depend on the
order of their terms, so nothing is compared with them, sorted or grouped by them. These queries are
left out, because Polars gives several answers, or wrong ones:

- `head`, `first`, windows in order of the rows and the like, of rows without an order;
- keys and sorting by floating-point results of aggregates;
- variances of infinite values, or with `ddof=0`: that of a single one is 0 or NaN, and that of a
  group without values is 0 or null;
- `unnest` of a name that is there: Polars refuses it only if the column is read;
- relaxed concats of a number and a struct of one name: Polars refuses them only if the column is
  read, and a query in SQL, which is in one task, reads all columns of its inputs;
- the order of the rows of an `unpivot`, which Polars' streaming engine gives in blocks;
- `min` and `max` of lists in a `pivot`, which only one of Polars' engines refuses;
- `-x` of `Int128`, which Polars refuses unless nothing computes it;
- as-of joins whose right side has rows of the same key without an order;
- a slice of a horizontal concat of inputs with different numbers of rows: Polars refuses the
  concat, unless it moves the slice into each input, where the slices may have one number of rows.

The answers are those of Polars' in-memory engine. Its default engine, which tasks use, has others
for some queries: joins by NaN find rows that the in-memory engine misses if the keys are sorted,
and `dt.base_utc_offset` of the null that an aggregate gives panics. An answer that differs is
therefore right if it is that of the default engine, and a query that fails is left out if the
default engine fails with the same error.

The answers are compared exactly, but for these differences, which Polars' own threads make, too:

- rows without an order are sorted first;
- means and variances of floating-point numbers may differ in their last digits (`_CLOSE`), and so
  may what is computed from them;
- 0.0 and -0.0 are equal, and so is any NaN to any other: groups and joins keep one of them.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from in_process import InProcess, collect
from millrace._polars._options import Options
from random_data import FOLDER, run
from random_steps import Maker

#: Inexact results differ by this share of their size at most: Float32 has 7 digits, and a variance
#: loses some.
_CLOSE = 1e-5


@dataclasses.dataclass
class Plan:
    """A random query."""

    seed: int
    options: Options
    #: Python: the first gives a lazy frame, the others are applied to the lazy frame `t`.
    steps: list[str]
    #: The rows of the result have an order.
    ordered: bool = True
    #: Columns whose values depend on the order of additions.
    inexact: frozenset[str] = frozenset()

    def lazy(self) -> pl.LazyFrame:
        t: Any = None
        for step in self.steps:
            t = run(step, t)
        return t

    def __str__(self) -> str:
        text = "\n".join(f"t = {s}" for s in self.steps)
        return f"# seed {self.seed}, ordered: {self.ordered}, {self.options}\n{text}"


def make(seed: int) -> Plan:
    maker = Maker(seed)
    return Plan(seed, maker.options, maker.steps, maker.ordered, frozenset(maker.inexact))


# Comparing.


class RefusedError(Exception):
    """Polars itself cannot run a query."""


def difference(plan: Plan) -> str | None:
    """Returns how the answer of a divided query differs from that of Polars; None: it does not.

    Raises:
        RefusedError: Polars itself cannot run it.
    """
    lf = plan.lazy()
    try:
        want = lf.collect(engine="in-memory")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise RefusedError from error
    try:
        found = collect(lf, plan.options, InProcess())
    except (Exception, pl.exceptions.PanicException) as error:
        if _fails_so(lf, error):
            raise RefusedError from error
        return traceback.format_exc()
    wrong = _different(plan, found, want)
    return wrong if wrong is None or _different(plan, found, _by_default(lf, want)) is not None else None


def _fails_so(lf: pl.LazyFrame, error: BaseException) -> bool:
    """Reports whether the default engine of Polars fails with the same error, if slices may be moved
    or if they stay in place."""
    for options in (pl.QueryOptFlags(), pl.QueryOptFlags(slice_pushdown=False)):
        try:
            lf.collect(optimizations=options)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as other:
            if (type(other), str(other)) == (type(error), str(error)):
                return True
    return False


def _by_default(lf: pl.LazyFrame, want: pl.DataFrame) -> pl.DataFrame:
    """Returns the answer of the default engine of Polars; if it fails, that of the other one."""
    try:
        return lf.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return want


def _different(plan: Plan, found: pl.DataFrame, want: pl.DataFrame) -> str | None:
    if found.schema != want.schema:
        return f"schema {found.schema}, right is {want.schema}"
    if found.equals(want):
        return None
    if found.height != want.height:
        return f"{found.height} rows, right are {want.height}: {found.rows()[:20]}, right: {want.rows()[:20]}"
    names = sorted(found.columns, key=lambda n: n in plan.inexact)  # rows are sorted by exact columns first
    exact = len([n for n in names if n not in plan.inexact])
    return _different_rows(found.select(names).rows(), want.select(names).rows(), exact, plan.ordered)


def _different_rows(found: list[Any], want: list[Any], exact: int, ordered: bool) -> str | None:
    if not ordered:
        found, want = sorted(found, key=_key), sorted(want, key=_key)
    for at, (a, b) in enumerate(zip(found, want, strict=True)):
        if not (_same(a[:exact], b[:exact], 0) and _same(a[exact:], b[exact:], _CLOSE)):
            return f"row {at}: {a}, right is {b}"
    return None


def _key(row: Any) -> Any:
    return list(_words(row))


def _words(row: Any) -> Iterator[tuple[Any, ...]]:
    for each in row.values() if isinstance(row, dict) else row:
        if isinstance(each, (list, tuple, dict)):
            yield ("(",)
            yield from _words(each)
            yield (")",)
        elif isinstance(each, float):
            yield ("NaN",) if math.isnan(each) else ("float", each)
        else:
            yield ("repr", repr(each))


def _same(a: Any, b: Any, close: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or math.isclose(a, b, rel_tol=close, abs_tol=close / 10) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return list(a) == list(b or ()) and all(_same(a[k], b[k], close) for k in a)
    if isinstance(a, (list, tuple)):
        return (
            isinstance(b, type(a)) and len(a) == len(b) and all(_same(x, y, close) for x, y in zip(a, b, strict=True))
        )
    return a == b


def shrunk(plan: Plan) -> Plan:
    """Returns a plan that differs, too, with as few steps as possible. Its rows have no order,
    because a step may have been what gave them one."""
    if difference(dataclasses.replace(plan, ordered=False)) is None:
        return plan
    plan = dataclasses.replace(plan, ordered=False)
    at = len(plan.steps) - 1
    while at > 0:
        shorter = dataclasses.replace(plan, steps=plan.steps[:at] + plan.steps[at + 1 :])
        try:
            wrong = difference(shorter)
        except (Exception, pl.exceptions.PanicException):
            wrong = None
        if wrong is not None:
            plan = shorter
        at -= 1
    return plan


def tried(seed: int) -> tuple[bool, str | None]:
    """Tries a seed. Returns whether there was an answer to compare, and a report if it is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = make(seed)
        try:
            if difference(plan) is None:
                return True, None
        except RefusedError:
            return False, None
        plan = shrunk(plan)
        return True, f"{plan}\n{difference(plan)}"


def failures(seeds: Iterable[int], folder: Path) -> list[str]:
    """Returns the reports of the seeds whose answer is wrong.

    Args:
        seeds: of the queries.
        folder: a directory for files that they read.
    """
    FOLDER.path = folder
    return [report for seed in seeds if (report := tried(seed)[1]) is not None]


def _use(folder: Path) -> None:
    FOLDER.path = folder


def main() -> None:
    first, last, processes = (int(a) for a in sys.argv[1:4])
    begin, done, reports = time.monotonic(), 0, 0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, context.Pool(processes, _use, (Path(name),)) as pool:
        for i, (compared, report) in enumerate(pool.imap_unordered(tried, range(first, last), 20), 1):
            done += compared
            if i % 1000 == 0:
                print(f"{i} seeds tried, {i / (time.monotonic() - begin):.0f} a second", flush=True)
            if report is not None:
                reports += 1
                print(report, flush=True)
    took = time.monotonic() - begin
    print(
        f"seeds {first} to {last}: {done} plans compared, {last - first - done} that Polars refuses, {reports} differ; "
        f"{(last - first) / took:.0f} plans/s",
        flush=True,
    )
    sys.exit(1 if reports else 0)


if __name__ == "__main__":
    main()
