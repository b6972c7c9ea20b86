"""Gates before the HTTP service: they check the access token of each request, or the host name if no tokens are
configured, and bound the size of a document."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from freshness.config.config import Config
from freshness.config.hostport import is_loopback, parse_host_port, read_password
from freshness.config.http import HttpScope
from freshness.errors import ConfigError
from freshness.stream.lines import SchemaLine
from freshness.stream.schema import TableSchema
from freshness.stream.tables import compile_patterns, is_pattern
from invalidator.http.refusal import NotAllowed, refuse
from invalidator.stream.selection import Selection

HTTP_PORT: Final = 80
BODY_BYTES_MAX: Final = 1 << 20
"""A document may be no longer: several times the longest list of keys that is taken."""

BODY_SECONDS: Final = 10.0
"""How long a document may take to come."""

SCHEMAS: Final = "/v1/schemas/"
SCOPES: Final[Mapping[tuple[str, str], frozenset[HttpScope]]] = {
    ("GET", "/metrics"): frozenset({"read"}),
    ("GET", "/openapi.json"): frozenset({"read"}),
    ("GET", "/v1/status"): frozenset({"read"}),
    ("GET", "/v1/overview"): frozenset({"read"}),
    ("GET", "/v1/token"): frozenset({"read", "stream"}),
    ("GET", "/v1/topology"): frozenset({"read", "stream"}),
    ("GET", "/v1/update-stream"): frozenset({"stream"}),
    ("GET", SCHEMAS): frozenset({"stream"}),
    ("POST", "/v1/invalidate"): frozenset({"admin"}),
    ("PUT", "/v1/topology"): frozenset({"admin"}),
}
"""The scopes of which one opens an address. An address that is not here is opened by `EVERYTHING` alone."""

PAGE_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/dashboard/style.css": ("style.css", "text/css"),
    "/dashboard/script.js": ("script.js", "text/javascript"),
    "/dashboard/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page by their address, each with its media type. They hold no data: the script asks for that."""

OPEN_PATHS: Final = frozenset(("/healthz", "/readyz", *PAGE_FILES))
"""Answered without a token: they are for probes, or the same everywhere, and say nothing of the data."""

_GRANT: Final = "freshness.grant"


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a token. ``scopes``: None for every address. ``tables``: names and patterns of the tables of its
    update streams, and nothing beside those; None for everything. ``hidden_columns``: names and patterns, as in
    `invalidator.stream.selection.Selection`."""

    scopes: frozenset[HttpScope] | None = None
    tables: tuple[str, ...] | None = None
    hidden_columns: tuple[str, ...] = ()

    def allows(self, method: str, path: str) -> bool:
        return self.scopes is None or not self.scopes.isdisjoint(find_scopes(method, path))

    def shows(self, schema: SchemaLine) -> bool:
        """Whether it is of a table that the token opens, and has none of its hidden columns."""
        if self.tables is not None and not compile_patterns(self.tables).match(schema.table):
            return False
        selection = Selection(hidden=self.hidden_columns)
        whole = TableSchema(schema.columns, schema.key, schema.key_source)
        return selection.cut_schema(schema.table, whole) == whole

    def choose_tables(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The tables of a stream; all that the grant has if none is named. Raises `NotAllowed`."""
        if self.tables is None:
            return wanted
        is_granted = compile_patterns(self.tables).match
        for name in wanted:
            # One pattern may stand for more than another; only the same, or all, is certain.
            if not ({name, "*"} & {*self.tables} if is_pattern(name) else is_granted(name)):
                raise NotAllowed(
                    f"this token does not open table {name!r}", hint=f"it opens {', '.join(self.tables)}"
                )
        return wanted or self.tables


EVERYTHING: Final = Grant()


def find_scopes(method: str, path: str) -> frozenset[HttpScope]:
    """The scopes of which one opens this address; none for an address that is not known."""
    known = SCHEMAS if path.startswith(SCHEMAS) else path
    return SCOPES.get((method, known), frozenset())


def find_grant(scope: Scope) -> Grant:
    """The rights of the request's token; everything if none is required."""
    found: Grant = scope.get(_GRANT, EVERYTHING)
    return found


class TokenGate:
    """Lets requests pass that bring a token which opens them. In front of everything, the description of the service
    too. ``grants``: by token."""

    def __init__(self, app: ASGIApp, grants: Mapping[str, Grant]) -> None:
        self._app = app
        self._grants = {b"bearer " + token.encode(): grant for token, grant in grants.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        grant = self._find_grant(scope)
        if grant is not None and grant.allows(method, path):
            await self._app({**scope, _GRANT: grant}, receive, send)
        elif grant is not None:
            scopes = " or ".join(sorted(find_scopes(method, path)))
            hint = f"it needs the scope {scopes}" if scopes else "the operator's own token opens every address"
            response = refuse(403, "NotAllowed", f"this token does not open {method} {path}", hint)
            await response(scope, receive, send)
        else:
            response = refuse(
                401,
                "Unauthorized",
                "this service demands its access token",
                "send the header Authorization: Bearer TOKEN, with the token of http.token_file",
                {"www-authenticate": "Bearer"},
            )
            await response(scope, receive, send)

    def _find_grant(self, scope: Scope) -> Grant | None:
        found = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(found) != 1:
            return None
        scheme, _, token = bytes(found[0]).partition(b" ")
        brought = scheme.lower() + b" " + token.strip()
        # All are compared, each in a time that does not depend on how much is alike
        grants = [grant for known, grant in self._grants.items() if hmac.compare_digest(brought, known)]
        return grants[0] if grants else None


def read_grants(config: Config) -> dict[str, Grant]:
    """The rights of each token: `http.token_file` has all of them. Empty if none is configured. Raises
    `ConfigError`."""
    if config.http.token_file is None:
        return {}
    grants = {_read_token(config, "http.token_file", config.http.token_file): EVERYTHING}
    for name, client in config.http.clients.items():
        where = f"http.clients.{name}.token_file"
        token = _read_token(config, where, client.token_file)
        if token in grants:
            raise ConfigError(f"{where}: another file has the same token", hint="put another random text there")
        grants[token] = Grant(frozenset(client.scopes), client.tables, client.hidden_columns)
    return grants


def _read_token(config: Config, where: str, path: str) -> str:
    try:
        return read_password(config.path.parent / path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint="put a long random text there") from error


class DocumentTooLarge(Exception):
    """A request's document has more than `BODY_BYTES_MAX`."""


class BodyGate:
    """Reads the document of a request before anything else does: it has `BODY_BYTES_MAX` at most, and comes within
    `BODY_SECONDS`. Behind the gates that know who asks, so nothing is read for others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(scope, receive)
        except DocumentTooLarge:
            message = f"the document has more than {BODY_BYTES_MAX} bytes"
            await refuse(413, "DocumentTooLarge", message, "send it in several requests")(scope, receive, send)
            return
        except TimeoutError:
            message = f"the document did not come within {BODY_SECONDS:.0f} s"
            await refuse(408, "RequestTimeout", message, "send all of it at once")(scope, receive, send)
            return
        waiting = [body]

        async def receive_again() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, receive_again, send)


async def _read_body(scope: Scope, receive: Receive) -> Message:
    """The whole document as one message, or that the client has gone. Raises `DocumentTooLarge`."""
    declared = Headers(scope=scope).get("content-length", "")
    if declared.isdecimal() and int(declared) > BODY_BYTES_MAX:
        raise DocumentTooLarge
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return message
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            raise DocumentTooLarge
        more = message.get("more_body", False)
    return {"type": "http.request", "body": bytes(body), "more_body": False}


class HostGate:
    """Lets requests pass that call the service by a loopback address, ``localhost`` or one of ``names``. A web page
    on a name that its owner lets point to 127.0.0.1 reaches a service that listens there, with the browser of anybody
    on the machine (DNS rebinding). A browser always sends the name; a prober may send none."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = [value for name, value in scope.get("headers", ()) if name == b"host"]
        wrong = [text for each in found if not self._is_own(text := bytes(each).decode("latin-1"))]
        if scope["type"] != "http" or not wrong:
            await self._app(scope, receive, send)
            return
        response = refuse(
            421,
            "MisdirectedRequest",
            f"this service is not {wrong[0]!r}",
            "call it by a loopback address, or put the name into http.hosts",
        )
        await response(scope, receive, send)

    def _is_own(self, text: str) -> bool:
        try:
            host, _ = parse_host_port(text, port_default=HTTP_PORT)
        except ConfigError:
            return False
        return is_loopback(host) or host.lower() in self._names
