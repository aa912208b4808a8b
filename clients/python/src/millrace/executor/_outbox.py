"""What goes to the worker."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING

from millrace._pb.millrace.v1 import executor_pb2
from millrace.executor._link import MAX_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millrace.executor._link import Link

#: An op whose runs took less than this lately may start while results of earlier runs wait to be sent, in seconds.
_SHORT = 0.0002
#: Longest that a result or a printed line waits while a task runs, in seconds. Python's threads take turns as often.
HELD = 0.0005
#: Most that is kept of one printed text, in characters. Text that waits is sent when it reaches as much.
_TEXT = 64 << 10
#: Results that wait are sent when they reach as much, in bytes, so that a message has always room for one more.
_BATCH = 8 << 20
#: Largest result that one message can take, without what lies in the slab, in bytes.
LARGEST = MAX_MESSAGE - _BATCH - (4 << 20)


class Outbox:
    """Results, printed text and requests for memory, collected and sent together. Any thread may use it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        # Where answers to requests for memory go; None: nobody waits for it any more. Guarded by _lock.
        self._answers: dict[int, Callable[[executor_pb2.ExecutorAllocated], None] | None] = {}
        self._requests = 0
        # Where those wait that asked for memory. Guarded by _lock.
        self._asking: list[SimpleQueue[executor_pb2.ExecutorAllocated | None]] = []
        # Guards _out, since, _texts, _logged, _bytes and _swept. Reentrant: the garbage collector can call a __del__
        # while a thread holds the lock, and a print in it needs the lock.
        self._lock = threading.RLock()
        self._out = executor_pb2.FromExecutor()
        #: When the first of what waits to be sent was put there; 0: nothing waits.
        self.since = 0.0
        # Printed text that waits: of which task, whether it went to stderr, and its pieces.
        self._texts: list[tuple[int, bool, list[str]]] = []
        # Characters of it.
        self._logged = 0
        # Bytes of results that wait, about.
        self._bytes = 0
        # Released to wake the sweeping thread; `_swept` says that it is awake.
        self._sweeping = threading.Lock()
        self._sweeping.acquire()
        self._swept = False

    def log(self, task: int, text: str, stderr: bool) -> None:
        """Text that a task has printed."""
        text = text[-_TEXT:]
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates
            text = text.encode(errors="replace").decode()
        with self._lock:
            texts = self._texts
            if texts and texts[-1][0] == task and texts[-1][1] == stderr:
                texts[-1][2].append(text)
            else:
                texts.append((task, stderr, [text]))
            self._logged += len(text)
            full = self._logged >= _TEXT
            self.since = self.since or time.monotonic()
            self._sweep_soon()
        if full:
            self.flush()

    def finish(self, finished: executor_pb2.ExecutorFinished, released: Iterable[int] = (), nbytes: int = 0) -> None:
        """A run is over, and leases that nothing needs any more are released after it. `nbytes`: about its size, at most
        LARGEST, if it is not small."""
        with self._lock:
            if self._bytes + nbytes > _BATCH and self._bytes:
                self._send()
            self._bytes += nbytes + 100
            self._out.finished.append(finished)
            for request in released:
                self._out.release.add(request=request)
            self.since = self.since or time.monotonic()

    def _sweep_soon(self) -> None:
        """Has what waits sent soon, whatever the main thread does. REQUIRES: the lock."""
        if not self._swept:
            self._swept = True
            self._sweeping.release()

    def flush(self) -> None:
        """Sends what waits to be sent."""
        with self._lock:
            self._send()

    def _send(self) -> None:
        """Sends the messages that wait. REQUIRES: the lock, so that messages leave in the order in which they were buffered."""
        if not self.since:
            return
        out, self._out, self.since, self._logged, self._bytes = self._out, executor_pb2.FromExecutor(), 0.0, 0, 0
        texts, self._texts = self._texts, []
        for task, stderr, pieces in texts:
            out.logs.add(task_id=task, text="".join(pieces), stderr=stderr)
        self._link.send(out)

    def release(self, requests: Iterable[int]) -> None:
        """Has leases released that nothing needs."""
        with self._lock:
            for request in requests:
                self._out.release.add(request=request)
                self.since = self.since or time.monotonic()

    def loaded(self, modules: Iterable[str]) -> None:
        """Notes modules that tasks have imported. The next message to the worker has them."""
        with self._lock:
            self._out.loaded.extend(modules)

    def before_run(self, longest: float) -> None:
        """Sends what waits, unless the run that begins is likely to be over before it would matter. REQUIRES: something waits."""
        if longest > _SHORT or time.monotonic() - self.since > HELD:
            self.flush()
        elif not self._swept:  # in case that it is not as short as it used to be
            with self._lock:
                self._sweep_soon()

    def sweep(self) -> None:
        """Sends what waits while a task runs for long. Asleep while there is nothing."""
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

    # ---- requests for memory -----------------------------------------------------------------------------------------

    def number(self) -> int:
        """One by which the worker can be asked for something, and which nothing else has."""
        with self._lock:
            self._requests += 1
            return self._requests

    def nudge(self) -> None:
        """Makes the threads that wait for memory call their `meanwhile`."""
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
    ) -> executor_pb2.ExecutorAllocated:
        """Asks the worker for memory of a run, or of the process, and waits for its answer, which may be an error.
        `meanwhile` is called in this thread for each `nudge` before the answer."""
        answers: SimpleQueue[executor_pb2.ExecutorAllocated | None] = SimpleQueue()
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answers.put
            if meanwhile is not None:
                self._asking.append(answers)
            request = self._out.allocate.add(request=number, frame_bytes=sizes, no_wait=no_wait)
            if run is not None:
                request.task.task_id, request.task.attempt = run.task_id, run.attempt
            self.since = self.since or time.monotonic()
        try:
            self.flush()
            while (answer := answers.get()) is None:
                assert meanwhile is not None
                meanwhile()
            return answer
        except BaseException:  # the run is stopped
            with self._lock:
                if number in self._answers:
                    self._answers[number] = None
                else:
                    self._out.release.add(request=number)
            raise
        finally:
            if meanwhile is not None:
                with self._lock:
                    self._asking.remove(answers)

    def ask_later(
        self, sizes: list[int], put: Callable[[executor_pb2.ExecutorAllocated], None], *, no_wait: bool = False
    ) -> None:
        """The same without waiting: `put` is told in the reader's thread."""
        with self._lock:
            self._requests += 1
            self._answers[self._requests] = put
            self._out.allocate.add(request=self._requests, frame_bytes=sizes, no_wait=no_wait)
            self.since = self.since or time.monotonic()

    def answered(self, allocated: executor_pb2.ExecutorAllocated) -> None:
        """An answer of the worker has arrived."""
        with self._lock:
            waiting = self._answers.pop(allocated.request, None)
            if waiting is None:
                self._out.release.add(request=allocated.request)  # ignored if it was for a run
                self.since = self.since or time.monotonic()
        if waiting is not None:
            waiting(allocated)
