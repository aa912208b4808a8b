"""Measures the memory and the disk of a worker's host."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

#: Sizes that are measured, by their names in Dask.
SIZES = {"1 kiB": 1 << 10, "100 kiB": 100 << 10, "1 MiB": 1 << 20, "10 MiB": 10 << 20, "100 MiB": 100 << 20}
#: Time of each measurement, in seconds.
_SECONDS = 0.2


def measure(directory: str | None, memory: list[str], disk: list[str]) -> dict[str, dict[str, float]]:
    """Returns the bytes per second that copies in memory and files on disk of these sizes have.

    Args:
        directory: of the files; None: the directory for temporary files.
        memory, disk: names of sizes.
    """
    return {
        "memory": {name: _memory(SIZES[name]) for name in memory},
        "disk": {name: _disk(directory, SIZES[name]) for name in disk},
    }


def _memory(size: int) -> float:
    """Copies a block of memory again and again."""
    data, room = os.urandom(size), bytearray(size)
    total, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < _SECONDS:
        room[:] = data
        total += size
    return total / took


def _disk(directory: str | None, size: int) -> float:
    """Writes files one after the other, and reads them again."""
    data = os.urandom(size)
    total, began = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="millrace-", dir=directory) as folder:
        path = Path(folder) / "data"
        while (took := time.perf_counter() - began) < _SECONDS:
            with path.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            path.read_bytes()
            total += 2 * size
    return total / took
