"""The tasks of shuffles and rechunks. Executors load this module, so it imports no part of the
client."""

from __future__ import annotations

from typing import Any

from millrace._frames._pieces import concatenate, split_by_number
from millrace._values._serialize import Items


def split_frame(frame: Any, column: Any, pieces: int, ignore_index: bool) -> Items:
    """Splits a partition. The values of `column` are the numbers of the output partitions; the
    column is dropped."""
    numbers = frame[column].values
    rows = frame.drop(columns=column)
    if ignore_index:
        rows = rows.reset_index(drop=True)
    return Items(split_by_number(rows, numbers, pieces))


def join_pieces(*pieces: Any, ignore_index: bool) -> Any:
    """Returns an output partition: one piece of each split partition."""
    found = concatenate(pieces)
    return found.reset_index(drop=True) if ignore_index else found


def split_block(block: Any, parts: tuple[tuple[slice, ...], ...]) -> Items:
    """Divides a block of an array."""
    return Items([block[part] for part in parts])


def join_parts(*parts: Any, shape: tuple[int, ...]) -> Any:
    """Returns a block of its parts. `shape`: the number of parts along each axis."""
    from dask.array.core import concatenate_shaped

    return concatenate_shaped(parts, shape)
