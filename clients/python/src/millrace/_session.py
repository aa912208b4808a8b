"""The connection between a client and the scheduler: one queue of commands out, one stream of
updates in.

`submit` and the release of a future put commands into the queue. One thread sends all waiting
commands as one request, so calls are batched only while the scheduler is busy, and a single call is
sent at once. Another thread reads the Watch stream and updates the states of tasks. All waits use
one condition variable.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import random
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from millrace import _check, _keys, _serialize, errors
from millrace._data import DataPlane
from millrace._pb.millrace.v1 import (
    scheduler_service_pb2,
    scheduler_service_pb2_grpc,
    task_pb2,
    worker_pb2,
)
from millrace._state import Function, OpKey, Spec, State, Unit

_log = logging.getLogger("millrace")

API_VERSION = "v1.0"
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
#: Most tasks and bytes of one request; a larger submission is streamed in chunks.
_BATCH_TASKS, _BATCH_BYTES = 50_000, 16 << 20
#: Most functions of one request, and most digests of functions that are remembered as sent.
_BATCH_FUNCTIONS, _SENT_FUNCTIONS = 5_000, 100_000
#: Bytes of pickled functions that are kept for their next use. Others are pickled again.
_FUNCTION_BYTES = 64 << 20
#: Releases are delayed, to batch them and to let submissions go first: up to `_LINGER` seconds
#: while nothing else is to be sent, ten times as long in any case, or until there are `_RELEASES`
#: of them.
_LINGER, _RELEASES = 0.005, 10_000
#: Seconds after which a thread that waits for a task asks the scheduler whether the task can run at
#: all.
NOTICE_SECONDS = 5.0
#: Interval in seconds at which a client in a task's process asks which results with futures in them
#: still exist.
HANDED_SECONDS = 5.0
#: How long a submission is repeated while the scheduler has no room for it, in seconds.
FULL_SECONDS = 300.0
_MAY_PASS = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
_DONE_STATES = (task_pb2.TASK_STATE_SUCCEEDED, task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_CANCELLED)

#: The error of a client in a child of fork: gRPC's threads do not exist there, so a call would
#: never return.
_FORKED = (
    "this process was forked from one that has used a Millrace client, and gRPC does not work in such a child: "
    'start processes by the method "spawn" or "forkserver" (multiprocessing.set_start_method), and open a client there'
)
_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
# Objects inherited from the parent process. They are never used and never freed: closing them here
# would end the parent's streams.
_inherited: list[Any] = []


# `_used`: a client was opened in this process. `_forked`: this process is a child of such a
# process, and cannot open one. It does not matter whether the client was closed before the fork: a
# channel that is made in the child can hang in gRPC all the same.
_used = False
_forked = False


def _after_fork() -> None:
    """Marks the sessions of the parent as unusable. Runs in the child."""
    global _forked
    _forked = _used or _forked
    for session in list(_sessions):
        session.orphan()


os.register_at_fork(after_in_child=_after_fork)


class Session:
    """One client lease, with its connection and threads."""

    def __init__(
        self, address: str, token: str, *, name: str, namespace: str, timeout: float, shared_memory: bool
    ) -> None:
        global _used
        if _forked:
            raise errors.SchedulerLostError(_FORKED)
        _used = True
        self.address, self.token, self.timeout = address, token, timeout
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self.stub = scheduler_service_pb2_grpc.SchedulerServiceStub(self._channel)
        self._submit_batch = self._channel.unary_unary(
            "/millrace.v1.SchedulerService/SubmitBatch",
            request_serializer=scheduler_service_pb2.SubmitRequest.SerializeToString,
            response_deserializer=scheduler_service_pb2.SubmitBatchResponse.FromString,
        )
        # Guards every State, and the attributes below whose comments name no other guard or owner.
        # Notified when states change.
        self.changed = threading.Condition(threading.RLock())
        self._states: dict[str, State] = {}
        self._by_id: dict[int, State] = {}
        # Updates that arrived before the response to their submission, by task id. Kept while calls
        # are in progress that return task ids (`_in_flight`).
        self._early: dict[int, task_pb2.TaskUpdate] = {}
        self._in_flight = 0
        # Pickled functions by digest, the most recently used one last.
        self._functions: collections.OrderedDict[bytes, Function] = collections.OrderedDict()
        self._function_bytes = 0
        self._sent_functions: set[bytes] = set()
        # NB: SimpleQueue.put is reentrant: the garbage collector may release futures at any
        # instruction.
        self._commands: SimpleQueue[Unit | State | threading.Event | None] = SimpleQueue()
        # Three lists that only the sending thread uses. `_backlog`: commands that were taken out of
        # `_commands` and must be sent before the rest. `_sending`: units that are being sent.
        # `_released`: states to release.
        self._backlog: collections.deque[Unit | State | threading.Event | None] = collections.deque()
        self._sending: list[Unit] = []
        self._released: list[State] = []
        # Tasks whose release failed, by id, with their keys; and the time and delay of the next
        # attempt. Guarded by _renewing.
        self._owed: dict[int, str] = {}
        self._owed_again, self._owed_pause = 0.0, 0.0
        # Held while a lease is renewed, while tasks are held by key, and while a release is
        # repeated: these operations exclude each other.
        self._renewing = threading.RLock()
        #: How many times the lease was renewed, and the reason for the last renewal.
        self.renewals, self.renewed_because = 0, ""
        #: Monotonic time since which the scheduler has not answered; 0: it answers.
        self.silent_since = 0.0
        # Ids of the tasks in the snapshot that is being received.
        self._snapshot: set[int] = set()
        self._graph = 0
        self._revision = 0
        self._closed = False
        # The error message of calls after the session is closed.
        self._why = "the client is closed"
        self._watch: Any = None
        # Set when the session is closed.
        self._ended = threading.Event()
        # Futures in the results of tasks that ran in this process, by task id.
        self._handed: dict[int, dict[int, State]] = {}
        self._keeper: threading.Thread | None = None
        # The user's callbacks, and the thread that runs them; None ends the thread.
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._caller: threading.Thread | None = None
        self._calls_ended = False
        self._explained_at = 0.0
        self._workers: dict[int, worker_pb2.Worker] = {}
        self._workers_at = 0.0
        self._data = DataPlane(self, share=shared_memory)
        self._opening = scheduler_service_pb2.OpenClientRequest(
            name=name,
            namespace=namespace,
            api_version=API_VERSION,
            origin="python",
            worker=os.environ.get("MILLRACE_WORKER", "") if os.environ.get("MILLRACE_EXECUTOR") else "",
        )
        try:
            opened = self._until_reachable(self._opening)
        except BaseException:
            self._channel.close()
            raise
        self.client_id: int = opened.client.client_id
        self.namespace: str = opened.client.namespace
        self.cluster = opened.cluster
        #: Random number of the scheduler process: ids of clients and tasks are valid only for one
        #: such process.
        self.life: int = opened.cluster.life
        self._threads = [
            threading.Thread(target=self._send_loop, name="millrace-send", daemon=True),
            threading.Thread(target=self._watch_loop, name="millrace-watch", daemon=True),
        ]
        _sessions.add(self)
        for thread in self._threads:
            thread.start()

    def _until_reachable(self, request: Any) -> Any:
        deadline = time.monotonic() + self.timeout
        pause = 0.05
        while True:
            left = deadline - time.monotonic()
            try:
                return self.stub.OpenClient(request, metadata=self.metadata, timeout=max(left, 0.1))
            except grpc.RpcError as e:
                # wait_for_ready would report only a timeout, without the cause.
                refused = isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.UNAVAILABLE
                if not refused or time.monotonic() + pause > deadline:
                    raise errors.from_rpc(e, f"cannot join the cluster at {self.address}") from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def call(self, method: str, request: Any, *, timeout: float | None = None) -> Any:
        """Makes a unary call, and translates errors."""
        self.check_open()
        limit = timeout or max(self.timeout, 30.0)
        name = errors.call_name(method)
        try:
            return getattr(self.stub, method)(request, metadata=self.metadata, timeout=limit, wait_for_ready=True)
        except grpc.RpcError as e:
            if isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.DEADLINE_EXCEEDED and not errors.reason_of(e):
                raise errors.SchedulerLostError(
                    f"{name}: the scheduler at {self.address} gave no answer within {limit:g} s: "
                    "see with 'millrace status' whether it runs and can be reached"
                ) from None
            if errors.reason_of(e) == "UNKNOWN_CLIENT" and getattr(request, "client_id", 0) == self.client_id:
                with contextlib.suppress(grpc.RpcError):
                    self._renew(self.client_id)  # then later calls succeed
            raise errors.from_rpc(e, name, [getattr(request, "key", "")]) from None
        except ValueError as e:  # grpcio's error for a closed channel
            raise errors.SchedulerLostError(f"{name}: the client is closed") from e

    def check_open(self) -> None:
        """Raises SchedulerLostError if the session is closed."""
        if self._closed:
            raise errors.SchedulerLostError(self._why)

    def orphan(self) -> None:
        """Makes this session, a copy in a forked child, refuse all calls. Takes no lock, because
        threads of the parent may have held them at the fork."""
        self._closed, self._why = True, _FORKED
        self.changed = threading.Condition(threading.RLock())
        for state in list(self._states.values()):
            if not state.done:
                state.failure = errors.SchedulerLostError(_FORKED)
        _inherited.append((self._channel, self.stub, self._watch, self._data, self._commands))
        self._data, self._commands = DataPlane(self, share=False), SimpleQueue()

    # ---- out -------------------------------------------------------------------------------------

    def state(self, key: str, *, data: bool = False) -> tuple[State, bool]:
        """Returns the state of a key, with one more reference. The flag is True if the state is new
        and the task must be submitted."""
        with self.changed:
            state = self._states.get(key)
            # A key can be submitted again if its task was cancelled or its submission failed, and
            # scattered data also if they were lost.
            if (
                state is None
                or state.failure is not None
                or state.state == task_pb2.TASK_STATE_CANCELLED
                or (data and state.error is not None and state.error.reason == "OBJECT_LOST")
            ):
                state = self._states[key] = State(key)
                state.refs = 1
                return state, True
            state.refs += 1
            return state, False

    def again(self, state: State) -> None:
        """Adds a reference to a state."""
        with self.changed:
            state.refs += 1

    def release(self, state: State) -> None:
        """Drops a reference to a state. Takes no lock, because the garbage collector calls it."""
        if not self._closed:
            self._commands.put(state)

    def add_function(self, digest: bytes, function: Function) -> None:
        """Keeps a pickled function for later uses. Drops the least recently used ones if there is
        no room."""
        with self.changed:
            if digest not in self._functions:
                self._functions[digest] = function
                self._function_bytes += len(function[0])
            while self._function_bytes > _FUNCTION_BYTES and len(self._functions) > 1:
                self._function_bytes -= len(self._functions.popitem(last=False)[1][0])

    def function(self, digest: bytes) -> Function | None:
        """Returns a pickled function that was kept, or None."""
        with self.changed:
            found = self._functions.get(digest)
            if found is not None:
                self._functions.move_to_end(digest)
            return found

    def submit(self, specs: list[Spec], *, wait: bool = False) -> None:
        """Queues tasks that are accepted or refused together. With `wait`, waits for the answer and
        raises the error if they were refused."""
        self.check_open()
        unit = Unit(specs)
        self._commands.put(unit)
        if wait:
            self._await(unit.acknowledged)
            if unit.failure is not None:
                raise unit.failure

    def abandon(self, states: list[State], error: BaseException) -> None:
        """Fails states whose tasks will not be submitted, so that waits for them end."""
        self._fail(states, error)

    def flush(self) -> None:
        """Waits until everything queued so far was sent and answered."""
        done = threading.Event()
        self._commands.put(done)
        self._await(done)

    def _await(self, answered: threading.Event) -> None:
        """Waits for the sending thread. Raises if that thread has ended: commands queued after its
        end are never answered."""
        while not answered.wait(1.0 if not self._closed else 0.0):
            if self._closed and not self._threads[0].is_alive():
                self.check_open()

    def _send_loop(self) -> None:
        since = 0.0  # when the first of _released was queued
        while True:
            try:
                command = self._next(self._linger())
            except Empty:
                self._release()
                continue
            units: list[Unit] = []
            flushed: list[threading.Event] = []
            tasks = 0
            end = False
            while True:
                if command is None:
                    end = True
                    break
                if isinstance(command, Unit):
                    units.append(command)
                    tasks += len(command.specs)
                elif isinstance(command, State):
                    if not self._released:
                        since = time.monotonic()
                    self._released.append(command)
                else:
                    flushed.append(command)
                if tasks >= _BATCH_TASKS or len(self._released) >= _BATCH_TASKS:
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
                return
            released = self._released
            if released and (flushed or len(released) >= _RELEASES or time.monotonic() - since > 10 * _LINGER):
                self._release()
            for event in flushed:
                event.set()

    def _next(self, timeout: float | None) -> Unit | State | threading.Event | None:
        if self._backlog:
            return self._backlog.popleft()
        return self._commands.get(timeout=timeout) if timeout != 0 else self._commands.get_nowait()

    def _linger(self) -> float | None:
        """Returns how long to wait for the next command: a short time if there are releases to
        send, else until failed releases are repeated; None: no limit."""
        if self._released:
            return _LINGER
        return max(self._owed_again - time.monotonic(), 0.001) if self._owed else None

    def _send(self, units: list[Unit]) -> None:
        """Sends units. Each one succeeds or fails independently."""
        try:
            self._transmit([spec for unit in units for spec in unit.specs])
        except BaseException as e:
            if len(units) > 1 and not isinstance(e, (errors.SchedulerLostError, errors.SchedulerFullError)):
                # One of the units is the cause. The halves are sent in order, because a later unit
                # may need the result of an earlier one.
                half = len(units) // 2
                self._send(units[:half])
                self._send(units[half:])
                return
            self._fail([s.state for u in units for s in u.specs if s.state is not None], e)
            for unit in units:
                unit.failure = e
        for unit in units:
            unit.acknowledged.set()

    def _transmit(self, specs: list[Spec]) -> None:
        client_id = self.client_id
        try:
            self._transmit_as(client_id, specs)
        except errors.MillraceError as e:
            if e.reason != "UNKNOWN_CLIENT" or self._closed:
                raise
        else:
            return
        try:
            self._renew(client_id)
        except grpc.RpcError as e:
            raise errors.from_rpc(e, f"opening a new lease for {len(specs)} tasks") from None
        self._transmit_as(self.client_id, specs)

    def _transmit_as(self, client_id: int, specs: list[Spec]) -> None:
        if self._owed:
            self._settle_releases({spec.key for spec in specs})
        ops: dict[OpKey, int] = {}
        options: dict[bytes, int] = {}
        chunks: list[scheduler_service_pb2.SubmitRequest] = []
        chunk = scheduler_service_pb2.SubmitRequest()
        chunk.header.client_id, chunk.header.request_id = client_id, uuid.uuid4().hex
        chunk.header.graph_id = self._graph
        size = count = 0
        functions: dict[bytes, Function] = {}
        for spec in specs:
            weight = len(spec.arguments) + len(spec.key) + sum(map(len, spec.inputs)) + 16
            digest = spec.op[2]
            if digest and digest not in functions:
                assert spec.function is not None
                functions[digest] = spec.function
                if digest not in self._sent_functions:
                    payload, language = spec.function
                    if size + len(payload) > _BATCH_BYTES or len(chunk.functions) == _BATCH_FUNCTIONS:
                        chunks.append(chunk)
                        chunk, size, count = scheduler_service_pb2.SubmitRequest(), 0, 0
                    chunk.functions.add(hash=digest, payload=payload, language=language)
                    size += len(payload)
            if count == _BATCH_TASKS or (size and size + weight > _BATCH_BYTES):
                chunks.append(chunk)
                chunk, size, count = scheduler_service_pb2.SubmitRequest(), 0, 0
            op = ops.get(spec.op)
            if op is None:
                op = ops[spec.op] = len(ops)
                kind, name, digest = spec.op
                chunk.ops.add(kind=kind, name=name, function=digest)  # pyright: ignore[reportArgumentType]
            rules = 0
            if spec.options:
                rules = options.get(spec.options, 0)
                if not rules:
                    rules = options[spec.options] = len(options) + 1
                    chunk.options.append(task_pb2.TaskOptions.FromString(spec.options))
            chunk.tasks.add(
                key=spec.key,
                op_index=op,
                inputs=spec.inputs,
                packed_arguments=spec.arguments,
                options_index=rules,
                hold=spec.state is not None,
            )
            size += weight
            count += 1
        chunks.append(chunk)
        self._begin_flight()
        try:
            answer = self._submit(chunks)
            if answer.missing_functions:
                # The scheduler has forgotten these functions, and accepted no task.
                chunks[1:1] = _carrying((digest, *functions[digest]) for digest in answer.missing_functions)
                answer = self._submit(chunks)
            self._acknowledge(client_id, specs, answer.task_ids, answer.revision)
            if len(self._sent_functions) > _SENT_FUNCTIONS:
                self._sent_functions.clear()
            self._sent_functions.update(functions)
            self._graph = self._graph or answer.graph_id
        except grpc.RpcError as e:
            what = f"submitting {len(specs)} tasks"
            if errors.reason_of(e) == "SCHEDULER_FULL":
                what += f", tried for {FULL_SECONDS:g} s"
            raise errors.from_rpc(e, what) from None
        except ValueError as e:
            if self._closed:
                raise errors.SchedulerLostError("the client is closed") from e
            raise
        finally:
            self._end_flight()

    def _begin_flight(self) -> None:
        with self.changed:
            self._in_flight += 1

    def _end_flight(self) -> None:
        with self.changed:
            self._in_flight -= 1
            if not self._in_flight:
                self._early.clear()

    def _submit(self, chunks: list[scheduler_service_pb2.SubmitRequest]) -> Any:
        """Sends a submission. Repeats it with the same request_id if the scheduler cannot be
        reached, or has no room now."""
        now = time.monotonic()
        deadline, full_deadline = now + self.timeout, now + FULL_SECONDS
        pause = 0.05
        while True:
            try:
                if len(chunks) == 1:
                    # SubmitBatchRequest has the same fields, so the chunk is sent without a copy of
                    # the tasks.
                    return self._submit_batch(chunks[0], metadata=self.metadata, timeout=300.0)
                return self.stub.Submit(iter(chunks), metadata=self.metadata, timeout=600.0)
            except grpc.RpcError as e:
                now = time.monotonic()
                full = errors.reason_of(e) == "SCHEDULER_FULL"
                code = e.code() if isinstance(e, grpc.Call) else None
                if self._closed or not (full or code == grpc.StatusCode.UNAVAILABLE):
                    raise
                if now > (full_deadline if full else deadline):
                    raise
                if full:
                    deadline = now + self.timeout
            if full:
                self._make_room()
            # Random between half and all of the pause, so that clients that were refused together
            # do not come back together.
            self._ended.wait(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, 1.0)

    def _make_room(self) -> None:
        """Sends the releases that are queued behind a submission which the scheduler has no room
        for. Excludes releases of tasks that this submission or later ones need."""
        with contextlib.suppress(Empty):
            while True:
                self._backlog.append(self._commands.get_nowait())
        waiting = [*self._sending, *(c for c in self._backlog if isinstance(c, Unit))]
        needed = {key for unit in waiting for spec in unit.specs for key in (spec.key, *spec.inputs)}
        rest: list[Unit | State | threading.Event | None] = []
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

    def _acknowledge(self, client_id: int, specs: list[Spec], task_ids: Sequence[int], revision: int) -> None:
        calls: list[Callable[[], object]] = []
        ended = False
        with self.changed:
            if client_id != self.client_id:  # the lease that held the tasks is gone
                raise errors.SchedulerLostError(self._gone())
            for spec, task_id in zip(specs, task_ids, strict=True):
                state = spec.state
                if state is None:
                    continue
                state.id, state.revision = task_id, revision
                self._by_id[task_id] = state
                update = self._early.pop(task_id, None)
                if update is not None:
                    ended = self._apply(state, update, calls) or ended
            if ended:
                self.changed.notify_all()
        _run(calls)

    def _fail(self, states: Iterable[State], error: BaseException) -> None:
        calls: list[Callable[[], object]] = []
        with self.changed:
            for state in states:
                state.failure = error
                if self._states.get(state.key) is state:
                    del self._states[state.key]
                calls += state.callbacks
                state.callbacks = []
            self.changed.notify_all()
        _run(calls)

    def _release(self) -> None:
        ids: dict[int, str] = {}
        released, self._released = self._released, []
        with self.changed:
            for state in released:
                state.refs -= 1
                if state.refs > 0:
                    continue
                if self._states.get(state.key) is state:
                    del self._states[state.key]
                if state.id and self._by_id.get(state.id) is state:
                    del self._by_id[state.id]
                    ids[state.id] = state.key
        if ids and not self._give_up(list(ids)):
            with self._renewing:
                self._owed.update(ids)
                self._owed_pause = self._owed_pause or 0.1
                self._owed_again = time.monotonic() + self._owed_pause
        elif self._owed and time.monotonic() >= self._owed_again:
            self._repeat()

    def _give_up(self, ids: Sequence[int]) -> bool:
        """Releases tasks. Returns True if the release has arrived or is not needed any more."""
        request = scheduler_service_pb2.ReleaseTasksRequest(client_id=self.client_id, task_ids=ids)
        try:
            self.stub.ReleaseTasks(request, metadata=self.metadata, timeout=30.0)
        except grpc.RpcError as e:
            return not isinstance(e, grpc.Call) or e.code() not in _MAY_PASS or self._closed
        except ValueError:  # the channel is closed
            pass
        return True

    def _repeat(self) -> None:
        """Repeats the failed releases, except for tasks that are held again by now."""
        with self._renewing:
            with self.changed:
                self._owed = {i: key for i, key in self._owed.items() if i not in self._by_id}
            while self._owed:
                some = list(itertools.islice(self._owed, _BATCH_TASKS))
                if not self._give_up(some):
                    self._owed_pause = min(2 * self._owed_pause, 5.0) or 0.1
                    self._owed_again = time.monotonic() + self._owed_pause
                    return
                for task in some:
                    del self._owed[task]
            self._owed_pause = 0.0

    def _settle_releases(self, keys: set[str]) -> None:
        """Sends the outstanding releases of these keys before the keys are held again. Otherwise
        the scheduler would take the new hold for the old one, and would not report a task that has
        already ended."""
        deadline = time.monotonic() + self.timeout
        while not keys.isdisjoint(self._owed.values()):
            self._repeat()
            if not self._owed:
                return
            if self._closed or time.monotonic() > deadline:
                raise errors.SchedulerLostError(f"the scheduler at {self.address} does not take releases of tasks")
            self._ended.wait(min(self._owed_pause, 0.5))

    # ---- in --------------------------------------------------------------------------------------

    def _watch_loop(self) -> None:
        pause = 0.05
        told = False  # futures were failed because the scheduler is away
        while not self._closed:
            client_id = self.client_id
            request = scheduler_service_pb2.WatchRequest(
                client_id=client_id, after_revision=self._revision, life=self.life
            )
            code, reason = grpc.StatusCode.UNAVAILABLE, ""
            try:
                self._snapshot = set()
                self._watch = self.stub.Watch(request, metadata=self.metadata)
                for response in self._watch:
                    if response.life and response.life != self.life:
                        reason = "UNKNOWN_CLIENT"
                        self._watch.cancel()
                        break
                    self.silent_since, pause, told = 0.0, 0.05, False
                    self._receive(response, client_id)
            except grpc.RpcError as e:
                code, reason = e.code() if isinstance(e, grpc.Call) else None, errors.reason_of(e)
            except ValueError:
                return  # the channel was closed
            if self._closed:
                return
            if reason == "UNKNOWN_CLIENT" or code == grpc.StatusCode.NOT_FOUND:
                try:
                    self._renew(client_id)
                    continue
                except grpc.RpcError as e:
                    code = e.code() if isinstance(e, grpc.Call) else None
                except ValueError:
                    return
            if code == grpc.StatusCode.OUT_OF_RANGE:
                self._revision = 0  # the revision is too old: begin with a snapshot
                continue
            now = time.monotonic()
            self.silent_since = self.silent_since or now
            refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            if not told and (refused or now - self.silent_since > self.timeout):
                told = True
                self._lose(f"the scheduler at {self.address} is gone, or does not take this client any more ({code})")
            self._ended.wait(pause)
            pause = min(pause * 2, 1.0)

    def _renew(self, client_id: int) -> None:
        """Opens a new lease if the scheduler does not know the old one, because the scheduler was
        restarted or the lease expired. Tasks that the old lease held are lost. Submissions that
        were not sent yet are sent with the new lease."""
        with self._renewing:
            if self._closed or client_id != self.client_id:
                return  # another thread has renewed it
            opened = self.stub.OpenClient(self._opening, metadata=self.metadata, timeout=max(self.timeout, 1.0))
            calls: list[Callable[[], object]] = []
            with self.changed:
                anew = opened.cluster.life != self.life
                self.renewals += 1
                self.renewed_because = "the scheduler was started anew" if anew else "its lease had run out"
                lost = {id(s): s for s in (*self._states.values(), *self._by_id.values()) if s.id}
                for state in lost.values():
                    state.id = 0
                    if self._states.get(state.key) is state:
                        del self._states[state.key]
                    if not state.done or (state.state == task_pb2.TASK_STATE_SUCCEEDED and state.inline is None):
                        state.failure = errors.SchedulerLostError(f"{_keys.from_wire(state.key)!r}: {self._gone()}")
                        calls += state.callbacks
                        state.callbacks = []
                self._by_id.clear()
                self._early.clear()
                self._handed.clear()
                self._sent_functions.clear()
                self._owed.clear()
                self._workers = {}
                self._graph = self._revision = 0
                self._snapshot = set()
                self.client_id, self.life, self.cluster = opened.client.client_id, opened.cluster.life, opened.cluster
                self.silent_since = 0.0
                self.changed.notify_all()
            if self._watch is not None:
                self._watch.cancel()  # the stream may still wait with the old lease
        _log.warning("client %s at %s: new lease, because %s", self._opening.name, self.address, self.renewed_because)
        _run(calls)

    def _gone(self) -> str:
        return (
            f"the scheduler at {self.address} does not know it any more, because {self.renewed_because or 'it was released'}: "
            "submit it again"
        )

    def _receive(self, response: scheduler_service_pb2.WatchResponse, client_id: int) -> None:
        calls: list[Callable[[], object]] = []
        ended = False
        with self.changed:
            if client_id != self.client_id:
                return  # the message belongs to a lease that was given up
            for update in response.tasks:
                state = self._by_id.get(update.task_id)
                if (
                    state is not None
                    and self._in_flight
                    and state.done
                    and self._states.get(state.key, state) is not state
                ):
                    state = None  # resubmitted: the update is for the new state
                if state is not None:
                    ended = self._apply(state, update, calls) or ended
                elif self._in_flight:
                    self._early[update.task_id] = update
            if response.snapshot:
                self._snapshot.update(u.task_id for u in response.tasks)
            if not response.more:
                if response.snapshot:
                    ended = self._forget_others(response.revision, calls) or ended
                if response.revision:
                    self._revision = response.revision
            if ended:
                self.changed.notify_all()
        _run(calls)

    def _forget_others(self, revision: int, calls: list[Callable[[], object]]) -> bool:
        """Fails the tasks that a complete snapshot does not list. A snapshot lists every task of
        this client as of its revision, so a task that was known before that revision and is missing
        does not exist any more. REQUIRES: the lock."""
        seen, self._snapshot = self._snapshot, set()
        gone = [s for i, s in self._by_id.items() if i not in seen and 0 <= s.revision < revision and not s.done]
        for state in gone:
            state.failure = errors.SchedulerLostError(f"{_keys.from_wire(state.key)!r}: {self._gone()}")
            calls += state.callbacks
            state.callbacks = []
        return bool(gone)

    def _apply(self, state: State, update: task_pb2.TaskUpdate, calls: list[Callable[[], object]]) -> bool:
        """Updates a state from the scheduler's report. Returns whether the task has ended.
        REQUIRES: the lock."""
        state.state = update.state
        state.nbytes, state.worker, state.generation = update.output_bytes, update.worker_id, update.generation
        state.inline = update.inline_result if update.inline_result else None
        state.error = update.error if update.HasField("error") else None
        if state.done:
            calls += state.callbacks
            state.callbacks = []
        return state.done

    def _lose(self, message: str) -> None:
        calls: list[Callable[[], object]] = []
        with self.changed:
            for state in self._states.values():
                if not state.done:
                    state.failure = errors.SchedulerLostError(message)
                    calls += state.callbacks
                    state.callbacks = []
            self.changed.notify_all()
        _run(calls)

    def when_done(self, state: State, callback: Callable[[], object], *, may_wait: bool = False) -> None:
        """Calls `callback` once the task has ended: at once if it has, else in the thread that
        receives updates. With `may_wait` it is called in a separate thread for callbacks. This is
        necessary for a callback that may wait, for example for another future, because the
        receiving thread must go on to deliver updates."""
        with self.changed:
            if not state.done:
                state.callbacks.append(partial(self._call_soon, callback) if may_wait else callback)
                return
        _run([callback])

    def _call_soon(self, callback: Callable[[], object]) -> None:
        with self.changed:
            if not self._calls_ended:
                self._calls.put(callback)
                if self._caller is None:
                    self._caller = threading.Thread(target=self._run_calls, name="millrace-callbacks", daemon=True)
                    self._caller.start()
                return
        _run([callback])

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            _run([call])

    def wait(self, states: Sequence[State], timeout: float | None, first: bool = False) -> bool:
        """Waits until all states (or, with `first`, one of them) have ended; False on timeout.
        Warns of tasks that can never run."""
        deadline = None if timeout is None else time.monotonic() + timeout
        notice = time.monotonic() + NOTICE_SECONDS
        left = list(states)
        while True:
            with self.changed:
                while True:
                    pending = [s for s in left if not s.done]
                    if not pending or (first and len(pending) < len(states)):
                        return True
                    left = pending
                    now = time.monotonic()
                    if deadline is not None and now >= deadline:
                        return False
                    if now >= notice:
                        break
                    self.changed.wait((notice if deadline is None else min(notice, deadline)) - now)
            self._warn(left)
            notice = time.monotonic() + 6 * NOTICE_SECONDS

    def _warn(self, pending: Sequence[State]) -> None:
        """Warns, once per task, of tasks that no worker can run. Checks only the first three."""
        if threading.current_thread() in self._threads:
            return
        for state in pending[:3]:
            why = self._explain(state, 2.0)
            if why and not state.warned:
                state.warned = True
                warnings.warn(
                    f"still waiting for {_keys.from_wire(state.key)!r}: {why}", stacklevel=_check.outside_stacklevel()
                )

    def why(self, state: State) -> str:
        """Returns the reason why a task can never run. Empty if it may run, or if no thread has
        waited long enough to ask."""
        if state.done or self._closed:
            return ""
        now = time.monotonic()
        if now - state.since > 1.0 and now - self._explained_at > 0.1:
            self._explained_at = now
            self._explain(state, 0.5)
        return "" if state.done else state.why

    def _explain(self, state: State, timeout: float) -> str:
        """Asks the scheduler why a task waits. If it waits for an input, also why the input
        waits."""
        task = state.id
        for _ in range(8):
            if not task:
                break
            request = scheduler_service_pb2.ExplainTaskRequest(task_id=task)
            try:
                found = self.stub.ExplainTask(request, metadata=self.metadata, timeout=timeout)
            except (grpc.RpcError, ValueError):
                return state.why
            if found.reason == "INPUTS_MISSING" and found.missing:
                task = found.missing[0].task_id
                continue
            blocked = found.reason in ("NO_WORKER_FITS", "NO_WORKERS")
            input_ = "" if task == state.id else f"its input {_keys.from_wire(found.task.key)!r}: "
            said = _keys.named(found.explanation, (m.key for m in found.missing))
            state.why = f"{input_}{found.reason}: {said}" if blocked else ""
            return state.why
        state.why = ""
        return ""

    def settle_cancelled(self, states: Sequence[State], reason: str) -> None:
        """Waits until the states of cancelled tasks are cancelled. A task that other clients hold
        continues for them; here its state is cancelled too, because this client's hold has
        ended."""
        if threading.current_thread() in self._threads:
            return  # this thread would wait for itself
        if self.wait(states, 0.05):
            return
        pending = [s for s in states if not s.done and s.id]
        for at in range(0, len(pending), 100_000):
            some = pending[at : at + 100_000]
            request = scheduler_service_pb2.LocateObjectsRequest(task_ids=[s.id for s in some])
            ended = _DONE_STATES
            gone = [
                s
                for s, o in zip(some, self.call("LocateObjects", request).objects, strict=True)
                if o.state not in ended
            ]
            calls: list[Callable[[], object]] = []
            with self.changed:
                for state in gone:
                    if state.done:
                        continue
                    self._by_id.pop(state.id, None)
                    error = task_pb2.TaskError(reason="CANCELLED", message=reason or "cancelled by request")
                    update = task_pb2.TaskUpdate(state=task_pb2.TASK_STATE_CANCELLED, error=error)
                    self._apply(state, update, calls)
                self.changed.notify_all()
            _run(calls)
        self.wait(states, max(self.timeout, 5.0))

    def settle_unknown(self, states: Sequence[State]) -> None:
        """Raises NotFoundError if the scheduler does not know tasks that are to be cancelled. Tasks
        that have ended are no error; the report of their end may still be on its way, so this waits
        for it."""
        if threading.current_thread() in self._threads or self.wait(states, 1.0):
            return
        for state in states:
            if not state.done:
                raise errors.NotFoundError(
                    f"cannot cancel {_keys.from_wire(state.key)!r}: the scheduler has no such task any more, or others alone hold it; submit it again "
                    f"if its result is wanted"
                )

    def hand_over(self, task: int, state: State) -> None:
        """Holds a task that the result of another task refers to, as long as that result exists.
        Each reader of the result takes a hold of its own."""
        with self.changed:
            kept = self._handed.setdefault(task, {})
            if id(state) in kept:
                return
            kept[id(state)] = state
            state.refs += 1
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep_handed, name="millrace-handed", daemon=True)
                self._keeper.start()

    def _keep_handed(self) -> None:
        while not self._ended.wait(HANDED_SECONDS):
            with self.changed:
                tasks = list(self._handed)[:100_000]
                life = self.life
            if not tasks:
                continue
            try:
                located = self.call("LocateObjects", scheduler_service_pb2.LocateObjectsRequest(task_ids=tasks))
            except errors.MillraceError:
                continue
            gone = (
                task_pb2.TASK_STATE_UNSPECIFIED,
                task_pb2.TASK_STATE_RELEASED,
                task_pb2.TASK_STATE_FAILED,
                task_pb2.TASK_STATE_CANCELLED,
            )
            with self.changed:
                if life != self.life:
                    continue
                states = [
                    s
                    for t, o in zip(tasks, located.objects, strict=True)
                    if o.state in gone
                    for s in self._handed.pop(t, {}).values()
                ]
            for state in states:
                self.release(state)

    def hold(self, key: str) -> State:
        """Returns a state for a key that another process submitted. Holds its task if this client
        does not hold it already."""
        state, new = self.state(key)
        if not new:
            return state
        # A release of the same key that is still queued must not end the new hold, so it is sent
        # first.
        self.flush()
        with self._renewing:
            self._settle_releases({key})
            client_id = self.client_id
            request = scheduler_service_pb2.HoldTasksRequest(client_id=client_id, keys=[key])
            self._begin_flight()
            try:
                answer = self.call("HoldTasks", request)
                spec = Spec(key, (0, "", b""), [], b"", b"", state)
                self._acknowledge(client_id, [spec], answer.task_ids, -1)
            except errors.MillraceError as e:
                self._fail([state], e)
                raise
            finally:
                self._end_flight()
        return state

    # ---- data ------------------------------------------------------------------------------------

    def workers(self, fresh: bool = True) -> list[worker_pb2.Worker]:
        """Returns the active workers. Without `fresh`, an answer that is less than one second old
        may be returned."""
        with self.changed:
            if not fresh and self._workers and time.monotonic() - self._workers_at < 1.0:
                return list(self._workers.values())
        found: dict[int, worker_pb2.Worker] = {}
        token = ""
        while True:
            page = self.call(
                "ListWorkers",
                scheduler_service_pb2.ListWorkersRequest(
                    page_size=1000, page_token=token, states=[worker_pb2.WORKER_STATE_ACTIVE]
                ),
            )
            found.update((w.worker_id, w) for w in page.workers)
            token = page.next_page_token
            if not token:
                break
        with self.changed:
            self._workers, self._workers_at = found, time.monotonic()
        return list(found.values())

    def known_addresses(self) -> dict[int, str]:
        """Returns the data addresses of workers by id, as of the last answer. Workers that are gone
        may be among them."""
        with self.changed:
            return {w.worker_id: w.data_address for w in self._workers.values()}

    def scatter(
        self,
        states: Sequence[State],
        objects: Sequence[_serialize.Encoded],
        targets: Callable[[], Sequence[worker_pb2.Worker]],
    ) -> None:
        """See `DataPlane.scatter`."""
        self._data.scatter(states, objects, targets)

    def fetch(self, states: Sequence[State], timeout: float | None, copy: bool = False) -> list[Any]:
        """See `DataPlane.fetch`."""
        return self._data.fetch(states, timeout, copy)

    def paths(self) -> dict[str, str]:
        """See `DataPlane.paths`."""
        return self._data.paths()

    def close(self, *, shutdown: bool = False, patience: float = 5.0) -> None:
        """Ends the lease and the threads. Waiting futures fail. It waits at most `patience` seconds
        each for the scheduler, a worker or a thread to answer."""
        with self.changed:
            if self._closed:
                return
            # Set before the streams end, so that their end is not taken for a failure.
            self._closed = True
        self._ended.set()
        self._lose("the client was closed")
        refused: errors.MillraceError | None = None
        try:
            if shutdown:
                self.stub.Shutdown(
                    scheduler_service_pb2.ShutdownRequest(reason="asked by a client"),
                    metadata=self.metadata,
                    timeout=patience,
                )
            else:
                self.stub.CloseClient(
                    scheduler_service_pb2.CloseClientRequest(client_id=self.client_id),
                    metadata=self.metadata,
                    timeout=patience,
                )
        except grpc.RpcError as e:
            if isinstance(e, grpc.Call) and e.code() == grpc.StatusCode.PERMISSION_DENIED:
                refused = errors.from_rpc(e, "shutdown")
        except ValueError:  # the channel is closed already
            pass
        self._commands.put(None)
        if self._watch is not None:
            self._watch.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(patience)
        with self.changed:
            self._calls_ended = True
            self._calls.put(None)
        if self._caller is not None and self._caller is not threading.current_thread():
            self._caller.join(patience)
        while True:  # commands whose senders wait for an answer that will not come
            try:
                command = self._commands.get_nowait()
            except Empty:
                break
            if isinstance(command, Unit):
                command.failure = errors.SchedulerLostError("the client was closed")
                command.acknowledged.set()
            elif isinstance(command, threading.Event):
                command.set()
        self._channel.close()
        self._data.close()
        _sessions.discard(self)
        if refused is not None:
            raise refused

    @property
    def forked(self) -> bool:
        """True if this is the copy of a session in a forked child."""
        return self._why is _FORKED

    @property
    def closed(self) -> bool:
        """True if the lease has ended."""
        return self._closed


def _carrying(functions: Iterable[tuple[bytes, bytes, str]]) -> list[scheduler_service_pb2.SubmitRequest]:
    """Returns chunks of a submission that carry functions."""
    chunks: list[scheduler_service_pb2.SubmitRequest] = []
    size = 0
    for digest, payload, language in functions:
        if not chunks or size + len(payload) > _BATCH_BYTES or len(chunks[-1].functions) == _BATCH_FUNCTIONS:
            chunks.append(scheduler_service_pb2.SubmitRequest())
            size = 0
        chunks[-1].functions.add(hash=digest, payload=payload, language=language)
        size += len(payload)
    return chunks


def _run(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        try:
            call()
        except Exception:  # a user's callback must not end the thread that it runs on
            _log.exception("a callback of a future failed")
