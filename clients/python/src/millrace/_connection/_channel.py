"""Opens the channels of a client, all with the same rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

# Messages have at most 64 MiB. If a call is open and nothing arrives for 20 s, the client sends a
# ping, and gives up the connection if no answer comes within 10 s. An answer to a ping that gRPC
# sends to measure the bandwidth has the same time, instead of a minute: no other ping is sent
# meanwhile. 0 allows any number of pings without data. Each channel has a connection of its own,
# also if another one has the same address.
_OPTIONS = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # How soon a broken connection is tried again, at which intervals at most, and how long one
    # attempt may take. gRPC's own limits are 2 minutes and 20 s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 10_000),
)

# Seconds that a closed channel waits for the ends of its calls. They take microseconds, and
# longer only on a machine that is too busy to run gRPC's thread.
_LONGEST_END = 30.0


class _Channel(grpc.Channel):
    """A channel whose `close` waits until gRPC's thread has done with all calls.

    gRPC's thread takes a lock of a call while it handles the call's end, and the destructor of the
    call takes it too. `close` of grpcio does not wait for that thread. If the interpreter ends just
    then, the thread never runs again, and the destructor waits for its lock for ever. This concerns
    streams of responses and `future` of unary calls: no object is left of others.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._open = 0  # calls whose end was not handled; guarded by _changed

    def _begun(self, call: Any) -> Any:
        with self._changed:
            self._open += 1
        if not call.add_callback(self._ended):
            self._ended()
        return call

    def _ended(self) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _streams(self, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: self._begun(method(*args, **options))

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _Unary(self._channel.unary_unary(*args, **options), self._begun)

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._channel.stream_unary(*args, **options)

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._streams(self._channel.unary_stream(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._streams(self._channel.stream_stream(*args, **options))

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        self._channel.close()
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, _LONGEST_END)

    def __enter__(self) -> _Channel:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Unary:
    """A unary method of such a channel."""

    __slots__ = ("_begun", "_method")

    def __init__(self, method: Any, begun: Callable[[Any], Any]) -> None:
        self._method, self._begun = method, begun

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)

    def future(self, *args: Any, **options: Any) -> Any:
        return self._begun(self._method.future(*args, **options))


def open_channel(address: str, *options: tuple[str, int]) -> grpc.Channel:
    """Returns a channel to a scheduler or a worker, which connects at its first call. `options` are
    added to those that all channels have, and win over them."""
    return _Channel(grpc.insecure_channel(address, options=list({**dict(_OPTIONS), **dict(options)}.items())))
