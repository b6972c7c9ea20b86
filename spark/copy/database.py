"""A copy in another database: a table for each table, and the copy's position in the same transaction as its rows.

A micro-batch is one transaction: rows of all tables are replaced and deleted by primary key, and the state with the
new position is written beside them. A run that is killed leaves all of that or nothing, so no change is lost or
applied twice, whatever Spark does again. One connection holds the lock of the run and writes all transactions: a
driver that has lost it cannot write any more.

Executors write dumps, and nothing else, into a table that has another name when they are done. A task that was given
up and goes on finds no table then.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    TimestampNTZType,
)

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, connected, quote_name, read_rows, translated
from freshness.errors import ConfigError, SourceUnavailable
from spark.copy.merge import find_newest
from spark.copy.state import CopyState, TableState, decode_state, encode_state
from spark.copy.table import KEY, READ_SECONDS, CopyTable

OWN: Final = "_freshness_"
"""How the names of tables begin that the job makes for itself."""
STATE_TABLE: Final = f"{OWN}copy"
OLD: Final = f"{OWN}old"
NAME_LENGTH_MAX: Final = 64 - len(OWN) - len("000000000_")

ROWS_PER_STATEMENT: Final = 1_000
KEY_PREFIX: Final = 64
"""Characters or bytes of a text in the index over the source's key."""

_MODE: Final = "SET sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', wait_timeout = 604800"
LOCK_SECONDS: Final = 10
"""How long a run waits for the lock of one that has just ended: its server notices the end a little later."""

_LOCK: Final = f"SELECT GET_LOCK(CONCAT('freshness copy ', LEFT(SHA2(DATABASE(), 256), 40)), {LOCK_SECONDS})"
_MAKE_STATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {STATE_TABLE} (id TINYINT PRIMARY KEY,"
    " state LONGTEXT CHARACTER SET utf8mb4 NOT NULL) ENGINE = InnoDB"
)
_COMMENTS: Final = "SELECT table_name, table_comment FROM information_schema.tables WHERE table_schema = DATABASE()"
_TYPES: Final[Mapping[type[DataType], str]] = {
    StringType: "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    BinaryType: "LONGBLOB",
    LongType: "BIGINT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimestampNTZType: "DATETIME(6)",
}


@dataclass(slots=True)
class DatabaseTarget:
    """``address``: a MariaDB or MySQL and the database there, which holds this one copy."""

    address: ServerAddress
    _connection: Connection | None = field(default=None, init=False)
    _is_writing: bool = field(default=False, init=False)

    def __str__(self) -> str:
        return str(self.address)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """`CopyTarget.opened`: a lock of the server, which ends with the connection."""
        with closing(connect(self.address, read_timeout_seconds=READ_SECONDS)) as connection:
            self._connection, self._is_writing = connection, False
            self._run(_MODE)
            if self._read(_LOCK) != [(1,)]:
                raise ConfigError(f"{self} is being written by another run", hint="wait until it has ended")
            try:
                yield
            finally:
                self._connection = None

    def open_state(self, tables: Sequence[str]) -> CopyState | None:
        """`CopyTarget.open_state`. A table that somebody dropped is dumped again; one that is not of this copy is
        never touched."""
        for name in tables:
            if len(name) > NAME_LENGTH_MAX or name.startswith(OWN):
                raise ConfigError(
                    f"table {name} cannot be copied into a database: its name is too long, or begins with {OWN}",
                    hint=f"expected at most {NAME_LENGTH_MAX} characters; a copy in a folder has no such bound",
                )
        self._run(_MAKE_STATE)
        found = self._read(f"SELECT state FROM {STATE_TABLE}")
        state = decode_state(str(found[0][0]), f"{self}, table {STATE_TABLE}") if found else None
        made = self._read_made()
        for name in tables if state is None else state.tables:
            table = TableState() if state is None else state.tables[name]
            # A table's comment names its dump, also under the name that readers know
            if name in made and made[name] not in {table.folder, table.published} - {""}:
                raise ConfigError(
                    f"{self} has a table {name} that is not of this copy",
                    hint="give a database of its own for the copy; `CREATE DATABASE` makes one",
                )
            if name in made:
                table.published = made[name]  # the run may have ended between the renaming and the commit
            elif table.published:
                table.published, table.needs_dump = "", True
            if table.folder not in (table.published, *made):
                table.needs_dump = True
        return state

    def dump(self, name: str, table: TableState, layout: CopyTable, rows: DataFrame) -> None:
        """`CopyTarget.dump`: written by the executors, each in transactions of its own."""
        table.generation += 1
        folder, loading = f"{OWN}{table.generation:09d}_{name}", f"{OWN}load_{secrets.token_hex(8)}"
        self._run(f"DROP TABLE IF EXISTS {quote_name(folder)}")
        self._run(_make_table(loading, layout), [folder])
        address, sql = self.address, _replace_sql(loading, layout)

        def write(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            written = 0
            with (
                connected(address, f"writing {loading}", read_timeout_seconds=READ_SECONDS) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(_MODE)
                for each in batches:
                    cells = zip(*(column.to_pylist() for column in each.columns), strict=True)
                    cursor.executemany(sql, list(cells))
                    written += each.num_rows
            yield pyarrow.RecordBatch.from_pydict({"written": [written]})

        rows.mapInArrow(write, "written BIGINT").collect()
        self._run(f"RENAME TABLE {quote_name(loading)} TO {quote_name(folder)}")
        table.folder = folder

    def merge(self, name: str, table: TableState, layout: CopyTable, changes: DataFrame) -> None:
        """`CopyTarget.merge`: rows are replaced and deleted by primary key, in the transaction that `commit` ends."""
        self._begin()
        place = name if table.folder == table.published else table.folder
        replace, delete = _replace_sql(place, layout), f"DELETE FROM {quote_name(place)} WHERE {KEY} IN %s"
        here: list[tuple[Any, ...]] = []
        gone: list[str] = []
        for row in find_newest(changes, layout).toLocalIterator(prefetchPartitions=True):
            *cells, is_gone = row
            if is_gone:
                gone.append(row[KEY])
            else:
                here.append(tuple(cells))
            if len(here) + len(gone) == ROWS_PER_STATEMENT:
                self._write(replace, here, delete, gone)
                here, gone = [], []
        self._write(replace, here, delete, gone)

    def commit(self, state: CopyState, exact: Collection[str]) -> None:
        """`CopyTarget.commit`. A table that is exact for the first time since its dump gets the name that readers
        know; the one that had it before goes, in the same step."""
        self._save(state)
        renamed = [name for name in exact if state.tables[name].folder != state.tables[name].published]
        for name in renamed:
            table = state.tables[name]
            own, made = quote_name(name), quote_name(table.folder)
            self._run(f"DROP TABLE IF EXISTS {OLD}")
            previous = f"{own} TO {OLD}, " if table.published else ""
            self._run(f"RENAME TABLE {previous}{made} TO {own}")
            table.published = table.folder
        if renamed:
            self._save(state)
        kept = {STATE_TABLE, *(table.folder for table in state.tables.values())}
        for place in self._read_made():
            if place.startswith(OWN) and place not in kept:
                self._run(f"DROP TABLE {quote_name(place)}")

    def _save(self, state: CopyState) -> None:
        self._begin()
        self._run(f"REPLACE INTO {STATE_TABLE} VALUES (1, %s)", [encode_state(state)])
        self._run("COMMIT")
        self._is_writing = False

    def _begin(self) -> None:
        if not self._is_writing:
            self._run("START TRANSACTION")
        self._is_writing = True

    def _write(self, replace: str, here: list[tuple[Any, ...]], delete: str, gone: list[str]) -> None:
        if here:
            self._run(replace, here, is_many=True)
        if gone:
            self._run(delete, [gone])

    def _read_made(self) -> dict[str, str]:
        return {str(name): str(comment) for name, comment in self._read(_COMMENTS)}

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return read_rows(self._connected(), sql)
        except Exception as error:
            raise translated(error, self.address, "reading the copy") from error

    def _run(self, sql: str, parameters: Sequence[Any] = (), *, is_many: bool = False) -> None:
        try:
            with self._connected().cursor() as cursor:
                if is_many:
                    cursor.executemany(sql, parameters)
                else:
                    cursor.execute(sql, parameters)
        except Exception as error:
            raise translated(error, self.address, "writing the copy") from error

    def _connected(self) -> Connection:
        if self._connection is None:
            raise SourceUnavailable(f"{self} is not open", hint="a run opens it first")
        return self._connection


def _make_table(place: str, layout: CopyTable) -> str:
    """The statement, whose parameter is the comment. ``_key`` names the shard and the source's primary key exactly,
    in ASCII; the source's key is an index beside it."""
    types = {column.name: column.type for column in layout.columns}
    columns = [f"{quote_name(name)} {_to_sql(kind)}" for name, kind in types.items()]
    parts = [
        quote_name(name) + (f"({KEY_PREFIX})" if isinstance(types[name], StringType | BinaryType) else "")
        for name in layout.key
    ]
    return (
        f"CREATE TABLE {quote_name(place)} ({KEY} VARCHAR(3072) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,"
        f" {', '.join(columns)}, KEY {OWN}source ({', '.join(parts)})) ENGINE = InnoDB COMMENT = %s"
    )


def _to_sql(kind: DataType) -> str:
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _TYPES[type(kind)]


def _replace_sql(place: str, layout: CopyTable) -> str:
    names = layout.schema().names
    return (
        f"REPLACE INTO {quote_name(place)} ({', '.join(map(quote_name, names))})"
        f" VALUES ({', '.join(['%s'] * len(names))})"
    )
