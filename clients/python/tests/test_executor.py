"""Tests of the executor process. The test plays the worker."""

from __future__ import annotations

import array
import io
import mmap
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import task_pb2, value_pb2
from millrace._values import _serialize
from millrace.executor._op import Functions, Op
from millrace.executor._outbox import Outbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])
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
            [sys.executable, "-c", LAUNCH, str(given.fileno())], pass_fds=[given.fileno()], stderr=subprocess.PIPE
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
        return struct.unpack_from("<Q", self.page, 8 * index)[0]

    def end(self) -> None:
        self.link.close()
        assert self.process.wait(PATIENCE) is not None
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    w = Worker()
    yield w
    w.end()


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


def test_imports_of_tasks_are_reported_once(worker: Worker) -> None:
    def imports(name: str) -> None:
        import importlib

        sys.modules["no module name"] = os
        importlib.import_module(name)

    worker.define(1, imports)
    for name in ("this", "xml.dom.minidom", "this"):
        worker.start(1, name)
        worker.value(worker.finished())
    assert {"this", "xml"} <= set(worker.loaded)
    assert not {"xml.dom.minidom", "no module name"} & set(worker.loaded)
    assert len(worker.loaded) == len(set(worker.loaded))


def test_inputs_are_read_only_views_of_the_slab_and_results_go_there(worker: Worker) -> None:
    data = np.arange(10_000.0)
    worker.slab[4096 : 4096 + data.nbytes] = data.tobytes()
    header = _serialize.encode(data).header
    given = executor_pb2.ExecutorInput(header=header, frames=[{"offset": 4096, "size_bytes": data.nbytes}])

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
    assert text_of(worker, 1) == "to stdout\n" and text_of(worker, 1, stderr=True) == "to stderr\n"


@pytest.mark.parametrize("how", ["sleeping", "spinning"])
def test_stop_ends_the_function_and_only_the_one_meant(worker: Worker, how: str) -> None:
    def work(how: str) -> None:
        while True:
            if how == "sleeping":
                time.sleep(1000)

    worker.define(1, work)
    worker.start(1, how)
    eventually(lambda: worker.word(0) == 1)
    worker.process.send_signal(signal.SIGINT)  # no run is to be stopped, so the signal is ignored
    time.sleep(0.05)
    assert worker.word(1) == 0
    struct.pack_into("<Q", worker.page, 16, 1)
    worker.process.send_signal(signal.SIGINT)
    assert worker.finished().error.reason == "STOPPED"
    worker.define(2, lambda: "alive")
    worker.start(2)
    assert worker.value(worker.finished()) == "alive"


def test_a_stop_waits_until_an_import_is_over(worker: Worker, gate: Gate, tmp_path: Path) -> None:
    """A stop must not interrupt an import: the package could not be imported again, because its
    submodules would be in `sys.modules` without the package."""
    package = tmp_path / "slow_package"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from .part import *\nfrom .wait import *\n__all__ = part.__all__ + wait.__all__\n"
    )
    (package / "part.py").write_text("__all__ = ('answer',)\nanswer = 42\n")
    (package / "wait.py").write_text(
        "__all__ = ()\n"
        f"with open({gate.path + '.here'!r}, 'wb', 0) as here, open({gate.path + '.open'!r}, 'rb', 0) as opened:\n"
        "    here.write(b'x')\n"
        "    opened.read(1)\n"
    )

    def work(folder: str, stay: bool) -> int:
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = __import__("importlib").import_module("slow_package")
        while stay:
            time.sleep(1000)
        return module.answer

    worker.define(1, work)
    worker.start(1, str(tmp_path), True)
    gate.wait()
    struct.pack_into("<Q", worker.page, 16, 1)
    worker.process.send_signal(signal.SIGINT)
    gate.open(2)
    assert worker.finished().error.reason == "STOPPED"
    worker.start(1, str(tmp_path), False)
    assert worker.value(worker.finished()) == 42


def test_queued_runs_can_be_dropped_while_one_runs(worker: Worker, gate: Gate) -> None:
    # A copy of `Gate.pass_through`, which the executor could not import.
    def wait_at(path: str) -> None:
        with Path(path + ".open").open("rb") as pipe:
            pipe.read(1)

    worker.define(1, wait_at)
    worker.start(1, gate.path)
    eventually(lambda: worker.word(0) == 1)
    second = worker.start(1, gate.path)
    worker.send(cancellations=[{"task_id": second, "attempt": 1}])
    dropped = worker.finished()
    assert (dropped.task_id, dropped.error.reason) == (second, "DROPPED")
    gate.open()
    assert worker.value(worker.finished()) is None


def test_a_dropped_run_that_comes_again_takes_its_turn_anew(worker: Worker, gate: Gate) -> None:
    """The worker recognises the run in progress by ordinals that grow."""

    def wait_at(path: str) -> None:
        with Path(path + ".open").open("rb") as pipe:
            pipe.read(1)

    worker.define(1, wait_at)
    worker.define(2, lambda x: x)
    worker.start(1, gate.path)
    eventually(lambda: worker.word(0) == 1)
    second, third = worker.start(2, "old"), worker.start(2, "third")
    for again in ("older", "new"):
        worker.send(cancellations=[{"task_id": second, "attempt": 1}])
        dropped = worker.finished()
        assert (dropped.task_id, dropped.error.reason) == (second, "DROPPED")
        worker.start(2, again, task=second)
    gate.open()
    assert worker.value(worker.finished()) is None
    for task, value in ((third, "third"), (second, "new")):
        finished = worker.finished()
        assert (finished.task_id, worker.value(finished)) == (task, value)
    eventually(lambda: worker.word(1) == 5)  # the ordinal of the last run


def test_shutdown_and_the_end_of_the_link_end_the_process(worker: Worker) -> None:
    worker.send(shutdown=True)
    assert worker.process.wait(PATIENCE) == 0


def test_many_tiny_runs(worker: Worker) -> None:
    worker.define(1, lambda x: x)
    n = 2000
    for i in range(n):
        worker.start(1, i)
    assert [worker.value(worker.finished()) for _ in range(n)] == list(range(n))


# ---- output --------------------------------------------------------------------------------------


def text_of(worker: Worker, task: int, stderr: bool = False) -> str:
    return "".join(x.text for x in worker.logs if x.task_id == task and x.stderr == stderr)


def test_standard_streams_are_whole(worker: Worker) -> None:
    def talk() -> list[Any]:
        sys.stdout.buffer.write("grüße ".encode()[:4])
        sys.stdout.buffer.write("grüße ".encode()[4:])
        sys.stdout.buffer.flush()
        print("mixed", end=" ")
        sys.stdout.buffer.write(b"\xff\n")
        sys.stderr.buffer.write(b"bytes to stderr\n")
        sys.stdout.reconfigure(line_buffering=True)
        sys.stdout.writelines(["a\n", "b\n"])
        print("\ud800", file=sys.stdout)
        try:
            sys.stdout.write(b"no text")  # type: ignore[arg-type]
        except TypeError as e:
            print(e)
        sys.stdout.close()
        print("still open")
        return [sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.buffer.fileno(), sys.stdout.encoding]

    worker.define(1, talk)
    worker.start(1)
    assert worker.value(worker.finished()) == [1, 2, 1, "utf-8"]
    told = text_of(worker, 1)
    assert told.startswith("grüße mixed \ufffd\na\nb\n"), told
    assert "must be str, not bytes" in told and told.endswith("still open\n")
    assert text_of(worker, 1, stderr=True) == "bytes to stderr\n"


def test_a_flood_of_output_and_an_endless_message_do_not_break_the_link(worker: Worker) -> None:
    def flood() -> None:
        for _ in range(50):
            print("x" * (2 << 20))
        raise ValueError("y" * (80 << 20))

    worker.define(1, flood)
    worker.start(1)
    error = worker.finished().error
    assert error.reason == "PYTHON_EXCEPTION"
    assert len(error.message) < 1 << 17 and len(error.traceback) < 1 << 17 and "yyy" in error.message
    worker.define(2, lambda: "alive")
    worker.start(2)
    assert worker.value(worker.finished()) == "alive"


def test_a_flood_of_output_is_shortened_where_it_is_printed() -> None:
    """The worker keeps only the end of it, and nobody reads more."""

    class Counts:
        characters, shortened, last = 0, 0, ""

        def send(self, message: executor_pb2.FromExecutor) -> None:
            for log in message.logs:
                self.characters += len(log.text)
                self.shortened += "characters left out ...]" in log.text
                self.last = log.text

    link: Any = Counts()
    outbox = Outbox(link)
    line = "x" * 99 + "\n"
    for _ in range(200_000):
        outbox.log(7, line, False)
    outbox.log(7, "the end\n", False)
    outbox.flush()
    assert link.characters < 15_000_000, link.characters
    assert link.shortened and link.last.endswith(line + "the end\n")


def test_questions_in_a_task_are_answered_with_a_remedy(worker: Worker) -> None:
    def ask() -> None:
        input("? ")

    def stop() -> None:
        breakpoint()

    worker.define(1, ask)
    worker.define(2, stop)
    texts = [run(worker, op, arguments()).error.message for op in (1, 2)]
    assert "EOFError: a task has no terminal" in texts[0]
    assert "breakpoint() in a task" in texts[1] and "%debug" in texts[1]


def test_output_of_programs_that_tasks_start(worker: Worker) -> None:
    def start() -> str:
        subprocess.run(["/bin/echo", "from a child"], stdout=sys.stderr, check=True)
        return subprocess.run(["/bin/echo", "caught"], capture_output=True, text=True, check=True).stdout

    worker.define(1, start)
    worker.start(1)
    assert worker.value(worker.finished()) == "caught\n"
    assert worker.process.stderr is not None
    assert worker.process.stderr.readline() == b"from a child\n"


def test_a_segfault_leaves_a_traceback(worker: Worker) -> None:
    def unlucky() -> None:
        __import__("ctypes").string_at(0)

    worker.define(1, unlucky)
    worker.start(1)
    assert worker.process.wait(PATIENCE) == -signal.SIGSEGV
    assert worker.process.stderr is not None
    text = worker.process.stderr.read().decode()
    assert "Segmentation fault" in text and "in unlucky" in text


# ---- arguments and results -----------------------------------------------------------------------


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


def test_an_input_that_cannot_be_decoded_is_no_error_of_the_function(worker: Worker) -> None:
    good = _serialize.encode(5).header
    broken = value_pb2.Value(
        opaque_value=value_pb2.Opaque(encoding="pickle5", data=b"cno_such_module\nThing\n.", type_name="lost.Thing")
    ).SerializeToString()
    foreign = value_pb2.Value(opaque_value=value_pb2.Opaque(encoding="feather", data=b"x")).SerializeToString()
    worker.define(1, lambda *args, **kwargs: (args, kwargs))
    for given, wanted in (
        (arguments(Pid(0), Pid(1)), "argument 1 of k"),
        (arguments(Pid(0), deep=[{"x": (Pid(1),)}]), "argument deep of k"),
        (arguments({Pid(0)}, {"a": {Pid(1)}}), "argument 1 of k"),
    ):
        error = run(worker, 1, given, good, broken).error
        assert error.reason == "INPUT_UNREADABLE", error
        assert wanted in error.message and "no_such_module" in error.message and "lost.Thing" in error.message, error
        assert not error.HasField("exception")
    error = run(worker, 1, arguments(Pid(0)), foreign).error
    assert error.reason == "INPUT_UNREADABLE" and "feather" in error.message
    error = run(worker, 1, arguments(1, Pid(0)), b"\xff\xff\xff").error
    assert error.reason == "INPUT_UNREADABLE" and "argument 1 of k" in error.message
    assert run(worker, 1, b"\xff\xff").error.reason == "INVALID_ARGUMENT"
    typed = value_pb2.Arguments(positional=[{"int_value": 1}, {"list_value": {"values": [{"input": 0}]}}])
    error = run(worker, 1, typed.SerializeToString(), broken).error
    assert error.reason == "INPUT_UNREADABLE" and "argument 1 of k" in error.message
    assert worker.value(run(worker, 1, arguments(Pid(0)), good)) == ((5,), {})


def test_inputs_are_read_only_wherever_they_lie(worker: Worker) -> None:
    def flags(*args: Any) -> list[bool]:
        return [x.flags.writeable for a in args for x in (a if isinstance(a, tuple) else (a,))]

    inline = value_pb2.Value()
    inline.tensor_value.dtype = value_pb2.DTYPE_FLOAT64
    inline.tensor_value.shape.append(2)
    inline.tensor_value.inline_data = bytes(16)
    pair = _serialize.encode((np.arange(4), np.arange(3, dtype="i2")))
    assert not pair.frames
    worker.define(1, flags)
    assert (
        worker.value(run(worker, 1, arguments(Pid(0), Pid(1)), inline.SerializeToString(), pair.header)) == [False] * 3
    )


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: (a, 1)])
def test_results_with_gaps_are_written_once(worker: Worker, wrap: Callable[[Any], Any]) -> None:
    def make(wrap: Callable[[Any], Any]) -> Any:
        return wrap(np.arange(80_000.0).reshape(200, 400)[::2, 1::3])

    worker.define(1, make)
    worker.start(1, wrap)
    finished = worker.finished()
    assert finished.frames and finished.frames[-1].offset >= 1 << 20
    np.testing.assert_equal(worker.value(finished), make(wrap))


def test_run_time_is_that_of_the_function(worker: Worker) -> None:
    def arrive() -> int:
        time.sleep(0.1)
        return time.monotonic_ns()

    class Argument:
        """Becomes the time when the arguments were unpickled, which took a while."""

        def __reduce__(self) -> Any:
            return arrive, ()

    def work(arrived: int) -> Any:
        class Result:
            """Becomes the lower and the upper bound of the function's run time."""

            def __reduce__(self) -> Any:
                at_most = time.monotonic_ns() - arrived
                time.sleep(0.1)
                return tuple, ((at_least, at_most),)

        began = time.monotonic_ns()
        time.sleep(0.05)
        at_least = time.monotonic_ns() - began
        return Result()

    worker.define(1, work)
    worker.start(1, Argument())
    finished = worker.finished()
    at_least, at_most = worker.value(finished)
    assert at_least <= finished.run_nanos <= at_most
    # The result takes 0.1 s to pickle, the argument as long to unpickle.
    assert finished.publish_nanos >= 100_000_000 and finished.deserialize_nanos >= 100_000_000
    worker.define(2, lambda: 1 / 0)
    began = time.monotonic_ns()
    worker.start(2)
    assert 0 < worker.finished().run_nanos < time.monotonic_ns() - began


@pytest.mark.parametrize("how", ["sleeps", "spins"])
def test_results_do_not_wait_behind_a_long_run(worker: Worker, tmp_path: Path, how: str) -> None:
    rounds = tmp_path / "rounds"
    rounds.write_bytes(bytes(1))

    def work(until: int) -> None:
        with rounds.open("rb") as file:
            # The loop reads memory that another process writes, and makes no call that would let
            # other threads of this process run.
            over = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
        while over[0] < until:
            if how == "sleeps":
                time.sleep(0.001)

    worker.define(1, work)
    for round in range(1, 4):
        # All runs are in one message, so that the process has all of them before it begins, and so
        # many that it treats the op as a short one.
        runs = []
        for until in [0] * 50 + [round]:
            worker.runs += 1
            runs.append({"task_id": worker.runs, "attempt": 1, "op_id": 1, "arguments": arguments(until)})
        worker.send(runs=runs)
        for _ in range(50):
            assert worker.value(worker.finished()) is None
        assert not worker.inbox
        with rounds.open("r+b") as file:
            file.write(bytes([round]))
        assert worker.finished().task_id == worker.runs


def test_an_executor_gets_ready_without_what_it_may_not_need() -> None:
    code = "import sys, millrace.executor._process; print(*sorted({'grpc', 'numpy', 'asyncio'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert out.stdout.strip() == ""


# ---- memory of other workers ---------------------------------------------------------------------

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


def test_inputs_in_segments_are_read_only_views_and_results_of_them_are_copied(worker: Worker) -> None:
    given = Lender(worker).attach(1)

    def use(x: Any) -> Any:
        try:
            x.flags.writeable = True
        except ValueError:
            return not x.flags.owndata, float(x.sum())
        return "a segment can be written to"

    worker.define(1, use)
    assert worker.value(run(worker, 1, arguments(Pid()), given)) == (True, 20_000.0)
    worker.define(2, lambda x: x[5000:])
    finished = run(worker, 2, arguments(Pid()), given)
    assert finished.frames[0].segment_id == 0 and finished.frames[0].offset >= 1 << 20
    np.testing.assert_array_equal(worker.value(finished), np.full(5000, 2.0))


def test_a_mapping_lives_as_long_as_what_looks_at_it(worker: Worker) -> None:
    lender = Lender(worker)
    given = lender.attach(1)

    def keep(x: Any) -> None:
        sys.kept = x  # type: ignore[attr-defined]

    def look() -> float:
        return float(sys.kept.sum())  # type: ignore[attr-defined]

    def forget() -> None:
        del sys.kept  # type: ignore[attr-defined]

    for op, function in enumerate((keep, look, forget), 1):
        worker.define(op, function)
    finished = run(worker, 1, arguments(Pid()), given)
    # The worker cannot keep borrowed memory, so the process has made a copy at the same addresses.
    assert worker.value(finished) is None and not finished.retained_inputs
    lender.memory[:] = bytes(LENT)
    assert worker.value(run(worker, 2, arguments())) == 20_000.0
    # Later inputs in the same segment have its current contents.
    lender.memory[4096 : 4096 + 80_000] = np.full(10_000, 3.0).tobytes()
    given = executor_pb2.ExecutorInput(header=given.header, frames=given.frames)
    worker.define(4, lambda x: float(x.sum()))
    assert worker.value(run(worker, 4, arguments(Pid()), given)) == 30_000.0
    worker.send(detach_segments=[{"segment_id": 1}])
    assert worker.value(run(worker, 2, arguments())) == 20_000.0
    assert lender.mappings()
    worker.value(run(worker, 3, arguments()))
    eventually(lambda: lender.mappings() == 0)


def test_views_may_end_while_they_are_detached() -> None:
    # A crash would end this process, so another one does it.
    code = """
import os
from millrace.executor._link import Segment
fd = os.memfd_create("lent")
os.truncate(fd, 1 << 20)
segment = Segment(fd, 1 << 20)
segment.detach([(4096, 500_000)])  # no view of the old mapping is left
print(len(segment.readable))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("1048576\n", 0), done.stderr


def test_a_thousand_segments_leave_nothing_behind(worker: Worker) -> None:
    lender = Lender(worker)
    worker.define(1, lambda x: float(x[-1]))

    def open_files() -> int:
        return len(list(Path(f"/proc/{worker.process.pid}/fd").iterdir()))

    def once(number: int) -> None:
        given = lender.attach(number)
        assert worker.value(run(worker, 1, arguments(Pid()), given)) == 2.0
        worker.send(detach_segments=[{"segment_id": number}])

    once(1)
    eventually(lambda: lender.mappings() == 0)
    before = open_files()
    for number in range(2, 1002):
        once(number)
    eventually(lambda: lender.mappings() == 0)
    eventually(lambda: open_files() == before)


# ---- inputs that outlive their run ---------------------------------------------------------------


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


def keep_in_a_global(x: Any) -> None:
    sys.kept = x  # type: ignore[attr-defined]


def keep_in_an_exception(x: Any) -> None:
    try:
        raise ValueError(x)
    except ValueError as e:
        sys.kept = e  # type: ignore[attr-defined]


def keep_a_part(x: Any) -> None:
    sys.kept = memoryview(x[5:].reshape(-1, 5).T)  # type: ignore[attr-defined]


def keep_in_a_closure(x: Any) -> None:
    y = x[::2]
    sys.kept = lambda: y.sum()  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [keep_in_a_global, keep_in_an_exception, keep_a_part, keep_in_a_closure])
def test_an_input_that_outlives_its_run_is_kept(worker: Worker, keep: Callable[[Any], None]) -> None:
    given = stored(worker, 4096, np.arange(10_000.0))
    other = stored(worker, 400_000, np.arange(5.0))
    worker.define(1, lambda x, y: keep(y))
    worker.define(2, lambda: delattr(sys, "kept"))
    finished = run(worker, 1, arguments(Pid(0), Pid(1)), other, given)
    # The frames of an exception refer to all arguments.
    assert kept(finished) == ([0, 1] if keep is keep_in_an_exception else [1])
    # The input is kept as long as it is referenced.
    again = run(worker, 1, arguments(Pid(0), Pid(1)), given, other)
    assert 1 in kept(again)
    numbers = {k.request_id for k in finished.retained_inputs}
    while not numbers <= set(worker.released):
        worker.take()
    assert set(worker.released) == numbers
    run(worker, 2, arguments())
    numbers |= {k.request_id for k in again.retained_inputs}
    while not numbers <= set(worker.released):
        worker.take()
    assert len(worker.released) == len(numbers)


def test_inputs_of_pickles_with_several_buffers_are_kept(worker: Worker) -> None:
    given = stored(worker, 4096, {1: np.arange(2000.0), 2: np.arange(3000.0), 3: "x"})
    assert len(given.frames) == 2
    worker.define(1, lambda d: keep_in_a_global([d[1][:10], d[2][:10]]))

    def forget_one() -> None:
        del sys.kept[0]  # type: ignore[attr-defined]

    worker.define(2, forget_one)
    finished = run(worker, 1, arguments(Pid(0)), given)
    assert kept(finished) == [0]
    run(worker, 2, arguments())
    assert not worker.released  # the other half is still referenced
    run(worker, 2, arguments())
    while not worker.released:
        worker.take()
    assert worker.released == [finished.retained_inputs[0].request_id]


def result_is_a_view(x: Any) -> Any:
    return x[100:]


def result_is_pickled(x: Any) -> Any:
    return {1: x, "f": lambda: 3}


def arguments_in_a_cycle(x: Any) -> Any:
    cycle: list[Any] = [x]
    cycle.append(cycle)


def an_exception_with_its_frames(x: Any) -> Any:
    try:
        raise ValueError(x)
    except ValueError as e:
        f = e  # noqa: F841


@pytest.mark.parametrize(
    "use", [result_is_a_view, result_is_pickled, arguments_in_a_cycle, an_exception_with_its_frames]
)
def test_an_input_that_nothing_looks_at_is_not_kept(worker: Worker, use: Callable[[Any], Any]) -> None:
    given = stored(worker, 4096, np.arange(10_000.0))
    worker.define(1, use)
    for _ in range(3):
        assert kept(run(worker, 1, arguments(Pid(0)), given)) == []
    worker.define(2, lambda x: 1 // 0)
    finished = run(worker, 2, arguments(Pid(0)), given)
    assert finished.error.reason == "PYTHON_EXCEPTION" and not finished.retained_inputs


def test_a_failed_run_keeps_its_inputs_as_well(worker: Worker) -> None:
    def fail(x: Any) -> None:
        keep_in_a_global(x)
        raise ValueError

    worker.define(1, fail)
    finished = run(worker, 1, arguments(Pid(0)), stored(worker, 4096, np.arange(10_000.0)))
    assert finished.error.reason == "PYTHON_EXCEPTION" and [k.input_index for k in finished.retained_inputs] == [0]


def test_a_process_that_cannot_copy_lent_memory_ends(worker: Worker) -> None:
    def keep(own: Any, lent: Any) -> None:
        from millrace.executor import _link

        def fail(at: int, n: int) -> None:
            raise OSError(12, f"no memory for a copy of {n} bytes")

        _link._own_pages = fail
        sys.kept = own, lent  # type: ignore[attr-defined]
        # A thread like this one may read the lent memory until the process ends.
        threading.Thread(target=threading.Event().wait).start()

    own = stored(worker, 4096, np.arange(10_000.0))
    worker.define(1, keep)
    worker.define(2, lambda: None)
    finished = run(worker, 1, arguments(Pid(0), Pid(1)), own, Lender(worker).attach(1))
    assert finished.error.reason == "OUT_OF_MEMORY" and "no memory for a copy" in finished.error.message
    assert not finished.retained_inputs and not worker.released
    with pytest.raises((EOFError, ConnectionError)):
        run(worker, 2, arguments())
    assert worker.process.wait(PATIENCE) == 70


def test_a_thread_that_ends_while_nothing_runs_gives_its_input_back(worker: Worker, gate: Gate) -> None:
    def start(x: Any, path: str) -> None:
        def use(x: Any) -> None:
            Path(path + ".here").write_bytes(b"x")
            with Path(path + ".open").open("rb") as pipe:
                pipe.read(1)

        threading.Thread(target=use, args=(x,)).start()

    worker.define(1, start)
    finished = run(worker, 1, arguments(Pid(0), gate.path), stored(worker, 4096, np.arange(10_000.0)))
    assert kept(finished) == [0]
    gate.wait()
    gate.open()
    while not worker.released:
        worker.take()
    assert worker.released == [finished.retained_inputs[0].request_id]


def test_an_idle_process_looks_for_cycles(worker: Worker) -> None:
    def old(x: Any) -> None:
        cycle: list[Any] = [x]
        cycle.append(cycle)
        sys.kept = cycle  # type: ignore[attr-defined]

    def drop() -> None:
        import gc

        gc.collect()  # moves the cycle to the oldest generation
        gc.collect()
        del sys.kept  # type: ignore[attr-defined]

    worker.define(1, old)
    worker.define(2, drop)
    assert kept(run(worker, 1, arguments(Pid(0)), stored(worker, 4096, np.arange(10_000.0)))) == [0]
    run(worker, 2, arguments())
    while not worker.released:
        worker.take()


# ---- functions -----------------------------------------------------------------------------------


def test_a_function_of_another_minor_version_is_not_run(worker: Worker) -> None:
    major, minor = sys.version_info[:2]
    ours, other = f"{major}.{minor}", f"{major}.{minor + 1}"

    def define(op: int, language: str) -> None:
        spec = {"kind": task_pb2.OP_KIND_PYTHON_PICKLE, "name": "f", "function": b"h%d" % op}
        function = {"hash": b"h%d" % op, "payload": cloudpickle.dumps(lambda: 7), "language": language}
        worker.send(ops=[{"op_id": op, "op": spec}], functions=[function])

    for op, language in enumerate(("", f"python {ours}", f"python {ours}.99"), 1):
        define(op, language)
        assert worker.value(run(worker, op, arguments())) == 7
    for op, language in ((4, f"python {other}.1"), (5, f"python {other}"), (6, "ruby 3.4")):
        define(op, language)
        error = run(worker, op, arguments()).error
        assert error.reason == "VERSION_MISMATCH", error
        for word in ("function f", f"Python {ours}", language.rpartition(" ")[2][:4], "worker w", "import path"):
            assert word in error.message, error.message


def test_functions_are_forgotten(worker: Worker) -> None:
    def look() -> Any:
        from millrace.executor import _process

        process: Any = _process._process
        return sorted(process._ops), sorted(process._functions._known), len(process._functions._unpickled)

    worker.define(1, look)
    for op in range(2, 12):
        worker.define(op, lambda op=op: op)
        assert worker.value(run(worker, op, arguments())) == op
    assert worker.value(run(worker, 1, arguments())) == (
        list(range(1, 12)),
        sorted(b"h%d" % n for n in range(1, 12)),
        11,
    )
    worker.send(dropped_functions=[b"h%d" % n for n in range(2, 12)])
    assert worker.value(run(worker, 1, arguments()))[:2] == ([1], [b"h1"])
    # The number is used again, for another function.
    worker.define(2, lambda: "new")
    assert worker.value(run(worker, 2, arguments())) == "new"
    assert worker.value(run(worker, 1, arguments())) == ([1, 2], [b"h1", b"h2"], 2)
    # A run of a forgotten function fails, and has no other effect.
    error = run(worker, 7, arguments()).error
    assert error.reason == "FUNCTION_NOT_FOUND"


def test_unpickled_functions_are_bounded() -> None:
    made = [Op(task_pb2.Op(kind=task_pb2.OP_KIND_PYTHON_PICKLE, name="f", function=bytes([n]))) for n in range(4)]
    functions = Functions()
    payload = cloudpickle.dumps(lambda data=bytes(100 << 20): len(data))
    for n in range(4):
        functions.add(task_pb2.Function(hash=bytes([n]), payload=payload))
        assert made[n].resolve(functions, "w")() == 100 << 20
        assert made[0].resolve(functions, "w")() == 100 << 20
    # Two functions of 100 MiB fit. The first one was the most recently used at every step.
    assert [op.call is not None for op in made] == [True, False, False, True]


# ---- messages ------------------------------------------------------------------------------------


def test_messages_are_bounded() -> None:
    sent: list[Any] = []

    class Kept:
        def send(self, message: Any) -> None:
            sent.append(message)

    out = Outbox(Kept())  # type: ignore[arg-type]
    sizes = [50 << 20, 1, 3 << 20, 3 << 20, 3 << 20, 1 << 20, 50 << 20]
    for n, size in enumerate(sizes):
        out.log(n + 1, "x" * 100, False)
        out.finish(executor_pb2.ExecutorFinished(task_id=n + 1, attempt=1, header=bytes(size)), nbytes=size)
    out.flush()
    assert [f.task_id for m in sent for f in m.finished] == [1, 2, 3, 4, 5, 6, 7]
    assert max(m.ByteSize() for m in sent) < 60 << 20 and len(sent) < 6
    # Text of a task is never sent after the task's end.
    ended: set[int] = set()
    for m in sent:
        assert not ended & {log.task_id for log in m.logs}
        ended |= {f.task_id for f in m.finished}


def test_a_result_that_no_message_can_take_fails_alone(worker: Worker) -> None:
    def limit(to: int) -> None:
        from millrace.executor import _results

        _results.LARGEST = to  # type: ignore[attr-defined]

    worker.define(1, limit)
    worker.define(2, lambda: ["text"] * 100)
    worker.value(run(worker, 1, arguments(200)))
    error = run(worker, 2, arguments()).error
    assert error.reason == "RESULT_TOO_LARGE" and " 200 are allowed" in error.message
    worker.value(run(worker, 1, arguments(1 << 20)))
    assert worker.value(run(worker, 2, arguments())) == ["text"] * 100


# ---- how tasks end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit("bye"), "SystemExit: bye"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
    ],
)
def test_exceptions_that_end_programs_end_a_task(worker: Worker, what: BaseException, name: str) -> None:
    def end() -> None:
        raise what

    class Ending:
        """Raises the exception in the code that encodes it."""

        def __reduce__(self) -> Any:
            raise what

    worker.define(1, end)
    worker.define(2, lambda: Ending())
    worker.define(3, lambda: "alive")
    for op in (1, 2):
        error = run(worker, op, arguments()).error
        assert error.reason == "PYTHON_EXCEPTION" and error.message.startswith(name), error
        assert "the process" in error.message and error.traceback
        if error.HasField("exception"):  # then it is one that a client may raise
            assert isinstance(pickle.loads(error.exception.data), Exception)
    assert worker.value(run(worker, 3, arguments())) == "alive"


def test_a_write_to_an_input_says_what_to_do(worker: Worker) -> None:
    def write(x: Any) -> None:
        x[0] = 1

    worker.define(1, write)
    error = run(worker, 1, arguments(Pid(0)), stored(worker, 4096, np.arange(10.0))).error
    if sys.version_info >= (3, 11):
        assert "read-only" in error.message and "Copy first" in error.message, error.message


def test_a_flood_of_exceptions_that_nobody_can_catch_is_cut(worker: Worker) -> None:
    def flood(n: int) -> None:
        class Bad:
            def __del__(self) -> None:
                raise ValueError("in __del__")

        for _ in range(n):
            Bad()

    worker.define(1, flood)
    worker.start(1, 100_000)
    worker.value(worker.finished())
    text = text_of(worker, worker.runs, stderr=True)
    assert text.count("ValueError: in __del__") == 20 and text.endswith("99980 more exceptions were ignored\n")
    worker.start(1, 3)
    worker.value(worker.finished())
    assert text_of(worker, worker.runs, stderr=True).count("ValueError: in") == 3
