"""Which database of DATABASES is which server of ``freshness.toml``: by host, port and name.

A test's database has another name than the one that is cached, so it does not match, and the cache stands aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from freshness.config.config import Config
from freshness.errors import ConfigError

DatabasePlace: TypeAlias = tuple[str, int, str]
"""Host, port, name of the database."""


@dataclass(frozen=True, slots=True)
class DatabaseRole:
    """A server of the configuration. ``flavor``: flavor of its GTIDs."""

    keyspace: str
    shard: str
    flavor: str
    is_primary: bool


@dataclass(frozen=True, slots=True)
class DjangoDatabases:
    """The servers of the configuration by their place, the aliases of the primaries of each keyspace, and the place
    of each database of MySQL that is none of the servers, by its alias."""

    servers: Mapping[DatabasePlace, DatabaseRole]
    primaries: Mapping[str, tuple[str, ...]]
    others: Mapping[str, DatabasePlace]

    def find(self, database: Mapping[str, Any]) -> DatabaseRole | None:
        """``database``: an entry of DATABASES, or the settings of a connection."""
        return self.servers.get(place_of(database))

    def describe(self) -> list[str]:
        """A line for each of the others."""
        return [
            f"the database {alias} is {_shown(place)}, which the file does not name: its rows are not cached, and "
            f"a session does not read what it commits there (expected one of {', '.join(map(_shown, self.servers))})"
            for alias, place in self.others.items()
        ]


def place_of(database: Mapping[str, Any]) -> DatabasePlace:
    """As Django connects: OPTIONS go before the others. Raises `ConfigError` for a port that is not a number."""
    options = database.get("OPTIONS") or {}
    return _place(
        options.get("unix_socket") or options.get("host") or database.get("HOST"),
        options.get("port") or database.get("PORT"),
        options.get("db") or options.get("database") or database.get("NAME"),
    )


@lru_cache
def _place(host: Any, port: Any, name: Any) -> DatabasePlace:
    try:
        number = int(port or 3306)
    except (TypeError, ValueError):
        raise ConfigError(f"DATABASES has the port {port!r}", hint="expected a number") from None
    return _host(str(host or "localhost")), number, str(name or "")


def find_places(config: Config, databases: Mapping[str, Mapping[str, Any]]) -> DjangoDatabases:
    """Raises `ConfigError` if no database is such a server, or a keyspace has a vtgate."""
    servers: dict[DatabasePlace, DatabaseRole] = {}
    for keyspace in config.keyspaces.values():
        for shard in keyspace.serving_shards:
            for address in (*shard.replicas, shard.primary):
                place = (_host(address.host), address.port, address.database)
                servers[place] = DatabaseRole(
                    keyspace.name, shard.name, keyspace.gtid_flavor, address is shard.primary
                )
    found = {alias: servers.get(place_of(each)) for alias, each in databases.items()}
    if not any(found.values()):
        known = ", ".join(map(_shown, servers))
        raise ConfigError(
            f"no database of DATABASES is a server of {config.path}",
            hint=f"expected one with the HOST, PORT and NAME of one of {known}",
        )
    primaries: dict[str, tuple[str, ...]] = {}
    for alias, server in found.items():
        if server is not None and server.is_primary:
            primaries[server.keyspace] = (*primaries.get(server.keyspace, ()), alias)
    others = {
        alias: place_of(databases[alias])
        for alias, server in found.items()
        if server is None and "mysql" in databases[alias].get("ENGINE", "")
    }
    return DjangoDatabases(servers, primaries, others)


def _shown(place: DatabasePlace) -> str:
    host, port, name = place
    return f"{host}:{port}/{name}"


def _host(host: str) -> str:
    return "127.0.0.1" if host in ("localhost", "::1") else host.lower()
