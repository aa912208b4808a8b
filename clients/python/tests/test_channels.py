"""The channels of a client."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc._channel
import pytest
from conftest import PATIENCE
from grpc._cython import cygrpc
from millrace._connection._channel import open_channel


class Endless(grpc.GenericRpcHandler):
    """A service whose only method is a stream that ends when the caller ends it."""

    def service(self, _details: Any) -> grpc.RpcMethodHandler:
        return grpc.unary_stream_rpc_method_handler(self._stream)

    def _stream(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ended = threading.Event()
        context.add_callback(ended.set)
        yield b"begun"
        ended.wait(PATIENCE)


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[Endless()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait(PATIENCE)


def test_a_channel_is_closed_when_grpc_has_done_with_its_streams(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter may end as soon as a client is closed, and gRPC's thread with it. If that
    thread has a stream's lock then, the destructor of the stream waits for it for ever."""
    closed = threading.Event()
    early: list[bool] = []
    handle = grpc._channel._handle_event

    def slow(event: Any, state: Any, deserializer: Any) -> Any:
        result = handle(event, state, deserializer)
        if any(o.type() == cygrpc.OperationType.receive_status_on_client for o in event.batch_operations):
            early.append(closed.wait(1.0))  # it has the lock of the stream
        return result

    monkeypatch.setattr(grpc._channel, "_handle_event", slow)
    channel = open_channel(address)
    stream = channel.unary_stream("/test.Endless/Stream")(b"", timeout=PATIENCE)
    assert next(stream) == b"begun"
    channel.close()
    closed.set()
    assert early == [False], "the channel was closed while gRPC's thread held the lock of a stream"
    assert stream.code() == grpc.StatusCode.CANCELLED


def test_streams_that_have_ended_do_not_hold_up_the_end_of_a_channel(address: str) -> None:
    with open_channel(address) as channel:
        method = channel.unary_stream("/test.Endless/Stream")
        cancelled = method(b"", timeout=PATIENCE)
        assert next(cancelled) == b"begun"
        cancelled.cancel()
        late = method(b"", timeout=1e-6)
        # Mostly it is too late for a response.
        with contextlib.suppress(grpc.RpcError):
            next(late)
    with pytest.raises(ValueError, match="closed"):
        method(b"")
    assert channel._open == 0  # type: ignore[attr-defined]
