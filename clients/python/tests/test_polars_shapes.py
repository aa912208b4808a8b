"""Concats, unpivots and as-of joins of Polars in parts, compared with Polars' own engine."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from in_process import FAR, NEAR, InProcess, collect
from millrace._polars import _asof, _plan
from millrace._polars._options import Options
from millrace._polars._query import Query
from polars.testing import assert_frame_equal

c = pl.col
RAISE = [dataclasses.replace(o, fallback_mode="raise") for o in (FAR, NEAR)]
NAMES = ["far", "near"]


def table(rows: int, seed: int = 1) -> pl.DataFrame:
    pick = random.Random(seed)
    return pl.DataFrame(
        {
            "id": range(rows),
            "k": [pick.choice([1, 2, None]) for _ in range(rows)],
            "x": [pick.choice([0.5, None, float("nan"), 7.0]) for _ in range(rows)],
            "s": [pick.choice(["a", "", None]) for _ in range(rows)],
            "t": [datetime(2024, 1, 1) + timedelta(hours=pick.randrange(rows)) for _ in range(rows)],
        },
        schema_overrides={"k": pl.Int32, "x": pl.Float64, "s": pl.String, "t": pl.Datetime("us")},
    )


def same(lf: pl.LazyFrame, options: Options, *, order: bool = True) -> None:
    assert_frame_equal(collect(lf, options), lf.collect(engine="in-memory"), check_row_order=order)


SHAPES: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "unpivot": lambda t: t.unpivot(index="id", on=["k", "x"]),
    "unpivot all others": lambda t: t.select("id", "k", a=c("k") * 2).unpivot(index="id", variable_name="v", value_name="w"),
    "unpivot of types": lambda t: t.unpivot(["s", "k", "x"], index=["id", "t"]).filter(c("id") % 3 == 1),
    "unpivot then group": lambda t: t.unpivot(index="id", on=["k", "x"]).group_by("variable").agg(c("value").count()).sort("variable"),
    "unpivot without index": lambda t: t.unpivot(on=pl.selectors.numeric()),
    "diagonal": lambda t: pl.concat([t.select("id", "x"), t.select("s", "id"), t.select("t")], how="diagonal"),
    "diagonal of no columns": lambda t: pl.concat([t.drop("k", "x", "s", "id", "t"), t.select("id")], how="diagonal"),
    "diagonal, relaxed": lambda t: pl.concat([t.select("id", "k"), t.select(c("k").cast(pl.Float64), "s")], how="diagonal_relaxed"),
    "vertical, relaxed": lambda t: pl.concat([t.select("id", "k"), t.select(c("id").cast(pl.Float32), "k")], how="vertical_relaxed"),
    "nested": lambda t: pl.concat([t.select("id", l=pl.concat_list("id", "k")), t.select(p=pl.struct("id", "s"))], how="diagonal"),
    "horizontal": lambda t: pl.concat([t.select("id", "x"), t.select(y="s"), t.select(z=c("t"))], how="horizontal"),
    "horizontal of filtered": lambda t: pl.concat(
        [t.filter(c("id") % 2 == 0).select(a="id"), t.filter(c("id") % 2 == 1).select(b="id")], how="horizontal"
    ),
    "as of": lambda t: t.sort("t").join_asof(t.select("t", y="id").sort("t"), on="t"),
    "as of, forward": lambda t: t.sort("t").join_asof(t.select(c("t"), y="id").filter(c("y") % 3 == 0).sort("t"), on="t", strategy="forward"),
    "as of, nearest": lambda t: t.sort("t").join_asof(
        t.select(c("t") + pl.duration(minutes=7), y="id").filter(c("y") % 5 == 0).sort("t"), on="t", strategy="nearest"
    ),
    "as of, other": lambda t: t.sort("t").join_asof(
        t.select("t", y="id").sort("t"), on="t", allow_exact_matches=False, tolerance="3h"
    ),
    "as of numbers": lambda t: t.sort("id").join_asof(
        t.filter(c("id") % 4 == 1).select(z="id", y="s").sort("z"), left_on="id", right_on="z", strategy="nearest", coalesce=False
    ),
}  # fmt: skip

PIVOTS: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "all": lambda t: pivoted(t),
    "filtered": lambda t: pivoted(t.filter(c("id") > 7)).filter(c("a") > 20),
    "sorted": lambda t: pivoted(t.sort("t", "id")).sort("k").head(2),
    "joined": lambda t: pivoted(t).join(t.group_by("k").agg(c("x").max()), on="k"),
    "twice": lambda t: pl.concat([pivoted(t), pivoted(t.filter(c("id") < 20))]),
    "beside": lambda t: pl.concat([pivoted(t).select("a"), pivoted(t).select(z="")], how="horizontal"),
    "frames": lambda t: pivoted(t.join(pl.LazyFrame({"k": [1, 2], "id": [5, 9]}), on="k", how="left")),
    "of groups": lambda t: t.group_by("k", "s").agg(c("id").sum()).pivot("s", on_columns=["a"], index="k", values="id", aggregate_function="item"),
}  # fmt: skip


def pivoted(t: pl.LazyFrame) -> pl.LazyFrame:
    return t.pivot("s", on_columns=["a", "", "z"], index="k", values="id", aggregate_function="sum")


@pytest.mark.parametrize("name", PIVOTS)
def test_pivots_are_those_of_polars(name: str, tmp_path: Path) -> None:
    """The columns of a pivot are a data frame of the plan."""
    frame = table(60)
    frame.write_parquet(tmp_path / "t.parquet")
    for lf in (frame.lazy(), pl.scan_parquet(tmp_path / "t.parquet")):
        query = PIVOTS[name](lf)
        same(query, dataclasses.replace(FAR, fallback_mode="silent"), order=False)
        (part,) = Query(InProcess(), 2, Options()).collect(_plan.read(query))
        assert_frame_equal(part.value, query.collect(engine="in-memory"), check_row_order=False)


@pytest.mark.parametrize("rows", [0, 1, 40, 100])
@pytest.mark.parametrize("options", RAISE, ids=NAMES)
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_polars(name: str, options: Options, rows: int) -> None:
    if "horizontal of" in name and rows == 1:
        return  # the sides have different lengths
    same(SHAPES[name](table(rows).lazy()), options)


def test_as_of_joins_by_groups() -> None:
    t = table(60).lazy()
    lf = t.sort("t").join_asof(t.select("t", "k", y="id").sort("t"), on="t", by="k", check_sortedness=False)
    same(lf, RAISE[1])
    same(lf, dataclasses.replace(FAR, fallback_mode="silent"))


def test_parts_of_an_as_of_join_read_their_neighbours_alone() -> None:
    assert _asof.needed([(1, 3), (4, 6)], [(0, 1), (2, 3), (4, 5), (7, 9)]) == [range(3), range(1, 4)]
    assert _asof.needed([(5, 6)], [(0, 5), (5, 5), (5, 6), (6, 7), (7, 7), (8, 9)]) == [range(5)]
    assert _asof.needed([None, (5, 5)], [None, (1, 2), None]) == [range(1), range(1, 2)]
    assert _asof.needed([(3, 1)], [(1, 2)]) is None
    assert _asof.needed([(1, 2)], [(2, 3), (1, 2)]) is None


def test_unsorted_sides_of_an_as_of_join_are_refused_as_by_polars() -> None:
    t = table(60).lazy()
    lf = t.join_asof(t.select("t", y="id"), on="t")
    for options in (FAR, NEAR):
        with pytest.raises(pl.exceptions.PolarsError, match="sorted"):
            collect(lf, dataclasses.replace(options, fallback_mode="silent"))
    with pytest.raises(
        NotImplementedError, match=r"Join .AsOf. .*not sorted, or some are null; this depends on results"
    ):
        collect(lf, RAISE[0])


def test_random_as_of_joins() -> None:
    """Keys repeat, also at the borders of parts, and some parts are empty."""
    for seed in range(40):
        pick = random.Random(seed)
        left, right = (
            pl.DataFrame(
                {"t": sorted(pick.randrange(30) for _ in range(n)), "v": range(n)},
                schema={"t": pl.Int64, "v": pl.Int64},
            )
            for n in (pick.randrange(60), pick.randrange(60))
        )
        drop = pick.randrange(30)
        lf = left.lazy().join_asof(
            right.lazy().filter((c("t") < drop) | (c("t") > drop + 8)),
            on="t",
            strategy=pick.choice(["backward", "forward", "nearest"]),
            allow_exact_matches=pick.random() < 0.7,
            tolerance=pick.choice([None, 2]),
        )  # fmt: skip
        same(lf, RAISE[0])


def test_inputs_of_other_lengths_run_whole() -> None:
    t = table(50).lazy()
    with pytest.raises(
        NotImplementedError, match=r"HConcat .*other numbers of rows; this depends on results of tasks that have run"
    ):
        collect(pl.concat([t.select("id"), t.select(a="id").head(3)], how="horizontal"), RAISE[0])


def test_the_parts_of_a_concat_are_read_once() -> None:
    cluster = InProcess()
    t = table(50).lazy()
    collect(pl.concat([t.select("id"), t.select(s="s")], how="horizontal"), RAISE[0], cluster)
    assert set(cluster.tasks) == {"run"}
