"""Workers as users name them, and as they are described to users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from millrace import _check
from millrace._pb.millrace.v1 import worker_pb2


def matching(workers: Sequence[worker_pb2.Worker], wanted: str | Sequence[str] | None) -> list[worker_pb2.Worker]:
    """Returns those of the workers that have one of these names, ids or hosts, ordered by name; None
    stands for all."""
    listed_names = _check.names(wanted, "workers")
    if listed_names is None:
        return sorted(workers, key=lambda w: w.name)
    names = set(listed_names)
    return sorted((w for w in workers if names & {w.name, w.host, f"w{w.worker_id}"}), key=lambda w: w.name)


def described(worker: worker_pb2.Worker) -> dict[str, Any]:
    """Returns a description of a worker for `Client.scheduler_info`."""
    out = {
        "id": worker.worker_id,
        "name": worker.name,
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
        "received_bytes": worker.received_bytes,
        "sent_bytes": worker.sent_bytes,
        "version": worker.version,
    }
    out["deaths"] = [MessageToDict(d, preserving_proto_field_name=True) for d in worker.deaths]
    return out
