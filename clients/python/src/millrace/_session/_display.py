"""Shows the output of tasks to the user: in lines with the name of their task, and not faster than
a person can use."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dataclasses
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Set
from typing import Any, TypeAlias

from millrace import _check
from millrace._values import _keys

#: Most bytes that are shown at once, and per second from then on; a quarter of it for one stream.
#: The rest is left out, and its size is told.
_BURST = 1 << 20
_PER_SECOND = 256 << 10
#: Longest time that the beginning of a line waits for its end, in seconds, and its largest length.
HELD = 0.3
_LINE = 16 << 10
#: Last lines of what was left out that are shown, and the streams that are remembered.
_LAST_LINES = 5
_MOST_STREAMS = 1000
#: A warning of Python, and the number of warnings that are remembered.
_WARNING = re.compile(r".+:\d+: \w*Warning: ")
_MOST_WARNINGS = 1000
#: Longest form of a key in front of a line. Only the beginning of a digest in it is shown.
_KEY = 40
_DIGEST = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}")


@dataclasses.dataclass(frozen=True)
class TaskLine:
    """A line that a task has written."""

    #: Key of the task.
    key: Any
    #: Name of the worker that runs it.
    worker: str
    #: The text, without the end of the line.
    text: str
    #: The task wrote it to stderr.
    stderr: bool

    def __str__(self) -> str:
        return f"[{short_key(self.key)} {self.worker}] {self.text}" if self.worker else self.text


def short_key(key: Any) -> str:
    """Returns a key as it stands in front of a line."""
    text = key if isinstance(key, str) else repr(key)
    text = _DIGEST.sub(r"\1", text)
    return text if len(text) <= _KEY else f"{text[: _KEY - 9]}…{text[-8:]}"


#: The place of lines: True: sys.stdout and sys.stderr; False: none; or a function of a line.
Output: TypeAlias = "bool | Callable[[TaskLine], object] | None"


def sink(output: Output) -> Callable[[TaskLine], object] | None:
    """Returns the function that takes the lines; None: they are not wanted. In a task, the default
    is not to show the output of other tasks: it would become output of this one."""
    if output is None:
        if os.environ.get("MILLRACE_EXECUTOR"):
            return None
        word = os.environ.get("MILLRACE_OUTPUT", "")
        output = True if not word else _check.switch(word, "MILLRACE_OUTPUT")
    if output is True:
        return show
    if output is False:
        return None
    if not callable(output):
        raise TypeError(
            f"output is True, False or a function that takes a millrace.TaskLine, not {type(output).__name__}"
        )
    return output


def show(line: TaskLine) -> None:
    """Writes a line to sys.stdout or sys.stderr."""
    stream = sys.stderr if line.stderr else sys.stdout
    # A notebook assigns what a thread writes to the cell that was in progress when the thread
    # began, unless its context is empty: then to the cell that is in progress now.
    contextvars.Context().run(_write, stream, f"{line}\n")


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the stream is closed, or None
        try:
            stream.write(text)
        except UnicodeEncodeError:  # a terminal that is not UTF-8
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()


class _Bucket:
    """Room for output, which grows with the time.

    Args:
        burst: bytes that fit at once.
        rate: bytes per second after that.
    """

    def __init__(self, burst: int, rate: int) -> None:
        self._burst, self._rate = burst, rate
        self._room, self._at = float(burst), time.monotonic()

    def has(self, size: int) -> bool:
        now = time.monotonic()
        self._room, self._at = min(self._room + (now - self._at) * self._rate, self._burst), now
        return size <= self._room

    def take(self, size: int) -> None:
        self._room -= size


class _Stream:
    """The output of one attempt to stdout or stderr."""

    def __init__(self, key: str, worker: str, stderr: bool) -> None:
        self.key, self.worker, self.stderr = key, worker, stderr
        #: The beginning of a line, and when it came.
        self.begun = ""
        self.since = 0.0
        self.room = _Bucket(_BURST // 4, _PER_SECOND // 4)
        #: Bytes that were left out and not told yet, and the last lines of them.
        self.left_out = 0
        self.last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        #: The line before was a warning that was shown before.
        self.known_warning = False

    @property
    def waits(self) -> bool:
        return bool(self.begun or self.left_out)


class Display:
    """Cuts output into lines, and gives them to a function. A task that writes much is cut first,
    so that others are seen: the beginning and the end of what it writes are shown.

    Attempts are tuples of the worker's id, the task's id and the number of the attempt.

    Args:
        take: the function. It is called in one thread at a time; an exception that it raises is
            ignored.
    """

    def __init__(self, take: Callable[[TaskLine], object]) -> None:
        self._take = take
        self._lock = threading.Lock()
        # Guarded by _lock. The streams by attempt, the most recently written one last; the room for
        # all; and the warnings that were shown.
        self._streams: collections.OrderedDict[Any, _Stream] = collections.OrderedDict()
        self._room = _Bucket(_BURST, _PER_SECOND)
        self._warnings: set[str] = set()

    def put(self, attempt: Any, key: str, worker: str, stderr: bool, text: str, skipped: int) -> None:
        """Shows output of an attempt. `skipped`: the bytes before it that are missing."""
        with self._lock:
            stream = self._streams.get((attempt, stderr))
            if stream is None:
                stream = self._streams[attempt, stderr] = _Stream(key, worker, stderr)
                if len(self._streams) > _MOST_STREAMS:
                    self._settle(self._streams.popitem(last=False)[1])
            else:
                self._streams.move_to_end((attempt, stderr))
            if skipped:
                self._end_line(stream)
                stream.left_out += skipped
                stream.last.clear()
            *lines, rest = text.split("\n")
            for line in lines:
                stream.begun += line
                self._line(stream)
            stream.begun += rest
            stream.since = time.monotonic()
            if len(stream.begun) > _LINE:
                self._line(stream)

    def sweep(self, *, everything: bool = False) -> bool:
        """Shows what has waited for long: beginnings of lines, and the end of what was left out.
        Returns whether more waits."""
        now = time.monotonic()
        waits = False
        with self._lock:
            for stream in self._streams.values():
                if stream.waits and (everything or now - stream.since > HELD):
                    self._settle(stream)
                waits = waits or stream.waits
        return waits

    def end(self, tasks: Set[int]) -> None:
        """Shows all that waits of tasks that have ended."""
        with self._lock:
            for (attempt, _), stream in self._streams.items():
                if stream.waits and attempt[1] in tasks:
                    self._settle(stream)

    def _settle(self, stream: _Stream) -> None:
        """Shows all that waits of a stream. REQUIRES: the lock."""
        self._end_line(stream)
        self._tell(stream)

    def _end_line(self, stream: _Stream) -> None:
        if stream.begun:
            self._line(stream)

    def _line(self, stream: _Stream) -> None:
        """Shows a line. A carriage return in it begins it anew, as on a terminal. REQUIRES: the
        lock."""
        text, stream.begun = stream.begun.rstrip("\r").rpartition("\r")[2], ""
        if stream.stderr and self._is_known_warning(stream, text):
            return
        size = len(text) + 1
        rested = not stream.left_out or (stream.room.has(_BURST // 8) and self._room.has(_BURST // 8))
        if not (rested and stream.room.has(size) and self._room.has(size)):
            stream.left_out += size
            stream.last.append(text)
            return
        self._tell(stream)
        for room in (stream.room, self._room):
            room.take(size)
        self._give(stream, text)

    def _is_known_warning(self, stream: _Stream, text: str) -> bool:
        """Returns whether a line belongs to a warning of Python that was shown before: its line, or
        the line of source after it. Each process of each worker gives the same warning once."""
        if stream.known_warning and text.startswith("  "):
            stream.known_warning = False
            return True
        stream.known_warning = False
        if not _WARNING.match(text):
            return False
        if text in self._warnings:
            stream.known_warning = True
        elif len(self._warnings) < _MOST_WARNINGS:
            self._warnings.add(text)
        return stream.known_warning

    def _tell(self, stream: _Stream) -> None:
        """Tells how much was left out, and shows its last lines. REQUIRES: the lock."""
        left_out, last = stream.left_out, list(stream.last)
        stream.left_out = 0
        stream.last.clear()
        left_out -= sum(len(line) + 1 for line in last)
        if left_out > 0:
            self._give(stream, f"[... {_check.size(left_out)} left out; logs() has the end ...]")
        for line in last:
            self._give(stream, line)

    def _give(self, stream: _Stream, text: str) -> None:
        with contextlib.suppress(Exception):
            self._take(TaskLine(_keys.from_wire(stream.key), stream.worker, text, stream.stderr))
