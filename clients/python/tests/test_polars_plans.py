"""Queries of Polars that are divided within this process, compared with Polars' own engine."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from in_process import FAR, NEAR, collect
from millrace._polars._options import Options
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
