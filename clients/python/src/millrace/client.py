"""The client: submits tasks and holds their results."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pickle
import re
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar, cast, overload

import cloudpickle
from google.protobuf.json_format import MessageToDict

from millrace import _check, _keys, _serialize, errors
from millrace._arguments import Call, Key, name_of, pack_options, plain_names
from millrace._async import AsyncClient as AsyncClient
from millrace._check import Seconds
from millrace._keys import UserKey
from millrace._nested import Nested, has_nested, identity, is_task, run_nested
from millrace._pb.millrace.v1 import graph_pb2, scheduler_service_pb2, task_pb2, value_pb2, worker_pb2
from millrace._session import Session
from millrace._state import Function, OpKey, Spec, State
from millrace.cluster import LocalCluster
from millrace.future import (
    ClientExecutor,
    DoneAndNotDone,
    Future,
    as_completed,
    by_session,
    cancel,
    listed,
    pickled_futures,
    retry,
    wait,
    wait_for,
)
from millrace.ops import ExecutorOp, NativeOp

T = TypeVar("T")

#: Scattered data up to this size, in bytes, are hashed by default.
_HASH_BYTES = 16 << 20
_NAMESPACE = re.compile(r"[a-zA-Z0-9._-]*")
#: A host name or an IP address; IPv6 in brackets.
_HOST = re.compile(r"[\w.-]{1,253}|\[[0-9A-Fa-f:.]+(%\w+)?\]")
#: Parameters that Dask passes to `get` of its own schedulers or of `distributed`. `get` here
#: accepts and ignores them.
_FROM_DASK = frozenset({
    "num_workers", "pool", "cache", "chunksize", "optimize_graph", "rerun_exceptions_locally", "raise_exception",
    "callbacks", "asynchronous", "direct", "fifo_timeout", "actors", "scheduler", "func_loads", "func_dumps", "initializer",
})  # fmt: skip
#: Largest description of a dataset, in bytes.
_MOST_METADATA = 1 << 20
#: Largest pickle of a function, in bytes.
_MOST_FUNCTION = 32 << 20

# Open clients, the most recently opened one last. Guarded by _clients.
_open: list[weakref.ref[Client]] = []
_clients = threading.Lock()
# Clients that were opened for futures inside of a task's arguments, by namespace. They stay open
# until the process ends.
_kept: dict[str, Client] = {}


def _opened() -> list[Client]:
    """Returns the open clients, the most recently opened one first."""
    with _clients:
        alive = [(r, c) for r in _open if (c := r()) is not None and (not c.session.closed or c.session.forked)]
        _open[:] = [r for r, _ in alive]
    return [c for _, c in reversed(alive)]


def get_client() -> Client:
    """Returns the most recently opened client of this process that is still open. Inside a task
    without one, it opens a client of the worker's cluster."""
    return _opened_or_new(None, None)


def client_of(life: int, namespace: str) -> Client:
    """Returns the client of a future that was pickled in another process, for its scheduler process
    (`life`) and namespace."""
    return _opened_or_new(life, namespace)


def _opened_or_new(life: int | None, namespace: str | None) -> Client:
    others = False
    for client in _opened():
        if client.session.forked:
            client.session.check_open()
        if life is None or (client.session.life == life and client.session.namespace == namespace):
            return client
        others = True
    if not os.environ.get("MILLRACE_ADDRESS"):
        if others:
            raise errors.NotFoundError(
                f"the future is of a cluster, or of a namespace ({namespace}), that no client in this process has joined: open "
                "a client there first"
            )
        raise ValueError("there is no client in this process: open one with millrace.Client(...)")
    client = Client(namespace=namespace or "")
    if life is not None and client.session.life != life:
        client.close()
        raise errors.NotFoundError(
            "the future is of another cluster than this task, or of an earlier life of its scheduler"
        )
    with _clients:
        _kept[client.session.namespace] = client
    return client


def _close_all() -> None:
    """Closes all clients when the interpreter exits. Otherwise the scheduler would run their tasks
    until the leases expire."""
    for client in _opened():
        with contextlib.suppress(Exception):
            client.session.close(patience=1.0)


atexit.register(_close_all)


def _address(text: Any, place: str = "address") -> str:
    """Returns the host and port of an address, also of one such as "tcp://host:port". `place` is
    the source of the address, for error messages."""
    if not isinstance(text, str):
        raise TypeError(f'{place} must be "host:port" or a LocalCluster, not {text!r}')
    scheme, mark, rest = text.partition("://")
    if not mark:
        rest = text
    elif scheme not in ("tcp", "grpc", "millrace"):
        raise ValueError(f'{place}: {text!r} has the scheme {scheme}: clients speak gRPC, give "host:port"')
    rest = rest.strip().rstrip("/")
    if rest.startswith("unix:"):
        return rest
    host, _, port = rest.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(
            f'{place}: {text!r} is not an address of a scheduler: give "host:port", as `millrace up` prints it'
        )
    return rest


def _where(address: str | LocalCluster | None, token: str | None, file: str | os.PathLike[str] | None) -> Any:
    """Returns address and token by argument, else environment, else scheduler file; None if no
    cluster is named."""
    if isinstance(address, LocalCluster):
        return address.address, address.token
    if address is not None:
        return _address(address), token if token is not None else os.environ.get("MILLRACE_TOKEN", "")
    if file is None:
        if os.environ.get("MILLRACE_ADDRESS"):
            return _address(os.environ["MILLRACE_ADDRESS"], "MILLRACE_ADDRESS"), token or os.environ.get(
                "MILLRACE_TOKEN", ""
            )
        file = os.environ.get("MILLRACE_SCHEDULER_FILE")
    if file is None:
        return None
    return _from_file(file, token)


def _from_file(file: str | os.PathLike[str], token: str | None) -> tuple[str, str]:
    """Returns address and token of a scheduler file."""
    place = f"scheduler file {os.fspath(file)!r}"
    remedy = "name the file that `millrace up` wrote"
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as e:
        raise ValueError(f"{place}: {e.strerror or e}. Is the cluster running?") from e
    except ValueError as e:
        raise ValueError(f"{place}: it is not text: {e}; {remedy}") from e
    if not text.strip():
        raise ValueError(f"{place}: it is empty; {remedy}")
    try:
        info = json.loads(text)
    except ValueError as e:
        raise ValueError(f"{place}: it is not JSON: {e}; {remedy}") from e
    if not isinstance(info, dict) or not isinstance(info.get("address"), str) or not info["address"]:
        raise ValueError(f'{place}: it has no "address"; {remedy}')
    found = token or info.get("token") or ""
    if not isinstance(found, str):
        raise ValueError(f'{place}: its "token" is not a text; {remedy}')
    return _address(info["address"], place), found


class Client:
    """A connection to a cluster, and a lease on results.

    Args:
        address: "host:port", or a LocalCluster. Default: MILLRACE_ADDRESS (with MILLRACE_TOKEN),
            else MILLRACE_SCHEDULER_FILE, else a local cluster is started and ends with the client.
        token: default MILLRACE_TOKEN, or the token of the scheduler file.
        scheduler_file: file that `millrace up` wrote.
        name: shown to people.
        namespace: of keys; "default" if empty. Clients of one namespace share equal keys.
        timeout: longest wait for the scheduler to be reachable, in seconds, as a timedelta or as
            text ("10s").
        n_workers, memory_limit, device: for a cluster that is started.
        shared_memory: use the memory of workers on this host in place: large arrays that are
            gathered occupy the worker's memory until they are garbage; pages that are written to
            are copied. Without it, all bytes are sent by gRPC.
        asynchronous: make an AsyncClient instead.

    Raises:
        SchedulerLostError: the address does not answer.
        AuthenticationError: wrong token.
    """

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[True], **kwargs: Any) -> AsyncClient: ...

    @overload
    def __new__(cls, *args: Any, asynchronous: Literal[False] = False, **kwargs: Any) -> Client: ...

    def __new__(cls, *args: Any, asynchronous: bool = False, **kwargs: Any) -> Any:
        if asynchronous:
            return AsyncClient(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        address: str | LocalCluster | None = None,
        *,
        token: str | None = None,
        scheduler_file: str | os.PathLike[str] | None = None,
        name: str = "",
        namespace: str = "",
        timeout: Seconds = 30.0,
        n_workers: int | None = None,
        memory_limit: str | int | None = None,
        device: str = "auto",
        shared_memory: bool = True,
        asynchronous: bool = False,
    ) -> None:
        patience = _check.seconds(timeout, "timeout")
        if token is not None:
            _check.text(token, "token")
        _check.text(name, "name", 256)
        if not _NAMESPACE.fullmatch(_check.text(namespace, "namespace", 64)):
            raise ValueError(f"namespace: {namespace!r} has characters other than letters, digits, '.', '_' and '-'")
        where = _where(address, token, scheduler_file)
        #: The LocalCluster that this client was given or has started; None if it joined another.
        self.cluster: LocalCluster | None = address if isinstance(address, LocalCluster) else None
        # True if the cluster ends with this client.
        self._own_cluster = where is None
        if where is None:
            self.cluster = LocalCluster(n_workers, memory_limit=memory_limit, device=device)
            where = self.cluster.address, self.cluster.token
        try:
            #: The connection to the scheduler; not part of the stable interface.
            self.session = Session(
                *where, name=name, namespace=namespace, timeout=patience, shared_memory=shared_memory
            )
        except BaseException:
            if self._own_cluster and self.cluster is not None:
                self.cluster.close()
            raise
        self._pickled: weakref.WeakKeyDictionary[Any, OpKey] = weakref.WeakKeyDictionary()
        # Modules that cloudpickle was told to pickle by value, as of the last pickled function.
        self._by_value: set[str] = set()
        with _clients:
            _open.append(weakref.ref(self))
        if self._own_cluster and self.cluster is not None:
            try:
                self._await_workers(n_workers or 1, None, self.cluster)
            except BaseException:
                self.close()
                raise

    # ---- submitting ------------------------------------------------------------------------------

    def submit(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        *args: Any,
        key: UserKey | None = None,
        pure: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        **kwargs: Any,
    ) -> Future[T]:
        """Runs ``func(*args, **kwargs)`` on the cluster and returns a future at once.

        Args:
            func: a function; "package.module:function", imported where it runs; or an op.
            args, kwargs: arguments; futures anywhere inside of them are replaced by their results.
            key: name of the result: a str, bytes, int or float, or a tuple of these; ("x", 1) and
                "x-1" are different keys. Default: made from the function and the arguments.
            pure: equal calls are one task. Otherwise every call is a task of its own.
            priority: tasks with a higher number run first.
            retries: number of further attempts if it raises.
            workers: names, ids or hosts where it may run.
            allow_other_workers: `workers` is only a preference.
            resources: amounts of a worker's resources that it occupies, by name.
            timeout: longest run time, in seconds, as a timedelta or as text ("5 min"); then the
                function is stopped.
            slots: number of a worker's slots that it occupies.
            no_wait: fail at once with NoWorkerFitsError if no worker of the cluster could ever run
                it.

        Raises:
            SerialisationError: the function or an argument cannot be pickled.

        If the scheduler refuses the task (for example because its key belongs to another task), the
        future raises the error.
        """
        options = pack_options(priority, retries, workers, allow_other_workers, resources, timeout, slots, no_wait)
        self.session.check_open()
        spec, state = self._spec(func, args, kwargs, key, pure, options)
        if spec is not None:
            self.session.submit([spec])
        return Future(self.session, state)

    def _spec(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        key: UserKey | None,
        pure: bool,
        options: bytes,
        known: tuple[OpKey, Function | None] | None = None,
    ) -> tuple[Spec | None, State]:
        """Makes the task of a call; None if this client has submitted it already. `known` is the
        result of `_op(func)`."""
        wire = None if key is None else _keys.to_wire(key)
        op, function = known or self._op(func)
        call = Call(self.session)
        name = name_of(func)
        typed = isinstance(func, (NativeOp, ExecutorOp))
        arguments = (call.pack_typed if typed else call.pack)(args, kwargs, name)
        body = self._token(op, arguments, call.inputs) if pure or wire is not None else uuid.uuid4().hex
        if wire is None:
            wire, body = _keys.to_wire(f"{name}-{body}"), ""
        return self._known(wire, body, op, function, call, arguments, options)

    def _known(
        self,
        key: str,
        body: str,
        op: OpKey,
        function: Function | None,
        call: Call,
        arguments: bytes,
        options: bytes,
    ) -> tuple[Spec | None, State]:
        state, new = self._state_of(key, body)
        if new:
            state.body = body
        elif body and state.body and body != state.body:
            self.session.release(state)
            state = State(key)
            state.failure = _conflict(key, "a task that this client submitted with another function or other arguments")
        if not new:
            return None, state
        return Spec(key, op, call.inputs, arguments, options, state, function, call.kept), state

    def _state_of(self, key: str, body: str, *, data: bool = False) -> tuple[State, bool]:
        """As `Session.state`. If another task of this client has the key, its queued release is
        sent first."""
        state, new = self.session.state(key, data=data)
        if not new and body and state.body and body != state.body:
            self.session.release(state)
            self.session.flush()
            state, new = self.session.state(key, data=data)
        return state, new

    def _token(self, op: OpKey, arguments: bytes, inputs: list[str]) -> str:
        digest = hashlib.blake2b(op[1].encode() + op[2] + b"\0", digest_size=16)
        digest.update(arguments)
        for key in inputs:
            digest.update(b"\0" + key.encode())
        return digest.hexdigest()

    def _op(self, func: Any) -> tuple[OpKey, Function | None]:
        if isinstance(func, NativeOp):
            return (task_pb2.OP_KIND_NATIVE, _check.text(func.name, "op", 512), b""), None
        if isinstance(func, ExecutorOp):
            return (task_pb2.OP_KIND_EXEC, _check.text(func.name, "op", 512), b""), None
        if isinstance(func, str):
            if ":" not in func:
                raise ValueError(f"{func!r} is no import path: write package.module:function, or use millrace.native()")
            return (task_pb2.OP_KIND_PYTHON_IMPORT, _check.text(func, "func", 512), b""), None
        if not callable(func):
            raise TypeError(f"{func!r:.100} cannot be called: give a function, and then its arguments")
        by_value = cloudpickle.list_registry_pickle_by_value()
        if by_value != self._by_value:  # the pickles may be different now
            self._by_value = by_value
            self._pickled.clear()
        try:
            known = self._pickled.get(func)
        except TypeError:  # neither hashable nor weakly referable: pickled each time
            known = None
        if known is not None:
            function = self.session.function(known[2])
            if function is not None:
                return known, function
        try:
            function = _serialize.dump_function(func)
        except Exception as e:
            raise errors.SerialisationError(
                f"function {name_of(func)} cannot be pickled: {type(e).__name__}: {e}. "
                "Does it refer to a lock, a file, a connection or a client? Make them inside of it"
            ) from e
        if len(function[0]) > _MOST_FUNCTION:
            error = errors.InvalidRequestError(
                f"function {name_of(func)} takes {_check.above(len(function[0]), _MOST_FUNCTION, ' pickled')}: "
                "it refers to data; scatter that and pass the future as an argument"
            )
            error.reason = "TOO_LARGE"
            raise error
        digest = hashlib.sha256(function[0]).digest()
        self.session.add_function(digest, function)
        op = (task_pb2.OP_KIND_PYTHON_PICKLE, name_of(func), digest)
        try:
            self._pickled[func] = op
        except TypeError:
            pass
        return op, function

    def map(
        self,
        func: Callable[..., T] | str | NativeOp | ExecutorOp,
        *iterables: Iterable[Any],
        key: UserKey | Sequence[UserKey] | None = None,
        pure: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        timeout: Seconds | None = None,
        slots: int = 1,
        no_wait: bool = False,
        **kwargs: Any,
    ) -> list[Future[T]]:
        """Calls the function with each element (of several iterables: with one of each, up to the
        shortest).

        Args:
            func, iterables: as in `map`.
            key: a prefix for the keys, or a list of keys, one for each call.
            kwargs: the same for all calls.

        The other arguments are those of `submit`.
        """
        options = pack_options(priority, retries, workers, allow_other_workers, resources, timeout, slots, no_wait)
        specs: list[Spec] = []
        futures: list[Future[T]] = []
        calls = list(zip(*iterables))  # noqa: B905 - the shortest ends it, as in map
        own = _map_keys(key, len(calls))
        self.session.check_open()
        known = self._op(func) if calls else None
        try:
            for args, one in zip(calls, own, strict=True):
                spec, state = self._spec(func, args, kwargs, one, pure, options, known)
                if spec is not None:
                    specs.append(spec)
                futures.append(Future(self.session, state))
            if specs:
                self.session.submit(specs)
        except BaseException as e:
            self.session.abandon([s.state for s in specs if s.state is not None], e)
            raise
        return futures

    def op(self, name: str, *args: Any, key: UserKey | None = None, pure: bool = True, **named: Any) -> Future[Any]:
        """Runs a native op: ``client.op("array.matmul", a, b)``. Arguments are plain values, small
        arrays and futures."""
        return self.submit(NativeOp(name), *args, key=key, pure=pure, **plain_names(named))

    def get(
        self,
        dsk: Mapping[Hashable, Any],
        keys: Any,
        *,
        sync: bool = True,
        priority: int = 0,
        retries: int = 0,
        workers: str | Sequence[str] | None = None,
        allow_other_workers: bool = False,
        resources: Mapping[str, float] | None = None,
        **ignored: Any,
    ) -> Any:
        """Computes a dict graph: ``{"x": 1, "y": (inc, "x"), "z": (sum, ["x", "y"])}``.

        A value is a task (a tuple whose first element is callable, or an op), another key, a list
        of these, or a constant. The whole graph is one submission.

        Args:
            dsk: the graph.
            keys: a key, or nested lists of keys.
            sync: return results; otherwise futures. Their keys are those of the graph with a mark
                of this call.
            priority, retries, workers, allow_other_workers, resources: as for `submit`, for all
                tasks.
            ignored: parameters that Dask passes to schedulers of threads and processes
                (num_workers, pool, optimize_graph, ...).

        Raises:
            InvalidRequestError: the graph has a cycle; the message names the tasks on it.
            TypeError: it is no dict, or has Dask's own Task objects in it, which this method does
                not run.
        """
        unknown = set(ignored) - _FROM_DASK
        if unknown:
            raise TypeError(f"get() has no argument {', '.join(sorted(unknown))}")
        if not isinstance(dsk, Mapping):
            raise TypeError(
                f"dsk must be a dict of tasks by key, not a {type(dsk).__module__}.{type(dsk).__qualname__}"
            )
        options = pack_options(priority, retries, workers, allow_other_workers, resources, None, 1, False)
        token = uuid.uuid4().hex[:12]
        names = {k: _keys.marked(k, token, n) for n, k in enumerate(dsk)}
        futures: dict[Hashable, Future[Any]] = {}
        specs: list[Spec] = []
        try:
            _wanted(keys, names, self.session, futures)
            for k, v in dsk.items():
                future = futures.get(k)
                specs.append(self._graph_spec(k, v, names, None if future is None else future._state, options))
            self.session.submit(specs, wait=True)
        except BaseException as e:
            self.session.abandon([f._state for f in futures.values()], e)
            raise

        if not sync:
            return _by_key(keys, futures)
        return _by_key(keys, dict(zip(futures, self.gather(list(futures.values())), strict=True)))

    def _graph_spec(
        self, key: Hashable, body: Any, names: Mapping[Any, str], state: State | None, options: bytes
    ) -> Spec:
        call = Call(self.session)
        node = getattr(sys.modules.get("dask._task_spec"), "GraphNode", ())
        if is_task(body) and not isinstance(body[0], node):
            func, args = body[0], tuple(_converted(a, key, names, node) for a in body[1:])
            nested = any(has_nested(a) for a in args)
        else:
            func, args, nested = identity, (_converted(body, key, names, node),), False
        if nested and isinstance(func, (NativeOp, ExecutorOp)):
            raise TypeError(f"task {key!r}: {func.name} takes no nested tasks: give them keys of their own")
        if nested:
            func, args = run_nested, (Nested(func, list(args)),)
        typed = isinstance(func, (NativeOp, ExecutorOp))
        arguments = (call.pack_typed if typed else call.pack)(args, {}, f"task {key!r}")
        op, function = self._op(func)
        return Spec(names[key], op, call.inputs, arguments, options, state, function, call.kept)

    # ---- results ---------------------------------------------------------------------------------

    def gather(self, futures: Any, *, errors: str = "raise", timeout: Seconds | None = None, copy: bool = False) -> Any:
        """Returns the results of futures, in any nesting of lists, tuples, sets and dicts.

        Args:
            futures: the futures, of this client or others. Other leaves are returned as they are.
            errors: "raise" the first error, or "skip" failed futures: they are left out of their
                collections.
            timeout: longest wait, in seconds, as a timedelta or as text ("5s").
            copy: return private copies, instead of views of the memory of a worker on this host.
        """
        if errors not in ("raise", "skip"):
            raise ValueError(f'errors is "raise" or "skip", not {errors!r}')
        found: list[Future[Any]] = []
        _collect(futures, found)
        bad: set[int] = set()
        limit = _check.patience(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        groups = by_session({id(f): f for f in found}.values())
        if found and (errors == "skip" or len(groups) > 1) and not wait_for(found, limit):
            left = sum(not f.done() for f in found)
            raise TimeoutError(f"{left} of {len(found)} results did not arrive in {limit:g} s")
        if errors == "skip":
            bad = {id(f) for f in found if f._state.exception() is not None}
        results: dict[int, Any] = {}
        for session, group in groups.items():
            good = [f for f in group if id(f) not in bad]
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            fetched = session.fetch([f._state for f in good], limit if len(groups) == 1 else left, copy)
            results.update(zip((id(f) for f in good), fetched, strict=True))
        return _spread(futures, results, bad)

    def wait(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        timeout: Seconds | None = None,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> DoneAndNotDone:
        """Waits for futures: see `millrace.wait`."""
        return wait(futures, timeout, return_when)

    def as_completed(
        self,
        futures: Future[Any] | Iterable[Future[Any]] = (),
        *,
        with_results: bool = False,
        timeout: Seconds | None = None,
    ) -> as_completed:
        """Iterates over futures in the order in which they end: see `millrace.as_completed`."""
        return as_completed(futures, with_results=with_results, timeout=timeout)

    def scatter(
        self,
        data: Any,
        *,
        workers: str | Sequence[str] | None = None,
        broadcast: bool = False,
        key: UserKey | None = None,
        hash: bool | None = None,
    ) -> Any:
        """Puts data on workers and returns futures for it: for a list a list, for a dict a dict
        whose keys name the data, else a single future.

        Args:
            data: the data.
            workers: names, ids or hosts. Default: all, in turn.
            broadcast: put a copy on each of them. The workers pass the copies on to each other.
            key: name for a single object, as for `submit`. Default: made from its type.
            hash: equal data gets the same key. Default: only if it is not larger than 16 MiB,
                because hashing larger data takes longer than sending it.

        Raises:
            InvalidRequestError: a key names other data already (KEY_CONFLICT): release its futures
                first.
        """
        if key is not None and isinstance(data, (dict, list, tuple, set)):
            raise ValueError(
                f"key: {_keys.short(key)} cannot name each element of a {type(data).__name__}: scatter a dict, whose keys do, or "
                "one object"
            )
        if isinstance(data, dict):
            mapping = cast("dict[Any, Any]", data)
            own = [_key_or_none(k) for k in mapping]
            return dict(zip(mapping, self._scatter(list(mapping.values()), workers, broadcast, own, hash), strict=True))
        if isinstance(data, (list, tuple, set)):
            items = list(cast("Iterable[Any]", data))
            return _rebuild(data, self._scatter(items, workers, broadcast, [None] * len(items), hash))
        wire = None if key is None else _keys.to_wire(key)
        return self._scatter([data], workers, broadcast, [wire], hash)[0]

    def _scatter(
        self, items: list[Any], workers: Any, broadcast: bool, keys: list[str | None], by_hash: bool | None
    ) -> list[Future[Any]]:
        if _check.names(workers, "workers") == []:
            raise ValueError("workers is empty: name the workers that shall have the data, or leave it out for all")

        def targets() -> list[worker_pb2.Worker]:
            deadline = time.monotonic() + 30.0
            while not (found := _matching(self.session.workers(fresh=False), workers)):
                if time.monotonic() > deadline:
                    raise errors.NoWorkerFitsError(
                        "scatter: no active worker" + (f" among {workers}" if workers else "")
                    )
                time.sleep(0.02)
            return found

        targets()
        futures: list[Future[Any]] = []
        fresh: list[tuple[Spec, _serialize.Encoded]] = []
        try:
            for item, key in zip(items, keys, strict=True):
                try:
                    with pickled_futures() as inside:
                        encoded = _serialize.encode(item)
                except Exception as e:
                    raise errors.SerialisationError(
                        f"a {type(item).__module__}.{type(item).__qualname__} cannot be scattered: {type(e).__name__}: {e}"
                    ) from e
                hashed = encoded.nbytes <= _HASH_BYTES if by_hash is None else by_hash
                token = _digest(encoded) if hashed else uuid.uuid4().hex
                name = _keys.to_wire(f"{type(item).__name__[:64]}-{token}") if key is None else key
                state, new = self._state_of(name, token, data=True)
                futures.append(Future[Any](self.session, state))
                if new:
                    state.body, state.kept = token, inside
                    # Other data under the same key has another digest. With the digest in the
                    # arguments, the scheduler detects the conflict.
                    body = (
                        b""
                        if key is None
                        else value_pb2.Arguments(positional=[value_pb2.Value(string_value=token)]).SerializeToString()
                    )
                    spec = Spec(name, (task_pb2.OP_KIND_DATA, "data", b""), [], body, b"", state)
                    fresh.append((spec, encoded))
                elif state.body and state.body != token:
                    raise _conflict(name, "other data, or a task")
            if fresh:
                self.session.submit([spec for spec, _ in fresh], wait=True)
        except BaseException as e:
            self.session.abandon([s.state for s, _ in fresh if s.state is not None], e)
            raise
        if fresh:
            # Another client may have scattered equal data already.
            todo = [(cast(State, spec.state), encoded) for spec, encoded in fresh if not cast(State, spec.state).done]
            self.session.scatter([state for state, _ in todo], [encoded for _, encoded in todo], targets)
        if broadcast:
            self.replicate(futures, workers=workers)
        return futures

    def replicate(
        self,
        futures: Future[Any] | Iterable[Future[Any]],
        *,
        n: int | None = None,
        workers: str | Sequence[str] | None = None,
    ) -> None:
        """Copies results to more workers, and returns when the copies are complete. Each new copy
        is a source for the next ones.

        Workers with GPUs get all copies at once, as a chain: each one reads the bytes from the one
        before it while they arrive there.

        Args:
            futures: the results to copy. Waits until they have succeeded.
            n: how many workers shall have each of them. Default: all.
            workers: names, ids or hosts that may. Default: all.
        """
        copied = listed(futures)
        if n is not None:
            n = _check.integer(n, "n", 0, 1 << 32)
        self.session.flush()
        wait_for(copied, None)
        found = _matching(self.session.workers(), workers)
        names = [w.name for w in found]
        chained = all(w.device == worker_pb2.DEVICE_KIND_CUDA for w in found)
        wanted = len(names) if n is None else min(n, len(names))
        holders = {key: set(workers) for key, workers in self.who_has(copied).items()}
        while True:
            wave: list[tuple[str, str, Future[Any]]] = []
            specs: list[Spec] = []
            for future in copied:
                have = holders[future.key]
                missing = [w for w in names if w not in have][: max(wanted - len(have & set(names)), 0)]
                for name in missing if chained else missing[: max(len(have), 1)]:
                    options = pack_options(0, 0, name, False, None, None, 1, False)
                    spec, state = self._spec(NativeOp("core.replicate"), (future,), {}, None, False, options)
                    specs += [spec] if spec is not None else []
                    wave.append((future.key, name, Future(self.session, state)))
            if not wave:
                return
            # One submission, so that the scheduler plans these tasks together.
            self.session.submit(specs)
            self.session.wait([copy._state for _, _, copy in wave], None)
            for key, name, copy in wave:
                exception = copy._state.exception()
                if exception is not None:
                    raise exception
                holders[key].add(name)

    # ---- control ---------------------------------------------------------------------------------

    def cancel(self, futures: Future[Any] | Iterable[Future[Any]], *, force: bool = False, reason: str = "") -> None:
        """Stops tasks: queued tasks are dropped, and running functions are interrupted.

        The futures have ended when this returns: they are cancelled, except those that had ended
        before. A task that other clients hold as well continues for them, unless `force` is given.
        The cancellation reaches the workers of the tasks a moment later: a task that begins in
        between is stopped again, and its result dropped.

        Raises:
            NotFoundError: The scheduler has no such task any more. The others are cancelled.
        """
        cancel(listed(futures), force=force, reason=reason)

    def retry(self, futures: Future[Any] | Iterable[Future[Any]]) -> None:
        """Runs failed or cancelled tasks again, together with their inputs that failed."""
        retry(listed(futures))

    def run(
        self, function: Callable[..., T], *args: Any, workers: str | Sequence[str] | None = None, **kwargs: Any
    ) -> dict[str, T]:
        """Calls a function once on each worker, or on the named ones (possibly none); returns
        results by worker name."""
        active = self.session.workers()
        names = [w.name for w in _matching(active, workers)]
        for name in _check.names(workers, "workers") or ():
            if not _matching(active, name):
                there = ", ".join(sorted(w.name for w in active)) or "none"
                raise ValueError(f"workers: no active worker has the name, id or host {name!r}; there are: {there}")
        futures = {n: self.submit(function, *args, workers=n, pure=False, priority=1 << 20, **kwargs) for n in names}
        return cast("dict[str, T]", self.gather(futures))

    def who_has(self, futures: Future[Any] | Iterable[Future[Any]]) -> dict[Any, list[str]]:
        """Returns the names of the workers that hold each result, by key."""
        all_of_them = listed(futures)
        out: dict[Any, list[str]] = {f.key: [] for f in all_of_them}
        for session, group in by_session(all_of_them).items():
            session.flush()
            for at in range(0, len(group), 100_000):
                some = [f for f in group[at : at + 100_000] if f._state.id]
                request = scheduler_service_pb2.LocateObjectsRequest(task_ids=[f._state.id for f in some])
                located = session.call("LocateObjects", request)
                names = {w.worker_id: w.name for w in located.workers}
                for f, place in zip(some, located.objects, strict=True):
                    out[f.key] = [names[w] for w in place.worker_ids if w in names]
        return out

    def has_what(self, workers: str | Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Returns the keys of the results that each worker holds, by worker name."""
        self.session.flush()
        out: dict[str, list[Any]] = {}
        for worker in _matching(self.session.workers(), workers):
            keys = out.setdefault(worker.name, [])
            token = ""
            while True:
                page = self.session.call(
                    "ListTasks",
                    scheduler_service_pb2.ListTasksRequest(
                        page_size=1000,
                        page_token=token,
                        worker=worker.name,
                        states=[task_pb2.TASK_STATE_SUCCEEDED],
                        namespace=self.session.namespace,
                    ),
                )
                keys += [_keys.from_wire(t.key) for t in page.tasks if worker.name in t.replicas]
                token = page.next_page_token
                if not token:
                    break
        return out

    def scheduler_info(self) -> dict[str, Any]:
        """Returns a description of the cluster; its workers are under "workers", by name."""
        cluster = self.session.call("GetClusterInfo", scheduler_service_pb2.GetClusterInfoRequest()).cluster
        return {
            "id": cluster.cluster_id,
            "address": self.session.address,
            "version": cluster.version,
            "http": cluster.http_address,
            "tasks": {f.name: getattr(cluster.tasks, f.name) for f in cluster.tasks.DESCRIPTOR.fields},
            "workers": {w.name: _worker(w) for w in self.session.workers()},
        }

    def explain(self, future: Future[Any] | UserKey) -> str:
        """Explains why a task is not running, or how it ended."""
        self.session.flush()
        key = future._state.key if isinstance(future, Future) else _keys.to_wire(future)
        request = scheduler_service_pb2.ExplainTaskRequest(key=key, namespace=self.session.namespace)
        found = self.session.call("ExplainTask", request)
        keys = {key, found.task.error.origin_key, *found.task.inputs, *(m.key for m in found.missing)}
        return f"{found.reason}: {_keys.named(found.explanation, keys)}"

    def wait_for_workers(self, n_workers: int = 1, *, timeout: Seconds | None = None) -> None:
        """Waits until at least this number of workers is active.

        Raises:
            TimeoutError: the timeout has passed.
        """
        self._await_workers(_check.integer(n_workers, "n_workers", 1, 1 << 32), _check.patience(timeout), None)

    def _await_workers(self, n_workers: int, timeout: float | None, cluster: LocalCluster | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.005
        while True:
            found = len(self.session.workers())
            if found >= n_workers:
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{found} of {n_workers} workers came within {timeout:g} s")
            if cluster is not None:
                cluster.check()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.2)

    def get_executor(self, **options: Any) -> ClientExecutor:
        """Returns the cluster as a concurrent.futures.Executor. The options are those of `submit`,
        and apply to every call."""
        return ClientExecutor(self, **options)

    # ---- datasets --------------------------------------------------------------------------------

    def publish_dataset(self, name: str, data: Any, *, override: bool = False) -> None:
        """Publishes a future, or futures in lists and dicts, under a name, and keeps their results
        until unpublished."""
        _check.text(name, "name", 256)
        keys: list[str] = []
        shape = pickle.dumps(_stripped(data, self.session, keys))
        if len(shape) > _MOST_METADATA:
            error = errors.InvalidRequestError(
                f"dataset {name}: the lists, dicts and values that hold its futures take {_check.above(len(shape), _MOST_METADATA)}: "
                "scatter the data, and publish the futures"
            )
            error.reason = "TOO_LARGE"
            raise error
        self.session.flush()
        self.session.call(
            "PublishDataset",
            scheduler_service_pb2.PublishDatasetRequest(
                client_id=self.session.client_id, name=name, keys=keys, metadata=shape, replace=override
            ),
        )

    def get_dataset(self, name: str) -> Any:
        """Returns the data published under a name, with futures of this client."""
        request = scheduler_service_pb2.GetDatasetRequest(name=name, namespace=self.session.namespace)
        found: graph_pb2.Dataset = self.session.call("GetDataset", request).dataset
        return _restored(pickle.loads(found.metadata), self.session)

    def list_datasets(self) -> list[str]:
        """Returns the names of the datasets in this namespace."""
        names: list[str] = []
        token = ""
        while True:
            page = self.session.call(
                "ListDatasets",
                scheduler_service_pb2.ListDatasetsRequest(
                    page_size=1000, page_token=token, namespace=self.session.namespace
                ),
            )
            names += [d.name for d in page.datasets]
            token = page.next_page_token
            if not token:
                return names

    def unpublish_dataset(self, name: str) -> None:
        """Removes the name; the results are freed once no other client holds them."""
        request = scheduler_service_pb2.UnpublishDatasetRequest(name=name, namespace=self.session.namespace)
        self.session.call("UnpublishDataset", request)

    # ---- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the lease: results that only this client holds are freed. A cluster that it started
        ends too."""
        self.session.close()
        if self._own_cluster and self.cluster is not None:
            self.cluster.close()

    def shutdown(self) -> None:
        """Stops the whole cluster, even if this client did not start it."""
        self.session.close(shutdown=True)
        if self.cluster is not None:
            self.cluster.close()

    @property
    def dashboard_link(self) -> str:
        """URL of the scheduler's HTTP port, or empty."""
        address = self.session.cluster.http_address
        return f"http://{address}/" if address else ""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _summary(self) -> str:
        if self.session.closed:
            return "closed"
        silent = self.session.silent_since
        if silent:
            return f"{self.session.address}, no answer for {time.monotonic() - silent:.0f} s"
        try:
            workers = self.session.workers(fresh=False)
        except errors.MillraceError:
            return f"{self.session.address}, unreachable"
        slots = sum(w.slots for w in workers)
        memory = sum(w.memory_limit_bytes for w in workers)
        paths = sorted(set(self.session.paths().values()))
        data = f", data by {' and '.join(paths)}" if paths else ""
        renewed = self.session.renewals
        anew = f", lease {renewed + 1}: {self.session.renewed_because}" if renewed else ""
        return f"{self.session.address}, {len(workers)} workers, {slots} slots, {_memory(memory)}{data}{anew}"

    def __repr__(self) -> str:
        return f"<Client: {self._summary()}>"

    def _repr_html_(self) -> str:
        link = self.dashboard_link
        return f"<b>Client</b> {self._summary()}" + (f' &middot; <a href="{link}">{link}</a>' if link else "")


def _conflict(key: str, other: str) -> errors.InvalidRequestError:
    error = errors.InvalidRequestError(
        f"key {_keys.from_wire(key)!r} is taken by {other}: choose another key, or release the futures of the first one "
        "[KEY_CONFLICT]"
    )
    error.reason = "KEY_CONFLICT"
    return error


def _memory(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{size / 2**20:.0f} MiB"


def _key_or_none(key: Any) -> str | None:
    """Returns the key of an element of a dict that is scattered; None if the dict's key is not of a
    type that keys can have."""
    try:
        return _keys.to_wire(key)
    except TypeError:
        return None


def _map_keys(key: Any, count: int) -> list[Any]:
    if key is None:
        return [None] * count
    if isinstance(key, str):
        return [f"{key}-{n}" for n in range(count)]
    if isinstance(key, (bytes, int, float)):
        return [(key, n) for n in range(count)]
    own = list(key)
    if len(own) != count:
        raise ValueError(f"map of {count} elements got {len(own)} keys: give one for each, or a prefix")
    for n, one in enumerate(own):
        _keys.to_wire(one, f"key[{n}]")
    return own


# NB: the following functions are not nested in methods, because a nested function that calls itself
# is part of a reference cycle. Only the garbage collector would free it, and with it the futures
# that it refers to.


def _collect(tree: Any, found: list[Future[Any]]) -> None:
    """Collects the futures in any nesting of collections."""
    if isinstance(tree, Future):
        found.append(cast("Future[Any]", tree))
    elif isinstance(tree, Mapping):
        for item in cast("Mapping[Any, Any]", tree).values():
            _collect(item, found)
    elif isinstance(tree, (list, tuple, set, frozenset)):
        for item in cast("Iterable[Any]", tree):
            _collect(item, found)


def _spread(tree: Any, results: Mapping[int, Any], bad: set[int]) -> Any:
    """Returns the same collections with results in place of the futures. Futures of `bad` are left
    out."""
    if isinstance(tree, Future):
        return results[id(cast("Future[Any]", tree))]
    if isinstance(tree, Mapping):
        mapping = cast("Mapping[Any, Any]", tree)
        return {k: _spread(v, results, bad) for k, v in mapping.items() if id(v) not in bad}
    if isinstance(tree, (list, tuple, set, frozenset)):
        items = cast("Iterable[Any]", tree)
        return _rebuild(tree, [_spread(v, results, bad) for v in items if id(v) not in bad])
    return tree


def _wanted(tree: Any, names: Mapping[Any, str], session: Session, futures: dict[Hashable, Future[Any]]) -> None:
    """Adds a future to `futures` for each key of a dict graph in nested lists of keys. `names`: the
    tasks of the graph."""
    if isinstance(tree, list):
        for item in cast("list[Any]", tree):
            _wanted(item, names, session, futures)
    elif tree not in names:
        raise KeyError(f"key {tree!r} is not in the graph")
    elif tree not in futures:
        futures[tree] = Future(session, session.state(names[tree])[0])


def _by_key(tree: Any, values: Mapping[Hashable, Any]) -> Any:
    """Returns the same nested lists with values in place of the keys."""
    if isinstance(tree, list):
        return [_by_key(item, values) for item in cast("list[Any]", tree)]
    return values[tree]


def _converted(tree: Any, task: Hashable, names: Mapping[Any, str], node: Any) -> Any:
    """Returns an argument of a task in a dict graph, with a `Key` for each key of the graph and a
    `Nested` for each task inside of it. `node`: the class of Dask's own tasks."""
    if isinstance(tree, node) or (type(tree) is tuple and tree and isinstance(tree[0], node)):
        kind = type(tree[0] if type(tree) is tuple else tree)
        raise TypeError(
            f"task {task!r} is, or holds, a {kind.__module__}.{kind.__qualname__}: get() runs graphs of tuples, "
            '{"y": (function, "x")}, and none of Dask\'s Task objects'
        )
    if is_task(tree):
        return Nested(tree[0], [_converted(a, task, names, node) for a in tree[1:]])
    if type(tree) is list:
        return [_converted(item, task, names, node) for item in tree]
    try:
        return Key(names[tree]) if tree in names else tree
    except TypeError:  # not hashable: a constant
        return tree


def _stripped(tree: Any, session: Session, keys: list[str]) -> Any:
    """Returns the same lists, tuples and dicts with a `Key` in place of each future, and adds the
    keys of the futures to `keys`."""
    if isinstance(tree, Future):
        if tree._session is not session:
            raise ValueError(f"data: future {tree.key!r} belongs to another client: publish it there")
        keys.append(tree._state.key)
        return Key(tree._state.key)
    if isinstance(tree, dict):
        return {k: _stripped(v, session, keys) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (list, tuple)):
        return _rebuild(tree, [_stripped(v, session, keys) for v in cast("Iterable[Any]", tree)])
    return tree


def _restored(tree: Any, session: Session) -> Any:
    """Returns the same lists, tuples and dicts with a future in place of each `Key`."""
    if isinstance(tree, Key):
        return Future[Any](session, session.hold(tree.key))
    if isinstance(tree, dict):
        return {k: _restored(v, session) for k, v in cast("dict[Any, Any]", tree).items()}
    if isinstance(tree, (list, tuple)):
        return _rebuild(tree, [_restored(v, session) for v in cast("Iterable[Any]", tree)])
    return tree


def _rebuild(like: Any, items: list[Any]) -> Any:
    """Returns a collection of the same type with other items."""
    kind: Any = type(like)
    # A named tuple takes its items as arguments.
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _matching(workers: Sequence[worker_pb2.Worker], wanted: str | Sequence[str] | None) -> list[worker_pb2.Worker]:
    listed_names = _check.names(wanted, "workers")
    if listed_names is None:
        return sorted(workers, key=lambda w: w.name)
    names = set(listed_names)
    return sorted((w for w in workers if names & {w.name, w.host, f"w{w.worker_id}"}), key=lambda w: w.name)


def _digest(encoded: _serialize.Encoded) -> str:
    digest = hashlib.blake2b(encoded.header, digest_size=16)
    for frame in encoded.frames:
        digest.update(frame)
    return digest.hexdigest()


def _worker(worker: worker_pb2.Worker) -> dict[str, Any]:
    out = {
        "id": worker.worker_id,
        "name": worker.name,
        "host": worker.host,
        "device": worker_pb2.DeviceKind.Name(worker.device).removeprefix("DEVICE_KIND_").lower(),
        "pid": worker.pid,
        "address": worker.data_address,
        "slots": worker.slots,
        "resources": dict(worker.resources),
        "memory_limit": worker.memory_limit_bytes,
        "memory_used": worker.memory_used_bytes,
        "assigned_tasks": worker.assigned_tasks,
        "finished_tasks": worker.finished_tasks,
        "objects": worker.objects,
        "bytes_in": worker.bytes_in,
        "bytes_out": worker.bytes_out,
        "version": worker.version,
    }
    out["deaths"] = [MessageToDict(d, preserving_proto_field_name=True) for d in worker.deaths]
    return out
