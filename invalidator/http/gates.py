"""Gates before the HTTP service: the access tokens, which are read from their files and one of which is demanded of
every request, and the host name, which is checked where no token is."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from freshness.config.hostport import parse_host_port, read_password
from freshness.config.settings import Config
from freshness.errors import ConfigError
from freshness.stream.lines import SchemaLine
from freshness.stream.schema import TableSchema
from freshness.stream.tables import compile_patterns, is_pattern
from invalidator.http.refusal import NotAllowed, refuse
from invalidator.stream.selection import Selection

HTTP_PORT: Final = 80
_GRANT: Final = "freshness.grant"
CONSUMER_PATHS: Final = frozenset(("/v1/update-stream", "/v1/token", "/v1/topology"))
SCHEMA_PATHS: Final = "/v1/schemas/"
"""Served to the tokens of consumers: a stream, what a reader must know to plan one, and the schemas of its rows."""

PAGE_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/dashboard/style.css": ("style.css", "text/css"),
    "/dashboard/script.js": ("script.js", "text/javascript"),
    "/dashboard/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The files of the page by their address, each with its media type. They hold no data: the script asks for that."""

OPEN_PATHS: Final = frozenset(("/healthz", "/readyz", *PAGE_FILES))
"""Answered without a token: they are for probes, or the same everywhere, and say nothing of the data."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a token. ``tables``: names and patterns of the tables of its update streams, and nothing beside
    those; None for everything. ``hidden_columns``: as `invalidator.stream.selection.Selection` takes them."""

    tables: tuple[str, ...] | None = None
    hidden_columns: tuple[str, ...] = ()

    def allows(self, scope: Scope) -> bool:
        path: str = scope["path"]
        is_for_consumers = path in CONSUMER_PATHS or path.startswith(SCHEMA_PATHS)
        return self.tables is None or (scope["method"] == "GET" and is_for_consumers)

    def shows(self, schema: SchemaLine) -> bool:
        """Whether it is of a table that the token opens, and has none of its hidden columns."""
        if self.tables is not None and not compile_patterns(self.tables).match(schema.table):
            return False
        selection = Selection(hidden=self.hidden_columns)
        whole = TableSchema(schema.columns, schema.key, schema.key_source)
        return selection.cut_schema(schema.table, whole) == whole

    def choose_tables(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The tables of a stream; all that the grant has where none is named. Raises `NotAllowed`."""
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


def find_grant(scope: Scope) -> Grant:
    """The rights of the request's token; everything where none is demanded."""
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
        grant = self._find_grant(scope)
        if grant is not None and grant.allows(scope):
            await self._app({**scope, _GRANT: grant}, receive, send)
        elif grant is not None:
            hint = f"it opens GET {', '.join(sorted((*CONSUMER_PATHS, SCHEMA_PATHS)))}"
            await refuse(403, "NotAllowed", "the token of a consumer does not open this", hint)(
                scope, receive, send
            )
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
        grants = [grant for known, grant in self._grants.items() if hmac.compare_digest(brought, known)]
        return grants[0] if grants else None


def read_grants(config: Config) -> dict[str, Grant]:
    """The rights of each token: `http.token_file` has all of them. Empty where none is configured. Raises
    `ConfigError`."""
    if config.http.token_file is None:
        return {}
    grants = {_read_token(config, "http.token_file", config.http.token_file): EVERYTHING}
    for name, consumer in config.http.consumers.items():
        where = f"http.consumers.{name}.token_file"
        token = _read_token(config, where, consumer.token_file)
        if token in grants:
            raise ConfigError(
                f"{where}: another file has the same token", hint="put another random text there"
            )
        grants[token] = Grant(consumer.tables, consumer.hidden_columns)
    return grants


def _read_token(config: Config, where: str, path: str) -> str:
    try:
        return read_password(config.path.parent / path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint="put a long random text there") from error


class HostGate:
    """Lets requests pass that call the service by a loopback address, ``localhost`` or one of ``names``.

    A web page on a name that its owner lets point to 127.0.0.1 reaches a service that listens there, with the browser
    of anybody on the machine (DNS rebinding). A browser always sends the name; a prober may send none.
    """

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


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
