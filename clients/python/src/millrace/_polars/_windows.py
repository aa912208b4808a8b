"""Windows (`over`) in the expressions of a plan's node, as columns that are computed before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _aggregates, _expressions, _msgpack, _plan, _questions
from millrace._polars._plan import Node

_KEY = "__millrace_window_key_"
#: Columns of the rows that meet in a window: the number of their part, and their number in it.
PART, ROW = "__millrace_part", "__millrace_row"


@dataclasses.dataclass
class Group:
    """Windows with the same keys."""

    #: Expressions of single rows.
    keys: list[Any]
    #: The expressions, each named as the column that it becomes.
    windows: list[Any]
    #: Aggregates in two steps, named so, if all windows are such; else None.
    aggregates: list[Any] | None


@dataclasses.dataclass
class Windows:
    """The windows in the expressions of a node."""

    groups: list[Group]
    #: The node's expressions, each with its name, with columns in place of windows.
    rest: list[Any]


def found_in(exprs: Sequence[Any], schema: pl.Schema) -> Windows | None:
    """Returns the windows in expressions of a node; None if there are none, or some cannot be
    computed for each key on its own."""
    finder = _Finder()
    rest: list[Any] = []
    for expr in exprs:
        changed = finder.without(expr)
        if changed is not expr:
            names = list(_selected(schema, [expr]).schema)
            if len(names) != 1:
                return None
            changed = {"Alias": [changed, names[0]]}
        rest.append(changed)
    if not finder.found or finder.nested:
        return None
    groups: dict[bytes, Group] = {}
    for name, over in finder.found.values():
        keys = [{"Alias": [key, f"{_KEY}{i}"]} for i, key in enumerate(over["partition_by"])]
        group = groups.setdefault(_msgpack.pack(keys), Group(over["partition_by"], [], []))
        group.windows.append({"Alias": [{"Over": over}, name]})
        if group.aggregates is not None and _is_aggregate(over, schema):
            group.aggregates.append({"Alias": [over["function"], name]})
        else:
            group.aggregates = None
    for group in groups.values():
        keys = named_keys(group)
        if any(o["mapping"] == "Explode" for o in _overs(group)) or not _questions.row_by_row(keys, schema):
            return None
        if any(d.is_nested() for d in _selected(schema, keys).schema.dtypes()):
            group.aggregates = None  # such values cannot be the keys of a join
    return Windows(list(groups.values()), rest)


def named_keys(group: Group) -> list[Any]:
    return [{"Alias": [key, f"{_KEY}{i}"]} for i, key in enumerate(group.keys)]


def _overs(group: Group) -> list[dict[str, Any]]:
    return [w["Alias"][0]["Over"] for w in group.windows]


def _is_aggregate(over: dict[str, Any], schema: pl.Schema) -> bool:
    if over["mapping"] != "GroupsToRows" or over["order_by"] is not None:
        return False
    steps = _aggregates.in_two_steps([over["function"]], ["x"], schema)
    return steps is not None and bool(steps.partial)


class _Finder:
    """Collects windows, and gives each a name."""

    def __init__(self) -> None:
        #: Name and fields of each window, by its content.
        self.found: dict[bytes, tuple[str, dict[str, Any]]] = {}
        #: A window is inside of another one, or inside of an expression of elements of lists.
        self.nested = False

    def without(self, expr: Any) -> Any:
        """Returns an expression with columns in place of windows; the same one if it has none."""
        if isinstance(expr, dict):
            fields = cast("dict[str, Any]", expr)
            if fields.keys() == {"Over"}:
                return self._column(fields["Over"])
            if fields.keys() == {"Eval"}:
                self.nested |= _has_window(fields)
            changed: Any = {k: self.without(v) for k, v in fields.items()}
            return changed if any(changed[k] is not v for k, v in fields.items()) else expr
        if isinstance(expr, list):
            items = [self.without(e) for e in cast("list[Any]", expr)]
            return items if any(a is not b for a, b in zip(items, cast("list[Any]", expr), strict=True)) else expr
        return expr

    def _column(self, over: dict[str, Any]) -> Any:
        self.nested |= _has_window(over)
        name = f"__millrace_window_{len(self.found)}"
        name, _ = self.found.setdefault(_msgpack.pack(over), (name, over))
        return {"Column": name}


def _has_window(value: Any) -> bool:
    return any(kind == "Over" for kind, _ in _expressions.walk(value))


# Nodes.


def joined(group: Group, inner: Node) -> tuple[Node, Node]:
    """Returns a node that adds the results of aggregates to the rows of another node, and the node
    of the aggregates that it reads."""
    assert group.aggregates is not None
    keys = named_keys(group)
    groups = _GROUPS.changed(input=inner, keys=keys, aggs=group.aggregates)
    columns = [{"Column": f"{_KEY}{i}"} for i in range(len(keys))]
    condition = {"Equi": {"left_on": group.keys, "right_on": columns}}
    return _JOIN.changed(input_left=inner, input_right=groups, condition=condition), groups


def numbered(group: Group, part: Node, number: int) -> Node:
    """Returns the columns of a part that windows need, with the number of the part and of each
    row."""
    names = _needed(group, part.schema)
    exprs = [*({"Column": name} for name in names), {"Alias": [_number(number), PART]}, _ROWS]
    return Node("Select", {"input": part, "expr": exprs, "options": _questions.OPTIONS})


def computed(group: Group, rows: Node) -> Node:
    """Returns the windows of rows that `numbered` gave, whose keys are together."""
    exprs = [*group.windows, {"Column": PART}, {"Column": ROW}]
    return Node("Select", {"input": rows, "expr": exprs, "options": _questions.OPTIONS})


def beside(part: Node, windows: Node) -> Node:
    """Returns a part with the results of its windows, which are in any order."""
    names = [name for name in windows.schema if name not in (PART, ROW)]
    ordered = Node("Sort", {**_SORT.body, "input": windows, "by_column": [{"Column": ROW}]})
    columns = Node(
        "Select", {"input": ordered, "expr": [{"Column": name} for name in names], "options": _questions.OPTIONS}
    )
    return _BESIDE.changed(inputs=[part, columns])


def _needed(group: Group, schema: pl.Schema) -> list[str]:
    leaf = Node.input(None, schema)
    node = Node("Select", {"input": leaf, "expr": group.windows, "options": _questions.OPTIONS})
    if _questions.has_code(node.body):
        return list(schema)
    found = _questions.wanted(node).get(leaf, [])
    if not found or any(w.columns is None for w in found):
        return list(schema)
    names = {name for w in found for name in w.columns or ()}
    return [name for name in schema if name in names]


def _number(value: int) -> Any:
    return {"Literal": {"Scalar": {"UInt32": value}}}


def _selected(schema: pl.Schema, exprs: list[Any]) -> Node:
    return Node("Select", {"input": Node.input(None, schema), "expr": exprs, "options": _questions.OPTIONS})


_ONE = pl.LazyFrame({"k": [0], "v": [0]})
_GROUPS = _plan.read(_ONE.group_by("k").agg(pl.len()))
_JOIN = _plan.read(_ONE.join(_ONE, on="k", how="left", nulls_equal=True, maintain_order="left", coalesce=False))
_SORT = _plan.read(_ONE.sort("k"))
_BESIDE = _plan.read(pl.concat([_ONE, _ONE.select(z="k")], how="horizontal"))
_ROWS = _plan.expression(pl.int_range(pl.len(), dtype=pl.UInt32).alias(ROW))
