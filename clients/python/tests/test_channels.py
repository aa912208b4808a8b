"""The channels of a client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc._channel
import pytest
from conftest import PATIENCE
from grpc._cython import cygrpc
from millrace._connection._channel import open_channel


class Endless(grpc.GenericRpcHandler):
    """A service whose calls end when the caller ends them."""

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        if details.method == "/test.Endless/Unary":
            return grpc.unary_unary_rpc_method_handler(self._unary)
        return grpc.unary_stream_rpc_method_handler(self._stream)

    def _unary(self, _request: bytes, context: grpc.ServicerContext) -> bytes:
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(PATIENCE)
        return b""

    def _stream(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"begun"
        self._unary(request, context)


def open_stream(channel: grpc.Channel) -> Any:
    stream = channel.unary_stream("/test.Endless/Stream")(b"", timeout=PATIENCE)
    assert next(stream) == b"begun"
    return stream


def open_unary(channel: grpc.Channel) -> Any:
    return channel.unary_unary("/test.Endless/Unary").future(b"", timeout=PATIENCE)


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Endless()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait(PATIENCE)


@pytest.mark.parametrize("begin", [open_stream, open_unary])
def test_a_channel_is_closed_when_grpc_has_done_with_its_calls(
    begin: Callable[[grpc.Channel], Any], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter may end as soon as a client is closed, and gRPC's thread with it. If that
    thread has a call's lock then, the destructor of the call waits for it for ever."""
    closed = threading.Event()
    early: list[bool] = []
    handle = grpc._channel._handle_event

    def slow(event: Any, state: Any, deserializer: Any) -> Any:
        result = handle(event, state, deserializer)
        if any(o.type() == cygrpc.OperationType.receive_status_on_client for o in event.batch_operations):
            early.append(closed.wait(1.0))  # it has the lock of the call
        return result

    monkeypatch.setattr(grpc._channel, "_handle_event", slow)
    channel = open_channel(address)
    call = begin(channel)
    channel.close()
    closed.set()
    assert early == [False], "the channel was closed while gRPC's thread held the lock of a call"
    assert call.code() == grpc.StatusCode.CANCELLED


def test_calls_that_have_ended_do_not_hold_up_the_end_of_a_channel(address: str) -> None:
    with open_channel(address) as channel:
        method = channel.unary_stream("/test.Endless/Stream")
        cancelled = method(b"", timeout=PATIENCE)
        assert next(cancelled) == b"begun"
        cancelled.cancel()
        late = method(b"", timeout=1e-6)
        # Mostly it is too late for a response.
        with contextlib.suppress(grpc.RpcError):
            next(late)
        open_unary(channel).cancel()
        assert channel.unary_unary("/test.Endless/Unary").future(b"", timeout=1e-6).exception(PATIENCE)
    with pytest.raises(ValueError, match="closed"):
        method(b"")
    assert channel._open == 0  # type: ignore[attr-defined]
