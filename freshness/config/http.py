"""``[http]``: the HTTP service of the invalidator, and its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from freshness.config.hostport import is_loopback, parse_host_port
from freshness.config.setting import setting
from freshness.config.table import NAME_EXPECTED, Table, shown
from freshness.errors import ConfigError

HttpScope: TypeAlias = Literal["read", "stream", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """``[http.clients.NAME]``: a client of the HTTP service with a token of its own, and what it may do."""

    token_file: str = setting("File whose first line is its bearer token.")
    scopes: tuple[HttpScope, ...] = setting(
        '"read": metrics, status and the description of the service; "stream": the update stream and its schemas; '
        '"admin": invalidate keys, change the topology. Either of the first two reads the topology and heads.'
    )
    tables: tuple[str, ...] = setting(
        'With "stream": names of tables, and patterns with * and ?, that it may read.', ()
    )
    hidden_columns: tuple[str, ...] = setting(
        'Columns that it never gets: "COLUMN" of any table, or "TABLE.COLUMN", with * and ? too. A key that has one '
        "of them is left out.",
        (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """``[http]``: the invalidator's HTTP service."""

    listen: str | None = setting(
        '"host:port" of the HTTP service; left out: no service. Any other than a loopback address needs token_file.',
        None,
    )
    token_file: str | None = setting("File whose first line is the bearer token that every request needs.", None)
    tls_cert: str | None = setting(
        "PEM file with the certificate of the service and those that lead to its authority. Then it "
        "speaks TLS (1.2 or later) alone.",
        None,
    )
    tls_key: str | None = setting("PEM file with the key of tls_cert, without a passphrase.", None)
    hosts: tuple[str, ...] = setting(
        "Names besides loopback ones by which the service may be called if it demands no token.", ()
    )
    consumers_max: int = setting("The most clients that may read the update stream at once.", 16, bounds=(1, 1000))
    connections_max: int = setting(
        "The most connections to the service. One more replaces the one that is idle longest; "
        "if none is, it is closed.",
        256,
        bounds=(2, 10_000),
    )

    clients: Mapping[str, HttpClient] = field(default_factory=dict)


def read_http(table: Table) -> HttpConfig | None:
    values = table.values(HttpConfig, also=("clients",))
    clients = table.read("clients", _read_clients)
    if clients is not None and table.found.get("clients") and "token_file" not in values:
        table.report("token_file", "nothing", "the operator's own token, beside those of clients")
    if not table.is_valid:
        return None
    http = HttpConfig(**values, clients=clients or {})
    if (http.tls_cert is None) != (http.tls_key is None):
        here, missing = ("tls_cert", "tls_key") if http.tls_key is None else ("tls_key", "tls_cert")
        table.report(missing, "nothing", f"a PEM file beside {here}")
    if http.connections_max <= http.consumers_max:
        found = f"{http.connections_max}, and consumers_max = {http.consumers_max}"
        table.report("connections_max", found, "more than consumers_max: a probe needs a connection, too")
    if http.listen is not None:
        try:
            host, _ = parse_host_port(http.listen)
        except ConfigError as error:
            table.report("listen", shown(http.listen), f"HOST:PORT; {error.message}")
            return http
        if not is_loopback(host) and http.token_file is None:
            expected = "a loopback address such as 127.0.0.1:8080, or a token_file beside it"
            table.report("listen", shown(http.listen), expected)
    for index, name in enumerate(http.hosts):
        table.check_name(f"hosts[{index}]", name, f"a host name without a port: {NAME_EXPECTED}")
    return http


def _read_clients(tables: Table) -> dict[str, HttpClient]:
    clients: dict[str, HttpClient] = {}
    for name, table in tables.named_tables():
        client = table.build(HttpClient)
        if client:
            clients[name] = client
            _check_client(table, client)
    return clients


def _check_client(table: Table, client: HttpClient) -> None:
    if not client.scopes:
        table.report("scopes", "an empty array", "at least one of read, stream, admin")
    elif "stream" not in client.scopes and (client.tables or client.hidden_columns):
        expected = 'the scope "stream", or neither tables nor columns'
        table.report("tables", "what a stream shows", expected)
    elif "stream" in client.scopes and not client.tables:
        table.report("tables", "nothing", 'at least one table, or "*" for all')
