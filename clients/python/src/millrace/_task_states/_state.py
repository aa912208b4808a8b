"""The data that a client and its session keep about tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from millrace import errors
from millrace._pb.millrace.v1 import error_pb2, submission_pb2, task_pb2

_DONE = frozenset(
    {task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_CANCELLED},
)

#: Kind of the op, its name, and the digest of its function.
OpKey = tuple[int, str, bytes]
#: Pickle of a function, and the language that it needs.
Function = tuple[bytes, str]


class State:
    """The state of one task as far as this client knows it. There is one per key, shared by the
    key's futures. Guarded by the session's lock."""

    __slots__ = (
        "body",
        "callbacks",
        "error",
        "failure",
        "generation",
        "id",
        "inline",
        "joined_failure",
        "kept",
        "key",
        "nbytes",
        "refs",
        "releases",
        "revision",
        "since",
        "state",
        "warned",
        "why",
        "worker",
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.id = 0
        self.state: int = task_pb2.TASK_STATE_WAITING
        self.inline: bytes | None = None
        self.error: error_pb2.TaskError | None = None
        #: The task had failed before it was submitted; it does not run again, because a client
        #: holds it.
        self.joined_failure = False
        #: An error of the client itself: the submission was refused, or the scheduler is gone.
        self.failure: BaseException | None = None
        self.worker = 0
        self.generation = 0
        self.nbytes = 0
        self.refs = 0
        #: One entry for each reference whose release is queued. Changed without a lock.
        self.releases: list[None] = []
        #: Watch revision at which the task was accepted; negative: unknown.
        self.revision = -1
        #: Digest of the task's computation if this client submitted it under a key chosen by the
        #: user; else empty.
        self.body = ""
        #: Futures inside of scattered data; the reference keeps them as long as the data.
        self.kept: Any = None
        #: Monotonic time when the state was made.
        self.since = time.monotonic()
        #: The last known reason why the task cannot run, and whether the user was warned of it.
        self.why = ""
        self.warned = False
        #: Calls to make when the task has ended; the values have no meaning. A dict, because calls
        #: are taken back.
        self.callbacks: dict[Callable[[], object], None] = {}

    @property
    def done(self) -> bool:
        return self.failure is not None or self.state in _DONE

    def failed_and_released(self) -> bool:
        """Returns whether the task has failed, and every reference but one will be dropped."""
        return self.state == task_pb2.TASK_STATE_FAILED and len(self.releases) >= self.refs - 1

    def exception(self) -> BaseException | None:
        if self.failure is not None:
            return self.failure
        if self.state == task_pb2.TASK_STATE_FAILED or self.state == task_pb2.TASK_STATE_CANCELLED:
            cancelled = self.state == task_pb2.TASK_STATE_CANCELLED
            return errors.from_task(self.error or error_pb2.TaskError(), self.key, cancelled, self.joined_failure)
        return None


class Spec:
    """One task to be submitted."""

    __slots__ = ("arguments", "function", "inputs", "items", "kept", "key", "op", "options", "state")

    def __init__(
        self,
        key: str,
        op: OpKey,
        inputs: list[str],
        arguments: bytes,
        options: bytes,
        state: State | None,
        function: Function | None = None,
        kept: Any = None,
        items: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        self.key, self.op, self.inputs, self.arguments, self.options = key, op, inputs, arguments, options
        #: The inputs of which the task needs one item: index of the input, item, length of the
        #: list.
        self.items = items
        #: The function that `op` names, if it is sent by value (pickled); None otherwise.
        self.function = function
        #: Inputs of other clients, which are kept alive until the task is submitted.
        self.kept = kept
        #: None: an intermediate task that no future holds.
        self.state = state


class Instances:
    """Instances of templates.

    Args:
        definitions: the serialised templates by hash.
        messages: the instances.
        tasks: number of their tasks.
    """

    __slots__ = ("definitions", "messages", "tasks")

    def __init__(
        self, definitions: dict[bytes, bytes], messages: list[submission_pb2.TemplateInstances], tasks: int
    ) -> None:
        self.definitions, self.messages, self.tasks = definitions, messages, tasks


class Unit:
    """Tasks that are accepted or refused together.

    Args:
        specs: the tasks; with `instances`, only those that futures hold, in their order.
        trace: metadata that names the span of the program; empty: there is none.
        instances: the tasks are those of instances of templates.
    """

    __slots__ = ("acknowledged", "failure", "instances", "specs", "trace")

    def __init__(
        self, specs: list[Spec], trace: tuple[tuple[str, str], ...] = (), instances: Instances | None = None
    ) -> None:
        self.specs, self.trace, self.instances = specs, trace, instances
        self.acknowledged = threading.Event()
        self.failure: BaseException | None = None
