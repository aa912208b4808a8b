"""Lists of the scheduler's tasks, and summaries of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from millrace import errors
from millrace._cluster._workers import label
from millrace._pb.millrace.v1 import task_calls_pb2, task_pb2, worker_pb2
from millrace._session._session import Session
from millrace._values import _keys

SUCCEEDED = (task_pb2.TASK_STATE_SUCCEEDED,)
PROCESSING = (task_pb2.TASK_STATE_ASSIGNED, task_pb2.TASK_STATE_RUNNING)

#: A transition as the scheduler prints it: time, states, cause and place.
_TRANSITION = re.compile(r"(\S+) (\w+) → (\w+): (.*)")


def listed_tasks(
    session: Session, states: Sequence[task_pb2.TaskState] = (), worker_id: int = 0
) -> Iterator[task_pb2.Task]:
    """Yields the tasks of this client's namespace.

    Args:
        session: the session of the client.
        states: only tasks in these states; none: all.
        worker_id: only tasks of this worker; 0: all.
    """
    session.flush()
    worker = worker_pb2.WorkerRef(id=worker_id) if worker_id else None
    token = ""
    while True:
        request = task_calls_pb2.ListTasksRequest(
            page_size=1000, page_token=token, worker=worker, states=states, namespace=session.namespace
        )
        page = session.call("ListTasks", request)
        yield from page.tasks
        token = page.next_page_token
        if not token:
            return


def processing(session: Session, workers: Sequence[worker_pb2.Worker]) -> dict[str, list[Any]]:
    """Returns the keys of the tasks that each of these workers has in its queue or runs."""
    of: dict[str, list[Any]] = {w.name: [] for w in workers}
    for task in listed_tasks(session, PROCESSING):
        if task.worker in of:
            of[task.worker].append(_keys.from_wire(task.key))
    return {label(w): of[w.name] for w in workers}


def nbytes(session: Session, wanted: set[Any] | None, *, summary: bool) -> dict[Any, int]:
    """Returns the sizes of results in bytes: see `Client.nbytes`."""
    out: dict[Any, int] = {}
    for task in listed_tasks(session, SUCCEEDED):
        key = _keys.from_wire(task.key)
        if wanted is None or key in wanted:
            name = _keys.prefix(key) if summary else key
            out[name] = out.get(name, 0) + task.output_bytes
    return out


def story(session: Session, keys: Sequence[Any], *, ignore_unknown: bool) -> list[tuple[Any, str, str, str, str]]:
    """Returns the transitions of tasks: see `Client.story`."""
    session.flush()
    out: list[tuple[Any, str, str, str, str]] = []
    for key in keys:
        wire = _keys.to_wire(key)
        ref = task_pb2.TaskRef(key=wire, namespace=session.namespace)
        request = task_calls_pb2.GetTaskRequest(task=ref, history=True)
        try:
            task = session.call("GetTask", request, keys=[wire]).task
        except errors.NotFoundError:
            if ignore_unknown:
                continue
            raise
        for line in task.history:
            match = _TRANSITION.fullmatch(line)
            if match is not None:
                out.append((key, match[2], match[3], _keys.named(match[4], [wire]), match[1]))
    return sorted(out, key=lambda entry: entry[-1])
