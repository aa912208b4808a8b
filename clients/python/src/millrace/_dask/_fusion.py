"""Fuses the tasks of Dask's data frames."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from millrace._tasks._graph import flat


def fused(graph: Any) -> tuple[Any, dict[Hashable, Hashable]]:
    """Fuses the tasks of an expression that work on the same partitions.

    `compute` of Dask hands data frames over with one task for each step on a partition: each result
    would be stored and read again. Dask fuses them in `persist` and `optimize` only.

    Args:
        graph: an optimised expression. Graphs of other forms, and expressions that are no data
            frames, stay as they are.

    Returns:
        The expression, and the new names of its keys, if they have others.
    """
    if not hasattr(graph, "fuse"):
        return graph, {}
    from dask._expr import _ExprSequence

    parts: list[Any] = list(graph.operands) if isinstance(graph, _ExprSequence) else [graph]
    new = [part.fuse() for part in parts]
    names: dict[Hashable, Hashable] = {}
    for i, (part, to) in enumerate(zip(parts, new, strict=True)):
        if to is part:
            continue
        before, after = flat(part.__dask_keys__()), flat(to.__dask_keys__())
        if len(before) != len(after):
            new[i] = part
        else:
            names.update((b, a) for b, a in zip(before, after, strict=True) if b != a)
    whole = _ExprSequence(*new) if isinstance(graph, _ExprSequence) else new[0]
    return whole, names
