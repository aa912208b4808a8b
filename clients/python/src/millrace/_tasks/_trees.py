"""Futures in any nesting of lists, tuples, sets and dicts.

NB: the functions are not nested in one another, because a nested function that calls itself is part
of a reference cycle. Only the garbage collector would free it, and with it the futures that it
refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from millrace.future import Future


def collect(tree: Any, found: list[Future[Any]]) -> None:
    """Collects the futures in any nesting of collections."""
    if isinstance(tree, Future):
        found.append(cast("Future[Any]", tree))
    elif isinstance(tree, Mapping):
        for item in cast("Mapping[Any, Any]", tree).values():
            collect(item, found)
    elif isinstance(tree, (list, tuple, set, frozenset)):
        for item in cast("Iterable[Any]", tree):
            collect(item, found)


def spread(tree: Any, results: Mapping[int, Any], bad: set[int]) -> Any:
    """Returns the same collections with results in place of the futures. Futures of `bad` are left
    out."""
    if isinstance(tree, Future):
        return results[id(cast("Future[Any]", tree))]
    if isinstance(tree, Mapping):
        mapping = cast("Mapping[Any, Any]", tree)
        return {k: spread(v, results, bad) for k, v in mapping.items() if id(v) not in bad}
    if isinstance(tree, (list, tuple, set, frozenset)):
        items = cast("Iterable[Any]", tree)
        return rebuild(tree, [spread(v, results, bad) for v in items if id(v) not in bad])
    return tree


def rebuild(like: Any, items: list[Any]) -> Any:
    """Returns a collection of the same type with other items."""
    kind: Any = type(like)
    # A named tuple takes its items as arguments.
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
