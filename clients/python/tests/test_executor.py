"""The executor process against a test that plays the worker."""

from __future__ import annotations

import array
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from millrace import _serialize
from millrace._pb.millrace.v1 import executor_pb2, task_pb2, value_pb2

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

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self.slab_fd, self.page_fd = os.memfd_create("slab"), os.memfd_create("page")
        os.ftruncate(self.slab_fd, SLAB)
        os.ftruncate(self.page_fd, 4096)
        self.slab = mmap.mmap(self.slab_fd, SLAB)
        self.page = mmap.mmap(self.page_fd, 4096)
        launch, given = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(given.fileno())], pass_fds=[given.fileno()], stderr=subprocess.PIPE
        )
        descriptors = array.array("i", [theirs.fileno(), self.slab_fd, self.page_fd])
        launch.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        theirs.close(), given.close(), launch.close()
        self.link.settimeout(30)
        self.send(hello=executor_pb2.ExecutorHello(protocol=1, worker_name="w", slab_bytes=SLAB, inline_bytes=1024))
        self.inbox: list[Any] = []
        self.logs: list[Any] = []
        assert self.receive().ready.protocol == 1
        self.runs = 0
        self.room = 1 << 20

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
        self.send(ops=[{"op_id": op, "op": spec}], functions=[{"hash": b"h%d" % op, "payload": payload}])

    def start(self, op: int, *args: Any, inputs: list[Any] = [], **kwargs: Any) -> int:  # noqa: B006
        self.runs += 1
        call = value_pb2.Opaque(encoding="pickle5", data=cloudpickle.dumps((args, kwargs)))
        arguments = value_pb2.Arguments(call=call).SerializeToString()
        run = executor_pb2.ExecutorRun(
            task_id=self.runs, attempt=1, op_id=op, arguments=arguments, inputs=inputs, key="k"
        )
        self.send(runs=[run])
        return self.runs

    def finished(self) -> Any:
        while not self.inbox:
            message = self.receive()
            self.inbox += message.finished
            self.logs += message.logs
            for request in message.allocate:
                frames = []
                for n in request.frame_bytes:
                    frames.append({"offset": self.room, "bytes": n})
                    self.room += (n + 4095) // 4096 * 4096
                self.send(allocated=[{"request": request.request, "frames": frames}])
        return self.inbox.pop(0)

    def value(self, finished: Any) -> Any:
        assert not finished.HasField("error"), finished.error
        if finished.inline_frames:
            return _serialize.decode(finished.header, [memoryview(f) for f in finished.inline_frames])
        view = memoryview(self.slab)
        return _serialize.decode(finished.header, [view[f.offset : f.offset + f.bytes] for f in finished.frames])

    def word(self, index: int) -> int:
        return struct.unpack_from("<Q", self.page, 8 * index)[0]


@pytest.fixture
def worker() -> Iterator[Worker]:
    w = Worker()
    yield w
    w.link.close()
    assert w.process.wait(10) is not None
    assert w.process.stderr is not None
    w.process.stderr.close()


def test_runs_functions_and_tells_how_far_it_is(worker: Worker) -> None:
    worker.define(1, lambda a, b=0: a + b)
    worker.start(1, 2, b=3)
    assert worker.value(worker.finished()) == 5
    assert (worker.word(0), worker.word(1)) == (1, 1)


def test_import_path_with_typed_arguments(worker: Worker) -> None:
    worker.define(1, "operator:add")
    typed = value_pb2.Arguments(positional=[value_pb2.Value(int_value=2), value_pb2.Value(input=0)])
    header = value_pb2.Value(int_value=40).SerializeToString()
    worker.send(
        runs=[
            {
                "task_id": 1,
                "attempt": 1,
                "op_id": 1,
                "arguments": typed.SerializeToString(),
                "inputs": [{"header": header}],
            }
        ]
    )
    assert worker.value(worker.finished()) == 42


def test_inputs_are_read_only_views_of_the_slab_and_results_go_there(worker: Worker) -> None:
    data = np.arange(10_000.0)
    worker.slab[4096 : 4096 + data.nbytes] = data.tobytes()
    header = _serialize.encode(data).header
    given = executor_pb2.ExecutorInput(header=header, frames=[{"offset": 4096, "bytes": data.nbytes}])

    class Pid:
        pass

    def use(x: Any) -> Any:
        try:
            x[0] = 1.0
        except ValueError:
            return x * 2
        return "inputs can be written to"

    worker.define(1, use)
    worker.runs += 1
    file = __import__("io").BytesIO()
    _serialize.CallPickler(file, lambda o: 0 if isinstance(o, Pid) else None).dump(((Pid(),), {}))
    arguments = value_pb2.Arguments(call=value_pb2.Opaque(encoding="pickle5", data=file.getvalue()))
    worker.send(
        runs=[{"task_id": 1, "attempt": 1, "op_id": 1, "arguments": arguments.SerializeToString(), "inputs": [given]}]
    )
    finished = worker.finished()
    assert finished.frames and finished.frames[0].offset >= 1 << 20
    np.testing.assert_array_equal(worker.value(finished), data * 2)
    # A view of an input is not copied.
    worker.define(2, lambda x: x[5000:])
    worker.send(
        runs=[{"task_id": 2, "attempt": 1, "op_id": 2, "arguments": arguments.SerializeToString(), "inputs": [given]}]
    )
    finished = worker.finished()
    assert finished.frames[0].offset == 4096 + 40_000


def test_exceptions_travel_with_traceback_and_chain(worker: Worker) -> None:
    def fail() -> None:
        try:
            {}["missing"]
        except KeyError as e:
            raise RuntimeError("broken") from e

    worker.define(1, fail)
    worker.start(1)
    error = worker.finished().error
    assert error.reason == "PYTHON_EXCEPTION"
    assert "KeyError: 'missing'" in error.traceback and "RuntimeError: broken" in error.traceback
    from millrace import errors

    exception = errors.from_task(error, "k", False)
    assert isinstance(exception, RuntimeError) and isinstance(exception.__cause__, KeyError)


def test_a_task_that_exits_or_returns_nonsense_does_not_end_the_process(worker: Worker) -> None:
    worker.define(1, lambda: sys.exit(3))
    worker.define(2, lambda: (x for x in ()))
    worker.define(3, "no.such.module:f")
    worker.define(4, "os:no_such_function")
    for op in (1, 2, 3, 4):
        worker.start(op)
    reasons = [worker.finished().error.reason for _ in range(4)]
    assert reasons == ["PYTHON_EXCEPTION", "RESULT_NOT_SERIALISABLE", "FUNCTION_NOT_FOUND", "FUNCTION_NOT_FOUND"]


def test_output_goes_with_the_task(worker: Worker) -> None:
    def talk() -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)

    worker.define(1, talk)
    worker.start(1)
    worker.finished()
    assert [(x.task_id, x.stderr, x.text) for x in worker.logs] == [(1, False, "to stdout\n"), (1, True, "to stderr\n")]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("how", ["sleeping", "spinning"])
def test_stop_ends_the_function_and_only_the_one_meant(worker: Worker, how: str) -> None:
    def work(how: str) -> str:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            if how == "sleeping":
                time.sleep(30)
        return "was not stopped"

    worker.define(1, work)
    worker.start(1, how)
    until(lambda: worker.word(0) == 1)
    worker.process.send_signal(signal.SIGINT)  # no run is named: ignored
    time.sleep(0.05)
    assert worker.word(1) == 0
    struct.pack_into("<Q", worker.page, 16, 1)
    worker.process.send_signal(signal.SIGINT)
    assert worker.finished().error.reason == "STOPPED"
    worker.define(2, lambda: "alive")
    worker.start(2)
    assert worker.value(worker.finished()) == "alive"


def test_queued_runs_can_be_dropped_while_one_runs(worker: Worker) -> None:
    worker.define(1, time.sleep)
    worker.start(1, 0.3)
    until(lambda: worker.word(0) == 1)
    second = worker.start(1, 0)
    worker.send(cancellations=[{"task_id": second, "attempt": 1}])
    dropped = worker.finished()
    assert (dropped.task_id, dropped.error.reason) == (second, "DROPPED")
    assert worker.value(worker.finished()) is None


def test_shutdown_and_the_end_of_the_link_end_the_process(worker: Worker) -> None:
    worker.send(shutdown=True)
    assert worker.process.wait(10) == 0


def test_many_tiny_runs(worker: Worker) -> None:
    worker.define(1, lambda x: x)
    n = 2000
    for i in range(n):
        worker.start(1, i)
    assert [worker.value(worker.finished()) for _ in range(n)] == list(range(n))
