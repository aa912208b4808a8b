"""The client's method that moves the rows of data frames between partitions."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from millrace._client._client_part import AsyncPart, same
from millrace._client._submission import Submission
from millrace._tasks._arguments import Item
from millrace.future import Future

# By name: a client that moves no frames does not import NumPy.
_SPLIT, _JOIN = "millrace._frames._tasks:split", "millrace._frames._tasks:join"


class Shuffles(Submission):
    """Shuffles data frames."""

    def shuffle(
        self,
        futures: Iterable[Any],
        by: Hashable | Sequence[Hashable],
        npartitions: int | None = None,
        *,
        priority: int | None = None,
        retries: int | None = None,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
    ) -> list[Future[Any]]:
        """Moves the rows of data frames so that rows with equal values in the columns `by` are in
        the same partition, and returns a future for each partition at once.

        One task splits each frame into pieces, and one task makes each partition of one piece of
        each frame. The rows of a partition are in the order of the frames and of their rows.
        Frames that are shuffled by columns with the same kinds of types into the same number of
        partitions match: equal values are in partitions of the same number. So frames are merged
        by a call for each pair of partitions.

        Args:
            futures: the frames, as futures or as they are: DataFrames of pandas, Polars or cuDF, or
                tables of Arrow; all of one library, with the same columns.
            by: the label of a column, or a list of labels.
            npartitions: the number of partitions. Default: as many as there are frames.

        The other arguments are those of `submit`, for all tasks.
        """
        frames = list(futures)
        if not frames:
            raise ValueError("futures is empty: give at least one data frame")
        count = len(frames) if npartitions is None else operator.index(npartitions)
        if count < 1:
            raise ValueError(f"npartitions is {count}: at least 1 is needed")
        options: dict[str, Any] = {
            "priority": priority,
            "retries": retries,
            "workers": workers,
            "allow_other_workers": allow_other_workers,
            "resources": resources,
        }
        labels = by if isinstance(by, (str, tuple)) or not isinstance(by, Sequence) else list(by)
        splits = self.map(_SPLIT, frames, by=labels, n=count, **options)
        return self.map(_JOIN, *([Item(s, j, count) for j in range(count)] for s in splits), **options)


class AsyncShuffles(AsyncPart):
    """The methods of `Shuffles`. They return at once."""

    shuffle = same(Shuffles.shuffle)
