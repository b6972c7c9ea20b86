"""The merged update stream over scripted sources: order, resuming, failures, key ranges, pieces, other topologies."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import pytest

from freshness.algorithm.request import Head
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.errors import (
    ConfigError,
    FormatError,
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet, Position, empty_position, parse_position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from freshness.stream.source import UNREADABLE, Heartbeat, RowChange, Transaction
from invalidator.stream import feed as module
from invalidator.stream import update_stream
from invalidator.stream.deduplicator import Deduplicator
from invalidator.stream.feed import PURGED_HINT, Access
from invalidator.stream.message import StreamMessage
from invalidator.stream.row_filter import RowFilter
from invalidator.stream.skew import Alignment
from invalidator.stream.start import ShardStart, Start, join_positions, parse_past, parse_start, plan_start
from invalidator.stream.update_stream import UpdateStream

SECOND: Final = 1_000_000
BOUND_SECONDS: Final = 60.0
ADDRESS: Final = ServerAddress("127.0.0.1", 1)
UUIDS: Final = {
    name: f"{number:08x}-0000-0000-0000-000000000000" for number, name in enumerate(("o", "a", "b", "m"), 1)
}
SHARDS: Final = {"o": "-", "a": "-80", "b": "80-", "m": "-"}


def gtid(source: str, number: int) -> MysqlGtidSet:
    return MysqlGtidSet.of(UUIDS[source], number)


def up_to(**numbers: int) -> Position:
    return parse_position(
        "mysql", ",".join(f"{UUIDS[name]}:1-{number}" for name, number in numbers.items() if number)
    )


def insert(place: int) -> RowChange:
    return RowChange("goods", "insert", None, {"id": place})


def transaction(source: str, number: int, *changes: RowChange, seconds: float | None = None) -> Transaction:
    time_us = round((number if seconds is None else seconds) * SECOND)
    return Transaction(gtid(source, number), time_us, changes or (insert(number),))


def beat(source: str, number: int, epoch: int, min_us: int = 0) -> Transaction:
    heartbeat = Heartbeat("me", number, min_us or number * SECOND, min_us or number * SECOND, epoch)
    return Transaction(gtid(source, number), number * SECOND, heartbeats=(heartbeat,))


def pieces(source: str, number: int, rows: int, size: int) -> list[Transaction]:
    """One transaction of that many rows; each row has its place as id."""
    whole = [insert(place) for place in range(rows)]
    starts = range(0, rows, size)
    return [
        Transaction(
            gtid(source, number),
            number * SECOND,
            tuple(whole[first : first + size]),
            first_row=first,
            is_last=first == starts[-1],
        )
        for first in starts
    ]


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed stream ends within one poll of its sources."""
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)


@dataclass
class Log:
    """A shard's server and its faults: each error of ``faults`` once, after that number of polled transactions."""

    head: Position = field(default_factory=lambda: empty_position("mysql"))
    epoch: int = 1
    transactions: list[Transaction] = field(default_factory=list)
    faults: dict[int, FreshnessError | Exception] = field(default_factory=dict)
    head_faults: list[FreshnessError] = field(default_factory=list)
    opened: list[Position] = field(default_factory=list)
    sought: list[int] = field(default_factory=list)
    polled: int = 0
    is_away: bool = False
    is_closed: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def add(self, *transactions: Transaction) -> None:
        with self.changed:
            self.transactions += transactions
            for each in transactions:
                self.head = self.head.union(each.position)
            self.changed.notify_all()


class LogSource:
    """A source that reads a `Log`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._left: list[Transaction] | None = None
        self._start: Position = empty_position("mysql")
        self._seen = 0

    def open(self, start: Position) -> None:
        if self._log.is_away:
            raise SourceUnavailable("away")
        self._log.opened.append(start)
        self._start, self._seen = start, 0

    def poll(self, timeout_seconds: float, transactions_max: int) -> list[Transaction]:
        log = self._log
        with log.changed:
            log.changed.wait_for(lambda: self._next() is not None or log.polled in log.faults, timeout_seconds)
            taken: list[Transaction] = []
            while len(taken) < transactions_max and (found := self._next()) is not None:
                if log.polled in log.faults:
                    break
                taken.append(found)
                self._seen += 1
                log.polled += 1
            if not taken and log.polled in log.faults:
                raise log.faults.pop(log.polled)
            return taken

    def close(self) -> None:
        self._log.is_closed = True

    def _next(self) -> Transaction | None:
        wanted = [each for each in self._log.transactions if not self._start.contains(each.position)]
        return wanted[self._seen] if self._seen < len(wanted) else None


@dataclass
class Servers:
    """The logs by lineage, and how a stream gets at them."""

    logs: dict[str, Log]

    @classmethod
    def of(cls, *names: str) -> Servers:
        return cls({name: Log() for name in names})

    @property
    def shards(self) -> tuple[Shard, ...]:
        return tuple(shard(name) for name in self.logs)

    def access(self, *, seek: bool = True, find_keyspace_id: Any = None) -> Access:
        return Access(
            open_source=lambda shard: LogSource(self.logs[shard.lineage]),
            find_head=self._find_head,
            seek=self._seek if seek else None,
            find_keyspace_id=find_keyspace_id,
        )

    def _find_head(self, shard: Shard) -> Head:
        log = self.logs[shard.lineage]
        if log.head_faults:
            raise log.head_faults.pop(0)
        return Head(log.head, log.epoch)

    def _seek(self, shard: Shard, timestamp_us: int) -> Position:
        """Everything before the first transaction that is not older."""
        log = self.logs[shard.lineage]
        log.sought.append(timestamp_us)
        position = empty_position("mysql")
        for each in log.transactions:
            if each.timestamp_us >= timestamp_us:
                break
            position = position.union(each.position)
        return position


def shard(name: str, **options: Any) -> Shard:
    return Shard(name=SHARDS[name], primary=ADDRESS, lineage=name, **options)


def keyspace(shards: Sequence[Shard]) -> Keyspace:
    return Keyspace(name="shop", flavor="mysql", shards=tuple(shards))


@contextmanager
def streaming(
    servers: Servers,
    start: Start = "now",
    *,
    shards: Sequence[Shard] | None = None,
    access: Access | None = None,
    **options: Any,
) -> Iterator[UpdateStream]:
    stream = UpdateStream(
        keyspace(servers.shards if shards is None else shards),
        access or servers.access(),
        start=start,
        rewind_seconds=options.pop("rewind_seconds", 0),
        **options,
    )
    try:
        yield stream
    finally:
        stream.close()


def read(stream: UpdateStream, count: int) -> list[StreamMessage]:
    """The next ``count`` messages; fails if they do not come."""
    messages: list[StreamMessage] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while len(messages) < count:
        message = stream.poll(0.5)
        if message is not None:
            messages.append(message)
        assert time.monotonic() < deadline, f"{len(messages)} of {count}: {stream.status()}"
    return messages


def read_until(stream: UpdateStream, is_enough: Callable[[], bool]) -> list[StreamMessage]:
    messages: list[StreamMessage] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while not is_enough():
        message = stream.poll(0.05)
        if message is not None:
            messages.append(message)
        assert time.monotonic() < deadline, str(stream.status())
    return messages


def nothing_comes(stream: UpdateStream) -> bool:
    return stream.poll(0.3) is None


BEGINNING: Final[Mapping[str, Position]] = {name: empty_position("mysql") for name in UUIDS}


def positions_of(messages: Iterable[StreamMessage], lineage: str) -> list[Position]:
    return [message.token.position for message in messages if message.token.lineage == lineage]


def ids_of(message: StreamMessage) -> list[Any]:
    return [(change.after or change.before or {})["id"] for change in message.transaction.changes]


# -- delivery and resuming --------------------------------------------------------------------------------------


def filled(*names: str, count: int = 20) -> Servers:
    servers = Servers.of(*names)
    for name in names:
        servers.logs[name].add(*(transaction(name, number) for number in range(1, count + 1)))
    return servers


def test_every_transaction_of_every_shard_comes_once_in_the_order_of_its_log() -> None:
    servers = filled("a", "b")
    with streaming(servers, BEGINNING) as stream:
        messages = read(stream, 40)
        assert nothing_comes(stream)
        for name in "ab":
            assert positions_of(messages, name) == [gtid(name, number) for number in range(1, 21)]
        assert {lineage: token.position for lineage, token in stream.resume.tokens.items()} == {
            "a": up_to(a=20),
            "b": up_to(b=20),
        }
    first = messages[0]
    assert first.transaction.changes == (insert(1),)
    assert (first.keyspace, first.key_range, first.is_last, first.is_aligned) == ("shop", "-", True, True)
    assert first.token == EventToken(first.token.lineage, first.shard, 1, SECOND, first.token.position)


def test_a_stream_from_now_has_what_comes_after_the_heads() -> None:
    servers = filled("a", "b")
    with streaming(servers) as stream:
        assert nothing_comes(stream)
        servers.logs["b"].add(transaction("b", 21))
        [message] = read(stream, 1)
        assert message.token.position == gtid("b", 21)
        assert message.resume["a"].position == up_to(a=20)


def test_resuming_at_every_message_loses_and_repeats_nothing() -> None:
    servers = filled("a", "b", count=6)
    with streaming(servers, BEGINNING) as stream:
        messages = read(stream, 12)
    for place, message in enumerate(messages):
        text = message.vector.format()
        with streaming(servers, ResumeVector.parse(text)) as stream:
            rest = read(stream, 11 - place)
        for name in "ab":
            whole = positions_of(messages[: place + 1], name) + positions_of(rest, name)
            assert whole == [gtid(name, number) for number in range(1, 7)]


def test_the_minimum_time_is_that_of_the_shard_that_is_furthest_behind() -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].add(*(transaction("a", number, seconds=100 + number) for number in range(1, 4)))
    servers.logs["b"].add(transaction("b", 1, seconds=50), transaction("b", 2, seconds=40))
    with streaming(servers, BEGINNING) as stream:
        messages = read(stream, 5)
    assert messages[-1].min_timestamp_us == 50 * SECOND, "an older time does not lower what was delivered"
    assert messages[-1].resume["a"].timestamp_us == 103 * SECOND
    for message in messages:
        assert message.min_timestamp_us == min(token.timestamp_us for token in message.resume.values())


def test_an_event_token_starts_its_shard_after_the_event_and_the_others_by_time() -> None:
    servers = filled("a", "b")
    token = EventToken("a", "-80", 1, 10 * SECOND, up_to(a=10))
    with streaming(servers, token, rewind_seconds=3) as stream:
        messages = read(stream, 24)
        assert nothing_comes(stream)
    assert positions_of(messages, "a") == [gtid("a", number) for number in range(11, 21)]
    assert positions_of(messages, "b") == [gtid("b", number) for number in range(7, 21)]
    assert servers.logs["b"].sought == [7 * SECOND]


def test_the_own_token_of_an_event_of_mysql_starts_its_shard_by_time() -> None:
    """It names one transaction. As a position it would lack all that came before, which the log may not have."""
    servers = filled("a")
    token = EventToken("a", "-80", 1, 10 * SECOND, gtid("a", 10))
    with streaming(servers, token, rewind_seconds=3) as stream:
        messages = read(stream, 14)
        assert nothing_comes(stream)
    assert positions_of(messages, "a") == [gtid("a", number) for number in range(7, 21)]
    assert servers.logs["a"].sought == [7 * SECOND]


def test_a_time_is_looked_up_with_a_margin() -> None:
    servers = filled("a", "b")
    with streaming(servers, 15 * SECOND, rewind_seconds=5) as stream:
        messages = read(stream, 22)
    assert min(message.token.timestamp_us for message in messages) == 10 * SECOND
    assert [servers.logs[name].sought for name in "ab"] == [[10 * SECOND]] * 2


def test_a_lineage_that_the_vector_lacks_starts_at_its_least_time() -> None:
    servers = filled("a", "b")
    vector = ResumeVector("shop", KeyRange(), {"a": EventToken("a", "-80", 1, 12 * SECOND, up_to(a=15))})
    with streaming(servers, vector) as stream:
        messages = read(stream, 5 + 9)
    assert positions_of(messages, "b")[0] == gtid("b", 12)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ({"a": up_to(a=1)}, "lineage b"),
        ({"a": parse_position("mariadb", "0-1-1"), "b": up_to(b=1)}, "mariadb position"),
        (ResumeVector("other", KeyRange(), {}), "keyspace other"),
        (ResumeVector("shop", KeyRange.parse("-80"), {}), "key range -80"),
        (ResumeVector("shop", KeyRange(), {}), "no lineage"),
        (EventToken("a", "-80", 1, 5, parse_position("mariadb", "0-1-1")), "mariadb position"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start: Start, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        UpdateStream(keyspace(Servers.of("a", "b").shards), Servers.of("a", "b").access(), start=start)


def test_a_time_is_refused_where_it_cannot_be_looked_up() -> None:
    servers = Servers.of("a")
    with pytest.raises(ConfigError, match="by time only"):
        UpdateStream(keyspace(servers.shards), servers.access(seek=False), start=5)


def test_a_key_range_without_a_shard_is_refused() -> None:
    servers = Servers.of("a")
    with pytest.raises(ConfigError, match="key range 90-"):
        UpdateStream(keyspace(servers.shards), servers.access(), key_range=KeyRange.parse("90-"))


def test_only_serving_shards_that_overlap_are_read() -> None:
    servers = filled("a", "b", "o")
    shards = (shard("a"), shard("b"), shard("o", serving=False))
    with streaming(servers, BEGINNING, shards=shards, key_range=KeyRange.parse("-80")) as stream:
        messages = read(stream, 20)
        assert nothing_comes(stream)
    assert {message.token.lineage for message in messages} == {"a"}
    assert not servers.logs["b"].opened
    assert not servers.logs["o"].opened


def test_iteration_ends_with_close_and_a_closed_stream_says_so() -> None:
    servers = filled("a")
    stream = UpdateStream(keyspace(servers.shards), servers.access(), start=BEGINNING)
    for number, message in enumerate(stream, 1):
        assert message.token.position == gtid("a", number)
        if number == 20:
            stream.close()
    with pytest.raises(SourceUnavailable, match="closed"):
        stream.poll(0)
    assert servers.logs["a"].is_closed
    stream.close()


# -- failures ---------------------------------------------------------------------------------------------------


def test_nothing_comes_before_every_shard_knows_where_it_begins() -> None:
    servers = filled("a", "b", count=3)
    servers.logs["b"].head_faults += [SourceUnavailable("down")] * 2
    with streaming(servers) as stream:
        servers.logs["a"].add(transaction("a", 4))
        assert not stream.wait_started(0)
        [message] = read(stream, 1)
        assert stream.wait_started(0)
        assert message.resume.keys() == {"a", "b"}
        assert servers.logs["b"].head_faults == []


def test_a_shard_whose_server_is_away_is_opened_again_where_it_was_while_others_go_on() -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].is_away = True
    servers.logs["a"].faults[7] = SourceUnavailable("gone again")
    for name in "ab":
        servers.logs[name].add(*(transaction(name, number) for number in range(1, 11)))
    with streaming(servers, BEGINNING) as stream:
        messages = read(stream, 10)
        assert positions_of(messages, "b") == [gtid("b", number) for number in range(1, 11)]
        servers.logs["a"].is_away = False
        messages = read(stream, 10)
        assert nothing_comes(stream)
    assert positions_of(messages, "a") == [gtid("a", number) for number in range(1, 11)]
    assert servers.logs["a"].opened == [up_to(), up_to(a=7)]


def test_the_pause_between_tries_doubles_up_to_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers.of("a")
    log = servers.logs["a"]
    log.faults[0] = SourceUnavailable("first")
    with streaming(servers, BEGINNING) as stream:
        read_until(stream, lambda: len(log.opened) == 2)
        with log.changed:
            log.faults[0] = SourceUnavailable("second")
            log.changed.notify_all()
        read_until(stream, lambda: len(log.opened) == 3)
        log.add(transaction("a", 1))
        read(stream, 1)
        with log.changed:
            log.faults[1] = SourceUnavailable("third")
            log.changed.notify_all()
        read_until(stream, lambda: len(log.opened) == 4)
    pauses = [record.message.rpartition("next try in ")[2] for record in caplog.records]
    assert pauses == ["0.2 s", "0.4 s", "0.2 s"]


@pytest.mark.parametrize("kind", [HistoryPurged, HistoryLost, StreamStopped, SourceUnsuitable])
def test_what_cannot_be_mended_ends_the_stream_after_what_came_before(kind: type[FreshnessError]) -> None:
    servers = filled("a", "b", count=5)
    servers.logs["a"].faults[3] = kind("no more", hint="do this")
    with streaming(servers, BEGINNING) as stream:
        messages: list[StreamMessage] = []
        hint = PURGED_HINT if kind is HistoryPurged else "do this"  # the source speaks to the invalidator
        with pytest.raises(kind, match=re.escape(f"no more ({hint})")):
            messages.extend(iter(partial(stream.poll, BOUND_SECONDS), None))
        assert positions_of(messages, "a") == [gtid("a", number) for number in (1, 2, 3)]
        with pytest.raises(kind, match="no more"):
            stream.poll(0)


def test_a_fault_of_the_program_reaches_the_consumer() -> None:
    servers = filled("a")
    servers.logs["a"].faults[0] = ZeroDivisionError("oops")
    with streaming(servers, BEGINNING) as stream, pytest.raises(StreamStopped, match="oops"):
        stream.poll(BOUND_SECONDS)


def test_a_slow_consumer_makes_the_source_wait() -> None:
    servers = Servers.of("a")
    servers.logs["a"].add(*(transaction("a", number) for number in range(1, 1001)))
    bound = module.TRANSACTIONS_BUFFERED_MAX + module.TRANSACTIONS_PER_POLL
    with streaming(servers, BEGINNING) as stream:
        read(stream, 1)
        time.sleep(0.3)
        assert servers.logs["a"].polled <= bound + 1
        assert len(read(stream, 999)) == 999


@pytest.mark.parametrize(
    ("bound", "most", "rows", "size_bytes"), [("ROWS_BUFFERED_MAX", 10, 8, 0), ("BYTES_BUFFERED_MAX", 1000, 1, 800)]
)
def test_many_rows_and_many_bytes_fill_the_buffer_too(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int, rows: int, size_bytes: int
) -> None:
    monkeypatch.setattr(module, bound, most)
    servers = Servers.of("a")
    changes = [insert(number) for number in range(rows)]
    servers.logs["a"].add(
        *(transaction("a", number, *changes)._replace(size_bytes=size_bytes) for number in range(1, 51))
    )
    with streaming(servers, BEGINNING) as stream:
        read(stream, 1)
        time.sleep(0.2)
        assert servers.logs["a"].polled <= module.TRANSACTIONS_PER_POLL
        assert len(read(stream, 49)) == 49


def test_the_status_says_what_is_wrong() -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].faults[0] = SourceUnavailable("gone")
    with streaming(servers, BEGINNING) as stream:
        read_until(stream, lambda: any(each.error for each in stream.status()))
        a, b = sorted(stream.status())
        assert (a.shard, a.lineage, a.error, a.is_streaming) == ("-80", "a", "gone", False)
        assert (b.error, b.is_leaving) == ("", False)


# -- epochs -----------------------------------------------------------------------------------------------------


def test_tokens_carry_the_epoch_that_the_heartbeats_tell() -> None:
    servers = Servers.of("a")
    servers.logs["a"].add(beat("a", 1, 1), transaction("a", 2), beat("a", 3, 2), transaction("a", 4))
    with streaming(servers, BEGINNING) as stream:
        assert [message.token.epoch for message in read(stream, 4)] == [1, 1, 2, 2]
        assert stream.resume.tokens["a"].epoch == 2


def test_an_epoch_that_was_raised_while_nobody_looked_is_lost_history() -> None:
    servers = filled("a", count=3)
    vector = ResumeVector("shop", KeyRange(), {"a": EventToken("a", "-80", 1, 0, up_to(a=3))})
    servers.logs["a"].add(beat("a", 4, 2))
    with streaming(servers, vector) as stream, pytest.raises(HistoryLost, match="from 1 to 2"):
        stream.poll(BOUND_SECONDS)
    # Seen to be in force first: then the history is the same, and the raise a part of it.
    servers = filled("a", count=3)
    servers.logs["a"].add(beat("a", 4, 1), beat("a", 5, 2))
    with streaming(servers, vector) as stream:
        assert [message.token.epoch for message in read(stream, 2)] == [1, 2]
    # Not so after a reconnect.
    servers = filled("a", count=3)
    servers.logs["a"].add(beat("a", 4, 1), beat("a", 5, 2))
    servers.logs["a"].faults[1] = SourceUnavailable("failover")
    with streaming(servers, vector) as stream:
        read(stream, 1)
        with pytest.raises(HistoryLost):
            stream.poll(BOUND_SECONDS)


# -- pieces -----------------------------------------------------------------------------------------------------


def test_a_huge_transaction_comes_in_pieces_and_counts_with_the_last() -> None:
    servers = Servers.of("a")
    servers.logs["a"].add(transaction("a", 1), *pieces("a", 2, 10, 4))
    with streaming(servers, BEGINNING) as stream:
        first, *parts = read(stream, 4)
    assert [(part.first_row, part.is_last, list(part.rows)) for part in parts] == [
        (0, False, [0, 1, 2, 3]),
        (4, False, [4, 5, 6, 7]),
        (8, True, [8, 9]),
    ]
    assert [part.resume["a"].position for part in parts] == [up_to(a=1), up_to(a=1), up_to(a=2)]
    assert first.resume["a"].timestamp_us == parts[1].min_timestamp_us == SECOND
    assert {part.token.position for part in parts} == {gtid("a", 2)}


def test_who_stops_in_the_middle_of_a_transaction_gets_it_from_its_beginning() -> None:
    servers = Servers.of("a")
    servers.logs["a"].add(transaction("a", 1), *pieces("a", 2, 10, 4))
    with streaming(servers, BEGINNING) as stream:
        last = read(stream, 3)[-1]
    with streaming(servers, last.vector) as stream:
        assert [message.rows[0] for message in read(stream, 3)] == [0, 4, 8]


def test_a_failure_in_the_middle_repeats_a_transaction_from_its_first_row() -> None:
    servers = Servers.of("a")
    servers.logs["a"].add(transaction("a", 1), *pieces("a", 2, 10, 4), transaction("a", 3))
    servers.logs["a"].faults[3] = SourceUnavailable("gone")
    with streaming(servers, BEGINNING) as stream:
        messages = read(stream, 7)
        assert nothing_comes(stream)
    assert [message.first_row for message in messages] == [0, 0, 4, 0, 4, 8, 0]
    assert recorded(messages) == [
        (gtid("a", 1), 0, 1),
        *((gtid("a", 2), row, row) for row in range(10)),
        (gtid("a", 3), 0, 3),
    ]


def test_the_number_of_a_transaction_that_was_cut_off_is_given_to_another_one() -> None:
    """A server that crashed in the middle numbers the next transaction alike (F29). Its rows are other rows."""
    messages = [message_of("a", pieces("a", 2, 8, 4)[0])]
    other = transaction("a", 2, *(insert(number) for number in (70, 71, 72, 73, 74)))
    messages += [message_of("a", other), message_of("a", other)]
    assert recorded(messages) == [(gtid("a", 2), row, 70 + row) for row in range(5)]


def recorded(messages: Iterable[StreamMessage]) -> list[tuple[Position, int, object]]:
    """GTID, row and id of each change as a consumer has them that records each once."""
    once = Deduplicator({})
    rows: list[tuple[Position, int, object]] = []
    held: list[tuple[Position, int, object]] = []
    for message in messages:
        if once.take(message) is None:
            continue
        if not message.first_row:
            held = []
        held += [(message.token.position, *each) for each in zip(message.rows, ids_of(message), strict=True)]
        if message.is_last:
            rows += held
            held = []
    return rows


# -- key ranges -------------------------------------------------------------------------------------------------


def find_keyspace_id(table: str, row: Mapping[str, object]) -> bytes:
    value = row["id"]
    if value is UNREADABLE:
        raise FormatError("unreadable")
    assert isinstance(value, int)
    return bytes((value,))


def cut(change: RowChange, key_range: str = "40-80") -> RowChange | None:
    changed, numbers = RowFilter([KeyRange.parse(key_range)], find_keyspace_id).apply(
        Transaction(gtid("a", 1), 0, (change,), first_row=7)
    )
    assert numbers == ((7,) if changed.changes else ())
    return changed.changes[0] if changed.changes else None


def test_rows_are_cut_at_the_key_range() -> None:
    inside, outside = {"id": 0x41, "v": 1}, {"id": 0x81, "v": 1}
    for op, images in (("insert", (None, inside)), ("delete", (inside, None)), ("update", (inside, inside))):
        change = RowChange("goods", op, *images)  # type: ignore[arg-type]
        assert cut(change) == change
    for op, images in (("insert", (None, outside)), ("delete", (outside, None)), ("update", (outside, outside))):
        assert cut(RowChange("goods", op, *images)) is None  # type: ignore[arg-type]


def test_a_row_that_moves_out_is_deleted_and_one_that_moves_in_inserted() -> None:
    inside, outside = {"id": 0x41, "v": 1}, {"id": 0x81, "v": 1}
    assert cut(RowChange("goods", "update", inside, outside)) == RowChange("goods", "delete", inside, None)
    assert cut(RowChange("goods", "update", outside, inside)) == RowChange("goods", "insert", None, inside)
    # An image that leaves out what did not change
    assert cut(RowChange("goods", "update", outside, {"id": 0x41})) == RowChange("goods", "insert", None, inside)
    kept = RowChange("goods", "update", inside, {"v": 2})
    assert cut(kept) == kept


@pytest.mark.parametrize("row", [{"v": 1}, {"id": UNREADABLE}, {"id": "text"}])
def test_what_cannot_be_told_is_delivered_with_the_reason(row: dict[str, object]) -> None:
    def find(table: str, row: Mapping[str, object]) -> bytes:
        if isinstance(row["id"], str):
            raise TypeError("no number")
        return find_keyspace_id(table, row)

    change = RowChange("goods", "insert", None, row)
    filtered, numbers = RowFilter([KeyRange.parse("40-80")], find).apply(
        Transaction(gtid("a", 1), 0, (insert(0x90), change), reasons=("before",))
    )
    assert (filtered.changes, numbers) == ((change,), (1,))
    assert filtered.reasons[0] == "before"
    assert "keyspace id of a row of goods" in filtered.reasons[1]


def test_a_key_range_that_cuts_through_shards() -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].add(transaction("a", 1, insert(0x10), insert(0x50)), transaction("a", 2, insert(0x11)))
    servers.logs["b"].add(transaction("b", 1, insert(0x90), insert(0xD0)))
    access = servers.access(find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, access=access, key_range=KeyRange.parse("40-c0")) as stream:
        messages = read(stream, 3)
    found = {str(message.token.position): (ids_of(message), list(message.rows)) for message in messages}
    assert found == {
        str(gtid("a", 1)): ([0x50], [1]),
        str(gtid("a", 2)): ([], []),  # for its position
        str(gtid("b", 1)): ([0x90], [0]),
    }
    assert {message.key_range for message in messages} == {"40-c0"}


def test_rows_that_must_be_told_apart_need_a_way_to() -> None:
    servers = Servers.of("a")
    with pytest.raises(ConfigError, match="rows beside"):
        UpdateStream(keyspace(servers.shards), servers.access(), key_range=KeyRange.parse("40-c0"))
    with pytest.raises(ConfigError, match="rows beside"):
        UpdateStream(keyspace([shard("a", continues=("o",))]), servers.access())
    with streaming(Servers.of("m"), shards=[shard("m", continues=("a", "b"))]) as stream:
        assert stream.wait_started(BOUND_SECONDS), "all rows are its own"


# -- alignment --------------------------------------------------------------------------------------------------


def test_minimize_skew_holds_the_shard_that_is_ahead_and_plain_streams_do_not() -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].add(*(transaction("a", number, seconds=100 + number) for number in range(1, 11)))
    servers.logs["b"].add(transaction("b", 1, seconds=101))
    with streaming(servers, BEGINNING) as stream:
        assert len(read(stream, 11)) == 11
    with streaming(servers, BEGINNING, minimize_skew=True) as stream:
        messages = read(stream, 4)
        assert nothing_comes(stream)
        assert positions_of(messages, "a") == [gtid("a", number) for number in (1, 2, 3)]
        servers.logs["b"].add(beat("b", 2, 1, min_us=106 * SECOND))
        messages = read(stream, 6)
        assert nothing_comes(stream)
        assert positions_of(messages, "a") == [gtid("a", number) for number in range(4, 9)]
        assert all(message.is_aligned for message in messages)


def test_a_silent_shard_is_given_up_and_the_messages_say_so(caplog: pytest.LogCaptureFixture) -> None:
    servers = Servers.of("a", "b")
    servers.logs["a"].add(*(transaction("a", number, seconds=100 * number) for number in range(1, 4)))
    alignment = partial(Alignment, silence_seconds=0.3)
    start = {"a": EventToken("a", "-80", 1, 0, up_to()), "b": EventToken("b", "80-", 1, 99 * SECOND, up_to())}
    vector = ResumeVector("shop", KeyRange(), start)
    with streaming(servers, vector, minimize_skew=True, alignment=alignment) as stream:
        assert [message.is_aligned for message in read(stream, 3)] == [True, False, False]
        servers.logs["b"].add(transaction("b", 1, seconds=299))
        [back] = read(stream, 1)
        servers.logs["a"].add(transaction("a", 4, seconds=300))
        assert (back.is_aligned, read(stream, 1)[0].is_aligned) == (True, True)
    texts = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == 1
    assert "silent are ['b']" in texts[0]


def test_time_that_the_consumer_takes_is_not_silence() -> None:
    now = [0.0]
    servers = Servers.of("a", "b")
    servers.logs["a"].add(transaction("a", 1, seconds=1), transaction("a", 2, seconds=50))
    with streaming(servers, BEGINNING, minimize_skew=True, clock=lambda: now[0]) as stream:
        read(stream, 1)
        now[0] += 3600
        assert nothing_comes(stream)


# -- other topologies -------------------------------------------------------------------------------------------


def lineages_of(stream: UpdateStream) -> set[str]:
    return set(stream.resume.tokens)


def split(servers: Servers) -> tuple[Shard, Shard]:
    """``o`` becomes ``a`` and ``b`` by replication: both logs have all of o's transactions, then their own."""
    for name in "ab":
        servers.logs[name] = Log()
        servers.logs[name].add(*servers.logs["o"].transactions)
    return shard("a", continues=("o",)), shard("b", continues=("o",))


def test_a_split_with_gtids_kept_loses_and_repeats_nothing() -> None:
    servers = Servers.of("o")
    for number in range(1, 7):
        servers.logs["o"].add(transaction("o", number, insert(number), insert(0x80 + number)))
    access = servers.access(seek=False, find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, shards=[shard("o")], access=access) as stream:
        before = read(stream, 3)
        halves = split(servers)
        for number in (1, 2):
            servers.logs["a"].add(transaction("a", number, insert(0x20 + number), seconds=20 + number))
            # b clears away the rows that are not its own any more: they live on in a
            servers.logs["b"].add(
                transaction("b", number, RowChange("goods", "delete", {"id": number}, None), seconds=30)
            )
        stream.set_shards(halves)
        after = read_until(stream, lambda: stream.resume.tokens.keys() == {"a", "b"})
        after += read(stream, 7 - len(after))
        assert nothing_comes(stream)
    rows = [(str(each.token.position), row) for each in before + after for row in each.rows]
    assert len(rows) == len(set(rows)) == 12 + 2
    assert positions_of(after, "o") == [gtid("o", number) for number in (4, 5, 6)], "the rest came from o"
    assert servers.logs["o"].is_closed


def test_a_shard_that_leaves_delivers_what_its_server_has_by_then() -> None:
    servers = filled("o", count=3 * module.TRANSACTIONS_BUFFERED_MAX)
    access = servers.access(find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, shards=[shard("o")], access=access) as stream:
        messages = read(stream, 1)
        stream.set_shards(split(servers))
        messages += read_until(stream, lambda: stream.resume.tokens.keys() == {"a", "b"})
    assert positions_of(messages, "o") == [each.position for each in servers.logs["o"].transactions]
    assert servers.logs["a"].opened == servers.logs["b"].opened == [servers.logs["o"].head]


def test_resuming_after_a_split_goes_on_in_the_new_shards() -> None:
    servers = Servers.of("o")
    for number in range(1, 7):
        servers.logs["o"].add(transaction("o", number, insert(number), insert(0x80 + number)))
    access = servers.access(seek=False, find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, shards=[shard("o")], access=access) as stream:
        before = read(stream, 3)
    halves = split(servers)
    with streaming(servers, before[-1].vector, shards=halves, access=access) as stream:
        after = read(stream, 6)
        assert nothing_comes(stream)
    rows = {
        (str(each.token.position), row): ids
        for each in before + after
        for row, ids in zip(each.rows, ids_of(each), strict=True)
    }
    assert sum(len(each.rows) for each in before + after) == len(rows) == 12
    assert rows[str(gtid("o", 5)), 0] == 5
    assert rows[str(gtid("o", 5)), 1] == 0x85


def test_a_merge_with_gtids_kept_begins_at_the_union() -> None:
    servers = filled("a", "b", count=4)
    access = servers.access(seek=False, find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, shards=[shard("a"), shard("b")], access=access) as stream:
        read(stream, 8)
        servers.logs["m"] = Log()
        both = [
            each for pair in zip(*(servers.logs[name].transactions for name in "ab"), strict=True) for each in pair
        ]
        servers.logs["m"].add(*both, transaction("m", 1))
        stream.set_shards([shard("m", continues=("a", "b"))])
        [message] = read(stream, 1)
        assert message.token.position == gtid("m", 1)
        assert lineages_of(stream) == {"m"}
        assert nothing_comes(stream)
    assert servers.logs["m"].opened == [up_to(a=4, b=4)]


def test_a_merge_of_which_only_a_part_was_followed_begins_by_time() -> None:
    """The positions of the lineages that the stream did not follow are not known: theirs would all come again."""
    start = ResumeVector("shop", KeyRange(), {"a": EventToken("a", "-80", 1, 7, up_to(a=4))})
    merged = shard("m", continues=("a", "b"))
    assert plan_start(start, merged, "mysql", "shop", KeyRange()) == ShardStart(timestamp_us=7)


def test_fresh_gtids_begin_at_the_least_time_less_the_margin() -> None:
    servers = filled("a", "b", count=10)
    with streaming(servers, BEGINNING, shards=[shard("a"), shard("b")], rewind_seconds=3) as stream:
        read(stream, 20)
        servers.logs["a"].add(transaction("a", 11))
        read(stream, 1)
        servers.logs["m"] = Log()
        servers.logs["m"].add(*(transaction("m", number) for number in range(1, 15)))
        stream.set_shards([shard("m")])
        messages = read(stream, 8)
        assert nothing_comes(stream)
    assert positions_of(messages, "m") == [gtid("m", number) for number in range(7, 15)]
    assert servers.logs["m"].sought == [7 * SECOND]


def test_shards_that_stay_go_on_and_the_vector_never_lacks_a_start() -> None:
    servers = filled("a", "b", count=3)
    servers.logs["m"] = Log(head_faults=[SourceUnavailable("not yet up")] * 3)
    upper = Shard(name="80-", primary=ADDRESS, lineage="m")
    with streaming(servers, BEGINNING, shards=[shard("a"), shard("b")]) as stream:
        read(stream, 6)
        stream.set_shards([shard("a"), upper])
        servers.logs["a"].add(transaction("a", 4))
        [message] = read(stream, 1)
        assert message.token.position == gtid("a", 4)
        assert message.resume.keys() in ({"a", "b"}, {"a", "m"})
        read_until(stream, lambda: lineages_of(stream) == {"a", "m"})
        servers.logs["m"].add(transaction("m", 9))
        [message] = read(stream, 1)
        assert message.resume.keys() == {"a", "m"}


def test_a_shard_that_left_and_is_dead_holds_the_new_ones_up_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(update_stream, "DRAIN_SECONDS", 0.5)
    servers = Servers.of("o")
    servers.logs["o"].add(transaction("o", 1, insert(1)))
    access = servers.access(find_keyspace_id=find_keyspace_id)
    with streaming(servers, BEGINNING, shards=[shard("o")], access=access) as stream:
        read(stream, 1)
        halves = split(servers)
        servers.logs["o"].head = up_to(o=5)  # that never come
        servers.logs["o"].faults[1] = SourceUnavailable("switched off")
        stream.set_shards(halves)
        servers.logs["a"].add(transaction("a", 1))
        [message] = read(stream, 1)
        assert message.token.position == gtid("a", 1)
        assert servers.logs["a"].opened == [up_to(o=1)]


def test_a_shard_whose_servers_changed_goes_on_where_it_is() -> None:
    servers = filled("a", count=5)
    with streaming(servers, BEGINNING) as stream:
        read(stream, 5)
        moved = replace(shard("a"), primary=ServerAddress("127.0.0.1", 2))
        stream.set_shards([moved])
        servers.logs["a"].add(transaction("a", 6))
        messages = read(stream, 1)
        read_until(stream, lambda: len(servers.logs["a"].opened) == 2)
        servers.logs["a"].add(transaction("a", 7))
        messages += read(stream, 1)
        assert nothing_comes(stream)
    assert positions_of(messages, "a") == [gtid("a", 6), gtid("a", 7)]
    assert servers.logs["a"].opened[1] in (up_to(a=5), up_to(a=6))


def test_a_lineage_cannot_become_another_key_range() -> None:
    servers = filled("a", "b", count=3)
    with streaming(servers, BEGINNING) as stream:
        with pytest.raises(ConfigError, match="a lineage of its own"):
            stream.set_shards([Shard(name="-", primary=ADDRESS, lineage="a")])
        assert len(read(stream, 6)) == 6, "nothing was changed"


# -- texts and positions ----------------------------------------------------------------------------------------


def vector() -> ResumeVector:
    tokens = {name: EventToken(name, SHARDS[name], 3, 5, up_to(a=5, b=6)) for name in "ab"}
    return ResumeVector("shöp", KeyRange.parse("40-"), tokens)


def test_a_resume_text_comes_back_as_it_went() -> None:
    text = vector().format()
    assert ResumeVector.parse(f" {text}\n") == vector()
    assert parse_start(text) == vector()


def test_a_resume_text_that_was_cut_or_altered_is_refused() -> None:
    text = vector().format()
    for wrong in (text[:-1], text[:-4], text + "AAAA", "fr1.", "fr1.AAAA", "ft1." + text[4:], "fr1.!", ""):
        with pytest.raises(FormatError):
            ResumeVector.parse(wrong)
    for place in range(4, len(text)):
        other = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
        try:
            found = ResumeVector.parse(other)
        except FormatError:
            continue
        assert found.format() == other, "what is read is exactly what is there"


def test_a_start_as_text() -> None:
    token = EventToken("a", "-80", 1, 5, up_to(a=1))
    assert parse_start("now") == "now"
    assert parse_start(token.format()) == token
    assert parse_start("1970-01-01T00:00:01.5Z") == 1_500_000
    assert parse_start("1970-01-01T01:00:01+01:00") == 1_000_000
    for wrong in ("", "yesterday", "1970-01-01T00:00:01", "17"):
        with pytest.raises(FormatError, match="start"):
            parse_start(wrong)


def test_a_time_that_has_been() -> None:
    def parse(text: str) -> int:
        return parse_past(text, now_us=100 * SECOND, rewind_seconds=1.5)

    assert parse("1970-01-01T00:00:10Z") == 8_500_000
    assert parse("1970-01-01T00:01:40Z") == 98_500_000
    assert parse("1970-01-01T00:00:01Z") == 0
    assert parse(EventToken("a", "-80", 1, 10 * SECOND, up_to(a=1)).format()) == 8_500_000
    assert parse(vector().format()) == max(0, vector().min_timestamp_us - 1_500_000)
    timeless = EventToken("a", "-80", 1, 0, up_to(a=1)).format()
    for wrong in ("now", "1970-01-01T00:01:41Z", timeless):
        with pytest.raises(FormatError, match="no time that has been"):
            parse(wrong)


@pytest.mark.parametrize(
    ("flavor", "positions", "joined"),
    [
        ("mysql", ["", ""], ""),
        ("mysql", ["{a}:1-5", "{b}:1-7"], "{a}:1-5,{b}:1-7"),
        # A common past: what one of them lacks must come again.
        ("mysql", ["{o}:1-100,{a}:1-5", "{o}:1-90,{b}:1-7"], "{o}:1-90,{a}:1-5,{b}:1-7"),
        ("mariadb", ["0-1-5", "1-2-7"], "0-1-5,1-2-7"),
        ("mariadb", ["5-1-100,0-1-5", "5-1-90,1-2-7"], "0-1-5,1-2-7,5-1-90"),
    ],
)
def test_positions_are_joined_so_that_nothing_is_skipped(flavor: str, positions: list[str], joined: str) -> None:
    parsed = [parse_position(flavor, text.format_map(UUIDS)) for text in positions]
    assert join_positions(flavor, parsed) == parse_position(flavor, joined.format_map(UUIDS))


# -- exactly once -----------------------------------------------------------------------------------------------


def message_of(lineage: str, each: Transaction, epoch: int = 1) -> StreamMessage:
    token = EventToken(lineage, SHARDS[lineage], epoch, each.timestamp_us, each.position)
    return StreamMessage("shop", SHARDS[lineage], token, each, {}, 0, each.first_row, each.is_last)


def test_transactions_that_were_recorded_are_dropped() -> None:
    once = Deduplicator({"a": EventToken("a", "-80", 1, 0, up_to(a=3))})
    taken = [once.take(message_of("a", transaction("a", number))) is not None for number in (2, 3, 4, 4, 5)]
    assert taken == [False, False, True, False, True]


def test_the_two_halves_of_a_split_each_bring_their_part_of_one_gtid() -> None:
    once = Deduplicator({"o": EventToken("o", "-", 1, 0, up_to(o=3))}, continues={"a": ("o",), "b": ("o",)})
    for number, expected in ((3, False), (4, True)):
        for name in "ab":
            assert (once.take(message_of(name, transaction("o", number))) is not None) is expected
    assert once.take(message_of("a", transaction("o", 4))) is None


def test_what_is_not_known_is_not_dropped() -> None:
    once = Deduplicator({"a": EventToken("a", "-80", 1, 0, up_to(a=3))}, continues={"m": ("a", "b")})
    assert once.take(message_of("b", transaction("b", 1))) is not None
    assert once.take(message_of("a", transaction("a", 2), epoch=2)) is not None
    once = Deduplicator({"a": EventToken("a", "-80", 1, 0, up_to(a=3))}, continues={"m": ("a", "b")})
    assert once.take(message_of("m", transaction("a", 2))) is not None


def test_a_void_beginning_of_another_transaction_drops_nothing_of_the_next() -> None:
    once = Deduplicator({})
    assert once.take(message_of("a", pieces("a", 1, 8, 4)[0])) is not None
    whole = once.take(message_of("a", transaction("a", 2, insert(0), insert(1))))
    assert whole is not None
    assert ids_of(whole) == [0, 1]
