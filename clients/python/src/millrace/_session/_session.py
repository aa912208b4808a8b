"""The connection of a client with the scheduler and with workers: its lease, and the parts that
work for it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import grpc

from millrace import errors
from millrace._connection import _slot
from millrace._connection._callbacks import run
from millrace._connection._connection import Connection, broke, starting
from millrace._connection._lease import Lease
from millrace._connection._pool import Pool
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import client_pb2, cluster_pb2, task_calls_pb2, task_pb2, watch_pb2, worker_pb2
from millrace._session import _tracing
from millrace._session._display import TaskLine
from millrace._session._result_holds import ResultHolds
from millrace._session._sender import Sender
from millrace._session._task_output import TaskOutput
from millrace._session._watcher import Watcher
from millrace._session._worker_watch import WorkerWatch
from millrace._task_states._explainer import Explainer
from millrace._task_states._function_cache import FunctionCache
from millrace._task_states._order import Order
from millrace._task_states._recent import RecentTasks
from millrace._task_states._state import Instances, Spec, State, Unit
from millrace._task_states._task_table import TaskTable
from millrace._task_states._waits import Waits
from millrace._transfer._data import DataPlane
from millrace._transfer._locator import Locator
from millrace._values import _keys, _serialize

_log = logging.getLogger("millrace")

#: Most tasks of one request to release tasks.
_MOST_RELEASED = 100_000

API_VERSION = "v1.0"
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
        self,
        address: str,
        token: str,
        *,
        name: str,
        namespace: str,
        timeout: float,
        reconnect_timeout: float = 600.0,
        shared_memory: bool,
        show: Callable[[TaskLine], object] | None = None,
    ) -> None:
        global _used
        if _forked:
            raise errors.SchedulerLostError(_FORKED)
        _used = True
        self._owner: Callable[[], Any] = lambda: None
        #: True if the client with this session is an AsyncClient.
        self.asynchronous = False
        #: Calls to the scheduler.
        self.connection = Connection(address, token, timeout, reconnect_timeout)
        self._opening = client_pb2.OpenClientRequest(
            name=name,
            namespace=namespace,
            api_version=API_VERSION,
            origin="python",
            worker=os.environ.get("MILLRACE_WORKER", "") if os.environ.get("MILLRACE_EXECUTOR") else "",
        )
        try:
            opened = self.connection.open(self._opening)
        except BaseException:
            self.connection.close()
            raise
        self._lease = Lease(address, opened)
        self._tasks = TaskTable(self._lease)
        # Held while the lease is replaced, while tasks are held by key, and while a release is
        # repeated: these operations exclude each other. Taken before `changed`.
        self._holding = threading.RLock()
        renew = partial(self._renew_in_time, timeout=reconnect_timeout)
        self._sender = Sender(self.connection, self._lease, self._tasks, renew, self._holding)
        self._watcher = Watcher(self.connection, self._lease, self._tasks, self._renew, self._before, self._cluster_end)
        self._explainer = Explainer(self.connection)
        self._result_holds = ResultHolds(self.connection, self._lease, self._tasks, self.release)
        self._make_parts(share=shared_memory)
        #: Called with positions of topics; returns when all messages up to there were handled.
        self.on_messages: Callable[[Sequence[watch_pb2.TopicPosition]], None] | None = None
        #: The output of the tasks; None if it is not shown.
        self.output: TaskOutput | None = None
        if show is not None:
            self.output = TaskOutput(
                self.connection, self._locator, self.namespace, self._tasks.pending, self.order, show
            )
            self._tasks.on_ids, self._tasks.on_early = self.output.submitted, self.output.precede
        _sessions.add(self)
        _slot.clients.add(self)
        for part in (self._sender, self._watcher):
            part.thread.start()

    def _make_parts(self, *, share: bool) -> None:
        """Makes the parts that have locks or threads of their own, and no state that a forked child
        needs."""
        connection = self.connection
        #: Pickled functions for their next use.
        self.functions = FunctionCache()
        #: Tasks that were submitted lately.
        self.recent = RecentTasks()
        #: Threads for calls that block, for programs with an event loop.
        self.pool = Pool()
        #: Waits for tasks.
        self.waits = Waits(self._tasks, self._explainer, self.pool, connection.ended, self._in_own_thread)
        #: Waits for workers.
        self.worker_watch = WorkerWatch(connection)
        #: Waits for drains: its stream has the objects that stay, and the deaths.
        self.drain_watch = WorkerWatch(connection, worker_pb2.WORKER_VIEW_FULL)
        self._locator = Locator(connection)
        self._data = DataPlane(
            self._locator, self.waits, self._confirm_lease, connection.token, connection.metadata, share=share
        )

    # ---- the lease -------------------------------------------------------------------------------

    @property
    def owner(self) -> Any:
        """The client with this session; None if it was freed without being closed."""
        return self._owner()

    def belongs_to(self, client: object, *, asynchronous: bool = False) -> None:
        """Notes the client with this session. With `asynchronous`, the futures' methods return
        coroutines in event loops."""
        self._owner, self.asynchronous = weakref.ref(client), asynchronous

    @property
    def address(self) -> str:
        """Address of the scheduler."""
        return self.connection.address

    @property
    def client_id(self) -> int:
        """Number of the client's lease."""
        return self._lease.client_id

    @property
    def namespace(self) -> str:
        """Namespace of the client's keys."""
        return self._lease.namespace

    @property
    def life(self) -> int:
        """Random number of the scheduler process."""
        return self._lease.life

    @property
    def silent_since(self) -> float:
        """Monotonic time since which the scheduler has not answered; 0: it answers."""
        return self.connection.silent_since

    @property
    def renewals(self) -> int:
        """How many times the lease was replaced."""
        return self._lease.renewals

    @property
    def renewed_because(self) -> str:
        """The reason why the lease was replaced the last time."""
        return self._lease.renewed_because

    @property
    def cluster(self) -> Any:
        """The scheduler's description of the cluster."""
        return self._lease.cluster

    @property
    def http_address(self) -> str:
        """Address of the HTTP port of the scheduler that leads; empty if it has none."""
        if self.connection.schedulers == 1:
            return self.cluster.http_address
        # Another one may lead than when the lease was opened.
        return self.call("GetClusterInfo", cluster_pb2.GetClusterInfoRequest()).cluster.http_address

    @property
    def order(self) -> Order:
        """Delays the ends of tasks."""
        return self._tasks.order

    def _before(self, response: watch_pb2.WatchResponse) -> None:
        """Lets the user have what tasks have published and written before their ends."""
        if response.topics and self.on_messages is not None:
            self.on_messages(response.topics)
        if self.output is not None:
            self.output.precede(response.tasks)

    @property
    def changed(self) -> threading.Condition:
        """Guards every State. Notified when tasks have ended."""
        return self._tasks.changed

    def call(self, method: str, request: Any, *, timeout: float | None = None, keys: Iterable[str] = ()) -> Any:
        """See `Connection.call`. Opens a new lease if the scheduler does not know this one."""
        try:
            return self.connection.call(method, request, timeout=timeout, keys=keys)
        except errors.MillraceError as e:
            if e.reason == "UNKNOWN_CLIENT" and getattr(request, "client_id", 0) == self.client_id:
                with contextlib.suppress(grpc.RpcError):
                    self._renew_in_time(self.client_id)  # then later calls succeed
            raise

    def replace_lease(self, client_id: int) -> None:
        """Opens a new lease, after the scheduler has said that it does not know this one."""
        try:
            self._renew_in_time(client_id)
        except grpc.RpcError as e:
            raise errors.from_rpc(e, f"cannot join the cluster at {self.address} again") from None

    def check_open(self) -> None:
        """Raises SchedulerLostError if the session is closed."""
        self.connection.check_open()

    def orphan(self) -> None:
        """Makes this session, a copy in a forked child, refuse all calls. Takes no lock, because
        threads of the parent may have held them at the fork."""
        self.connection.closed, self.connection.why = True, _FORKED
        self._tasks.orphan(errors.SchedulerLostError(_FORKED))
        _inherited.append((self.connection, self._watcher.stream, self._data, self._sender.orphan()))
        self._make_parts(share=False)

    def _confirm_lease(self) -> None:
        """Renews the lease, or opens a new one if the scheduler does not know it."""
        with contextlib.suppress(errors.MillraceError):
            self.call("RenewClient", client_pb2.RenewClientRequest(client_id=self.client_id))

    def _renew(self, client_id: int) -> None:
        """Opens a new lease if the scheduler does not know the old one, because the scheduler was
        restarted or the lease expired. Tasks that the old lease held are lost. Submissions that
        were not sent yet are sent with the new lease."""
        with self._holding:
            if self.closed or client_id != self.client_id:
                return  # another thread has renewed it
            opened = self.connection.open_again(self._opening)
            # The parts forget the old lease first, so that none of them uses it with new ids.
            self._result_holds.lease_replaced()
            self._sender.lease_replaced()
            self._locator.lease_replaced()
            if self.output is not None:
                self.output.lease_replaced()
            calls = self._tasks.replace_lease(opened)
            self._watcher.cancel()  # the stream may still wait with the old lease
        name = f"client {self._opening.name}" if self._opening.name else "a client without a name"
        _log.warning("%s at %s: new lease, because %s", name, self.address, self._lease.renewed_because)
        run(calls)

    def _renew_in_time(self, client_id: int, timeout: float | None = None) -> None:
        """Is `_renew`, repeated if the connection breaks, for the time limit of calls, or `timeout`
        seconds. The thread of updates does not use it: it repeats `_renew` itself, and reports a
        scheduler that is away."""
        limit = self.connection.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        pause = 0.02
        while True:
            try:
                return self._renew(client_id)
            except grpc.RpcError as e:
                begins = starting(e)
                if self.closed or not broke(e) or (not begins and time.monotonic() > deadline):
                    raise
                if begins:
                    deadline = time.monotonic() + limit
            self.connection.ended.wait(pause)
            pause = min(2 * pause, 0.5)

    def _cluster_end(self) -> str:
        """Returns why the client's local cluster has ended; empty if it has not, or if the client
        has joined another cluster."""
        owner = self.owner
        client = owner.sync if owner is not None and self.asynchronous else owner
        cluster = None if client is None else client.cluster
        try:
            if cluster is not None:
                cluster.check()
        except errors.ClusterStartError as e:
            return str(e)
        return ""

    def _in_own_thread(self) -> bool:
        """Returns whether the caller runs in a thread that delivers updates or commands: a wait
        there would wait for itself."""
        return threading.current_thread() in (self._sender.thread, self._watcher.thread)

    # ---- tasks -----------------------------------------------------------------------------------

    def state(self, key: str, *, data: bool = False) -> tuple[State, bool]:
        """See `TaskTable.state`."""
        return self._tasks.state(key, data=data)

    def held(self) -> list[State]:
        """See `TaskTable.held`."""
        return self._tasks.held()

    def references(self) -> dict[Any, int]:
        """Returns the number of references to each state, by the user's key."""
        return {_keys.from_wire(key): count for key, count in self._tasks.references().items()}

    def release(self, state: State) -> None:
        """Drops a reference to a state. Takes no lock, because the garbage collector calls it."""
        self._sender.release(state)

    def submit(self, specs: list[Spec], *, wait: bool = False) -> None:
        """Queues tasks that are accepted or refused together. With `wait`, waits for the answer and
        raises the error if they were refused."""
        self.check_open()
        self.recent.add(specs)
        unit = Unit(specs, _tracing.current())
        self._sender.put(unit)
        if wait:
            self._sender.wait_for(unit.acknowledged)
            if unit.failure is not None:
                raise unit.failure

    def submit_instances(self, specs: list[Spec], instances: Instances) -> None:
        """Queues instances of templates. `specs`: the tasks that futures hold."""
        self.check_open()
        self._sender.put(Unit(specs, _tracing.current(), instances))

    def abandon(self, states: list[State], error: BaseException) -> None:
        """Fails states whose tasks will not be submitted, so that waits for them end."""
        self._tasks.fail(states, error)

    def forget(self, states: list[State], error: BaseException) -> None:
        """Fails states, and ends the client's holds on their tasks: results are freed, and tasks
        that nobody else needs are stopped."""
        self.flush()
        ids = self._tasks.give_up(states, error)
        for first in range(0, len(ids), _MOST_RELEASED):
            some = task_pb2.TaskSet(ids=ids[first : first + _MOST_RELEASED])
            self.call("ReleaseTasks", task_calls_pb2.ReleaseTasksRequest(client_id=self.client_id, tasks=some))

    def flush(self) -> None:
        """Waits until everything queued so far was sent and answered."""
        self._sender.flush()

    @property
    def graphs(self) -> list[int]:
        """See `Sender.graphs`."""
        return self._sender.graphs

    def when_done(self, state: State, callback: Callable[[], object], *, may_wait: bool = False) -> None:
        """See `TaskTable.when_done`."""
        self._tasks.when_done(state, callback, may_wait=may_wait)

    def wait(self, states: Sequence[State], timeout: float | None, first: bool = False) -> bool:
        """See `Waits.wait`."""
        return self.waits.wait(states, timeout, first)

    def why(self, state: State) -> str:
        """See `Explainer.why`."""
        return self._explainer.why(state)

    def settle_cancelled(self, states: Sequence[State], reason: str) -> None:
        """Waits until the states of cancelled tasks are cancelled. A task that other clients hold
        continues for them; here its state is cancelled too, because this client's hold has
        ended."""
        if self._in_own_thread() or self.wait(states, 0.05):
            return
        pending = [s for s in states if not s.done and s.id]
        places, _ = self._locator.locate([s.id for s in pending])
        going_on = [s for s, o in zip(pending, places, strict=True) if o.state not in _DONE_STATES]
        self._tasks.end_here(going_on, reason)
        self.wait(states, max(self.connection.timeout, 5.0))

    def settle_unknown(self, states: Sequence[State]) -> None:
        """Raises NotFoundError if the scheduler does not know tasks that are to be cancelled. Tasks
        that have ended are no error; the report of their end may still be on its way, so this waits
        for it."""
        if self._in_own_thread() or self.wait(states, 1.0):
            return
        for state in states:
            if not state.done:
                raise errors.NotFoundError(
                    f"cannot cancel {_keys.from_wire(state.key)!r}: the scheduler has no such task any more, or others alone hold it; submit it again "
                    f"if its result is wanted"
                )

    def hold_with_result(self, task: int, state: State) -> None:
        """Holds a task as long as the result of another task, `task`, exists."""
        if _slot.current is not None:
            _slot.current.keep_process()
        self._result_holds.add(task, state)

    def hold(self, key: str) -> State:
        """Returns a state for a key that another process submitted. Holds its task if this client
        does not hold it already."""
        return self.hold_all([key])[0]

    def hold_later(self, key: str) -> State:
        """Is `hold` for an event loop: it does not wait. If the task is unknown, the state fails."""
        state, is_new = self.state(key)
        if is_new:
            self.pool.submit(partial(self._hold_or_fail, state))
        return state

    def _hold_or_fail(self, state: State) -> None:
        try:
            self._hold_new([state])
        except BaseException as e:
            self._tasks.fail([state], e)

    def hold_all(self, keys: Sequence[str]) -> list[State]:
        """Is `hold` for at most 100,000 keys, with one call. If one of the tasks is unknown, none
        is held."""
        states = [self.state(key) for key in keys]
        new = [state for state, is_new in states if is_new]
        if new:
            try:
                self._hold_new(new)
            except errors.MillraceError as e:
                self._tasks.fail(new, e)
                for state, is_new in states:
                    if not is_new:
                        self.release(state)
                raise
        return [state for state, _ in states]

    def _hold_new(self, states: list[State]) -> None:
        """Holds the tasks of new states."""
        # A release of the same key that is still queued must not end the new hold, so it is sent
        # first.
        self.flush()
        with self._holding:
            self._sender.settle_releases({s.key for s in states}, self.connection.timeout)
            client_id = self.client_id
            tasks = task_pb2.TaskSet(keys=[s.key for s in states])
            request = task_calls_pb2.HoldTasksRequest(client_id=client_id, tasks=tasks)
            with self._tasks.flight():
                answer = self.call("HoldTasks", request, keys=tasks.keys)
                specs = [Spec(s.key, (0, "", b""), [], b"", b"", s) for s in states]
                self._tasks.acknowledge(client_id, specs, answer.task_ids, -1)

    # ---- data ------------------------------------------------------------------------------------

    def workers(self, fresh: bool = True, timeout: float | None = None) -> list[worker_pb2.Worker]:
        """See `Locator.workers`."""
        return self._locator.workers(fresh, timeout)

    def listed_workers(self, view: worker_pb2.WorkerView = worker_pb2.WORKER_VIEW_BASIC) -> list[worker_pb2.Worker]:
        """Returns all workers but the lost ones. `view`: their fields."""
        return self._locator.list_workers([], view)

    def worker_channel(self, address: str) -> grpc.Channel:
        """See `DataPlane.channel`."""
        return self._data.channel(address)

    def scatter(
        self,
        states: Sequence[State],
        objects: Sequence[_serialize.Encoded],
        targets: Callable[[], Steps[Sequence[worker_pb2.Worker]]],
    ) -> Steps[None]:
        """See `DataPlane.scatter`."""
        return self._data.scatter(states, objects, targets)

    def fetch(self, states: Sequence[State], timeout: float | None, copy: bool = False) -> Steps[list[Any]]:
        """See `DataPlane.fetch`."""
        return self._data.fetch(states, timeout, copy)

    def paths(self) -> dict[str, str]:
        """See `DataPlane.paths`."""
        return self._data.paths()

    # ---- the end ---------------------------------------------------------------------------------

    def close(self, *, shutdown: bool = False, timeout: float = 5.0) -> None:
        """Ends the lease and the threads. Waiting futures fail. It waits at most `timeout` seconds
        for each of these: the scheduler, a worker, and a thread."""
        if self.output is not None and not self.closed:
            self.output.end()
        with self.changed:
            if self.closed:
                return
            # Set before the streams end, so that their end is not taken for a failure.
            self.connection.closed = True
        self.connection.ended.set()
        self.order.end()
        self._tasks.lose("the client was closed")
        refused: errors.MillraceError | None = None
        try:
            self.connection.end_lease(self.client_id, shutdown=shutdown, timeout=timeout)
        except errors.MillraceError as e:
            refused = e
        self._sender.end()
        self._watcher.cancel()
        for part in (self._sender, self._watcher):
            if part.thread is not threading.current_thread():
                part.thread.join(timeout)
        self._tasks.callbacks.end(timeout)
        self._sender.refuse()
        self.connection.close()
        self._data.close()
        self.pool.close()
        _sessions.discard(self)
        if refused is not None:
            raise refused

    @property
    def forked(self) -> bool:
        """True if this is the copy of a session in a forked child."""
        return self.connection.why is _FORKED

    @property
    def closed(self) -> bool:
        """True if the lease has ended."""
        return self.connection.closed
