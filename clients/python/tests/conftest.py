"""A cluster of real processes for the tests, and ways to wait for them without assumptions about
how long they take."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle
import pytest
from millrace import Client, LocalCluster

if TYPE_CHECKING:
    from executor_worker import Shared, Worker

if os.environ.get("MILLRACE_BIN"):
    os.environ["MILLRACE_BINARY"] = os.environ["MILLRACE_BIN"]
if not os.environ.get("MILLRACE_EXECUTOR"):  # tasks import this module, too
    for _name in ("MILLRACE_ADDRESS", "MILLRACE_TOKEN", "MILLRACE_SCHEDULER_FILE"):
        os.environ.pop(_name, None)

#: Longest wait for an event that must happen, in seconds, even on a busy machine.
PATIENCE = 300.0
#: Tests that need a GPU.
collect_ignore = (
    [] if os.environ.get("MILLRACE_GPU_TESTS") else ["test_gpu.py", "test_gpu_torch.py", "test_gpu_cluster.py"]
)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has tasks carry the functions and classes of the tests, so that executors do not import the
    modules of tests: pytest and the libraries at their head cost more than most tasks."""
    for name in {item.module.__name__ for item in session.items} | {__name__}:
        cloudpickle.register_pickle_by_value(sys.modules[name])


class Gate:
    """A point in a task where the task waits for the test, made of two named pipes. Pickled, it is
    only their path."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    # Called in the task.

    def pass_through(self) -> None:
        """Reports the arrival, then blocks until the test opens the gate."""
        self.arrive()
        # Not buffered: one that reads ahead would take the bytes of other tasks.
        with Path(self.path + ".open").open("rb", buffering=0) as pipe:
            pipe.read(1)

    def arrive(self) -> None:
        with Path(self.path + ".here").open("wb") as pipe:
            pipe.write(b"x")

    # Called in the test.

    def make(self) -> Gate:
        os.mkfifo(self.path + ".here")
        os.mkfifo(self.path + ".open")
        # Opened for reading and writing, so that neither side's open waits for the other, and no
        # end of file is read between two tasks.
        self._here = os.open(self.path + ".here", os.O_RDWR | os.O_NONBLOCK)
        self._open = os.open(self.path + ".open", os.O_RDWR)
        return self

    def wait(self, times: int = 1) -> None:
        """Waits until tasks have arrived this many times."""
        for _ in range(times):
            ready, _, _ = select.select([self._here], [], [], PATIENCE)
            assert ready, "the task did not arrive"
            os.read(self._here, 1)

    def nobody_there(self) -> bool:
        return not select.select([self._here], [], [], 0)[0]

    def open(self, times: int = 1) -> None:
        os.write(self._open, b"x" * times)

    def close(self) -> None:
        os.close(self._here)
        os.close(self._open)

    def __reduce__(self) -> tuple[type[Gate], tuple[str]]:
        return Gate, (self.path,)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate").make()
    yield made
    made.close()


def eventually(holds: Callable[[], object], what: str = "") -> None:
    """Waits until the condition holds; fails after PATIENCE seconds."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what or "it never came true"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(2, memory_limit="512MiB", device="host") as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster) as made:
        made.wait_for_workers(2, timeout=PATIENCE)
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """An executor process for the tests of a module, which play its worker."""
    from executor_worker import Shared

    with Shared() as made:
        yield made


@pytest.fixture
def worker(shared: Shared) -> Worker:
    """The worker of an executor process that other tests use, too."""
    return shared.worker()


@pytest.fixture
def own() -> Iterator[Worker]:
    """The worker of an executor process that no other test uses."""
    from executor_worker import Worker

    made = Worker()
    yield made
    made.end()
