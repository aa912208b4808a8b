"""Standard output and error of tasks. Text that Python code prints goes to the task's log. Text of
C code and child processes goes to the process's own descriptors, which the worker reads."""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import io
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

#: How long the end of a run waits for the worker to read the output of child processes, in seconds.
_DRAIN = 0.02


class Stream(io.TextIOBase):
    """Replaces sys.stdout or sys.stderr: text of a task goes to the task's log, other text to the
    original stream.

    Args:
        original: the stream that is replaced.
        log: adds text to the log of the running task; returns False if there is none.
        send: sends the text that was logged, if a task runs.
    """

    errors = "replace"  # pyright: ignore[reportAssignmentType]
    line_buffering = True
    write_through = True

    def __init__(self, original: Any, log: Callable[[str], bool], send: Callable[[], None]) -> None:
        self._original, self._log, self._send = original, log, send
        self.name = original.name
        self.mode = "w"
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._original.fileno()

    def reconfigure(self, **_options: Any) -> None:
        """Accepted and ignored: text is not buffered here, and is UTF-8."""

    def close(self) -> None:
        """Flushes only. A task must not close the stream for the next task."""
        self.flush()

    def flush(self) -> None:
        # The caller may be about to end the process, so the text is sent at once.
        self._send()
        self._original.flush()

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self._log(text):
            self._original.write(text)
        return len(text)


class _Bytes(io.BufferedIOBase):
    """The `buffer` of a Stream. Bytes are decoded as UTF-8; invalid bytes are replaced."""

    def __init__(self, text: Stream) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def raw(self) -> Any:
        return self

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def close(self) -> None:
        self.flush()

    def flush(self) -> None:
        self._text.flush()

    def write(self, data: Any, /) -> int:
        view = memoryview(data)
        text = self._decoder.decode(view)
        if text:
            self._text.write(text)
        return view.nbytes


class NoInput(io.TextIOBase):
    """Replaces sys.stdin. A task has no terminal to read from."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return False

    def read(self, size: int | None = -1, /) -> str:
        raise EOFError("a task has no terminal to read from: give the text to the function as an argument")

    def readline(self, size: int = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.read()


def no_debugger(*_args: Any, **_kwargs: Any) -> None:
    """Replaces the function that breakpoint() calls."""
    raise RuntimeError(
        "breakpoint() in a task: a worker has no terminal for a debugger. Call the function here, without submit; or "
        "leave breakpoint() out, and open the debugger where the task fails: %debug, or pdb.post_mortem() after result()"
    )


class Unraisable:
    """The hook `sys.unraisablehook`, for exceptions that Python can only print, for instance those
    of a __del__. Only the first ones of a run are printed, then the number of the others: a hundred
    thousand would take longer than the run."""

    #: Most exceptions that are printed per run.
    MOST = 20

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, unraisable: Any, /) -> None:
        self._seen += 1
        if self._seen <= self.MOST:
            sys.__unraisablehook__(unraisable)

    def end_of_run(self) -> None:
        if self._seen > self.MOST:
            print(f"{self._seen - self.MOST} more exceptions were ignored", file=sys.stderr)
        self._seen = 0


_libc = ctypes.CDLL(None)


def drain() -> None:
    """Flushes the buffers of C code, and waits at most `_DRAIN` seconds until the worker has read
    the pipes, so that the worker assigns the text to the current run."""
    _libc.fflush(None)
    deadline = 0.0
    for fd in (1, 2):
        try:
            while struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]:
                now = time.monotonic()
                deadline = deadline or now + _DRAIN
                if now > deadline:
                    return
                time.sleep(0.0002)
        except OSError:  # the descriptor is not a pipe
            continue
