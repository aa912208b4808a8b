"""The client's methods that describe the cluster."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from millrace import _check
from millrace._accepted import accept
from millrace._calls import _cluster_dump, _task_runs
from millrace._calls._task_plot import TaskPlot
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._cluster import _cluster_info, _task_list
from millrace._cluster._cluster_html import ClusterDescription
from millrace._cluster._workers import label, named
from millrace._connection._pool import Pool
from millrace._values._keys import UserKey
from millrace.future import Future, listed


class Inspection(ClientPart):
    """Describes workers, results and tasks."""

    def who_has(self, futures: Future[Any] | Iterable[Future[Any]] | None = None) -> dict[Any, list[str]]:
        """Returns the names of the workers that hold each result, by key; without futures, for all
        results of this client's namespace."""
        return _cluster_info.who_has_all(self.session) if futures is None else _cluster_info.who_has(listed(futures))

    def has_what(self, workers: str | Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Returns the keys of the results in this client's namespace that each worker holds, by
        worker name."""
        return _cluster_info.has_what(self.session, workers)

    def nthreads(self, workers: str | Sequence[str] | None = None) -> dict[str, int]:
        """Returns the number of slots of each worker, by worker name."""
        return {label(w): w.slots for w in named(self.session.workers(), workers)}

    def ncores(self, workers: str | Sequence[str] | None = None) -> dict[str, int]:
        """The same as `nthreads`."""
        return self.nthreads(workers)

    def nbytes(self, keys: Iterable[Any] | None = None, summary: bool = True) -> dict[Any, int]:
        """Returns the sizes of the results in this client's namespace, in bytes.

        Args:
            keys: only those of these keys or futures. Default: all.
            summary: sums by the names of functions, instead of each key's size.
        """
        wanted = None if keys is None else {k.key if isinstance(k, Future) else k for k in keys}
        return _task_list.nbytes(self.session, wanted, summary=summary)

    def processing(self, workers: str | Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Returns the keys of the tasks of this client's namespace that each worker runs or has in
        its queue, by worker name."""
        return _task_list.processing(self.session, named(self.session.workers(), workers))

    def story(
        self, *keys_or_stimuli: Future[Any] | UserKey, on_error: Literal["raise", "ignore"] = "raise"
    ) -> list[tuple[Any, str, str, str, str]]:
        """Returns the latest transitions of tasks, oldest first, as tuples of key, old state, new
        state, cause and UTC time of day. The scheduler keeps the last 8,192 of all tasks.

        Args:
            keys_or_stimuli: futures or keys. There are no stimuli here.
            on_error: "ignore": leave out tasks that the scheduler does not know, instead of an
                error.
        """
        if on_error not in ("raise", "ignore"):
            raise ValueError(f'on_error is "raise" or "ignore", not {on_error!r}')
        keys = [k.key if isinstance(k, Future) else k for k in keys_or_stimuli]
        return _task_list.story(self.session, keys, ignore_unknown=on_error == "ignore")

    def get_task_stream(
        self,
        start: Seconds | None = None,
        stop: Seconds | None = None,
        count: int | None = None,
        plot: bool | Literal["save"] = False,
        filename: str = "task-stream.html",
        bokeh_resources: object = None,
    ) -> Any:
        """Returns the latest runs of tasks of this client's namespace, in the order of their ends:
        dicts with "key", "worker", "status" ("OK" or "error"), "nbytes", "startstops" (times in
        seconds since 1970) and "thread", the number of a lane of the worker. The scheduler keeps
        the last 65,536 of all tasks, also of those that are released.

        Args:
            start: only runs that ended at this time or later, in seconds since 1970; text such as
                "5s", or a timedelta, is a time before now.
            stop: only runs that began before this time.
            count: at most this number, the latest ones.
            plot: return a picture as well, as (runs, picture), which notebooks show; "save": write
                it into a file, too.
            filename: the file.
            bokeh_resources: no effect: the picture needs no other file.
        """
        accept("get_task_stream", "bokeh_resources", bokeh_resources, "the picture needs no other file")
        begin = 0.0 if start is None else _task_runs.moment(start, "start")
        end = None if stop is None else _task_runs.moment(stop, "stop")
        if count is not None:
            count = _check.integer(count, "count", 0, 1 << 32)
        runs = _task_runs.runs(self.session, begin, end, count)
        if not plot:
            return runs
        picture = TaskPlot(runs)
        if plot == "save":
            picture.save(filename)
        return runs, picture

    def scheduler_info(self, n_workers: int = -1) -> ClusterDescription:
        """Returns a description of the cluster: a dict that notebooks show as a card.

        Its workers, without those that are lost, are under "workers", by name. The "state" of a
        worker is "active", "disconnected", "draining" or "drained". Its "drain" is None, or a dict
        that says how far the drain is. Its "linear_algebra" names the library of BLAS and LAPACK,
        or says "pure Go".

        Args:
            n_workers: most workers to describe; negative: all.
        """
        return _cluster_info.scheduler_info(self.session, n_workers)

    def dump_cluster_state(
        self,
        filename: str | os.PathLike[str] = "millrace-cluster-dump",
        write_from_scheduler: bool | None = None,
        exclude: Collection[str] = (),
        format: Literal["json", "yaml", "msgpack"] = "json",
        **storage_options: Any,
    ) -> None:
        """Writes all that the scheduler tells about the cluster into a file, for debugging: its
        workers, clients, datasets, and the tasks of this client's namespace.

        Args:
            filename: path without extension, or a URL for fsspec. ".json.gz", ".yaml" or
                ".msgpack.gz" is added.
            write_from_scheduler: True is refused: the scheduler writes no files, the client does.
            exclude: names of entries to leave out, at any depth.
            format: format of the file; msgpack needs the package msgpack, yaml the package yaml.
            storage_options: options of fsspec, for URLs.
        """
        if write_from_scheduler:
            raise ValueError("write_from_scheduler: the scheduler writes no files: leave it out, and the client writes")
        _cluster_dump.write(_cluster_dump.collect(self.session, exclude), filename, format, storage_options)

    def explain(self, future: Future[Any] | UserKey) -> str:
        """Explains why a task is not running, or how it ended."""
        return _cluster_info.explain(self.session, future)


class AsyncDescription(Mapping[str, Any]):
    """The description of a cluster for asyncio. It can be awaited, and read at once as well, as in
    Dask's distributed: then the first access waits for the scheduler's answer."""

    def __init__(self, ask: Callable[[], ClusterDescription], pool: Pool) -> None:
        self._ask, self._pool = ask, pool
        self._answer: ClusterDescription | None = None

    def __await__(self) -> Generator[Any, None, ClusterDescription]:
        return self._pool.run(self._ask).__await__()

    def _read(self) -> ClusterDescription:
        if self._answer is None:
            self._answer = self._ask()
        return self._answer

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def _repr_html_(self) -> str:
        return self._read()._repr_html_()


class AsyncInspection(AsyncPart):
    """The methods of `Inspection`, as coroutines."""

    who_has = awaited(Inspection.who_has)
    has_what = awaited(Inspection.has_what)
    nthreads = awaited(Inspection.nthreads)
    ncores = awaited(Inspection.ncores)
    nbytes = awaited(Inspection.nbytes)
    processing = awaited(Inspection.processing)
    story = awaited(Inspection.story)
    get_task_stream = awaited(Inspection.get_task_stream)
    dump_cluster_state = awaited(Inspection.dump_cluster_state)

    @functools.wraps(Inspection.scheduler_info)
    def scheduler_info(self, n_workers: int = -1) -> AsyncDescription:
        client = self.sync
        return AsyncDescription(functools.partial(client.scheduler_info, n_workers), client.session.pool)

    explain = awaited(Inspection.explain)
