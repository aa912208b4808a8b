"""`print` and `warn` of Dask's distributed: in a task, the client's process prints and warns."""

from __future__ import annotations

import builtins
import sys
import warnings
from typing import Any, cast

from millrace._calls import _topics
from millrace._calls._topics import PRIVATE, Subscriptions
from millrace._session import _registry
from millrace._session._session import Session

#: Streams by the number in a message.
_STREAMS = {1: "stdout", 2: "stderr"}


def _topic(session: Session) -> str:
    return f"{PRIVATE}texts/{session.namespace}"


def follow(session: Session, subscriptions: Subscriptions) -> None:
    """Prints here what tasks of the client's namespace print by `print`, and warns as they do by
    `warn`."""
    subscriptions.add(_topic(session), _show)


def _show(event: tuple[float, dict[str, Any]]) -> None:
    message = event[1]
    if "message" in message:
        warnings.warn(message["message"], message["category"], stacklevel=2)
        return
    file = getattr(sys, _STREAMS[message["file"]]) if message["file"] else None
    builtins.print(*message["args"], sep=message["sep"], end=message["end"], file=file, flush=True)


def _in_task() -> bool:
    executor: Any = sys.modules.get("millrace.executor")
    return executor is not None and executor.get_task_info() is not None


def _send(message: dict[str, Any]) -> None:
    session = _registry.default_session()
    _topics.publish(session, _topic(session), message)


def print(*args: object, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False) -> None:
    """Prints in the processes of all clients of the task's namespace, before the task's result is
    there. Outside of a task it is Python's own `print`.

    Args:
        args: objects, which are printed as their texts.
        sep, end, flush: as for Python's `print`.
        file: sys.stdout, sys.stderr, or None for sys.stdout.

    Raises:
        TypeError: `file` is something else, in a task.
    """
    if not _in_task():
        builtins.print(*args, sep=sep, end=end, file=file, flush=flush)
        return
    numbers = {sys.stdout: 1, sys.stderr: 2, None: 0}
    number = next((n for stream, n in numbers.items() if stream is file), None)
    if number is None:
        raise TypeError(
            f"Remote printing to arbitrary file objects is not supported: file must be sys.stdout, sys.stderr or None, "
            f"not {file!r}"
        )
    _send({"args": tuple(map(str, args)), "sep": sep, "end": end, "file": number})


def warn(
    message: str | Warning, category: type[Warning] | None = UserWarning, stacklevel: int = 1, source: Any = None
) -> None:
    """Warns in the processes of all clients of the task's namespace, before the task's result is
    there. Outside of a task it is `warnings.warn`, and takes the same arguments.
    """
    if not _in_task():
        warnings.warn(cast("Any", message), category, stacklevel + 1, source)
        return
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    _send({"message": message, "category": kind})
