"""What a worker makes of its assignment, without servers."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pymysql
import pytest

from freshness.algorithm.request import Head, ReadHead, Streamed, Wait
from freshness.config.config import Config, load_config
from freshness.database import connection
from freshness.errors import ConfigError, FreshnessError, MembershipLost, NodeUnavailable, SourceUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import build_registry
from freshness.position import Position, empty_position, parse_position
from freshness.stream.source import Heartbeat, Transaction
from invalidator.loop.loop import OpenStream, Poll
from invalidator.process.assignment import Assignment
from invalidator.process.metrics import Metrics
from invalidator.process.worker import HEARTBEAT_MISSING_SECONDS, MetricsObserver, ShardWorker, _KeysAltered

CONFIG = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "vitess"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
vtgate = "vitess://127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[objects.profile]
key = "customer_id"
members = { customers = "id", orders = "customer_id" }
"""


def worker_of(folder: Path) -> ShardWorker:
    path = folder / "freshness.toml"
    path.write_text(CONFIG)
    config: Config = load_config(path, {})
    registry = build_registry(
        config,
        lambda _, __, names, *___: tuple(KeyColumn(name, ColumnKind.INTEGER) for name in names or ("id",)),
        lambda *_: b"",
    )
    keyspace = config.keyspaces["shop"]
    assignment = Assignment(
        "shop", keyspace.gtid_flavor, keyspace.shards[0], config.cache, config.cache.nodes, config.stream, registry
    )
    return ShardWorker(assignment, Metrics().of_shard("shop/-"))


def test_vtgate_is_asked_for_the_columns_of_all_keys(tmp_path: Path) -> None:
    from invalidator.vstream.source import VStreamSource

    source = worker_of(tmp_path).assignment.create_source({}, lambda: None)
    assert isinstance(source, VStreamSource)
    assert source._stream._columns == {"customers": ("id",), "orders": ("customer_id",)}


def test_vitess_without_its_package_is_a_mistake_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "invalidator.vstream.source", None)
    with pytest.raises(ConfigError, match=r"pip install 'freshness\[vitess\]'"):
        worker_of(tmp_path).assignment.create_source({}, lambda: None)


class Following:
    """An invalidator and its pulse, as far as a restoration asks them."""

    def __init__(self) -> None:
        self.passed: Streamed | None = None
        self.hurried: list[float] = []

    def read_stream(self, _: float) -> Streamed | None:
        return self.passed

    def hurry(self, since: float) -> None:
        self.hurried.append(since)


def test_a_stripe_that_waits_for_a_heartbeat_makes_the_next_one_come_at_once(tmp_path: Path) -> None:
    following: Any = Following()
    restoration = worker_of(tmp_path).assignment.create_restoration(following, following)
    assert [each.node for each in restoration.restorers] == ["127.0.0.1:11211"]
    ask = restoration._driver.read_stream
    assert ask(5.0) is None
    following.passed = Streamed(empty_position("mysql"), 1, 4.0)
    assert ask(5.0) is following.passed
    assert following.hurried == [5.0, 5.0]
    following.passed = Streamed(empty_position("mysql"), 1, 5.0)
    assert ask(5.0) is following.passed
    assert following.hurried == [5.0, 5.0], "it has come back"


def position_up_to(number: int) -> Position:
    return parse_position("mysql", f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}" if number else "")


def test_a_statement_that_may_have_altered_keys_is_looked_at_before_it_is_acknowledged(tmp_path: Path) -> None:
    worker = worker_of(tmp_path)
    task = worker.assignment
    found: list[Any] = [task.definitions]
    asked: list[object] = []

    def read_registry(previous: object, tables: object) -> Any:
        asked.append((previous, tables))
        return found[-1]

    worker.read_registry = read_registry
    brought = [Transaction(position_up_to(1), 0)]
    source: Any = SimpleNamespace(poll=lambda *_: brought, open=lambda _: None)
    nothing: Any = None
    heads = [Head(position_up_to(number), 1) for number in (1, 0)]
    shown: list[int] = []

    def ask(step: Any) -> Any:
        if isinstance(step, ReadHead):
            shown.append(len(asked))
            return heads.pop() if len(heads) > 1 else heads[0]
        return None

    driver: Any = SimpleNamespace(answer=ask)
    answer = worker._make_answerer(driver, source, nothing)  # without an invalidator, no lease is to be kept
    assert answer(Poll(0, 1)) == brought
    brought[0] = brought[0]._replace(raised_tables=frozenset(("elsewhere",)))
    assert answer(Poll(0, 1)) == brought
    assert asked == []
    brought[0] = brought[0]._replace(raised_tables=frozenset(("orders",)))
    assert answer(Poll(0, 1)) == brought, "no key was altered"
    assert shown == [0, 0], "the primary is asked until it shows the statement, and then for the keys"
    answer(OpenStream(empty_position("mysql")))
    assert asked == [(task.definitions, {"orders"}), (task.definitions, task.tables)]
    found.append({**task.definitions, "profile": task.definitions["profile"].closed("no table")})
    for step in (Poll(0, 1), OpenStream(empty_position("mysql"))):
        with pytest.raises(_KeysAltered) as altered:
            answer(step)
        assert altered.value.assignment.definitions is found[-1]
    before = task.objects["profile"]
    assert altered.value.assignment.altered == {("profile", before)}
    worker.assignment = altered.value.assignment
    found.append(task.definitions)
    with pytest.raises(_KeysAltered) as altered:
        answer(Poll(0, 1))
    closed = worker.assignment.objects["profile"]
    assert altered.value.assignment.altered == {("profile", closed)}, "what has come back may stay"


def test_leases_are_kept_while_the_schema_is_read(tmp_path: Path) -> None:
    """Else all nodes leave, the stream is opened again, the schema is read again, and so on without end (I6)."""
    worker, renewed = worker_of(tmp_path), threading.Event()
    shard: Any = SimpleNamespace(renew=renewed.set)
    worker.invalidator = shard

    def read_registry(previous: Any, _: object) -> Any:
        assert renewed.wait(60), "no lease is renewed"
        return previous

    worker.read_registry = read_registry
    source: Any = SimpleNamespace(open=lambda _: None)
    driver: Any = SimpleNamespace(run=bool)
    nothing: Any = None
    worker._make_answerer(driver, source, nothing)(OpenStream(empty_position("mysql")))


def test_keys_are_looked_at_when_every_node_refuses(tmp_path: Path) -> None:
    """Another invalidator has seen the statement first, and lets the record name what this one does not know."""
    worker = worker_of(tmp_path)
    asked: list[object] = []

    def read_registry(previous: Any, _: object) -> Any:
        asked.append(previous)
        return {**previous, "profile": previous["profile"].closed("no table")}

    worker.read_registry = read_registry
    problems: dict[str, FreshnessError | str] = {}
    shard: Any = SimpleNamespace(joined=[], problems=problems, renew=bool)
    worker.invalidator = shard
    driver: Any = SimpleNamespace(answer=lambda _: "waited", run=bool)
    nothing: Any = None
    answer = worker._make_answerer(driver, nothing, nothing)
    problems["a:1"] = NodeUnavailable("it is down")
    assert answer(Wait(0)) == "waited"
    problems["b:1"] = MembershipLost("another configuration")
    shard.joined.append("a:1")
    assert answer(Wait(0)) == "waited", "the stream comes to the statement"
    shard.joined.clear()
    with pytest.raises(_KeysAltered):
        answer(Wait(0))
    assert answer(Wait(0)) == "waited", "once for each try to join"
    problems["b:1"] = MembershipLost("another configuration")
    with pytest.raises(_KeysAltered):
        answer(Wait(0))
    assert len(asked) == 2


def test_a_primary_that_is_lost_while_it_is_checked_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the worker is started again. Any other error ends the process."""
    primary = MagicMock()
    primary.cursor.side_effect = pymysql.OperationalError(2013, "Lost connection to MySQL server during query")
    monkeypatch.setattr(connection, "connect", lambda *_, **__: primary)
    with pytest.raises(SourceUnavailable, match=r"127\.0\.0\.1:1: checking it: Lost connection"):
        worker_of(tmp_path)._check()
    primary.close.assert_called_once()


class Scene:
    """A worker's observer beside a stream whose time and heartbeats the test decides."""

    instance = "me"
    streamed = empty_position("mysql")

    def __init__(self, folder: Path) -> None:
        self.worker = worker_of(folder)
        self.now = 100.0
        self.written_at = 100.0
        invalidator: Any = self
        self.observer = MetricsObserver(self.worker, invalidator, lambda: self.written_at)
        self.observer.stream_opened(self.streamed)

    def clock(self) -> float:
        return self.now

    def find_heartbeat(self, _: int) -> float:
        return self.now

    def pass_time(self, seconds: float, *, is_written: bool = True) -> None:
        """The loop polls; a heartbeat was written a moment ago, or not."""
        self.now += seconds
        if is_written:
            self.written_at = self.now
        self.observer.nodes_joined(1)

    def bring(self, instance: str) -> None:
        beat = Heartbeat(instance, 1, 0, 0, 1)
        self.observer.applied([Transaction(self.streamed, 0, heartbeats=(beat,))], 0, self.now)

    @property
    def told(self) -> tuple[float, str]:
        return self.worker.metrics.heartbeat_missing._value.get(), self.worker.last_error


def test_heartbeats_that_do_not_come_back_are_told_with_their_usual_causes(tmp_path: Path) -> None:
    """The nodes stay closed, and nothing else would say why."""
    scene = Scene(tmp_path)
    scene.pass_time(HEARTBEAT_MISSING_SECONDS - 1)
    assert scene.told == (0, "")
    scene.pass_time(1)
    number, message = scene.told
    assert number == 1
    assert "no own heartbeat has come back through the stream of shop/- for 15 s" in message
    assert "binlog_ignore_db" in message
    scene.observer.stream_opened(scene.streamed)
    assert scene.told == (1, message), "it is opened again and again"
    scene.bring("another")
    assert scene.told == (1, message)
    scene.bring("me")
    assert scene.told == (0, "")
    scene.pass_time(HEARTBEAT_MISSING_SECONDS - 1)
    assert scene.told == (0, "")


def test_a_stream_that_brings_others_changes_is_behind(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.pass_time(HEARTBEAT_MISSING_SECONDS - 1)
    scene.bring("another")
    scene.pass_time(1)
    assert "the stream is behind" in scene.told[1]


def test_heartbeats_that_are_not_written_are_not_missed(tmp_path: Path) -> None:
    """The writer of the heartbeats reports that itself."""
    scene = Scene(tmp_path)
    for _ in range(10):
        scene.pass_time(HEARTBEAT_MISSING_SECONDS, is_written=False)
    assert scene.told == (0, "")
