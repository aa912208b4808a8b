"""The client's methods that look into the processes in which tasks run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from millrace import _check
from millrace._calls import _hardware, _profile, _task_runs, _worker_calls
from millrace._check import Seconds
from millrace._client._client_part import AsyncPart, ClientPart, awaited
from millrace._cluster import _versions
from millrace._cluster._workers import label, named
from millrace._connection._steps import Steps, blocking
from millrace._pb.millrace.v1 import executor_service_pb2
from millrace.executor._profile import INTERVAL
from millrace.future import Future, listed


class Processes(ClientPart):
    """Looks into the processes in which tasks run."""

    def _ask(
        self, function: str, *args: Any, one: bool = False, workers: str | Sequence[str] | None = None
    ) -> Steps[dict[str, list[Any]]]:
        """Calls a function by its import path in the processes of workers (None: of all). Returns
        the results of its processes by name of the worker."""
        made = _worker_calls.request(self._maker, function, args, {})
        if one:
            made.processes = executor_service_pb2.PROCESS_SCOPE_ONE
        chosen = named(self.session.workers(), workers)
        answers = yield from _worker_calls.call(self.session, chosen, made)
        results: dict[str, list[Any]] = {}
        for worker, answer in zip(chosen, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            results[label(worker)] = [_worker_calls.value(r) for r in answer.results]
        return results

    @blocking
    def get_versions(self, check: bool = False, packages: Sequence[str] | None = None) -> Steps[dict[str, Any]]:
        """Returns the versions of Python and of packages in the client and on the workers, and
        that of the scheduler, which runs no Python.

        Args:
            check: raise ValueError if workers have other versions than the client.
            packages: names of further packages.

        Returns:
            {"scheduler": {...}, "workers": {name: {...}}, "client": {...}}, each with "host" and
            "packages". A package that is not installed has the version None.

        Raises:
            ValueError: `check` is set, and versions differ; the message names each of them.
        """
        names = tuple(_check.names(packages, "packages") or ())
        answers = yield from self._ask("millrace._cluster._versions:describe", names, one=True)
        workers = {name: values[0] for name, values in answers.items()}
        client = _versions.describe(names)
        if _check.boolean(check, "check") and (lines := _versions.differences(client, workers)):
            raise ValueError(
                "versions differ, so that what is pickled on one side may fail on the other:\n" + "\n".join(lines)
            )
        scheduler = {"host": {}, "packages": {"millrace": self.session.cluster.version}}
        return {"scheduler": scheduler, "workers": workers, "client": client}

    @blocking
    def call_stack(
        self, futures: Future[Any] | Iterable[Future[Any]] | None = None, keys: Iterable[Any] | None = None
    ) -> Steps[dict[str, dict[Any, tuple[str, ...]]]]:
        """Returns the call stacks of the tasks that run, without waiting for them.

        Args:
            futures: only those of these tasks.
            keys: only those of the tasks of these keys. Default: all.

        Returns:
            The lines of each stack, the outermost frame first, by key, by name of the worker.
        """
        wanted = None if futures is None and keys is None else {*(keys or ())}
        if futures is not None and wanted is not None:
            wanted |= {f.key for f in listed(futures)}
        answers = yield from self._ask("millrace.executor._stacks:call_stack")
        out: dict[str, dict[Any, tuple[str, ...]]] = {}
        for name, values in answers.items():
            stacks = {key: tuple(lines) for value in values for key, lines in value if wanted is None or key in wanted}
            if stacks:
                out[name] = stacks
        return out

    @blocking
    def benchmark_hardware(self) -> Steps[dict[str, dict[str, float]]]:
        """Measures memory, disk and network of the workers, beside their tasks. This takes some
        seconds. `millrace bench` and `millrace doctor` measure a host in more detail.

        Returns:
            Bytes per second by size ("1 MiB") of copies in "memory", of files on "disk" that are
            written and read, and of results that one worker gets from another one over the
            "network", with the time of the scheduler. Each is the mean of all workers, or of random
            pairs of them.
        """
        memory, disk = ["1 kiB", "100 kiB", "1 MiB", "10 MiB"], ["1 kiB", "100 kiB", "1 MiB", "10 MiB", "100 MiB"]
        answers = yield from self._ask("millrace.executor._hardware:measure", None, memory, disk, one=True)
        out: dict[str, dict[str, float]] = {}
        for kind, sizes in (("memory", memory), ("disk", disk)):
            out[kind] = {s: sum(a[0][kind][s] for a in answers.values()) / len(answers) for s in sizes if answers}
        out["network"] = yield from _hardware.network(self.session, self._maker, list(answers))
        return out

    @blocking
    def profile(
        self,
        key: str | None = None,
        start: Seconds | None = None,
        stop: Seconds | None = None,
        workers: str | Sequence[str] | None = None,
        merge_workers: bool = True,
        plot: bool | Literal["save"] = False,
        filename: str | None = None,
        server: bool = False,
        scheduler: bool = False,
    ) -> Steps[Any]:
        """Returns where the functions of tasks have spent time. The processes of workers take a
        sample of the stack of the running task every 10 ms, and keep some minutes of samples, for
        as long as they live; a worker with MILLRACE_PROFILE=0 in its environment takes none.

        Args:
            key: only tasks whose keys have this prefix, which is the name of the function: "inc"
                for "inc-5f2b". Default: all.
            start, stop: only samples from this time on, and before that time: in seconds since
                1970, or as text or a timedelta before now ("5 min"). Samples are kept in periods of
                a second. Default: all.
            workers: names, ids, hosts or addresses. Default: all.
            merge_workers: one tree for all workers. Otherwise a dict of trees by name of the
                worker.
            plot: also return a picture that notebooks show, as (profile, picture). "save": also
                write it into a file.
            filename: write the picture into this HTML file, by default millrace-profile.html.
            server, scheduler: only False: the worker's own threads, and the scheduler, run no
                Python.

        Returns:
            A tree of calls: a dict with "count", the number of samples; "identifier";
            "description", a dict with "name", "filename", "line_number" and "line"; and "children",
            the functions that it called, by their identifiers.

        Raises:
            ValueError: `server` or `scheduler` is True, or `plot` and not `merge_workers`.
        """
        for name, value in (("server", server), ("scheduler", scheduler)):
            if value:
                raise ValueError(f"{name}=True: that program runs no Python: its HTTP port has /metrics instead")
        drawn = bool(plot) or filename is not None
        if drawn and not merge_workers:
            raise ValueError("plot: a picture shows one tree: leave merge_workers=False out")
        if key is not None:
            _check.text(key, "key")
        begin = 0.0 if start is None else _task_runs.moment(start, "start")
        end = None if stop is None else _task_runs.moment(stop, "stop")
        asked = executor_service_pb2.GetProfileRequest(key=key or "")
        asked.start_time.FromNanoseconds(int(begin * 1e9))
        if end is not None:
            asked.end_time.FromNanoseconds(int(end * 1e9))
        chosen = named(self.session.workers(), workers)
        answers = yield from _worker_calls.profiles(self.session, chosen, asked)
        if not merge_workers:
            return {label(w): _profile.merged([a]) for w, a in zip(chosen, answers, strict=True)}
        tree = _profile.merged(answers)
        if not drawn:
            return tree
        picture = _profile.ProfilePlot(tree, INTERVAL)
        if plot == "save" or filename is not None:
            picture.save(filename or "millrace-profile.html")
        return tree, picture


class AsyncProcesses(AsyncPart):
    """The methods of `Processes`, as coroutines."""

    get_versions = awaited(Processes.get_versions)
    call_stack = awaited(Processes.call_stack)
    profile = awaited(Processes.profile)
    benchmark_hardware = awaited(Processes.benchmark_hardware)
