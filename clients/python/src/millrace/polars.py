"""Polars queries on a cluster.

    import polars as pl
    from millrace.polars import Engine

    with Engine() as engine:
        sums = pl.scan_parquet("data/*.parquet").group_by("key").agg(pl.col("x").sum())
        print(sums.collect(engine=engine))

`docs/polars.md` says which parts of a query are divided among the workers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import polars as pl  # pyright: ignore[reportMissingImports]

from millrace._polars import _plan, _whole
from millrace._polars._cluster import Cluster
from millrace._polars._options import Options, UndividedWarning
from millrace._polars._stored import Result
from millrace.client import Client
from millrace.cluster import LocalCluster
from millrace.future import Future, results_of

if TYPE_CHECKING:
    from millrace._polars._query import Query

#: So many queries run at the same time.
_TOGETHER = 16

__all__ = ["Engine", "Options", "Result", "UndividedWarning"]


class Engine(pl.Engine):
    """Runs queries on a cluster: `lf.collect(engine=engine)`.

    Args:
        client: the client of the cluster. None: the engine starts a cluster on this machine, with
            one worker for each core, and stops it when it is closed.
        options: how queries are divided.
        cluster: arguments of `LocalCluster`, if there is no client.
    """

    def __init__(self, client: Client | None = None, *, options: Options | None = None, **cluster: Any) -> None:
        if client is not None and not isinstance(client, Client):
            raise TypeError(
                f"client is of the class {type(client).__name__}: an engine needs a Client, because Polars waits for "
                "its answers in a thread. Open one beside it: Client(address)"
            )
        if client is not None and cluster:
            raise TypeError(f"{', '.join(cluster)}: the client has a cluster; these are arguments of a new one")
        self._options = options or Options()
        self._cluster = None if client is not None else LocalCluster(**cluster)
        self._client = client if client is not None else Client(self._cluster)

    @classmethod
    def from_options(cls, options: Options | Mapping[str, Any] | Any, **arguments: Any) -> Engine:
        """Returns an engine with these options.

        Args:
            options: `Options`, a dict of them, or StreamingOptions of cudf-polars.
            arguments: the other arguments of the class.
        """
        return cls(options=Options.of(options), **arguments)

    @property
    def name(self) -> str:
        return "millrace"

    @property
    def plan_engine(self) -> str:
        """Engine name used to render query plans."""
        return "in-memory"

    @property
    def client(self) -> Client:
        """The client of the cluster."""
        return self._client

    @property
    def nranks(self) -> int:
        """Number of workers."""
        return len(self._client.session.workers())

    def gather_cluster_info(self) -> list[dict[str, Any]]:
        """Returns for each worker the process that runs tasks, its host and its GPUs."""
        return list(self._client.run(_process_info, processes="one").values())

    def collect(  # pyright: ignore[reportIncompatibleMethodOverride] - it has no background mode
        self, lf: pl.LazyFrame, *, optimizations: Any, background: bool = False, post_opt_callback: Any = None
    ) -> pl.DataFrame:
        """Runs a query, and returns its result. See `polars.LazyFrame.collect`."""
        if background:
            raise ValueError("background=True is not supported: call collect in a thread of your own")
        if post_opt_callback is not None:
            raise ValueError("post_opt_callback is a function for engines of Polars itself")
        futures = self._started(lf, lambda query, root: query.collect(root), "run")
        return pl.concat(results_of(futures), rechunk=False)

    def collect_all(self, lfs: Iterable[pl.LazyFrame], *, optimizations: Any) -> list[pl.DataFrame]:
        """Runs queries at the same time, each for itself. See `polars.collect_all`.

        Raises:
            Exception: that of the first query that failed, once those that run have ended.
        """
        queries = list(lfs)
        with ThreadPoolExecutor(min(len(queries), _TOGETHER) or 1, "millrace-polars") as pool:
            # Each thread has the context of the caller: its default client, annotations, ….
            running = [
                pool.submit(copy_context().run, partial(self.collect, lf, optimizations=optimizations))
                for lf in queries
            ]
            try:
                return [r.result() for r in running]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def execute(self, lf: pl.LazyFrame, *, optimizations: Any = None) -> Result:
        """Runs a query, and keeps the parts of its result on the cluster. `result.lazy()` is the
        source of further queries. See `polars.LazyFrame.execute`."""
        schemas: list[pl.Schema] = []

        def run(query: Query, root: _plan.Node) -> list[Future[Any]]:
            root = query.listed(root)
            futures = query.run(root)
            schemas.append(root.schema)
            return futures

        futures = self._started(lf, run, "run")
        return Result(futures, schemas[0] if schemas else lf.collect_schema())

    def persist(self, lf: pl.LazyFrame | pl.DataFrame) -> pl.LazyFrame:
        """Runs a query, and returns its result as the source of further queries. It stays on the
        cluster for as long as a query refers to it.

        Args:
            lf: the query, or a data frame. A data frame goes to the workers as it is in memory; one
                in a query (`frame.lazy()`) is written by Polars each time the query is collected,
                at about 40 MB/s.
        """
        if isinstance(lf, pl.DataFrame):
            rows = self._options.max_rows_per_partition
            pieces = [lf.slice(at, rows) for at in range(0, max(len(lf), 1), rows)]
            return Result(self._client.scatter(pieces), lf.schema).lazy()
        return self.execute(lf).lazy()

    def explain(self, lf: pl.LazyFrame) -> str:
        """Returns the stages of a query, with sides of joins that are brought to each task and nodes
        that run in one task, and its plan, with columns and predicates pushed down to where rows
        meet. The stages are those for sizes that are known before. Nothing runs."""
        try:
            root = _plan.read(lf)
            query = self._query()
            with _plan.known():
                return query.explained(root)
        except _plan.UnknownPlanError as e:
            return f"  UNDIVIDED: {_unknown(e)}\n{lf.explain(optimized=False)}"

    def sink_parquet(  # pyright: ignore[reportIncompatibleMethodOverride] - the path is a name
        self, lf: pl.LazyFrame, path: str | Path, *, optimizations: Any, **options: Any
    ) -> None:
        """Runs a query; the workers write its result. See `polars.LazyFrame.sink_parquet`.

        Args:
            lf: the query.
            path: a file. If it is a text that ends with "/", or by `sink_to_directory`, it is a
                directory, and each part of the result becomes a file there.
            optimizations: not used.
            options: those of Polars, except those that concern objects of this process.
        """
        if not isinstance(path, (str, Path)):
            raise TypeError(f"path is a {type(path).__name__}: workers write to a path only, given as text")
        for name in ("metadata", "arrow_schema", "encryption", "sinked_paths_callback"):
            if options.pop(name, None) is not None:
                raise ValueError(f"{name} is not supported: it is an object of this process")
        text = str(Path(path).absolute()) if "://" not in str(path) else str(path)
        if str(path).endswith("/") or self._options.sink_to_directory:
            options["mkdir"], text = True, text.rstrip("/") + "/"
        file = f"{text}{0:05}.parquet" if text.endswith("/") else text
        results_of(
            self._started(
                lf, lambda query, root: query.sink_parquet(root, text, options), "sink_parquet", file, options
            )
        )

    def close(self) -> None:
        """Stops the cluster that the engine has started. A client that it was given stays open."""
        if self._cluster is not None:
            self._client.close()
            self._cluster.close()

    #: The name of `close` in engines of cudf-polars.
    shutdown = close

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _started(
        self, lf: pl.LazyFrame, run: Callable[[Query, _plan.Node], list[Future[Any]]], function: str, *arguments: Any
    ) -> list[Future[Any]]:
        """Starts a query, and returns the parts of its result.

        Args:
            lf: the query.
            run: starts its plan.
            function: of `_whole`, which runs a plan of an unknown form.
            arguments: of the function.
        """
        try:
            root = _plan.read(lf)
            return run(self._query(), root)
        except _plan.UnknownPlanError as e:
            self._options.tell(_unknown(e))
            return [_whole.submitted(self._client, lf, function, *arguments)]

    def _query(self) -> Query:
        # These read plans when they are imported, which another Polars may write in another form.
        from millrace._polars._query import Query
        from millrace._polars._stages import Stages

        slots = sum(w.slots for w in self._client.session.workers())
        return Query(Cluster(self._client), max(slots, 1), self._options, Stages)


def _unknown(error: _plan.UnknownPlanError) -> str:
    return f"the query cannot be divided, and runs in one task: {error}"


def _process_info() -> dict[str, Any]:
    """Returns a description of this process, in the shape of cudf-polars."""
    return {
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
