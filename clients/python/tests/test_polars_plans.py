"""Queries of Polars that are divided within this process, compared with Polars' own engine."""

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from in_process import FAR, NEAR, InProcess, collect
from millrace._polars import _plan, _pushdown, _query, _questions
from millrace._polars._options import Options, UndividedWarning
from millrace._polars._query import Query
from millrace._polars._stages import Stages
from polars.testing import assert_frame_equal

c = pl.col
ROWS = pl.DataFrame(
    {
        "id": range(40),
        "k": [i * 7 % 5 for i in range(40)],
        "x": [None if i % 9 == 0 else i * 0.5 for i in range(40)],
        "s": [f"s{i * 11 % 7}" for i in range(40)],
    }
)


def same(lf: pl.LazyFrame, options: Options, *, order: bool = True) -> None:
    assert_frame_equal(collect(lf, options), lf.collect(engine="in-memory"), check_row_order=order)


Make = Callable[[pl.LazyFrame], pl.LazyFrame]
FIRST_ROWS: dict[str, Make] = {
    "head": lambda t: t.head(20).filter(c("k") > 2),
    "limit": lambda t: t.limit(11).filter(c("x") > 2),
    "slice": lambda t: t.slice(3, 20).filter(c("k") > 2),
    "tail": lambda t: t.tail(20).filter(c("k") > 2),
    "top_k": lambda t: t.top_k(9, by="id").filter(c("k") > 2),
    "sort": lambda t: t.sort("id", descending=True).head(20).filter(c("k") > 2).select("s"),
    "join": lambda t: t.head(20).join(t.select("id", y="x"), on="id", maintain_order="left").filter(c("k") > 2),
    "twice": lambda t: t.filter(c("id") > 3).head(20).filter(c("k") > 2).head(3).filter(c("x") > 4),
}


@pytest.mark.parametrize("options", [FAR, NEAR], ids=["far", "near"])
@pytest.mark.parametrize("name", FIRST_ROWS)
def test_rows_are_filtered_after_the_first_ones_are_taken(name: str, options: Options) -> None:
    same(FIRST_ROWS[name](ROWS.lazy()), options, order=name != "top_k")


#: Slices that begin behind the last row of what they read.
BEHIND: dict[str, Make] = {
    "head": lambda t: t.head(8).slice(15, 8),
    "slice": lambda t: t.slice(3, 8).slice(5, 20).slice(3, 9),
    "tail": lambda t: t.tail(5).slice(-4, 2).slice(2, 1),
    "filter": lambda t: t.filter(c("k") > 1).head(8).slice(9, 8).filter(c("x") > 2),
    "columns": lambda t: t.head(8).with_columns(y=c("x") + 1).rename({"s": "r"}).select("id", "y", "r").slice(8, 2),
    "sort": lambda t: t.top_k(8, by="id").slice(15, 3).with_columns(y=c("x") + 1),
    "beside": lambda t: pl.concat([t.head(8), t.head(8).select(y="s")], how="horizontal").slice(9).head(4),
    "some rows": lambda t: t.head(8).slice(7, 8),
    "aggregate": lambda t: t.head(8).select(c("id").max(), c("k").len()).slice(1, 3),
}


@pytest.mark.parametrize("name", BEHIND)
def test_no_rows_are_behind_the_last_one(name: str, tmp_path: Path) -> None:
    """Polars' streaming engine panics where the first rows of a sort are taken of a slice that it
    has merged with another one, and in which no rows are left."""
    ROWS.write_csv(tmp_path / "t.csv")
    for rows in (ROWS.lazy(), pl.scan_csv(tmp_path / "t.csv", n_rows=20)):
        lf = BEHIND[name](rows)
        for query in (lf.bottom_k(1, by="id"), lf.sort("id").head(3), lf):
            same(query, FAR)
            (part,) = Query(InProcess(), 2, Options()).collect(_plan.read(query))
            assert_frame_equal(part.value, query.collect(engine="in-memory"))


def test_no_rows_are_behind_the_last_one_of_a_scan(tmp_path: Path) -> None:
    ROWS.write_csv(tmp_path / "t.csv")
    for offset in (19, 20, 30):
        same(pl.scan_csv(tmp_path / "t.csv", n_rows=20).slice(offset, 8).bottom_k(1, by="id"), FAR)


#: First rows of first rows, and between them a column that nobody reads, and whose values need all
#: rows. Only the first limit counts.
TWO_LIMITS: dict[str, Make] = {
    "window": lambda t: t.select(pl.all(), y=c("x").filter(c("x") > 2).first().over("k")),
    "row index": lambda t: t.with_row_index(),
    "shift": lambda t: t.with_columns(y=c("x").shift(1)).rename({"s": "r"}),
    "concat": lambda t: pl.concat([t.with_row_index(), t.with_row_index()]),
}


@pytest.mark.parametrize("name", TWO_LIMITS)
def test_the_first_rows_of_first_rows_are_no_more(name: str, tmp_path: Path) -> None:
    """Polars writes the second limit over the first, if both are moved into a scan of Python."""
    lf = TWO_LIMITS[name](ROWS.lazy().head(12)).head(30)
    for query in (lf.select("id"), lf.group_by("id").agg(c("x").max())):
        for options in (FAR, NEAR):
            same(query, options, order=False)
        (part,) = Query(InProcess(), 2, Options()).collect(_plan.read(query))
        assert_frame_equal(part.value, query.collect(engine="in-memory"), check_row_order=False)
    Query(InProcess(), 2, Options(parts=1)).sink_parquet(_plan.read(lf.select("id")), str(tmp_path / "t.parquet"), {})
    assert_frame_equal(pl.read_parquet(tmp_path / "t.parquet"), lf.select("id").collect(engine="in-memory"))


UNREAD: dict[str, Make] = {
    "aggregate": lambda t: t.group_by("k").agg(c("x").max(), c("id").max()).select("k", "id"),
    "drop": lambda t: t.group_by("k").agg(c("x").max(), c("id").max()).drop("x"),
    "len": lambda t: t.group_by("k").agg(c("x").max()).select(pl.len()),
    "statistics": lambda t: t.join(t.group_by("k").agg(m=c("x").mean(), n=pl.len()), on="k").select("id"),
    "sorted": lambda t: t.sort("x", "id").with_columns(y=c("x") + c("k")).select("id"),
    "window": lambda t: t.with_columns(y=c("x").sum().over("k"), z=c("s").first().over("s")).select("id", "z"),
    "replaced": lambda t: t.sort("id").with_columns(c("x") * 2, s=c("x") + 1).select("x", "k"),
    "place": lambda t: t.sort("id").with_columns(y=pl.nth(2) + pl.last().str.len_chars()).select("y"),
    "all": lambda t: t.sort("id").select(pl.all().exclude("s") * 2).select("k"),
    "same names": lambda t: t.join(t.with_columns(s=c("k")), on="id").sort("id").select("s_right", "x"),
    "same name of the left": lambda t: t.join(t.select("id", s="k"), on="id").sort("id").select("s"),
    "union": lambda t: pl.concat([t, t.sort("s")]).filter(c("k") > 1).sort("id", "x").select("id"),
    "union and its input": lambda t: pl.concat([t.sort("x"), t]).select("id").join(t.sort("x"), on="id").select("s"),
    "scalar": lambda t: t.sort("id").select("s", y=c("x").sum()).select("y"),
    "unread keys": lambda t: t.unique(subset=["k", "s"]).select(pl.len()),
    "semi": lambda t: t.join(t.filter(c("k") > 2), on=["k", "id"], how="semi").select("s"),
    "right": lambda t: t.head(30).join(t.tail(30), on="id", how="right").sort("id").select("x_right", "k"),
    "full": lambda t: t.head(30).join(t.tail(30), on="id", how="full").sort("id", "id_right").select("s_right"),
}
SOME_ORDER = {"aggregate", "drop", "statistics", "union and its input", "semi"}


@pytest.mark.parametrize("options", [FAR, NEAR], ids=["far", "near"])
@pytest.mark.parametrize("name", UNREAD)
def test_computed_columns_may_be_unread(name: str, options: Options) -> None:
    same(UNREAD[name](ROWS.lazy()), options, order=name not in SOME_ORDER)


#: Functions of the results of aggregates that need the results of a group alone.
OF_GROUPS = [
    c("x").sum().rank(), c("x").sum().shift(), c("x").max().diff(), c("x").max().reverse(), c("x").max().cum_sum(),
    c("x").max().pct_change(), c("x").max().rle_id(), c("x").max().is_first_distinct(), c("id").max().unique(),
    c("id").max().drop_nulls(), c("id").max().gather_every(2), c("x").sum().mode(), c("x").sum().arg_sort(),
    c("x").first().shift().over("s"), c("x").max() - c("x").min().shift(fill_value=1), pl.lit(1), c("x").sum().round(1),
    c("x").sum().peak_max(), c("x").max().ewm_mean(alpha=0.5), c("x").sum().entropy(), c("id").max().search_sorted(3),
    pl.struct(c("x").max().alias("z"), c("id").sum()).over("k"),
]  # fmt: skip
FIELDS = [
    pl.struct(c("x").max(), c("id").sum()), pl.struct(a=c("x").max(), b=c("id").sum() + 1), pl.struct(pl.len(), c("x").first()),
    pl.struct(c("x").max().alias("z"), c("id").max()).struct.field("z"), c("x").max().name.suffix("_max"),
    c("x").sum().alias("a").name.keep(), pl.struct(c("x", "id").max()),
]  # fmt: skip
SPREAD = [
    c("x").std(), c("x").var(ddof=0), c("id").std(ddof=2), c("x").cast(pl.Float32).var(), (c("k") > 2).mean().alias("m"), c("x").std() / c("x").mean(),
    c("s").n_unique(), c("x").n_unique(), c("x").filter(c("k") > 2).n_unique(), c("x").null_count(), c("x").has_nulls(),
    (c("x") > 8).any(), (c("x") > 1).all(), (c("x") > 8).any(ignore_nulls=False), (c("x") > 1).all(ignore_nulls=False),
    c("x").filter(c("id") > 20).first(), c("x").filter(c("id") < 9).last(), c("x").first(ignore_nulls=True), c("x").last(),
]  # fmt: skip


@pytest.mark.parametrize("options", [FAR, NEAR], ids=["far", "near"])
@pytest.mark.parametrize("expr", [*OF_GROUPS, *FIELDS, *SPREAD], ids=lambda e: str(e)[:60])
def test_aggregates_of_groups_are_those_of_polars(expr: pl.Expr, options: Options) -> None:
    t = ROWS.lazy()
    if "over" not in str(expr):
        same(t.group_by("k").agg(expr).sort("k"), options)
    else:
        same(t.with_columns(expr.alias("y")), options)


@pytest.mark.parametrize("expr", [*FIELDS, *SPREAD], ids=lambda e: str(e)[:60])
def test_aggregates_of_all_rows_are_those_of_polars(expr: pl.Expr) -> None:
    for rows in (ROWS.lazy(), ROWS.lazy().filter(c("id") > 22), ROWS.lazy().filter(c("id") > 99)):
        same(rows.select(expr), dataclasses.replace(FAR, fallback_mode="raise"))


@pytest.mark.parametrize("options", [FAR, NEAR], ids=["far", "near"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_a_table_that_is_joined_with_itself_is_divided(how: Any, options: Options) -> None:
    rows = ROWS.lazy().with_columns(j=c("k") + 1)
    divided = dataclasses.replace(options, fallback_mode="raise")
    for lf in (rows.join(rows, on="k", how=how), rows.join(rows, left_on="id", right_on="j", how=how)):
        cluster = InProcess()
        if how != "full" or options is FAR:
            found = collect(lf, divided, cluster)
            assert sum(cluster.tasks.values()) >= 3
            assert_frame_equal(found, lf.collect(engine="in-memory"), check_row_order=False)


def test_plans_may_be_deep() -> None:
    """Polars runs them, too."""
    limit = sys.getrecursionlimit()
    alternatives, stack, value, union = c("id") == 0, ROWS.lazy(), pl.lit(0), ROWS.lazy()
    for i in range(1, 200):
        alternatives |= c("id") == 7 * i
        value = pl.when(c("id") == i).then(i * i).otherwise(value)
    for i in range(200):
        stack = stack.with_columns(k=c("k") + i)
    for i in range(30):
        union = pl.concat([union, ROWS.lazy().filter(c("id") == i)])
    same(ROWS.lazy().filter(alternatives).group_by("k").agg(value.sum()).sort("k"), FAR)
    same(stack.sort("id").select("k"), FAR)
    same(union.group_by("k").agg(c("x").sum()).sort("k"), FAR)
    assert sys.getrecursionlimit() == limit


def test_chains_of_a_predicate_become_trees() -> None:
    """The time that Polars takes for a predicate grows with the square of its depth."""
    low, high = (functools.reduce(operator.or_, [c("x") == i for i in some]) for some in (range(0, 9), range(9, 20)))
    unlike = functools.reduce(operator.and_, [c("id") != 3 * i for i in range(30)])
    for predicate in (low | (high & unlike) | c("x").is_null(), (low | high) & unlike & (c("k") > 0), c("k") > 0):
        lf = ROWS.lazy().filter(predicate)
        same(lf, FAR)
        same(lf.select("k", "x").group_by("k").agg(c("x").sum()).sort("k"), FAR)
        (found,) = [n for n in _pushdown.pushed(_plan.read(lf)).walk() if n.kind == "Filter"]
        assert _depth(found["predicate"]) < 16


def _depth(expr: Any) -> int:
    both: dict[str, Any] = expr.get("BinaryExpr", {})
    return 1 + max(_depth(both["left"]), _depth(both["right"])) if both else 0


@pytest.mark.parametrize("parts", [2, 3])
def test_polars_is_asked_once_what_it_reads_of_the_parts_of_a_table(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of an answer grows with the square of the parts of a predicate."""
    asked: list[Any] = []
    wanted = _questions.wanted
    monkeypatch.setattr(_questions, "wanted", lambda node: asked.append(node) or wanted(node))
    rows = ROWS.lazy().head(parts * 13).collect().lazy()
    same(rows.filter(c("id") > 5), FAR)
    assert len(asked) == 1


def test_windows_over_more_parts_than_a_list_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_query, "_MOST_ITEMS", 7)
    options = dataclasses.replace(FAR, max_rows_per_partition=1, fallback_mode="raise")
    for rows in (ROWS, ROWS.head(8), ROWS.head(1)):
        lf = rows.lazy()
        same(lf.with_columns(n=c("x").cum_sum().over("k"), m=c("x").sum().over("s")).filter(c("id") % 3 > 0), options)


ONE_TASK: dict[str, tuple[Make, str]] = {
    "all rows": (lambda t: t.sort("id").with_columns(c("x").cum_sum()), r"HStack cannot be divided, .*: col\(\"x\"\).cum_sum"),
    "filter": (lambda t: t.sort("s").filter(c("id").shift() > 2), r"Filter cannot be divided, .*: .*col\(\"id\"\).shift"),
    "select": (lambda t: t.group_by("id").agg(c("x").sum()).select(c("x").median()), r"Select cannot .*col\(\"x\"\).median"),
    "join": (lambda t: t.join(t.select(z="id"), how="cross").select(pl.len()), "Join .Cross. cannot .*unless one of its sides"),
    "beside rows": (lambda t: t.filter(c("x") > c("x").median()), r"Filter cannot .*col\(\"x\"\).median"),
    "exploded window": (lambda t: t.select(c("x").sort().over("k", mapping_strategy="explode")), r"Select cannot .*over"),
    "python": (lambda t: t.map_batches(lambda frame: frame), "MapFunction .OpaquePython. cannot be divided"),
    "validate": (lambda t: t.join(t.select("id"), on="id", validate="1:1"), "Join .Inner. cannot be divided, .*: it has validate"),
    "function": (lambda t: t.sort("s").with_row_index(), "MapFunction .RowIndex. cannot be divided"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_TASK)
def test_undivided_parts_are_told_before_any_task(name: str) -> None:
    make, text = ONE_TASK[name]
    lf, cluster = make(ROWS.lazy()), InProcess()
    with pytest.raises(NotImplementedError, match=text):
        collect(lf, dataclasses.replace(FAR, fallback_mode="raise"), cluster)
    assert not cluster.tasks
    with pytest.warns(UndividedWarning, match=text) as noted:
        collect(lf, dataclasses.replace(FAR, fallback_mode="warn"), cluster)
    assert len(noted) == 1 and cluster.tasks


def test_joins_of_sides_that_turn_out_large_are_told_once_their_size_is_known() -> None:
    left = ROWS.lazy().with_columns(t=c("s") + "a" * 1000)
    options = dataclasses.replace(FAR, broadcast_limit=int(ROWS.estimated_size()) * 3, fallback_mode="raise")
    with pytest.raises(
        NotImplementedError, match=r"Join .* at most broadcast_limit bytes; this depends on results of tasks"
    ):
        collect(left.join_where(left.select(z="id", y="t"), c("id") > c("z")), options)


@pytest.mark.parametrize(
    "key", [c("x") * -1, pl.struct("k", "id"), c("fields")], ids=["expression", "struct", "column"]
)
def test_many_rows_whose_first_key_has_no_ranges_are_told(key: pl.Expr) -> None:
    """Whether they are many is known once the sort gets them."""
    lf = ROWS.lazy().with_columns(fields=pl.struct("k", "id")).sort(key, "id")
    raises = dataclasses.replace(FAR, fallback_mode="raise")
    with pytest.raises(
        NotImplementedError, match=r"Sort cannot be divided, .*first key is an expression.* depends on results of tasks"
    ):
        collect(lf, raises)
    same(lf, FAR)
    same(lf, dataclasses.replace(raises, gather_limit=1 << 20))
    text = Query(InProcess(), 2, FAR, Stages).explained(_plan.read(lf))
    assert "  Sort: in one task, if its rows have more than gather_limit bytes" in text.splitlines(), text


def test_the_stages_of_a_query_are_explained() -> None:
    """The right side is one row; the window needs all rows."""
    t = ROWS.lazy()
    mean = t.select(m=c("x").mean())
    lf = (
        t.join(mean, how="cross")
        .filter(c("x") > c("m"))
        .group_by("k")
        .agg(c("x").median())
        .with_columns(c("x").cum_sum())
    )
    cluster = InProcess()
    options = dataclasses.replace(FAR, broadcast_limit=10_000)
    _, *lines = Query(cluster, 2, options, Stages).explained(_plan.read(lf)).splitlines()
    stages = lines[: lines.index('  UNDIVIDED: HStack cannot be divided, and runs in one task: col("x").cum_sum()') + 1]
    assert any("tasks: " in s and "GroupBy" in s for s in stages), stages
    assert "  Join (Cross): the right side is brought to each task" in stages, stages
    assert not cluster.tasks


def test_parts_without_rows_and_inputs_without_columns() -> None:
    """The random queries found these."""
    numbers = ROWS.lazy().with_columns(m=c("id").cast(pl.Decimal(12, 2))).filter(c("id") > 30)
    same(numbers.group_by("m").agg(pl.len()).sort("m"), FAR)
    both = [ROWS.lazy().filter(c("k") > 1), ROWS.lazy().filter(c("s") != "s1")]
    same(pl.concat(both).select(pl.len()), FAR)
    infinite = pl.LazyFrame({"k": [1, 2, 2], "x": [float("inf"), 1, 2]})
    same(infinite.group_by("k").agg(c("x").var(ddof=0)).sort("k"), dataclasses.replace(FAR, max_rows_per_partition=1))
    same(ROWS.lazy().with_row_index("n").select("n").group_by("n").agg(pl.len()).sort("n"), FAR)


BESIDE_ROWS: dict[str, Make] = {
    "filter": lambda t: t.filter(c("x") > c("x").mean(), c("id") < c("id").max()),
    "filter of a filter": lambda t: t.filter(c("k") > 1).filter(c("x") == c("x").max()).select("s"),
    "number of rows": lambda t: t.with_columns(pl.len(), y=c("x") / c("x").sum()),
    "select": lambda t: t.select("id", c("x").mean(), z=(c("x") - c("x").min()) / c("x").std()),
    "replaced": lambda t: t.with_columns(c("x").fill_null(c("x").mean())),
    "fields": lambda t: t.select(pl.struct(c("k"), c("x").max()), n=pl.when(pl.len() > 10).then(c("s"))),
    "no rows": lambda t: t.filter(c("id") > 99).with_columns(n=pl.len(), m=c("x").max()),
    "sorted": lambda t: t.sort("s", "id").filter(c("id") >= c("id").mean()).head(9),
}


@pytest.mark.parametrize("options", [FAR, NEAR], ids=["far", "near"])
@pytest.mark.parametrize("name", BESIDE_ROWS)
def test_aggregates_beside_rows_are_divided(name: str, options: Options) -> None:
    same(BESIDE_ROWS[name](ROWS.lazy()), dataclasses.replace(options, fallback_mode="raise"))
