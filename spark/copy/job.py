"""An external copy of tables: dumped in parallel, then kept up to date by the update stream.

A later run continues from the state of the previous one. The job takes no lock and needs no privilege but SELECT,
because the dump need not be one snapshot: the position B is read before the first row, as something that every later
SELECT shows, and the head H after the last. A row that changed after B is in the stream with its whole after-image; a
row that did not change is in the dump as it was at B. So the dump with the stream from B on is exact at every
position from H on, and it is not published before that. A published copy only moves forward.

Positions alone decide what was applied: each run follows the stream from the copy's own position, and a change that
the position contains is passed over. `spark.copy.target` keeps the copy, `spark.copy.table` reads the rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connected, executed_position
from freshness.database.vitess import of_primary
from freshness.database.walk import reading_above
from freshness.errors import ConfigError, SourceUnavailable
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from spark.batch import to_batches
from spark.copy.merge import ANEW, ROW_OPERATIONS, advance, drop_applied, tell_changes
from spark.copy.state import CopyState, TableState
from spark.copy.table import IS_WHOLE, CopyTable, ReadingBegin, dump_span, find_spans, read_table, reading_shown
from spark.copy.target import CopyTarget
from spark.stream import source as updatestream
from spark.stream.archive_folder import ArchiveFolder

ROWS_PER_RANGE: Final = 100_000
TABLET_SECONDS: Final = 5.0
"""How long a range of Vitess takes at the rate of a dump: vttablet ends its transaction, by default after 30 s."""

WAIT_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0
ROUNDS_MAX: Final = 100
"""Rounds of stream and dump in one run; a table that is changed as a whole in each of them would never end."""


def bound_range(rows_per_range: int, rows_per_second: float | None, tasks: int) -> int:
    """Rows of a range of Vitess, if ``tasks`` ranges are read at once at the rate of the dump."""
    if rows_per_second is None:
        return rows_per_range
    return max(1, min(rows_per_range, int(TABLET_SECONDS * rows_per_second / tasks)))


def find_floor(keyspace: Keyspace, shard: Shard, server: ServerAddress) -> EventToken:
    """`read_floor` on a connection of its own."""
    with (
        connected(server, "reading the heartbeat table") as connection,
        reading_above(connection, keyspace.gtid_flavor, of_primary(shard)) as token,
    ):
        return token


def read_head(keyspace: Keyspace, server: ServerAddress) -> Position:
    """All that a server has executed. On the primary: more than any SELECT before it has shown."""
    with connected(server, "reading the head") as connection:
        return executed_position(connection, keyspace.gtid_flavor)


@dataclass(slots=True)
class Snapshot:
    """One run. ``source``: options of the update stream. ``is_from_replica``: rows are read from the first replica of
    each shard, in place of the primary; ``rows_per_second``: most rows of one dump in a second, None for no bound."""

    session: SparkSession
    keyspace: Keyspace
    target: CopyTarget
    tables: Sequence[str]
    source: Mapping[str, str]
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows_per_range: int = ROWS_PER_RANGE
    wait_seconds: float = WAIT_SECONDS
    is_from_replica: bool = False
    rows_per_second: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self) -> CopyState:
        """Run until every table is published at the stream's end, or the wait is over. Raises `FreshnessError`;
        `ConfigError` if another run writes to the target."""
        with self.target.opened():
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
        state = self.target.open_state(self.tables)
        if state is None:
            begin = {
                shard.lineage: find_floor(self.keyspace, shard, shard.writable)
                for shard in self.keyspace.serving_shards
            }
            state = CopyState(
                self.keyspace.name,
                self.keyspace.gtid_flavor,
                {lineage: str(token) for lineage, token in begin.items()},
                {lineage: str(token.position) for lineage, token in begin.items()},
                {name: TableState() for name in self.tables},
                self._find_previous(begin),
            )
            self.target.commit(state, ())
        if state.keyspace != self.keyspace.name or set(state.tables) != set(self.tables):
            raise ConfigError(
                f"{self.target} is a copy of keyspace {state.keyspace}, tables {', '.join(sorted(state.tables))}",
                hint="give the same ones, or another folder or database",
            )
        if set(state.begin) != {shard.lineage for shard in self.keyspace.serving_shards}:
            raise ConfigError(f"{self.target} is a copy of other shards", hint=ANEW)
        for name, table in state.tables.items():
            if self._read_layout(name).to_json() != table.layout:
                table.needs_dump = True
        return state

    def _find_previous(self, serving: Collection[str]) -> dict[str, str]:
        """By lineage, the end of what an archive has of shards that are not in ``serving``, from before a reshard."""
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
        frames = [self._dump_shard(state, layout, shard) for shard in self.keyspace.serving_shards]
        dumped = frames[0]
        for frame in frames[1:]:
            dumped = dumped.unionAll(frame)
        self.target.dump(name, table, layout, dumped)
        until = {shard.lineage: str(self._find_end(shard)) for shard in self.keyspace.serving_shards}
        table.until, table.needs_dump, table.layout = until, False, layout.to_json()
        self.target.commit(state, ())

    def _find_end(self, shard: Shard) -> Position:
        """A position with all that a dump has shown. Raises `SourceUnavailable` for a replica that is ahead."""
        server = self._server(shard)
        shown = read_head(self.keyspace, server)
        head = read_head(self.keyspace, shard.writable)
        if not head.contains(shown):
            raise SourceUnavailable(
                f"{server} has {shown}, and {shard.writable}, the primary of {shard.lineage} in the file, has {head}",
                hint="name the server that is the primary now, or build a replica with errant transactions again",
            )
        return head

    def _server(self, shard: Shard) -> ServerAddress:
        return shard.replicas[0] if self.is_from_replica else shard.writable

    def _dump_shard(self, state: CopyState, layout: CopyTable, shard: Shard) -> DataFrame:
        lineage, address = shard.lineage, self._server(shard)
        rows, rate = self.rows_per_range, self.rows_per_second
        begin: ReadingBegin = nullcontext
        if shard.vtgate is not None:
            applied = parse_position(state.flavor, state.position[lineage])
            begin = partial(reading_shown, of_primary(shard), applied)
            rows = bound_range(rows, rate, self.session.sparkContext.defaultParallelism)
        spans = find_spans(address, layout, rows)
        if rate is not None:
            rate /= min(len(spans), self.session.sparkContext.defaultParallelism)
        arrow = to_arrow_schema(layout.schema())

        def read(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
            for batch in batches:
                for place in batch.column("id").to_pylist():
                    yield from to_batches(dump_span(lineage, address, layout, spans[place], rate, begin), arrow)

        return self.session.range(0, len(spans), 1, len(spans)).mapInArrow(read, layout.schema())

    def _follow(self, state: CopyState) -> None:
        """Apply what the stream has by now, and publish what is exact. Spark's own checkpoint is for this run alone:
        the next one begins at the copy's position."""
        updatestream.register(self.session)
        since = [
            str(replace(EventToken.parse(token), position=parse_position(state.flavor, state.position[lineage])))
            for lineage, token in state.begin.items()
        ]
        options = {**self.source, "since": ",".join([*since, *state.former.values()]), "keyspace": self.keyspace.name}
        frame = self.session.readStream.format(updatestream.NAME).options(**options).load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: self._apply(state, batch))
        query = updatestream.start_query(writer.trigger(availableNow=True))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self._publish(state)

    def _apply(self, state: CopyState, batch: DataFrame) -> None:
        """One micro-batch. It is committed once at its end: before that it counts for nothing."""
        batch.persist()
        try:
            marks = batch.where("op IN ('begin', 'empty')").select("lineage", "op", "gtid").distinct()
            position = advance(
                {lineage: parse_position(state.flavor, text) for lineage, text in state.position.items()},
                (tuple(row) for row in marks.collect()),
            )
            fresh = drop_applied(batch.where(F.col("table").isNotNull()), state.flavor, state.position)
            raised = fresh.groupBy("table").agg(F.max(F.col("op") == "raise").alias("raised"))
            counts = {row["table"]: row["raised"] for row in raised.collect()}
            for name, table in state.tables.items():
                if counts.get(name):
                    table.needs_dump = True
                if name in counts and not table.needs_dump:
                    self._merge(name, table, fresh)
        finally:
            batch.unpersist()
        state.position = {lineage: str(each) for lineage, each in position.items()}
        self._publish(state)

    def _merge(self, name: str, table: TableState, batch: DataFrame) -> None:
        """The changes of one table, none of them applied before. If one is not whole, the table is dumped again."""
        layout = CopyTable.from_json(table.layout)
        rows = batch.where((F.col("table") == name) & F.col("op").isin(*ROW_OPERATIONS))
        changes = tell_changes(rows, layout).persist()
        try:
            if changes.where(~F.col(IS_WHOLE)).limit(1).count():
                table.needs_dump = True
                return
            self.target.merge(name, table, layout, changes)
        finally:
            changes.unpersist()

    def _publish(self, state: CopyState) -> None:
        """Commit, with the tables whose dump is behind the stream: those are exact."""
        exact = [name for name, table in state.tables.items() if not table.needs_dump and state.contains(table.until)]
        self.target.commit(state, exact)
