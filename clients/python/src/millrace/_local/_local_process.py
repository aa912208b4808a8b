"""The processes of a local cluster: each is a child of this process and ends with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from millrace import errors
from millrace._program import packaged


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
    found = packaged() or shutil.which("millrace")
    if found:
        return found
    raise FileNotFoundError(
        "the millrace program was not found: set MILLRACE_BINARY, put it on PATH, or run `make build` in the checkout; "
        "to join a running cluster instead, give its address"
    )


def python_path() -> str:
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


class LocalProcess:
    """A process of the millrace program, which writes to a log file and ends when this process ends
    in any way.

    Args:
        command: the program and its arguments.
        log: file to append its output to.
        environment: of the process.
        remove: directory that is removed when this process ends without `close`; empty: none.
    """

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str], remove: str = "") -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=environment
            )
        # Ends the process when this one ends in any way, because then the pipe closes.
        self._watchdog: subprocess.Popen[bytes] | None = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill -TERM "$1"; [ -z "$2" ] || rm -rf "$2"', "sh", str(self.pid), remove],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None if it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code of the process when it has ended; raises subprocess.TimeoutExpired
        otherwise."""
        return self._process.wait(timeout)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises ClusterStartError if the process has ended."""
        code = self.returncode
        if code is not None:
            raise self.failed(f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")

    def failed(self, what: str) -> errors.ClusterStartError:
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

    def terminate(self) -> None:
        """Tells the process to end."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Ends the process, and returns when it has ended."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.kill()
            watchdog.wait()
            if watchdog.stdin is not None:
                watchdog.stdin.close()
        if self.running:
            self.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
