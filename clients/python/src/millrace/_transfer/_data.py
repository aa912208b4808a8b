"""Transfers bytes between a client and the workers: in the worker's own memory if it is on this
host, else by DataService over one connection to each worker.

Scattered data count as stored only when the scheduler reports them: a worker that has the bytes may
die before it could report them, and then only this client can send them again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from millrace import errors
from millrace._connection._channel import open_channel
from millrace._connection._steps import Steps
from millrace._pb.millrace.v1 import data_service_pb2, error_pb2, task_pb2, worker_pb2
from millrace._task_states._state import State
from millrace._task_states._waits import Waits
from millrace._transfer import _share
from millrace._transfer._locator import Locator
from millrace._transfer._shares import Shares
from millrace._values import _keys, _serialize
from millrace._values._object_messages import Piece, head_of, join, pieces

#: Receive window of a stream: the worker must not wait while the reader copies 1 MiB out.
_WINDOW = ("grpc.http2.lookahead_bytes", 16 << 20)
#: Seconds from the start of a scatter after which an object is not written to another worker: if a
#: worker is lost then, the scatter fails.
_PLACE_SECONDS = 60.0
#: Longest time of one gRPC call that transfers objects, in seconds.
_TRANSFER_SECONDS = 600.0
#: A fetch fails if the tasks have ended but no result arrives for this time, in seconds.
FETCH_SECONDS = 60.0
#: Time for the scheduler to tell where results are, in seconds, if the caller's has passed.
_LOCATE_SECONDS = 5.0
#: Most objects of one request to a worker.
_MOST_READ = 10_000
#: Objects up to this size, in bytes, are written by gRPC: it takes one call instead of two.
_SMALL_BYTES = 64 << 10

_log = logging.getLogger("millrace")


def _keep_freed_memory() -> None:
    """Makes glibc keep up to 32 MiB of freed memory in each arena, instead of twice the size of the
    largest block that it has given back to the kernel before.

    malloc sets the amount that it keeps to twice the largest block that was ever freed by munmap,
    so this allocates and frees 16 MiB once. Without it, the buffers of each message of 1 MiB are
    returned to the kernel and faulted in again page by page, which takes longer than receiving the
    message: 46,000 faults for 256 MiB, 1,000 with it.
    """
    bytes(16 << 20)


class DataPlane:
    """The part of a session that transfers the bytes of objects.

    Args:
        locator: the workers, and the locations of results.
        waits: waits for the end of tasks.
        confirm_lease: replaces the client's lease if the scheduler does not know it.
        token, metadata: the client's credentials.
        share: read and write the memory of workers on this host in place.
    """

    def __init__(
        self,
        locator: Locator,
        waits: Waits,
        confirm_lease: Callable[[], None],
        token: str,
        metadata: tuple[tuple[str, str], ...],
        *,
        share: bool,
    ) -> None:
        self._locator, self._waits, self._metadata = locator, waits, metadata
        self._confirm_lease = confirm_lease
        self._turn = itertools.count()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._channels: dict[str, grpc.Channel] = {}
        self._shares = Shares(token, enabled=share)
        _keep_freed_memory()

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            channels, self._channels = self._channels, {}
        self._shares.close()
        for channel in channels.values():
            channel.close()

    def channel(self, address: str) -> grpc.Channel:
        """Returns the channel to the worker with this address. The caller does not close it."""
        with self._lock:
            self._locator.check_open()
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = open_channel(address, _WINDOW)
            return channel

    def paths(self) -> dict[str, str]:
        """Returns how bytes are exchanged with each worker that was contacted, by its address:
        "shared memory", "grpc", or "grpc (...)" with the reason why its memory is not shared."""
        with self._lock:
            out = {address: "grpc" for address in self._channels}
        return {**out, **self._shares.paths()}

    # ---- out -------------------------------------------------------------------------------------

    def scatter(
        self,
        states: Sequence[State],
        objects: Sequence[_serialize.Encoded],
        targets: Callable[[], Steps[Sequence[worker_pb2.Worker]]],
    ) -> Steps[None]:
        """Writes each object to a worker, in turn, and waits until the scheduler knows it.

        `targets` returns the workers that are allowed and active now; it raises if there is none in
        time. If a worker is lost before it could report an object, the object is written to another
        one.

        A worker refuses an object that it has already. Either an earlier attempt succeeded, and the
        scheduler knows the object; or the object was released a moment ago, and the worker is about
        to drop it. So the object is written again until the scheduler knows it.
        """
        deadline = time.monotonic() + _PLACE_SECONDS
        left = list(range(len(states)))
        lost: set[int] = set()
        at: dict[int, int] = {}  # by index of the object, the worker that had it already
        pause = 0.05
        why = "no worker kept its bytes for long enough to report them"
        while left:
            workers = yield from targets()
            fit = [w for w in workers if w.worker_id not in lost] or list(workers)
            took: dict[int, int] = {}  # worker id by index of the object
            for i in left:
                worker = next((w for w in fit if w.worker_id == at.get(i)), None) or fit[next(self._turn) % len(fit)]
                try:
                    if self._write(worker.data_address, states[i].id, objects[i]):
                        took[i] = worker.worker_id
                    else:
                        at[i] = worker.worker_id
                except grpc.RpcError as e:
                    error = errors.from_rpc(e, f"scattering {_keys.name(states[i].key)} to {worker.name}")
                    # Another client may have stored equal data, and the news of that be on the way.
                    if errors.reason_of(e) == "NOT_A_DATA_TASK":
                        if time.monotonic() > deadline:
                            raise error from None
                        continue
                    if not isinstance(e, grpc.Call) or e.code() != grpc.StatusCode.UNAVAILABLE:
                        raise error from None
                    lost.add(worker.worker_id)
            left = yield from self._unreported(states, left, took, lost, deadline)
            if left:
                if time.monotonic() > deadline:
                    if left[0] in at:
                        why = "a worker has it already, and neither the scheduler reported its end nor did the worker drop it"
                    raise errors.MillraceError(f"scattering {_keys.name(states[left[0]].key)}: {why}")
                yield self._waits.ended([states[i] for i in left], pause)
                left = [i for i in left if not states[i].done]
                pause = min(2 * pause, 1.0)

    def _unreported(
        self, states: Sequence[State], left: Sequence[int], took: dict[int, int], lost: set[int], deadline: float
    ) -> Steps[list[int]]:
        """Waits until each object that a worker took is stored or its worker is gone. Returns the
        objects to be written again."""
        pause = 0.1
        open_ = [i for i in left if i in took]
        while open_ and not (yield self._waits.ended([states[i] for i in open_], pause)):
            if time.monotonic() > deadline:
                break
            pause = min(2 * pause, 1.0)
            alive = {w.worker_id for w in self._locator.workers()}
            for i in open_:
                if took[i] not in alive:
                    lost.add(took[i])
            open_ = [i for i in open_ if took[i] in alive and not states[i].done]
        return [i for i in left if not states[i].done]

    def _write(self, address: str, task_id: int, encoded: _serialize.Encoded) -> bool:
        """Writes an object to a worker. Returns False if the worker has the object already."""
        share = self._shares.get(address, write=True) if encoded.nbytes > _SMALL_BYTES else None
        if share is not None:
            try:
                share.write(head_of(task_id, encoded), encoded.frames)
                return True
            except _share.RefusedError as e:
                if e.reason == "OBJECT_EXISTS":
                    return False
                _log.info("%s is written by gRPC: %s", address, e)  # gRPC may report the same error
            except OSError as e:
                _log.info("the memory of %s cannot be used: %s", address, e)
        send = self.channel(address).stream_unary(
            "/millrace.v1.DataService/WriteObject",
            request_serializer=join,
            response_deserializer=data_service_pb2.WriteObjectResponse.FromString,
        )
        try:
            send(pieces(task_id, encoded), metadata=self._metadata, timeout=_TRANSFER_SECONDS)
        except grpc.RpcError as e:
            if not isinstance(e, grpc.Call) or e.code() != grpc.StatusCode.ALREADY_EXISTS:
                raise
            return False
        return True

    # ---- in --------------------------------------------------------------------------------------

    def fetch(self, states: Sequence[State], timeout: float | None, copy: bool = False) -> Steps[list[Any]]:
        """Waits until the tasks end, and returns their results in order.

        Args:
            timeout: longest time for all of it, in seconds; None: without a limit.
            copy: copies results out of the memory of workers on this host, so that they do not
                keep it in use.

        Raises:
            TimeoutError: `timeout` has passed.
            ResultUnreachableError: no result has arrived for FETCH_SECONDS.
            The error of the first task that failed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        out: list[Any] = [None] * len(states)
        left = list(range(len(states)))
        pause = 0.02
        confirmed = False
        tries = _Tries()
        while left:
            waits = not all(states[i].done for i in left)
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not (yield self._waits.ended([states[i] for i in left], remaining)):
                raise TimeoutError(f"{len(left)} results did not arrive in {timeout:g} s")
            tries.begin(len(left), anew=waits)
            far: list[int] = []
            for i in left:
                exception = states[i].exception()
                if exception is not None:
                    try:
                        raise exception
                    finally:
                        # The traceback refers to this frame and those of the callers. A reference
                        # back would keep their futures, and so the failure at the scheduler, until
                        # the next garbage collection.
                        del exception
                inline = states[i].inline
                if inline is not None:
                    out[i] = _decode(states[i], inline, ())
                else:
                    far.append(i)
            try:
                left = self._fetch_far(states, far, out, deadline, copy, tries) if far else []
            except errors.NotFoundError:
                if confirmed:
                    raise
                # The lease may have ended, or be of an earlier scheduler process, and the watch has
                # not noticed it yet. Then the states get errors that name the cause.
                confirmed = True
                self._confirm_lease()
                continue
            except errors.SchedulerLostError as e:
                if deadline is None or time.monotonic() < deadline:
                    raise
                raise TimeoutError(f"{len(left)} results did not arrive in {timeout:g} s: {e}") from e
            if left:
                key = states[left[0]].key
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{len(left)} results could not be fetched in {timeout:g} s, such as {_keys.name(key)}: {tries.why(left[0])}"
                    )
                if tries.over(len(left)):
                    raise errors.ResultUnreachableError(
                        f"the result of {_keys.name(key)} could not be fetched for {FETCH_SECONDS:g} s: {tries.why(left[0])}"
                    )
                # The holders died, which the scheduler will notice soon; or they do not answer.
                yield self._waits.pause(pause)
                pause = min(pause * 2, 0.5)
        return out

    def _fetch_far(
        self,
        states: Sequence[State],
        far: list[int],
        out: list[Any],
        deadline: float | None,
        copy: bool,
        tries: _Tries,
    ) -> list[int]:
        """Fetches results from workers. Returns the ones that must be tried again."""
        far = self._borrow_known(states, far, out, copy)
        if not far:
            return []
        limit = self._locator.reconnect_timeout
        if deadline is not None:
            # A scheduler that answers has some time for it, however short the caller's is.
            least = 0.01 if self._locator.silent else _LOCATE_SECONDS
            limit = min(max(deadline - time.monotonic(), least), limit)
        places, addresses = self._locator.locate([states[i].id for i in far], limit)
        groups: dict[str, list[tuple[int, Any]]] = {}
        again: list[int] = []
        for i, place in zip(far, places, strict=True):
            holders = [w for w in place.worker_ids if addresses.get(w)]
            if not holders:
                if place.state == task_pb2.TASK_STATE_UNSPECIFIED:
                    raise errors.NotFoundError(
                        f"the scheduler does not know {_keys.name(states[i].key)} any more: submit it again"
                    )
                again.append(i)
                tries.failed(i, "no worker holds it at the moment")
                continue
            groups.setdefault(addresses[holders[next(self._turn) % len(holders)]], []).append((i, place))
        raised: list[BaseException] = []

        def read(address: str, group: list[tuple[int, Any]]) -> None:
            try:
                again.extend(self._read(address, states, group, out, deadline, copy, tries))
            except BaseException as e:  # raised below, in the caller's thread
                raised.append(e)

        threads = [threading.Thread(target=read, args=item, daemon=True) for item in list(groups.items())[1:]]
        for thread in threads:
            thread.start()
        if groups:
            read(*next(iter(groups.items())))
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return again

    def _borrow_known(self, states: Sequence[State], far: list[int], out: list[Any], copy: bool) -> list[int]:
        """Reads results in place, without asking the scheduler for locations, if this client
        already reads the memory of the worker that the task's update named. Returns the rest."""
        groups: dict[str, list[tuple[int, Any]]] = {}
        rest: list[int] = []
        addresses = self._locator.addresses()
        for i in far:
            state = states[i]
            address = addresses.get(state.worker, "")
            if self._shares.reads(address):
                ref = data_service_pb2.ObjectRef(task_id=state.id, generation=state.generation)
                groups.setdefault(address, []).append((i, ref))
            else:
                rest.append(i)
        for address, group in groups.items():
            rest += [i for i, _ in self._borrow(address, states, group, out, copy)]
        return rest

    def _borrow(
        self, address: str, states: Sequence[State], group: list[tuple[int, Any]], out: list[Any], copy: bool
    ) -> list[tuple[int, Any]]:
        """Reads objects in the memory of a worker, if it is on this host and allows that. Returns
        the ones that must be read in another way."""
        share = self._shares.get(address, write=False)
        if share is None:
            return group
        left: list[tuple[int, Any]] = []
        refs = [data_service_pb2.ObjectRef(task_id=p.task_id, generation=p.generation) for _, p in group]
        try:
            for at in range(0, len(refs), 10_000):
                leases = share.acquire(refs[at : at + 10_000])
                leased = zip(group[at : at + 10_000], leases, strict=True)
                try:
                    for (i, place), lease in leased:
                        if not lease.lease_id:
                            left.append((i, place))
                            continue
                        give_back = partial(self._shares.release, share, lease.lease_id)
                        out[i] = _decode(states[i], lease.head.header, share.frames(lease, give_back, copy=copy))
                finally:
                    for _, lease in leased:  # after an error, those that are left
                        if lease.lease_id:
                            self._shares.release(share, lease.lease_id)
        except (OSError, _share.RefusedError) as e:
            _log.info("the memory of %s cannot be used: %s", address, e)
            return [item for item in group if out[item[0]] is None]
        return left

    def _read(
        self,
        address: str,
        states: Sequence[State],
        group: list[tuple[int, Any]],
        out: list[Any],
        deadline: float | None,
        copy: bool,
        tries: _Tries,
    ) -> list[int]:
        """Fetches results from one worker. Returns the ones that must be tried again."""
        group = self._borrow(address, states, group, out, copy)
        bad: list[int] = []
        for at in range(0, len(group), _MOST_READ):
            bad += self._receive(address, states, group[at : at + _MOST_READ], out, deadline, tries)
        return bad

    def _receive(
        self,
        address: str,
        states: Sequence[State],
        group: list[tuple[int, Any]],
        out: list[Any],
        deadline: float | None,
        tries: _Tries,
    ) -> list[int]:
        """Reads objects by gRPC, with one call. Returns the ones that must be tried again."""
        request = data_service_pb2.ReadObjectsRequest(
            objects=[data_service_pb2.ObjectRef(task_id=p.task_id, generation=p.generation) for _, p in group]
        )
        receive = self.channel(address).unary_stream(
            "/millrace.v1.DataService/ReadObjects",
            request_serializer=data_service_pb2.ReadObjectsRequest.SerializeToString,
            response_deserializer=Piece,
        )
        heads: dict[int, data_service_pb2.ObjectHead] = {}
        frames: dict[int, list[memoryview]] = {}
        missing: dict[int, int] = {}
        refused: dict[int, str] = {}
        why = "the worker sent nothing"
        timeout = _TRANSFER_SECONDS if deadline is None else max(deadline - time.monotonic(), 0.01)
        try:
            for piece in receive(request, metadata=self._metadata, timeout=timeout):
                if piece.head is not None:
                    head = data_service_pb2.ObjectHead.FromString(bytes(piece.head))
                    heads[piece.index] = head
                    frames[piece.index] = [np.empty(n, np.uint8).data for n in head.frame_bytes]
                    missing[piece.index] = sum(head.frame_bytes)
                if piece.data is not None:
                    target = frames[piece.index][piece.frame]
                    target[piece.offset : piece.offset + len(piece.data)] = piece.data
                    missing[piece.index] -= len(piece.data)
                if piece.error is not None:
                    error = error_pb2.TaskError.FromString(bytes(piece.error))
                    refused[piece.index] = error.message or error.reason
        except grpc.RpcError as e:
            why = str(e.details() if isinstance(e, grpc.Call) else e)
        bad: list[int] = []
        for n, (i, _) in enumerate(group):
            if n in heads and missing[n] == 0:
                out[i] = _decode(states[i], heads[n].header, frames[n])
            else:
                bad.append(i)
                tries.failed(i, f"worker at {address}: {refused.get(n, why)}")
        return bad


class _Tries:
    """Counts how long a fetch has made no progress, and remembers why its tries have failed."""

    def __init__(self) -> None:
        self._left = 0
        # Number of results that were missing when the last try began, and the monotonic time since
        # which that number has not changed.
        self._since = 0.0
        self._reasons: dict[int, str] = {}

    def begin(self, left: int, *, anew: bool) -> None:
        """Begins a try to fetch a number of results. `anew`: the time before it does not count,
        because their tasks were still running."""
        if anew or left != self._left:
            self._left, self._since = left, time.monotonic()

    def failed(self, i: int, why: str) -> None:
        """Notes why a result could not be fetched."""
        self._reasons[i] = why

    def over(self, left: int) -> bool:
        """Returns whether no result has arrived for too long. `left`: their number after the
        try."""
        return left == self._left and time.monotonic() - self._since > FETCH_SECONDS

    def why(self, i: int) -> str:
        """Returns why the last try for a result has failed."""
        return self._reasons.get(i, "no worker has given it")


def _decode(state: State, header: bytes, frames: Sequence[Any]) -> Any:
    try:
        return _serialize.decode(header, frames)
    except DecodeError as e:  # written by another program: this client writes no such header
        raise errors.ResultUnreadableError(
            f"the result of {_keys.name(state.key)} cannot be read: its header is not a valid Value, or nests more than "
            f"100 messages ({e})"
        ) from e
    except Exception as e:
        add_note: Any = getattr(e, "add_note", None)  # since Python 3.11
        if add_note is not None:
            remedy = ": install it for the client, too" if isinstance(e, ImportError) else ""
            add_note(
                f"in decoding the result of {_keys.from_wire(state.key)!r} in this process, after its task succeeded{remedy}"
            )
        raise
