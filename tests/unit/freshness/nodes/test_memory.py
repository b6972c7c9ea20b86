"""The memory node's model of memcached's ways to forget.

The contract suite tests the answers to requests.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Get,
    Item,
    Refused,
    Stored,
    Strikes,
)
from freshness.errors import NodeUnavailable
from freshness.nodes.memory import ITEM_OVERHEAD_BYTES, MemoryNode, MemoryStore


@dataclass
class Clock:
    seconds: float = 1000.0

    def __call__(self) -> float:
        return self.seconds


def store_of(clock: Clock, *, capacity_items: int | None = None, item_size_max: int = 1_000_000) -> MemoryStore:
    return MemoryStore("memory:1", clock=clock, capacity_items=capacity_items, item_size_max=item_size_max)


def version_of(node: MemoryNode, key: bytes) -> int:
    (reply,) = node.perform([Get(key)])
    assert isinstance(reply, Item)
    return reply.version


def test_versions_start_at_1_and_repeat_after_a_restart() -> None:
    store = store_of(Clock())
    node = MemoryNode(store)
    node.perform([Add(b"a", b"1", 60), Add(b"b", b"2", 60)])
    assert (version_of(node, b"a"), version_of(node, b"b")) == (1, 2)
    store.restart()
    with pytest.raises(NodeUnavailable, match="broke the connection"):
        node.perform([Get(b"a")])
    assert node.perform([Get(b"a")]) == [MISSING]
    node.perform([Add(b"a", b"3", 60)])
    assert version_of(node, b"a") == 1
    assert node.perform([Cas(b"a", b"from the previous life", 1, 60)]) == [Stored(2)]


def test_a_flush_keeps_the_version_counter() -> None:
    store = store_of(Clock())
    node = MemoryNode(store)
    node.perform([Add(b"a", b"1", 60)])
    store.flush()
    assert node.perform([Get(b"a"), Add(b"a", b"1", 60)]) == [MISSING, Stored(0)]
    assert version_of(node, b"a") == 2


def test_time_counts_whole_seconds_and_gives_one_more_than_asked() -> None:
    clock = Clock(1000.9)
    node = MemoryNode(store_of(clock))
    node.perform([Add(b"k", b"v", 10)])
    clock.seconds = 1010.99
    (found,) = node.perform([Get(b"k")])
    assert isinstance(found, Item)
    assert found.ttl_seconds == 1
    clock.seconds = 1011.0
    assert node.perform([Get(b"k")]) == [MISSING]


def test_the_least_recently_used_item_is_evicted() -> None:
    store = store_of(Clock(), capacity_items=3)
    node = MemoryNode(store)
    node.perform([Add(b"a", b"", 60), Add(b"b", b"", 60), Add(b"c", b"", 60), Get(b"a"), Add(b"d", b"", 60)])
    assert store.keys() == [b"c", b"a", b"d"]


def test_an_append_is_a_use_and_takes_no_room() -> None:
    store = store_of(Clock(), capacity_items=2)
    node = MemoryNode(store)
    node.perform([Add(b"a", b"", 60), Add(b"b", b"", 60)])
    assert node.perform(Strikes([b"a", b"c"], b"v", [])) == [Stored(), CONFLICT]
    assert store.keys() == [b"b", b"a"]
    node.perform([Add(b"d", b"", 60)])
    assert store.keys() == [b"a", b"d"]


def test_a_stub_takes_room_like_any_item() -> None:
    store = store_of(Clock(), capacity_items=2)
    node = MemoryNode(store)
    node.perform([Get(b"stub", 30), Add(b"a", b"", 3600), Add(b"b", b"", 3600), Get(b"other", 30)])
    assert store.keys() == [b"b", b"other"]


@pytest.mark.parametrize("request_", [Cas(b"k", b"x" * 200, 999, 60), Append(b"k", b"x" * 200)])
def test_a_refusal_drops_the_previous_item(request_: Cas | Append) -> None:
    """Whatever its version, as memcached does. The rest of the flow is carried out."""
    store = store_of(Clock(), item_size_max=200)
    node = MemoryNode(store)
    node.perform([Add(b"k", b"v", 60), Add(b"other", b"v", 60)])
    refused, done = node.perform([request_, Delete(b"other")])
    assert refused is CONFLICT or isinstance(refused, Refused)
    assert done is DONE
    assert store.keys() == []


def test_the_longest_item() -> None:
    store = store_of(Clock(), item_size_max=200)
    node = MemoryNode(store)
    longest = 200 - len(b"k") - ITEM_OVERHEAD_BYTES
    node.perform([Add(b"k", b"v", 60)])
    assert node.perform([Append(b"k", b"v" * (longest - 1))]) == [Stored()]
    assert node.perform([Append(b"k", b"v")]) == [CONFLICT]
    assert node.perform([Add(b"k", b"v" * longest, 60)]) == [Stored()]


def test_expired_items_go_before_live_ones() -> None:
    clock = Clock()
    store = store_of(clock, capacity_items=2)
    node = MemoryNode(store)
    node.perform([Add(b"a", b"", 600), Add(b"b", b"", 1)])
    clock.seconds += 3
    node.perform([Add(b"c", b"", 600)])
    assert store.keys() == [b"a", b"c"]


def test_an_evicted_item_leaves_no_trace() -> None:
    store = store_of(Clock())
    node = MemoryNode(store)
    node.perform([Add(b"k", b"v", 120)])
    assert store.evict(b"k")
    assert not store.evict(b"k")
    assert node.perform([Get(b"k"), Append(b"k", b"v")]) == [MISSING, CONFLICT]


def test_a_cut_connection_leaves_the_others() -> None:
    store = store_of(Clock())
    cut, other = MemoryNode(store), MemoryNode(store)
    cut.down = True
    with pytest.raises(NodeUnavailable, match="memory:1"):
        cut.perform([Add(b"k", b"v", 60)])
    assert other.perform([Get(b"k")]) == [MISSING]
    cut.down = False
    assert cut.perform([Add(b"k", b"v", 60)]) == [Stored(0)]


def test_a_node_that_goes_down_after_send_has_done_the_work() -> None:
    store = store_of(Clock())
    node = MemoryNode(store)
    node.send([Add(b"k", b"v", 60)])
    store.down = True
    with pytest.raises(NodeUnavailable):
        node.receive()
    store.down = False
    assert store.keys() == [b"k"]
    with pytest.raises(AssertionError, match="without send"):
        node.receive()


def test_the_rest_of_a_flow_is_carried_out_when_a_quiet_request_is_refused() -> None:
    store = store_of(Clock(), item_size_max=200)
    node = MemoryNode(store)
    with pytest.raises(NodeUnavailable, match="too large"):
        node.perform([Add(b"huge", b"x" * 200, 60), Add(b"k", b"v", 60)])
    assert store.keys() == [b"k"]


def test_state_and_restore() -> None:
    store = store_of(Clock(), capacity_items=5)
    node = MemoryNode(store)
    node.perform([Add(b"a", b"1", 60), Get(b"stub", 30)])
    before = store.state()
    assert hash(before) == hash(store.state())
    node.perform([Append(b"stub", b"3"), Delete(b"a"), Add(b"b", b"2", 60)])
    assert store.state() != before
    store.restore(before)
    assert store.state() == before
    assert store.keys() == [b"a", b"stub"]
    assert node.perform([Get(b"stub", 30)]) == [Item(b"", 2, 31, lease=True)]


def test_the_order_of_use_is_state_only_where_something_can_be_evicted() -> None:
    for capacity_items, differs in ((None, False), (5, True)):
        first, second = (store_of(Clock(), capacity_items=capacity_items) for _ in range(2))
        for store in (first, second):
            MemoryNode(store).perform([Add(b"a", b"", 60), Add(b"b", b"", 60)])
        MemoryNode(second).perform([Get(b"a")])
        assert (first.state() != second.state()) is differs


def test_a_copy_lives_its_own_life() -> None:
    clock = Clock()
    store = store_of(clock)
    MemoryNode(store).perform([Add(b"a", b"1", 60)])
    twin = copy.deepcopy(store)
    MemoryNode(twin).perform([Delete(b"a")])
    assert (store.keys(), twin.keys()) == ([b"a"], [])


def test_peek_has_no_effect() -> None:
    store = store_of(Clock(), capacity_items=2)
    node = MemoryNode(store)
    node.perform([Add(b"a", b"1", 60), Add(b"b", b"2", 60)])
    assert store.peek(b"absent") is None
    assert store.peek(b"a") == Item(b"1", 1, 61)
    assert store.keys() == [b"a", b"b"]
