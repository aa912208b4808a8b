"""Expressions as they are in the fields of a plan's nodes: their columns, their selectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan, _questions
from millrace._polars._plan import Node


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the kinds of an expression and of all in it, each with its fields. Kinds without fields
    have None."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for kind, fields in cast("dict[str, Any]", each).items():
                yield kind, fields
                if kind != "Selector":
                    left.append(fields)
        elif isinstance(each, list):
            left += cast("list[Any]", each)
        elif isinstance(each, Node):
            yield "SubPlan", each


def columns(exprs: Any) -> set[str] | None:
    """Returns the names of the columns that expressions read; None if that depends on the columns
    that there are."""
    names: set[str] = set()
    for kind, fields in walk(exprs):
        if kind == "Column":
            names.add(fields)
        elif kind == "Selector":
            found = _named(fields)
            if found is None:
                return None
            names.update(found)
        elif kind == "SubPlan":
            return None
    return names


def is_only_column(expr: Any) -> bool:
    return isinstance(expr, dict) and cast("dict[str, Any]", expr).keys() == {"Column"}


def balanced(predicate: Any) -> Any:
    """Returns a predicate in which chains of `|` and `&` are trees of little depth: the time that
    Polars takes for a predicate grows with the square of its depth.

    Args:
        predicate: an expression of type Boolean. For these, both operators are associative.
    """
    op = _operator(predicate)
    if op is None:
        return predicate
    operands: list[Any] = []
    left = [predicate]
    while left:
        each = left.pop()
        if _operator(each) == op:
            left += [each["BinaryExpr"]["right"], each["BinaryExpr"]["left"]]
        else:
            operands.append(balanced(each))
    if len(operands) == 2 and all(
        o is predicate["BinaryExpr"][k] for o, k in zip(operands, ("left", "right"), strict=True)
    ):
        return predicate
    while len(operands) > 1:
        operands = [
            {"BinaryExpr": {"left": pair[0], "op": op, "right": pair[1]}} if len(pair) > 1 else pair[0]
            for pair in (operands[i : i + 2] for i in range(0, len(operands), 2))
        ]
    return operands[0]


def _operator(expr: Any) -> str | None:
    """Returns the operator of an expression if it is `|` or `&`."""
    found = cast("dict[str, Any]", expr).get("BinaryExpr") if isinstance(expr, dict) else None
    return found["op"] if found is not None and found["op"] in ("Or", "And") else None


def selected(schema: pl.Schema, exprs: list[Any]) -> Node:
    """Returns a selection of expressions from data of a schema."""
    return Node("Select", {"input": Node.input(None, schema), "expr": exprs, "options": _questions.OPTIONS})


def single(node: Node, field: str, schema: pl.Schema) -> Node:
    """Returns a node whose expressions give a column each: those with selectors, as `pl.all().sum()`,
    are written out. It returns the same node if it cannot do so for all.

    Polars is asked whether the two nodes have the same plan.

    Args:
        node: the node.
        field: the field with the expressions.
        schema: of the columns that selectors choose from.
    """
    exprs: list[Any] = node[field]
    if not any(kind == "Selector" for kind, _ in walk(exprs)):
        return node
    writer = _Writer(schema)
    try:
        written = node.changed(**{field: [e for expr in exprs for e in writer.written(expr)]})
        leaves = {n: Node.input(None, n.schema) for n in node.inputs}
        plans = [_plan.lazy(n.over(leaves)).explain(optimized=False) for n in (node, written)]
    except (pl.exceptions.PolarsError, ValueError, TypeError, KeyError):
        return node
    return written if plans[0] == plans[1] else node


class _Writer:
    """Writes selectors out for the columns of a schema."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema

    def written(self, expr: Any) -> list[Any]:
        """Returns an expression for each column that an expression gives."""
        sizes = [len(self._names(fields)) for kind, fields in walk(expr) if kind == "Selector"]
        if not sizes:
            return [expr]
        count = len(selected(self._schema, [expr]).schema)
        return [self._one(expr, i, count) for i in range(count)]

    def _one(self, expr: Any, at: int, count: int) -> Any:
        if isinstance(expr, list):
            return [self._one(e, at, count) for e in cast("list[Any]", expr)]
        if not isinstance(expr, dict):
            return expr
        fields = cast("dict[str, Any]", expr)
        if fields.keys() == {"Selector"}:
            names = self._names(fields["Selector"])
            return {"Column": names[at if len(names) == count else 0]}
        function = fields.get("Function")
        if isinstance(function, dict) and isinstance(function.get("input"), list):
            items = [e for item in function["input"] for e in self._input(item, at, count)]
            rest = {k: v if k == "input" else self._one(v, at, count) for k, v in function.items()}
            return {"Function": {**rest, "input": items}}
        return {k: self._one(v, at, count) for k, v in fields.items()}

    def _input(self, item: Any, at: int, count: int) -> list[Any]:
        """Returns the inputs of a function that stand for one. A function may take all columns of a
        selector as its inputs."""
        sizes = {len(self._names(fields)) for kind, fields in walk(item) if kind == "Selector"}
        if not sizes or sizes <= {1, count}:
            return [self._one(item, at, count)]
        (inner,) = sizes - {1}
        return [self._one(item, i, inner) for i in range(inner)]

    def _names(self, selector: Any) -> list[str]:
        names = _named(selector)
        if names is None:
            names = list(selected(self._schema, [{"Selector": selector}]).schema)
        return names


def _named(selector: Any) -> list[str] | None:
    """Returns the names of a selector that lists them."""
    named = cast("dict[str, Any]", selector).get("ByName") if isinstance(selector, dict) else None
    return list(named["names"]) if named is not None and named["strict"] else None


def names_of(exprs: Sequence[Any], schema: pl.Schema) -> list[str]:
    """Returns the names of the columns that expressions give."""
    return list(selected(schema, list(exprs)).schema)
