"""The stages of a query, foreseen before any of it runs.

The plan is divided by the same code as when it runs. Futures are estimates of sizes instead: of the
files and results that a stage reads, at most. So the parts that cannot be divided are known before
the work of other parts was done, and a plan can be explained.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _asof, _plan
from millrace._polars._lines import Count, Lines
from millrace._polars._plan import Node
from millrace._polars._query import Query, name_of
from millrace._tasks._arguments import Item

#: Bytes of a row of aggregates, and of a value of one of the first rows, about.
_ROW, _VALUE = 1024, 16


@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """Stands for the future of a task."""

    #: Bytes of the result, at most.
    size: int


class Stages(Query):
    """Divides a plan and runs nothing.

    Args:
        query: the query that will run the plan.
    """

    def __init__(self, query: Query) -> None:
        super().__init__(query.client, query.slots, query.options)
        #: Messages of nodes that run in one task.
        self.undivided: list[str] = []
        self._notes: list[str] = []
        self._tasks: list[tuple[str, int]] = []
        #: Parts of one row.
        self._single: set[Node] = set()
        self._sizes: dict[Node, int] = {}

    def text(self, root: Node) -> str:
        """Returns the stages of a plan for people."""
        for part in self.parts(root):
            self._submit(part)
        stages = [f"  {i}. {n} {'task' if n == 1 else 'tasks'}: {name}" for i, (name, n) in enumerate(self._tasks, 1)]
        return "\n".join(
            [
                "STAGES, by the sizes of files; what turns out small runs in fewer tasks:",
                *stages,
                *(f"  {n}" for n in dict.fromkeys(self._notes)),
                *(f"  UNDIVIDED: {n}" for n in dict.fromkeys(self.undivided)),
            ]
        )

    @staticmethod
    def scattered(frames: list[pl.DataFrame]) -> list[Any]:
        return [Estimate(int(f.estimated_size())) for f in frames]

    def _notice(self, node: Node, reason: str = "") -> None:
        self.undivided.append(self._message(node, reason))

    def _note(self, text: str) -> None:
        self._notes.append(text)

    # Tasks.

    def _run(self, function: str, part: Node, *arguments: Any) -> Any:
        names = [name_of(n) for n in part.walk() if n.kind != _plan.INPUT] or ["results"]
        split = {"by_hash": ["split by hash"], "by_number": ["split by part"]}.get(function, [])
        return self._counted(" > ".join(dict.fromkeys([*names, *split])), self._size(part))

    def _task(self, function: str, /, *arguments: Any) -> Any:
        size = self._size(Node.input([arguments[0]], pl.Schema())) if arguments else 0
        return self._counted({"by_range": "split by range", "sample": "sample keys"}.get(function, function), size)

    def _counted(self, name: str, size: int) -> Estimate:
        if self._tasks and self._tasks[-1][0] == name:
            self._tasks[-1] = name, self._tasks[-1][1] + 1
        else:
            self._tasks.append((name, 1))
        return Estimate(size)

    def _count(self, path: str, ranges: list[tuple[int, int]], quote: int | None, eol: int) -> list[Count]:
        """Returns ranges of text as if each began with a row."""
        for start, end in ranges:
            self._counted("count lines", end - start)
        return [Count(False, start, start) for start, _ in ranges]

    def _ranges(self, found: Node, key: str, n: int) -> pl.Series:
        for source in found.source:
            self._task("sample", source)
        return pl.Series(range(n - 1), dtype=pl.Int64)

    # Sizes.

    def _bytes(self, node: Node) -> int:
        total = 0
        for source in node.source:
            future: Any = source.source if isinstance(source, Item) else source
            if isinstance(source, Lines):
                total += source.nbytes
            elif isinstance(future, Estimate):
                total += future.size // (source.count if isinstance(source, Item) else 1)
            else:
                total += super()._bytes(Node.input([source], node.schema))
        return total

    def _estimate(self, parts: list[Node]) -> int:
        return sum(map(self._size, parts))

    def _size(self, part: Node) -> int:
        for node in part.walk(self._sizes):
            if node not in self._sizes:
                self._sizes[node] = self._own_size(node)
        return self._sizes[part]

    def _own_size(self, node: Node) -> int:
        if node in self._single:
            return _ROW
        if not node.inputs:
            known = node.kind in ("Scan", "DataFrameScan", "PythonScan") or (
                node.kind == _plan.INPUT and node.source is not None
            )
            return self._leaf_bytes(node) if known else 0
        size = sum(self._sizes[n] for n in node.inputs)
        if node.kind == "Slice":
            return min(size, node["len"] * _VALUE * max(len(node.schema), 1))
        return size

    # Nodes whose division depends on data.

    def _reduce(self, node: Node, inner: Node) -> list[Node]:
        before = len(self.undivided)
        parts = super()._reduce(node, inner)
        if len(self.undivided) == before:
            self._single.update(parts)
        return parts

    def _unranged(self, node: Node) -> None:
        self._note(f"{node.kind}: in one task, if its rows have more than gather_limit bytes")

    def _as_of(self, node: Node, sides: list[list[Node]]) -> list[Node]:
        whole, right = self._small(sides[1])
        if whole is None and _asof.has_groups(node):
            return self._whole(node)
        whole = whole or self._one(right, node["input_right"].schema)
        return [node.changed(input_left=p, input_right=whole) for p in sides[0]]

    def _beside(self, node: Node) -> list[Node]:
        sides = [self.parts(n) for n in node["inputs"]]
        wholes = [self._one(p, n.schema) for p, n in zip(sides[1:], node["inputs"][1:], strict=True)]
        return [node.changed(inputs=[p, *wholes]) for p in sides[0]]
