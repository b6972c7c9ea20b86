"""Keys of the schema, read from information_schema of the primary.

Refuses a column whose values have no cache key that is the same in every process, with a `ConfigError` that names
table, column and reason. Never reads rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any, Final

from freshness.config.config import Config
from freshness.config.keyspace import Keyspace
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, connected, read_rows, translated
from freshness.errors import ConfigError, SourceUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition, build_registry

_KINDS: Final[dict[str, ColumnKind]] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "bigint"), ColumnKind.INTEGER),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"), ColumnKind.STRING),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ColumnKind.BINARY),
    "decimal": ColumnKind.DECIMAL,
    "date": ColumnKind.DATE,
    "datetime": ColumnKind.DATETIME,
}
_REFUSED: Final[dict[str, str]] = {
    "float": "its value has no exact spelling",
    "double": "its value has no exact spelling",
    "timestamp": "its value depends on the session's time zone; use DATETIME in UTC, or a number",
    "time": "it has several spellings",
    "year": "26 and 2026 are one year for the server; use SMALLINT",
    "json": "equal documents have several spellings",
    "bit": "drivers and the binary log spell it differently",
    "set": "drivers and the binary log spell it differently",
    "uuid": "drivers and the binary log spell it differently; use BINARY(16)",
    "inet4": "drivers and the binary log spell it differently; use VARBINARY(16)",
    "inet6": "drivers and the binary log spell it differently; use VARBINARY(16)",
    "vector": "the binary log decoder does not know it",
    "geometry": "it has no exact spelling",
}
_REFUSED_CHARSETS: Final = frozenset(("binary", "ucs2", "utf16", "utf16le", "utf32"))
_COLUMNS = """SELECT column_name, data_type, character_set_name, collation_name, character_octet_length,
  COALESCE(numeric_scale, datetime_precision), generation_expression, extra
  FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"""
_PRIMARY_KEY = """SELECT column_name, sub_part FROM information_schema.statistics
  WHERE table_schema = DATABASE() AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index"""
_UNIQUE_KEYS = """SELECT index_name, column_name, sub_part FROM information_schema.statistics
  WHERE table_schema = DATABASE() AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index"""
_TABLES = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = DATABASE()"
_TABLE = f"{_TABLES} AND table_name = %s"


def key_columns(
    connection: Connection,
    database: str,
    table: str,
    names: tuple[str, ...] = (),
    is_unique: bool = False,
    ordered_by: tuple[str, ...] = (),
) -> tuple[KeyColumn, ...]:
    """The columns of the primary key, in the key's order; or those of ``names``, if they are the key of an object.

    ``is_unique``: the columns must find one row. A row with NULL in one of them has no key, so a unique index may
    have nullable columns. ``ordered_by``: columns that order a list of rows. They need not be of a type for keys.

    ``database``: database of the session, for messages. If a session of vtgate names a shard, `DATABASE()` is
    the one that its tablets have, and no other name is known there.

    Raises `ConfigError`: no such table or column, a view, no primary key, no unique index, a key over part of a
    column, a column type that cannot be a key.
    """
    columns = _read_columns(connection, database, table)
    if names and not is_unique and not ordered_by:
        _require_members_columns(columns, database, table, names)
    if names:
        found = tuple(_get_column(columns, database, table, name) for name in names)
        if is_unique:
            _require_unique(connection, columns, database, table, names)
        if is_unique or ordered_by:
            _require_visible(columns, database, table, names)
        for name in ordered_by:
            _require_column(columns, database, table, name)
        return found
    parts = [part for part in read_rows(connection, _PRIMARY_KEY, (table,)) if not _is_end(columns, part[0])]
    if not parts:
        raise ConfigError(
            f"table {database}.{table} has no primary key",
            hint="add one, or leave the table out: its rows cannot be told apart",
        )
    for name, prefix in parts:
        if prefix is not None:
            raise ConfigError(
                f"the primary key of {database}.{table} holds only {prefix} characters of {name}",
                hint="make the key from whole columns",
            )
    _require_visible(columns, database, table, [str(name) for name, _ in parts])
    return tuple(_get_column(columns, database, table, str(name)) for name, _ in parts)


def _require_visible(columns: Mapping[str, tuple[Any, ...]], database: str, table: str, names: Iterable[str]) -> None:
    """A row is stored under the key that its own columns spell, so they must be in it."""
    for name in names:
        if "INVISIBLE" in str(columns[name][-1]).upper():
            raise ConfigError(
                f"column {database}.{table}.{name} is invisible and cannot be the key of a row",
                hint="SELECT * leaves it out; make it visible",
            )


def _is_end(columns: Mapping[str, tuple[Any, ...]], name: object) -> bool:
    """Whether the column is the end of the rows of a system-versioned table. The server adds it to each unique index;
    it is one for all rows that a SELECT shows."""
    return name in columns and columns[str(name)][-2] == "ROW END"


def _require_unique(
    connection: Connection, columns: Mapping[str, tuple[Any, ...]], database: str, table: str, names: tuple[str, ...]
) -> None:
    indexes: dict[str, list[str]] = {}
    for index, column, prefix in read_rows(connection, _UNIQUE_KEYS, (table,)):
        if _is_end(columns, column):
            continue
        # No column of that name: an index over a part of one, or over an expression.
        indexes.setdefault(str(index), []).append(f"{column or 'an expression'}{f'({prefix})' if prefix else ''}")
    if not any(set(parts) <= set(names) for parts in indexes.values()):
        told = [f"{index} ({', '.join(parts)})" for index, parts in indexes.items()]
        raise ConfigError(
            f"several rows of {database}.{table} can have the same {', '.join(names)}",
            hint=f"name the columns of a unique index, or give a list order_by and limit; the table has "
            f"{', '.join(told) or 'none'}",
        )


def read_tables(address: ServerAddress) -> frozenset[str]:
    """The tables of a database, without views. Raises `SourceUnavailable` or `SourceUnsuitable`."""
    with connected(address, "reading the tables") as connection:
        found = read_rows(connection, _TABLES)
    return frozenset(str(name) for name, kind in found if "VIEW" not in str(kind))


def _read_columns(connection: Connection, database: str, table: str) -> dict[str, tuple[Any, ...]]:
    kinds = {str(name): str(kind) for name, kind in read_rows(connection, _TABLE, (table,))}
    if table not in kinds:
        close = [name for name, _ in read_rows(connection, _TABLES) if str(name).casefold() == table.casefold()]
        hint = (
            f"the name is spelled {close[0]}"
            if close
            else "create it, correct the name in the configuration, or grant the account SELECT on it"
        )
        raise ConfigError(f"there is no table {database}.{table}", hint=hint)
    if "VIEW" in kinds[table]:
        raise ConfigError(f"{database}.{table} is a view", hint="the binary log names base tables only; cache those")
    return {str(row[0]): row for row in read_rows(connection, _COLUMNS, (table,))}


def _require_members_columns(
    columns: Mapping[str, tuple[Any, ...]], database: str, table: str, names: Iterable[str]
) -> None:
    for name in names:
        if name not in columns:
            raise ConfigError(
                f"table {database}.{table} has no column {name}",
                hint=f"it has {', '.join(sorted(columns))}; rows that belong to a key by way of another table's rows "
                "are a list of their own, see docs/config.md#two-joins-away",
            )


def _require_column(columns: Mapping[str, tuple[Any, ...]], database: str, table: str, name: str) -> tuple[Any, ...]:
    row = columns.get(name)
    if row is None:
        raise ConfigError(
            f"table {database}.{table} has no column {name}", hint=f"it has {', '.join(sorted(columns))}"
        )
    return row


def _get_column(columns: dict[str, tuple[Any, ...]], database: str, table: str, name: str) -> KeyColumn:
    row = _require_column(columns, database, table, name)
    _, data_type, charset, collation, octets, scale, _, _ = row
    data_type = str(data_type).lower()
    kind = _KINDS.get(data_type)
    if kind is None:
        reason = _REFUSED.get(data_type, "this type is not known to be safe")
        raise ConfigError(f"column {database}.{table}.{name} of type {data_type} cannot be a key", hint=reason)
    if kind is ColumnKind.STRING and (charset is None or charset in _REFUSED_CHARSETS):
        raise ConfigError(
            f"column {database}.{table}.{name} is in {charset or 'binary'} and cannot be a key",
            hint="the binary log decoder does not read it reliably; convert it to utf8mb4",
        )
    length = int(octets) if data_type == "binary" else 0
    return KeyColumn(
        name,
        kind,
        # MySQL takes text that is not a label of an ENUM for a number of one: its keys are not exact.
        str(collation) if kind is ColumnKind.STRING and data_type != "enum" else "",
        length,
        int(scale) if kind in (ColumnKind.DECIMAL, ColumnKind.DATETIME) else None,
    )


def keyspace_id(function: str, value: object) -> bytes:
    """`freshness.database.sharding.keyspace_id`, imported late: only a sharded keyspace needs its packages."""
    from freshness.database.sharding import keyspace_id as compute

    return compute(function, value)


def load_registry(
    config: Config,
    keyspaces: Collection[str] | None = None,
    lineage: str = "",
    previous: Mapping[str, ObjectDefinition] = {},
    tables: Set[str] = frozenset(),
) -> dict[str, ObjectDefinition]:
    """The objects of the configuration, or of those keyspaces, with the key columns of the primaries' schema.
    ``lineage``: the shard that is asked, if not any that serves. ``previous``, ``tables``: see
    `build_registry`. Raises `ConfigError`, `SourceUnavailable` or `SourceUnsuitable`."""
    connections: dict[str, tuple[Connection, ServerAddress]] = {}

    def find_columns(
        keyspace: str, table: str, names: tuple[str, ...], is_unique: bool, ordered_by: tuple[str, ...]
    ) -> tuple[KeyColumn, ...]:
        if keyspace not in connections:
            connections[keyspace] = _connect_any(config.keyspaces[keyspace], lineage)
        connection, address = connections[keyspace]
        try:
            return key_columns(connection, address.database, table, names, is_unique, ordered_by)
        except Exception as error:
            raise translated(error, address, "reading the schema") from error

    try:
        return build_registry(config, find_columns, keyspace_id, keyspaces, previous, tables)
    finally:
        for connection, _ in connections.values():
            connection.close()


def load_object(config: Config, name: str) -> dict[str, ObjectDefinition]:
    """`load_registry` of the keyspace of one object: the others' databases may be down. Empty for an unknown name."""
    entry = config.objects.get(name)
    return {} if entry is None else load_registry(config, [entry.keyspace])


def _connect_any(keyspace: Keyspace, lineage: str) -> tuple[Connection, ServerAddress]:
    """The primary of this shard, or the first one of the serving shards that answers: all have the same tables.
    Raises the error of the first one that does not."""
    failed: SourceUnavailable | None = None
    for shard in [each for each in keyspace.shards if each.lineage == lineage] or keyspace.serving_shards:
        try:
            return connect(shard.primary), shard.primary
        except SourceUnavailable as error:
            failed = failed or error
    assert failed is not None, "a keyspace has a serving shard"
    raise failed
