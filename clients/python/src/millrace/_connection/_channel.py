"""Opens the channels of a client, all with the same rules."""

from __future__ import annotations

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


def open_channel(address: str, *options: tuple[str, int]) -> grpc.Channel:
    """Returns a channel to a scheduler or a worker, which connects at its first call. `options` are
    added to those that all channels have, and win over them."""
    return grpc.insecure_channel(address, options=list({**dict(_OPTIONS), **dict(options)}.items()))
