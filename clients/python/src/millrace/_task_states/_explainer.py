"""Reasons why tasks wait."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence

import grpc

from millrace import _check
from millrace._connection._connection import Connection
from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2
from millrace._task_states._state import State
from millrace._values import _keys


def status_word(status: int) -> str:
    """Returns the name of a TaskStatus without its prefix: "RUNNING"."""
    return task_pb2.TaskStatus.Name(status).removeprefix("TASK_STATUS_")  # pyright: ignore[reportArgumentType]


class Explainer:
    """Asks the scheduler why tasks wait, and warns of those that no worker can run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Monotonic time of the last question of `why`.
        self._asked_at = 0.0

    def warn(self, pending: Sequence[State]) -> None:
        """Warns, once per task, of tasks that no worker can run. Checks only the first three."""
        for state in pending[:3]:
            why = self._explain(state, 2.0)
            if why and not state.warned:
                state.warned = True
                warnings.warn(
                    f"still waiting for {_keys.from_wire(state.key)!r}: {why}", stacklevel=_check.outside_stacklevel()
                )

    def why(self, state: State) -> str:
        """Returns the reason why a task can never run. Empty if it may run, or if no thread has
        waited long enough to ask."""
        if state.done or self._connection.closed:
            return ""
        now = time.monotonic()
        if now - state.since > 1.0 and now - self._asked_at > 0.1:
            self._asked_at = now
            self._explain(state, 0.5)
        return "" if state.done else state.why

    def _explain(self, state: State, timeout: float) -> str:
        """Asks the scheduler why a task waits. If it waits for an input, also why the input
        waits."""
        task = state.id
        for _ in range(8):
            if not task:
                break
            request = task_calls_pb2.ExplainTaskRequest(task=task_pb2.TaskRef(id=task))
            try:
                found = self._connection.explain(request, timeout)
            except (grpc.RpcError, ValueError):
                return state.why
            if found.status == task_pb2.TASK_STATUS_INPUTS_MISSING and found.missing:
                task = found.missing[0].task_id
                continue
            blocked = found.status in (task_pb2.TASK_STATUS_NO_WORKER_FITS, task_pb2.TASK_STATUS_NO_WORKERS)
            input_ = "" if task == state.id else f"its input {_keys.from_wire(found.task.key)!r}: "
            said = _keys.named(found.explanation, (m.key for m in found.missing))
            state.why = f"{input_}{status_word(found.status)}: {said}" if blocked else ""
            return state.why
        state.why = ""
        return ""
