"""Workers as users name them, and as they are described to users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from google.protobuf.json_format import MessageToDict

from millrace import _check, _mode
from millrace._pb.millrace.v1 import worker_pb2
from millrace._session._session import Session
from millrace._values import _keys

#: A worker as operators name it: its name, its id ("w7"), or a description of it (see `described`).
#: The name of a host stands for all its workers.
AnyWorker: TypeAlias = "str | Mapping[str, Any]"

#: Most workers of one order.
_MOST_WORKERS = 1000


def matching(workers: Sequence[worker_pb2.Worker], wanted: str | Sequence[str] | None) -> list[worker_pb2.Worker]:
    """Returns those of the workers that have one of these names, ids, hosts or addresses, ordered
    by name. None stands for all. An address may be written as Dask does, "tcp://host:port"."""
    listed_names = _check.names(wanted, "workers")
    if listed_names is None:
        return sorted(workers, key=lambda w: w.name)
    names = {name.removeprefix("tcp://") for name in listed_names}
    return sorted(
        (w for w in workers if names & {w.name, w.host, f"w{w.worker_id}", w.data_address}), key=lambda w: w.name
    )


def label(worker: worker_pb2.Worker) -> str:
    """Returns the text by which results name a worker: its name, and in a program of distributed its
    address, "tcp://host:port"."""
    return f"tcp://{worker.data_address}" if _mode.distributed and worker.data_address else worker.name


def labels(session: Session) -> Callable[[str], str]:
    """Returns a function that makes the label of a worker of its name."""
    known = {w.name: label(w) for w in session.workers()} if _mode.distributed else {}
    return lambda name: known.get(name, name)


def named(workers: Sequence[worker_pb2.Worker], wanted: str | Sequence[str] | None) -> list[worker_pb2.Worker]:
    """Is `matching`, but raises ValueError for a name, id, host or address that none of the workers
    has."""
    for name in _check.names(wanted, "workers") or ():
        if not matching(workers, name):
            there = ", ".join(sorted(w.name for w in workers)) or "none"
            raise ValueError(
                f"workers: no active worker has the name, id, host or address {name!r}; there are: {there}"
            )
    return matching(workers, wanted)


def references(
    session: Session, workers: AnyWorker | Sequence[AnyWorker], *, most: int | None = _MOST_WORKERS
) -> list[worker_pb2.WorkerRef]:
    """Returns references to the named workers, each once, in this order. A text that is no name, id
    or host of a worker that the scheduler lists is taken for a name: an order may outlive its
    worker.

    Raises:
        ValueError: there are none, or more than `most`.
        TypeError: something else than text and descriptions was given.
    """
    one = isinstance(workers, str) or (isinstance(workers, Mapping) and "id" in workers)
    given: list[Any] = [workers] if one else list(workers) if isinstance(workers, Iterable) else [workers]
    listed: list[worker_pb2.Worker] | None = None
    found: dict[str | int, worker_pb2.WorkerRef] = {}
    for item in given:
        if isinstance(item, Mapping):
            worker_id = _check.integer(
                cast("Mapping[str, Any]", item).get("id"), "workers: the id of a description", 1, (1 << 32) - 1
            )
            found[worker_id] = worker_pb2.WorkerRef(id=worker_id)
            continue
        (name,) = cast("list[str]", _check.names([item], "workers"))
        if listed is None:
            listed = session.listed_workers()
        for worker in matching(listed, name) or [worker_pb2.Worker(name=name)]:
            found[worker.name] = worker_pb2.WorkerRef(name=worker.name)
    if not found:
        raise ValueError("workers is empty: name at least one worker")
    if most is not None and len(found) > most:
        raise ValueError(f"workers: one order takes at most {most:,} workers, not {len(found):,}")
    return list(found.values())


#: The states of workers by the words of Dask's distributed.
_STATUS = {
    worker_pb2.WORKER_STATE_ACTIVE: "running",
    worker_pb2.WORKER_STATE_DRAINING: "closing_gracefully",
    worker_pb2.WORKER_STATE_DRAINED: "closing_gracefully",
}


def described(worker: worker_pb2.Worker) -> dict[str, Any]:
    """Returns a description of a worker for users: see `Client.scheduler_info`."""
    out: dict[str, Any] = {
        "id": worker.worker_id,
        "type": "Worker",
        "name": worker.name,
        "status": _STATUS.get(worker.state, "closed"),
        "nthreads": worker.slots,
        "last_seen": worker.last_seen_time.ToNanoseconds() / 1e9,
        "state": worker_pb2.WorkerState.Name(worker.state).removeprefix("WORKER_STATE_").lower(),
        "host": worker.host,
        "device": worker_pb2.DeviceKind.Name(worker.device).removeprefix("DEVICE_KIND_").lower(),
        "pid": worker.pid,
        "address": worker.data_address,
        "slots": worker.slots,
        "resources": dict(worker.resources),
        "memory_limit": worker.memory_limit_bytes,
        "memory_used": worker.memory_used_bytes,
        "assigned_tasks": worker.assigned_tasks,
        "finished_tasks": worker.finished_tasks,
        "objects": worker.objects,
        "rss": worker.rss_bytes,
        "spilled_bytes": worker.spilled_bytes,
        "received_bytes": worker.received_bytes,
        "sent_bytes": worker.sent_bytes,
        "version": worker.version,
        "linear_algebra": worker.linear_algebra.library,
    }
    out["drain"] = _drain(worker.drain) if worker.HasField("drain") else None
    out["deaths"] = [MessageToDict(d, preserving_proto_field_name=True) for d in worker.deaths]
    return out


def _drain(drain: worker_pb2.WorkerDrain) -> dict[str, Any]:
    """Returns a description of a drain."""
    return {
        "purpose": worker_pb2.DrainPurpose.Name(drain.purpose).removeprefix("DRAIN_PURPOSE_").lower(),
        "reason": drain.reason,
        "copied_objects": drain.copied_objects,
        "copied_bytes": drain.copied_bytes,
        "remaining_objects": drain.remaining_objects,
        "remaining_bytes": drain.remaining_bytes,
        "staying_objects": drain.staying_objects,
        "staying_bytes": drain.staying_bytes,
        "staying": [
            {"key": _keys.from_wire(o.key), "namespace": o.namespace, "bytes": o.bytes, "reason": o.reason}
            for o in drain.staying
        ],
    }
