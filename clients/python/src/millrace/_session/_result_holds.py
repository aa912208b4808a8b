"""Holds on the results of futures that are inside of other results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millrace import errors
from millrace._connection._connection import Connection
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2
from millrace._task_states._state import State
from millrace._task_states._task_table import TaskTable

#: Interval in seconds at which a client in a task's process asks which results with futures in them
#: still exist.
CHECK_SECONDS = 5.0
# Most tasks of one request.
_MOST_LOCATED = 100_000
_GONE = (
    task_pb2.TASK_STATE_UNSPECIFIED,
    task_pb2.TASK_STATE_RELEASED,
    task_pb2.TASK_STATE_FAILED,
    task_pb2.TASK_STATE_CANCELLED,
)


class ResultHolds:
    """Holds the tasks of futures that a task of this process has returned, as long as its result
    exists. A reader of the result takes a hold of its own."""

    def __init__(
        self, connection: Connection, lease: Lease, tasks: TaskTable, release: Callable[[State], None]
    ) -> None:
        self._connection, self._lease, self._tasks, self._release = connection, lease, tasks, release
        # The states of the futures in each result, by the id of the task that returned them.
        # Guarded by the lock of `tasks`.
        self._held: dict[int, dict[int, State]] = {}
        self._thread: threading.Thread | None = None

    def add(self, task: int, state: State) -> None:
        """Holds a task as long as the result of another task, `task`, exists."""
        with self._tasks.changed:
            kept = self._held.setdefault(task, {})
            if id(state) in kept:
                return
            kept[id(state)] = state
            state.refs += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millrace-result-holds", daemon=True)
                self._thread.start()

    def lease_replaced(self) -> None:
        """Forgets all tasks, because their holds have ended with the old lease."""
        with self._tasks.changed:
            self._held.clear()

    def _run(self) -> None:
        while not self._connection.ended.wait(CHECK_SECONDS):
            with self._tasks.changed:
                tasks, life = list(self._held), self._lease.life
            for at in range(0, len(tasks), _MOST_LOCATED):
                self._check(tasks[at : at + _MOST_LOCATED], life)

    def _check(self, tasks: Sequence[int], life: int) -> None:
        """Ends the holds for those of these results that do not exist any more. `life`: the
        scheduler's life to which the ids belong."""
        try:
            located = self._connection.call("LocateObjects", task_calls_pb2.LocateObjectsRequest(task_ids=tasks))
        except errors.MillraceError:
            return  # they are asked for again
        with self._tasks.changed:
            if life != self._lease.life:
                return
            states = [
                s
                for t, o in zip(tasks, located.objects, strict=True)
                if o.state in _GONE
                for s in self._held.pop(t, {}).values()
            ]
        for state in states:
            self._release(state)
