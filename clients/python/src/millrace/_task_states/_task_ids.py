"""Sets of task ids."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

#: Most ranges of a set. If there are more, the lowest ids are forgotten.
_MOST = 10_000


class TaskIds:
    """A set of task ids, kept as ranges: the ids of one submission are mostly consecutive."""

    def __init__(self) -> None:
        # The ranges, ascending and disjoint: first ids, and last ids.
        self._first: list[int] = []
        self._last: list[int] = []

    def add(self, ids: Iterable[int]) -> None:
        """Adds ids."""
        first = last = 0
        for i in ids:
            if first and i == last + 1:
                last = i
                continue
            if first:
                self._add_range(first, last)
            first = last = i
        if first:
            self._add_range(first, last)

    def _add_range(self, first: int, last: int) -> None:
        # The ranges that the new one touches become one with it.
        begin = bisect.bisect_left(self._last, first - 1)
        end = bisect.bisect_right(self._first, last + 1)
        if begin < end:
            first, last = min(first, self._first[begin]), max(last, self._last[end - 1])
        self._first[begin:end], self._last[begin:end] = [first], [last]
        if len(self._first) > _MOST:
            del self._first[: _MOST // 10], self._last[: _MOST // 10]

    def __contains__(self, task: int) -> bool:
        at = bisect.bisect_right(self._first, task) - 1
        return at >= 0 and task <= self._last[at]

    def clear(self) -> None:
        """Removes all ids."""
        self._first, self._last = [], []
