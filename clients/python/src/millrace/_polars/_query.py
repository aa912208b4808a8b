"""A query on the cluster: its plan is divided into stages of tasks.

A part of the result of a node is a plan of its own: the node over a part of its input, down to a
part of a scan, or to results of tasks. So nodes that work row by row, joins with a small table, and
the first step of an aggregate run in one task, with the scan. If rows of several parts must meet,
the parts are run, and the next stage is chosen by the sizes of their results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol, cast

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import (
    _aggregates,
    _asof,
    _concats,
    _deep,
    _files,
    _inline,
    _plan,
    _pushdown,
    _questions,
    _reads,
    _scalars,
    _scans,
    _slices,
    _stored,
    _windows,
)
from millrace._polars._cluster import Submitter
from millrace._polars._files import Files
from millrace._polars._lines import Count, Lines
from millrace._polars._options import Options
from millrace._polars._plan import Node
from millrace._polars._windows import Group
from millrace._tasks._arguments import Item
from millrace.future import Future

#: Prefix of columns with the values of keys.
_KEY = "__millrace_key_"
#: Files of up to so many bytes are read again by each task of a join. A result in one part of this
#: size is always brought to each task.
_AGAIN = 256 << 10
#: Joins of which the whole right side, or the whole left one, may be with each part of the other.
_LEFT, _RIGHT = ("Inner", "Left", "Semi", "Anti", "Cross"), ("Inner", "Right", "Cross")
_LEFT_ORDER, _RIGHT_ORDER = ("None", "Left", "LeftRight"), ("None", "Right", "RightLeft")
#: Joins that may be done for the rows of each hash on their own.
_HASHED = ("Inner", "Left", "Right", "Full", "Semi", "Anti")
#: Functions of whole frames that work on each row alone, and keep the order.
_OF_ROWS = ("Rename", "Explode", "Unnest", "Hint")


#: Why a join is in one task.
_KEPT_SMALL = ", unless one of its sides has at most broadcast_limit bytes"
#: A list whose items are inputs of tasks has so many at most.
_MOST_ITEMS = 256
#: Length of a slice that goes to the end.
_ALL = (1 << 32) - 1


#: Nodes without inputs.
_LEAVES = ("Scan", "DataFrameScan", "PythonScan", _plan.INPUT)
#: Stands for the bytes of rows that a function gives.
_UNKNOWN = 1 << 60


class Foreseen(Protocol):
    """The stages of a query that has not run."""

    undivided: list[str]

    def parts(self, node: Node) -> list[Node]: ...

    def scattered(self, frames: list[pl.DataFrame]) -> list[Any]: ...

    def text(self, root: Node) -> str: ...


class Query:
    """Runs one plan. It holds the results between stages for as long as it exists."""

    def __init__(
        self, client: Submitter, slots: int, options: Options, foresee: Callable[[Query], Foreseen] | None = None
    ) -> None:
        #: Makes the stages of a query before it runs. Without it, undivided parts are told when
        #: they are met.
        self._foresee = foresee
        self.client = client
        self.slots = slots
        self.options = options
        self._parts: dict[Node, list[Node]] = {}
        #: Messages about nodes in one task that the user has seen.
        self._told: set[str] = set()
        #: Whether stages were foreseen; later messages depend on results of tasks.
        self._foreseen = False

    @_deep.plans()
    def run(self, root: Node) -> list[Future[pl.DataFrame]]:
        """Runs a plan, and returns the parts of its result in order."""
        return [self._submit(p) for p in self._divided(root)]

    def _divided(self, root: Node) -> list[Node]:
        """Returns the parts of the result of a plan as the user gave it."""
        with _plan.known():
            pushed = _pushdown.pushed(self._without_frames(self.listed(root)))
            if self._foresee is not None:
                stages = self._foresee(self)
                stages.parts(pushed)
                for text in stages.undivided:
                    self._tell(text)
                self._foreseen = True
        return self.parts(pushed)

    @_deep.plans()
    def explained(self, root: Node) -> str:
        """Returns the stages and the plan of a query. Nothing runs, except what lists files."""
        root = self.listed(root)
        plan = _plan.lazy(_pushdown.pushed(root)).explain(optimized=False)
        assert self._foresee is not None
        stages = self._foresee(self)
        frames = _inline.stored(root, stages.scattered, self.options.max_rows_per_partition)
        return f"{stages.text(_pushdown.pushed(frames))}\n{plan}"

    def listed(self, root: Node) -> Node:
        """Returns a plan that knows the files of its scans, and so their columns."""
        scans = [n for n in root.walk() if n.kind == "Scan" and n.source is None]
        return root.rebuilt(_files.listed(scans, self.client)) if scans else root

    def _without_frames(self, root: Node) -> Node:
        return _inline.stored(root, self.client.scatter, self.options.max_rows_per_partition)

    @_deep.plans()
    def collect(self, root: Node) -> list[Future[pl.DataFrame]]:
        """Runs a plan whose result is fetched: in one task if it reads little, else as `run`."""
        with _plan.known():
            root = self.listed(root)
            whole = self._undivided(root)
        return self.run(root) if whole is None else [self._submit(whole)]

    def _undivided(self, root: Node) -> Node | None:
        """Returns a plan as one part, or None if it reads more than one task is to read, or sources
        of unknown size."""
        options = self.options
        if options.parts is not None or not _reads.at_most(root, options.undivided_limit, self._bytes):
            return None
        leaves: dict[Node, Node] = {}
        for node in root.walk():
            if node.kind == "PythonScan":
                leaves[node] = Node.input(_stored.futures_in(node["options"]["scan_fn"]), node.schema)
        return self._without_frames(_slices.emptied(root.rebuilt(leaves)))

    @_deep.plans()
    def sink_parquet(self, root: Node, path: str, options: dict[str, Any]) -> list[Future[None]]:
        """Runs a plan, and writes its result: to one file, or if the path ends with "/", each part
        to a file in this directory."""
        with _plan.known():
            root = self.listed(root)
        parts = self._divided(root)
        if not path.endswith("/"):
            parts = [self._one(parts, root.schema)]
        files = [f"{path}{i:05}.parquet" for i in range(len(parts))] if path.endswith("/") else [path]
        written: list[Future[None]] = []
        for part, file in zip(parts, files, strict=True):
            written.append(self._run("sink_parquet", part, file, options))
        return written

    def parts(self, node: Node) -> list[Node]:
        """Returns the parts of a node's result, in order."""
        if node not in self._parts:
            divide = _DIVISIONS.get(node.kind, Query._whole)
            self._parts[node] = getattr(self, divide.__name__)(node)  # Stages has some of its own
        return self._parts[node]

    def _meeting(self, *parts: list[Node]) -> int:
        """Returns the number of parts in which the rows of others meet by their hash or range: no
        fewer than there are, so that parts of large data stay small."""
        return min(max(self.options.parts or self.slots, 2, *map(len, parts)), _MOST_ITEMS)

    # Running.

    def _submit(self, part: Node) -> Future[pl.DataFrame]:
        if part.kind == _plan.INPUT and len(part.source) == 1 and not isinstance(part.source[0], (Item, Lines)):
            return part.source[0]
        return self._run("run", part)

    def _run(self, function: str, part: Node, *arguments: Any) -> Future[Any]:
        """Runs a part by a function of `_tasks`, with arguments behind the plan."""
        data, leaves = _plan.write(part)
        return self._task(function, data, *arguments, *[n.source for n in leaves])

    def _task(self, function: str, /, *arguments: Any) -> Future[Any]:
        return self.client.submit(function, *arguments)

    def _input(self, parts: list[Node], schema: pl.Schema) -> Node:
        """Runs parts, and returns a node for their results in order."""
        return Node.input([self._submit(p) for p in parts], schema)

    def _bytes(self, node: Node) -> int:
        """Waits for the results that an input stands for, and returns their bytes."""
        lines = sum(s.nbytes for s in node.source if isinstance(s, Lines))
        results = [s for s in node.source if not isinstance(s, Lines)]
        sizes = self.client.sizes([s.source if isinstance(s, Item) else s for s in results])
        counts = [s.count if isinstance(s, Item) else 1 for s in results]
        return lines + sum(size // n for size, n in zip(sizes, counts, strict=True))

    def _estimate(self, parts: list[Node]) -> int:
        """Returns about how many bytes parts have, at most: those of the files and results that
        they read."""
        leaves = {n for p in parts for n in p.walk() if n.kind in _LEAVES}
        return sum(self._leaf_bytes(n) for n in leaves)

    def _leaf_bytes(self, leaf: Node) -> int:
        if leaf.kind == "PythonScan":
            return _UNKNOWN
        if leaf.kind == "Scan":
            return _scans.size(leaf)
        if leaf.kind == "DataFrameScan":
            return _inline.size(leaf)
        return self._bytes(leaf)

    def _one(self, parts: list[Node], schema: pl.Schema) -> Node:
        """Returns the whole of several parts as one."""
        return parts[0] if len(parts) == 1 else self._input(parts, schema)

    # Dividing.

    def _whole(self, node: Node, reason: str = "") -> list[Node]:
        """Runs a node in one task. See `_notice`."""
        inputs = {n: self.parts(n) for n in node.inputs}
        if any(len(p) > 1 for p in inputs.values()):
            self._notice(node, reason)
        return [node.over({n: self._one(p, n.schema) for n, p in inputs.items()})]

    def _notice(self, node: Node, reason: str = "") -> None:
        """Tells the user that a node runs in one task, if that was not foreseen.

        Args:
            node: the node.
            reason: why. Without it, the expressions are named that do not work row by row.
        """
        text = self._message(node, reason)
        if text not in self._told:
            self._tell(f"{text}; this depends on results of tasks that have run" if self._foreseen else text)

    def _message(self, node: Node, reason: str) -> str:
        return f"{name_of(node)} cannot be divided, and runs in one task{f': {reason}' if reason else _where(node)}"

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.options.tell(text)

    def _note(self, text: str) -> None:
        """Notes how a node is divided, for people who look at the plan."""

    def _each(self, node: Node, inner: Node) -> list[Node]:
        """Returns a node over each part of the one that it reads."""
        return [node.over({inner: p}) for p in self.parts(inner)]

    def _scan(self, node: Node) -> list[Node]:
        options = self.options
        limit = _scans.limit(node)
        if limit is not None:
            whole, offset, rows = limit
            if rows <= options.max_rows_per_partition:
                return [node]
            return self.parts(Node("Slice", {"input": whole, "offset": offset, "len": rows}))
        n = options.parts or max(self.slots, -(-_scans.size(node) // options.target_partition_size))
        found = _scans.parts(node, n, options.least_bytes, self.client, self._count)
        if found.whole is not None:
            self._notice(node, found.whole)
        return found.nodes

    def _count(self, path: str, ranges: list[tuple[int, int]], quote: int | None, eol: int) -> list[Count]:
        """Counts ranges of bytes of a text file by tasks."""
        return self.client.results([self._task("count", path, start, end, quote, eol) for start, end in ranges])

    def _row_by_row(self, node: Node) -> list[Node]:
        (inner,) = node.inputs
        field = {"Filter": "predicate", "HStack": "exprs", "Select": "expr"}[node.kind]
        found = node[field]
        exprs = [{"Alias": [found, "__millrace_predicate"]}] if node.kind == "Filter" else found
        if len(self.parts(inner)) == 1 or _questions.row_by_row(exprs, inner.schema):
            return self._each(node, inner)
        with_windows = self._windows(node, inner, field, exprs)
        if with_windows is not None:
            return with_windows
        with_scalars = self._scalars(node, inner, field, exprs)
        if with_scalars is not None:
            return with_scalars
        if node.kind == "Select":
            return self._reduce(node, inner)
        return self._whole(node)

    def _scalars(self, node: Node, inner: Node, field: str, exprs: list[Any]) -> list[Node] | None:
        """Computes the aggregates of all rows in the expressions of a node, and divides the rest of
        it; None if there are none."""
        found = _scalars.found_in(exprs, inner.schema, selected=node.kind == "Select")
        if found is None:
            return None
        aggregates = _selected(inner, found.aggregates)
        values = self._input(self.parts(aggregates), aggregates.schema)
        rest = found.rest[0]["Alias"][0] if node.kind == "Filter" else found.rest
        made = [node.changed(**{"input": _scalars.beside(p, values), field: rest}) for p in self.parts(inner)]
        kept = list(node.schema)
        return [p if list(p.schema) == kept else _selected(p, _columns(kept)) for p in made]

    def _windows(self, node: Node, inner: Node, field: str, exprs: list[Any]) -> list[Node] | None:
        """Computes the windows in the expressions of a node, and divides the rest of it; None if
        there are none, or they need all rows."""
        found = _windows.found_in(exprs, inner.schema)
        if found is None:
            return None
        kept = list(node.schema)
        for group in found.groups:
            inner = self._with_windows(group, inner)
        rest = found.rest[0]["Alias"][0] if node.kind == "Filter" else found.rest
        parts = self.parts(node.changed(**{"input": inner, field: rest}))
        return [p if list(p.schema) == kept else _selected(p, _columns(kept)) for p in parts]

    def _with_windows(self, group: Group, inner: Node) -> Node:
        """Returns a node with the rows of another one, and windows of the same keys. Small groups
        are joined to the rows; else the rows meet by their keys, and go back to their parts."""
        stored = self._input(self.parts(inner), inner.schema)
        parts = self._parts[inner] = _at_most(_each_of(stored), _MOST_ITEMS)
        if group.aggregates is not None:
            joined, groups = _windows.joined(group, inner)
            if self._estimate(self.parts(groups)) <= self.options.broadcast_limit:
                return joined
        rows = [_windows.numbered(group, part, i) for i, part in enumerate(parts)]
        windows = [_windows.computed(group, together) for together in self._by_hash(rows, group.keys)]
        back: list[Future[Any]] = []
        for each in windows:
            back.append(self._run("by_number", each, _windows.PART, len(parts)))
        schema = windows[0].schema
        both = [
            _windows.beside(part, Node.input([Item(f, i, len(parts)) for f in back], schema))
            for i, part in enumerate(parts)
        ]
        return self._known(both)

    def _known(self, parts: list[Node]) -> Node:
        """Returns a node that stands for parts."""
        node = Node.input(None, parts[0].schema)
        self._parts[node] = parts
        return node

    def _reduce(self, node: Node, inner: Node) -> list[Node]:
        """Aggregates all rows: each part, then the parts' results."""
        names = list(node.schema)
        if len(names) != len(node["expr"]):
            return self._whole(node)
        steps = _aggregates.in_two_steps(node["expr"], names, inner.schema, groups=False)
        if steps is None or not steps.partial:
            return self._whole(node)
        partial = [Node("Select", {**node.body, "input": p, "expr": steps.partial}) for p in self.parts(inner)]
        found = self._input(partial, partial[0].schema)
        final = Node("Select", {**node.body, "input": found, "expr": steps.final})
        return [Node("Select", {**node.body, "input": final, "expr": steps.result})]

    def _group_by(self, node: Node) -> list[Node]:
        (inner,) = node.inputs
        parts = self.parts(inner)
        if len(parts) == 1:
            return self._each(node, inner)
        keys, aggregates, names = node["keys"], node["aggs"], list(node.schema)
        plain = not node["predicates"] and node["apply"] is None and not any(node["options"].values())
        if not plain or len(names) != len(keys) + len(aggregates) or not _questions.row_by_row(keys, inner.schema):
            return self._whole(node)
        steps = _aggregates.in_two_steps(aggregates, names[len(keys) :], inner.schema)
        if steps is None:
            return self._groups_together(node, parts)
        partial = [Node("GroupBy", {**node.body, "input": p, "aggs": steps.partial}) for p in parts]
        columns = [{"Column": n} for n in names[: len(keys)]]

        def final(found: Node) -> Node:
            groups = Node("GroupBy", {**node.body, "input": found, "keys": columns, "aggs": steps.final})
            return Node("Select", {"input": groups, "expr": [*columns, *steps.result], "options": _questions.OPTIONS})

        found = self._input(partial, partial[0].schema)
        if node["maintain_order"] or self._bytes(found) <= self.options.gather_limit:
            return [final(found)]
        return [final(piece) for piece in self._by_hash(_each_of(found), columns)]

    def _groups_together(self, node: Node, parts: list[Node]) -> list[Node]:
        """Divides a node over groups whose rows must be together by the keys of the groups."""
        if node["maintain_order"] or self._estimate(parts) <= self.options.gather_limit:
            return [node.changed(input=self._input(parts, parts[0].schema))]
        return [node.changed(input=piece) for piece in self._by_hash(parts, node["keys"])]

    def _distinct(self, node: Node) -> list[Node]:
        (inner,) = node.inputs
        parts = self.parts(inner)
        if len(parts) == 1:
            return self._each(node, inner)
        options = node["options"]
        if options["keep_strategy"] != "None":
            found = self._input([node.changed(input=p) for p in parts], node.schema)
            if options["maintain_order"] or self._bytes(found) <= self.options.gather_limit:
                return [node.changed(input=found)]
            parts = _each_of(found)
        elif options["maintain_order"]:
            return self._whole(node)
        names = list(inner.schema) if options["subset"] is None else _names(options["subset"])
        if names is None:
            return self._whole(node)
        return [node.changed(input=piece) for piece in self._by_hash(parts, _columns(names))]

    def _by_hash(self, parts: list[Node], keys: list[Any], n: int = 0) -> list[Node]:
        """Runs parts, and returns inputs for their rows by the hash of expressions."""
        schema = parts[0].schema
        names = _names(keys)
        if names is None:
            names = [f"{_KEY}{i}" for i in range(len(keys))]
            exprs = [{"Alias": [key, name]} for key, name in zip(keys, names, strict=True)]
            parts = [Node("HStack", {"input": p, "exprs": exprs, "options": _questions.OPTIONS}) for p in parts]
        n = n or self._meeting(parts)
        pieces: list[Future[Any]] = []
        for part in parts:
            pieces.append(self._run("by_hash", part, names, n))
        inputs = [Node.input([Item(f, i, n) for f in pieces], parts[0].schema) for i in range(n)]
        kept = _columns(list(schema))
        return [i if i.schema == schema else _selected(i, kept) for i in inputs]

    def _sort(self, node: Node) -> list[Node]:
        (inner,) = node.inputs
        parts = self.parts(inner)
        if len(parts) == 1:
            return self._each(node, inner)
        key, options = _names(node["by_column"][:1]), node["sort_options"]
        found = self._input(parts, inner.schema)
        if node["slice"] is not None or self._bytes(found) <= self.options.gather_limit:
            return [node.changed(input=found)]
        if not key or not _has_ranges(inner.schema[key[0]]):
            self._unranged(node)
            return [node.changed(input=found)]
        n = self._meeting(parts)
        edges = self._ranges(found, key[0], n)
        descending, last = options["descending"][0], options["nulls_last"][0]
        ranges = len(edges) + 1
        pieces = [self._task("by_range", f, key[0], edges, descending, last) for f in found.source]
        inputs = [Node.input([Item(f, i, ranges) for f in pieces], inner.schema) for i in range(ranges)]
        return [node.changed(input=i) for i in inputs]

    def _unranged(self, node: Node) -> None:
        """Tells the user that many rows are sorted in one task."""
        self._notice(node, "its first key is an expression, or of a nested type")

    def _ranges(self, found: Node, key: str, n: int) -> pl.Series:
        """Returns up to `n` - 1 values of a column between which there are about as many rows."""
        samples = self.client.results([self._task("sample", f, key, 100 * n) for f in found.source])
        return _edges(pl.concat(samples).to_series(), n)

    def _join(self, node: Node) -> list[Node]:
        left, right = node["input_left"], node["input_right"]
        arguments = node["options"]["args"]
        how, order = arguments["how"], arguments["maintain_order"]
        sides = [self.parts(left), self.parts(right)]
        if all(len(p) == 1 for p in sides):
            return [node.changed(input_left=sides[0][0], input_right=sides[1][0])]
        if not self._may_divide(node):
            return self._whole(node, "" if arguments["validation"] == "ManyToMany" else "it has validate")
        if _asof.is_as_of(node):
            return self._as_of(node, sides)
        small = [
            at
            for at, kinds, orders in ((1, _LEFT, _LEFT_ORDER), (0, _RIGHT, _RIGHT_ORDER))
            if how in kinds and order in orders
        ]
        for at in sorted(small, key=lambda at: self._estimate(sides[at])):
            if len(sides[1 - at]) == 1 and len(sides[at]) > 1 and len(small) > 1:
                continue
            whole, sides[at] = self._small(sides[at])
            if left is right:
                sides[1 - at] = sides[at]
            if whole is not None:
                self._note(f"{name_of(node)}: the {'right' if at else 'left'} side is brought to each task")
                pairs = [(part, whole) if at else (whole, part) for part in sides[1 - at]]
                return [node.changed(input_left=a, input_right=b) for a, b in pairs]
        keys = node["condition"].get("Equi") if isinstance(node["condition"], dict) else None
        if how in _HASHED and order == "None" and keys and keys["left_on"] and self._same_types(node):
            n = self._meeting(*sides)
            pieces = zip(
                self._by_hash(sides[0], keys["left_on"], n), self._by_hash(sides[1], keys["right_on"], n), strict=True
            )
            return [node.changed(input_left=a, input_right=b) for a, b in pieces]
        return self._whole(node)

    def _as_of(self, node: Node, sides: list[list[Node]]) -> list[Node]:
        """Divides an as-of join by the parts of its left side: with the whole right side if it is
        small, else with the parts of it whose keys are about the same."""
        whole, sides[1] = self._small(sides[1])
        if whole is not None:
            return [node.changed(input_left=p, input_right=whole) for p in sides[0]]
        if _asof.has_groups(node):
            return self._whole(node)
        for inner, parts in zip((node["input_left"], node["input_right"]), sides, strict=True):
            self._parts[inner] = _each_of(self._input(parts, inner.schema))
        found = _asof.divided(node, self.parts(node["input_left"]), self.parts(node["input_right"]), self._asked)
        return found or self._whole(node, "the keys of a side are not sorted, or some are null")

    def _small(self, parts: list[Node]) -> tuple[Node | None, list[Node]]:
        """Returns the whole of a side of a join for each part of the other, or None if it is large;
        and its parts, which may have run."""
        estimate = self._estimate(parts)
        scan = len(parts) == 1 and all(n.kind != _plan.INPUT for n in parts[0].walk())
        if scan and estimate <= _AGAIN:
            return parts[0], parts
        if len(parts) > 1 and estimate > 16 * self.options.broadcast_limit:
            return None, parts
        found = self._input(parts, parts[0].schema)
        if self._bytes(found) <= max(self.options.broadcast_limit, _AGAIN if len(parts) == 1 else 0):
            return found, parts
        return None, _each_of(found)

    def _may_divide(self, node: Node) -> bool:
        arguments = node["options"]["args"]
        return arguments["slice"] is None and arguments["validation"] == "ManyToMany"

    def _same_types(self, node: Node) -> bool:
        """Reports whether the keys of both sides have the same types, so that equal keys have equal
        hashes."""
        keys = node["condition"]["Equi"]
        types: list[list[Any]] = []
        for side, exprs in ((node["input_left"], keys["left_on"]), (node["input_right"], keys["right_on"])):
            named = [{"Alias": [e, f"{_KEY}{i}"]} for i, e in enumerate(exprs)]
            if not _questions.row_by_row(named, side.schema):
                return False
            types.append(_selected(Node.input(None, side.schema), named).schema.dtypes())
        return types[0] == types[1]

    def _slice(self, node: Node) -> list[Node]:
        (inner,) = node.inputs
        offset, length = node["offset"], node["len"]
        first = min(offset + length, _ALL)  # rows from the start, if the offset is not negative
        if inner.kind == "Sort" and inner not in self._parts and offset >= 0 and inner["slice"] is None:
            (unsorted,) = inner.inputs
            firsts = [Node("Slice", {"input": p, "offset": 0, "len": first}) for p in self._each(inner, unsorted)]
            return [node.over({inner: inner.over({unsorted: self._one(firsts, inner.schema)})})]
        parts = self.parts(inner)
        if len(parts) == 1:
            return self._each(node, inner)
        if offset >= 0:
            some = [node.changed(input=p, offset=0, len=first) for p in parts]
        else:
            some = [node.changed(input=p, offset=offset, len=-offset) for p in parts]
        return [node.changed(input=self._input(some, node.schema))]

    def _union(self, node: Node) -> list[Node]:
        inputs = node["inputs"]
        if node["args"]["diagonal"]:  # Polars leaves out the rows of an input without columns
            inputs = [n for n in inputs if n.schema] or inputs[:1]
        parts = [p for n in inputs for p in self.parts(n)]
        if node["args"]["to_supertypes"] or node["args"]["diagonal"]:
            parts = [_concats.aligned(p, node.schema) for p in parts]
        return parts

    def _beside(self, node: Node) -> list[Node]:
        """Divides a horizontal concat: each part of the first input, and the same rows of the
        others."""
        sides = [self.parts(n) for n in node["inputs"]]
        if all(len(p) == 1 for p in sides):
            return [node.changed(inputs=[p for (p,) in sides])]
        stored = [_each_of(self._input(p, p[0].schema)) for p in sides]
        for inner, parts in zip(node["inputs"], stored, strict=True):
            self._parts[inner] = parts
        heights = [[f[0, 0] for f in self._asked(parts, ["Len"])] for parts in stored]
        if len({sum(h) for h in heights}) > 1:
            return self._whole(node, "its inputs have other numbers of rows")
        starts = itertools.accumulate(heights[0], initial=0)
        return [
            node.changed(
                inputs=[
                    first,
                    *(_concats.rows_of(p, h, start, n) for p, h in zip(stored[1:], heights[1:], strict=True)),
                ]
            )
            for first, start, n in zip(stored[0], starts, heights[0], strict=False)
        ]

    def _asked(self, parts: list[Node], exprs: list[Any]) -> list[pl.DataFrame]:
        """Runs expressions over each of some parts, and fetches the results."""
        return self.client.results([self._submit(_selected(p, exprs)) for p in parts])

    def _function(self, node: Node) -> list[Node]:
        function = node["function"]
        name = next(iter(function)) if isinstance(function, dict) else function
        (inner,) = node.inputs
        if name in _OF_ROWS or len(self.parts(inner)) == 1:
            return self._each(node, inner)
        if name == "Unpivot":
            return _concats.unpivoted(node, inner, self.parts(inner), _MOST_ITEMS) or self._whole(node)
        return self._whole(node)

    def _python_scan(self, node: Node) -> list[Node]:
        futures = _stored.futures_in(node["options"]["scan_fn"])
        if futures is None:
            self._notice(node, "its rows come from a function")
            return [node]
        return [Node.input([f], node.schema) for f in futures]

    def _cache(self, node: Node) -> list[Node]:
        return self.parts(node["input"])


def _each_of(node: Node) -> list[Node]:
    """Returns an input for each result that an input stands for."""
    return [Node.input([s], node.schema) for s in node.source]


def _at_most(parts: list[Node], n: int) -> list[Node]:
    """Returns up to `n` inputs for the results that inputs stand for, in order."""
    step = -(-len(parts) // n)
    groups = [parts[i : i + step] for i in range(0, len(parts), step)]
    return [Node.input([s for p in g for s in p.source], g[0].schema) for g in groups]


def _selected(node: Node, exprs: list[Any]) -> Node:
    return Node("Select", {"input": node, "expr": exprs, "options": _questions.OPTIONS})


def _has_ranges(dtype: pl.DataType) -> bool:
    """Reports whether values of a type can be compared with single values."""
    return not dtype.is_nested() and dtype not in (pl.Null, pl.Object)


def _edges(values: pl.Series, n: int) -> pl.Series:
    """Returns up to `n` - 1 values, in order, between which there are about as many of the given
    ones."""
    values = values.sort()
    return values.gather([len(values) * i // n for i in range(1, n)] if len(values) else []).unique(maintain_order=True)


def _columns(names: list[str]) -> list[Any]:
    return [{"Column": name} for name in names]


def _names(exprs: Any) -> list[str] | None:
    """Returns the names of columns, or None if there are other expressions."""
    if isinstance(exprs, dict) and "ByName" in exprs:
        return list(cast("dict[str, Any]", exprs)["ByName"]["names"])
    found: list[Any] = []
    for expr in cast("list[Any]", exprs if isinstance(exprs, list) else [exprs]):
        found.append(cast("dict[str, Any]", expr).get("Column") if isinstance(expr, dict) else None)
    return found if all(isinstance(n, str) for n in found) else None


def name_of(node: Node) -> str:
    """Returns the name of a node for people."""
    if node.kind == "Scan" and isinstance(node.source, Files):
        return f"Scan of {node.source.paths[0]}"
    body = cast("dict[str, Any]", node.body) if isinstance(node.body, dict) else {}
    function = body.get("function")
    if isinstance(function, dict):
        return f"{node.kind} ({next(iter(function))})"
    if node.kind == "Join":
        how = body["options"]["args"]["how"]
        return f"Join ({next(iter(how)) if isinstance(how, dict) else how})"
    return node.kind


def _where(node: Node) -> str:
    """Returns the expressions of a node that do not work row by row, for a message about it."""
    field = {"Filter": "predicate", "HStack": "exprs", "Select": "expr"}.get(node.kind)
    if field is None:
        return _KEPT_SMALL if node.kind == "Join" else ""
    schema = node.inputs[0].schema
    texts: list[str] = []
    for expr in [node[field]] if node.kind == "Filter" else node[field]:
        named = [{"Alias": [expr, _KEY]}] if node.kind == "Filter" else [expr]
        if not _questions.row_by_row(named, schema):
            shown = _plan.lazy(_selected(Node.input(None, schema), [expr])).explain(optimized=False)
            texts.append(shown.partition("\n")[0].removeprefix("SELECT ").strip("[]")[:200])
    return ": " + ", ".join(texts)


#: How the nodes of each kind are divided. Others run in one task.
_DIVISIONS: dict[str, Callable[[Query, Node], list[Node]]] = {
    "Scan": Query._scan,
    "Filter": Query._row_by_row,
    "HStack": Query._row_by_row,
    "Select": Query._row_by_row,
    "GroupBy": Query._group_by,
    "Slice": Query._slice,
    "Union": Query._union,
    "HConcat": Query._beside,
    "Join": Query._join,
    "Sort": Query._sort,
    "Distinct": Query._distinct,
    "MapFunction": Query._function,
    "Cache": Query._cache,
    "PythonScan": Query._python_scan,
}
