"""The event loop of a client, for programs that give work to `client.loop`.

Executors import this module, but not asyncio, until a task asks for a loop.
"""

from __future__ import annotations

import concurrent.futures
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from millrace import _check
from millrace._check import Seconds

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class EventLoop:
    """An asyncio event loop, with the methods of Tornado's loop that programs for Dask's
    distributed call. Its thread starts with the first work, and ends with the process.

    Args:
        loop: a loop that runs already, instead of one in a thread of its own.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._lock = threading.Lock()
        self._loop = loop

    @property
    def asyncio_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of asyncio."""
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="millrace-loop", daemon=True).start()
            return self._loop

    @property
    def runs_here(self) -> bool:
        """Whether this is the loop that runs in the caller's thread."""
        import asyncio

        try:
            return asyncio.get_running_loop() is self.asyncio_loop
        except RuntimeError:
            return False

    def add_callback(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Makes a call in the loop. If it returns a coroutine, that runs there, too."""
        loop = self.asyncio_loop

        def call() -> None:
            result = callback(*args, **kwargs)
            if inspect.iscoroutine(result):
                running = loop.create_task(result)
                _running.add(running)
                running.add_done_callback(_running.discard)

        loop.call_soon_threadsafe(call)

    def call(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        asynchronous: bool | None,
        timeout: float | None,
    ) -> Any:
        """Calls a coroutine function, awaits its result in the loop, and returns that. With
        `asynchronous`, returns the coroutine instead. A result that cannot be awaited is returned
        as it is."""
        result = func(*args, **kwargs)
        if asynchronous or not inspect.isawaitable(result):
            return result
        return self.run_sync(result if inspect.iscoroutine(result) else _awaited(result), timeout)

    def run_sync(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Runs a coroutine in the loop, and waits for it in this thread.

        Raises:
            RuntimeError: this is the thread of the loop, which would wait for itself.
        """
        import asyncio

        if self.runs_here:
            coroutine.close()
            raise RuntimeError("sync() was called in the thread of its event loop: await the coroutine there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.asyncio_loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as e:
            future.cancel()
            if future.done() and not future.cancelled():
                raise  # of the coroutine itself
            raise TimeoutError(f"the coroutine did not end in {timeout:g} s") from e
        except BaseException:
            future.cancel()
            raise


@functools.cache
def of_process() -> EventLoop:
    """Returns the loop that all tasks of this process share."""
    return EventLoop()


async def _awaited(result: Awaitable[T]) -> T:
    return await result


def sync(
    loop: Any, func: Callable[..., Any], *args: Any, callback_timeout: Seconds | None = None, **kwargs: Any
) -> Any:
    """Runs a coroutine function in the event loop of another thread, waits, and returns its result.

    Args:
        loop: `Client.loop`, `LocalCluster.loop`, or a loop of asyncio that runs.
        func: the function.
        args, kwargs: its arguments.
        callback_timeout: longest wait, in seconds, as a timedelta or as text ("5s").

    Raises:
        RuntimeError: the loop runs in this thread, which would wait for itself.
        TimeoutError: the timeout has passed. The coroutine is cancelled.
    """
    import asyncio

    chosen = EventLoop(loop) if isinstance(loop, asyncio.AbstractEventLoop) else loop
    if not isinstance(chosen, EventLoop):
        raise TypeError(f"sync: loop must be client.loop or a loop of asyncio, not {loop!r}")
    return chosen.call(func, args, kwargs, False, _check.longest(callback_timeout, "callback_timeout"))


# Tasks that run; asyncio itself refers to them weakly.
_running: set[asyncio.Task[Any]] = set()
