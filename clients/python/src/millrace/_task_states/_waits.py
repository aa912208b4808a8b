"""Waits for the end of tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from millrace._connection import _slot
from millrace._connection._pool import Pool
from millrace._connection._steps import Pause, Step, arrival
from millrace._task_states._explainer import Explainer
from millrace._task_states._state import State
from millrace._task_states._task_table import TaskTable

#: Seconds after which the scheduler is asked whether a task that is waited for can run at all.
NOTICE_SECONDS = 5.0


class Waits:
    """Waits for the tasks of one client, in threads or in event loops.

    Args:
        tasks: the states of the tasks.
        explainer: warns of tasks that can never run.
        pool: threads for calls that block.
        ended: set when the client is closed.
        delivers: returns whether the caller's thread delivers updates: a wait there would wait for
            itself, and a question to the scheduler would delay the updates.
    """

    def __init__(
        self,
        tasks: TaskTable,
        explainer: Explainer,
        pool: Pool,
        ended: threading.Event,
        delivers: Callable[[], bool],
    ) -> None:
        self.tasks, self.pool = tasks, pool
        self._explainer, self._ended, self._delivers = explainer, ended, delivers
        # Monotonic time of the last question for a wait in an event loop.
        self._asked_at = 0.0

    def wait(self, states: Sequence[State], timeout: float | None, first: bool = False) -> bool:
        """Waits until all states (or, with `first`, one of them) have ended; False on timeout.
        Warns of tasks that can never run."""
        deadline = None if timeout is None else time.monotonic() + timeout
        notice = time.monotonic() + NOTICE_SECONDS
        while True:
            left = self.tasks.wait(states, notice if deadline is None else min(notice, deadline), first)
            if not left:
                return True
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return False
            if now >= notice:
                self.warn(left)
                notice = time.monotonic() + 6 * NOTICE_SECONDS

    async def end_of(self, state: State) -> None:
        """Waits in the event loop until one task has ended. It warns of nothing: programs wait for
        10,000 tasks so, each in a coroutine of its own."""
        came, tell = arrival()
        if self.tasks.watch((state,), tell):
            try:
                with _slot.awaiting():
                    await came
            finally:
                self.tasks.forget((state,), tell)

    def may_warn(self) -> bool:
        """Returns whether a wait in an event loop may ask for warnings now: one may each second, so
        that 10,000 of them do not ask 10,000 questions."""
        now = time.monotonic()
        if now - self._asked_at < 1.0:
            return False
        self._asked_at = now
        return True

    def warn(self, pending: Sequence[State]) -> None:
        """Warns of tasks that can never run."""
        if not self._delivers():
            self._explainer.warn(pending)

    def ended(self, states: Sequence[State], timeout: float | None, first: bool = False) -> Ended:
        """Returns the step of `wait`."""
        return Ended([(self, states)], timeout, first)

    def pause(self, seconds: float) -> Pause:
        """Returns a step that takes some time."""
        return Pause(seconds, self._ended)


class Ended(Step):
    """The end of tasks, of one client or of several: of all of them, or with `first` of one."""

    def __init__(
        self, groups: Sequence[tuple[Waits, Sequence[State]]], timeout: float | None, first: bool = False
    ) -> None:
        super().__init__(timeout)
        self._groups = [(waits, list({id(s): s for s in states}.values())) for waits, states in groups]
        self._first = first
        self._countdowns: dict[Callable[[], None], _Countdown] = {}

    def block(self) -> bool:
        if len(self._groups) == 1:
            waits, states = self._groups[0]
            return waits.wait(states, self._timeout, self._first)
        if self._first:
            return not self._groups or super().block()
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        for waits, states in self._groups:
            if not waits.wait(states, None if deadline is None else max(deadline - time.monotonic(), 0.0)):
                return False
        return True

    def _watch(self, call: Callable[[], None]) -> None:
        total = sum(len(states) for _, states in self._groups)
        if not total:
            call()
            return
        countdown = self._countdowns[call] = _Countdown(1 if self._first else total, call)
        for waits, states in self._groups:
            for _ in range(len(states) - waits.tasks.watch(states, countdown)):
                countdown()  # a task that has ended already

    def _forget(self, call: Callable[[], None]) -> None:
        countdown = self._countdowns.pop(call, None)
        if countdown is not None and (self._first or countdown.left):
            for waits, states in self._groups:
                waits.tasks.forget(states, countdown)

    async def _until(self, came: asyncio.Future[None]) -> bool:
        """As `Waits.wait`, with warnings of tasks that can never run."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        notice = NOTICE_SECONDS
        while True:
            left = notice if deadline is None else min(notice, max(deadline - time.monotonic(), 0.0))
            done, _ = await asyncio.wait([came], timeout=left)
            if done:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            for waits, states in self._groups:
                if waits.may_warn():
                    await waits.pool.run(partial(waits.warn, [s for s in states if not s.done][:3]))
            notice = 6 * NOTICE_SECONDS


class _Countdown:
    """Makes a call when it was called itself for a number of times."""

    __slots__ = ("_call", "_lock", "left")

    def __init__(self, times: int, call: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self.left, self._call = times, call

    def __call__(self) -> None:
        with self._lock:
            self.left -= 1
            ended = not self.left
        if ended:
            self._call()
