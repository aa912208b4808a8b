"""Information about the running task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TaskInfo:
    """Information about the running task, for its own function."""

    #: Key of the task's result: a str, bytes, int, float or tuple.
    key: Any
    #: Numeric id of the task.
    task_id: int
    #: Number of this attempt, from 1.
    attempt: int
    #: Name of the worker.
    worker: str
    #: Namespace that the key belongs to.
    namespace: str
    #: Its priority. Tasks that it submits have the same one by default.
    priority: int
    #: The worker's memory is that of a GPU.
    on_gpu: bool = False
    #: Name of its function, as the dashboard shows it: that of the task's op.
    op: str = ""


#: The task that runs in this process; None: there is none. Set by the executor.
current: TaskInfo | None = None


def get_task_info() -> TaskInfo | None:
    """Returns information about the task that runs in this process, or None outside of a task."""
    return current
