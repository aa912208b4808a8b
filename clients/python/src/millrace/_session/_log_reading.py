"""Reads the output of tasks, and the logs of workers, from the workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from millrace import errors
from millrace._pb.millrace.v1 import data_service_pb2, data_service_pb2_grpc, log_pb2, worker_pb2
from millrace._session._session import Session
from millrace._values import _keys

#: Longest wait for the answer of a worker, in seconds.
_SECONDS = 30.0
#: Most keys of one request.
_MOST_KEYS = 10_000


def output(
    session: Session, workers: Sequence[worker_pb2.Worker], keys: Sequence[str] | None, ids: Sequence[int] = ()
) -> dict[Any, str]:
    """Returns the output of tasks as far as workers keep it, by key. `keys` and `ids`: those of the
    tasks; None and none: all tasks of the namespace."""
    within = Duration(seconds=100 * 365 * 86400)
    found: dict[str, dict[tuple[int, int], list[str]]] = {}
    for some in [None] if keys is None else _chunks(keys):
        request = data_service_pb2.FollowLogsRequest(
            namespace=session.namespace, keys=some, task_ids=ids, within=within, until_now=True
        )
        streams = [(w, _stub(session, w).FollowLogs(request, **_options(session))) for w in workers]
        for worker, batches in streams:
            try:
                for batch in batches:
                    for o in batch.outputs:
                        text = f"[... {o.skipped_bytes} bytes left out ...]\n" * bool(o.skipped_bytes) + o.text
                        found.setdefault(o.key, {}).setdefault((o.task_id, o.attempt), []).append(text)
            except grpc.RpcError as e:
                raise errors.from_rpc(e, f"logs of worker {worker.name}") from None
    return {
        _keys.from_wire(key): "".join("".join(attempts[n]) for n in sorted(attempts)) for key, attempts in found.items()
    }


def _chunks(keys: Sequence[str]) -> Iterable[Sequence[str]]:
    return (keys[i : i + _MOST_KEYS] for i in range(0, len(keys), _MOST_KEYS))


def of_workers(session: Session, workers: Sequence[worker_pb2.Worker], n: int) -> dict[str, list[tuple[str, str]]]:
    """Returns the last `n` lines of the log of each worker, newest first, as pairs of level and
    text; 0: all that are kept."""
    request = log_pb2.GetWorkerLogRequest(limit=n)
    calls = [(w, _stub(session, w).GetWorkerLog.future(request, **_options(session))) for w in workers]
    out: dict[str, list[tuple[str, str]]] = {}
    for worker, call in calls:
        try:
            out[worker.name] = lines(call.result().lines)
        except grpc.RpcError as e:
            raise errors.from_rpc(e, f"log of worker {worker.name}") from None
    return out


def lines(of: Iterable[log_pb2.LogLine]) -> list[tuple[str, str]]:
    """Returns lines of a log as Dask's distributed does: pairs of level and text, newest first."""
    texts = [(line.level, f"{line.time.ToJsonString()} {line.text}") for line in of]
    return texts[::-1]


def _stub(session: Session, worker: worker_pb2.Worker) -> Any:
    return data_service_pb2_grpc.DataServiceStub(session.worker_channel(worker.data_address))


def _options(session: Session) -> dict[str, Any]:
    return {"metadata": session.connection.metadata, "timeout": _SECONDS}
