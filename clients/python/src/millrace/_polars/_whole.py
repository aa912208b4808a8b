"""Queries whose plans this package does not know: each runs whole, in one task.

These are queries of a Polars that writes plans in another form. The plan goes to a worker as it is.
This module uses nothing that reads plans, so that it works with every Polars.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _stored
from millrace._polars._plan import load, optimizations
from millrace.client import Client
from millrace.future import Future


def submitted(client: Client, lf: pl.LazyFrame, function: str, *arguments: Any) -> Future[Any]:
    """Runs a query in one task.

    Args:
        client: of the cluster.
        lf: the query.
        function: of this module.
        arguments: of the function, behind the plan.
    """
    plan = lf.serialize()
    sources = _stored.sources_in(plan)
    names, results = [s.name for s in sources], [s.futures for s in sources]
    return client.submit(f"millrace._polars._whole:{function}", plan, *arguments, names, *results, pure=False)


def run(plan: bytes, names: list[str], *results: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Runs a query.

    Args:
        plan: as Polars serialized it.
        names: of the results of the cluster that it reads.
        results: the parts of each.
    """
    with _brought(names, results):
        return load(plan).collect(optimizations=optimizations(plan))


def sink_parquet(
    plan: bytes, path: str, options: dict[str, Any], names: list[str], *results: Sequence[pl.DataFrame]
) -> None:
    """Runs a query, and writes its result to a file."""
    with _brought(names, results):
        load(plan).sink_parquet(path, optimizations=optimizations(plan), **options)


@contextlib.contextmanager
def _brought(names: list[str], results: Sequence[Sequence[pl.DataFrame]]) -> Iterator[None]:
    """Within it, sources of these names have these results."""
    held = [_stored.Brought.known(name, parts) for name, parts in zip(names, results, strict=True)]
    yield
    del held
