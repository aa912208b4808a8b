"""Test support: plays the worker of one executor process, without a cluster."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from millrace import _serialize
from millrace._pb.millrace.v1 import data_service_pb2, executor_pb2, task_pb2, value_pb2
from millrace._pb.millrace.v1 import worker_service_pb2 as worker_pb2

_LENGTH = struct.Struct("<I")
_FRAME_ALIGN = 256


class ExecutorHarness:
    """Starts `command` as a worker would and speaks the executor protocol with it.

    Attributes:
        logs: Text of each task so far, by its number.
        finished: What arrived and was not asked for yet.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (sys.executable, "-m", "millrace.executor"),
        slab_bytes: int = 64 << 20,
        inline_bytes: int = 64 << 10,
        timeout: float = 30.0,
        protocol: int = 1,
    ) -> None:
        self.logs: dict[int, str] = {}
        self.finished: deque[executor_pb2.ExecutorFinished] = deque()
        self.allocations = 0
        self._free = 0
        self._limit = slab_bytes
        self._input = bytearray()
        self._ops = 0
        self.ordinal = 0
        slab, page = os.memfd_create("slab"), os.memfd_create("page")
        os.ftruncate(slab, slab_bytes)
        os.ftruncate(page, 4096)
        self.slab = memoryview(mmap.mmap(slab, slab_bytes))
        self.page = memoryview(mmap.mmap(page, 4096)).cast("Q")
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(timeout)
        # Numbers above those that they are given in the child, so that no dup2 overwrites another's source.
        sources = [os.dup(theirs.fileno()), slab, page]
        high = [_above(fd, 32) for fd in sources]

        def place() -> None:
            for target, fd in zip((3, 4, 5), high, strict=True):
                os.dup2(fd, target)

        self.process = subprocess.Popen(
            list(command), preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for fd in (*sources, *high):
            os.close(fd)
        theirs.close()
        hello = executor_pb2.ExecutorHello(
            protocol=protocol, worker_name="harness", worker_id=1, slab_bytes=slab_bytes, inline_bytes=inline_bytes
        )
        self.send(executor_pb2.ToExecutor(hello=hello))

    def __enter__(self) -> ExecutorHarness:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()

    def send(self, message: executor_pb2.ToExecutor) -> None:
        """Sends one message."""
        body = message.SerializeToString()
        self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> executor_pb2.FromExecutor:
        """The next message; logs, results and requests for memory are dealt with."""
        while True:
            if len(self._input) >= 4:
                (size,) = _LENGTH.unpack_from(self._input)
                if len(self._input) >= 4 + size:
                    message = executor_pb2.FromExecutor.FromString(bytes(self._input[4 : 4 + size]))
                    del self._input[: 4 + size]
                    self._handle(message)
                    return message
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError(f"the executor ended the link (exit code {self.process.poll()})")
            self._input += data

    def _handle(self, message: executor_pb2.FromExecutor) -> None:
        for log in message.logs:
            self.logs[log.task_id] = self.logs.get(log.task_id, "") + log.text
        self.finished.extend(message.finished)
        for ask in message.allocate:
            answer = executor_pb2.ExecutorAllocated(request=ask.request)
            total = sum(ask.frame_bytes)
            if total > self._limit:
                answer.error.reason = "OUT_OF_MEMORY"
                answer.error.message = f"{total} bytes do not fit"
            else:
                self.allocations += 1
                for size in ask.frame_bytes:
                    answer.frames.append(self.reserve(size))
            self.send(executor_pb2.ToExecutor(allocated=[answer]))

    def reserve(self, size: int) -> data_service_pb2.FrameLocation:
        """Room in the slab; never freed, from the start again when the end is reached."""
        if self._free + size > self._limit:
            self._free = 0
        at = self._free
        self._free = -(-(at + size) // _FRAME_ALIGN) * _FRAME_ALIGN
        return data_service_pb2.FrameLocation(offset=at, bytes=size)

    def store(self, obj: Any, *, inline_bytes: int = 0) -> executor_pb2.ExecutorInput:
        """Puts an object into the slab, as the input of a run."""
        dump = _serialize.Dump(obj, inline_bytes=inline_bytes)
        out = executor_pb2.ExecutorInput(header=dump.header)
        for frame in dump.frames:
            where = self.reserve(frame.nbytes)
            _serialize.write_frame(self.slab[where.offset : where.offset + where.bytes], frame)
            out.frames.append(where)
        return out

    def define(self, function: Any) -> int:
        """Sends an op: an import path if it is a string, else a pickle. Returns its number."""
        import hashlib

        import cloudpickle

        self._ops += 1
        message = executor_pb2.ToExecutor()
        if isinstance(function, str):
            op = task_pb2.Op(kind=task_pb2.OP_KIND_PYTHON_IMPORT, name=function)
        else:
            payload = function if isinstance(function, bytes) else cloudpickle.dumps(function, protocol=5)
            digest = hashlib.sha256(payload).digest()
            message.functions.add(hash=digest, payload=payload)
            op = task_pb2.Op(kind=task_pb2.OP_KIND_PYTHON_PICKLE, name="f", function=digest)
        message.ops.append(worker_pb2.OpDefinition(op_id=self._ops, op=op))
        self.send(message)
        return self._ops

    def run_message(
        self, op: int, task_id: int, *args: Any, inputs: Sequence[executor_pb2.ExecutorInput] = (), **kwargs: Any
    ) -> executor_pb2.ExecutorRun:
        """A run of the op; `Ref(i)` among the arguments is input i."""
        pickled = _serialize.CallPickle(args, kwargs, Ref)
        return executor_pb2.ExecutorRun(
            task_id=task_id,
            attempt=1,
            op_id=op,
            arguments=_serialize.pack_call(pickled.data),
            inputs=[inputs[int(k)] for k in pickled.inputs],
            key=f"task-{task_id}",
        )

    def start(self, *runs: executor_pb2.ExecutorRun) -> None:
        """Sends runs."""
        self.ordinal += len(runs)
        self.send(executor_pb2.ToExecutor(runs=runs))

    def next_finished(self) -> executor_pb2.ExecutorFinished:
        """Waits for the next run to end."""
        while not self.finished:
            self.receive()
        return self.finished.popleft()

    def call(
        self, op: int, *args: Any, task_id: int = 1, inputs: Sequence[executor_pb2.ExecutorInput] = (), **kwargs: Any
    ) -> executor_pb2.ExecutorFinished:
        """Runs and waits."""
        self.start(self.run_message(op, task_id, *args, inputs=inputs, **kwargs))
        return self.next_finished()

    def typed(self, op: int, arguments: value_pb2.Arguments, *, task_id: int = 1) -> executor_pb2.ExecutorFinished:
        """Runs with typed arguments, as clients of other languages send them."""
        run = executor_pb2.ExecutorRun(
            task_id=task_id, attempt=1, op_id=op, arguments=arguments.SerializeToString(), key="typed"
        )
        self.start(run)
        return self.next_finished()

    def result(self, finished: executor_pb2.ExecutorFinished) -> Any:
        """The object that a run returned."""
        if finished.HasField("error"):
            raise AssertionError(f"{finished.error.reason}: {finished.error.message}\n{finished.error.traceback}")
        frames = [self.slab[f.offset : f.offset + f.bytes] for f in finished.frames]
        return _serialize.load(finished.header, frames, copy=True)

    def stop(self, ordinal: int) -> None:
        """The first step of stopping a run."""
        self.page[2] = ordinal
        self.process.send_signal(signal.SIGINT)


class Ref:
    """Stands for an input in ExecutorHarness.run_message."""

    def __init__(self, index: int) -> None:
        self.key = str(index)


def _above(descriptor: int, least: int) -> int:
    import fcntl

    with contextlib.suppress(OSError):
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD, least)
    return descriptor
