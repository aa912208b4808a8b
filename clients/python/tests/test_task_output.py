"""The output of tasks, as the user of a client sees it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pexpect
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, TaskLine, as_completed
from millrace._pb.millrace.v1 import data_service_pb2
from millrace._session._display import Display, sink
from millrace._session._task_output import TaskOutput
from millrace._task_states._order import Order
from millrace._task_states._task_ids import TaskIds


@pytest.fixture
def lines() -> list[TaskLine]:
    return []


@pytest.fixture
def shown(cluster: LocalCluster, lines: list[TaskLine]) -> Iterator[Client]:
    with Client(cluster, output=lines.append) as made:
        yield made


def greet(gate: Gate, name: str) -> str:
    print("hello,", name)
    print("careful", file=sys.stderr)
    gate.pass_through()
    os.system("echo from a child")
    print("no end", end="")
    return name


def test_output_comes_while_the_task_runs(shown: Client, lines: list[TaskLine], gate: Gate) -> None:
    future = shown.submit(greet, gate, "Ada", key=("greet", 1))
    gate.wait()
    eventually(lambda: len(lines) == 2, "output of a running task")
    assert not future.done()
    assert {(line.text, line.stderr) for line in lines} == {("hello, Ada", False), ("careful", True)}
    assert {line.key for line in lines} == {("greet", 1)}
    gate.open()
    assert future.result() == "Ada"
    shown.close()
    # The output of a child goes through a pipe, and that of the task itself through its socket.
    assert [line.text for line in lines[2:]] in (["from a child", "no end"], ["no endfrom a child"])
    assert str(lines[0]).startswith("[('greet', 1) host-") and str(lines[0]).endswith("] hello, Ada")


def say(text: str) -> None:
    print(text)


def test_output_goes_to_those_who_hold_the_task(cluster: LocalCluster) -> None:
    seen: dict[str, list[str]] = {"owner": [], "other": [], "elsewhere": [], "off": []}

    def take(name: str) -> Client:
        return Client(cluster, namespace=name * (name == "elsewhere"), output=lambda x: seen[name].append(x.text))

    with take("owner") as owner, take("other") as other, take("elsewhere") as elsewhere:
        with Client(cluster, output=False) as off:
            off.submit(say, "silence").result()
        other.submit(say, "of the other").result()
        elsewhere.submit(say, "of elsewhere").result()
        owner.submit(say, "of the owner").result()
    assert seen == {"owner": ["of the owner"], "other": ["of the other"], "elsewhere": ["of elsewhere"], "off": []}


def flood(gate: Gate, lines: int) -> None:
    text = "x" * 99
    for _ in range(lines):
        print(text)
    print("the end of the flood")
    gate.pass_through()


def test_a_flood_is_cut_and_delays_nobody(shown: Client, lines: list[TaskLine], gate: Gate) -> None:
    future = shown.submit(flood, gate, 200_000)
    gate.wait()
    shown.submit(say, "quiet", workers=["host-0", "host-1"]).result()
    eventually(lambda: {"quiet", "the end of the flood"} <= {line.text for line in lines})
    assert len(lines) < 30_000
    assert any("left out" in line.text for line in lines)
    gate.open()
    future.result()


def test_output_before_the_answer_is_shown_by_whichever_thread_reads_the_answer(lines: list[TaskLine]) -> None:
    closed: Any = SimpleNamespace(closed=True)  # no thread follows workers
    output = TaskOutput(closed, closed, "", lambda: True, Order(), lines.append)
    follower: Any = SimpleNamespace(worker_id=1, name="w", position=0)
    early = data_service_pb2.TaskOutput(task_id=7, attempt=1, key="k", text="early\n", bytes=6)
    output.put(follower, data_service_pb2.FollowLogsResponse(outputs=[early]))
    assert not lines
    output.submitted([7])
    output.put(follower, data_service_pb2.FollowLogsResponse())
    assert [line.text for line in lines] == ["early"]


def test_the_thread_that_follows_workers_ends_before_the_connection(lines: list[TaskLine]) -> None:
    # A session ends its output first, and its connection later.
    connection: Any = SimpleNamespace(closed=False, ended=threading.Event())
    locator: Any = SimpleNamespace(workers=lambda **_: [])
    output = TaskOutput(connection, locator, "", lambda: False, Order(), lines.append)
    output.submitted([7])
    thread = output._thread
    assert thread is not None
    output.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()


SCRIPT = """
import millrace, sys

def talk():
    print("before")
    sys.stdout.flush()
    open({here!r}, "w").close()
    open({go!r}).read(1)
    print("after")

with millrace.Client(n_workers=1, device="host") as client:
    client.submit(talk).result()
"""


def test_print_appears_in_the_terminal(tmp_path: Path) -> None:
    here, go = str(tmp_path / "here"), str(tmp_path / "go")
    os.mkfifo(here)
    os.mkfifo(go)
    script = tmp_path / "talk.py"
    script.write_text(SCRIPT.format(here=here, go=go))
    terminal = pexpect.spawn(sys.executable, [str(script)], timeout=PATIENCE, encoding="utf-8")
    try:
        Path(here).open().close()
        terminal.expect(r"\[talk-[0-9a-f]{8} host-0\] before\r\n")
        with Path(go).open("w") as pipe:
            pipe.write("x")
        terminal.expect(r"\[talk-[0-9a-f]{8} host-0\] after\r\n")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert terminal.exitstatus == 0


def test_output_is_shown_before_the_result(shown: Client, lines: list[TaskLine]) -> None:
    for i in range(50):
        before = len(lines)
        shown.submit(say_twice, i).result(PATIENCE)
        assert [line.text for line in lines[before:]] == [f"first {i}", f"second {i}", "no end"]
    many = [f"{i} of many" for i in range(50)]
    futures = dict(zip(shown.map(say, many), many, strict=True))
    for future in as_completed(futures):
        assert futures[future] in [line.text for line in lines]


def say_twice(i: int) -> None:
    print(f"first {i}")
    sys.stdout.flush()
    print(f"second {i}")
    print("no end", end="")


def test_a_function_for_lines_may_wait_for_tasks(cluster: LocalCluster) -> None:
    found: list[Any] = []

    def take(line: TaskLine) -> None:
        found.append(made.submit(len, line.text).result(PATIENCE))

    with Client(cluster, output=take) as made:
        for text in ("one", "three"):
            made.submit(say, text).result(PATIENCE)
        eventually(lambda: found == [3, 5])


def test_environment_switches_output_off(tmp_path: Path, cluster: LocalCluster) -> None:
    script = tmp_path / "quiet.py"
    script.write_text("import millrace\nwith millrace.Client() as c: c.submit(print, 'noise').result()")
    environment = {**os.environ, "MILLRACE_ADDRESS": cluster.address, "MILLRACE_TOKEN": cluster.token}
    for value, expected in (("1", "noise"), ("0", "")):
        ran = subprocess.run(
            [sys.executable, script], env={**environment, "MILLRACE_OUTPUT": value}, capture_output=True, text=True
        )
        assert ran.returncode == 0 and ran.stderr == ""
        assert ran.stdout.strip().endswith(expected) and bool(ran.stdout) == bool(expected)


def test_bad_values_of_output() -> None:
    with pytest.raises(TypeError, match="output is True, False or a function"):
        sink("yes")  # pyright: ignore[reportArgumentType]


def test_lines_are_cut_as_a_terminal_shows_them() -> None:
    lines: list[TaskLine] = []
    display = Display(lines.append)
    for text in ("one\ntw", "o\r\n", " 10 %\r 20 %", "\r 30 %"):
        display.put(1, "k", "w", False, text, 0)
    display.put(1, "k", "w", False, "", 5000)
    display.put(1, "k", "w", True, "begun", 0)
    assert display.sweep() is True
    display.sweep(everything=True)
    assert [line.text for line in lines] == [
        "one",
        "two",
        " 30 %",
        "[... 4.9 KiB left out; logs() has the end ...]",
        "begun",
    ]


def test_missing_output_is_told() -> None:
    lines: list[TaskLine] = []
    display = Display(lines.append)
    for i in range(300):
        display.put(1, "k", "w", False, f"{i}{'y' * 10_000}\n", 0)
        display.put(2, "quiet", "w", False, f"quiet {i}\n", 0)
    display.sweep(everything=True)
    assert sum(line.text.startswith("quiet") for line in lines) == 300
    loud = [line.text for line in lines if line.key == "k"]
    assert 20 < len(loud) < 290
    assert "left out" in loud[-6] and loud[-1].startswith("299y")


def test_warnings_are_shown_once() -> None:
    lines: list[TaskLine] = []
    display = Display(lines.append)
    warning = "/a/b.py:7: UserWarning: careful\n  warnings.warn('careful')\n"
    for attempt in (1, 2, 3):
        display.put(attempt, "k", f"w{attempt}", True, warning + "other\n", 0)
    assert [line.text for line in lines] == [*warning.splitlines(), "other", "other", "other"]


def test_sets_of_ids() -> None:
    some, expected = TaskIds(), set[int]()
    for ids in ([5, 6, 7], [1], [9, 10], [8], [3, 4], [20, 2, 21], [6, 7, 8, 9], [15]):
        some.add(ids)
        expected.update(ids)
        assert {i for i in range(30) if i in some} == expected
    assert len(some._first) == 3


def fails_with_words(name: str) -> None:
    print("last words of", name)
    print("on stderr", file=sys.stderr)
    raise ValueError(name)


def test_logs_of_tasks_are_kept(cluster: LocalCluster) -> None:
    with Client(cluster, namespace="kept", output=False) as client:
        first = client.submit(fails_with_words, "one", key=("words", 1), retries=1)
        second = client.submit(say, "two", key="words-2")
        assert second.result(PATIENCE) is None and second.logs() == "two\n"
        assert isinstance(first.exception(PATIENCE), ValueError)
        twice = "last words of one\non stderr\n" * 2
        assert first.logs() == twice
        assert client.logs() == {("words", 1): twice, "words-2": "two\n"}
        assert client.logs(second) == client.logs("words-2") == client.logs(["words-2"]) == {"words-2": "two\n"}
        assert client.logs("nothing") == {}
        with Client(cluster, namespace="other", output=False) as other:
            assert other.logs() == {}
        first.release()
        assert client.logs([("words", 1)], workers=["host-0", "host-1"]) == {("words", 1): twice}


def test_long_output_is_kept_to_the_end(client: Client) -> None:
    text = client.submit(print, "x" * 100_000 + "end", pure=False)
    text.result(PATIENCE)
    assert text.logs().endswith("xend\n") and 60_000 < len(text.logs()) < 70_000


def test_logs_of_the_cluster(client: Client) -> None:
    logs = client.get_worker_logs()
    assert sorted(logs) == ["host-0", "host-1"]
    assert all(level in ("INFO", "WARN", "ERROR") and text for lines in logs.values() for level, text in lines)
    assert len(client.get_worker_logs(n=1, workers="host-1")["host-1"]) == 1
    lines = client.get_scheduler_logs()
    assert any("host-1" in text for _, text in lines), lines
    assert client.get_scheduler_logs(n=1) == lines[:1] or client.get_scheduler_logs()[0] != lines[0]
