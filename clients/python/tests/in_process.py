"""Runs the tasks of a Polars query in this process: a cluster for tests of plans.

The plans, their division and the functions of the tasks are the real ones. Only the scheduling is
left out, and so is the copying of results from one process to another.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl
from millrace._polars import _plan, _tasks
from millrace._polars._options import Options
from millrace._polars._query import Query
from millrace._polars._stages import Stages
from millrace._tasks._arguments import Item

#: Options by which everything is divided that may be: rows meet by their hash or range.
FAR = Options(
    parts=3, fallback_mode="silent", least_bytes=0, max_rows_per_partition=13, broadcast_limit=0, gather_limit=0
)
#: The same, but sides of joins are brought to each task, and groups to one.
NEAR = dataclasses.replace(FAR, broadcast_limit=1 << 30, gather_limit=1 << 30)


@dataclasses.dataclass(frozen=True, eq=False)
class Done:
    """The future of a task that has run."""

    value: Any


class InProcess:
    """A submitter that runs each task at once."""

    def __init__(self) -> None:
        #: How often each function has run.
        self.tasks: Counter[str] = Counter()

    def submit(self, function: str, /, *arguments: Any) -> Done:
        self.tasks[function] += 1
        return Done(getattr(_tasks, function)(*map(_value, arguments)))

    def scatter(self, data: list[Any]) -> list[Done]:
        return [Done(d) for d in data]

    def sizes(self, futures: Sequence[Done]) -> list[int]:
        return [_bytes(f.value) for f in futures]

    def results(self, futures: Sequence[Done]) -> list[Any]:
        return [f.value for f in futures]


def collect(lf: pl.LazyFrame, options: Options = FAR, cluster: InProcess | None = None) -> pl.DataFrame:
    """Returns the result of a query that is divided, however little it reads."""
    futures = Query(cluster or InProcess(), 2, options, Stages).run(_plan.read(lf))
    return pl.concat([f.value for f in futures], rechunk=False)


def _value(argument: Any) -> Any:
    """Returns an argument of a task as the task gets it."""
    if isinstance(argument, Done):
        return argument.value
    if isinstance(argument, Item):
        source: Any = argument.source
        return source.value[argument.index]
    if isinstance(argument, list):
        return [_value(a) for a in argument]
    return argument


def _bytes(value: Any) -> int:
    return sum(map(_bytes, value)) if isinstance(value, list) else int(value.estimated_size())
