"""The programs of a cluster as objects: a scheduler, workers, and clusters of them on this machine.

`Scheduler` and `Worker` run `millrace scheduler` and `millrace worker` as child processes, which
end with this process. For most programs, LocalCluster is shorter.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from millrace import _accepted, _check
from millrace._check import Seconds
from millrace._cluster import _inherited
from millrace._connection import _address
from millrace._connection._steps import Steps, run
from millrace._local import _cluster_arguments
from millrace._local._local_process import LocalProcess, find_binary, python_path
from millrace._pb.millrace.v1 import worker_pb2
from millrace._session._session import Session
from millrace._status import Status
from millrace.cluster import LocalCluster

Self = TypeVar("Self", bound="_Server")

_NO_PYTHON = "the scheduler runs no Python"
#: Arguments of Dask's Scheduler that are refused, with the reason. Those that LocalCluster has mean
#: the same here.
SCHEDULER_REFUSED = {
    "allowed_failures": "a task fails when three workers have died while it ran: give the task retries= for its own errors",
    "contact_address": "workers and clients reach it at host=",
    "extensions": f"{_NO_PYTHON}: see the gRPC API (docs/client-authors.md)",
    "http_prefix": "the HTTP port has no prefix: a proxy can add one",
    "idle_timeout": "it does not end by itself: close it",
    "jupyter": f"{_NO_PYTHON}: start Jupyter beside it",
    "plugins": f"{_NO_PYTHON}: workers have plugins, client.register_plugin(plugin)",
    "preload": f"{_NO_PYTHON}: preload modules in workers",
    "preload_argv": f"{_NO_PYTHON}: preload modules in workers",
}
#: Arguments of Scheduler that LocalCluster has, by its name for them.
SCHEDULER_MAPPED = {
    "services": "services", "service_kwargs": "service_kwargs", "security": "security", "interface": "interface",
    "host": "host", "port": "scheduler_port", "protocol": "protocol", "dashboard_address": "dashboard_address",
    "validate": "validate", "transition_counter_max": "transition_counter_max", "silence_logs": "silence_logs", "loop": "loop",
}  # fmt: skip
#: Arguments of Worker and Nanny beside those that LocalCluster has for its workers.
WORKER_OWN = frozenset({"scheduler_ip", "scheduler_port", "scheduler_file", "name", "host", "interface", "protocol"})
_WORKER_PASSED = frozenset(
    {"interface", "host", "protocol", "security", "services", "silence_logs", "local_directory", "memory_limit", "loop"}
)


def worker_arguments() -> frozenset[str]:
    """Returns the names of all arguments of Worker and Nanny."""
    of_workers = {a.name for a in _cluster_arguments.ARGUMENTS if a.of == _cluster_arguments.WORKER}
    return frozenset({*of_workers, *WORKER_OWN, *_WORKER_PASSED, "dashboard_address", "worker_class"})


class _Server(ABC):
    """A program that starts at `await`, `async with` or `with`, and ends with the block."""

    #: Address at which others reach it, as Dask writes it: "tcp://host:port"; empty before it runs.
    address: str = ""
    _ended: threading.Event

    def __init__(self) -> None:
        self._ended = threading.Event()

    @abstractmethod
    def _start(self) -> None:
        """Starts it, and returns when it is ready. Does nothing if it was started."""

    @abstractmethod
    def _end(self) -> None:
        """Ends it. May be called again."""

    @property
    @abstractmethod
    def status(self) -> Status:
        """`Status.created`, `Status.running` or `Status.closed`."""

    async def close(self, timeout: Seconds | None = None) -> None:
        """Ends the program. Its process has ended when this returns.

        Args:
            timeout: accepted as in Dask; a process that does not end within 15 s is killed.
        """
        _check.longest(timeout)
        await _in_thread(self._end)

    async def finished(self) -> None:
        """Waits until the program has been closed."""
        while not self._ended.is_set():
            await asyncio.sleep(0.05)

    def __await__(self: Self) -> Generator[Any, None, Self]:
        async def started() -> Self:
            await _in_thread(self._start)
            return self

        return started().__await__()

    async def __aenter__(self: Self) -> Self:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self: Self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def __del__(self) -> None:
        if hasattr(self, "_ended"):
            self._end()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.address or 'no address'}, {self.status}>"


async def _in_thread(function: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, function)


class Scheduler(_Server):
    """A scheduler as a child process: `millrace scheduler`.

    It starts at ``await Scheduler()``, ``async with`` or ``with``. Clients and workers of this
    process join it by its address; those of others need its token, too, or the scheduler file.

    Args:
        scheduler_file: file to write for others; only this user can read it.
        worker_ttl: how long a silent worker is waited for, as a time.
        dashboard: False: no HTTP port.
        arguments: host, port, interface, dashboard_address and silence_logs as for LocalCluster,
            and the other arguments of Dask's class, which need no setting or are refused with the
            reason.
    """

    def __init__(
        self,
        *,
        scheduler_file: str | os.PathLike[str] | None = None,
        worker_ttl: Seconds | None = None,
        dashboard: bool = True,
        **arguments: Any,
    ) -> None:
        given: dict[str, Any] = {"dashboard_address": ":0"}
        for name, value in arguments.items():
            if name in SCHEDULER_REFUSED:
                if value is not None:
                    raise ValueError(f"Scheduler: {name}={value!r} is refused: {SCHEDULER_REFUSED[name]}")
            elif name in SCHEDULER_MAPPED:
                given[SCHEDULER_MAPPED[name]] = value
            else:
                raise TypeError(f"Scheduler has no argument {name!r}")
        if not _check.boolean(dashboard, "dashboard"):
            given["dashboard_address"] = None
        if worker_ttl is not None:
            given["scheduler_kwargs"] = {"worker_ttl": worker_ttl}
        self._file = None if scheduler_file is None else Path(scheduler_file)
        self._cluster = LocalCluster(0, asynchronous=True, device="host", **given)
        super().__init__()

    def _start(self) -> None:
        if self._ended.is_set():
            raise RuntimeError("the Scheduler is closed: make another one")
        if self._cluster.status != Status.created:
            return
        self._cluster._start()
        self.address = self._cluster.scheduler_address
        if self._file is not None:
            shutil.copy(Path(self._cluster._directory) / "scheduler.json", self._file)
            self._file.chmod(0o600)

    def _end(self) -> None:
        self._cluster._end()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._ended.set()

    @property
    def status(self) -> Status:
        return self._cluster.status

    @property
    def token(self) -> str:
        """Token that clients and workers of other processes need."""
        return self._cluster.token

    @property
    def port(self) -> int:
        """Port of the scheduler."""
        return int(self.address.rpartition(":")[2])

    @property
    def dashboard_link(self) -> str:
        """URL of the HTTP port, or empty."""
        return self._cluster.dashboard_link

    @property
    def workers(self) -> dict[str, dict[str, Any]]:
        """Descriptions of its workers, by name; see `Client.scheduler_info`."""
        return self._cluster.workers


class Worker(_Server):
    """A worker as a child process: `millrace worker`. A supervisor in it starts the worker again if
    it dies.

    It starts at ``await Worker(address)``, ``async with`` or ``with``, and is ready when it has
    joined the cluster. When it is closed, it finishes its tasks and hands over its results first.

    Args:
        scheduler_ip: address of the scheduler, "host:port" or "tcp://host:port"; or its host alone,
            and the port in `scheduler_port`. Default: as for Client.
        scheduler_port: port of the scheduler.
        scheduler_file: file that the scheduler wrote; it also has the token.
        nthreads: tasks that it runs at once, each in a process of its own. Default: the number of
            cores.
        name: prefix of its name, which ends in "-0". Default: a random one.
        token: of the cluster. Default: that of a scheduler of this process, else MILLRACE_TOKEN.
        device: "host", or "cuda" for a worker on the first GPU that CUDA_VISIBLE_DEVICES names.
        python: interpreter of the Python executors; default this one.
        start_timeout: longest wait until it has joined, as a time.
        arguments: memory_limit, resources, local_directory, preload, env and the other arguments
            that LocalCluster has for its workers (docs/local-clusters.md).
    """

    def __init__(
        self,
        scheduler_ip: str | None = None,
        scheduler_port: int | None = None,
        *,
        scheduler_file: str | os.PathLike[str] | None = None,
        nthreads: int | None = None,
        name: Any = None,
        token: str | None = None,
        device: str = "host",
        python: str | None = None,
        start_timeout: Seconds = 60.0,
        **arguments: Any,
    ) -> None:
        kind = type(self).__name__
        _check.choice(device, "device", ("host", "cuda"))
        self._limit = _check.seconds(start_timeout, "start_timeout")
        if unknown := sorted(set(arguments) - worker_arguments()):
            raise TypeError(f"{kind} has no argument {', '.join(unknown)}")
        if scheduler_port is not None:
            if scheduler_ip is None:
                raise ValueError(f"{kind}: scheduler_port={scheduler_port!r} needs scheduler_ip, the scheduler's host")
            scheduler_ip = f"{scheduler_ip}:{_check.integer(scheduler_port, 'scheduler_port', 1, 65535)}"
        where = _address.find(scheduler_ip, token, scheduler_file)
        if where is None:
            raise ValueError(f"{kind}: give the address of a scheduler, or a scheduler_file")
        self._where = where
        plan = _cluster_arguments.plan(_cluster_arguments.BOTH, arguments)
        for argument, value, why in plan.notes:
            _accepted.accept(kind, argument, value, why)
        slots = nthreads if nthreads is not None else int(plan.flags.get("slots", len(os.sched_getaffinity(0))))
        prefix = f"worker-{uuid.uuid4().hex[:8]}" if name is None else str(name)
        #: Name of the worker in the cluster.
        self.name = f"{prefix}-0"
        #: Number of its slots.
        self.nthreads = _check.integer(slots, "nthreads", 1, 1 << 16)
        flags = {k: v for k, v in plan.flags.items() if k not in ("listen", "http")}
        self._flags: Mapping[str, str] = {
            **flags, "address": where[0], "name": prefix, "first": "0", "workers": "1", "slots": str(self.nthreads),
            "device": device, "python": python or sys.executable, "listen": f"{plan.host or '127.0.0.1'}:0",
        }  # fmt: skip
        paths = {} if python else {"PYTHONPATH": python_path()}
        self._environment = {**os.environ, **_inherited.environment(), **paths, **plan.env, "MILLRACE_TOKEN": where[1]}
        self._process: LocalProcess | None = None
        self._directory = ""
        super().__init__()

    def _start(self) -> None:
        if self._ended.is_set():
            raise RuntimeError(f"the {type(self).__name__} is closed: make another one")
        if self._process is not None:
            return
        self._directory = tempfile.mkdtemp(prefix="millrace-")
        command = [find_binary(), "worker", *(f"--{k}={v}" for k, v in self._flags.items())]
        try:
            self._process = LocalProcess(command, self._log, self._environment, self._directory)
            self.address = f"tcp://{self._worker().data_address}"
        except BaseException:
            self._end()
            raise

    @property
    def _log(self) -> Path:
        return Path(self._directory) / "worker.log"

    def _worker(self, before: int = 0) -> worker_pb2.Worker:
        """Waits until the worker has joined, and returns its description. `before`: the id of an
        incarnation that is gone, or will be soon; 0: there is none."""
        session = Session(*self._where, name=self.name, namespace="", timeout=self._limit, shared_memory=False)
        try:
            return run(self._joined(session, before))
        finally:
            session.close()

    def _joined(self, session: Session, before: int) -> Steps[worker_pb2.Worker]:
        left = self._limit
        while True:
            active = session.workers()
            for worker in active:
                if worker.name == self.name and worker.worker_id != before:
                    return worker
            assert self._process is not None
            self._process.check()
            if left <= 0:
                raise self._process.failed(f"did not join the cluster within {self._limit:g} s")
            if not (yield session.worker_watch.changed([w.worker_id for w in active], 0.25)):
                left -= 0.25

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._ended.set()

    @property
    def status(self) -> Status:
        if self._ended.is_set():
            return Status.closed
        if self._process is None:
            return Status.created
        return Status.running if self._process.running else Status.failed

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, "tcp://host:port"."""
        return f"tcp://{self._where[0]}"

    @property
    def worker_address(self) -> str:
        """The same as `address`."""
        return self.address

    @property
    def log(self) -> str:
        """The log of its process."""
        return self._log.read_text(errors="replace")


class Nanny(Worker):
    """The same as Worker: each has a supervisor that starts it again if it dies.

    Args: those of Worker.
    """

    async def kill(self, timeout: Seconds | None = None, reason: str | None = None) -> None:
        """Ends the worker's process at once; its supervisor starts another one. Returns when that
        one has joined the cluster.

        Args:
            timeout, reason: accepted as in Dask.
        """
        _check.longest(timeout)
        if reason is not None:
            _check.text(reason, "reason")
        if self.status != Status.running:
            raise RuntimeError(f"{self!r} does not run")
        await _in_thread(self._replace)

    def _replace(self) -> None:
        before = self._worker()
        os.kill(before.pid, signal.SIGKILL)
        self.address = f"tcp://{self._worker(before.worker_id).data_address}"


class SubprocessCluster(LocalCluster):
    """A LocalCluster with the arguments of the function of this name in Dask. The workers of both
    are processes of their own.

    Args:
        host: host or address at which the scheduler and the workers listen.
        scheduler_port: port of the scheduler; 0: a free one.
        scheduler_kwargs: see docs/local-clusters.md.
        dashboard_address: address of the HTTP port.
        worker_class: only Dask's own classes, or None.
        n_workers, threads_per_worker: as for LocalCluster.
        worker_kwargs: arguments for workers, such as {"memory_limit": "1GiB"}.
        silence_logs: lowest level of the cluster's log.
        arguments: further arguments of LocalCluster.
    """

    def __init__(
        self,
        host: str | None = None,
        scheduler_port: int = 0,
        scheduler_kwargs: Mapping[str, Any] | None = None,
        dashboard_address: str | None = ":8787",
        worker_class: Any = None,
        n_workers: int | None = None,
        threads_per_worker: int | None = None,
        worker_kwargs: Mapping[str, Any] | None = None,
        silence_logs: Any = None,
        **arguments: Any,
    ) -> None:
        more = dict(worker_kwargs or {})
        if twice := sorted(set(more) & set(arguments)):
            raise TypeError(f"SubprocessCluster: {', '.join(twice)} is given twice: in worker_kwargs, too")
        super().__init__(
            n_workers, threads_per_worker, host=host, scheduler_port=scheduler_port, scheduler_kwargs=scheduler_kwargs,
            dashboard_address=dashboard_address, worker_class=worker_class, silence_logs=silence_logs, **more, **arguments,
        )  # fmt: skip
