"""The inputs of a plan: a scan that gives the data frames which this process has for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import polars as pl  # pyright: ignore[reportMissingImports]

#: The function of the leaves of the plan that runs: it gets the number of the leaf, the columns
#: that the plan needs (None: all), a predicate and the number of rows that are enough, and returns
#: a data frame.
Reading = Callable[[int, "list[str] | None", "pl.Expr | None", "int | None"], pl.DataFrame]


class _Current:
    """How the leaves of this process read. Polars reads from threads of its own, so one plan with
    leaves runs at a time."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reading: Reading | None = None


_current = _Current()


@contextlib.contextmanager
def reading(read: Reading) -> Iterator[None]:
    """Within it, leaves read by this function."""
    with _current.lock:
        before, _current.reading = _current.reading, read
        try:
            yield
        finally:
            _current.reading = before


def of_frames(frames: Sequence[pl.DataFrame | pl.LazyFrame]) -> Reading:
    """Returns how leaves read data frames: leaf i reads frame i."""

    def read(number: int, columns: list[str] | None, predicate: pl.Expr | None, rows: int | None) -> pl.DataFrame:
        frame = frames[number]
        if rows is not None:  # Polars takes these rows before it filters
            frame = frame.head(rows)
        if predicate is not None:
            frame = frame.filter(predicate)
        if columns is not None:  # a selection of no columns would have no rows
            frame = frame.select(columns) if columns else frame.drop(pl.selectors.all())
        return frame.collect(engine="in-memory") if isinstance(frame, pl.LazyFrame) else frame

    return read


class Leaf:
    """The function of a scan of Polars. It is pickled as its class's name and its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(
        self, columns: list[str] | None, predicate: bytes | None, rows: int | None, batch: int | None
    ) -> tuple[Iterator[pl.DataFrame], bool]:
        """Reads; the second value says that the predicate was applied."""
        if _current.reading is None:
            raise RuntimeError(f"input {self.number} of a plan is read outside of its task")
        parsed = None if predicate is None else pl.Expr.deserialize(predicate)
        return iter([_current.reading(self.number, columns, parsed, rows)]), True

    def __reduce__(self) -> tuple[type[Leaf], tuple[int]]:
        return Leaf, (self.number,)
