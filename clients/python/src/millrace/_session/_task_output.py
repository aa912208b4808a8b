"""The output of a client's tasks, while they write it: read from the workers, and shown.

Each worker keeps the last output of its tasks and streams it. No task and no worker waits for a
client: a client that is too slow misses output. One thread follows one worker, from the first
submission on. A thread lists the workers, so that new ones are followed, too.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from millrace import errors
from millrace._connection._callbacks import CallbackThread
from millrace._connection._channel import open_channel
from millrace._connection._connection import Connection
from millrace._pb.millrace.v1 import data_service_pb2, data_service_pb2_grpc, task_pb2, worker_pb2
from millrace._session._display import HELD, Display, TaskLine
from millrace._task_states._order import Order
from millrace._task_states._task_ids import TaskIds
from millrace._transfer._locator import Locator

#: How often the workers are listed while tasks are pending, in seconds.
_LISTED = 2.0
#: Output that precedes a worker's stream by at most this time, in seconds, is shown. It covers the
#: time from a submission to the stream.
_BEFORE = 10.0
#: How long output waits for the answer to the submission of its task, in seconds; and how much of
#: it.
_UNKNOWN_SECONDS = 5.0
_MOST_UNKNOWN = 1000
#: How long a worker may take to answer, and the scheduler, before the ends of tasks are not delayed
#: any more, in seconds.
_ANSWER = 2.0
#: Attempts whose position in the output is remembered.
_MOST_ATTEMPTS = 50_000


class TaskOutput:
    """Follows the workers for one client.

    Args:
        connection: the scheduler, for its token and the end of the client.
        locator: the workers.
        namespace: of the client's tasks.
        pending: returns whether tasks of the client have not ended.
        order: delays the ends of tasks until their output is shown.
        take: takes the lines.
    """

    def __init__(
        self,
        connection: Connection,
        locator: Locator,
        namespace: str,
        pending: Callable[[], bool],
        order: Order,
        take: Callable[[TaskLine], object],
    ) -> None:
        self._connection, self._locator, self._namespace, self._pending = connection, locator, namespace, pending
        self._order, self._take = order, take
        # The number of lines that were shown.
        self._lines = 0
        self._display = Display(self._give)
        # Shows output before the ends of tasks. A call there may take long: it calls the user's
        # function.
        self._shower = CallbackThread()
        self._behind = False
        # Set by submissions; ends the pause of the listing thread.
        self._wake = threading.Event()
        # Answers to submissions, as they came: the ids of this client's tasks. deque.append is
        # atomic.
        self._answers: collections.deque[Sequence[int]] = collections.deque()
        self._lock = threading.Lock()
        # Guarded by _lock. The ids of this client's tasks; output of unknown tasks, with its time
        # and worker; the position in the output of each attempt; and the followed workers by id.
        self._mine = TaskIds()
        self._unknown: collections.deque[tuple[float, _Follower, Any]] = collections.deque(maxlen=_MOST_UNKNOWN)
        self._read: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self._followers: dict[int, _Follower] = {}
        # Workers that are not among those that the scheduler has listed.
        self._absent = set[int]()
        self._thread: threading.Thread | None = None
        self._ended = False
        # All output was shown, and no task can have written since.
        self._quiet = True

    def submitted(self, ids: Sequence[int]) -> None:
        """Takes note of tasks of this client."""
        self._answers.append(ids)
        self._quiet = False
        self._wake.set()
        if self._thread is None:
            self._start()
        if self._unknown:
            self._show_first(self._settle)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._run, name="millrace-output", daemon=True)
                self._thread.start()
                _after_cells(self)

    def lease_replaced(self) -> None:
        """Forgets all tasks and workers, because the scheduler gives their ids to others."""
        with self._lock:
            self._answers.clear()
            self._mine.clear()
            self._unknown.clear()
            followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.end()

    # ---- the workers -----------------------------------------------------------------------------

    def _run(self) -> None:
        listed = 0.0
        while True:
            self._wake.clear()
            if self._ended or self._connection.closed:
                return
            self._settle()
            waiting = self._display.sweep()
            now = time.monotonic()
            if now - listed >= _LISTED or (not self._followers and now - listed > 0.05):
                listed = now
                with contextlib.suppress(errors.MillraceError, grpc.RpcError, ValueError):
                    self._follow(self._locator.workers(fresh=False, timeout=5.0))
            self._wake.wait(HELD if waiting else _LISTED if self._pending() else None)
            self._connection.ended.wait(0.02)  # submissions and output may come by the thousand

    def _follow(self, workers: Sequence[worker_pb2.Worker]) -> None:
        """Follows these workers, and ends the streams of those that are gone."""
        with self._lock:
            if self._ended:
                return
            listed = {w.worker_id: w for w in workers if w.data_address}
            self._absent.clear()
            over = [f for i, f in self._followers.items() if i not in listed or f.broken]
            for follower in over:
                del self._followers[follower.worker_id]
            new: list[_Follower] = []
            for worker in listed.values():
                if worker.worker_id not in self._followers:
                    before = next((f for f in over if f.worker_id == worker.worker_id), None)
                    new.append(_Follower(worker, self, before))
            self._followers.update((f.worker_id, f) for f in new)
        for follower in over:
            follower.end()
        for follower in new:
            follower.begin()

    # ---- output ----------------------------------------------------------------------------------

    def request(self, follower: _Follower, *, until_now: bool = False) -> data_service_pb2.FollowLogsRequest:
        """Returns the request for a worker's stream."""
        within = Duration()
        within.FromMilliseconds(int(_BEFORE * 1000))
        return data_service_pb2.FollowLogsRequest(
            namespace=self._namespace, after_position=follower.position, within=within, until_now=until_now
        )

    @property
    def metadata(self) -> Any:
        """The credentials of calls."""
        return self._connection.metadata

    def _settle(self) -> None:
        """Shows the output that came before the answer to its submission."""
        with self._lock:
            self._learn()

    def _learn(self) -> None:
        """Adds the ids of submissions, and shows their output that has come. REQUIRES: the lock."""
        if not self._answers:
            return
        while self._answers:
            self._mine.add(self._answers.popleft())
        unknown = list(self._unknown)
        self._unknown.clear()
        oldest = time.monotonic() - _UNKNOWN_SECONDS
        for at, follower, output in unknown:
            if output.task_id in self._mine:
                self._show(follower, output)
            elif at > oldest:
                self._unknown.append((at, follower, output))

    def put(self, follower: _Follower, batch: data_service_pb2.FollowLogsResponse) -> None:
        """Takes a batch of a worker."""
        with self._lock:
            self._learn()
            follower.position = max(follower.position, batch.position)
            for output in batch.outputs:
                if output.task_id in self._mine:
                    self._show(follower, output)
                else:
                    self._unknown.append((time.monotonic(), follower, output))
        self._wake.set()  # beginnings of lines may wait

    def _show(self, follower: _Follower, output: data_service_pb2.TaskOutput) -> None:
        """Shows output that was not shown before. REQUIRES: the lock."""
        attempt = (follower.worker_id, output.task_id, output.attempt)
        read = self._read.get(attempt, 0)
        end = output.offset + output.bytes
        if end <= read:
            return
        text = output.text
        if output.offset < read:
            text = text.encode()[read - output.offset :].decode(errors="replace")
        self._read[attempt] = end
        self._read.move_to_end(attempt)
        if len(self._read) > _MOST_ATTEMPTS:
            self._read.popitem(last=False)
        skipped = max(output.offset - read, 0)
        self._display.put(attempt, output.key, follower.name, output.stderr, text, skipped)

    def _give(self, line: TaskLine) -> None:
        """Gives a line to the function that takes them. The display calls it in one thread at a
        time."""
        with self._order.handling():
            try:
                self._take(line)
            finally:
                self._lines += 1

    # ---- before the ends of tasks ----------------------------------------------------------------

    def precede(self, tasks: Sequence[task_pb2.TaskUpdate]) -> None:
        """Shows the output of those of these tasks that have ended, before the client knows that.
        Does nothing if they have written none."""
        ended: dict[int, set[int]] = {}
        for update in tasks:
            if update.log_worker_id:
                ended.setdefault(update.log_worker_id, set()).add(update.task_id)
        if ended and not self._ended:
            self._show_first(partial(self._catch_up, ended))

    def _show_first(self, show: Callable[[], None]) -> None:
        """Makes a call in the thread for that, and waits for its end, unless an earlier one is
        stuck."""
        done = threading.Event()

        def run() -> None:
            try:
                show()
            finally:
                self._behind = False
                done.set()
                self._order.step()

        waits = not self._behind
        self._shower.soon(run)
        if waits and not self._order.until(done.is_set, lambda: self._lines):
            self._behind = not done.is_set()

    def _catch_up(self, ended: dict[int, set[int]]) -> None:
        """Shows the output of tasks that have ended, by worker."""
        with contextlib.suppress(errors.MillraceError, ValueError):
            if any(i not in self._followers and i not in self._absent for i in ended):
                self._follow(self._locator.workers(timeout=_ANSWER))
                self._absent.update(i for i in ended if i not in self._followers)
            with self._lock:
                followers = [self._followers[i] for i in ended if i in self._followers]
            # All are asked before the first answer is read.
            answers = [(f, f.rest(_ANSWER)) for f in followers if f.answers]
            for follower, batches in answers:
                follower.read(batches)
        self._settle()
        self._display.end(set[int]().union(*ended.values()))

    # ---- the end ---------------------------------------------------------------------------------

    def flush(self, timeout: float = 0.5) -> None:
        """Shows all that tasks have written before the call. Gives up after `timeout` seconds."""
        if self._quiet:
            return
        self._quiet = not self._pending()
        deadline = time.monotonic() + timeout
        with contextlib.suppress(errors.MillraceError, grpc.RpcError, ValueError):
            if not self._followers:
                self._follow(self._locator.workers(fresh=False, timeout=timeout))
            with self._lock:
                followers = list(self._followers.values())
            # All are asked before the first answer is read.
            answers = [(f, f.rest(timeout)) for f in followers]
            for follower, batches in answers:
                with contextlib.suppress(grpc.RpcError):
                    for batch in batches:
                        self.put(follower, batch)
                        if time.monotonic() > deadline:
                            batches.cancel()
        self._settle()
        self._display.sweep(everything=True)

    def end(self) -> None:
        """Shows the rest, and ends the streams."""
        self.flush()
        with self._lock:
            self._ended = True
            followers, self._followers = self._followers, {}
        self._wake.set()
        for follower in followers.values():
            follower.end()
        self._shower.end(0)


def _after_cells(output: TaskOutput) -> None:
    """Makes IPython show the output of tasks before a cell ends, so that it belongs to that cell."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return
    known = weakref.ref(output)

    def after_cell(_result: Any) -> None:
        at = known()
        if at is not None:
            at.flush()

    shell.events.register("post_run_cell", after_cell)


class _Follower:
    """The stream of one worker.

    Args:
        worker: the worker.
        output: takes its output.
        before: the follower whose place it takes.
    """

    def __init__(self, worker: worker_pb2.Worker, output: TaskOutput, before: _Follower | None) -> None:
        self.worker_id, self.name = worker.worker_id, worker.name
        #: Position in the worker's output up to which it was read; 0: see `TaskOutput.request`.
        self.position = 0 if before is None else before.position
        #: False if the worker has not answered a question, and has not streamed output since.
        self.answers = before is None or before.answers
        #: The stream broke. If the worker is still there, another follower takes its place.
        self.broken = False
        self._output = output
        self._channel = open_channel(worker.data_address)
        self._stub = data_service_pb2_grpc.DataServiceStub(self._channel)
        self._stream: Any = None

    def begin(self) -> None:
        """Starts the thread that reads the stream."""
        threading.Thread(target=self._run, name=f"millrace-output-{self.name}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._stream = self._stub.FollowLogs(self._output.request(self), metadata=self._output.metadata)
            for batch in self._stream:
                self.answers = True
                self._output.put(self, batch)
        except grpc.RpcError as e:
            code = e.code() if isinstance(e, grpc.Call) else None
            self.broken = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
        except ValueError:  # the channel is closed
            pass

    def rest(self, timeout: float) -> Any:
        """Asks for all that was written before the call."""
        request = self._output.request(self, until_now=True)
        return self._stub.FollowLogs(request, metadata=self._output.metadata, timeout=timeout)

    def read(self, batches: Any) -> None:
        """Shows the answer of `rest`."""
        try:
            for batch in batches:
                self._output.put(self, batch)
        except grpc.RpcError:
            self.answers = False

    def end(self) -> None:
        """Ends the stream."""
        if self._stream is not None:
            self._stream.cancel()
        self._channel.close()
