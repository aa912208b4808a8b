"""Runs one task: decodes its inputs, calls its function and stores its result."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from typing import Any

from millrace._connection._slot import Reschedule
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._values import _arrays, _keys
from millrace._values._device import CudaError
from millrace.executor import _task_info
from millrace.executor._device_memory import DeviceMemory
from millrace.executor._failure import NoRoom, Refused, TaskStopped, describe, shortened
from millrace.executor._inputs import Inputs
from millrace.executor._link import ControlPage, Slab
from millrace.executor._memory import DeviceLock, NoLease, describe_memory, free_caches, is_out_of_memory
from millrace.executor._op import Functions, Op
from millrace.executor._outbox import Outbox
from millrace.executor._results import Results
from millrace.executor._stopping import Stopping
from millrace.executor._task_info import TaskInfo


class Runner:
    """The main thread's part of a process: it runs tasks, and keeps the memory that they use.

    Args:
        hello: the worker's description of itself.
        out: messages to the worker.
        functions: pickled functions.
        slab: the slab in host memory; None if it lies on a GPU.
        device_lock: the lock of the processes that share a GPU; None if there is one process.
        control: the control page.
        stopping: stops of the run.
        wake: called, in any thread, when memory that was kept for longer than its run is free.
    """

    def __init__(
        self,
        hello: executor_pb2.ExecutorHello,
        out: Outbox,
        functions: Functions,
        slab: Slab | None,
        device_lock: DeviceLock | None,
        control: ControlPage,
        stopping: Stopping,
        wake: Callable[[], None],
    ) -> None:
        self._hello, self._out, self._functions, self._device_lock, self._stopping = (
            hello,
            out,
            functions,
            device_lock,
            stopping,
        )
        self._control = control
        # Ordinal of the current run.
        self._ordinal = 0
        self._begun = 0  # time at which the present run began, in nanoseconds
        #: Inputs of the current run, and those that are still in use after their run.
        self.inputs = Inputs(hello.worker_name, slab)
        self.inputs.on_gone = wake
        #: The slab on a GPU; None if it lies in host memory, or is not opened yet.
        self.memory: DeviceMemory | None = None
        self._results = Results(out, self.inputs, slab, hello.max_inline_bytes, stopping, self._release_unused)
        #: The reason why this process must not go on: the GPU does not work in it any more, or
        #: something in it still reads memory that was only lent. It then ends, and the worker
        #: starts another one. "": there is none.
        self.unfit = ""
        # Compare checksums of the inputs on the GPU before and after each run, to detect a function
        # that writes to its inputs.
        self._checks = os.environ.get("MILLRACE_CHECK_INPUTS", "") not in ("", "0", "false")
        # Leases to be released as soon as no submitted GPU work is running.
        self._due: list[int] = []
        #: Id of the running task; 0: none.
        self.task_id = 0
        # The generation of functions at the last run.
        self._generation = functions.generation

    def open_device(self) -> None:
        """Opens the slab on the GPU. This takes some memory of the GPU."""
        self.memory = self._results.memory = DeviceMemory(self._hello, self._out, self._release_unused)
        self.inputs.device = self.memory.device

    @property
    def size(self) -> int:
        """Approximate size of the last result in bytes, without the data in the slab."""
        return self._results.size

    # ---- runs ------------------------------------------------------------------------------------

    def run(self, ordinal: int, run: executor_pb2.ExecutorRun, op: Op) -> executor_pb2.ExecutorFinished:
        """Runs a task. Its failures are part of the result."""
        memory = self.memory
        self._results.size = 0
        finished = executor_pb2.ExecutorFinished(task_id=run.task_id, attempt=run.attempt)
        self.task_id, self._ordinal = run.task_id, ordinal
        _task_info.current = TaskInfo(
            _keys.from_wire(run.key),
            run.task_id,
            run.attempt,
            self._hello.worker_name,
            run.namespace or "default",
            run.priority,
            memory is not None,
            op.spec.name,
        )
        try:
            try:
                self._stopping.begin(ordinal)
                self._begun = time.perf_counter_ns()
                call = op.resolve(self._functions, self._hello.worker_name)
                if memory is not None:
                    memory.device.choose(getattr(call, _arrays.WANTS, None), getattr(call, _arrays.STREAMS, "all"))
                try:
                    self._once(run, call, finished, first=True)
                except BaseException as e:
                    if memory is None or not is_out_of_memory(e):
                        raise
                    first = str(e)
                    if memory.torch is not None:
                        memory.torch.end(drop_pool=True)
                    free_caches(e)
                else:
                    first = ""
                if first:
                    assert memory is not None
                    self._again(memory, run, call, finished, first)
            finally:
                self._stopping.end()
                if memory is not None and memory.torch is not None:
                    memory.torch.end()
        except Refused as e:
            finished.error.reason, finished.error.message = e.reason, shortened(str(e))
        except NoRoom as e:
            finished.error.CopyFrom(e.error)
        except CudaError as e:
            finished.error.reason = "DEVICE_ERROR"
            finished.error.message = shortened(f"something that the function ran on the GPU failed: {e}")
        except TaskStopped:
            finished.error.reason, finished.error.message = "STOPPED", "the function was stopped"
        except Reschedule:
            finished.error.reason, finished.error.message = "RESCHEDULE", "the function asked to run again elsewhere"
        except BaseException as e:  # a task that calls sys.exit fails, but the executor lives
            describe(e, finished.error)
        if memory is not None and finished.HasField("error"):
            # Work that the failed run submitted to the GPU may still use its inputs and
            # allocations: `error` waits for it.
            if (lost := memory.device.error()) is not None:
                self.unfit = f"the GPU is lost to this process: {lost}"
            memory.unmark_all()
        elif memory is not None:
            memory.arena.forget()
        if finished.HasField("error"):
            finished.ClearField("header")
            del finished.frames[:], finished.inline_frames[:]
            self._results.size = finished.ByteSize()
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
        if self._generation != self._functions.generation:
            # The classes of decoded inputs may be those of modules that have changed.
            self._generation = self._functions.generation
            self.inputs.decoded.clear()
        share = getattr(call, "shares_inputs", False)
        given = [self.inputs.arguments(run, share=share)]
        finished.deserialize_nanos = time.perf_counter_ns() - self._begun
        before = self.inputs.checksums(run) if self._checks else []
        if first:
            if self.memory is not None:
                self.memory.install_allocators()
        # The result is in a list so that no other reference to it exists. It is kept until the end
        # of torch's pool: objects that are made while it is destroyed must not reuse its memory
        # before.
        result = [self._call(call, given, finished)]
        returned = time.perf_counter_ns()
        try:
            self._results.store(run, result, finished)
        except Refused as e:
            remade = getattr(call, "remade", None)
            if e.reason != "RESULT_NOT_SERIALISABLE" or remade is None:
                raise
            args, kwargs = self.inputs.arguments(run, share=share)
            result = [remade(*args, **kwargs)]
            if result[0] is None:
                raise
            self._results.store(run, result, finished)
        finished.publish_nanos = time.perf_counter_ns() - returned
        if self.memory is not None and self.memory.torch is not None:
            self.memory.torch.end()
        if before and (changed := self.inputs.changed(run, before)):
            raise Refused(
                "INPUT_CHANGED",
                f"{changed} of {run.key} was changed in place by the function. Inputs are read-only: others read the same "
                "memory, and see what was written there. Copy first, for instance x = x.copy(), or x.clone() with torch",
            )

    def _again(
        self,
        memory: DeviceMemory,
        run: executor_pb2.ExecutorRun,
        call: Callable[..., Any],
        finished: executor_pb2.ExecutorFinished,
        first: str,
    ) -> None:
        """Runs a function a second time after it found no memory on the GPU.

        The second run is alone on the GPU if possible. Memory that the pools of CuPy and RMM cannot
        provide is leased from the slab, where the worker makes room by spilling. The same holds for
        torch if its allocator is pointed at the slab.
        """
        device, arena, torch_arena = memory.device, memory.arena, memory.torch
        device.driver.wait_for_all()
        arena.forget(all_of_it=True)
        if torch_arena is not None:
            torch_arena.release_all()
        # The first run has no result that could own these.
        self._out.release(self.released() + self.result_leases())
        alone = self._device_lock is None or self._device_lock.lock_exclusively()
        finished.Clear()
        finished.task_id, finished.attempt = run.task_id, run.attempt
        try:
            with memory.overflowing():
                if torch_arena is not None:
                    try:
                        torch_arena.lease_missed()
                    except NoLease as e:
                        arena.refused = str(e)
                    torch_arena.begin()
                self._once(run, call, finished, first=False)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            how = "alone on the GPU" if alone else "while others were still using the GPU"
            slab = f"; the slab had no room for what was missing: {arena.refused}" if arena.refused else ""
            found = describe_memory(device, torch_arena.in_slab() if torch_arena is not None else 0)
            text = f"out of memory on the GPU, twice, the second time {how}: {e}; {found}{slab}"
            if str(e) != first:
                text += f"; the first time: {first}"
            raise Refused("OUT_OF_MEMORY", shortened(text)) from e

    def _call(self, call: Callable[..., Any], given: list[Any], finished: executor_pb2.ExecutorFinished) -> Any:
        """Takes the arguments out of `given` and calls the function with them. No other reference
        to the arguments remains then."""
        args, kwargs = given.pop()
        # All that the function needs is loaded: from here on, a death of the process is its own.
        self._control.call(self._ordinal)
        began = time.perf_counter_ns()
        try:
            result = call(*args, **kwargs)
            if inspect.iscoroutine(result):
                import asyncio  # slow to import, and rarely needed

                result = asyncio.run(result)
            if self.memory is not None:
                self.memory.device.wait()
            return result
        finally:
            finished.run_nanos = time.perf_counter_ns() - began

    # ---- memory ----------------------------------------------------------------------------------

    def keep(self, run: executor_pb2.ExecutorRun, finished: executor_pb2.ExecutorFinished) -> None:
        """Asks the worker to keep the inputs that something in this process still uses. If an input
        cannot be kept, the run fails with OUT_OF_MEMORY, and the process ends: the input's memory
        is reused by its owner after the run."""
        try:
            self.inputs.keep(run, finished, self._out.number)
        except OSError as e:
            finished.Clear()
            finished.task_id, finished.attempt = run.task_id, run.attempt
            finished.error.reason = "OUT_OF_MEMORY"
            finished.error.message = f"an input of {run.key} is still in use after its run, and cannot be kept: {e}"
            self.unfit = f"something in this process still reads memory that was lent to it: {e}"

    def end(self) -> None:
        """Notes that the run has ended: no task is running."""
        self.task_id, _task_info.current = 0, None

    def settle(self) -> None:
        """Does the work of torch's allocator that waits for the end of a run."""
        if self.memory is not None and self.memory.torch is not None and not self.unfit:
            self.memory.torch.settle()

    def released(self) -> list[int]:
        """Collects the leases to be released now. REQUIRES: no submitted GPU work is still
        running."""
        out, self._due = self._due, []
        out += self.inputs.released()
        if self.memory is not None:
            out += self.memory.released()
        return out

    def result_leases(self) -> list[int]:
        """See `DeviceMemory.result_leases`."""
        return [] if self.memory is None else self.memory.result_leases()

    def _release_unused(self) -> None:
        """Releases unused memory in the middle of a run that waits for memory. Without this,
        processes could deadlock: another one may wait for that memory while it holds the memory
        that this run waits for."""
        memory = self.memory
        if memory is None:
            return
        memory.arena.forget(all_of_it=True)
        if memory.torch is not None:
            memory.torch.release_idle()
        self._due = self.released()
        if self._due:
            memory.device.driver.wait_for_all()
            self.release()

    def release(self) -> None:
        """Releases the memory that nothing needs any more."""
        self._out.release(self.released())
        self._out.flush()
