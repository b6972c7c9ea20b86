"""The connection to a vtgate. Called by ``invalidator.vstream.source``."""

from __future__ import annotations

import queue
import time
from typing import Any, Final

import grpc

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import SourceUnavailable, SourceUnsuitable

KEEPALIVE_ANSWER_SECONDS: Final = 10.0


def open_channel(address: VtgateAddress) -> Any:
    """A channel that connects with its first use. Raises `SourceUnsuitable` for files that cannot be read."""
    options = [
        ("grpc.max_receive_message_length", address.message_bytes_max),
        ("grpc.keepalive_time_ms", round(address.keepalive_seconds * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_ANSWER_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: another vtgate may take it
    ]
    if not address.tls:
        return grpc.insecure_channel(address.target, options)
    try:
        ca, cert, key = (
            path.read_bytes() if path is not None else None
            for path in (address.tls_ca, address.tls_cert, address.tls_key)
        )
    except OSError as error:
        raise SourceUnsuitable(
            f"{address}: {error.filename} cannot be read: {error.strerror}",
            hint="check tls_ca, tls_cert, tls_key",
        ) from error
    return grpc.secure_channel(address.target, grpc.ssl_channel_credentials(ca, key, cert), options)


def wait_connected(channel: Any, address: VtgateAddress) -> bool:
    """Whether it is connected; False as soon as the first try has failed: then a call raises the reason.

    Raises `SourceUnavailable` if nothing answers within the address's ``connect_seconds``.
    """
    states: queue.SimpleQueue[Any] = queue.SimpleQueue()
    channel.subscribe(states.put, try_to_connect=True)
    deadline = time.monotonic() + address.connect_seconds
    try:
        while True:
            state = states.get(timeout=max(0.0, deadline - time.monotonic()))
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                return False
    except queue.Empty:
        raise SourceUnavailable(
            f"{address}: no answer within {address.connect_seconds:g} s",
            hint="is vtgate up and its gRPC port reachable from here?",
        ) from None
    finally:
        channel.unsubscribe(states.put)
