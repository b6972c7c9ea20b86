"""The HTTP service of a running invalidator: liveness, readiness, metrics, status, the page for people
(``invalidator.http.overview``), and the update stream (``invalidator.http.consumers``). FastAPI and uvicorn.

Runs in a thread of its own; a slow client cannot slow the invalidator.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Response, params
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse

from freshness import __version__
from freshness.config.hostport import is_loopback, parse_host_port
from freshness.database.schema import load_object
from freshness.errors import ConfigError, FormatError
from freshness.objects.registry import ObjectDefinition
from invalidator.http.connection import CONNECTIONS_MAX, Certificate, bound_connections
from invalidator.http.consumers import Reload, StreamHub, add_routes
from invalidator.http.gates import BodyGate, Grant, HostGate, TokenGate
from invalidator.http.overview import OverviewFeed, add_overview
from invalidator.http.refusal import add_handlers, describe_refusals, refuse_unknown_parameters
from invalidator.process.app import Invalidator
from invalidator.process.by_hand import invalidate_keys
from invalidator.process.overview import Overview
from invalidator.process.worker import ShardWorker
from invalidator.stream.open import StreamOpener

KEYS_MAX: Final = 1_000
"""Keys of one request."""

GRACE_SECONDS: Final = 3
STOP_SECONDS: Final = 8.0


class Invalidation(BaseModel):
    """Keys as texts, as on the command line: one list for each key, with a text for each of its columns."""

    model_config = ConfigDict(extra="forbid")

    object: str
    keys: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=1, max_length=KEYS_MAX)]


def create_api(
    invalidator: Invalidator,
    read_status: Callable[[], dict[str, Any]],
    *,
    grants: Mapping[str, Grant] | None = None,
    streams: StreamHub | None = None,
    reload: Reload | None = None,
    overview: OverviewFeed | None = None,
) -> FastAPI:
    """The application object; also for tests. ``read_status`` asks the nodes, see ``invalidator.process.status``;
    ``overview`` does not. ``grants``: scopes by token, one of which each request must have. ``reload``: takes
    ``PUT /v1/topology`` over.
    """
    # With demanded tokens, a page of another name cannot send one.
    gates = (401, 403) if grants else (421,)
    # The framework's pages about the API load scripts from other hosts
    api = FastAPI(
        title="freshness invalidator",
        version=__version__,
        responses=describe_refusals(*gates, 500),
        docs_url=None,
        redoc_url=None,
    )
    hub = streams or StreamHub(StreamOpener(lambda: invalidator.config, invalidator.find_times))
    feed = overview or OverviewFeed(Overview(invalidator).read)
    api.state.streams, api.state.overview = hub, feed
    api.state.demands_token = bool(grants)
    add_handlers(api)
    api.add_middleware(BodyGate)
    if grants:
        api.add_middleware(TokenGate, grants=grants)
    else:
        api.add_middleware(HostGate, names=invalidator.config.http.hosts)
    # For the description: the gate has checked the token
    secured = [Depends(HTTPBearer(auto_error=False))] if grants else []
    # A scraper or a prober may add parameters of its own; these are asked for data
    v1 = APIRouter(prefix="/v1", dependencies=[*secured, Depends(refuse_unknown_parameters)])
    _add_probes(api, invalidator, secured)
    _add_nodes(v1, invalidator, read_status)
    add_routes(v1, hub, reload)
    add_overview(api, v1, feed)
    api.include_router(v1)
    return api


def _add_probes(api: FastAPI, invalidator: Invalidator, secured: Sequence[params.Depends]) -> None:
    """The routes of probers and scrapers. ``secured``: dependencies of the metrics."""

    @api.get("/healthz")
    def healthz() -> dict[str, str]:
        """The process runs."""
        return {"status": "ok"}

    @api.get("/readyz", responses={503: {"description": "Not ready", "model": dict[str, Any]}})
    def readyz(response: Response) -> dict[str, Any]:
        """200 while every stream is open and every node joined and open for it, else 503 and what is missing."""
        missing = _find_missing(invalidator)
        is_ready = bool(invalidator.workers) and not any(missing.values())
        response.status_code = 200 if is_ready else 503
        errors = {
            each.assignment.shard.lineage: error for each in invalidator.workers if (error := _find_error(each))
        }
        return {"ready": is_ready, **missing, "last_errors": errors}

    @api.get("/metrics", response_class=PlainTextResponse, dependencies=secured)
    def metrics() -> Response:
        """Prometheus metrics, see docs/metrics.md."""
        return Response(generate_latest(invalidator.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_nodes(v1: APIRouter, invalidator: Invalidator, read_status: Callable[[], dict[str, Any]]) -> None:
    """The routes that ask or change the nodes."""

    @v1.post("/invalidate", responses=describe_refusals(400, 408, 413, 422, 503))
    def invalidate(wanted: Invalidation) -> dict[str, Any]:
        """Invalidate keys of an object, as `invalidator invalidate` does."""
        config = invalidator.config
        texts = [text for key in wanted.keys for text in key]
        registry = load_object(config, wanted.object)
        _require_widths(registry, wanted)
        invalidated = invalidate_keys(config, registry, wanted.object, texts)
        return {"invalidated": [{"node": each.node, "item": each.item.decode()} for each in invalidated]}

    @v1.get("/status", responses=describe_refusals(400))
    def status() -> dict[str, Any]:
        """The record of every node, as `invalidator status --json` prints it."""
        return read_status()


def _find_missing(invalidator: Invalidator) -> dict[str, list[str]]:
    """The parts that each shard lacks to be served: streams that are not open, nodes that are not joined, and joined
    nodes that allow neither hits nor fills. Nodes of a shard that does not serve are not meant to."""
    missing: dict[str, list[str]] = {"streams_not_open": [], "nodes_not_joined": [], "nodes_not_open": []}
    for worker in invalidator.workers:
        shard = worker.assignment.shard
        if not worker.is_streaming:
            missing["streams_not_open"].append(shard.lineage)
        for node in worker.assignment.nodes:
            state = worker.find_node_state(node)
            if state == "not joined":
                missing["nodes_not_joined"].append(f"{node} {shard.lineage}")
            elif state != "open" and shard.serving:
                missing["nodes_not_open"].append(f"{node} {shard.lineage}")
    return missing


def _find_error(worker: ShardWorker) -> str:
    """The last error of the stream, else of the nodes that are not joined."""
    problems = worker.invalidator.problems.copy() if worker.invalidator is not None else {}
    return worker.last_error or "; ".join(map(str, problems.values()))


def _require_widths(registry: Mapping[str, ObjectDefinition], wanted: Invalidation) -> None:
    if wanted.object not in registry:
        return  # `invalidate_keys` refuses the name
    names = [column.name for column in registry[wanted.object].builder.columns]
    for key in wanted.keys:
        if len(key) != len(names):
            raise FormatError(f"a key of {wanted.object} got {len(key)} values", hint=f"give {', '.join(names)}")


class HttpService:
    """Serves the API on ``listen`` ("host:port") until stopped. ``certificate``: None for plain HTTP.

    Raises `ConfigError` if it cannot listen, and for an address other than loopback if the API demands no token."""

    def __init__(
        self,
        api: FastAPI,
        listen: str,
        *,
        certificate: Certificate | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        host, port = parse_host_port(listen)
        self._api = api
        self._socket = open_socket(listen, demands_token=getattr(api.state, "demands_token", False))
        settings = uvicorn.Config(
            api,
            host=host,
            port=port,
            http=bound_connections(connections_max),
            ws="none",
            ssl_certfile=None if certificate is None else certificate.cert,
            ssl_keyfile=None if certificate is None else certificate.key,
            server_header=False,
            loop="asyncio",  # also where uvloop is installed, which the invalidator does not need
            log_level="warning",
            log_config=None,  # its lines are the process's, in one form
            lifespan="off",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        settings.load()
        if certificate is not None and settings.ssl is not None:
            certificate.follow(settings.ssl)
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._api.state.streams.close()
        self._api.state.overview.close()
        self._server.should_exit = True
        self._thread.join(timeout=STOP_SECONDS)
        self._socket.close()


def open_socket(listen: str, *, demands_token: bool) -> socket.socket:
    """A socket that listens there. Raises `ConfigError` as `HttpService`."""
    host, port = parse_host_port(listen)
    if not demands_token and not is_loopback(host):
        raise ConfigError(
            f"http.listen = {listen}: not a loopback address, and no access token is demanded",
            hint="set http.token_file, or listen on 127.0.0.1",
        )
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        # Connections have it from here. asyncio sets it on its own sockets alone: the body of a response would
        # wait until the client has acknowledged the head, for 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(
            f"http.listen = {listen}: {error.strerror or error}", hint="choose another port, or leave it out"
        ) from error
