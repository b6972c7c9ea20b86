"""The catalogue of the rules: what `invalidator check` can find, how bad it is, and what puts it right.

docs/check.md is made from it. The modules beside this one look for it, one for each kind of part.
"""

from __future__ import annotations

from enum import Enum, unique
from functools import partial
from typing import Final, Literal

from freshness.database.cluster import LOG_REMEDY, REMEDY

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""An error keeps `run` from starting, loses an invalidation or lets nothing be stored. A warning costs hits, or costs
them in a failure. A note repeats a caveat about this set-up, or names what could not be asked."""

CAVEAT: Final = "caveats"
"""The code of a finding that is not a failure of the catalogue: see docs/caveats.md."""


def _entry(severity: Severity, code: str, title: str, remedy: str) -> tuple[Severity, str, str, str]:
    return severity, code, title, remedy


_error, _warning, _note = (partial(_entry, severity) for severity in SEVERITIES)


@unique
class Rule(Enum):
    """``code``: the F-number of the failure that it leads to, or `CAVEAT`. ``remedy``: hint of a finding that has no
    better one."""

    def __init__(self, severity: Severity, code: str, title: str, remedy: str) -> None:
        self.severity = severity
        self.code = code
        self.title = title
        self.remedy = remedy

    @property
    def slug(self) -> str:
        """The name in what is printed, in JSON and in the documentation."""
        return self.name.lower().replace("_", "-")

    @property
    def is_safe(self) -> bool:
        """Whether `check --fix` mends it: that adds to what a server reports, and can neither break a replication nor
        lose a row."""
        return self in (Rule.ROW_METADATA, Rule.HEARTBEAT_TABLE)

    # -- what cannot be looked at ----------------------------------------------------------------------

    REFUSED = _error(
        "F115",
        "a server, a node, the schema, a file or a package refuses what `run` needs of it",
        "follow the message",
    )
    NODE_DOWN = _warning(
        "F115", "a cache node does not answer: its reads go to the database", "see that it runs and is reachable"
    )

    NODES_FROM = _warning(
        CAVEAT,
        "cache.nodes_from names other nodes than cache.nodes, or cannot be read",
        "`invalidator nodes discover`",
    )

    # -- the server whose log is read --------------------------------------------------------------------

    FLAVOR = _error("F27", "the server is of another flavor than its keyspace says", "set flavor in the keyspace")
    OLD_SERVER = _error("F27", "the server's version cannot log the names of columns", "upgrade it")
    SEVERAL_WRITERS = _error(
        CAVEAT,
        "the servers of a cluster all take writes (Group Replication with several primaries, Galera that is not set"
        " up as docs/topology.md has it): entries would come late, and reads with at_least fail",
        REMEDY,
    )
    LOG_IN_ENGINE = _error(
        CAVEAT,
        "binlog_storage_engine (MariaDB 12.3) is set: InnoDB holds the log, without two-phase commit, so commits may"
        " show in another order",
        LOG_REMEDY,
    )
    UNTESTED = _note(CAVEAT, "the tests ran on other versions of this server", "try it before you rely on it")
    LOG_OFF = _error("F25", "log_bin is OFF: there is no stream of changes", "start the server with --log-bin")
    LOG_FORMAT = _error(
        "F26",
        "binlog_format is not ROW: the log has statements in place of rows",
        "set it to ROW, then reconnect all sessions",
    )
    ROW_IMAGE = _error(
        "F35",
        "binlog_row_image is not FULL: the log lacks columns, so a previous key is not known",
        "set it to FULL, then reconnect all sessions",
    )
    ROW_METADATA = _error(
        "F27",
        "binlog_row_metadata is not FULL: the log lacks the names of columns",
        "set it to FULL; `check --fix` does",
    )
    STRICT_MODE = _error("F59", "gtid_strict_mode of MariaDB is OFF: its numbers do not order", "set it to ON")
    GTID_MODE = _error("F29", "gtid_mode of MySQL is not ON", "set gtid_mode=ON and enforce_gtid_consistency=ON")
    COMPRESSION = _error(
        "F27",
        "MySQL compresses transactions in its log, and the package zstandard is not installed",
        "install the extra compression, or set binlog_transaction_compression = OFF",
    )
    PARTIAL_JSON = _warning(
        "F27",
        "binlog_row_value_options is set: changes of JSON columns arrive in part, and raise tables",
        "set it to ''",
    )
    SERVER_ID = _error(
        "F115",
        "server_id is 0: MySQL gives its binary log to nobody",
        "set it to a number that no other server has, also in its configuration file",
    )
    SYNC_BINLOG = _warning(
        "F55",
        "sync_binlog is not 1: a crash of the machine can take back what was streamed",
        "set it to 1, or raise the epoch after such a crash",
    )
    FLUSH_LOG = _warning(
        "F55",
        "innodb_flush_log_at_trx_commit is not 1: a crash of the machine can take back what was streamed",
        "set it to 1, or raise the epoch after such a crash",
    )
    INIT_CONNECT = _error(
        "F25",
        "init_connect sets sql_log_bin or binlog_format: sessions write past the log, or statements into it",
        "take that out of init_connect, and reconnect all sessions",
    )
    TEMPORAL_FORMAT = _warning(
        CAVEAT,
        "mysql56_temporal_format of MariaDB is OFF: each change of a new table with temporal columns raises it",
        "set it to ON, then ALTER TABLE … FORCE such tables",
    )
    CHECKSUM = _warning(
        "F27", "binlog_checksum is NONE: damage to the log goes unnoticed on its way", "set it to CRC32"
    )
    PRIMARY_READ_ONLY = _warning(
        "F115",
        "the primary is read_only: the configuration may name a replica as the primary",
        "name the true primary, or set read_only = OFF",
    )
    TOPOLOGY = _error(
        "F102",
        "a later topology is in force on the primary: heartbeats of this one are refused",
        "load the present freshness.toml; a previous topology is never served again",
    )
    HEARTBEAT_TABLE = _note(
        CAVEAT,
        "the heartbeat table is not there yet: no reader gets a token, and nothing is stored until it is",
        "start `run`, or `check --fix`, which create it",
    )
    LOSSLESS = _warning(
        "F101",
        "lossless_failover is stated, and the primary shows nothing that makes a failover lossless",
        "set semi-synchronous replication up with AFTER_SYNC, use Group Replication with several members, or leave"
        " lossless_failover out",
    )
    UPDATES_NOT_LOGGED = _error(
        "F111",
        "the primary replicates from another server and does not log that: such changes are never invalidated",
        "start it with --log-slave-updates (MySQL: --log-replica-updates), or end that replication",
    )
    LOG_FILTER = _error(
        "F112",
        "the primary's log leaves out databases: any statement can be missing",
        "start it without binlog-do-db and binlog-ignore-db; filter on the replicas (replicate-*) instead",
    )
    RETENTION = _warning(
        "F15",
        "binary logs are kept for less than three days: after a longer outage the cache starts empty",
        "set binlog_expire_logs_seconds to 259200 or more",
    )
    RIGHT = _error("F25", "the account of the primary lacks a right that following the log needs", "grant it")
    CASCADE = _warning(
        "F23",
        "a foreign key changes rows of a cached table without logging it, which costs hits and loses nothing",
        "replace ON DELETE/UPDATE CASCADE and SET NULL by statements where it happens often",
    )
    VERSIONED_BY_TRANSACTION = _warning(
        "F26",
        "a table is system-versioned by transaction id: MariaDB logs its changes as statements, and each write raises"
        " all tables",
        "let its period be of two TIMESTAMP(6) columns",
    )
    ENGINE = _error(
        "F25",
        "a cached table is of an engine without transactions: the server empties or repairs it when it starts, and"
        " logs that later or never; a value may be half old and half new",
        "ALTER TABLE … ENGINE = InnoDB",
    )
    NOT_DECODED = _error(
        CAVEAT,
        "a cached row has a column whose type the driver does not decode: each read of the row raises an error",
        "make the column INVISIBLE, or keep it in a table of its own",
    )
    NO_INDEX = _warning(
        CAVEAT, "no index begins with the key columns of an object: each miss reads the whole table", "add an index"
    )
    CONNECTIONS = _warning(
        CAVEAT,
        "one process of an application may open more connections than a database server takes",
        "raise max_connections, or lower cache.connections_max",
    )
    CLOCK = _warning(
        "F105",
        "the clock of a server or node differs from this machine's by more than cache.clock_skew_seconds",
        "set the clocks by NTP",
    )
    SERVICE = _note(
        CAVEAT, "the server is one of a managed service, where settings are made in another way", "see what it means"
    )

    # -- Vitess ------------------------------------------------------------------------------------------

    TABLET_CASCADE = _error(
        "F23",
        "a foreign key changes rows of a cached table in the MySQL of a tablet, where no log has it",
        "replace ON DELETE/UPDATE CASCADE and SET NULL by statements, or leave the table out",
    )

    # -- the servers that applications read ------------------------------------------------------------

    TABLE_UNREADABLE = _error(
        "F115",
        "the account of a server that applications read may not read a cached table",
        "grant the account SELECT on it",
    )
    PAST = _error(
        CAVEAT,
        "system_versioning_asof of MariaDB is set: sessions read system-versioned tables as they were then, so the"
        " cache refuses every session of the server",
        "set it to DEFAULT",
    )
    REPLICA_FILTER = _error(
        "F25",
        "a replica leaves out a part of what it replicates, and its position does not show it: old rows are stored",
        "do not name it in the configuration, or replicate everything to it",
    )
    REPLICA_SKIPS = _error(
        "F25",
        "a replica passes over errors of its replication, so its rows are not the primary's: those are stored",
        "replicate without skip_errors and with exec_mode STRICT, and build the replica anew",
    )
    ERRANT = _warning(
        "F53",
        "a replica has executed transactions that its primary has not: rows that they changed are stored as they are",
        "build the replica anew; if nothing cached was changed, commit empty transactions of these GTIDs on the"
        " primary",
    )
    REPLICA_WRITABLE = _warning(
        "F53", "a replica is not read_only: a write to it is an errant transaction", "set read_only = ON"
    )
    ADOPTION_BLOCKED = _error(
        "F28",
        "adopt_promotions is on, and several servers are writable: the invalidator follows nobody",
        "set read_only on all but the primary",
    )
    NOT_PROMOTABLE = _warning(
        "F28",
        "adopt_promotions is on, and a replica could not be followed as the primary",
        "set it up as the primary is",
    )
    LOG_NOT_READ = _warning(
        "F92",
        "the log of a replica is to be read, and it would lack changes or bring them in another order",
        "mend it, or read the log of the primary (stream.replica_choice)",
    )
    NOT_REPLICATING = _warning(
        "F16",
        "a replica follows nobody, or its replication is stopped: misses that read it are old, and nothing is stored",
        "start its replication, or take it out of the configuration",
    )
    DELAYED = _warning(
        "F16",
        "a replica is set up to be late: misses of rows that have changed since then read the primary",
        "set the delay to 0, or take the replica out of the configuration",
    )
    LAGS = _warning(
        "F16",
        "a replica is behind by more than cache.max_staleness_seconds",
        "find out why it is slow: misses of changed rows read the primary, up to cache.primary_reads_per_second",
    )
    NO_HEARTBEATS = _warning(
        "F113",
        "a server that applications read has not the heartbeats of its primary: no reader gets a token there",
        "replicate the table freshness_heartbeat to it",
    )
    AURORA_READER = _warning(
        "F113",
        "a replica is a reader of Amazon Aurora, which is said not to move gtid_executed: nothing is stored from it",
        "name no reader of Aurora: misses then read the writer",
    )
    SERVER_ID_CLASH = _error(
        "F107",
        "two servers have one server id: replication passes changes over, and GTIDs of two are alike",
        "give each server an id of its own",
    )
    SAME_SERVER = _warning(CAVEAT, "two addresses of the configuration lead to one server", "name each server once")
    PRIMARY_SPREAD = _error(
        CAVEAT,
        "a proxy spreads connections to the primary over several servers: heartbeats go to another one than the log"
        " comes from, and nothing is stored",
        "let its address lead to the primary alone",
    )
    SEVERAL_ADDRESSES = _warning(
        CAVEAT,
        "each connection to a node or a database server may reach another one: its name has several addresses, or a"
        " proxy spreads them",
        "give each server a name of its own, and name each",
    )
    HIDDEN = _note(
        CAVEAT,
        "the account of a replica may not see its replication: nobody looked for filters, lag, errant transactions",
        "grant it REPLICATION CLIENT (MariaDB: BINLOG MONITOR and SLAVE MONITOR), in a group also SELECT ON"
        " performance_schema.*",
    )
    ZONE = _note(
        CAVEAT,
        "no replica is in the zone of cache.zone: all are alike to this application",
        "correct cache.zone, or zone= in the URLs of the replicas",
    )
    NEVER_CONTAINED = _warning(
        "F113",
        "a server shows nothing of a source or domain that the primary has executed: nothing is stored from it",
        "replicate that to it, or take it out of the primary's log",
    )

    # -- cache nodes -------------------------------------------------------------------------------------

    TWO_NAMES = _error(
        "F94",
        "two names are one cache node: only one of them is trusted, and the keys of the other are never stored",
        "name each node once in cache.nodes",
    )
    NODE_FULL = _warning(
        "F115", "a cache node does not store an item", "give it more memory, or a user that may write"
    )
    OPEN_FILES = _warning(
        CAVEAT,
        "an application may open more connections than this machine allows a process files",
        "raise the limit (ulimit -n) where the application runs, or lower cache.connections_max",
    )
    RING = _error(
        "F10",
        "an invalidator with other nodes in its file keeps the record of a node: this file's readers neither hit nor"
        " fill there",
        "give all processes one file, and stop the invalidators that have another",
    )
    PRIMARY_CHANGED = _warning(
        "F101",
        "a node record follows a primary with another identity than the configured one: the cache starts empty,"
        " unless the servers show or `lossless_failover` states that nothing is lost",
        "if it is the same server, give it the previous server_id, host name and port; after a failover see"
        " docs/operations.md#failover-of-the-primary",
    )
    REDIS_REPLICA = _error("F115", "a Redis node is a replica, which takes no writes", "name its primary")
    REDIS_CLUSTER = _error(
        "F115",
        "a Redis node is part of a cluster, which refuses the keys of other members",
        "use servers of their own: the cache places keys itself",
    )
    NODE_RIGHT = _error(
        "F115",
        "a Redis node refuses the login, or its user lacks a right: nothing is stored there",
        "correct the user and the password; grant the right with ACL SETUSER",
    )
    NO_EVICTION = _warning(
        "F93",
        "a cache node may not evict: once it is full, nothing is stored",
        "start memcached without -M; set maxmemory-policy of Redis to allkeys-lru",
    )
    SMALL_ITEMS = _warning(
        CAVEAT,
        "a cache node takes smaller items than the parts of large values: those are read from the database",
        "raise -I of memcached, or lower cache.part_bytes",
    )
    SMALL_NODE = _warning(
        "F5",
        "the stripes need more than half of a node's memory, so they are evicted, and fills are refused",
        "give it more memory, or lower cache.stripes",
    )
    NODE_CONNECTIONS = _warning(
        CAVEAT,
        "a cache node takes too few connections for the processes that use it",
        "raise -c of memcached, maxclients of Redis",
    )
    IDLE_TIMEOUT = _warning(
        CAVEAT,
        "a cache node ends connections that are idle: the next read on each goes to the database",
        "start memcached without -o idle_timeout; set timeout of Redis to 0",
    )
    NO_MEMORY_BOUND = _warning(
        CAVEAT,
        "maxmemory of a Redis node is 0: it grows until the machine has no memory",
        "CONFIG SET maxmemory, and maxmemory-policy allkeys-lru, also in its configuration file",
    )
    EVICTIONS = _note(
        CAVEAT,
        "a cache node evicts: nothing is wrong, and more memory would give more hits",
        "give it more memory if too few reads are hits",
    )
    PERSISTENT = _note(
        "F100",
        "a Redis node keeps its data on disk: what comes back is not trusted, so it only costs",
        "CONFIG SET save '' and appendonly no",
    )
    CONFIG_HIDDEN = _note(
        CAVEAT,
        "a Redis node does not tell its configuration, as in ElastiCache and Memorystore",
        "see that its time-out for idle connections is 0",
    )
    OTHER_CACHE = _note(
        CAVEAT,
        "a Redis node is Dragonfly or KeyDB, with which the cache was not tested",
        "test it, or use Redis or Valkey",
    )
