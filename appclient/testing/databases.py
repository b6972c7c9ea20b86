"""The databases of a `FakeSystem`: a primary, its replicas, and the commits that go from one to the others.

Used by ``appclient.testing.system`` and its invalidator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from appclient.testing.server import Change, FakeServer, Rows, compare, read_rows
from freshness.config.keyspace import Shard
from freshness.errors import ConfigError
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.position import Position, empty_position, parse_position

SOURCE: Final = "00000000-0000-0000-0000-000000000001"

_KINDS: Final = {
    "INT": ColumnKind.INTEGER,
    "CHAR": ColumnKind.STRING,
    "TEXT": ColumnKind.STRING,
    "BLOB": ColumnKind.BINARY,
}


@dataclass(frozen=True, slots=True)
class Commit:
    position: Position
    changes: list[Change]


class FakeDatabases:
    """The servers of one shard, with files in ``folder``. ``on_commit``: called behind each commit that changed rows.
    ``log``: all commits since the schema was created."""

    def __init__(self, folder: Path, flavor: str, shard: Shard, schema: str, on_commit: Callable[[], None]) -> None:
        self.shard, self.nothing = shard, empty_position(flavor)
        self.log: list[Commit] = []
        self.is_replicating = True
        self._flavor, self._on_commit, self._applied = flavor, on_commit, 0

        def serve(name: str, database: str, position: Callable[[], Position]) -> FakeServer:
            path = folder / f"{name}.sqlite"
            server = FakeServer(name, path, flavor, database, lambda: str(position()))
            server.create(schema)
            return server

        self.primary = serve("primary", shard.primary.database, lambda: self.head)
        self.replicas = [
            serve(f"replica {place}", address.database, lambda: self._position(self._applied))
            for place, address in enumerate(shard.replicas)
        ]
        self.servers = dict(zip((shard.primary, *shard.replicas), (self.primary, *self.replicas), strict=True))
        with self.primary.open() as rows:
            self._rows = read_rows(rows)
        self.primary.on_commit = self._note

    @property
    def head(self) -> Position:
        """All that the primary has executed."""
        return self._position(len(self.log))

    def replicate(self) -> None:
        """Unless replication was stopped, the replicas have all commits."""
        if self.is_replicating:
            for commit in self.log[self._applied :]:
                for replica in self.replicas:
                    replica.apply(commit.changes)
            self._applied = len(self.log)

    def find_columns(self, keyspace: str, table: str, names: tuple[str, ...], *_: Any) -> tuple[KeyColumn, ...]:
        """The columns of a table's key, its primary key by default. Raises `ConfigError`."""
        with self.primary.open() as rows:
            found = rows.execute(f'PRAGMA table_info("{table}")').fetchall()
        types = {str(row[1]): str(row[2]).upper() for row in found}
        keys = names or tuple(str(row[1]) for row in sorted(found, key=lambda row: row[5]) if row[5])
        if not keys:
            raise ConfigError(f"table {table} has no primary key", hint="is it in the schema of the FakeSystem?")
        return tuple(_column(table, name, types) for name in keys)

    def _note(self, rows: Rows) -> None:
        changes = compare(self._rows, rows)
        self._rows = rows
        if changes:
            number = len(self.log) + 1
            self.log.append(Commit(self._position(number, number + 1), changes))
            self._on_commit()

    def _position(self, count: int, first: int = 1) -> Position:
        """The position after ``count`` commits that start at number ``first``; one was before all."""
        text = f"0-1-{count + 1}" if self._flavor == "mariadb" else f"{SOURCE}:{first}-{count + 1}"
        return parse_position(self._flavor, text)


def _column(table: str, name: str, types: Mapping[str, str]) -> KeyColumn:
    for part, kind in _KINDS.items():
        if part in types.get(name, ""):
            return KeyColumn(name, kind, "utf8mb4_bin" if kind is ColumnKind.STRING else "")
    raise ConfigError(
        f"key column {table}.{name} is {types.get(name, 'not there')}",
        hint="a FakeSystem knows keys of integers, texts and BLOBs",
    )
