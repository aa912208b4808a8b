"""Descriptions of the cluster and of the places of results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from millrace import _keys, errors
from millrace._explainer import status_word
from millrace._keys import UserKey
from millrace._pb.millrace.v1 import cluster_pb2, task_calls_pb2, task_pb2, worker_pb2
from millrace._session import Session
from millrace._workers import described, named
from millrace.future import Future, by_session

#: Longest wait for an answer before a client is described without its workers, in seconds.
_SUMMARY_SECONDS = 1.0


def who_has(futures: Sequence[Future[Any]]) -> dict[Any, list[str]]:
    """Returns the names of the workers that hold each result, by key."""
    out: dict[Any, list[str]] = {f.key: [] for f in futures}
    for session, group in by_session(futures).items():
        session.flush()
        for at in range(0, len(group), 100_000):
            some = [f for f in group[at : at + 100_000] if f._state.id]
            request = task_calls_pb2.LocateObjectsRequest(task_ids=[f._state.id for f in some])
            located = session.call("LocateObjects", request)
            names = {w.worker_id: w.name for w in located.workers}
            for f, place in zip(some, located.objects, strict=True):
                out[f.key] = [names[w] for w in place.worker_ids if w in names]
    return out


def has_what(session: Session, workers: str | Sequence[str] | None) -> dict[str, list[Any]]:
    """See `Client.has_what`."""
    session.flush()
    out: dict[str, list[Any]] = {}
    for worker in named(session.workers(), workers):
        keys = out.setdefault(worker.name, [])
        token = ""
        while True:
            page = session.call(
                "ListTasks",
                task_calls_pb2.ListTasksRequest(
                    page_size=1000,
                    page_token=token,
                    worker=worker_pb2.WorkerRef(id=worker.worker_id),
                    states=[task_pb2.TASK_STATE_SUCCEEDED],
                    namespace=session.namespace,
                ),
            )
            keys += [_keys.from_wire(t.key) for t in page.tasks if worker.name in t.replicas]
            token = page.next_page_token
            if not token:
                break
    return out


def scheduler_info(session: Session) -> dict[str, Any]:
    """Returns a description of the cluster; its workers are under "workers", by name."""
    cluster = session.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest()).cluster
    return {
        "id": cluster.cluster_id,
        "address": session.address,
        "version": cluster.version,
        "http": cluster.http_address,
        "tasks": {f.name: getattr(cluster.tasks, f.name) for f in cluster.tasks.DESCRIPTOR.fields},
        "workers": {w.name: described(w) for w in session.listed_workers(worker_pb2.WORKER_VIEW_FULL)},
    }


def explain(session: Session, future: Future[Any] | UserKey) -> str:
    """Explains why a task is not running, or how it ended."""
    session.flush()
    key = future._state.key if isinstance(future, Future) else _keys.to_wire(future)
    request = task_calls_pb2.ExplainTaskRequest(task=task_pb2.TaskRef(key=key, namespace=session.namespace))
    found = session.call("ExplainTask", request, keys=[key])
    keys = {key, found.task.error.origin_key, *found.task.inputs, *(m.key for m in found.missing)}
    return f"{status_word(found.status)}: {_keys.named(found.explanation, keys)}"


def summary(session: Session) -> str:
    """Returns a line about a client and its cluster, for people."""
    if session.closed:
        return "closed"
    silent = session.silent_since
    if silent:
        return f"{session.address}, no answer for {time.monotonic() - silent:.0f} s"
    try:
        workers = session.workers(fresh=False, timeout=_SUMMARY_SECONDS)
    except errors.MillraceError:
        return f"{session.address}, unreachable"
    slots = sum(w.slots for w in workers)
    memory = sum(w.memory_limit_bytes for w in workers)
    paths = sorted(set(session.paths().values()))
    data = f", data by {' and '.join(paths)}" if paths else ""
    renewed = session.renewals
    anew = f", lease {renewed + 1}: {session.renewed_because}" if renewed else ""
    return f"{session.address}, {len(workers)} workers, {slots} slots, {_memory(memory)}{data}{anew}"


def _memory(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"
