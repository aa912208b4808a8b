"""A stand-in for the package distributed: ``import millrace.as_distributed``.

After this import, ``from dask.distributed import Client, wait`` and ``import distributed`` give
Millrace's client, and packages that look for distributed find it. The import must come before
every import of distributed. Nothing of the real package is used, whether it is installed or not.

The names are those of distributed's public interface. A name that Millrace does not have can be
imported, so that packages which import it by the way load; any use of it raises
NotImplementedError with the name and the alternative. Other names and modules do not exist.

Executors of a cluster that this process starts have the stand-in, too. Start other workers with
MILLRACE_AS_DISTRIBUTED=1 in their environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from millrace import _dask_names, _import_hooks, _mode

#: The version of distributed whose names these are.
VERSION = "2026.8.0"

#: The modules of distributed that the stand-in has, and the names of each.
MODULES: dict[str, tuple[str, ...]] = {
    "distributed": tuple(sorted({*_dask_names.NAMES, "Pub", "Sub"})),  # those of older versions, too
    "distributed.actor": ("Actor", "ActorFuture", "BaseActorFuture"),
    "distributed.cfexecutor": ("ClientExecutor",),
    "distributed.client": tuple(
        "Client Future as_completed default_client fire_and_forget futures_of get_task_metadata get_task_stream "
        "performance_report wait CancelledError".split()
    ),
    "distributed.comm": tuple("Comm Listener connect listen parse_address resolve_address".split()),
    "distributed.core": ("Status", "connect", "rpc"),
    "distributed.deploy": ("Adaptive", "LocalCluster", "SSHCluster", "SpecCluster", "SubprocessCluster"),
    "distributed.deploy.adaptive": ("Adaptive",),
    "distributed.deploy.local": ("LocalCluster",),
    "distributed.deploy.spec": ("ProcessInterface", "SpecCluster"),
    "distributed.deploy.subprocess": ("SubprocessCluster",),
    "distributed.diagnostics": ("MemorySampler",),
    "distributed.diagnostics.memory_sampler": ("MemorySampler",),
    "distributed.diagnostics.plugin": tuple(
        "CondaInstall Environ InstallPlugin NannyPlugin PipInstall SchedulerPlugin UploadDirectory UploadFile "
        "WorkerPlugin".split()
    ),
    "distributed.diagnostics.progressbar": ("progress",),
    "distributed.event": ("Event",),
    "distributed.exceptions": ("Reschedule", "TimeoutError"),
    "distributed.lock": ("Lock",),
    "distributed.metrics": ("time",),
    "distributed.multi_lock": ("MultiLock",),
    "distributed.nanny": ("Nanny",),
    "distributed.protocol": tuple(
        "Serialize Serialized dask_deserialize dask_serialize deserialize register_generic register_serialization "
        "serialize to_serialize".split()
    ),
    "distributed.pubsub": ("Pub", "Sub"),
    "distributed.queues": ("Queue",),
    "distributed.scheduler": ("KilledWorker", "Scheduler"),
    "distributed.security": ("Security",),
    "distributed.semaphore": ("Semaphore",),
    "distributed.shuffle": tuple(
        "HashJoinP2PLayer P2PShuffleLayer ShuffleSchedulerPlugin ShuffleWorkerPlugin rearrange_by_column_p2p "
        "rechunk_p2p".split()
    ),
    "distributed.system": tuple("CPU_COUNT MEMORY_LIMIT".split()),
    "distributed.utils": (
        *("TimeoutError", "format_bytes", "iscoroutinefunction", "key_split", "parse_bytes", "parse_timedelta"),
        *("sync", "thread_state", "import_term", "CancelledError", "log_errors"),
    ),
    "distributed.variable": ("Variable",),
    "distributed.versions": ("get_versions",),
    "distributed.worker": tuple(
        "Worker Reschedule get_client get_worker print rejoin secede thread_state warn".split()
    ),
    "distributed.worker_client": ("local_client", "worker_client"),
}


class StandIn(ModuleType):
    """A module of the stand-in. Its names are looked up at their first use."""

    def __getattr__(self, name: str) -> Any:
        own = MODULES[self.__name__]
        if name == "__all__":  # without absent names: they would hide others
            return [n for n in own if type(getattr(self, n)) is not _dask_names.Absent]
        if name not in own:
            raise AttributeError(
                f"{self.__name__}.{name}: Millrace's stand-in for distributed has no such name (see "
                "millrace.as_distributed)"
            )
        value = _find(self.__name__, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *MODULES[self.__name__]})


def _find(module: str, name: str) -> Any:
    return threading.local() if name == "thread_state" else _dask_names.find(module, name)  # one of each module


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the stand-in, and no others of this name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] != "distributed":
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(
                f"{fullname}: Millrace's stand-in for distributed has no such module (see millrace.as_distributed)",
                name=fullname,
            )
        package = any(other.startswith(fullname + ".") for other in MODULES)
        return importlib.util.spec_from_loader(fullname, self, origin="millrace.as_distributed", is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "distributed":
            vars(module)["__version__"] = VERSION
        vars(module)["__file__"] = __file__


def _serve_joblib(joblib: Any) -> None:
    """Makes the name "dask" of joblib's backends stand for that of Millrace."""

    def backend(**options: Any) -> Any:
        make: Callable[..., Any] = importlib.import_module("millrace.joblib_backend").MillraceBackend
        return make(**options)

    joblib.register_parallel_backend("dask", backend)


def _install() -> None:
    there = sys.modules.get("distributed")
    if there is not None and not isinstance(there, StandIn):
        raise ImportError(
            "the package distributed has been imported already: `import millrace.as_distributed` must come before "
            "every import of distributed and dask.distributed"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _mode.distributed = True
    os.environ["MILLRACE_AS_DISTRIBUTED"] = "1"  # for executors of clusters of this process
    _import_hooks.when_imported("joblib.parallel", _serve_joblib)


_install()
