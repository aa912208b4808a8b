"""Columns of a plan that nobody reads: what computes them is removed, and they do not meet.

Within a task, Polars removes such columns itself. Here they are removed where the rows of several
parts may meet, for what goes there are results of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _expressions, _questions
from millrace._polars._plan import Node

#: Joins by keys, whose sides need only the columns that are named.
_BY_KEYS = frozenset({"Inner", "Left", "Right", "Full", "Semi", "Anti", "Cross"})


def narrowed(root: Node) -> Node:
    """Returns a plan with the same result, without columns that nobody reads."""
    nodes = list(root.walk())
    live: dict[Node, set[str]] = {root: set(root.schema)}
    cut: dict[Node, Node] = {}
    needs: dict[Node, dict[Node, set[str]]] = {}
    for node in reversed(nodes):  # readers come before their inputs
        cut[node] = _without(node, live[node])
        needs[node] = {}
        for inner, names in zip(node.inputs, _needs(cut[node], live[node]), strict=True):
            needs[node].setdefault(inner, set()).update(names)
            live.setdefault(inner, set()).update(names)
    built: dict[Node, Node] = {}
    for node in nodes:
        given = {n: _only(built[n], names) for n, names in needs[node].items()}
        built[node] = _rebuilt(node, cut[node], {n: g for n, g in given.items() if g is not n}, live[node])
    return built[root]


def _rebuilt(node: Node, cut: Node, given: dict[Node, Node], live: set[str]) -> Node:
    """Returns a node without what nobody reads, over other inputs."""
    if cut.kind == "HStack" and not cut["exprs"]:
        (inner,) = cut.inputs
        return given.get(inner, inner)
    made = cut.over(given)
    if node.kind == "Join" and made is not node:
        kept = {name: dtype for name, dtype in node.schema.items() if name in live}
        try:
            found = made.schema
        except (pl.exceptions.PolarsError, ValueError):
            return node
        if any(found.get(name) != dtype for name, dtype in kept.items()):
            return node
    return made


def _only(node: Node, names: set[str]) -> Node:
    """Returns a node with only these columns of another one, and at least one of them."""
    kept = _kept(node.schema, names)
    if len(kept) == len(node.schema):
        return node
    return Node("Select", {"input": node, "expr": _columns(kept), "options": _questions.OPTIONS})


def _kept(schema: pl.Schema, names: set[str]) -> list[str]:
    return [name for name in schema if name in names] or list(schema)[:1]


def _columns(names: Iterable[str]) -> list[Any]:
    return [{"Column": name} for name in names]


# Expressions whose results are read.


def _without(node: Node, live: set[str]) -> Node:
    """Returns a node without the expressions whose results nobody reads."""
    field = {"Select": "expr", "HStack": "exprs", "GroupBy": "aggs"}.get(node.kind)
    if field is None or (node.kind == "GroupBy" and not _is_plain(node)):
        return node
    (inner,) = node.inputs
    exprs: list[Any] = node[field]
    names = list(node.schema)
    if node.kind == "HStack":
        if live >= set(names):
            return node
        names = _expressions.names_of(exprs, inner.schema)
    elif node.kind == "GroupBy":
        names = names[len(node["keys"]) :]
    if len(names) != len(exprs):
        return node
    kept = [expr for expr, name in zip(exprs, names, strict=True) if name in live]
    if len(kept) == len(exprs):
        return node
    if node.kind == "Select":
        if not _questions.row_by_row(exprs, inner.schema):
            return node  # the number of rows may be that of a column that nobody reads
        kept = kept or exprs[:1]
    return node.changed(**{field: kept})


def _is_plain(node: Node) -> bool:
    return not node["predicates"] and node["apply"] is None and not any(node["options"].values())


# Columns that a node reads.


def _needs(node: Node, live: set[str]) -> list[set[str]]:
    """Returns for each input of a node the columns that it reads."""
    every = [set(n.schema) for n in node.inputs]
    if node.kind == "Join":
        return _of_join(node, live) or every
    if node.kind == "Union":
        same = live or set(list(node.schema)[:1])  # the same column of each input, if none is read
        return [same] * len(every) if _is_simple(node) else every
    read = _read(node)
    names = None if read is None else _expressions.columns(read)
    if names is None:
        return every
    if node.kind == "HStack":
        made = _expressions.names_of(node["exprs"], node.inputs[0].schema) if node["exprs"] else []
        return [names | (live - set(made))]
    return [names if node.kind in ("Select", "GroupBy") else names | live]


def _read(node: Node) -> list[Any] | None:
    """Returns the expressions of a node over one input; None if it is read in another way."""
    match node.kind:
        case "Select":
            return node["expr"]
        case "HStack":
            return node["exprs"]
        case "Filter":
            return [node["predicate"]]
        case "Sort":
            return node["by_column"]
        case "GroupBy" if _is_plain(node):
            return [*node["keys"], *node["aggs"]]
        case "Distinct" if node["options"]["subset"] is not None:
            return [_of_subset(node["options"]["subset"])]
        case "Slice" | "Cache":
            return []
        case _:
            return None


def _of_subset(subset: Any) -> Any:
    """Returns the columns of a subset, which may be a selector without the word."""
    return {"Selector": subset} if isinstance(subset, dict) and "Column" not in subset else subset


def _is_simple(node: Node) -> bool:
    """Reports whether a union has the same columns in all inputs."""
    arguments = node["args"]
    names = [list(n.schema) for n in node.inputs]
    return not arguments["to_supertypes"] and not arguments["diagonal"] and all(n == names[0] for n in names)


def _of_join(node: Node, live: set[str]) -> list[set[str]] | None:
    """Returns the columns that a join reads of its sides. A name that both sides have stays in both
    if it is read, for it makes the other one's name."""
    arguments = node["options"]["args"]
    condition = cast("dict[str, Any]", node["condition"]) if isinstance(node["condition"], dict) else {}
    equal = condition.get("Equi")
    if equal is None or not isinstance(arguments["how"], str) or arguments["how"] not in _BY_KEYS:
        return None
    keys = [_expressions.columns(equal[on]) for on in ("left_on", "right_on")]
    if any(k is None for k in keys):
        return None
    suffix = arguments["suffix"] or "_right"
    sides = [set(n.schema) for n in (node["input_left"], node["input_right"])]
    both = sides[0] & sides[1]
    read = {n for side in sides for n in side if n in live or n + suffix in live}
    shared = (read | cast("set[str]", keys[0]) | cast("set[str]", keys[1])) & both
    needs = [side & (read | (key or set()) | shared) for side, key in zip(sides, keys, strict=True)]
    if arguments["how"] in ("Semi", "Anti"):
        needs[1] = keys[1] or set()
    return needs
