"""Puts data of the client on workers."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from millrace import _check, errors
from millrace._cluster._cluster_info import who_has
from millrace._cluster._workers import label, matching, named
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import task_pb2, value_pb2, worker_pb2
from millrace._session._session import Session
from millrace._task_states._state import Spec, State
from millrace._tasks._task_maker import TaskMaker, conflict
from millrace._tasks._task_options import TaskOptions
from millrace._tasks._tokens import own_token
from millrace._tasks._trees import rebuild
from millrace._values import _keys, _serialize
from millrace._values._keys import UserKey
from millrace.future import Future, ended, future_of_state, pickled_futures
from millrace.ops import NativeOp

#: Scattered data up to this size, in bytes, are hashed by default.
_HASH_BYTES = 16 << 20


class Scatter:
    """The parameters of one scatter."""

    def __init__(
        self,
        session: Session,
        maker: TaskMaker,
        *,
        workers: str | Sequence[str] | None,
        broadcast: bool,
        by_hash: bool | None,
        timeout: float,
    ) -> None:
        if _check.names(workers, "workers") == []:
            raise ValueError("workers is empty: name the workers that shall have the data, or leave it out for all")
        self._session, self._maker = session, maker
        self._workers, self._broadcast, self._by_hash = workers, broadcast, by_hash
        # Longest wait for a worker, in seconds.
        self._timeout = timeout

    def put(self, data: Any, key: UserKey | None) -> Steps[Any]:
        """Stores data. Returns a future for it: for a list a list, for a dict a dict."""
        if isinstance(data, (range, Iterator)):
            data = list(cast("Iterable[Any]", data))
        if key is not None and _is_collection(data):
            raise ValueError(
                f"key: {_keys.short(key)} cannot name each element of a {type(data).__name__}: scatter a dict, whose keys do, or "
                "one object"
            )
        if type(data) is dict:
            mapping = cast("dict[Any, Any]", data)
            own = [_key_or_none(k) for k in mapping]
            return dict(zip(mapping, (yield from self._put(list(mapping.values()), own)), strict=True))
        if _is_collection(data):
            items = list(cast("Iterable[Any]", data))
            return rebuild(data, (yield from self._put(items, [None] * len(items))))
        wire = None if key is None else _keys.to_wire(key)
        return (yield from self._put([data], [wire]))[0]

    def targets(self) -> Steps[list[worker_pb2.Worker]]:
        """Returns the workers that may get data. Waits for one, at most for the timeout."""
        deadline = time.monotonic() + self._timeout
        active = self._session.workers(fresh=False)
        while not (found := matching(active, self._workers)):
            left = deadline - time.monotonic()
            if left <= 0:
                raise errors.NoWorkerInTimeError(
                    f"scatter: no active worker{f' among {self._workers}' if self._workers else ''} in {self._timeout:g} s"
                )
            yield self._session.worker_watch.changed([w.worker_id for w in active], left)
            active = self._session.workers()
        return found

    def _put(self, items: list[Any], keys: list[str | None]) -> Steps[list[Future[Any]]]:
        yield from self.targets()
        futures: list[Future[Any]] = []
        fresh: list[tuple[Spec, _serialize.Encoded]] = []
        try:
            for item, key in zip(items, keys, strict=True):
                with pickled_futures() as inside:
                    encoded = encode(item)
                hashed = encoded.nbytes <= _HASH_BYTES if self._by_hash is None else self._by_hash
                future, spec = data_task(self._session, self._maker, item, encoded, key, hashed=hashed, kept=inside)
                futures.append(future)
                if spec is not None:
                    fresh.append((spec, encoded))
            if fresh:
                self._session.submit([spec for spec, _ in fresh], wait=True)
        except BaseException as e:
            self._session.abandon([s.state for s, _ in fresh if s.state is not None], e)
            raise
        if fresh:
            # Another client may have scattered equal data already.
            todo = [(cast(State, spec.state), encoded) for spec, encoded in fresh if not cast(State, spec.state).done]
            yield from self._session.scatter(
                [state for state, _ in todo], [encoded for _, encoded in todo], self.targets
            )
        if self._broadcast:
            yield from replicate(self._session, self._maker, futures, None, self._workers)
        return futures


def _is_collection(data: Any) -> bool:
    """Returns whether each element of an object gets a future. Objects of other classes stay whole,
    also if these are derived from collections: a copy with futures might have another type."""
    return type(data) in (dict, list, tuple, set, frozenset) or (isinstance(data, tuple) and hasattr(data, "_fields"))


def inside_of(future: Future[Any]) -> list[Future[Any]]:
    """Returns the futures inside of an object that this client has stored by `scatter`."""
    return list(future._state.kept or ())


def encode(item: Any) -> _serialize.Encoded:
    """Encodes an object that is stored on workers."""
    try:
        return _serialize.encode(item)
    except Exception as e:
        raise errors.SerialisationError(
            f"a {type(item).__module__}.{type(item).__qualname__} cannot be scattered: {type(e).__name__}: {e}"
        ) from e


def data_task(
    session: Session,
    maker: TaskMaker,
    item: Any,
    encoded: _serialize.Encoded,
    key: str | None,
    *,
    hashed: bool,
    kept: Any = None,
) -> tuple[Future[Any], Spec | None]:
    """Returns the future of an object that is stored on workers, and the task that stands for it;
    None if this client has stored it already.

    Args:
        item, encoded: the object.
        key: its wire key; None: made from its type and, if `hashed`, from its bytes, or from the
            token that its class gives it for Dask.
        kept: the reference keeps it as long as the object.
    """
    token = (own_token(item) or _digest(encoded)) if hashed else uuid.uuid4().hex
    name = _keys.to_wire(f"{type(item).__name__[:64]}-{token}") if key is None else key
    state, new = maker.state_of(name, token, data=True)
    future = future_of_state(session, state)
    if not new:
        if state.body and state.body != token:
            raise conflict(name, "other data, or a task")
        return future, None
    state.body, state.kept = token, kept
    # Other data under the same key has another digest. With the digest in the arguments, the
    # scheduler detects the conflict.
    body = (
        b""
        if key is None
        else value_pb2.Arguments(positional=[value_pb2.Value(string_value=token)]).SerializeToString()
    )
    return future, Spec(name, (task_pb2.OP_KIND_DATA, "data", b""), [], body, b"", state)


def replicate(
    session: Session,
    maker: TaskMaker,
    copied: Sequence[Future[Any]],
    n: int | None,
    workers: str | Sequence[str] | None,
) -> Steps[None]:
    """Copies results to `n` of the workers, or to all of them. See `Client.replicate`."""
    named(session.workers(), workers)
    session.flush()
    yield ended(copied, None)
    found = named(session.workers(), workers)
    names = [w.name for w in found]
    chained = all(w.device == worker_pb2.DEVICE_KIND_CUDA for w in found)
    wanted = len(names) if n is None else min(n, len(names))
    name_of = {label(w): w.name for w in found}
    holders = {key: {name_of.get(w, w) for w in workers} for key, workers in who_has(copied).items()}
    while True:
        wave: list[tuple[str, str, Future[Any]]] = []
        specs: list[Spec] = []
        for future in copied:
            have = holders[future.key]
            missing = [w for w in names if w not in have][: max(wanted - len(have & set(names)), 0)]
            for name in missing if chained else missing[: max(len(have), 1)]:
                options = TaskOptions(workers=name).pack()
                spec, state = maker.spec(NativeOp("core.replicate"), (future,), {}, None, False, options, None)
                specs += [spec] if spec is not None else []
                wave.append((future.key, name, future_of_state(session, state)))
        if not wave:
            return
        # One submission, so that the scheduler plans these tasks together.
        session.submit(specs)
        yield session.waits.ended([copy._state for _, _, copy in wave], None)
        for key, name, copy in wave:
            exception = copy._state.exception()
            if exception is not None:
                try:
                    raise exception
                finally:
                    del exception  # see DataPlane.fetch
            holders[key].add(name)


def _key_or_none(key: Any) -> str | None:
    """Returns the key of an element of a dict that is scattered; None if the dict's key is not of a
    type that keys can have."""
    try:
        return _keys.to_wire(key)
    except TypeError:
        return None


def _digest(encoded: _serialize.Encoded) -> str:
    digest = hashlib.blake2b(encoded.header, digest_size=16)
    for frame in encoded.frames:
        digest.update(frame)
    return digest.hexdigest()
