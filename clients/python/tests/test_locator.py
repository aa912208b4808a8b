"""The locations of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from millrace._connection._connection import Connection
from millrace._pb.millrace.v1 import task_calls_pb2, worker_pb2
from millrace._transfer._locator import Locator


class Scheduler:
    """Answers LocateObjects, and counts the tasks of each request."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def call(self, name: str, request: task_calls_pb2.LocateObjectsRequest, *, timeout: float | None = None) -> Any:
        assert name == "LocateObjects"
        self.asked.append(len(request.task_ids))
        return task_calls_pb2.LocateObjectsResponse(
            objects=[task_calls_pb2.ObjectLocation(task_id=t) for t in request.task_ids],
            workers=[worker_pb2.WorkerAddress(worker_id=len(self.asked), data_address="host:1")],
        )


def test_many_objects_are_located_in_several_calls() -> None:
    """One request may name 100,000 tasks."""
    scheduler = Scheduler()
    tasks: Sequence[int] = range(1, 200_002)
    places, addresses = Locator(cast(Connection, scheduler)).locate(tasks)
    assert [p.task_id for p in places] == list(tasks)
    assert scheduler.asked == [100_000, 100_000, 1]
    assert list(addresses) == [1, 2, 3]
