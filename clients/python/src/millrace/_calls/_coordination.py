"""Calls about shared state: locks, queues, variables and the like, which the scheduler keeps. Each
wait is one call to the scheduler, repeated while it lasts, and keeps its place in line."""

from __future__ import annotations

import contextlib
import io
import time
import uuid
from collections.abc import Callable
from typing import Any, cast

import grpc

from millrace import _check, errors
from millrace._connection._connection import broke, starting
from millrace._connection._steps import Pause, Step, Steps
from millrace._pb.millrace.v1 import coordination_pb2, value_pb2
from millrace._session._session import Session
from millrace._tasks._arguments import Call
from millrace._values import _serialize
from millrace.future import Future, future_of_state

#: Longest wait of one call, in seconds. A longer wait takes several.
_POLL = 20.0
#: Largest value that the scheduler keeps, in bytes.
_MOST = 1 << 20
#: Most elements of a value that is sent as typed values; a larger one is pickled.
_MOST_ELEMENTS = 10_000
_PLAIN = (type(None), bool, str, bytes, float, complex)
_INT64 = range(-(1 << 63), 1 << 63)


class Reply(Step):
    """A call that was begun. It ends with the answer or an error."""

    def __init__(self, call: Any) -> None:
        super().__init__(None)
        self._call = call

    def _watch(self, call: Callable[[], None]) -> None:
        self._call.add_done_callback(lambda _: call())

    def _forget(self, call: Callable[[], None]) -> None:
        pass

    def give_up(self) -> None:
        """Ends the call."""
        self._call.cancel()

    def answer(self) -> Any:
        """Returns the answer of the call, which has ended. Raises grpc.RpcError."""
        try:
            return self._call.result()
        except grpc.FutureCancelledError:
            raise errors.SchedulerLostError("the wait was given up, or the client was closed") from None


def ask(
    session: Session,
    method: str,
    request: Any,
    timeout: float | None,
    began: Callable[[Reply], object] = lambda _: None,
) -> Steps[Any]:
    """Makes a call that may have to wait, and returns the last answer. If the scheduler was started
    anew meanwhile, the call is made there with the new lease.

    Args:
        session: the client's session.
        method: name of the call.
        request: its request. If that can have an id it gets one, by which the call keeps its place
            if the connection breaks, and is withdrawn if the caller gives up.
        timeout: longest wait, in seconds; None: without a limit.
        began: called with each call that waits, so that another thread can give it up.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    named = "request_id" in request.DESCRIPTOR.fields_by_name
    if named:
        request.request_id = uuid.uuid4().hex
    silent = 0.0  # since when the scheduler has not answered
    reply: Reply | None = None
    ended = False
    try:
        while True:
            session.check_open()
            left = _POLL + 1 if deadline is None else max(deadline - time.monotonic(), 0.0)
            wait = min(left, _POLL)
            request.client_id = session.client_id
            if named:
                request.keep_place = left > wait
            request.wait.FromNanoseconds(int(wait * 1e9))
            limit = wait + max(session.connection.timeout, 5.0)
            reply = Reply(session.connection.begin(method, request, limit))
            began(reply)
            yield reply
            try:
                answer = reply.answer()
            except grpc.RpcError as e:
                now = time.monotonic()
                silent = now if starting(e) else silent or now
                # A wait survives an outage as futures do, unless its time has passed.
                of = session.connection
                longest = of.reconnect_timeout if deadline is None or now < deadline else of.timeout
                if not (yield from _survive(session, e, request.client_id, now - silent <= longest)):
                    raise errors.from_rpc(e, errors.call_name(method)) from None
                continue
            silent = 0.0
            if _met(answer) or left <= wait:
                ended = True
                return answer
    except errors.MillraceError:
        ended = True
        raise
    finally:
        if not ended and reply is not None:
            reply.give_up()
            if named:
                _withdraw(session, request)


def _met(answer: Any) -> bool:
    """Returns whether a call got what it asked for."""
    field = answer.DESCRIPTOR.fields[0]
    value = getattr(answer, field.name)
    return bool(len(value)) if field.is_repeated else bool(value)


def _survive(session: Session, error: grpc.RpcError, client_id: int, in_time: bool) -> Steps[bool]:
    """Returns whether a call that failed is to be repeated. `in_time`: the scheduler may be away for
    longer."""
    if errors.reason_of(error) == "UNKNOWN_CLIENT":
        session.replace_lease(client_id)
        return True
    code = error.code() if isinstance(error, grpc.Call) else None
    # The call itself ends in time, so that there was no connection, or no answer.
    away = broke(error) or (code == grpc.StatusCode.DEADLINE_EXCEEDED and not errors.reason_of(error))
    if not (away and in_time):
        return False
    yield Pause(0.05, session.connection.ended)
    return True


def _withdraw(session: Session, request: Any) -> None:
    """Gives up a call whose caller has gone, in a thread: this may run in the garbage collector."""

    def call() -> None:
        with contextlib.suppress(Exception):
            session.call(
                "Withdraw",
                coordination_pb2.WithdrawRequest(client_id=request.client_id, request_id=request.request_id),
                timeout=10.0,
            )

    if not session.closed:
        session.pool.submit(call)


def acknowledge(session: Session, request: Any) -> None:
    """Says that this client holds the results in an answer."""
    with contextlib.suppress(errors.MillraceError):
        session.call(
            "Acknowledge",
            coordination_pb2.AcknowledgeRequest(client_id=request.client_id, request_id=request.request_id),
        )


# ---- values --------------------------------------------------------------------------------------


def stored(session: Session, obj: Any, what: str) -> tuple[coordination_pb2.StoredValue, list[Future[Any]]]:
    """Returns the value of an object, and futures that must live until it was sent. Plain values
    can be read in every language; all others are pickled. Futures inside become keys."""
    if isinstance(obj, Future) and obj.cancelled():
        raise errors.CancelledError(
            f"{what}: the future {obj.key!r} was cancelled, so that it is unknown to scheduler: submit its task again"
        )
    call = Call(session, None)
    out = coordination_pb2.StoredValue()
    if not (_exact(obj, [0], 0) and _filled(out.value, obj, call)):
        call = Call(session, None)
        out.value.Clear()
        out.value.opaque_value.encoding = "pickle5"
        out.value.opaque_value.data = _pickled(obj, call, what)
    assert not call.items, "an item of a list is no value"
    out.keys.extend(call.inputs)
    if (size := out.ByteSize()) > _MOST:
        error = errors.InvalidRequestError(
            f"{what}: the value takes {_check.above(size, _MOST)}: scatter it with client.scatter(), and pass the future"
        )
        error.reason = "TOO_LARGE"
        raise error
    if out.keys:
        session.flush()  # the scheduler must know the tasks
    return out, call.kept


def _exact(obj: Any, count: list[int], depth: int) -> bool:
    """Returns whether an object comes back as it is from typed values."""
    count[0] += 1
    if count[0] > _MOST_ELEMENTS or depth > _serialize.DEPTH_LIMIT:
        return False
    kind = type(obj)
    if kind in _PLAIN or isinstance(obj, Future):
        return True
    if kind is int:
        return obj in _INT64
    if kind is list:
        return all(_exact(item, count, depth + 1) for item in cast("list[Any]", obj))
    if kind is dict:
        items = cast("dict[Any, Any]", obj).items()
        return all(type(k) is str and _exact(v, count, depth + 1) for k, v in items)
    return False


def _filled(value: value_pb2.Value, obj: Any, call: Call) -> bool:
    try:
        _serialize.fill_argument(value, obj, call.reference)
    except _serialize.NotPlain:
        return False
    return True


def _pickled(obj: Any, call: Call, what: str) -> bytes:
    file = io.BytesIO()
    try:
        _serialize.CallPickler(file, call.reference).dump(obj)
    except errors.MillraceError:
        raise
    except Exception as e:
        raise errors.SerialisationError(f"{what}: the value cannot be pickled: {type(e).__name__}: {e}") from e
    return file.getvalue()


def restored(session: Session, value: coordination_pb2.StoredValue) -> Any:
    """Returns the object of a value, with futures of this client."""
    futures = [future_of_state(session, state) for state in session.hold_all(value.keys)] if value.keys else []
    if value.value.WhichOneof("kind") == "opaque_value":
        return _serialize.CallUnpickler(value.value.opaque_value.data, futures).load()
    return _serialize.from_value(value.value, (), futures)
