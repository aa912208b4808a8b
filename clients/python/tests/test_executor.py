"""Tests of the executor process: its runs and their ends, functions and messages. The test plays
the worker."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from executor_worker import Worker, arguments, run
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace._pb.millrace.v1 import task_pb2, value_pb2
from millrace.executor._op import Functions, Op
from millrace.executor._outbox import Outbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
    worker.stop(1)
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
    worker.stop(1)
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


def test_shutdown_and_the_end_of_the_link_end_the_process(own: Worker) -> None:
    own.send(shutdown=True)
    assert own.process.wait(PATIENCE) == 0


def test_many_tiny_runs(worker: Worker) -> None:
    worker.define(1, lambda x: x)
    n = 2000
    for i in range(n):
        worker.start(1, i)
    assert [worker.value(worker.finished()) for _ in range(n)] == list(range(n))


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


def test_functions_are_forgotten(own: Worker) -> None:
    def look() -> Any:
        from millrace.executor import _process

        process: Any = _process._process
        return sorted(process._ops), sorted(process._functions._known), len(process._functions._unpickled)

    own.define(1, look)
    for op in range(2, 12):
        own.define(op, lambda op=op: op)
        assert own.value(run(own, op, arguments())) == op
    assert own.value(run(own, 1, arguments())) == (
        list(range(1, 12)),
        sorted(b"h%d" % n for n in range(1, 12)),
        11,
    )
    own.send(dropped_functions=[b"h%d" % n for n in range(2, 12)])
    assert own.value(run(own, 1, arguments()))[:2] == ([1], [b"h1"])
    # The number is used again, for another function.
    own.define(2, lambda: "new")
    assert own.value(run(own, 2, arguments())) == "new"
    assert own.value(run(own, 1, arguments())) == ([1, 2], [b"h1", b"h2"], 2)
    # A run of a forgotten function fails, and has no other effect.
    error = run(own, 7, arguments()).error
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


def test_a_result_that_no_message_can_take_fails_alone(own: Worker) -> None:
    def limit(to: int) -> None:
        from millrace.executor import _results

        _results.LARGEST = to  # type: ignore[attr-defined]

    own.define(1, limit)
    own.define(2, lambda: ["text"] * 100)
    own.value(run(own, 1, arguments(200)))
    error = run(own, 2, arguments()).error
    assert error.reason == "RESULT_TOO_LARGE" and " 200 are allowed" in error.message
    own.value(run(own, 1, arguments(1 << 20)))
    assert own.value(run(own, 2, arguments())) == ["text"] * 100


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
