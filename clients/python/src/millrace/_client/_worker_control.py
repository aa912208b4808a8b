"""The client's methods that control workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, cast

from millrace import _check, errors
from millrace._accepted import accept
from millrace._calls import _drains, _worker_calls
from millrace._calls._rebalance import RebalanceReport, rebalance
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, awaited
from millrace._client._submission import Submission
from millrace._cluster._workers import AnyWorker, label, named
from millrace._connection._steps import Steps, blocking
from millrace._pb.millrace.v1 import executor_service_pb2
from millrace._tasks._waiting import waited
from millrace.future import Future
from millrace.ops import ExecutorOp

T = TypeVar("T")


class WorkerControl(Submission):
    """Runs functions on workers, and takes workers in and out of use."""

    @blocking
    def run(
        self,
        function: Callable[..., T] | str | ExecutorOp,
        /,
        *args: Any,
        workers: str | Sequence[str] | None = None,
        wait: bool = True,
        nanny: bool = False,
        on_error: Literal["raise", "return", "ignore"] = "raise",
        processes: Literal["all", "one"] = "all",
        **kwargs: Any,
    ) -> Steps[dict[str, T]]:
        """Calls a function on workers, at once: it needs no slot, and runs beside the tasks.

        Each process of a worker that runs tasks calls it, in a thread of its own, so that what it
        sets is set for all tasks of these processes. Processes that start later do not call it: for
        them, there is `register_plugin`. A worker without a process starts one.

        Args:
            function: a function, which may be a coroutine function; "package.module:function",
                imported where it runs; or a function of a registered program. If it has a parameter
                `dask_worker`, it gets a description of its worker by that name.
            args, kwargs: its arguments.
            workers: names, ids, hosts or addresses; possibly none. Default: all.
            wait: wait for the function to return. Otherwise `run` returns None.
            nanny: only False. There is no nanny: the supervisor that starts workers again is no
                Python process, and runs no functions.
            on_error: "raise" the first error; "return" errors as results; or "ignore" workers with
                errors, and leave them out.
            processes: "one" calls it in one process of each worker only, for effects outside of
                the process, such as files.

        Returns:
            Results by name of the worker. If several processes of a worker called the function,
            it is the result of the first one.

        Raises:
            SerialisationError: the function or an argument cannot be pickled.
            ValueError: there is no such worker; `nanny` is True.
            The exception of the function, or the reason why it could not be called.
        """
        if nanny:
            raise ValueError(
                "nanny=True: there is no nanny process in Millrace. Workers are started again by `millrace worker`, which runs "
                "no Python; call the function on the workers (nanny=False)"
            )
        if on_error not in ("raise", "return", "ignore"):
            raise ValueError(f"on_error must be 'raise', 'return' or 'ignore', not {on_error!r}")
        _check.choice(processes, "processes", ("all", "one"))
        made = _worker_calls.request(self._maker, function, args, kwargs)
        made.no_wait = not _check.boolean(wait, "wait")
        if processes == "one":
            made.processes = executor_service_pb2.PROCESS_SCOPE_ONE
        chosen = named(self.session.workers(), workers)
        answers = yield from _worker_calls.call(self.session, chosen, made)
        if not wait:
            return cast("Any", None)
        results: dict[str, Any] = {}
        for worker, answer in zip(chosen, answers, strict=True):
            try:
                if isinstance(answer, Exception):
                    raise answer
                values = [_worker_calls.value(one) for one in answer.results]
                results[label(worker)] = values[0]
            except Exception as e:
                if on_error == "raise":
                    raise
                if on_error == "return":
                    results[label(worker)] = e
        return results

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
        workers: AnyWorker | Sequence[AnyWorker] | None = None,
        close_workers: bool = True,
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
            close_workers: end the processes. Otherwise this is `drain_workers`.
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
        if workers is None:
            raise ValueError("workers: name them; an adaptive cluster, LocalCluster.adapt(), chooses workers by itself")
        if not _check.boolean(close_workers, "close_workers"):
            if within is not None:
                raise ValueError("within: it bounds the end of processes, and close_workers=False ends none")
            order = _drains.drain(self.session, workers, reason=reason, undo=False, wait=wait, timeout=timeout)
            return (yield from order)
        order = _drains.retire(self.session, workers, reason=reason, within=within, wait=wait, timeout=timeout)
        return (yield from order)

    @blocking
    def restart_workers(
        self,
        workers: AnyWorker | Sequence[AnyWorker],
        *,
        reason: str = "",
        within: Seconds | None = None,
        raise_for_error: bool = True,
        timeout: Seconds | None = None,
    ) -> Steps[list[dict[str, Any]]]:
        """Restarts workers, one after the other: drains each as `drain_workers` does, ends its
        process, and waits until its supervisor has started the next one and that is active.

        Args:
            workers, reason: as for `drain_workers`, but of any number.
            within: longest drain of each worker, as for `retire_workers`.
            raise_for_error: raise the first error, and begin no further restart. Otherwise the log
                names the workers that were not restarted, and the result leaves them out.
            timeout: longest wait for all of them, as for `drain_workers`. Those that were not begun
                stay as they are.

        Returns:
            Descriptions of the new processes.

        Raises:
            InvalidRequestError: nothing would start a worker again, because it has no supervisor
                (NOT_SUPERVISED).
            The errors of `drain_workers`.
        """
        strict = _check.boolean(raise_for_error, "raise_for_error")
        order = _drains.restart(
            self.session, workers, reason=reason, within=within, raise_for_error=strict, timeout=timeout
        )
        return (yield from order)

    @blocking
    def restart(self, timeout: Seconds | None = None, wait_for_workers: bool = True) -> Steps[None]:
        """Begins anew: cancels all futures of this client, frees their results, and ends the
        processes of functions on all workers. Others start with fresh imports and with the plugins
        of the cluster. The workers themselves, and the results of other clients, stay; tasks of
        other clients that were running begin again.

        Args:
            timeout: longest wait for the processes to end, as a time. Default: 60 s.
            wait_for_workers: accepted, and without effect: no worker goes away.

        Raises:
            TimeoutError: a process did not end in time.
        """
        _check.boolean(wait_for_workers, "wait_for_workers")
        limit = _check.longest(timeout)
        error = errors.CancelledError("cancelled by client.restart()")
        self.session.forget(self.session.held(), error)
        yield from _worker_calls.restart(self.session, self.session.workers(), limit)

    @blocking
    def rebalance(
        self,
        futures: Iterable[Future[Any]] | Future[Any] | None = None,
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
            futures: first wait until these are done. They do not choose what moves: all results
                take part, and the log says so.
            workers: those that take part, named as in `drain_workers`; at least two, and all of
                them active. Default: all active ones, also those that join meanwhile.
            dry_run: only plan.
            timeout: longest wait, in seconds, as a timedelta or as text ("5 min"). Then the
                rebalance ends, and what has moved stays moved. Default: as long as it takes.

        Raises:
            TypeError: `futures` has something else than futures.
            NotFoundError: there is no such worker, or it is lost.
            InvalidRequestError: another rebalance is in progress (REBALANCE_RUNNING), or a worker
                is not active (WORKER_NOT_ACTIVE).
            TimeoutError: it did not end in time; the message says how far it was.
        """
        if futures is not None:
            accept("rebalance", "futures", futures, "all results take part, once these are there")
            began = time.monotonic()
            yield from waited(futures, timeout)
            timeout = (
                None if timeout is None else max(_check.seconds(timeout, "timeout") - (time.monotonic() - began), 0)
            )
        return (yield from rebalance(self.session, workers, dry_run=dry_run, timeout=timeout))


class AsyncWorkerControl(AsyncPart):
    """The methods of `WorkerControl`, as coroutines."""

    run = awaited(WorkerControl.run)
    drain_workers = awaited(WorkerControl.drain_workers)
    retire_workers = awaited(WorkerControl.retire_workers)
    restart_workers = awaited(WorkerControl.restart_workers)
    restart = awaited(WorkerControl.restart)
    rebalance = awaited(WorkerControl.rebalance)
