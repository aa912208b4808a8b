"""The client's methods that submit tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from millrace import _mode
from millrace._accepted import accept
from millrace._actors._actor import map_actors, submit_actor
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, awaited, same
from millrace._client._results import Results
from millrace._connection._steps import Steps, blocking, operation
from millrace._dask._fusion import fused
from millrace._dask._rules import Rules
from millrace._dask._submit import Submission as GraphSubmission
from millrace._dask._submit import is_dask_graph, materialised
from millrace._task_states._state import Spec
from millrace._tasks._arguments import plain_names
from millrace._tasks._constants import Constants
from millrace._tasks._graph import by_key, flat, submit_graph
from millrace._tasks._task_maker import map_keys
from millrace._tasks._task_options import TaskOptions
from millrace._values._keys import UserKey
from millrace.future import Future, future_of_state
from millrace.ops import ExecutorOp, NativeOp
from millrace.templates import Template, made

T = TypeVar("T")

#: Parameters that Dask passes to `get` of its own schedulers or of `distributed`. `get` here
#: accepts and ignores them.
FROM_DASK = frozenset({
    "num_workers", "pool", "cache", "chunksize", "optimize_graph", "rerun_exceptions_locally", "raise_exception",
    "callbacks", "asynchronous", "direct", "fifo_timeout", "actors", "scheduler", "func_loads", "func_dumps", "initializer",
})  # fmt: skip

_FIFO = "submissions keep their order, and equal priorities run in it"


class Submission(Results):
    """Submits tasks: single calls, maps, and graphs."""

    def submit(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        /,
        *args: Any,
        key: UserKey | None = None,
        pure: bool = True,
        priority: int | None = None,
        retries: int | None = None,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        fifo_timeout: Seconds | None = None,
        actor: bool | Literal["restart"] = False,
        actors: bool = False,
        **kwargs: Any,
    ) -> Future[T]:
        """Runs ``func(*args, **kwargs)`` on the cluster and returns a future at once.

        Args:
            func: a function; "package.module:function", imported where it runs; or an op.
            args, kwargs: arguments; futures anywhere inside of them are replaced by their results.
                If they take more than 1 MiB, the large ones are stored on workers before the call
                returns (in the event loop of an AsyncClient, after that), as by `scatter` with
                `hash`, and neither the caller nor the function must write to them.
            key: name of the result: a str, bytes, int or float, or a tuple of these; ("x", 1) and
                "x-1" are different keys. Default: made from the function and the arguments.
            pure: equal calls are one task. Otherwise every call is a task of its own. If such a
                task has failed, it runs again once no future of it is left, or by `Future.retry`.
            priority: tasks with a higher number run first. Default: that of the task that makes the
                call, and 0 outside of tasks.
            retries: number of further attempts if it raises.
            workers: names, ids or hosts where it may run.
            allow_other_workers: `workers` is only a preference.
            resources: amounts of a worker's resources that it occupies, by name.
            timeout: longest run time, in seconds, as a timedelta or as text ("5 min"); then the
                function is stopped.
            slots: number of a worker's slots that it occupies.
            no_wait: fail at once with NoWorkerFitsError if no worker of the cluster could ever run
                it.
            fifo_timeout: no effect: submissions keep their order.
            actor: `func` is a class: make an object of it that lives on one worker, in a process of
                its own. The result is an Actor, whose methods return ActorFutures. If the process
                dies, the calls raise ActorLostError; with "restart" the object is made again.
            actors: the same as `actor`.

        Raises:
            SerialisationError: the function or an argument cannot be pickled.

        If the scheduler refuses the task (for example because its key belongs to another task), the
        future raises the error.
        """
        accept("submit", "fifo_timeout", fifo_timeout, _FIFO)
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            timeout=timeout,
            slots=slots,
            no_wait=no_wait,
        )
        self.session.check_open()
        if actor or actors:
            return submit_actor(self.session, func, args, kwargs, options, restart=actor == "restart", key=key)
        constants = Constants(self.session, self._maker)
        spec, state = self._maker.spec(func, args, kwargs, key, pure, options.pack(self.session), constants)
        if spec is not None:
            if constants.kept:
                state.kept = list(constants.kept.values())
            constants.submit([spec])
        return future_of_state(self.session, state)

    def map(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        /,
        *iterables: Iterable[Any],
        key: UserKey | Sequence[UserKey] | None = None,
        pure: bool = True,
        priority: int | None = None,
        retries: int | None = None,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        fifo_timeout: Seconds | None = None,
        batch_size: int | None = None,
        actor: bool | Literal["restart"] = False,
        actors: bool = False,
        **kwargs: Any,
    ) -> list[Future[T]]:
        """Calls the function with each element (of several iterables: with one of each, up to the
        shortest).

        Args:
            func: as for `submit`.
            iterables: the arguments, as for the builtin `map`.
            key: a prefix for the keys, or a list of keys, one for each call.
            batch_size: no effect: all calls are sent at once.
            actor, actors: `func` is a class: make an actor for each element, as `submit` does. The
                workers take turns.
            kwargs: the same for all calls.

        The other arguments are those of `submit`.
        """
        accept("map", "fifo_timeout", fifo_timeout, _FIFO)
        accept("map", "batch_size", batch_size, "all calls are sent at once, in messages of the right size")
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
            timeout=timeout,
            slots=slots,
            no_wait=no_wait,
        )
        specs: list[Spec] = []
        futures: list[Future[T]] = []
        calls = list(zip(*iterables))  # noqa: B905 - the shortest ends it, as in map
        # Dask's distributed gives equal prefixes of different calls different keys.
        prefix = key if _mode.distributed and isinstance(key, str) else ""
        own = map_keys(None if prefix else key, len(calls))
        self.session.check_open()
        if actor or actors:
            pairs = zip(calls, own, strict=True)
            return map_actors(self.session, func, pairs, kwargs, options, restart=actor == "restart")
        packed = options.pack(self.session)
        known = self._maker.op(func) if calls else None
        constants = Constants(self.session, self._maker)
        try:
            for args, one in zip(calls, own, strict=True):
                spec, state = self._maker.spec(func, args, kwargs, one, pure, packed, constants, known, prefix)
                if spec is not None:
                    specs.append(spec)
                futures.append(future_of_state(self.session, state))
            if constants.kept:
                kept = list(constants.kept.values())
                for spec in specs:
                    if spec.state is not None:
                        spec.state.kept = kept
            if specs:
                constants.submit(specs)
        except BaseException as e:
            self.session.abandon([s.state for s in specs if s.state is not None], e)
            raise
        return futures

    @overload
    def template(self, func: Callable[..., T], /) -> Template[T]: ...

    @overload
    def template(self, /, *, static: Iterable[str] = ()) -> Callable[[Callable[..., T]], Template[T]]: ...

    def template(self, func: Callable[..., Any] | None = None, /, *, static: Iterable[str] = ()) -> Any:
        """Makes a template of a function that submits tasks: a decorator.

        The first parameter of the function is a client. The function runs once, to record its calls
        of `submit`, `map` and `op`; each call of the template then submits the same tasks with
        other arguments, by a message of a few bytes::

            @client.template
            def score(client, path, model):
                table = client.submit(load, path)
                return client.submit(predict, model, table)

            future = score("a.parquet", model)
            futures = score.map(paths, itertools.repeat(model))

        In the function, arguments have no values: they can be given to tasks, also inside of lists
        and dicts. It runs again for another choice of futures and values as arguments. It returns
        futures, or lists, tuples and dicts of them.

        Args:
            func: the function.
            static: names of parameters that have values in the function. It runs once for each
                value.
        """
        return made(func, self, static)

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
        priority: int | None = None,
        retries: int | None = None,
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
            sync: return results, or a coroutine of them if the client is an AsyncClient; otherwise
                futures, at once. Their keys are those of the graph with a mark of this call.
            priority, retries, workers, allow_other_workers, resources: as for `submit`, for all
                tasks.
            ignored: parameters that Dask passes to schedulers of threads and processes
                (num_workers, pool, optimize_graph, ...).

        Raises:
            InvalidRequestError: the graph has a cycle; the message names the tasks on it.
            TypeError: it is neither a dict nor a graph of Dask's.
        """
        options = TaskOptions(
            priority=priority,
            retries=retries,
            workers=workers,
            allow_other_workers=allow_other_workers,
            resources=resources,
        )
        if is_dask_graph(dsk):
            return (yield from self._get_nodes(dsk, keys, options, sync))
        unknown = set(ignored) - FROM_DASK
        if unknown:
            raise TypeError(f"get() has no argument {', '.join(sorted(unknown))}")
        futures = submit_graph(self.session, self._maker, dsk, keys, options.pack(self.session))
        if not sync:
            return by_key(keys, futures)
        results = yield from operation(Submission.gather)(self, list(futures.values()))
        return by_key(keys, dict(zip(futures, results, strict=True)))

    def _get_nodes(self, dsk: Any, keys: Any, options: TaskOptions, sync: bool) -> Steps[Any]:
        """Computes a graph of Dask's."""
        expr, names = fused(dsk)
        graph, annotations = materialised(expr)
        wanted = {key: names.get(key, key) for key in flat(keys)}
        work = GraphSubmission(
            self.session, self._maker, graph, wanted.values(), Rules(self.session, options, annotations)
        )
        futures = yield from work.put()
        if not sync:
            return by_key(keys, {key: futures[name] for key, name in wanted.items()})
        results = yield from operation(Submission.gather)(self, list(futures.values()))
        found = dict(zip(futures, results, strict=True))
        return by_key(keys, {key: found[name] for key, name in wanted.items()})


class AsyncSubmission(AsyncPart):
    """The methods of `Submission`. Those that wait are coroutines."""

    submit = same(Submission.submit)
    template = same(Submission.template)
    map = same(Submission.map)
    op = same(Submission.op)
    _results_of = awaited(Submission.get)

    @functools.wraps(Submission.get)
    def get(self, dsk: Any, keys: Any, *, sync: bool = True, **options: Any) -> Any:
        return self._results_of(dsk, keys, **options) if sync else self.sync.get(dsk, keys, sync=False, **options)
