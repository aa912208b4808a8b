"""The executor process. One thread reads the link to the worker; the main thread runs the tasks,
because Python delivers signals to the main thread."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from millrace._connection import _slot
from millrace._dask import _default
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import error_pb2, task_pb2
from millrace._values import _keys
from millrace.executor import _plugins, _profile
from millrace.executor._calls import Calls
from millrace.executor._link import CONTROL_FD, SLAB_FD, ControlPage, Link, Segment, Slab, open_socket
from millrace.executor._memory import IDLE, UNUSED, DeviceLock, free_caches, return_unused
from millrace.executor._op import Functions, Op
from millrace.executor._outbox import HELD, Outbox
from millrace.executor._output import NoInput, Stream, Unraisable, drain, no_debugger
from millrace.executor._rmm import UNINTERRUPTED
from millrace.executor._runner import Runner
from millrace.executor._slot import RunSlot
from millrace.executor._stopping import Stopping
from millrace.executor._worker import Worker

PROTOCOL = 1


def _loaded() -> set[str]:
    """Returns the names of the top-level modules that are imported. Submodules are left out, and so
    are names such as `__main__`, which another process could not import. A task can put any object
    into `sys.modules` as a name, hence the type check."""
    return {name for name in list(sys.modules) if isinstance(name, str) and name.isidentifier() and name[:2] != "__"}


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
        if self.hello.protocol_version != PROTOCOL:
            print(f"worker speaks protocol {self.hello.protocol_version}, this executor {PROTOCOL}", file=sys.stderr)
            raise SystemExit(64)
        # The slab lies either in host memory or on a GPU. Processes that share a GPU have a lock.
        slab: Slab | None = None
        self._device_lock: DeviceLock | None = None
        self._on_device = self.hello.HasField("device")
        if not self._on_device:
            slab = Slab(SLAB_FD, self.hello.slab_bytes)
        elif self.hello.device.executor_count > 1:
            self._device_lock = DeviceLock(SLAB_FD)
        self._control = ControlPage(CONTROL_FD)
        self._stopping = Stopping(self._control, UNINTERRUPTED)
        self._functions = Functions()
        self._worker = Worker(self.hello, self._functions)
        self._calls = Calls(self._worker, self.out)
        #: Runs the tasks.
        self.runner = Runner(
            self.hello, self.out, self._functions, slab, self._device_lock, self._control, self._stopping, self._wake
        )
        #: The slot of the running task.
        self.slot = RunSlot(self.out, self._device_lock, self._stopping)
        # The device is opened before `ready` is sent. A spare process opens it at its first run,
        # because it may never get one.
        if self._on_device and not self.hello.spare:
            self.runner.open_device()
        # The slab is short of memory: release what is unused. Set by the reader thread.
        self._release_unused = False
        self._ops: dict[int, Op] = {}
        # Runs, by ordinal, that have neither begun nor been dropped. The thread that pops an entry
        # must report its result. dict.pop is atomic, so a drop by the reader thread and the begin
        # in the main thread exclude each other. An attempt that was dropped may come again, as
        # another run.
        self._pending: dict[int, tuple[executor_pb2.ExecutorRun, Op]] = {}
        # Ordinals of the runs that have arrived, in that order. None wakes the main thread for
        # other work: to release memory or to shut down.
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._shut_down = False
        self._ordinal = 0
        # A run that is sent in pieces, as far as it has arrived: the next run message has more of
        # its inputs. None: no run is incomplete.
        self._piece: executor_pb2.ExecutorRun | None = None
        # Inputs were kept for longer than their run since the last full garbage collection.
        self._collect = False
        # Something has run since the memory that malloc keeps was returned.
        self._keeps = False
        self._unraisable = Unraisable()
        # Modules that were imported before the first run or were reported to the worker since, and
        # the length of `sys.modules` when it was last checked.
        self._loaded: set[str] = set()
        self._modules = 0
        if not os.environ.get("MILLRACE_ADDRESS"):
            os.environ["MILLRACE_ADDRESS"] = self.hello.scheduler_address

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
        for attach in message.attach_segments:
            try:
                self.runner.inputs.segments[attach.segment_id] = Segment(
                    self._link.take_descriptor(), attach.size_bytes
                )
            except OSError as e:
                self.runner.inputs.segments[attach.segment_id] = e
        for definition in message.ops:
            self._ops[definition.op_id] = Op(definition.op)
        for function in message.functions:
            self._functions.add(function)
        for run in message.runs:
            if self._piece is not None:
                self._piece.inputs.extend(run.inputs)
                self._piece.more_inputs = run.more_inputs
                run = self._piece
            self._piece = run if run.more_inputs else None
            if run.more_inputs:
                continue
            self._ordinal += 1
            # The op is looked up now, because the worker may give its number to another op later.
            self._pending[self._ordinal] = (run, self._ops.get(run.op_id) or Op(task_pb2.Op()))
            self._queue.put(self._ordinal)
        for call in message.calls:
            self._calls.start(call)
        for allocated in message.allocations:
            self.out.answered(allocated)
        for run in message.resumptions:
            self.slot.granted(run)
        if message.cancellations:
            cancelled = {(ref.task_id, ref.attempt) for ref in message.cancellations}
            self._drop(lambda run: (run.task_id, run.attempt) in cancelled, "dropped before it began")
        for detach in message.detach_segments:
            self.runner.inputs.segments.pop(detach.segment_id, None)
        if message.dropped_functions:
            self._forget(set(message.dropped_functions))
        if message.release_unused:
            self._release_unused = True
            self._queue.put(None)
            self.out.nudge()
        if message.shutdown:
            self._drop(lambda _: True, "the executor shuts down")
            self._shut_down = True
            self._queue.put(None)

    def _drop(self, fits: Callable[[executor_pb2.ExecutorRun], bool], why: str) -> None:
        """Drops the runs that fit and have not begun."""
        for ordinal, (run, _) in list(self._pending.items()):
            if fits(run) and self._pending.pop(ordinal, None) is not None:
                error = error_pb2.TaskError(reason="DROPPED", message=why)
                self.out.finish(executor_pb2.ExecutorFinished(task_id=run.task_id, attempt=run.attempt, error=error))
        self.out.flush()

    def _forget(self, hashes: set[bytes]) -> None:
        """Forgets functions that no task refers to any more, and the ops that call them."""
        numbers = [number for number, op in self._ops.items() if op.spec.function in hashes]
        self._functions.forget(hashes, [self._ops.pop(number) for number in numbers])

    def _wake(self) -> None:
        self._queue.put(None)

    # ---- the main thread -------------------------------------------------------------------------

    def _log(self, stderr: bool, text: str) -> bool:
        """Adds text to the log of the running task; returns False if there is none."""
        task = self.runner.task_id
        if not task or self._calls.here:
            return False
        self.out.log(task, text, stderr)
        return True

    def _send_log(self) -> None:
        if self.runner.task_id:
            self.out.flush()

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._stopping.on_signal)
        sys.setswitchinterval(HELD)
        sys.stdout = Stream(sys.stdout, partial(self._log, False), self._send_log)
        sys.stderr = Stream(sys.stderr, partial(self._log, True), self._send_log)
        sys.stdin, sys.breakpointhook = NoInput(sys.stdin), no_debugger
        sys.unraisablehook = self._unraisable
        ready = executor_pb2.ExecutorReady(
            protocol_version=PROTOCOL,
            language=f"python {platform.python_version()}",
            device_opened=self._on_device,
            supports_segments=not self._on_device,
            supports_split_runs=True,
            supports_spare=True,
            supports_calls=True,
            writes_called=True,
        )
        self._link.send(executor_pb2.FromExecutor(ready=ready))
        threading.Thread(target=self._read, name="millrace-link", daemon=True).start()
        if os.environ.get("MILLRACE_PROFILE", "1") not in ("", "0", "false"):
            outer = frozenset({Runner._call.__code__, Process.run.__code__})
            _profile.current = _profile.Sampler(outer)
            _profile.current.start()
        threading.Thread(target=self.out.sweep, name="millrace-sweep", daemon=True).start()
        queue, pending, runner = self._queue, self._pending, self.runner
        if queue.empty():
            self._preload()
        self._loaded = _loaded()
        self._modules = len(sys.modules)
        while True:
            if queue.empty():
                self.out.flush()
            ordinal = self._next()
            if ordinal is None:
                if self._shut_down:
                    self.out.flush()
                    _plugins.end(self._worker)
                    return 0
                self._release_free()
                continue
            entry = pending.pop(ordinal, None)
            if entry is None:
                continue  # dropped
            run, op = entry
            if self._on_device and runner.memory is None:
                runner.open_device()
                self._prepare()
            if self.out.since:
                self.out.before_run(op.longest)
            if self._device_lock is not None:
                self._device_lock.share()
            self._control.begin(ordinal)
            self.slot.begin(run)
            began = time.perf_counter()
            if self._worker.observed:
                self._worker.tell(_keys.from_wire(run.key), "ready", "executing")
            finished = runner.run(ordinal, run, op)
            if self._worker.observed:
                ended = "error" if finished.HasField("error") else "memory"
                self._worker.tell(_keys.from_wire(run.key), "executing", ended)
            took = time.perf_counter() - began
            op.took(took)
            if run.inputs:
                runner.keep(run, finished)
                self._collect = self._collect or bool(finished.retained_inputs)
            self._keeps = True
            self._unraisable.end_of_run()
            runner.end()
            self.slot.end()
            if took > 0.001:  # it may have started a program
                drain()
            runner.settle()
            if self._device_lock is not None:
                self._device_lock.unlock()
            self._control.end(ordinal)
            if len(sys.modules) != self._modules:
                self._tell_loaded()
            self.out.finish(finished, runner.released() + runner.result_leases(), runner.size)
            if runner.unfit:
                print(runner.unfit, file=sys.__stderr__)
                self.out.flush()
                return 70

    def _next(self) -> int | None:
        """Returns the ordinal of the next run, or None if there is other work to do.

        After IDLE seconds without a run it frees memory. A process that shares its GPU gives back
        the memory that its libraries cache. Any other process runs the garbage collector if inputs
        were kept for longer than their run: inputs that are only referenced by cycles can be
        released then. After UNUSED seconds it returns the memory that malloc keeps.
        """
        memory = self.runner.memory  # None in a spare process, which has not opened the GPU yet
        shares = self._device_lock is not None and memory is not None
        if shares or self._collect:
            try:
                return self._queue.get(timeout=IDLE)
            except Empty:
                pass
            if memory is not None and shares:
                free_caches()
                memory.drop_caches()
                self.runner.release()
            else:
                self._collect = False
                self.runner.inputs.decoded.clear()
                gc.collect()
                return None
        if self._keeps:
            try:
                return self._queue.get(timeout=UNUSED)
            except Empty:
                self._keeps = False
                return_unused()
        return self._queue.get()

    def _release_free(self) -> None:
        """Releases, between two runs, the memory that nothing needs any more. If the worker asked
        for memory, it also releases what was cached for later runs."""
        memory = self.runner.memory
        if self._release_unused:
            self._release_unused = False
            self.runner.inputs.decoded.clear()
            gc.collect()
            if memory is not None:
                memory.drop_caches()
        if memory is not None:
            memory.device.driver.wait_for_all()  # threads of earlier runs may have submitted work
        self.runner.release()

    def _tell_loaded(self) -> None:
        """Reports the modules that tasks have imported since the last report."""
        self._modules = len(sys.modules)
        loaded = _loaded()
        self.out.loaded(sorted(loaded - self._loaded))
        self._loaded |= loaded

    def _preload(self) -> None:
        """Imports the modules that most tasks need, until the first run arrives."""
        names = ["numpy", *self.hello.preload_modules]
        if self._on_device and importlib.util.find_spec("cupy") is None:
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
        if "rmm" in sys.modules:  # cuDF imports it
            self._prepare("rmm")

    def _prepare(self, *names: str) -> None:
        """See `DeviceMemory.prepare`. A spare process has not opened the GPU yet."""
        if self.runner.memory is not None:
            self.runner.memory.prepare(*names)


_process: Process | None = None


def main() -> int:
    global _process
    # On a crash, the stack of the crashed thread is written to stderr, which the worker includes in
    # its report.
    faulthandler.enable(sys.__stderr__ or 2, all_threads=False)
    if os.environ.get("MILLRACE_AS_DISTRIBUTED"):
        importlib.import_module("millrace.as_distributed")  # before a task imports distributed
    _process = Process()
    _slot.current = _process.slot
    _slot.worker = _process._worker
    _default.in_task_process()
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
