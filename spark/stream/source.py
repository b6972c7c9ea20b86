"""``format("updatestream")``: the update stream for Spark, from the archive or from the service over HTTP
(docs/spark.md).

The driver plans: which shards, from where to where. A partition is a range of one shard's transactions and reads
itself on an executor. Offsets are positions by lineage, as JSON, so that a stream goes on from its checkpoint with
the next transaction, also after the archive's files were merged. Call `register` once for each session. Reads only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from freshness.errors import ConfigError, FormatError, HistoryPurged, SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.position.token import EventToken
from freshness.stream.resume import REFRESH_PREFIX
from spark.batch import CHANGES, to_batches
from spark.stream.archive_folder import ALL_COLUMNS, ArchivedShard, ArchiveFolder, FileSpan
from spark.stream.filters import push_condition, to_condition
from spark.stream.http import LivePiece, Service, make_mark, read_heads, read_piece

log = logging.getLogger(__name__)

NAME: Final = "updatestream"
BEGIN: Final = "begin"
"""Operation of the first row of each partition of a stream: ``gtid`` is everything before it. The last row is
``empty``, with everything up to its end."""

FILES_PER_PARTITION: Final = 4
FILES_PER_BATCH: Final = 64
OPTIONS: Final = (
    *("path", "url", "token_file", "keyspace", "key_range", "tables", "since", "columns", "files_per_batch"),
)

STARTS_MAX: Final = 12
START_SEEN_SECONDS: Final = 0.1
_TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark's error for a Python process of a stream that has not connected within ten seconds. It has no setting."""

Offset: TypeAlias = dict[str, dict[str, Any]]
"""By lineage: ``token``, everything delivered; of an archive also its ``ordinal``."""


def register(session: SparkSession) -> None:
    """Make the format known to a session. Filters are pushed down to the files."""
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(UpdateStreamSource)


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query over the stream: it has begun to read, or has ended, when this returns. Spark allows the stream's
    Python process ten seconds to start, which a busy machine may exceed. Nothing has been read then, and the query is
    started again. Raises `SourceUnavailable` if that does not help."""
    for _ in range(STARTS_MAX):
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(START_SEEN_SECONDS)
        failure = query.exception()
        if failure is None or _TOO_SLOW not in str(failure):
            return query
        log.warning("the stream's Python process was too slow: %s", failure)
    raise SourceUnavailable(
        f"Spark started the stream's Python process {STARTS_MAX} times, and none connected within 10 seconds",
        hint="the driver's machine is too busy, or its Python cannot import pyspark; then run it again",
    )


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a query, checked. Exactly one of ``folder`` and ``service`` is there."""

    folder: ArchiveFolder | None
    service: Service | None
    keyspace: str | None
    key_range: KeyRange
    since: str
    columns: tuple[str, ...]
    files_per_batch: int
    tables: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Raises `ConfigError` and `FormatError`."""
        unknown = sorted(name for name in options if name.lower() not in OPTIONS)
        if unknown:
            raise ConfigError(f"option {unknown[0]!r} of {NAME}", hint=f"it takes {', '.join(OPTIONS)}")
        empty = sorted(name for name, text in options.items() if not text.strip())
        if empty:
            raise ConfigError(f"option {empty[0]!r} of {NAME} is empty", hint="leave it out, or give a text")
        path, url = options.get("path", ""), options.get("url", "")
        if bool(path) == bool(url):
            raise ConfigError(f"{NAME} reads an archive or a service", hint="give either path or url")
        if url and not options.get("keyspace"):
            raise ConfigError(f"{NAME} from {url}: which keyspace?", hint="give the option keyspace")
        columns = tuple(filter(None, (part.strip() for part in options.get("columns", "").split(","))))
        wrong = [name for name in columns if name not in ALL_COLUMNS]
        if wrong:
            raise ConfigError(f"{NAME} has no column {wrong[0]!r}", hint=f"it has {', '.join(ALL_COLUMNS)}")
        since = options.get("since", "")
        if since.startswith(REFRESH_PREFIX):
            raise FormatError(
                f"since of {NAME} is the resume text of a refresh", hint="a query brings changes; give a token"
            )
        files = options.get("files_per_batch", str(FILES_PER_BATCH))
        if not files.isdecimal() or int(files) < 1:
            raise ConfigError(f"files_per_batch {files!r}", hint="expected a number above 0")
        return cls(
            ArchiveFolder(path) if path else None,
            Service(url, options.get("token_file", "")) if url else None,
            options.get("keyspace"),
            KeyRange.parse(options.get("key_range", "-")),
            since,
            columns or ALL_COLUMNS,
            int(files),
            tuple(filter(None, (part.strip() for part in options.get("tables", "").split(",")))),
        )

    @property
    def live(self) -> tuple[Service, str]:
        assert self.service is not None, "asked where there is no archive"
        assert self.keyspace is not None, "checked when it was made"
        return self.service, self.keyspace

    def schema(self) -> StructType:
        return StructType([CHANGES[name] for name in self.columns])


class UpdateStreamSource(DataSource):  # type: ignore[misc]
    """The format. Its options are those of `StreamOptions`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StreamOptions.parse(self.options).schema()

    def reader(self, schema: StructType) -> ChangeReader:
        return ChangeReader(StreamOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> ChangeStreamReader:
        return ChangeStreamReader(StreamOptions.parse(self.options))


@dataclass(frozen=True)
class ArchivePartition(InputPartition):  # type: ignore[misc]
    """Consecutive transactions of one lineage. ``begin``, ``end``: everything before, and up to and with the last,
    each in a row of its own; None for no such row."""

    keyspace: str
    lineage: str
    spans: tuple[FileSpan, ...]
    begin: EventToken | None
    end: EventToken | None


@dataclass(frozen=True)
class LivePartition(InputPartition):  # type: ignore[misc]
    """A piece of the live stream of one shard."""

    piece: LivePiece


def _read(options: StreamOptions, partition: InputPartition, condition: Any = None) -> Iterator[pyarrow.RecordBatch]:
    whole, wanted = to_arrow_schema(CHANGES), to_arrow_schema(options.schema())
    now_us = time.time_ns() // 1000
    if isinstance(partition, LivePartition):
        piece = partition.piece
        if piece.start is not None:
            yield from _select([make_mark(piece.keyspace, piece.start, 0, BEGIN, now_us)], whole, wanted)
        yield from _select(read_piece(piece), whole, wanted)
        return
    if not isinstance(partition, ArchivePartition):
        return  # Spark's own, if nothing was planned
    assert options.folder is not None, "planned from these options"
    if partition.begin is not None:
        mark = make_mark(partition.keyspace, partition.begin, partition.spans[0].after, BEGIN, now_us)
        yield from _select([mark], whole, wanted)
    for span in partition.spans:
        for batch in options.folder.read(partition.keyspace, partition.lineage, span, options.columns, condition):
            yield pyarrow.RecordBatch.from_arrays(
                [column.cast(part.type) for column, part in zip(batch.columns, wanted, strict=True)], schema=wanted
            )
    if partition.end is not None:
        mark = make_mark(partition.keyspace, partition.end, partition.spans[-1].last, "empty", now_us)
        yield from _select([mark], whole, wanted)


def _select(
    rows: Iterable[tuple[Any, ...]], whole: pyarrow.Schema, wanted: pyarrow.Schema
) -> Iterator[pyarrow.RecordBatch]:
    for batch in to_batches(rows, whole):
        yield pyarrow.RecordBatch.from_arrays([batch.column(name) for name in wanted.names], schema=wanted)


def _plan_archive(
    shard: ArchivedShard,
    options: StreamOptions,
    after: int,
    last: int,
    between: tuple[EventToken, EventToken] | None = None,
) -> list[ArchivePartition]:
    """Partitions for the transactions above ``after`` up to ``last``. ``between``: everything up to the one and to
    the other, each for a row of its own."""
    folder = options.folder
    assert folder is not None, "spans are of an archive"
    spans = shard.spans(after, last)
    folder.require_tables((span.path for span in spans), options.tables)
    parts = [tuple(spans[at : at + FILES_PER_PARTITION]) for at in range(0, len(spans), FILES_PER_PARTITION)]
    if between is None:
        return [ArchivePartition(shard.keyspace, shard.lineage, part, None, None) for part in parts]
    borders = [between[0], *(folder.read_footer(part[0].path).before for part in parts[1:]), between[1]]
    return [
        ArchivePartition(shard.keyspace, shard.lineage, part, *border)
        for part, border in zip(parts, pairwise(borders), strict=True)
    ]


def _choose_shards(options: StreamOptions) -> list[ArchivedShard]:
    """The shards that overlap the key range. Raises `ConfigError` if one lies only partly in it."""
    assert options.folder is not None, "asked of an archive only"
    chosen = []
    for shard in options.folder.list_shards(options.keyspace):
        key_range = KeyRange.parse(shard.begin.shard)
        if not options.key_range.overlaps(key_range):
            continue
        if not options.key_range.contains_range(key_range):
            raise ConfigError(
                f"key range {options.key_range} holds a part of shard {shard.begin.shard} of the archive",
                hint="name whole shards; the service tells rows apart, the archive does not",
            )
        chosen.append(shard)
    if not chosen:
        raise ConfigError(f"no shard of the archive lies in key range {options.key_range}")
    return chosen


def _plan_live(options: StreamOptions, start: EventToken | None, end: EventToken, since: str) -> LivePartition | None:
    """None for a shard out of the key range."""
    service, keyspace = options.live
    own = KeyRange.parse(end.shard)
    if not options.key_range.overlaps(own):
        return None
    ends = [part for part in (options.key_range.end, own.end) if part]
    both = KeyRange(max(options.key_range.start, own.start), min(ends) if ends else b"")
    return LivePartition(LivePiece(service, keyspace, str(both), since, start, end, ",".join(options.tables)))


class ChangeReader(DataSourceReader):  # type: ignore[misc]
    """Everything there is: an archive, or what is not in ``since``; of a service from ``since`` to now."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._filters: list[tuple[str, str, Any]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Files know columns, and the service does not."""
        for each in filters:
            pushed = push_condition(each) if self._options.folder is not None else None
            if pushed is None or pushed[0] not in self._options.columns:
                yield each
            else:
                self._filters.append(pushed)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        if options.folder is not None:
            return [
                part
                for shard in _choose_shards(options)
                if self._may_have(shard)
                for part in _plan_archive(shard, options, _find_after(options, shard)[0], shard.last)
            ]
        if not options.since or options.since == "now":
            raise ConfigError(
                "a batch of the live stream needs a beginning",
                hint="give the option since: a token, or a time with its zone",
            )
        service, keyspace = options.live
        heads = read_heads(service, keyspace)
        planned = [_plan_live(options, None, head, options.since) for head in heads]
        return [part for part in planned if part is not None]

    def _may_have(self, shard: ArchivedShard) -> bool:
        known = {"shard": shard.begin.shard, "lineage": shard.lineage, "keyspace": shard.keyspace}
        return all(
            value in known_values
            for column, operator, values in self._filters
            if operator == "in" and column in known
            for known_values, value in [(values, known[column])]
        )

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(self._options, partition, to_condition(self._filters))


class ChangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Micro-batches. ``since``: "first" (an archive's default), "now" (a service's), or event tokens."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._target: Offset | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._find_latest()

    def initialOffset(self) -> Offset:
        options = self._options
        if options.folder is not None:
            found = {}
            for shard in _choose_shards(options):
                ordinal, token = _find_after(options, shard)
                found[shard.lineage] = {"ordinal": ordinal, "token": str(token)}
            return found
        if options.since in ("", "now"):
            return self._find_latest()
        tokens, lineages = _parse_tokens(options.since), self._find_latest()
        if tokens.keys() != lineages.keys():
            raise ConfigError(
                f"since names {', '.join(tokens)}, the stream has {', '.join(lineages)}",
                hint="give one token for each shard, with commas between them, or begin now",
            )
        return {lineage: {"token": str(token)} for lineage, token in tokens.items()}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of at most ``limit`` files for each lineage; of the live stream, of what was committed by now."""
        latest = self._target or self._find_latest()
        if self._options.folder is None or isinstance(limit, ReadAllAvailable):
            return {**start, **latest}
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else self._options.files_per_batch
        end = dict(start)
        for shard in _choose_shards(self._options):
            if shard.lineage not in latest:
                continue
            after = start.get(shard.lineage, {}).get("ordinal", shard.first - 1)
            spans = shard.spans(after, latest[shard.lineage]["ordinal"])[:files]
            if spans:
                end[shard.lineage] = self._end_of(spans[-1], latest[shard.lineage])
        return end

    def _end_of(self, span: FileSpan, latest: dict[str, Any]) -> dict[str, Any]:
        if span.last == latest["ordinal"]:
            return latest  # it may lie within a file that was merged since
        assert self._options.folder is not None, "spans are of an archive"
        return {"ordinal": span.last, "token": str(self._options.folder.read_footer(span.path).resume)}

    def _find_latest(self) -> Offset:
        options = self._options
        if options.folder is not None:
            return {
                shard.lineage: {
                    "ordinal": shard.last,
                    "token": str(options.folder.read_footer(str(shard.files[-1].path)).resume),
                }
                for shard in _choose_shards(options)
            }
        service, keyspace = options.live
        heads = read_heads(service, keyspace)
        wanted = [head for head in heads if options.key_range.overlaps(KeyRange.parse(head.shard))]
        return {head.lineage: {"token": str(head)} for head in wanted}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        options, planned = self._options, []
        if options.folder is None:
            for lineage, to in end.items():
                at = start.get(lineage)
                if at is None:
                    raise HistoryPurged(
                        f"shard {lineage} came while the stream ran, and where it began is not known",
                        hint="start a new query, with a new checkpoint, from a token or a snapshot",
                    )
                begin, head = EventToken.parse(at["token"]), EventToken.parse(to["token"])
                if begin.position != head.position:
                    part = _plan_live(options, begin, head, at["token"])
                    planned += [part] if part is not None else []
            return planned
        for shard in _choose_shards(options):
            until = end.get(shard.lineage)
            if until is None:
                continue
            at = start.get(shard.lineage, {"ordinal": shard.first - 1, "token": str(shard.begin)})
            if at["ordinal"] < until["ordinal"]:
                between = EventToken.parse(at["token"]), EventToken.parse(until["token"])
                planned += _plan_archive(shard, options, at["ordinal"], until["ordinal"], between)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return _read(self._options, partition)


def _find_after(options: StreamOptions, shard: ArchivedShard) -> tuple[int, EventToken]:
    """The ordinal and position after which to begin: those of the file in which ``since`` lies; the end, if it has
    all."""
    assert options.folder is not None, "asked of an archive only"
    last = options.folder.read_footer(str(shard.files[-1].path)).resume
    if options.since in ("", "first"):
        return shard.first - 1, shard.begin
    if options.since == "now":
        return shard.last, last
    token = _parse_tokens(options.since).get(shard.lineage)
    if token is None:
        return shard.first - 1, shard.begin
    if token.position.contains(last.position):
        return shard.last, last
    for file in reversed(shard.files):
        before = options.folder.read_footer(str(file.path)).before
        if token.position.contains(before.position):
            return file.first - 1, before
    raise HistoryPurged(
        f"the archive of {shard.lineage} begins with {shard.begin.position}, after {token.position}",
        hint="begin at its first transaction, or from a snapshot",
    )


def _parse_tokens(text: str) -> dict[str, EventToken]:
    """By lineage. Raises `FormatError`."""
    tokens = [EventToken.parse(part) for part in text.split(",")]
    return {token.lineage: token for token in tokens}
