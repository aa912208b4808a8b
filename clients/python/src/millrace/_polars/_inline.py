"""Data frames of the client, which a serialized plan contains.

Polars writes them as arrays of numbers, at about 40 MB/s. All but small ones are taken out of the
plan when it was read, and go to the workers once, as data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan
from millrace._polars._plan import Node
from millrace.future import Future

#: Data frames of up to so many bytes stay in the plan of each task that reads them.
_SMALL = 64 << 10


def size(node: Node) -> int:
    """Returns the bytes of a data frame in a plan.

    Args:
        node: of kind "DataFrameScan".
    """
    return sum(len(b) for b in node["df"])


def stored(root: Node, scatter: Callable[[list[Any]], list[Future[Any]]], rows: int) -> Node:
    """Returns a plan that reads data frames from workers in place of those that it contains.

    Args:
        root: a plan as the user gave it.
        scatter: stores data on the workers.
        rows: of a piece of a data frame, at most.
    """
    leaves: dict[Node, Node] = {}
    for node in root.walk():
        if node.kind == "DataFrameScan" and (size(node) > _SMALL or len(_plan.frame(node)) > rows):
            futures = scatter(pieces(_plan.frame(node), rows))
            inputs = [Node.input([f], node.schema) for f in futures]
            leaves[node] = inputs[0] if len(inputs) == 1 else _UNION.changed(inputs=inputs)
    return root.rebuilt(leaves) if leaves else root


def pieces(frame: pl.DataFrame, rows: int) -> list[pl.DataFrame]:
    """Returns a data frame in pieces of up to so many rows, at least one."""
    return [frame.slice(at, rows) for at in range(0, max(len(frame), 1), rows)]


_ONE = pl.LazyFrame({"k": [0]})
_UNION = _plan.read(pl.concat([_ONE, _ONE]))
