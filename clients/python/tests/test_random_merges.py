"""Random shuffles and merges have the rows of a merge of whole frames. `make frame-merges` tries
more of them."""

from __future__ import annotations

import pytest
from random_merges import failures

#: Merges of a test.
MERGES = 25


@pytest.mark.parametrize("part", range(2))
def test_random_merges_have_the_rows_of_whole_merges(part: int) -> None:
    """If one differs, it is printed with its seed and its frames."""
    found = failures(part * MERGES, (part + 1) * MERGES)
    assert not found, "\n\n".join(found)
