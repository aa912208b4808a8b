"""A cluster of one's own."""

from __future__ import annotations

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


def find_binary() -> str:
    """The millrace program: MILLRACE_BINARY, else beside this package, else in a checkout's bin, else on PATH."""
    named = os.environ.get("MILLRACE_BINARY")
    if named:
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
    """Where this process finds modules besides the interpreter's own folders."""
    own = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix)}
    found: list[str] = []
    for entry in sys.path:
        path = Path(entry or ".").resolve()
        inside = any(o in path.parents for o in own)
        if path.is_dir() and not inside and ":" not in str(path) and str(path) not in found:
            found.append(str(path))
    return os.pathsep.join(found)


class LocalCluster:
    """A scheduler and workers on this machine, as child processes that end with this one.

    Args:
        n_workers: workers; default one for each GPU, or without GPUs for each core, 8 at most.
        memory_limit: size of each worker's slab in host memory ("1GiB"); default half of this machine's memory, shared.
        device: "auto", "host" or "cuda".
        python: interpreter of the workers' Python executors; default this one, and then they find the modules that this
            process finds, through PYTHONPATH.
        start_timeout: longest wait for the cluster, in seconds.
    """

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        memory_limit: str | int | None = None,
        device: str = "auto",
        python: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        # A child of fork has a copy of this object, and must not end the cluster.
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._directory = tempfile.mkdtemp(prefix="millrace-")
        file = Path(self._directory) / "scheduler.json"
        command = [find_binary(), "up", "--device", device, "--scheduler-file", str(file)]
        command += ["--python", python or sys.executable]
        if n_workers is not None:
            command += ["--workers", str(n_workers)]
        if memory_limit is not None:
            command += ["--memory-limit", str(memory_limit)]
        self._log = Path(self._directory) / "cluster.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=None if python else {**os.environ, "PYTHONPATH": _python_path()},
            )
        # Ends the cluster when this process ends, however it ends: the pipe breaks.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -TERM "$1"; rm -rf "$2"', "sh", str(self._process.pid), self._directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + start_timeout
        while not file.exists():
            if self._process.poll() is not None:
                text = self._log.read_text(errors="replace")[-4096:]
                self.close()
                raise RuntimeError(f"the cluster ended before it was ready; its last lines:\n{text}")
            if time.monotonic() > deadline:
                self.close()
                raise TimeoutError(f"the cluster was not ready after {start_timeout:g} s")
            time.sleep(0.01)
        info = json.loads(file.read_text())
        #: host:port of the scheduler.
        self.address: str = info["address"]
        #: Token that clients need.
        self.token: str = info.get("token", "")
        #: host:port of metrics and status, or empty.
        self.http: str = info.get("http", "")

    @property
    def log(self) -> str:
        """What the cluster's processes have logged."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """Ends the cluster. Its processes are gone when this returns."""
        process, self._process = self._process, None
        if process is None or os.getpid() != self._owner:
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
        return f"<b>LocalCluster</b> <code>{self.address}</code>"
