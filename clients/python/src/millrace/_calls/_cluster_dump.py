"""Files with the state of a cluster, for debugging."""

from __future__ import annotations

import gzip
import importlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from google.protobuf.json_format import MessageToDict

from millrace._cluster._task_list import listed_tasks
from millrace._pb.millrace.v1 import client_pb2, cluster_pb2, dataset_pb2, worker_pb2
from millrace._session._session import Session


def collect(session: Session, exclude: Collection[str]) -> dict[str, Any]:
    """Returns all that the scheduler tells about the cluster. `exclude`: names of entries to leave
    out, at any depth."""
    if isinstance(exclude, str):
        raise TypeError(f"exclude: give a list of names, not {exclude!r}")
    cluster = session.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest()).cluster
    clients = session.call("ListClients", client_pb2.ListClientsRequest(page_size=1000)).clients
    datasets = session.call(
        "ListDatasets", dataset_pb2.ListDatasetsRequest(page_size=1000, namespace=session.namespace)
    ).datasets
    found = {
        "scheduler": _plain(cluster),
        "workers": {w.name: _plain(w) for w in session.listed_workers(worker_pb2.WORKER_VIEW_FULL)},
        "clients": [_plain(c) for c in clients],
        "datasets": [_plain(d) for d in datasets],
        "tasks": {t.key: _plain(t) for t in listed_tasks(session)},
        "client": {
            "id": session.client_id,
            "namespace": session.namespace,
            "references": {str(key): count for key, count in session.references().items()},
        },
    }
    return _without(found, frozenset(exclude))


def _plain(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        return {k: _without(v, names) for k, v in entries if k not in names}
    if isinstance(value, list):
        return [_without(v, names) for v in cast("list[Any]", value)]
    return value


def write(
    state: dict[str, Any], filename: str | os.PathLike[str], form: str, storage_options: Mapping[str, Any]
) -> None:
    """Writes a state into a file. See `Client.dump_cluster_state`."""
    if form == "json":
        data, extension = gzip.compress(json.dumps(state, indent=1).encode()), ".json.gz"
    elif form == "yaml":
        data, extension = _package("yaml", form).safe_dump(state).encode(), ".yaml"
    elif form == "msgpack":
        data, extension = gzip.compress(_package("msgpack", form).packb(state)), ".msgpack.gz"
    else:
        raise ValueError(f'format is "json", "yaml" or "msgpack", not {form!r}')
    path = os.fspath(filename)
    path = path if path.endswith(extension) else path + extension
    if "://" in path:
        with _package("fsspec", path).open(path, "wb", **storage_options) as out:
            out.write(data)
        return
    if storage_options:
        raise TypeError(f"storage_options: {', '.join(storage_options)} apply to URLs only, and {path!r} is a path")
    Path(path).write_bytes(data)


def _package(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"{what} needs the package {name}: install it, or write JSON into a local file") from None
