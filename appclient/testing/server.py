"""A database server in this process: SQLite, behind a connection that looks like PyMySQL's and knows its position.

It answers the statements of ``appclient.database.shard`` and of the application, as far as SQLite knows them. Used by
``appclient.testing.system``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pymysql
from pymysql.constants import ER, SERVER_STATUS
from pymysql.cursors import DictCursor

from appclient.connection.own_pool import PROBE, PROBED
from appclient.database.atleast import COMMITTED
from freshness.database.session import CREATED_SQL, NAME_IN_SESSION
from freshness.stream.heartbeat import EPOCH_ROW, HEARTBEAT_TABLE

_HEARTBEATS: Final = f"""
CREATE TABLE {HEARTBEAT_TABLE} (id TEXT, epoch INTEGER, watermark TEXT, min_us INTEGER);
INSERT INTO {HEARTBEAT_TABLE} VALUES ('{EPOCH_ROW}', 1, '', 0);
"""
_VARIABLE: Final = re.compile(r"@@(?:global\.|session\.)?(\w+)", re.IGNORECASE)
_LOCK: Final = re.compile(r"\s+(?:FOR UPDATE|FOR SHARE|LOCK IN SHARE MODE)\s*$", re.IGNORECASE)
_COLUMNS: Final = re.compile(r"\binformation_schema\.columns\b", re.IGNORECASE)
_COLUMNS_OF_SQLITE: Final = """(
  SELECT DATABASE() AS table_schema, tables.name AS table_name, columns.name AS column_name,
    lower(substr(columns.type, 1, instr(columns.type || '(', '(') - 1)) AS data_type
  FROM sqlite_master AS tables JOIN pragma_table_info(tables.name) AS columns WHERE tables.type = 'table')"""
_PARAMETER: Final = re.compile(r"%(?:\((\w+)\))?s|%%")
_WRITES: Final = re.compile(r"\s*(?:INSERT|UPDATE|DELETE|REPLACE)\b", re.IGNORECASE)
_UNTIL: Final = re.compile(r"CONCAT_WS\(.,., NULLIF\(@@global\.gtid_owned.+?, ''\)\)|IF\(@@global\.log_bin.+?NULL\)")

Change = tuple[str, int, Mapping[str, Any] | None, Mapping[str, Any] | None]
"""A row that a commit changed: its table, its number in SQLite, and its images before and after."""

Rows = dict[str, dict[int, dict[str, Any]]]
"""By table and number."""


@dataclass(slots=True, eq=False)
class FakeServer:
    """``position``: position of all that it has executed, as text. ``on_commit``: callback of the primary with all
    rows."""

    name: str
    path: Path
    flavor: str
    database: str
    position: Callable[[], str]
    on_commit: Callable[[Rows], None] | None = None
    is_down: bool = False

    def create(self, schema: str) -> None:
        """Create the tables of ``schema``, in the SQL of SQLite, and that of the heartbeats."""
        with self.open() as rows:
            rows.execute("PRAGMA journal_mode = WAL")
            rows.executescript(_HEARTBEATS + schema)

    def open(self) -> sqlite3.Connection:
        """The server's rows; transactions begin and end by statements."""
        rows = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        rows.create_function("VERSION", 0, lambda: "10.11.0-MariaDB" if self.flavor == "mariadb" else "9.7.0")
        rows.create_function("DATABASE", 0, lambda: self.database)
        for waits in ("MASTER_GTID_WAIT", "WAIT_FOR_EXECUTED_GTID_SET"):
            rows.create_function(waits, 2, lambda *_: 1)  # a replica that lags does so until the test goes on
        return rows

    def connect(self) -> FakeConnection:
        """A new connection. Raises pymysql's ``OperationalError`` if the server is down."""
        if self.is_down:
            raise pymysql.err.OperationalError(2003, f"{self.name} is down")
        return FakeConnection(self)

    def tell(self) -> None:
        """A commit that no `FakeConnection` has made."""
        if self.on_commit is not None:
            rows = self.open()
            found = read_rows(rows)
            rows.close()
            self.on_commit(found)

    def apply(self, changes: Iterable[Change]) -> None:
        """As a replica."""
        rows = self.open()
        rows.execute("BEGIN IMMEDIATE")
        for table, number, _, after in changes:
            rows.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (number,))
            if after is not None:
                columns = rows.execute(f'PRAGMA table_info("{table}")').fetchall()  # without generated ones
                names = ", ".join(f'"{column[1]}"' for column in columns)
                marks = ", ".join("?" * (len(columns) + 1))
                values = [after[column[1]] for column in columns]
                rows.execute(f'INSERT INTO "{table}" (rowid, {names}) VALUES ({marks})', (number, *values))
        rows.execute("COMMIT")
        rows.close()

    def variable(self, name: str) -> str:
        """The text of a system variable, "" for unknown ones."""
        match name:
            case "gtid_executed" | "gtid_slave_pos" | "gtid_current_pos" | "last_gtid":
                return self.position()
            case "time_zone" | "system_time_zone":
                return "UTC"
            case "transaction_isolation" | "tx_isolation":
                return "REPEATABLE-READ"
            case "lower_case_table_names":
                return "0"
        return ""


def read_rows(rows: sqlite3.Connection) -> Rows:
    """All rows of all tables but the heartbeat's."""
    tables = rows.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    found: Rows = {}
    for (table,) in tables.fetchall():
        if table != HEARTBEAT_TABLE:
            cursor = rows.execute(f'SELECT rowid, * FROM "{table}"')
            names = [column[0] for column in cursor.description][1:]
            found[table] = {row[0]: dict(zip(names, row[1:], strict=True)) for row in cursor.fetchall()}
    return found


def compare(before: Rows, after: Rows) -> list[Change]:
    """The changes that lead from ``before`` to ``after``: (table, rowid, old row, new row)."""
    changes: list[Change] = []
    for table in {**before, **after}:
        old, new = before.get(table, {}), after.get(table, {})
        for number in {**old, **new}:
            if old.get(number) != new.get(number):
                changes.append((table, number, old.get(number), new.get(number)))
    return changes


class FakeConnection:
    """As much of pymysql's connection as applications and their libraries use."""

    def __init__(self, server: FakeServer) -> None:
        self.server, self._rows, self._autocommits = server, server.open(), False
        self.open = True

    @property
    def server_status(self) -> int:
        """Flags of ``SERVER_STATUS``: autocommit, open transaction."""
        autocommits = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT if self._autocommits else 0
        return autocommits | (SERVER_STATUS.SERVER_STATUS_IN_TRANS if self._rows.in_transaction else 0)

    def cursor(self, kind: type | None = None) -> FakeCursor:
        """A new cursor; its rows are dictionaries if ``kind`` is `DictCursor`, else tuples."""
        return FakeCursor(self, kind is DictCursor)

    def begin(self) -> None:
        """Commit, and begin a transaction."""
        self.commit()
        self._rows.execute("BEGIN")

    def commit(self) -> None:
        """Commit the open transaction, if any, and report all rows to the server."""
        if not self._rows.in_transaction:
            return
        tell = self.server.on_commit
        after = {} if tell is None else read_rows(self._rows)
        self._rows.execute("COMMIT")
        if tell is not None:
            tell(after)

    def rollback(self) -> None:
        """Undo the open transaction, if any."""
        if self._rows.in_transaction:
            self._rows.execute("ROLLBACK")

    def autocommit(self, value: bool) -> None:
        """Choose whether each statement commits."""
        self._autocommits = bool(value)

    def get_autocommit(self) -> bool:
        """Whether each statement commits."""
        return self._autocommits

    def character_set_name(self) -> str:
        """The character set of the connection."""
        return "utf8mb4"

    def wait_for_locks(self, milliseconds: int) -> None:
        """How long a statement waits for the transactions of others, before it fails as on a deadlock."""
        self._rows.execute(f"PRAGMA busy_timeout = {milliseconds}")

    def ping(self, reconnect: bool = True) -> None:
        """It is here."""

    def close(self) -> None:
        """Undo the open transaction, and close the connection."""
        if self.open:
            self.open = False
            self.rollback()
            self._rows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, sql: str, parameters: Any) -> _Found | None:
        """Run a statement; None if it gives no result. Raises errors of pymysql."""
        if self.server.is_down:
            raise pymysql.err.OperationalError(2013, f"{self.server.name} is down")
        verb = sql.split(None, 1)[0].upper() if sql.strip() else ""
        if verb == "SET":
            return None
        if verb in ("COMMIT", "ROLLBACK") and "TO" not in sql.upper().split():
            (self.commit if verb == "COMMIT" else self.rollback)()
            return None
        if verb in ("START", "BEGIN"):
            self.begin()
            self._rows.execute(f"SELECT 1 FROM {HEARTBEAT_TABLE}").fetchall()  # SQLite's snapshot begins here
            return None
        is_write = _WRITES.match(sql) is not None
        begins = not self._rows.in_transaction
        try:
            if begins:
                self._rows.execute("BEGIN IMMEDIATE" if is_write else "BEGIN")
            cursor = self._rows.execute(translate(sql, self.server), _bound(parameters))
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            if begins:
                self.rollback()
            raise _as_pymysql(error) from error
        if begins and self._autocommits:
            self.commit()
        return _Found(cursor, rows)


class _Found:
    """A cursor whose rows have been read."""

    def __init__(self, cursor: sqlite3.Cursor, rows: list[Any]) -> None:
        self.description, self.rows = cursor.description, rows
        self.rowcount = len(rows) if cursor.description else cursor.rowcount
        self.lastrowid = cursor.lastrowid


class FakeCursor:
    arraysize = 1

    def __init__(self, connection: FakeConnection, has_dicts: bool) -> None:
        self._connection, self._has_dicts = connection, has_dicts
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._rows: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, sql: str, parameters: Any = None) -> int:
        """Run a statement, and return `rowcount`. Raises errors of pymysql."""
        if sql == PROBE:
            row = *PROBED, self._connection.server.database
            self.description, self._rows = [(str(at), *[None] * 6) for at, _ in enumerate(row)], [row]
            return 1
        found = self._connection.execute(sql, parameters)
        if found is None:
            self.description, self._rows, self.rowcount = None, [], 0
            return 0
        self.description, self.rowcount, self.lastrowid = found.description, found.rowcount, found.lastrowid
        names = [column[0] for column in found.description or ()]
        self._rows = [dict(zip(names, row, strict=True)) for row in found.rows] if self._has_dicts else found.rows
        return self.rowcount

    def executemany(self, sql: str, many: Iterable[Any]) -> int:
        """Run a statement with each of ``many``, and return the sum of the row counts."""
        return sum(self.execute(sql, parameters) for parameters in many)

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        rows, self._rows = self._rows, []
        return rows

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """At most ``size`` rows, or ``arraysize``."""
        count = self.arraysize if size is None else size
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._rows.pop(0) if self._rows else None

    def close(self) -> None:
        """Its rows were read."""


def translate(sql: str, server: FakeServer) -> str:
    """A statement of MySQL or MariaDB as SQLite has it."""
    sql = sql.replace(NAME_IN_SESSION[server.flavor], f"'{server.name}'")
    sql = _UNTIL.sub("NULL", sql)  # a commit is seen before the server counts it
    sql = sql.replace(CREATED_SQL[server.flavor], "SELECT 'created', 0")
    sql = sql.replace(COMMITTED, "@@global.gtid_current_pos")
    sql = _COLUMNS.sub(_COLUMNS_OF_SQLITE, sql)
    sql = _VARIABLE.sub(lambda found: f"'{server.variable(found[1].lower())}'", _LOCK.sub("", sql))
    return _PARAMETER.sub(lambda found: "%" if found[0] == "%%" else f":{found[1]}" if found[1] else "?", sql)


def _bound(parameters: Any) -> Any:
    if parameters is None or isinstance(parameters, Mapping):
        return parameters or {}
    return (
        tuple(parameters) if isinstance(parameters, Sequence) and not isinstance(parameters, str) else (parameters,)
    )


def _as_pymysql(error: sqlite3.Error) -> pymysql.MySQLError:
    if isinstance(error, sqlite3.IntegrityError):
        return pymysql.err.IntegrityError(ER.DUP_ENTRY, str(error))
    if "locked" in str(error):
        return pymysql.err.OperationalError(ER.LOCK_DEADLOCK, str(error))
    return pymysql.err.ProgrammingError(ER.PARSE_ERROR, str(error))
