"""The errors of this package, and the only mapping from reasons to classes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
from collections.abc import Iterable
from typing import Any

import grpc

from millrace._pb.millrace.v1 import error_pb2
from millrace._values import _exceptions, _keys, _packages, _wire
from millrace._values._exceptions import Unsendable

#: Lines of output in the text of an error.
_OUTPUT_LINES = 40


class MillraceError(Exception):
    """Base class of all errors of this package."""

    #: Stable reason ("KEY_CONFLICT"); empty if there is none. `error.proto` lists all of them, in
    #: the enum ErrorReason.
    reason: str = ""


class InvalidRequestError(MillraceError, ValueError):
    """The scheduler refused a request: unknown op, cycle, conflicting key, bad field. No part of
    the request was applied."""


class NotFoundError(MillraceError, LookupError):
    """There is no such task, graph, worker, client or dataset."""


class AuthenticationError(MillraceError, PermissionError):
    """The token is missing, wrong, or of a role that lacks the permission."""


class VersionError(MillraceError):
    """This client is newer than the scheduler."""


class SchedulerLostError(MillraceError, ConnectionError):
    """The scheduler could not be reached, or does not know this client any more."""


class ClusterStartError(MillraceError, RuntimeError):
    """A local cluster did not start. The message has the reason and names the log file, which is
    kept."""


class SchedulerFullError(MillraceError):
    """The scheduler holds as many bytes of tasks as it may, and had no room within 5 minutes.
    Results that are released, by dropping their futures, make room. Large arguments take less room
    as scattered data."""


class DrainError(MillraceError, RuntimeError):
    """The drain of a worker ended in another way than ordered: it was undone, the worker died, or
    the scheduler was started anew."""


class NotHeldError(MillraceError, RuntimeError):
    """A lock that is to be released is not held: the client's lease had run out, the scheduler was
    started anew, or the lock was closed. Others may have acquired it since."""


class ClosedError(MillraceError, RuntimeError):
    """A lock, a semaphore or a queue was closed by somebody while this call waited for it."""


class SerialisationError(MillraceError, TypeError):
    """A function, an argument or a result cannot be pickled."""


class TaskFailedError(MillraceError, RuntimeError):
    """A task failed for another reason than an exception of its function."""

    def __init__(
        self, message: str, *, reason: str = "", key: Any = "", worker: str = "", log_tail: str = "", attempts: int = 0
    ) -> None:
        super().__init__(message)
        self.reason = reason
        #: Key of the task that failed first.
        self.key = key
        #: Name of the worker that it failed on.
        self.worker = worker
        #: Last lines that its last attempt wrote.
        self.log_tail = log_tail
        #: Number of attempts that failed or ended with the death of a worker or an executor; 0 if
        #: the error does not belong to an attempt.
        self.attempts = attempts

    def __reduce__(self) -> Any:
        return _restore, (type(self), str(self), self.reason, self.key, self.worker, self.log_tail, self.attempts)


class WorkerDiedError(TaskFailedError):
    """Workers or executors died while they ran the task, too often for another attempt
    (POISON_TASK, WORKER_DIED, EXECUTOR_DIED)."""


class TaskTimeoutError(TaskFailedError, TimeoutError):
    """The task ran longer than its timeout and was stopped."""


class NoWorkerFitsError(TaskFailedError):
    """No worker could ever run the task."""


class NoWorkerInTimeError(NoWorkerFitsError, TimeoutError):
    """No worker that may have scattered data was there before the timeout."""


class OutOfMemoryError(TaskFailedError, MemoryError):
    """A result did not fit into memory. The message names the objects that use the most."""


class ObjectLostError(TaskFailedError):
    """Data that cannot be recomputed are lost with the workers that held them."""


class FunctionNotFoundError(TaskFailedError):
    """The worker could not import or unpickle the function."""


class ResultNotSerialisableError(TaskFailedError, TypeError):
    """The function returned an object that cannot be pickled."""


class InputUnreadableError(TaskFailedError):
    """An input of the task could not be decoded on the worker: a package is missing there, or has
    another version."""


class InputUnreachableError(TaskFailedError):
    """The worker that must run the task could not fetch an input from the only worker that may have
    it."""


class ResultUnreadableError(MillraceError):
    """A result is in a form that this client cannot read."""


class ResultUnreachableError(MillraceError, ConnectionError):
    """A result exists, and no worker that holds it has given it to this client for a minute. The
    message names the worker that was asked last, and the cause."""


class VersionMismatchError(TaskFailedError):
    """A function was sent as bytecode by another minor version of Python than the worker's; the
    message names both. Use the same version for clients and workers, or give the function by import
    path ("package.module:function")."""


class RemoteError(TaskFailedError):
    """The task raised an exception that could not be sent, or one that would end this program, such
    as SystemExit. The message has its type and text."""


class CancelledError(MillraceError, concurrent.futures.CancelledError):
    """The task, or a task that it needs, was cancelled."""


class TaskNote(Exception):
    """Says where an exception of a task was raised, and has the last lines of the task's output. It
    is the cause of the exception before Python 3.11, in which exceptions have no notes."""


def _restore(
    cls: type[TaskFailedError], message: str, reason: str, key: Any, worker: str, log: str, attempts: int = 0
) -> TaskFailedError:
    return cls(message, reason=reason, key=key, worker=worker, log_tail=log, attempts=attempts)


_TASK_REASONS: dict[str, type[TaskFailedError]] = {
    "POISON_TASK": WorkerDiedError,
    "WORKER_DIED": WorkerDiedError,
    "EXECUTOR_DIED": WorkerDiedError,
    "TIMEOUT": TaskTimeoutError,
    "NO_WORKER_FITS": NoWorkerFitsError,
    "OUT_OF_MEMORY": OutOfMemoryError,
    "OBJECT_LOST": ObjectLostError,
    "FUNCTION_NOT_FOUND": FunctionNotFoundError,
    "VERSION_MISMATCH": VersionMismatchError,
    "RESULT_NOT_SERIALISABLE": ResultNotSerialisableError,
    "INPUT_UNREADABLE": InputUnreadableError,
    "INPUT_UNREACHABLE": InputUnreachableError,
}

#: Reasons of tasks whose executor could not unpickle something.
_UNPICKLED = frozenset({"FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "INPUT_UNREADABLE"})


def from_task(
    error: error_pb2.TaskError, key: str, cancelled: bool, joined: bool = False, what: str = ""
) -> BaseException:
    """Returns the exception of a failed or cancelled task: the user's own exception if it was sent,
    with the remote traceback, else one of this module. `joined`: the task had failed before it was
    submitted. `what`: what failed, if it is no task."""
    where = what or f"task {_keys.name(error.origin_key or key)}"
    if error.worker and not what:
        where += f" on worker {error.worker}"
    if error.attempts > 1:
        where += f", after {error.attempts} attempts"
    if joined:
        where += ", before this submission joined it: a client holds the failed task; retry() runs it again"
    # The text of an exception is left as it is. In messages of the cluster, keys are replaced by
    # the user's form.
    said = error.message if error.exception.data else _keys.named(error.message, (error.origin_key, key))
    if error.reason in _UNPICKLED:
        said = _packages.compared(said)
    message = f"{said or error.reason or 'failed'} [{where}]"
    if cancelled:
        cancel = CancelledError(message)
        cancel.reason = error.reason
        return cancel
    sent = _sent(error)
    if sent is not None and not isinstance(sent, Unsendable):
        _note(sent, where, error.log_tail)
        return sent
    # The message about a process that died already includes its last output.
    if error.log_tail and error.log_tail.strip()[-1000:] not in error.message:
        message += f"\nlast lines of its output:\n{_last_lines(error.log_tail)}"
    if error.traceback and sent is None:
        message += f"\n{error.traceback}"
    cls = _TASK_REASONS.get(error.reason, RemoteError if error.reason == "PYTHON_EXCEPTION" else TaskFailedError)
    out = cls(
        message,
        reason=error.reason,
        key=_keys.from_wire(error.origin_key or key),
        worker=error.worker,
        log_tail=error.log_tail,
        attempts=error.attempts,
    )
    if sent is not None:
        out.__cause__, out.__context__ = sent.__cause__, sent.__context__
        out.__suppress_context__, out.__traceback__ = sent.__suppress_context__, sent.__traceback__
    return out


def _sent(error: error_pb2.TaskError) -> Exception | None:
    """Returns the exception that the executor has sent, with its traceback; None if there is none
    that can be raised here."""
    if not error.exception.data:
        return None
    try:
        exception = _exceptions.loads(error.exception.data)
    except Exception:  # its class cannot be imported here
        return None
    # SystemExit, KeyboardInterrupt, GeneratorExit and asyncio.CancelledError would end the program
    # or coroutine that they are raised in.
    return exception if isinstance(exception, Exception) else None


def _note(exception: Exception, where: str, output: str) -> None:
    """Adds to an exception where it was raised, and the last lines of the output."""
    note = f"in {where}"
    if output.strip():
        note += f"\nlast lines of its output:\n{_last_lines(output)}"
    if sys.version_info >= (3, 11):
        with contextlib.suppress(Exception):  # its __notes__ is no list
            exception.add_note(note)
    elif exception.__cause__ is None:
        exception.__cause__ = TaskNote("\n" + note)


def _last_lines(output: str) -> str:
    lines = output.rstrip().splitlines()
    if len(lines) <= _OUTPUT_LINES:
        return "\n".join(lines)
    return "\n".join([f"[... {len(lines) - _OUTPUT_LINES} lines; future.logs() has more]", *lines[-_OUTPUT_LINES:]])


_CODES: dict[Any, type[MillraceError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: AuthenticationError,
    grpc.StatusCode.UNAVAILABLE: SchedulerLostError,
    grpc.StatusCode.DEADLINE_EXCEEDED: SchedulerLostError,
    grpc.StatusCode.CANCELLED: SchedulerLostError,
}


# Reasons that are more specific than the status code.
_REASONS: dict[str, type[MillraceError]] = {
    "VERSION_TOO_NEW": VersionError,
    "NO_WORKER_FITS": NoWorkerFitsError,
    "SCHEDULER_FULL": SchedulerFullError,
    "UNKNOWN_CLIENT": SchedulerLostError,
    "NOT_HELD": NotHeldError,
    "CLOSED": ClosedError,
}


# Replaces hints of the scheduler, which name calls of its API, by those of this package. Longer
# texts come first.
_WORDS = (
    ("wait for its end, or end the call that ordered it", "wait for its end"),
    ("see the list of workers", "see client.scheduler_info()"),
    ("see ListWorkers, with states for those that are lost", "see client.scheduler_info()"),
    ("set wait, or see ExplainTask for why it is not done", "see client.explain() for why it is not done"),
    ("fetch it from a worker (LocateObjects, then DataService.ReadObjects)", "fetch it with Future.result()"),
    ("GetClusterInfo; a Python function", "`millrace get ops`; a Python function"),
    ("see ListWorkers", "see client.scheduler_info()"),
    ("see ListPlugins", "give the name by which it was registered"),
    ("see ListTasks", "client.has_what() lists the results that there are"),
    ("see ListGraphs", "see `millrace get graphs`"),
    ("see ListDatasets", "see client.list_datasets()"),
    ("see ExplainTask", "see client.explain()"),
)

# Descriptions of API calls for users.
_CALLS = {
    "CancelTasks": "cancel",
    "DrainWorkers": "drain_workers",
    "ExplainTask": "explain",
    "GetClusterInfo": "asking for the state of the cluster",
    "GetDataset": "get_dataset",
    "GetReport": "performance_report",
    "GetSchedulerLog": "get_scheduler_logs",
    "GetWorker": "asking for a worker",
    "HoldTasks": "holding results",
    "ListAlarms": "asking for the alarms",
    "ListPeers": "asking for the schedulers",
    "AddPeer": "adding a scheduler",
    "RemovePeer": "removing a scheduler",
    "ListDatasets": "list_datasets",
    "ListTasks": "asking for the states of tasks",
    "ListWorkers": "asking for the workers",
    "LocateObjects": "asking where results are",
    "PublishDataset": "publish_dataset",
    "RegisterPlugin": "register_plugin",
    "RestartWorkers": "restart_workers",
    "RetireWorkers": "retire_workers",
    "RetryTasks": "retry",
    "UnregisterPlugin": "unregister_worker_plugin",
    "UnpublishDataset": "unpublish_dataset",
}


def call_name(method: str) -> str:
    """Returns the name of an API call for users."""
    return _CALLS.get(method, method)


def from_rpc(error: grpc.RpcError, what: str, keys: Iterable[str] = ()) -> MillraceError:
    """Returns the exception of a failed call. `keys` are the keys of the request."""
    code = error.code() if isinstance(error, grpc.Call) else None
    details = (error.details() if isinstance(error, grpc.Call) else str(error)) or ""
    for theirs, ours in _WORDS:
        details = details.replace(theirs, ours)
    details = _keys.named(details, keys)
    reason = reason_of(error)
    cls = _REASONS.get(reason) or _CODES.get(code, MillraceError)
    out = cls(f"{what}: {details}" + (f" [{reason}]" if reason else ""))
    out.reason = reason
    return out


def reason_of(error: grpc.RpcError) -> str:
    """Returns the reason of the google.rpc.ErrorInfo in the status details; "" if there is none."""
    return info_of(error)[0]


def info_of(error: object) -> tuple[str, dict[str, str]]:
    """Returns the reason and the metadata of the google.rpc.ErrorInfo in the status details; empty if
    there is none. Parsed by hand, to save a dependency for a few strings: Status.details is field
    3, Any.value is field 2, ErrorInfo.reason is field 1, and its metadata field 3."""
    if not isinstance(error, grpc.Call):
        return "", {}
    trailer: Any = error.trailing_metadata() or ()
    for key, value in trailer:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            for number, status in _wire.fields(value):
                if number != 3 or isinstance(status, int):
                    continue
                parts = dict(_wire.fields(status))
                if b"google.rpc.ErrorInfo" in bytes(parts.get(1, b"")):  # pyright: ignore[reportArgumentType]
                    info = _wire.fields(parts[2])  # pyright: ignore[reportArgumentType]
                    entries = (_texts(entry) for field, entry in info if field == 3)
                    return _texts(info).get(1, ""), {entry.get(1, ""): entry.get(2, "") for entry in entries}
    return "", {}


def _texts(message: Any) -> dict[int, str]:
    """Returns the texts of a message, or of its fields, by the number of their field."""
    fields = message if isinstance(message, list) else _wire.fields(message)
    return {number: bytes(text).decode() for number, text in fields if not isinstance(text, int)}
