"""The client for asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from millrace._check import Seconds
from millrace._keys import UserKey
from millrace.future import ClientExecutor, DoneAndNotDone, Future, as_completed, listed
from millrace.ops import ExecutorOp, NativeOp

if TYPE_CHECKING:
    from millrace.client import Client

T = TypeVar("T")


class AsyncClient:
    """The client for asyncio: the same methods, as coroutines where they wait.

    `submit`, `map` and `op` return futures at once; await the futures. The others are coroutines.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arguments = (args, kwargs)
        self._client: Client | None = None

    async def __aenter__(self) -> AsyncClient:
        return await self._start()

    def __await__(self) -> Any:
        return self._start().__await__()

    async def _start(self) -> AsyncClient:
        if self._client is None:
            from millrace.client import Client  # imported here because it imports this module

            args, kwargs = self._arguments
            self._client = await asyncio.get_running_loop().run_in_executor(None, lambda: Client(*args, **kwargs))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def sync(self) -> Client:
        """The synchronous client that does the work."""
        if self._client is None:
            raise RuntimeError("the client is not open: `async with AsyncClient(...)`, or `await` it")
        return self._client

    def submit(self, func: Callable[..., T] | str | NativeOp | ExecutorOp, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Client.submit`."""
        return self.sync.submit(func, *args, **kwargs)

    def map(
        self, func: Callable[..., T] | str | NativeOp | ExecutorOp, *iterables: Iterable[Any], **kwargs: Any
    ) -> list[Future[T]]:
        """See `Client.map`."""
        return self.sync.map(func, *iterables, **kwargs)

    def op(self, name: str, *args: Any, **named: Any) -> Future[Any]:
        """See `Client.op`."""
        return self.sync.op(name, *args, **named)

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.sync, name)
        return await asyncio.get_running_loop().run_in_executor(None, lambda: method(*args, **kwargs))

    async def gather(self, futures: Any, **kwargs: Any) -> Any:
        """See `Client.gather`."""
        return await self._call("gather", futures, **kwargs)

    async def scatter(self, data: Any, **kwargs: Any) -> Any:
        """See `Client.scatter`."""
        return await self._call("scatter", data, **kwargs)

    async def get(self, dsk: Mapping[Hashable, Any], keys: Any, **kwargs: Any) -> Any:
        """See `Client.get`."""
        return await self._call("get", dsk, keys, **kwargs)

    async def cancel(self, futures: Any, **kwargs: Any) -> None:
        """See `Client.cancel`."""
        await self._call("cancel", futures, **kwargs)

    async def retry(self, futures: Any) -> None:
        """See `Client.retry`."""
        await self._call("retry", futures)

    async def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> dict[str, T]:
        """See `Client.run`."""
        return await self._call("run", function, *args, **kwargs)

    async def replicate(self, futures: Any, **kwargs: Any) -> None:
        """See `Client.replicate`."""
        await self._call("replicate", futures, **kwargs)

    async def who_has(self, futures: Any) -> dict[Any, list[str]]:
        """See `Client.who_has`."""
        return await self._call("who_has", futures)

    async def has_what(self, workers: str | Sequence[str] | None = None) -> dict[str, list[Any]]:
        """See `Client.has_what`."""
        return await self._call("has_what", workers)

    async def scheduler_info(self) -> dict[str, Any]:
        """See `Client.scheduler_info`."""
        return await self._call("scheduler_info")

    async def wait_for_workers(self, n_workers: int = 1, *, timeout: Seconds | None = None) -> None:
        """See `Client.wait_for_workers`."""
        await self._call("wait_for_workers", n_workers, timeout=timeout)

    async def explain(self, future: Future[Any] | UserKey) -> str:
        """See `Client.explain`."""
        return await self._call("explain", future)

    async def wait(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        timeout: Seconds | None = None,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> DoneAndNotDone:
        """See `millrace.wait`."""
        return await self._call("wait", listed(futures), timeout, return_when)

    def as_completed(self, futures: Iterable[Future[Any]] = (), **options: Any) -> as_completed:
        """See `millrace.as_completed`; to be used with `async for`."""
        return self.sync.as_completed(futures, **options)

    def get_executor(self, **options: Any) -> ClientExecutor:
        """See `Client.get_executor`."""
        return self.sync.get_executor(**options)

    async def publish_dataset(self, name: str, data: Any, *, override: bool = False) -> None:
        """See `Client.publish_dataset`."""
        await self._call("publish_dataset", name, data, override=override)

    async def get_dataset(self, name: str) -> Any:
        """See `Client.get_dataset`."""
        return await self._call("get_dataset", name)

    async def list_datasets(self) -> list[str]:
        """See `Client.list_datasets`."""
        return await self._call("list_datasets")

    async def unpublish_dataset(self, name: str) -> None:
        """See `Client.unpublish_dataset`."""
        await self._call("unpublish_dataset", name)

    @property
    def dashboard_link(self) -> str:
        """See `Client.dashboard_link`."""
        return self.sync.dashboard_link

    async def close(self) -> None:
        """See `Client.close`."""
        if self._client is not None:
            await self._call("close")

    async def shutdown(self) -> None:
        """See `Client.shutdown`."""
        await self._call("shutdown")

    def __repr__(self) -> str:
        return repr(self._client).replace("Client", "AsyncClient", 1) if self._client else "<AsyncClient: not open>"

    def _repr_html_(self) -> str:
        return (
            self._client._repr_html_().replace("Client", "AsyncClient", 1) if self._client else "AsyncClient: not open"
        )
