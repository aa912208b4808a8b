"""A proxy server between clients and a real scheduler. It forwards calls, and fails or changes
those that a test names."""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import grpc


def _bytes(data: bytes) -> bytes:
    return data


def _field(number: int, data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *out, size]) + data


def with_reason(reason: str, **metadata: str) -> tuple[tuple[str, bytes], ...]:
    """Returns the trailers of an error with a google.rpc.ErrorInfo."""
    said = _field(1, reason.encode()) + _field(2, b"millrace.dev")
    for name, value in metadata.items():
        said += _field(3, _field(1, name.encode()) + _field(2, value.encode()))
    info = _field(1, b"type.googleapis.com/google.rpc.ErrorInfo") + _field(2, said)
    return (("grpc-status-details-bin", _field(3, info)),)


class Proxy(grpc.GenericRpcHandler):
    """The proxy. Methods are named without their service: "Watch"."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=[("grpc.max_receive_message_length", 64 << 20)])
        #: Errors that answer the next calls, as code and reason, by method.
        self.errors: dict[str, queue.SimpleQueue[tuple[grpc.StatusCode, str]]] = {}
        #: Methods of which the answer to the next call is lost, after the call was carried out.
        self.lost: set[str] = set()
        #: Functions that replace each response by a list of responses, by method.
        self.responses: dict[str, Callable[[bytes], list[bytes]]] = {}
        #: Number of calls by method.
        self.calls: dict[str, int] = {}
        options = [("grpc.max_receive_message_length", 64 << 20)]
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(32), handlers=(self,), options=options)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def fail(self, method: str, code: grpc.StatusCode, reason: str = "", times: int = 1) -> None:
        for _ in range(times):
            self.errors.setdefault(method, queue.SimpleQueue()).put((code, reason))

    def left(self, method: str) -> bool:
        """Returns whether calls of a method will still fail."""
        return method in self.errors and not self.errors[method].empty()

    def close(self) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method
        method = name.rpartition("/")[2]

        def serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            self.calls[method] = self.calls.get(method, 0) + 1
            with contextlib.suppress(KeyError, queue.Empty):
                code, reason = self.errors[method].get_nowait()
                for _ in requests:
                    pass
                context.set_trailing_metadata(with_reason(reason))
                context.abort(code, f"as the test asked for {reason}")
            metadata = [m for m in handler_call_details.invocation_metadata if m.key == "authorization"]
            call: Any = self._channel.stream_stream(name, _bytes, _bytes)(requests, metadata=metadata)
            context.add_callback(call.cancel)
            change = self.responses.get(method, lambda data: [data])
            try:
                for response in call:
                    if method in self.lost:
                        self.lost.discard(method)
                        context.abort(grpc.StatusCode.UNAVAILABLE, "as the test asked for")
                    yield from change(response)
            except grpc.RpcError:
                context.set_trailing_metadata(call.trailing_metadata())
                context.abort(call.code(), call.details())

        return grpc.stream_stream_rpc_method_handler(serve, _bytes, _bytes)
