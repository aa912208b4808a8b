"""The client's methods for the results of tasks."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable, Iterator, MappingView, Sequence
from functools import partial
from typing import Any, cast

from millrace import _check, _mode
from millrace._accepted import DIRECT, accept
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, ClientPart, awaited, client_call, same
from millrace._connection._steps import Steps, blocking, making
from millrace._tasks._scatter import Scatter, replicate
from millrace._tasks._trees import collect, spread
from millrace._tasks._waiting import DoneAndNotDone, as_completed, waited
from millrace._values._keys import UserKey
from millrace.future import Future, by_session, cancel, cancel_reason, ended, listed, retry


class Results(ClientPart):
    """Waits for results, fetches and stores them, and ends tasks."""

    @client_call
    def gather(
        self,
        futures: Any,
        errors: str = "raise",
        direct: bool | None = None,
        asynchronous: bool | None = None,
        *,
        timeout: Seconds | None = None,
        copy: bool = False,
    ) -> Steps[Any]:
        """Returns the results of futures, in any nesting of lists, tuples, sets and dicts.

        Args:
            futures: the futures, of this client or others. Other leaves are returned as they are.
                An iterator, or a view such as `dict.values()`, is read into a list.
            errors: "raise" the first error, or "skip" failed futures: they are left out of their
                collections. The error of a single future that is in no collection is raised.
            direct: no effect: results always come from the workers themselves.
            asynchronous: True: return a coroutine.
            timeout: longest wait, in seconds, as a timedelta or as text ("5s").
            copy: return private copies, instead of views of the memory of a worker on this host.
        """
        accept("gather", "direct", direct, DIRECT)
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
        if _mode.distributed and any(session is not self.session for session in groups):
            raise ValueError("Futures created by another client: gather them by that one, or as_completed(), or wait()")
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
            for future, raw in zip(good, fetched, strict=True):
                try:
                    results[id(future)] = future._value(raw)
                except Exception:
                    if errors == "raise" or isinstance(futures, Future):
                        raise
                    bad.add(id(future))
        return spread(futures, results, bad)

    @blocking
    def wait(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        timeout: Seconds | None = None,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> Steps[DoneAndNotDone]:
        """Waits for futures: see `millrace.wait`."""
        return (yield from waited(futures, timeout, return_when))

    def as_completed(
        self,
        futures: Future[Any] | Iterable[Future[Any]] = (),
        *,
        with_results: bool = False,
        raise_errors: bool = True,
        timeout: Seconds | None = None,
    ) -> as_completed:
        """Iterates over futures in the order in which they end: see `millrace.as_completed`."""
        return as_completed(futures, with_results=with_results, raise_errors=raise_errors, timeout=timeout)

    @client_call
    def scatter(
        self,
        data: Any,
        workers: str | Sequence[str] | None = None,
        broadcast: bool = False,
        direct: bool | None = None,
        hash: bool | None = None,
        timeout: Seconds = 30.0,
        asynchronous: bool | None = None,
        *,
        key: UserKey | None = None,
    ) -> Steps[Any]:
        """Puts data on workers and returns futures for it: for a list, tuple, named tuple, set or
        frozenset one of the same type; for an iterator or a range a list; for a dict a dict whose
        keys name the data. For any other object, also of a class that is derived from these, it
        returns a single future.

        Args:
            data: the data.
            workers: names, ids, hosts or addresses. Default: all, in turn.
            broadcast: put a copy on each of them. The workers pass the copies on to each other.
            direct: no effect: data always go to the workers themselves.
            hash: equal data gets the same key. Default: only if it is not larger than 16 MiB,
                because hashing larger data takes longer than sending it.
            timeout: longest wait for a worker, in seconds, as a timedelta or as text ("5s").
            asynchronous: True: return a coroutine.
            key: name for a single object, as for `submit`. Default: made from its type.

        Raises:
            InvalidRequestError: a key names other data already (KEY_CONFLICT): release its futures
                first.
            NoWorkerFitsError: there is no worker at the end of the timeout.
        """
        accept("scatter", "direct", direct, DIRECT)
        limit = _check.seconds(timeout, "timeout")
        work = Scatter(self.session, self._maker, workers=workers, broadcast=broadcast, by_hash=hash, timeout=limit)
        return (yield from work.put(data, key))

    @blocking
    def replicate(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        n: int | None = None,
        workers: str | Sequence[str] | None = None,
        branching_factor: int | None = None,
    ) -> Steps[None]:
        """Copies results to more workers, and returns when the copies are complete. Each new copy
        is a source for the next ones.

        Workers with GPUs get all copies at once, as a chain: each one reads the bytes from the one
        before it while they arrive there.

        Args:
            futures: the results to copy. Waits until they have succeeded.
            n: how many workers shall have each of them. Default: all.
            workers: names, ids, hosts or addresses that may. Default: all.
            branching_factor: no effect: every new copy is a source for the next ones.
        """
        accept("replicate", "branching_factor", branching_factor, "every new copy is a source for the next ones")
        copied = listed(futures)
        if n is not None:
            n = _check.integer(n, "n", 1, 1 << 32)
        yield from replicate(self.session, self._maker, copied, n, workers)

    @client_call
    def cancel(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        asynchronous: bool | None = None,
        force: bool = False,
        reason: str | None = None,
        msg: str | None = None,
    ) -> Steps[None]:
        """Stops tasks: queued tasks are dropped, running functions are interrupted, and results of
        those that have ended are given up.

        The futures are cancelled when this returns, and all others of these tasks in this client. A
        task that other clients hold as well continues for them, unless `force` is given.
        The cancellation reaches the workers of the tasks a moment later: a task that begins in
        between is stopped again, and its result dropped.

        Args:
            futures: the futures of the tasks.
            asynchronous: True: return a coroutine.
            force: stop tasks that other clients hold as well.
            reason, msg: texts for the error of the futures.

        Raises:
            NotFoundError: The scheduler has no such task any more. The others are cancelled.
        """
        why = cancel_reason(reason, msg)
        yield from making(partial(cancel, listed(futures), force=force, reason=why))

    @client_call
    def retry(self, futures: Future[Any] | Iterable[Future[Any]], asynchronous: bool | None = None) -> Steps[None]:
        """Runs failed or cancelled tasks again, together with their inputs that failed. With
        `asynchronous=True` it returns a coroutine."""
        yield from making(partial(retry, listed(futures)))


class AsyncResults(AsyncPart):
    """The methods of `Results`, as coroutines where they wait."""

    as_completed = same(Results.as_completed)
    gather = awaited(Results.gather)
    wait = awaited(Results.wait)
    scatter = awaited(Results.scatter)
    replicate = awaited(Results.replicate)
    cancel = awaited(Results.cancel)
    retry = awaited(Results.retry)
