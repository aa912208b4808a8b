"""Failures are reported clearly, and do not affect anything else."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE, Gate, eventually
from millrace import Client, LocalCluster, errors, native
from millrace._pb.millrace.v1 import error_pb2, task_pb2, watch_pb2
from millrace._session import _session
from proxy import Proxy


def inc(x: int) -> int:
    return x + 1


def by_exit() -> None:
    print("last words", flush=True)
    os._exit(3)


def by_segfault() -> None:
    ctypes.string_at(0)


def by_kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("crash", [by_exit, by_segfault, by_kill])
def test_a_crash_takes_nothing_along(client: Client, crash: Any) -> None:
    data = client.submit(np.ones, 200_000, pure=False)
    assert data.result().sum() == 200_000
    future = client.submit(crash, pure=False)
    error = future.exception(PATIENCE)
    assert isinstance(error, errors.WorkerDiedError), error
    assert error.reason == "POISON_TASK" and future.key in str(error)
    if crash is by_exit:
        assert "last words" in error.log_tail
    if crash is by_segfault:
        assert "Segmentation fault" in str(error) and "in by_segfault" in str(error), error
    assert client.submit(np.sum, data, pure=False).result(PATIENCE) == 200_000
    assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2


def test_a_stack_is_told_once(client: Client) -> None:
    error = client.submit(by_segfault, pure=False, retries=1).exception(PATIENCE)
    assert isinstance(error, errors.WorkerDiedError), error
    assert error.attempts == 3 and ", after 3 attempts]" in str(error), error
    text = "".join(traceback.format_exception(error))
    assert text.count("in by_segfault") == 1, text
    assert error.log_tail.count("in by_segfault") == 1, error.log_tail
    again = pickle.loads(pickle.dumps(error))
    assert again.attempts == 3 and again.log_tail == error.log_tail


def test_output_is_that_of_the_last_attempt(client: Client) -> None:
    def loud() -> None:
        print("said once")
        raise ValueError("each time")

    error = client.submit(loud, pure=False, retries=3).exception(PATIENCE)
    assert isinstance(error, ValueError), error
    text = "".join(traceback.format_exception(error))
    assert text.count("said once\n") == 1 and text.count("in loud") == 1, text
    assert re.search(r"^ *in task .*, after 4 attempts$", text, re.MULTILINE), text
    follower = client.submit(inc, client.submit(loud, key="loud", pure=False, retries=1), pure=False)
    assert ", after 2 attempts" in "".join(traceback.format_exception(follower.exception(PATIENCE)))
    once = client.submit(loud, pure=False).exception(PATIENCE)
    assert "attempt" not in "".join(traceback.format_exception(once))


def test_output_is_told_with_the_error(client: Client) -> None:
    def loud() -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        raise SystemExit("gives up")

    error = client.submit(loud, pure=False).exception(PATIENCE)
    assert isinstance(error, errors.RemoteError), error
    text = str(error)
    assert "to stdout" in text and "to stderr" in text, text


def test_output_of_programs_is_told_with_the_error(client: Client) -> None:
    def start() -> None:
        subprocess.run(["/bin/sh", "-c", "echo from a child; echo and its stderr >&2"], check=True)
        sys.stdout.buffer.write(b"bytes\n")
        raise RuntimeError("enough")

    text = "".join(traceback.format_exception(client.submit(start, pure=False).exception(PATIENCE)))
    assert all(t in text for t in ("from a child", "and its stderr", "bytes")), text


def test_an_input_that_a_worker_cannot_read(client: Client) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return exec, ("raise ImportError('only here')",)

    future = client.submit(len, [client.submit(Trap, pure=False)], pure=False)
    error = future.exception(PATIENCE)
    assert isinstance(error, errors.InputUnreadableError), error
    assert error.reason == "INPUT_UNREADABLE"
    assert "argument 0" in str(error) and "only here" in str(error) and "Trap" in str(error)


def test_values_that_cannot_be_pickled(client: Client) -> None:
    lock = threading.Lock()
    with pytest.raises(errors.SerialisationError, match=r"function .*lock"):
        client.submit(lambda: lock)
    with pytest.raises(errors.SerialisationError, match=r"arguments of inc .*lock"):
        client.submit(inc, lock)
    with pytest.raises(errors.SerialisationError, match=r"lock.* cannot be scattered"):
        client.scatter([lock])
    with pytest.raises(errors.ResultNotSerialisableError, match="lock"):
        client.submit(threading.Lock, pure=False).result(PATIENCE)
    with pytest.raises(TypeError, match="cannot be called"):
        client.submit(5)  # type: ignore[arg-type]


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("\udc80")


class Undecodable:
    def __reduce__(self) -> Any:
        return raise_odd, ()


def raise_odd() -> None:
    raise ValueError("\udc80")


def raise_odd_type() -> None:
    raise type("\x1b", (Exception,), {"__qualname__": "\udc80", "__module__": "\udc80"})("\udc80")


def raise_no_text() -> None:
    class Text(str):
        def __str__(self) -> Any:
            return 3

    raise ValueError(Text("x"))


def raise_odd_notes() -> None:
    e = ValueError("x")
    e.__notes__ = 5  # type: ignore[assignment]
    raise e


def raise_hostile() -> None:
    class Hostile(Exception):
        def __getattr__(self, name: str) -> Any:
            raise BaseException("\udc80")

    raise Hostile("x")


def return_odd_type() -> Any:
    odd = type("Odd", (Unpicklable,), {})
    odd.__qualname__ = odd.__module__ = "\udc80"
    return odd()


def take(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("reason", "run", "given"),
    [
        ("RESULT_NOT_SERIALISABLE", Unpicklable, ()),
        ("RESULT_NOT_SERIALISABLE", return_odd_type, ()),
        ("INVALID_ARGUMENT", take, (Undecodable(),)),
        ("PYTHON_EXCEPTION", raise_odd, ()),
        ("PYTHON_EXCEPTION", raise_odd_type, ()),
        ("PYTHON_EXCEPTION", raise_no_text, ()),
        ("PYTHON_EXCEPTION", raise_odd_notes, ()),
        ("PYTHON_EXCEPTION", raise_hostile, ()),
    ],
)
def test_failures_that_are_hard_to_tell(client: Client, reason: str, run: Any, given: tuple[Any, ...]) -> None:
    error = client.submit(run, *given, pure=False).exception(PATIENCE)
    if isinstance(error, errors.TaskFailedError):
        assert error.reason == reason, error
    else:
        assert reason == "PYTHON_EXCEPTION" and not isinstance(error, TypeError), type(error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_exceptions_that_would_end_the_program_are_not_raised(kind: type[BaseException]) -> None:
    error = error_pb2.TaskError(reason="PYTHON_EXCEPTION", message=f"{kind.__name__}: 0")
    error.exception.encoding, error.exception.data = "pickle5", pickle.dumps(kind(0))
    told = errors.from_task(error, "key", cancelled=False)
    assert type(told) is errors.RemoteError
    assert kind.__name__ in str(told)


def test_function_that_is_not_there(client: Client) -> None:
    with pytest.raises(errors.FunctionNotFoundError, match="no_such_module"):
        client.submit("no_such_module:f").result(PATIENCE)
    with pytest.raises(errors.FunctionNotFoundError, match="near names: sqrt"):
        client.submit("math:sqr").result(PATIENCE)
    with pytest.raises(ValueError, match="import path"):
        client.submit("math.sqrt")


def test_ops_that_are_wrong(client: Client) -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"similar names are array\.matmul\b") as unknown:
        client.op("array.matmull", 1, 2).result(PATIENCE)
    assert unknown.value.reason == "UNKNOWN_OP"
    a, b = client.scatter([np.ones((2, 3)), np.ones((4, 5))])
    with pytest.raises(errors.MillraceError) as caught:
        client.op("array.matmul", a, b, key="product").result(PATIENCE)
    assert "product" in str(caught.value) and "3" in str(caught.value) and "4" in str(caught.value)
    with pytest.raises(errors.SerialisationError, match="argument 0"):
        client.submit(native("array.reduce"), object())
    with pytest.raises(TypeError, match=r"client\.op"):
        native("array.reduce")()


def test_a_task_that_must_not_wait_for_a_worker_that_fits(client: Client) -> None:
    for future in (
        client.submit(inc, 1, resources={"unobtainium": 1}, no_wait=True, pure=False),
        *client.map(inc, [1], workers="nobody", no_wait=True, pure=False),
    ):
        error = future.exception(PATIENCE)
        assert isinstance(error, errors.NoWorkerFitsError), error
        assert error.reason == "NO_WORKER_FITS" and future.key in str(error)
    assert client.submit(inc, 1, no_wait=True, pure=False).result(PATIENCE) == 2


def note(path: Path, what: str) -> str:
    with path.open("a") as f:
        f.write(what + "\n")
    return what


def test_two_clients_submit_the_same_key_at_once(cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    n = 50
    with Client(cluster) as first, Client(cluster) as second:
        both = threading.Barrier(2)

        def work(client: Client) -> list[str]:
            both.wait(PATIENCE)
            futures = [client.submit(note, log, str(i), key=f"at-once-{i}") for i in range(n)]
            results = client.gather(futures, timeout=PATIENCE)
            both.wait(PATIENCE)  # the keys are held until both clients have submitted them
            return results

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = list(pool.map(work, [first, second]))
        assert results == [[str(i) for i in range(n)]] * 2
    assert sorted(log.read_text().split(), key=int) == [str(i) for i in range(n)]


class Forwarder:
    """Forwards TCP connections to a scheduler, and breaks all of them on request."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        # Bytes that may still pass, by direction; None: any number. Guarded by _lock.
        self._left: dict[str, int | None] = {"up": None, "down": None}
        self._lock = threading.Lock()
        self.broken = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def break_after(self, direction: str, n: int) -> None:
        with self._lock:
            self._left[direction] = n

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # otherwise its thread would accept one more
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            for source, sink, direction in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._pass, args=(source, sink, direction), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    left = self._left[direction]
                    cut = left is not None and len(data) >= left
                    if cut:
                        data, self._left[direction] = data[:left], None
                    elif left is not None:
                        self._left[direction] = left - len(data)
                sink.sendall(data)
                if cut:
                    self.broken.set()
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(("direction", "n"), [("up", 300_000), ("down", 0)], ids=["half a submission", "no answer"])
def test_a_connection_that_breaks_in_a_submission(
    cluster: LocalCluster, client: Client, tmp_path: Path, direction: str, n: int
) -> None:
    log = tmp_path / "log"
    proxy = Forwarder(cluster.address)
    tag = tmp_path.name
    with Client(proxy.address, token=cluster.token) as broken:
        assert broken.submit(inc, 1, pure=False).result(PATIENCE) == 2
        proxy.break_after(direction, n)
        # More than half a MB. No task may run twice.
        tasks = [(f"{tag}-{i}", "x" * 10_000) for i in range(60)]
        futures = broken.map(lambda t, path: len(note(path, t[0])), tasks, path=log, key=tag)
        assert proxy.broken.wait(PATIENCE)
        assert broken.gather(futures, timeout=PATIENCE) == [len(name) for name, _ in tasks]
        assert broken.submit(inc, 5, pure=False).result(PATIENCE) == 6
    proxy.close()
    assert sorted(log.read_text().split()) == sorted(name for name, _ in tasks)


def test_a_connection_that_breaks_drop_pool(cluster: LocalCluster, client: Client, tmp_path: Path) -> None:
    log = tmp_path / "log"
    proxy = Forwarder(cluster.address)
    broken = Client(proxy.address, token=cluster.token)
    broken.session.connection.reconnect_timeout = 0.5  # only after the first connection
    proxy.break_after("up", 100_000)
    proxy.close()
    futures = broken.map(lambda t, path: note(path, t), ["x" * 10_000] * 60, path=log, pure=False)
    assert all(isinstance(f.exception(PATIENCE), errors.SchedulerLostError) for f in futures)
    broken.close()
    # All tasks that were queued before these have run by now.
    assert client.gather(client.map(inc, range(20), pure=False)) == list(range(1, 21))
    assert not log.exists()


def test_an_argument_larger_than_a_message(client: Client) -> None:
    assert client.submit(len, bytes(80 << 20)).result(PATIENCE) == 80 << 20


def test_result_that_is_too_large() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as small, Client(small) as client:
        with pytest.raises(errors.OutOfMemoryError):
            client.submit(np.zeros, 100 << 20).result(PATIENCE)
        assert client.submit(inc, 1).result(PATIENCE) == 2


def test_executor_that_dies_at_import(tmp_path: Path) -> None:
    python = tmp_path / "python"
    # The package can be imported, as the cluster checks at its start, but executors end at once.
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\necho no module named millrace >&2\nexit 7\n'
    )
    python.chmod(0o755)
    cluster = LocalCluster(1, memory_limit="64MiB", device="host", python=str(python))
    with cluster, Client(cluster) as client:
        error = client.submit(inc, 1).exception(PATIENCE)
        assert isinstance(error, errors.TaskFailedError)
        assert "no module named millrace" in str(error), error
        assert client.op("array.arange", 0, 3, 1).result(PATIENCE).sum() == 3


def test_a_python_without_the_package(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named millrace >&2\nexit 7\n")
    python.chmod(0o755)
    with pytest.raises(errors.ClusterStartError, match=r"exit code 8: error: --python .*no module named millrace"):
        LocalCluster(1, memory_limit="64MiB", device="host", python=str(python))


@pytest.mark.parametrize("limit", ["nonsense", "10TiB"])
@pytest.mark.parametrize("start", [LocalCluster, Client])
def test_a_cluster_that_cannot_start_says_the_reason(
    limit: str, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(errors.ClusterStartError, match=r"(?s)ended with exit code \d+: .*memory.*log: ") as caught:
        start(n_workers=1, memory_limit=limit, device="host")
    # Only the log that the message names is left.
    (log,) = tmp_path.iterdir()
    assert str(log) in str(caught.value) and "memory" in log.read_text()
    assert isinstance(caught.value, RuntimeError)


def test_the_environment_chooses_the_device_of_a_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """`device="auto"` leaves the choice to MILLRACE_DEVICE, as in `millrace up`."""
    monkeypatch.setenv("MILLRACE_DEVICE", "abacus")
    with pytest.raises(errors.ClusterStartError, match="MILLRACE_DEVICE"):
        LocalCluster(1, memory_limit="64MiB")
    with LocalCluster(1, memory_limit="64MiB", device="host") as cluster:
        assert cluster.address


def test_a_program_that_is_not_there_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("MILLRACE_BINARY", str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        LocalCluster(1)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_is_closed_shows_no_address() -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as own:
        assert own.address in own._repr_html_()
    assert own.address not in own._repr_html_() and "closed" in own._repr_html_()


def test_wrong_token(cluster: LocalCluster) -> None:
    with pytest.raises(errors.AuthenticationError, match="token"):
        Client(cluster.address, token="wrong")
    with pytest.raises(errors.AuthenticationError, match="token"):
        Client(cluster.address, token="")


def test_newer_client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "API_VERSION", "v1.99")
    with pytest.raises(errors.VersionError, match=r"1\.99"):
        Client(cluster)


def test_nobody_at_the_address(tmp_path: Path) -> None:
    with pytest.raises(errors.SchedulerLostError, match=r"127\.0\.0\.1:1"):
        Client("127.0.0.1:1", timeout=0.2)
    with pytest.raises(ValueError, match="Is the cluster running"):
        Client(scheduler_file=tmp_path / "missing")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{}", 'no "address"'),
        ("[]", 'no "address"'),
        ('{"address": 7}', 'no "address"'),
        ('{"address": ""}', 'no "address"'),
        ('{"address": "h:99999"}', "'h:99999' is not an address"),
        ('{"address": "\\u001b:1"}', r"'\\x1b:1' is not an address"),
        ('{"address": "h:1", "token": 7}', '"token" is not a text'),
        ("", "it is empty"),
        ("hello", "it is not JSON"),
        (b"\xff\xfe", "it is not text"),
        (None, "Is a directory"),
    ],
)
def test_scheduler_files_that_are_none(tmp_path: Path, text: str | bytes | None, wanted: str) -> None:
    file = tmp_path / "s.json"
    if text is None:
        file.mkdir()
    else:
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ValueError, match=wanted) as caught:
        Client(scheduler_file=file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "address", ["h", ":1", "h:0", "h:99999", "h:²", "\x1b[2J:1", "a b:1", "http://h:1", "[::1", "h:1\n2"]
)
def test_addresses_that_are_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^address: "):
        Client(address)
    monkeypatch.setenv("MILLRACE_ADDRESS", address)
    with pytest.raises(ValueError, match=r"^MILLRACE_ADDRESS: "):
        Client()


def test_executors_do_not_import_grpc() -> None:
    # millrace._tasks._nested is imported by tasks of dict graphs.
    code = "import sys, millrace.executor, millrace._tasks._nested; print(*sorted({'grpc', 'asyncio', 'millrace.client'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert out.stdout.strip() == ""
    import millrace

    assert set(millrace.__all__) <= set(dir(millrace))
    assert all(hasattr(millrace, name) for name in millrace.__all__)
    with pytest.raises(AttributeError, match="no_such_thing"):
        millrace.no_such_thing  # noqa: B018


FORK = """
import gc, multiprocessing, os, pickle, sys
import millrace
from millrace import Client, LocalCluster, errors

def double(x):
    return 2 * x

def use(x):
    return client.submit(double, x).result(300)

if __name__ == "__main__":
    cluster = LocalCluster(1, memory_limit="64MiB", device="host")
    client = Client(cluster)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(double, (2,)) == 4
        try:
            pool.apply(use, (2,))
        except errors.SchedulerLostError as e:
            assert "forked" in str(e) and "spawn" in str(e), e
        else:
            raise AssertionError("no error in a pool")
    known = client.submit(double, 2)
    assert known.result(300) == 4
    nobody = client.submit(double, 3, workers="nobody")
    pickled = pickle.dumps(known)
    client.session.flush()
    child = os.fork()
    if child == 0:
        assert known.result(300) == 4
        for attempt in (
            lambda: client.submit(double, 5),
            lambda: client.map(double, [1]),
            lambda: nobody.result(300),
            lambda: client.scatter([1]),
            client.scheduler_info,
            lambda: known.cancel(),
            lambda: pickle.loads(pickled),
            lambda: Client(cluster, timeout=300),
        ):
            try:
                attempt()
            except errors.SchedulerLostError as e:
                assert "forked" in str(e) and "spawn" in str(e), e
            else:
                raise AssertionError("no error")
        assert "closed" in repr(client)
        client.close()
        cluster.close()
        del known, nobody, client, cluster
        gc.collect()
        print("child ok", flush=True)
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.submit(double, 10).result(300) == 20
    client.close()
    # gRPC may hang in a child even if nothing is open.
    child = os.fork()
    if child == 0:
        try:
            Client(cluster, timeout=300)
        except errors.SchedulerLostError as e:
            os._exit(0 if "forked" in str(e) else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cluster.close()
    print("parent ok")
"""


def test_a_forked_child_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORK)
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE)
    assert out.returncode == 0 and "child ok" in out.stdout and "parent ok" in out.stdout, out.stderr + out.stdout


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def load(kills: Path) -> int:
    with kills.open("a") as f:
        f.write(f"{os.getpid()} {os.getppid()}\n")
    while len(kills.read_text().splitlines()) <= 6:
        signal.pause()
    return 1


class Loaded:
    """An argument that takes for ever to load, as long as six processes have not been killed at
    that."""

    def __init__(self, kills: Path) -> None:
        self.kills = kills

    def __reduce__(self) -> Any:
        return load, (self.kills,)


def test_a_kill_before_the_function_is_no_fault_of_the_task(tmp_path: Path) -> None:
    kills = tmp_path / "kills"
    kills.touch()
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own) as client:
        future = client.submit(inc, Loaded(kills), pure=False)
        for n in range(1, 7):
            eventually(lambda n=n: kills.read_text().count("\n") == n, "the task does not load")
            executor, worker = map(int, kills.read_text().split()[-2:])
            os.kill(worker if n <= 3 else executor, signal.SIGKILL)
        assert future.result(PATIENCE) == 2


def start_a_program() -> tuple[int, int, int]:
    """Returns the process ids of the worker, of the executor, and of a program that outlives the
    task."""
    program = subprocess.Popen(["/bin/sleep", "1000"], stdin=subprocess.DEVNULL)
    return os.getppid(), os.getpid(), program.pid


@pytest.mark.parametrize("ends", ["executor", "worker", "cluster"])
def test_programs_that_tasks_started_end_with_their_executor(ends: str) -> None:
    with LocalCluster(1, memory_limit="64MiB", device="host") as own, Client(own) as client:
        worker, executor, program = client.submit(start_a_program, pure=False).result(PATIENCE)
        assert alive(program)
        if ends == "cluster":
            own.close()
        else:
            os.kill(executor if ends == "executor" else worker, signal.SIGKILL)
        eventually(lambda: not alive(program) and not alive(executor), f"process {program} is still there")
        if ends != "cluster":
            assert client.submit(inc, 1, pure=False).result(PATIENCE) == 2


def sum_behind(gate: Gate, array: Any) -> float:
    gate.pass_through()
    return float(array.sum())


def test_a_run_outlives_the_worker_whose_memory_it_reads(gate: Gate) -> None:
    with LocalCluster(2, memory_limit="128MiB", device="host") as own, Client(own) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        lender, borrower = sorted(client.has_what())
        made = client.submit(np.full, 4 << 20, 2.0, workers=lender, pure=False)
        eventually(made.done)
        # The executor process is ready, and reports that it can read memory of other workers.
        assert client.submit(inc, 1, workers=borrower, pure=False).result(PATIENCE) == 2
        pid = client.submit(os.getppid, workers=lender, pure=False).result(PATIENCE)
        total = client.submit(sum_behind, gate, made, workers=borrower, pure=False)
        gate.wait()
        assert client.who_has(made)[made.key] == [lender]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not alive(pid))
        gate.open()
        assert total.result(PATIENCE) == 8 << 20
        assert gate.nobody_there(), "it was run twice"


def fails_until(path: str, runs: int) -> int:
    with Path(path).open("a") as f:
        f.write(".")
    if Path(path).stat().st_size < runs:
        raise ValueError("not yet")
    return runs


def test_a_failure_that_another_client_holds_says_that_it_is_old(cluster: LocalCluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with Client(cluster) as second:
        with Client(cluster) as first:
            held = first.submit(fails_until, str(runs), 3)
            error = held.exception(PATIENCE)
            assert isinstance(error, ValueError) and "before this submission" not in told(error)
            joined = second.submit(fails_until, str(runs), 3)
            error = joined.exception(PATIENCE)
            assert isinstance(error, ValueError) and "before this submission joined it" in told(error)
            assert runs.stat().st_size == 1
            joined.retry()
            eventually(lambda: runs.stat().st_size == 2)
            eventually(lambda: "before this submission" not in told(joined.exception(PATIENCE)))
        joined.release()
        # Nobody holds the failure any more, so the same call runs again.
        assert second.submit(fails_until, str(runs), 3).result(PATIENCE) == 3


def test_a_failure_after_a_retry_is_not_old(cluster: LocalCluster, tmp_path: Path) -> None:
    """The Watch stream may leave out the states between two failures."""

    def only_ends(data: bytes) -> list[bytes]:
        response = watch_pb2.WatchResponse.FromString(data)
        ends = [u for u in response.tasks if u.state in (task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_FAILED)]
        del response.tasks[:]
        response.tasks.extend(ends)
        return [response.SerializeToString()]

    runs = tmp_path / "runs"
    proxy = Proxy(cluster.address)
    proxy.responses["Watch"] = only_ends
    try:
        with Client(cluster) as first, Client(proxy.address, token=cluster.token) as second:
            held = first.submit(fails_until, str(runs), 3)
            assert isinstance(held.exception(PATIENCE), ValueError)
            joined = second.submit(fails_until, str(runs), 3)
            assert "before this submission joined it" in told(joined.exception(PATIENCE))
            joined.retry()
            assert "before this submission" not in told(joined.exception(PATIENCE))
            assert runs.stat().st_size == 2
    finally:
        proxy.close()


def told(error: BaseException | None) -> str:
    assert error is not None
    return str(error) + str(error.__cause__) + "".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("gathered", [True, False])
def test_a_failure_that_was_raised_is_not_kept(client: Client, tmp_path: Path, gathered: bool) -> None:
    """The same call runs again as soon as its future is gone, without a garbage collection."""
    runs = str(tmp_path / "runs")
    gc.disable()
    try:
        with pytest.raises(ValueError):
            future = client.submit(fails_until, runs, 2)
            client.gather([future]) if gathered else future.result(PATIENCE)
        del future
        assert client.submit(fails_until, runs, 2).result(PATIENCE) == 2
    finally:
        gc.enable()


def test_a_task_whose_input_was_refused_has_the_error_of_the_input(client: Client) -> None:
    first = client.op("array.matmull", 1, 2)
    last = client.op("array.reduce", client.op("array.transpose", first), op="sum")
    for future in (last, first):
        with pytest.raises(errors.InvalidRequestError, match=r"array\.matmull") as caught:
            future.result()
        assert caught.value.reason == "UNKNOWN_OP"
