"""Collections whose parts are futures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def optimised(collections: Sequence[Any], optimize_graph: bool) -> tuple[Any, list[Any]]:
    """Returns the optimised expression of collections. The list has for each of them its part of
    the expression if it is made of several expressions, else None."""
    import dask._expr as expressions
    from dask.base import collections_to_expr

    expr: Any = collections_to_expr(list(collections), optimize_graph)
    # Releases of Dask before 2026.7 have no composite collections.
    composite: Any = getattr(expressions, "CompositeExpr", ())
    before = _parts(expr)
    expr = expr.optimize()
    parts: list[Any] = [None] * len(collections)
    if any(isinstance(part, composite) for part in before):
        after = _parts(expr)
        if len(after) == len(collections):
            parts = [part if isinstance(part, composite) else None for part in after]
    return expr, parts


def _parts(expr: Any) -> list[Any]:
    from dask._expr import _ExprSequence

    return list(expr.operands) if isinstance(expr, _ExprSequence) else [expr]


def rebuilt(collection: Any, part: Any, results: Mapping[Any, Any]) -> Any:
    """Returns the collection with results in place of its graph. `part`: see `optimised`."""
    if part is not None:
        import dask.base

        rebuild: Any = getattr(dask.base, "_rebuild_composite_collection")  # noqa: B009
        return rebuild(collection, part, dict(results), cull_to_child_keys=True)
    rebuild, state = collection.__dask_postpersist__()
    return rebuild(dict(results), *state)
