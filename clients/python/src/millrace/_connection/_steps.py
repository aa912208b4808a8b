"""Operations that wait, written once for threads and for event loops.

Such an operation is a generator. It yields the steps that it waits for, and is sent whether each
came in time. `blocking` makes a function of it that waits in the caller's thread. `drive` waits in
an event loop, where a wait costs no thread: only the code between two steps, which may block, runs
in a thread of a pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from millrace._connection import _slot
from millrace._connection._pool import Pool
from millrace._values._exceptions import hidden

P = ParamSpec("P")
R = TypeVar("R")


def arrival() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Returns a future of the running event loop, and a function that any thread may call to end
    it."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not came.done():
            came.set_result(None)

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle)

    return came, tell


class Step(ABC):
    """An event to wait for, at most `timeout` seconds; None: without a limit."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout

    @abstractmethod
    def _watch(self, call: Callable[[], None]) -> None:
        """Makes a call, in any thread, when the event has happened: at once if it has already."""

    @abstractmethod
    def _forget(self, call: Callable[[], None]) -> None:
        """Makes that call no more, if it was not made."""

    def block(self) -> bool:
        """Waits in this thread. Returns False if the time has passed."""
        came = threading.Event()
        self._watch(came.set)
        try:
            return came.wait(self._timeout)
        finally:
            self._forget(came.set)

    async def arrive(self) -> bool:
        """Waits in the event loop. Returns False if the time has passed."""
        came, tell = arrival()
        self._watch(tell)
        try:
            if came.done():
                return True
            with _slot.awaiting():
                return await self._until(came)
        finally:
            self._forget(tell)

    async def _until(self, came: asyncio.Future[None]) -> bool:
        if self._timeout is None:
            await came
            return True
        done, _ = await asyncio.wait([came], timeout=self._timeout)
        return bool(done)


class Pause(Step):
    """A number of seconds. It is shorter if the client is closed."""

    def __init__(self, seconds: float, ended: threading.Event) -> None:
        super().__init__(seconds)
        self._ended = ended

    def _watch(self, call: Callable[[], None]) -> None:
        if self._ended.is_set():
            call()

    def _forget(self, call: Callable[[], None]) -> None:
        pass

    def block(self) -> bool:
        return self._ended.wait(self._timeout)


#: An operation that waits, and its result.
Steps: TypeAlias = Generator[Step, bool, R]


def run(steps: Steps[R]) -> R:
    """Runs an operation in this thread."""
    try:
        step = next(steps)
        while True:
            step = steps.send(_slot.during(step.block))
    except StopIteration as e:
        return e.value


def blocking(operation: Callable[P, Steps[R]]) -> Callable[P, R]:
    """Makes a function of an operation, with its name, parameters and docstring."""

    @functools.wraps(operation)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return run(operation(*args, **kwargs))
        except BaseException as e:
            raise hidden(e)  # noqa: B904

    signature = inspect.signature(operation)
    result = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    vars(call).update(__signature__=signature.replace(return_annotation=result), operation=operation)
    return call


def operation(function: Callable[P, R]) -> Callable[P, Steps[R]]:
    """Returns the operation that `blocking` has made a function of."""
    return vars(function)["operation"]


def is_blocking(function: Callable[..., object]) -> bool:
    """Returns whether `blocking` has made a function."""
    return "operation" in vars(function)


def making(call: Callable[[], R]) -> Steps[R]:
    """Returns the operation that makes one call. The call may block, but yields no steps."""
    yield from ()
    return call()


def in_loop() -> bool:
    """Returns whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def serve(steps: Steps[R], pool: Pool, asynchronous: bool) -> R:
    """Runs an operation in this thread. For an asynchronous client in an event loop, it returns a
    coroutine for the result instead, as futures and functions of Dask's distributed do."""
    if asynchronous and in_loop():
        coroutine: Any = _hiding(drive(steps, pool))
        return coroutine
    return run(steps)


async def _hiding(coroutine: Coroutine[Any, Any, R]) -> R:
    """Returns the result of a coroutine. Its error has no frames of this package."""
    __tracebackhide__ = True
    try:
        return await coroutine
    except BaseException as e:
        raise hidden(e)  # noqa: B904


async def drive(steps: Steps[R], pool: Pool) -> R:
    """Runs an operation from an event loop."""
    came: bool | None = None
    while True:
        at = await pool.run(functools.partial(_advance, steps, came))
        if isinstance(at, _Result):
            return at.value
        came = await at.arrive()


class _Result(Generic[R]):
    """The result of an operation."""

    def __init__(self, value: R) -> None:
        self.value = value


def _advance(steps: Steps[R], came: bool | None) -> Step | _Result[R]:
    """Runs an operation to its next step or to its end."""
    try:
        return next(steps) if came is None else steps.send(came)
    except StopIteration as e:
        return _Result(e.value)
