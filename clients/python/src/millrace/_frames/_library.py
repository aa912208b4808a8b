"""A library of data frames in host memory or on a GPU: how its frames are split and put
together."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any


class Library(abc.ABC):
    """The operations on frames of one library. A number of a partition is an unsigned integer of 16
    or 32 bits."""

    @abc.abstractmethod
    def has(self, frame: Any) -> bool:
        """Returns whether a frame is one of this library."""

    @abc.abstractmethod
    def columns(self, frame: Any) -> list[Any]:
        """Returns the labels of the columns."""

    @abc.abstractmethod
    def by_hash(self, frame: Any, by: Sequence[Any], n: int) -> Any:
        """Returns the number of each row's partition by the hash of its values."""

    @abc.abstractmethod
    def by_range(self, frame: Any, by: Any, edges: Sequence[Any]) -> tuple[Any, Any]:
        """Returns for each row the number of edges that are not above its value, and whether its
        value is missing (None: no value is)."""

    @abc.abstractmethod
    def split(self, frame: Any, numbers: Any, n: int) -> list[Any]:
        """Returns n frames: frame j has the rows of number j, in their order."""

    @abc.abstractmethod
    def concatenate(self, frames: Sequence[Any]) -> Any:
        """Returns a frame with the rows of all frames, in order."""
