"""The finished runs of tasks that the scheduler remembers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from millrace import _check
from millrace._cluster._workers import labels
from millrace._pb.millrace.v1 import task_calls_pb2
from millrace._session._session import Session
from millrace._values import _keys

#: A run as `Client.get_task_stream` describes it.
Run = dict[str, Any]


def runs(session: Session, start: float = 0.0, stop: float | None = None, count: int | None = None) -> list[Run]:
    """Returns the runs of this client's namespace, in the order of their ends.

    Args:
        session: the session of the client.
        start: only runs that ended at this time or later, in seconds since 1970.
        stop: only runs that began before this time; None: all.
        count: only the last ones of this number; None: all.
    """
    session.flush()
    request = task_calls_pb2.ListTaskRunsRequest(page_size=1000, namespace=session.namespace)
    request.begin_time.FromNanoseconds(int(start * 1e9))
    found: list[Run] = []
    shown = labels(session)
    while True:
        page = session.call("ListTaskRuns", request)
        found += [_described(run, shown) for run in page.runs]
        request.page_token = page.next_page_token
        if not request.page_token:
            break
    if stop is not None:
        found = [r for r in found if r["startstops"][0]["start"] < stop]
    found = found[-count:] if count else [] if count == 0 else found
    number_lanes(found)
    return found


def moment(value: Any, what: str) -> float:
    """Returns a time in seconds since 1970. Text and a timedelta are times before now."""
    if isinstance(value, (str, timedelta)):
        return time.time() - _check.seconds(value, what)
    return _check.seconds(value, what)


def _described(run: Any, shown: Callable[[str], str]) -> Run:
    end = run.end_time.ToNanoseconds() / 1e9
    return {
        "key": _keys.from_wire(run.key),
        "worker": shown(run.worker),
        "status": "OK" if run.succeeded else "error",
        "nbytes": run.output_bytes,
        "attempt": run.attempt,
        "startstops": [{"action": "compute", "start": end - run.run_time.ToNanoseconds() / 1e9, "stop": end}],
    }


def number_lanes(found: list[Run]) -> None:
    """Gives each run a lane of its worker, as its "thread": runs of one lane do not overlap."""
    free: dict[str, list[float]] = {}
    for run in sorted(found, key=lambda r: r["startstops"][0]["start"]):
        span = run["startstops"][0]
        lanes = free.setdefault(run["worker"], [])
        begin = span["start"] + 1e-6
        lane = next((i for i, since in enumerate(lanes) if since <= begin), len(lanes))
        if lane == len(lanes):
            lanes.append(0.0)
        lanes[lane] = span["stop"]
        run["thread"] = lane
