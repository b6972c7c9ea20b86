"""A database server: its URL in ``freshness.toml``, and those of a shard together.

A password never appears in a message, a repr or a log line.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from freshness.config.access import (
    TLS_OPTIONS,
    VARIABLE,
    Password,
    Tls,
    expand,
    file_password,
    join_variables,
    read_tls,
    variable_password,
)
from freshness.config.hostport import parse_host_port
from freshness.config.table import Table, kind_of
from freshness.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A database server and how to log in. The password is in no repr, and so in no log.

    ``tls``: None for TLS without a check of the certificate, if the server offers it and is on another machine;
      False for none.
    """

    host: str
    port: int = 3306
    user: str = ""
    password: Password = field(default="", repr=False)
    database: str = ""
    tls: Tls | Literal[False] | None = None
    zone: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}/{self.database}"

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str], folder: Path = Path()) -> ServerAddress:
        """Parse ``mysql://USER:PASSWORD@HOST:PORT/DATABASE`` (or ``mariadb://``).

        ``${VARIABLE}`` is replaced from ``environ``, verbatim: such a value needs no percent-encoding. A URL
        that is one variable as a whole is taken from there. Options: password_file, zone, tls, tls_ca, tls_cert,
        tls_key; files are relative to ``folder``. Raises `ConfigError` without any part of the URL that may be a
        password.
        """
        whole = VARIABLE.fullmatch(url)
        expanded = expand(url, environ)  # for all else: all missing variables in one report
        if whole:
            url, environ = expanded, {}
        scheme, separator, rest = url.partition("://")
        if scheme not in ("mysql", "mariadb") or not separator:
            raise ConfigError("not a mysql:// or mariadb:// URL")
        if _BLANK.search(url):
            raise ConfigError("the URL holds a blank or a control character; percent-encode it")
        authority, path, query = _split_url(rest)
        login, _, place = authority.rpartition("@")
        if "@" in login + path + query or "#" in path + query:
            raise ConfigError('user or password hold one of "@", "/", "?", "#" as it is; percent-encode it')
        if not login or login.startswith(":"):
            raise ConfigError("the URL names no user: expected USER@ before the host")
        user, _, password = login.partition(":")
        host, port = parse_host_port(_decode_part(place, environ), port_default=3306)
        database = _decode_part(path, environ)
        if not database or "/" in database:
            raise ConfigError("the URL names no database: expected /DATABASE after the host")
        secret = variable_password(_decode_texts(password, environ), environ)
        options: dict[str, str] = {}
        for option in filter(None, query.split("&")):
            name, _, value = option.partition("=")
            if name not in _URL_OPTIONS:
                known = ", ".join(_URL_OPTIONS)
                raise ConfigError(f'the URL has an unknown option "{name}"; known: {known}')
            if name in options:
                raise ConfigError(f"the URL has the option {name} twice")
            options[name] = _decode_part(value, environ)
        file = options.pop("password_file", None)
        if file is not None:
            if secret:
                raise ConfigError("the URL has a password and a password_file; one is needed")
            secret = file_password(folder / file)
        zone = options.pop("zone", "")
        tls = read_tls(options, folder)
        return cls(host, port, _decode_part(user, environ), secret, database, tls, zone)


_URL_OPTIONS = ("password_file", "zone", *TLS_OPTIONS)
_BLANK = re.compile(r"[\x00-\x20\x7f]")
_EXPECTED = '"mysql://USER:PASSWORD@HOST:PORT/DATABASE"'


def _decode_texts(text: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Text, name of a variable, text, ..., text: percent-decode what the file says."""
    parts = VARIABLE.split(text) if environ else [text]
    try:
        parts[::2] = [unquote(part, errors="strict") for part in parts[::2]]
    except UnicodeDecodeError:
        raise ConfigError("the URL holds a percent-encoded byte that is not UTF-8") from None
    return tuple(parts)


def _decode_part(text: str, environ: Mapping[str, str]) -> str:
    """The same, with what the environment says as it is."""
    return join_variables(_decode_texts(text, environ), environ)


def _split_url(rest: str) -> tuple[str, str, str]:
    """Authority, path and query. By hand: ``urlsplit`` quietly drops and moves what a password may hold."""
    ends = [rest.find(mark) for mark in "/?#" if mark in rest]
    end = min(ends, default=len(rest))
    path, _, query = rest[end:].partition("?")
    return rest[:end], path.removeprefix("/"), query


def read_servers(
    table: Table, flavor: str | None, secret: Password
) -> tuple[dict[str, ServerAddress], ServerAddress | None]:
    """The servers of a shard by the key that names them, the primary first, and the primary under the account that
    this program does not use. ``secret``: the password if a URL has none."""
    replicas = table.found.get("replicas", [])
    if not isinstance(replicas, list):
        table.report("replicas", kind_of(replicas), "array of URL")
        replicas = []
    urls = {f"replicas[{index}]": url for index, url in enumerate(replicas)}
    used, unused = "primary", "primary_for_reads"
    if table.reading.is_application and unused in table:
        used, unused = unused, used
    if "primary" in table:
        urls = {used: table.found[used], **urls}
    else:
        table.report("primary", "nothing", f"a URL, {_EXPECTED}")
    servers: dict[str, ServerAddress] = {}
    for key, url in urls.items():
        server = _read_server(table, key, url, flavor, secret)
        if server:
            _check_server(table, key, server, servers)
            servers[key] = server
    if unused not in table:
        return servers, None
    named = {name for url in urls.values() for name in VARIABLE.findall(str(url))}
    lacking = named - table.reading.environ.keys()
    return servers, _read_unused(table, unused, servers.get(used), lacking)


def _read_server(table: Table, key: str, url: object, flavor: str | None, secret: Password) -> ServerAddress | None:
    if isinstance(url, str) and url.startswith("mariadb:") and flavor in ("mysql", "vitess"):
        table.report(key, "a mariadb:// URL", f'mysql:// in a keyspace of flavor "{flavor}"')
    server = _parse(table, key, url, table.reading.environ)
    return server if server is None or server.password else replace(server, password=secret)


def _parse(table: Table, key: str, url: object, environ: Mapping[str, str]) -> ServerAddress | None:
    if not isinstance(url, str):
        table.report(key, kind_of(url), _EXPECTED)
        return None
    try:
        return ServerAddress.parse(url, environ, table.folder)
    except ConfigError as error:
        table.report(key, error.message, _EXPECTED)
        return None


def _check_server(table: Table, key: str, server: ServerAddress, others: Mapping[str, ServerAddress]) -> None:
    for name, other in others.items():
        if (other.host.lower(), other.port) == (server.host.lower(), server.port):
            table.report(key, f"the server of {table.where}.{name}", "another server: each is listed once")
        elif other.database != server.database and name.startswith("primary"):
            table.report(key, "another database than the primary's", "the same database on every server")


def _read_unused(
    table: Table, key: str, primary: ServerAddress | None, lacking: Collection[str]
) -> ServerAddress | None:
    """The primary under the account of the other program, whose password may be missing here. ``lacking``:
    variables that are missing for other servers; then they are reported for this one, too."""
    url, environ = table.found[key], table.reading.environ
    missing = set(VARIABLE.findall(url)) - environ.keys() if isinstance(url, str) else set()
    reported = sorted(missing.intersection(lacking))
    if reported:
        table.report(key, f"environment variable not set: {', '.join(reported)}", _EXPECTED)
        return None
    if missing and VARIABLE.fullmatch(url):
        return None
    url = url.partition("?")[0] if isinstance(url, str) else url
    server = _parse(table, key, url, {**environ, **dict.fromkeys(missing, "-")})
    if primary and server and server.database != primary.database:
        expected = "the same database on every server"
        table.report(key, "another database than its other account's", expected)
    return server
