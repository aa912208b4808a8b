"""Random expressions for random queries of Polars."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
from random_data import NUMBERS, UNSIGNED, WIDE


class Expressions:
    """Makes random expressions of the columns of a query."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.schema: dict[str, Any] = {}
        #: Whether the rows have an order.
        self.ordered = True
        #: Columns whose values depend on the order of additions.
        self.inexact: set[str] = set()
        self._names = 0

    def name(self) -> str:
        """Returns a new name."""
        self._names += 1
        return f"x{self._names}"

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
            made = [f"{col} + 1", f"{col} * 2", f"-{col}" if dtype not in (*UNSIGNED, pl.Int128) else col, f"{col}.fill_null(0)", f"{col}.is_null()", f"pl.when({col} > 1).then({col}).otherwise(0)",
                    f"{col}.cast(pl.Float64)" if dtype not in WIDE else col, f"{col}.abs()", f"{col}.clip(0, 3)", f"{col}.is_between(0, 9)", f"{col} > 1"]  # fmt: skip
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
        elif dtype == pl.Time:
            made = [f"{col}.dt.hour()", f"{col}.dt.minute()", f"{col}.is_null()", f"{col}.cast(pl.String)"]
        elif dtype == pl.Binary:
            made = [f"{col}.bin.size()", f"{col}.bin.encode('hex')", f"{col} == b'a'", f"{col}.is_null()"]
        elif dtype == pl.Array:
            made = [
                f"{col}.arr.sum()",
                f"{col}.arr.get(0)",
                f"{col}.arr.to_list()",
                f"{col}.arr.max()",
                f"{col}.is_null()",
            ]
        elif dtype == pl.Null:
            made = [f"{col}.is_null()", col, f"{col}.fill_null(3)", f"pl.coalesce({col}, 1)"]
        elif dtype == pl.Datetime and dtype.time_zone and r.random() < 0.6:
            made = [
                f"{col}.dt.convert_time_zone('Asia/Tokyo')",
                f"{col}.dt.replace_time_zone(None)",
                f"{col}.dt.hour()",
                f"{col}.dt.date()",
                f"{col}.dt.base_utc_offset()",
                f"{col}.dt.cast_time_unit('us')",
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
        elif dtype == pl.Time:
            made = [f"{col} > pl.time(12)", f"{col}.is_not_null()"]
        elif dtype == pl.Binary:
            made = [f"{col} != b'a'", f"{col}.bin.starts_with(b'a')", f"{col} < b'b'"]
        elif dtype == pl.Array:
            made = [f"{col}.arr.contains(1)", f"{col}.arr.get(1) > 0"]
        elif dtype == pl.Null:
            made = [f"{col}.is_null()", f"{col}.is_null() | pl.lit(False)"]
        elif dtype == pl.Datetime and dtype.time_zone:
            made = [
                f"{col}.dt.hour() < {r.randrange(6)}",
                f"{col} > pl.datetime(2024, 3, 31, time_zone={dtype.time_zone!r})",
            ]
        elif dtype == pl.Datetime:
            made = [f"{col} > pl.datetime(2024, 1, {r.randrange(1, 4)})", f"{col}.dt.hour() > 5"]
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
        elif dtype in (pl.String, pl.Categorical, pl.Enum, pl.Binary, pl.Date, pl.Datetime, pl.Duration, pl.Time):
            made += [f"{col}.min()", f"{col}.max()", f"pl.struct({col}.min(), n=pl.len())"]
        elif dtype == pl.Array:
            made += [f"{col}.arr.sum().sum()", f"{col}.arr.max().max()"]
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
