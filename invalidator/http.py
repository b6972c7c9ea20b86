"""The HTTP service of a running invalidator: liveness, readiness, metrics, status. FastAPI and uvicorn.

Runs in a thread of its own and only ever reads; a slow client cannot slow the invalidator.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from freshness import __version__
from freshness.config import parse_host_port
from freshness.errors import ConfigError
from invalidator.app import Invalidator


def create_api(invalidator: Invalidator, read_status: Callable[[], dict[str, Any]]) -> FastAPI:
    """The application object; also for tests. ``read_status`` asks the nodes, see ``invalidator.status``."""
    api = FastAPI(title="freshness invalidator", version=__version__)

    @api.get("/healthz")
    def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @api.get("/readyz")
    def readyz(response: Response) -> dict[str, Any]:
        """200 while every stream is open and every node joined and open for it, else 503 and what is missing."""
        missing = _find_missing(invalidator)
        is_ready = bool(invalidator.workers) and not any(missing.values())
        response.status_code = 200 if is_ready else 503
        errors = {
            each.assignment.shard.lineage: each.last_error for each in invalidator.workers if each.last_error
        }
        return {"ready": is_ready, **missing, "last_errors": errors}

    @api.get("/metrics")
    def metrics() -> Response:
        """Prometheus metrics, see docs/metrics.md."""
        return Response(generate_latest(invalidator.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @api.get("/v1/status")
    def status() -> dict[str, Any]:
        """What every node's record says, as `invalidator status --json` prints it."""
        return read_status()

    return api


def _find_missing(invalidator: Invalidator) -> dict[str, list[str]]:
    """What is missing for each shard to be served: streams that are not open, nodes that are not joined, and joined
    nodes that allow neither hits nor fills yet. Nodes of a shard that does not serve are not meant to."""
    missing: dict[str, list[str]] = {"streams_not_open": [], "nodes_not_joined": [], "nodes_not_open": []}
    for worker in invalidator.workers:
        shard = worker.assignment.shard
        if not worker.is_streaming:
            missing["streams_not_open"].append(shard.lineage)
        members = worker.invalidator.members if worker.invalidator is not None else {}
        for node in worker.assignment.nodes:
            # Each record is looked at once: the worker's own thread may replace it at any time
            record = members[node].record if node in members else None
            if record is None:
                missing["nodes_not_joined"].append(f"{node} {shard.lineage}")
            elif not record.is_open and shard.serving:
                missing["nodes_not_open"].append(f"{node} {shard.lineage}")
    return missing


class HttpService:
    """Serves the API on ``listen`` ("host:port") until stopped. Raises `ConfigError` where it cannot listen."""

    def __init__(self, api: FastAPI, listen: str) -> None:
        host, port = parse_host_port(listen)
        try:
            self._socket = socket.create_server((host, port), family=_family(host))
        except OSError as error:
            raise ConfigError(
                f"http.listen = {listen}: {error.strerror or error}",
                hint="choose another port, or leave it out",
            ) from error
        settings = uvicorn.Config(api, host=host, port=port, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=5)
        self._socket.close()

    def _serve(self) -> None:
        self._server.run(sockets=[self._socket])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
