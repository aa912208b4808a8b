"""The workers of the cluster, and which of them hold results."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from millrace._connection._connection import Connection
from millrace._pb.millrace.v1 import task_calls_pb2, worker_calls_pb2, worker_pb2

#: Most tasks of one LocateObjects request; the scheduler refuses more.
_MOST_LOCATED = 100_000


class Locator:
    """Asks the scheduler for workers and for the locations of results, and remembers the data
    addresses in its answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        # Guarded by _lock. The workers by id as of the last answer, and its monotonic time; and the
        # last known data addresses, also of workers that are gone.
        self._workers: dict[int, worker_pb2.Worker] = {}
        self._workers_at = 0.0
        self._addresses: dict[int, str] = {}

    def check_open(self) -> None:
        """Raises SchedulerLostError if the client is closed."""
        self._connection.check_open()

    def lease_replaced(self) -> None:
        """Forgets all workers and addresses, because the client has a new lease. It may be from
        another scheduler process, which gives the same ids to other workers."""
        with self._lock:
            self._workers, self._addresses = {}, {}

    def workers(self, fresh: bool = True, timeout: float | None = None) -> list[worker_pb2.Worker]:
        """Returns the active workers, without their routes, deaths and GPU links. Without
        `fresh`, an answer that is less than one second old may be returned. `timeout`: as for
        `Connection.call`."""
        with self._lock:
            if not fresh and self._workers and time.monotonic() - self._workers_at < 1.0:
                return list(self._workers.values())
        found = {w.worker_id: w for w in self.list_workers([worker_pb2.WORKER_STATE_ACTIVE], timeout=timeout)}
        with self._lock:
            self._workers, self._workers_at = found, time.monotonic()
            self._addresses.update((w.worker_id, w.data_address) for w in found.values())
        return list(found.values())

    def list_workers(
        self,
        states: Sequence[worker_pb2.WorkerState],
        view: worker_pb2.WorkerView = worker_pb2.WORKER_VIEW_BASIC,
        *,
        timeout: float | None = None,
    ) -> list[worker_pb2.Worker]:
        """Returns the workers in these states, with the fields of `view`. An empty list of states
        means all but LOST. `timeout`: as for `Connection.call`, for each page."""
        found: list[worker_pb2.Worker] = []
        token = ""
        while True:
            request = worker_calls_pb2.ListWorkersRequest(page_size=1000, page_token=token, states=states, view=view)
            page = self._connection.call("ListWorkers", request, timeout=timeout)
            found += page.workers
            token = page.next_page_token
            if not token:
                return found

    def addresses(self) -> dict[int, str]:
        """Returns the data addresses of workers by id, as of the last answers. Workers that are
        gone may be among them."""
        with self._lock:
            return dict(self._addresses)

    @property
    def silent(self) -> bool:
        """True while the scheduler is away."""
        return bool(self._connection.silent_since)

    @property
    def reconnect_timeout(self) -> float:
        """How long the scheduler may be away, in seconds."""
        return self._connection.reconnect_timeout

    def locate(self, tasks: Sequence[int], timeout: float | None = None) -> tuple[Sequence[Any], dict[int, str]]:
        """Returns the locations of results in the order of the tasks, and the data addresses of the
        workers in them by id. `timeout`: as for `Connection.call`."""
        places: list[Any] = []
        found: dict[int, str] = {}
        for at in range(0, len(tasks), _MOST_LOCATED):
            request = task_calls_pb2.LocateObjectsRequest(task_ids=tasks[at : at + _MOST_LOCATED])
            located = self._connection.call("LocateObjects", request, timeout=timeout)
            places += located.objects
            found.update((w.worker_id, w.data_address) for w in located.workers)
        with self._lock:
            self._addresses.update(found)
        return places, found
