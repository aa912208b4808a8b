"""The rechunk of Dask's arrays by items of lists. It is loaded by Dask's arrays only: it imports Dask.

A new block lies in one or in several old blocks. If several new blocks need parts of an old block,
one task divides it, and returns the list of its parts. One task makes each new block of one item of
each list. So `n` old and `m` new blocks take at most `n + m` tasks; with Dask's method "tasks" each
part is a task.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, TypeAlias

import dask.config
from dask._task_spec import Alias, Task, TaskRef
from dask.array.chunk import getitem
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from millrace._dask._default import serves
from millrace._dask._exchange import join_parts, split_block
from millrace._dask._plan import of_items

METHOD = "millrace"
#: A rechunk may have this many times `array.rechunk.threshold` parts for each block in one step:
#: parts cost less than the tasks that Dask counts. With more parts, Dask copies all data once more.
_MORE = 8
#: The number of a block along each axis.
_Index: TypeAlias = "tuple[int, ...]"
#: A part of an old block; None stands for the whole block.
_Part: TypeAlias = "tuple[slice, ...] | None"

# The thread, or the coroutine, is in a rechunk by this method.
_active: ContextVar[bool] = ContextVar("active", default=False)


def use_in_rechunks(module: Any) -> None:
    """Lets Dask's arrays accept the rechunk method "millrace", and take "p2p" for it. `module`:
    dask.array.rechunk."""
    plain, compute, choose = module.rechunk, module._compute_rechunk, module._choose_rechunk_method

    @functools.wraps(plain)
    def rechunk(
        x: Any,
        chunks: Any = "auto",
        threshold: int | None = None,
        block_size_limit: int | None = None,
        balance: bool = False,
        method: str | None = None,
    ) -> Any:
        if not serves(method or dask.config.get("array.rechunk.method", None)):
            return plain(x, chunks, threshold, block_size_limit, balance, method)
        threshold = threshold or _MORE * dask.config.get("array.rechunk.threshold")
        token = _active.set(True)
        try:
            return plain(x, chunks, threshold, block_size_limit, balance, "tasks")
        finally:
            _active.reset(token)

    @functools.wraps(compute)
    def compute_rechunk(x: Any, chunks: Any) -> Any:
        return _rechunked(module, x, chunks) if _active.get() and x.size else compute(x, chunks)

    @functools.wraps(choose)
    def choose_rechunk_method(*args: Any, **options: Any) -> str:
        # Only a program that has imported Dask's function by its name before comes here.
        method = choose(*args, **options)
        return "tasks" if serves(method) else method

    module.rechunk, module._compute_rechunk = rechunk, compute_rechunk
    module._choose_rechunk_method = choose_rechunk_method
    package: Any = sys.modules["dask.array"]
    if getattr(package, "rechunk", None) is plain:
        package.rechunk = rechunk


class _Splits:
    """The tasks that divide old blocks.

    Args:
        name: the first part of their keys.
        source: the name of the old array.
    """

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._parts: dict[_Index, list[tuple[slice, ...]]] = {}

    def add(self, block: _Index, part: tuple[slice, ...]) -> int:
        """Adds a part of a block. Returns its number in the list of the block's parts."""
        parts = self._parts.setdefault(block, [])
        parts.append(part)
        return len(parts) - 1

    def key(self, block: _Index) -> tuple[Any, ...]:
        return (self._name, *block)

    def count(self, block: _Index) -> int:
        return len(self._parts[block])

    def tasks(self) -> dict[Any, Any]:
        return {
            (key := self.key(block)): Task(key, split_block, TaskRef((self._source, *block)), tuple(parts))
            for block, parts in self._parts.items()
        }


def _rechunked(module: Any, x: Any, chunks: Any) -> Any:
    """Returns an array with other chunks, and the same values."""
    token = tokenize(x, chunks, METHOD)
    name = f"rechunk-merge-{token}"
    splits = _Splits(f"rechunk-split-{token}", x.name)
    indices: Iterable[_Index] = itertools.product(*(range(len(axis)) for axis in chunks))
    tasks: dict[Any, Any] = {}
    # New blocks of several parts by key: the parts as old blocks with numbers in their lists; None:
    # the whole block. They become tasks when all lists are known.
    joins: dict[Any, list[tuple[_Index, int | None]]] = {}
    shapes: dict[Any, tuple[int, ...]] = {}
    for index, pieces in zip(indices, module.intersect_chunks(x.chunks, chunks), strict=True):
        key = (name, *index)
        found = [_part_of(piece, x.chunks) for piece in pieces]
        if len(found) == 1:
            block, part = found[0]
            source = TaskRef((x.name, *block))
            tasks[key] = Alias(key, source) if part is None else Task(key, getitem, source, part)
            continue
        joins[key] = [(block, None if part is None else splits.add(block, part)) for block, part in found]
        shapes[key] = tuple(len({piece[axis][0] for piece in pieces}) for axis in range(x.ndim))
    for key, found in joins.items():
        numbers = tuple(number for _, number in found)
        counts = tuple(0 if number is None else splits.count(block) for block, number in found)
        keys = [(x.name, *block) if number is None else splits.key(block) for block, number in found]
        join = functools.partial(join_parts, shape=shapes[key])
        tasks[key] = Task(key, of_items, numbers, counts, join, *map(TaskRef, keys))
    graph = HighLevelGraph.from_collections(name, {**tasks, **splits.tasks()}, dependencies=[x])
    return module.Array(graph, name, chunks, meta=x)


def _part_of(piece: Iterable[tuple[int, slice]], chunks: Any) -> tuple[_Index, _Part]:
    """Returns the old block and the part of it that a piece of a new block is."""
    block, part = zip(*piece, strict=True)
    whole = all(
        s.start == 0 and s.stop in (None, axis[number]) for s, number, axis in zip(part, block, chunks, strict=True)
    )
    return block, None if whole else part
