"""The workers of a local cluster as their number changes, and the number that its work asks for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from millrace import _check, errors
from millrace._calls import _drains
from millrace._check import Seconds
from millrace._cluster import _workers
from millrace._connection._steps import Steps, run
from millrace._local._local_process import LocalProcess
from millrace._pb.millrace.v1 import cluster_pb2, worker_pb2
from millrace._session._session import Session

_log = logging.getLogger("millrace")

#: Longest wait for a worker that was just started and must leave again, in seconds.
_ARRIVAL_SECONDS = 60.0


class Scaling:
    """Starts and retires workers of a cluster, each later one by a process of its own.

    Args:
        session: with the scheduler.
        start: starts a process with a worker, given the prefix of its name, its number ("host-3"
            has the number 3), and a worker that it shall be like, if there is one.
        prefix: of the names of the workers.
        gpus: number of GPUs; each worker has the one of its number. None: the workers use
            processors. Infinity: the number is not known.
    """

    def __init__(
        self,
        session: Session,
        start: Callable[[str, int, worker_pb2.Worker | None], LocalProcess],
        prefix: str,
        gpus: float | None,
    ) -> None:
        self.session = session
        self._start, self._prefix, self.gpus = start, prefix, gpus
        self._lock = threading.RLock()
        # Guarded by _lock. The processes of later workers, by name, and the names of workers that
        # were told to leave.
        self._processes: dict[str, LocalProcess] = {}
        self._leaving: set[str] = set()
        self._next = 0

    def active(self) -> dict[str, worker_pb2.Worker]:
        """Returns the workers that are in use, by name."""
        return {w.name: w for w in self.session.workers() if w.name not in self._leaving}

    def wanted(self) -> set[str]:
        """Returns the names of the workers that are in use or about to be."""
        with self._lock:
            self._reap()
            return set(self.active()) | set(self._processes) - self._leaving

    def _reap(self) -> None:
        """Forgets processes that have ended. REQUIRES: the lock."""
        for name, process in list(self._processes.items()):
            if not process.running:
                del self._processes[name]
                process.close()
                if name not in self._leaving:
                    _log.warning(
                        "the process of worker %s ended with code %s; see cluster.get_logs()", name, process.returncode
                    )
                self._leaving.discard(name)

    def scale(self, n: int, group: Callable[[dict[str, Any]], Hashable] | None = None) -> None:
        """Starts or retires workers until there are `n`. It does not wait for them.

        Args:
            n: number of workers.
            group: returns the group of a worker by its description. Workers of one group are
                retired together, so that more than `n` may stay. None: each is a group.

        Raises:
            ValueError: there are fewer GPUs.
        """
        if self.gpus is not None and n > self.gpus:
            raise ValueError(f"scale: there are {self.gpus} GPUs, and each has one worker; {n} is more")
        with self._lock:
            have = self.wanted()
            active = self.active()
            if n > len(have):
                example = next(iter(active.values()), None)
                for number in self._numbers(have, n - len(have)):
                    self._processes[f"{self._prefix}-{number}"] = self._start(self._prefix, number, example)
                return

            # Those that have not registered go first, then those with the least work and data.
            def cost(name: str) -> tuple[bool, int, int, str]:
                w = active.get(name)
                return (False, 0, 0, name) if w is None else (True, w.assigned_tasks, w.memory_used_bytes, name)

            groups: dict[Hashable, list[str]] = {}
            for name in sorted(have, key=cost):
                described = active.get(name) if group is not None else None
                mark = name if group is None or described is None else (group(_workers.described(described)),)
                groups.setdefault(mark, []).append(name)
            left, chosen = len(have) - n, list[str]()
            for names in groups.values():  # in the order of their first workers
                if len(names) <= left:
                    chosen += names
                    left -= len(names)
            self._retire(chosen, active)

    def close_workers(self, names: set[str]) -> None:
        """Retires these workers."""
        with self._lock:
            active = self.active()
            self._retire([n for n in names if n in active], active)

    def _numbers(self, have: set[str], count: int) -> list[int]:
        """Returns numbers of further workers. Those on GPUs take the lowest free ones, since a
        number means a GPU; others are never used again, so that no order for an earlier worker
        reaches a later one."""
        used = {int(tail) for name in have | self._leaving if (tail := name.rpartition("-")[2]).isdigit()}
        self._next = max(self._next, *(u + 1 for u in used), 0)
        if self.gpus is not None:
            free = (i for i in range(len(used) + count) if i not in used)
            return [next(free) for _ in range(count)]
        self._next += count
        return list(range(self._next - count, self._next))

    def _retire(self, names: list[str], active: dict[str, worker_pb2.Worker]) -> None:
        """REQUIRES: the lock."""
        self._leaving |= set(names)
        for name in names:
            if name not in active:  # it has not registered, so it has nothing to lose
                if (process := self._processes.pop(name, None)) is not None:
                    process.close()
                self._leaving.discard(name)
        if there := [n for n in names if n in active]:
            run(
                _drains.retire(
                    self.session, there, reason="the cluster was scaled down", within=None, wait=False, timeout=None
                )
            )

    def processes(self) -> list[LocalProcess]:
        """Returns the processes of later workers, which the cluster ends, and forgets them."""
        with self._lock:
            out = list(self._processes.values())
            self._processes.clear()
            return out


def arrival(session: Session, n: int, timeout: float | None, check: Callable[[], None] | None) -> Steps[None]:
    """Waits until at least `n` workers are active. `check`, if given, raises the error of
    a cluster that has ended.

    Raises:
        TimeoutError: the timeout has passed.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while len(active := session.workers()) < n:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"{len(active)} of {n} workers came within {timeout:g} s")
        if check is not None:
            check()
            left = 0.5 if left is None else min(left, 0.5)  # its end is no change of its workers
        yield session.worker_watch.changed([w.worker_id for w in active], left)


class Scaled(Protocol):
    """A cluster that Adaptive can change: a LocalCluster."""

    def _workers(self) -> Scaling: ...

    def _follow(self, adaptive: Adaptive) -> None:
        """Ends the Adaptive before this one, and this one with the cluster."""

    def _most(self, minimum: int) -> int:
        """Returns the number of workers that the machine has room for."""
        ...


class Adaptive:
    """Changes the number of a cluster's workers with its work, until its `stop`, `scale` of the
    cluster, or the next one. `LocalCluster.adapt` makes it, too.

    It asks for as many workers as can finish the tasks that are known within `target_duration`, by
    the rate at which workers have finished tasks, and not for more than there are tasks to run at
    once. It starts workers at once; it retires them when fewer were enough `wait_count` times in a
    row. Retired workers finish their tasks and hand over their results first. A class that is
    derived from it can decide by a method `target` of its own.

    Args:
        cluster: the cluster.
        interval: time between two looks at the work. Default: 1 s.
        minimum, maximum: bounds of the number of workers. Default: 0, and as many as there are
            GPUs, or cores for their slots.
        wait_count: number of looks that must ask for fewer workers before some are retired.
            Default: 3.
        target_duration: time in which the tasks that are known shall be done. Default: 5 s.
        worker_key: a function that gets a description of a worker, as in `Client.scheduler_info`,
            and returns its group: workers of one group are retired together. Default: each worker
            is a group.
    """

    def __init__(
        self,
        cluster: Scaled,
        interval: Seconds | None = None,
        minimum: int | None = None,
        maximum: float | None = None,
        wait_count: int | None = None,
        target_duration: Seconds | None = None,
        worker_key: Callable[[dict[str, Any]], Hashable] | None = None,
    ) -> None:
        if not hasattr(cluster, "_follow"):
            raise TypeError(f"Adaptive: cluster must be a LocalCluster, not {cluster!r}")
        self.minimum = 0 if minimum is None else _check.integer(minimum, "minimum", 0, 4096)
        self._scaling = cluster._workers()
        most: float
        if maximum is None or maximum == math.inf:
            most = cluster._most(self.minimum)
        else:
            most = _check.integer(maximum, "maximum", 0, 4096)
        if most < self.minimum:
            raise ValueError(f"maximum must be at least minimum={self.minimum}, not {most}")
        self.maximum = most
        self.interval = max(_check.seconds(1.0 if interval is None else interval, "interval"), 0.01)
        self.wait_count = 3 if wait_count is None else _check.integer(wait_count, "wait_count", 1, 1 << 30)
        duration = 5.0 if target_duration is None else target_duration
        self.target_duration = max(_check.seconds(duration, "target_duration"), 0.001)
        self.worker_key = worker_key
        self.cluster = cluster
        self._fewer = 0
        self._finished: dict[int, int] = {}
        self._looked = 0.0
        #: The number of workers at each change, with the time: a list of (time, number).
        self.log: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millrace-adapt", daemon=True)
        cluster._follow(self)
        self._thread.start()

    def stop(self) -> None:
        """Leaves the workers as they are from now on."""
        self._ended.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def plan(self) -> set[str]:
        """Names of the workers that are in use or about to be."""
        return self._scaling.wanted()

    requested = plan

    @property
    def observed(self) -> set[str]:
        """Names of the workers that are in use."""
        return set(self._scaling.active())

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as e:
                if self._scaling.session.closed:
                    return
                _log.warning("the cluster cannot adapt: %s", e, exc_info=not isinstance(e, errors.MillraceError))
            if self._ended.wait(self.interval):
                return

    def look(self) -> None:
        """Looks at the work once, and starts or retires workers."""
        have = len(self._scaling.wanted())
        target = self.target()
        if target >= have:
            self._fewer = 0
        else:
            self._fewer += 1
            if self._fewer < self.wait_count:
                return
            self._fewer = 0
        if target != have:
            self.log.append((time.time(), target))
            self._scaling.scale(target, self.worker_key)

    def target(self) -> int:
        """Returns the number of workers that the work asks for, within the bounds."""
        session = self._scaling.session
        counts: Any = session.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest()).cluster.tasks
        tasks = counts.ready + counts.assigned + counts.running
        workers = session.workers()
        finished = {w.worker_id: w.finished_tasks for w in workers}
        now = time.monotonic()
        ended = sum(n - self._finished.get(i, n) for i, n in finished.items())
        rate = ended / (now - self._looked) if self._looked else 0.0
        self._finished, self._looked = finished, now
        slots = max((w.slots for w in workers), default=1)
        want = math.ceil(tasks / max(slots, 1))
        if rate > 0:  # fewer are enough if they finish soon
            want = min(want, math.ceil(len(workers) * (tasks / rate) / self.target_duration))
        # Results need as much memory as there is: no worker is retired above half of it.
        used, limit = (sum(getattr(w, f) for w in workers) for f in ("memory_used_bytes", "memory_limit_bytes"))
        if limit and workers:
            want = max(want, math.ceil(2 * used / (limit / len(workers))))
        return int(min(max(want, self.minimum), self.maximum))
