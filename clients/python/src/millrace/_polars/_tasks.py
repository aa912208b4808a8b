"""The functions of a query's tasks, on the workers. The client names them; it sends no code."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._frames._pieces import split_by_hash, split_by_number, split_by_range
from millrace._polars import _files, _leaf, _lines, _plan
from millrace._polars._files import Files
from millrace._polars._lines import Lines
from millrace._values._serialize import Items
from millrace.executor._task_info import get_task_info

#: A piece of the data of an input.
Source = pl.DataFrame | Lines


def run(plan: bytes, *inputs: Sequence[Source]) -> pl.DataFrame:
    """Runs a plan. One that only reads files runs on the GPU, if the worker has one, and cudf-polars
    is installed: it does not know scans of data frames that a task has.

    Args:
        plan: the serialized plan.
        inputs: the data of each input: pieces in order.
    """
    if not inputs and _has_gpu():
        # Polars runs what cudf-polars cannot do.
        return _plan.load(plan).collect(engine=pl.GPUEngine(executor="in-memory"))
    with _read(inputs):
        return _plan.load(plan).collect(optimizations=_plan.optimizations(plan))


def _has_gpu() -> bool:
    task = get_task_info()
    return task is not None and task.on_gpu and importlib.util.find_spec("cudf_polars") is not None


def by_hash(plan: bytes, keys: list[str], n: int, *inputs: Sequence[Source]) -> Items:
    """Runs a plan, and returns its rows in `n` items: rows with equal keys are in the same one."""
    return Items(split_by_hash(run(plan, *inputs), keys, n))


def by_range(frame: pl.DataFrame, key: str, edges: pl.Series, descending: bool, last: bool) -> Items:
    """Returns the rows of a frame by ranges of a column. Rows without a value are in the last
    frame, or in the first."""
    return Items(
        split_by_range(frame, key, edges.to_list(), descending=descending, missing="last" if last else "first")
    )


def by_number(plan: bytes, column: str, n: int, *inputs: Sequence[Source]) -> Items:
    """Runs a plan, and returns its rows in `n` items: a column has the number of each row's."""
    frame = run(plan, *inputs)
    return Items(split_by_number(frame, frame.get_column(column).to_numpy(), n))


def listed(plan: bytes) -> Files:
    """Returns the files of a scan, which the client cannot see."""
    return _files.there(plan)


def layout(plan: bytes) -> list[int] | str:
    """Returns how the rows of a file are stored. See `_files.layout`."""
    return _files.layout(plan)


def count(path: str, start: int, end: int, quote: int | None, eol: int) -> _lines.Count:
    """Counts a range of bytes of a text file, to find its rows."""
    return _lines.count(path, start, end, quote, eol)


def sample(frame: pl.DataFrame, key: str, n: int) -> pl.DataFrame:
    """Returns up to `n` values of a column, evenly over its rows in order of the values."""
    values = frame.select(key).drop_nulls()
    values = values.gather_every(max(len(values) // (8 * n), 1)).sort(key)
    return values.gather_every(max(len(values) // n, 1))


def sink_parquet(plan: bytes, path: str, options: dict[str, Any], *inputs: Sequence[Source]) -> None:
    """Runs a plan, and writes its result to a file."""
    with _read(inputs):
        _plan.load(plan).sink_parquet(path, optimizations=_plan.optimizations(plan), **options)


@contextlib.contextmanager
def _read(inputs: Sequence[Sequence[Source]]) -> Iterator[None]:
    """Within it, the inputs of a plan have these sources."""
    with contextlib.ExitStack() as stack:
        frames = [_joined([_opened(s, stack) for s in pieces]) for pieces in inputs]
        stack.enter_context(_leaf.reading(_leaf.of_frames(frames)))
        yield


def _opened(source: Source, stack: contextlib.ExitStack) -> pl.DataFrame | pl.LazyFrame:
    return stack.enter_context(source.opened()) if isinstance(source, Lines) else source


def _joined(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else pl.concat(pieces, rechunk=False)
