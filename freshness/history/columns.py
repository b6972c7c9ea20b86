"""The columns of recorded history: row changes of the databases, and actions on the cache (docs/spark.md).

Two kinds of Parquet file are written while the system runs and read by the Spark jobs. Their columns are defined here
and nowhere else; ``invalidator.archive.writer`` and the recorders make Arrow schemas of them, ``spark.batch`` makes
Spark's. No I/O and no third-party types here.

Times are microseconds since 1970 in UTC. Positions are texts as `freshness.position` prints them. Times are for
display and lag; order comes from ``ordinal`` and positions (F3, F4).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

CHANGES_VERSION: Final = 1
ACTIONS_VERSION: Final = 1
VERSION_KEY: Final = "freshness.version"
"""The key in a Parquet file's metadata under which its version stands; `KIND_KEY` says "changes" or "actions"."""
KIND_KEY: Final = "freshness.kind"

ColumnType: TypeAlias = Literal["string", "binary", "int64", "int32", "bool", "list<binary>", "list<string>"]


class Column(NamedTuple):
    """One column. Not nullable unless it says so."""

    name: str
    type: ColumnType
    nullable: bool
    meaning: str


CHANGES: Final = (
    Column("keyspace", "string", False, "Name of the keyspace."),
    Column("shard", "string", False, "Name of the shard, its key range."),
    Column("lineage", "string", False, "Replication topology that the position belongs to."),
    Column("epoch", "int64", False, "Epoch of the lineage's history."),
    Column(
        "ordinal", "int64", False, "Place of the transaction in this archive of the lineage, from 1, without gaps."
    ),
    Column("row", "int32", False, "Place of the change in its transaction, from 0; -1 for one without rows."),
    Column("rows", "int32", False, "Changes in the whole transaction."),
    Column("gtid", "string", False, "The transaction's own position."),
    Column("timestamp_us", "int64", False, "When it was committed, as the log says."),
    Column("received_us", "int64", False, "When the archive's writer got it, by its own clock."),
    Column("op", "string", False, "insert, update, delete, refresh, raise (whole table), heartbeat or empty."),
    Column("table", "string", True, "Table of the change; null for heartbeat and empty."),
    Column("items", "list<binary>", False, "Cache items that the change concerns."),
    Column(
        "row_items",
        "list<binary>",
        False,
        "Those of the items whose whole value is this row: the digests are theirs. Only of objects by the primary "
        "key, without the key before a change.",
    ),
    Column("key", "string", True, "The row's primary key as JSON, if the table has one."),
    Column("before", "string", True, "The row before as JSON."),
    Column("after", "string", True, "The row after as JSON."),
    Column("before_digest", "binary", True, "Digest of the row before, see `freshness.values.codec`."),
    Column("after_digest", "binary", True, "Digest of the row after."),
    Column("detail", "string", True, "Why a table is raised; a heartbeat as JSON."),
)
"""One row for each row change of the update stream; a transaction without any has one row with op ``empty``."""

ACTIONS: Final = (
    Column(
        "client", "string", False, "Who did it: HOST/PROCESS/VERSION; what follows the last / is the program version."
    ),
    Column("sequence", "int64", False, "Counts a client's actions, from 1: a gap is lost history."),
    Column("action", "string", False, "fill, hit, refusal, invalidation, publish, dropped."),
    Column(
        "outcome",
        "string",
        False,
        "Name of the `ReadOutcome`; of an invalidation: stored; of a publish: stored, or settling if the record no "
        "longer names a list of nodes or an object that readers may still know. NODE_DOWN for a fill that was sent "
        "and not answered: it may be stored.",
    ),
    Column("object", "string", True, "Object name; null for an invalidation."),
    Column("tables", "list<string>", False, "Tables that the object depends on; empty for an invalidation."),
    Column("item", "binary", True, "Cache item; null for publish and dropped."),
    Column("item_hash", "int64", True, "First 8 bytes of blake2b(item), signed: the sampling goes by it."),
    Column("node", "string", True, "Cache node."),
    Column("lineages", "list<string>", False, "Lineages of the positions, in their order."),
    Column("epochs", "list<string>", False, "Epoch of each, decimal."),
    Column("lives", "list<binary>", False, "Life of the node for each lineage; empty where unknown."),
    Column("positions", "list<string>", False, "Position of each: token of a fill, stamp of a hit, event, progress."),
    Column(
        "floors",
        "list<string>",
        False,
        "Floor of the node for each lineage at a fill; of a publish with the record's starts; else empty.",
    ),
    Column(
        "digest",
        "binary",
        True,
        "Digest of the value filled or served; null for none, for no such row, and for a "
        "compressed value where zstandard is not installed.",
    ),
    Column("is_absent", "bool", False, "The value is that there is no such row."),
    Column("version", "int64", True, "CAS version that was stored, of a hit: that was read, where the node says."),
    Column(
        "observed",
        "int64",
        True,
        "Of a fill: CAS version of the stub that it replaced; null for a blind store. For a hit it is the client's "
        "own number of the values of one moment that it belongs to; null if it was read alone.",
    ),
    Column("begin_us", "int64", False, "Wall clock before the action was sent."),
    Column("end_us", "int64", False, "Wall clock after it was acknowledged."),
    Column("count", "int64", False, "Actions that this row stands for; above 1 only for dropped."),
)
"""Actions of clients and invalidators on the cache. Sampled by ``item_hash``, so that a sampled item is complete."""
