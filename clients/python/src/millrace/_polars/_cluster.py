"""The part of a client that queries use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from millrace._tasks._waiting import wait
from millrace.client import Client
from millrace.future import results_of


class Submitter(Protocol):
    """Runs the tasks of queries. Its futures are values that stand for results in the arguments of
    further tasks."""

    def submit(self, function: str, /, *arguments: Any) -> Any:
        """Starts a function of `_tasks`, and returns a future."""
        ...

    def scatter(self, data: list[Any]) -> list[Any]:
        """Stores values on the workers, and returns a future of each."""
        ...

    def sizes(self, futures: Sequence[Any]) -> list[int]:
        """Waits for tasks, and returns the bytes of their results.

        Raises:
            Exception: that of the first task that failed.
        """
        ...

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """Waits for tasks, and returns their results."""
        ...


class Cluster:
    """The submitter of a client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, function: str, /, *arguments: Any) -> Any:
        return self._client.submit(f"millrace._polars._tasks:{function}", *arguments, pure=False)

    def scatter(self, data: list[Any]) -> list[Any]:
        return self._client.scatter(data)

    def sizes(self, futures: Sequence[Any]) -> list[int]:
        wait(list(futures))
        for future in futures:
            if future.status != "finished":
                future.result()  # raises the error
        return [f._state.nbytes or 0 for f in futures]

    def results(self, futures: Sequence[Any]) -> list[Any]:
        return results_of(futures) if futures else []
