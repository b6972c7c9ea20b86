"""Turns recorded actions and changes into the rows of the replay, and takes stock of who recorded what.

Position texts are resolved here, before the shuffle, each distinct one once. Functions of DataFrames; called by the
audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.errors import FormatError
from spark.audit.checksum import sum_of, sum_of_squares
from spark.audit.finding import Life
from spark.audit.kernel.placement import STAMP_COLUMNS, encode_stamps, lacks
from spark.audit.row import (
    ABSENT,
    AFTER_ABSENT,
    BEFORE_ABSENT,
    BELOW_FLOOR,
    CHANGE,
    FILL,
    HIT,
    INVALIDATION,
    ROW,
    SERVED_STALE,
    UNANSWERED,
    PlacedStamp,
)
from spark.audit.timeline import MALFORMED, NO_ARCHIVE, NOTHING, Lineage, Place
from spark.batch import Batches, BatchFunction
from spark.schema import REPLAY

ACTIONS: Final = ("fill", "hit", "refusal", "invalidation", "publish", "dropped")
INVENTORY_MAX: Final = 1_000_000
"""The most combinations of client, object, node and outcome."""
LIVES_MAX: Final = 1_000_000

_PART, _LIST = "\x1e", "\x1f"


def _joined(name: str) -> Column:
    return F.array_join(F.col(name), _LIST)


_WHO: Final = ("client", "object", "node")


def who() -> Column:
    """The hash of client, object, node, tables and lineages: what hits are counted by."""
    named = [F.coalesce(F.col(name), F.lit("")) for name in _WHO]
    return F.xxhash64(*named, _joined("tables"), _joined("lineages"))


# -- stock -----------------------------------------------------------------------------------------------


class Stock(NamedTuple):
    """How many actions of one kind a client recorded about one object on one node.

    ``lost``: how many actions the client dropped, by its own count. ``first``, ``last``: its sequence numbers;
    ``total``, ``squares``: their sums (`spark.audit.checksum`).
    Fields named ``number`` are hashes of names.
    """

    who: int
    client_number: int
    node_number: int
    client: str
    action: str
    outcome: str
    object: str
    tables: tuple[str, ...]
    node: str
    lineages: tuple[str, ...]
    actions: int
    lost: int
    first: int
    last: int
    begin_us: int
    total: int
    squares: int


def take_stock(actions: DataFrame) -> list[Stock]:
    """Everything but items and times, once over all actions. Raises `FormatError` for what cannot be understood."""
    has_no_item = F.col("item").isNull() & F.col("action").isin("fill", "hit", "invalidation")
    rows: list[Any] = (
        actions.groupBy(
            "client",
            "action",
            "outcome",
            F.coalesce("object", F.lit("")).alias("object"),
            F.coalesce("node", F.lit("")).alias("node"),
            _joined("tables").alias("tables"),
            _joined("lineages").alias("lineages"),
            who().alias("who"),
            F.xxhash64("client").alias("client_number"),
            F.xxhash64("node").alias("node_number"),
        )
        .agg(
            F.count("*").alias("actions"),
            F.sum(F.when(F.col("action") == "dropped", F.col("count")).otherwise(0)).alias("lost"),
            F.min("sequence").alias("first"),
            F.max("sequence").alias("last"),
            F.min("begin_us").alias("begin_us"),
            sum_of(F.col("sequence"), F.lit(1)).alias("total"),
            sum_of_squares(F.col("sequence"), F.lit(1)).alias("squares"),
            F.sum(has_no_item.cast("long")).alias("nameless"),
        )
        .limit(INVENTORY_MAX + 1)
        .collect()
    )
    if len(rows) > INVENTORY_MAX:
        raise FormatError(
            f"more than {INVENTORY_MAX:,} clients, objects and nodes in one history",
            hint="audit a shorter span, or fewer clients",
        )
    for row in rows:
        if row["action"] not in ACTIONS or row["nameless"]:
            what = "names no item" if row["action"] in ACTIONS else "is not known"
            raise FormatError(
                f"the action {row['action']!r} of {row['client']} {what}",
                hint="another release recorded it; audit with that one",
            )
    return [
        Stock(
            row["who"],
            row["client_number"],
            row["node_number"],
            row["client"],
            row["action"],
            row["outcome"],
            row["object"],
            _split(row["tables"]),
            row["node"],
            _split(row["lineages"]),
            row["actions"],
            row["lost"],
            row["first"],
            row["last"],
            row["begin_us"],
            row["total"],
            row["squares"],
        )
        for row in rows
    ]


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split(_LIST)) if text else ()


# -- rows ------------------------------------------------------------------------------------------------


def encode_changes(changes: DataFrame, duplicates: Sequence[tuple[int, int, int]]) -> DataFrame:
    """A row (`REPLAY`) for each item of each change, without transactions that were archived again."""
    lineage = F.xxhash64("lineage")
    first = changes.where(F.size("items") > 0)
    if duplicates:
        table = changes.sparkSession.createDataFrame(list(duplicates), "number long, first long, last long")
        is_repeat = (lineage == F.col("number")) & F.col("ordinal").between(F.col("first"), F.col("last"))
        first = first.join(F.broadcast(table), is_repeat, "left_anti")
    item = F.col("item")
    is_row = F.array_contains("row_items", item)
    flags = (
        _bit(is_row, ROW)
        .bitwiseOR(_bit(F.col("op") == "delete", AFTER_ABSENT))
        .bitwiseOR(_bit(F.col("op") == "insert", BEFORE_ABSENT))
    )
    exploded = first.withColumn("item", F.explode(F.array_distinct("items")))
    return exploded.select(
        F.xxhash64(item).alias("h1"),
        F.hash(item).alias("h2"),
        F.lit(CHANGE).alias("kind"),
        lineage.alias("lineage"),
        "ordinal",
        "row",
        *map(_none, ("node", "version", "observed")),
        F.least("timestamp_us", "received_us").alias("begin_us"),
        F.col("received_us").alias("end_us"),
        _digest("after_digest").alias("digest"),
        _digest("before_digest").alias("before"),
        flags.alias("flags"),
        *map(_none, ("who", "client", "sequence")),
        F.lit(None).cast("binary").alias("stamps"),
    )


def encode_actions(actions: DataFrame, lineages: Mapping[str, Lineage]) -> DataFrame:
    """A row (`REPLAY`) for each fill, invalidation and hit."""
    item, action = F.col("item"), F.col("action")
    flags = (
        _bit(F.col("is_absent"), ABSENT)
        .bitwiseOR(_bit((action == "fill") & (F.col("outcome") == "NODE_DOWN"), UNANSWERED))
        .bitwiseOR(_bit(F.col("outcome") == "STALE_SERVED", SERVED_STALE))
    )
    kind = F.when(action == "hit", HIT).when(action == "fill", FILL).otherwise(INVALIDATION)
    texts = actions.where(action.isin("fill", "hit", "invalidation")).select(
        F.xxhash64(item).alias("h1"),
        F.hash(item).alias("h2"),
        kind.alias("kind"),
        *map(_none, ("lineage", "ordinal")),
        F.lit(None).cast("int").alias("row"),
        F.xxhash64("node").alias("node"),
        "version",
        "observed",
        "begin_us",
        "end_us",
        _digest("digest").alias("digest"),
        _none("before"),
        flags.alias("flags"),
        who().alias("who"),
        F.xxhash64("client").alias("client"),
        "sequence",
        *STAMP_COLUMNS[:-1],
        F.when(action == "fill", F.col("floors")).otherwise(F.array().cast("array<string>")).alias("floors"),
    )
    return texts.mapInArrow(action_encoder(lineages), REPLAY)


def _bit(condition: Column, bit: int) -> Column:
    return F.when(condition, bit).otherwise(0)


def _none(name: str) -> Column:
    return F.lit(None).cast("long").alias(name)


def _digest(name: str) -> Column:
    return F.when(F.col(name).isNotNull(), F.xxhash64(name))


def _positions(with_floors: Column) -> Column:
    """All that a `PlacedStamp` is made of, as one text: batches hold few different ones."""
    lives = F.array_join(F.transform("lives", F.hex), _LIST)
    floors = F.when(with_floors, _joined("floors")).otherwise("")
    return F.concat_ws(_PART, _joined("lineages"), _joined("epochs"), lives, _joined("positions"), floors)


def action_encoder(lineages: Mapping[str, Lineage]) -> BatchFunction:
    """Batches with `STAMP_COLUMNS` become batches of `REPLAY`."""
    schema = to_arrow_schema(REPLAY)

    def encode(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            stamps, flags = encode_stamps(lineages, {name: batch.column(name) for name in STAMP_COLUMNS})
            columns = {name: batch.column(name) for name in batch.schema.names if name not in STAMP_COLUMNS}
            columns["flags"] = pyarrow.array(columns["flags"].to_numpy() | flags)
            columns["stamps"] = stamps
            yield pyarrow.RecordBatch.from_arrays(
                [columns[field.name].cast(field.type) for field in schema], schema=schema
            )

    return encode


def read_stamps(lineages: Mapping[str, Lineage], text: str) -> tuple[list[PlacedStamp], int]:
    """(stamps, `BELOW_FLOOR` or 0) of a text as `_positions` makes it."""
    names, epochs, lives, positions, floors = text.split(_PART)
    parts = [part.split(_LIST) for part in (epochs, lives, positions)]
    wanted = names.split(_LIST)
    if not names:
        return [], 0
    if any(len(part) != len(wanted) for part in parts):
        return [PlacedStamp(0, NOTHING, Place(0, (), MALFORMED))], 0
    bounds = floors.split(_LIST) if floors else []
    stamps, flags = [], 0
    for at, name in enumerate(wanted):
        lineage, (epoch, life, position) = lineages.get(name), (part[at] for part in parts)
        place = Place(0, (), NO_ARCHIVE) if lineage is None else _place(lineage, epoch, position)
        stamps.append(PlacedStamp(0 if lineage is None else lineage.number, _life(life), place))
        if lineage is not None and at < len(bounds) and lacks(lineage.flavor, position, bounds[at]):
            flags = BELOW_FLOOR
    return stamps, flags


def _place(lineage: Lineage, epoch: str, position: str) -> Place:
    return lineage.place(int(epoch), position) if epoch.isdigit() else Place(0, (), MALFORMED)


def _life(text: str) -> int:
    return int.from_bytes(bytes.fromhex(text), "big", signed=True) if text else NOTHING


# -- lives -----------------------------------------------------------------------------------------------

_PUBLISHED: Final = (
    "node long, lineage long, life long, floor long, progress long, begin_us long, end_us long"
)


def find_published(actions: DataFrame, lineages: Mapping[str, Lineage]) -> DataFrame:
    """(`_PUBLISHED`) for each lineage of each publish: how far floor and progress reach."""
    published = actions.where(F.col("action") == "publish")
    texts = published.select(
        F.xxhash64("node").alias("node"), _positions(F.lit(True)).alias("positions"), "begin_us", "end_us"
    )

    def read(batches: Batches) -> Iterator[pyarrow.RecordBatch]:
        names = [part.split()[0] for part in _PUBLISHED.split(", ")]
        for batch in batches:
            rows = [
                (row["node"], *reach, row["begin_us"], row["end_us"])
                for row in batch.to_pylist()
                for reach in _reaches(lineages, row["positions"])
            ]
            arrays = [pyarrow.array([row[at] for row in rows], pyarrow.int64()) for at in range(len(names))]
            yield pyarrow.RecordBatch.from_arrays(arrays, names)

    return texts.mapInArrow(read, _PUBLISHED)


def _reaches(lineages: Mapping[str, Lineage], text: str) -> Iterator[tuple[int, int, int, int]]:
    """(lineage, life, floor, progress) of each lineage that the archive has."""
    names, epochs, lives, positions, floors = text.split(_PART)
    progress, _ = read_stamps(lineages, _PART.join((names, epochs, lives, positions, "")))
    floor, _ = read_stamps(lineages, _PART.join((names, epochs, lives, floors, "")))
    for at, low in zip(progress, floor, strict=False):
        if not (at.place.flags | low.place.flags) & (MALFORMED | NO_ARCHIVE):
            yield at.lineage, at.life, low.place.prefix, at.place.prefix


def collect_lives(published: DataFrame) -> dict[tuple[int, int], list[Life]]:
    """By (node, lineage), in the order in which they began. Raises `FormatError` for more than `LIVES_MAX`."""
    rows: list[Any] = (
        published.groupBy("node", "lineage", "life")
        .agg(
            F.min("begin_us").alias("begin_us"),
            F.min("end_us").alias("end_us"),
            F.min("floor").alias("floor"),
            F.max("progress").alias("progress"),
        )
        .limit(LIVES_MAX + 1)
        .collect()
    )
    if len(rows) > LIVES_MAX:
        raise FormatError(
            f"nodes of the cache had more than {LIVES_MAX:,} lives in one history",
            hint="audit a shorter span",
        )
    lives: dict[tuple[int, int], list[Life]] = {}
    for row in sorted(rows, key=lambda row: row["begin_us"]):
        life = Life(row["life"], row["begin_us"], row["end_us"], row["floor"], row["progress"])
        lives.setdefault((row["node"], row["lineage"]), []).append(life)
    return lives


def collect_raise_acks(
    published: DataFrame, raises: Iterable[tuple[int, str, int]]
) -> dict[tuple[int, int, int, int], int]:
    """By (node, lineage, life, ordinal): when a change of a whole table was acknowledged."""
    wanted = sorted({(lineage, ordinal) for lineage, _, ordinal in raises})
    if not wanted:
        return {}
    table = published.sparkSession.createDataFrame(wanted, "lineage long, ordinal long")
    rows: list[Any] = (
        published.join(F.broadcast(table), "lineage")
        .where(F.col("progress") >= F.col("ordinal"))
        .groupBy("node", "lineage", "life", "ordinal")
        .agg(F.min("end_us").alias("end_us"))
        .collect()
    )
    return {(row["node"], row["lineage"], row["life"], row["ordinal"]): row["end_us"] for row in rows}
