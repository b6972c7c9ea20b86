"""What both shapes of an applier share: own heartbeats, looks at the history, permits, nodes that are behind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from freshness.algorithm.applier import (
    HISTORY_CONFIRM_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    Applier,
    Permit,
    create_members,
)
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import Coverage
from freshness.algorithm.invalidate import Target
from freshness.algorithm.membership import HeartbeatSeen, NodePolicy
from freshness.algorithm.request import Head, Streamed
from freshness.errors import HistoryLost
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.position import MysqlGtidSet
from freshness.stream.source import Heartbeat

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NODE = "n1"
NOTHING = MysqlGtidSet()


def up_to(number: int) -> MysqlGtidSet:
    return MysqlGtidSet.parse(f"{SOURCE}:1-{number}")


def beat(sequence: int, instance: str = "me") -> Heartbeat:
    return Heartbeat(instance, sequence, 10 * sequence, 0, 1)


@dataclass
class Scene:
    """Nodes in memory, a primary that is a number, and a clock that only pauses move."""

    is_sender: bool = False
    now: float = 1000.0
    head: int = 10
    epoch: int = 1
    nodes: tuple[str, ...] = (NODE,)
    begun: dict[int, float] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stores = {node: MemoryStore(node, clock=lambda: self.now) for node in self.nodes}
        self.nonces = iter(range(1, 100))
        self.applier = self.create(is_sender=self.is_sender)
        self.driver = BlockingDriver(
            {node: MemoryNode(store) for node, store in self.stores.items()},
            self.sleep,
            read_head=lambda: Head(up_to(self.head), self.epoch),
        )

    def create(self, *, is_sender: bool) -> Applier:
        """A process that follows the lineage."""
        policy = NodePolicy("shop", "shop/-", 7, {}, 8, 5, 4.0, 1.0)
        return Applier(
            members=create_members(
                self.nodes, policy, lambda: self.now, lambda: bytes([next(self.nonces)] * 8), NOTHING
            ),
            instance="me",
            clock=lambda: self.now,
            find_heartbeat=self.begun.get,
            streamed=NOTHING,
            is_sender=is_sender,
        )

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def join(self) -> bytes:
        """The current life of the node; empty if it was not joined."""
        self.driver.run(self.applier.join_missing())
        member = self.applier.members[NODE]
        return member.joined_record().life if member.is_joined else b""


@pytest.mark.parametrize("is_open", [False, True])
def test_a_node_that_waits_for_a_later_heartbeat_has_it_brought_forward(is_open: bool) -> None:
    """It would stay closed for `heartbeat_seconds` more."""
    scene, hurried = Scene(is_sender=True), list[float]()
    if is_open:  # by another process
        scene.join()
        scene.begun[1] = scene.now
        scene.driver.run(scene.applier.send({NODE: {}}, {}, up_to(10), [beat(1)]))
        scene.applier = scene.create(is_sender=True)
    scene.applier.hurry = hurried.append
    scene.join()
    assert hurried == [float("-inf") if is_open else scene.now]


def test_the_last_own_heartbeat_counts_in_any_order() -> None:
    scene = Scene(begun={1: 5.0, 2: 6.0})
    beats = [beat(2), beat(9, "another"), beat(1), beat(3)]
    assert scene.applier.find_own_heartbeat(beats) == HeartbeatSeen(6.0, 20), "3 was never begun here"
    assert scene.applier.find_own_heartbeat([beat(9, "another")]) is None


def test_a_history_is_lost_after_so_many_looks() -> None:
    applier = Scene().applier
    looks = 0
    while not applier.confirm_loss():
        looks += 1
    assert looks == HISTORY_CONFIRM_SECONDS / RETRY_SECONDS
    applier.opened(up_to(10))
    assert not applier.confirm_loss(), "counted from the start again"


def test_leases_are_renewed_in_a_pause() -> None:
    scene = Scene()
    scene.driver.run(scene.applier.pause())
    assert scene.pauses == [RENEW_SECONDS] * round(RETRY_SECONDS / RENEW_SECONDS)


def test_the_history_must_be_checked_after_each_join() -> None:
    scene = Scene()
    scene.join()
    assert not scene.applier.is_history_checked
    scene.driver.run(scene.applier.check_history())
    assert scene.applier.is_history_checked
    scene.applier.leave_all()
    scene.head = 9
    scene.join()
    assert not scene.applier.is_history_checked
    with pytest.raises(HistoryLost, match=NODE):
        scene.driver.run(scene.applier.check_history())


def test_a_permit_names_the_nodes_that_are_joined() -> None:
    scene = Scene()
    assert Permit.of(scene.applier.joined) == Permit({}, {})
    scene.join()
    record = scene.applier.members[NODE].joined_record()
    target = Target("shop", "shop/-", record.life, 8, up_to(10))
    assert Permit.of(scene.applier.joined) == Permit({NODE: target}, {NODE: record.tenure})


# -- how far the stream is -----------------------------------------------------------------------------


def opened(*, is_sender: bool = True) -> Scene:
    scene = Scene(is_sender, begun={1: 5.0, 2: 6.0, 3: 7.0})
    scene.join()
    scene.applier.opened(up_to(10))
    return scene


def follow(scene: Scene, number: int, *beats: Heartbeat) -> None:
    """The stream has come to ``number``."""
    applier = scene.applier
    if scene.is_sender:
        scene.driver.run(applier.send({NODE: {}}, {}, up_to(number), beats))
    else:
        permit = Permit.of(applier.joined)
        scene.driver.run(applier.acknowledge({}, applier.streamed, up_to(number), beats, permit, {}))


@pytest.mark.parametrize("is_sender", [True, False])
def test_all_that_was_streamed_up_to_an_own_heartbeat_is_told(is_sender: bool) -> None:
    scene = opened(is_sender=is_sender)
    assert scene.applier.read_stream(0.0) is None
    follow(scene, 11)
    follow(scene, 12, beat(9, "another"))
    assert scene.applier.read_stream(0.0) is None, "another's heartbeat says nothing about this stream"
    follow(scene, 13, beat(1))
    assert scene.applier.read_stream(0.0) == Streamed(up_to(13), 1, 5.0)
    follow(scene, 14)
    assert scene.applier.read_stream(0.0) == Streamed(up_to(13), 1, 5.0)
    follow(scene, 15, beat(2), beat(3))
    assert scene.applier.read_stream(0.0) == Streamed(up_to(15), 1, 7.0)


@pytest.mark.parametrize("end", ["opened", "end_lives"])
def test_a_stream_that_is_opened_again_has_passed_nothing(end: str) -> None:
    """Its heartbeats of before were of a stream that began elsewhere, perhaps in another history."""
    scene = opened()
    follow(scene, 11, beat(1))
    assert scene.applier.read_stream(0.0) is not None
    if end == "opened":
        scene.applier.opened(up_to(10))
    else:
        scene.applier.end_lives()
    assert scene.applier.read_stream(0.0) is None


def test_what_was_streamed_in_a_previous_epoch_is_told_as_that() -> None:
    scene = opened()
    follow(scene, 11, Heartbeat("me", 1, 10, 0, 2))
    told = scene.applier.read_stream(0.0)
    assert told is not None
    assert told.epoch == 1, "the epoch was raised by what came last; the nodes begin new lives"
    assert not scene.applier.joined


# -- nodes that are behind -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_sender", [True, False])
def test_a_node_that_joins_behind_the_stream_is_sent_it_again_or_begins_a_new_life(is_sender: bool) -> None:
    scene = Scene(is_sender)
    life = scene.join()
    scene.applier.leave_all()
    scene.head = 12
    scene.applier.opened(up_to(12))
    assert (scene.join() == life) is is_sender
    assert scene.applier.needs_rewind is is_sender


def test_a_node_that_another_process_kept_up_to_date_keeps_its_life() -> None:
    scene = Scene()
    life = scene.join()
    scene.applier.leave_all()
    scene.head = 12
    scene.applier.opened(up_to(12))
    other = scene.create(is_sender=True)
    scene.driver.run(other.join_missing())
    other.opened(up_to(10))
    scene.driver.run(other.send({NODE: {}}, {}, up_to(12), ()))
    assert scene.join() == life


# -- epochs and lost history ---------------------------------------------------------------------------


def test_a_stream_of_a_previous_epoch_is_opened_again() -> None:
    """F28: even if no node is joined that would show it."""
    applier = Scene().applier
    assert not applier.needs_rewind
    applier.epoch = 2
    assert applier.needs_rewind
    applier.opened(up_to(10))
    assert not applier.needs_rewind


def test_a_node_of_a_previous_epoch_leaves_when_another_one_is_joined() -> None:
    scene = Scene(is_sender=True, nodes=("n1", "n2"))
    scene.stores["n2"].down = True
    first = scene.join()
    scene.stores["n2"].down, scene.epoch = False, 2
    scene.now += 1
    scene.driver.run(scene.applier.join_missing())
    assert [member.node for member in scene.applier.joined] == ["n2"]
    assert scene.join() not in (b"", first)


@pytest.mark.parametrize("demand", ["floor", "table", "object"])
def test_all_that_a_record_demands_must_be_in_the_history(demand: str) -> None:
    """ADR 0018: else no fill is ever allowed again."""
    scene = Scene()
    scene.join()
    member = scene.applier.members[NODE]
    scene.driver.run(scene.applier.check_history())
    lost: dict[str, dict[str, Any]] = {
        "floor": {"floor": up_to(11)},
        "table": {"table_floors": {"customers": up_to(11)}},
        "object": {"objects": {"customer": Coverage(1, up_to(11))}},
    }
    member.record = replace(member.joined_record(), **lost[demand])
    with pytest.raises(HistoryLost, match=NODE):
        scene.driver.run(scene.applier.check_history())
    scene.head = 11
    scene.driver.run(scene.applier.check_history())


def test_after_a_lost_history_lives_begin_with_what_the_primary_has() -> None:
    """F28: what was streamed and is lost must be in no floor."""
    scene = Scene(is_sender=True)
    life = scene.join()
    scene.applier.opened(up_to(12))
    scene.applier.end_lives()
    scene.now += 1
    assert scene.join() not in (b"", life)
    assert scene.applier.members[NODE].joined_record().floor == up_to(10)


def test_leases_outlast_any_number_of_pauses() -> None:
    scene = Scene(is_sender=True)
    life = scene.join()
    for _ in range(10):
        scene.driver.run(scene.applier.pause())
    assert scene.now >= 1010.0
    assert scene.applier.members[NODE].joined_record().life == life
    record = scene.stores[NODE].peek(scene.applier.members[NODE].record_key)
    assert record is not None
