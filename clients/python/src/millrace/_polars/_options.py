"""Options of queries."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any


class UndividedWarning(UserWarning):
    """A part of a query runs in one task."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How queries are divided. Names that cudf-polars' StreamingOptions has mean the same here."""

    #: A query that reads up to so many bytes of files, in the columns that it needs, runs in one
    #: task, unless its result stays on the cluster or `parts` is given.
    undivided_limit: int = 64 << 20
    #: Number of parts of a large scan; None: by `target_partition_size`, and at least one for each
    #: slot of the cluster.
    parts: int | None = None
    #: A part of a scan has about so many bytes of the files at most.
    target_partition_size: int = 128 << 20
    #: A data frame of the client is divided into parts of so many rows.
    max_rows_per_partition: int = 1_000_000
    #: Scans of files of fewer bytes together are not divided.
    least_bytes: int = 4 << 20
    #: A side of a join of up to so many bytes is brought to all tasks of the join.
    broadcast_limit: int = 64 << 20
    #: Results of up to so many bytes are sorted and grouped in one task.
    gather_limit: int = 32 << 20
    #: Effect of a node of a plan that cannot be divided: "warn", "silent" or "raise".
    fallback_mode: str = "warn"
    #: `sink_parquet` writes each part of a result to a file of a directory. If it is False, it does
    #: so for paths that end with "/".
    sink_to_directory: bool = False

    def __post_init__(self) -> None:
        if self.fallback_mode not in ("warn", "silent", "raise"):
            raise ValueError(f"fallback_mode is {self.fallback_mode!r}: it is 'warn', 'silent' or 'raise'")
        for name in ("target_partition_size", "max_rows_per_partition"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")

    def tell(self, text: str) -> None:
        """Tells the user of a part of a query that runs in one task.

        Raises:
            NotImplementedError: by `fallback_mode`.
        """
        if self.fallback_mode == "raise":
            raise NotImplementedError(f"{text}; fallback_mode='warn' allows it")
        if self.fallback_mode == "warn":
            warnings.warn(UndividedWarning(text), stacklevel=3)

    @classmethod
    def of(cls, options: Any) -> Options:
        """Returns options given as `Options`, as a dict, or as cudf-polars' StreamingOptions. Names
        that only concern its runtime have no effect; a warning says so."""
        if isinstance(options, Options):
            return options
        given = dict(options if isinstance(options, Mapping) else options.to_dict())
        known = {f.name for f in dataclasses.fields(cls)}
        without = sorted(given.keys() - known)
        if without:
            warnings.warn(f"options without effect on this engine: {', '.join(without)}", UserWarning, stacklevel=3)
        # "auto", and 0 bytes for a part, leave the choice to the engine.
        chosen = {
            k: v for k, v in given.items() if k in known and v != "auto" and (k, v) != ("target_partition_size", 0)
        }
        return cls(**chosen)
