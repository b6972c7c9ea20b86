"""An external copy of tables: dumped in parallel, then kept up to date by the update stream.

A later run continues from the state of the former one. The job takes no lock and needs no privilege but SELECT,
because the dump need not be one snapshot: the position B is read before the first row, as something that every later
SELECT shows, and the head H after the last. A row that changed after B is in the stream with its whole after-image; a
row that did not change is in the dump as it was at B. So the dump with the stream from B on is exact at every
position from H on, and it is not published before that. A published copy only moves forward.

`spark.copy.state` says what is published, `spark.copy.table` reads the rows. Called by ``spark.copy``'s main.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.config.settings import Keyspace, ServerAddress, Shard
from freshness.database.connection import connect, executed_position, translated
from freshness.database.walk import read_floor
from freshness.errors import ConfigError, SourceUnavailable
from freshness.history.folder_lock import lock_folder
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from spark.batch import to_batches
from spark.copy.merge import ROW_OPERATIONS, merge_changes, tell_changes
from spark.copy.state import GENERATIONS_KEPT, PARQUET, CopyState, TableState, read_state, write_state
from spark.copy.table import IS_WHOLE, CopyTable, dump_span, find_spans, read_table
from spark.failure import SPARK_ERRORS
from spark.stream import source as updatestream
from spark.stream.archive_folder import ArchiveFolder

ROWS_PER_RANGE: Final = 100_000
WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
ROUNDS_MAX: Final = 100
"""Rounds of stream and dump in one run; a table that is changed as a whole in each of them would never end."""


PROBE: Final = (
    "key binary, number bigint, amount decimal(38,0), text string, day date, at timestamp, share double"
)
"""A column of each type that a copy can have."""


def require_format(session: SparkSession, out: Path, file_format: str) -> None:
    """Write an empty table into a folder, read it back, and compare. Raises `ConfigError` where that does not go.

    A format without its package, one that writes elsewhere than to a folder (jdbc, kafka), and one that keeps no
    types (csv, json) are found out before the first row is read.
    """
    if file_format == PARQUET:
        return
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=out) as folder:
        try:
            empty = session.createDataFrame([], PROBE)
            empty.write.format(file_format).mode("overwrite").save(folder)
            found = session.read.format(file_format).load(folder).dtypes
        except SPARK_ERRORS as error:
            # A class that is missing comes as Java's own error
            text = error if isinstance(error, PySparkException) else error.java_exception.getMessage()
            told = next(iter(str(text).splitlines()), "")[:300]
            raise ConfigError(
                f"a copy cannot be kept as {file_format!r}: {told}",
                hint="is Spark's package for it there (spark-submit --packages …), and does it write to folders? "
                "--format parquet needs nothing",
            ) from error
    if found != empty.dtypes:
        raise ConfigError(
            f"a copy cannot be kept as {file_format!r}: columns come back with other types, or not at all",
            hint="take --format parquet or orc, or what else keeps types",
        )


# -- positions of the primaries --------------------------------------------------------------------------------


def find_floor(keyspace: Keyspace, shard: Shard, server: ServerAddress) -> EventToken:
    """`read_floor` on a connection of its own."""
    with closing(connect(server)) as connection:
        try:
            return read_floor(connection, keyspace.flavor, shard)
        except Exception as error:
            raise translated(error, server, "reading the heartbeat table") from error


def read_head(keyspace: Keyspace, shard: Shard) -> Position:
    """All that the primary has executed: more than any SELECT before it has shown."""
    with closing(connect(shard.primary)) as connection:
        try:
            return executed_position(connection, keyspace.flavor)
        except Exception as error:
            raise translated(error, shard.primary, "reading the head") from error


# -- the job ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Snapshot:
    """One run. ``source``: options of the update stream. ``is_from_replica``: rows are read from the first replica of
    each shard, in place of the primary; ``rows_per_second``: of one dump, at most, None for no bound."""

    session: SparkSession
    keyspace: Keyspace
    out: Path
    tables: Sequence[str]
    source: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows_per_range: int = ROWS_PER_RANGE
    wait_seconds: float = WAIT_SECONDS
    file_format: str = PARQUET
    is_from_replica: bool = False
    rows_per_second: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> CopyState:
        """Until every table is published at the stream's end, or the wait is over. Raises `FreshnessError`;
        `ConfigError` where another run writes to the folder."""
        self.out.mkdir(parents=True, exist_ok=True)
        with lock_folder(self.out, ".copying.lock", "written"):
            return self._run()

    def _run(self) -> CopyState:
        state = self._open()
        deadline = self.clock() + self.wait_seconds
        for _ in range(ROUNDS_MAX):
            for name, table in state.tables.items():
                if table.needs_dump:
                    self._dump(state, name, deadline)
            self._follow(state)
            if not any(table.needs_dump for table in state.tables.values()):
                if all(table.published == table.folder for table in state.tables.values()):
                    break
                if self.clock() > deadline:
                    break
                self.sleep(POLL_SECONDS)
        return state

    def _open(self) -> CopyState:
        require_format(self.session, self.out, self.file_format)
        state = read_state(self.out)
        if state is None:
            begin = {
                shard.lineage: find_floor(self.keyspace, shard, shard.primary)
                for shard in self.keyspace.serving_shards
            }
            state = CopyState(
                self.keyspace.name,
                self.keyspace.flavor,
                {lineage: str(token) for lineage, token in begin.items()},
                {lineage: str(token.position) for lineage, token in begin.items()},
                {name: TableState() for name in self.tables},
                self._find_former(begin),
            )
            write_state(self.out, state)
        if state.keyspace != self.keyspace.name or set(state.tables) != set(self.tables):
            raise ConfigError(
                f"{self.out} is a copy of keyspace {state.keyspace}, tables {', '.join(sorted(state.tables))}",
                hint="give the same ones, or another folder",
            )
        if set(state.begin) != {shard.lineage for shard in self.keyspace.serving_shards}:
            raise ConfigError(f"{self.out} is a copy of other shards", hint="begin anew in another folder")
        for name, table in state.tables.items():
            self._clean(name, {table.folder, table.published})
            if self._read_layout(name).to_json() != table.layout:
                table.needs_dump = True
        return state

    def _find_former(self, serving: Collection[str]) -> dict[str, str]:
        """By lineage the end of what an archive has of other shards than ``serving``: those from before a reshard."""
        path = self.source.get("path")
        if path is None:
            return {}
        folder = ArchiveFolder(path)
        return {
            shard.lineage: str(folder.read_footer(str(shard.files[-1].path)).resume)
            for shard in folder.list_shards(self.keyspace.name)
            if shard.lineage not in serving
        }

    def _read_layout(self, name: str) -> CopyTable:
        """As the first shard has it."""
        return read_table(self.keyspace.serving_shards[0].primary, name, self.left_out.get(name, ()))

    def _dump(self, state: CopyState, name: str, deadline: float) -> None:
        """All rows of all shards, none older than the stream's position."""
        for shard in self.keyspace.serving_shards:
            applied, server = parse_position(state.flavor, state.position[shard.lineage]), self._server(shard)
            while not find_floor(self.keyspace, shard, server).position.contains(applied):
                if self.clock() > deadline:
                    raise SourceUnavailable(
                        f"{server}, a server of {shard.lineage}, does not show {applied} yet",
                        hint="are heartbeats written, and does it follow? on MariaDB they say what is visible",
                    )
                self.sleep(POLL_SECONDS)
        layout, table = self._read_layout(name), state.tables[name]
        folder = self._next_folder(name, table)
        frames = [self._dump_shard(layout, shard) for shard in self.keyspace.serving_shards]
        dumped = frames[0]
        for frame in frames[1:]:
            dumped = dumped.unionAll(frame)
        dumped.write.format(self.file_format).mode("overwrite").save(str(self.out / folder))
        until = {
            shard.lineage: str(read_head(self.keyspace, shard)) for shard in self.keyspace.serving_shards
        }
        table.folder, table.until, table.needs_dump = folder, until, False
        table.layout = layout.to_json()
        write_state(self.out, state)

    def _server(self, shard: Shard) -> ServerAddress:
        return shard.replicas[0] if self.is_from_replica else shard.primary

    def _dump_shard(self, layout: CopyTable, shard: Shard) -> DataFrame:
        lineage, address = shard.lineage, self._server(shard)
        spans = find_spans(address, layout, self.rows_per_range)
        rate = self.rows_per_second
        if rate is not None:
            rate /= min(len(spans), self.session.sparkContext.defaultParallelism)
        arrow = to_arrow_schema(layout.schema())

        def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                for place in batch.column("id").to_pylist():
                    yield from to_batches(dump_span(lineage, address, layout, spans[place], rate), arrow)

        return self.session.range(0, len(spans), 1, len(spans)).mapInArrow(read, layout.schema())

    def _next_folder(self, name: str, table: TableState) -> str:
        table.generation += 1
        return f"{name}/{table.generation:09d}"

    def _follow(self, state: CopyState) -> None:
        """Apply what the stream has by now, and publish what is exact."""
        updatestream.register(self.session)
        since = ",".join([*state.begin.values(), *state.former.values()])
        options = {**self.source, "since": since, "keyspace": self.keyspace.name}
        frame = self.session.readStream.format(updatestream.NAME).options(**options).load()

        def take(batch: DataFrame, number: int) -> None:
            if number > state.batch:
                self._apply(state, batch, number)

        writer = frame.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(self.out / "checkpoint")
        )
        query = updatestream.start_query(writer.trigger(availableNow=True))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self._publish(state)

    def _apply(self, state: CopyState, batch: DataFrame, number: int) -> None:
        """One micro-batch. The state is written once at its end: before that it counts for nothing."""
        batch.persist()
        try:
            position = {
                lineage: parse_position(state.flavor, text) for lineage, text in state.position.items()
            }
            for row in batch.where("op IN ('begin', 'empty')").select("lineage", "gtid").distinct().collect():
                if row["lineage"] not in position:
                    raise ConfigError(
                        f"{row['lineage']} came to the stream", hint="begin anew in another folder"
                    )
                own = parse_position(state.flavor, row["gtid"])
                position[row["lineage"]] = position[row["lineage"]].union(own)
            told = batch.where(F.col("table").isNotNull()).groupBy("table")
            counts = {
                row["table"]: row["raised"]
                for row in told.agg(F.max(F.col("op") == "raise").alias("raised")).collect()
            }
            for name, table in state.tables.items():
                if counts.get(name):
                    table.needs_dump = True
                if name in counts and not table.needs_dump:
                    self._merge(name, table, batch)
        finally:
            batch.unpersist()
        state.batch = number
        state.position = {lineage: str(each) for lineage, each in position.items()}
        self._publish(state)

    def _merge(self, name: str, table: TableState, batch: DataFrame) -> None:
        """A new generation: the last one with the newest change of each key."""
        layout = CopyTable.from_json(table.layout)
        rows = batch.where((F.col("table") == name) & F.col("op").isin(*ROW_OPERATIONS))
        changes = tell_changes(rows, layout).persist()
        try:
            if changes.where(~F.col(IS_WHOLE)).limit(1).count():
                table.needs_dump = True
                return
            former = (
                self.session.read.schema(layout.schema())
                .format(self.file_format)
                .load(str(self.out / table.folder))
            )
            folder = self._next_folder(name, table)
            merged = merge_changes(former, changes, layout)
            merged.write.format(self.file_format).mode("overwrite").save(str(self.out / folder))
            table.folder = folder
        finally:
            changes.unpersist()

    def _publish(self, state: CopyState) -> None:
        """Tables whose dump is behind the stream: those are exact. Then remove what nobody reads."""
        for table in state.tables.values():
            if not table.needs_dump and state.contains(table.until):
                table.published = table.folder
        write_state(self.out, state)
        for name, table in state.tables.items():
            self._clean(name, {table.folder, table.published})

    def _clean(self, name: str, used: set[str]) -> None:
        kept = sorted(used - {""})
        folders = sorted(path for path in (self.out / name).glob("0*") if path.is_dir())
        for path in folders[:-GENERATIONS_KEPT]:
            if f"{name}/{path.name}" not in kept:
                shutil.rmtree(path)
