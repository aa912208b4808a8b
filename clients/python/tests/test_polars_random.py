"""Random queries of Polars have the answers of Polars. `make polars-plans` tries more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import FAR
from random_plans import Plan, RefusedError, difference, failures

#: Queries of a test.
PLANS = 25


@pytest.mark.parametrize("part", range(4))
def test_random_queries_have_the_answers_of_polars(part: int, tmp_path: Path) -> None:
    """If one differs, it is printed as a program, with its seed."""
    found = failures(range(part * PLANS, (part + 1) * PLANS), tmp_path)
    assert not found, "\n\n".join(found)


def test_an_answer_of_the_default_engine_of_polars_is_right() -> None:
    """The in-memory engine joins no NaN of sorted keys."""
    steps = ["pl.LazyFrame({'f': [float('nan')]})", "t.join(t.group_by('f').len(), on='f')"]
    assert difference(Plan(0, FAR, steps)) is None


def test_a_query_that_the_default_engine_of_polars_refuses_is_left_out() -> None:
    """It reads the value under a null, which is no time."""
    steps = ["frame(5).lazy().filter(c('row') < 0)", "t.select(c('zone').min())", "t.select(c('zone').dt.dst_offset())"]
    with pytest.raises(RefusedError):
        difference(Plan(0, FAR, steps))
