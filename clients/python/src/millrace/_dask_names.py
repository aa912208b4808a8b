"""The names of Dask's distributed: the places where Millrace has them, and the alternatives to those
that it does not have.

A name that Millrace does not have can be imported, so that programs which import it by the way
load. Any use of it raises NotImplementedError with the alternative.
"""

from __future__ import annotations

import importlib
from typing import Any

_TEXT = """
Actor ActorFuture Adaptive BaseActorFuture CancelledError Client CompatibleExecutor CondaInstall Environ Event Future
InstallPlugin KilledWorker LocalCluster Lock MultiLock Nanny NannyPlugin PipInstall Queue Reschedule SSHCluster
Scheduler SchedulerPlugin Security Semaphore SpecCluster Status SubprocessCluster TimeoutError UploadDirectory
UploadFile Variable Worker WorkerPlugin as_completed config connect dask default_client fire_and_forget futures_of
get_client get_task_metadata get_task_stream get_worker local_client performance_report print progress rejoin rpc
secede span sync wait warn widgets worker_client
"""

#: The public names of distributed.
NAMES = frozenset(_TEXT.split())

#: The places of names that `millrace` does not have, as module and name. The module is imported
#: at the first use of the name.
ELSEWHERE = {
    "BaseActorFuture": ("millrace", "ActorFuture"),
    "CPU_COUNT": ("dask.system", "CPU_COUNT"),
    "CancelledError": ("concurrent.futures", "CancelledError"),  # a base class of millrace's
    "CompatibleExecutor": ("millrace", "ClientExecutor"),
    "KilledWorker": ("millrace.errors", "WorkerDiedError"),
    "TimeoutError": ("builtins", "TimeoutError"),
    "config": ("dask.config", "config"),
    "dask": ("dask", ""),
    "format_bytes": ("dask.utils", "format_bytes"),
    "import_term": ("dask.utils", "import_required"),
    "iscoroutinefunction": ("inspect", "iscoroutinefunction"),
    "key_split": ("dask.utils", "key_split"),
    **{name: ("millrace._dask_functions", name) for name in "MEMORY_LIMIT get_versions log_errors".split()},
    "local_client": ("millrace._in_tasks", "local_client"),
    "print": ("millrace._client._remote_text", "print"),
    "parse_bytes": ("dask.utils", "parse_bytes"),
    "parse_timedelta": ("dask.utils", "parse_timedelta"),
    "time": ("time", "time"),
    "warn": ("millrace._client._remote_text", "warn"),
}

_PICKLES = "Objects travel as pickles, arrays without: register what is special with copyreg.pickle, or give the class __reduce__."
_SHUFFLES = "Shuffles and rechunks of Dask's collections are Millrace's own: \"p2p\" stands for them (docs/shuffle.md)."
_GRPC = "The API is gRPC: see docs/client-authors.md."

#: The alternatives to names that Millrace does not have.
INSTEAD = {
    **dict.fromkeys(
        "Serialize Serialized dask_deserialize dask_serialize deserialize register_generic register_serialization "
        "serialize to_serialize".split(),
        _PICKLES,
    ),
    **dict.fromkeys(
        "HashJoinP2PLayer P2PShuffleLayer ShuffleSchedulerPlugin ShuffleWorkerPlugin rearrange_by_column_p2p "
        "rechunk_p2p".split(),
        _SHUFFLES,
    ),
    **dict.fromkeys("Comm Listener listen parse_address resolve_address".split(), _GRPC),
    "MemorySampler": "client.scheduler_info() has the memory of each worker (memory_used, rss), and /metrics its course.",
    "ProcessInterface": "Start `millrace worker` as your platform starts programs.",
    "NannyPlugin": "Use a WorkerPlugin.",
    "SSHCluster": "Start `millrace scheduler` and `millrace worker` on the hosts, and connect a Client.",
    "SchedulerPlugin": "The scheduler runs no Python; use a WorkerPlugin, or the scheduler's API.",
    "Security": "Clients prove themselves by a token, Client(token=...); the network encrypts (docs/security.md).",
    "SpecCluster": "Use millrace.LocalCluster, or start `millrace worker` as your platform starts programs.",
    "connect": _GRPC,
    "rpc": _GRPC,
    "span": "Use dask.annotate, or the prefixes of keys.",
    "widgets": "Client and LocalCluster show themselves in notebooks.",
}


class Absent(type):
    """The class of names that can be imported and not be used."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(type.__getattribute__(cls, "why"))

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotImplementedError(type.__getattribute__(cls, "why"))


def absent(module: str, name: str) -> Any:
    why = f"{module}.{name}: Millrace has no {name}. {INSTEAD.get(name, '')}".rstrip()
    return Absent(name, (), {"why": why, "__module__": module, "__doc__": why})


def find(module: str, name: str) -> Any:
    """Returns what a name of distributed stands for here. `module`: the module that is asked for
    it, for error messages."""
    ours = importlib.import_module("millrace")
    if name in ours.__all__ and name not in ELSEWHERE:
        return getattr(ours, name)
    home, there = ELSEWHERE.get(name, ("millrace", name))
    if home == "millrace" and there not in ours.__all__:
        return absent(module, name)
    found = importlib.import_module(home)
    return getattr(found, there) if there else found
