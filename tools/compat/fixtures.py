"""distributed.utils_test for a cluster of processes: of Millrace, or of distributed itself.

Copies of distributed's tests take their names from here (`take`). Clusters are shared by tests: a
test that fails, and one after which a worker is missing, leaves a new cluster to the next.

Environment:
    COMPAT_SCHEDULER: distributed or millrace.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import functools
import importlib
import inspect
import io
import logging
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from public_tests import HELPERS, UTILITIES

OURS = os.environ.get("COMPAT_SCHEDULER") == "millrace"
if OURS:
    import millrace.as_distributed  # noqa: F401

#: A test of a coroutine that takes longer fails, in seconds.
LIMIT = 30.0
LINUX, MACOS, WINDOWS = sys.platform == "linux", sys.platform == "darwin", sys.platform == "win32"
NO_AMM: dict[str, Any] = {}
#: Clusters that are kept for later tests.
KEPT = 2


class Missing(type):
    """The class of names of distributed that do not exist here. A call of one raises."""

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"there is no {cls.__name__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{cls.__name__}.{name}")


def missing(name: str) -> Any:
    return type.__new__(Missing, name, (), {})


def take(module: str, name: str) -> Any:
    """Returns a name of distributed: one of this module, else the package's."""
    if name in HELPERS or (module != "distributed.metrics" and name in UTILITIES):
        return globals()[name]
    if module == "distributed.utils_test":
        return missing(f"{module}.{name}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return missing(f"{module}.{name}")


# ---- clusters ------------------------------------------------------------------------------------


class InsideError(Exception):
    """A test looks into a server, which is another process."""


class Server:
    """A scheduler or a worker as a test sees it: its address."""

    def __init__(self, address: str, name: str = "", cluster: Any = None) -> None:
        self.address = self.worker_address = address
        self.name = name
        self.ip, _, port = address.rpartition("://")[2].partition(":")
        self.port = int(port or 0)
        self._cluster = cluster

    @property
    def workers(self) -> frozenset[str]:
        """Addresses of the workers of this scheduler."""
        if self._cluster is None:
            raise InsideError("a worker has no workers")
        return frozenset(self._cluster.scheduler_info["workers"])

    def __getattr__(self, name: str) -> Any:
        raise InsideError(f"the test looks at {name!r} of a server")


class Clusters:
    """Clusters that tests share, by the number of workers and of threads of each."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Any] = {}
        self._used: set[tuple[int, int]] = set()

    def get(self, workers: int, threads: int) -> Any:
        from distributed import LocalCluster

        key = workers, threads
        if key not in self._kept:
            while len(self._kept) >= KEPT:
                self._end(next(iter(self._kept)))
            options = {"memory_limit": "1GiB", "device": "host"} if OURS else {"memory_limit": "1GiB"}
            self._kept[key] = LocalCluster(
                n_workers=workers, threads_per_worker=threads, dashboard_address=None, **options
            )
            if workers:
                _begin(self._kept[key], workers)
        cluster = self._kept.pop(key)
        self._kept[key] = cluster  # the latest is last
        self._used.add(key)
        return cluster

    def after(self, failed: bool) -> None:
        """Makes the clusters that a test has used fit for the next."""
        for key in self._used & self._kept.keys():
            if failed or len(self._kept[key].scheduler_info["workers"]) != key[0] or not _cleaned(self._kept[key]):
                self._end(key)
        self._used.clear()

    def _end(self, key: tuple[int, int]) -> None:
        with contextlib.suppress(Exception):  # what a test has left may keep it from an orderly end
            self._kept.pop(key).close()

    def close(self) -> None:
        for key in list(self._kept):
            self._end(key)


def _begin(cluster: Any, workers: int) -> None:
    """Starts the processes of the workers: a time limit of a test is not for that."""
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(workers)
        client.run(inc, 1)


def _cleaned(cluster: Any) -> bool:
    """Removes what a test has left in a cluster of distributed. Millrace has a namespace for each
    test instead."""
    if OURS:
        return True
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:

        def clean(dask_scheduler: Any) -> bool:
            extensions = dask_scheduler.extensions
            for name in ("queues", "variables", "locks", "semaphores", "events", "publish"):
                for field, value in vars(extensions[name]).items() if name in extensions else ():
                    if isinstance(value, dict) and field != "metrics":
                        value.clear()
            dask_scheduler.task_metadata.clear()
            return True

        return bool(client.run_on_scheduler(clean))


shared = Clusters()


def _servers(made: Any) -> tuple[Server, list[Server]]:
    workers = made.scheduler_info["workers"]
    rows = sorted((str(row.get("name", "")), address) for address, row in workers.items())
    return Server(made.scheduler_address, cluster=made), [Server(address, name) for name, address in rows]


def use_namespace() -> None:
    """Gives each client that is opened from now on a namespace of this test."""
    if OURS:
        os.environ["COMPAT_NAMESPACE"] = uuid.uuid4().hex


def install_namespaces() -> None:
    from millrace import Client

    opened = Client.__init__

    @functools.wraps(opened)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("namespace", os.environ.get("COMPAT_NAMESPACE", ""))
        opened(self, *args, **kwargs)

    Client.__init__ = __init__  # pyright: ignore[reportAttributeAccessIssue]


def gen_cluster(
    nthreads: Any = None,
    scheduler: str = "",
    timeout: float = LIMIT,
    client: bool = False,
    client_kwargs: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    **_: Any,
) -> Callable[[Any], Any]:
    """Runs a coroutine with a client, a scheduler and workers of a shared cluster."""
    shape = [("127.0.0.1", 1), ("127.0.0.1", 2)] if nthreads is None else nthreads

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            made = shared.get(len(shape), max((row[1] for row in shape), default=1))
            scheduler, workers = _servers(made)

            async def run() -> None:
                from distributed import Client

                if not client:
                    await function(scheduler, *workers, *args, **kwargs)
                    return
                async with Client(scheduler.address, asynchronous=True, **(client_kwargs or {})) as c:
                    await function(c, scheduler, *workers, *args, **kwargs)

            _run(run, config, min(timeout, LIMIT))

        given = [None] * (len(shape) + 1 + client)
        bound = inspect.signature(function).bind_partial(*given).arguments
        left = [p for n, p in inspect.signature(function).parameters.items() if n not in bound]
        test.__signature__ = inspect.Signature(left)  # pyright: ignore[reportAttributeAccessIssue]
        return test

    return decorate


def gen_test(timeout: float = LIMIT, config: dict[str, Any] | None = None, **_: Any) -> Callable[[Any], Any]:
    """Runs a coroutine without a cluster."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> None:
            _run(lambda: function(*args, **kwargs), config, timeout)

        return test

    return decorate


def _run(make: Callable[[], Coroutine[Any, Any, None]], config: dict[str, Any] | None, timeout: float) -> None:
    import dask

    async def limited() -> None:
        await asyncio.wait_for(make(), timeout)

    with dask.config.set(config or {}):
        asyncio.run(limited())


@contextlib.contextmanager
def cluster(nworkers: int = 2, nanny: bool = False, **_: Any) -> Iterator[tuple[dict[str, str], list[dict[str, str]]]]:
    """Gives a scheduler and workers of a shared cluster, as dictionaries with their addresses."""
    scheduler, workers = _servers(shared.get(nworkers, 1))
    yield {"address": scheduler.address}, [{"address": w.address} for w in workers]


# ---- functions of tests, which tasks import ------------------------------------------------------


def inc(x: Any) -> Any:
    return x + 1


def dec(x: Any) -> Any:
    return x - 1


def mul(x: Any, y: Any) -> Any:
    return x * y


def div(x: Any, y: Any) -> Any:
    return x / y


def throws(x: Any) -> Any:
    raise RuntimeError("hello!")


def double(x: Any) -> Any:
    return x * 2


def slowinc(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x + 1


def slowdec(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x - 1


def slowdouble(x: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return 2 * x


def randominc(x: Any, scale: float = 1) -> Any:
    time.sleep(random.random() * scale)
    return x + 1


def slowadd(x: Any, y: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return x + y


def slowsum(seq: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return sum(seq)


def slowidentity(*args: Any, delay: float = 0.02) -> Any:
    time.sleep(delay)
    return args[0] if len(args) == 1 else args


async def asyncinc(x: Any, delay: float = 0.02) -> Any:
    await asyncio.sleep(delay)
    return x + 1


def lock_inc(x: Any, lock: Any) -> Any:
    with lock:
        return x + 1


def block_on_event(event: Any) -> None:
    event.wait()


class Varying:
    """A function that returns or raises the next item at each call. The number of calls is the size
    of a file: one for all processes in the tests whose workers are objects of one process with
    distributed (`gen_cluster`), and one for each process in the others (`cluster`)."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._shared = asyncio._get_running_loop() is not None
        self._calls = tempfile.mkdtemp(prefix="compat-calls-")
        atexit.register(shutil.rmtree, self._calls, ignore_errors=True)
        self.__name__ = "func"

    def __call__(self) -> Any:
        with Path(self._calls, "all" if self._shared else str(os.getpid())).open("ab") as calls:
            fcntl.flock(calls, fcntl.LOCK_EX)
            at = calls.seek(0, os.SEEK_END)
            if at == len(self._items):
                raise IndexError
            calls.write(b".")
        if isinstance(self._items[at], Exception):
            raise self._items[at]
        return self._items[at]


def varying(items: list[Any]) -> Varying:
    return Varying(items)


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def map_varying(itemslists: list[list[Any]]) -> tuple[Any, list[Varying]]:
    return _apply, list(map(varying, itemslists))


# ---- small helpers -------------------------------------------------------------------------------


def nodebug(function: Any) -> Any:
    return function


def nodebug_setup_module(module: Any) -> None: ...


def nodebug_teardown_module(module: Any) -> None: ...


async def wait_for(awaitable: Any, timeout: float) -> Any:
    return await asyncio.wait_for(awaitable, timeout)


def get_mp_context() -> Any:
    return multiprocessing.get_context("spawn")


def is_valid_xml(text: str) -> bool:
    return ElementTree.fromstring(text) is not None


def open_port(host: str = "") -> int:
    with socket.socket() as made:
        made.bind((host, 0))
        return int(made.getsockname()[1])


@contextlib.contextmanager
def tmp_text(filename: str, text: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / filename
        path.write_text(text)
        yield str(path)


def poll_for(predicate: Callable[[], bool], timeout: float = 15, fail_func: Any = None, period: float = 0.05) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        time.sleep(period)
        assert time.monotonic() < deadline, "the condition was not reached"


async def async_poll_for(
    predicate: Callable[[], bool], timeout: float = 15, fail_func: Any = None, period: float = 0.05
) -> None:
    deadline = time.monotonic() + timeout
    while not predicate():
        await asyncio.sleep(period)
        assert time.monotonic() < deadline, "the condition was not reached"


@contextlib.contextmanager
def captured_logger(logger: Any, level: int = logging.INFO, propagate: bool | None = None) -> Iterator[io.StringIO]:
    """Gives the lines that a logger writes."""
    found = logging.getLogger(logger) if isinstance(logger, str) else logger
    before = found.level, found.handlers[:], found.propagate
    out = io.StringIO()
    found.handlers[:] = [logging.StreamHandler(out)]
    found.setLevel(level)
    found.propagate = found.propagate if propagate is None else propagate
    try:
        yield out
    finally:
        found.setLevel(before[0])
        found.handlers[:], found.propagate = before[1], before[2]


@contextlib.contextmanager
def raises_with_cause(
    expected: Any, match: str | None, cause: Any, match_cause: str | None, *more: Any
) -> Iterator[None]:
    """Checks an exception and its causes."""
    with pytest.raises(expected, match=match) as caught:
        yield
    error: Any = caught.value
    wanted = [cause, *more[::2]]
    for kind, text in zip(wanted, [match_cause, *more[1::2]], strict=True):
        error = error.__cause__
        assert error
        with pytest.raises(kind, match=text):
            raise error
