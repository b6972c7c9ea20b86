"""The application's own connection pool for the uncached reads of one server: SQLAlchemy's, or any of PEP 249.

Each read borrows a connection. Its session is set up before the read and put back after it: values and snapshots
must not depend on whose connection it is. A probe compares the driver's types with those of PyMySQL, since one value
is cached for all processes. Used by ``appclient.database.servers``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pymysql
from pymysql.constants import CR, FIELD_TYPE
from pymysql.cursors import DictCursor

from appclient.connection.commits import find_transaction
from appclient.connection.driver import require_safe
from appclient.connection.pool import is_nested
from freshness.config.keyspace import Keyspace
from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, translated
from freshness.database.session import CHOSEN_SQL, CREATED_SQL, put_back_sql, set_up_sql, use_sql
from freshness.errors import ConfigError, ConnectionsExhausted, FreshnessError, SourceUnavailable, SourceUnsuitable
from freshness.network import BLOCKING, Network

log = logging.getLogger(__name__)

IDLE_MAX: Final = 5
"""How many connections are tried that fail before a read."""


def _call(method: Callable[..., Any], *args: Any) -> Any:
    return method(*args)


def _is_exhausted(pool: Any) -> bool:
    """Whether SQLAlchemy's pool has lent all that it may. Pools of other classes open as many as are asked for."""
    most = getattr(pool, "_max_overflow", -1)
    return most >= 0 and pool.checkedout() >= pool.size() + most


def _call_awaiting() -> Callable[..., Any]:
    """Runs SQLAlchemy's adapters of asynchronous drivers, which wait in a greenlet of SQLAlchemy's own."""
    from sqlalchemy.util import greenlet_spawn

    from appclient.connection.awaiting import await_

    return lambda method, *args: await_(greenlet_spawn(method, *args))


@dataclass(frozen=True, slots=True)
class OwnPool:
    """``take`` returns a connection of PEP 249 that nobody else uses, and ``give_back`` gets it again.

    ``discard`` gets one whose next answer may belong to an earlier statement: it must be closed. ``error``: the
    driver's ``Error`` of PEP 249. ``call`` runs a method of the connection and returns its result. Parameters are
    written ``%s``. ``is_exhausted`` returns whether ``take`` would wait: a read inside another one, whose connection
    nobody else can give back, then has one of this library.
    """

    take: Callable[[], Any]
    give_back: Callable[[Any], None]
    discard: Callable[[Any], None]
    error: type[Exception]
    call: Callable[..., Any] = _call
    is_exhausted: Callable[[], bool] = lambda: False

    @classmethod
    def of(cls, source: Any, network: Network = BLOCKING) -> OwnPool:
        """The pool of an SQLAlchemy engine, or ``source`` itself. Raises `ConfigError` for anything else."""
        if isinstance(source, OwnPool):
            return source
        wanted = "Engine" if network is BLOCKING else "AsyncEngine"
        if type(source).__name__ != wanted or not hasattr(source, "raw_connection"):
            raise ConfigError(
                f"a pool of connections is of type {type(source).__name__}",
                hint=f"expected an SQLAlchemy {wanted} or an appclient.OwnPool",
            )
        call = _call if network is BLOCKING else _call_awaiting()
        engine = getattr(source, "sync_engine", source)
        return cls(
            engine.raw_connection,
            lambda connection: call(connection.close),
            lambda connection: call(connection.invalidate),
            engine.dialect.loaded_dbapi.Error,
            call,
            lambda: _is_exhausted(engine.pool),
        )


Pools = Mapping[str, Any]
"""By "host:port", as in ``freshness.toml``: an `OwnPool` or an SQLAlchemy ``Engine`` or ``AsyncEngine``."""


def find_pools(
    pools: Pools | None, keyspaces: Sequence[Keyspace], network: Network
) -> dict[tuple[str, int], OwnPool]:
    """By (host, port). Raises `ConfigError` for a server that is not in the configuration, or is a vtgate."""
    found: dict[tuple[str, int], OwnPool] = {}
    servers = {
        f"{address.host}:{address.port}": (address, keyspace)
        for keyspace in keyspaces
        for shard in keyspace.shards
        for address in (*shard.replicas, shard.primary)
    }
    for name, source in (pools or {}).items():
        if name not in servers:
            raise ConfigError(
                f"a pool is given for {name}, which is no server of the configuration",
                hint=f"expected one of {', '.join(sorted(servers))}",
            )
        address, keyspace = servers[name]
        if keyspace.flavor == "vitess":
            raise ConfigError(
                f"a pool is given for {name}, a vtgate",
                hint="its sessions name a tablet; leave the pool out, and this library connects by itself",
            )
        found[address.host, address.port] = OwnPool.of(source, network)
    return found


PROBE: Final = (
    "SELECT t.*, CAST('1.50' AS DECIMAL(4, 2)), CAST('2026-01-02' AS DATE), "
    "CAST('2026-01-02 03:04:05.678900' AS DATETIME(6)), CAST('26:00:00' AS TIME), "
    "_utf8mb4 0xF09F8C8D, CAST(0x00FF AS BINARY), NULL, HEX(%s), %s, CONCAT(%s, ' ', %s, ' ', %s), DATABASE() "
    """FROM JSON_TABLE('[{"n": 1, "t": "2026-01-02 03:04:05"}]', '$[*]' COLUMNS (i1 TINYINT PATH '$.n', """
    "i2 SMALLINT PATH '$.n', i3 MEDIUMINT PATH '$.n', i4 INT PATH '$.n', i8 BIGINT PATH '$.n', f FLOAT PATH '$.n', "
    "d DOUBLE PATH '$.n', y YEAR PATH '$.n', j JSON PATH '$.n', c CHAR(1) PATH '$.n', b BLOB PATH '$.n', "
    "l TEXT PATH '$.n', t TIMESTAMP PATH '$.t')) AS t"
)
"""A column of each type that drivers know, and parameters of the types of keys."""
PROBE_PARAMETERS: Final = (
    "\N{EARTH GLOBE EUROPE-AFRICA}",
    "\\\\",
    Decimal("1.50"),
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 678900),  # noqa: DTZ001 - a DATETIME has no time zone
)
"""The second shows by which rule the driver escapes: never one with a quote, which would end the text."""
PROBED: Final = (
    *(1, 1, 1, 1, 1, 1.0, 1.0, 2001, "1", "1", b"1", "1"),
    datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - as is TIMESTAMP
    Decimal("1.50"),
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 678900),  # noqa: DTZ001
    timedelta(hours=26),
    "\N{EARTH GLOBE EUROPE-AFRICA}",
    b"\x00\xff",
    None,
    "F09F8C8D",
    PROBE_PARAMETERS[1],
    "1.50 2026-01-02 2026-01-02 03:04:05.678900",
)


_BYTES: Final = (bytes, bytearray, memoryview)


def inline_bytes(sql: str, params: Any) -> tuple[str, Any]:
    """A statement with its bytes written into it, and the parameters that are left: aiomysql can send no bytes."""
    marks: Any
    left: Any
    if isinstance(params, Mapping):
        marks = {name: _literal(each, f"%({name})s") for name, each in params.items()}
        left = {name: each for name, each in params.items() if not isinstance(each, _BYTES)}
    elif isinstance(params, tuple | list):
        marks = tuple(_literal(each, "%s") for each in params)
        left = [each for each in params if not isinstance(each, _BYTES)]
    else:
        return sql, params
    if len(left) == len(params):
        return sql, params
    # The driver replaces "%%" once more, if parameters are left
    return (sql.replace("%%", "%%%%") if left else sql) % marks, left


def _literal(value: Any, mark: str) -> str:
    return f"_binary x'{bytes(value).hex()}'" if isinstance(value, _BYTES) else mark


class BorrowedCursor:
    """As much of pymysql's cursor as reads use."""

    def __init__(self, connection: BorrowedConnection, cursor: Any, is_mapping: bool) -> None:
        self._connection, self._cursor, self._is_mapping = connection, cursor, is_mapping

    def __enter__(self) -> BorrowedCursor:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection.open:
            self._connection.run(self._cursor.close)

    @property
    def description(self) -> Any:
        """The columns of the last statement, as PEP 249 has them; None without rows."""
        return self._cursor.description

    def execute(self, sql: str, params: Any = None) -> None:
        """Run one statement. Raises the driver's errors as those of pymysql."""
        if params and not self._connection.is_pymysql:
            sql, params = inline_bytes(sql, params)
        # Drivers replace "%%" only if they get parameters; for some, an empty sequence counts.
        self._connection.run(self._cursor.execute, sql, *([params] if params else []))

    def fetchall(self) -> list[Any]:
        """The rows that are left. Raises `SourceUnsuitable` for a BIT column of another driver than pymysql."""
        names = [str(column[0]) for column in self._cursor.description or ()]
        rows: list[tuple[Any, ...]] = [
            tuple(row.values() if isinstance(row, Mapping) else row)
            for row in self._connection.run(self._cursor.fetchall)
        ]
        if not self._connection.is_pymysql and any(
            column[1] == FIELD_TYPE.BIT for column in self._cursor.description or ()
        ):
            raise SourceUnsuitable(
                "a BIT column was read by a pool whose driver is not PyMySQL",
                hint="drivers disagree over its type: read this object without the pool",
            )
        if not self._is_mapping:
            return rows
        if len(set(names)) < len(names):
            raise SourceUnsuitable(
                f"two columns of one answer have the same name: {', '.join(names)}", hint="give each its own, with AS"
            )
        return [dict(zip(names, row, strict=True)) for row in rows]


class BorrowedConnection:
    """As much of pymysql's connection as reads use, on a connection of the application's pool."""

    def __init__(self, pool: OwnPool, raw: Any) -> None:
        self._pool, self._raw = pool, raw
        driver = getattr(raw, "driver_connection", raw)  # SQLAlchemy's proxy has the driver's own
        self.driver = raw if driver is None else driver
        self.is_pymysql = isinstance(self.driver, pymysql.Connection)
        self.open = True
        self.database_before: str | None = None
        """The database that the application chose, if a read needs another one."""

    def run(self, method: Callable[..., Any], *args: Any) -> Any:
        """Errors of the driver come out as those of pymysql, with their numbers."""
        try:
            return self._pool.call(method, *args)
        except pymysql.MySQLError:
            raise
        except self._pool.error as error:
            raise as_pymysql(error) from error

    def cursor(self, kind: type | None = None) -> BorrowedCursor:
        """A new cursor; its rows are dictionaries if ``kind`` is `DictCursor`, else tuples."""
        return BorrowedCursor(self, self.run(self._raw.cursor), kind is DictCursor)

    def close(self) -> None:
        """The connection is not to be used again, by anybody."""
        if self.open:
            self.open = False
            self._pool.discard(self._raw)

    def give_back(self) -> None:
        """Return the connection to the application's pool."""
        self.open = False
        self._pool.give_back(self._raw)


def as_pymysql(error: Exception) -> pymysql.MySQLError:
    """The error of pymysql that says the same as one of another driver's."""
    code = getattr(error, "errno", None)  # mysql-connector
    text = getattr(error, "msg", None)
    if not isinstance(code, int) or not isinstance(text, str):
        code, text = (*error.args, "", "")[:2] if error.args and isinstance(error.args[0], int) else (0, error)
    kind = {"ProgrammingError", "DataError", "NotSupportedError"} & {each.__name__ for each in type(error).__mro__}
    made = pymysql.ProgrammingError if kind else pymysql.OperationalError
    return made(CR.CR_UNKNOWN_ERROR if code == -1 else code, str(text))


class BorrowingPool:
    """In the place of `Pool`: each connection comes from the application's pool, set up for reads."""

    lends_idle = False

    def __init__(self, pool: OwnPool, address: ServerAddress, flavor: str, timeout_seconds: float) -> None:
        self._pool, self._address, self._flavor = pool, address, flavor
        self._set_up_sql = set_up_sql(flavor, timeout_seconds, None)

    def take(self) -> BorrowedConnection | None:
        """None for a read inside another one while the pool has nothing left: the caller opens a connection itself. A
        few are discarded that were closed while idle, or that may have a temporary table. Raises `SourceUnavailable`,
        its `ConnectionsExhausted`, and `SourceUnsuitable`."""
        for _ in range(IDLE_MAX - 1):
            if is_nested() and self._pool.is_exhausted():
                return None
            raw = self._take()
            try:
                return self._set_up(raw)
            except SourceUnavailable as error:
                log.info("another connection of the application's pool is taken: %s", error)
        return self._set_up(self._take())

    def _take(self) -> Any:
        """A failure is not tried again: the pool has waited as long as it does."""
        doing = "taking a connection of the application's pool"
        try:
            return self._pool.call(self._pool.take)
        except (self._pool.error, OSError) as error:
            if type(error).__name__ == "PoolError":  # mysql-connector
                raise self._exhausted(error) from error
            raise self._problem(error, doing) from error
        except Exception as error:
            # SQLAlchemy has an error of its own for a pool with nothing left, and wraps the driver's.
            original = getattr(error, "orig", None)
            if isinstance(original, self._pool.error):
                raise self._problem(original, doing) from error
            if type(error).__module__ != "sqlalchemy.exc":
                raise
            if type(error).__name__ == "TimeoutError":
                raise self._exhausted(error) from error
            raise self._problem(error, doing) from error

    def _set_up(self, raw: Any) -> BorrowedConnection:
        connection = BorrowedConnection(self._pool, raw)
        with self._discarding(connection, "setting up the session"):
            require_safe(connection.driver)
            if find_transaction(connection.driver):
                raise SourceUnsuitable(
                    "the application's pool gave a connection with an open transaction",
                    hint="end transactions before a connection is given back",
                )
            connection.run(connection._raw.rollback)  # a driver that does not say so
            with connection.cursor() as cursor:
                cursor.execute(self._set_up_sql)
                try:
                    cursor.execute(PROBE, PROBE_PARAMETERS)
                    [(*found, database)] = cursor.fetchall()
                except (TypeError, ValueError) as error:  # it cannot send or read them, or finds no row
                    found, database = [error], None
                if [(type(each), each) for each in found] != [(type(each), each) for each in PROBED]:
                    raise SourceUnsuitable(
                        f"the application's pool reads {found!r} where PyMySQL reads {PROBED!r}",
                        hint="connect with charset=utf8mb4, the driver's usual conversion of types, and without "
                        "NO_BACKSLASH_ESCAPES in sql_mode",
                    )
                cursor.execute(CREATED_SQL[self._flavor])
                [(_, created)] = cursor.fetchall()
                if int(created):
                    raise SourceUnavailable(
                        "the application's pool gave a connection that may have a temporary table",
                        hint="a name can mean that table instead of the cached one: create tables on connections "
                        "that do not go back to this pool",
                    )
                if database != self._address.database:
                    cursor.execute(use_sql(self._address.database))
                    cursor.execute(CHOSEN_SQL)
                    connection.database_before = database
        return connection

    def give_back(self, connection: BorrowedConnection | Connection | None) -> None:
        """None: it was closed. The library's own is closed."""
        if not isinstance(connection, BorrowedConnection):
            if connection is not None:
                connection.close()
            return
        try:
            with self._discarding(connection, "putting back the session"), connection.cursor() as cursor:
                cursor.execute(put_back_sql(self._flavor))
                if connection.database_before is not None:
                    cursor.execute(use_sql(connection.database_before))
        except FreshnessError as error:
            log.info("a connection of the application's pool was discarded: %s", error)
            return
        connection.give_back()

    def close(self) -> None:
        """The pool is the application's."""

    @contextmanager
    def _discarding(self, connection: BorrowedConnection, doing: str) -> Iterator[None]:
        try:
            yield
        except SourceUnsuitable:
            connection.close()
            raise
        except (pymysql.MySQLError, OSError) as error:
            connection.close()
            raise translated(error, self._address, doing) from error
        except BaseException:
            connection.close()
            raise

    def _exhausted(self, error: Exception) -> ConnectionsExhausted:
        return ConnectionsExhausted(
            f"the application's pool for {self._address.host}:{self._address.port} has no connection left: {error}",
            hint="give the pool more connections, or find out which reads take so long",
        )

    def _problem(self, error: Exception, doing: str) -> Exception:
        made = error if isinstance(error, (pymysql.MySQLError, OSError)) else as_pymysql(error)
        return translated(made, self._address, doing)
