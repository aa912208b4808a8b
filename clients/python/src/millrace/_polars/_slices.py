"""Slices of a plan that take no rows.

Polars merges a slice with another one below it. If no row is in both, its streaming engine panics
where the first rows of a sort are taken above. It does not for the first 0 rows of anything.
"""

from __future__ import annotations

from millrace._polars import _questions, _scans
from millrace._polars._plan import Node

#: Functions of whole frames that give each row once.
_FUNCTIONS = frozenset({"Rename", "Unnest", "Hint"})


def emptied(root: Node) -> Node:
    """Returns a plan with the same result, in which slices behind the last row take the first 0
    rows."""
    if not any(_is_behind(n, 0) for n in root.walk()):
        return root
    built: dict[Node, Node] = {}
    #: Rows of each node, at most; None: it cannot be told.
    most: dict[Node, int | None] = {}
    for node in root.walk():
        made = node.over({n: built[n] for n in node.inputs if built[n] is not n})
        if made.kind == "Slice" and _is_behind(made, most[node.inputs[0]]):
            made = made.changed(offset=0, len=0)
        built[node] = made
        most[node] = _most(made, [most[n] for n in node.inputs])
    return built[root]


def _is_behind(node: Node, rows: int | None) -> bool:
    """Reports whether a node is a slice that begins behind so many rows."""
    return node.kind == "Slice" and rows is not None and node["offset"] > 0 and node["offset"] >= rows


def _most(node: Node, inputs: list[int | None]) -> int | None:
    """Returns how many rows a node gives at most, by those of its inputs; None: it cannot be told."""
    if node.kind == "Scan":
        limit = _scans.limit(node)
        return None if limit is None else limit[2]
    if node.kind == "Slice":
        offset, length = node["offset"], node["len"]
        ends = [max(n - max(offset, 0), 0) for n in inputs if n is not None]
        return min([length, *ends, *([-offset] if offset < 0 else [])])
    known = [n for n in inputs if n is not None]
    if not known or len(known) < len(inputs):
        return None
    return max(known) if _keeps(node) else None


def _keeps(node: Node) -> bool:
    """Reports whether a node gives no more rows than the longest of its inputs."""
    match node.kind:
        case "Filter" | "Sort" | "Distinct" | "Cache" | "HConcat":
            return True
        case "MapFunction":
            return isinstance(node["function"], dict) and not _FUNCTIONS.isdisjoint(node["function"])
        case "HStack":
            return len(node.inputs[0].schema) > 0
        case "Select":
            return _questions.row_by_row(node["expr"], node.inputs[0].schema)
        case _:
            return False
