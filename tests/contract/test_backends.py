"""What every cache backend promises, one suite over all of them.

`BackendContract` is run here over the memory node and over Redis in this process, and in
``integration/freshness/test_nodes.py`` over real memcached and Redis servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import fakeredis
import pytest

from freshness.algorithm.node import KEY_BYTES_MAX, CacheNode
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Finds,
    Get,
    Item,
    Refused,
    Reply,
    Request,
    Stored,
    Strikes,
)
from freshness.errors import ConfigError, FormatError, NodeTimedOut, NodeUnavailable
from freshness.nodes.redis import RedisNode
from tests.contract.conftest import FakeRedisSetup, MemorySetup

ALL_BYTES = bytes(range(256))
TTL_SECONDS = 300

AWKWARD_VALUES = [
    b"",
    ALL_BYTES,
    b"\r\n",
    b"EN\r\n",
    b"HD c1\r\nMN\r\n",
    b"\r\nVA 3 c7 t-1\r\nabc\r\nEN\r\n",
    b"SERVER_ERROR out of memory storing object\r\n",
    b"\x00" * 8,
    b"x",
]


class Setup(Protocol):
    """One node of a backend under test, empty and up at the start of a test."""

    def connect(self) -> CacheNode:
        """A new connection object."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the node."""

    def kill(self) -> None:
        """The node answers nobody from now on."""

    def restart(self) -> None:
        """The node is back, on the same address, without what it knew."""


def one(node: CacheNode, request: Request) -> Reply:
    replies = node.perform([request])
    assert len(replies) == 1
    return replies[0]


def item(node: CacheNode, key: bytes) -> Item:
    reply = one(node, Get(key))
    assert isinstance(reply, Item), reply
    return reply


def ask_late(setup: Setup, node: CacheNode, requests: Sequence[Request]) -> Sequence[Reply]:
    """The answer that has come, for which even a server on a busy machine has had the time."""
    for seconds in (0.1, 2.0):
        node.send(requests)
        setup.pass_time(seconds)
        try:
            return node.receive(is_late=True)
        except NodeTimedOut:
            node.connect()
    node.send(requests)
    setup.pass_time(20.0)
    return node.receive(is_late=True)


class BackendContract:
    """Subclasses provide the fixture ``setup``."""

    @pytest.fixture
    def node(self, setup: Setup) -> CacheNode:
        return setup.connect()

    # -- each request alone ----------------------------------------------------------------------------

    def test_get_of_an_absent_key(self, node: CacheNode) -> None:
        assert one(node, Get(b"k")) is MISSING

    @pytest.mark.parametrize("size", [1, 9, 10, 1000, 15_000, 40_000])
    def test_find_gives_the_value_of_an_item(self, node: CacheNode, size: int) -> None:
        value = (b"VA 2\r\nEN\r\n" * size)[:size]
        assert node.find(b"k") is None
        node.perform([Add(b"k", value, TTL_SECONDS), Get(b"stub", TTL_SECONDS)])
        for _ in range(2):
            assert node.find(b"k") == value
            assert node.find(b"stub") == b""
        assert item(node, b"k").value == value, "the connection is in step"
        with pytest.raises(FormatError):
            node.find(b"no key")

    @pytest.mark.parametrize("size", [1, 2, 3000, 30_000])
    def test_many_values_are_found_at_once(self, node: CacheNode, size: int) -> None:
        values = {b"key%d" % number: b"%d" % number * size for number in range(20)}
        node.perform([Add(key, value, TTL_SECONDS) for key, value in values.items()])
        node.perform([Get(b"stub", TTL_SECONDS)])
        keys = [b"absent", *values, b"stub", b"absent", b"key7"]
        for _ in range(2):
            replies = node.perform(Finds(keys))
            found = [reply.value if isinstance(reply, Item) else reply for reply in replies]
            nothing = (None, MISSING)
            assert all(found[place] in nothing for place in (0, 22))
            assert found[1:22] == [*values.values(), b""]
            assert found[23] == values[b"key7"]
        assert node.perform(Finds([])) == []
        assert item(node, b"key7").value == values[b"key7"], "the connection is in step"
        with pytest.raises(FormatError):
            node.perform(Finds([b"k", b"no key"]))

    def test_an_answer_that_has_come_is_received_without_a_wait(self, setup: Setup, node: CacheNode) -> None:
        node.connect()
        node.connect()
        assert node.is_connected
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        for _ in range(2):
            found, absent = ask_late(setup, node, [Get(b"k"), Get(b"absent")])
            assert isinstance(found, Item)
            assert (found.value, absent) == (b"v", MISSING)
        assert item(node, b"k").value == b"v", "and waits are as long as ever"

    def test_add_stores_and_says_no_version(self, node: CacheNode) -> None:
        assert one(node, Add(b"k", b"value", TTL_SECONDS)) == Stored(0)
        found = item(node, b"k")
        assert found.value == b"value"
        assert found.version > 0
        assert not found.won
        assert not found.lease

    def test_add_over_an_item_changes_nothing(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        before = item(node, b"k")
        assert one(node, Add(b"k", b"second", TTL_SECONDS)) is CONFLICT
        after = item(node, b"k")
        assert (after.value, after.version) == (before.value, before.version)

    def test_cas_replaces_the_item_it_saw(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        seen = item(node, b"k")
        reply = one(node, Cas(b"k", b"second", seen.version, TTL_SECONDS))
        assert isinstance(reply, Stored)
        found = item(node, b"k")
        assert found.value == b"second"
        assert found.version == reply.version != seen.version

    def test_cas_can_go_on_from_the_version_it_was_told(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"0", TTL_SECONDS)])
        version = item(node, b"k").version
        for number in range(3):
            reply = one(node, Cas(b"k", b"%d" % number, version, TTL_SECONDS))
            assert isinstance(reply, Stored)
            version = reply.version
        assert item(node, b"k").value == b"2"

    def test_cas_on_another_version(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        seen = item(node, b"k")
        node.perform([Cas(b"k", b"second", seen.version, TTL_SECONDS)])
        assert one(node, Cas(b"k", b"third", seen.version, TTL_SECONDS)) is CONFLICT
        assert item(node, b"k").value == b"second"

    def test_cas_on_an_item_that_was_deleted_and_added_again(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        seen = item(node, b"k")
        node.perform([Delete(b"k"), Add(b"k", b"first", TTL_SECONDS)])
        assert one(node, Cas(b"k", b"third", seen.version, TTL_SECONDS)) is CONFLICT

    def test_cas_on_an_absent_key(self, node: CacheNode) -> None:
        assert one(node, Cas(b"k", b"value", 7, TTL_SECONDS)) is MISSING
        assert one(node, Get(b"k")) is MISSING

    @pytest.mark.parametrize("version", [0, -1, 1 << 64])
    def test_a_version_that_no_item_has_never_matches(self, node: CacheNode, version: int) -> None:
        """`Stored` says 0 for an add; a caller that goes on from it must not overwrite anything."""
        assert one(node, Cas(b"k", b"value", version, TTL_SECONDS)) is MISSING
        assert one(node, Delete(b"k", version)) is MISSING
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        assert one(node, Cas(b"k", b"value", version, TTL_SECONDS)) is CONFLICT
        assert one(node, Delete(b"k", version)) is CONFLICT
        assert item(node, b"k").value == b"first"

    def test_delete(self, node: CacheNode) -> None:
        assert one(node, Delete(b"k")) is DONE
        node.perform([Add(b"k", b"value", TTL_SECONDS)])
        assert one(node, Delete(b"k")) is DONE
        assert one(node, Get(b"k")) is MISSING

    def test_conditional_delete(self, node: CacheNode) -> None:
        assert one(node, Delete(b"k", 7)) is MISSING
        node.perform([Add(b"k", b"first", TTL_SECONDS)])
        seen = item(node, b"k")
        node.perform([Cas(b"k", b"second", seen.version, TTL_SECONDS)])
        assert one(node, Delete(b"k", seen.version)) is CONFLICT
        assert one(node, Delete(b"k", item(node, b"k").version)) is DONE
        assert one(node, Get(b"k")) is MISSING

    # -- append ----------------------------------------------------------------------------------------

    def test_append_to_an_absent_key(self, node: CacheNode) -> None:
        assert one(node, Append(b"k", b"v")) is CONFLICT
        assert one(node, Get(b"k")) is MISSING

    @pytest.mark.parametrize("value", AWKWARD_VALUES)
    def test_append_changes_value_and_version(self, node: CacheNode, value: bytes) -> None:
        node.perform([Add(b"k", value, TTL_SECONDS)])
        version = item(node, b"k").version
        replies = node.perform([Append(b"k", value), Get(b"k"), Append(b"k", b"!"), Get(b"k")])
        first, one_more, second, found = replies
        assert (first, second) == (Stored(0), Stored(0))
        assert isinstance(one_more, Item)
        assert isinstance(found, Item)
        assert (one_more.value, found.value) == (value + value, value + value + b"!")
        assert len({0, version, one_more.version, found.version}) == 4
        for previous in (version, one_more.version):
            assert one(node, Cas(b"k", b"no", previous, TTL_SECONDS)) is CONFLICT
            assert one(node, Delete(b"k", previous)) is CONFLICT
        assert isinstance(one(node, Cas(b"k", b"yes", found.version, TTL_SECONDS)), Stored)

    def test_append_keeps_the_ttl(self, setup: Setup) -> None:
        node = setup.connect()
        node.perform([Add(b"short", b"v", 1), Add(b"long", b"v", TTL_SECONDS), Add(b"never", b"v", 0)])
        assert node.perform([Append(key, b"w") for key in (b"short", b"long", b"never")]) == [Stored(0)] * 3
        assert 0 <= item(node, b"short").ttl_seconds <= 2
        assert 2 < item(node, b"long").ttl_seconds <= TTL_SECONDS + 1
        assert item(node, b"never").ttl_seconds == -1
        setup.pass_time(2.5)
        assert node.perform([Append(key, b"x") for key in (b"short", b"long")]) == [CONFLICT, Stored(0)]
        assert one(node, Get(b"short")) is MISSING
        assert item(node, b"long").value == b"vwx"

    def test_append_makes_an_item_of_a_stub(self, node: CacheNode) -> None:
        """Its lease is nobody's any more, and the winner's version is no longer the item's."""
        stub = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(stub, Item)
        assert one(node, Append(b"k", b"v")) == Stored(0)
        for found in node.perform([Get(b"k"), Get(b"k", vivify_ttl_seconds=60)]):
            assert isinstance(found, Item)
            assert (found.value, found.won, found.lease) == (b"v", False, False)
            assert 0 < found.ttl_seconds <= 31
        assert one(node, Cas(b"k", b"no", stub.version, TTL_SECONDS)) is CONFLICT

    def test_an_item_with_a_ttl_is_appended_to_and_replaced_by_one_without(self, node: CacheNode) -> None:
        """As a pending stripe is, which becomes a whole one."""
        node.perform([Add(b"k", b"pending", 15), Append(b"k", b" and more")])
        pending = item(node, b"k")
        assert (pending.value, pending.won, pending.lease) == (b"pending and more", False, False)
        stored, appended = node.perform([Cas(b"k", b"whole", pending.version, 0), Append(b"k", b" and more")])
        assert isinstance(stored, Stored)
        assert appended == Stored(0)
        whole = item(node, b"k")
        assert (whole.value, whole.ttl_seconds, whole.won, whole.lease) == (b"whole and more", -1, False, False)
        assert one(node, Cas(b"k", b"no", stored.version, 0)) is CONFLICT

    def test_appends_of_several_clients_are_all_there(self, setup: Setup) -> None:
        nodes = [setup.connect() for _ in range(3)]
        nodes[0].perform([Add(b"k", b"", TTL_SECONDS)])
        chunks = [[b"<%d.%d>" % (client, number) for number in range(50)] for client in range(3)]
        for node, own in zip(nodes, chunks, strict=True):
            node.send([Append(b"k", chunk) for chunk in own])
        for node in nodes:
            assert node.receive() == [Stored(0)] * 50
        found = [b"<%b>" % part for part in item(nodes[0], b"k").value[1:-1].split(b"><")]
        assert [[part for part in found if part in own] for own in chunks] == chunks
        assert len(found) == 150

    @pytest.mark.parametrize(("held_bytes", "added_bytes"), [(1, 2_000_000), (700_000, 700_000)])
    def test_append_of_too_much(self, node: CacheNode, held_bytes: int, added_bytes: int) -> None:
        """Nothing was appended then, but a node may have dropped the item."""
        held = b"v" * held_bytes
        node.perform([Add(b"k", held, TTL_SECONDS), Add(b"after", b"v", TTL_SECONDS)])
        requests: list[Request] = [Append(b"k", b"w" * added_bytes), Append(b"after", b"w"), Delete(b"before")]
        assert node.perform(requests) == [CONFLICT, Stored(0), DONE]
        later, after = node.perform([Get(b"k"), Get(b"after")])
        assert later is MISSING or (isinstance(later, Item) and later.value == held)
        assert isinstance(after, Item)
        assert after.value == b"vw"

    def test_too_long_a_chunk_for_some_stripes(self, node: CacheNode) -> None:
        """Each append that counts was carried out, and each that does not count left nothing behind."""
        names = [b"!%d" % number for number in range(4)]
        node.perform([Add(name, b"v" * size, 0) for name, size in zip(names, (1, 700_000, 1, 700_000), strict=True)])
        replies = node.perform(Strikes(names, b"w" * 700_000, [b"k"]))
        assert replies[1::2] == [CONFLICT, CONFLICT]
        assert replies[4:] == [DONE]
        held = node.perform([Get(name) for name in names])
        for reply, found in zip(replies, held, strict=False):
            if reply == Stored(0):
                assert isinstance(found, Item)
                assert found.value == b"v" + b"w" * 700_000
            else:
                assert found is MISSING or (isinstance(found, Item) and b"w" not in found.value)

    # -- stubs -----------------------------------------------------------------------------------------

    def test_a_stub_is_won_once(self, setup: Setup) -> None:
        first, second = setup.connect(), setup.connect()
        won = one(first, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(won, Item)
        assert (won.value, won.won, won.lease) == (b"", True, False)
        assert 0 < won.ttl_seconds <= 31
        for node in (second, first):
            lost = one(node, Get(b"k", vivify_ttl_seconds=30))
            assert isinstance(lost, Item)
            assert (lost.value, lost.won, lost.lease, lost.version) == (b"", False, True, won.version)

    def test_a_stub_is_seen_by_a_plain_get(self, node: CacheNode) -> None:
        node.perform([Get(b"k", vivify_ttl_seconds=30)])
        found = item(node, b"k")
        assert (found.value, found.won, found.lease) == (b"", False, True)

    def test_a_replaced_stub_is_an_item_like_others(self, node: CacheNode) -> None:
        stub = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(stub, Item)
        assert isinstance(one(node, Cas(b"k", b"value", stub.version, TTL_SECONDS)), Stored)
        found = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(found, Item)
        assert (found.value, found.won, found.lease) == (b"value", False, False)

    def test_a_vivifying_get_does_not_touch_an_item(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"value", TTL_SECONDS)])
        before = item(node, b"k")
        found = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(found, Item)
        assert (found.value, found.version, found.won) == (b"value", before.version, False)
        assert found.ttl_seconds > 31

    def test_a_stub_is_there_for_add_cas_and_delete(self, node: CacheNode) -> None:
        stub = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(stub, Item)
        assert one(node, Add(b"k", b"value", TTL_SECONDS)) is CONFLICT
        assert one(node, Delete(b"k", stub.version)) is DONE
        again = one(node, Get(b"k", vivify_ttl_seconds=30))
        assert isinstance(again, Item)
        assert again.won
        assert again.version != stub.version

    # -- time ------------------------------------------------------------------------------------------

    def test_items_and_stubs_expire(self, setup: Setup) -> None:
        node = setup.connect()
        replies = node.perform([Add(b"short", b"v", 1), Get(b"stub", 1), Add(b"long", b"v", 60)])
        assert [type(reply) for reply in replies] == [Stored, Item, Stored]
        setup.pass_time(2.5)
        missing, stub, long, never = node.perform(
            [Get(b"short"), Get(b"stub", 30), Get(b"long"), Cas(b"short", b"w", 1, 60)]
        )
        assert missing is MISSING
        assert never is MISSING
        assert isinstance(stub, Item)
        assert stub.won
        assert isinstance(long, Item)

    def test_no_expiry_and_a_ttl_beyond_30_days(self, node: CacheNode) -> None:
        node.perform([Add(b"never", b"v", 0), Add(b"year", b"v", 31_536_000)])
        assert item(node, b"never").ttl_seconds == -1
        assert item(node, b"year").ttl_seconds > 2_591_000

    # -- flows -----------------------------------------------------------------------------------------

    def test_an_empty_flow(self, node: CacheNode) -> None:
        assert node.perform([]) == []

    def test_a_mixed_flow_is_answered_in_its_order(self, node: CacheNode) -> None:
        node.perform([Add(b"there", b"old", TTL_SECONDS), Add(b"other", b"x", TTL_SECONDS)])
        there = item(node, b"there")
        replies = node.perform(
            [
                Add(b"there", b"no", TTL_SECONDS),
                Add(b"new", b"new", TTL_SECONDS),
                Delete(b"other"),
                Get(b"there"),
                Get(b"other"),
                Add(b"there", b"no", TTL_SECONDS),
                Cas(b"there", b"changed", there.version, TTL_SECONDS),
                Cas(b"there", b"no", there.version, TTL_SECONDS),
                Delete(b"absent", 5),
                Delete(b"there"),
                Get(b"there"),
                Get(b"stub", 30),
                Append(b"absent", b"no"),
                Add(b"new", b"no", TTL_SECONDS),
                Append(b"new", b"er"),
                Delete(b"new"),
                Add(b"new", b"yes", TTL_SECONDS),
            ]
        )
        assert replies[0] is CONFLICT
        assert replies[1] == Stored(0)
        assert replies[2] is DONE
        assert isinstance(replies[3], Item)
        assert (replies[3].value, replies[3].version) == (b"old", there.version)
        assert replies[4] is MISSING
        assert replies[5] is CONFLICT
        assert isinstance(replies[6], Stored)
        assert replies[6].version > 0
        assert replies[7:11] == [CONFLICT, MISSING, DONE, MISSING]
        assert isinstance(replies[11], Item)
        assert replies[11].won
        assert replies[12:] == [CONFLICT, CONFLICT, Stored(0), DONE, Stored(0)]
        assert item(node, b"new").value == b"yes"

    def test_flows_sent_to_two_nodes_before_either_is_received(self, setup: Setup) -> None:
        first, second = setup.connect(), setup.connect()
        first.perform([Add(b"k", b"v", TTL_SECONDS)])
        first.send([Get(b"k"), Get(b"absent")])
        second.send([Get(b"absent"), Get(b"k")])
        assert [type(reply) is Item for reply in second.receive()] == [False, True]
        assert [type(reply) is Item for reply in first.receive()] == [True, False]

    def test_answers_that_nobody_received_are_not_taken_for_others(self, node: CacheNode) -> None:
        """A caller was interrupted between send and receive (F46)."""
        node.perform([Add(b"a", b"value of a", TTL_SECONDS), Add(b"b", b"value of b", TTL_SECONDS)])
        node.send([Get(b"a"), Get(b"a")])
        assert item(node, b"b").value == b"value of b"

    @pytest.mark.parametrize("value", AWKWARD_VALUES)
    def test_values_are_bytes(self, node: CacheNode, value: bytes) -> None:
        node.perform([Add(b"k", value, TTL_SECONDS), Add(b"after", b"after", TTL_SECONDS)])
        first, after = node.perform([Get(b"k"), Get(b"after")])
        assert isinstance(first, Item)
        assert isinstance(after, Item)
        assert (first.value, after.value) == (value, b"after")
        assert isinstance(one(node, Cas(b"k", value + value, first.version, TTL_SECONDS)), Stored)
        assert item(node, b"k").value == value + value

    def test_keys_of_any_printable_byte(self, node: CacheNode) -> None:
        keys = [b"k!", bytes(range(0x21, 0x7F)), bytes(range(0x80, 0x100)), b"x" * KEY_BYTES_MAX]
        node.perform([Add(key, key, TTL_SECONDS) for key in keys])
        assert [getattr(reply, "value", None) for reply in node.perform([Get(key) for key in keys])] == keys

    @pytest.mark.parametrize("key", [b"", b"x" * 251, b"a b", b"a\r\nflush_all", b"a\n", b"\x00", b"a\x7f"])
    def test_an_impossible_key_is_refused_before_anything_is_sent(self, node: CacheNode, key: bytes) -> None:
        requests: list[Request] = [
            Get(key),
            Add(key, b"v", 1),
            Cas(key, b"v", 1, 1),
            Delete(key),
            Delete(key, 1),
            Append(key, b"v"),
            Get(key, is_bound=True),
            Add(key, b"v", 1, is_bound=True),
        ]
        for request in requests:
            with pytest.raises(FormatError, match="250 bytes"):
                node.perform([Add(b"k", b"v", TTL_SECONDS), request])
        assert one(node, Get(b"k")) is MISSING

    def test_a_negative_ttl_is_refused_before_anything_is_sent(self, node: CacheNode) -> None:
        requests: list[Request] = [
            Add(b"j", b"v", -1),
            Cas(b"j", b"v", 1, -1),
            Get(b"j", -1),
            Add(b"j", b"v", -1, is_bound=True),
        ]
        for request in requests:
            with pytest.raises(FormatError, match="TTL"):
                node.perform([Add(b"k", b"v", TTL_SECONDS), request])
        assert one(node, Get(b"k")) is MISSING

    def test_a_pipeline_of_many_values(self, node: CacheNode) -> None:
        count, value = 20_000, b"v" * 1024
        assert node.perform([Add(b"k%d" % n, value, TTL_SECONDS) for n in range(count)]) == [Stored(0)] * count
        replies = node.perform([Get(b"k%d" % n) for n in range(count)])
        assert len(replies) == count
        assert all(type(reply) is Item and reply.value == value for reply in replies)

    def test_a_pipeline_of_many_quiet_requests(self, node: CacheNode) -> None:
        count = 20_000
        node.perform([Add(b"k%d" % n, b"", TTL_SECONDS) for n in range(0, count, 100)])
        requests: list[Request] = []
        for n in range(count):
            requests += [Add(b"k%d" % n, b"pending", TTL_SECONDS), Delete(b"entry%d" % n)]
        replies = node.perform(requests)
        assert [n for n, reply in enumerate(replies[0::2]) if reply is CONFLICT] == list(range(0, count, 100))
        assert replies[0::2].count(Stored(0)) == count - count // 100
        assert replies[1::2] == [DONE] * count

    # -- refusals and failures -------------------------------------------------------------------------

    def test_a_cas_with_too_large_a_value_is_refused(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"v", TTL_SECONDS), Add(b"after", b"after", TTL_SECONDS)])
        seen = item(node, b"k")
        huge = b"x" * 2_000_000
        quiet, refused, after = node.perform(
            [Add(b"before", b"v", 60), Cas(b"k", huge, seen.version, 60), Get(b"after")]
        )
        assert quiet == Stored(0)
        assert isinstance(refused, Refused)
        assert "too large" in refused.reason
        assert isinstance(after, Item)
        assert after.value == b"after"
        later = one(node, Get(b"k"))
        assert later is MISSING or (isinstance(later, Item) and later.value == b"v")

    def test_an_add_with_too_large_a_value_fails_the_flow(self, node: CacheNode) -> None:
        with pytest.raises(NodeUnavailable, match="too large"):
            node.perform([Add(b"k", b"x" * 2_000_000, 60), Get(b"other")])
        assert one(node, Get(b"k")) is MISSING

    def test_a_dead_node_is_never_a_miss(self, setup: Setup) -> None:
        node = setup.connect()
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        setup.kill()
        requests: list[Request] = [
            Get(b"k"),
            Get(b"k", 30),
            Add(b"k", b"v", 60),
            Delete(b"k"),
            Append(b"k", b"v"),
            Get(b"k", is_bound=True),
        ]
        flows = [*([request] for request in requests), Strikes([b"k"], b"v", [b"j"])]
        for _ in range(2):
            for flow in flows:
                with pytest.raises(NodeUnavailable, match=node.name):
                    node.perform(flow)
        with pytest.raises(NodeUnavailable, match=node.name):
            setup.connect().perform([Get(b"k")])

    def test_a_restarted_node_is_used_again_and_remembers_nothing(self, setup: Setup) -> None:
        node = setup.connect()
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        setup.kill()
        with pytest.raises(NodeUnavailable):
            node.perform([Get(b"k")])
        setup.restart()
        assert one(node, Get(b"k")) is MISSING
        assert one(node, Add(b"k", b"new", TTL_SECONDS)) == Stored(0)
        assert item(node, b"k").value == b"new"

    def test_a_closed_node_connects_again(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        node.close()
        node.close()
        assert item(node, b"k").value == b"v"

    # -- the stripes and keys of a batch ---------------------------------------------------------------

    @pytest.mark.parametrize(
        ("stripes", "keys"), [(0, 0), (1, 0), (0, 1), (1, 1), (3, 3), (2500, 0), (0, 2500), (2500, 2500)]
    )
    def test_strikes_do_what_their_requests_do(self, node: CacheNode, stripes: int, keys: int) -> None:
        """Every third stripe is absent, and every third key. Numbers in hexadecimal, so that names begin alike."""
        names = [b"%b!%x" % (side, number) for side in (b"a", b"b") for number in range(stripes)]
        entries = [b"%b:%x" % (side, number) for side in (b"a", b"b") for number in range(keys)]
        there = [key for key in (*names, *entries) if int(key[2:], 16) % 3]
        assert node.perform([Add(key, b"old", TTL_SECONDS) for key in there]) == [Stored(0)] * len(there)
        strikes = Strikes(names[:stripes], b" new", entries[:keys])
        requests = list(Strikes(names[stripes:], b" new", entries[keys:]))
        assert requests[:stripes] == [Append(name, b" new") for name in names[stripes:]]
        assert requests[stripes:] == [Delete(entry) for entry in entries[keys:]]
        expected: list[Reply] = [Stored(0) if number % 3 else CONFLICT for number in range(stripes)]
        expected += [DONE] * keys
        assert node.perform(strikes) == expected
        assert node.perform(requests) == expected
        held = node.perform([Get(key) for key in names])
        values = [reply.value if isinstance(reply, Item) else None for reply in held]
        assert values == [b"old new" if number % 3 else None for number in range(stripes)] * 2
        assert node.perform([Get(key) for key in entries]) == [MISSING] * 2 * keys

    def test_strikes_come_in_any_order_with_other_flows(self, setup: Setup) -> None:
        first, second = setup.connect(), setup.connect()
        first.perform([Add(b"!1", b"0", TTL_SECONDS), Add(b"!2", b"0", TTL_SECONDS)])
        first.send(Strikes([b"!2", b"!3", b"!1"], b"a", [b"k"]))
        second.send(Strikes([b"!3", b"!1"], b"b", []))
        assert second.receive() == [CONFLICT, Stored(0)]
        assert first.receive() == [Stored(0), CONFLICT, Stored(0), DONE]
        assert item(first, b"!2").value == b"0a"
        assert sorted(item(first, b"!1").value) == sorted(b"0ab")

    @pytest.mark.parametrize("count", [2, 2500])
    @pytest.mark.parametrize("bad", [b"a b", b"k" * (KEY_BYTES_MAX + 1)])
    def test_strikes_with_a_name_that_no_node_takes(self, node: CacheNode, bad: bytes, count: int) -> None:
        """A flow that is sent piece by piece may have begun; the connection is good for the next one."""
        names = [b"%d" % number for number in range(count - 1)] + [bad]
        for strikes in (Strikes(names, b"v", []), Strikes([], b"v", names), Strikes(names[:1], b"v", names)):
            with pytest.raises(FormatError, match="250 bytes"):
                node.perform(strikes)
            assert one(node, Add(b"after", b"v", TTL_SECONDS)) == Stored(0)
            assert one(node, Delete(b"after")) is DONE


class BoundContract(BackendContract):
    """With what a backend promises about bound items, while its server process is the same.

    Not run over Redis in this process: the scripts call INFO, which fakeredis does not know. Bound items in another
    process are tested in ``integration/freshness/test_nodes.py``.
    """

    def test_a_bound_item_is_like_any_other_in_its_own_process(self, setup: Setup) -> None:
        node = setup.connect()
        assert one(node, Get(b"k", is_bound=True)) is MISSING
        assert one(node, Add(b"k", ALL_BYTES, TTL_SECONDS, is_bound=True)) == Stored(0)
        assert one(node, Add(b"k", b"second", TTL_SECONDS, is_bound=True)) is CONFLICT
        assert one(node, Add(b"k", b"second", TTL_SECONDS)) is CONFLICT
        bound, plain = setup.connect().perform([Get(b"k", is_bound=True), Get(b"k")])
        assert isinstance(bound, Item)
        assert isinstance(plain, Item)
        assert (bound.value, bound.version) == (ALL_BYTES, plain.version)
        assert (bound.won, bound.lease) == (False, False)
        assert 0 < bound.ttl_seconds <= TTL_SECONDS + 1

    @pytest.mark.parametrize("value", AWKWARD_VALUES)
    def test_cas_and_append_keep_it_bound(self, node: CacheNode, value: bytes) -> None:
        node.perform([Add(b"k", b"first", TTL_SECONDS, is_bound=True)])
        version = item(node, b"k").version
        replies = node.perform(
            [
                Cas(b"k", b"no", version + 1, TTL_SECONDS),
                Cas(b"k", value, version, 0),
                Append(b"k", value),
                Get(b"k", is_bound=True),
                Get(b"k"),
            ]
        )
        conflict, stored, appended, bound, plain = replies
        assert (conflict, appended) == (CONFLICT, Stored(0))
        assert isinstance(stored, Stored)
        assert isinstance(bound, Item)
        assert bound == plain
        assert (bound.value, bound.ttl_seconds) == (value + value, -1)
        assert bound.version not in (version, stored.version)

    def test_a_bound_item_can_be_deleted_and_added_again(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"v", TTL_SECONDS, is_bound=True)])
        version = item(node, b"k").version
        assert one(node, Delete(b"k", version + 1)) is CONFLICT
        assert one(node, Delete(b"k", version)) is DONE
        assert one(node, Add(b"k", b"again", 0, is_bound=True)) == Stored(0)
        found = one(node, Get(b"k", is_bound=True))
        assert isinstance(found, Item)
        assert (found.value, found.ttl_seconds) == (b"again", -1)

    def test_an_item_that_is_not_bound_is_shown_to_those_who_ask_for_bound_ones(self, node: CacheNode) -> None:
        node.perform([Add(b"k", b"v", 0)])
        assert one(node, Add(b"k", b"w", 0, is_bound=True)) is CONFLICT
        found = one(node, Get(b"k", is_bound=True))
        assert isinstance(found, Item)
        assert found == item(node, b"k")


class TestMemory(BoundContract):
    @pytest.fixture
    def setup(self, memory_setup: MemorySetup) -> Setup:
        return memory_setup


class TestRedisInThisProcess(BackendContract):
    @pytest.fixture
    def setup(self, fake_redis_setup: FakeRedisSetup) -> Setup:
        return fake_redis_setup

    def test_scripts_that_were_flushed_are_loaded_again(self, fake_redis_setup: FakeRedisSetup) -> None:
        node = fake_redis_setup.connect()
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        fakeredis.FakeRedis(server=fake_redis_setup.server).script_flush()
        with pytest.raises(NodeUnavailable, match="SCRIPT FLUSH"):
            node.perform([Get(b"k")])
        assert item(node, b"k").value == b"v"

    def test_versions_never_repeat(self, setup: Setup) -> None:
        node = setup.connect()
        versions = set()
        for _ in range(50):
            node.perform([Add(b"k", b"v", TTL_SECONDS)])
            versions.add(item(node, b"k").version)
            node.perform([Delete(b"k")])
        assert len(versions) == 50

    @pytest.mark.parametrize("raw", [b"", b"short", b"12345678", b"\x00" * 20, b"a foreign value"])
    def test_foreign_bytes_are_shown_and_never_replaced(self, fake_redis_setup: FakeRedisSetup, raw: bytes) -> None:
        node = fake_redis_setup.connect()
        fakeredis.FakeRedis(server=fake_redis_setup.server).set("k", raw)
        for request in (Get(b"k"), Get(b"k", 30)):
            assert one(node, request) == Item(raw, 0)
        assert one(node, Cas(b"k", b"v", 0, TTL_SECONDS)) is CONFLICT
        assert one(node, Delete(b"k", 0)) is CONFLICT
        assert one(node, Add(b"k", b"v", TTL_SECONDS)) is CONFLICT
        assert one(node, Append(b"k", b"v")) is CONFLICT
        assert one(node, Get(b"k")) == Item(raw, 0)
        assert one(node, Delete(b"k")) is DONE

    def test_a_key_of_another_type_is_an_error(self, fake_redis_setup: FakeRedisSetup) -> None:
        fakeredis.FakeRedis(server=fake_redis_setup.server).rpush("k", "x")
        with pytest.raises(NodeUnavailable, match="WRONGTYPE"):
            one(fake_redis_setup.connect(), Get(b"k"))

    def test_an_address_that_is_none(self) -> None:
        with pytest.raises(ConfigError, match="not an address"):
            RedisNode("redis")
