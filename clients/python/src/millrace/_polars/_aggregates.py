"""Aggregates in two steps: of each piece of the data, and of the pieces' results.

`sum` of a whole is the sum of the sums of its parts; a mean needs sum and count of each part.
Aggregates that have no such form, as the median, give None: all rows of a group must be together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _msgpack, _plan, _questions

_HOLE = "__millrace_hole"


@dataclasses.dataclass
class Steps:
    """Aggregates in two steps. The expressions are as in the fields of a plan's node."""

    #: Of each piece; they name their results themselves.
    partial: list[Any]
    #: Of the results of all pieces, by the same names.
    final: list[Any]
    #: The aggregates that were asked for, of the columns of `final`.
    result: list[Any]


def in_two_steps(aggregates: list[Any], names: list[str], schema: pl.Schema, *, groups: bool = True) -> Steps | None:
    """Returns aggregates in two steps, or None if one of them has no such form.

    Args:
        aggregates: the expressions.
        names: of their results.
        schema: columns of the data.
        groups: they are of groups, so that each part of the data has at least one row.
    """
    maker = _Maker(schema, groups)
    result: list[Any] = []
    for expr, name in zip(aggregates, names, strict=True):
        rest = maker.rest(expr)
        if rest is None:
            return None
        result.append({"Alias": [rest, name]})
    inner = [{"Alias": [e, f"{_HOLE}_{i}"]} for i, e in enumerate(maker.inner)]
    if inner and not _questions.row_by_row(inner, schema):
        return None
    return Steps(maker.partial, maker.final, result)


class _Maker:
    """Collects the parts of several aggregates."""

    def __init__(self, schema: pl.Schema, groups: bool) -> None:
        self._schema = schema
        self._groups = groups
        self.partial: list[Any] = []
        self.final: list[Any] = []
        #: The values that are aggregated: expressions of single rows.
        self.inner: list[Any] = []
        self._names: dict[bytes, str] = {}

    def rest(self, expr: Any) -> Any:
        """Returns an expression with columns of partial results instead of its aggregates; None if
        it cannot be split."""
        if expr == "Len":
            return self._column(expr, "Sum")
        if not isinstance(expr, dict) or len(cast("dict[str, Any]", expr)) != 1:
            return None
        ((kind, body),) = cast("dict[str, Any]", expr).items()
        if kind == "Agg":
            return self._aggregate(expr, body)
        if kind == "Literal":
            return expr
        if kind == "Alias":
            return self.rest(body[0])
        return self._operation(kind, body)

    def _operation(self, kind: str, body: Any) -> Any:
        """Splits an operation on the results of aggregates."""
        fields: tuple[str, ...] | None = {
            "BinaryExpr": ("left", "right"),
            "Cast": ("expr",),
            "Ternary": ("predicate", "truthy", "falsy"),
            "Function": ("input",),
        }.get(kind)
        if fields is None:
            return None
        changed = dict(body)
        for field in fields:
            part = body[field]
            several = isinstance(part, list)
            found = [self.rest(e) for e in (cast("list[Any]", part) if several else [part])]
            if any(f is None for f in found):
                return None
            changed[field] = found if several else found[0]
        return {kind: changed}

    def _aggregate(self, expr: Any, body: dict[str, Any]) -> Any:
        ((kind, argument),) = body.items()
        if kind == "Sum" or (kind in ("First", "Last") and self._groups):
            return self._column(expr, kind, argument)
        if kind in ("Min", "Max"):
            return self._column(expr, f"Nan{kind}" if argument["propagate_nans"] else kind, argument["input"])
        if kind == "Count":
            return self._column(expr, "Sum", argument["input"])
        if kind == "Mean":
            return self._mean(argument)
        return None

    def _mean(self, argument: Any) -> Any:
        """A mean is a sum of 64-bit numbers, divided by the count; without values it is null."""
        dtype = _dtype(argument, self._schema)
        if dtype is None or not (dtype.is_float() or dtype.is_integer()):
            return None
        total = self._column(_filled(_SUM, argument), "Sum", argument)
        count = self._column(_filled(_COUNT, argument), "Sum", argument)
        return _filled(_MEAN32 if dtype == pl.Float32 else _MEAN, total, count)

    def _column(self, partial: Any, final: str, inner: Any = None) -> Any:
        """Adds a partial aggregate, and returns the column of its final value."""
        key = _msgpack.pack([partial, final])
        if key not in self._names:
            name = self._names[key] = f"__millrace_{len(self._names)}"
            self.partial.append({"Alias": [partial, name]})
            self.final.append({"Alias": [_FINAL[final](name), name]})
            if inner is not None:
                self.inner += _rows(inner)
        return {"Column": self._names[key]}


def _rows(expr: Any) -> list[Any]:
    """Returns the expressions of single rows in what is aggregated: a filter there is one, too."""
    if isinstance(expr, dict) and "Filter" in expr:
        body: dict[str, Any] = cast("dict[str, Any]", expr)["Filter"]
        return [*_rows(body["input"]), *_rows(body["by"])]
    return [expr]


def _dtype(expr: Any, schema: pl.Schema) -> pl.DataType | None:
    (first, *_) = _rows(expr)
    leaf = _plan.Node.input(None, schema)
    node = _plan.Node("Select", {"input": leaf, "expr": [first], "options": _questions.OPTIONS})
    try:
        (found,) = node.schema.dtypes()
    except (ValueError, pl.exceptions.PolarsError):
        return None
    return found


def _filled(template: Any, *parts: Any) -> Any:
    """Returns an expression with others in the places of the columns `_HOLE` and `_HOLE`1."""
    if isinstance(template, dict):
        fields = cast("dict[str, Any]", template)
        name = fields.get("Column")
        if isinstance(name, str) and name.startswith(_HOLE):
            return parts[int(name[len(_HOLE) :] or 0)]
        return {k: _filled(v, *parts) for k, v in fields.items()}
    if isinstance(template, list):
        return [_filled(v, *parts) for v in cast("list[Any]", template)]
    return template


def _template(make: Callable[[pl.Expr], pl.Expr]) -> Callable[[str], Any]:
    made = _plan.expression(make(pl.col(_HOLE)))
    return lambda name: _filled(made, {"Column": name})


_FINAL: dict[str, Callable[[str], Any]] = {
    "Sum": _template(lambda c: c.sum()),
    "Min": _template(lambda c: c.min()),
    "Max": _template(lambda c: c.max()),
    "NanMin": _template(lambda c: c.nan_min()),
    "NanMax": _template(lambda c: c.nan_max()),
    "First": _template(lambda c: c.first()),
    "Last": _template(lambda c: c.last()),
}
_ROW = pl.col(_HOLE)
_SUM = _plan.expression(_ROW.cast(pl.Float64).sum())
_COUNT = _plan.expression(_ROW.count())
_DIVIDED = pl.when(pl.col(_HOLE + "1") > 0).then(_ROW / pl.col(_HOLE + "1"))
_MEAN = _plan.expression(_DIVIDED)
_MEAN32 = _plan.expression(_DIVIDED.cast(pl.Float32))
