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
    from millrace._arrays import arrays
    from millrace._rebalance import RebalanceReport
    from millrace._waiting import as_completed, wait
    from millrace.client import AsyncClient, Client, get_client
    from millrace.client_executor import ClientExecutor
    from millrace.cluster import LocalCluster
    from millrace.errors import CancelledError, MillraceError, TaskFailedError
    from millrace.executor import TaskInfo, TaskStopped, get_task_info
    from millrace.future import Future
    from millrace.ops import ExecutorOp, NativeOp, native

__all__ = [
    "AsyncClient",
    "CancelledError",
    "Client",
    "ClientExecutor",
    "ExecutorOp",
    "Future",
    "LocalCluster",
    "MillraceError",
    "NativeOp",
    "RebalanceReport",
    "TaskFailedError",
    "TaskInfo",
    "TaskStopped",
    "arrays",
    "as_completed",
    "get_client",
    "get_task_info",
    "native",
    "wait",
]

# Loaded at first use: executors use no part of the client, and must not wait until gRPC is loaded.
_HOMES = {
    "_arrays": ("arrays",),
    "_rebalance": ("RebalanceReport",),
    "_waiting": ("as_completed", "wait"),
    "client": ("AsyncClient", "Client", "get_client"),
    "client_executor": ("ClientExecutor",),
    "cluster": ("LocalCluster",),
    "errors": ("CancelledError", "MillraceError", "TaskFailedError"),
    "executor": ("TaskInfo", "TaskStopped", "get_task_info"),
    "future": ("Future",),
    "ops": ("ExecutorOp", "NativeOp", "native"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"millrace.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'millrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
