"""The scheduler, as programs of Dask's distributed look for it in a client, worker or cluster."""

from __future__ import annotations

from collections.abc import Callable

from millrace._status import Status


class SchedulerPlace:
    """A scheduler, which is a process of its own.

    Args:
        address: host:port.
        status: returns its state.
    """

    def __init__(self, address: str, status: Callable[[], Status]) -> None:
        #: Its address, as Dask writes it: "tcp://host:port".
        self.address = address if "://" in address or not address else f"tcp://{address}"
        self._status = status

    @property
    def status(self) -> Status:
        """`Status.running`, or `Status.closed` if it is closed or the client is."""
        return self._status()

    def __repr__(self) -> str:
        return f"<Scheduler: {self.address or 'no address'}, {self.status}>"
