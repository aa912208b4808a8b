"""Local clusters: a scheduler and workers as child processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, TypeVar

from millrace import _accepted, _check, errors
from millrace._check import Seconds
from millrace._cluster import _cluster_html, _cluster_info, _dashboard, _inherited, _workers
from millrace._cluster._scheduler_place import SchedulerPlace
from millrace._connection import _address
from millrace._connection._event_loop import EventLoop
from millrace._connection._steps import in_loop, run
from millrace._local import _cluster_arguments, _scaling
from millrace._local._cluster_arguments import Plan
from millrace._local._local_process import LocalProcess, find_binary, python_path
from millrace._local._scaling import Scaling, arrival
from millrace._pb.millrace.v1 import worker_pb2
from millrace._session._session import Session
from millrace._status import Status

T = TypeVar("T")

#: The name of the worker in a line of the log: "[host-0] …", or in a record of JSON.
_OF_WORKER = re.compile(r'\[([^] ]+)\] |.*"worker":"([^"]+)"')
#: Flags of `millrace up` that are the scheduler's. The others are the workers'.
_OF_SCHEDULER = frozenset({"listen", "http", "worker-lease"})


class LocalCluster:
    """A scheduler and workers on this machine, as child processes that end with this one. Functions
    run in the current directory that this process has when the cluster starts, so that relative
    paths have the same meaning there.

    All arguments of the class of this name in Dask are known, also those that are not listed here:
    docs/local-clusters.md says for each what it means, why no setting is needed, or why it is
    refused.

    Args:
        n_workers: number of workers; default one for each GPU, or without GPUs one for each core,
            at most 8. 0: a scheduler alone, until `scale` or `adapt`.
        threads_per_worker: tasks that a worker runs at once, each in a process of its own; default
            its share of the cores.
        memory_limit: memory of each worker for results: bytes, text ("1GiB"), or a share of this
            machine's memory (0.2). Default: half of this machine's memory, divided among the
            workers. Its functions may use as much again: see `function_memory_limit`. None or 0: as
            the default, and functions have no limit.
        name: of the cluster, for people.
        host: host or address at which the scheduler and the workers listen; default 127.0.0.1.
        dashboard_address: address of the HTTP port; ":8787" by default, or another port if that is
            taken. None: no HTTP port.
        local_directory: where results go that there is no room for in memory.
        asynchronous: start at `await` or `async with`, and return awaitables from the methods that
            wait.
        device: "host", "cuda", or "auto": MILLRACE_DEVICE, else the GPUs if there are any.
        python: interpreter of the workers' Python executors; default this one. By default they also
            find the modules that this process finds, through PYTHONPATH.
        start_timeout: longest wait for the cluster, in seconds, as a timedelta or as text ("2
            min").
        check_inputs: read the inputs on a GPU before and after each task, and fail a task that has
            changed one in place; slow, for tests.
        function_memory_limit: memory that the functions of each worker may use together, besides
            results, in the same forms; None: no limit. Default: as memory_limit, at least 512 MiB
            for each slot and 1 GiB. Above 70 % of it a warning appears, above 80 % no further task
            begins, and above 95 % the process that uses most is ended.
        executor_arena: how much of the slab on a GPU each Python process may keep for the allocator
            of CuPy, such as "2GiB": results in it are not copied.
        arguments: further arguments of Dask's class.

    Raises:
        ClusterStartError: it ended before it was ready, or was not ready in time; the message has
            the reason, and names the log file, which is kept.
        FileNotFoundError: the millrace program was not found.
        ValueError, TypeError: an argument is refused, unknown or wrong.
    """

    #: Name of the cluster, for people.
    name: str
    #: Opens a client of a cluster. `millrace.client`, which builds on this module, sets it.
    _open_client: ClassVar[Callable[..., Any]]
    _class: ClassVar[str] = _cluster_arguments.BOTH

    def __init__(
        self,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        *,
        memory_limit: str | float | None = "auto",
        device: str = "auto",
        python: str | None = None,
        start_timeout: Seconds = 60.0,
        check_inputs: bool = False,
        executor_arena: str | int | None = None,
        function_memory_limit: str | float | None = "auto",
        **arguments: Any,
    ) -> None:
        self._limit = _check.seconds(start_timeout, "start_timeout")
        if isinstance(n_workers, str):
            raise TypeError(f"n_workers must be a number, not {n_workers!r}; a name is given as name=")
        if device not in ("auto", "host", "cuda"):
            raise ValueError(f'device is "auto", "host" or "cuda", not {device!r}')
        if python is not None and shutil.which(python) is None:
            raise FileNotFoundError(
                f"python: {python!r} is no program: give the path of a Python interpreter of this machine"
            )
        given = {
            "n_workers": n_workers, "threads_per_worker": threads_per_worker, "memory_limit": memory_limit, **arguments
        }  # fmt: skip
        self._plan = plan = _cluster_arguments.plan(self._class, given)
        plan.flags["python"] = python or sys.executable
        if device != "auto":  # `up` has the same default, and takes MILLRACE_DEVICE before it
            plan.flags["device"] = device
        if _check.boolean(check_inputs, "check_inputs"):
            plan.flags["check-inputs"] = "true"
        if function_memory_limit != "auto":
            none = function_memory_limit is None
            plan.flags["function-memory-limit"] = "none" if none else str(function_memory_limit)
        if executor_arena is not None:
            plan.flags["executor-arena"] = str(executor_arena)
        if "MILLRACE_WORKING_DIRECTORY" not in os.environ:
            with contextlib.suppress(OSError):  # the current directory may not exist any more
                plan.flags["working-directory"] = str(Path.cwd())
        self._environment = {
            **os.environ,
            **_inherited.environment(),
            **({} if python else {"PYTHONPATH": python_path()}),
            **plan.env,
        }
        self.name = plan.name or self._class
        self._loop = EventLoop()
        # A child of fork has a copy of this object, and must not end the cluster.
        self._owner = os.getpid()
        # The scheduler's process, and those of workers that were started later.
        self._process: LocalProcess | None = None
        self._closed = False
        self._lock = threading.Lock()
        # Guarded by _lock. Made at the first use.
        self._scaling: Scaling | None = None
        self._adaptive: _scaling.Adaptive | None = None
        #: Address of the scheduler, host:port.
        self.address: str = ""
        #: Token that clients need.
        self.token: str = ""
        #: Address of metrics and status, host:port, or empty.
        self.http: str = ""
        self._tell(plan)
        if not plan.asynchronous:
            self._start()

    def _tell(self, plan: Plan) -> None:
        """Says which arguments and variables have no effect, and why."""
        notes = list(plan.notes)
        if self._class == _cluster_arguments.CUDA:
            notes += _cluster_arguments.dask_variables(os.environ)
        for argument, value, why in notes:
            _accepted.accept(self._class, argument, value, why)

    # ---- start and end ---------------------------------------------------------------------------

    def _start(self) -> None:
        plan = self._plan
        binary = find_binary()
        self._directory = tempfile.mkdtemp(prefix="millrace-")
        file = Path(self._directory) / "scheduler.json"
        self._log = Path(self._directory) / "cluster.log"
        alone = plan.n_workers == 0
        flags = {k: v for k, v in plan.flags.items() if not alone or k in _OF_SCHEDULER or k == "log-level"}
        command = [binary, "scheduler" if alone else "up", "--scheduler-file", str(file), "--http-any-port"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        if plan.n_workers:
            command += ["--workers", str(plan.n_workers)]
        try:
            self._process = LocalProcess(command, self._log, self._environment, self._directory)
            self._await_file(self._process, file)
            info = json.loads(file.read_text())
        except BaseException:
            self._end()
            raise
        self.address, self.token, self.http = info["address"], info.get("token", ""), info.get("http", "")
        _address.running[self.address] = self
        if plan.port_named and plan.http is not None and not self.http.endswith(f":{plan.http[1]}"):
            warnings.warn(
                f"{self._class}: port {plan.http[1]} is taken; the dashboard is at {self.dashboard_link}",
                stacklevel=_check.outside_stacklevel(),
            )

    def _await_file(self, process: LocalProcess, file: Path) -> None:
        deadline = time.monotonic() + self._limit
        while not file.exists():
            process.check()
            if time.monotonic() > deadline:
                raise process.failed(f"was not ready after {self._limit:g} s")
            time.sleep(0.01)

    def check(self) -> None:
        """Raises ClusterStartError if the cluster's process has ended. A child of fork cannot
        tell."""
        if os.getpid() != self._owner:
            return
        if self._process is None:
            raise errors.ClusterStartError(
                "the cluster is closed" if self._closed else "the cluster is not started: await it, or use `async with`"
            )
        self._process.check()

    def close(self, timeout: Seconds | None = None) -> Any:
        """Ends the cluster. Its processes have ended when this returns. It may be called again.

        Args:
            timeout: accepted as in Dask; processes that do not end within 15 s are killed.
        """
        _check.longest(timeout)
        return self._wait(self._end)

    def _end(self) -> None:
        self._closed = True
        if os.getpid() != self._owner:
            self._process = None
            return
        with self._lock:
            scaling, self._scaling = self._scaling, None
            adaptive, self._adaptive = self._adaptive, None
            process, self._process = self._process, None
        if adaptive is not None:
            adaptive.stop()
        more: list[LocalProcess] = []
        if scaling is not None:
            more = scaling.processes()
            scaling.session.close()
        for one in more:  # they leave at the same time
            one.terminate()
        if process is not None:
            process.close()
        for one in more:
            one.close()
        shutil.rmtree(getattr(self, "_directory", ""), ignore_errors=True)

    def _wait(self, function: Callable[[], T]) -> Any:
        """Calls a function that waits; for an asynchronous cluster in an event loop, in a thread
        that is awaited."""
        if self._plan.asynchronous and in_loop():
            return asyncio.get_running_loop().run_in_executor(None, function)
        return function()

    # ---- workers ---------------------------------------------------------------------------------

    def _workers(self) -> Scaling:
        with self._lock:
            if self._scaling is None:
                self.check()
                session = Session(
                    self.address, self.token, name=self.name, namespace="", timeout=self._limit, shared_memory=False
                )
                workers = session.workers()
                gpus: float | None = None
                if self._plan.flags.get("device") == "cuda" or any(
                    w.device == worker_pb2.DEVICE_KIND_CUDA for w in workers
                ):
                    named = self._plan.env.get("CUDA_VISIBLE_DEVICES")
                    # Without a number of workers, each GPU has one from the beginning.
                    gpus = len(workers) if self._plan.n_workers is None else math.inf
                    if named is not None:
                        gpus = len(named.split(","))
                self._scaling = Scaling(session, self._start_worker, "host" if gpus is None else "gpu", gpus)
            return self._scaling

    def _start_worker(self, name: str, number: int, example: worker_pb2.Worker | None) -> LocalProcess:
        """Starts a process with a further worker, like one that there is."""
        flags = {k: v for k, v in self._plan.flags.items() if k not in _OF_SCHEDULER}
        flags |= {"address": self.address, "name": name, "first": str(number), "workers": "1"}
        flags["listen"] = f"{self.address.rpartition(':')[0]}:0"
        flags["stop-grace"] = "0s"  # the cluster ends, so there is no other worker that takes results
        if example is not None:
            flags["slots"] = str(example.slots)
            if example.device == worker_pb2.DEVICE_KIND_HOST:
                flags["memory-limit"] = str(example.memory_limit_bytes)
        elif name == "host":
            slots = int(flags.setdefault("slots", "1"))
            if flags.get("memory-limit", "auto") == "auto":
                # Half of the memory, in proportion to the cores that the worker uses.
                flags["memory-limit"] = repr(0.5 * min(1.0, slots / len(os.sched_getaffinity(0))))
        environment = {**self._environment, "MILLRACE_TOKEN": self.token}
        command = [find_binary(), "worker", *(f"--{k}={v}" for k, v in flags.items())]
        return LocalProcess(command, self._log, environment)

    @property
    def workers(self) -> dict[str, dict[str, Any]]:
        """Descriptions of the workers that are in use, by name; see `Client.scheduler_info`."""
        return {name: _workers.described(w) for name, w in self._workers().active().items()}

    @property
    def observed(self) -> set[str]:
        """Names of the workers that are in use."""
        return set(self._workers().active())

    @property
    def plan(self) -> set[str]:
        """Names of the workers that are in use or about to be."""
        return self._workers().wanted()

    requested = plan

    @property
    def scheduler_info(self) -> dict[str, Any]:
        """Description of the cluster; its workers are under "workers", by name."""
        return _cluster_info.scheduler_info(self._workers().session)

    def scale(self, n: int | None = None, memory: str | float | None = None, cores: int | None = None) -> Any:
        """Starts or retires workers until there are `n`. It does not wait for them: workers that
        leave finish their tasks and hand over their results first.

        Args:
            n: number of workers.
            memory: as many workers as have this memory together.
            cores: as many workers as have this number of slots together.
        """
        before, self._adaptive = self._adaptive, None
        if before is not None:
            before.stop()
        return self._wait(lambda: self._workers().scale(self._number(n, memory, cores)))

    scale_up = scale

    def scale_down(self, workers: str | Iterable[str]) -> Any:
        """Retires these workers. It does not wait for them: they finish their tasks and hand over
        their results first.

        Args:
            workers: their names, ids ("w7") or hosts.

        Raises:
            ValueError: there is no such worker.
        """
        wanted = [workers] if isinstance(workers, str) else list(workers)

        def retire() -> None:
            scaling = self._workers()
            chosen = _workers.named(list(scaling.active().values()), wanted) if wanted else []
            scaling.close_workers({w.name for w in chosen})

        return self._wait(retire)

    def start_worker(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotImplementedError, as in Dask: `scale` starts workers."""
        raise NotImplementedError("start_worker: all workers of a local cluster are alike: cluster.scale(n) adds some")

    def _number(self, n: int | None, memory: str | float | None, cores: int | None) -> int:
        wanted = [] if n is None else [_check.integer(n, "n", 0, 4096)]
        if memory is not None or cores is not None:
            example = next(iter(self._workers().active().values()), None)
            if example is None:
                raise ValueError("memory and cores need a worker to compare with, and there is none: give n")
            if memory is not None:
                wanted.append(math.ceil(_check.byte_count(memory, "memory") / example.memory_limit_bytes))
            if cores is not None:
                wanted.append(math.ceil(_check.integer(cores, "cores", 0, 1 << 20) / example.slots))
        if not wanted:
            raise TypeError("scale: give n, memory or cores")
        return max(wanted)

    def adapt(
        self,
        minimum: int = 0,
        maximum: float = math.inf,
        *,
        interval: Seconds = 1.0,
        wait_count: int = 3,
        target_duration: Seconds = 5.0,
        minimum_cores: int | None = None,
        maximum_cores: int | None = None,
        minimum_memory: str | float | None = None,
        maximum_memory: str | float | None = None,
        worker_key: Callable[[dict[str, Any]], Hashable] | None = None,
        Adaptive: type[_scaling.Adaptive] | None = None,
        **arguments: Any,
    ) -> _scaling.Adaptive:
        """Changes the number of workers with the work, until `scale` or the next `adapt`; see
        `Adaptive`.

        Args:
            minimum, maximum: bounds of the number of workers. Default: as many as there are GPUs,
                or cores for their slots.
            interval: time between two looks at the work.
            wait_count: number of looks that must ask for fewer workers before some are retired.
            target_duration: time in which the tasks that are known shall be done.
            minimum_cores, maximum_cores: the same bounds as numbers of slots.
            minimum_memory, maximum_memory: the same bounds as memory of all workers.
            worker_key: a function that gets a description of a worker and returns its group:
                workers of one group are retired together.
            Adaptive: a class derived from millrace.Adaptive to use instead.
            arguments: for that class.
        """
        kind = _scaling.Adaptive if Adaptive is None else Adaptive
        if minimum_cores is not None or minimum_memory is not None:
            minimum = max(minimum, self._number(None, minimum_memory, minimum_cores))
        if maximum_cores is not None or maximum_memory is not None:
            maximum = min(maximum, self._number(None, maximum_memory, maximum_cores))
        return kind(
            self, interval=interval, minimum=minimum, maximum=maximum, wait_count=wait_count,
            target_duration=target_duration, worker_key=worker_key, **arguments,
        )  # fmt: skip

    def _most(self, minimum: int) -> int:
        """Returns the number of workers that this machine has room for: as many as there are GPUs,
        or cores for their slots, or as there are, and at least `minimum`."""
        scaling = self._workers()
        active = scaling.active().values()
        slots = max((w.slots for w in active), default=int(self._plan.flags.get("slots", 1)))
        most = len(os.sched_getaffinity(0)) // slots
        if scaling.gpus is not None:
            most = 1 if math.isinf(scaling.gpus) else int(scaling.gpus)
        return max(1, minimum, most, len(active))

    def _follow(self, adaptive: _scaling.Adaptive) -> None:
        """Ends the Adaptive before this one; this one ends with the cluster."""
        before, self._adaptive = self._adaptive, adaptive
        if before is not None:
            before.stop()

    def wait_for_workers(self, n_workers: int = 1, timeout: Seconds | None = None) -> Any:
        """Waits until at least this number of workers is active.

        Raises:
            TimeoutError: the timeout has passed.
        """
        wanted, limit = _check.integer(n_workers, "n_workers", 0, 1 << 32), _check.longest(timeout)
        return self._wait(lambda: run(arrival(self._workers().session, wanted, limit, self.check)))

    def get_logs(self, cluster: bool = True, scheduler: bool = True, workers: bool | list[str] = True) -> Any:
        """Returns the log of each process as text: of the cluster itself under "Cluster", of the
        scheduler under "Scheduler", and of the workers under their names.

        Args:
            cluster, scheduler: with that entry. Both are one process, and so one log.
            workers: with those of all workers, of none, or of those of these names.
        """
        return self._wait(lambda: self._logs(cluster, scheduler, workers))

    def _logs(self, cluster: bool, scheduler: bool, workers: bool | list[str]) -> dict[str, str]:
        texts: dict[str, list[str]] = {}
        for line in self.log.splitlines(keepends=True):
            found = _OF_WORKER.match(line)
            name = (found[1] or found[2]) if found else ""
            texts.setdefault(name, []).append(line[found.end(1) + 2 :] if found and found[1] else line)
        own = "".join(texts.pop("", []))
        out = {name: own for name, wanted in (("Cluster", cluster), ("Scheduler", scheduler)) if wanted}
        for name in sorted(texts):
            if workers is True or (workers is not False and name in workers):
                out[name] = "".join(texts[name])
        return out

    # ---- what it has -----------------------------------------------------------------------------

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, as Dask writes it: "tcp://host:port". `Client` takes it in this
        process, and in others together with `token`."""
        return f"tcp://{self.address}" if self.address else "<Not Connected>"

    @property
    def scheduler(self) -> SchedulerPlace:
        """The scheduler's address and state: it is a process of its own, not an object."""
        return SchedulerPlace(self.address, lambda: self.status)

    @property
    def dashboard_link(self) -> str:
        """URL of the scheduler's HTTP port, or empty; see `Client.dashboard_link`."""
        return _dashboard.link(self.http)

    @property
    def asynchronous(self) -> bool:
        """Whether the cluster was made for asyncio."""
        return self._plan.asynchronous

    @property
    def status(self) -> Status:
        """`Status.created`, `Status.running` or `Status.closed`, which equal their names as text."""
        if self._process is None:
            return Status.closed if self._closed else Status.created
        return Status.running

    @property
    def loop(self) -> EventLoop:
        """An asyncio event loop with `add_callback`, for `sync`: the running one of an asynchronous
        cluster, else one in a thread of its own. The cluster itself does not need it."""
        if self._plan.asynchronous:
            with contextlib.suppress(RuntimeError):
                return EventLoop(asyncio.get_running_loop())
        return self._loop

    @property
    def called_from_running_loop(self) -> bool:
        """Whether `loop` is the event loop that runs in this thread."""
        return self.loop.runs_here

    def sync(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        asynchronous: bool | None = None,
        callback_timeout: Seconds | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a coroutine function in the cluster's event loop, waits, and returns its result.

        Args:
            func: the function. A result that is no coroutine is returned as it is.
            asynchronous: True: return the coroutine instead. Default: whether the cluster is
                asynchronous.
            callback_timeout: longest wait, in seconds, as a timedelta or as text ("5s").
            args, kwargs: arguments of the function.
        """
        limit = _check.longest(callback_timeout, "callback_timeout")
        wanted = self._plan.asynchronous if asynchronous is None else asynchronous
        return self.loop.call(func, args, kwargs, wanted, limit)

    @classmethod
    def from_name(cls, name: str) -> LocalCluster:
        """Returns the running cluster of this name that this process has started.

        Raises:
            ValueError: there is none, or there are several. A cluster of another process is joined
                by its address: ``Client(address, token=...)``.
        """
        clusters = [c for c in _address.running.values() if isinstance(c, cls) and c.status == Status.running]
        found = [c for c in clusters if c.name == name]
        if len(found) == 1:
            return found[0]
        there = ", ".join(sorted(repr(c.name) for c in clusters)) or "none"
        raise ValueError(
            f"{cls.__name__}: this process runs {len(found) or 'no'} clusters of the name {name!r}; there are: {there}. "
            "A cluster of another process is joined by its address: Client(address, token=...)"
        )

    @property
    def log(self) -> str:
        """The log of the cluster's processes."""
        return self._log.read_text(errors="replace")

    def get_client(self, **options: Any) -> Any:
        """Returns a client of this cluster: Client(cluster, **options). For an asynchronous cluster
        it is an AsyncClient, to be awaited."""
        if self._plan.asynchronous:
            options = {"asynchronous": True, **options}
        return type(self)._open_client(self, **options)

    def __enter__(self) -> LocalCluster:
        if self._plan.asynchronous:
            raise TypeError("the cluster is asynchronous: use `async with`")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> LocalCluster:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._end)

    def __await__(self) -> Generator[Any, None, LocalCluster]:
        async def started() -> LocalCluster:
            if self._process is None and not self._closed:
                await asyncio.get_running_loop().run_in_executor(None, self._start)
            return self

        return started().__await__()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._end()

    def __repr__(self) -> str:
        return f"<{self._class} {self.address}>" if self._process else f"<{self._class} {self.status}>"

    def _repr_html_(self) -> str:
        try:
            info = self.scheduler_info if self._process else None
        except errors.MillraceError:
            info = None
        if info is None:
            return _cluster_html.card(self._class, {"status": self.status})
        return _cluster_html.cluster_card(self._class, info)


class LocalCUDACluster(LocalCluster):
    """A scheduler, and a worker on each GPU of this machine, as child processes that end with this
    one. Each worker runs on the processors near its GPU.

    All arguments of the class of this name in Dask-CUDA are known, also those that are not listed
    here: docs/local-clusters.md says for each what it means, why no setting is needed, or why it is
    refused. With MILLRACE_DEVICE=host in the environment the workers use processors and host memory
    instead, so that programs can be tried without a GPU.

    Args:
        CUDA_VISIBLE_DEVICES: GPUs, one for each worker: numbers, UUIDs or MIG instances, as a list
            or as text; default all.
        n_workers: number of workers, at most one for each GPU; default one for each.
        threads_per_worker: tasks that a worker runs at once; default one for each 16 GiB of its
            GPU's memory, 4 at most.
        memory_limit: as for LocalCluster.
        device_memory_limit: memory of each GPU for results: bytes, text ("10GB") or a share (0.8).
            Results that there is no room for move to host memory, then to disk. Default 70 %.
        arguments: further arguments of LocalCluster and of Dask-CUDA's class.

    Raises:
        ClusterStartError: there is no such GPU, or one of the reasons of LocalCluster.
    """

    _class: ClassVar[str] = _cluster_arguments.CUDA

    def __init__(
        self,
        CUDA_VISIBLE_DEVICES: str | int | list[int] | list[str] | None = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        memory_limit: str | float | None = "auto",
        device_memory_limit: str | float | None = "default",
        **arguments: Any,
    ) -> None:
        device = arguments.pop("device", "cuda")
        wanted = os.environ.get("MILLRACE_DEVICE")
        if device == "cuda" and wanted == "host":
            device = "auto"
        super().__init__(
            n_workers, threads_per_worker, memory_limit=memory_limit, device=device,
            CUDA_VISIBLE_DEVICES=CUDA_VISIBLE_DEVICES, device_memory_limit=device_memory_limit, **arguments,
        )  # fmt: skip

    def _start(self) -> None:
        try:
            super()._start()
        except errors.ClusterStartError as e:
            if "no GPU for a worker" not in str(e):
                raise
            raise errors.ClusterStartError(
                f"{e}\nLocalCluster() runs on processors; MILLRACE_DEVICE=host has LocalCUDACluster do that, too"
            ) from None
