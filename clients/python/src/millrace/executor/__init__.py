"""The Python executor: a process that runs tasks for a worker. See docs/executor-protocol.md."""

from __future__ import annotations

from millrace.executor._failure import TaskStopped
from millrace.executor._task_info import TaskInfo, get_task_info

__all__ = ["TaskInfo", "TaskStopped", "get_task_info"]
