"""The publisher's loop: what one transaction of Kafka holds, and what comes again after a failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Final, Self

import pytest

from freshness.errors import BrokerUnavailable, ConfigError, SourceUnavailable
from freshness.keys.keyrange import KeyRange
from freshness.position import MysqlGtidSet, Position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from freshness.stream.source import RowChange, Transaction
from invalidator.binlog.rows.layout import Layout
from invalidator.publish import publish as module
from invalidator.publish.publish import Publication, publish
from invalidator.publish.record import Record
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage

COLUMNS: Final = frozenset(("id",))
LAYOUTS: Final = LayoutBook(lambda _: {"goods": Layout(("id",), COLUMNS, COLUMNS)})


def at(numbers: str) -> Position:
    return MysqlGtidSet.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{numbers}")


def vector(tokens: dict[str, EventToken]) -> ResumeVector:
    return ResumeVector("shop", KeyRange(), dict(tokens))


def rows(records: Sequence[Record]) -> list[bytes | None]:
    return [record.key for record in records if record.value is not None]


def key(*numbers: int) -> list[bytes]:
    return [b'{"id":%d}' % number for number in numbers]


@dataclass
class Broker:
    """What is committed, and what a writer has in its open transaction. ``failures``: raised by the next calls."""

    committed: list[Record] = field(default_factory=list)
    position: ResumeVector | None = None
    positions: list[ResumeVector] = field(default_factory=list)
    pending: list[Record] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)

    def open(self, *_: Any) -> Self:
        self.pending = []  # another writer's transaction is given up
        return self

    def close(self) -> None:
        self.pending = []

    def read_position(self) -> ResumeVector | None:
        return self.position

    def produce(self, record: Record) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.pending.append(record)

    def commit(self, position: ResumeVector) -> None:
        self.committed += self.pending
        self.pending, self.position = [], position
        self.positions.append(position)


@dataclass
class Stream:
    """Gives the messages behind its start, one for each poll. ``between``: called before the poll of that number."""

    log: Sequence[StreamMessage]
    tokens: dict[str, EventToken]
    between: dict[int, Callable[[], None]] = field(default_factory=dict)
    shards: list[str] = field(default_factory=lambda: ["-80", "80-"])
    polls: int = 0
    is_closed: bool = False

    @property
    def resume(self) -> ResumeVector:
        return vector(self.tokens)

    def poll(self, _: float) -> StreamMessage | None:
        self.between.get(self.polls, lambda: None)()
        message = self.log[self.polls] if self.polls < len(self.log) else None
        self.polls += 1
        if message is not None and message.is_last:
            known = self.tokens.get(message.token.lineage, message.token)
            position = known.position.union(message.token.position)
            self.tokens[message.token.lineage] = replace(message.token, position=position)
        return message

    def status(self) -> list[Any]:
        return [SimpleNamespace(shard=name) for name in self.shards]

    def close(self) -> None:
        self.is_closed = True


class World:
    """``logs``: a log for each stream that is opened, in turn; the last one for all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *logs: Sequence[StreamMessage]) -> None:
        self.broker, self.logs, self.now = Broker(), list(logs), 100.0
        self.opened: list[Stream] = []
        self.starts: list[Any] = []
        self.between: dict[int, Callable[[], None]] = {}
        self.config = self.make_config()
        self.reported = 0
        monkeypatch.setattr(module, "KafkaWriter", self.broker.open)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass)
        monkeypatch.setattr(module, "time", clock)

    def make_config(self, **continues: tuple[str, ...]) -> Any:
        shards = [
            SimpleNamespace(
                name=name, lineage=name, continues=continues.get(name, ()), primary=SimpleNamespace(database=name)
            )
            for name in ("-80", "80-", "new")
        ]
        return SimpleNamespace(keyspaces={"shop": SimpleNamespace(shards=shards)})

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    # -- the opener --------------------------------------------------------------------------------------

    def get_keyspace(self, _: str | None) -> Any:
        return SimpleNamespace(name="shop", flavor="mysql")

    def read_config(self) -> Any:
        return self.config

    def open(self, query: Any) -> Any:
        self.starts.append(query.since)
        tokens = dict(query.since.tokens) if isinstance(query.since, ResumeVector) else {}
        log = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        stream = Stream(log, tokens or {"-80": token("-80", 1)}, self.between)
        self.opened.append(stream)
        opened = SimpleNamespace(stream=stream, layouts=LAYOUTS, config=self.config, keyspace=self.get_keyspace(None))
        opened.follow = lambda: setattr(opened, "config", self.config)
        return opened

    def publish(self, polls: int, since: str | None = "now") -> None:
        """Until the stream that was opened last has been polled so often."""

        def report(published: int, _: ResumeVector) -> None:
            self.reported = published

        def is_stopping() -> bool:
            self.now += 0.01
            return sum(each.polls for each in self.opened) >= polls

        publish(self, Publication(brokers="b", prefix="p"), since, is_stopping, report)  # type: ignore[arg-type]


def token(shard: str, number: int) -> EventToken:
    return EventToken(shard, shard, 1, 0, at(f"1-{number}"))


def message(shard: str, number: int, *numbers: int, first_row: int = 0, is_last: bool = True) -> StreamMessage:
    """Transaction ``number`` of a shard, or a piece of it, with rows of these keys."""
    changes = tuple(RowChange("goods", "insert", None, {"id": each}) for each in numbers)
    its = EventToken(shard, shard, 1, 0, at(str(number)))
    transaction = Transaction(its.position, 1, changes, first_row=first_row, is_last=is_last)
    return StreamMessage("shop", shard, its, transaction, {}, 0, first_row=first_row, is_last=is_last)


def test_rows_and_the_position_behind_them_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [message("-80", 2, 1, 2), message("-80", 3, 3)])
    world.publish(4)
    assert rows(world.broker.committed) == key(1, 2, 3)
    assert world.broker.position == vector({"-80": token("-80", 3)})
    assert world.broker.positions[0] == vector({"-80": token("-80", 1)}), "the start, before any row"
    assert world.reported == 3
    assert world.opened[0].is_closed


def test_no_commit_falls_into_a_transaction_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [message("-80", 2, 1, is_last=False), message("80-", 7, 5), message("-80", 2, 2, first_row=1)]
    world = World(monkeypatch, pieces)

    def wait() -> None:
        world.now += module.IDLE_COMMIT_SECONDS
        assert world.broker.committed == []

    world.between = {1: wait, 2: wait}
    world.publish(4)
    assert sorted(filter(None, rows(world.broker.committed))) == key(1, 2, 5)


def test_a_transaction_that_is_not_whole_at_the_stop_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [message("-80", 2, 1), message("-80", 3, 2, is_last=False)])
    world.publish(2)
    assert rows(world.broker.committed) in ([], key(1))
    assert world.broker.position == vector({"-80": token("-80", 1)})
    world.publish(6, since=None)
    assert world.starts[1] == vector({"-80": token("-80", 1)})


def test_pieces_that_were_cut_off_are_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that crashed gives the GTID again, to another transaction."""
    first = [message("-80", 2, 1, is_last=False), message("-80", 2, 9)]
    world = World(monkeypatch, first, [message("-80", 2, 9)])
    world.publish(5)
    assert rows(world.broker.committed) == key(9)
    assert len(world.opened) == 2


def test_a_shard_that_leaves_in_the_middle_of_a_transaction_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [message("-80", 2, 1, is_last=False)], [message("80-", 7, 5)])
    world.between = {1: lambda: world.opened[0].shards.__setitem__(slice(None), ["80-"])}
    world.publish(5)
    assert rows(world.broker.committed) == key(5)


@pytest.mark.parametrize("error", [BrokerUnavailable("down"), SourceUnavailable("down")])
def test_after_a_failure_it_goes_on_at_the_position_that_kafka_has(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world = World(monkeypatch, [message("-80", 2, 1), message("-80", 3, 2)])
    world.broker.failures.append(error)
    world.publish(5)
    assert world.starts == ["now", vector({"-80": token("-80", 1)})], "--since is obeyed once"
    assert rows(world.broker.committed) == key(1, 2)


def test_before_anything_was_committed_a_failure_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [])

    def fail(_: Any) -> Any:
        raise SourceUnavailable("down")

    monkeypatch.setattr(world, "open", fail)
    with pytest.raises(SourceUnavailable):
        world.publish(5)


def test_what_comes_again_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    again = message("-80", 2, 1)
    world = World(monkeypatch, [again, again, message("-80", 3, 2)])
    world.publish(5)
    assert rows(world.broker.committed) == key(1, 2)


def test_what_a_shard_continues_is_published_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topology changes while it runs: a shard that joins has the GTIDs of the one that it continues."""
    world = World(monkeypatch, [message("-80", 2, 1), message("new", 2, 1), message("new", 3, 2)])

    def reshard() -> None:
        world.config = world.make_config(new=("-80",))

    world.between = {0: reshard}
    world.publish(5)
    assert rows(world.broker.committed) == key(1, 2)


@pytest.mark.parametrize(
    ("found", "since", "told"),
    [
        (None, None, "holds no position"),
        (vector({"-80": token("-80", 1)}), "now", "and not at .now."),
        (replace(vector({"-80": token("-80", 1)}), keyspace="other"), None, "of keyspace other"),
    ],
)
def test_a_start_that_would_skip_or_repeat_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: ResumeVector | None, since: str | None, told: str
) -> None:
    world = World(monkeypatch, [])
    world.broker.position = found
    with pytest.raises(ConfigError, match=told):
        world.publish(5, since=since)
    assert world.broker.positions == []
