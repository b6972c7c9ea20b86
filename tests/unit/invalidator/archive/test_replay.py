"""Replay: the nodes get the same from a recording as from the stream, in a namespace without readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.envelope import (
    Kind,
    NodeRecord,
    PendingStripe,
    Stripe,
    record_key,
    stripe_key,
    stripe_number,
)
from freshness.algorithm.request import MISSING, Add, Cas, Get, Item, Reply, Request, Stored
from freshness.config.access import NodeAccess
from freshness.config.config import Config
from freshness.errors import ConfigError, FormatError, NodeUnavailable, SourceUnavailable
from freshness.history.archive_file import find_files
from freshness.keys.placement import Placement
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import MysqlGtidSet
from freshness.stream.lines import encode_line
from freshness.stream.source import Heartbeat, RowChange
from invalidator.archive import replay as module
from invalidator.archive.replay import Recording, Replay, ReplayResult, ReplaySource, open_recording
from invalidator.archive.writer import RotationPolicy
from invalidator.stream.json_lines import LineWriter
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage
from tests.unit.invalidator.archive.archive_world import (
    CONFIG,
    NODES,
    SOURCE,
    World,
    make_config,
    make_registry,
    message,
)

LINEAGE = "shop/-"
STRIPES = 1024


def insert(number: int, key: int = 0) -> StreamMessage:
    return message(number, RowChange("customers", "insert", None, {"id": key or number, "v": "x"}))


MESSAGES = [
    insert(1),
    message(2, RowChange("customers", "update", {"id": 1, "v": "x"}, {"id": 5, "v": "y"})),
    message(3, raised_tables=frozenset(("orders",)), reasons=("TRUNCATE",)),
    message(4),
    message(5, heartbeats=(Heartbeat("somebody", 1, 1, 2, 1),)),
    insert(6, 7),
]
ITEMS = (b"shop.replay:customer:1", b"shop.replay:customer:5", b"shop.replay:customer:7")


class Nodes:
    """Two nodes in memory, which outlive the replay."""

    def __init__(self) -> None:
        self.stores = {name: MemoryStore(name, clock=lambda: 1000.0) for name in NODES}

    def open(self, _: NodeAccess, name: str) -> MemoryNode:
        return MemoryNode(self.stores[name])

    def read(self, name: str, key: bytes) -> Reply:
        [reply] = MemoryNode(self.stores[name]).perform([Get(key)])
        return reply

    def record(self, name: str, namespace: str = "shop.replay") -> NodeRecord:
        reply = self.read(name, record_key(namespace, LINEAGE))
        assert isinstance(reply, Item)
        return NodeRecord.decode(reply.value)

    def node_of(self, item: bytes) -> str:
        return Placement(NODES, item.split(b":")[0].decode()).node_for(item)

    def stripe(self, item: bytes, *, may_be_pending: bool = False) -> Stripe | None:
        """One that is still pending: as it will be."""
        namespace, node = item.split(b":")[0].decode(), self.node_of(item)
        found = self.read(node, stripe_key(namespace, LINEAGE, stripe_number(item, STRIPES)))
        if not isinstance(found, Item):
            return None
        if may_be_pending and found.value[2] == Kind.PENDING:
            return PendingStripe.decode(found.value).complete(self.record(node).life, MysqlGtidSet())
        return Stripe.decode(found.value)

    def fill(self) -> None:
        """An entry under each of `ITEMS`."""
        for item in ITEMS:
            MemoryNode(self.stores[self.node_of(item)]).perform([Add(item, b"entry", 0)])


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path / "config")


def record_archive(folder: Path, messages: list[StreamMessage], policy: RotationPolicy | None = None) -> Path:
    with World(folder, policy) as world:
        for each in messages:
            world.writer.write(each)
    return folder


def record_lines(path: Path, messages: list[StreamMessage]) -> Path:
    writer = LineWriter(LayoutBook(lambda _: {}))
    path.write_bytes(b"".join(encode_line(line) for each in messages for line in writer.lines(each)))
    return path


def make_replay(config: Config, nodes: Nodes, path: Path, **options: Any) -> Replay:
    return Replay(config, open_recording(path), make_registry, open_node=nodes.open, **options)


def check_nodes(nodes: Nodes, *, may_be_pending: bool = False) -> None:
    """They have what `MESSAGES` says, and serve nobody."""
    for item, events in zip(ITEMS, (f"{SOURCE}:1-2", f"{SOURCE}:2", f"{SOURCE}:6"), strict=True):
        stripe = nodes.stripe(item, may_be_pending=may_be_pending)
        assert stripe is not None
        assert stripe.life == nodes.record(nodes.node_of(item)).life
        assert stripe.position.contains(MysqlGtidSet.parse(events))
        assert nodes.read(nodes.node_of(item), item) is MISSING
    for name in NODES:
        record = nodes.record(name)
        assert record.progress.contains(MysqlGtidSet.parse(f"{SOURCE}:1-3,{SOURCE}:5-6"))
        assert set(record.table_floors) == {"orders"}
        assert not record.is_open


# -- what the nodes get -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["archive", "archive in many files", "lines"])
def test_the_nodes_get_what_was_recorded(form: str, config: Config, nodes: Nodes, tmp_path: Path) -> None:
    if form == "lines":
        path = record_lines(tmp_path / "stream.jsonl", MESSAGES)
    else:
        policy = RotationPolicy(rows_max=1) if form != "archive" else None
        path = record_archive(tmp_path / "archive", MESSAGES, policy)
    nodes.fill()
    [result] = make_replay(config, nodes, path).run()
    check_nodes(nodes)
    transactions = 5 if form == "lines" else 6  # lines have none that concern no table
    assert (result.transactions, result.raised, result.nodes_left_out) == (transactions, {"orders": 1}, [])
    assert result.to_json()["lineage"] == LINEAGE


def test_previous_nodes_get_it_too(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    cache = replace(config.cache, nodes=NODES[:1], previous_nodes=NODES)
    path = record_archive(tmp_path / "archive", MESSAGES)
    nodes.fill()
    make_replay(replace(config, cache=cache), nodes, path).run()
    check_nodes(nodes)


def test_only_its_own_namespace_is_touched(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    path = record_archive(tmp_path / "archive", MESSAGES)
    replay = make_replay(config, nodes, path, namespace="incident")
    replay.run()
    assert replay.config.cache.namespace == "incident"
    assert nodes.stripe(ITEMS[0]) is None
    assert nodes.stripe(b"shop:customer:1") is None
    assert nodes.stripe(b"incident:customer:1") is not None


def test_a_life_begins_with_the_recording(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    folder = record_archive(tmp_path / "archive", MESSAGES, RotationPolicy(rows_max=1))
    path = find_files(folder)[3].path
    [recording] = open_recording(path)
    assert recording.start == MysqlGtidSet.parse(f"{SOURCE}:1-2")
    make_replay(config, nodes, path).run()
    for name in NODES:
        assert nodes.record(name).floor == recording.start


def test_an_epoch_that_rose_begins_new_lives(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    beat = Heartbeat("somebody", 1, 1, 2, 2)
    raised = [insert(1), message(2, heartbeats=(beat,), epoch=2), insert(3, 7)]
    small = replace(config, stream=replace(config.stream, batch_transactions_max=1))
    [result] = make_replay(small, nodes, record_archive(tmp_path / "archive", raised)).run()
    assert result.nodes_left_out == []
    assert {nodes.record(name).epoch for name in NODES} == {2}
    stripe = nodes.stripe(b"shop.replay:customer:7")
    assert stripe is not None
    assert stripe.life == nodes.record(nodes.node_of(b"shop.replay:customer:7")).life
    assert stripe.position.contains(MysqlGtidSet.of(SOURCE, 3))


def test_a_transaction_larger_than_the_invalidator_holds_raises_its_tables(
    config: Config, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSACTION_ROWS_MAX", 2)
    changes = [RowChange("customers", "insert", None, {"id": number, "v": ""}) for number in range(1, 4)]
    path = record_archive(tmp_path / "archive", [message(1, *changes)])
    [result] = make_replay(config, nodes, path).run()
    assert (result.raised, result.keys) == ({"customers": 1}, 0)
    assert set(nodes.record(NODES[0]).table_floors) == {"customers"}


def test_pieces_are_put_together_and_void_ones_are_dropped() -> None:
    row = RowChange("customers", "insert", None, {"id": 1, "v": ""})
    pieces = [message(1, row, row, is_last=False), message(1, row, is_last=False), message(1, row, first_row=1)]
    source = ReplaySource(Recording("shop", LINEAGE, MysqlGtidSet(), lambda: iter(pieces)))
    source.open(MysqlGtidSet())
    [transaction] = source.poll(0, 10)
    assert (len(transaction.changes), transaction.first_row, transaction.is_last) == (2, 0, True)


def test_a_node_that_another_process_opens_meanwhile_is_closed_again(
    config: Config, nodes: Nodes, tmp_path: Path
) -> None:
    key = record_key("shop.replay", LINEAGE)
    opened = []

    def open_nodes(result: ReplayResult) -> None:
        for name in NODES if result.transactions == 3 else ():
            item = nodes.read(name, key)
            assert isinstance(item, Item)
            record = replace(NodeRecord.decode(item.value), is_open=True)
            request = Cas(key, record.encode(), item.version, 3)
            [reply] = MemoryNode(nodes.stores[name]).perform([request])
            assert isinstance(reply, Stored)
            opened.append(name)

    small = replace(config, stream=replace(config.stream, batch_transactions_max=1))
    path = record_archive(tmp_path / "archive", MESSAGES)
    make_replay(small, nodes, path, report=open_nodes).run()
    assert opened == list(NODES)
    check_nodes(nodes)


# -- the source -----------------------------------------------------------------------------------------------------


def make_source(*messages: StreamMessage) -> ReplaySource:
    return ReplaySource(Recording("shop", LINEAGE, MysqlGtidSet.of(SOURCE, 100), lambda: iter(messages)))


def numbers(source: ReplaySource, count: int) -> list[str]:
    return [str(each.position) for each in source.poll(0, count)]


def test_the_source_begins_after_a_position_and_again_from_another() -> None:
    source = make_source(insert(1), insert(2), insert(3))
    assert source.position == MysqlGtidSet.of(SOURCE, 100)
    source.open(MysqlGtidSet.of(SOURCE, 1))
    assert numbers(source, 1) == [f"{SOURCE}:2"]
    assert not source.is_exhausted
    assert numbers(source, 5) == [f"{SOURCE}:3"]
    assert source.is_exhausted
    source.open(MysqlGtidSet())
    assert not source.is_exhausted
    assert numbers(source, 5) == [f"{SOURCE}:{number}" for number in (1, 2, 3)]
    assert numbers(source, 5) == []
    assert source.position == MysqlGtidSet.parse(f"{SOURCE}:1-3:100")


def test_the_source_must_be_open() -> None:
    source = make_source(insert(1))
    with pytest.raises(SourceUnavailable):
        source.poll(0, 1)


# -- nodes that are used, or away ----------------------------------------------------------------------------------


def test_a_namespace_that_is_in_use_is_refused(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    path = record_archive(tmp_path / "archive", MESSAGES)
    make_replay(config, nodes, path).run()
    before = {name: nodes.record(name) for name in NODES}
    with pytest.raises(ConfigError, match=r"namespace 'shop\.replay' is in use"):
        make_replay(config, nodes, path).run()
    assert {name: nodes.record(name) for name in NODES} == before
    make_replay(config, nodes, path, is_forced=True).run()
    check_nodes(nodes)
    assert all(nodes.record(name).life != before[name].life for name in NODES)


def test_a_node_that_cannot_be_asked_is_not_taken_for_unused(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    nodes.stores[NODES[1]].down = True
    with pytest.raises(NodeUnavailable):
        make_replay(config, nodes, record_archive(tmp_path / "archive", MESSAGES)).run()


def test_a_node_that_stays_away_is_named(
    config: Config, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ABSENT_SECONDS_MAX", 0.2)
    nodes.stores[NODES[1]].down = True
    path = record_archive(tmp_path / "archive", MESSAGES)
    [result] = make_replay(config, nodes, path, is_forced=True).run()
    assert result.nodes_left_out == [NODES[1]]


class Flaky(MemoryNode):
    """Fails some of its writes."""

    passed = 0
    failures = 0

    def send(self, requests: Sequence[Request]) -> None:
        self._fail(requests)
        super().send(requests)

    def perform(self, requests: Sequence[Request]) -> list[Reply]:
        self._fail(requests)
        return super().perform(requests)

    @classmethod
    def _fail(cls, requests: Sequence[Request]) -> None:
        if not any(isinstance(each, Cas | Add) for each in requests):
            return
        cls.passed -= 1
        if cls.failures and cls.passed < 0:
            cls.failures -= 1
            raise NodeUnavailable("gone for a moment")


@pytest.mark.parametrize("passed", [0, 2, 4, 7])
def test_a_node_that_comes_back_gets_everything(
    passed: int, config: Config, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshness.algorithm.absence.REJOIN_MIN_SECONDS", 0.01)
    opened: Callable[[NodeAccess, str], MemoryNode] = nodes.open
    Flaky.passed, Flaky.failures = passed, 2

    def open_node(access: NodeAccess, name: str) -> MemoryNode:
        return Flaky(nodes.stores[name]) if name == NODES[0] else opened(access, name)

    path = record_archive(tmp_path / "archive", MESSAGES)
    small = replace(config, stream=replace(config.stream, batch_transactions_max=1))
    replay = Replay(small, open_recording(path), make_registry, open_node=open_node)
    [result] = replay.run()
    assert Flaky.failures == 0
    assert result.nodes_left_out == []
    check_nodes(nodes, may_be_pending=True)


def test_it_can_be_stopped(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    path = record_archive(tmp_path / "archive", [insert(number) for number in range(1, 50)])
    small = replace(config, stream=replace(config.stream, batch_transactions_max=1))
    seen: list[int] = []

    def report(result: ReplayResult) -> None:
        seen.append(result.transactions)
        if len(seen) == 3:
            replay.stop()

    replay = make_replay(small, nodes, path, report=report)
    [result] = replay.run()
    assert seen == [1, 2, 3]
    assert result.transactions == 3


# -- recordings that do not fit -------------------------------------------------------------------------------------


def test_a_recording_of_another_keyspace(nodes: Nodes, tmp_path: Path) -> None:
    other = make_config(tmp_path / "config", CONFIG.replace("keyspaces.shop", "keyspaces.other"))
    with pytest.raises(ConfigError, match="of keyspace 'shop'"):
        make_replay(other, nodes, record_archive(tmp_path / "archive", MESSAGES))


def test_a_recording_of_another_flavor(nodes: Nodes, tmp_path: Path) -> None:
    other = make_config(tmp_path / "config", CONFIG.replace('flavor = "mysql"', 'flavor = "mariadb"'))
    with pytest.raises(ConfigError, match="of mysql, the keyspace is mariadb"):
        make_replay(other, nodes, record_archive(tmp_path / "archive", MESSAGES))


def test_nothing_recorded(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(FormatError, match="no line of an update stream"):
        open_recording(empty)
    with pytest.raises(FormatError, match="no file of an archive"):
        open_recording(tmp_path)


def test_a_damaged_recording_stops_the_replay(config: Config, nodes: Nodes, tmp_path: Path) -> None:
    path = record_lines(tmp_path / "stream.jsonl", MESSAGES)
    recordings = open_recording(path)
    path.write_bytes(path.read_bytes() + b"{")
    with pytest.raises(FormatError, match="line 6"):
        Replay(config, recordings, make_registry, open_node=nodes.open).run()
