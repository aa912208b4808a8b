"""The identity of a client at the scheduler."""

from __future__ import annotations

from millrace._pb.millrace.v1 import client_pb2


class Lease:
    """The scheduler's promise to keep the tasks that this client holds. A lease that was lost is
    replaced: then this object has the ids of the next one. Guarded by the lock of TaskTable."""

    def __init__(self, address: str, opened: client_pb2.OpenClientResponse) -> None:
        self._address = address
        self.namespace: str = opened.client.namespace
        #: How many times the lease was replaced, and the reason for the last time.
        self.renewals, self.renewed_because = 0, ""
        self._take(opened)

    def _take(self, opened: client_pb2.OpenClientResponse) -> None:
        self.client_id: int = opened.client.client_id
        self.cluster = opened.cluster
        #: Random number of the scheduler process: ids of clients and tasks are valid only for one
        #: such process.
        self.life: int = opened.cluster.life

    def replace(self, opened: client_pb2.OpenClientResponse) -> None:
        """Takes the ids of a new lease, and notes why the old one was lost."""
        anew = opened.cluster.life != self.life
        self.renewals += 1
        self.renewed_because = "the scheduler was started anew" if anew else "its lease had run out"
        self._take(opened)

    def gone(self) -> str:
        """Returns the end of the error message for a task that was lost with a lease."""
        return (
            f"the scheduler at {self._address} does not know it any more, because {self.renewed_because or 'it was released'}: "
            "submit it again"
        )
