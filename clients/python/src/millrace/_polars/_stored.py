"""Results of queries that stay on the cluster, as sources of further queries."""

from __future__ import annotations

import re
import uuid
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _leaf
from millrace.future import Future, results_of

_NAME = re.compile(rb"millrace-stored-[0-9a-f]{32}")


class Stored:
    """The function of a scan of results. It is pickled as its name, within this process; engines of
    Polars fetch the results."""

    def __init__(self, futures: list[Future[pl.DataFrame]]) -> None:
        self.futures = futures
        self.name = f"millrace-stored-{uuid.uuid4().hex}"
        _known[self.name] = self

    def frame(self) -> pl.DataFrame:
        """Returns the whole result."""
        return pl.concat(results_of(self.futures), rechunk=False)

    def __call__(
        self, columns: list[str] | None, predicate: bytes | None, rows: int | None, batch: int | None
    ) -> tuple[Iterator[pl.DataFrame], bool]:
        parsed = None if predicate is None else pl.Expr.deserialize(predicate)
        return iter([_leaf.of_frames([self.frame()])(0, columns, parsed, rows)]), True

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return _find, (self.name,)


class Brought(Stored):
    """The same in a task that has the results."""

    def __init__(self, name: str, parts: Sequence[pl.DataFrame]) -> None:
        self.futures = []
        self.name = name
        self._parts = parts

    @classmethod
    def known(cls, name: str, parts: Sequence[pl.DataFrame]) -> Stored:
        """Returns the source of a name, which plans find for as long as it exists."""
        return _known.setdefault(name, cls(name, parts))

    def frame(self) -> pl.DataFrame:
        return pl.concat(self._parts, rechunk=False)


_known: weakref.WeakValueDictionary[str, Stored] = weakref.WeakValueDictionary()


def _find(name: str) -> Stored:
    found = _known.get(name)
    if found is None:
        raise LookupError(f"{name} is a result that another process holds: collect the query there")
    return found


def futures_in(scan_fn: Any) -> list[Future[pl.DataFrame]] | None:
    """Returns the results that the serialized function of a scan reads, or None if it is another
    function."""
    found = _NAME.search(bytes(scan_fn))
    return None if found is None else _find(found[0].decode()).futures


def sources_in(plan: bytes) -> list[Stored]:
    """Returns the sources of results that a serialized plan reads, in any form of plans."""
    return [_find(name.decode()) for name in dict.fromkeys(_NAME.findall(plan))]


class Result:
    """The result of a query, in parts on the cluster. See `polars.LazyFrame.execute`."""

    def __init__(self, futures: list[Future[pl.DataFrame]], schema: pl.Schema) -> None:
        self._source = Stored(futures)
        self._schema = schema

    @property
    def futures(self) -> list[Future[pl.DataFrame]]:
        """The parts, in order."""
        return self._source.futures

    @property
    def head(self) -> None:
        """None: no row is fetched. See `lazy`."""
        return

    @property
    def n_rows_total(self) -> None:
        """None: the rows are not counted. See `lazy`."""
        return

    def lazy(self) -> pl.LazyFrame:
        """Returns the result as the source of further queries, which the cluster runs where the
        parts are. It holds the result."""
        return pl.LazyFrame._scan_python_function(dict(self._schema), self._source)

    def __repr__(self) -> str:
        return f"<Result: {len(self.futures)} parts, {', '.join(self._schema)}>"
