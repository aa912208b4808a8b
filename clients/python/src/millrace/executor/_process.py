"""The executor's two threads: one reads the link, the main one runs tasks (signals arrive there)."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import inspect
import os
import pickle
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, cast

import cloudpickle

from millrace import _arrays, _serialize
from millrace._arrays import DeviceFrame
from millrace._pb.millrace.v1 import data_service_pb2, executor_pb2, task_pb2, value_pb2
from millrace.executor._device import CudaError, Device, DeviceRange
from millrace.executor._kernels import warm_up
from millrace.executor._link import CONTROL_FD, SLAB_FD, ControlPage, Link, Segment, Slab, open_socket
from millrace.executor._memory import (
    IDLE,
    Arena,
    Gate,
    Lease,
    NoLease,
    give_back,
    holders,
    is_out_of_memory,
)
from millrace.executor._output import Stream, drain
from millrace.executor._torch import TorchArena

PROTOCOL = 1
#: An op whose runs took less than this lately may start while results of earlier runs wait to be sent, in seconds.
_SHORT = 0.0002
#: Longest that a result or a printed line waits while a task runs, in seconds. Python's threads take turns as often.
_HELD = 0.0005
#: Most that is kept of one printed text, and of the texts of an error, in characters. Text that waits is sent when it
#: reaches as much.
_TEXT = 64 << 10


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


class _Op:
    """An op of this session: resolved at its first use."""

    __slots__ = ("call", "longest", "spec")

    def __init__(self, spec: task_pb2.Op) -> None:
        self.spec = spec
        self.call: Callable[..., Any] | None = None
        #: Of the recent runs, in seconds; long until known.
        self.longest = 1.0

    def took(self, seconds: float) -> None:
        self.longest = max(seconds, 0.7 * self.longest)


class _Undecodable:
    """Takes the place of an input that could not be decoded, to find out which argument it is."""


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
        # The slab, in one of the two places.
        self._device: Device | None = None
        self._slab: Slab | None = None
        self._arena: Arena | None = None
        self._torch: TorchArena | None = None
        self._gate: Gate | None = None
        # CuPy takes memory from the arena.
        self._lent = False
        if self.hello.HasField("device"):
            self._device = Device(self.hello.device, self.hello.slab_bytes)
            self._arena = Arena(self._device, self._lease, self.hello.device.arena_bytes)
            if self.hello.device.arena_bytes and "torch" in self.hello.device.arena_libraries:
                self._torch = TorchArena(
                    self._device.driver,
                    self._device.base,
                    self.hello.device.arena_bytes,
                    self._lease,
                    self._lease_later,
                )
            if self.hello.device.neighbours > 1:
                self._gate = Gate(SLAB_FD)
        else:
            self._slab = Slab(SLAB_FD, self.hello.slab_bytes)
        # The GPU does not answer this process any more: another one is to go on.
        self._lost: CudaError | None = None
        # Address of the mapping that inputs are served from; 0 until it is needed.
        self._base = 0
        # Memory of other workers by number; what could not be mapped says why. Changed by the reader, never while a run
        # that refers to it is pending or working.
        self._segments: dict[int, Segment | OSError] = {}
        self._control = ControlPage(CONTROL_FD)
        self._ops: dict[int, _Op] = {}
        self._functions: dict[bytes, bytes] = {}
        # Runs by (task, attempt) that have neither begun nor been dropped. Whoever pops one answers for it: dict.pop is
        # atomic, so that the reader's drop and the main thread's begin exclude each other.
        self._pending: dict[tuple[int, int], tuple[int, executor_pb2.ExecutorRun]] = {}
        self._queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        # Where answers to requests for memory go; None: nobody waits for it any more. Guarded by _lock.
        self._answers: dict[int, Callable[[executor_pb2.ExecutorAllocated], None] | None] = {}
        self._requests = 0
        self._ordinal = 0
        # Guards _out, _since, _logged and _swept.
        self._lock = threading.Lock()
        self._out = executor_pb2.FromExecutor()
        # When the first of what waits to be sent was put there; 0: nothing waits.
        self._since = 0.0
        # Characters of logs that wait.
        self._logged = 0
        # Released to wake the sweeping thread; `_swept` says that it is awake.
        self._sweeping = threading.Lock()
        self._sweeping.acquire()
        self._swept = False
        # Ordinal of the run that may be stopped now; 0: none. Read by the signal handler, in the main thread.
        self._stoppable = 0
        self.task_id = 0
        self.info: TaskInfo | None = None
        if not os.environ.get("MILLRACE_ADDRESS"):
            os.environ["MILLRACE_ADDRESS"] = self.hello.scheduler_address

    # ---- sending -----------------------------------------------------------------------------------------------

    def log(self, task: int, text: str, stderr: bool) -> None:
        text = text[-_TEXT:]
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates
            text = text.encode(errors="replace").decode()
        with self._lock:
            logs = self._out.logs
            if logs and logs[-1].task_id == task and logs[-1].stderr == stderr:
                logs[-1].text += text
            else:
                logs.add(task_id=task, text=text, stderr=stderr)
            self._logged += len(text)
            full = self._logged >= _TEXT
            self._since = self._since or time.monotonic()
            self._sweep_soon()
        if full:
            self.flush()

    def _finish(self, finished: executor_pb2.ExecutorFinished, released: Iterable[int] = ()) -> None:
        with self._lock:
            self._out.finished.append(finished)
            for request in released:
                self._out.release.add(request=request)
            self._since = self._since or time.monotonic()

    def _sweep_soon(self) -> None:
        """Has what waits sent soon, whatever the main thread does. REQUIRES: the lock."""
        if not self._swept:
            self._swept = True
            self._sweeping.release()

    def flush(self) -> None:
        """Sends what waits to be sent."""
        with self._lock:
            if not self._since:
                return
            out, self._out, self._since, self._logged = self._out, executor_pb2.FromExecutor(), 0.0, 0
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
        for attach in message.attach:
            try:
                self._segments[attach.segment] = Segment(self._link.take_descriptor(), attach.bytes)
            except OSError as e:
                self._segments[attach.segment] = e
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
            with self._lock:
                waiting = self._answers.pop(allocated.request, None)
                if waiting is None:
                    self._out.release.add(request=allocated.request)  # ignored if it was for a run
                    self._since = self._since or time.monotonic()
            if waiting is not None:
                waiting(allocated)
        dropped = False
        for ref in message.cancellations:
            if self._pending.pop((ref.task_id, ref.attempt), None) is not None:
                dropped = True
                error = task_pb2.TaskError(reason="DROPPED", message="dropped before it began")
                self._finish(executor_pb2.ExecutorFinished(task_id=ref.task_id, attempt=ref.attempt, error=error))
        if dropped:
            self.flush()
        for detach in message.detach:
            self._segments.pop(detach.segment, None)
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
            self._sweeping.acquire()
            while True:
                with self._lock:
                    since = self._since
                    if not since:
                        self._swept = False
                        break
                left = since + _HELD - time.monotonic()
                if left > 0:
                    time.sleep(left)
                    continue
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
        sys.setswitchinterval(_HELD)
        sys.stdout = Stream(self, sys.stdout, stderr=False)
        sys.stderr = Stream(self, sys.stderr, stderr=True)
        ready = executor_pb2.ExecutorReady(
            protocol=PROTOCOL,
            pid=os.getpid(),
            language=f"python {platform.python_version()}",
            segments=self._device is None,
            device=self._device is not None,
        )
        self._link.send(executor_pb2.FromExecutor(ready=ready))
        threading.Thread(target=self._read, name="millrace-link", daemon=True).start()
        threading.Thread(target=self._sweep, name="millrace-sweep", daemon=True).start()
        queue, pending = self._queue, self._pending
        if queue.empty():
            self._preload()
        while True:
            if queue.empty():
                self.flush()
            key = self._next()
            if key is None:
                self.flush()
                return 0
            entry = pending.pop(key, None)
            if entry is None:
                continue  # dropped
            ordinal, run = entry
            op = self._ops[run.op_id]
            if self._since:
                if op.longest > _SHORT or time.monotonic() - self._since > _HELD:
                    self.flush()
                elif not self._swept:  # in case that it is not as short as it used to be
                    with self._lock:
                        self._sweep_soon()
            if self._gate is not None:
                self._gate.share()
            self._control.begin(ordinal)
            began = time.perf_counter()
            finished = self._run(ordinal, run, op)
            took = time.perf_counter() - began
            op.took(took)
            if took > 0.001:  # it may have started a program
                drain()
            if self._torch is not None and self._lost is None:
                self._torch.settle()
            if self._gate is not None:
                self._gate.leave()
            self._control.end(ordinal)
            self._finish(finished, self._released())
            if self._lost is not None:
                self.flush()
                print(f"the GPU is lost to this process: {self._lost}", file=sys.__stderr__)
                return 70

    def _next(self) -> tuple[int, int] | None:
        """The next run. A process among others that has none gives back what its libraries keep."""
        if self._gate is not None and self._queue.empty():
            try:
                return self._queue.get(timeout=IDLE)
            except Empty:
                give_back()
                assert self._arena is not None
                self._arena.forget(all_of_it=True)
                if self._torch is not None:
                    self._torch.give_back()
                self._release()
                self.flush()
        return self._queue.get()

    def _released(self) -> list[int]:
        """Leases to be released now. REQUIRES: nothing that was submitted is still running."""
        out = self._arena.released() if self._arena is not None else []
        return out + self._torch.released() if self._torch is not None else out

    def _release(self) -> None:
        """Has leases released that nothing needs. REQUIRES: nothing that was submitted is still running."""
        with self._lock:
            for request in self._released():
                self._out.release.add(request=request)
                self._since = self._since or time.monotonic()

    def _preload(self) -> None:
        """Imports what most tasks need, while there is nothing to do."""
        names = ["numpy", *self.hello.preload]
        if self._device is not None and importlib.util.find_spec("cupy") is None:
            names.append("torch")  # whose tensors tasks are given instead
        for name in names:
            if not self._queue.empty():
                return
            try:
                importlib.import_module(name)
            except ImportError:
                continue
            except Exception:  # whoever needs it will say so
                traceback.print_exc()
                continue
            if name == "cupy" and self._device is not None:
                self._lend()
                threading.Thread(target=warm_up, name="millrace-warm-up", daemon=True).start()
            if name == "torch" and self._torch is not None:
                self._torch.begin(first=True)
                self._torch.leave()
                self._torch.settle()

    def _lend(self) -> None:
        """Has libraries take their memory from the slab, if they are to."""
        if self._torch is not None:
            assert self._device is not None
            self._torch.begin(first=self._device.library == "torch")
        cupy: Any = sys.modules.get("cupy")
        device = self.hello.device
        if "cupy" in device.arena_libraries and device.arena_bytes and cupy is not None and not self._lent:
            assert self._arena is not None
            self._lent = True
            cupy.cuda.set_allocator(self._arena.malloc)

    def _run(self, ordinal: int, run: executor_pb2.ExecutorRun, op: _Op) -> executor_pb2.ExecutorFinished:
        finished = executor_pb2.ExecutorFinished(task_id=run.task_id, attempt=run.attempt)
        self.task_id = run.task_id
        self.info = TaskInfo(run.key, run.task_id, run.attempt, self.hello.worker_name, run.namespace or "default")
        try:
            try:
                self._stoppable = ordinal
                if self._control.stop == ordinal:
                    raise TaskStopped("the task was stopped before it began")
                call = op.call or self._resolve(op)
                if self._device is not None:
                    self._device.choose(getattr(call, _arrays.WANTS, None))
                try:
                    args, kwargs = self._arguments(run)
                    self._lend()
                    self._store(run, self._call(call, args, kwargs, finished), finished)
                except BaseException as e:
                    if self._device is None or not is_out_of_memory(e):
                        raise
                    args, kwargs = (), {}
                    first = str(e)
                    if self._torch is not None:
                        self._torch.leave(for_good=True)
                    give_back(e)
                else:
                    first = ""
                if first:
                    self._again(run, call, finished, first)
            finally:
                self._stoppable = 0
                if self._torch is not None:
                    self._torch.leave()
        except _Refused as e:
            finished.error.reason, finished.error.message = e.reason, str(e)
        except _NoRoom as e:
            finished.error.CopyFrom(e.error)
        except CudaError as e:
            finished.error.reason = "DEVICE_ERROR"
            finished.error.message = f"something that the function ran on the GPU failed: {e}"
        except TaskStopped:
            finished.error.reason, finished.error.message = "STOPPED", "the function was stopped"
        except BaseException as e:  # SystemExit too: a task that calls sys.exit fails, the executor lives
            self._describe(e, finished.error)
        finally:
            self.task_id, self.info = 0, None
        if self._device is not None and finished.HasField("error"):
            # Whatever it had submitted may still use its inputs, and what was allocated.
            try:
                self._device.driver.wait_for_all()
            except CudaError as e:
                self._lost = e if e.lost else None
            if self._arena is not None:
                self._arena.keep_all()
            if self._torch is not None:
                self._torch.keep_all()
        elif self._arena is not None:
            self._arena.forget()
        if finished.HasField("error"):
            finished.ClearField("header")
            del finished.frames[:], finished.inline_frames[:]
        return finished

    def _again(
        self,
        run: executor_pb2.ExecutorRun,
        call: Callable[..., Any],
        finished: executor_pb2.ExecutorFinished,
        first: str,
    ) -> None:
        """Runs a function once more that found no memory on the GPU: alone there, and what CuPy has no room for is taken
        from the slab, where the worker makes some by spilling; so is what torch found none for, if its allocator is pointed
        at the slab."""
        device, arena, of_torch = self._device, self._arena, self._torch
        assert device is not None and arena is not None
        device.driver.wait_for_all()
        arena.forget(all_of_it=True)
        if of_torch is not None:
            of_torch.give_back()
        self._release()
        alone = self._gate is None or self._gate.take()
        cupy: Any = sys.modules.get("cupy")
        before: Any = cupy.cuda.get_allocator() if cupy is not None else None
        finished.Clear()
        finished.task_id, finished.attempt = run.task_id, run.attempt
        try:
            arena.overflow, arena.refused = True, ""
            if cupy is not None:
                cupy.cuda.set_allocator(arena.malloc)
            if of_torch is not None:
                try:
                    of_torch.lacked()
                except NoLease as e:
                    arena.refused = str(e)
                of_torch.begin()
            args, kwargs = self._arguments(run)
            self._store(run, self._call(call, args, kwargs, finished), finished)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            how = "alone on the GPU" if alone else "while others were still using the GPU"
            slab = f"; the slab could not lend any: {arena.refused}" if arena.refused else ""
            found = holders(device, of_torch.in_slab() if of_torch is not None else 0)
            text = f"out of memory on the GPU, twice, the second time {how}: {e}; {found}{slab}"
            if str(e) != first:
                text += f"; the first time: {first}"
            raise _Refused("OUT_OF_MEMORY", _shortened(text)) from e
        finally:
            arena.overflow = False
            if cupy is not None:
                cupy.cuda.set_allocator(before)

    def _call(self, call: Callable[..., Any], args: Any, kwargs: Any, finished: executor_pb2.ExecutorFinished) -> Any:
        began = time.perf_counter_ns()
        try:
            result = call(*args, **kwargs)
            if inspect.iscoroutine(result):
                import asyncio  # slow to import, and rarely needed

                result = asyncio.run(result)
            if self._device is not None:
                self._device.wait()
            return result
        finally:
            finished.run_nanos = time.perf_counter_ns() - began

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

    def _arguments(self, run: executor_pb2.ExecutorRun) -> tuple[Any, Any]:
        inputs: list[Any] = []
        trouble: Exception | None = None
        bad = 0
        for number, given in enumerate(run.inputs):
            try:
                frames = [self._frame(f) for f in given.frames]
                inputs.append(_serialize.decode(given.header, frames, readonly=True, device=self._device))
            except TaskStopped:
                raise
            except Exception as e:
                trouble = e
                inputs = [None] * len(run.inputs)
                inputs[number] = _Undecodable()
                bad = number
                break
        try:
            args, kwargs = self._decoded(run.arguments, inputs)
        except TaskStopped:
            raise
        except Exception as e:
            if trouble is None:
                raise _Refused(
                    "INVALID_ARGUMENT",
                    f"the arguments of {run.key} cannot be decoded on worker {self.hello.worker_name}: "
                    f"{type(e).__name__}: {e}",
                ) from e
            args, kwargs = (), {}
        if trouble is None:
            return args, kwargs
        where = next((f"argument {n}" for n, a in [*enumerate(args), *kwargs.items()] if _within(a)), "an argument")
        raise _Refused(
            "INPUT_UNREADABLE",
            f"{where} of {run.key}, {_type_of(run.inputs[bad].header)}, cannot be decoded on worker "
            f"{self.hello.worker_name}: {type(trouble).__name__}: {trouble}. Are the same packages installed there as "
            "where it was made?",
        ) from trouble

    def _frame(self, at: data_service_pb2.FrameLocation) -> memoryview | DeviceRange:
        if self._device is not None:
            return DeviceRange(self._device, at.offset, at.bytes)
        if not at.segment:
            assert self._slab is not None
            return self._slab.readable[at.offset : at.offset + at.bytes]
        segment = self._segments[at.segment]
        if isinstance(segment, OSError):
            raise OSError(
                f"memory of another worker cannot be mapped: {segment}; look at ulimit -v and -n"
            ) from segment
        return segment.readable[at.offset : at.offset + at.bytes]

    @staticmethod
    def _decoded(serialised: bytes, inputs: list[Any]) -> tuple[Any, Any]:
        if not serialised:
            return (), {}
        arguments = value_pb2.Arguments.FromString(serialised)
        if arguments.HasField("call"):
            return _serialize.CallUnpickler(arguments.call.data, inputs).load()
        args = [_serialize.from_value(v, (), inputs) for v in arguments.positional]
        return args, {k: _serialize.from_value(v, (), inputs) for k, v in arguments.named.items()}

    def _store(self, run: executor_pb2.ExecutorRun, result: Any, finished: executor_pb2.ExecutorFinished) -> None:
        try:
            encoded = _serialize.encode(result, strided=True, device=self._device)
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
        if encoded.nbytes <= self.hello.inline_bytes and not any(isinstance(f, DeviceFrame) for f in encoded.frames):
            finished.inline_frames.extend(f.tobytes() for f in encoded.frames)
            return
        # Frames that lie in an input need no room: the result shares them.
        shared = [self._shared(f, run) for f in encoded.frames]
        wanted = [f for f, at in zip(encoded.frames, shared, strict=True) if at is None]
        places = iter(self._allocate(run, [f.nbytes for f in wanted]) if wanted else ())
        for frame, at in zip(encoded.frames, shared, strict=True):
            if at is None:
                place = next(places)
                at = place.offset
                if self._device is not None:
                    self._device.write(frame, at)
                elif frame.nbytes:
                    assert self._slab is not None
                    _serialize.write(frame, self._slab.writable[at : at + frame.nbytes])
            finished.frames.add(offset=at, bytes=frame.nbytes)
        if self._device is not None and wanted:
            self._device.wait()

    def _shared(self, frame: Any, run: executor_pb2.ExecutorRun) -> int | None:
        """Where a frame lies in the slab, if it lies in an input there. What lies in a segment is only lent."""
        if not frame.nbytes:
            return None
        if self._device is not None:
            at = self._device.offset(frame)
        elif any(i.frames for i in run.inputs):
            at = self._at(frame)
        else:
            return None
        if at is None:
            return None
        for i in run.inputs:
            for f in i.frames:
                if not f.segment and f.offset <= at and at + frame.nbytes <= f.offset + f.bytes:
                    return at
        if self._arena is not None and self._arena.holds(at, frame.nbytes):
            return at
        if self._torch is not None and self._device is not None:
            return at if self._torch.holds(self._device.base + at, frame.nbytes) else None
        return None

    def _at(self, frame: Any) -> int | None:
        if not isinstance(frame, memoryview):
            return None
        import numpy as np

        assert self._slab is not None
        self._base = self._base or np.frombuffer(self._slab.readable, np.uint8).ctypes.data
        return np.frombuffer(frame, np.uint8).ctypes.data - self._base

    def _allocate(self, run: executor_pb2.ExecutorRun, sizes: list[int]) -> Any:
        answer = self._ask(sizes, run)
        if answer.HasField("error"):
            raise _NoRoom(answer.error)
        return answer.frames

    def _lease(self, size: int) -> Lease:
        """Memory for the process, whatever runs in it."""
        assert self._arena is not None
        answer = self._ask([size], None, no_wait=not self._arena.overflow)
        if answer.HasField("error"):
            raise NoLease(answer.error.message)
        return Lease(answer.request, answer.frames[0].offset, size)

    def _lease_later(self, size: int, arrived: Callable[[Lease | None], None]) -> None:
        """The same without waiting: `arrived` is told in the reader's thread, None if there is no room."""

        def put(answer: executor_pb2.ExecutorAllocated) -> None:
            arrived(None if answer.HasField("error") else Lease(answer.request, answer.frames[0].offset, size))

        with self._lock:
            self._requests += 1
            self._answers[self._requests] = put
            self._out.allocate.add(request=self._requests, frame_bytes=[size], no_wait=True)
            self._since = self._since or time.monotonic()

    def _ask(
        self, sizes: list[int], run: executor_pb2.ExecutorRun | None, *, no_wait: bool = False
    ) -> executor_pb2.ExecutorAllocated:
        answers: SimpleQueue[executor_pb2.ExecutorAllocated] = SimpleQueue()
        with self._lock:
            self._requests += 1
            number = self._requests
            self._answers[number] = answers.put
            request = self._out.allocate.add(request=number, frame_bytes=sizes, no_wait=no_wait)
            if run is not None:
                request.task.task_id, request.task.attempt = run.task_id, run.attempt
            self._since = self._since or time.monotonic()
        try:
            self.flush()
            return answers.get()
        except BaseException:  # the run is stopped
            with self._lock:
                if number in self._answers:
                    self._answers[number] = None
                else:
                    self._out.release.add(request=number)
            raise

    def _describe(self, e: BaseException, error: task_pb2.TaskError) -> None:
        trace = e.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        e = e.with_traceback(trace)
        error.reason = "OUT_OF_MEMORY" if isinstance(e, MemoryError) else "PYTHON_EXCEPTION"
        error.message = _shortened("".join(traceback.format_exception_only(type(e), e)).strip())
        error.traceback = _shortened("".join(traceback.format_exception(type(e), e, trace)))
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


def _shortened(text: str) -> str:
    """At most `_TEXT` characters: the beginning and the end, where Python names the error."""
    if len(text) > _TEXT:
        text = f"{text[: _TEXT // 2]}\n[... {len(text) - _TEXT} characters ...]\n{text[-(_TEXT // 2) :]}"
    return text.encode(errors="replace").decode()


def _within(tree: Any) -> bool:
    """An input that could not be decoded is in it."""
    if isinstance(tree, (list, tuple, set, frozenset)):
        return any(_within(item) for item in cast("Iterable[Any]", tree))
    if isinstance(tree, dict):
        return any(_within(item) for pair in cast("dict[Any, Any]", tree).items() for item in pair)
    return isinstance(tree, _Undecodable)


def _type_of(header: bytes) -> str:
    try:
        named = value_pb2.Value.FromString(header).opaque_value.type_name
    except Exception:
        return "whose header is damaged"
    return f"a {named}" if named else "a result"


def _qualified(e: BaseException) -> str:
    return f"{type(e).__module__}.{type(e).__qualname__}"


_process: Process | None = None


def get_task_info() -> TaskInfo | None:
    """What runs in this process: the current task, or None outside of one."""
    return _process.info if _process is not None else None


def main() -> int:
    global _process
    # A crash leaves the stack of its thread in the worker's report of it.
    faulthandler.enable(sys.__stderr__ or 2, all_threads=False)
    _process = Process()
    status = _process.run()
    sys.stdout.flush()
    sys.stderr.flush()
    if _process.hello.HasField("device"):
        os._exit(status)  # libraries take the GPU down in no good order, and may hang when it is lost
    return status
