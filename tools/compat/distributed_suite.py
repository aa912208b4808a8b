"""A pytest plugin that runs copies of distributed's tests with a cluster of processes.

Environment: that of dask_suite, with COMPAT_SCHEDULER distributed or millrace, and
    COMPAT_EXCLUDED: a JSON file of tests that are not run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fixtures
import pytest
from dask_suite import Results


class DistributedResults(Results):
    """Leaves out excluded tests, and ends clusters that a test has spoilt."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        excluded = json.loads(Path(os.environ["COMPAT_EXCLUDED"]).read_text())
        items[:] = [i for i in items if i.nodeid.partition("[")[0] not in excluded]
        super().pytest_collection_modifyitems(config, items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            failed = any(r.failed for r in (*self._reports, report))
            fixtures.shared.after(failed)
        super().pytest_runtest_logreport(report)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DistributedResults(Path(os.environ["COMPAT_RESULTS"])))
    for marker in ("ci1", "slow", "avoid_ci", "flaky", "extra_packages", "ipv6", "leaking", "workerstate", "gpu"):
        config.addinivalue_line("markers", f"{marker}: of distributed's tests")
    if fixtures.OURS:
        fixtures.install_namespaces()


def pytest_unconfigure() -> None:
    fixtures.shared.close()


@pytest.fixture(autouse=True)
def own_namespace() -> None:
    fixtures.use_namespace()


@pytest.fixture
def cleanup() -> None: ...


@pytest.fixture
def loop_in_thread() -> None: ...


@pytest.fixture
def loop() -> None: ...


@pytest.fixture
def cluster_fixture(own_namespace: None) -> Iterator[Any]:
    with fixtures.cluster() as made:
        yield made


@pytest.fixture
def s(cluster_fixture: Any) -> Any:
    return cluster_fixture[0]


@pytest.fixture
def a(cluster_fixture: Any) -> Any:
    return cluster_fixture[1][0]


@pytest.fixture
def b(cluster_fixture: Any) -> Any:
    return cluster_fixture[1][1]


@pytest.fixture
def client(cluster_fixture: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster_fixture[0]["address"]) as made:
        yield made


@pytest.fixture
def c(client: Any) -> Any:
    return client


@pytest.fixture
def client_no_amm(client: Any) -> Any:
    return client


@pytest.fixture
def client_secondary(cluster_fixture: Any) -> Iterator[Any]:
    from distributed import Client

    with Client(cluster_fixture[0]["address"]) as made:
        yield made
