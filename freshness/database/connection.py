"""Connections to a database server, and the translation of its errors.

Errors of pymysql are translated here and nowhere else, for the invalidator and the application library. Password and
certificates are read again for each connection. Never logs or repeats a password.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, TypeAlias

import pymysql
from pymysql.constants import CR
from pymysql.cursors import Cursor

from freshness.config.server import ServerAddress
from freshness.errors import (
    ConfigError,
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    QueryTimedOut,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.login import AGAIN_HINT, TLS_HINT, describe_tls_failure, find_password, make_context
from freshness.network import BLOCKING, Network
from freshness.position import Position, parse_gtids, parse_position

Connection: TypeAlias = "pymysql.Connection[Cursor]"

CONNECT_TIMEOUT_SECONDS: Final = 5.0
_UNFIT: Final = (AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""Errors of PyMySQL for a packet whose lengths do not fit: it trusts them."""

CONNECT_ERRORS: Final = (pymysql.MySQLError, OSError, RuntimeError, *_UNFIT)
"""Errors of a connection attempt. Another exception, such as a signal handler's, does not come from the server."""

TIMEOUT_HINT: Final = "make the statement quicker, or raise query_timeout_seconds of the keyspace"

UNCUT: Final = 2**63 - 1
"""``sql_select_limit`` above every answer. A row that a server leaves out would count as absent."""

_UTC: Final = "SET time_zone = '+00:00'"
"""A server shows a TIMESTAMP in the session's time zone. One value is cached for all sessions, so all use the time
zone of the binary log."""

IDENTITY: Final = {"mysql": ("server_uuid",), "mariadb": ("server_id", "hostname", "port", "server_uid")}
"""The variables that make up the identity of a server, by flavor."""

_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_FATAL_DUMP_ERROR: Final = 1236

_LOGIN_HINT = "check user, password and the host that the account is for"
_VALUE_HINT = "the type or character set of the column cannot hold the value; no row has it as its key"
_UNSUITABLE: Final[dict[int, str]] = {
    1044: "grant the account access to the database",
    1045: _LOGIN_HINT,
    1049: "create the database, or correct its name in the address",
    1130: _LOGIN_HINT,
    1142: "grant the account the privilege on this table",
    1143: "grant the account the privilege on all columns of this table",
    1146: "create the table, or correct its name",
    1227: "grant the privilege; `invalidator check` lists the ones that are needed",
    1267: _VALUE_HINT,
    1290: "the server is read-only or runs without what is needed; the heartbeat must go to the primary",
    1525: _VALUE_HINT,
    1698: _LOGIN_HINT,
    1792: "this session only reads; write on a connection of your own",
    1836: "the server is read-only; the heartbeat must go to the primary",
    2026: "give the server a certificate, or say tls=false in its URL on a private link",
    2054: "the server wants a login method that this program does not know",
    3854: _VALUE_HINT,
}
_UNKNOWN_COMMAND: Final = 1047
OUTSIDE_HINT: Final = "let the node reach the others of its Galera cluster, until wsrep_local_state_comment is Synced"
"""The remedy for a node of Galera that refuses statements, or is behind on purpose."""

_LOGIN_REFUSED: Final = frozenset((1045, 1698))
"""The password was refused. If it comes from outside of the configuration, the next try may find another one."""

_TIMED_OUT: Final = frozenset((1969, 3024))
"""The server has ended the statement at the session's bound."""

_PURGED = re.compile(
    r"purged required binary logs|purged binary logs|too old and required binlog files have been purged"
    r"|could not find GTID state requested|could not find first log file|could not find next log",
    re.IGNORECASE,
)
_FUTURE = re.compile(
    r"has more GTIDs than the (?:source|master)|which is not in the master's binlog|slave has diverged"
    r"|position > file size",
    re.IGNORECASE,
)
_TOO_MANY_ROWS = re.compile(r"Row count exceeded \d+")
_KICKED_OUT = re.compile(r"same server_(?:uu)?id", re.IGNORECASE)
_RESET_CONNECTION: Final = 0x1F
"""The command of the protocol. PyMySQL has no method for it."""

_TOO_LARGE = re.compile(r"max_allowed_packet", re.IGNORECASE)


def connect(
    address: ServerAddress,
    *,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    read_timeout_seconds: float = 0,
    network: Network = BLOCKING,
) -> Connection:
    """A connection with autocommit, to the address's database if it names one. Its session is in UTC, and its answers
    are whole.

    ``timeout_seconds`` bounds connecting, and each answer unless ``read_timeout_seconds`` is above 0. Raises
    `SourceUnavailable` where trying again may help, else `SourceUnsuitable`. With `ServerAddress.tls` a server that
    does not show a certificate is refused before it hears of the user.
    """
    try:
        password = find_password(address.password, address.user, address.host, address.port, network)
        context = make_context(address.tls, network) if address.tls else None
    except ConfigError as error:
        raise SourceUnavailable(
            f"{address.host}:{address.port}: connecting: {error.message}", hint=error.hint or AGAIN_HINT
        ) from error
    # On loopback TLS only costs; elsewhere it is negotiated if the server offers it.
    is_plain = address.tls is False or (context is None and address.host in _LOOPBACK)
    try:
        connection = _Connection(
            host=address.host,
            port=address.port,
            user=address.user,
            password=password,
            database=address.database or None,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=timeout_seconds,
            read_timeout=read_timeout_seconds or timeout_seconds,
            write_timeout=timeout_seconds,
            ssl=context,
            ssl_disabled=True if is_plain else None,
            defer_connect=True,
        )
        if not is_plain:
            connection.ctx.sslsocket_class = network.tls_socket  # type: ignore[attr-defined]
        seconds = read_timeout_seconds or timeout_seconds
        connection.connect(
            None if network is BLOCKING else network.connect(address.host, address.port, timeout_seconds, seconds)
        )
        _begin_session(connection)
        return connection
    except CONNECT_ERRORS as error:
        raise translated(error, address, "connecting") from error


class _Connection(pymysql.Connection):
    """Is closed by an answer that does not fit, which is an error of the connection."""

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        try:
            return super()._read_query_result(unbuffered)  # type: ignore[misc]
        except UnicodeDecodeError:  # the packets fit: a value that PyMySQL takes for text, as of a VECTOR
            self._force_close()  # type: ignore[attr-defined]
            raise
        except _UNFIT as error:
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.OperationalError(CR.CR_MALFORMED_PACKET, f"an answer does not fit: {error!r}") from error


def _begin_session(connection: Connection) -> None:
    version: str = connection.get_server_info()  # type: ignore[no-untyped-call]
    is_vtgate = "Vitess" in version  # its tablets have a limit of their own, which is an error
    try:
        with connection.cursor() as cursor:
            cursor.execute(_UTC if is_vtgate else f"{_UTC}, sql_select_limit = {UNCUT}")
    except BaseException:
        connection.close()
        raise


def reset_session(connection: Connection) -> None:
    """Have the session as a new one is: without variables, locks, temporary tables and a transaction. Its database
    stays. Raises what pymysql raises."""
    driver: Any = connection
    driver._execute_command(_RESET_CONNECTION, b"")
    driver._read_ok_packet()


@contextmanager
def connected(
    address: ServerAddress,
    doing: str,
    *,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    read_timeout_seconds: float = 0,
) -> Iterator[Connection]:
    """A connection as `connect` makes it, closed at the end of the block, whose errors are `translated`."""
    connection = connect(address, timeout_seconds=timeout_seconds, read_timeout_seconds=read_timeout_seconds)
    with closing(connection):
        try:
            yield connection
        except Exception as error:
            raise translated(error, address, doing) from error


def translated(error: Exception, address: ServerAddress, doing: str) -> FreshnessError:
    """The project's error for an error of pymysql. Raise it ``from`` the original. Other `FreshnessError` are
    unchanged."""
    if isinstance(error, FreshnessError):
        return error
    where = f"{address.host}:{address.port}"
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code == _FATAL_DUMP_ERROR:
        return _translated_dump_error(where, text)
    failure = describe_tls_failure(getattr(error, "original_exception", error))
    if failure is not None:
        return SourceUnavailable(f"{where}: {doing}: {failure}", hint=TLS_HINT)
    if code in _TIMED_OUT:
        return QueryTimedOut(f"{where}: {doing}: {text} [{code}]", hint=TIMEOUT_HINT)
    if code in _LOGIN_REFUSED and not isinstance(address.password, str):
        return SourceUnavailable(
            f"{where}: {doing}: {text} [{code}]", hint=f"{_LOGIN_HINT}; the password is of now, and {AGAIN_HINT}"
        )
    if code in _UNSUITABLE:
        return SourceUnsuitable(f"{where}: {doing}: {text} [{code}]", hint=_UNSUITABLE[code])
    if _TOO_MANY_ROWS.search(text):
        return SourceUnsuitable(
            f"{where}: {doing}: {text} [{code}]",
            hint="ask for fewer rows at once, or raise --queryserver-config-max-result-size of vttablet",
        )
    if isinstance(error, RuntimeError):  # pymysql's word for a missing package
        return SourceUnsuitable(f"{where}: {doing}: {text}", hint="install the package, or change the login method")
    if isinstance(error, (pymysql.ProgrammingError, pymysql.NotSupportedError, pymysql.DataError)):
        return SourceUnsuitable(
            f"{where}: {doing}: {text} [{code}]", hint="is the server too old, or of another kind?"
        )
    is_outside = code == _UNKNOWN_COMMAND and text.startswith("WSREP")
    hint = OUTSIDE_HINT if is_outside else "is the server up and reachable from here?"
    return SourceUnavailable(f"{where}: {doing}: {text or type(error).__name__} [{code}]", hint=hint)


def _translated_dump_error(where: str, text: str) -> FreshnessError:
    if _PURGED.search(text):
        return HistoryPurged(
            f"{where} no longer has the log from the start position: {text}",
            hint="purged (F15): the lives of all nodes must end; keep binary logs longer than the longest outage",
        )
    if _FUTURE.search(text):
        return HistoryLost(
            f"{where} does not know the start position: {text}",
            hint="a future position or another history (F28, F29): raise the epoch and end the lives of all nodes",
        )
    if _KICKED_OUT.search(text):
        return SourceUnavailable(
            f"{where}: another reader came with our server id: {text}", hint="a new id is drawn at the next try"
        )
    if _TOO_LARGE.search(text):
        return StreamStopped(f"{where}: {text}", hint="raise max_allowed_packet on the server")
    return StreamStopped(
        f"{where} ended the stream: {text}", hint="look into the server's error log; its binary log may be damaged"
    )


def read_rows(connection: Connection, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Run one query. Errors of pymysql come out as they are."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def read_variables(connection: Connection, names: Sequence[str] = ()) -> dict[str, str]:
    """Global variables by lower-case name: these, or all. Errors come out as they are."""
    listed = ", ".join(f"'{name}'" for name in names)
    chosen = f" WHERE Variable_name IN ({listed})" if names else ""
    return {str(name).lower(): str(value) for name, value in read_rows(connection, f"SHOW GLOBAL VARIABLES{chosen}")}


def executed_position(connection: Connection, flavor: str) -> Position:
    """Everything that this server has executed: the head, for floors and for "start now". Read on the primary.

    On MariaDB it runs ahead of what a SELECT sees and is only an upper bound: right for a floor, never for a
    fill (F2). Private GTIDs of a replica would make a floor that nothing can contain (F53). So would a domain that
    the primary once replicated and that is not in its log: no stream brings it, and its replicas need not have it
    (F113).
    Without log_slave_updates nobody knows what the log lacks, and all domains count.
    """
    if flavor == "mysql":
        return replicated_position(connection, flavor)
    [(logged, applied, state, domain, logs_updates)] = read_rows(
        connection,
        "SELECT @@global.gtid_binlog_pos, @@global.gtid_slave_pos, @@global.gtid_binlog_state,"
        " @@global.gtid_domain_id, @@global.log_slave_updates",
    )
    position, replicated = parse_position(flavor, str(logged)), parse_position(flavor, str(applied))
    in_log = {str(domain), *(str(gtid.domain) for gtid in parse_gtids(str(state)))}
    return position.union_all(
        part for name, part in replicated.by_source().items() if name in in_log or not int(logs_updates)
    )


def replicated_position(connection: Connection, flavor: str) -> Position:
    """Everything that this server has executed or was provisioned with, whether or not its log has it."""
    if flavor == "mysql":
        [(text,)] = read_rows(connection, "SELECT @@global.gtid_executed")
        return parse_position(flavor, str(text))
    [(logged, applied)] = read_rows(connection, "SELECT @@global.gtid_binlog_pos, @@global.gtid_slave_pos")
    return parse_position(flavor, str(logged)).union(parse_position(flavor, str(applied)))


def server_identity(connection: Connection, flavor: str) -> str:
    """The name by which a server is known again, also after a restart and under another address. MySQL: its
    server_uuid. MariaDB: server id, host and port, since a server that replaces another one may have its server id;
    and the uid that it makes of its machine, if any. Errors come out as they are."""
    if flavor == "mysql":  # also behind a vtgate
        [(identity,)] = read_rows(connection, "SELECT @@global.server_uuid")
        return identity_of(flavor, {"server_uuid": str(identity)})
    return identity_of(flavor, read_variables(connection, IDENTITY[flavor]))


def identity_of(flavor: str, variables: Mapping[str, str]) -> str:
    """`server_identity` of a server with these global variables, "" if it does not report it."""
    found = " ".join(filter(None, (variables.get(name) for name in IDENTITY[flavor])))
    return found.lower() if flavor == "mysql" else found


def quote_name(name: str) -> str:
    """A table or column as it stands in a statement that takes parameters."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def order_rows(order: Iterable[tuple[str, bool]], limit: int) -> str:
    """The end of a statement that reads a list: its first rows by (column, whether its highest value comes first)."""
    parts = [f"{quote_name(name)}{' DESC' if is_descending else ''}" for name, is_descending in order]
    return f" ORDER BY {', '.join(parts)} LIMIT {limit}"


def match_keys(columns: Sequence[str], count: int) -> str:
    """The condition of a statement for ``count`` keys of these columns; its parameters are their values, key by key.
    It has no row constructors. MariaDB converts the text in those to the character set of another column, and then
    does not find the row."""
    names = [quote_name(column) for column in columns]
    if len(names) == 1 and count > 1:
        return f"{names[0]} IN ({', '.join(['%s'] * count)})"
    return " OR ".join([f"({' AND '.join(f'{name} = %s' for name in names)})"] * count)
