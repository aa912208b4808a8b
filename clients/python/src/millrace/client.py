"""The client: submits tasks and holds their results."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, MappingView, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, cast, overload

from millrace import _address, _check, _cluster_info, _drains, _registry
from millrace._arguments import plain_names
from millrace._check import Seconds
from millrace._datasets import Datasets
from millrace._graph import by_key, submit_graph
from millrace._keys import UserKey
from millrace._pool import Pool
from millrace._rebalance import RebalanceReport, rebalance
from millrace._scatter import Scatter, replicate
from millrace._session import Session
from millrace._state import Spec
from millrace._steps import Steps, blocking, drive, is_blocking, operation, run
from millrace._task_maker import TaskMaker, map_keys
from millrace._task_options import SubmitOptions, TaskOptions, bound
from millrace._trees import collect, spread
from millrace._waiting import DoneAndNotDone, as_completed, wait
from millrace._workers import AnyWorker, named
from millrace.client_executor import ClientExecutor
from millrace.cluster import LocalCluster
from millrace.future import Future, by_session, cancel, ended, listed, retry
from millrace.ops import ExecutorOp, NativeOp

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

#: gRPC knows no deadlines at infinity: a year, in seconds.
_LONGEST_WAIT = 31_536_000.0
_NAMESPACE = re.compile(r"[a-zA-Z0-9._-]*")
#: Parameters that Dask passes to `get` of its own schedulers or of `distributed`. `get` here
#: accepts and ignores them.
_FROM_DASK = frozenset({
    "num_workers", "pool", "cache", "chunksize", "optimize_graph", "rerun_exceptions_locally", "raise_exception",
    "callbacks", "asynchronous", "direct", "fifo_timeout", "actors", "scheduler", "func_loads", "func_dumps", "initializer",
})  # fmt: skip


def get_client() -> Client:
    """Returns the most recently opened client of this process that is still open. Inside a task
    without one, it opens a client of the worker's cluster."""
    for client in _registry.opened():
        if client.session.forked:
            client.session.check_open()
        if isinstance(client, Client):
            return client
    for session in _registry.kept():
        return _of_task(session)
    if not os.environ.get("MILLRACE_ADDRESS"):
        raise ValueError("there is no client in this process: open one with millrace.Client(...)")
    return _of_task(None)


# The client that `get_client` has opened inside of a task. It stays open until the process ends.
_task_client: list[Client] = []


def _of_task(session: Session | None) -> Client:
    client = Client() if session is None else Client._around(session)
    _task_client[:] = [client]
    return client


class Client:
    """A connection to a cluster, and a lease on results.

    Args:
        address: "host:port", or a LocalCluster. Default: MILLRACE_ADDRESS (with MILLRACE_TOKEN),
            else MILLRACE_SCHEDULER_FILE, else a local cluster is started and ends with the client.
        token: default MILLRACE_TOKEN, or the token of the scheduler file.
        scheduler_file: file that `millrace up` wrote.
        name: shown to people.
        namespace: of keys; "default" if empty. Clients of one namespace share equal keys.
        timeout: longest wait for the scheduler to be reachable, in seconds, as a timedelta or as
            text ("10s").
        n_workers, memory_limit, device: for a cluster that is started.
        shared_memory: use the memory of workers on this host in place: large arrays that are
            gathered occupy the worker's memory until they are garbage; pages that are written to
            are copied. Without it, all bytes are sent by gRPC.
        asynchronous: return an AsyncClient with the other arguments instead, as programs that were
            written for Dask's distributed expect. New programs call AsyncClient.

    Raises:
        SchedulerLostError: the address does not answer.
        AuthenticationError: wrong token.
    """

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[True], **kwargs: Any) -> AsyncClient: ...

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[False] = False, **kwargs: Any) -> Client: ...

    def __new__(cls, *args: Any, asynchronous: bool = False, **kwargs: Any) -> Any:
        # Python does not call __init__ for a result that is no Client.
        return AsyncClient(*args, **kwargs) if asynchronous else super().__new__(cls)

    def __init__(
        self,
        address: str | LocalCluster | None = None,
        *,
        token: str | None = None,
        scheduler_file: str | os.PathLike[str] | None = None,
        name: str = "",
        namespace: str = "",
        timeout: Seconds = 30.0,
        n_workers: int | None = None,
        memory_limit: str | int | None = None,
        device: str = "auto",
        shared_memory: bool = True,
        asynchronous: bool = False,
    ) -> None:
        limit = min(_check.seconds(timeout, "timeout"), _LONGEST_WAIT)
        if token is not None:
            _check.text(token, "token")
        _check.text(name, "name", 256)
        if not _NAMESPACE.fullmatch(_check.text(namespace, "namespace", 64)):
            raise ValueError(f"namespace: {namespace!r} has characters other than letters, digits, '.', '_' and '-'")
        where = _address.find(address, token, scheduler_file)
        #: The LocalCluster that this client was given or has started; None if it joined another.
        self.cluster: LocalCluster | None = address if isinstance(address, LocalCluster) else None
        # True if the cluster ends with this client.
        self._own_cluster = where is None
        if where is None:
            self.cluster = LocalCluster(n_workers, memory_limit=memory_limit, device=device)
            where = self.cluster.address, self.cluster.token
        try:
            session = Session(*where, name=name, namespace=namespace, timeout=limit, shared_memory=shared_memory)
        except BaseException:
            if self._own_cluster and self.cluster is not None:
                self.cluster.close()
            raise
        self._take(session)
        if self._own_cluster and self.cluster is not None:
            try:
                run(self._await_workers(n_workers or 1, None, self.cluster))
            except BaseException:
                self.close()
                raise

    @classmethod
    def _around(cls, session: Session) -> Client:
        """Returns a client with a session that was opened before it."""
        client = super().__new__(cls)
        client.cluster, client._own_cluster = None, False
        client._take(session)
        return client

    def _take(self, session: Session) -> None:
        #: The connection to the scheduler; not part of the stable interface.
        self.session = session
        self._maker = TaskMaker(session)
        self._datasets = Datasets(session)
        _registry.add(self)

    # ---- submitting ------------------------------------------------------------------------------

    def submit(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        /,
        *args: Any,
        key: UserKey | None = None,
        pure: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        **kwargs: Any,
    ) -> Future[T]:
        """Runs ``func(*args, **kwargs)`` on the cluster and returns a future at once.

        Args:
            func: a function; "package.module:function", imported where it runs; or an op.
            args, kwargs: arguments; futures anywhere inside of them are replaced by their results.
            key: name of the result: a str, bytes, int or float, or a tuple of these; ("x", 1) and
                "x-1" are different keys. Default: made from the function and the arguments.
            pure: equal calls are one task. Otherwise every call is a task of its own. If such a
                task has failed, it runs again once no future of it is left, or by `Future.retry`.
            priority: tasks with a higher number run first.
            retries: number of further attempts if it raises.
            workers: names, ids or hosts where it may run.
            allow_other_workers: `workers` is only a preference.
            resources: amounts of a worker's resources that it occupies, by name.
            timeout: longest run time, in seconds, as a timedelta or as text ("5 min"); then the
                function is stopped.
            slots: number of a worker's slots that it occupies.
            no_wait: fail at once with NoWorkerFitsError if no worker of the cluster could ever run
                it.

        Raises:
            SerialisationError: the function or an argument cannot be pickled.

        If the scheduler refuses the task (for example because its key belongs to another task), the
        future raises the error.
        """
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            timeout=timeout,
            slots=slots,
            no_wait=no_wait,
        ).pack()
        self.session.check_open()
        spec, state = self._maker.spec(func, args, kwargs, key, pure, options)
        if spec is not None:
            self.session.submit([spec])
        return Future(self.session, state)

    def map(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        /,
        *iterables: Iterable[Any],
        key: UserKey | Sequence[UserKey] | None = None,
        pure: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        **kwargs: Any,
    ) -> list[Future[T]]:
        """Calls the function with each element (of several iterables: with one of each, up to the
        shortest).

        Args:
            func: as for `submit`.
            iterables: the arguments, as for the builtin `map`.
            key: a prefix for the keys, or a list of keys, one for each call.
            kwargs: the same for all calls.

        The other arguments are those of `submit`.
        """
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            timeout=timeout,
            slots=slots,
            no_wait=no_wait,
        ).pack()
        specs: list[Spec] = []
        futures: list[Future[T]] = []
        calls = list(zip(*iterables))  # noqa: B905 - the shortest ends it, as in map
        own = map_keys(key, len(calls))
        self.session.check_open()
        known = self._maker.op(func) if calls else None
        try:
            for args, one in zip(calls, own, strict=True):
                spec, state = self._maker.spec(func, args, kwargs, one, pure, options, known)
                if spec is not None:
                    specs.append(spec)
                futures.append(Future(self.session, state))
            if specs:
                self.session.submit(specs)
        except BaseException as e:
            self.session.abandon([s.state for s in specs if s.state is not None], e)
            raise
        return futures

    def op(self, name: str, *args: Any, key: UserKey | None = None, pure: bool = True, **named: Any) -> Future[Any]:
        """Runs a native op: ``client.op("array.matmul", a, b)``. Arguments are plain values, small
        arrays and futures."""
        return self.submit(NativeOp(name), *args, key=key, pure=pure, **plain_names(named))

    @blocking
    def get(
        self,
        dsk: Mapping[Hashable, Any],
        keys: Any,
        *,
        sync: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        **ignored: Any,
    ) -> Steps[Any]:
        """Computes a dict graph: ``{"x": 1, "y": (inc, "x"), "z": (sum, ["x", "y"])}``.

        A value is a task (a tuple whose first element is callable, or an op), another key, a list
        of these, or a constant. The whole graph is one submission.

        Args:
            dsk: the graph.
            keys: a key, or nested lists of keys.
            sync: return results; otherwise futures. Their keys are those of the graph with a mark
                of this call.
            priority, retries, workers, allow_other_workers, resources: as for `submit`, for all
                tasks.
            ignored: parameters that Dask passes to schedulers of threads and processes
                (num_workers, pool, optimize_graph, ...).

        Raises:
            InvalidRequestError: the graph has a cycle; the message names the tasks on it.
            TypeError: it is no dict, or has Dask's own Task objects in it, which this method does
                not run.
        """
        unknown = set(ignored) - _FROM_DASK
        if unknown:
            raise TypeError(f"get() has no argument {', '.join(sorted(unknown))}")
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
        ).pack()
        futures = submit_graph(self.session, self._maker, dsk, keys, options)
        if not sync:
            return by_key(keys, futures)
        results = yield from operation(Client.gather)(self, list(futures.values()))
        return by_key(keys, dict(zip(futures, results, strict=True)))

    # ---- results ---------------------------------------------------------------------------------

    @blocking
    def gather(
        self, futures: Any, *, errors: str = "raise", timeout: Seconds | None = None, copy: bool = False
    ) -> Steps[Any]:
        """Returns the results of futures, in any nesting of lists, tuples, sets and dicts.

        Args:
            futures: the futures, of this client or others. Other leaves are returned as they are.
                An iterator, or a view such as `dict.values()`, is read into a list.
            errors: "raise" the first error, or "skip" failed futures: they are left out of their
                collections. The error of a single future that is in no collection is raised.
            timeout: longest wait, in seconds, as a timedelta or as text ("5s").
            copy: return private copies, instead of views of the memory of a worker on this host.
        """
        if errors not in ("raise", "skip"):
            raise ValueError(f'errors is "raise" or "skip", not {errors!r}')
        if isinstance(futures, (Iterator, MappingView)):
            futures = list(cast("Iterable[Any]", futures))
        found: list[Future[Any]] = []
        collect(futures, found)
        bad: set[int] = set()
        limit = _check.longest(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        groups = by_session({id(f): f for f in found}.values())
        if found and (errors == "skip" or len(groups) > 1) and not (yield ended(found, limit)):
            left = sum(not f.done() for f in found)
            raise TimeoutError(f"{left} of {len(found)} results did not arrive in {limit:g} s")
        if errors == "skip" and not isinstance(futures, Future):
            bad = {id(f) for f in found if f._state.exception() is not None}
        results: dict[int, Any] = {}
        for session, group in groups.items():
            good = [f for f in group if id(f) not in bad]
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            fetched = yield from session.fetch([f._state for f in good], limit if len(groups) == 1 else left, copy)
            results.update(zip((id(f) for f in good), fetched, strict=True))
        return spread(futures, results, bad)

    @blocking
    def wait(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        timeout: Seconds | None = None,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> Steps[DoneAndNotDone]:
        """Waits for futures: see `millrace.wait`."""
        return (yield from operation(wait)(futures, timeout, return_when))

    def as_completed(
        self,
        futures: Future[Any] | Iterable[Future[Any]] = (),
        *,
        with_results: bool = False,
        timeout: Seconds | None = None,
    ) -> as_completed:
        """Iterates over futures in the order in which they end: see `millrace.as_completed`."""
        return as_completed(futures, with_results=with_results, timeout=timeout)

    @blocking
    def scatter(
        self,
        data: Any,
        *,
        workers: str | Sequence[str] | None = None,
        broadcast: bool = False,
        key: UserKey | None = None,
        hash: bool | None = None,
    ) -> Steps[Any]:
        """Puts data on workers and returns futures for it: for a list a list, for a dict a dict
        whose keys name the data, else a single future.

        Args:
            data: the data.
            workers: names, ids or hosts. Default: all, in turn.
            broadcast: put a copy on each of them. The workers pass the copies on to each other.
            key: name for a single object, as for `submit`. Default: made from its type.
            hash: equal data gets the same key. Default: only if it is not larger than 16 MiB,
                because hashing larger data takes longer than sending it.

        Raises:
            InvalidRequestError: a key names other data already (KEY_CONFLICT): release its futures
                first.
        """
        work = Scatter(self.session, self._maker, workers=workers, broadcast=broadcast, by_hash=hash)
        return (yield from work.put(data, key))

    @blocking
    def replicate(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        *,
        n: int | None = None,
        workers: str | Sequence[str] | None = None,
    ) -> Steps[None]:
        """Copies results to more workers, and returns when the copies are complete. Each new copy
        is a source for the next ones.

        Workers with GPUs get all copies at once, as a chain: each one reads the bytes from the one
        before it while they arrive there.

        Args:
            futures: the results to copy. Waits until they have succeeded.
            n: how many workers shall have each of them. Default: all.
            workers: names, ids or hosts that may. Default: all.
        """
        copied = listed(futures)
        if n is not None:
            n = _check.integer(n, "n", 0, 1 << 32)
        yield from replicate(self.session, self._maker, copied, n, workers)

    # ---- control ---------------------------------------------------------------------------------

    def cancel(self, futures: Future[Any] | Iterable[Future[Any]], *, force: bool = False, reason: str = "") -> None:
        """Stops tasks: queued tasks are dropped, and running functions are interrupted.

        The futures have ended when this returns: they are cancelled, except those that had ended
        before. A task that other clients hold as well continues for them, unless `force` is given.
        The cancellation reaches the workers of the tasks a moment later: a task that begins in
        between is stopped again, and its result dropped.

        Raises:
            NotFoundError: The scheduler has no such task any more. The others are cancelled.
        """
        cancel(listed(futures), force=force, reason=reason)

    def retry(self, futures: Future[Any] | Iterable[Future[Any]]) -> None:
        """Runs failed or cancelled tasks again, together with their inputs that failed."""
        retry(listed(futures))

    @blocking
    def run(
        self, function: Callable[..., T], /, *args: Any, workers: str | Sequence[str] | None = None, **kwargs: Any
    ) -> Steps[dict[str, T]]:
        """Calls a function once on each worker, or on the named ones (possibly none); returns
        results by worker name. All keyword arguments but `workers` go to the function."""
        function, kwargs = bound(function, kwargs)
        names = [w.name for w in named(self.session.workers(), workers)]
        futures = {n: self.submit(function, *args, workers=n, pure=False, priority=1 << 20, **kwargs) for n in names}
        return cast("dict[str, T]", (yield from operation(Client.gather)(self, futures)))

    # ---- operating -------------------------------------------------------------------------------

    @blocking
    def drain_workers(
        self,
        workers: AnyWorker | Sequence[AnyWorker],
        *,
        reason: str = "",
        undo: bool = False,
        wait: bool = True,
        timeout: Seconds | None = None,
    ) -> Steps[list[dict[str, Any]]]:
        """Takes workers out of use, all or none. They get no new tasks and finish those that run,
        and other workers copy the results that they alone have. Then they are drained: their
        processes stay, and can be stopped without a loss.

        The order also holds for later processes of these workers, until it is undone or the
        scheduler is started anew. If results cannot be copied, the workers stay as they are, and
        the drain goes on as soon as they can be. The workers of one order do not copy the results
        of each other. Only operators may give orders: the token of a task may not.

        Args:
            workers: names or ids ("w7"), hosts for all their workers, or descriptions of workers
                from `scheduler_info`, one or several; at most 1,000.
            reason: why, for other people; at most 1,024 characters.
            undo: put the workers back into use instead. This also takes back `retire_workers` and
                `restart_workers`, as long as the processes were not told to end. It returns at
                once.
            wait: return when the workers are drained; otherwise at once.
            timeout: longest wait, in seconds, as a timedelta or as text ("5 min"). The drain goes
                on after it. Default: as long as it takes.

        Returns:
            Descriptions of the workers as they are at the end, as in `scheduler_info`. Their
            "drain" says how far the drains are, which results stay, and why. Workers that are put
            back into use and do not live are left out.

        Raises:
            NotFoundError: there is no such worker, or it is lost.
            InvalidRequestError: a worker leaves already (WORKER_LEAVING).
            TimeoutError: the workers were not drained in time; the message names results that stay,
                and the reasons.
            DrainError: a drain was undone during the wait, the worker died, or the scheduler was
                started anew.
        """
        order = _drains.drain(self.session, workers, reason=reason, undo=undo, wait=wait, timeout=timeout)
        return (yield from order)

    @blocking
    def retire_workers(
        self,
        workers: AnyWorker | Sequence[AnyWorker],
        *,
        reason: str = "",
        within: Seconds | None = None,
        wait: bool = True,
        timeout: Seconds | None = None,
    ) -> Steps[list[dict[str, Any]]]:
        """Drains workers as `drain_workers` does, then ends their processes for good: their
        supervisors do not start them again. A worker that dies before that is ended when it comes
        back within 5 minutes.

        Args:
            workers, reason, timeout: as for `drain_workers`.
            within: longest drain, as a time; more than 0, at most 30 days. After it the processes
                end in any case: their tasks run elsewhere, and results that only they have are
                computed again, or are lost if they were scattered. Default: a process ends only
                when it is drained.
            wait: return when the processes have ended; otherwise at once.

        Returns:
            Descriptions of the workers as they are at the end.

        Raises:
            The errors of `drain_workers`.
        """
        order = _drains.retire(self.session, workers, reason=reason, within=within, wait=wait, timeout=timeout)
        return (yield from order)

    @blocking
    def restart_workers(
        self,
        workers: AnyWorker | Sequence[AnyWorker],
        *,
        reason: str = "",
        within: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> Steps[list[dict[str, Any]]]:
        """Restarts workers, one after the other: drains each as `drain_workers` does, ends its
        process, and waits until its supervisor has started the next one and that is active.

        Args:
            workers, reason: as for `drain_workers`, but of any number.
            within: longest drain of each worker, as for `retire_workers`.
            timeout: longest wait for all of them, as for `drain_workers`. Those that were not begun
                stay as they are.

        Returns:
            Descriptions of the new processes.

        Raises:
            InvalidRequestError: nothing would start a worker again, because it has no supervisor
                (NOT_SUPERVISED).
            The errors of `drain_workers`.
        """
        return (yield from _drains.restart(self.session, workers, reason=reason, within=within, timeout=timeout))

    @blocking
    def rebalance(
        self,
        workers: AnyWorker | Sequence[AnyWorker] | None = None,
        *,
        dry_run: bool = False,
        timeout: Seconds | None = None,
    ) -> Steps[RebalanceReport]:
        """Moves results from workers that hold a larger share of their memory to those that hold a
        smaller one, until all are within 5 % of the mean, or no move helps. No move costs a result:
        the source drops it only when the other worker keeps it.

        Results stay where they are if several workers have them, if an assigned task needs them,
        or if they are small. Only operators may call it: the token of a task may not.

        Args:
            workers: those that take part, named as in `drain_workers`; at least two, and all of
                them active. Default: all active ones, also those that join meanwhile.
            dry_run: only plan.
            timeout: longest wait, in seconds, as a timedelta or as text ("5 min"). Then the
                rebalance ends, and what has moved stays moved. Default: as long as it takes.

        Raises:
            NotFoundError: there is no such worker, or it is lost.
            InvalidRequestError: another rebalance is in progress (REBALANCE_RUNNING), or a worker
                is not active (WORKER_NOT_ACTIVE).
            TimeoutError: it did not end in time; the message says how far it was.
        """
        return (yield from rebalance(self.session, workers, dry_run=dry_run, timeout=timeout))

    # ---- information -----------------------------------------------------------------------------

    def who_has(self, futures: Future[Any] | Iterable[Future[Any]]) -> dict[Any, list[str]]:
        """Returns the names of the workers that hold each result, by key."""
        return _cluster_info.who_has(listed(futures))

    def has_what(self, workers: str | Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Returns the keys of the results in this client's namespace that each worker holds, by
        worker name."""
        return _cluster_info.has_what(self.session, workers)

    def scheduler_info(self) -> dict[str, Any]:
        """Returns a description of the cluster.

        Its workers, without those that are lost, are under "workers", by name. The "state" of a
        worker is "active", "disconnected", "draining" or "drained". Its "drain" is None, or a dict
        that says how far the drain is. Its "linear_algebra" names the library of BLAS and LAPACK,
        or says "pure Go".
        """
        return _cluster_info.scheduler_info(self.session)

    def explain(self, future: Future[Any] | UserKey) -> str:
        """Explains why a task is not running, or how it ended."""
        return _cluster_info.explain(self.session, future)

    @blocking
    def wait_for_workers(self, n_workers: int = 1, *, timeout: Seconds | None = None) -> Steps[None]:
        """Waits until at least this number of workers is active.

        Raises:
            TimeoutError: the timeout has passed.
        """
        wanted = _check.integer(n_workers, "n_workers", 1, 1 << 32)
        yield from self._await_workers(wanted, _check.longest(timeout), None)

    def _await_workers(self, n_workers: int, timeout: float | None, cluster: LocalCluster | None) -> Steps[None]:
        """As `wait_for_workers`. Raises the error of a local cluster if that ends meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(active := self.session.workers()) < n_workers:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"{len(active)} of {n_workers} workers came within {timeout:g} s")
            if cluster is not None:
                cluster.check()
                left = 0.5  # its end is no change of its workers
            yield self.session.worker_watch.changed([w.worker_id for w in active], left)

    def get_executor(self, **options: Unpack[SubmitOptions]) -> ClientExecutor:
        """Returns the cluster as a concurrent.futures.Executor. The options are those of `submit`,
        and apply to every call."""
        return ClientExecutor(self, **options)

    # ---- datasets --------------------------------------------------------------------------------

    def publish_dataset(self, name: str, data: Any, *, override: bool = False) -> None:
        """Publishes a value under a name, and keeps the results of the futures in it until it is
        unpublished. Clients in every language can read it.

        Args:
            name: name of the dataset, unique in the namespace.
            data: a future, None, bool, int of 64 bits, float, complex, str, bytes, an array of
                NumPy of at most 64 KiB, or any nesting of these in lists, tuples and dicts with str
                keys, at most 30 deep. Readers get tuples as lists. Any other object is a TypeError:
                scatter it, and publish the future. Without the results, at most 1 MiB.
            override: replaces a dataset of the same name, which is an error otherwise.
        """
        self._datasets.publish(name, data, override=override)

    def get_dataset(self, name: str) -> Any:
        """Returns the value published under a name, with futures of this client."""
        return self._datasets.get(name)

    def list_datasets(self) -> list[str]:
        """Returns the names of the datasets in this namespace."""
        return self._datasets.names()

    def unpublish_dataset(self, name: str) -> None:
        """Removes the name; the results are freed once no other client holds them."""
        self._datasets.unpublish(name)

    # ---- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the lease: results that only this client holds are freed. A cluster that it started
        ends too."""
        self.session.close()
        if self._own_cluster and self.cluster is not None:
            self.cluster.close()

    def shutdown(self) -> None:
        """Stops the whole cluster, even if this client did not start it."""
        self.session.close(shutdown=True)
        if self.cluster is not None:
            self.cluster.close()

    @property
    def dashboard_link(self) -> str:
        """URL of the scheduler's HTTP port, or empty."""
        address = self.session.cluster.http_address
        return f"http://{address}/" if address else ""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client: {_cluster_info.summary(self.session)}>"

    def _repr_html_(self) -> str:
        link = self.dashboard_link
        return f"<b>Client</b> {_cluster_info.summary(self.session)}" + (
            f' &middot; <a href="{link}">{link}</a>' if link else ""
        )


def _same(method: Callable[Concatenate[Client, P], R]) -> Callable[Concatenate[AsyncClient, P], R]:
    """Makes a method of AsyncClient of one of Client that does not wait."""

    @functools.wraps(method)
    def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.sync, *args, **kwargs)

    return call


def _awaited(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """Makes a coroutine of AsyncClient of a method of Client, with its parameters and docstring. An
    operation waits in the event loop. Any other method runs in a thread of the client's pool."""

    @functools.wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        client = self.sync
        pool = client.session.pool
        if is_blocking(method):
            return await drive(operation(method)(client, *args, **kwargs), pool)
        return await pool.run(functools.partial(method, client, *args, **kwargs))

    return call


class AsyncClient:
    """The client for asyncio: the methods of `Client`, as coroutines where they wait.

    `submit`, `map` and `op` return futures at once; await the futures. `async with` opens the
    client, and so does `await`. The parameters are those of `Client`.

    Awaiting takes no thread: 10,000 futures can be awaited together, and the event loop's own
    executor is not used. Bytes of large results and calls to the scheduler are waited for in
    threads of the client, at most 32.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arguments = args, {k: v for k, v in kwargs.items() if k != "asynchronous"}
        self._client: Client | None = None

    async def __aenter__(self) -> AsyncClient:
        return await self._start()

    def __await__(self) -> Any:
        return self._start().__await__()

    async def _start(self) -> AsyncClient:
        if self._client is None:
            args, kwargs = self._arguments
            pool = Pool(1)
            try:
                self._client = await pool.run(lambda: Client(*args, **kwargs))
            finally:
                pool.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sync(self) -> Client:
        """The synchronous client that does the work."""
        if self._client is None:
            raise RuntimeError("the client is not open: `async with AsyncClient(...)`, or `await` it")
        return self._client

    submit = _same(Client.submit)
    map = _same(Client.map)
    op = _same(Client.op)
    as_completed = _same(Client.as_completed)
    get_executor = _same(Client.get_executor)

    get = _awaited(Client.get)
    gather = _awaited(Client.gather)
    wait = _awaited(Client.wait)
    scatter = _awaited(Client.scatter)
    replicate = _awaited(Client.replicate)
    cancel = _awaited(Client.cancel)
    retry = _awaited(Client.retry)
    run = _awaited(Client.run)
    drain_workers = _awaited(Client.drain_workers)
    retire_workers = _awaited(Client.retire_workers)
    restart_workers = _awaited(Client.restart_workers)
    rebalance = _awaited(Client.rebalance)
    who_has = _awaited(Client.who_has)
    has_what = _awaited(Client.has_what)
    scheduler_info = _awaited(Client.scheduler_info)
    explain = _awaited(Client.explain)
    wait_for_workers = _awaited(Client.wait_for_workers)
    publish_dataset = _awaited(Client.publish_dataset)
    get_dataset = _awaited(Client.get_dataset)
    list_datasets = _awaited(Client.list_datasets)
    unpublish_dataset = _awaited(Client.unpublish_dataset)
    shutdown = _awaited(Client.shutdown)

    async def close(self) -> None:
        """See `Client.close`. It does nothing if the client was not opened."""
        if self._client is not None:
            await self._client.session.pool.run(self._client.close)

    @property
    def dashboard_link(self) -> str:
        """See `Client.dashboard_link`."""
        return self.sync.dashboard_link

    def __repr__(self) -> str:
        return repr(self._client).replace("Client", "AsyncClient", 1) if self._client else "<AsyncClient: not open>"

    def _repr_html_(self) -> str:
        return (
            self._client._repr_html_().replace("Client", "AsyncClient", 1) if self._client else "AsyncClient: not open"
        )
