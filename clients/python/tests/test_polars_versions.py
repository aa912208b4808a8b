"""Queries of a Polars that writes plans in a form that this package does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from millrace import Client
from millrace._polars import _plan, _query
from millrace.polars import Engine, Options, UndividedWarning
from polars.testing import assert_frame_equal

c = pl.col
TEXT = "the query cannot be divided, and runs in one task: a plan of Polars"


def unknown(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Makes the client one that knows other plans: with another first word, of other fields, or with
    other fields of a node."""
    if form == "word":
        monkeypatch.setattr(_plan, "_WORD", b"ANOTHER")
    elif form == "fields":
        monkeypatch.setattr(_plan, "_HEAD", 80)
    else:
        monkeypatch.setattr(_query.Query, "_group_by", lambda _, node: node["another"])


@pytest.mark.parametrize("form", ["word", "fields", "node"])
def test_a_plan_of_an_unknown_form_runs_in_one_task(
    form: str, monkeypatch: pytest.MonkeyPatch, client: Client, tmp_path: Path
) -> None:
    rows = pl.DataFrame({"k": [1, 2, 1, 2], "x": [0.5, 1.5, 2.5, 4.0]})
    rows.write_parquet(tmp_path / "t.parquet")
    engine = Engine(client, options=Options(undivided_limit=0, least_bytes=0, parts=2))
    stored = engine.persist(rows)
    unknown(monkeypatch, form)
    for lf in (pl.scan_parquet(tmp_path / "t.parquet"), rows.lazy(), stored):
        query = lf.group_by("k").agg(c("x").median())
        with pytest.warns(UndividedWarning, match=TEXT) as noted:
            found = query.collect(engine=engine)
        assert len(noted) == 1
        assert_frame_equal(found, rows.group_by("k").agg(c("x").median()), check_row_order=False)
    with pytest.warns(UndividedWarning, match=TEXT):
        kept = engine.persist(query)
    with pytest.warns(UndividedWarning, match=TEXT):
        query.sink_parquet(tmp_path / "out", mkdir=True, engine=Engine(client, options=Options(sink_to_directory=True)))
    assert pl.read_parquet(tmp_path / "out" / "00000.parquet").sort("k").equals(kept.collect().sort("k"))
    assert TEXT in engine.explain(query)
    with pytest.raises(NotImplementedError, match=TEXT):
        query.collect(engine=Engine(client, options=Options(fallback_mode="raise", undivided_limit=0)))


# Polars writes the second limit over the first if it moves the first into an input of the task: see
# _plan.optimizations, which looks at the bytes of a plan whatever their form is.
@pytest.mark.parametrize("form", ["word", "fields"])
def test_limits_of_a_plan_of_an_unknown_form(form: str, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    rows = pl.DataFrame({"x": range(100)})
    engine = Engine(client, options=Options(undivided_limit=0, least_bytes=0, parts=2))
    stored = engine.persist(rows)
    unknown(monkeypatch, form)
    query = stored.head(12).with_row_index().head(40).select("x")
    with pytest.warns(UndividedWarning, match=TEXT):
        assert_frame_equal(query.collect(engine=engine), rows.head(12))


PROGRAM = """
import polars as pl
from millrace._polars import _plan
_plan._WORD = b"ANOTHER"
from millrace.polars import Engine
from millrace._polars import _whole
assert _whole.run(pl.LazyFrame({"x": [1]}).serialize(), []).item() == 1
try:
    Engine._query(None)
except _plan.UnknownPlanError:
    print("unknown")
"""


def test_the_engine_can_be_imported_with_any_form_of_plans() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "unknown\n"
