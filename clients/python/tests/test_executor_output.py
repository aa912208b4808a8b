"""Tests of the executor process: output of tasks. The test plays the worker."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import cloudpickle
from conftest import PATIENCE
from executor_worker import Worker, arguments, run, text_of
from millrace._pb.millrace.executor.v1 import executor_pb2
from millrace.executor._outbox import Outbox

cloudpickle.register_pickle_by_value(sys.modules[__name__])


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


def test_output_of_programs_that_tasks_start(own: Worker) -> None:
    def start() -> str:
        subprocess.run(["/bin/echo", "from a child"], stdout=sys.stderr, check=True)
        return subprocess.run(["/bin/echo", "caught"], capture_output=True, text=True, check=True).stdout

    own.define(1, start)
    own.start(1)
    assert own.value(own.finished()) == "caught\n"
    assert own.process.stderr is not None
    assert own.process.stderr.readline() == b"from a child\n"


def test_a_segfault_leaves_a_traceback(own: Worker) -> None:
    def unlucky() -> None:
        __import__("ctypes").string_at(0)

    own.define(1, unlucky)
    own.start(1)
    assert own.process.wait(PATIENCE) == -signal.SIGSEGV
    assert own.process.stderr is not None
    text = own.process.stderr.read().decode()
    assert "Segmentation fault" in text and "in unlucky" in text


def test_output_goes_with_the_task(worker: Worker) -> None:
    def talk() -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)

    worker.define(1, talk)
    worker.start(1)
    worker.finished()
    assert text_of(worker, 1) == "to stdout\n" and text_of(worker, 1, stderr=True) == "to stderr\n"


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
