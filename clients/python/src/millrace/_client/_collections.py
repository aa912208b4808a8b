"""The client's methods for Dask's collections."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from millrace._accepted import accept
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, ClientPart, same
from millrace._connection._steps import run
from millrace._dask._fusion import fused
from millrace._dask._persisted import optimised, rebuilt
from millrace._dask._rules import Rules
from millrace._dask._submit import Submission, collector_paused, materialised
from millrace._tasks._graph import flat
from millrace._tasks._task_options import TaskOptions
from millrace.future import Future, futures_of


class Collections(ClientPart):
    """Computes Dask's collections: arrays, data frames, bags and delayed calls."""

    # The parts of persisted collections, by key, as long as somebody has their futures.
    _persisted: weakref.WeakValueDictionary[Any, Future[Any]]

    def compute(
        self,
        collections: Any,
        sync: bool = False,
        optimize_graph: bool = True,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        retries: int = 0,
        priority: int | None = None,
        fifo_timeout: Seconds | None = None,
        actors: Any = None,
        traverse: bool = True,
        **others: Any,
    ) -> Any:
        """Computes collections, and returns a future for the result of each at once.

        Args:
            collections: a collection, or a list of them. Objects of other types are returned as
                they are.
            sync: wait, and return results instead of futures; a coroutine of them if the client is
                an AsyncClient.
            optimize_graph: let Dask optimise the graph.
            workers, allow_other_workers, resources, retries, priority: as for `submit`, for all
                tasks. Dask's annotations are preferred to them.
            fifo_timeout, actors: no effect; the log says why.
            others: no effect: Dask passes on what `compute` and `persist` of collections are given.
            traverse: look for collections inside of lists, tuples, sets and dicts, too.
        """
        _accept("compute", fifo_timeout, actors, others)
        import dask
        from dask._expr import FinalizeCompute
        from dask.base import collections_to_expr, is_dask_collection

        single = not isinstance(collections, (list, tuple, set, frozenset))
        given: list[Any] = [collections] if single else list(cast("Iterable[Any]", collections))
        if traverse:
            nested = (list, set, tuple, dict, Iterator)
            given = [cast("Any", dask).delayed(c) if isinstance(c, nested) else c for c in given]
        found = [c for c in given if is_dask_collection(c)]
        results: list[Any] = []
        if found:
            with collector_paused:
                expr: Any = FinalizeCompute(collections_to_expr(found, optimize_graph)).optimize()
            keys = flat(expr.__dask_keys__())
            options = TaskOptions(
                priority=priority,
                retries=retries,
                workers=workers,
                allow_other_workers=allow_other_workers,
                resources=resources,
            )
            futures = self._graph_futures(expr, keys, options)
            results = [futures[k] for k in keys]
        rest = iter(results)
        out = [next(rest) if is_dask_collection(c) else c for c in given]
        if sync:
            out = cast("Any", self).gather(out)
        return out[0] if single else out

    def persist(
        self,
        collections: Any,
        optimize_graph: bool = True,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        retries: int = 0,
        priority: int | None = None,
        fifo_timeout: Seconds | None = None,
        actors: Any = None,
        **others: Any,
    ) -> Any:
        """Starts to compute collections, and returns collections with the same names at once whose
        parts are the results, kept on the cluster."""
        _accept("persist", fifo_timeout, actors, others)
        single = not isinstance(collections, (list, tuple, set, frozenset))
        given: list[Any] = [collections] if single else list(cast("Iterable[Any]", collections))
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
        )
        with collector_paused:
            expr, parts = optimised(given, optimize_graph)
            keys: list[Any] = expr.__dask_keys__()
        futures = self._graph_futures(expr, flat(keys), options)
        out = [
            rebuilt(c, part, {k: futures[k] for k in flat(own)})
            for c, part, own in zip(given, parts, keys, strict=True)
        ]
        for key in flat(keys):
            self._persisted[key] = futures[key]
        return out[0] if single else out

    def _graph_futures(self, graph: Any, keys: list[Any], options: TaskOptions) -> dict[Any, Future[Any]]:
        expr, names = fused(graph)
        dsk, annotations = materialised(expr)
        wanted = {key: names.get(key, key) for key in keys}
        work = Submission(self.session, self._maker, dsk, wanted.values(), Rules(self.session, options, annotations))
        futures = run(work.put())
        return {key: futures[name] for key, name in wanted.items()}

    def futures_of(self, futures: Any) -> list[Future[Any]]:
        """Returns the futures in collections: see `millrace.futures_of`."""
        return futures_of(futures)

    def normalize_collection(self, collection: Any) -> Any:
        """Returns a collection that uses results of this client: in its graph, the parts of
        collections that this client has persisted, and that still exist, are replaced by futures.

        Args:
            collection: the collection, which is not changed.
        """
        from dask._task_spec import convert_legacy_graph, cull
        from dask.utils import ensure_dict

        graph: dict[Any, Any] = cast("Any", ensure_dict)(collection.__dask_graph__())
        known = {key: future for key in graph if (future := self._persisted.get(key)) is not None}
        if not known:
            return collection
        kept = cull(convert_legacy_graph({**graph, **known}), flat(collection.__dask_keys__()))
        rebuild, state = collection.__dask_postpersist__()
        return rebuild({**kept, **{key: known[key] for key in kept if key in known}}, *state)


def _accept(function: str, fifo_timeout: Any, actors: Any, others: dict[str, Any]) -> None:
    accept(function, "fifo_timeout", fifo_timeout, "submissions keep their order, and equal priorities run in it")
    accept(function, "actors", actors or None, "an actor is made by submit(Class, actor=True)")
    for name, value in others.items():
        accept(function, name, value, "it is a setting of Dask's schedulers in one process")


class AsyncCollections(AsyncPart):
    """The methods of `Collections`. They return at once, except for the work on the graph."""

    @functools.wraps(Collections.compute)
    def compute(self, collections: Any, sync: bool = False, *rest: Any, **options: Any) -> Any:
        found = self.sync.compute(collections, False, *rest, **options)
        return cast("Any", self).gather(found) if sync else found

    persist = same(Collections.persist)
    futures_of = same(Collections.futures_of)
    normalize_collection = same(Collections.normalize_collection)
