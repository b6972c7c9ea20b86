"""Publishes an update stream to Kafka: `invalidator publish`.

Each transaction of Kafka holds the rows of whole transactions of the source, and the position behind them. After any
failure the stream begins again at the position that Kafka has: a restart of the process and of the connection are
the same thing. Nothing is skipped, and a consumer that reads what is committed sees nothing twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from freshness.config.config import Config
from freshness.config.keyspace import Keyspace
from freshness.errors import BrokerUnavailable, ConfigError, FreshnessError, SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.stream.resume import ResumeVector
from invalidator.publish.envelope import EnvelopeRecords
from invalidator.publish.kafka import KafkaWriter
from invalidator.publish.record import DEFAULT_TEMPLATE, LineRecords, RecordWriter, Topics
from invalidator.stream.deduplicator import Deduplicator
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.message import StreamMessage
from invalidator.stream.open import OpenedStream, StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.stream.start import Start

RecordFormat: TypeAlias = Literal["lines", "debezium"]

COMMIT_SECONDS: Final = 0.2
COMMIT_RECORDS: Final = 5_000
"""A transaction of Kafka ends after so much, at the next end of a transaction of the source."""

IDLE_COMMIT_SECONDS: Final = 10.0
"""How often the position is committed while nothing concerns the tables."""

RETRY_MIN_SECONDS: Final = 0.2
RETRY_MAX_SECONDS: Final = 5.0

Report: TypeAlias = Callable[[int, ResumeVector], None]
"""Called after each commit: records so far, and the position."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """``settings``: options of Kafka's client. ``tables``: names and patterns; none for tables of cached objects."""

    brokers: str
    prefix: str
    keyspace: str | None = None
    format: RecordFormat = "lines"
    template: str = DEFAULT_TEMPLATE
    tables: Sequence[str] = ()
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in get_args(RecordFormat):
            raise ConfigError(f"format {self.format!r}", hint=f"one of {', '.join(get_args(RecordFormat))}")


def publish(
    opener: StreamOpener,
    publication: Publication,
    since: str | None,
    is_stopping: Callable[[], bool],
    report: Report = lambda *_: None,
) -> None:
    """Publish until ``is_stopping``. ``since``: the start of a new publication; an old one continues at its end.
    Raises `ConfigError`, `PublishStopped`, what ends the stream, and before anything was committed also
    `BrokerUnavailable` and `SourceUnavailable`; later these two are tried again without a limit."""
    keyspace = opener.get_keyspace(publication.keyspace)
    _require_format(publication, keyspace)
    topics = Topics(publication.prefix, _find_schemas(opener.read_config, keyspace.name), publication.template)
    pause_seconds, is_begun = RETRY_MIN_SECONDS, False
    while not is_stopping():
        run: _Run | None = None
        try:
            with closing(
                KafkaWriter(publication.brokers, publication.prefix, topics.positions, publication.settings)
            ) as kafka:
                found = kafka.read_position()
                # Once begun, a position is there, and --since was obeyed.
                start = _find_start(found, keyspace, None if is_begun else since, topics)
                opened = opener.open(StreamQuery(keyspace.name, "-", start, publication.tables, minimize_skew=False))
                try:
                    if found is None:
                        kafka.commit(opened.stream.resume)
                    is_begun = True
                    run = _Run(opened, kafka, _make_writer(publication, keyspace, topics, opened), report)
                    run.follow(is_stopping)
                    return
                finally:
                    opened.stream.close()
        except (BrokerUnavailable, SourceUnavailable, _Void) as error:
            if not is_begun:
                raise
            if run is not None and run.published:
                pause_seconds = RETRY_MIN_SECONDS
            log.warning("%s; the position is read back in %.1f s", error, pause_seconds)
            _wait(pause_seconds, is_stopping)
            pause_seconds = min(2 * pause_seconds, RETRY_MAX_SECONDS)


class _Void(FreshnessError):
    """Pieces of a transaction were published that was not committed on the source: they must not be committed."""

    is_retryable = True


@dataclass(slots=True)
class _Run:
    """One stretch of the stream, with one writer. ``open_shards``: the shards in the middle of a transaction."""

    opened: OpenedStream
    kafka: KafkaWriter
    writer: RecordWriter
    report: Report
    published: int = 0
    _open_shards: set[str] = field(default_factory=set)
    _pending: int = 0
    _committed_at: float = field(default_factory=time.monotonic)
    _config: Config = field(init=False)
    _deduplicator: Deduplicator = field(init=False)

    def __post_init__(self) -> None:
        self._take_topology()

    def follow(self, is_stopping: Callable[[], bool]) -> None:
        """Publish until ``is_stopping``. A transaction that is not whole by then is given up: it comes again."""
        while not is_stopping():
            self.opened.follow()
            if self.opened.config is not self._config:
                self._take_topology()
            message = self.opened.stream.poll(COMMIT_SECONDS)
            if message is not None:
                self._publish(message)
            if self._is_due():
                self._commit()
        if not self._open_shards:
            self._commit()

    def _publish(self, message: StreamMessage) -> None:
        if not message.first_row and message.shard in self._open_shards:
            raise _Void(f"shard {message.shard}: the transaction before {message.token.position} was cut off")
        if self._deduplicator.take(message) is None:
            return
        for record in self.writer.records(message):
            self.kafka.produce(record)
            self._pending += 1
        (self._open_shards.discard if message.is_last else self._open_shards.add)(message.shard)

    def _is_due(self) -> bool:
        if self._open_shards:
            gone = self._open_shards - {each.shard for each in self.opened.stream.status()}
            if gone:
                raise _Void(f"shard {', '.join(sorted(gone))} left in the middle of a transaction")
            return False
        waited = time.monotonic() - self._committed_at
        if self._pending:
            return self._pending >= COMMIT_RECORDS or waited >= COMMIT_SECONDS
        return waited >= IDLE_COMMIT_SECONDS

    def _commit(self) -> None:
        position = self.opened.stream.resume
        self.kafka.commit(position)
        self.published += self._pending
        self._pending, self._committed_at = 0, time.monotonic()
        self.report(self.published, position)

    def _take_topology(self) -> None:
        self._config = self.opened.config
        shards = self._config.keyspaces[self.opened.keyspace.name].shards
        continues = {shard.lineage: shard.continues for shard in shards}
        self._deduplicator = Deduplicator(self.opened.stream.resume.tokens, continues)


def _require_format(publication: Publication, keyspace: Keyspace) -> None:
    if publication.format == "debezium" and keyspace.flavor == "vitess":
        raise ConfigError(
            f"keyspace {keyspace.name} is on Vitess, and the envelope is that of Debezium's connectors for MySQL and"
            " MariaDB",
            hint="publish it with --format lines",
        )


def _find_start(found: ResumeVector | None, keyspace: Keyspace, since: str | None, topics: Topics) -> Start | str:
    if found is None:
        if since is None:
            raise ConfigError(
                f"topic {topics.positions} holds no position: where is the publication to begin?",
                hint='give --since once, such as --since now; it is "now", a resume text, a token or a time',
            )
        return since
    if found.keyspace != keyspace.name or found.key_range != KeyRange():
        raise ConfigError(
            f"topic {topics.positions} holds the position of keyspace {found.keyspace}, and not of {keyspace.name}",
            hint="choose another --prefix: each publication has its own",
        )
    if since is not None:
        raise ConfigError(
            f"the publication {topics.prefix} goes on where it ends, and not at {since!r}",
            hint="leave --since out, or begin another publication with --prefix",
        )
    return found


def _make_writer(publication: Publication, keyspace: Keyspace, topics: Topics, opened: OpenedStream) -> RecordWriter:
    lines = LineWriter(opened.layouts, opened.stream.resume.format(), heartbeats=False)
    if publication.format == "lines":
        return LineRecords(topics, lines)
    return EnvelopeRecords(topics, lines, "mysql" if keyspace.flavor == "mysql" else "mariadb")


def _find_schemas(read_config: Callable[[], Config], keyspace: str) -> Callable[[str], str]:
    known: dict[str, str] = {}

    def find(shard_name: str) -> str:
        """Also of a shard that has left: what it still delivers is published."""
        if shard_name not in known:
            known.update({each.name: each.primary.database for each in read_config().keyspaces[keyspace].shards})
        return known[shard_name]

    return find


def _wait(seconds: float, is_stopping: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while not is_stopping() and time.monotonic() < until:
        time.sleep(min(0.1, seconds))
