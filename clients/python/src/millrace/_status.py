"""The states of clusters, schedulers and workers, by the names of Dask's distributed."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Status(str, Enum):
    """The state of a cluster, a scheduler or a worker. A state is equal to its name as text:
    ``cluster.status == "running"``."""

    lookup: ClassVar[dict[str, Status]]

    undefined = "undefined"
    created = "created"
    init = "init"
    starting = "starting"
    running = "running"
    paused = "paused"
    stopping = "stopping"
    stopped = "stopped"
    closing = "closing"
    closing_gracefully = "closing_gracefully"
    closed = "closed"
    failed = "failed"
    dont_reply = "dont_reply"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


Status.lookup = {status.value: status for status in Status}
