"""The shuffle of Dask's data frames, as expressions. It is loaded by Dask's data frames only: it
imports Dask.

Each input partition becomes one task, which splits it. Each output partition becomes one task,
which reads one piece of each split partition. Both are Blockwise: Dask's fusion, where it is on,
splits a partition in the task that makes it, and joins it in the task that reads it.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar

import dask.dataframe.dask_expr._expr as expressions
from dask._task_spec import Task, TaskRef

from millrace._dask._default import serves
from millrace._dask._exchange import join_pieces, split_frame
from millrace._dask._plan import of_items

METHOD = "millrace"
# Dask's classes have no types: their attributes are operands of any type.
_Blockwise: Any = expressions.Blockwise
_PartitionsFiltered: Any = expressions.PartitionsFiltered


class SplitPartitions(_Blockwise):
    """Splits each partition by the numbers in a column."""

    _parameters: ClassVar[list[str]] = ["frame", "column", "pieces", "ignore_index"]
    operation = staticmethod(split_frame)

    @functools.cached_property
    def _meta(self) -> Any:
        meta = self.frame._meta.drop(columns=self.column)
        return meta.reset_index(drop=True) if self.ignore_index else meta

    def _divisions(self) -> Any:
        return (None,) * (self.frame.npartitions + 1)


class Exchange(_PartitionsFiltered):
    """The border between split partitions and joined ones. It has no tasks: it is no Blockwise, so
    that Dask does not fuse what lies on both of its sides."""

    _parameters: ClassVar[list[str]] = ["splits", "pieces", "_partitions"]
    _defaults: ClassVar[dict[str, Any]] = {"_partitions": None}

    @functools.cached_property
    def _meta(self) -> Any:
        return self.splits._meta

    def _divisions(self) -> Any:
        return (None,) * (self.pieces + 1)

    def _layer(self) -> dict[Any, Any]:
        return {}


class JoinPartitions(_Blockwise):
    """Joins the pieces of each output partition."""

    _parameters: ClassVar[list[str]] = ["exchange", "ignore_index", "original_partitioning_index"]
    _defaults: ClassVar[dict[str, Any]] = {"ignore_index": False, "original_partitioning_index": None}

    @functools.cached_property
    def _meta(self) -> Any:
        return self.exchange._meta

    def _divisions(self) -> Any:
        return self.exchange.divisions

    @functools.cached_property
    def unique_partition_mapping_columns_from_shuffle(self) -> Any:
        index = self.original_partitioning_index
        return {tuple(index)} if isinstance(index, list) else set()

    def _task(self, name: Any, index: int) -> Any:
        splits = self.exchange.splits
        count = splits.npartitions
        join = functools.partial(join_pieces, ignore_index=self.ignore_index)
        numbers, counts = (self.exchange._partitions[index],) * count, (self.exchange.pieces,) * count
        return Task(name, of_items, numbers, counts, join, *(TaskRef((splits._name, n)) for n in range(count)))


def use_in_shuffles(module: Any) -> None:
    """Lets Dask's shuffles accept the method "millrace", and take "p2p" for it. `module`:
    dask.dataframe.dask_expr._shuffle."""
    lower = module.Shuffle._lower

    @functools.wraps(lower)
    def lowered(self: Any) -> Any:
        if not serves(self.method or module.get_default_shuffle_method()):
            return lower(self)
        splits = SplitPartitions(self.frame, self.partitioning_index, self.npartitions_out, bool(self.ignore_index))
        return JoinPartitions(
            Exchange(splits, self.npartitions_out),
            bool(self.ignore_index),
            self.original_partitioning_index,
        )

    module.Shuffle._lower = lowered


def use_in_merges(module: Any) -> None:
    """Lets Dask's merges broadcast one side if the method is "millrace", by the same rule as if it
    is "tasks", and take "p2p" for it. `module`: dask.dataframe.dask_expr._merge."""
    decide, lower = module.Merge.is_broadcast_join.func, module.Merge._lower

    def chosen(merge: Any) -> str:
        return merge.shuffle_method or module.get_default_shuffle_method()

    @functools.wraps(decide)
    def is_broadcast_join(self: Any) -> Any:
        if not serves(chosen(self)):
            return decide(self)
        return decide(self.substitute_parameters({"shuffle_method": "tasks"}))

    @functools.wraps(lower)
    def lowered(self: Any) -> Any:
        method = chosen(self)
        if method != METHOD and serves(method):
            self = self.substitute_parameters({"shuffle_method": METHOD})
        return lower(self)

    broadcasts = functools.cached_property(is_broadcast_join)
    broadcasts.__set_name__(module.Merge, "is_broadcast_join")
    module.Merge.is_broadcast_join, module.Merge._lower = broadcasts, lowered


def use_in_frames(module: Any) -> None:
    """Lets `shuffle` of Dask's data frames take "p2p" for "millrace": Dask asks the package
    distributed about that method. `module`: dask.dataframe.dask_expr._collection."""
    plain = module.FrameBase.shuffle

    @functools.wraps(plain)
    def shuffle(self: Any, *args: Any, **options: Any) -> Any:
        bound = inspect.signature(plain).bind(self, *args, **options)
        if serves(bound.arguments.get("shuffle_method") or module.get_default_shuffle_method()):
            bound.arguments["shuffle_method"] = METHOD
        return plain(*bound.args, **bound.kwargs)

    module.FrameBase.shuffle = shuffle
