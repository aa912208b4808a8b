"""A channel to several schedulers that look like one: one of them leads, and answers all calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc

from millrace import errors
from millrace._connection._channel import open_channel

#: Reason of the errors of a scheduler that does not lead. It has not begun the call.
NOT_LEADER = "NOT_LEADER"
#: Reason of the errors of a scheduler that reads its journal. It has not begun the call.
STARTING = "SCHEDULER_STARTING"

# An address that does not answer is left sooner than that of an only scheduler: an attempt to
# connect takes at most 2 s, and a connection without a sign of life ends after 17 s. Schedulers
# allow pings every 10 s.
_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 12_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)


def addresses(address: str) -> list[str]:
    """Returns the addresses of the schedulers that an address names."""
    return address.split(",")


def open_scheduler(address: str) -> Any:
    """Returns a channel to the scheduler of an address, or to the leader of several addresses with
    commas between them."""
    several = addresses(address)
    return open_channel(address) if len(several) == 1 else Several(several)


class Turns:
    """Says which of several addresses the next call goes to.

    Args:
        several: the addresses.
    """

    def __init__(self, several: list[str]) -> None:
        self._addresses = several
        self._lock = threading.Lock()
        #: Index of the address of the next call. It is the one whose turn it is, except while
        #: `_named`: then the latter has named the leader. If that is not the leader, the turn goes
        #: on: two schedulers that name each other, or one that is gone, do not keep calls from a
        #: third one.
        self.at = 0
        self._turn = 0
        self._named = False

    def leave(self, at: int, leader: str) -> None:
        """Makes the next calls go elsewhere: to the leader that a refusal has named, else to the
        next address in turn. Nothing changes if calls go elsewhere already.

        NB: a leader that is not in the list is not called. Calls carry the client's token, and a
        scheduler, or somebody at its address, must not be able to have it sent to a place that the
        user of the client did not name.

        Args:
            at: index of the address that refused, or that cannot be reached.
            leader: the address that the refusal has named; empty: none.
        """
        with self._lock:
            if at != self.at:
                return
            if leader in self._addresses and leader != self._addresses[at] and not self._named:
                self.at, self._named = self._addresses.index(leader), True
                return
            self._turn = (self._turn + 1) % len(self._addresses)
            if self._turn == at:
                self._turn = (self._turn + 1) % len(self._addresses)
            self.at, self._named = self._turn, False


class Several:
    """Channels to several schedulers, used as one. It has the methods of grpc.Channel that stubs
    use; `wait_for_ready` of calls is without effect.

    A call goes elsewhere if it fails because there is no connection, or is refused by a scheduler
    that does not lead. Unary calls and streams of responses that were refused are made again, until
    each scheduler has refused them.
    """

    def __init__(self, several: list[str]) -> None:
        self._turns = Turns(several)
        self._channels = [open_channel(address, *_OPTIONS) for address in several]

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _Unary(self._turns, [c.unary_unary(*args, **kwargs) for c in self._channels])

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _Responses(self._turns, [c.unary_stream(*args, **kwargs) for c in self._channels])

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return _Requests(self._turns, [c.stream_unary(*args, **kwargs) for c in self._channels])

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return _Requests(self._turns, [c.stream_stream(*args, **kwargs) for c in self._channels])

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class _Method:
    """A method of a service, at each of the addresses."""

    def __init__(self, turns: Turns, methods: list[Any]) -> None:
        self._turns, self._methods = turns, methods

    def refused(self, at: int, error: Any) -> bool:
        """Makes the next calls go elsewhere if this one has failed for that. Returns whether the
        scheduler has refused it, and not begun it."""
        if not isinstance(error, grpc.Call) or error.code() != grpc.StatusCode.UNAVAILABLE:
            return False
        reason, metadata = errors.info_of(error)
        if reason in ("", NOT_LEADER, STARTING):
            self._turns.leave(at, metadata.get("leader", "") if reason == NOT_LEADER else "")
        return reason in (NOT_LEADER, STARTING)


class _Unary(_Method):
    def __call__(self, request: Any, *, wait_for_ready: bool = False, **options: Any) -> Any:
        for left in reversed(range(len(self._methods))):
            at = self._turns.at
            try:
                return self._methods[at](request, **options)
            except grpc.RpcError as e:
                if not self.refused(at, e) or not left:
                    raise
        raise AssertionError

    def future(self, request: Any, *, wait_for_ready: bool = False, **options: Any) -> Any:
        at = self._turns.at
        call = self._methods[at].future(request, **options)
        call.add_done_callback(lambda ended: self.refused(at, ended))
        return call


class _Responses(_Method):
    def __call__(self, request: Any, **options: Any) -> _Stream:
        return _Stream(self, request, options)

    def open(self, request: Any, options: dict[str, Any]) -> tuple[int, Any, int]:
        """Opens a stream. Returns the index of its address, the stream, and the number of
        addresses."""
        at = self._turns.at
        return at, self._methods[at](request, **options), len(self._methods)


class _Stream:
    """The responses of a call."""

    def __init__(self, method: _Responses, request: Any, options: dict[str, Any]) -> None:
        self._method, self._request, self._options = method, request, options
        self._cancelled = False
        self._at, self._call, self._left = method.open(request, options)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                response = next(self._call)
            except grpc.RpcError as e:
                self._left -= 1
                if not self._method.refused(self._at, e) or self._left <= 0:
                    raise
            else:
                self._left = 0  # it was not refused
                return response
            self._at, self._call, _ = self._method.open(self._request, self._options)
            if self._cancelled:
                self._call.cancel()

    def cancel(self) -> None:
        """Ends the call."""
        self._cancelled = True
        self._call.cancel()

    def cancelled(self) -> bool:
        """Returns whether `cancel` was called."""
        return self._cancelled


class _Requests(_Method):
    def __call__(self, requests: Iterator[Any], **options: Any) -> Any:
        at = self._turns.at
        try:
            return self._methods[at](requests, **options)
        except grpc.RpcError as e:
            self.refused(at, e)
            raise
