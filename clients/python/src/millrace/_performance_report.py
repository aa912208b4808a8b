"""Reports about the tasks that ran inside of a with block."""

from __future__ import annotations

import abc
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
from millrace._calls._task_plot import TaskPlot
from millrace._calls._task_runs import Run
from millrace._pb.millrace.v1 import report_pb2
from millrace.client import AsyncClient, Client, get_client

#: Longest wait for a report, in seconds.
_REPORT_SECONDS = 120.0
#: Most bytes of code in a report.
_MOST_CODE = 256 << 10


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
        self._end(self._client)

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._client is not None
        await self._client.session.pool.run(lambda: self.__exit__(kind, value, trace))

    def _runs(self, client: Client) -> list[Run]:
        # The end of a run is noted when the scheduler learns of it, by the scheduler's clock.
        return _task_runs.runs(client.session, self._began)

    @abc.abstractmethod
    def _end(self, client: Client) -> None:
        """Looks at what ran inside of the block."""


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

    def _end(self, client: Client) -> None:
        self.data += self._runs(client)
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

    def _end(self, client: Client) -> None:
        self.state, self.metadata = {}, {}
        for run in self._runs(client):
            key, span = run["key"], run["startstops"][0]
            self.state[key] = "memory" if run["status"] == "OK" else "erred"
            self.metadata[key] = {
                "start_time": span["start"], "stop_time": span["stop"],
                **{name: run[name] for name in ("worker", "nbytes", "attempt")},
            }  # fmt: skip


class performance_report(_Block):
    """Writes one HTML file about the tasks of a with block: the pages of the dashboard, with what
    they showed at the end of the block. It has the code, the times of the functions, flame graphs,
    the task stream, the graphs with their tasks, the workers, memory, events and logs of the
    cluster. The file needs no other one, and makes no request.

    Args:
        filename: the file, or a URL for fsspec.
        stacklevel: how many callers up the code of the block is: 1 for the place of the `with`.
        mode: no effect: the file never needs another one.
        storage_options: options of fsspec, for URLs.

    Raises:
        InvalidRequestError: the report would have more than 60 MB.
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

    def _end(self, client: Client) -> None:
        request = report_pb2.GetReportRequest(title="Performance report", code=_shortened(self._code))
        request.start_time.FromNanoseconds(int(self._began * 1e9))
        client.session.flush()
        text = client.session.call("GetReport", request, timeout=_REPORT_SECONDS).html
        if "://" in self._filename:
            with importlib.import_module("fsspec").open(self._filename, "wb", **self._options) as out:
                out.write(text)
        else:
            Path(self._filename).write_bytes(text)


def _shortened(code: str) -> str:
    """Returns the begin of a code, so that it can be sent."""
    return code.encode()[:_MOST_CODE].decode(errors="ignore")


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
