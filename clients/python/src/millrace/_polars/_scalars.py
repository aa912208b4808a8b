"""Aggregates of all rows beside the rows, as in `filter(x > x.mean())`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _aggregates, _expressions, _msgpack, _plan, _questions
from millrace._polars._plan import Node

_NAME = "__millrace_scalar_"


@dataclasses.dataclass
class Scalars:
    """The aggregates in the expressions of a node."""

    #: The aggregates, each named as the column that it becomes.
    aggregates: list[Any]
    #: The node's expressions, each with its name, with columns in place of aggregates.
    rest: list[Any]


def found_in(exprs: Sequence[Any], schema: pl.Schema, *, selected: bool) -> Scalars | None:
    """Returns the aggregates in expressions of a node; None if there are none, or the rest does not
    work row by row.

    Args:
        exprs: the expressions.
        schema: columns of the data.
        selected: the expressions make the number of rows, which is one if all are aggregates.
    """
    finder = _Finder(schema)
    rest: list[Any] = []
    for expr in exprs:
        names = _expressions.names_of([expr], schema)
        if len(names) != 1:
            return None
        rest.append({"Alias": [finder.without(expr), names[0]]})
    if not finder.found:
        return None
    aggregates = [{"Alias": [expr, name]} for name, expr in finder.found.values()]
    wide = pl.Schema({**schema, **_expressions.selected(schema, aggregates).schema})
    own = (_expressions.columns(r) or set() for r in rest)
    if selected and not any(names & schema.keys() for names in own):
        return None
    if not _questions.row_by_row(rest, wide):
        return None
    return Scalars(aggregates, rest)


def beside(part: Node, values: Node) -> Node:
    """Returns a part with the values of aggregates in each row."""
    return _BESIDE.changed(inputs=[part, values])


class _Finder:
    """Collects aggregates, and gives each a name."""

    def __init__(self, schema: pl.Schema) -> None:
        self._schema = schema
        #: Name of each aggregate, by its content.
        self.found: dict[bytes, tuple[str, Any]] = {}

    def without(self, expr: Any) -> Any:
        """Returns an expression with columns in place of aggregates."""
        if isinstance(expr, list):
            return [self.without(e) for e in cast("list[Any]", expr)]
        if expr == "Len":
            return self._column(expr)
        if not isinstance(expr, dict):
            return expr
        fields = cast("dict[str, Any]", expr)
        if fields.keys() & {"Over", "Eval", "Literal"}:
            return expr
        if fields.keys() & {"Agg", "Function"}:
            steps = _aggregates.in_two_steps([expr], ["x"], self._schema, groups=False)
            if steps is not None and steps.partial:
                return self._column(expr)
        return expr if "Agg" in fields else {k: self.without(v) for k, v in fields.items()}

    def _column(self, expr: Any) -> Any:
        name, _ = self.found.setdefault(_msgpack.pack(expr), (f"{_NAME}{len(self.found)}", expr))
        return {"Alias": [{"Column": name}, *_expressions.names_of([expr], self._schema)]}


_ONE = pl.LazyFrame({"k": [0]})
_HORIZONTAL = _plan.read(pl.concat([_ONE, _ONE.select(z="k")], how="horizontal"))
_BESIDE = _HORIZONTAL.changed(options={**_HORIZONTAL["options"], "strict": False, "broadcast_unit_length": True})
