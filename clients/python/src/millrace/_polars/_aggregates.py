"""Aggregates in two steps: of each piece of the data, and of the pieces' results.

`sum` of a whole is the sum of the sums of its parts; a mean needs sum and count of each part.
Aggregates that have no such form, as the median, give None: all rows of a group must be together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _expressions, _msgpack, _plan, _questions
from millrace._polars._plan import Node

_HOLE = "__millrace_hole"


@dataclasses.dataclass
class Steps:
    """Aggregates in two steps. The expressions are as in the fields of a plan's node."""

    #: Of each piece; they name their results themselves.
    partial: list[Any]
    #: Of the results of all pieces.
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
        rest = maker.rest(_without_name(expr))
        if rest is None:
            return None
        result.append({"Alias": [rest, name]})
    inner = [{"Alias": [e, f"{_HOLE}_{i}"]} for i, e in enumerate(maker.inner)]
    if inner and not _questions.row_by_row(inner, schema):
        return None
    if not all(map(_is_column, result)) and not _questions.row_by_row(result, maker.columns()):
        return None
    return Steps(maker.partial, maker.final, result)


def _without_name(expr: Any) -> Any:
    """Returns an expression without the names that it gives to its result as a whole."""
    while isinstance(expr, dict):
        ((kind, body),) = cast("dict[str, Any]", expr).items()
        if kind == "KeepName":
            expr = body
        elif kind == "RenameAlias":
            expr = body["expr"]
        else:
            break
    return expr


def _is_column(expr: Any) -> bool:
    while isinstance(expr, dict) and "Alias" in expr:
        expr = cast("dict[str, Any]", expr)["Alias"][0]
    return _expressions.is_only_column(expr)


class _Maker:
    """Collects the parts of several aggregates."""

    def __init__(self, schema: pl.Schema, groups: bool) -> None:
        self._schema = schema
        self._groups = groups
        self.partial: list[Any] = []
        self.final: list[Any] = []
        #: The values that are aggregated: expressions of single rows.
        self.inner: list[Any] = []
        #: Columns of `partial` and of `final` by what they are made of.
        self._partials: dict[bytes, str] = {}
        self._finals: dict[bytes, str] = {}

    def columns(self) -> pl.Schema:
        """Returns the columns of `final`."""
        select = {"expr": self.partial, "options": _questions.OPTIONS}
        partial = Node("Select", {"input": Node.input(None, self._schema), **select})
        return Node("Select", {**select, "input": partial, "expr": self.final}).schema

    def rest(self, expr: Any) -> Any:
        """Returns an expression with columns of final results instead of its aggregates; None if it
        cannot be split."""
        if expr == "Len":
            return self._named(expr, self._final("Sum", self._partial(expr)))
        if not isinstance(expr, dict) or len(cast("dict[str, Any]", expr)) != 1:
            return None
        ((kind, body),) = cast("dict[str, Any]", expr).items()
        if kind == "Agg":
            return self._named(expr, self._aggregate(expr, body))
        if kind == "Literal":
            return expr
        if kind == "Alias":
            rest = self.rest(body[0])
            return None if rest is None else {"Alias": [rest, body[1]]}
        if kind == "Function" and len(body["input"]) == 1:
            found = self._function(expr, body["function"], body["input"][0])
            if found is not None:
                return self._named(expr, found)
        return self._operation(kind, body)

    def _named(self, expr: Any, column: str | None) -> Any:
        """Returns a column under the name that an aggregate gives its result."""
        if column is None:
            return None
        (name,) = ["len"] if expr == "Len" else _expressions.names_of([expr], self._schema)
        return {"Alias": [{"Column": column}, name]}

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

    def _aggregate(self, expr: Any, body: dict[str, Any]) -> str | None:
        ((kind, argument),) = body.items()
        match kind:
            case "Sum" | "FirstNonNull" | "LastNonNull":
                return self._final(kind, self._partial(expr, argument))
            case "First" | "Last":
                return self._outer(kind, expr, argument)
            case "Min" | "Max":
                name = f"Nan{kind}" if argument["propagate_nans"] else kind
                return self._final(name, self._partial(expr, argument["input"]))
            case "Count":
                return self._final("Sum", self._partial(expr, argument["input"]))
            case "NUnique":
                return self._final("NUnique", self._partial(_filled(_UNIQUE, argument), argument))
            case "Mean":
                return self._mean(argument)
            case "Var" | "Std":
                return self._variance(kind, *argument)
            case _:
                return None

    def _function(self, expr: Any, function: Any, argument: Any) -> str | None:
        if isinstance(function, dict) and "Boolean" in function:
            function = cast("dict[str, Any]", function)["Boolean"]
            if isinstance(function, dict):
                ((kind, options),) = cast("dict[str, Any]", function).items()
                name = f"{kind}{'' if options and options.get('ignore_nulls') else 'OrNull'}"
                return self._final(name, self._partial(expr, argument)) if kind in ("Any", "All") else None
            return self._final("Any", self._partial(expr, argument)) if function == "HasNulls" else None
        if function == "NullCount":
            return self._final("Sum", self._partial(expr, argument))
        return None

    def _outer(self, kind: str, expr: Any, argument: Any) -> str:
        """The first value, or the last one, is in the first part that has any."""
        if self._groups and len(_rows(argument)) == 1:
            return self._final(kind, self._partial(expr, argument))
        return self._final(f"{kind}OfSome", self._partial(expr, argument), self._partial(_filled(_LENGTH, argument)))

    def _mean(self, argument: Any) -> str | None:
        """A mean is a sum of 64-bit numbers, divided by the count; without values it is null."""
        dtype = _dtype(argument, self._schema)
        if not _is_number(dtype):
            return None
        total = self._partial(_filled(_SUM, argument), argument)
        count = self._partial(_filled(_COUNT, argument), argument)
        return self._final("Mean32" if dtype == pl.Float32 else "Mean", total, count)

    def _variance(self, kind: str, argument: Any, freedom: int) -> str | None:
        """The squares of the parts are around the mean of each, and are moved to that of all."""
        dtype = _dtype(argument, self._schema)
        if not _is_number(dtype):
            return None
        parts = [self._partial(_filled(e, argument), argument) for e in (_COUNT, _MEAN, _SQUARES)]
        key = f"{kind}{freedom}{'f32' if dtype == pl.Float32 else ''}"
        if key not in _FINAL:
            _FINAL[key] = _template(_variance(kind, freedom, dtype == pl.Float32))
        return self._final(key, *parts)

    def _partial(self, expr: Any, inner: Any = None) -> str:
        """Adds an aggregate of each part, and returns its column."""
        key = _msgpack.pack(expr)
        if key not in self._partials:
            name = self._partials[key] = f"__millrace_{len(self._partials)}"
            self.partial.append({"Alias": [expr, name]})
            if inner is not None:
                self.inner += _rows(inner)
        return self._partials[key]

    def _final(self, kind: str, *parts: str) -> str:
        """Adds an aggregate of the parts' columns, and returns its column."""
        key = _msgpack.pack([kind, *parts])
        if key not in self._finals:
            name = self._finals[key] = f"__millrace_final_{len(self._finals)}"
            self.final.append({"Alias": [_FINAL[kind](*parts), name]})
        return self._finals[key]


def _rows(expr: Any) -> list[Any]:
    """Returns the expressions of single rows in what is aggregated: a filter there is one, too."""
    if isinstance(expr, dict) and "Filter" in expr:
        body: dict[str, Any] = cast("dict[str, Any]", expr)["Filter"]
        return [*_rows(body["input"]), *_rows(body["by"])]
    return [expr]


def _dtype(expr: Any, schema: pl.Schema) -> pl.DataType | None:
    (first, *_) = _rows(expr)
    try:
        (found,) = _expressions.selected(schema, [first]).schema.dtypes()
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


def _template(made: pl.Expr) -> Callable[..., Any]:
    expr = _plan.expression(made)
    return lambda *names: _filled(expr, *({"Column": name} for name in names))


def _is_number(dtype: pl.DataType | None) -> bool:
    return dtype is not None and (dtype in (pl.Float64, pl.Float32, pl.Boolean) or dtype.is_integer())


_ROW = pl.col(_HOLE)
_SECOND, _THIRD = pl.col(_HOLE + "1"), pl.col(_HOLE + "2")
_SUM = _plan.expression(_ROW.cast(pl.Float64).sum())
_MEAN = _plan.expression(_ROW.cast(pl.Float64).mean())
_SQUARES = _plan.expression(_ROW.cast(pl.Float64).var(ddof=0))
_COUNT = _plan.expression(_ROW.count())
_LENGTH = _plan.expression(_ROW.len())
_UNIQUE = _plan.expression(_ROW.unique().implode())
_TOTAL = _SECOND.sum()
_AVERAGE = pl.when(_TOTAL > 0).then(_ROW.sum() / _TOTAL)


def _variance(kind: str, freedom: int, short: bool) -> pl.Expr:
    """Returns a variance by the count, mean and variance of parts."""
    total = _ROW.sum()
    moved = (_ROW * (_SECOND - (_ROW * _SECOND).sum() / total).pow(2)).sum()
    # The variance of one value is 0, also of an infinite one.
    squares = (_ROW * _THIRD).sum() + pl.when(total > 1).then(moved).otherwise(0.0)
    found = pl.when(total > freedom).then(squares / (total.cast(pl.Float64) - freedom))
    found = found.sqrt() if kind == "Std" else found
    return found.cast(pl.Float32) if short else found


_FINAL: dict[str, Callable[..., Any]] = {
    "Sum": _template(_ROW.sum()),
    "Min": _template(_ROW.min()),
    "Max": _template(_ROW.max()),
    "NanMin": _template(_ROW.nan_min()),
    "NanMax": _template(_ROW.nan_max()),
    "First": _template(_ROW.first()),
    "Last": _template(_ROW.last()),
    "FirstNonNull": _template(_ROW.first(ignore_nulls=True)),
    "LastNonNull": _template(_ROW.last(ignore_nulls=True)),
    "FirstOfSome": _template(_ROW.filter(_SECOND > 0).first()),
    "LastOfSome": _template(_ROW.filter(_SECOND > 0).last()),
    "NUnique": _template(_ROW.explode(empty_as_null=False).n_unique()),
    "Any": _template(_ROW.any()),
    "All": _template(_ROW.all()),
    "AnyOrNull": _template(_ROW.any(ignore_nulls=False)),
    "AllOrNull": _template(_ROW.all(ignore_nulls=False)),
    "Mean": _template(_AVERAGE),
    "Mean32": _template(_AVERAGE.cast(pl.Float32)),
}
