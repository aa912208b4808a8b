"""The tasks of `Client.shuffle`."""

from __future__ import annotations

from typing import Any

from millrace._frames._pieces import concatenate, split_by_hash
from millrace._values._serialize import Items


def split(frame: Any, by: Any, n: int) -> Items:
    """Splits a frame into n pieces, of which other tasks read one each."""
    return Items(split_by_hash(frame, by, n))


def join(*pieces: Any) -> Any:
    """Returns a partition: one piece of each split frame."""
    return concatenate(pieces)
