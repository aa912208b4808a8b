"""Columns and predicates of a plan pushed down to where rows of several parts meet.

Within a task, Polars optimises the plan itself. A plan is cut at the inputs of joins, groups and
sorts, and Polars is asked for each part what it needs of its inputs (`_questions.wanted`). A
selection and a filter above the input give it no more than that.
"""

from __future__ import annotations

from collections import Counter

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan, _questions
from millrace._polars._plan import Node
from millrace._polars._questions import Wanted

#: Nodes that are run together with the part of the plan above them.
WITH_ROWS = frozenset({"Filter", "Select", "HStack"})
#: Nodes at whose inputs a plan is cut, and over which the optimiser is asked.
_MEETING = frozenset({"Join", "GroupBy", "Sort", "Distinct", "Slice", "Union"})


def pushed(root: Node) -> Node:
    """Returns a plan with the same result that reads less below joins, groups and sorts."""
    nodes = list(root.walk())
    readers = Counter(n for node in nodes for n in set(node.inputs))
    wants: dict[Node, list[Wanted | None]] = {root: []}
    heads: dict[Node, Node] = {}
    for node in reversed(nodes):  # readers come before their inputs
        if node not in wants:
            continue
        heads[node] = _narrowed(node, wants[node])
        cuts = _cuts(heads[node], node, readers)
        found = _asked(heads[node], cuts)
        for cut in cuts:
            wants.setdefault(cut, []).extend(found.get(cut) or [None])
    built: dict[Node, Node] = {}
    for node in nodes:
        if node in heads:
            built[node] = _rebuilt(heads[node], node, built)
    return built[root]


def _narrowed(node: Node, wants: list[Wanted | None]) -> Node:
    """Returns a node with a filter and a selection above it, as its readers allow."""
    some = [w for w in wants if w is not None]
    if not some or len(some) < len(wants) or node.kind == "DataFrameScan":
        return node
    result = node
    # A predicate beside a number of rows is one of the first so many rows.
    if len(some) == 1 and some[0].predicate is not None and some[0].rows is None:
        result = Node("Filter", {"input": result, "predicate": _plan.expression(some[0].predicate)})
    if any(w.columns is None for w in some):
        return result
    pushed = result is not node
    names = {name for w in some for name in [*(w.columns or ()), *([] if pushed else _columns_of(w))]}
    kept = [name for name in node.schema if name in names] or list(node.schema)[:1]
    if len(kept) == len(node.schema):
        return result
    columns = [{"Column": name} for name in kept]
    return Node("Select", {"input": result, "expr": columns, "options": _questions.OPTIONS})


def _columns_of(want: Wanted) -> list[str]:
    """Returns the columns of a predicate that is left to the reader."""
    return want.predicate.meta.root_names() if want.predicate is not None else []


def _cuts(head: Node, top: Node, readers: Counter[Node]) -> list[Node]:
    """Returns the nodes below which the next part of the plan begins."""
    node = head
    while node is not top:
        (node,) = node.inputs
    while node.kind in WITH_ROWS:
        (inner,) = node.inputs
        if readers[inner] > 1:
            return [inner]
        node = inner
    return list(dict.fromkeys(node.inputs))


def _asked(head: Node, cuts: list[Node]) -> dict[Node, list[Wanted]]:
    if not cuts:
        return {}
    leaves = {cut: Node.input(None, cut.schema) for cut in cuts}
    part = _rebuilt(head, None, leaves)
    nodes = [n for n in part.walk() if n.kind != _plan.INPUT]
    if any(n.kind not in WITH_ROWS | _MEETING or _questions.has_code(n.body) for n in nodes):
        return {}
    try:
        found = _questions.wanted(part)
    except (pl.exceptions.PolarsError, ValueError, TypeError):
        return {}
    return {cut: found[leaf] for cut, leaf in leaves.items() if leaf in found}


def _rebuilt(node: Node, top: Node | None, others: dict[Node, Node]) -> Node:
    """Returns a node that reads others instead of those that are keys, at any depth; `top` itself
    is not replaced."""
    if node in others and node is not top:
        return others[node]
    changed: dict[Node, Node] = {n: _rebuilt(n, top, others) for n in node.inputs}
    return node.over({n: c for n, c in changed.items() if c is not n})
