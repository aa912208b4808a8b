"""As-of joins in parts: the parts of the right side that each part of the left one needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan, _questions
from millrace._polars._plan import Node

#: The first and the last key of a part, which is sorted; None: it has no rows.
Range = tuple[Any, Any] | None


def is_as_of(node: Node) -> bool:
    """Reports whether a join is an as-of join."""
    how = node["options"]["args"]["how"]
    return isinstance(how, dict) and "AsOf" in how


def has_groups(node: Node) -> bool:
    """Reports whether an as-of join matches rows of equal groups (`by`)."""
    return node["options"]["args"]["how"]["AsOf"]["left_by"] is not None


def divided(
    node: Node, left: list[Node], right: list[Node], asked: Callable[[list[Node], list[Any]], list[pl.DataFrame]]
) -> list[Node] | None:
    """Divides an as-of join without groups by the parts of its left side.

    Args:
        node: the join.
        left: results of the parts of the left side.
        right: the same of the right side.
        asked: runs expressions over parts, and returns the results.
    """
    ranges: list[list[Range]] = []
    for parts, on in ((left, "left_on"), (right, "right_on")):
        (key,) = node["condition"]["Equi"][on]
        keys = [Node("Select", {"input": p, "expr": [key], "options": _questions.OPTIONS}) for p in parts]
        rows = [f.row(0) for f in asked(keys, _ENDS)]
        if any(nulls for *_, nulls in rows):
            return None
        ranges.append([(first, last) if first is not None else None for first, last, _ in rows])
    found = needed(*ranges)
    if found is None:
        return None
    inputs = [Node.input([s for i in some for s in right[i].source], right[0].schema) for some in found]
    return [node.changed(input_left=a, input_right=b) for a, b in zip(left, inputs, strict=True)]


def needed(left: Sequence[Range], right: Sequence[Range]) -> list[range] | None:
    """Returns for each part of the left side which parts of the right side hold the rows that its
    keys are nearest to, in both directions; None if one of the sides is not sorted.

    Rows of the right side with the same key are in the same answer, because strategies choose among
    them.
    """
    if not (_sorted(left) and _sorted(right)):
        return None
    numbers = [i for i, r in enumerate(right) if r is not None]
    edges = [r for r in right if r is not None]
    if not edges:
        return [range(1) for _ in left]
    found: list[range] = []
    for each in left:
        if each is None:
            found.append(range(1))
            continue
        low, high = each
        first = max((i for i, (start, _) in enumerate(edges) if start < low), default=0)
        while first and edges[first - 1][1] == edges[first][0]:
            first -= 1
        last = min((i for i, (_, end) in enumerate(edges) if end > high), default=len(edges) - 1)
        while last + 1 < len(edges) and edges[last + 1][0] == edges[last][1]:
            last += 1
        found.append(range(numbers[first], numbers[max(last, first)] + 1))
    return found


def _sorted(ranges: Sequence[Range]) -> bool:
    known = [r for r in ranges if r is not None]
    return all(a <= b for a, b in known) and all(a[1] <= b[0] for a, b in itertools.pairwise(known))


_KEY = pl.all()
_ENDS = [
    _plan.expression(e)
    for e in (_KEY.first().name.suffix("_first"), _KEY.last().name.suffix("_last"), _KEY.null_count())
]
