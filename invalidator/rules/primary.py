"""Whether a database server is set up so that no invalidation is lost, found out before the stream is opened.

It only asks. A session that changes its own format or compression later is beyond it: there the stream itself stops,
or raises tables. Each finding carries the F-number of what it prevents and the remedy.
Called by ``invalidator.process.checkup`` and before every start.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from typing import Final

from freshness.config.settings import ServerAddress, Shard
from freshness.database.connection import Connection, read_rows
from freshness.database.foreignkey import find_cascades, name_parents
from invalidator.replica.server import find_log_filters, is_replica, logs_updates
from invalidator.rules.finding import Finding
from invalidator.rules.server import Server

OLDEST_MARIADB: Final = (10, 5)
OLDEST_MYSQL: Final = (8, 0, 14)
"""The first versions with binlog_row_metadata."""

LOGS_CASCADES_FROM: Final = (9, 6)
RETENTION_SECONDS_MIN: Final = 3 * 86_400

_CASCADES: Final = """SELECT table_name, referenced_table_name FROM information_schema.referential_constraints
  WHERE delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
     OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT')"""


def check_database(
    connection: Connection, address: ServerAddress, flavor: str, tables: Iterable[str] = ()
) -> list[Finding]:
    """All findings on the server that is streamed from, the errors first. Raises what pymysql raises."""
    server = Server.look(connection, address, flavor)
    found = list(_check_version(server))
    if found:
        return found
    found += _check_log(server)
    found += _check_retention(server)
    missing = list(_check_privileges(server, connection))
    found += missing
    if not missing:  # else it does not answer
        found += _check_changes_logged(server, connection)
    found += _check_cascades(server, connection, tables)
    return sorted(found, key=lambda finding: finding.severity)


def check_shard(
    connection: Connection, shard: Shard, flavor: str, tables: Iterable[str] = ()
) -> list[Finding]:
    """`check_database` of a shard's primary, also behind a vtgate, where ``connection`` leads to
    `Shard.writable` and not everything can be asked."""
    if shard.vtgate is None:
        return check_database(connection, shard.primary, flavor, tables)
    asked = ("version", "log_bin", "binlog_row_image", "gtid_mode")
    [values] = read_rows(connection, f"SELECT {', '.join(f'@@global.{name}' for name in asked)}")
    variables = {
        name: {"0": "OFF", "1": "ON"}.get(str(v), str(v)) for name, v in zip(asked, values, strict=True)
    }
    server = Server(shard.writable, flavor, variables)
    found = list(_check_version(server)) or list(_check_tablet(server))
    return found + [
        server.error(
            "F23",
            f"a foreign key of {parent} changes {child} in MySQL, where no log has it",
            "replace ON DELETE/UPDATE CASCADE and SET NULL by statements, or leave the table out",
        )
        for child, parent in sorted({(str(row[0]), str(row[1])) for row in read_rows(connection, _CASCADES)})
        if child in set(tables)
    ]


def _check_tablet(server: Server) -> Iterator[Finding]:
    for name, wanted, code in (
        ("log_bin", "ON", "F25"),
        ("binlog_row_image", "FULL", "F35"),
        ("gtid_mode", "ON", "F29"),
    ):
        if server[name].upper() != wanted:
            yield server.error(
                code,
                f"{name} is {server[name]} on the primary tablet",
                f"set {name} = {wanted} on all tablets",
            )


def _check_version(server: Server) -> Iterator[Finding]:
    is_mariadb = "mariadb" in server["version"].lower()
    if is_mariadb != (server.flavor == "mariadb"):
        yield server.error(
            "F27",
            f"this is {server['version']}, configured is flavor {server.flavor}",
            f'set flavor = "{"mariadb" if is_mariadb else "mysql"}" in the keyspace',
        )
        return
    oldest = OLDEST_MARIADB if is_mariadb else OLDEST_MYSQL
    if server.version < oldest:
        yield server.error(
            "F27",
            f"version {server['version']} cannot log column names",
            f"upgrade to {'.'.join(map(str, oldest))} or later",
        )


def _check_log(server: Server) -> Iterator[Finding]:
    if not server.is_on("log_bin"):
        yield server.error(
            "F25", "log_bin is OFF: there is no stream of changes", "start the server with --log-bin"
        )
        return
    for name, wanted, code in (
        ("binlog_format", "ROW", "F26"),
        ("binlog_row_image", "FULL", "F35"),
        ("binlog_row_metadata", "FULL", "F27"),
    ):
        # MySQL 9 knows no other format than ROW once the variable is gone.
        if name in server.variables and server[name].upper() != wanted:
            yield server.error(
                code, f"{name} is {server[name]}", f"SET GLOBAL {name} = {wanted}, then reconnect all"
            )
    if server.flavor == "mariadb" and not server.is_on("gtid_strict_mode"):
        yield server.error(
            "F59", "gtid_strict_mode is OFF: numbers do not order", "SET GLOBAL gtid_strict_mode = ON"
        )
    if server.flavor == "mysql" and server["gtid_mode"].upper() != "ON":
        yield server.error(
            "F29", f"gtid_mode is {server['gtid_mode']}", "set gtid_mode=ON and enforce_gtid_consistency=ON"
        )
    if server.is_on("binlog_transaction_compression") and importlib.util.find_spec("zstandard") is None:
        yield server.error(
            "F27",
            "binlog_transaction_compression is ON, and the package zstandard is not installed",
            "install zstandard (extra compression), or SET GLOBAL binlog_transaction_compression = OFF",
        )
    if server["sync_binlog"] != "1":
        yield server.warning(
            "F55",
            f"sync_binlog is {server['sync_binlog']}: a crash of the machine can take back what was streamed",
            "SET GLOBAL sync_binlog = 1, or raise the epoch after such a crash",
        )
    if server["binlog_row_value_options"]:
        yield server.warning(
            "F27", "binlog_row_value_options is set: changes of JSON columns arrive in part", "set it to ''"
        )
    if server["server_id"] == "0":
        yield server.error(
            "F115",
            "server_id is 0: the server gives its binary log to nobody",
            "SET GLOBAL server_id to a number that no other server has, also in its configuration file",
        )


def _check_changes_logged(server: Server, connection: Connection) -> Iterator[Finding]:
    """Changes that reach the primary and not its log, while its heartbeats are in it."""
    if is_replica(connection, server.flavor) and not logs_updates(server.variables):
        yield server.error(
            "F111",
            "it replicates from another server and does not log what it replicates (log_slave_updates,"
            " log_replica_updates): such changes are never invalidated",
            "start it with --log-slave-updates (MySQL: --log-replica-updates), or end that replication",
        )
    filters = find_log_filters(connection)
    if filters:
        yield server.error(
            "F112",
            f"its binary log leaves out databases ({', '.join(filters)}): a statement is judged by the default"
            " database of its session, so a TRUNCATE of any table can be missing",
            "start it without binlog-do-db and binlog-ignore-db; filter on the replicas (replicate-*) instead",
        )


def _check_retention(server: Server) -> Iterator[Finding]:
    text = server["binlog_expire_logs_seconds"]
    seconds = float(text) if text.replace(".", "", 1).isdigit() else 0.0
    if not seconds and server["expire_logs_days"]:
        seconds = float(server["expire_logs_days"]) * 86_400
    if 0 < seconds < RETENTION_SECONDS_MIN:
        yield server.warning(
            "F15",
            f"binary logs are kept for {seconds:.0f} s only",
            f"SET GLOBAL binlog_expire_logs_seconds = {RETENTION_SECONDS_MIN} or more: after a longer outage the"
            " cache starts empty",
        )


def _check_privileges(server: Server, connection: Connection) -> Iterator[Finding]:
    granted = " ".join(str(row[0]).upper() for row in read_rows(connection, "SHOW GRANTS"))
    everywhere = " ".join(re.findall(r"GRANT (.*?) ON \*\.\*", granted))
    if "ALL PRIVILEGES" in everywhere:
        return
    needed: tuple[tuple[str, ...], ...] = (
        ("REPLICATION SLAVE",),
        ("REPLICATION CLIENT", "BINLOG MONITOR"),
    )
    if server.flavor == "mariadb":
        # To see whether a replica may only lag.
        needed += (("REPLICA MONITOR", "SLAVE MONITOR", "REPLICATION CLIENT", "SUPER"),)
    for names in needed:
        if not any(name in everywhere for name in names):
            yield server.error(
                "F25",
                f"account {server.address.user} lacks {names[0]}",
                f"GRANT {names[0]} ON *.* TO the account",
            )


def _check_cascades(server: Server, connection: Connection, tables: Iterable[str]) -> Iterator[Finding]:
    if server.flavor == "mysql" and server.version >= LOGS_CASCADES_FROM:
        if not server.is_on("innodb_native_foreign_keys"):
            return
        remedy = "start the server with --innodb-native-foreign-keys=OFF, which logs it"
    else:
        remedy = "the server cannot log it (MySQL 9.6 can)"
    database = server.address.database
    for child, causes in sorted(find_cascades(connection, database, tables).items()):
        yield server.warning(
            "F23",
            f"a foreign key changes {child} without logging it, when {name_parents(causes, database)} changes",
            f"{remedy}; each such change raises the table floor of {child}: costs hits, loses nothing",
        )
