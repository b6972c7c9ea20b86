"""A table as it was at another position than that of its copy.

The copy is exact at its own position. For each transaction of the archive, containment says whether the copy has it
and whether the wanted position has it. A transaction that only the wanted position has is applied; one that only the
copy has is taken back, from the rows before it. So the direction is that of each transaction, and one lineage may go
forward while another goes back. All changes of one row must go one way, which the job checks.

Everything that would make a wrong table is refused, with where and what to do.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from freshness.errors import ConfigError, HistoryLost, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.history.archive_file import ArchiveFile
from freshness.history.durable import publish
from freshness.keys.keyrange import KeyRange
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.stream.resume import Moment, ResumeVector
from spark.archive.compaction import check
from spark.batch import to_batches
from spark.copy.merge import ROW_OPERATIONS, merge_changes
from spark.copy.state import PARQUET, CopyState, find_published, require_kept
from spark.copy.table import IS_WHOLE, KEY, CopyTable
from spark.failure import SPARK_ERRORS
from spark.folder import open_local
from spark.stream.archive_folder import ArchivedShard, ArchiveFolder
from spark.table_at.place import WAIT, PlaceFinder, read_files

LINEAGE: Final = "_lineage"
TRANSACTION: Final = "_transaction"
IS_WANTED: Final = "_is_wanted"
IS_COPIED: Final = "_is_copied"
"""Columns beside those of a change: its lineage and ordinal, and whether the wanted position and the copy have it."""

GTIDS_KEPT_MAX: Final = 100_000
_OTHER_PLACE: Final = "give a place on the copy's side of it, or a copy that was made on the other side"


@dataclass(frozen=True, slots=True)
class TableAt:
    """The result. ``applied``, ``undone``: changes of the table, by lineage; one of a row's key counts as two.
    ``position``: position of the table, by lineage; ``resume``: the same as a resume text."""

    table: str
    out: str
    rows: int
    applied: Mapping[str, int]
    undone: Mapping[str, int]
    position: Mapping[str, str]
    resume: str


@dataclass(frozen=True, slots=True)
class PositionPair:
    """Positions by lineage: ``wanted`` of the table, ``copied`` of the copy."""

    wanted: Mapping[str, Position]
    copied: Mapping[str, Position]

    def tell(self, layout: CopyTable, rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
        """Changes with the columns of `told_schema`: one that is to be taken back as what it leaves then. A change
        that both positions have, or neither, stays as it is, for the check of the order."""

        @lru_cache(GTIDS_KEPT_MAX)
        def locate(lineage: str, gtid: str) -> tuple[bool, bool]:
            own = parse_position(self.wanted[lineage].flavor, gtid)
            return self.wanted[lineage].contains(own), self.copied[lineage].contains(own)

        for row in rows:
            is_wanted, is_copied = locate(row["lineage"], row["gtid"])
            is_undone = is_copied and not is_wanted
            for change in layout.to_undone_changes(row) if is_undone else layout.to_changes(row):
                yield (*change, row["lineage"], row["ordinal"], is_wanted, is_copied)


def told_schema(layout: CopyTable) -> StructType:
    """The schema of the rows of `PositionPair.tell`."""
    extra = [(LINEAGE, StringType()), (TRANSACTION, LongType()), (IS_WANTED, BooleanType())]
    extra.append((IS_COPIED, BooleanType()))
    return StructType([*layout.change_schema(), *(StructField(name, kind) for name, kind in extra)])


def make_table(
    session: SparkSession, archive: str, copy: Path, table: str, moment: Moment, out: Path, file_format: str = PARQUET
) -> TableAt:
    """Write the table as it was at the moment to ``out``, as Parquet, complete or not at all.

    ``file_format``: format of the copy. Raises `ConfigError` if the copy, the archive and the moment do not fit
    together, `SourceUnavailable` if the archive or the copy is not there yet, `HistoryLost` and `HistoryPurged` if
    some history is missing, `StreamStopped` for a change of the table whose rows are not in the archive.
    """
    _require_room(out)
    archive = str(open_local(archive))
    state = _find_copy(copy, table)
    base = state.tables[table]
    layout = CopyTable.from_json(base.layout)
    folder = ArchiveFolder(archive)
    shards = _find_shards(folder, archive, state)
    tokens = PlaceFinder(session, folder, state.keyspace, shards, state.position).find(moment)
    pair = PositionPair(
        {lineage: token.position for lineage, token in tokens.items()},
        {lineage: parse_position(state.flavor, text) for lineage, text in state.position.items()},
    )
    files = [
        file
        for lineage, token in sorted(tokens.items())
        for file in _choose_files(folder, shards[lineage], token.position, pair.copied[lineage])
    ]
    folder.require_tables((str(file.path) for file in files), (table,))
    for problem in check(session, archive, [file.path for file in files]):
        raise HistoryPurged(
            f"{problem.path}: {problem.problem}",
            hint="restore the file; `freshness-spark archive --check` names all that are damaged",
        )
    _require_one_epoch(read_files(session, files), tokens, state)
    rows = read_files(session, files).where(F.col("table") == table)
    _require_rows(rows, table, pair)
    told = _tell(rows, layout, pair).persist()
    try:
        applied, undone = _require_order(told, table)
        is_between = F.col(IS_WANTED) != F.col(IS_COPIED)
        reader = session.read.schema(layout.schema()).format(file_format)
        previous = reader.load(f"file://{copy / base.published}")
        merged = merge_changes(previous, told.where(is_between), layout).drop(KEY)
        count = _publish(session, merged, out, copy, base.published)
    except SPARK_ERRORS:
        require_kept(copy, base.published)  # then that is the reason
        raise
    finally:
        told.unpersist()
    position = {lineage: str(token.position) for lineage, token in sorted(tokens.items())}
    applied, undone = ({lineage: each.get(lineage, 0) for lineage in position} for each in (applied, undone))
    resume = ResumeVector(state.keyspace, KeyRange.parse("-"), tokens).format()
    return TableAt(table, str(out), count, applied, undone, position, resume)


def _require_room(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"{out} is there already", hint="give a folder that does not exist")
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder", hint="make it, or give another --out")


def _find_copy(copy: Path, table: str) -> CopyState:
    """The published state of a copy. Raises `SourceUnavailable` for a table that is not at its position."""
    state = find_published(copy, table)
    base = state.tables[table]
    if base.needs_dump or base.published != base.folder:
        raise SourceUnavailable(
            f"the copy of {table} in {copy} is being dumped again, and the published one is older than its position",
            hint="run `freshness-spark copy` until it ends with 0",
        )
    return state


def _find_shards(folder: ArchiveFolder, archive: str, state: CopyState) -> dict[str, ArchivedShard]:
    """The shards by lineage. Raises `HistoryLost` if the archive lacks one of the copy's lineages."""
    shards = {shard.lineage: shard for shard in folder.list_shards(state.keyspace)}
    absent = sorted(state.position.keys() - shards.keys())
    if absent:
        raise HistoryLost(
            f"the copy has lineage {', '.join(absent)}, and the archive {archive} has nothing of it",
            hint="give the archive of the copy's own shards; a copy ends with a reshard",
        )
    return shards


def _choose_files(
    folder: ArchiveFolder, shard: ArchivedShard, wanted: Position, copied: Position
) -> Sequence[ArchiveFile]:
    """The files from the first transaction that only one of the positions has to the last. Raises `HistoryPurged` and
    `SourceUnavailable`."""
    end = folder.read_footer(str(shard.files[-1].path)).resume
    if not end.position.contains(copied):
        raise SourceUnavailable(
            f"the archive of {shard.lineage} ends with {end.position}, the copy is ahead of it, at {copied}",
            hint=WAIT,
        )
    if not copied.contains(shard.begin.position):
        raise HistoryPurged(
            f"the archive of {shard.lineage} begins after {shard.begin.position}, the copy is at {copied} and lacks"
            " some of that",
            hint="take a copy that is newer, or an archive that goes back further",
        )
    chosen: list[ArchiveFile] = []
    for file in reversed(shard.files):
        footer = folder.read_footer(str(file.path))
        if wanted.contains(footer.resume.position) and copied.contains(footer.resume.position):
            break
        is_later = footer.before.position.contains(wanted) and footer.before.position.contains(copied)
        if file.last >= file.first and (chosen or not is_later):
            chosen.append(file)
    return chosen[::-1]


def _require_one_epoch(rows: DataFrame, tokens: Mapping[str, EventToken], state: CopyState) -> None:
    """Raises `HistoryLost` if the epoch of a lineage was raised since the copy began."""
    found = {
        row["lineage"]: row["epochs"]
        for row in rows.groupBy("lineage").agg(F.collect_set("epoch").alias("epochs")).collect()
    }
    for lineage, token in tokens.items():
        epochs = {token.epoch, EventToken.parse(state.begin[lineage]).epoch, *found.get(lineage, ())}
        if len(epochs) > 1:
            raise HistoryLost(
                f"history of {lineage} was lost between the copy's beginning and the later of copy and --at: the"
                f" epochs are {', '.join(map(str, sorted(epochs)))}",
                hint="begin a new copy in another folder, and give a place that has its epoch",
            )


def _require_rows(rows: DataFrame, table: str, pair: PositionPair) -> None:
    """Raises `StreamStopped` if a transaction between the two positions changed the table as a whole."""
    others = rows.where(~F.col("op").isin(*ROW_OPERATIONS))
    for row in others.select("lineage", "ordinal", "gtid", "op", "detail").distinct().toLocalIterator():
        own = parse_position(pair.wanted[row["lineage"]].flavor, row["gtid"])
        if pair.wanted[row["lineage"]].contains(own) != pair.copied[row["lineage"]].contains(own):
            raise StreamStopped(
                f"transaction {row['ordinal']} of {row['lineage']}, {row['gtid']}, lies between the copy and --at and"
                f" changed {table} as a whole ({row['op']}: {row['detail'] or 'no reason is known'}): the archive"
                " does not have its rows",
                hint=_OTHER_PLACE,
            )


def _tell(rows: DataFrame, layout: CopyTable, pair: PositionPair) -> DataFrame:
    schema = told_schema(layout)
    arrow = to_arrow_schema(schema)

    def tell(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        told = pair.tell(layout, (row for batch in batches for row in batch.to_pylist()))
        return to_batches(told, arrow)

    chosen = rows.where(F.col("op").isin(*ROW_OPERATIONS))
    return chosen.select("lineage", "ordinal", "row", "gtid", "before", "after").mapInArrow(tell, schema)


def _require_order(told: DataFrame, table: str) -> tuple[dict[str, int], dict[str, int]]:
    """How many changes are applied and taken back, by lineage. Raises `StreamStopped` for one that is not whole, and
    `ConfigError` for a position that has a change of a row without an earlier one."""
    is_wanted, is_copied = F.col(IS_WANTED), F.col(IS_COPIED)
    counts = told.groupBy(LINEAGE).agg(
        F.count_if(is_wanted & ~is_copied).alias("applied"),
        F.count_if(is_copied & ~is_wanted).alias("undone"),
        F.min(F.when((is_wanted != is_copied) & ~F.col(IS_WHOLE), F.col(TRANSACTION))).alias("cut"),
    )
    applied, undone = {}, {}
    for row in counts.collect():
        if row["cut"] is not None:
            raise StreamStopped(
                f"transaction {row['cut']} of {row[LINEAGE]} lies between the copy and --at and changed {table}"
                " without all columns of the row",
                hint=f"was binlog_row_image FULL? {_OTHER_PLACE}",
            )
        applied[row[LINEAGE]], undone[row[LINEAGE]] = row["applied"], row["undone"]
    for flag, what in ((is_wanted, "--at"), (is_copied, "the copy's position")):
        of_key = told.where(F.col(IS_WHOLE)).groupBy(LINEAGE, KEY)
        ends = of_key.agg(
            F.max(F.when(flag, F.col(TRANSACTION))).alias("has"),
            F.min(F.when(~flag, F.col(TRANSACTION))).alias("lacks"),
        )
        for row in ends.where("has > lacks").limit(1).collect():
            raise ConfigError(
                f"{what} has transaction {row['has']} of {row[LINEAGE]} and lacks transaction {row['lacks']}, which"
                f" changed the same row of {table} before: no server was ever there",
                hint="give a resume text, or the token of an event, as the stream gave it",
            )
    return applied, undone


def _publish(session: SparkSession, merged: DataFrame, out: Path, copy: Path, published: str) -> int:
    """The rows, in a folder that appears as a whole."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        draft = Path(folder) / "table"
        merged.write.parquet(f"file://{draft}")
        require_kept(copy, published)
        count: int = session.read.parquet(f"file://{draft}").count()
        try:
            publish(draft, out)
        except OSError as error:
            raise ConfigError(
                f"{out} cannot have the table: {error.strerror}", hint="give a folder that does not exist"
            ) from error
    return count
