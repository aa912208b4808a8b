"""The client: submits tasks and holds their results."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from millrace import _check, _import_hooks, _mode
from millrace._accepted import accept
from millrace._calls._datasets import Datasets
from millrace._calls._topics import Subscriptions
from millrace._check import Seconds
from millrace._client import _remote_text
from millrace._client._client_part import awaited, same
from millrace._client._client_state import AsyncClientState, ClientState, check_arguments
from millrace._client._collections import AsyncCollections, Collections
from millrace._client._dataset_calls import AsyncDatasetCalls, DatasetCalls
from millrace._client._inspection import AsyncInspection, Inspection
from millrace._client._log_forwarding import AsyncLogForwarding, LogForwarding
from millrace._client._logs import AsyncLogs, Logs
from millrace._client._plugin_calls import AsyncPluginCalls, PluginCalls
from millrace._client._processes import AsyncProcesses, Processes
from millrace._client._results import AsyncResults
from millrace._client._shared_calls import AsyncSharedCalls, SharedCalls
from millrace._client._shuffles import AsyncShuffles, Shuffles
from millrace._client._submission import AsyncSubmission
from millrace._client._worker_control import AsyncWorkerControl, WorkerControl
from millrace._cluster import _cluster_info, _dashboard
from millrace._connection import _address
from millrace._connection._event_loop import EventLoop, of_process
from millrace._connection._pool import Pool
from millrace._connection._steps import Steps, blocking, in_loop, run
from millrace._dask import _default
from millrace._dask._default import CurrentClient
from millrace._local._scaling import arrival
from millrace._session import _registry
from millrace._session._display import Output, sink
from millrace._session._session import Session
from millrace._tasks._task_maker import TaskMaker
from millrace._tasks._task_options import SubmitOptions
from millrace.client_executor import ClientExecutor
from millrace.cluster import LocalCluster
from millrace.cluster import LocalCUDACluster as LocalCUDACluster

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

#: gRPC knows no deadlines at infinity: a year, in seconds.
_LONGEST_WAIT = 31_536_000.0
_NAMESPACE = re.compile(r"[a-zA-Z0-9._-]*")


def _joblib_backend(**options: Any) -> Any:
    return importlib.import_module("millrace.joblib_backend").MillraceBackend(**options)


_import_hooks.when_imported(
    "joblib.parallel", lambda joblib: joblib.register_parallel_backend("millrace", _joblib_backend)
)


def get_client(address: str | None = None, timeout: Seconds | None = None, resolve_address: bool = True) -> Client:
    """Returns the client of `Client.as_current` or of a with block, the innermost of them, else the
    most recently opened client of this process that is still open; in an event loop, that is the
    AsyncClient if it was opened as one. Inside a task without a client, it opens one of the
    worker's cluster, in the namespace of the task.

    Args:
        address: of a scheduler. Only a client of this cluster is returned, and opened if there is
            none. Default: any cluster.
        timeout: longest wait for the scheduler of a client that is opened, in seconds, as a
            timedelta or as text ("10s"). Default: 30 s.
        resolve_address: take the names of one host for equal, such as "localhost" and "127.0.0.1".
    """
    limit = 30.0 if timeout is None else _check.seconds(timeout, "timeout")
    where = None if address is None else _address.same(address, resolve=resolve_address)
    for client in _registry.opened():
        if where is not None and not where(client.session.address):
            continue
        if client.session.forked:
            client.session.check_open()
        if isinstance(client, Client):
            return client.session.owner if client.session.asynchronous and in_loop() else client
    for session in _registry.kept():
        if where is None or where(session.address):
            return _of_task(session, limit)
    named = os.environ.get("MILLRACE_ADDRESS")
    if where is not None and (named is None or not where(named)):
        return Client(address, timeout=limit)
    if not named:
        raise ValueError(_registry.no_client())
    return _of_task(None, limit)


def _of_task(session: Session | None, timeout: float) -> Client:
    """Opens a client of the namespace of the task that runs, and keeps it for later tasks."""
    if session is None:
        client = Client(namespace=_registry.task_namespace() or "", timeout=timeout)
    else:
        client = Client._around(session)
    _registry.add_of_task(client)
    return client


def default_client(c: Client | AsyncClient | None = None) -> Client | AsyncClient:
    """Returns this client; without one, that of `get_client`.

    Raises:
        ValueError: there is none, or all were opened with `set_as_default=False`, and none of them
            is the current one.
    """
    if c is not None:
        return c
    found: Any = get_client()  # an AsyncClient in an event loop
    client: Client = found.sync if isinstance(found, AsyncClient) else found
    if client._default or _registry.current_client() is client:
        return found
    raise ValueError(_registry.no_default())


_current = CurrentClient(get_client)


class Client(
    Collections,
    Shuffles,
    WorkerControl,
    LogForwarding,
    PluginCalls,
    Processes,
    Inspection,
    Logs,
    DatasetCalls,
    ClientState,
    SharedCalls,
):
    """A connection to a cluster, and a lease on results.

    Args:
        address: "host:port", or a LocalCluster. "host:port,host:port,..." are several schedulers of
            which one leads; the client finds that one. Default: MILLRACE_ADDRESS (with
            MILLRACE_TOKEN), else MILLRACE_SCHEDULER_FILE, else a local cluster is started and ends
            with the client.
        token: default MILLRACE_TOKEN, or the token of the scheduler file.
        scheduler_file: file that `millrace up` wrote.
        name: shown to people.
        namespace: of keys; "default" if empty. Clients of one namespace share equal keys.
        timeout: longest wait of a call for the scheduler to be reachable, in seconds, as a
            timedelta or as text ("10s").
        reconnect_timeout: how long the scheduler may be away until futures that wait, and tasks
            that are to be submitted, fail with SchedulerLostError.
        n_workers, memory_limit, device: for a cluster that is started; and so are further
            arguments, which are those of LocalCluster.
        shared_memory: use the memory of workers on this host in place: large arrays that are
            gathered occupy the worker's memory until they are garbage; pages that are written to
            are copied. Without it, all bytes are sent by gRPC.
        output: show what tasks of this client print, while they run, each line with the key and the
            worker. True: on sys.stdout and sys.stderr. False: not at all. A function is called with
            a TaskLine for each line instead, in a thread. Default: True, unless MILLRACE_OUTPUT is
            0 in the environment, and False inside of a task. Output above 256 KiB per second is
            not shown in full; no task waits for it.
        set_as_default: make the client Dask's default scheduler until it is closed: `compute` and
            `persist` of Dask's collections use it.
        asynchronous: return an AsyncClient with the other arguments instead, as programs that were
            written for Dask's distributed expect. New programs call AsyncClient.
        loop, heartbeat_interval, direct_to_workers, connection_limit, serializers, deserializers:
            parameters of Dask's distributed that need no setting: the log says why.
        security, extensions: refused: there are tokens instead of TLS, and no extensions.

    Raises:
        SchedulerLostError: the address does not answer.
        AuthenticationError: wrong token.
    """

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[True], **kwargs: Any) -> AsyncClient: ...

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[False] = False, **kwargs: Any) -> Client: ...

    def __new__(cls, *args: Any, asynchronous: bool = False, **kwargs: Any) -> Any:
        if asynchronous and _mode.distributed and not in_loop():
            raise RuntimeError(
                "Constructing LoopRunner(asynchronous=True) without a running loop is not supported: make the client inside "
                "of a coroutine"
            )
        # Python does not call __init__ for a result that is no Client.
        return AsyncClient(*args, **kwargs) if asynchronous else super().__new__(cls)

    def __init__(
        self,
        address: str | LocalCluster | None = None,
        *,
        token: str | None = None,
        scheduler_file: str | os.PathLike[str] | None = None,
        name: str = "",
        namespace: str = "",
        timeout: Seconds = 30.0,
        reconnect_timeout: Seconds = 600.0,
        n_workers: int | None = None,
        memory_limit: str | float | None = "auto",
        device: str = "auto",
        shared_memory: bool = True,
        output: Output = None,
        set_as_default: bool = True,
        asynchronous: bool = False,
        loop: object = None,
        security: object = None,
        heartbeat_interval: Seconds | None = None,
        serializers: Sequence[str] | None = None,
        deserializers: Sequence[str] | None = None,
        extensions: Mapping[str, Any] | None = None,
        direct_to_workers: bool | None = None,
        connection_limit: int | None = None,
        **cluster: Any,
    ) -> None:
        check_arguments({
            "loop": loop, "security": security, "heartbeat_interval": heartbeat_interval, "serializers": serializers,
            "deserializers": deserializers, "extensions": extensions, "direct_to_workers": direct_to_workers,
            "connection_limit": connection_limit,
        })  # fmt: skip
        limit = min(_check.seconds(timeout, "timeout"), _LONGEST_WAIT)
        away = min(_check.seconds(reconnect_timeout, "reconnect_timeout"), _LONGEST_WAIT)
        if token is not None:
            _check.text(token, "token")
        _check.text(name, "name", 256)
        if not _NAMESPACE.fullmatch(_check.text(namespace, "namespace", 64)):
            raise ValueError(f"namespace: {namespace!r} has characters other than letters, digits, '.', '_' and '-'")
        show = sink(output)
        where = _address.find(address, token, scheduler_file)
        if where is not None and (address is not None or scheduler_file is not None):
            unset = {"n_workers": None, "memory_limit": "auto", "device": "auto"}
            own = {"n_workers": n_workers, "memory_limit": memory_limit, "device": device}
            for argument in (*(a for a, value in own.items() if value != unset[a]), *cluster):
                raise TypeError(f"{argument} is for a cluster that the client starts, and this one joins {where[0]}")
        #: The LocalCluster that this client was given or has started; None if it joined another.
        self.cluster: LocalCluster | None = address if isinstance(address, LocalCluster) else None
        # True if the cluster ends with this client.
        self._own_cluster = where is None
        if where is None:
            self.cluster = LocalCluster(n_workers, memory_limit=memory_limit, device=device, **cluster)
            where = self.cluster.address, self.cluster.token
        try:
            session = Session(
                *where,
                name=name,
                namespace=namespace,
                timeout=limit,
                reconnect_timeout=away,
                shared_memory=shared_memory,
                show=show,
            )
        except BaseException:
            if self._own_cluster and self.cluster is not None:
                self.cluster.close()
            raise
        self._take(session, default=set_as_default)
        if self._own_cluster and self.cluster is not None:
            try:
                run(self._await_workers(1 if n_workers is None else n_workers, None, self.cluster))
            except BaseException:
                self.close()
                raise
        if set_as_default:
            _default.opened(self, _current)

    @classmethod
    def _around(cls, session: Session) -> Client:
        """Returns a client with a session that was opened before it."""
        client = super().__new__(cls)
        client.cluster, client._own_cluster = None, False
        client._take(session)
        return client

    def _take(self, session: Session, *, default: bool = True) -> None:
        #: The connection to the scheduler; not part of the stable interface.
        self.session = session
        self._maker = TaskMaker(session)
        self._default = default
        self._persisted = weakref.WeakValueDictionary()
        self._entered = contextlib.ExitStack()
        self._datasets = Datasets(session)
        self._subscriptions = Subscriptions(session)
        self._loop = of_process() if os.environ.get("MILLRACE_EXECUTOR") else EventLoop()
        session.belongs_to(self)
        _registry.add(self, default=default)
        if _mode.distributed and not os.environ.get("MILLRACE_EXECUTOR"):
            _remote_text.follow(session, self._subscriptions)

    @classmethod
    def current(cls, allow_global: bool = True) -> Client:
        """Returns the client of the innermost `as_current`, or the innermost client that a with block
        opened as a default, in this thread or asyncio task.

        Args:
            allow_global: without one, return that of `default_client`.

        Raises:
            ValueError: there is none.
        """
        if not allow_global and _registry.current_client() is None:
            raise ValueError("there is no current client here: open one by `with millrace.Client(...):`")
        return default_client()  # pyright: ignore[reportReturnType]  # an AsyncClient in an event loop

    # ---- workers ---------------------------------------------------------------------------------

    @blocking
    def wait_for_workers(self, n_workers: int = 1, timeout: Seconds | None = None) -> Steps[None]:
        """Waits until at least this number of workers is active.

        Raises:
            TimeoutError: the timeout has passed.
            ValueError: `n_workers` is no positive whole number.
        """
        try:
            wanted = _check.integer(n_workers, "n_workers", 1, 1 << 32)
        except TypeError as e:
            raise ValueError(str(e)) from None
        yield from self._await_workers(wanted, _check.longest(timeout), None)

    def _await_workers(self, n_workers: int, timeout: float | None, cluster: LocalCluster | None) -> Steps[None]:
        """As `wait_for_workers`. Raises the error of a local cluster if that ends meanwhile."""
        return arrival(self.session, n_workers, timeout, None if cluster is None else cluster.check)

    def get_executor(self, **options: Unpack[SubmitOptions]) -> ClientExecutor:
        """Returns the cluster as a concurrent.futures.Executor. The options are those of `submit`,
        and apply to every call."""
        return ClientExecutor(self, **options)

    # ---- life ------------------------------------------------------------------------------------

    def close(self, timeout: Seconds = 5.0) -> None:
        """Ends the lease: results that only this client holds are freed. A cluster that it started
        ends too. It waits at most for `timeout` for the scheduler's answer."""
        _default.closed(self)
        self.session.close(timeout=_check.seconds(timeout, "timeout"))
        if self._own_cluster and self.cluster is not None:
            self.cluster.close()

    def shutdown(self) -> None:
        """Stops the whole cluster, even if this client did not start it."""
        _default.closed(self)
        self.session.close(shutdown=True)
        if self.cluster is not None:
            self.cluster.close()

    @property
    def dashboard_link(self) -> str:
        """URL of the scheduler's HTTP port, or empty. Dask's setting distributed.dashboard.link
        says how it is made, such as "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status"."""
        if self.cluster is not None:
            return self.cluster.dashboard_link
        return _dashboard.link(self.session.http_address)

    def __enter__(self) -> Client:
        if self._default:
            self._entered.enter_context(_registry.current(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._entered.close()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"<Client: {_cluster_info.summary(self.session)}>"

    def _repr_html_(self) -> str:
        return _cluster_info.client_card(self.session, type(self.session.owner or self).__name__, self.dashboard_link)


LocalCluster._open_client = Client


class AsyncClient(
    AsyncCollections,
    AsyncShuffles,
    AsyncSubmission,
    AsyncResults,
    AsyncWorkerControl,
    AsyncLogForwarding,
    AsyncPluginCalls,
    AsyncProcesses,
    AsyncInspection,
    AsyncLogs,
    AsyncDatasetCalls,
    AsyncClientState,
    AsyncSharedCalls,
):
    """The client for asyncio: the methods of `Client`, as coroutines where they wait.

    `submit`, `map` and `op` return futures at once; await the futures. `async with` opens the
    client, and so does `await`. The parameters are those of `Client`.

    Awaiting takes no thread: 10,000 futures can be awaited together, and the event loop's own
    executor is not used. Bytes of large results and calls to the scheduler are waited for in
    threads of the client, at most 32.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._arguments = args, {k: v for k, v in kwargs.items() if k != "asynchronous"}
        self._opened: Client | None = None

    async def __aenter__(self) -> AsyncClient:
        await self._start()
        self.sync.__enter__()
        return self

    def __await__(self) -> Any:
        return self._start().__await__()

    async def _start(self) -> AsyncClient:
        if self._opened is None:
            args, kwargs = self._arguments
            pool = Pool(1)
            try:
                self._opened = await pool.run(lambda: Client(*args, **kwargs))
                self._opened.session.belongs_to(self, asynchronous=True)
            finally:
                pool.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.sync._entered.close()
        finally:
            await self.close()

    @property
    def sync(self) -> Client:
        """The synchronous client that does the work."""
        if self._opened is None:
            raise RuntimeError("the client is not open: `async with AsyncClient(...)`, or `await` it")
        return self._opened

    get_executor = same(Client.get_executor)

    wait_for_workers = awaited(Client.wait_for_workers)
    shutdown = awaited(Client.shutdown)

    async def close(self, timeout: Seconds = 5.0) -> None:
        """See `Client.close`. It does nothing if the client was not opened."""
        if self._opened is not None:
            await self._opened.session.pool.run(partial(self._opened.close, timeout))

    async def start(self, **kwargs: Any) -> AsyncClient:
        """Opens the client, if it is not open."""
        for name, value in kwargs.items():
            accept("start", name, value, "the arguments of AsyncClient are complete")
        return await self._start()

    @property
    def session(self) -> Session:
        """The connection to the scheduler; not part of the stable interface."""
        return self.sync.session

    @property
    def cluster(self) -> LocalCluster | None:
        """See `Client.cluster`."""
        return self.sync.cluster

    @property
    def status(self) -> str:
        """See `Client.status`; "newly-created" before it is open."""
        return "newly-created" if self._opened is None else self._opened.status

    current = Client.current

    @property
    def dashboard_link(self) -> str:
        """See `Client.dashboard_link`."""
        return self.sync.dashboard_link

    def __repr__(self) -> str:
        return repr(self._opened).replace("Client", "AsyncClient", 1) if self._opened else "<AsyncClient: not open>"

    def _repr_html_(self) -> str:
        return self._opened._repr_html_() if self._opened else "AsyncClient: not open"
