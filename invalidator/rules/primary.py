"""Whether a database server is set up so that no invalidation is lost, found out before the stream is opened.

It only asks. A session that changes its own format or compression later is beyond it: there the stream itself stops,
or raises tables. Each finding carries the F-number of what it prevents and the remedy.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from freshness.config.keyspace import Shard
from freshness.config.server import ServerAddress
from freshness.database.cluster import find_cluster, find_log_in_engine, is_galera
from freshness.database.connection import Connection, read_rows
from freshness.database.foreignkey import EFFECTIVE, find_cascades, name_parents
from invalidator.replica.server import logs_updates
from invalidator.rules.finding import CheckFinding, by_severity
from invalidator.rules.rule import Rule
from invalidator.rules.server import ServerFacts
from invalidator.rules.service import MEANINGS

OLDEST_MARIADB: Final = (10, 5)
OLDEST_MYSQL: Final = (8, 0, 14)
"""The first versions with binlog_row_metadata."""

TESTED: Final = {"mariadb": ((10, 11), (11, 4), (11, 8)), "mysql": ((8, 0, 15), (9, 7))}
"""The beginnings of the versions that the tests passed on, as docs/tested-on.json has them."""

DIFFERENCES: Final = (
    ("mariadb", (12,), "a log in InnoDB is refused"),
    ("mysql", (8, 0), "before 8.0.22 replication has other words, before 8.0.23 the signs behind a YEAR are unsure"),
    ("mysql", (8, 4), "GTIDs may have tags, as in 9.7, and mysql_native_password is off by default"),
)
"""Facts about versions that nobody tested: flavor, beginning of the version, words."""

LOGS_CASCADES_FROM: Final = (9, 6)
RETENTION_SECONDS_MIN: Final = 3 * 86_400

_ENGINES: Final = """SELECT table_name, engine FROM information_schema.tables
  WHERE table_schema = %s AND engine IS NOT NULL ORDER BY table_name"""

TRANSACTIONAL: Final = ("innodb", "rocksdb", "ndbcluster", "tokudb")
"""Engines whose tables have the same rows after a start of the server as before it, but for what is logged."""


def check_database(
    connection: Connection, address: ServerAddress, flavor: str, tables: Collection[str] = (), *, adopts: bool = True
) -> list[CheckFinding]:
    """All findings on the server that is streamed from, the errors first. ``adopts``: `Shard.adopt_promotions`.

    Raises what pymysql raises.
    """
    server = ServerFacts.look(connection, address, flavor)
    found = check_server(server)
    if is_galera(server.variables) and not adopts:
        told = "a node of a Galera cluster needs adopt_promotions, which notices a second writable one"
        found.insert(0, server.find(Rule.SEVERAL_WRITERS, told))
    if not any(each.rule in (Rule.FLAVOR, Rule.OLD_SERVER) for each in found):
        found += _check_cascades(server, connection, tables)
        found += _check_engines(server, connection, tables)
    return by_severity(found)


def check_server(server: ServerFacts) -> list[CheckFinding]:
    """The findings that the facts of the server that is streamed from show."""
    found = list(check_version(server))
    if found:
        return found
    return [
        *check_log(server),
        *_check_crashes(server),
        *_check_sessions(server),
        *_check_retention(server),
        *check_rights(server),
        *_check_changes_logged(server),
        *check_service(server),
        *check_tested(server),
    ]


def check_shard(
    connection: Connection, shard: Shard, flavor: str, tables: Collection[str] = ()
) -> list[CheckFinding]:
    """`check_database` of a shard's primary, also behind a vtgate, where ``connection`` leads to
    `Shard.writable` and not everything can be asked."""
    if shard.vtgate is None:
        return check_database(connection, shard.primary, flavor, tables, adopts=shard.adopt_promotions)
    names = ("version", "log_bin", "binlog_row_image", "gtid_mode")
    [values] = read_rows(connection, f"SELECT {', '.join(f'@@global.{name}' for name in names)}")
    variables = {name: {"0": "OFF", "1": "ON"}.get(str(v), str(v)) for name, v in zip(names, values, strict=True)}
    server = ServerFacts(shard.writable, flavor, variables)
    found = list(check_version(server)) or list(check_tablet(server))
    return found + [
        server.find(Rule.TABLET_CASCADE, f"a foreign key of {parent} changes {child} in MySQL, where no log has it")
        for child, parent in sorted({(str(row[0]), str(row[1])) for row in read_rows(connection, EFFECTIVE)})
        if child in set(tables)
    ]


def check_tested(server: ServerFacts) -> Iterator[CheckFinding]:
    """That nobody tested its version, and what is known of it."""
    tested = TESTED[server.flavor]
    if server.version and not any(map(server.is_version, tested)):
        known = [
            words for flavor, first, words in DIFFERENCES if flavor == server.flavor and server.is_version(first)
        ]
        names = ", ".join(".".join(map(str, each)) for each in tested)
        told = f"not tested on this version, {server['version']}: the tests ran on {names}"
        yield server.find(Rule.UNTESTED, "; ".join([told, *known]))


def check_service(server: ServerFacts) -> Iterator[CheckFinding]:
    """The meaning of it that the server belongs to a managed service."""
    if server.service:
        yield server.find(
            Rule.SERVICE, f"it belongs to {server.service}: {MEANINGS[server.service]}", "see docs/check.md"
        )


def check_tablet(server: ServerFacts) -> Iterator[CheckFinding]:
    """The few variables that a vtgate reports of the primary tablet."""
    for rule, name, wanted in (
        (Rule.LOG_OFF, "log_bin", "ON"),
        (Rule.ROW_IMAGE, "binlog_row_image", "FULL"),
        (Rule.GTID_MODE, "gtid_mode", "ON"),
    ):
        if server[name].upper() != wanted:
            yield server.find(
                rule, f"{name} is {server[name]} on the primary tablet", f"set {name} = {wanted} on all tablets"
            )


def check_version(server: ServerFacts) -> Iterator[CheckFinding]:
    is_mariadb = server.is_mariadb
    if is_mariadb != (server.flavor == "mariadb"):
        yield server.find(
            Rule.FLAVOR,
            f"this is {server['version']}, configured is flavor {server.flavor}",
            f'set flavor = "{"mariadb" if is_mariadb else "mysql"}" in the keyspace',
        )
        return
    oldest = OLDEST_MARIADB if is_mariadb else OLDEST_MYSQL
    if server.version < oldest:
        yield server.find(
            Rule.OLD_SERVER,
            f"version {server['version']} cannot log column names",
            f"upgrade to {'.'.join(map(str, oldest))} or later",
        )
    if found := find_cluster(server.variables):
        yield server.find(Rule.SEVERAL_WRITERS, found)
    if found := find_log_in_engine(server.variables):
        yield server.find(Rule.LOG_IN_ENGINE, found)


def check_log(server: ServerFacts) -> Iterator[CheckFinding]:
    if not server.is_on("log_bin"):
        yield server.find(Rule.LOG_OFF, "log_bin is OFF: there is no stream of changes")
        return
    for rule, name, wanted, but in (
        (Rule.LOG_FORMAT, "binlog_format", "ROW", "then reconnect all sessions"),
        (Rule.ROW_IMAGE, "binlog_row_image", "FULL", "then reconnect all sessions"),
        (Rule.ROW_METADATA, "binlog_row_metadata", "FULL", ""),
    ):
        # MySQL 9 knows no other format than ROW once the variable is gone.
        if name in server.variables and server[name].upper() != wanted:
            yield server.setting(rule, name, wanted, but=but)
    if server.flavor == "mariadb" and not server.is_on("gtid_strict_mode"):
        yield server.setting(Rule.STRICT_MODE, "gtid_strict_mode", "ON", "numbers do not order")
    if server.flavor == "mysql" and server["gtid_mode"].upper() != "ON":
        yield server.find(Rule.GTID_MODE, f"gtid_mode is {server['gtid_mode']}")
    if server.is_on("binlog_transaction_compression") and importlib.util.find_spec("zstandard") is None:
        yield server.find(
            Rule.COMPRESSION, "binlog_transaction_compression is ON, and the package zstandard is not installed"
        )
    if server["binlog_row_value_options"]:
        yield server.setting(
            Rule.PARTIAL_JSON, "binlog_row_value_options", "''", "changes of JSON columns arrive in part"
        )
    if server["server_id"] == "0":
        yield server.find(Rule.SERVER_ID, "server_id is 0: the server gives its binary log to nobody")


def _check_crashes(server: ServerFacts) -> Iterator[CheckFinding]:
    """Transactions that a crash of the machine takes back, after they were streamed."""
    for rule, name in ((Rule.SYNC_BINLOG, "sync_binlog"), (Rule.FLUSH_LOG, "innodb_flush_log_at_trx_commit")):
        if server.is_on("log_bin") and server[name] != "1":
            why = "a crash of the machine can take back what was streamed"
            yield server.setting(rule, name, "1", why, but="or raise the epoch after such a crash")


def _check_sessions(server: ServerFacts) -> Iterator[CheckFinding]:
    """Settings by which sessions write what the log does not have, or cannot tell."""
    for name in ("sql_log_bin", "binlog_format"):
        if name in server["init_connect"].lower():
            yield server.find(Rule.INIT_CONNECT, f"init_connect sets {name} in every session of an application")
    if server["mysql56_temporal_format"].upper() == "OFF":
        yield server.setting(
            Rule.TEMPORAL_FORMAT, "mysql56_temporal_format", "ON", but="then ALTER TABLE … FORCE such tables"
        )
    if server["binlog_checksum"].upper() == "NONE":
        yield server.setting(Rule.CHECKSUM, "binlog_checksum", "CRC32")
    if server.is_read_only:
        found = server.setting(Rule.PRIMARY_READ_ONLY, "read_only", "OFF", but="or name the true primary")
        if server["group_replication_group_name"]:
            told = "read_only is ON: it is not the primary of its group, or the group has none"
            found = server.find(Rule.PRIMARY_READ_ONLY, told, "name the group's primary, or start the group")
        elif is_galera(server.variables):  # whose nodes have it in their files
            found = replace(found, hint="SET GLOBAL read_only = OFF; or name the true primary")
        yield found


def _check_changes_logged(server: ServerFacts) -> Iterator[CheckFinding]:
    """Changes that reach the primary and not its log, while its heartbeats are in it."""
    if server.replication and not logs_updates(server.variables):
        yield server.find(
            Rule.UPDATES_NOT_LOGGED,
            "it replicates from another server and does not log what it replicates (log_slave_updates,"
            " log_replica_updates): such changes are never invalidated",
        )
    if server.log_filters:
        yield server.find(
            Rule.LOG_FILTER,
            f"its binary log leaves out databases ({', '.join(server.log_filters)}): a statement is judged by the"
            " default database of its session, so a TRUNCATE of any table can be missing",
        )


def _check_retention(server: ServerFacts) -> Iterator[CheckFinding]:
    if server.retention_hours is not None:
        hours = server.retention_hours
        kept = f"for {hours} h" if hours else "only until no replica needs them"
        if hours < RETENTION_SECONDS_MIN // 3600:
            statement = f"CALL mysql.rds_set_configuration('binlog retention hours', {RETENTION_SECONDS_MIN // 3600})"
            yield server.find(Rule.RETENTION, f"binary logs are kept {kept}", statement, statement)
        return
    text = server["binlog_expire_logs_seconds"]
    seconds = float(text) if text.replace(".", "", 1).isdigit() else 0.0
    if not seconds and server["expire_logs_days"]:
        seconds = float(server["expire_logs_days"]) * 86_400
    if 0 < seconds < RETENTION_SECONDS_MIN:
        mending = server.setting(
            Rule.RETENTION, "binlog_expire_logs_seconds", str(RETENTION_SECONDS_MIN), but="or more"
        )
        yield replace(mending, message=f"{server.where}: binary logs are kept for {seconds:.0f} s only")


def check_rights(server: ServerFacts) -> Iterator[CheckFinding]:
    """Whether its account may follow its log."""
    granted = " ".join(server.grants).upper()
    everywhere = " ".join(re.findall(r"GRANT (.*?) ON \*\.\*", granted))
    watching = " ".join(re.findall(r"GRANT (.*?) ON (?:\*|`PERFORMANCE_SCHEMA`)\.\*", granted))
    if "ALL PRIVILEGES" in everywhere:
        return
    needed: tuple[tuple[str, ...], ...] = (("REPLICATION SLAVE",), ("REPLICATION CLIENT", "BINLOG MONITOR"))
    if server.flavor == "mariadb":
        # To see whether a replica may only lag.
        needed += (("REPLICA MONITOR", "SLAVE MONITOR", "REPLICATION CLIENT", "SUPER"),)
    for names in needed:
        if not any(name in everywhere for name in names):
            yield server.find(
                Rule.RIGHT,
                f"account {server.address.user} lacks {names[0]}",
                f"GRANT {names[0]} ON *.* TO the account",
            )
    if server["group_replication_group_name"] and not re.search(r"\bSELECT\b|\bALL PRIVILEGES\b", watching):
        needed_here = "SELECT ON performance_schema.*"
        told = f"account {server.address.user} lacks {needed_here}, by which it would see the group"
        yield server.find(Rule.RIGHT, told, f"GRANT {needed_here} TO the account")


def _check_cascades(server: ServerFacts, connection: Connection, tables: Collection[str]) -> Iterator[CheckFinding]:
    if server.flavor == "mysql" and server.version >= LOGS_CASCADES_FROM:
        if not server.is_on("innodb_native_foreign_keys"):
            return
        remedy = "start the server with --innodb-native-foreign-keys=OFF, which logs it"
    else:
        remedy = "the server cannot log it (MySQL 9.6 can)"
    database = server.address.database
    for child, causes in sorted(find_cascades(connection, database, tables).items()):
        yield server.find(
            Rule.CASCADE,
            f"a foreign key changes {child} without logging it, when {name_parents(causes, database)} changes",
            f"{remedy}; each such change raises the table floor of {child}: costs hits, loses nothing",
        )


def _check_engines(server: ServerFacts, connection: Connection, tables: Collection[str]) -> Iterator[CheckFinding]:
    for table, engine in read_rows(connection, _ENGINES, (server.address.database,)):
        if table in tables and str(engine).lower() not in TRANSACTIONAL:
            statement = f"ALTER TABLE `{table}` ENGINE = InnoDB"
            yield server.find(Rule.ENGINE, f"table {table} is of engine {engine}", statement, statement)
