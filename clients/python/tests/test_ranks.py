"""The calls that the DaskEngine of cudf-polars makes to all workers: its ranks meet, and keep their
state in the processes (ADR 25)."""

from __future__ import annotations

import functools
import socket
import sys
import threading
from typing import Any

import cloudpickle
from conftest import PATIENCE
from millrace import Client, LocalCluster

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def set_up_root(ranks: int, *, uid: str, dask_worker: Any = None) -> int:
    """Opens the meeting point of all ranks, and returns its port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=ranks)
    setattr(dask_worker, f"_context_{uid}", {"server": server})
    return server.getsockname()[1]


def set_up_worker(port: int, ranks: int, *, uid: str, dask_worker: Any = None) -> None:
    """Waits for all ranks, and gets the number of this one."""
    context = getattr(dask_worker, f"_context_{uid}", None)
    if context is None:
        context = {}
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as other:
            context["rank"] = other.recv(1)[0]
    else:
        others = [context["server"].accept()[0] for _ in range(ranks - 1)]
        for rank, other in enumerate(others, 1):
            other.sendall(bytes([rank]))
            other.close()
        context["rank"] = 0
    context["thread"] = threading.current_thread()
    setattr(dask_worker, f"_context_{uid}", context)


def evaluate(rows: int, *, uid: str, dask_worker: Any = None) -> Any:
    context = getattr(dask_worker, f"_context_{uid}")
    return context["rank"], context["thread"] is threading.current_thread(), list(range(rows))


def test_the_calls_of_an_engine_with_ranks() -> None:
    """All ranks meet in one call, and later calls find their state, in the same thread."""
    with LocalCluster(2, threads_per_worker=1, device="host") as cluster, Client(cluster) as client:
        workers = list(client.scheduler_info(n_workers=-1)["workers"])
        ranks = len(workers)
        root = client.run(functools.partial(set_up_root, uid="a"), ranks, workers=[workers[0]])
        client.run(functools.partial(set_up_worker, uid="a"), root[workers[0]], ranks)
        for _ in range(3):
            answers = client.run(functools.partial(evaluate, uid="a"), 5)
            assert sorted(answers.values()) == [(rank, True, [0, 1, 2, 3, 4]) for rank in range(ranks)]
