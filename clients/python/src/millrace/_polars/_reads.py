"""How much a whole plan reads, before any of it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _inline, _questions, _scans, _stored
from millrace._polars._plan import Node

#: Bytes of a value of the types that are smaller than others.
_WIDTHS: dict[Any, int] = {
    **dict.fromkeys((pl.Boolean, pl.Int8, pl.UInt8), 1),
    **dict.fromkeys((pl.Int16, pl.UInt16), 2),
    **dict.fromkeys((pl.Int32, pl.UInt32, pl.Float32, pl.Date), 4),
}
#: Bytes of a value of all other types, about, in a file.
_OTHER = 8
#: Files whose size is up to so many times the limit may have few enough bytes in the columns that a
#: plan needs.
_SHARE = 32
_SOURCES = frozenset({"Scan", "DataFrameScan", "PythonScan"})


def at_most(root: Node, limit: int, stored: Callable[[Node], int]) -> bool:
    """Reports whether a plan reads no more bytes than a limit. It says no if that cannot be told.

    Args:
        root: a plan as the user gave it.
        limit: bytes of files, in the columns that the plan needs, and of results of the cluster.
        stored: returns the bytes of an input of results.
    """
    sizes = {n: _size(n, stored) for n in root.walk() if n.kind in _SOURCES}
    if any(s is None for s in sizes.values()):
        return False
    total = sum(s or 0 for s in sizes.values())
    if total <= limit:
        return True
    scans = {n: s or 0 for n, s in sizes.items() if n.kind == "Scan"}
    if total > _SHARE * limit or total - sum(scans.values()) > limit:
        return False
    shares = _shares(root, list(scans))
    return shares is not None and total - sum(s * (1 - shares[n]) for n, s in scans.items()) <= limit


def _size(source: Node, stored: Callable[[Node], int]) -> int | None:
    """Returns the bytes of a source of a plan, or None if they cannot be told."""
    if source.kind == "Scan":
        return _scans.size(source) or None
    if source.kind == "DataFrameScan":
        return _inline.size(source)
    futures = _stored.futures_in(source["options"]["scan_fn"])
    return None if futures is None else stored(Node.input(futures, source.schema))


def _shares(root: Node, scans: list[Node]) -> dict[Node, float] | None:
    """Returns the share of the bytes of each scan that is in columns which a plan needs; None if it
    cannot be told."""
    if any(_questions.has_code(n.body) for n in root.walk()):
        return None
    leaves = {n: Node.input(None, n.schema) for n in scans}
    frames = {n: Node.input(None, n.schema) for n in root.walk() if n.kind == "DataFrameScan"}
    try:
        found = _questions.wanted(root.rebuilt({**leaves, **frames}))
    except (pl.exceptions.PolarsError, ValueError, TypeError):
        return None
    shares: dict[Node, float] = {}
    for scan, leaf in leaves.items():
        wants = found.get(leaf, [])
        columns = {c for w in wants for c in (scan.schema if w.columns is None else w.columns)}
        shares[scan] = _width(scan.schema, columns) / max(_width(scan.schema, scan.schema), 1)
    return shares


def _width(schema: pl.Schema, columns: Iterable[str]) -> int:
    """Returns about how many bytes the values of a row have in some columns."""
    return sum(_WIDTHS.get(schema[c].base_type(), _OTHER) for c in columns if c in schema)
