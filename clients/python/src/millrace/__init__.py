"""Millrace: many workers, one computer.

>>> from millrace import Client
>>> with Client() as client:                      # doctest: +SKIP
...     client.submit(sum, [1, 2, 3]).result()
6
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from millrace._actors._actor import Actor, ActorFuture, ActorLostError
    from millrace._calls._rebalance import RebalanceReport
    from millrace._connection._event_loop import sync
    from millrace._connection._slot import Reschedule, rejoin, secede
    from millrace._in_tasks import fire_and_forget, get_worker, worker_client
    from millrace._local._scaling import Adaptive
    from millrace._performance_report import get_task_metadata, get_task_stream, performance_report
    from millrace._session._display import TaskLine
    from millrace._shared._event import Event
    from millrace._shared._locks import Lock, MultiLock, Semaphore
    from millrace._shared._pubsub import Pub, Sub
    from millrace._shared._shared_values import Queue, Variable
    from millrace._status import Status
    from millrace._tasks._progress import progress
    from millrace._tasks._waiting import as_completed, wait
    from millrace._values._arrays import arrays
    from millrace.client import AsyncClient, Client, default_client, get_client
    from millrace.client_executor import ClientExecutor
    from millrace.cluster import LocalCluster, LocalCUDACluster
    from millrace.errors import CancelledError, MillraceError, TaskFailedError
    from millrace.executor import TaskInfo, TaskStopped, get_task_info
    from millrace.future import Future, futures_of
    from millrace.ops import ExecutorOp, NativeOp, native
    from millrace.plugins import (
        CondaInstall,
        Environ,
        InstallPlugin,
        NannyPlugin,
        PipInstall,
        Preload,
        SchedulerPlugin,
        UploadDirectory,
        UploadFile,
        WorkerPlugin,
    )
    from millrace.servers import Nanny, Scheduler, SubprocessCluster, Worker
    from millrace.templates import Template, template

__all__ = [
    "Actor",
    "ActorFuture",
    "ActorLostError",
    "Adaptive",
    "AsyncClient",
    "CancelledError",
    "Client",
    "ClientExecutor",
    "CondaInstall",
    "Environ",
    "Event",
    "ExecutorOp",
    "Future",
    "InstallPlugin",
    "LocalCUDACluster",
    "LocalCluster",
    "Lock",
    "MillraceError",
    "MultiLock",
    "Nanny",
    "NannyPlugin",
    "NativeOp",
    "PipInstall",
    "Preload",
    "Pub",
    "Queue",
    "RebalanceReport",
    "Reschedule",
    "Scheduler",
    "SchedulerPlugin",
    "Semaphore",
    "Status",
    "Sub",
    "SubprocessCluster",
    "TaskFailedError",
    "TaskInfo",
    "TaskLine",
    "TaskStopped",
    "Template",
    "UploadDirectory",
    "UploadFile",
    "Variable",
    "Worker",
    "WorkerPlugin",
    "arrays",
    "as_completed",
    "default_client",
    "fire_and_forget",
    "futures_of",
    "get_client",
    "get_task_info",
    "get_task_metadata",
    "get_task_stream",
    "get_worker",
    "native",
    "performance_report",
    "progress",
    "rejoin",
    "secede",
    "sync",
    "template",
    "wait",
    "worker_client",
]

# Loaded at first use: executors use no part of the client, and must not wait until gRPC is loaded.
_HOMES = {
    "_values._arrays": ("arrays",),
    "_local._scaling": ("Adaptive",),
    "_session._display": ("TaskLine",),
    "_shared._locks": ("Lock", "MultiLock", "Semaphore"),
    "_actors._actor": ("Actor", "ActorFuture", "ActorLostError"),
    "_in_tasks": ("fire_and_forget", "get_worker", "worker_client"),
    "_performance_report": ("get_task_metadata", "get_task_stream", "performance_report"),
    "_tasks._progress": ("progress",),
    "_shared._pubsub": ("Pub", "Sub"),
    "_calls._rebalance": ("RebalanceReport",),
    "_shared._event": ("Event",),
    "_shared._shared_values": ("Queue", "Variable"),
    "_status": ("Status",),
    "_tasks._waiting": ("as_completed", "wait"),
    "_connection._event_loop": ("sync",),
    "_connection._slot": ("Reschedule", "rejoin", "secede"),
    "client": (
        "AsyncClient",
        "Client",
        "LocalCUDACluster",
        "LocalCluster",
        "default_client",
        "get_client",
    ),
    "client_executor": ("ClientExecutor",),
    "errors": ("CancelledError", "MillraceError", "TaskFailedError"),
    "executor": ("TaskInfo", "TaskStopped", "get_task_info"),
    "future": ("Future", "futures_of"),
    "ops": ("ExecutorOp", "NativeOp", "native"),
    "servers": ("Nanny", "Scheduler", "SubprocessCluster", "Worker"),
    "templates": ("Template", "template"),
    "plugins": (
        "CondaInstall",
        "Environ",
        "InstallPlugin",
        "NannyPlugin",
        "PipInstall",
        "Preload",
        "SchedulerPlugin",
        "UploadDirectory",
        "UploadFile",
        "WorkerPlugin",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"millrace.{module}"), name)
            globals()[name] = value
            return value
    if not name.startswith("_"):
        others = importlib.import_module("millrace._dask_names")
        if name in others.NAMES:
            return others.find("millrace", name)
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
