"""Opens update streams on the configured servers: the composition root of all readers of the stream.

The service, `invalidator stream` and `invalidator record` ask here. Each stream has sources of its own, so no reader
slows another one, or the invalidator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Final, TypeAlias

from freshness.algorithm.request import Head
from freshness.config.config import Config
from freshness.config.keyspace import Keyspace, Shard, SkippedTransaction
from freshness.config.server import ServerAddress
from freshness.database.connection import connected
from freshness.database.heartbeat import HeartbeatWriter, new_instance
from freshness.database.primary import Primary
from freshness.database.schema import key_columns, keyspace_id, load_registry, read_tables
from freshness.errors import ConfigError, FormatError, HistoryPurged, SourceUnavailable
from freshness.keys.keycolumn import KeyColumn
from freshness.keys.keyrange import KeyRange
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position
from freshness.position.token import EventToken
from freshness.stream.resume import REFRESH_PREFIX, RefreshPlace, ResumeVector
from freshness.stream.source import Source
from freshness.stream.tables import MatchedTables, compile_patterns, is_pattern
from invalidator.binlog.rows.layout import Layouts, read_layouts
from invalidator.binlog.seek import TimeIndex, find_position, find_start
from invalidator.binlog.source import BinlogSource, Intake, Skips
from invalidator.mailbox import QueueBounds
from invalidator.replica.source import ReplicaSource
from invalidator.stream.chunk import Chunk, find_table, read_chunk
from invalidator.stream.feed import Access
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.query import RefreshRequest, StreamQuery, require_key_shown
from invalidator.stream.refresh import RefreshedStream
from invalidator.stream.start import Start, parse_start
from invalidator.stream.update_stream import UpdateStream
from invalidator.vstream.open import make_source as make_vstream
from invalidator.vstream.seek import find_position as find_vstream_position

PIECE_ROWS: Final = 1_000
"""Rows of a huge transaction that are handed on at a time."""

SOURCE_QUEUE: Final = QueueBounds(transactions=1_000, rows=20_000)
"""Bounds of the queue in the source of each shard, before the stream's own buffers."""

START_SECONDS: Final = 20.0
"""How long all shards together may take to report their begin."""

VITESS_START_SECONDS: Final = 600.0
"""The same if a log may have to be read through a vtgate from its begin (``invalidator.vstream.seek``)."""


@dataclass(slots=True)
class OpenedStream:
    """A stream that has begun, and what its readers need. ``finder``: finds the cache items of a change; ``config``:
    the configuration that the stream is in, ``read_config``: reads the current one; ``asked``: names and patterns of
    the tables in the query; none for the tables of the configured objects."""

    keyspace: Keyspace
    stream: UpdateStream | RefreshedStream
    layouts: LayoutBook
    finder: KeyFinder
    config: Config
    read_config: Callable[[], Config]
    asked: Sequence[str] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names and patterns of the tables that it carries."""
        return tuple(self.asked or sorted(self.finder.tables))

    def follow(self) -> None:
        """Take over the topology of a configuration that was loaded since the stream was opened; to be called in
        the rhythm of the reader. Raises `ConfigError` if the stream cannot go on in it."""
        config = self.read_config()
        if config is self.config:
            return
        keyspace = config.keyspaces.get(self.keyspace.name)
        if keyspace is None:
            raise ConfigError(f"keyspace {self.keyspace.name} is no longer configured")
        if not self.asked and config.objects != self.config.objects:
            raise ConfigError(
                "the configured objects have changed, and with them the tables of the stream",
                hint="open the stream again from its resume text",
            )
        self.stream.set_shards(keyspace.shards)
        self.config = config


@dataclass(frozen=True, slots=True)
class StreamOpener:
    """``read_config``: reads the current configuration. ``find_index``: lineage → the positions and times of an
    invalidator in this process; None if it does not follow the lineage."""

    read_config: Callable[[], Config]
    find_index: Callable[[str], TimeIndex | None] = lambda _: None

    def get_keyspace(self, name: str | None) -> Keyspace:
        """Raises `ConfigError`: no such keyspace, or several and none is named."""
        return _find_keyspace(self.read_config(), name)

    def open(self, query: StreamQuery, *, pause_seconds: float = 0.0) -> OpenedStream:
        """A stream that has begun, and has a known start. ``pause_seconds``: the delay that the reader allows; with
        a delay, messages cost less, and have keys instead of rows, except those of Vitess (`Transaction.items`).

        Raises `ConfigError` and `FormatError` for a wrong query, `SourceUnavailable`, and the errors that end a
        stream: `HistoryLost`, `StreamStopped`, `SourceUnsuitable`.
        """
        config = self.read_config()
        keyspace = _find_keyspace(config, query.keyspace)
        refresh, rewind_seconds = query.refresh, config.stream.rewind_seconds
        start, place = _find_place(query.since, refresh)
        if isinstance(start, int) and start > time.time_ns() // 1000 + rewind_seconds * 1e6:
            raise FormatError(
                f"start {query.since!r} is in the future",
                hint='what comes until then would be missing: start "now", or at a time that has been',
            )
        definitions = load_registry(config, [keyspace.name])
        finder = KeyFinder(definitions)
        chosen = _choose_tables(keyspace, query.tables) if query.tables else (lambda _: finder.tables)
        keys = find_keys(keyspace, place.tables, chosen, refresh) if place and refresh else {}
        access = _make_access(
            config,
            keyspace,
            chosen,
            self.find_index,
            definitions if pause_seconds else None,
            pause_seconds,
            is_cached=not query.tables,
        )
        minimize_skew = query.minimize_skew
        stream = UpdateStream(
            keyspace,
            access,
            key_range=KeyRange.parse(query.key_range),
            start=start,
            minimize_skew=config.stream.minimize_skew if minimize_skew is None else minimize_skew,
            rewind_seconds=rewind_seconds,
        )
        _wait_started(stream, VITESS_START_SECONDS if keyspace.flavor == "vitess" else START_SECONDS)
        layouts = LayoutBook(partial(_read_layouts, self.read_config, keyspace.name))
        opened = OpenedStream(keyspace, stream, layouts, finder, config, self.read_config, query.tables)
        if place and refresh:
            read = partial(_read_chunk, keyspace.gtid_flavor, access.find_head, refresh)
            opened.stream = RefreshedStream(stream, place, keys, read, refresh)
        return opened

    def read_token(self, keyspace_name: str | None, shard_name: str | None) -> EventToken:
        """All that the primary of a shard has executed by now, as a token. Raises `ConfigError`, `SourceUnavailable`,
        `SourceUnsuitable`."""
        keyspace = self.get_keyspace(keyspace_name)
        shards = {shard.name: shard for shard in keyspace.shards}
        if shard_name is None and len(shards) == 1:
            shard_name = next(iter(shards))
        if shard_name not in shards:
            raise ConfigError(
                "which shard?" if shard_name is None else f"there is no shard {shard_name!r}",
                hint=f"one of {', '.join(shards)}",
            )
        now_us = time.time_ns() // 1000
        shard = shards[shard_name]
        head = _find_head(keyspace, shard)
        return EventToken(shard.lineage, shard.name, head.epoch, now_us, head.position)


def _wait_started(stream: UpdateStream, seconds: float) -> None:
    """Closes a stream that does not begin, and raises `SourceUnavailable` or what has ended it."""
    try:
        if not stream.wait_started(seconds):
            errors = "; ".join(each.error for each in stream.status() if each.error)
            raise SourceUnavailable(
                f"the stream did not begin within {seconds:g} s: {errors or 'no answer'}",
                hint="are the servers up? try again",
            )
    except BaseException:
        stream.close()
        raise


def _find_place(since: str | Start, refresh: RefreshRequest | None) -> tuple[Start, RefreshPlace | None]:
    """The start of the stream, and its refresh. Raises `ConfigError` for a refresh in a refresh."""
    start: Start
    if not isinstance(since, str):
        start = since
    elif refresh is not None and since.strip().startswith(REFRESH_PREFIX):
        start = ResumeVector.parse(since)
    else:
        start = parse_start(since)
    if refresh is None:
        return start, None
    if isinstance(start, ResumeVector) and start.refresh is not None:
        if refresh.tables:
            raise ConfigError(
                f"the resume text goes on with a refresh of {', '.join(start.refresh.tables)}",
                hint="ask for a refresh once, and only for the resume text after that",
            )
        return replace(start, refresh=None), start.refresh
    return start, RefreshPlace(tuple(dict.fromkeys(refresh.tables)), {}) if refresh.tables else None


def find_keys(
    keyspace: Keyspace, tables: Sequence[str], choose: TableChoice, refresh: RefreshRequest
) -> dict[str, tuple[str, ...]]:
    """The columns of the primary key of each table that is to be refreshed. Raises `ConfigError` for one that the
    stream does not carry, or that cannot be read in the order of its key."""
    keys: dict[str, tuple[str, ...]] = {}
    shards = keyspace.serving_shards
    for shard in shards:
        refresh.find_server(shard)
    carried = choose(shards[0])
    for name in tables:
        if is_pattern(name) or name not in carried:
            raise ConfigError(
                f"table {name!r} cannot be refreshed: the stream does not carry it",
                hint="name tables, without patterns, that are among those of the stream (see its tables)",
            )
        found = find_table(shards[0].primary, name)
        if found is None and refresh.tables:
            raise ConfigError(f"there is no table {name!r} in keyspace {keyspace.name}")
        keys[name] = () if found is None else found.walked.key
        if found is not None:
            require_key_shown(refresh.selection, name, found.walked.key)
    return keys


def _read_chunk(
    flavor: str,
    find_head: Callable[[Shard], Head],
    refresh: RefreshRequest,
    shard: Shard,
    table: str,
    after: list[object] | None,
    is_shown_enough: Callable[[EventToken], bool],
) -> Chunk | EventToken:
    return read_chunk(
        refresh.find_server(shard),
        flavor,
        refresh.aim(shard),
        lambda: find_head(shard).position,
        is_shown_enough,
        table,
        after,
        refresh.rows_at_once,
    )


def _find_keyspace(config: Config, name: str | None) -> Keyspace:
    if name is None and len(config.keyspaces) == 1:
        return next(iter(config.keyspaces.values()))
    if name is None or name not in config.keyspaces:
        raise ConfigError(
            "which keyspace?" if name is None else f"there is no keyspace {name!r}",
            hint=f"one of {', '.join(config.keyspaces)}",
        )
    return config.keyspaces[name]


def _make_access(
    config: Config,
    keyspace: Keyspace,
    choose: TableChoice,
    find_index: Callable[[str], TimeIndex | None],
    definitions: Mapping[str, ObjectDefinition] | None,
    pause_seconds: float,
    *,
    is_cached: bool,
) -> Access:
    def make_source(address: ServerAddress, shard: Shard, tables: Set[str]) -> Source:
        return BinlogSource(
            address,
            keyspace.flavor,
            tables,
            definitions=definitions,
            skips=Skips(find_skips(shard, is_cached=is_cached)),
            intake=Intake(PIECE_ROWS if definitions is None else None, SOURCE_QUEUE, pause_seconds),
        )

    def open_source(shard: Shard) -> Source:
        tables = choose(shard)
        if shard.vtgate is not None:
            return make_vstream(
                shard, tables if isinstance(tables, MatchedTables) else dict.fromkeys(tables, ()), queue=SOURCE_QUEUE
            )
        if not shard.replicas:
            return make_source(shard.primary, shard, tables)
        return ReplicaSource(
            [shard.primary, *shard.replicas],
            keyspace.flavor,
            config.stream.replica_choice,
            partial(make_source, shard=shard, tables=tables),
        )

    return Access(
        open_source=open_source,
        find_head=partial(_find_head, keyspace),
        seek=lambda shard, timestamp_us: find_start(
            find_index(shard.lineage), timestamp_us, partial(search_log, keyspace.gtid_flavor, shard)
        ),
        find_keyspace_id=_make_finder(keyspace, choose(keyspace.serving_shards[0])),
    )


def find_skips(shard: Shard, *, is_cached: bool) -> tuple[SkippedTransaction, ...]:
    """The transactions to pass over. An operator names cached tables: in a stream of others each raises all."""
    if is_cached:
        return shard.skip
    return tuple(replace(each, tables=()) for each in shard.skip)


TableChoice: TypeAlias = Callable[[Shard], Set[str]]
"""The tables that the stream of a shard carries."""


def _choose_tables(keyspace: Keyspace, wanted: Sequence[str]) -> TableChoice:
    """Raises `ConfigError` for a name that no table has, and for a pattern that fits none."""
    known = read_tables(keyspace.serving_shards[0].primary)
    for each in wanted:
        fitting = compile_patterns([each]).match
        if not any(map(fitting, known)):
            close = get_close_matches(each, known, n=1)
            raise ConfigError(
                f"there is no table {each!r} in keyspace {keyspace.name}",
                hint=f"did you mean {close[0]}?" if close else "a pattern has * and ?; a view has no rows in the log",
            )
    if not any(map(is_pattern, wanted)):
        return lambda _: frozenset(wanted)
    return lambda shard: MatchedTables(wanted, partial(read_tables, shard.primary))


def search_log(flavor: str, shard: Shard, timestamp_us: int) -> Position:
    """A position from which every transaction comes that was committed at the time (µs since 1970) or later; perhaps
    earlier ones.

    By the primary's log, or the first replica's that goes back so far. A replica commits later than its primary, so
    by its times the stream begins earlier. Raises `HistoryPurged`, `SourceUnavailable`, `StreamStopped`.
    """
    if shard.vtgate is not None:
        return find_vstream_position(shard, timestamp_us)
    try:
        return find_position(shard.primary, flavor, timestamp_us)
    except HistoryPurged:
        for replica in shard.replicas:
            with suppress(HistoryPurged, SourceUnavailable):
                return find_position(replica, flavor, timestamp_us)
        raise


def _make_finder(keyspace: Keyspace, tables: Set[str]) -> Callable[[str, Mapping[str, object]], bytes] | None:
    """Finds the keyspace id of a row; None without sharding."""
    sharding = keyspace.sharding
    if sharding is None:
        return None
    columns = _read_columns(keyspace.serving_shards[0].primary, tables, sharding.column)

    def find(table: str, row: Mapping[str, object]) -> bytes:
        value = row[sharding.column]
        if isinstance(value, bytes):
            if table not in columns:
                raise FormatError(f"the length of {table}.{sharding.column} is not known")
            value = columns[table].pad(value)
        return keyspace_id(sharding.function, value)

    return find


def _read_columns(address: ServerAddress, tables: Set[str], name: str) -> dict[str, KeyColumn]:
    """The sharding column of each table that has one whose values tell a keyspace id; rows of the others come from
    every shard, with the reason."""
    found: dict[str, KeyColumn] = {}
    with connected(address, "reading the schema") as connection:
        for table in tables:
            with suppress(ConfigError):
                (found[table],) = key_columns(connection, address.database, table, (name,))
        return found


def _find_head(keyspace: Keyspace, shard: Shard) -> Head:
    epochs = HeartbeatWriter(shard.writable, keyspace.gtid_flavor, new_instance(), 0)
    primary = Primary(shard.writable, keyspace.gtid_flavor, epochs.epoch)
    try:
        return primary.read_head()
    finally:
        primary.close()
        epochs.close()


def _read_layouts(read_config: Callable[[], Config], keyspace_name: str, shard_name: str) -> Layouts:
    keyspace = read_config().keyspaces.get(keyspace_name)
    shards = () if keyspace is None else sorted(keyspace.shards, key=lambda shard: not shard.serving)
    for shard in shards:
        if shard.name == shard_name:
            return read_layouts(shard.primary)
    raise SourceUnavailable(f"shard {shard_name} is no longer configured")
