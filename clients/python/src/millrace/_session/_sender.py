"""Sends the commands of a client to the scheduler: submissions and releases.

`submit` and the release of a future put commands into a queue. One thread sends all waiting
commands as one request, so calls are batched only while the scheduler is busy, and a single call is
sent at once.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import grpc

from millrace import errors
from millrace._connection._connection import Connection, broke, starting
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import submission_pb2, task_calls_pb2, task_pb2
from millrace._session._messages import BATCH_TASKS, carrying, defining, submission
from millrace._session._tracing import Trace
from millrace._task_states._state import Spec, State, Unit
from millrace._task_states._task_table import TaskTable

#: Most digests of functions that are remembered as sent.
_SENT_FUNCTIONS = 100_000
#: Most tasks that are remembered as refused.
_REFUSED = 10_000
#: Most spans of the program whose graphs are remembered.
_SPANS = 64
#: Releases are delayed, to batch them and to let submissions go first: up to `_RELEASE_DELAY`
#: seconds while nothing else is to be sent, ten times as long in any case, or until there are
#: `_RELEASES` of them.
_RELEASE_DELAY, _RELEASES = 0.005, 10_000
#: How long a submission is repeated while the scheduler has no room for it, in seconds.
FULL_SECONDS = 300.0
#: Errors of a release that may be gone at the next attempt.
_MAY_PASS = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)

#: Tasks to submit, a state to release, an event to set once everything before it was sent and
#: answered, or None to end.
_Command: TypeAlias = "Unit | State | threading.Event | None"


class _Batch:
    """The tasks of units of one span.

    Args:
        units: the units, at least one.
    """

    __slots__ = ("definitions", "instances", "plain", "specs", "tasks", "trace")

    def __init__(self, units: Sequence[Unit]) -> None:
        self.trace = units[0].trace
        #: The tasks that are sent themselves.
        self.plain = [spec for unit in units if unit.instances is None for spec in unit.specs]
        #: The tasks whose numbers the scheduler answers, in its order.
        self.specs = self.plain
        #: Instances of templates, and the templates by hash.
        self.instances: list[submission_pb2.TemplateInstances] = []
        self.definitions: dict[bytes, bytes] = {}
        #: Number of all tasks.
        self.tasks = len(self.plain)
        for unit in units:
            if unit.instances is not None:
                self.specs = [*self.specs, *unit.specs]
                self.instances += unit.instances.messages
                self.definitions.update(unit.instances.definitions)
                self.tasks += unit.instances.tasks


class Sender:
    """The queue of commands, and the thread that sends them.

    Args:
        connection: the scheduler.
        lease: the lease that holds the tasks.
        tasks: the states that answers are noted in.
        renew: opens a new lease in place of the one with this id, unless that has been done. Raises
            grpc.RpcError.
        holding: held while the lease is replaced, while tasks are held by key, and while a release
            is repeated: these operations exclude each other. Taken before the lock of `tasks`.
    """

    def __init__(
        self,
        connection: Connection,
        lease: Lease,
        tasks: TaskTable,
        renew: Callable[[int], None],
        holding: threading.RLock,
    ) -> None:
        self._connection, self._lease, self._tasks, self._renew = connection, lease, tasks, renew
        # NB: SimpleQueue.put is reentrant: the garbage collector may release futures at any
        # instruction.
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        # Three lists that only the sending thread uses. `_backlog`: commands that were taken out of
        # `_commands` and must be sent before the rest. `_sending`: units that are being sent.
        # `_released`: states to release.
        self._backlog: collections.deque[_Command] = collections.deque()
        self._sending: list[Unit] = []
        self._released: list[State] = []
        self._since = 0.0  # when the first of _released was queued
        # Tasks whose release failed, by id, with their keys; and the time and delay of the next
        # attempt. Guarded by _holding.
        self._owed: dict[int, str] = {}
        self._owed_again, self._owed_pause = 0.0, 0.0
        self._holding = holding
        #: Digests of the functions that the scheduler has.
        self.sent_functions: set[bytes] = set()
        # Errors of the tasks that were refused last, by key. The thread of this object uses it.
        self._refused: dict[str, BaseException] = {}
        # The graphs that this client's tasks are in: one for each of the latest spans of the
        # program, and one for the tasks outside of spans.
        self._graphs: dict[Trace, int] = {}
        #: The sending thread.
        self.thread = threading.Thread(target=self._run, name="millrace-send", daemon=True)

    def put(self, unit: Unit) -> None:
        """Queues tasks."""
        self._commands.put(unit)

    def release(self, state: State) -> None:
        """Queues the release of a reference to a state. Takes no lock, because the garbage
        collector calls it."""
        if not self._connection.closed:
            state.releases.append(None)
            self._commands.put(state)

    def flush(self) -> None:
        """Waits until everything queued so far was sent and answered. Raises if the scheduler is
        away for the time limit of calls; the queue is not emptied by that, so all of it is sent
        when the scheduler is back."""
        done = threading.Event()
        self._commands.put(done)
        self.wait_for(done, self._connection.timeout)

    def wait_for(self, answered: threading.Event, longest: float | None = None) -> None:
        """Waits for the sending thread. Raises if that thread has ended: commands queued after its
        end are never answered. Raises also if the scheduler is away for `longest` seconds
        meanwhile; None: until the commands fail."""
        connection, began = self._connection, time.monotonic()
        while not answered.wait(1.0 if not connection.closed else 0.0):
            if answered.is_set():
                continue
            if self.thread.is_alive():
                silent = connection.silent_since
                if longest is not None and silent and time.monotonic() - max(silent, began) > longest:
                    raise errors.SchedulerLostError(
                        f"the scheduler at {connection.address} has been away for {time.monotonic() - silent:.0f} s: what "
                        "this client has submitted is sent when it is back"
                    )
                continue
            connection.check_open()
            raise errors.SchedulerLostError(
                "the thread that sends the tasks of this client has ended by an error, which it printed: open a new client"
            )

    def end(self) -> None:
        """Ends the thread, after the commands that are queued."""
        self._commands.put(None)

    def refuse(self) -> None:
        """Fails the commands that are still queued. REQUIRES: the thread has ended, or is stuck."""
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            if isinstance(command, Unit):
                command.failure = errors.SchedulerLostError("the client was closed")
                command.acknowledged.set()
            elif isinstance(command, threading.Event):
                command.set()

    def lease_replaced(self) -> None:
        """Forgets everything that was valid for the old lease only. REQUIRES: `holding`."""
        self.sent_functions.clear()
        self._owed.clear()
        self._graphs.clear()

    def orphan(self) -> list[Any]:
        """Replaces the queue, in a forked child. Returns objects that must not be freed there."""
        old, self._commands = self._commands, SimpleQueue()
        return [old]

    # ---- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._round():
            pass

    def _round(self) -> bool:
        """Waits for commands and carries them out. Returns whether more may come. No local of the
        thread outlives a round: it would keep futures of the last commands while nothing is sent."""
        try:
            command = self._next(self._delay())
        except Empty:
            self._release()
            return True
        units: list[Unit] = []
        flushed: list[threading.Event] = []
        tasks = 0
        end = False
        while True:
            if command is None:
                end = True
                break
            if isinstance(command, Unit):
                if units and command.trace != units[0].trace:
                    self._backlog.appendleft(command)
                    break
                units.append(command)
                tasks += len(command.specs) if command.instances is None else command.instances.tasks
            elif isinstance(command, State):
                if not self._released:
                    self._since = time.monotonic()
                self._released.append(command)
            else:
                flushed.append(command)
            if tasks >= BATCH_TASKS or len(self._released) >= BATCH_TASKS:
                break
            try:
                command = self._next(0)
            except Empty:
                break
        if units:
            self._sending = units
            self._send(units)
            self._sending = []
        if end:
            for unit in units:
                unit.acknowledged.set()
            for event in flushed:
                event.set()
            return False
        released = self._released
        if released and (flushed or len(released) >= _RELEASES or time.monotonic() - self._since > 10 * _RELEASE_DELAY):
            self._release()
        for event in flushed:
            event.set()
        return True

    def _next(self, timeout: float | None) -> _Command:
        if self._backlog:
            return self._backlog.popleft()
        return self._commands.get(timeout=timeout) if timeout != 0 else self._commands.get_nowait()

    def _delay(self) -> float | None:
        """Returns how long to wait for the next command: a short time if there are releases to
        send, else until failed releases are repeated; None: no limit."""
        if self._released:
            return _RELEASE_DELAY
        return max(self._owed_again - time.monotonic(), 0.001) if self._owed else None

    def _send(self, units: list[Unit]) -> None:
        """Sends units of one span. Each one succeeds or fails independently."""
        try:
            self._transmit(_Batch(units))
        except BaseException as e:
            if len(units) > 1 and not isinstance(e, (errors.SchedulerLostError, errors.SchedulerFullError)):
                # One of the units is the cause. The halves are sent in order, because a later unit
                # may need the result of an earlier one.
                half = len(units) // 2
                self._send(units[:half])
                self._send(units[half:])
                return
            e = self._cause(e, [spec for unit in units for spec in unit.specs])
            self._tasks.fail([s.state for u in units for s in u.specs if s.state is not None], e)
            for unit in units:
                unit.failure = e
        for unit in units:
            unit.acknowledged.set()

    def _cause(self, error: BaseException, specs: list[Spec]) -> BaseException:
        """Returns the error of tasks that were refused. If they were refused because an input was
        refused before, or is lost with the lease that held it, it is the input's error."""
        if isinstance(error, errors.MillraceError) and error.reason == "UNKNOWN_INPUT":
            inputs = [key for spec in specs for key in spec.inputs]
            refused = next((self._refused[key] for key in inputs if key in self._refused), None)
            # A task that was still on its way when the scheduler was started anew.
            error = refused or self._tasks.loss(inputs) or error
        for spec in specs:
            self._refused[spec.key] = error
            if len(self._refused) > _REFUSED:
                del self._refused[next(iter(self._refused))]
        return error

    @property
    def graphs(self) -> list[int]:
        """Numbers of the graphs that the client's latest tasks belong to."""
        return list(self._graphs.values())

    def _transmit(self, batch: _Batch) -> None:
        client_id = self._lease.client_id
        try:
            self._transmit_as(client_id, batch)
        except errors.MillraceError as e:
            if e.reason != "UNKNOWN_CLIENT":
                raise
            if self._connection.closed:  # close has ended the lease in the meantime
                raise errors.SchedulerLostError("the client was closed") from None
        else:
            return
        try:
            self._renew(client_id)
        except grpc.RpcError as e:
            raise errors.from_rpc(e, f"opening a new lease for {batch.tasks} tasks") from None
        self._transmit_as(self._lease.client_id, batch)

    def _transmit_as(self, client_id: int, batch: _Batch) -> None:
        try:
            self._transmit_to(self._graphs.get(batch.trace, 0), client_id, batch)
        except errors.MillraceError as e:
            if e.reason != "UNKNOWN_GRAPH":
                raise
            # All of the graph's tasks were released, and the scheduler has forgotten it.
            self._transmit_to(0, client_id, batch)

    def _transmit_to(self, graph: int, client_id: int, batch: _Batch) -> None:
        specs, trace = batch.specs, batch.trace
        if self._owed:
            self.settle_releases({spec.key for spec in specs}, self._connection.reconnect_timeout)
        chunks, functions = submission(
            batch.plain, client_id=client_id, graph=graph, known=self.sent_functions, instances=batch.instances
        )
        try:
            with self._tasks.flight():
                answer = self._submit(chunks, trace)
                if answer.missing_templates:
                    # The scheduler does not know these templates, and accepted no task.
                    chunks = defining(chunks, (batch.definitions[digest] for digest in answer.missing_templates))
                    answer = self._submit(chunks, trace)
                if answer.missing_functions:
                    # The scheduler has forgotten these functions, and accepted no task.
                    chunks[1:1] = carrying((digest, *functions[digest]) for digest in answer.missing_functions)
                    answer = self._submit(chunks, trace)
                ids = answer.task_ids
                self._tasks.acknowledge(client_id, specs, ids, answer.revision, answer.failed_task_ids)
                on_ids = self._tasks.on_ids
                if on_ids is not None:
                    for part in answer.instance_task_ids:
                        on_ids(range(part.first, part.first + part.count))
            for spec in specs if self._refused else ():
                self._refused.pop(spec.key, None)
        except grpc.RpcError as e:
            what = f"submitting {batch.tasks} tasks" if batch.tasks != 1 else "submitting a task"
            if errors.reason_of(e) == "SCHEDULER_FULL":
                what += f", tried for {FULL_SECONDS:g} s"
            raise errors.from_rpc(e, what) from None
        except ValueError as e:
            if self._connection.closed:
                raise errors.SchedulerLostError("the client is closed") from e
            raise
        if len(self.sent_functions) > _SENT_FUNCTIONS:
            self.sent_functions.clear()
        self.sent_functions.update(functions)
        self._graphs[trace] = answer.graph_id
        if len(self._graphs) > _SPANS:
            del self._graphs[next(iter(self._graphs))]

    def _submit(self, chunks: list[submission_pb2.SubmitRequest], trace: Trace) -> Any:
        """Sends a submission. Repeats it with the same request_id if the scheduler is away, refuses
        it for the moment, or has no room now."""
        connection = self._connection
        now = time.monotonic()
        refused_until, full_until = now + connection.timeout, now + FULL_SECONDS
        away_until = now + connection.reconnect_timeout
        if connection.silent_since:
            # The outage has begun before: it ends for all tasks together, at the earliest when the
            # time limit of calls has passed.
            away_until = max(connection.silent_since + connection.reconnect_timeout, refused_until)
        pause = 0.05
        while True:
            try:
                return connection.submit(chunks, trace)
            except grpc.RpcError as e:
                now = time.monotonic()
                full = errors.reason_of(e) == "SCHEDULER_FULL"
                code = e.code() if isinstance(e, grpc.Call) else None
                if connection.closed or not (full or code == grpc.StatusCode.UNAVAILABLE):
                    raise
                begins = starting(e)
                if not begins and now > (full_until if full else away_until if broke(e) else refused_until):
                    raise
                if full or begins:
                    away_until, refused_until = now + connection.reconnect_timeout, now + connection.timeout
            if full:
                self._make_room()
            # Random between half and all of the pause, so that clients that were refused together
            # do not come back together.
            connection.ended.wait(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    def _make_room(self) -> None:
        """Sends the releases that are queued behind a submission which the scheduler has no room
        for. Excludes releases of tasks that this submission or later ones need."""
        with contextlib.suppress(Empty):
            while True:
                self._backlog.append(self._commands.get_nowait())
        waiting = [*self._sending, *(c for c in self._backlog if isinstance(c, Unit))]
        needed = {key for unit in waiting for spec in unit.specs for key in (spec.key, *spec.inputs)}
        rest: list[_Command] = []
        for command in self._backlog:
            if isinstance(command, State) and command.id and command.key not in needed:
                self._released.append(command)
            else:
                rest.append(command)
        self._backlog = collections.deque(rest)
        kept = [s for s in self._released if s.key in needed]
        self._released = [s for s in self._released if s.key not in needed]
        self._release()
        self._released = kept

    # ---- releases --------------------------------------------------------------------------------

    def _release(self) -> None:
        released, self._released = self._released, []
        ids = self._tasks.drop(released)
        if ids and not self._give_up(list(ids)):
            with self._holding:
                self._owed.update(ids)
                self._owed_pause = self._owed_pause or 0.1
                self._owed_again = time.monotonic() + self._owed_pause
        elif self._owed and time.monotonic() >= self._owed_again:
            self._repeat()

    def _give_up(self, ids: Sequence[int]) -> bool:
        """Releases tasks. Returns True if the release has arrived or is not needed any more."""
        request = task_calls_pb2.ReleaseTasksRequest(client_id=self._lease.client_id, tasks=task_pb2.TaskSet(ids=ids))
        try:
            self._connection.release(request)
        except grpc.RpcError as e:
            return not isinstance(e, grpc.Call) or e.code() not in _MAY_PASS or self._connection.closed
        except ValueError:  # the channel is closed
            pass
        return True

    def _repeat(self) -> None:
        """Repeats the failed releases, except for tasks that are held again by now."""
        with self._holding:
            for task in self._tasks.held_again(self._owed):
                del self._owed[task]
            while self._owed:
                some = list(itertools.islice(self._owed, BATCH_TASKS))
                if not self._give_up(some):
                    self._owed_pause = min(2 * self._owed_pause, 5.0) or 0.1
                    self._owed_again = time.monotonic() + self._owed_pause
                    return
                for task in some:
                    del self._owed[task]
            self._owed_pause = 0.0

    def settle_releases(self, keys: set[str], timeout: float) -> None:
        """Sends the outstanding releases of these keys before the keys are held again. Otherwise
        the scheduler would take the new hold for the old one, and would not report a task that has
        already ended. Raises SchedulerLostError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not keys.isdisjoint(self._owed.values()):
            self._repeat()
            if not self._owed:
                return
            if self._connection.closed or time.monotonic() > deadline:
                raise errors.SchedulerLostError(
                    f"the scheduler at {self._connection.address} does not take releases of tasks"
                )
            self._connection.ended.wait(min(self._owed_pause, 0.5))
