"""Puts names and records to what the replay found, and finds what is missing in the evidence itself.

The replay speaks in hashes and references; here they become items, nodes, clients and the very records of the
history. The joins are done for findings alone, so a clean audit pays nothing. Called by the audit, after the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from freshness.errors import FormatError
from spark.audit import verdict
from spark.audit.actions import Stock
from spark.audit.archive import Archive, Damage
from spark.audit.checksum import PRIME, has_each_once
from spark.audit.finding import NO_ROW, Evidence, Reference
from spark.audit.row import NO_NUMBER
from spark.audit.timeline import NOTHING, Lineage, find_holes, holds_any
from spark.batch import Batches
from spark.schema import FINDING, VIOLATION

BROADCAST_MAX: Final = 100_000
"""Findings up to which they travel to the history, and not the history to them."""
HOLES_MAX: Final = 10_000
"""Numbers left out in one archive that are looked for in the positions of the history."""


class Who(NamedTuple):
    """Whom and what hits are counted by."""

    client: str
    object: str
    tables: tuple[str, ...]
    node: str
    lineages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """By their hashes: clients, nodes and lineages (``names``), and what a `who` stands for."""

    names: Mapping[int, str]
    whos: Mapping[int, Who]
    clients: Mapping[int, int]

    @classmethod
    def of(cls, archive: Archive, stock: Iterable[Stock], previous: Any | None) -> Names:
        """``previous``: the `State` that is continued."""
        before: Names = previous.names if previous is not None else cls({}, {}, {})
        names, whos, clients = dict(before.names), dict(before.whos), dict(before.clients)
        names.update((number, lineage.name) for number, lineage in archive.lineages.items())
        for each in stock:
            names[each.client_number], names[each.node_number] = each.client, each.node
            whos[each.who] = Who(each.client, each.object, each.tables, each.node, each.lineages)
            clients[each.who] = each.client_number
        return cls(names, whos, clients)

    def client_of(self, who: int) -> int:
        return self.clients.get(who, 0)


# -- what is missing -------------------------------------------------------------------------------------


class Recorded(NamedTuple):
    """``lost``: lineages of which actions are missing. ``sequences``: by client, the last number seen."""

    damages: list[Damage]
    lost: frozenset[int]
    sequences: dict[str, int]


def find_recorder_gaps(
    stock: Iterable[Stock], lineages: Mapping[str, Lineage], previous: Any | None
) -> Recorded:
    """Clients whose sequences have gaps, or that recorded that they dropped actions."""
    sequences: dict[str, int] = dict(previous.sequences) if previous is not None else {}
    by_client: dict[str, list[Stock]] = {}
    for each in stock:
        by_client.setdefault(each.client, []).append(each)
    damages, lost = [], set()
    for client, its in sorted(by_client.items()):
        first = sequences.get(client, min(each.first for each in its) - 1) + 1
        last = max(each.last for each in its)
        count = sum(each.actions for each in its)
        missing = last - first + 1 - count
        total, squares = (
            sum(sums) % PRIME for sums in zip(*((each.total, each.squares) for each in its), strict=True)
        )
        is_whole = has_each_once(first, last, count, total, squares)
        dropped = sum(each.lost for each in its)
        sequences[client] = max(last, sequences.get(client, 0))
        if is_whole and not dropped:
            continue
        mine = {lineages[name].number for each in its for name in each.lineages if name in lineages}
        lost |= mine or {lineage.number for lineage in lineages.values()}
        evidence: Evidence = (
            Reference("action", its[0].client_number, first),
            Reference("action", its[0].client_number, last),
        )
        begin_us = min(each.begin_us for each in its)
        told = f"{max(missing, dropped) if missing >= 0 else -missing}"
        if not missing and not is_whole:
            told = "some, with as many others twice,"
        source = f"{client}: {told} of {last - first + 1}"
        damages.append(Damage(verdict.RECORDER_GAP, "I8", client, 0, source, first, last, begin_us, evidence))
    return Recorded(damages, frozenset(lost), sequences)


def find_gtid_gaps(
    actions: DataFrame, archive: Archive, told: frozenset[tuple[int, str, int]]
) -> list[Damage]:
    """Numbers that the archive leaves out and that some server had executed: nothing was invalidated for
    those changes.

    Numbers that no position names were never executed (Group Replication hands out blocks). Raises `FormatError`
    for more holes than `HOLES_MAX`.
    """
    holes = [
        (number, lineage.flavor, lineage.name, source, first, last, ordinal)
        for number, lineage in archive.lineages.items()
        for source, first, last, ordinal in find_holes(
            [run for chains in lineage.chains.values() for chain in chains for run in chain.runs]
        )
        if (number, source, first) not in told
    ]
    if len(holes) > HOLES_MAX:
        raise FormatError(
            f"the archive leaves out the numbers of transactions in more than {HOLES_MAX:,} places",
            hint="audit a shorter span",
        )
    if not holes:
        return []
    names = {name for _, _, name, *_ in holes}

    def find(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            rows = [
                (at, row["client"], row["sequence"], row["begin_us"])
                for row in batch.to_pylist()
                for at, (_, flavor, name, source, first, last, _) in enumerate(holes)
                if name == row["name"] and holds_any(flavor, row["position"], source, first, last)
            ]
            columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else ([], [], [], [])
            arrays = [pyarrow.array(column, pyarrow.int64()) for column in columns]
            yield pyarrow.RecordBatch.from_arrays(arrays, ["at", "client", "sequence", "begin_us"])

    zipped = F.explode(F.arrays_zip(F.col("lineages").alias("name"), F.col("positions").alias("position")))
    positions = (
        actions.where(F.col("action").isin("fill", "publish"))
        .select(zipped.alias("at"), F.xxhash64("client").alias("client"), "sequence", "begin_us")
        .select("at.name", "at.position", "client", "sequence", "begin_us")
        .where(F.col("name").isin(sorted(names)))
        .groupBy("name", "position")
        .agg(F.min(F.struct("begin_us", "client", "sequence")).alias("first"))
        .select("name", "position", "first.client", "first.sequence", "first.begin_us")
    )
    rows: list[Any] = (
        positions.mapInArrow(find, "at long, client long, sequence long, begin_us long")
        .groupBy("at")
        .agg(F.min(F.struct("begin_us", "client", "sequence")).alias("first"))
        .collect()
    )
    damages = []
    for row in rows:
        number, _, name, source, first, last, ordinal = holes[row["at"]]
        evidence: Evidence = (
            Reference("change", number, ordinal, 0),
            Reference("action", row["first"]["client"], row["first"]["sequence"]),
        )
        begin_us = row["first"]["begin_us"]
        damages.append(Damage(verdict.GTID_GAP, "F27", name, number, source, first, last, begin_us, evidence))
    return damages


# -- names and records -----------------------------------------------------------------------------------


def name_violations(
    findings: DataFrame,
    names: Names,
    changes: DataFrame,
    actions: DataFrame,
    damages: Sequence[Damage],
    items: DataFrame | None = None,
) -> DataFrame:
    """Findings (`FINDING`) and damages as `VIOLATION`, with the records that show them.

    ``items``: (h1, h2, item) of what an earlier audit left open, whose records may be in its history only.
    """
    session = findings.sparkSession
    count = findings.count()
    if not damages and not count:
        return session.createDataFrame([], VIOLATION)
    both = findings.withColumn("subject", F.lit(""))
    if damages:
        both = both.unionByName(_damage_rows(session, damages))
    named_by = ("kind", "failure", "h1", "h2", "node", "version", "lineage", "clients", "evidence")
    both = both.withColumn("id", F.xxhash64(*named_by)).persist()
    named = _named(both, names, changes, actions, items, count + len(damages)).persist()
    try:
        named.count()  # kept, and can be computed again where an executor that keeps them is lost
    finally:
        both.unpersist()
    return named


def _damage_rows(session: SparkSession, damages: Sequence[Damage]) -> DataFrame:
    """Damages as `FINDING`, with the column ``subject``: they concern no item, and carry their first number as the
    version."""
    rows = [
        {
            **dict.fromkeys(("h1", "h2", "node", "who", "longest_us"), 0),
            "kind": each.kind,
            "failure": each.failure,
            "version": each.first,
            "lineage": each.number,
            "clients": [],
            "count": each.last - each.first + 1,
            "first_us": each.at_us,
            "last_us": each.at_us,
            "evidence": list(each.evidence),
            "subject": each.source or each.lineage,
        }
        for each in damages
    ]
    return session.createDataFrame(rows, StructType([*FINDING.fields, StructField("subject", StringType())]))


def _named(
    both: DataFrame,
    names: Names,
    changes: DataFrame,
    actions: DataFrame,
    items: DataFrame | None,
    count: int,
) -> DataFrame:
    session = both.sparkSession
    table = session.createDataFrame(list(names.names.items()) or [(0, "")], "number long, name string")
    objects = session.createDataFrame(
        [(who, it.object) for who, it in names.whos.items()] or [(0, "")], "who long, object string"
    )
    records = _records(both, table, changes, actions, is_small=count <= BROADCAST_MAX)

    def named(frame: DataFrame, number: str, name: str) -> DataFrame:
        renamed = table.select(F.col("number").alias(number), F.col("name").alias(name))
        return frame.join(F.broadcast(renamed), number, "left")

    frame = named(named(both, "node", "node_name"), "lineage", "lineage_name")
    frame = frame.join(F.broadcast(objects), "who", "left").join(records, "id", "left")
    clients = (
        both.select("id", F.explode("clients").alias("number"))
        .join(F.broadcast(table), "number", "left")
        .groupBy("id")
        .agg(
            F.array_sort(F.collect_list(F.coalesce("name", F.col("number").cast("string")))).alias(
                "client_names"
            )
        )
    )
    frame = frame.join(clients, "id", "left")
    if items is not None:
        known = items.withColumnRenamed("item", "known_item").dropDuplicates(["h1", "h2"])
        frame = frame.join(known, ["h1", "h2"], "left")
    return frame.select(
        "kind",
        "failure",
        (F.col("first_item") if items is None else F.coalesce("first_item", "known_item")).alias("item"),
        F.when(F.col("subject") == "", F.col("object")).otherwise(F.col("subject")).alias("object"),
        F.col("node_name").alias("node"),
        F.col("lineage_name").alias("lineage"),
        F.coalesce("client_names", F.array().cast("array<string>")).alias("clients"),
        F.when(F.col("version") != NO_NUMBER, F.col("version")).alias("version"),
        "count",
        F.when(F.col("first_us") != NOTHING, F.col("first_us")).alias("first_us"),
        F.when(F.col("last_us") != NOTHING, F.col("last_us")).alias("last_us"),
        "longest_us",
        F.coalesce("records", F.lit("[]")).alias("evidence"),
    )


def _records(
    both: DataFrame, table: DataFrame, changes: DataFrame, actions: DataFrame, *, is_small: bool
) -> DataFrame:
    """(id, first_item, records): the records that each finding refers to, in its order, as JSON."""
    placed = F.posexplode("evidence").alias("place", "reference")
    held = both.select("id", "h1", "h2", placed).select("id", "h1", "h2", "place", "reference.*")
    hint = F.broadcast(held) if is_small else held
    # Records that are no evidence never become JSON.
    found = _action_records(actions, hint).unionByName(_change_records(changes, hint))
    found = found.dropDuplicates(["id", "place"])
    names = table.select(F.col("number").alias("source"), "name")
    joined = held.join(found, ["id", "place"], "left").join(F.broadcast(names), "source", "left")
    is_mine = lambda item: (F.xxhash64(item) == F.col("h1")) & (F.hash(item) == F.col("h2"))  # noqa: E731
    item = F.coalesce("item", F.get(F.filter("items", is_mine), F.lit(0)))
    told = F.struct("role", "name", "sequence", "record")
    return (
        joined.withColumn("item", F.when(F.col("h1") != 0, item))
        .withColumn("name", F.coalesce("name", F.col("source").cast("string")))
        .groupBy("id")
        .agg(
            F.max("item").alias("first_item"),
            F.to_json(
                F.transform(
                    F.array_sort(F.collect_list(F.struct("place", told.alias("told")))), lambda it: it["told"]
                )
            ).alias("records"),
        )
    )


_ACTION_FIELDS: Final = (
    "action",
    "outcome",
    "node",
    "lineages",
    "epochs",
    "positions",
    "floors",
    "is_absent",
    "version",
    "observed",
    "begin_us",
    "end_us",
)
_CHANGE_FIELDS: Final = ("gtid", "timestamp_us", "received_us", "op", "table", "key")


_REFERENCE: Final = ["source", "sequence", "row"]


def _action_records(actions: DataFrame, held: DataFrame) -> DataFrame:
    """(id, place, item, items, record) of the actions that are held as evidence."""
    keyed = actions.select(
        F.xxhash64("client").alias("source"),
        "sequence",
        F.lit(NO_ROW).cast("long").alias("row"),
        "item",
        "digest",
        *_ACTION_FIELDS,
    )
    return keyed.join(held, _REFERENCE).select(
        "id",
        "place",
        "item",
        F.lit(None).cast("array<binary>").alias("items"),
        F.to_json(F.struct(*_ACTION_FIELDS, F.hex("digest").alias("digest"))).alias("record"),
    )


def _change_records(changes: DataFrame, held: DataFrame) -> DataFrame:
    """As `_action_records`, of changes."""
    keyed = changes.select(
        F.xxhash64("lineage").alias("source"),
        F.col("ordinal").alias("sequence"),
        F.greatest("row", F.lit(0)).cast("long").alias("row"),
        "items",
        *_CHANGE_FIELDS,
        "before_digest",
        "after_digest",
    )
    digests = [F.hex(name).alias(name) for name in ("before_digest", "after_digest")]
    return keyed.join(held, _REFERENCE).select(
        "id",
        "place",
        F.lit(None).cast("binary").alias("item"),
        "items",
        F.to_json(F.struct(*_CHANGE_FIELDS, *digests)).alias("record"),
    )
