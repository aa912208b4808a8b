"""The order in which rows of a frame in host memory are taken to split it."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace._frames import _hash


def order_of(numbers: Any, n: int, rows: int) -> tuple[np.ndarray[Any, Any] | None, list[int]]:
    """Returns the order in which rows come by the number of their partition, and the ends of the
    partitions in it, which begin with 0. None: the rows are in that order already.

    Raises ValueError if there is not one number from 0 to n-1 for each row.
    """
    numbers = np.asarray(numbers)
    if numbers.shape != (rows,):
        raise ValueError(f"{numbers.shape} partition numbers for {rows} rows: one for each row")
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"partition numbers of type {numbers.dtype}: integers from 0 to {n - 1}")
    if rows and (numbers.min() < 0 or numbers.max() >= n):
        raise ValueError(f"partition numbers from {numbers.min()} to {numbers.max()}: from 0 to {n - 1} are allowed")
    numbers = numbers.astype(_hash.small_type(n), copy=False)
    ends = [0, *np.cumsum(np.bincount(numbers, minlength=n)).tolist()]
    if rows < 2 or not (numbers[1:] < numbers[:-1]).any():
        return None, ends
    return np.argsort(numbers, kind="stable"), ends
