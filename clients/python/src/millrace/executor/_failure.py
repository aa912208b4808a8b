"""The failures of runs, and how they are reported to the worker."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from millrace import _mode
from millrace._values import _exceptions

if TYPE_CHECKING:
    from millrace._pb.millrace.v1 import error_pb2

#: Most characters that are kept of one text of an error.
_TEXT = 64 << 10
#: Most characters of an exception's text in a program of distributed; Dask's settings may say it.
_MOST_OF_DASK = 10_000


class TaskStopped(KeyboardInterrupt):
    """Raised in a task that was cancelled or exceeded its time limit. A task may catch it to clean
    up, but should raise it again."""


class Refused(Exception):
    """A failure with its own reason code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NoRoom(Exception):
    """The worker has no room for a result. Holds the worker's error."""

    def __init__(self, error: error_pb2.TaskError) -> None:
        super().__init__(error.message)
        self.error = error


def describe(e: BaseException, error: error_pb2.TaskError) -> None:
    """Fills in `error` from an exception of a task. The frames of this package at the beginning of
    the traceback are left out. If the exception's own methods fail, only its type is reported."""
    try:
        _describe(e, error)
    except BaseException as other:
        error.Clear()
        error.reason = "PYTHON_EXCEPTION"
        error.message = shortened(
            f"{qualified(type(e))} was raised, and asking it for more raised {qualified(type(other))}"
        )


def _describe(e: BaseException, error: error_pb2.TaskError) -> None:
    trace = _exceptions.without_ours(e.__traceback__)
    e = _limited(e).with_traceback(trace)
    message = _message(e)
    add_note: Any = getattr(e, "add_note", None)  # since Python 3.11
    if isinstance(e, ValueError) and "read-only" in message and add_note is not None:
        add_note(
            "inputs of tasks are read-only: other tasks read the same memory. Copy first, for instance x = x.copy()"
        )
        message = _message(e)
    error.reason = "OUT_OF_MEMORY" if isinstance(e, MemoryError) else "PYTHON_EXCEPTION"
    error.message = message
    error.traceback = shortened("".join(traceback.format_exception(type(e), e, trace)))
    if not isinstance(e, Exception):
        # A client raises a RemoteError instead: SystemExit or KeyboardInterrupt would end its
        # program.
        error.message += " (the function ended itself so: that ends the task, not the process)"
    data = _exceptions.dumps(e)
    if data is not None and len(data) <= 1 << 20:  # else clients get only the text
        error.exception.encoding, error.exception.data = "pickle5", data
        error.exception.type_name = qualified(type(e))


def _limited(e: BaseException) -> BaseException:
    """Returns an exception with a shorter text in its place if that of `e` is longer than Dask's
    setting distributed.admin.max-error-length, in a program of distributed."""
    if not _mode.distributed:
        return e
    dask: Any = sys.modules.get("dask.config")
    most = _MOST_OF_DASK if dask is None else dask.get("distributed.admin.max-error-length", _MOST_OF_DASK)
    if len(text := str(e)) <= most:
        return e
    try:
        return type(e)("Long error message", text[:most])
    except Exception:
        return Exception("Long error message", qualified(type(e)), text[:most])


def _message(e: BaseException) -> str:
    return shortened("".join(traceback.format_exception_only(type(e), e)).strip())


def shortened(text: str) -> str:
    """Shortens a text to about `_TEXT` characters: the beginning and the end are kept, because
    Python names the error at the end."""
    if len(text) > _TEXT:
        text = f"{text[: _TEXT // 2]}\n[... {len(text) - _TEXT} characters ...]\n{text[-(_TEXT // 2) :]}"
    return text.encode(errors="replace").decode()


def qualified(kind: type) -> str:
    """Returns a type's module and name. A program may have replaced either by an object that is no
    text."""
    try:
        return shortened(f"{kind.__module__}.{kind.__qualname__}")
    except Exception:
        return shortened(type.__repr__(kind))
