"""The catalogue of the rules: what `invalidator check` can find, how bad it is, and what puts it right.

docs/check.md is made from it. The modules beside this one look for it, one for each kind of part.
"""

from __future__ import annotations

from enum import Enum, unique
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""An error keeps `run` from starting, loses an invalidation or lets nothing be stored. A warning costs hits, or costs
them in a failure. A note tells what the caveats say of this set-up, or what could not be asked."""

CAVEAT: Final = "caveats"
"""The code of a finding that is no failure of the catalogue: see docs/caveats.md."""


@unique
class Rule(Enum):
    """``code``: the F-number of the failure that it leads to, or `CAVEAT`. ``remedy``: where the finding says nothing
    better, its hint."""

    def __init__(self, severity: Severity, code: str, title: str, remedy: str) -> None:
        self.severity = severity
        self.code = code
        self.title = title
        self.remedy = remedy

    @property
    def slug(self) -> str:
        """The name in what is printed, in JSON and in the documentation."""
        return self.name.lower().replace("_", "-")

    # -- what cannot be looked at ----------------------------------------------------------------------

    REFUSED = (
        "error",
        "F115",
        "a server, a node, the schema, a file or a package refuses what `run` needs of it",
        "follow the message",
    )
    NODE_DOWN = (
        "warning",
        "F115",
        "a cache node does not answer: its reads go to the database",
        "see that it runs and is reachable",
    )

    # -- the server whose log is read --------------------------------------------------------------------

    FLAVOR = (
        "error",
        "F27",
        "the server is of another flavor than its keyspace says",
        "set flavor in the keyspace",
    )
    OLD_SERVER = ("error", "F27", "the server's version cannot log the names of columns", "upgrade it")
    LOG_OFF = (
        "error",
        "F25",
        "log_bin is OFF: there is no stream of changes",
        "start the server with --log-bin",
    )
    LOG_FORMAT = (
        "error",
        "F26",
        "binlog_format is not ROW: the log has statements in place of rows",
        "set it to ROW, then reconnect all sessions",
    )
    ROW_IMAGE = (
        "error",
        "F35",
        "binlog_row_image is not FULL: the log lacks columns, so a former key is not known",
        "set it to FULL, then reconnect all sessions",
    )
    ROW_METADATA = (
        "error",
        "F27",
        "binlog_row_metadata is not FULL: the log lacks the names of columns",
        "set it to FULL; `check --fix` does",
    )
    STRICT_MODE = (
        "error",
        "F59",
        "gtid_strict_mode of MariaDB is OFF: its numbers do not order",
        "set it to ON",
    )
    GTID_MODE = (
        "error",
        "F29",
        "gtid_mode of MySQL is not ON",
        "set gtid_mode=ON and enforce_gtid_consistency=ON",
    )
    COMPRESSION = (
        "error",
        "F27",
        "MySQL compresses transactions in its log, and the package zstandard is not installed",
        "install the extra compression, or set binlog_transaction_compression = OFF",
    )
    PARTIAL_JSON = (
        "warning",
        "F27",
        "binlog_row_value_options is set: changes of JSON columns arrive in part, and raise tables",
        "set it to ''",
    )
    SERVER_ID = (
        "error",
        "F115",
        "server_id is 0: MySQL gives its binary log to nobody",
        "set it to a number that no other server has, also in its configuration file",
    )
    SYNC_BINLOG = (
        "warning",
        "F55",
        "sync_binlog is not 1: a crash of the machine can take back what was streamed",
        "set it to 1, or raise the epoch after such a crash",
    )
    UPDATES_NOT_LOGGED = (
        "error",
        "F111",
        "the primary replicates from another server and does not log that: such changes are never invalidated",
        "start it with --log-slave-updates (MySQL: --log-replica-updates), or end that replication",
    )
    LOG_FILTER = (
        "error",
        "F112",
        "the primary's log leaves out databases: any statement can be missing",
        "start it without binlog-do-db and binlog-ignore-db; filter on the replicas (replicate-*) instead",
    )
    RETENTION = (
        "warning",
        "F15",
        "binary logs are kept for less than three days: after a longer outage the cache starts empty",
        "set binlog_expire_logs_seconds to 259200 or more",
    )
    RIGHT = (
        "error",
        "F25",
        "the account of the primary lacks a right that following the log needs",
        "grant it",
    )
    CASCADE = (
        "warning",
        "F23",
        "a foreign key changes rows of a cached table without logging it, which costs hits and loses nothing",
        "replace ON DELETE/UPDATE CASCADE and SET NULL by statements where it happens often",
    )
    SERVICE = (
        "note",
        CAVEAT,
        "the server is one of a managed service, where settings are made in another way",
        "see what it means",
    )

    # -- Vitess ------------------------------------------------------------------------------------------

    TABLET = (
        "error",
        "F25",
        "a primary tablet does not log what VStream needs",
        "set log_bin=ON, binlog_row_image=FULL and gtid_mode=ON on all tablets",
    )
    TABLET_CASCADE = (
        "error",
        "F23",
        "a foreign key changes rows of a cached table in the MySQL of a tablet, where no log has it",
        "replace ON DELETE/UPDATE CASCADE and SET NULL by statements, or leave the table out",
    )

    # -- the servers that applications read ------------------------------------------------------------

    TABLE_UNREADABLE = (
        "error",
        "F115",
        "the account of a server that applications read may not read a cached table",
        "grant the account SELECT on it",
    )
    REPLICA_FILTER = (
        "error",
        "F25",
        "a replica leaves out a part of what it replicates, and its position does not show it: old rows are stored",
        "do not name it in the configuration, or replicate everything to it",
    )
    NEVER_CONTAINED = (
        "warning",
        "F113",
        "a server shows nothing of a source or domain that the primary has executed: nothing is stored from it",
        "replicate that to it, or take it out of the primary's log",
    )

    # -- cache nodes -------------------------------------------------------------------------------------

    TWO_NAMES = (
        "error",
        "F94",
        "two names are one cache node: only one of them is trusted, and the keys of the other are never stored",
        "name each node once in cache.nodes",
    )
    NODE_FULL = (
        "warning",
        "F115",
        "a cache node does not store an item",
        "give it more memory, or a user that may write",
    )
