"""The worker's part of the executor protocol, for tests of an executor process."""

from __future__ import annotations

import array
import io
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from conftest import PATIENCE
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import task_pb2, value_pb2
from millrace._values import _serialize

SLAB = 8 << 20
LAUNCH = """
import os, socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
_, fds, _, _ = socket.recv_fds(s, 1, 3)
for number, fd in enumerate(fds, 3 + 20): os.dup2(fd, number)
for number in (3, 4, 5): os.dup2(number + 20, number)
os.execv(sys.executable, [sys.executable, "-m", "millrace.executor"])
"""


class Worker:
    """Plays the worker's part of the protocol."""

    #: Further fields of `hello`.
    hello: dict[str, Any] = {}  # noqa: RUF012
    #: Size of the slab in bytes.
    size = SLAB

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self.slab_fd, self.page_fd = os.memfd_create("slab"), os.memfd_create("page")
        os.ftruncate(self.slab_fd, SLAB)
        os.ftruncate(self.page_fd, 4096)
        self.slab = mmap.mmap(self.slab_fd, SLAB)
        self.page = mmap.mmap(self.page_fd, 4096)
        launch, given = socket.socketpair()
        began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-ES", "-c", LAUNCH, str(given.fileno())],
            pass_fds=[given.fileno()],
            stderr=subprocess.PIPE,
        )
        descriptors = array.array("i", [theirs.fileno(), self.slab_fd, self.page_fd])
        launch.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        theirs.close(), given.close(), launch.close()
        self.link.settimeout(PATIENCE)
        self.send(
            hello=executor_pb2.ExecutorHello(
                protocol_version=1, worker_name="w", slab_bytes=self.size, max_inline_bytes=1024, **self.hello
            )
        )
        self.inbox: list[Any] = []
        self.logs: list[Any] = []
        #: Requests for memory of the process, and the numbers of those that it has released.
        self.leased: list[int] = []
        self.released: list[int] = []
        #: Modules that tasks have made the process import.
        self.loaded: list[str] = []
        assert self.receive().ready.protocol_version == 1
        #: Seconds until the process was ready.
        self.started = time.monotonic() - began
        self.runs = 0
        self.room = 1 << 20
        # Functions that the process has, and the number of runs before those of this test.
        self._functions: set[bytes] = set()
        self._before = 0

    def send(self, **fields: Any) -> None:
        data = executor_pb2.ToExecutor(**fields).SerializeToString()
        self.link.sendall(struct.pack("<I", len(data)) + data)

    def receive(self) -> Any:
        def take(n: int) -> bytes:
            out = b""
            while len(out) < n:
                piece = self.link.recv(n - len(out))
                if not piece:
                    raise EOFError
                out += piece
            return out

        return executor_pb2.FromExecutor.FromString(take(struct.unpack("<I", take(4))[0]))

    def define(self, op: int, function: Callable[..., Any] | str) -> None:
        if isinstance(function, str):
            self.send(ops=[{"op_id": op, "op": {"kind": task_pb2.OP_KIND_PYTHON_IMPORT, "name": function}}])
            return
        payload = cloudpickle.dumps(function)
        spec = {"kind": task_pb2.OP_KIND_PYTHON_PICKLE, "name": "f", "function": b"h%d" % op}
        self._functions.add(spec["function"])
        self.send(ops=[{"op_id": op, "op": spec}], functions=[{"hash": spec["function"], "payload": payload}])

    def start(self, op: int, *args: Any, inputs: list[Any] = [], task: int = 0, **kwargs: Any) -> int:  # noqa: B006
        """Sends a run of a new task, or of `task` again, and returns its task."""
        self.runs += 1
        task = task or self.runs
        call = value_pb2.Opaque(encoding="pickle5", data=cloudpickle.dumps((args, kwargs)))
        arguments = value_pb2.Arguments(call=call).SerializeToString()
        run = executor_pb2.ExecutorRun(task_id=task, attempt=1, op_id=op, arguments=arguments, inputs=inputs, key="k")
        self.send(runs=[run])
        return task

    def finished(self) -> Any:
        while not self.inbox:
            self.take()
        return self.inbox.pop(0)

    def take(self) -> None:
        """Handles one message."""
        message = self.receive()
        self.inbox += message.finished
        self.logs += message.logs
        self.released += [r.request_id for r in message.releases]
        self.loaded += message.loaded_modules
        for request in message.allocation_requests:
            frames = []
            if not request.HasField("attempt"):
                self.leased.append(request.request_id)
            for n in request.frame_bytes:
                frames.append({"offset": self.place(request, n), "size_bytes": n})
            self.send(allocations=[{"request_id": request.request_id, "frames": frames}])

    def place(self, request: Any, n: int) -> int:
        """Returns an offset in the slab with room for n bytes."""
        at = self.room
        self.room += (n + 4095) // 4096 * 4096
        return at

    def value(self, finished: Any) -> Any:
        assert not finished.HasField("error"), finished.error
        if finished.inline_frames:
            return _serialize.decode(finished.header, [memoryview(f) for f in finished.inline_frames])
        view = memoryview(self.slab)
        return _serialize.decode(finished.header, [view[f.offset : f.offset + f.size_bytes] for f in finished.frames])

    def word(self, index: int) -> int:
        """Returns the ordinal of the run that began last (0) or ended last (1), counted from 1 in
        each test."""
        return self._word(index) - self._before

    def stop(self, ordinal: int) -> None:
        """Stops the run with this ordinal."""
        struct.pack_into("<Q", self.page, 16, self._before + ordinal)
        self.process.send_signal(signal.SIGINT)

    def _word(self, index: int) -> int:
        return struct.unpack_from("<Q", self.page, 8 * index)[0]

    def idle(self) -> bool:
        """Returns whether the process lives and every run has ended."""
        return self.process.poll() is None and self.runs <= self.word(1) == self.word(0) and not self.inbox

    def renew(self) -> None:
        """Makes the process forget the functions of a test, and counts runs anew."""
        self.send(dropped_functions=list(self._functions))
        self._functions.clear()
        self.inbox.clear(), self.logs.clear(), self.leased.clear(), self.released.clear(), self.loaded.clear()
        self.runs, self.room, self._before = 0, 1 << 20, self._word(1)

    def end(self) -> None:
        self.link.close()
        assert self.process.wait(PATIENCE) is not None
        assert self.process.stderr is not None
        self.process.stderr.close()


class Shared:
    """A process that many tests use, one after the other. A test after which it is not idle leaves
    the next one a new process."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.end()

    def worker(self) -> Worker:
        worker = self._worker
        if worker is not None and worker.idle():
            worker.renew()
            return worker
        if worker is not None:
            worker.end()
        self._worker = Worker()
        return self._worker


def text_of(worker: Worker, task: int, stderr: bool = False) -> str:
    return "".join(x.text for x in worker.logs if x.task_id == task and x.stderr == stderr)


class Pid:
    """Stands for an input in the arguments of a run."""

    def __init__(self, index: int = 0) -> None:
        self.index = index


def arguments(*args: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    _serialize.CallPickler(file, lambda o: o.index if isinstance(o, Pid) else None).dump((args, kwargs))
    return value_pb2.Arguments(call=value_pb2.Opaque(encoding="pickle5", data=file.getvalue())).SerializeToString()


def run(worker: Worker, op: int, given: bytes, *inputs: Any) -> Any:
    worker.runs += 1
    ins = [i if isinstance(i, executor_pb2.ExecutorInput) else {"header": i} for i in inputs]
    worker.send(
        runs=[{"task_id": worker.runs, "attempt": 1, "op_id": op, "arguments": given, "inputs": ins, "key": "k"}]
    )
    return worker.finished()


LENT = 4 << 20


class Lender:
    """Memory of another worker, which holds an array."""

    def __init__(self, worker: Worker, value: float = 2.0) -> None:
        self.worker = worker
        self.fd = os.memfd_create("lent")
        os.ftruncate(self.fd, LENT)
        self.memory = mmap.mmap(self.fd, LENT)
        self.array = np.full(10_000, value)
        self.memory[4096 : 4096 + self.array.nbytes] = self.array.tobytes()

    def attach(self, number: int) -> executor_pb2.ExecutorInput:
        read_only = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
        data = executor_pb2.ToExecutor(attach_segments=[{"segment_id": number, "size_bytes": LENT}]).SerializeToString()
        sent = socket.send_fds(self.worker.link, [struct.pack("<I", len(data)) + data], [read_only])
        assert sent == 4 + len(data)
        os.close(read_only)
        at = {"offset": 4096, "size_bytes": self.array.nbytes, "segment_id": number}
        return executor_pb2.ExecutorInput(header=_serialize.encode(self.array).header, frames=[at])

    def mappings(self) -> int:
        return Path(f"/proc/{self.worker.process.pid}/maps").read_text().count("memfd:lent")


def stored(worker: Worker, at: int, obj: Any) -> Any:
    """Stores an object in the slab. Returns it as an input."""
    encoded = _serialize.encode(obj)
    frames = []
    for frame in encoded.frames:
        worker.slab[at : at + frame.nbytes] = frame.tobytes()
        frames.append({"offset": at, "size_bytes": frame.nbytes})
        at += (frame.nbytes + 255) // 256 * 256
    return executor_pb2.ExecutorInput(header=encoded.header, frames=frames)


def kept(finished: Any) -> list[int]:
    assert not finished.HasField("error"), finished.error
    return [k.input_index for k in finished.retained_inputs]
