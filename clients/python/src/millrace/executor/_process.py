"""The executor's two threads: one reads the link, the main one runs tasks (signals arrive there)."""

from __future__ import annotations

import importlib
import inspect
import io
import os
import pickle
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import cloudpickle
import numpy as np

from millrace import _serialize
from millrace._pb.millrace.v1 import executor_pb2, task_pb2, value_pb2
from millrace.executor._link import CONTROL_FD, SLAB_FD, ControlPage, Link, Slab, open_socket

PROTOCOL = 1
#: An op whose runs take less than this on average may start while results of earlier runs wait to be sent, in seconds.
_SHORT = 0.0005
#: Longest that a result or a printed line waits while a task runs, in seconds.
_HELD = 0.02


class TaskStopped(KeyboardInterrupt):
    """Raised in a task that was cancelled or ran out of time. Catch it to clean up, and let it go on."""


@dataclass(frozen=True)
class TaskInfo:
    """What a task can know about itself."""

    #: Name of its result.
    key: str
    #: Number of the task.
    task_id: int
    #: Attempt, from 1.
    attempt: int
    #: Name of the worker.
    worker: str
    #: Namespace of the key.
    namespace: str


class _Refused(Exception):
    """A failure with a reason of its own."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _NoRoom(Exception):
    def __init__(self, error: task_pb2.TaskError) -> None:
        super().__init__(error.message)
        self.error = error


class _Stream(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr: text of a task goes with the task, other text to the process's own."""

    def __init__(self, process: Process, original: Any, stderr: bool) -> None:
        self._process, self._original, self._stderr = process, original, stderr

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def fileno(self) -> int:
        return self._original.fileno()

    def flush(self) -> None:
        # Whoever asks may be about to die.
        if self._process.task_id:
            self._process.flush()
        self._original.flush()

    def write(self, text: str, /) -> int:
        task = self._process.task_id
        if task == 0:
            return self._original.write(text)
        self._process.log(task, text, self._stderr)
        return len(text)


class _Op:
    """An op of this session: resolved at its first use."""

    __slots__ = ("call", "mean", "runs", "spec")

    def __init__(self, spec: task_pb2.Op) -> None:
        self.spec = spec
        self.call: Callable[..., Any] | None = None
        self.mean = 1.0  # of the run times in seconds; long until known
        self.runs = 0

    def took(self, seconds: float) -> None:
        self.runs += 1
        self.mean = seconds if self.runs == 1 else 0.8 * self.mean + 0.2 * seconds


class Process:
    """One executor process."""

    def __init__(self) -> None:
        self._link = Link(open_socket())
        hello = self._link.receive()
        if hello is None:
            raise SystemExit(0)
        self.hello = hello.hello
        if self.hello.protocol != PROTOCOL:
            print(f"worker speaks protocol {self.hello.protocol}, this executor {PROTOCOL}", file=sys.stderr)
            raise SystemExit(64)
        self._slab = Slab(SLAB_FD, self.hello.slab_bytes)
        self._base = np.frombuffer(self._slab.readable, np.uint8).ctypes.data
        self._control = ControlPage(CONTROL_FD)
        self._ops: dict[int, _Op] = {}
        self._functions: dict[bytes, bytes] = {}
        # Runs by (task, attempt) that have neither begun nor been dropped. Whoever pops one answers for it: dict.pop is
        # atomic, so that the reader's drop and the main thread's begin exclude each other.
        self._pending: dict[tuple[int, int], tuple[int, executor_pb2.ExecutorRun]] = {}
        self._queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._allocated: SimpleQueue[executor_pb2.ExecutorAllocated] = SimpleQueue()
        self._requests = 0
        self._ordinal = 0
        # Guards _out and _since.
        self._lock = threading.Lock()
        self._out = executor_pb2.FromExecutor()
        self._since = 0.0
        # Set while something waits to be sent.
        self._waiting = threading.Event()
        # Ordinal of the run that may be stopped now; 0: none. Read by the signal handler, in the main thread.
        self._stoppable = 0
        self.task_id = 0
        self.info: TaskInfo | None = None
        if not os.environ.get("MILLRACE_ADDRESS"):
            os.environ["MILLRACE_ADDRESS"] = self.hello.scheduler_address

    # ---- sending -----------------------------------------------------------------------------------------------

    def log(self, task: int, text: str, stderr: bool) -> None:
        with self._lock:
            logs = self._out.logs
            if logs and logs[-1].task_id == task and logs[-1].stderr == stderr:
                logs[-1].text += text
            else:
                logs.add(task_id=task, text=text, stderr=stderr)
            self._hold()

    def _finish(self, finished: executor_pb2.ExecutorFinished) -> None:
        with self._lock:
            self._out.finished.append(finished)
            self._hold()

    def _hold(self) -> None:
        """Notes that something waits to be sent. REQUIRES: the lock."""
        if not self._since:
            self._since = time.monotonic()
            self._waiting.set()

    def flush(self) -> None:
        """Sends what waits to be sent."""
        with self._lock:
            if not self._since:
                return
            out, self._out, self._since = self._out, executor_pb2.FromExecutor(), 0.0
            # Sent under the lock: what is buffered later is also sent later.
            self._link.send(out)

    # ---- the reader thread ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                message = self._link.receive()
                if message is None:
                    break
                self._accept(message)
        except OSError:
            pass  # the link broke: the same as its end
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        # Nobody will read a result any more, and the main thread may be anywhere.
        os._exit(0)

    def _accept(self, message: executor_pb2.ToExecutor) -> None:
        for definition in message.ops:
            self._ops[definition.op_id] = _Op(definition.op)
        for function in message.functions:
            self._functions[function.hash] = function.payload
        for run in message.runs:
            self._ordinal += 1
            key = (run.task_id, run.attempt)
            self._pending[key] = (self._ordinal, run)
            self._queue.put(key)
        for allocated in message.allocated:
            self._allocated.put(allocated)
        dropped = False
        for ref in message.cancellations:
            if self._pending.pop((ref.task_id, ref.attempt), None) is not None:
                dropped = True
                error = task_pb2.TaskError(reason="DROPPED", message="dropped before it began")
                self._finish(executor_pb2.ExecutorFinished(task_id=ref.task_id, attempt=ref.attempt, error=error))
        if dropped:
            self.flush()
        if message.shutdown:
            for task, attempt in list(self._pending):
                if self._pending.pop((task, attempt), None) is not None:
                    error = task_pb2.TaskError(reason="DROPPED", message="the executor shuts down")
                    self._finish(executor_pb2.ExecutorFinished(task_id=task, attempt=attempt, error=error))
            self.flush()
            self._queue.put(None)

    def _sweep(self) -> None:
        """Sends what waits while a task runs for long. Asleep while there is nothing."""
        while True:
            self._waiting.wait()
            time.sleep(_HELD)
            with self._lock:
                since = self._since
                if not since:
                    self._waiting.clear()
            if since and time.monotonic() - since >= _HELD:
                try:
                    self.flush()
                except OSError:
                    return

    # ---- the main thread -----------------------------------------------------------------------------------------

    def _on_signal(self, _signum: int, _frame: Any) -> None:
        if self._stoppable and self._control.stop == self._stoppable:
            self._stoppable = 0
            raise TaskStopped("the task was stopped")

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._on_signal)
        sys.stdout = _Stream(self, sys.stdout, stderr=False)
        sys.stderr = _Stream(self, sys.stderr, stderr=True)
        ready = executor_pb2.ExecutorReady(
            protocol=PROTOCOL, pid=os.getpid(), language=f"python {platform.python_version()}"
        )
        self._link.send(executor_pb2.FromExecutor(ready=ready))
        threading.Thread(target=self._read, name="millrace-link", daemon=True).start()
        threading.Thread(target=self._sweep, name="millrace-sweep", daemon=True).start()
        queue, pending = self._queue, self._pending
        while True:
            if queue.empty():
                self.flush()
            key = queue.get()
            if key is None:
                self.flush()
                return 0
            entry = pending.pop(key, None)
            if entry is None:
                continue  # dropped
            ordinal, run = entry
            op = self._ops[run.op_id]
            if self._since and (op.mean > _SHORT or time.monotonic() - self._since > 0.001):
                self.flush()
            self._control.begin(ordinal)
            finished = self._run(ordinal, run, op)
            self._control.end(ordinal)
            self._finish(finished)

    def _run(self, ordinal: int, run: executor_pb2.ExecutorRun, op: _Op) -> executor_pb2.ExecutorFinished:
        finished = executor_pb2.ExecutorFinished(task_id=run.task_id, attempt=run.attempt)
        self.task_id = run.task_id
        self.info = TaskInfo(run.key, run.task_id, run.attempt, self.hello.worker_name, run.namespace or "default")
        began = time.perf_counter_ns()
        try:
            try:
                self._stoppable = ordinal
                if self._control.stop == ordinal:
                    raise TaskStopped("the task was stopped before it began")
                call = op.call or self._resolve(op)
                inputs = [
                    _serialize.decode(i.header, [self._slab.readable[f.offset : f.offset + f.bytes] for f in i.frames])
                    for i in run.inputs
                ]
                args, kwargs = self._arguments(run, inputs)
                result = call(*args, **kwargs)
                if inspect.iscoroutine(result):
                    import asyncio  # slow to import, and rarely needed

                    result = asyncio.run(result)
                self._store(run, result, finished)
            finally:
                self._stoppable = 0
        except _Refused as e:
            finished.error.reason, finished.error.message = e.reason, str(e)
        except _NoRoom as e:
            finished.error.CopyFrom(e.error)
        except TaskStopped:
            finished.error.reason, finished.error.message = "STOPPED", "the function was stopped"
        except BaseException as e:  # SystemExit too: a task that calls sys.exit fails, the executor lives
            self._describe(e, finished.error)
        finally:
            self.task_id, self.info = 0, None
        took = time.perf_counter_ns() - began
        finished.run_nanos = took
        op.took(took * 1e-9)
        if finished.HasField("error"):
            finished.ClearField("header")
            del finished.frames[:], finished.inline_frames[:]
        return finished

    def _resolve(self, op: _Op) -> Callable[..., Any]:
        spec = op.spec
        if spec.kind == task_pb2.OP_KIND_PYTHON_PICKLE:
            payload = self._functions.get(spec.function)
            if payload is None:
                raise _Refused("FUNCTION_NOT_FOUND", f"the worker did not send the function {spec.name}")
            try:
                op.call = pickle.loads(payload)
            except TaskStopped:
                raise
            except BaseException as e:
                raise _Refused(
                    "FUNCTION_NOT_FOUND",
                    f"function {spec.name} cannot be unpickled by Python {platform.python_version()} of worker "
                    f"{self.hello.worker_name}: {type(e).__name__}: {e}. Are the same packages installed there?",
                ) from e
        else:
            op.call = self._import(spec.name)
        assert op.call is not None
        return op.call

    def _import(self, path: str) -> Callable[..., Any]:
        module, _, name = path.partition(":")
        if not module or not name:
            raise _Refused("FUNCTION_NOT_FOUND", f"{path!r} is no import path: write package.module:function")
        try:
            found: Any = importlib.import_module(module)
        except TaskStopped:
            raise
        except BaseException as e:
            raise _Refused(
                "FUNCTION_NOT_FOUND",
                f"module {module} cannot be imported on worker {self.hello.worker_name}: {type(e).__name__}: {e}. "
                f"Install it for {sys.executable}, or add its folder to PYTHONPATH where the worker starts",
            ) from e
        for part in name.split("."):
            found = getattr(found, part, None)
            if found is None:
                near = [n for n in dir(sys.modules[module]) if n.lower()[:3] == part.lower()[:3] and n[0] != "_"]
                hint = f"; near names: {', '.join(near[:5])}" if near else ""
                raise _Refused("FUNCTION_NOT_FOUND", f"module {module} has no {part}{hint}")
        if not callable(found):
            raise _Refused("FUNCTION_NOT_FOUND", f"{path} is a {type(found).__name__}, not a function")
        return found

    def _arguments(self, run: executor_pb2.ExecutorRun, inputs: list[Any]) -> tuple[Any, Any]:
        if not run.arguments:
            return (), {}
        try:
            arguments = value_pb2.Arguments.FromString(run.arguments)
            if arguments.HasField("call"):
                return _serialize.CallUnpickler(arguments.call.data, inputs).load()
            args = [_serialize.from_value(v, (), inputs) for v in arguments.positional]
            return args, {k: _serialize.from_value(v, (), inputs) for k, v in arguments.named.items()}
        except TaskStopped:
            raise
        except Exception as e:
            raise _Refused(
                "INVALID_ARGUMENT",
                f"the arguments of {run.key} cannot be decoded on worker {self.hello.worker_name}: "
                f"{type(e).__name__}: {e}",
            ) from e

    def _store(self, run: executor_pb2.ExecutorRun, result: Any, finished: executor_pb2.ExecutorFinished) -> None:
        try:
            encoded = _serialize.encode(result)
        except TaskStopped:
            raise
        except Exception as e:
            kind = type(result)
            raise _Refused(
                "RESULT_NOT_SERIALISABLE",
                f"the result of {run.key}, a {kind.__module__}.{kind.__qualname__}, cannot be pickled: "
                f"{type(e).__name__}: {e}. Return its data instead",
            ) from e
        finished.header = encoded.header
        if not encoded.frames:
            return
        if encoded.nbytes <= self.hello.inline_bytes:
            finished.inline_frames.extend(bytes(f) for f in encoded.frames)
            return
        # Frames that lie in an input need no room: the result shares them.
        shared = [self._shared(f, run) for f in encoded.frames]
        wanted = [f for f, at in zip(encoded.frames, shared, strict=True) if at is None]
        places = iter(self._allocate(run, [f.nbytes for f in wanted]) if wanted else ())
        for frame, at in zip(encoded.frames, shared, strict=True):
            if at is None:
                place = next(places)
                at = place.offset
                if frame.nbytes:
                    self._slab.writable[at : at + frame.nbytes] = frame
            finished.frames.add(offset=at, bytes=frame.nbytes)

    def _shared(self, frame: memoryview, run: executor_pb2.ExecutorRun) -> int | None:
        if not frame.nbytes:
            return None
        at = np.frombuffer(frame, np.uint8).ctypes.data - self._base
        for i in run.inputs:
            for f in i.frames:
                if f.offset <= at and at + frame.nbytes <= f.offset + f.bytes:
                    return at
        return None

    def _allocate(self, run: executor_pb2.ExecutorRun, sizes: list[int]) -> Any:
        self._requests += 1
        with self._lock:
            request = self._out.allocate.add(request=self._requests, frame_bytes=sizes)
            request.task.task_id, request.task.attempt = run.task_id, run.attempt
            self._hold()
        self.flush()
        while True:
            answer = self._allocated.get()
            if answer.request == self._requests:  # a stopped run may have left an answer behind
                break
        if answer.HasField("error"):
            raise _NoRoom(answer.error)
        return answer.frames

    def _describe(self, e: BaseException, error: task_pb2.TaskError) -> None:
        trace = e.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        e = e.with_traceback(trace)
        error.reason = "OUT_OF_MEMORY" if isinstance(e, MemoryError) else "PYTHON_EXCEPTION"
        error.message = "".join(traceback.format_exception_only(type(e), e)).strip()
        error.traceback = "".join(traceback.format_exception(type(e), e, trace))
        try:
            data = cloudpickle.dumps(chain(e), protocol=5)
            pickle.loads(data)  # some exceptions pickle and do not unpickle
        except BaseException:
            return  # clients then get the text only
        if len(data) <= 1 << 20:
            error.exception.encoding, error.exception.data = "pickle5", data
            error.exception.type_name = _qualified(e)


def chain(e: BaseException) -> list[tuple[BaseException, bool]]:
    """The exception and its causes or contexts, outermost first, each with "the next one is its explicit cause".
    Pickling an exception alone loses them."""
    links: list[tuple[BaseException, bool]] = []
    seen: set[int] = set()
    current: BaseException | None = e
    while current is not None and id(current) not in seen and len(links) < 32:
        seen.add(id(current))
        explicit = current.__cause__ is not None
        links.append((current, explicit))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return links


def _qualified(e: BaseException) -> str:
    return f"{type(e).__module__}.{type(e).__qualname__}"


_process: Process | None = None


def get_task_info() -> TaskInfo | None:
    """What runs in this process: the current task, or None outside of one."""
    return _process.info if _process is not None else None


def main() -> int:
    global _process
    _process = Process()
    status = _process.run()
    sys.stdout.flush()
    sys.stderr.flush()
    return status
