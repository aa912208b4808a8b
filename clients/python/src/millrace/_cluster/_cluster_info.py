"""Descriptions of the cluster and of the places of results."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Any

from millrace import _mode, errors
from millrace._cluster._cluster_html import ClusterDescription, card, cluster_card, link
from millrace._cluster._task_list import SUCCEEDED, listed_tasks
from millrace._cluster._workers import described, label, labels, named
from millrace._pb.millrace.v1 import alarm_pb2, cluster_pb2, task_calls_pb2, task_pb2, worker_pb2
from millrace._session._session import Session
from millrace._task_states._explainer import status_word
from millrace._values import _keys
from millrace._values._keys import UserKey
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
            names = {w.worker_id: label(w) for w in located.workers}
            for f, place in zip(some, located.objects, strict=True):
                out[f.key] = [names[w] for w in place.worker_ids if w in names]
    return out


def who_has_all(session: Session) -> dict[Any, list[str]]:
    """Is `who_has` for all results of the namespace."""
    shown = labels(session)
    return {
        _keys.from_wire(t.key): sorted(map(shown, t.replicas)) for t in listed_tasks(session, SUCCEEDED) if t.replicas
    }


def has_what(session: Session, workers: str | Sequence[str] | None) -> dict[str, list[Any]]:
    """See `Client.has_what`."""
    out: dict[str, list[Any]] = {}
    for worker in named(session.workers(), workers):
        tasks = listed_tasks(session, SUCCEEDED, worker.worker_id)
        out[label(worker)] = [_keys.from_wire(t.key) for t in tasks if worker.name in t.replicas]
    return out


def scheduler_info(session: Session, n_workers: int = -1, timeout: float | None = None) -> ClusterDescription:
    """Returns a description of the cluster; its workers are under "workers", by name.

    Args:
        session: the session of a client.
        n_workers: most workers to describe; negative: all.
        timeout: longest wait for the scheduler, in seconds; None: that of other calls.
    """
    cluster = session.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest(), timeout=timeout).cluster
    alarms = session.call("ListAlarms", alarm_pb2.ListAlarmsRequest(), timeout=timeout).alarms
    workers = session.listed_workers(worker_pb2.WORKER_VIEW_FULL)
    shown = workers if n_workers < 0 else workers[:n_workers]
    return ClusterDescription(
        type="Scheduler",
        id=cluster.cluster_id,
        address=f"tcp://{session.address}" if _mode.distributed else session.address,
        version=cluster.version,
        started=cluster.start_time.ToNanoseconds() / 1e9,
        http=cluster.http_address,
        services={"dashboard": int(cluster.http_address.rpartition(":")[2])} if cluster.http_address else {},
        tasks={f.name: getattr(cluster.tasks, f.name) for f in cluster.tasks.DESCRIPTOR.fields},
        alarms=[_described_alarm(a) for a in alarms],
        clients=cluster.clients,
        n_workers=len(workers),
        total_threads=sum(w.slots for w in workers),
        total_memory=sum(w.memory_limit_bytes for w in workers),
        workers={label(w): described(w) for w in shown},
    )


def _described_alarm(alarm: alarm_pb2.Alarm) -> dict[str, Any]:
    return {
        "id": alarm.alarm_id,
        "kind": alarm_pb2.AlarmKind.Name(alarm.kind).removeprefix("ALARM_KIND_").lower(),
        "severity": alarm_pb2.AlarmSeverity.Name(alarm.severity).removeprefix("ALARM_SEVERITY_").lower(),
        "since": alarm.start_time.ToNanoseconds() / 1e9,
        "subject": alarm.subject,
        "text": alarm.text,
        "remedy": alarm.remedy,
    }


def explain(session: Session, future: Future[Any] | UserKey) -> str:
    """Explains why a task is not running, or how it ended."""
    session.flush()
    key = future._state.key if isinstance(future, Future) else _keys.to_wire(future)
    request = task_calls_pb2.ExplainTaskRequest(task=task_pb2.TaskRef(key=key, namespace=session.namespace))
    found = session.call("ExplainTask", request, keys=[key])
    keys = {key, found.task.error.origin_key, *found.task.inputs, *(m.key for m in found.missing)}
    return f"{status_word(found.status)}: {_keys.named(found.explanation, keys)}"


def client_card(session: Session, kind: str, dashboard: str) -> str:
    """Returns a card of HTML about a client and its cluster.

    Args:
        session: the session of the client.
        kind: name of the client's class.
        dashboard: URL of the dashboard, or empty.
    """
    try:
        info = None if session.closed or session.silent_since else scheduler_info(session, timeout=_SUMMARY_SECONDS)
    except errors.MillraceError:
        info = None
    if info is None:
        return card(
            kind,
            {
                "status": "closed. No scheduler connected." if session.closed else html.escape(summary(session)),
                **({"dashboard": link(dashboard)} if dashboard and not session.closed else {}),
            },
        )
    facts = {"lease": f"Client-{session.client_id} in namespace {html.escape(session.namespace)}"}
    if dashboard:
        facts = {"dashboard": link(dashboard), **facts}
    return cluster_card(kind, info, {**facts, "futures": str(len(session.references()))})


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
