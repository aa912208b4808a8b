"""Objects that are stored on workers whole, where a value would be divided into its items."""

from __future__ import annotations

from typing import Any


class Stored:
    """A collection of Dask's, a list, a dict or a set that is stored like data, with the futures in
    it."""

    def __init__(self, value: Any) -> None:
        self.value = value
