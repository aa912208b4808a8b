"""Bars that show how far tasks are, for terminals and notebooks."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from millrace import _check, errors
from millrace._check import Seconds
from millrace._connection._steps import Steps, run
from millrace._pb.millrace.v1 import graph_pb2
from millrace._session._session import Session
from millrace.future import Future, ended, futures_of, served

#: Number of characters of a bar in a terminal.
_WIDTH = 40
#: Most bars in a notebook; further ones are one bar together.
_MOST_BARS = 20


class Row(NamedTuple):
    """The tasks of one name."""

    name: str
    #: Number of tasks, of those that have ended, and of those among them that have not succeeded.
    total: int
    ended: int
    failed: int


def progress(
    *futures: Any,
    notebook: bool | None = None,
    multi: bool = True,
    complete: bool = True,
    group_by: str = "prefix",
    interval: Seconds = "100ms",
) -> Any:
    """Shows how many of the tasks have ended on which futures or collections wait, and of the other
    tasks of their clients.

    In a terminal it returns when the futures have ended; in a notebook at once, and the bars go on.
    In an event loop, it returns a coroutine if the futures are of an AsyncClient.

    Args:
        futures: futures, persisted collections of Dask, and lists and dicts of these.
        notebook: show HTML. Default: in a notebook.
        multi: in a notebook, show a bar for each function instead of one for all.
        complete: count the futures that have ended before this call, too.
        group_by: what a bar stands for; only "prefix", the function.
        interval: time from one look to the next, in seconds, as a timedelta or as text ("100ms").
    """
    if group_by != "prefix":
        raise ValueError(f'group_by is "prefix", not {group_by!r}')
    wanted = list(futures_of(futures))
    seconds = _check.seconds(interval, "interval")
    measure = _Measure(wanted, complete)
    if not (_in_notebook() if notebook is None else notebook):
        return served(wanted, _draw(measure, _Line(), seconds))
    page = _Page(multi)
    page.show(measure.rows(), False)
    threading.Thread(target=lambda: run(_draw(measure, page, seconds)), name="millrace-progress", daemon=True).start()
    return None


class _Measure:
    """Counts tasks from now on.

    The scheduler counts the tasks of a client by function. Those that have ended already are left
    out: they belong to earlier work.
    """

    def __init__(self, futures: list[Future[Any]], complete: bool) -> None:
        self.futures = futures
        self._sessions = list(dict.fromkeys(f._session for f in futures))
        for session in self._sessions:
            session.flush()
        self._complete = complete
        counts = self._counts()
        self._start = {op: _ended(c) for op, c in counts.items()}

    @property
    def done(self) -> bool:
        """Whether all futures have ended."""
        return all(f._state.done for f in self.futures)

    def rows(self) -> list[Row]:
        """Returns the counts by function, those that began first in front."""
        rows: list[Row] = []
        for op, counts in self._counts().items():
            before = self._start.get(op, 0)
            total = _total(counts) - before
            if total > 0:
                rows.append(Row(op, total, _ended(counts) - before, min(counts.failed + counts.cancelled, total)))
        missing = len(self.futures) - _sum("", rows).total
        if self._complete and missing > 0:
            rows.insert(0, Row("ended before", missing, missing, 0))
        return rows

    def _counts(self) -> dict[str, graph_pb2.TaskCounts]:
        out: dict[str, graph_pb2.TaskCounts] = {}
        for session in self._sessions:
            for graph in session.graphs:
                for summary in _summaries(session, graph):
                    known = out.setdefault(summary.op, graph_pb2.TaskCounts())
                    for field, value in summary.counts.ListFields():
                        setattr(known, field.name, getattr(known, field.name) + value)
        return out


def _summaries(session: Session, graph: int) -> Iterable[graph_pb2.OpSummary]:
    try:
        return session.call("GetGraph", graph_pb2.GetGraphRequest(graph_id=graph)).graph.ops
    except (errors.NotFoundError, errors.SchedulerLostError):
        return ()


def _total(c: graph_pb2.TaskCounts) -> int:
    return c.waiting + c.ready + c.assigned + c.running + c.rescuing + _ended(c)


def _ended(c: graph_pb2.TaskCounts) -> int:
    return c.succeeded + c.failed + c.cancelled + c.released


def _sum(name: str, rows: Iterable[Row]) -> Row:
    rows = list(rows)
    return Row(name, sum(r.total for r in rows), sum(r.ended for r in rows), sum(r.failed for r in rows))


def _draw(measure: _Measure, place: _Line | _Page, seconds: float) -> Steps[None]:
    while not measure.done:
        place.show(measure.rows(), False)
        yield ended([f for f in measure.futures if not f._state.done], seconds)
    place.show(measure.rows(), True)
    place.end(measure.futures)


class _Line:
    """One bar in a terminal, for all tasks."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def show(self, rows: list[Row], finished: bool) -> None:
        _, total, done, _ = _sum("", rows)
        share = 1.0 if finished else min(done / total, 1.0) if total else 0.0
        bar = "#" * int(share * _WIDTH)
        seconds = time.monotonic() - self._start
        sys.stdout.write(f"\r[{bar:<{_WIDTH}}] | {share:4.0%} Completed | {done:,}/{total:,} tasks | {seconds:5.1f}s")
        sys.stdout.flush()

    def end(self, futures: list[Future[Any]]) -> None:
        text = _failures(futures)
        sys.stdout.write(f"\n{text}\n" if text else "\n")
        sys.stdout.flush()


class _Page:
    """Bars in a notebook.

    Args:
        multi: one bar for each function.
    """

    def __init__(self, multi: bool) -> None:
        self._multi, self._handle, self._rows = multi, cast(Any, None), list[Row]()

    def show(self, rows: list[Row], finished: bool, text: str = "") -> None:
        from IPython.display import HTML, display

        self._rows = rows
        if not self._multi or len(rows) > _MOST_BARS:
            kept = rows[: _MOST_BARS - 1] if self._multi else []
            rest = rows[len(kept) :]
            rows = [*kept, _sum("others" if kept else "all", rest)]
        page = HTML(page_of(rows, finished, text))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)

    def end(self, futures: list[Future[Any]]) -> None:
        if text := _failures(futures):
            self.show(self._rows, True, text)


def page_of(rows: list[Row], finished: bool, text: str = "") -> str:
    """Returns the bars as HTML. `text` stands below them."""
    _, total, done, _ = _sum("", rows)
    cells = "".join(
        f"<tr><td style='text-align:left'>{html.escape(r.name)}</td>"
        f"<td><progress max='{max(r.total, 1)}' value='{r.ended}' style='width:24em'></progress></td>"
        f"<td>{r.ended:,} / {r.total:,}{f', {r.failed:,} failed' if r.failed else ''}</td></tr>"
        for r in rows
    )
    head = "Finished" if finished else "Running"
    foot = f"<div style='color:#c33'>{html.escape(text)}</div>" if text else ""
    return f"<div><b>{head}</b>: {done:,} of {total:,} tasks<table>{cells}</table>{foot}</div>"


def _failures(futures: list[Future[Any]]) -> str:
    """Returns how many futures have failed, and the first error; empty if none has."""
    failed = [f for f in futures if f._state.exception() is not None]
    if not failed:
        return ""
    first = failed[0]._state.exception()
    reason = str(first).partition("\n")[0]
    return f"{len(failed):,} of {len(futures):,} futures failed; {failed[0].key}: {type(first).__name__}: {reason}"


def _in_notebook() -> bool:
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")
