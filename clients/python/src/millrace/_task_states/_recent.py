"""The tasks that a client has submitted lately, so that it can run one of them itself."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from millrace._task_states._state import OpKey, Spec

#: Most bytes of arguments that are kept, and the most tasks.
_MOST_BYTES = 32 << 20
_MOST_TASKS = 100_000

#: Op of a task, the keys of its inputs, its serialised arguments, and the inputs that are items of
#: lists (see Spec.items).
Call: TypeAlias = tuple[OpKey, list[str], bytes, Sequence[tuple[int, int, int]]]


class RecentTasks:
    """Submitted tasks by key, the latest ones as far as they fit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock. The tasks, the latest one last, and the bytes of their arguments.
        self._tasks: collections.OrderedDict[str, Call] = collections.OrderedDict()
        self._nbytes = 0

    def add(self, specs: Iterable[Spec]) -> None:
        """Adds tasks, and forgets the oldest ones if there are too many."""
        with self._lock:
            tasks = self._tasks
            for spec in specs:
                before = tasks.pop(spec.key, None)
                if before is not None:
                    self._nbytes -= len(before[2])
                tasks[spec.key] = spec.op, spec.inputs, spec.arguments, spec.items
                self._nbytes += len(spec.arguments)
            while tasks and (self._nbytes > _MOST_BYTES or len(tasks) > _MOST_TASKS):
                self._nbytes -= len(tasks.popitem(last=False)[1][2])

    def get(self, key: str) -> Call | None:
        """Returns a task; None if it was not submitted by this client, or is forgotten."""
        with self._lock:
            return self._tasks.get(key)
