"""Random queries of Polars have the answers of Polars. `make polars-plans` tries more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_plans import failures

#: Queries of a test.
PLANS = 25


@pytest.mark.parametrize("part", range(4))
def test_random_queries_have_the_answers_of_polars(part: int, tmp_path: Path) -> None:
    """If one differs, it is printed as a program, with its seed."""
    found = failures(range(part * PLANS, (part + 1) * PLANS), tmp_path)
    assert not found, "\n\n".join(found)
