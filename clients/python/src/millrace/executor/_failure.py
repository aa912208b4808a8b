"""How runs fail, and how that is told to the worker."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import TYPE_CHECKING, Any

from millrace import _serialize

if TYPE_CHECKING:
    from millrace._pb.millrace.v1 import task_pb2

#: Most that is kept of one text of an error, in characters.
_TEXT = 64 << 10


class TaskStopped(KeyboardInterrupt):
    """Raised in a task that was cancelled or ran out of time. Catch it to clean up, and let it go on."""


class Refused(Exception):
    """A failure with a reason of its own."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class NoRoom(Exception):
    """The worker has no room for a result, in its own words."""

    def __init__(self, error: task_pb2.TaskError) -> None:
        super().__init__(error.message)
        self.error = error


def describe(e: BaseException, error: task_pb2.TaskError, ours: str) -> None:
    """Describes an exception of a task. `ours` is the file of its first frames, which are left out of the traceback. The
    exception's own methods may fail, too; then only its type is reported."""
    try:
        _describe(e, error, ours)
    except BaseException as other:
        error.Clear()
        error.reason = "PYTHON_EXCEPTION"
        error.message = shortened(
            f"{qualified(type(e))} was raised, and asking it for more raised {qualified(type(other))}"
        )


def _describe(e: BaseException, error: task_pb2.TaskError, ours: str) -> None:
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next
    e = e.with_traceback(trace)
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
        # SystemExit, KeyboardInterrupt: raised again by a client, it would end the client's program.
        error.message += " (the function ended itself so: that ends the task, not the process)"
        return
    data = dumped(chain(e))
    if data is None:
        return  # clients then get the text only
    if len(data) <= 1 << 20:
        error.exception.encoding, error.exception.data = "pickle5", data
        error.exception.type_name = qualified(type(e))


def _message(e: BaseException) -> str:
    return shortened("".join(traceback.format_exception_only(type(e), e)).strip())


def dumped(links: list[tuple[BaseException, bool]]) -> bytes | None:
    """Pickles exceptions; None if that cannot be. Some pickle and do not unpickle, as their __init__ takes other arguments
    than it passes on: these are made again without it."""
    for kind in (_serialize.CodePickler, _serialize.ExceptionPickler):
        try:
            file = io.BytesIO()
            kind(file, protocol=5).dump(links)
            pickle.loads(file.getvalue())
        except BaseException:
            continue
        return file.getvalue()
    return None


def chain(e: BaseException) -> list[tuple[BaseException, bool]]:
    """The exception and its causes or contexts, outermost first, each with "the next one is its explicit cause".
    Pickling an exception alone loses them."""
    links: list[tuple[BaseException, bool]] = []
    seen: set[int] = set()
    current: BaseException | None = e
    while current is not None and id(current) not in seen and len(links) < 32:
        seen.add(id(current))
        explicit = current.__cause__ is not None
        links.append((current, explicit))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return links


def shortened(text: str) -> str:
    """At most `_TEXT` characters: the beginning and the end, where Python names the error."""
    if len(text) > _TEXT:
        text = f"{text[: _TEXT // 2]}\n[... {len(text) - _TEXT} characters ...]\n{text[-(_TEXT // 2) :]}"
    return text.encode(errors="replace").decode()


def qualified(kind: type) -> str:
    """A type's module and name. A program may have replaced either by something that is no text."""
    try:
        return shortened(f"{kind.__module__}.{kind.__qualname__}")
    except Exception:
        return shortened(type.__repr__(kind))
