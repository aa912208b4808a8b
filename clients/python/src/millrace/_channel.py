"""Opens the channels of a client, all with the same rules."""

from __future__ import annotations

import grpc

_OPTIONS = (
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(address: str, *options: tuple[str, int]) -> grpc.Channel:
    """Opens a channel to a scheduler or a worker, with further options of gRPC. It connects at the
    first call."""
    return grpc.insecure_channel(address, options=[*_OPTIONS, *options])
