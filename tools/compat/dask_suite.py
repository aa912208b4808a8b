"""A pytest plugin that runs dask's own tests with another scheduler.

Every computation goes to that scheduler, also one that names a scheduler of dask: most tests of
dask compute with "sync". Functions that a test passes as its own scheduler are left alone.

Environment:
    COMPAT_SCHEDULER: threads, distributed or millrace.
    COMPAT_RESULTS: a file that gets one JSON object per test, as soon as the test has ended. Tests
        that are in it already are not run again.
    COMPAT_ONE_OF: a number; of so many tests one is run, chosen by its name. Default: 1.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

WORKERS = 2
#: Number of characters of a failure's message that are kept.
MESSAGE_LENGTH = 300


class Scheduler:
    """The scheduler under test, in the place of `dask.base.get_scheduler`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.computations = 0
        self._ends: list[Callable[[], None]] = []
        self._get: Any = getattr(self, f"_{name}")()
        self._original = dask.base.get_scheduler
        for module in list(sys.modules.values()):
            if getattr(module, "get_scheduler", None) is self._original:
                module.get_scheduler = self  # pyright: ignore[reportAttributeAccessIssue]

    def _threads(self) -> Any:
        import dask.threaded

        return dask.threaded.get

    def _distributed(self) -> Any:
        from distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None)
        client = Client(cluster, set_as_default=False)
        self._ends += [client.close, cluster.close]
        return client.get

    def _millrace(self) -> Any:
        from millrace import Client, LocalCluster

        cluster = LocalCluster(WORKERS, memory_limit="1GiB", device="host")
        client = Client(cluster, set_as_default=False)
        self._ends += [client.close, cluster.close]
        return client.get

    def __call__(self, get: Any = None, scheduler: Any = None, collections: Any = None, cls: Any = None) -> Any:
        found = self._original(get, scheduler, collections, cls)
        if found is not None and not of_dask(found):
            return found
        self.computations += 1
        return self._get

    def close(self) -> None:
        for end in self._ends:
            end()


class Results:
    """The plugin's hooks: runs what has no result yet, and writes results down."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reports: list[pytest.TestReport] = []

    def _known(self) -> set[str]:
        if not self._path.exists():
            return set()
        return {json.loads(line)["test"] for line in self._path.read_text().splitlines()}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known, one_of = self._known(), int(os.environ.get("COMPAT_ONE_OF", "1"))
        left = [i for i in items if i.nodeid not in known and zlib.crc32(i.nodeid.encode()) % one_of == 0]
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in known])
        items[:] = left

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
        if report.when == "teardown":
            with self._path.open("a") as out:
                out.write(json.dumps(summary(self._reports)) + "\n")
            self._reports = []


def of_dask(get: Any) -> bool:
    """Returns whether a scheduler is one of dask's own, not one that a test has written."""
    function = get.func if isinstance(get, functools.partial) else get
    home = getattr(function, "__module__", None) or ""
    return home.startswith("dask.") and ".tests" not in home


def summary(reports: list[pytest.TestReport]) -> dict[str, Any]:
    """Returns the result of a test from those of its setup, call and teardown."""
    worst = next((r for r in reports if r.failed), next((r for r in reports if r.skipped), reports[-1]))
    message = ""
    if worst.failed:
        crash = getattr(worst.longrepr, "reprcrash", None)
        message = (str(crash.message) if crash else worst.longreprtext)[:MESSAGE_LENGTH]
    return {
        "test": worst.nodeid,
        "outcome": worst.outcome,
        "seconds": round(sum(r.duration for r in reports), 4),
        "message": message,
    }


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Results(Path(os.environ["COMPAT_RESULTS"])))
    for marker in (
        "network",
        "slow",
        "gpu",
        "array_expr",
        "skip_with_pyarrow_strings",
        "xfail_with_pyarrow_strings",
        "flaky",
    ):
        config.addinivalue_line("markers", f"{marker}: of dask's tests")


@pytest.fixture(scope="session", autouse=True)
def scheduler_under_test() -> Iterator[Scheduler]:
    made = Scheduler(os.environ["COMPAT_SCHEDULER"])
    yield made
    made.close()
    print(f"\n{made.name}: {made.computations} computations")
