"""Reports about the tasks that ran inside of a with block."""

from __future__ import annotations

import abc
import html
import importlib
import inspect
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from millrace import _check
from millrace._calls import _task_runs
from millrace._calls._task_plot import TaskPlot, page
from millrace._calls._task_runs import Run
from millrace._cluster._cluster_html import cluster_card, size
from millrace._cluster._cluster_info import scheduler_info
from millrace.client import AsyncClient, Client, get_client


class _Block(abc.ABC):
    """A with block, also for `async with`, whose runs are looked at when it ends."""

    def __init__(self, client: Client | AsyncClient | None) -> None:
        self._given = client
        self._client: Client | None = None
        self._began = 0.0

    def __enter__(self) -> Any:
        given = get_client() if self._given is None else self._given
        self._client = given.sync if isinstance(given, AsyncClient) else given
        self._began = time.time()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        # The end of a run is noted when the scheduler learns of it, by the scheduler's clock.
        self._end(self._client, _task_runs.runs(self._client.session, self._began), time.time() - self._began)

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.session.pool.run(lambda: self.__exit__(kind, value, trace))

    @abc.abstractmethod
    def _end(self, client: Client, runs: list[Run], seconds: float) -> None:
        """Takes the runs that ended inside of the block."""


class get_task_stream(_Block):
    """Collects the runs of tasks that end inside of a with block: see `Client.get_task_stream`.

    Args:
        client: the client. Default: that of `get_client`.
        plot: make a picture of them, `figure`; "save": also write it into a file.
        filename: the file.
    """

    def __init__(
        self,
        client: Client | AsyncClient | None = None,
        plot: bool | Literal["save"] = False,
        filename: str = "task-stream.html",
    ) -> None:
        super().__init__(client)
        self._plot, self._filename = plot, filename
        #: The runs, after the block.
        self.data: list[Run] = []
        #: The picture, after the block.
        self.figure: TaskPlot | None = None

    def _end(self, client: Client, runs: list[Run], seconds: float) -> None:
        self.data += runs
        if self._plot:
            self.figure = TaskPlot(self.data)
            if self._plot == "save":
                self.figure.save(self._filename)


class get_task_metadata(_Block):
    """Collects the final states of the tasks that end inside of a with block, and descriptions of
    their last runs."""

    def __init__(self) -> None:
        super().__init__(None)
        #: "memory" or "erred" by key, after the block.
        self.state: dict[Any, str] | None = None
        #: Dicts by key, after the block, with the entries "start_time" and "stop_time" (in seconds
        #: since 1970), "worker", "nbytes" and "attempt".
        self.metadata: dict[Any, dict[str, Any]] | None = None

    def _end(self, client: Client, runs: list[Run], seconds: float) -> None:
        self.state, self.metadata = {}, {}
        for run in runs:
            key, span = run["key"], run["startstops"][0]
            self.state[key] = "memory" if run["status"] == "OK" else "erred"
            self.metadata[key] = {
                "start_time": span["start"], "stop_time": span["stop"],
                **{name: run[name] for name in ("worker", "nbytes", "attempt")},
            }  # fmt: skip


class performance_report(_Block):
    """Writes one HTML file about the tasks of a with block: the code of the block, a picture of
    what each slot did, the times of the functions, the workers, and where the functions spent time.

    Args:
        filename: the file, or a URL for fsspec.
        stacklevel: how many callers up the code of the block is: 1 for the place of the `with`.
        mode: no effect: the file never needs another one.
        storage_options: options of fsspec, for URLs.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str] = "millrace-report.html",
        stacklevel: int = 1,
        mode: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(None)
        self._filename, self._options = os.fspath(filename), dict(storage_options or {})
        self._code = _code(_check.integer(stacklevel, "stacklevel", 0, 1 << 20) + 1)

    def _end(self, client: Client, runs: list[Run], seconds: float) -> None:
        busy = sum(r["startstops"][0]["stop"] - r["startstops"][0]["start"] for r in runs)
        info = scheduler_info(client.session)
        slots = max(int(info["total_threads"]), 1)
        facts = {
            "time": f"{seconds:.3f} s",
            "runs": f"{len(runs)}, {sum(r['status'] != 'OK' for r in runs)} of them failed",
            "time in functions": f"{busy:.3f} s, {100 * busy / max(seconds * slots, 1e-9):.0f} % of {slots} slots",
            "results": size(sum(r["nbytes"] for r in runs)),
        }
        code = f"<h2>Code</h2><pre>{html.escape(self._code)}</pre>" if self._code else ""
        body = f"{cluster_card('Cluster', info, facts)}<h2>Tasks</h2>{TaskPlot(runs)._repr_html_()}{code}"
        end = time.time()
        _, picture = client.profile(start=end - seconds, stop=end, plot=True)
        text = page("Performance report", f"{body}<h2>Profile</h2>{picture._repr_html_()}")
        if "://" in self._filename:
            with importlib.import_module("fsspec").open(self._filename, "w", **self._options) as out:
                out.write(text)
        else:
            Path(self._filename).write_text(text, encoding="utf-8")


def _code(level: int) -> str:
    """Returns the code of a caller's function, or of its module or cell."""
    frame = inspect.currentframe()
    for _ in range(level):
        frame = None if frame is None else frame.f_back
    if frame is None:
        return ""
    try:
        return inspect.getsource(frame.f_code)
    except (OSError, TypeError):
        return ""
