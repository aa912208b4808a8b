"""Random queries of Polars, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import polars as pl
from millrace._polars._options import Options
from random_data import FRAMES, IN_CSV, IN_JSON, INTEGERS, KINDS, NUMBERS, SIZES, WIDE, run
from random_expressions import Expressions

#: Rows that a query may have before it is joined.
MOST_ROWS = 1000


class Maker(Expressions):
    """Makes a random query step by step."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        r = self.r
        limits = (0, 0, 500, 1 << 30)
        self.options = Options(
            parts=r.choice([2, 3, 5]),
            least_bytes=0,
            max_rows_per_partition=r.choice([2, 4, 5, 7, 9, 12]),
            broadcast_limit=r.choice(limits),
            gather_limit=r.choice(limits),
            fallback_mode="silent",
        )
        self.steps: list[str] = []
        self.rows = 0
        text, self.rows = self.table(["row"], r.randrange(2, 6))
        self.add(text)
        if text.startswith("scan("):
            r.choice([self.filter, self.some_rows, self.step])()
        for _ in range(r.choice([1, 2, 2, 3, 3, 4, 5, 7])):
            self.step()

    def table(self, kept: list[str], count: int) -> tuple[str, int]:
        """Returns the text of a table, and its rows.

        Args:
            kept: columns that it has.
            count: how many others it has.
        """
        r, number = self.r, self.r.randrange(FRAMES)
        columns = {"csv": {"row", *IN_CSV}, "ndjson": {"row", *IN_JSON}}
        forms = ["", "", "", "parquet", "parquet", "ipc", "csv", "ndjson"]
        form = r.choice([f for f in forms if f not in columns or columns[f].issuperset(kept)])
        kinds = {"csv": IN_CSV, "ndjson": IN_JSON}.get(form, tuple(KINDS))
        names = [*kept, *r.sample([k for k in kinds if k not in kept], count)]
        if not form:
            return f"frame({number}).lazy().select({names})", SIZES[number % len(SIZES)]
        options = f", {r.choice([1, 1, 2, 3])}"
        if form != "ndjson" and r.random() < 0.15:
            options += f", n_rows={r.choice([0, 3, 8, 17])}"
        if r.random() < 0.15 and "row" in kept:
            options += ", row_index_name='index'"
            names.append("index")
        return f"scan({number}, {form!r}{options}).select({names})", SIZES[number % len(SIZES)]

    def add(self, step: str) -> bool:
        """Adds a step, unless Polars refuses it."""
        try:
            t = run(step, self.t if self.steps else None)
            self.schema = dict(t.collect_schema())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return False
        self.t = t
        self.steps.append(step)
        self.inexact &= self.schema.keys()
        return True

    def step(self) -> None:
        makers: list[tuple[int, Callable[[], None]]] = [
            (6, self.filter), (6, self.with_columns), (5, self.select), (7, self.group_by), (6, self.join), (2, self.self_join),
            (4, self.sort), (4, self.some_rows), (2, self.top), (3, self.unique), (4, self.concat), (4, self.window),
            (3, self.reduce), (2, self.scalars), (2, self.shape), (1, self.whole), (1, self.deep), (2, self.statistics),
            (2, self.pivot), (2, self.unpivot), (4, self.as_of), (2, self.sql),
        ]  # fmt: skip
        self.r.choices([m for _, m in makers], [w for w, _ in makers])[0]()

    # Columns.

    # Steps.

    def filter(self) -> None:
        self.add(f"t.filter({', '.join(self.predicate() for _ in range(self.r.choice([1, 1, 2])))})")

    def with_columns(self) -> None:
        made: list[str] = []
        for _ in range(self.r.randrange(1, 4)):
            expr, source = self.rowwise()
            name = self.name() if source is None or self.r.random() < 0.7 or not source.isidentifier() else source
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
            number = self.one(*INTEGERS)
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
        wanted = [n for n in self.columns() if KINDS.get(n) == self.schema[n]]
        text, size = self.table(r.sample(wanted, min(len(wanted), r.randrange(3))), r.randrange(1, 3))
        if r.random() < 0.3:
            text += ".head(5)"
        return text, dict(run(text, None).collect_schema()), size

    def join(self) -> None:
        r = self.r
        text, schema, size = self.other()
        if self.rows * max(size, 1) > MOST_ROWS * 4:
            return
        both = [n for n in self.columns() if n in schema]
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
                    [n for n, d in s.items() if d in INTEGERS and n not in self.inexact] for s in (self.schema, schema)
                ]
                if all(numbers):
                    left, right = (r.choice(n) for n in numbers)
                    options.append(
                        r.choice(
                            [
                                f"left_on=c({left!r}) % 4, right_on=c({right!r}) % 4",
                                f"left_on={left!r}, right_on={right!r}",
                                f"left_on={[*keys, left]}, right_on={[*keys, right]}",
                                f"left_on=[*map(c, {keys}), c({left!r}).cast(pl.Int64)], right_on=[*map(c, {keys}), c({right!r}).cast(pl.Int64)]",
                            ]
                        )
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
        return not any(w in s for s in self.steps for w in ("join", "concat", "explode", "row=", "pivot"))

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
            if r.random() < 0.2:  # mostly, some of these rows are missing
                if r.random() < 0.5:
                    self.with_columns()
                self.add(f"t.slice({r.randrange(30)}, {r.randrange(1, 9)})")
                self.top()
            elif r.random() < 0.5:
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
        r = self.r
        if self.rows > MOST_ROWS:
            return
        others = self.r.sample(list(self.schema), r.randrange(1, len(self.schema) + 1)) if self.schema else []
        text, size = self.table([], r.randrange(1, 4))
        step = r.choice(
            [
                "pl.concat([t, t])",
                f"pl.concat([t.filter({self.predicate()}), t.filter({self.predicate()})])",
                "pl.concat([t, t.head(3)])" if self.ordered else "pl.concat([t, t])",
                f"pl.concat([t, t.select({others})], how='diagonal')",
                f"pl.concat([t, {text}], how='diagonal_relaxed')",
                f"pl.concat([{text}, t], how='diagonal')",
                f"pl.concat([t.drop({others}), {text}, t.select({others})], how='diagonal_relaxed')",
                "pl.concat([t, t.with_columns(pl.selectors.integer().cast(pl.Float64))], how='vertical_relaxed')",
                "beside",
                "beside",
            ]
        )
        if step != "beside":
            if "vertical" in step and any(self.schema[n] in WIDE for n in self.schema):
                return  # sums of such floating-point numbers are not exact
            if "diagonal_relaxed" in step and self.schema.get("n", KINDS["n"]) != KINDS["n"]:
                return  # Polars refuses it beside the "n" of the table, but only if it is read
            self.add(step)
            self.rows = self.rows * 2 + size
        elif self.ordered:
            self.beside(text, others)

    def beside(self, text: str, others: list[str]) -> None:
        """Adds a horizontal concat."""
        r, names = self.r, {n: self.name() for n in others}
        step = r.choice(
            [
                f"pl.concat([t, {text}.head(9).rename(lambda n: n + '_other')], how='horizontal')",
                f"pl.concat([t, t.select({others}).rename({names})], how='horizontal')",
                f"pl.concat([t, t.select({others}).rename({names}).filter({self.predicate()})], how='horizontal')",
            ]
        )
        if "filter" in step:
            step = f"pl.concat([t, t.filter({self.predicate()}).select({others}).rename({names})], how='horizontal')"
        self.inexact |= {names[n] for n in others if n in self.inexact}
        self.add(step)

    def pivot(self) -> None:
        r, on, values = self.r, self.one(pl.String, pl.Enum, pl.Int32, pl.UInt8), self.one()
        index = [k for k in self.keys() if k not in (on, values)]
        if on is None or values is None or on == values or not index:
            return
        columns = {pl.String: ["a", "b", "zz"], pl.Enum: ["no", "yes"]}.get(self.schema[on].base_type(), [0, 1, 3])
        functions = ["len", *(["'first'", "'last'"] if self.ordered else [])]
        if not self.schema[values].is_nested():  # Polars' engines do not agree on others
            functions += ["min", "max"]
        kinds = [f"pl.element().{f}()" if f.isalpha() else f for f in functions]
        if self.schema[values] in NUMBERS:
            kinds += ["'sum'", "pl.element().max() - pl.element().count()"]
        kept = self.ordered and r.random() < 0.4
        options = f"on_columns={columns}, index={index}, values={values!r}, aggregate_function={r.choice(kinds)}, maintain_order={kept}"
        if self.add(f"t.pivot({on!r}, {options})"):
            self.ordered = kept

    def unpivot(self) -> None:
        r = self.r
        kinds = [n for n in self.schema if n in self.inexact or not self.schema[n].is_nested()]
        if not kinds or self.rows > MOST_ROWS:
            return
        first = self.schema[r.choice(kinds)]
        same = [n for n in kinds if self.schema[n] == first or r.random() < 0.1]
        on = r.sample(same, min(len(same), r.randrange(1, 4)))
        if not any(n in self.schema and self.schema[n] in WIDE for n in on) or len(on) == 1:
            index = r.sample(list(self.schema), r.randrange(len(self.schema) + 1))
            name = self.name()
            if any(n in self.inexact for n in on):
                self.inexact.add(name)
            if self.add(f"t.unpivot({on}, index={index}, variable_name={self.name()!r}, value_name={name!r})"):
                self.rows *= len(on)
                self.ordered = False  # it is another one in Polars' streaming engine

    def as_of(self) -> None:
        """An as-of join. Several rows of the right side may have the same key; their order is that of
        the column `row`, so that Polars has one answer."""
        r = self.r
        times = (pl.Date, pl.Datetime, pl.Duration, pl.Time, pl.Decimal, pl.Float64, *INTEGERS)
        on = self.one(*[t for t in times if t not in (pl.Int128, pl.UInt64)])
        if on is None or self.schema[on] != KINDS.get(on, pl.Int64() if on == "row" else None):
            return
        by = [n for n in self.columns(pl.String, pl.Boolean, pl.Int32) if KINDS.get(n) == self.schema[n] and n != on]
        by = by[:1] if r.random() < 0.3 else []
        text, _ = self.table(list(dict.fromkeys(["row", on, *by])), 2)
        finite = f".filter(c({on!r}).is_finite())" if self.schema[on].is_float() else f".drop_nulls({on!r})"
        if r.random() < 0.1 and not self.schema[on].is_float():
            finite = ""
        unique = self.ordered and "row" in self.schema and self.unique_rows()
        left = f"t{finite}.sort({[on, 'row'] if unique and on != 'row' else [on]})"
        right = f"{text}{finite}.sort({[on, 'row'] if on != 'row' else [on]})"
        options = [f"on={on!r}", f"strategy={r.choice(['backward', 'forward', 'nearest'])!r}"]
        if by:
            options.append(f"by={by}")
        if r.random() < 0.2:
            options.append("allow_exact_matches=False")
        if r.random() < 0.2:
            options.append("coalesce=False")
        if r.random() < 0.2 and self.schema[on] in INTEGERS:
            options.append("tolerance=2")
        if self.add(f"{left}.join_asof({right}, {', '.join(options)})"):
            self.ordered = unique

    def sql(self) -> None:
        r, keys, number = self.r, self.keys(), self.one(*INTEGERS)
        by = ", ".join(f'"{k}"' for k in keys)
        names = [self.name(), self.name()]
        kinds = [(f"SELECT * FROM t WHERE {by} IS NOT NULL", self.ordered)] if len(keys) == 1 else []
        if keys:
            kinds.append((f"SELECT {by}, COUNT(*) AS {names[0]} FROM t GROUP BY {by}", False))
            kinds.append((f"SELECT DISTINCT {by} FROM t", False))
        if keys and number:
            kinds.append(
                (
                    f'SELECT {by}, SUM("{number}") AS {names[0]}, MIN("{number}") AS {names[1]} FROM t GROUP BY {by}',
                    False,
                )
            )
            kinds.append((f'SELECT *, MAX("{number}") OVER (PARTITION BY {by}) AS {names[0]} FROM t', self.ordered))
            kinds.append((f'SELECT * FROM t WHERE "{number}" > (SELECT MIN("{number}") FROM t)', self.ordered))
        if "row" in self.schema and self.ordered and self.unique_rows():
            kinds.append(('SELECT * FROM t ORDER BY "row" DESC LIMIT 7', True))
        if not kinds:
            return
        text, ordered = r.choice(kinds)
        if self.add(f"pl.SQLContext(t=t).execute({text!r})"):
            self.ordered = ordered

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
        if self.rows < 100:
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
