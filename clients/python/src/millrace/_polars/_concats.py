"""Concats whose inputs differ in columns or stand beside each other, and unpivots, in parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan, _questions
from millrace._polars._plan import Node


def aligned(part: Node, schema: pl.Schema) -> Node:
    """Returns a part of an input of a concat with the columns of the result: those that it lacks
    are null."""
    found = part.schema
    if found == schema and list(found) == list(schema):
        return part
    missing = [_plan.expression(pl.lit(None, dtype=d).alias(n)) for n, d in schema.items() if n not in found]
    if missing:
        part = Node("HStack", {"input": part, "exprs": missing, "options": _questions.OPTIONS})
    columns = [
        pl.col(n) if n not in found or found[n] == d else pl.col(n).cast(d, strict=True) for n, d in schema.items()
    ]
    return _selected(part, [_plan.expression(c) for c in columns])


def unpivoted(node: Node, inner: Node, parts: Sequence[Node], most: int) -> list[Node] | None:
    """Divides an unpivot: the rows of one column after those of another, as in the whole.

    Args:
        node: the unpivot.
        inner: the node that it reads.
        parts: of that node.
        most: parts of the result, at most; if there are more, the result is None.
    """
    arguments = node["function"]["Unpivot"]["args"]
    index = _names(arguments["index"], inner.schema)
    columns = _names(arguments["on"], inner.schema) if arguments["on"] is not None else None
    if columns is None:
        columns = [n for n in inner.schema if n not in index]
    if not columns or len(columns) * len(parts) > most:
        return None
    *_, value = node.schema
    made: list[Node] = []
    for name, part in itertools.product(columns, parts):
        one = {**arguments, "on": _by_name([name]), "index": _by_name(index)}
        each = Node(node.kind, {**node.body, "function": {"Unpivot": {"args": one}}}).over({inner: part})
        made.append(
            _selected(
                each,
                [_plan.expression(pl.col(n).cast(node.schema[n]) if n == value else pl.col(n)) for n in node.schema],
            )
        )
    return made


def rows_of(parts: Sequence[Node], heights: Sequence[int], start: int, length: int) -> Node:
    """Returns the rows from `start` on of parts that follow each other.

    Args:
        parts: inputs with one source each.
        heights: rows of each.
        start: the first row.
        length: number of rows.
    """
    ends = list(itertools.accumulate(heights, initial=0))
    some = [i for i, (a, b) in enumerate(itertools.pairwise(ends)) if a < start + length and b > start] or [0]
    sources = [s for i in some for s in parts[i].source]
    node = Node.input(sources, parts[0].schema)
    return _SLICE.changed(input=node, offset=max(start - ends[some[0]], 0), len=length)


def _names(selector: Any, schema: pl.Schema) -> list[str]:
    """Returns the columns that a selector means."""
    if selector is None:
        return []
    leaf = Node.input(None, schema)
    return list(_selected(leaf, [{"Selector": selector}]).schema)


def _by_name(names: list[str]) -> Any:
    return {"ByName": {"names": names, "strict": True}}


def _selected(node: Node, exprs: list[Any]) -> Node:
    return Node("Select", {"input": node, "expr": exprs, "options": _questions.OPTIONS})


_SLICE = _plan.read(pl.LazyFrame({"k": [0]}).slice(1, 1))
