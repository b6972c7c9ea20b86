"""The place in the archive at which a table is wanted: for each lineage a position.

A position is taken as it is. A time and the token of one event become the position of everything in the archive up to
a transaction, in the archive's own order; from there on positions alone decide (ADR 0001).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshness.errors import ConfigError, HistoryLost, HistoryPurged, SourceUnavailable
from freshness.history.archive_file import ArchiveFile
from freshness.position import parse_position
from freshness.position.token import EventToken
from freshness.stream.resume import Moment, ResumeVector
from spark.batch import CHANGES
from spark.stream.archive_folder import ArchivedShard, ArchiveFolder, FileSpan

WAIT: Final = "wait until `invalidator record` has completed its next file, and run it again"


def read_files(session: SparkSession, files: Collection[ArchiveFile]) -> DataFrame:
    """The rows of these files, in no order."""
    paths = [f"file://{file.path}" for file in files if file.last >= file.first]
    return session.read.schema(CHANGES).parquet(*paths) if paths else session.createDataFrame([], CHANGES)


@dataclass(frozen=True, slots=True)
class PlaceFinder:
    """``shards``: all shards of the archive's keyspace, by lineage. ``lineages``: lineages of the copy."""

    session: SparkSession
    folder: ArchiveFolder
    keyspace: str
    shards: Mapping[str, ArchivedShard]
    lineages: Collection[str]

    def find(self, moment: Moment) -> dict[str, EventToken]:
        """By lineage the position that is wanted, all of it in the archive, and of the archive's beginning or later.
        Raises `ConfigError` for a moment of other lineages or of another keyspace, `HistoryPurged` for one from
        before the archive, `SourceUnavailable` for one after its end."""
        if isinstance(moment, int):
            return self._find_time(moment)
        if isinstance(moment, EventToken):
            tokens = {moment.lineage: moment}
        else:
            tokens = self._require_keyspace(moment)
        if tokens.keys() != set(self.lineages):
            raise ConfigError(
                f"--at names {', '.join(sorted(tokens))}, the copy has {', '.join(sorted(self.lineages))}",
                hint="give a resume text of exactly these lineages, or a time; copies end with a reshard",
            )
        if isinstance(moment, EventToken):
            tokens = {moment.lineage: self._find_event(moment)}
        for token in tokens.values():
            self._require_archived(token)
        return tokens

    def _require_keyspace(self, vector: ResumeVector) -> dict[str, EventToken]:
        if vector.keyspace != self.keyspace:
            raise ConfigError(
                f"--at is a place in keyspace {vector.keyspace}, the copy is of {self.keyspace}",
                hint="give a resume text of this keyspace",
            )
        return dict(vector.tokens)

    def _require_archived(self, token: EventToken) -> None:
        shard = self.shards[token.lineage]
        end = self.folder.read_footer(str(shard.files[-1].path)).resume.position
        if not end.contains(token.position):
            raise SourceUnavailable(
                f"the archive of {shard.lineage} does not reach --at yet: it ends with {end}, wanted is"
                f" {token.position}",
                hint=WAIT,
            )
        if not token.position.contains(shard.begin.position):
            raise HistoryPurged(
                f"the archive of {shard.lineage} begins after {shard.begin.position}, and --at, {token.position},"
                " lacks some of that",
                hint="give a later place, or an archive that goes back further",
            )

    def _find_event(self, token: EventToken) -> EventToken:
        """The position after an event, whose token names that event alone; any other token is a position."""
        rows = read_files(self.session, self.shards[token.lineage].files)
        found = rows.where((F.col("gtid") == str(token.position)) & (F.col("epoch") == token.epoch))
        ordinal = found.agg(F.min("ordinal")).collect()[0][0]
        if ordinal is None:
            return token
        return self._token_at(self.shards[token.lineage], ordinal, token.timestamp_us)

    def _find_time(self, time_us: int) -> dict[str, EventToken]:
        """Everything before the first transaction that is later than the time, by lineage."""
        files = [file for shard in self.shards.values() for file in shard.files]
        later = read_files(self.session, files).where(F.col("timestamp_us") > time_us)
        first = {row[0]: row[1] for row in later.groupBy("lineage").agg(F.min("ordinal")).collect()}
        told = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()
        others = sorted(first.keys() - set(self.lineages))
        if others:
            raise HistoryLost(
                f"{', '.join(others)} of the archive was written after {told}, and the copy does not have it",
                hint="the shards were others then: take the copy that has the shards of that time, or give --at as"
                " a resume text",
            )
        tokens = {}
        for lineage in self.lineages:
            shard = self.shards[lineage]
            if lineage not in first:
                raise SourceUnavailable(
                    f"the archive of {lineage} does not reach {told} yet: it has no later transaction", hint=WAIT
                )
            if first[lineage] == shard.first:
                raise HistoryPurged(
                    f"the archive of {lineage} begins after {told}: its first transaction is later",
                    hint="give a later time, or an archive that goes back further",
                )
            tokens[lineage] = self._token_at(shard, first[lineage] - 1, time_us)
        return tokens

    def _token_at(self, shard: ArchivedShard, ordinal: int, timestamp_us: int) -> EventToken:
        """Everything up to and with a transaction of the archive, in the epoch that it has."""
        file = next(file for file in shard.files if file.first <= ordinal <= file.last)
        before = self.folder.read_footer(str(file.path)).before
        position, epoch = before.position, before.epoch
        span = FileSpan(str(file.path), file.first - 1, ordinal)
        for batch in self.folder.read(shard.keyspace, shard.lineage, span, ["gtid", "epoch"]):
            texts = set(batch.column("gtid").to_pylist())
            position = position.union_all(parse_position(position.flavor, text) for text in texts)
            epoch = max(epoch, *batch.column("epoch").to_pylist())
        return EventToken(shard.lineage, shard.begin.shard, epoch, timestamp_us, position)
