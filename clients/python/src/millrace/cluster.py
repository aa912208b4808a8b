"""Local clusters: a scheduler and workers as child processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from millrace import _check, errors
from millrace._check import Seconds


def find_binary() -> str:
    """Returns the path of the millrace program: MILLRACE_BINARY, else beside this package, else in
    a checkout's bin, else on PATH."""
    named = os.environ.get("MILLRACE_BINARY")
    if named:
        if shutil.which(named) is None:
            raise FileNotFoundError(
                f"MILLRACE_BINARY: {named!r} is no program: give the path of the millrace program, or unset it"
            )
        return named
    here = Path(__file__).resolve()
    for candidate in (here.parent / "bin" / "millrace", *(p / "bin" / "millrace" for p in here.parents[2:6])):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("millrace")
    if found:
        return found
    raise FileNotFoundError(
        "the millrace program was not found: set MILLRACE_BINARY, put it on PATH, or run `make build` in the checkout; "
        "to join a running cluster instead, give its address"
    )


def _python_path() -> str:
    """Returns the directories in which this process finds modules, without those of the
    interpreter, as a PYTHONPATH."""
    own = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix)}
    found: list[str] = []
    for entry in sys.path:
        path = Path(entry or ".").resolve()
        inside = any(o in path.parents for o in own)
        if path.is_dir() and not inside and ":" not in str(path) and str(path) not in found:
            found.append(str(path))
    return os.pathsep.join(found)


class LocalCluster:
    """A scheduler and workers on this machine, as child processes that end with this one. Functions
    run in the current directory that this process has when the cluster starts, so that relative
    paths have the same meaning there.

    Args:
        n_workers: number of workers; default one for each GPU, or without GPUs one for each core,
            at most 8.
        memory_limit: size of each worker's slab in host memory ("1GiB"); default half of this
            machine's memory, divided among the workers.
        device: "host", "cuda", or "auto": MILLRACE_DEVICE, else the GPUs if there are any.
        python: interpreter of the workers' Python executors; default this one. By default they also
            find the modules that this process finds, through PYTHONPATH.
        start_timeout: longest wait for the cluster, in seconds, as a timedelta or as text ("2
            min").

    Raises:
        ClusterStartError: it ended before it was ready, or was not ready in time; the message has
            the reason, and names the log file, which is kept.
        FileNotFoundError: the millrace program was not found.
    """

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        memory_limit: str | int | None = None,
        device: str = "auto",
        python: str | None = None,
        start_timeout: Seconds = 60.0,
    ) -> None:
        limit = _check.seconds(start_timeout, "start_timeout")
        if n_workers is not None:
            n_workers = _check.integer(n_workers, "n_workers", 1, 4096)
        if memory_limit is not None and (isinstance(memory_limit, bool) or not isinstance(memory_limit, (str, int))):
            raise TypeError(f'memory_limit must be text such as "1GiB", or bytes, not {memory_limit!r}')
        if device not in ("auto", "host", "cuda"):
            raise ValueError(f'device is "auto", "host" or "cuda", not {device!r}')
        if python is not None and shutil.which(python) is None:
            raise FileNotFoundError(
                f"python: {python!r} is no program: give the path of a Python interpreter of this machine"
            )
        binary = find_binary()
        # A child of fork has a copy of this object, and must not end the cluster.
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.mkdtemp(prefix="millrace-")
        file = Path(self._directory) / "scheduler.json"
        command = [binary, "up", "--scheduler-file", str(file)]
        if device != "auto":  # `up` has the same default, and takes MILLRACE_DEVICE before it
            command += ["--device", device]
        command += ["--python", python or sys.executable]
        if "MILLRACE_WORKING_DIRECTORY" not in os.environ:
            with contextlib.suppress(OSError):  # the current directory may not exist any more
                command += ["--working-directory", str(Path.cwd())]
        if n_workers is not None:
            command += ["--workers", str(n_workers)]
        if memory_limit is not None:
            command += ["--memory-limit", str(memory_limit)]
        self._log = Path(self._directory) / "cluster.log"
        try:
            self._start(command, python)
            self._await_file(file, limit)
            info = json.loads(file.read_text())
        except BaseException:
            self.close()
            raise
        #: Address of the scheduler, host:port.
        self.address: str = info["address"]
        #: Token that clients need.
        self.token: str = info.get("token", "")
        #: Address of metrics and status, host:port, or empty.
        self.http: str = info.get("http", "")

    def _start(self, command: list[str], python: str | None) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=None if python else {**os.environ, "PYTHONPATH": _python_path()},
            )
        # Ends the cluster when this process ends in any way, because then the pipe closes.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -TERM "$1"; rm -rf "$2"', "sh", str(self._process.pid), self._directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _await_file(self, file: Path, limit: float) -> None:
        deadline = time.monotonic() + limit
        while not file.exists():
            self.check()
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready after {limit:g} s")
            time.sleep(0.01)

    def check(self) -> None:
        """Raises ClusterStartError if the cluster's process has ended. A child of fork cannot
        tell."""
        if os.getpid() != self._owner:
            return
        if self._process is None:
            raise errors.ClusterStartError("the cluster is closed")
        code = self._process.poll()
        if code is not None:
            raise self._failed(f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")

    def _failed(self, what: str) -> errors.ClusterStartError:
        """Returns the error of a failed start. It has the last line of the log as the reason, up to
        20 lines before it, and the path of a copy of the log, which is kept."""
        text = self._log.read_text(errors="replace").strip()
        lines = text.splitlines()
        number, kept = tempfile.mkstemp(prefix="millrace-", suffix=".log")
        with os.fdopen(number, "w") as copy:
            copy.write(text + "\n")
        reason = lines[-1] if lines else "it wrote nothing"
        before = "\n".join(lines[-20:-1])[-4096:]
        return errors.ClusterStartError(
            f"the cluster {what}: {reason}\nlog: {kept}"
            + (f"\nits last lines before that:\n{before}" if before else "")
        )

    @property
    def log(self) -> str:
        """The log of the cluster's processes."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Ends the cluster. Its processes have ended when this returns."""
        if os.getpid() != self._owner:
            self._process = None
            return
        process, self._process = self._process, None
        if process is None:
            shutil.rmtree(self._directory, ignore_errors=True)
            return
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.wait()
            if watchdog.stdin is not None:
                watchdog.stdin.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self.close()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.address}>" if self._process else "<LocalCluster closed>"

    def _repr_html_(self) -> str:
        return f"<b>LocalCluster</b> {f'<code>{self.address}</code>' if self._process else 'closed'}"
