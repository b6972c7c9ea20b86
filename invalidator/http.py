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
        """200 while the stream is open and every configured node is joined and open, else 503 and what is missing."""
        not_joined, not_open = _find_missing(invalidator)
        is_streaming = invalidator.is_streaming
        is_ready = is_streaming and not not_joined and not not_open
        response.status_code = 200 if is_ready else 503
        return {
            "ready": is_ready,
            "stream_open": is_streaming,
            "nodes_not_joined": not_joined,
            "nodes_not_open": not_open,
            "last_error": invalidator.last_error,
        }

    @api.get("/metrics")
    def metrics() -> Response:
        """Prometheus metrics, see docs/metrics.md."""
        return Response(generate_latest(invalidator.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @api.get("/v1/status")
    def status() -> dict[str, Any]:
        """What every node's record says, as `invalidator status --json` prints it."""
        return read_status()

    return api


def _find_missing(invalidator: Invalidator) -> tuple[list[str], list[str]]:
    """(nodes that are not joined, joined nodes that allow neither hits nor fills yet)."""
    if invalidator.shard is None:
        return list(invalidator.config.cache.nodes), []
    # Each record is looked at once: the invalidator's own thread may replace it at any time
    records = {node: member.record for node, member in invalidator.shard.members.items()}
    not_joined = [node for node, record in records.items() if record is None]
    return not_joined, [node for node, record in records.items() if record is not None and not record.is_open]


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
