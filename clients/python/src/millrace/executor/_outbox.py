"""Messages from the executor to its worker, which are collected and sent together."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace.executor._link import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millrace.executor._link import Link

#: Results of earlier runs may wait while an op runs whose recent runs took less than this, in
#: seconds.
_SHORT = 0.0002
#: Longest time, in seconds, that a result or a printed line waits while a task runs. Also Python's
#: thread switch interval.
HELD = 0.0005
#: Most characters that are kept of one printed text. Waiting texts are sent when they reach this
#: total.
_TEXT = 64 << 10
#: Text that reaches the total again within this time, in seconds, is shortened instead of sent:
#: nobody reads so fast, and the worker keeps only the end of it.
_FULL_PAUSE = 0.005
#: Waiting results are sent when they reach this size, in bytes, so that a message always has room
#: for one more.
_BATCH = 8 << 20
#: Largest result that fits into one message, in bytes, without the data in the slab.
LARGEST = MAX_MESSAGE - _BATCH - (4 << 20)


class _Printed:
    """Text that a task has printed to one stream, and that waits to be sent."""

    __slots__ = ("_left_out", "_pieces", "stderr", "task")

    def __init__(self, task: int, stderr: bool) -> None:
        self.task, self.stderr = task, stderr
        self._pieces: list[str] = []
        self._left_out = 0

    def add(self, text: str) -> None:
        self._pieces.append(text)

    def shorten(self) -> int:
        """Keeps only the end of the text. Returns by how many characters it is shorter."""
        text = "".join(self._pieces)
        self._pieces = [text[-_TEXT // 4 :]]
        less = len(text) - len(self._pieces[0])
        self._left_out += less
        return less

    def text(self) -> str:
        note = f"\n[... {self._left_out:,} characters left out ...]\n" if self._left_out else ""
        return note + "".join(self._pieces)


class Outbox:
    """Buffers results, printed text and requests for memory, and sends them together. Any thread
    may use it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # By request number, the function that takes the answer to a request for memory; None: the
        # requester has given up. Guarded by _lock.
        self._answers: dict[int, Callable[[executor_pb2.ExecutorAllocation], None] | None] = {}
        self._requests = 0
        # The queues of the threads that wait for memory and have a `meanwhile`. Guarded by _lock.
        self._asking: list[SimpleQueue[executor_pb2.ExecutorAllocation | None]] = []
        # Guards _out, since, _texts, _logged, _bytes and _swept. Reentrant: the garbage collector
        # can call a __del__ while a thread holds the lock, and a print in it needs the lock.
        self._lock = threading.RLock()
        self._out = executor_pb2.FromExecutor()
        #: When the oldest waiting item was added, in monotonic seconds; 0: nothing waits.
        self.since = 0.0
        # Waiting printed text, its characters, and the monotonic time when text was last sent
        # because there was much of it.
        self._texts: list[_Printed] = []
        self._logged = 0
        self._full_at = 0.0
        # Approximate bytes of the waiting results.
        self._bytes = 0
        # The run that waits for other tasks, before the worker was told: None afterwards.
        self._blocked: executor_pb2.AttemptRef | None = None
        # Released to wake the sweeping thread. `_swept` is True while that thread is awake.
        self._sweeping = threading.Lock()
        self._sweeping.acquire()
        self._swept = False

    def log(self, task: int, text: str, stderr: bool) -> None:
        """Adds text that a task has printed. Only the last 64 Ki characters of one text are
        kept."""
        text = text[-_TEXT:]
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates
            text = text.encode(errors="replace").decode()
        with self._lock:
            if not self._texts or (self._texts[-1].task, self._texts[-1].stderr) != (task, stderr):
                self._texts.append(_Printed(task, stderr))
            self._texts[-1].add(text)
            self._logged += len(text)
            full = self._logged >= _TEXT
            if full:
                now = time.monotonic()
                if now - self._full_at < _FULL_PAUSE:
                    self._logged -= self._texts[-1].shorten()
                    full = self._logged >= _TEXT
                else:
                    self._full_at = now
            self.since = self.since or time.monotonic()
            self._sweep_soon()
        if full:
            self.flush()

    def finish(self, finished: executor_pb2.ExecutorFinished, released: Iterable[int] = (), nbytes: int = 0) -> None:
        """Adds the result of a run, and leases to be released with it. `nbytes`: the approximate
        size of the result if it is not small, at most LARGEST."""
        with self._lock:
            if self._bytes + nbytes > _BATCH and self._bytes:
                self._send()
            self._bytes += nbytes + 100
            self._out.finished.append(finished)
            for request in released:
                self._out.releases.add(request_id=request)
            self.since = self.since or time.monotonic()

    def send_return(self, returned: executor_pb2.ExecutorReturn) -> None:
        """Sends the result of a call at once, in a message of its own."""
        self._link.send(executor_pb2.FromExecutor(returns=[returned]))

    def _sweep_soon(self) -> None:
        """Makes the sweeping thread send the waiting items soon, whatever the main thread does.
        REQUIRES: the lock."""
        if not self._swept:
            self._swept = True
            self._sweeping.release()

    def flush(self) -> None:
        """Sends all waiting items."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        """Sends all waiting items. REQUIRES: the lock, so that messages leave in the order in which
        they were buffered."""
        if not self.since:
            return
        out, self._out, self.since, self._logged, self._bytes = self._out, executor_pb2.FromExecutor(), 0.0, 0, 0
        texts, self._texts = self._texts, []
        for printed in texts:
            out.logs.add(task_id=printed.task, text=printed.text(), stderr=printed.stderr)
        if self._blocked is not None:
            out.blocked.append(self._blocked)
            self._blocked = None
        if out.ByteSize():
            self._link.send(out)

    def release(self, requests: Iterable[int]) -> None:
        """Adds leases that the worker is to release."""
        with self._lock:
            for request in requests:
                self._out.releases.add(request_id=request)
                self.since = self.since or time.monotonic()

    def loaded(self, modules: Iterable[str]) -> None:
        """Adds names of modules that tasks have imported. They wait for the next message to the
        worker."""
        with self._lock:
            self._out.loaded_modules.extend(modules)

    def needed(self) -> None:
        """Adds that the process must not be ended for being idle."""
        with self._lock:
            self._out.needed = True
            self.since = self.since or time.monotonic()

    def block(self, run: executor_pb2.AttemptRef) -> None:
        """Adds that a run waits for other tasks. The worker is told after HELD seconds, so a short
        wait does not cost the slot."""
        with self._lock:
            self._blocked = run
            self.since = self.since or time.monotonic()
            self._sweep_soon()

    def resume(self, run: executor_pb2.AttemptRef | None = None) -> bool:
        """Notes that the run does not wait any more. Returns True if the worker was told that it
        waits, and is asked for a slot now; None as the run: no slot is needed."""
        with self._lock:
            told, self._blocked = self._blocked is None, None
            if not told or run is None:
                return False
            self._out.resumed.append(run)
            self.since = self.since or time.monotonic()
            self._send()
            return True

    def before_run(self, longest: float) -> None:
        """Sends the waiting items, unless the run that begins is likely to end soon (`longest`
        recent run, in seconds). REQUIRES: something waits."""
        if longest > _SHORT or time.monotonic() - self.since > HELD:
            self.flush()
        elif not self._swept:  # the run may take longer than the earlier ones
            with self._lock:
                self._sweep_soon()

    def sweep(self) -> None:
        """Sends waiting items while a long task runs. This is the body of the sweeping thread,
        which blocks while nothing waits."""
        while True:
            self._sweeping.acquire()
            while True:
                with self._lock:
                    since = self.since
                    if not since:
                        self._swept = False
                        break
                left = since + HELD - time.monotonic()
                if left > 0:
                    time.sleep(left)
                    continue
                try:
                    self.flush()
                except OSError:
                    return

    # ---- requests for memory ---------------------------------------------------------------------

    def number(self) -> int:
        """Returns a new number for a request to the worker, which no other request has."""
        with self._lock:
            self._requests += 1
            return self._requests

    def nudge(self) -> None:
        """Wakes the threads that wait for memory, so that they call their `meanwhile`."""
        with self._lock:
            for answers in self._asking:
                answers.put(None)

    def ask(
        self,
        sizes: list[int],
        run: executor_pb2.ExecutorRun | None,
        *,
        no_wait: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> executor_pb2.ExecutorAllocation:
        """Asks the worker for memory, for a run or for the process, and waits for its answer, which
        may be an error. With `no_wait`, the worker answers at once. `meanwhile` is called in this
        thread for each `nudge` before the answer."""
        answers: SimpleQueue[executor_pb2.ExecutorAllocation | None] = SimpleQueue()
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answers.put
            if meanwhile is not None:
                self._asking.append(answers)
            request = self._out.allocation_requests.add(request_id=number, frame_bytes=sizes, no_wait=no_wait)
            if run is not None:
                request.attempt.task_id, request.attempt.attempt = run.task_id, run.attempt
            self.since = self.since or time.monotonic()
        try:
            self.flush()
            while (answer := answers.get()) is None:
                assert meanwhile is not None
                meanwhile()
            return answer
        except BaseException:  # the run was stopped
            with self._lock:
                if number in self._answers:
                    self._answers[number] = None
                else:
                    self._out.releases.add(request_id=number)
            raise
        finally:
            if meanwhile is not None:
                with self._lock:
                    self._asking.remove(answers)

    def ask_later(
        self, sizes: list[int], put: Callable[[executor_pb2.ExecutorAllocation], None], *, no_wait: bool = False
    ) -> None:
        """Like `ask`, but does not wait: `put` is called with the answer in the reader thread."""
        with self._lock:
            self._requests += 1
            self._answers[self._requests] = put
            self._out.allocation_requests.add(request_id=self._requests, frame_bytes=sizes, no_wait=no_wait)
            self.since = self.since or time.monotonic()

    def answered(self, allocated: executor_pb2.ExecutorAllocation) -> None:
        """Handles an answer of the worker. Memory that the requester does not want any more is
        released."""
        with self._lock:
            waiting = self._answers.pop(allocated.request_id, None)
            if waiting is None:
                self._out.releases.add(request_id=allocated.request_id)  # ignored if it was for a run
                self.since = self.since or time.monotonic()
        if waiting is not None:
            waiting(allocated)
