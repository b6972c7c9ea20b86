"""Serves metrics over HTTP for processes without a service of their own: the prober, and the sink on Spark.

Needs prometheus-client, which the extras of both bring.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from freshness.config.hostport import parse_host_port
from freshness.errors import ConfigError


@contextmanager
def serving(registry: CollectorRegistry, listen: str) -> Iterator[None]:
    """``listen``: HOST:PORT. Raises `ConfigError` if it is malformed or not free."""
    try:
        host, port = parse_host_port(listen)
    except ConfigError as error:
        raise ConfigError(f"--metrics-listen {listen}: {error.message}", hint="give HOST:PORT") from None
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served on {listen}: {error.strerror or error}",
            hint="give --metrics-listen an address of this machine with a free port",
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
