"""Questions to Polars' optimiser about a plan, asked by plans over data that does not exist."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _leaf, _msgpack, _plan
from millrace._polars._plan import Node

#: Expressions and functions with code of the user. No question runs them.
_CODE = frozenset({"AnonymousFunction", "AnonymousAgg", "python", "Opaque", "FfiPlugin", "OpaquePython"})


class _SeenError(Exception):
    """The question is answered, and the plan need not run."""


@dataclasses.dataclass
class Wanted:
    """The need that a plan has of one of its inputs."""

    #: Columns; None: all.
    columns: list[str] | None
    #: Only rows for which this is true; None: all. It is asked of the first `rows`.
    predicate: pl.Expr | None
    #: So many rows from the start are enough; None: all.
    rows: int | None


def row_by_row(exprs: list[Any], schema: pl.Schema) -> bool:
    """Reports whether each row of the results depends on the same row of the input alone, and the
    number of rows is the input's.

    Polars reads one row of the input for the first row of such results, and all rows for others.
    """
    if not exprs:
        return False
    question = _msgpack.pack(exprs), tuple(schema.items())
    if question not in _answers:
        leaf = Node.input(None, schema)
        stack = Node("HStack", {"input": leaf, "exprs": exprs, "options": OPTIONS})
        select = Node("Select", {"input": leaf, "expr": exprs, "options": OPTIONS})
        if len(_answers) > 1000:
            _answers.clear()
        _answers[question] = _reads_one_row(stack) and _reads_one_row(select)
    return _answers[question]


#: Answers of `row_by_row`: a plan is asked twice, before it runs and when it does.
_answers: dict[Any, bool] = {}


def _reads_one_row(node: Node) -> bool:
    seen: list[int | None] = []

    def read(number: int, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None) -> pl.DataFrame:
        seen.append(rows)
        raise _SeenError

    first = Node("Slice", {"input": node, "offset": 0, "len": 1})
    with _leaf.reading(read):
        try:
            _plan.lazy(first).collect(engine="in-memory")
        except Exception:
            return seen == [1]
    return False


def wanted(node: Node) -> dict[Node, list[Wanted]]:
    """Returns the needs that a plan has of each of its inputs, one for each reader, after Polars has
    pushed columns, predicates and limits down. Inputs that the optimiser has removed are missing.

    The plan runs over inputs without rows.
    """
    found: dict[int, list[Wanted]] = {}
    data, leaves = _plan.write(node)

    def read(number: int, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None) -> pl.DataFrame:
        found.setdefault(number, []).append(Wanted(columns, predicate, rows))
        empty = pl.DataFrame(schema=leaves[number].schema)
        return empty if columns is None else empty.select(columns)

    with _leaf.reading(read):
        _plan.load(data).collect(engine="in-memory")
    return {leaves[i]: w for i, w in found.items()}


def has_code(value: Any) -> bool:
    """Reports whether fields of a node contain a function of the user."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            fields = cast("dict[Any, Any]", each)
            if not _CODE.isdisjoint(fields):
                return True
            left += fields.values()
        elif isinstance(each, list):
            left += cast("list[Any]", each)
        elif isinstance(each, str) and each in _CODE:
            return True
    return False


OPTIONS = _plan.read(pl.LazyFrame({"x": [0]}).select("x"))["options"]
