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
- joins by floating-point numbers: NaN of a file and NaN of a `group_by` are not always equal there;
- variances of infinite values, or with `ddof=0`: that of a single one is 0 or NaN, and that of a
  group without values is 0 or null;
- `unnest` of a name that is there: Polars refuses it only if the column is read.
"""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any

import polars as pl
from in_process import InProcess, collect
from millrace._polars._options import Options

KINDS = {
    "i": pl.Int64(), "j": pl.Int32(), "u": pl.UInt8(), "f": pl.Float64(), "g": pl.Float32(), "b": pl.Boolean(), "s": pl.String(),
    "c": pl.Categorical(), "e": pl.Enum(["no", "yes", "perhaps"]), "d": pl.Date(), "w": pl.Datetime("us"), "m": pl.Decimal(12, 2),
    "v": pl.Duration("ms"), "l": pl.List(pl.Int64), "n": pl.Struct({"a": pl.Int64, "z": pl.String}),
}  # fmt: skip
SIZES = (0, 1, 9, 20, 30, 45, 60, 60)
#: Rows that a query may have before it is joined.
MOST_ROWS = 2000


def value(kind: str, r: random.Random) -> Any:
    """Returns a random value of a column. Numbers are multiples of 0.5, so that sums are exact."""
    if r.random() < 0.12:
        return None
    match kind:
        case "i":
            return r.choice([r.randrange(-5, 60), r.randrange(-1 << 40, 1 << 40)])
        case "j" | "u":
            return r.randrange(5)
        case "f" | "g":
            return r.choice([r.randrange(-8, 40) / 2, r.randrange(3) / 2, -0.0, math.nan, math.inf, -math.inf, 1.5])
        case "b":
            return r.random() < 0.5
        case "s":
            return r.choice(["", "a", "b", "ab", "é", "zz", "a" * 30])
        case "c":
            return r.choice(["x", "y", "zeta", ""])
        case "e":
            return r.choice(["no", "yes", "perhaps"])
        case "d":
            return date(2024, 2, 27) + timedelta(r.randrange(6))
        case "w":
            return datetime(2024, 1, 1) + timedelta(hours=r.randrange(90))
        case "m":
            return Decimal(r.randrange(-300, 300)) / 100
        case "v":
            return timedelta(minutes=r.randrange(6))
        case "l":
            return r.choice([[], [1], [None], [r.randrange(3) for _ in range(r.randrange(4))]])
        case _:
            return {"a": r.randrange(3), "z": r.choice(["p", "q", None])}


@cache
def frame(number: int) -> pl.DataFrame:
    """Returns one of the data frames that queries read. Each has the columns of `KINDS`, and `row`."""
    r = random.Random(number)
    size = SIZES[number % len(SIZES)]
    columns = {k: pl.Series(k, [value(k, r) for _ in range(size)], dtype=t) for k, t in KINDS.items()}
    return pl.DataFrame({"row": pl.Series(range(size), dtype=pl.Int64), **columns})


FRAMES = 48


@dataclasses.dataclass
class Plan:
    """A random query."""

    seed: int
    options: Options
    #: Python: the first gives a lazy frame, the others are applied to the lazy frame `t`.
    steps: list[str]
    #: The rows of the result have an order.
    ordered: bool = True

    def lazy(self) -> pl.LazyFrame:
        t: Any = None
        for step in self.steps:
            t = run(step, t)
        return t

    def __str__(self) -> str:
        text = "\n".join(f"t = {s}" for s in self.steps)
        return f"# seed {self.seed}, ordered: {self.ordered}, {self.options}\n{text}"


@cache
def _compiled(step: str) -> Any:
    return compile(step, "step", "eval")


def run(step: str, t: pl.LazyFrame | None) -> pl.LazyFrame:
    return eval(_compiled(step), {"pl": pl, "c": pl.col, "frame": frame, "t": t, "chain": chain, "any_of": any_of})


def chain(t: pl.LazyFrame, name: str, times: int) -> pl.LazyFrame:
    """Returns a query that changes a column so many times."""
    for i in range(times):
        t = t.with_columns((pl.col(name) + i).alias(name))
    return t


def any_of(name: str, times: int) -> pl.Expr:
    """Returns a predicate of so many parts."""
    found = pl.col(name) == 0
    for i in range(1, times):
        found |= pl.col(name) == i
    return found


# Making.

NUMBERS = (pl.Int64, pl.Int32, pl.UInt8, pl.Float64, pl.Float32, pl.UInt32, pl.Decimal)


class Maker:
    """Makes a random query step by step."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        r = self.r
        limits = (0, 0, 500, 1 << 30)
        self.options = Options(
            parts=r.choice([2, 3, 5]),
            least_bytes=0,
            max_rows_per_partition=r.choice([1, 4, 7, 13, 25]),
            broadcast_limit=r.choice(limits),
            gather_limit=r.choice(limits),
            fallback_mode="silent",
        )
        self.steps: list[str] = []
        self.rows = 0
        self.ordered = True
        #: Columns whose values depend on the order of additions.
        self.inexact: set[str] = set()
        self.names = 0
        self.add(self.source(r.randrange(FRAMES)))
        for _ in range(r.choice([1, 2, 2, 3, 3, 4, 5, 7])):
            self.step()

    def source(self, number: int) -> str:
        size = SIZES[number % len(SIZES)]
        self.rows = max(self.rows, size)
        kinds = self.r.sample(sorted(KINDS), self.r.randrange(2, 6))
        return f"frame({number}).lazy().select({['row', *kinds]})"

    def add(self, step: str) -> bool:
        """Adds a step, unless Polars refuses it."""
        try:
            t = run(step, self.t if self.steps else None)
            self.schema = dict(t.collect_schema())
        except pl.exceptions.PolarsError:
            return False
        self.t = t
        self.steps.append(step)
        self.inexact &= self.schema.keys()
        return True

    def name(self) -> str:
        self.names += 1
        return f"x{self.names}"

    def step(self) -> None:
        makers: list[tuple[int, Callable[[], None]]] = [
            (6, self.filter), (6, self.with_columns), (5, self.select), (7, self.group_by), (6, self.join), (2, self.self_join),
            (4, self.sort), (4, self.some_rows), (2, self.top), (3, self.unique), (3, self.concat), (4, self.window),
            (3, self.reduce), (2, self.scalars), (2, self.shape), (1, self.whole), (1, self.deep), (2, self.statistics),
        ]  # fmt: skip
        self.r.choices([m for _, m in makers], [w for w, _ in makers])[0]()

    # Columns.

    def columns(self, *types: Any, exact: bool = True) -> list[str]:
        """Returns the columns of some types; of all, if there are none."""
        return [n for n, d in self.schema.items() if (not types or d in types) and not (exact and n in self.inexact)]

    def one(self, *types: Any, exact: bool = True) -> str | None:
        found = self.columns(*types, exact=exact)
        return self.r.choice(found) if found else None

    def keys(self, most: int = 2) -> list[str]:
        """Returns columns that may be keys."""
        found = [n for n in self.columns() if n != "row" or self.r.random() < 0.2]
        return self.r.sample(found, min(len(found), self.r.randrange(1, most + 1)))

    def rowwise(self) -> tuple[str, str | None]:
        """Returns an expression of single rows, and the column it is of."""
        r, name = self.r, self.one(exact=False)
        if name is None:
            return "pl.lit(1)", None
        col, dtype = f"c({name!r})", self.schema[name]
        if dtype in NUMBERS:
            made = [f"{col} + 1", f"{col} * 2", f"-{col}" if dtype not in (pl.UInt8, pl.UInt32) else col, f"{col}.fill_null(0)", f"{col}.is_null()", f"pl.when({col} > 1).then({col}).otherwise(0)",
                    f"{col}.cast(pl.Float64)", f"{col}.abs()", f"{col}.clip(0, 3)", f"{col}.is_between(0, 9)", f"{col} > 1"]  # fmt: skip
            if dtype.is_float():
                made += [f"{col}.is_nan()", f"{col}.fill_nan(None)", f"{col}.floor()"]
        elif dtype == pl.String:
            made = [
                f"{col}.str.len_chars()",
                f"{col}.str.to_uppercase()",
                f"{col} + 'k'",
                f"{col}.fill_null('?')",
                f"{col}.is_in(['a', 'b'])",
                f"{col}.str.slice(0, 1)",
            ]
        elif dtype in (pl.Categorical, pl.Enum):
            made = [
                f"{col}.cast(pl.String)",
                f"{col}.is_null()",
                f"{col} == 'yes'" if dtype == pl.Enum else f"{col} == 'x'",
            ]
        elif dtype in (pl.Date, pl.Datetime):
            made = [f"{col}.dt.day()", f"{col}.dt.truncate('2d')", f"{col}.dt.offset_by('1d')", f"{col}.is_null()"]
        elif dtype == pl.Boolean:
            made = [f"~{col}", f"{col} & pl.lit(True)", f"{col}.fill_null(False)", f"{col}.cast(pl.Int8)"]
        elif dtype == pl.List:
            made = [
                f"{col}.list.len()",
                f"{col}.list.first()",
                f"{col}.list.sort()",
                f"{col}.list.eval(pl.element().cum_count())",
            ]
        elif dtype == pl.Struct:
            made = [f"{col}.struct.field({dtype.fields[0].name!r})", f"{col}.is_null()", f"pl.struct({col})"]
        else:
            made = [col, f"{col}.is_null()", f"pl.struct({col}, lit=pl.lit(1))", f"pl.concat_list({col}, {col})"]
        return r.choice(made), name

    def predicate(self) -> str:
        r, name = self.r, self.one()
        if name is None:
            return "pl.lit(True)"
        col, dtype = f"c({name!r})", self.schema[name]
        if dtype in NUMBERS:
            made = [
                f"{col} > {r.randrange(-2, 9)}",
                f"{col} != 1",
                f"{col}.is_not_null()",
                f"({col} <= 5) | {col}.is_null()",
            ]
            if name == "row":
                made = [
                    f"{col} > {r.randrange(20)}",
                    f"{col} < {r.randrange(10, 50)}",
                    f"{col} % 3 != 1",
                    f"{col} % 2 == 0",
                ]
            elif dtype.is_float():
                made.append(f"{col}.is_not_nan()")
            elif r.random() < 0.2:
                made = [f"{col} == {r.randrange(4)}", f"{col}.is_in([0, 1, 2])"]
        elif dtype == pl.String:
            made = [f"{col} != 'a'", f"{col}.str.contains('a')", f"{col}.is_null() | ({col} > 'a')"]
        elif dtype == pl.Boolean:
            made = [col, f"~{col}", f"{col}.is_null()"]
        elif dtype in (pl.Date,):
            made = [f"{col} > pl.date(2024, 2, 28)", f"{col}.dt.day() > 27"]
        elif dtype == pl.List:
            made = [f"{col}.list.len() > 1", f"{col}.list.contains(1)"]
        else:
            made = [f"{col}.is_not_null()", f"{col} == {col}"]
        found = r.choice(made)
        return f"({found}) & ({self.predicate()})" if r.random() < 0.15 else found

    def aggregate(self, *, groups: bool) -> tuple[str, bool]:
        """Returns an aggregate, and whether it is inexact."""
        r, name = self.r, self.one()
        if name is None or r.random() < 0.1:
            return "pl.len()", False
        col, dtype = f"c({name!r})", self.schema[name]
        if r.random() < 0.15:
            col = f"{col}.filter({self.predicate()})"
        made = [
            f"{col}.count()",
            f"{col}.len()",
            f"{col}.null_count()",
            f"{col}.n_unique()",
            f"{col}.is_null().any()",
            f"{col}.has_nulls()",
        ]
        inexact: list[str] = []
        if dtype in NUMBERS:
            made += [f"{col}.sum()", f"{col}.min()", f"{col}.max()"] * 2 + [
                f"{col}.median()",
                f"{col}.quantile(0.5)",
                f"({col} > 1).any()",
                f"({col} > 1).all(ignore_nulls=False)",
            ]
            made += (
                [
                    f"{col}.max() - {col}.min()",
                    f"{col}.max().fill_null(0)",
                    f"pl.when({col}.max() > 3).then({col}.min()).otherwise({col}.max())",
                ]
                if dtype != pl.Decimal
                else []
            )
            if dtype.is_float():
                col = f"c({name!r}).filter(c({name!r}).is_finite())"
            inexact = [
                f"{col}.mean()",
                f"{col}.std()",
                f"{col}.var()",
                f"{col}.mean() + {col}.count()",
                f"(1 + {col}.mean()).round(1)",
            ]
        elif dtype in (pl.String, pl.Categorical, pl.Enum, pl.Date, pl.Datetime, pl.Duration):
            made += [f"{col}.min()", f"{col}.max()", f"pl.struct({col}.min(), n=pl.len())"]
        elif dtype == pl.Boolean:
            made += [f"{col}.any()", f"{col}.all()", f"{col}.sum()", f"{col}.any(ignore_nulls=False)", f"{col}.min()"]
        if self.ordered:
            made += [
                f"{col}.first()",
                f"{col}.last()",
                f"{col}.first(ignore_nulls=True)",
                f"{col}.last(ignore_nulls=True)",
                f"{col}.implode()",
            ]
        if groups and dtype in NUMBERS:
            made += [
                f"{col}.sum().{f}"
                for f in ("rank()", "shift()", "cum_sum()", "reverse()", "is_first_distinct()", "diff()", "abs()")
            ]
            made += [f"pl.struct({col}.max(), k={col}.count())", f"({col}.sum() * 2).alias('{name}')"]
        if inexact and r.random() < 0.3:
            return r.choice(inexact), True
        return r.choice(made), False

    def aggregates(self, *, groups: bool) -> list[str]:
        made: list[str] = []
        for _ in range(self.r.randrange(1, 4)):
            expr, inexact = self.aggregate(groups=groups)
            name = self.name()
            if inexact or "std" in expr:
                self.inexact.add(name)
            made.append(f"{name}={expr}")
        return made

    # Steps.

    def filter(self) -> None:
        self.add(f"t.filter({', '.join(self.predicate() for _ in range(self.r.choice([1, 1, 2])))})")

    def with_columns(self) -> None:
        made: list[str] = []
        for _ in range(self.r.randrange(1, 4)):
            expr, source = self.rowwise()
            name = self.name() if source is None or self.r.random() < 0.7 else source
            if source in self.inexact:
                self.inexact.add(name)
            if name != "row" and not any(m.startswith(f"{name}=") for m in made):
                made.append(f"{name}={expr}")
        if made:
            self.add(f"t.with_columns({', '.join(made)})")

    def select(self) -> None:
        r = self.r
        kept = r.sample(list(self.schema), r.randrange(1, len(self.schema) + 1)) if self.schema else []
        if "row" in self.schema and "row" not in kept and r.random() < 0.7:
            kept.append("row")
        if not kept:
            return
        kinds = [f"t.select({kept})", f"t.drop({[n for n in self.schema if n not in kept]})", f"t.select(c({kept}))"]
        if r.random() < 0.2 and kept[0] != "row":
            expr, source = self.rowwise()
            name = self.name()
            if source in self.inexact:
                self.inexact.add(name)
            kinds = [f"t.select({kept}, {name}={expr})"]
        if r.random() < 0.15:
            new = self.name()
            if kept[0] in self.inexact:
                self.inexact.add(new)
            if kept[0] != "row":
                kinds = [f"t.rename({{{kept[0]!r}: {new!r}}})"]
        self.add(r.choice(kinds))

    def group_by(self) -> None:
        r, keys = self.r, self.keys()
        if not keys:
            return
        made = self.aggregates(groups=True)
        by = f"{keys}"
        if r.random() < 0.15:
            number = self.one(pl.Int64, pl.Int32, pl.UInt8)
            by = f"(c({number!r}) % 3).alias('{self.name()}')" if number else by
        kept = self.ordered and r.random() < 0.2
        having = f".having(pl.len() > {r.randrange(3)})" if r.random() < 0.05 else ""
        if self.add(f"t.group_by({by}, maintain_order={kept}){having}.agg({', '.join(made)})"):
            self.ordered = kept
            self.after_groups()

    def after_groups(self) -> None:
        r = self.r
        if r.random() < 0.3:
            self.select()
        if not self.ordered and r.random() < 0.3:
            self.sort()

    def other(self) -> tuple[str, dict[str, Any], int]:
        """Returns another table, its columns, and about how many rows it has."""
        r = self.r
        if r.random() < 0.25:
            return "t", dict(self.schema), self.rows
        number = r.randrange(FRAMES)
        kinds = r.sample(sorted(KINDS), r.randrange(1, 4))
        text = f"frame({number}).lazy().select({kinds})"
        if r.random() < 0.3:
            text += ".head(5)"
        return text, {k: KINDS[k] for k in kinds}, SIZES[number % len(SIZES)]

    def join(self) -> None:
        r = self.r
        text, schema, size = self.other()
        if self.rows * max(size, 1) > MOST_ROWS * 4:
            return
        both = [n for n in self.columns() if n in schema and not self.schema[n].is_float()]
        how = r.choice(["inner", "left", "right", "full", "semi", "anti", "cross"])
        options = [f"how={how!r}"]
        if how == "cross":
            if self.rows * size > MOST_ROWS:
                return
            step = f"t.join({text}, how='cross')"
        else:
            keys = r.sample(both, min(len(both), r.choice([1, 1, 2])))
            if not keys:
                return
            if r.random() < 0.15:
                numbers = [
                    [n for n, d in s.items() if d in (pl.Int64, pl.Int32, pl.UInt8) and n not in self.inexact]
                    for s in (self.schema, schema)
                ]
                if all(numbers):
                    left, right = (r.choice(n) for n in numbers)
                    options.append(
                        f"left_on=c({left!r}) % 4, right_on=c({right!r}) % 4"
                        if r.random() < 0.5
                        else f"left_on={left!r}, right_on={right!r}"
                    )
                    keys = []
            if keys:
                options.append(f"on={keys}")
            if r.random() < 0.2:
                options.append("nulls_equal=True")
            if r.random() < 0.2 and how in ("left", "full", "inner", "right") and keys:
                options.append(f"coalesce={r.random() < 0.5}")
            if r.random() < 0.15 and how not in ("semi", "anti"):
                options.append(f"maintain_order={r.choice(['left', 'right', 'left_right', 'right_left'])!r}")
            step = f"t.join({text}, {', '.join(options)})"
        if self.add(step):
            self.inexact |= {n for n in self.schema if n.removesuffix("_right") in self.inexact}
            self.rows = min(self.rows * max(size // 3, 1), MOST_ROWS * 2) if how not in ("semi", "anti") else self.rows
            self.ordered = False
            self.after_groups()

    def self_join(self) -> None:
        r, keys = self.r, self.keys()
        if not keys or self.rows > 200:
            return
        if any(self.schema[k].is_float() for k in keys):
            return
        how = r.choice(["inner", "left", "semi", "anti", "full"])
        if r.random() < 0.5:
            self.rows *= 8
            step = f"t.join(t, on={keys}, how={how!r})"
        else:
            made = self.aggregates(groups=True)
            step = f"t.join(t.group_by({keys}).agg({', '.join(made)}), on={keys}, how={how!r})"
        if self.add(step):
            self.inexact |= {n for n in self.schema if n.removesuffix("_right") in self.inexact}
            self.ordered = False
            self.after_groups()

    def sort(self) -> None:
        r = self.r
        keys = [k for k in self.keys() if self.schema[k] != pl.Categorical or r.random() < 0.5]
        if not keys:
            return
        unique = self.ordered and "row" in self.schema and self.unique_rows()
        if unique and "row" not in keys:
            keys.append("row")
        stable = self.ordered and (not unique or r.random() < 0.3)
        down = [r.random() < 0.5 for _ in keys]
        last = [r.random() < 0.5 for _ in keys]
        if not unique and not self.ordered:
            # Equal rows are all that has no order then.
            keys = self.columns()
            down, last = [r.random() < 0.5] * len(keys), [True] * len(keys)
            plain = not self.inexact and not any(d.is_nested() for d in self.schema.values())
            if self.add(f"t.sort({keys}, descending={down}, nulls_last={last})"):
                self.ordered = plain
            return
        if self.add(f"t.sort({keys}, descending={down}, nulls_last={last}, maintain_order={stable})"):
            self.ordered = True

    def unique_rows(self) -> bool:
        """Reports whether the column `row` has each value once."""
        return not any(w in s for s in self.steps for w in ("join", "concat", "explode", "row=", "unpivot"))

    def some_rows(self) -> None:
        if self.ordered:
            r = self.r
            n = r.choice([0, 1, 3, 8, 12, 16, 20, 40])
            self.add(
                r.choice(
                    [
                        f"t.head({n})",
                        f"t.tail({n})",
                        f"t.slice({r.randrange(30)}, {n})",
                        f"t.slice(-{n + 1}, {r.randrange(9)})",
                        f"t.limit({n})",
                    ]
                )
            )
            if r.random() < 0.5:
                self.filter()

    def top(self) -> None:
        r = self.r
        if "row" in self.schema and self.unique_rows():
            self.add(f"t.{r.choice(['top_k', 'bottom_k'])}({r.choice([1, 5, 20])}, by='row')")
            self.ordered = False
            if r.random() < 0.5:
                self.filter()

    def unique(self) -> None:
        r, keys = self.r, self.keys()
        if not keys:
            return
        kind = r.randrange(4)
        if kind == 0 and not self.inexact:
            kept = self.ordered and r.random() < 0.3
            self.add(f"t.unique(maintain_order={kept})")
            self.ordered = kept
        elif kind == 1 and self.ordered:
            kept = r.random() < 0.5
            self.add(f"t.unique({keys}, keep={r.choice(['first', 'last'])!r}, maintain_order={kept})")
            self.ordered = kept
        elif kind == 2:
            self.add(f"t.unique({keys}, keep='none')")
            self.ordered = False
        else:
            self.add(f"t.unique({keys}).select({keys})")
            self.ordered = False

    def concat(self) -> None:
        if self.rows > MOST_ROWS:
            return
        step = self.r.choice(
            [
                "pl.concat([t, t])",
                f"pl.concat([t.filter({self.predicate()}), t.filter({self.predicate()})])",
                "pl.concat([t, t.head(3)])" if self.ordered else "pl.concat([t, t])",
            ]
        )
        self.add(step)
        self.rows *= 2

    def window(self) -> None:
        r, keys = self.r, self.keys()
        if not keys:
            return
        name, aggregate = self.name(), self.aggregate(groups=False)
        expr, inexact = aggregate
        if "implode" in expr or "struct" in expr:
            return
        if r.random() < 0.4:
            number = self.one(*NUMBERS)
            if number is None:
                return
            kinds = [f"c({number!r}).rank('min')", f"c({number!r}).rank('dense', descending=True)"]
            if self.ordered:
                kinds += [
                    f"c({number!r}).shift()",
                    f"c({number!r}).cum_sum()",
                    f"c({number!r}).first().shift()",
                    f"c({number!r}).rank('ordinal')",
                    "pl.int_range(pl.len())",
                ]
            expr, inexact = r.choice(kinds), self.schema[number].is_float()
        if inexact:
            self.inexact.add(name)
        over = f"({expr}).over({keys})"
        self.add(
            r.choice(
                [
                    f"t.with_columns({name}={over})",
                    f"t.with_columns({name}={over})",
                    f"t.select(pl.all(), {name}={over})",
                ]
            )
        )
        if name in self.schema and name not in self.inexact and self.schema[name] in NUMBERS and r.random() < 0.3:
            self.add(f"t.filter(c({name!r}) > 1)")
        elif r.random() < 0.3:
            self.select()

    def reduce(self) -> None:
        made = self.aggregates(groups=False)
        kinds = [
            f"t.select({', '.join(made)})",
            f"t.select({', '.join(made)})",
            "t.select(pl.len())",
            "t.select(pl.all().count())",
        ]
        if self.columns(*NUMBERS):
            kinds.append(f"t.select(c({self.columns(*NUMBERS)}).max().name.suffix('_max'))")
        if self.add(self.r.choice(kinds)):
            self.rows, self.ordered = 1, True

    def scalars(self) -> None:
        """Aggregates of all rows beside the rows."""
        r, number = self.r, self.one(*NUMBERS)
        if number is None or self.schema[number] == pl.Decimal:
            self.add(f"t.with_columns({self.name()}=pl.len())")
            return
        col, name = f"c({number!r})", self.name()
        kinds = [f"t.filter({col} >= {col}.max())", f"t.filter({col} < {col}.median())", f"t.with_columns({name}=pl.len())", f"t.filter({col} == {col}.min(), {self.predicate()})",
                 f"t.with_columns({name}={col}.max() - {col})", f"t.select('row', {name}={col}.fill_null({col}.max()))" if "row" in self.schema else f"t.filter({col} != {col}.max())", f"t.with_columns({name}={col}.n_unique() + {col})"]  # fmt: skip
        step = r.choice(kinds)
        self.add(step)

    def statistics(self) -> None:
        """Columns that nobody reads."""
        keys = self.keys(1)
        if not keys or self.rows > MOST_ROWS:
            return
        made = self.aggregates(groups=True)
        (kept,) = self.r.sample([m.partition("=")[0] for m in made], 1)
        kinds = [
            f"t.group_by({keys}).agg({', '.join(made)}).select({[kept]})",
            f"t.group_by({keys}).agg({', '.join(made)}).select(pl.len())",
        ]
        if self.rows < 100 and not self.schema[keys[0]].is_float():
            kinds.append(f"t.join(t.group_by({keys}).agg({', '.join(made)}), on={keys}).select({keys})")
        if self.add(self.r.choice(kinds)):
            self.ordered = False
            if list(self.schema) == ["len"]:
                self.rows, self.ordered = 1, True

    def shape(self) -> None:
        r, lists = self.r, self.columns(pl.List)
        structs = [
            n for n in self.columns(pl.Struct) if not {f.name for f in self.schema[n].fields} & self.schema.keys()
        ]
        if lists and r.random() < 0.6:
            self.add(f"t.explode({r.choice(lists)!r})")
            self.rows *= 2
        elif structs:
            self.add(f"t.unnest({r.choice(structs)!r})")
        else:
            self.add("t.drop_nulls()")

    def whole(self) -> None:
        """Steps that run in one task."""
        number = self.one(pl.Int64, pl.Int32)
        kinds = ["t.null_count()"]
        if self.ordered:
            kinds += [
                "t.reverse()",
                "t.gather_every(3)",
                "t.with_row_index('index')" if "index" not in self.schema else "t.reverse()",
            ]
            if number:
                kinds += [
                    f"t.with_columns({self.name()}=c({number!r}).cum_sum())",
                    f"t.with_columns({self.name()}=c({number!r}).shift(2))",
                ]
        self.add(self.r.choice(kinds))
        if self.steps[-1] == "t.null_count()":
            self.rows, self.ordered, self.inexact = 1, True, set()

    def deep(self) -> None:
        number = self.one(pl.Int64, pl.Int32)
        if number and number != "row" and self.r.random() < 0.3:
            self.add(self.r.choice([f"chain(t, {number!r}, 12)", f"t.filter(any_of({number!r}, 30))"]))


def make(seed: int) -> Plan:
    maker = Maker(seed)
    return Plan(seed, maker.options, maker.steps, maker.ordered)


# Comparing.


def difference(plan: Plan) -> str | None:
    """Returns how the answer of a divided query differs from that of Polars; None: it does not.

    Raises:
        polars.exceptions.PolarsError: Polars itself cannot run it.
    """
    lf = plan.lazy()
    want = lf.collect(engine="in-memory")
    try:
        found = collect(lf, plan.options, InProcess())
    except Exception:
        return traceback.format_exc()
    if found.schema != want.schema:
        return f"schema {found.schema}, right is {want.schema}"
    if found.equals(want):
        return None
    return _different_rows(list(found.rows()), list(want.rows()), plan.ordered)


def _different_rows(found: list[Any], want: list[Any], ordered: bool) -> str | None:
    if len(found) != len(want):
        return f"{len(found)} rows, right are {len(want)}: {found[:20]}, right: {want[:20]}"
    if not ordered:
        found, want = sorted(found, key=_key), sorted(want, key=_key)
    for at, (a, b) in enumerate(zip(found, want, strict=True)):
        if not _same(a, b):
            return f"row {at}: {a}, right is {b}"
    return None


def _key(row: Any) -> Any:
    return [_word(v) for v in _flat(row)]


def _flat(row: Any) -> Iterator[Any]:
    for each in row.values() if isinstance(row, dict) else row:
        if isinstance(each, (list, tuple, dict)):
            yield "("
            yield from _flat(each)
            yield ")"
        else:
            yield each


def _word(each: Any) -> str:
    return f"{each + 0.0:.4e}" if isinstance(each, float) else repr(each)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return list(a) == list(b or ()) and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, type(a)) and len(a) == len(b) and all(map(_same, a, b))
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
        except Exception:
            wrong = None
        if wrong is not None:
            plan = shorter
        at -= 1
    return plan


def failure(seed: int) -> str | None:
    """Tries a seed, and returns a report if the answer is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = make(seed)
        try:
            if difference(plan) is None:
                return None
        except pl.exceptions.PolarsError:
            return None
        plan = shrunk(plan)
        return f"{plan}\n{difference(plan)}"


def failures(first: int, last: int) -> list[str]:
    return [report for seed in range(first, last) if (report := failure(seed)) is not None]


def _portion(seeds: tuple[int, int]) -> tuple[int, list[str]]:
    return seeds[1] - seeds[0], failures(*seeds)


def main() -> None:
    first, last, processes = (int(a) for a in sys.argv[1:4])
    begin, done, reports = time.monotonic(), 0, 0
    portions = [(at, min(at + 100, last)) for at in range(first, last, 100)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for count, found in pool.imap_unordered(_portion, portions):
            done += count
            reports += len(found)
            for report in found:
                print(report, flush=True)
    took = time.monotonic() - begin
    print(f"seeds {first} to {last}: {done} plans, {reports} differ; {done / took:.0f} plans/s", flush=True)
    sys.exit(1 if reports else 0)


if __name__ == "__main__":
    main()
