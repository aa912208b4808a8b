"""Millrace: many workers, one computer.

>>> from millrace import Client
>>> with Client() as client:                      # doctest: +SKIP
...     client.submit(sum, [1, 2, 3]).result()
6
"""

from __future__ import annotations

from millrace.client import AsyncClient, Client, get_client
from millrace.cluster import LocalCluster
from millrace.errors import CancelledError, MillraceError, TaskFailedError
from millrace.executor import TaskInfo, TaskStopped, get_task_info
from millrace.future import ClientExecutor, Future, as_completed, wait
from millrace.ops import ExecutorOp, NativeOp, native

__version__ = "0.1.0"

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
    "TaskFailedError",
    "TaskInfo",
    "TaskStopped",
    "as_completed",
    "get_client",
    "get_task_info",
    "native",
    "wait",
]
