"""The client's methods that tell what happened in tasks: their output, the logs of the cluster, and
failures that are made again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace import _check
from millrace._accepted import accept
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._client._recreation import recreate, recreate_error
from millrace._cluster._workers import label, named
from millrace._pb.millrace.v1 import log_pb2
from millrace._session import _log_reading
from millrace._values import _keys
from millrace._values._exceptions import hidden
from millrace._values._keys import UserKey
from millrace.future import Future, state_of

#: Most lines that can be asked for.
_MOST = 1_000_000


class Logs(ClientPart):
    """Reads the output of tasks and the logs of the cluster, and makes failures again."""

    def logs(
        self,
        tasks: Future[Any] | UserKey | Iterable[Future[Any] | UserKey] | None = None,
        *,
        workers: str | Sequence[str] | None = None,
    ) -> dict[Any, str]:
        """Returns what tasks have written to stdout and stderr, by key. Workers keep the last 64
        KiB of each attempt, and 32 MiB in all, also of tasks that nobody holds any more.

        Args:
            tasks: futures or keys, one or several in a list. Default: all tasks of this client's
                namespace.
            workers: only what was written on these workers, by name, id, host or address. Default:
                all.
        """
        return _log_reading.output(self.session, named(self.session.workers(), workers), _wires(tasks))

    def get_worker_logs(
        self, n: int | None = None, workers: str | Sequence[str] | None = None, nanny: bool = False
    ) -> dict[str, list[tuple[str, str]]]:
        """Returns the last lines of each worker's own log, newest first, as pairs of level and
        text, by worker name. The output of tasks is in `logs`.

        Args:
            n: most lines of each worker. Default: all that it keeps, which are 1000.
            workers: names, ids, hosts or addresses. Default: all.
            nanny: accepted for programs of Dask; the process that watches a worker writes to its
                own stderr only.
        """
        accept("get_worker_logs", "nanny", nanny or None, "a supervisor writes to its own stderr only")
        chosen = named(self.session.workers(), workers)
        found = _log_reading.of_workers(self.session, chosen, _count(n))
        return {label(w): found[w.name] for w in chosen}

    def get_scheduler_logs(self, n: int | None = None) -> list[tuple[str, str]]:
        """Returns the last lines of the scheduler's log, newest first, as pairs of level and text.
        `n`: most lines; default: all that it keeps, which are 1000."""
        answer = self.session.call("GetSchedulerLog", log_pb2.GetSchedulerLogRequest(limit=_count(n)))
        return _log_reading.lines(answer.lines)

    def recreate_error_locally(self, future: Future[Any]) -> Any:
        """Runs the function of a failed task in this thread, with the same arguments, so that a
        debugger can look into it: the exception has the variables of each frame. If an input of the
        task has failed, that input's function is run. Inputs are gathered.

        Raises:
            ValueError: the task has not failed, or runs no function of Python.
            NotFoundError: the task was not submitted by this client, or long ago.
        """
        __tracebackhide__ = True
        try:
            return recreate_error(*state_of(future))
        except BaseException as e:
            raise hidden(e)  # noqa: B904

    def recreate_task_locally(self, future: Future[Any]) -> Any:
        """Runs the function of a task in this thread, with the same arguments, so that a debugger
        or a profiler can look into it, and returns its result. Inputs are gathered.

        Raises:
            ValueError: the task runs no function of Python.
            NotFoundError: the task was not submitted by this client, or long ago.
            The exception of the function, or of an input.
        """
        __tracebackhide__ = True
        try:
            session, state = state_of(future)
            return recreate(session, state.key)
        except BaseException as e:
            raise hidden(e)  # noqa: B904


def _wires(tasks: Any) -> list[str] | None:
    if tasks is None:
        return None
    if isinstance(tasks, (Future, str, bytes, int, float, tuple)):
        tasks = [tasks]
    return [_keys.to_wire(t.key if isinstance(t, Future) else t, "tasks") for t in tasks]


def _count(n: int | None) -> int:
    return 0 if n is None else _check.integer(n, "n", 1, _MOST)


class AsyncLogs(AsyncPart):
    """The methods of `Logs`, as coroutines."""

    logs = awaited(Logs.logs)
    get_worker_logs = awaited(Logs.get_worker_logs)
    get_scheduler_logs = awaited(Logs.get_scheduler_logs)
    recreate_error_locally = awaited(Logs.recreate_error_locally)
    recreate_task_locally = awaited(Logs.recreate_task_locally)
