"""Columns and predicates of a plan pushed down to where rows of several parts meet.

Within a task, Polars optimises the plan itself. Between tasks, columns that nobody reads are
removed (`_columns`). Then the plan is cut at the inputs of joins, groups and sorts, and Polars is
asked for each piece which predicates it applies to its inputs (`_questions.wanted`). A filter above
the input does the same. The filter of the user stays where it is: it finds less to remove.
"""

from __future__ import annotations

from collections import Counter

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _columns, _expressions, _plan, _questions, _slices
from millrace._polars._plan import Node

#: Nodes that are run together with the part of the plan above them.
_WITH_ROWS = frozenset({"Filter", "Select", "HStack"})
#: Nodes at whose inputs a plan is cut, and over which the optimiser is asked.
_MEETING = frozenset({"Join", "GroupBy", "Sort", "Distinct", "Slice", "Union"})


def pushed(root: Node) -> Node:
    """Returns a plan with the same result that reads less below joins, groups and sorts."""
    return _filtered(_columns.narrowed(_single(_slices.emptied(root))))


def _single(root: Node) -> Node:
    """Returns a plan whose expressions give one column each, as far as they can be written so, and
    whose predicates are not deep."""
    built: dict[Node, Node] = {}
    for node in root.walk():
        made = node.over({n: built[n] for n in node.inputs if built[n] is not n})
        match made.kind:
            case "Filter":
                predicate = _expressions.balanced(made["predicate"])
                made = made if predicate is made["predicate"] else made.changed(predicate=predicate)
            case "Select":
                made = _expressions.single(made, "expr", made.inputs[0].schema)
            case "HStack":
                made = _expressions.single(made, "exprs", made.inputs[0].schema)
            case "GroupBy":
                made = _expressions.single(made, "keys", made.inputs[0].schema)
                keys = {key["Column"] for key in made["keys"] if _expressions.is_only_column(key)}
                schema = {n: d for n, d in made.inputs[0].schema.items() if n not in keys}
                made = _expressions.single(made, "aggs", pl.Schema(schema))
            case _:
                pass
        built[node] = made
    return built[root]


def _filtered(root: Node) -> Node:
    """Returns a plan with filters where Polars would filter."""
    nodes = list(root.walk())
    readers = Counter(n for node in nodes for n in node.inputs)
    wants: dict[Node, pl.Expr | None] = {root: None}
    for node in reversed(nodes):  # readers come before their inputs
        if node in wants:
            piece = _with_filter(node, wants[node])
            cuts = _cuts(node, readers)
            found = _asked(piece, cuts)
            wants |= {cut: found.get(cut) if readers[cut] == 1 else None for cut in cuts}
    built: dict[Node, Node] = {}
    for node in nodes:
        made = node.over({n: built[n] for n in node.inputs if built[n] is not n})
        built[node] = _with_filter(made, wants.get(node))
    return built[root]


def _with_filter(node: Node, predicate: pl.Expr | None) -> Node:
    if predicate is None or node.kind == "DataFrameScan":
        return node
    return Node("Filter", {"input": node, "predicate": _plan.expression(predicate)})


def _cuts(node: Node, readers: Counter[Node]) -> list[Node]:
    """Returns the nodes below which the next piece of the plan begins."""
    while node.kind in _WITH_ROWS:
        (inner,) = node.inputs
        if readers[inner] > 1:
            return [inner]
        node = inner
    return list(dict.fromkeys(node.inputs))


def _asked(piece: Node, cuts: list[Node]) -> dict[Node, pl.Expr]:
    """Returns the predicates that Polars applies to inputs of a piece of a plan."""
    if not cuts:
        return {}
    leaves = {cut: Node.input(None, cut.schema) for cut in cuts}
    piece = piece.rebuilt(leaves)
    nodes = [n for n in piece.walk() if n.kind != _plan.INPUT]
    if not any(n.kind == "Filter" for n in nodes):
        return {}
    if any(n.kind not in _WITH_ROWS | _MEETING or _questions.has_code(n.body) for n in nodes):
        return {}
    try:
        found = _questions.wanted(piece)
    except (pl.exceptions.PolarsError, ValueError, TypeError):
        return {}
    predicates: dict[Node, pl.Expr] = {}
    for cut, leaf in leaves.items():
        wants = found.get(leaf, [])
        # A predicate beside a number of rows is one of the first so many rows.
        if len(wants) == 1 and wants[0].predicate is not None and wants[0].rows is None:
            predicates[cut] = wants[0].predicate
    return predicates
