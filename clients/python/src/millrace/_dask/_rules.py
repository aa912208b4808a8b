"""The options of the tasks of a graph: those of the call, and Dask's annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from millrace._session._session import Session
from millrace._tasks._task_options import TaskOptions

_NAMES = ("priority", "retries", "workers", "allow_other_workers", "resources")
#: Seconds before the first retry of a task. Dask's users expect it at once.
_RETRY_PAUSE = 0.005


class Rules:
    """The options of each task of a graph.

    Args:
        session: the session of the client.
        options: those of the call.
        annotations: values by name of the option and key, as Dask collects them. They are
            preferred to the options of the call.
    """

    def __init__(self, session: Session, options: TaskOptions, annotations: Mapping[str, Mapping[Any, Any]]) -> None:
        self._session = session
        self._options = replace(options, retry_pause=_RETRY_PAUSE)
        self._plain = self._options.pack(session)
        self._annotations = {name: by_key for name, by_key in annotations.items() if name in _NAMES and by_key}
        self._packed: dict[Any, bytes] = {}

    def of(self, key: Any) -> bytes:
        """Returns the packed options of a task."""
        if not self._annotations:
            return self._plain
        found = {name: by_key[key] for name, by_key in self._annotations.items() if key in by_key}
        if not found:
            return self._plain
        mark = repr(sorted(found.items()))
        packed = self._packed.get(mark)
        if packed is None:
            if isinstance(found.get("workers"), (set, frozenset, tuple)):
                found["workers"] = list(found["workers"])
            packed = self._packed[mark] = replace(self._options, **found).pack(self._session)
        return packed
