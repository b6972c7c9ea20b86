"""The contract suite over real servers, and what only a real server can show about them."""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as RedisClient

from freshness.algorithm.driver import BlockingDriver, drive, running_clock
from freshness.algorithm.envelope import Coverage, Filled, NodeRecord, Stamp, record_key, stripe_keys
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.node import CacheNode
from freshness.algorithm.read import read_through
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Append,
    Cas,
    Delete,
    Finds,
    Flows,
    Get,
    Item,
    Refused,
    Request,
    Step,
    Stored,
    Strikes,
)
from freshness.algorithm.rule import ObjectPolicy, ReadOutcome
from freshness.algorithm.state import ReadContext
from freshness.algorithm.view import Sightings
from freshness.errors import NodeUnavailable, NodeUnsuitable
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.redis import RIGHTS, RedisNode
from freshness.nodes.servernode import Reach
from freshness.position import MysqlGtidSet
from integration.servers.memcached import Memcached
from integration.servers.process import ServerProcess
from integration.servers.redis import Redis
from tests.contract.test_backends import BoundContract, Setup

TTL_SECONDS = 120


class ServerSetup:
    """A real server as the contract suite wants it."""

    def __init__(self, server: ServerProcess, connect: Callable[[], CacheNode]) -> None:
        self._server = server
        self._connect = connect
        self._nodes: list[CacheNode] = []

    def connect(self) -> CacheNode:
        self._nodes.append(self._connect())
        return self._nodes[-1]

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.start()

    def close(self) -> None:
        for node in self._nodes:
            node.close()


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture
def started() -> Iterator[Callable[..., Memcached]]:
    """Starts servers with options; stops them all."""
    servers: list[Memcached] = []

    def start(*options: str) -> Memcached:
        servers.append(Memcached(options=options))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


class TestMemcached(BoundContract):
    @pytest.fixture
    def setup(self, memcached: Memcached) -> Iterator[Setup]:
        memcached.restart()
        setup = ServerSetup(memcached, lambda: MemcachedNode(memcached.address))
        yield setup
        setup.close()

    def test_versions_repeat_after_a_restart(self, setup: Setup) -> None:
        """The trap of F8: another connection may use the number, the one that was broken does not (and entries
        carry the life besides)."""
        node = setup.connect()
        node.perform([Add(b"k", b"previous", TTL_SECONDS)])
        (previous,) = node.perform([Get(b"k")])
        assert isinstance(previous, Item)
        setup.kill()
        setup.restart()
        node.close()
        node.perform([Add(b"k", b"new", TTL_SECONDS)])
        request = Cas(b"k", b"from the previous life", previous.version, TTL_SECONDS)
        assert node.perform([request]) == [CONFLICT]
        (stored,) = setup.connect().perform([request])
        assert isinstance(stored, Stored)

    def test_a_refused_item_takes_the_previous_one_with_it(self, setup: Setup) -> None:
        """Whatever the version; `Refused` says so, and `MemoryStore` models it."""
        node = setup.connect()
        node.perform([Add(b"k", b"v", TTL_SECONDS)])
        (refused,) = node.perform([Cas(b"k", b"x" * 2_000_000, 999_999, TTL_SECONDS)])
        assert isinstance(refused, Refused)
        assert node.perform([Get(b"k")]) == [MISSING]

    def test_100_000_adds_over_existing_keys(self, setup: Setup) -> None:
        """The server has something to say to each, so it must be read while the flow is still being written."""
        node = setup.connect()
        requests: list[Request] = [Add(b"k%d" % n, b"v" * 100, TTL_SECONDS) for n in range(100_000)]
        assert set(node.perform(requests)) == {Stored(0)}
        assert set(node.perform(requests)) == {CONFLICT}

    def test_20_megabytes_there_and_back_in_one_flow(self, setup: Setup) -> None:
        node = setup.connect()
        value = b"v" * 500_000
        requests: list[Request] = []
        for n in range(40):
            requests += [Add(b"k%d" % n, value, TTL_SECONDS), Get(b"k%d" % n), Delete(b"k%d" % n)]
        replies = node.perform(requests)
        assert all(isinstance(reply, Item) and reply.value == value for reply in replies[1::3])
        assert set(replies[0::3]) == {Stored(0)}
        assert set(replies[2::3]) == {DONE}


# -- servers of every kind -----------------------------------------------------------------------------


SERVING = {
    "plain": (),
    "no_modern": ("-o", "no_modern"),
    "no_lru_maintainer": ("-o", "no_lru_maintainer"),
    "never evicts": ("-M",),
    "temporary_ttl": ("-o", "temporary_ttl=300,slab_automove=0"),
}


@pytest.mark.parametrize("options", SERVING.values(), ids=SERVING)
def test_a_server_with_any_options_serves(started: Callable[..., Memcached], options: tuple[str, ...]) -> None:
    node = MemcachedNode(started(*options).address)
    replies = node.perform(
        [
            Add(b"record", b"v", TTL_SECONDS, is_bound=True),
            Add(b"stripe", b"head", 0),
            Append(b"stripe", b" chunk"),
            Get(b"stripe"),
            Get(b"k", 30),
            Get(b"record", is_bound=True),
        ]
    )
    assert [type(reply) for reply in replies] == [Stored, Stored, Stored, Item, Item, Item]
    assert node.perform(Strikes([b"stripe", b"absent"], b" more", [b"k"])) == [Stored(0), CONFLICT, DONE]
    stripe, entry = node.perform([Get(b"stripe"), Get(b"k")])
    assert isinstance(stripe, Item)
    assert stripe.value == b"head chunk more"
    assert entry is MISSING


def test_a_server_that_keeps_its_memory_in_a_file_is_refused(
    started: Callable[..., Memcached], tmp_path: Path
) -> None:
    """F100: a clean stop and start would bring everything back, even what was invalidated in between."""
    node = MemcachedNode(started("-e", str(tmp_path / "memory")).address)
    for _ in range(2):
        with pytest.raises(NodeUnsuitable, match=f"keeps its memory in {tmp_path}/memory") as caught:
            node.perform([Get(b"k")])
        assert "-e" in caught.value.hint


def fill(node: CacheNode, prefix: bytes, count: int, value: bytes) -> int:
    """Add items by their thousands; how many flows the node refused."""
    refused = 0
    for start in range(0, count, 1000):
        try:
            node.perform([Add(b"%b%d" % (prefix, n), value, TTL_SECONDS) for n in range(start, start + 1000)])
        except NodeUnavailable as error:
            if "no memory" not in str(error) and "maxmemory" not in str(error):
                raise
            refused += 1
    return refused


def count_present(node: CacheNode, names: Sequence[bytes]) -> int:
    return sum(isinstance(reply, Item) for reply in node.perform([Get(name) for name in names]))


def test_a_full_server_evicts_stripes_as_all_else(started: Callable[..., Memcached]) -> None:
    """So an append finds some and others not, and says which."""
    server = started("-m", "6")
    node = MemcachedNode(server.address)
    names = [b"!%x" % number for number in range(5000)]
    node.perform([Add(name, b"s" * 60, 0) for name in names])
    fill(node, b"entry", 60_000, b"v" * 60)
    assert int(server.stats()["evictions"]) > 0
    held = node.perform([Get(name) for name in names])
    present = [isinstance(reply, Item) for reply in held]
    assert not all(present)
    replies = node.perform(Strikes(names, b"c" * 60, []))
    assert not any(reply == Stored(0) for reply, was_there in zip(replies, present, strict=True) if not was_there)
    for reply, found in zip(replies, node.perform([Get(name) for name in names]), strict=True):
        if isinstance(found, Item):
            assert (found.value == b"s" * 60 + b"c" * 60) == (reply == Stored(0))


def test_a_server_that_never_evicts_refuses_appends(started: Callable[..., Memcached]) -> None:
    """F93: a refused append appends nothing, nor does the rest of its flow; a CAS is refused and its previous item is
    gone; a quiet add fails its flow."""
    node = MemcachedNode(started("-M", "-m", "6").address)
    names = [b"!%x" % number for number in range(3000)]
    node.perform([Add(name, b"s" * 60, 0) for name in names])
    assert fill(node, b"entry", 200_000, b"v" * 60) > 0
    for size in (0, 120, 60):  # a stub is shorter, and a stripe with a chunk more is longer
        assert fill(node, b"s%d." % size, 100_000, b"v" * size) > 0
    assert node.perform([Get(b"stub", 30)]) == [MISSING]
    (seen,) = node.perform([Get(b"entry2")])
    assert isinstance(seen, Item)
    (refused,) = node.perform([Cas(b"entry2", b"u" * 60, seen.version, TTL_SECONDS)])
    assert refused == Refused("out of memory storing object")
    assert node.perform([Get(b"entry2")]) == [MISSING]
    assert fill(node, b"more", 1000, b"v" * 60) > 0
    replies = node.perform(Strikes(names, b"c" * 60, [b"entry0", b"absent"]))
    assert replies == [CONFLICT] * 3000 + [DONE] * 2
    assert 0 < count_present(node, names) < 3000
    assert node.perform([Get(b"entry0"), Append(b"entry0", b"w" * 60)]) == [MISSING, CONFLICT]


def test_all_stripes_of_a_lineage_at_once(started: Callable[..., Memcached]) -> None:
    """The server has something to say to each, so it must be read while the flow is still being written."""
    node = MemcachedNode(started().address, Reach(timeout_seconds=10))
    names = stripe_keys("shop", "shop/-80", 65_536)
    keys = [b"shop:customer:%d" % number for number in range(65_536)]
    strikes = Strikes(names, b"c" * 60, keys)
    assert node.perform(strikes) == [CONFLICT] * 65_536 + [DONE] * 65_536
    assert node.perform([Add(name, b"s", 0) for name in names]) == [Stored(0)] * 65_536
    assert node.perform(strikes) == [Stored(0)] * 65_536 + [DONE] * 65_536
    assert count_present(node, names) == 65_536


# -- servers that can never serve, and servers in trouble ----------------------------------------------


def test_a_server_without_cas_is_refused(started: Callable[..., Memcached]) -> None:
    node = MemcachedNode(started("-C").address)
    for _ in range(2):
        with pytest.raises(NodeUnsuitable, match="no CAS") as caught:
            node.perform([Get(b"k")])
        assert "-C" in caught.value.hint


def test_credentials(started: Callable[..., Memcached], tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    accounts.write_text("app:secret\n")
    server = Memcached(options=("-Y", str(accounts)))
    # the server answers its own stats only to those who are known, so it cannot be waited for as others are
    server.launch()
    try:
        good = MemcachedNode(server.address, Reach(credentials=lambda: ("app", "secret")))
        wait_until_up(good)
        assert good.perform([Add(b"k", b"v", TTL_SECONDS)]) == [Stored(0)]
        with pytest.raises(NodeUnsuitable, match="refuses the credentials"):
            MemcachedNode(server.address, Reach(credentials=lambda: ("app", "wrong"))).perform([Get(b"k")])
        with pytest.raises(NodeUnsuitable, match="wants credentials"):
            MemcachedNode(server.address).perform([Get(b"k")])
    finally:
        server.stop()


def test_tls(tmp_path: Path) -> None:
    """A flow of many records: memcached 1.6.18 hangs over one whose records end within a command."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server = Memcached(options=("-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"))
    server.launch()
    try:
        context = ssl.create_default_context(cafile=certificate)
        node = MemcachedNode(server.address, Reach(make_tls=lambda: context, timeout_seconds=5))
        wait_until_up(node)
        requests: list[Request] = [Add(b"k%d" % n, b"v" * (n % 3000), TTL_SECONDS) for n in range(5000)]
        assert set(node.perform(requests)) == {Stored(0)}
        assert set(node.perform(requests)) == {CONFLICT}
        replies = node.perform([Get(b"k%d" % n) for n in range(5000)])
        assert [len(reply.value) for reply in replies if isinstance(reply, Item)] == [n % 3000 for n in range(5000)]
        found: Sequence[Any] = node.perform(Finds([b"k%d" % n for n in range(5000)]))
        assert found == [b"v" * (n % 3000) for n in range(5000)]
        large: list[Request] = []
        for n in range(20):
            large += [Add(b"large%d" % n, b"v" * 900_000, TTL_SECONDS), Get(b"large%d" % n)]
        assert all(isinstance(reply, Item) for reply in node.perform(large)[1::2])
        names = stripe_keys("shop", "shop/-80", 5000)
        node.perform([Add(name, b"s", 0) for name in names[::2]])
        for length in (1, 2000):
            replies = node.perform(Strikes(names, b"c" * length, [b"k%d" % n for n in range(5000)]))
            assert replies == [Stored(0), CONFLICT] * 2500 + [DONE] * 5000
        assert node.perform([Get(b"k%d" % n) for n in range(5000)]) == [MISSING] * 5000
        (stripe,) = node.perform([Get(names[4998])])
        assert isinstance(stripe, Item)
        assert stripe.value == b"s" + b"c" * 2001
        with pytest.raises(NodeUnavailable):
            MemcachedNode(server.address, Reach(make_tls=ssl.create_default_context)).perform([Get(b"k")])
    finally:
        server.stop()


def wait_until_up(node: CacheNode) -> None:
    """For servers whose readiness only those can see who have the secrets."""
    deadline = time.monotonic() + 30
    while True:
        try:
            node.perform([Get(b"absent")])
        except NodeUnavailable:
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.05)
        else:
            return


def test_a_paused_server_is_unavailable_and_its_late_answer_is_nobodys(started: Callable[..., Memcached]) -> None:
    server = started()
    node = MemcachedNode(server.address, Reach(timeout_seconds=1.5))
    node.perform([Add(b"a", b"value of a", TTL_SECONDS), Add(b"b", b"value of b", TTL_SECONDS)])
    server.pause()
    try:
        with pytest.raises(NodeUnavailable, match=r"did not answer within 1\.5 s"):
            node.perform([Get(b"a")])
    finally:
        server.resume()
    (reply,) = node.perform([Get(b"b")])
    assert isinstance(reply, Item)
    assert reply.value == b"value of b"


def test_a_server_that_stood_still_serves_no_hit(started: Callable[..., Memcached]) -> None:
    """F105: it is stopped for longer than its record lives, and a request waits for it. The answer may be by the time
    before the stop. The reader knows the heartbeat, so it does not depend on what the server takes the time for."""
    server = started()
    node = MemcachedNode(server.address)
    lineage, life, position = "shop/-", b"ofanode1", MysqlGtidSet()
    now_us = time.time_ns() // 1000
    record = NodeRecord(
        lineage, life, b"tenure01", True, 1, 7, now_us, 3_000, server.address, 8, position, position,
        objects={"row": Coverage(1, position)},
    )  # fmt: skip
    key = Lookup(ObjectPolicy("row", 1, ("rows",), (lineage,), 60), server.address, b"shop:row:1", b"id", (1,))
    entry = Filled((Stamp(lineage, life, 1, position),), key.identity, b"1").encode()
    node.perform([Add(record_key("shop", lineage), record.encode(), 1), Add(key.item, entry, TTL_SECONDS)])
    context = ReadContext(
        namespace="shop",
        ring=7,
        lineages=(lineage,),
        clock=running_clock,
        jitter=lambda: 0.0,
        encode=repr,  # type: ignore[arg-type]
        decode=bytes,
        node_refresh_seconds=0.0,
        fill_lease_ttl_seconds=10,
        fill_wait_seconds=0.0,
        on_stale="bypass",
        sightings=Sightings(running_clock, lambda: time.time_ns() // 1000, 3.0, 60.0),
    )
    nodes = BlockingDriver({server.address: node}, time.sleep, load=lambda *_: [Loaded(1, {})])

    def resume_behind_the_request(step: Step) -> Any:
        if not isinstance(step, Flows):
            return nodes.answer(step)
        node.send(step.flows[0].requests)
        server.resume()
        return [node.receive()]

    assert nodes.run(read_through(context, [key]))[0].outcome is ReadOutcome.HIT
    seen_at = running_clock()
    server.pause()
    try:
        while running_clock() - seen_at <= 3.0:
            time.sleep(0.1)
        (read,) = drive(read_through(context, [key]), resume_behind_the_request)
    finally:
        server.resume()
    assert read.outcome in (ReadOutcome.CLOCK, ReadOutcome.NO_RECORD)


def test_a_paused_server_that_no_longer_reads(started: Callable[..., Memcached]) -> None:
    """A flow larger than all buffers on the way ends by the timeout too."""
    server = started()
    node = MemcachedNode(server.address, Reach(timeout_seconds=1.5))
    node.perform([Get(b"k")])
    server.pause()
    try:
        with pytest.raises(NodeUnavailable, match="did not answer"):
            node.perform([Add(b"k%d" % n, b"v" * 500_000, TTL_SECONDS) for n in range(40)])
    finally:
        server.resume()
    assert node.perform([Get(b"absent")]) == [MISSING]


# -- Redis ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def started_redis() -> Iterator[Callable[..., Redis]]:
    """Starts servers with options; stops them all."""
    servers: list[Redis] = []

    def start(*options: str) -> Redis:
        servers.append(Redis(options=options))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


class TestRedis(BoundContract):
    @pytest.fixture
    def setup(self, redis: Redis) -> Iterator[Setup]:
        redis.restart()
        setup = ServerSetup(redis, lambda: RedisNode(redis.address))
        yield setup
        setup.close()

    def test_versions_do_not_repeat_after_a_restart(self, setup: Setup) -> None:
        node = setup.connect()
        node.perform([Add(b"k", b"previous", TTL_SECONDS)])
        (previous,) = node.perform([Get(b"k")])
        assert isinstance(previous, Item)
        setup.kill()
        setup.restart()
        node.close()
        node.perform([Add(b"k", b"new", TTL_SECONDS)])
        assert node.perform([Cas(b"k", b"from the previous life", previous.version, TTL_SECONDS)]) == [CONFLICT]


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_a_redis_that_evicts_serves(started_redis: Callable[..., Redis], policy: str) -> None:
    """An append finds some stripes and others not, and says which."""
    node = RedisNode(started_redis("--maxmemory", "4mb", "--maxmemory-policy", policy).address)
    names = [b"!%x" % number for number in range(3000)]
    node.perform([Add(b"record", b"v", 0, is_bound=True)])
    node.perform([Add(name, b"s" * 60, TTL_SECONDS) for name in names])
    assert fill(node, b"entry", 20_000, b"v" * 200) == 0
    assert count_present(node, names) < 3000
    replies = node.perform(Strikes(names, b"c" * 60, [b"entry0"]))
    assert replies[-1] is DONE
    assert CONFLICT in replies
    for reply, found in zip(replies, node.perform([Get(name) for name in names]), strict=False):
        if isinstance(found, Item):
            assert found.value == (b"s" * 60 + b"c" * 60 if reply == Stored(0) else b"s" * 60)


def test_a_full_redis_refuses(started_redis: Callable[..., Redis]) -> None:
    """Nothing is evicted and nothing is stored: an append does nothing, and its stripe can still be deleted."""
    server = started_redis("--maxmemory-policy", "noeviction")
    node = RedisNode(server.address)
    node.perform([Add(b"!1", b"s", 0), Add(b"k0", b"v", 0), Add(b"record", b"v", 0, is_bound=True)])
    before = node.perform([Get(b"!1"), Get(b"record", is_bound=True)])
    ask(server).config_set("maxmemory", 1)
    with pytest.raises(NodeUnavailable, match="maxmemory") as caught:
        node.perform([Add(b"k1", b"v", TTL_SECONDS)])
    assert "more memory" in caught.value.hint
    assert node.perform([Append(b"!1", b"c"), Append(b"absent", b"c")]) == [CONFLICT, CONFLICT]
    assert node.perform(Strikes([b"!1", b"!2"], b"c", [b"k0"])) == [CONFLICT, CONFLICT, DONE]
    record = before[1]
    assert isinstance(record, Item)
    (refused,) = node.perform([Cas(b"record", b"w", record.version, TTL_SECONDS)])
    assert isinstance(refused, Refused)
    assert node.perform([Get(b"absent", 30), Get(b"k0")]) == [MISSING, MISSING]
    assert node.perform([Get(b"!1"), Get(b"record", is_bound=True)]) == before
    with pytest.raises(NodeUnavailable, match="maxmemory"):
        node.perform([Add(b"copy", b"v", 0, is_bound=True)])
    assert node.perform([Delete(b"!1"), Get(b"!1")]) == [DONE, MISSING]


# -- old data that come back -----------------------------------------------------------------------------

AT_ONCE = ("--repl-diskless-sync-delay", "0")
"""A replica does not wait for others to come."""

BOUND = [Get(b"bound", is_bound=True), Get(b"plain"), Get(b"plain", is_bound=True)]


def store_bound(node: CacheNode) -> Item:
    """A bound item, which was written again since it was added, and a plain one. Both can be read. The bound one."""
    added = [Add(b"bound", b"record", TTL_SECONDS, is_bound=True), Add(b"plain", b"entry", TTL_SECONDS)]
    assert node.perform(added) == [Stored(0), Stored(0)]
    (first,) = node.perform(BOUND[:1])
    assert isinstance(first, Item)
    (renewed,) = node.perform([Cas(b"bound", b"record", first.version, TTL_SECONDS)])
    assert isinstance(renewed, Stored)
    bound, *plain = node.perform(BOUND)
    assert isinstance(bound, Item)
    assert [reply.value for reply in plain if isinstance(reply, Item)] == [b"entry", b"entry"]
    return bound


def check_is_noticed(node: CacheNode) -> None:
    """F129: the connection lived on, and ends with its next read. Another one knows nothing of the data before."""
    with pytest.raises(NodeUnavailable, match="may have other data") as caught:
        node.perform(BOUND[1:2])
    assert "replica" in caught.value.hint


def check_bound_is_gone(node: CacheNode, previous: Item) -> None:
    """The plain item is there and the bound one is not, for any request; it can be added again."""
    bound, *plain = node.perform(BOUND)
    assert bound is MISSING
    assert [reply.value for reply in plain if isinstance(reply, Item)] == [b"entry", b"entry"]
    replies = node.perform(
        [Cas(b"bound", b"late", previous.version, TTL_SECONDS), Append(b"bound", b"late"), *BOUND[:1]]
    )
    assert replies == [MISSING, CONFLICT, MISSING]
    added = Add(b"bound", b"again", TTL_SECONDS, is_bound=True)
    assert node.perform([added, added]) == [Stored(0), CONFLICT]
    (again,) = node.perform(BOUND[:1])
    assert isinstance(again, Item)
    assert again.value == b"again"
    (stored,) = node.perform([Cas(b"bound", b"newer", again.version, TTL_SECONDS)])
    assert isinstance(stored, Stored)


def test_a_redis_that_is_restarted_with_its_data(started_redis: Callable[..., Redis]) -> None:
    """F100: as after a crash of a server that saves its data now and then."""
    server = started_redis()
    node = RedisNode(server.address)
    previous = store_bound(node)
    assert ask(server).save()
    server.restart()
    with pytest.raises(NodeUnavailable):
        node.perform(BOUND)
    check_bound_is_gone(node, previous)


def test_a_redis_that_was_a_replica_in_between(started_redis: Callable[..., Redis]) -> None:
    """It has the same run_id after that, the server leaves the connection open, and the item came back with all its
    bytes."""
    server, other = started_redis(*AT_ONCE), started_redis(*AT_ONCE)
    node = RedisNode(server.address)
    previous = store_bound(node)
    run_id = ask(server).info("server")["run_id"]
    make_replica(other, server)
    (copy,) = RedisNode(other.address).perform([Get(b"bound")])
    assert isinstance(copy, Item)
    assert (copy.value, copy.version) == (previous.value, previous.version)
    make_primary(other)
    make_replica(server, other)
    with pytest.raises(NodeUnavailable, match="read only replica") as caught:
        RedisNode(server.address).perform([Append(b"plain", b"no")])
    assert "primary" in caught.value.hint
    make_primary(server)
    assert ask(server).info("server")["run_id"] == run_id
    late = [Add(b"late", b"v", TTL_SECONDS, is_bound=True)]
    assert node.perform(late) == [CONFLICT], "a record that knows the data from before"
    check_is_noticed(node)
    check_bound_is_gone(node, previous)
    assert node.perform(late) == [Stored(0)]
    assert RedisNode(other.address).perform(BOUND[:1]) == [MISSING]


def test_a_promoted_replica_has_no_bound_item(started_redis: Callable[..., Redis]) -> None:
    primary, replica = started_redis(*AT_ONCE), started_redis(*AT_ONCE)
    previous = store_bound(RedisNode(primary.address))
    make_replica(replica, primary)
    node = RedisNode(replica.address)
    assert node.perform(BOUND[:1]) == [MISSING]
    make_primary(replica)
    check_is_noticed(node)
    check_bound_is_gone(node, previous)


def test_a_first_replica_costs_the_bound_items(started_redis: Callable[..., Redis]) -> None:
    """For nothing: a server draws a new master_replid then. A second replica costs none."""
    primary = started_redis(*AT_ONCE)
    node = RedisNode(primary.address)
    previous = store_bound(node)
    make_replica(started_redis(*AT_ONCE), primary)
    check_is_noticed(node)
    check_bound_is_gone(node, previous)
    make_replica(started_redis(*AT_ONCE), primary)
    (bound,) = node.perform(BOUND[:1])
    assert isinstance(bound, Item)
    assert bound.value == b"newer"


def ask(server: Redis) -> RedisClient:
    return RedisClient(port=server.port, decode_responses=True)


def make_replica(server: Redis, primary: Redis) -> None:
    """Wait until it has everything that the primary has now."""
    ask(server).replicaof("127.0.0.1", str(primary.port))
    wait_until(lambda: ask(server).info("replication")["master_link_status"] == "up")
    assert ask(server).info("replication")["role"] == "slave"


def make_primary(server: Redis) -> None:
    ask(server).replicaof("NO", "ONE")
    assert ask(server).info("replication")["role"] == "master"


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, "it never came so"
        time.sleep(0.05)


# -- servers that hide something -------------------------------------------------------------------------

COMMANDS = (
    "script|load",
    "evalsha",
    "set",
    "del",
    "get",
    "pttl",
    "exists",
    "getrange",
    "setrange",
    "append",
    "strlen",
)
"""All that a node is asked for, with ``info``."""


def check_serves(node: CacheNode) -> None:
    store_bound(node)
    stub, missing = node.perform([Get(b"k", 30), Get(b"absent")])
    assert isinstance(stub, Item)
    assert missing is MISSING
    replies = node.perform(
        [
            Cas(b"k", b"v", stub.version, TTL_SECONDS),
            Append(b"plain", b"c"),
            Delete(b"k", 1),
            Delete(b"k"),
            *Strikes([b"plain", b"absent"], b"c", [b"k"]),
        ]
    )
    assert isinstance(replies[0], Stored)
    assert replies[1:] == [Stored(0), CONFLICT, DONE, Stored(0), CONFLICT, DONE]


@pytest.mark.parametrize("name", ["", "hidden"])
def test_a_redis_without_config_serves(started_redis: Callable[..., Redis], name: str) -> None:
    check_serves(RedisNode(started_redis("--rename-command", "CONFIG", name).address))


def test_a_member_of_a_redis_cluster_is_refused(started_redis: Callable[..., Redis]) -> None:
    with pytest.raises(NodeUnsuitable, match="is part of a Redis cluster") as caught:
        RedisNode(started_redis("--cluster-enabled", "yes").address).perform([Get(b"k")])
    assert "servers of their own" in caught.value.hint


def test_a_server_that_is_no_redis_is_refused(started: Callable[..., Memcached]) -> None:
    with pytest.raises(NodeUnsuitable, match="is no Redis") as caught:
        RedisNode(started().address).perform([Get(b"k")])
    assert "cache.nodes" in caught.value.hint


def known(user: str) -> Callable[[], tuple[str, str]]:
    return lambda: (user, "secret")


def test_a_user_who_may_do_little(started_redis: Callable[..., Redis]) -> None:
    server = started_redis()
    allowed = [f"+{command}" for command in COMMANDS]
    for user, may in (("all", ["+@all", "-config"]), ("little", [*allowed, "+info"]), ("less", allowed)):
        assert ask(server).acl_setuser(user, enabled=True, passwords=["+secret"], keys=["*"], commands=may)
    for user in ("all", "little"):
        check_serves(RedisNode(server.address, Reach(credentials=known(user))))
        ask(server).flushall()
    less = RedisNode(server.address, Reach(credentials=known("less")))
    with pytest.raises(NodeUnavailable, match="refused INFO") as caught:
        less.perform([Add(b"bound", b"v", TTL_SECONDS, is_bound=True)])
    assert RIGHTS in caught.value.hint


def test_a_redis_with_a_password() -> None:
    server = Redis(options=("--requirepass", "secret"))
    server.launch()
    try:
        node = RedisNode(server.address, Reach(credentials=known("")))
        wait_until_up(node)
        assert node.perform([Add(b"k", b"v", TTL_SECONDS)]) == [Stored(0)]
        for wrong in (None, lambda: ("", "wrong")):
            with pytest.raises(NodeUnavailable, match=r"(?i)auth|pass"):
                RedisNode(server.address, Reach(credentials=wrong)).perform([Get(b"k")])
    finally:
        server.stop()


def test_a_paused_redis_is_unavailable(started_redis: Callable[..., Redis]) -> None:
    server = started_redis()
    node = RedisNode(server.address, Reach(timeout_seconds=1.5))
    node.perform([Add(b"a", b"value of a", TTL_SECONDS), Add(b"b", b"value of b", TTL_SECONDS)])
    server.pause()
    try:
        with pytest.raises(NodeUnavailable, match="did not answer in time"):
            node.perform([Get(b"a")])
    finally:
        server.resume()
    (reply,) = node.perform([Get(b"b")])
    assert isinstance(reply, Item)
    assert reply.value == b"value of b"
