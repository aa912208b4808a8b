"""The base of the classes that make up `Client` and `AsyncClient`.

Client has many methods. Each group of them is a class in a file of its own: a ClientPart with the
methods that wait in the caller's thread, and beside it an AsyncPart with the same methods for
asyncio. Client and AsyncClient inherit from all of them.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from millrace._connection._steps import Steps, blocking, drive, is_blocking, operation
from millrace._session._session import Session
from millrace._tasks._task_maker import TaskMaker
from millrace._values._exceptions import hidden

R = TypeVar("R")
P = ParamSpec("P")


class ClientPart:
    """A group of methods of `Client`."""

    #: The connection to the scheduler; not part of the stable interface.
    session: Session
    _maker: TaskMaker


class AsyncPart(abc.ABC):
    """A group of methods of `AsyncClient`."""

    @property
    @abc.abstractmethod
    def sync(self) -> Any:
        """The synchronous client that does the work."""


def client_call(operation: Callable[P, Steps[R]]) -> Callable[P, R]:
    """Makes a method of Client of an operation. With `asynchronous=True`, which Dask's distributed
    has for some methods, it returns a coroutine."""
    waits = blocking(operation)

    @functools.wraps(waits)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        if not kwargs.get("asynchronous"):
            try:
                return waits(*args, **kwargs)
            except BaseException as e:
                raise hidden(e)  # noqa: B904
        part: Any = args[0]
        coroutine: Any = drive(operation(*args, **kwargs), part.session.pool)
        return coroutine

    return call


def same(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[AsyncPart, P], R]:
    """Makes a method of AsyncClient of one of Client that does not wait."""

    @functools.wraps(method)
    def call(self: AsyncPart, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self.sync, *args, **kwargs)

    return call


def awaited(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[AsyncPart, P], Coroutine[Any, Any, R]]:
    """Makes a coroutine of AsyncClient of a method of Client, with its parameters and docstring. An
    operation waits in the event loop. Any other method runs in a thread of the client's pool."""

    @functools.wraps(method)
    async def call(self: AsyncPart, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        client = self.sync
        pool = client.session.pool
        try:
            if is_blocking(method):
                return await drive(operation(method)(client, *args, **kwargs), pool)
            return await pool.run(functools.partial(method, client, *args, **kwargs))
        except BaseException as e:
            raise hidden(e)  # noqa: B904

    return call
