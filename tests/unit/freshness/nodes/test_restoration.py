"""The thread that puts stripes back: what it does while it runs, and that it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from freshness.algorithm.driver import running_clock
from freshness.algorithm.envelope import NodeRecord, Stripe, record_key, stripe_keys
from freshness.algorithm.membership import NodePolicy
from freshness.algorithm.request import Add, Streamed
from freshness.config.access import NodeAccess
from freshness.errors import NodeUnavailable
from freshness.nodes.memory import MemoryNode, MemoryStore
from freshness.nodes.restoration import Restoration
from freshness.position import MysqlGtidSet

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NODE = "n1:1"
STRIPES = 8
LIFE = b"lifelife"
FLOOR, STREAMED = (MysqlGtidSet.parse(f"{SOURCE}:1-{last}") for last in (10, 12))
NAMES = stripe_keys("shop", "shop/-", STRIPES)


@pytest.fixture
def store() -> MemoryStore:
    """A node that is joined and has no stripe."""
    store = MemoryStore(NODE, clock=running_clock)
    record = NodeRecord(
        lineage="shop/-",
        life=LIFE,
        tenure=b"tenure12",
        is_open=True,
        epoch=1,
        ring=1,
        as_of_us=0,
        heartbeat_age_ms=0,
        node=NODE,
        stripes=STRIPES,
        progress=STREAMED,
        floor=FLOOR,
    )
    MemoryNode(store).perform([Add(record_key("shop", "shop/-"), record.encode(), 0, is_bound=True)])
    return store


@pytest.fixture
def restoration(store: MemoryStore) -> Iterator[Restoration]:
    made = Restoration(
        NodeAccess("memory"),
        [NODE],
        NodePolicy("shop", "shop/-", 1, {}, STRIPES, 5, 4, 1),
        lambda begun_at: Streamed(STREAMED, 1, begun_at),
        lambda _: None,
        lambda _, __: MemoryNode(store),
    )
    yield made
    made.stop()


def wait_complete(restoration: Restoration) -> None:
    (restorer,) = restoration.restorers
    deadline = time.monotonic() + 30
    while restorer.restored < STRIPES or not restorer.is_complete:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_missing_stripes_come_back_with_all_that_was_streamed(restoration: Restoration, store: MemoryStore) -> None:
    restoration.start()
    wait_complete(restoration)
    assert restoration.restorers[0].restored == STRIPES
    for name in NAMES:
        item = store.peek(name)
        assert item is not None
        assert Stripe.decode(item.value) == Stripe(LIFE, MysqlGtidSet.parse(f"{SOURCE}:11-12"))


def test_its_thread_ends_when_it_is_stopped_and_not_before(restoration: Restoration) -> None:
    restoration.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "stripes of shop/-"]
    wait_complete(restoration)
    assert thread.is_alive()
    restoration.stop()
    assert not thread.is_alive()


def test_a_node_that_does_not_answer_does_not_end_it(restoration: Restoration, store: MemoryStore) -> None:
    store.down = True
    with pytest.raises(NodeUnavailable):
        MemoryNode(store).perform([])
    restoration.start()
    deadline = time.monotonic() + 30
    while not restoration.restorers[0].is_resting:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store.down = False
    wait_complete(restoration)


def test_one_that_was_never_started_can_be_stopped(restoration: Restoration) -> None:
    restoration.stop()
    assert restoration.restorers[0].restored == 0


def test_a_heartbeat_that_is_waited_for_is_hurried(store: MemoryStore) -> None:
    """The stream has no heartbeat yet that was begun after the pending stripes stood."""
    hurried: list[float] = []
    passed: list[Streamed] = [Streamed(STREAMED, 1, float("-inf"))]

    def hurry(begun_at: float) -> None:
        hurried.append(begun_at)
        passed.append(Streamed(STREAMED, 1, begun_at))

    policy = NodePolicy("shop", "shop/-", 1, {}, STRIPES, 5, 4, 1)
    made = Restoration(
        NodeAccess("memory"), [NODE], policy, lambda _: passed[-1], hurry, lambda _, __: MemoryNode(store)
    )
    made.start()
    try:
        wait_complete(made)
    finally:
        made.stop()
    assert len(hurried) == 1
