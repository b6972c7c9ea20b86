"""A WSGI application with a cache that is made when the module is imported, as in an application's own module."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from appclient import Cache, PrometheusTelemetry

cache = Cache.open(os.environ["FRESHNESS_TOML"], telemetry=PrometheusTelemetry())


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """``/KEY``: the customer of that key, read past the cache and by it; and which process answered. ``/metrics``: of
    all processes."""
    if environ["PATH_INFO"] == "/metrics":
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4")])
        return [generate_latest(registry)]
    key = int(environ["PATH_INFO"].strip("/"))
    fresh = cache.get("customer", key, max_staleness_seconds=0.0)
    row = cache.get("customer", key)
    answer = json.dumps({"fresh": fresh["id"], "id": row["id"], "process": os.getpid()}).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(answer)))])
    return [answer]
