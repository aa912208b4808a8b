"""The tasks of a client as far as it knows them, and waits for their end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from millrace import errors
from millrace._connection._callbacks import CallbackThread, run
from millrace._connection._lease import Lease
from millrace._pb.millrace.v1 import client_pb2, error_pb2, task_pb2, watch_pb2
from millrace._task_states._order import Order
from millrace._task_states._state import Spec, State
from millrace._values import _keys


class TaskTable:
    """The states of tasks by key and by id. All waits use one condition variable."""

    def __init__(self, lease: Lease) -> None:
        # Guarded by `changed`.
        self._lease = lease
        #: Guards every State, the lease, and all attributes of this object. Notified when tasks
        #: have ended.
        self.changed = threading.Condition(threading.RLock())
        self._states: dict[str, State] = {}
        self._by_id: dict[int, State] = {}
        # Updates that arrived before the response to their submission, by task id. Kept while calls
        # are in progress that return task ids (`_in_flight`).
        self._early: dict[int, task_pb2.TaskUpdate] = {}
        self._in_flight = 0
        #: Watch revision of the last message that was received.
        self.revision = 0
        # Ids of the tasks in the snapshot that is being received.
        self._snapshot: set[int] = set()
        # The keys of all tasks at the end of the lease before; empty: there was none.
        self._lost: set[str] = set()
        #: Delays the ends of tasks.
        self.order = Order()
        #: Called with the ids of each answer to a submission, and then with the updates of tasks
        #: with output that came before the answer; both before the tasks end here.
        self.on_ids: Callable[[Sequence[int]], object] | None = None
        self.on_early: Callable[[Sequence[task_pb2.TaskUpdate]], object] | None = None
        #: The thread of the user's callbacks.
        self.callbacks = CallbackThread()

    def orphan(self, error: BaseException) -> None:
        """Fails all tasks that have not ended. Takes no lock: for a forked child, where threads of
        the parent may have held it at the fork."""
        self.changed, self.order = threading.Condition(threading.RLock()), Order()
        for state in list(self._states.values()):
            if not state.done:
                state.failure = error

    # ---- the table -------------------------------------------------------------------------------

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

    def pending(self) -> bool:
        """Returns whether held tasks have not ended."""
        with self.changed:
            return any(not state.done for state in self._by_id.values())

    def held(self) -> list[State]:
        """Returns all states, with one more reference each."""
        with self.changed:
            states = [s for s in self._states.values() if s.refs > len(s.releases)]
            for state in states:
                state.refs += 1
            return states

    def references(self) -> dict[str, int]:
        """Returns the number of references to each state, by key."""
        with self.changed:
            counts = ((s.key, s.refs - len(s.releases)) for s in self._states.values())
            return {key: count for key, count in counts if count > 0}

    def waits(self) -> bool:
        """Returns whether there are tasks that have not ended, also tasks that were not accepted
        yet."""
        with self.changed:
            return any(not state.done for state in self._states.values())

    def held_again(self, ids: Iterable[int]) -> set[int]:
        """Returns those of these tasks that are held."""
        with self.changed:
            return {i for i in ids if i in self._by_id}

    def drop(self, released: Sequence[State]) -> dict[int, str]:
        """Drops one reference to each of these states. Returns the tasks without any reference, by
        id, with their keys."""
        ids: dict[int, str] = {}
        with self.changed:
            for state in released:
                state.refs -= 1
                del state.releases[:1]
                if state.refs > 0:
                    continue
                if self._states.get(state.key) is state:
                    del self._states[state.key]
                if state.id and self._by_id.get(state.id) is state:
                    del self._by_id[state.id]
                    ids[state.id] = state.key
        return ids

    # ---- changes ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def flight(self) -> Iterator[None]:
        """Surrounds a call that returns task ids, and `acknowledge` for its answer: updates for
        unknown ids are kept meanwhile."""
        with self.changed:
            self._in_flight += 1
        try:
            yield
        finally:
            with self.changed:
                self._in_flight -= 1
                if not self._in_flight:
                    self._early.clear()

    def acknowledge(
        self, client_id: int, specs: list[Spec], task_ids: Sequence[int], revision: int, failed: Iterable[int] = ()
    ) -> None:
        """Notes the ids of accepted tasks. `client_id`: the lease that they were submitted with.
        `revision`: the Watch revision at which they were accepted; negative: unknown. `failed`:
        those that had failed before and do not run again."""
        if self.on_ids is not None and client_id == self._lease.client_id:
            self.on_ids(task_ids)
        shown = set[int]()
        while True:
            with self.changed:
                if client_id != self._lease.client_id:  # the lease that held the tasks is gone
                    raise errors.SchedulerLostError(self._lease.gone())
                early = self._with_output(task_ids, shown)
                if not early or self.on_early is None:
                    calls = self._accept(specs, task_ids, revision, frozenset(failed))
                    break
            self.on_early(early)
            shown.update(u.task_id for u in early)
        run(calls)

    def _with_output(self, task_ids: Sequence[int], shown: set[int]) -> list[task_pb2.TaskUpdate]:
        """Returns those updates that came before the answer to their submission, and whose tasks have
        written output that was not shown. REQUIRES: the lock."""
        if not self._early:
            return []
        early = (self._early.get(i) for i in task_ids if i not in shown)
        return [u for u in early if u is not None and u.log_worker_id]

    def _accept(
        self, specs: list[Spec], task_ids: Sequence[int], revision: int, old: frozenset[int]
    ) -> list[Callable[[], object]]:
        """Notes the ids of accepted tasks. Returns the callbacks that the caller must run, without
        any lock. REQUIRES: the lock."""
        calls: list[Callable[[], object]] = []
        ended = False
        for spec, task_id in zip(specs, task_ids, strict=True):
            state = spec.state
            if state is None:
                continue
            state.id, state.revision, state.joined_failure = task_id, revision, task_id in old
            self._by_id[task_id] = state
            update = self._early.pop(task_id, None)
            if update is not None:
                ended = self._apply(state, update, calls) or ended
        if ended:
            self.changed.notify_all()
        return calls

    def fail(self, states: Iterable[State], error: BaseException) -> None:
        """Fails tasks whose submission failed, so that waits for them end."""
        calls: list[Callable[[], object]] = []
        with self.changed:
            for state in states:
                state.failure = error
                if self._states.get(state.key) is state:
                    del self._states[state.key]
                calls += state.callbacks
                state.callbacks = {}
            self.changed.notify_all()
        run(calls)

    def give_up(self, states: Iterable[State], error: BaseException) -> list[int]:
        """Fails tasks, also those that have succeeded, and forgets them. Returns their ids: the
        caller ends the holds of the client."""
        held = list(states)
        with self.changed:
            ids = [state.id for state in held if state.id]
            for state in held:
                self._by_id.pop(state.id, None)
                state.id = 0
                state.inline = None
        self.fail(held, error)
        return ids

    def lose(self, message: str) -> None:
        """Fails all tasks that have not ended."""
        calls: list[Callable[[], object]] = []
        with self.changed:
            for state in self._states.values():
                if not state.done:
                    state.failure = errors.SchedulerLostError(message)
                    calls += state.callbacks
                    state.callbacks = {}
            self.changed.notify_all()
        run(calls)

    def replace_lease(self, opened: client_pb2.OpenClientResponse) -> list[Callable[[], object]]:
        """Takes over a new lease. Tasks that the old lease held are lost, except for results that
        are here already. Returns the callbacks that the caller must run, without any lock."""
        calls: list[Callable[[], object]] = []
        with self.changed:
            self._lease.replace(opened)
            self._lost = {*self._states, *(s.key for s in self._by_id.values())}
            lost = {id(s): s for s in (*self._states.values(), *self._by_id.values()) if s.id}
            for state in lost.values():
                state.id = 0
                if self._states.get(state.key) is state:
                    del self._states[state.key]
                if not state.done or (state.state == task_pb2.TASK_STATE_SUCCEEDED and state.inline is None):
                    state.failure = errors.SchedulerLostError(f"{_keys.from_wire(state.key)!r}: {self._lease.gone()}")
                    calls += state.callbacks
                    state.callbacks = {}
            self._by_id.clear()
            self._early.clear()
            self.revision = 0
            self._snapshot = set()
            self.changed.notify_all()
        return calls

    def loss(self, keys: Iterable[str]) -> errors.SchedulerLostError | None:
        """Returns the error of the first of the tasks that the lease before held; None if it held
        none of them."""
        for key in keys:
            if key in self._lost:
                return errors.SchedulerLostError(f"{_keys.from_wire(key)!r}: {self._lease.gone()}")
        return None

    def begin_snapshot(self) -> None:
        """Forgets the tasks of a snapshot whose stream has ended in the middle of it."""
        with self.changed:
            self._snapshot = set()

    def receive(self, response: watch_pb2.WatchResponse, client_id: int) -> None:
        """Applies a message of the Watch stream. `client_id`: the lease that the stream is of."""
        calls: list[Callable[[], object]] = []
        ended = False
        with self.changed:
            if client_id != self._lease.client_id:
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
                    self.revision = response.revision
            if ended:
                self.changed.notify_all()
        run(calls)

    def _forget_others(self, revision: int, calls: list[Callable[[], object]]) -> bool:
        """Fails the tasks that a complete snapshot does not list. A snapshot lists every task of
        this client as of its revision, so a task that was known before that revision and is missing
        does not exist any more. REQUIRES: the lock."""
        seen, self._snapshot = self._snapshot, set()
        gone = [s for i, s in self._by_id.items() if i not in seen and 0 <= s.revision < revision and not s.done]
        for state in gone:
            state.failure = errors.SchedulerLostError(f"{_keys.from_wire(state.key)!r}: {self._lease.gone()}")
            calls += state.callbacks
            state.callbacks = {}
        return bool(gone)

    def _apply(self, state: State, update: task_pb2.TaskUpdate, calls: list[Callable[[], object]]) -> bool:
        """Updates a state from the scheduler's report. Returns whether the task has ended.
        REQUIRES: the lock."""
        state.state = update.state
        state.nbytes, state.worker, state.generation = update.output_bytes, update.worker_id, update.generation
        state.inline = update.inline_result if update.inline_result else None
        before, state.error = state.error, update.error if update.HasField("error") else None
        # The states between may be missing: another error is one of a later run.
        state.joined_failure &= update.state == task_pb2.TASK_STATE_FAILED and before in (None, state.error)
        if state.done:
            calls += state.callbacks
            state.callbacks = {}
        return state.done

    def end_here(self, states: Iterable[State], reason: str) -> None:
        """Cancels the states of tasks that go on without this client."""
        calls: list[Callable[[], object]] = []
        with self.changed:
            for state in states:
                if state.done:
                    continue
                self._by_id.pop(state.id, None)
                error = error_pb2.TaskError(reason="CANCELLED", message=reason or "cancelled by request")
                update = task_pb2.TaskUpdate(state=task_pb2.TASK_STATE_CANCELLED, error=error)
                self._apply(state, update, calls)
            self.changed.notify_all()
        run(calls)

    # ---- waiting ---------------------------------------------------------------------------------

    def when_done(self, state: State, callback: Callable[[], object], *, may_wait: bool = False) -> None:
        """Calls `callback` once the task has ended: at once if it has, else in the thread that
        receives updates. With `may_wait` it is called in a separate thread for callbacks. This is
        necessary for a callback that may wait, for example for another future, because the
        receiving thread must go on to deliver updates."""
        with self.changed:
            if not state.done:
                state.callbacks[partial(self.callbacks.soon, callback) if may_wait else callback] = None
                return
        run([callback])

    def watch(self, states: Iterable[State], callback: Callable[[], object]) -> int:
        """Makes a call when one of these tasks ends, once for each that has not ended yet. Returns
        their number. The call is made in the thread that receives updates."""
        with self.changed:
            pending = [s for s in states if not s.done]
            for state in pending:
                state.callbacks[callback] = None
            return len(pending)

    def forget(self, states: Iterable[State], callback: Callable[[], object]) -> None:
        """Takes back a call of `watch`."""
        with self.changed:
            for state in states:
                state.callbacks.pop(callback, None)

    def wait(self, states: Sequence[State], deadline: float | None, first: bool = False) -> list[State]:
        """Waits until all states (or, with `first`, one of them) have ended, or until the monotonic
        time `deadline`. Returns those that have not ended; none if the wait has succeeded."""
        left = list(states)
        with self.order.waiting(), self.changed:
            while True:
                pending = [s for s in left if not s.done]
                if not pending or (first and len(pending) < len(states)):
                    return []
                left = pending
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return left
                self.changed.wait(None if deadline is None else deadline - now)
