"""The executor process. One thread reads the link to the worker; the main thread runs the tasks,
because Python delivers signals to the main thread."""

from __future__ import annotations

import _thread
import faulthandler
import gc
import importlib
import importlib.util
import inspect
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from millrace import _arrays, _keys, _serialize
from millrace._arrays import DeviceFrame
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import task_pb2
from millrace.executor._device import CudaError, Device
from millrace.executor._failure import NoRoom, Refused, TaskStopped, describe, qualified, shortened
from millrace.executor._inputs import Inputs
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
from millrace.executor._op import Functions, Op
from millrace.executor._outbox import HELD, LARGEST, Outbox
from millrace.executor._output import Stream, Unraisable, drain
from millrace.executor._torch import TorchArena

PROTOCOL = 1


@dataclass(frozen=True)
class TaskInfo:
    """Information about the running task, for its own function."""

    #: Key of the task's result: a str, bytes, int, float or tuple.
    key: Any
    #: Numeric id of the task.
    task_id: int
    #: Number of this attempt, from 1.
    attempt: int
    #: Name of the worker.
    worker: str
    #: Namespace that the key belongs to.
    namespace: str


def _loaded() -> set[str]:
    """Returns the names of the top-level modules that are imported. Submodules are left out, and so
    are names such as `__main__`, which another process could not import. A task can put any object
    into `sys.modules` as a name, hence the type check."""
    return {name for name in list(sys.modules) if isinstance(name, str) and name.isidentifier() and name[:2] != "__"}


def _importing(frame: FrameType | None) -> bool:
    """Returns whether a frame is within an import.

    An exception there would leave a package half imported: its submodules stay in `sys.modules` and
    the package does not, so that no later task of the process could import it.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _interrupt_again(thread: int) -> None:
    """Sends SIGINT to a thread after 10 ms. The handler repeats this as long as the import lasts;
    if the task does not stop within its grace period, the worker kills the process."""
    time.sleep(0.01)
    signal.pthread_kill(thread, signal.SIGINT)


class Process:
    """One executor process."""

    def __init__(self) -> None:
        self._link = Link(open_socket())
        #: Messages to the worker.
        self.out = Outbox(self._link)
        hello = self._link.receive()
        if hello is None:
            raise SystemExit(0)
        self.hello = hello.hello
        if self.hello.protocol != PROTOCOL:
            print(f"worker speaks protocol {self.hello.protocol}, this executor {PROTOCOL}", file=sys.stderr)
            raise SystemExit(64)
        # The slab lies either in host memory (`_slab`) or on a GPU (`_device`); the other one is
        # None.
        self._device: Device | None = None
        self._slab: Slab | None = None
        self._arena: Arena | None = None
        self._torch: TorchArena | None = None
        self._gate: Gate | None = None
        # True once CuPy allocates from the arena.
        self._lent = False
        if not self.hello.HasField("device"):
            self._slab = Slab(SLAB_FD, self.hello.slab_bytes)
        elif self.hello.device.neighbours > 1:
            self._gate = Gate(SLAB_FD)
        # The reason why this process must not go on: the GPU does not work in it any more, or
        # something in it still reads memory that was only lent. It then ends, and the worker starts
        # another one. "": there is none.
        self._unfit = ""
        self._inputs = Inputs(self.hello.worker_name, self._slab, None)
        self._inputs.on_gone = self._wake
        # The device is opened before `ready` is sent. A spare process opens it at its first run,
        # because it may never get one.
        if not self.hello.spare:
            self._open_device()
        # Compare checksums of the inputs on the GPU before and after each run, to detect a function
        # that writes to its inputs.
        self._checks = os.environ.get("MILLRACE_CHECK_INPUTS", "") not in ("", "0", "false")
        self._control = ControlPage(CONTROL_FD)
        # The slab is short of memory: release what is unused. Set by the reader thread.
        self._give_back = False
        # Leases to be released as soon as no submitted GPU work is running.
        self._due: list[int] = []
        self._ops: dict[int, Op] = {}
        self._functions = Functions()
        # Runs, by (task, attempt), that have neither begun nor been dropped. The thread that pops
        # an entry must report its result. dict.pop is atomic, so a drop by the reader thread and
        # the begin in the main thread exclude each other.
        self._pending: dict[tuple[int, int], tuple[int, executor_pb2.ExecutorRun, Op]] = {}
        # Keys of `_pending` in order of arrival. None wakes the main thread for other work: to
        # release memory or to shut down.
        self._queue: SimpleQueue[tuple[int, int] | None] = SimpleQueue()
        self._shut_down = False
        self._ordinal = 0
        # A run that is sent in pieces, as far as it has arrived: the next run message has more of
        # its inputs. None: no run is incomplete.
        self._piece: executor_pb2.ExecutorRun | None = None
        # Approximate size of the current result in bytes, without the data in the slab. 0 if it is
        # small.
        self._large = 0
        # Inputs were kept for longer than their run since the last full garbage collection.
        self._collect = False
        self._unraisable = Unraisable()
        # Ordinal of the run that may be stopped now; 0: none. Read by the signal handler, in the
        # main thread.
        self._stoppable = 0
        self.task_id = 0
        self.info: TaskInfo | None = None
        # Modules that were imported before the first run or were reported to the worker since, and
        # the length of `sys.modules` when it was last checked.
        self._loaded: set[str] = set()
        self._modules = 0
        if not os.environ.get("MILLRACE_ADDRESS"):
            os.environ["MILLRACE_ADDRESS"] = self.hello.scheduler_address

    def _open_device(self) -> None:
        """Opens the slab if it lies on a GPU. This takes some memory of the GPU."""
        if not self.hello.HasField("device"):
            return
        hello = self.hello.device
        self._device = device = Device(hello, self.hello.slab_bytes)
        self._arena = Arena(device, self._lease, hello.arena_bytes)
        if hello.arena_bytes and "torch" in hello.arena_libraries:
            self._torch = TorchArena(device.driver, device.base, hello.arena_bytes, self._lease, self._lease_later)
        self._inputs = Inputs(self.hello.worker_name, None, device)
        self._inputs.on_gone = self._wake

    # ---- the reader thread -----------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                message = self._link.receive()
                if message is None:
                    break
                self._accept(message)
        except OSError:
            pass  # a broken link is treated like the end of the link
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        # The worker is gone, so no result can be delivered. The main thread may be inside of any
        # call and cannot be interrupted, so the process ends at once.
        os._exit(0)

    def _accept(self, message: executor_pb2.ToExecutor) -> None:
        for attach in message.attach:
            try:
                self._inputs.segments[attach.segment] = Segment(self._link.take_descriptor(), attach.bytes)
            except OSError as e:
                self._inputs.segments[attach.segment] = e
        for definition in message.ops:
            self._ops[definition.op_id] = Op(definition.op)
        for function in message.functions:
            self._functions.add(function)
        for run in message.runs:
            if self._piece is not None:
                self._piece.inputs.extend(run.inputs)
                self._piece.more = run.more
                run = self._piece
            self._piece = run if run.more else None
            if run.more:
                continue
            self._ordinal += 1
            key = (run.task_id, run.attempt)
            # The op is looked up now, because the worker may give its number to another op later.
            self._pending[key] = (self._ordinal, run, self._ops.get(run.op_id) or Op(task_pb2.Op()))
            self._queue.put(key)
        for allocated in message.allocated:
            self.out.answered(allocated)
        dropped = False
        for ref in message.cancellations:
            if self._pending.pop((ref.task_id, ref.attempt), None) is not None:
                dropped = True
                error = task_pb2.TaskError(reason="DROPPED", message="dropped before it began")
                self.out.finish(executor_pb2.ExecutorFinished(task_id=ref.task_id, attempt=ref.attempt, error=error))
        if dropped:
            self.out.flush()
        for detach in message.detach:
            self._inputs.segments.pop(detach.segment, None)
        if message.dropped_functions:
            self._forget(set(message.dropped_functions))
        if message.give_back:
            self._give_back = True
            self._queue.put(None)
            self.out.nudge()
        if message.shutdown:
            for task, attempt in list(self._pending):
                if self._pending.pop((task, attempt), None) is not None:
                    error = task_pb2.TaskError(reason="DROPPED", message="the executor shuts down")
                    self.out.finish(executor_pb2.ExecutorFinished(task_id=task, attempt=attempt, error=error))
            self.out.flush()
            self._shut_down = True
            self._queue.put(None)

    def _forget(self, hashes: set[bytes]) -> None:
        """Forgets functions that no task refers to any more, and the ops that call them."""
        numbers = [number for number, op in self._ops.items() if op.spec.function in hashes]
        self._functions.forget(hashes, [self._ops.pop(number) for number in numbers])

    def _wake(self) -> None:
        self._queue.put(None)

    # ---- the main thread -------------------------------------------------------------------------

    def _on_signal(self, _signum: int, frame: FrameType | None) -> None:
        if not self._stoppable or self._control.stop != self._stoppable:
            return
        if _importing(frame):
            # NB: only the low-level call is safe here: the main thread may hold a lock of
            # `threading`.
            _thread.start_new_thread(_interrupt_again, (threading.get_ident(),))
            return
        self._stoppable = 0
        raise TaskStopped("the task was stopped")

    def _log(self, stderr: bool, text: str) -> bool:
        """Adds text to the log of the running task; returns False if there is none."""
        if not self.task_id:
            return False
        self.out.log(self.task_id, text, stderr)
        return True

    def _send_log(self) -> None:
        if self.task_id:
            self.out.flush()

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._on_signal)
        sys.setswitchinterval(HELD)
        sys.stdout = Stream(sys.stdout, partial(self._log, False), self._send_log)
        sys.stderr = Stream(sys.stderr, partial(self._log, True), self._send_log)
        sys.unraisablehook = self._unraisable
        ready = executor_pb2.ExecutorReady(
            protocol=PROTOCOL,
            pid=os.getpid(),
            language=f"python {platform.python_version()}",
            segments=self._slab is not None,
            device=self.hello.HasField("device"),
            pieces=True,
            spare=True,
        )
        self._link.send(executor_pb2.FromExecutor(ready=ready))
        threading.Thread(target=self._read, name="millrace-link", daemon=True).start()
        threading.Thread(target=self.out.sweep, name="millrace-sweep", daemon=True).start()
        queue, pending = self._queue, self._pending
        if queue.empty():
            self._preload()
        self._loaded = _loaded()
        self._modules = len(sys.modules)
        while True:
            if queue.empty():
                self.out.flush()
            key = self._next()
            if key is None:
                if self._shut_down:
                    self.out.flush()
                    return 0
                self._release_free()
                continue
            entry = pending.pop(key, None)
            if entry is None:
                continue  # dropped
            ordinal, run, op = entry
            if self._device is None and self.hello.HasField("device"):
                self._open_device()
                self._prepare()
            if self.out.since:
                self.out.before_run(op.longest)
            if self._gate is not None:
                self._gate.share()
            self._control.begin(ordinal)
            began = time.perf_counter()
            finished = self._run(ordinal, run, op)
            took = time.perf_counter() - began
            op.took(took)
            if run.inputs:
                self._keep(run, finished)
            self._unraisable.end_of_run()
            self.task_id, self.info = 0, None
            if took > 0.001:  # it may have started a program
                drain()
            if self._torch is not None and not self._unfit:
                self._torch.settle()
            if self._gate is not None:
                self._gate.leave()
            self._control.end(ordinal)
            if len(sys.modules) != self._modules:
                self._tell_loaded()
            self.out.finish(finished, self._released() + self._taken(), self._large)
            self._large = 0
            if self._unfit:
                print(self._unfit, file=sys.__stderr__)
                self.out.flush()
                return 70

    def _next(self) -> tuple[int, int] | None:
        """Returns the key of the next run, or None if there is other work to do.

        After IDLE seconds without a run it frees memory. A process that shares its GPU gives back
        the memory that its libraries cache. Any other process runs the garbage collector if inputs
        were kept for longer than their run: inputs that are only referenced by cycles can be
        released then.
        """
        if self._gate is None and self._collect:
            try:
                return self._queue.get(timeout=IDLE)
            except Empty:
                self._collect = False
                gc.collect()
                return None
        if self._gate is not None and self._queue.empty():
            try:
                return self._queue.get(timeout=IDLE)
            except Empty:
                give_back()
                assert self._arena is not None
                self._arena.forget(all_of_it=True)
                if self._torch is not None:
                    self._torch.give_back()
                self.out.release(self._released())
                self.out.flush()
        return self._queue.get()

    def _released(self) -> list[int]:
        """Collects the leases to be released now. REQUIRES: no submitted GPU work is still
        running."""
        out, self._due = self._due, []
        out += self._inputs.released()
        if self._arena is not None:
            out += self._arena.released()
        if self._torch is not None:
            out += self._torch.released()
        return out

    def _taken(self) -> list[int]:
        """Collects the leases that now belong to the run's result. They are released in the message
        that reports the result, not sooner."""
        out = self._arena.taken() if self._arena is not None else []
        if self._torch is not None:
            out += self._torch.taken()
        return out

    def _give_back_now(self) -> None:
        """Releases unused memory in the middle of a run that waits for memory. Without this,
        processes could deadlock: another one may wait for that memory while it holds the memory
        that this run waits for."""
        if self._device is None:
            return
        assert self._arena is not None
        self._arena.forget(all_of_it=True)
        if self._torch is not None:
            self._torch.drop_idle()
        self._due = self._released()
        if self._due:
            self._device.driver.wait_for_all()
            self.out.release(self._released())
            self.out.flush()

    def _release_free(self) -> None:
        """Releases, between two runs, the memory that nothing needs any more. If the worker asked
        for memory, it also releases what was cached for later runs."""
        if self._give_back:
            self._give_back = False
            gc.collect()
            if self._arena is not None:
                self._arena.forget(all_of_it=True)
            if self._torch is not None:
                self._torch.give_back()
        if self._device is not None:
            self._device.driver.wait_for_all()  # threads of earlier runs may have submitted work
        self.out.release(self._released())
        self.out.flush()

    def _keep(self, run: executor_pb2.ExecutorRun, finished: executor_pb2.ExecutorFinished) -> None:
        """Asks the worker to keep the inputs that something in this process still uses. If an input
        cannot be kept, the run fails with OUT_OF_MEMORY, and the process ends: the input's memory
        is reused by its owner after the run."""
        try:
            self._inputs.keep(run, finished, self.out.number)
        except OSError as e:
            finished.Clear()
            finished.task_id, finished.attempt = run.task_id, run.attempt
            finished.error.reason = "OUT_OF_MEMORY"
            finished.error.message = f"an input of {run.key} is still looked at after its run, and cannot be kept: {e}"
            self._unfit = f"something in this process still reads memory that was lent to it: {e}"
        self._collect = self._collect or bool(finished.kept)

    def _tell_loaded(self) -> None:
        """Reports the modules that tasks have imported since the last report."""
        self._modules = len(sys.modules)
        loaded = _loaded()
        self.out.loaded(sorted(loaded - self._loaded))
        self._loaded |= loaded

    def _preload(self) -> None:
        """Imports the modules that most tasks need, until the first run arrives."""
        names = ["numpy", *self.hello.preload]
        if self.hello.HasField("device") and importlib.util.find_spec("cupy") is None:
            names.append("torch")  # without CuPy, tasks are given tensors of torch
        for name in names:
            if not self._queue.empty():
                return
            try:
                importlib.import_module(name)
            except ImportError:
                continue
            except (Exception, SystemExit):  # a task that needs it will fail with the error
                traceback.print_exc()
                continue
            if name in ("cupy", "torch"):
                self._prepare(name)

    def _prepare(self, *names: str) -> None:
        """Makes libraries do their one-time initialisation now, so that the first task that uses
        them does not wait for it. By default, for all of CuPy and torch that are imported."""
        if self._device is None:
            return  # a spare process has not opened the GPU yet
        names = names or tuple(name for name in ("cupy", "torch") if name in sys.modules)
        if "cupy" in names:
            self._lend()
            threading.Thread(target=warm_up, name="millrace-warm-up", daemon=True).start()
        if "torch" in names and self._torch is not None:
            self._torch.begin(first=True)
            self._torch.leave()
            self._torch.settle()

    def _lend(self) -> None:
        """Points the allocators of CuPy and torch at the slab, as far as the worker's configuration
        says so and the libraries are imported."""
        if self._torch is not None:
            assert self._device is not None
            self._torch.begin(first=self._device.library == "torch")
            if text := self._torch.warning():
                print(text, file=sys.stderr)
        cupy: Any = sys.modules.get("cupy")
        device = self.hello.device
        if "cupy" in device.arena_libraries and device.arena_bytes and cupy is not None and not self._lent:
            assert self._arena is not None
            self._lent = True
            cupy.cuda.set_allocator(self._arena.malloc)

    def _run(self, ordinal: int, run: executor_pb2.ExecutorRun, op: Op) -> executor_pb2.ExecutorFinished:
        finished = executor_pb2.ExecutorFinished(task_id=run.task_id, attempt=run.attempt)
        self.task_id = run.task_id
        self.info = TaskInfo(
            _keys.from_wire(run.key), run.task_id, run.attempt, self.hello.worker_name, run.namespace or "default"
        )
        try:
            try:
                self._stoppable = ordinal
                if self._control.stop == ordinal:
                    raise TaskStopped("the task was stopped before it began")
                call = op.resolve(self._functions, self.hello.worker_name)
                if self._device is not None:
                    self._device.choose(getattr(call, _arrays.WANTS, None), getattr(call, _arrays.STREAMS, "all"))
                try:
                    self._once(run, call, finished, first=True)
                except BaseException as e:
                    if self._device is None or not is_out_of_memory(e):
                        raise
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
        except Refused as e:
            finished.error.reason, finished.error.message = e.reason, shortened(str(e))
        except NoRoom as e:
            finished.error.CopyFrom(e.error)
        except CudaError as e:
            finished.error.reason = "DEVICE_ERROR"
            finished.error.message = shortened(f"something that the function ran on the GPU failed: {e}")
        except TaskStopped:
            finished.error.reason, finished.error.message = "STOPPED", "the function was stopped"
        except BaseException as e:  # a task that calls sys.exit fails, but the executor lives
            describe(e, finished.error, __file__)
        if self._device is not None and finished.HasField("error"):
            # Work that the failed run submitted to the GPU may still use its inputs and
            # allocations: `trouble` waits for it.
            if (lost := self._device.trouble()) is not None:
                self._unfit = f"the GPU is lost to this process: {lost}"
            if self._arena is not None:
                self._arena.keep_all()
            if self._torch is not None:
                self._torch.keep_all()
        elif self._arena is not None:
            self._arena.forget()
        if finished.HasField("error"):
            finished.ClearField("header")
            del finished.frames[:], finished.inline_frames[:]
            self._large = finished.ByteSize()
        return finished

    def _once(
        self,
        run: executor_pb2.ExecutorRun,
        call: Callable[..., Any],
        finished: executor_pb2.ExecutorFinished,
        first: bool,
    ) -> None:
        """Calls a function and stores its result. If `first` is set, the libraries are pointed at
        the slab before; `_again` has done this already for a second attempt."""
        given = [self._inputs.arguments(run)]
        before = self._inputs.checksums(run) if self._checks else []
        if first:
            self._lend()
        # The result is in a list so that no other reference to it exists. It is kept until the end
        # of torch's pool: objects that are made while it is destroyed must not reuse its memory
        # before.
        result = [self._call(call, given, finished)]
        self._store(run, result, finished)
        if self._torch is not None:
            self._torch.leave()
        if before and (changed := self._inputs.changed(run, before)):
            raise Refused(
                "INPUT_CHANGED",
                f"{changed} of {run.key} was changed in place by the function. Inputs are read-only: others read the same "
                "memory, and see what was written there. Copy first, for instance x = x.copy(), or x.clone() with torch",
            )

    def _again(
        self,
        run: executor_pb2.ExecutorRun,
        call: Callable[..., Any],
        finished: executor_pb2.ExecutorFinished,
        first: str,
    ) -> None:
        """Runs a function a second time after it found no memory on the GPU.

        The second run is alone on the GPU if possible. Memory that CuPy's pool cannot provide is
        leased from the slab, where the worker makes room by spilling. The same holds for torch if
        its allocator is pointed at the slab.
        """
        device, arena, of_torch = self._device, self._arena, self._torch
        assert device is not None and arena is not None
        device.driver.wait_for_all()
        arena.forget(all_of_it=True)
        if of_torch is not None:
            of_torch.give_back()
        # The first run has no result that could own these.
        self.out.release(self._released() + self._taken())
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
            self._once(run, call, finished, first=False)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            how = "alone on the GPU" if alone else "while others were still using the GPU"
            slab = f"; the slab could not lend any: {arena.refused}" if arena.refused else ""
            found = holders(device, of_torch.in_slab() if of_torch is not None else 0)
            text = f"out of memory on the GPU, twice, the second time {how}: {e}; {found}{slab}"
            if str(e) != first:
                text += f"; the first time: {first}"
            raise Refused("OUT_OF_MEMORY", shortened(text)) from e
        finally:
            arena.overflow = False
            if cupy is not None:
                cupy.cuda.set_allocator(before)

    def _call(self, call: Callable[..., Any], given: list[Any], finished: executor_pb2.ExecutorFinished) -> Any:
        """Takes the arguments out of `given` and calls the function with them. No other reference
        to the arguments remains then."""
        args, kwargs = given.pop()
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

    def _store(self, run: executor_pb2.ExecutorRun, result: list[Any], finished: executor_pb2.ExecutorFinished) -> None:
        """Stores the value in `result`. May empty the list, to give up the last reference to the
        value."""
        lent = self._write(run, result[0], finished)
        if not lent:
            return
        # These frames lie in leases of this process. They can stay there without a copy if nothing
        # else in the process refers to that memory any more.
        assert self._arena is not None and self._device is not None
        if self._torch is not None:
            self._torch.leave()
        self._arena.give({lease.offset: lease for _, lease in lent}.values())
        result.clear()
        if self._torch is not None:
            # A stop in let_go would leave its bookkeeping inconsistent.
            ordinal, self._stoppable = self._stoppable, 0
            self._torch.let_go()
            self._stoppable = ordinal
            if ordinal and self._control.stop == ordinal:
                raise TaskStopped("the task was stopped")
        held = {lease.offset for _, lease in lent if not self._left(lease)}
        frames = [finished.frames[n] for n, lease in lent if lease.offset in held]
        if not frames:
            return
        for frame, place in zip(frames, self._allocate(run, [f.bytes for f in frames]), strict=True):
            self._device.driver.copy(self._device.base + place.offset, self._device.base + frame.offset, frame.bytes)
            frame.offset = place.offset
        self._device.wait()
        self._arena.keep_all()

    def _left(self, lease: Lease) -> bool:
        """Returns whether the memory of a given lease is free: nothing in this process refers to
        it, and no allocator of this process can hand it out again."""
        assert self._arena is not None
        return self._arena.left(lease) and (self._torch is None or self._torch.left(lease))

    def _write(
        self, run: executor_pb2.ExecutorRun, result: Any, finished: executor_pb2.ExecutorFinished
    ) -> list[tuple[int, Lease]]:
        """Encodes a result and writes its frames to memory that is allocated for them.

        Returns the frames that lie in leases already and could stay there, as pairs of frame number
        and lease. `finished` has the location of every frame.
        """
        try:
            encoded = _serialize.encode(result, strided=True, device=self._device)
        except TaskStopped:
            raise
        except CudaError:
            raise
        except Exception as e:
            raise Refused(
                "RESULT_NOT_SERIALISABLE",
                f"the result of {run.key}, a {qualified(type(result))}, cannot be pickled: "
                f"{type(e).__name__}: {e}. Return its data instead",
            ) from e
        frames = encoded.frames
        # The link carries the header, and the location of each frame.
        self._large = len(encoded.header) + 32 * len(frames)
        if self._large > LARGEST:
            raise Refused(
                "RESULT_TOO_LARGE",
                f"the result of {run.key} has {self._large:,} bytes besides its arrays and buffers, in {len(frames):,} of "
                f"these, and {LARGEST:,} are allowed. Return fewer and larger arrays, or one bytes object",
            )
        finished.header = encoded.header
        if not frames:
            return []
        on_gpu = [f for f in frames if isinstance(f, DeviceFrame)]
        if encoded.nbytes <= self.hello.inline_bytes and not on_gpu:
            finished.inline_frames.extend(f.tobytes() for f in frames)
            return []
        if on_gpu:
            # Encoding may have started work on the GPU, and the stream that copies the frames waits
            # for no other stream.
            assert self._device is not None
            self._device.wait(*{f.view.stream for f in on_gpu})
        # Frames that lie in an input need no memory of their own: the result shares the input's.
        shared = [self._shared(f, run) for f in frames]
        wanted = [f for f, at in zip(frames, shared, strict=True) if at is None]
        places = iter(self._allocate(run, [f.nbytes for f in wanted]) if wanted else ())
        lent: list[tuple[int, Lease]] = []
        for n, (frame, known) in enumerate(zip(frames, shared, strict=True)):
            if known is None:
                at = next(places).offset
                if self._device is not None:
                    self._device.write(frame, at)
                elif frame.nbytes:
                    assert self._slab is not None
                    _serialize.write(frame, self._slab.writable[at : at + frame.nbytes])
            else:
                at, lease = known
                if lease is not None:
                    lent.append((n, lease))
            finished.frames.add(offset=at, bytes=frame.nbytes)
        if self._device is not None and wanted:
            self._device.wait()
        return lent

    def _shared(self, frame: Any, run: executor_pb2.ExecutorRun) -> tuple[int, Lease | None] | None:
        """Returns where a frame lies in the slab, if it lies in an input or in a lease there.

        If it lies in a lease, the lease is returned with it: the frame may stay there only if
        nothing else refers to the lease. Inputs in another worker's segment are only lent to this
        worker: frames in them are not shared.
        """
        if not frame.nbytes:
            return None
        if self._device is not None:
            at = self._device.offset(frame)
        elif any(i.frames for i in run.inputs):
            at = self._inputs.at(frame)
        else:
            return None
        if at is None:
            return None
        for i in run.inputs:
            for f in i.frames:
                if not f.segment and f.offset <= at and at + frame.nbytes <= f.offset + f.bytes:
                    return at, None
        if self._arena is not None and (lease := self._arena.holds(at, frame.nbytes)) is not None:
            return at, lease
        if self._torch is not None and self._device is not None:
            lease = self._torch.holds(self._device.base + at, frame.nbytes)
            return (at, lease) if lease is not None else None
        return None

    def _allocate(self, run: executor_pb2.ExecutorRun, sizes: list[int]) -> Any:
        answer = self.out.ask(sizes, run, meanwhile=self._give_back_now)
        if answer.HasField("error"):
            raise NoRoom(answer.error)
        return answer.frames

    def _lease(self, size: int) -> Lease:
        """Leases slab memory that belongs to the process, not to a run. Raises NoLease if there is
        none. Only the second attempt of a run (`overflow`) waits until there is room."""
        assert self._arena is not None
        main = threading.current_thread() is threading.main_thread()
        answer = self.out.ask(
            [size], None, no_wait=not self._arena.overflow, meanwhile=self._give_back_now if main else None
        )
        if answer.HasField("error"):
            raise NoLease(answer.error.message)
        return Lease(answer.request, answer.frames[0].offset, size)

    def _lease_later(self, size: int, arrived: Callable[[Lease | None], None]) -> None:
        """Like `_lease`, but does not wait: calls `arrived` in the reader thread, with None if
        there is no room."""

        def put(answer: executor_pb2.ExecutorAllocated) -> None:
            arrived(None if answer.HasField("error") else Lease(answer.request, answer.frames[0].offset, size))

        self.out.ask_later([size], put, no_wait=True)


_process: Process | None = None


def get_task_info() -> TaskInfo | None:
    """Returns information about the task that runs in this process, or None outside of a task."""
    return _process.info if _process is not None else None


def main() -> int:
    global _process
    # On a crash, the stack of the crashed thread is written to stderr, which the worker includes in
    # its report.
    faulthandler.enable(sys.__stderr__ or 2, all_threads=False)
    _process = Process()
    directory = os.environ.get("MILLRACE_WORKING_DIRECTORY")
    if directory:
        # NB: only now, after the imports: files in that directory must not shadow modules.
        try:
            os.chdir(directory)
        except OSError as e:
            print(
                f"millrace: functions run in a scratch directory, not in --working-directory: {e}",
                file=sys.stderr,
            )
    status = _process.run()
    sys.stdout.flush()
    sys.stderr.flush()
    if status or _process.hello.HasField("device"):
        # At exit, libraries release the GPU in an unsafe order, and may hang if it is lost. After a
        # failure, no thread of a task may go on.
        os._exit(status)
    return status
