"""Samples of the call stacks of tasks: where their functions spend time.

A thread looks at the main thread every few milliseconds while a task runs, and counts the functions
on its stack. The counts of each second are kept apart, so that `Client.profile` can ask for a part
of the time.
"""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from millrace._pb.millrace.v1 import executor_service_pb2
from millrace._values import _keys
from millrace.executor import _compiling, _task_info

if TYPE_CHECKING:
    import numpy as np

#: Time between two samples of a running task, in seconds.
INTERVAL = 0.01
#: Longest time between two looks at a process in which no task runs, in seconds.
_IDLE = 0.1
#: Length of the periods that are kept apart, in seconds.
_PERIOD = 1.0
#: Most functions that are kept, in all periods together. The oldest periods are forgotten first.
_MOST = 50_000
#: Most functions of one stack: the outermost ones.
_DEPTH = 100


class Call:
    """The calls of one function by the functions above it on the stack."""

    __slots__ = ("calls", "code", "count", "line")

    def __init__(self, code: CodeType | None, line: int) -> None:
        #: The function; None: the task itself.
        self.code = code
        #: Number of samples in which it was on the stack.
        self.count = 0
        #: A line that it was at.
        self.line = line
        #: The functions that it called, by the id of their code, whose hash is slow to compute.
        self.calls: dict[int, Call] = {}


class Sampler:
    """Samples the stacks of the tasks that the main thread runs.

    Args:
        outer: the functions that call the functions of tasks. They and their callers are left out.
    """

    def __init__(self, outer: frozenset[CodeType]) -> None:
        self._code = outer
        self._outer = frozenset(map(id, outer))
        self._main = threading.main_thread().ident or 0
        self._lock = threading.Lock()
        # Guarded by _lock: the begin of each period, the calls by the op of the task and the prefix
        # of its key, and the number of functions.
        self._periods: deque[tuple[float, dict[tuple[str, str], Call], list[int]]] = deque()
        self._functions = 0
        # The latest task, its op and the prefix of its key.
        self._task: Any = None
        self._kind = ("", "")
        self._compilations = _compiling.Watch()

    def start(self) -> None:
        """Begins to sample."""
        threading.Thread(target=self._run, name="millrace-profile", daemon=True).start()

    def _run(self) -> None:
        pause = INTERVAL
        while True:
            time.sleep(pause)
            # A process without tasks is looked at less often.
            pause = INTERVAL if self.sample(time.time()) else min(2 * pause, _IDLE)

    def sample(self, now: float) -> bool:
        """Looks at the main thread once. Returns False if it runs no task."""
        task = _task_info.current
        if task is None:
            return False
        with self._lock:
            notice = self._look(task, now)
        if notice:
            print(f"millrace: {task.key}: {notice}", file=sys.stderr, flush=True)
        return True

    def settle(self) -> None:
        """Waits for the end of a sample that is being taken: it refers to the frames of the task,
        and so to the task's inputs, even if the task has ended meanwhile."""
        with self._lock:
            pass

    def _look(self, task: Any, now: float) -> str:
        """Counts the stack of the main thread. Returns a notice for the task's user, or "".
        REQUIRES: the lock."""
        # NB: nothing may wait while the frames are referred to: they keep the task's inputs.
        stack = _stack(sys._current_frames().get(self._main), self._outer)
        if not stack:
            return ""
        if task is not self._task:
            self._task, self._kind = task, (task.op, _keys.prefix(task.key))
        self._count(self._kind, stack, now)
        return self._compilations.look(task.key, stack, now)

    def _count(self, kind: tuple[str, str], stack: list[FrameType], now: float) -> None:
        """Counts a stack, outermost function first. REQUIRES: the lock."""
        if not self._periods or now >= self._periods[-1][0] + _PERIOD:
            self._periods.append((now, {}, [0]))
        _, by_kind, size = self._periods[-1]
        at = by_kind.get(kind)
        if at is None:
            at = by_kind[kind] = Call(None, 0)
        at.count += 1
        for frame in stack:
            code = frame.f_code
            called = at.calls.get(id(code))
            if called is None:
                called = at.calls[id(code)] = Call(code, frame.f_lineno or code.co_firstlineno)
                size[0] += 1
                self._functions += 1
            called.count += 1
            at = called
        while self._functions > _MOST and len(self._periods) > 1:
            self._functions -= self._periods.popleft()[2][0]

    def collected(
        self, ops: Iterable[str] = (), key: str = "", start: float = 0.0, stop: float | None = None
    ) -> executor_service_pb2.GetProfileResponse:
        """Returns the calls of the periods that overlap with a time.

        Args:
            ops: only of tasks of these ops; none: of all.
            key: only of tasks whose keys have this prefix; "": of all.
            start, stop: the time, in seconds since 1970; None: until now.
        """
        wanted, total = set(ops), Call(None, 0)
        with self._lock:
            for begin, by_kind, _ in self._periods:
                if begin + _PERIOD > start and (stop is None or begin < stop):
                    for (op, prefix), root in by_kind.items():
                        if (not wanted or op in wanted) and key in ("", prefix):
                            _add(total, root)
        out = executor_service_pb2.GetProfileResponse(samples=total.count)
        out.interval.FromNanoseconds(round(INTERVAL * 1e9))
        _flatten(total, out)
        return out


def _stack(frame: FrameType | None, outer: frozenset[int]) -> list[FrameType]:
    """Returns the frames of a stack below those of `outer`, the outermost one first. Nothing if
    none of `outer` is on it."""
    found: list[FrameType] = []
    while frame is not None:
        if id(frame.f_code) in outer:
            return found[::-1][:_DEPTH]
        found.append(frame)
        frame = frame.f_back
    return []


def _add(total: Call, more: Call) -> None:
    """Adds the counts of a tree to those of another one."""
    left = [(total, more)]
    while left:
        to, call = left.pop()
        to.count += call.count
        for identity, called in call.calls.items():
            if (sum_of := to.calls.get(identity)) is None:
                sum_of = to.calls[identity] = Call(called.code, called.line)
            left.append((sum_of, called))


def _flatten(total: Call, out: executor_service_pb2.GetProfileResponse) -> None:
    left = [(total, 0)]
    while left:
        call, caller = left.pop()
        for called in call.calls.values():
            code = called.code
            assert code is not None
            out.calls.add(
                caller=caller, samples=called.count, name=code.co_name, file=code.co_filename,
                first_line=code.co_firstlineno, line=called.line,
                text=linecache.getline(code.co_filename, called.line).strip(),
            )  # fmt: skip
            left.append((called, len(out.calls)))


#: The sampler of this process; None: it takes no samples.
current: Sampler | None = None


def settle() -> None:
    """See `Sampler.settle`."""
    if current is not None:
        current.settle()


def collect(request: bytes) -> np.ndarray[Any, Any]:
    """Returns the calls of this process: see `Sampler.collected`. The worker calls it with a
    serialised GetProfileRequest, and gets a serialised GetProfileResponse."""
    import numpy as np

    asked = executor_service_pb2.GetProfileRequest.FromString(request)
    start = asked.start_time.ToNanoseconds() / 1e9
    stop = asked.end_time.ToNanoseconds() / 1e9 if asked.HasField("end_time") else None
    found = executor_service_pb2.GetProfileResponse()
    if current is not None:
        found = current.collected(asked.ops, asked.key, start, stop)
    return np.frombuffer(found.SerializeToString(), np.uint8)
