"""The contract suite over real servers, and what only a real server can show about them."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freshness.algorithm.node import CacheNode
from freshness.algorithm.request import (
    CONFLICT,
    DONE,
    MISSING,
    Add,
    Cas,
    Delete,
    Get,
    InspectStorage,
    Item,
    Refused,
    Request,
    StorageReport,
    Stored,
)
from freshness.errors import NodeUnavailable, NodeUnsuitable
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.redis import RedisNode
from integration.servers.memcached import TEMPORARY_TTL_SECONDS, Memcached
from integration.servers.process import ServerProcess
from integration.servers.redis import Redis
from tests.contract.test_backends import BackendContract, Setup

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


def inspect(node: CacheNode, tombstone_ttl_seconds: int = TTL_SECONDS) -> StorageReport:
    (reply,) = node.perform([InspectStorage(tombstone_ttl_seconds)])
    assert isinstance(reply, StorageReport)
    return reply


@pytest.fixture(scope="module")
def memcached() -> Iterator[Memcached]:
    with Memcached() as server:
        yield server


@pytest.fixture
def started() -> Iterator[Callable[..., Memcached]]:
    """Starts servers with options; stops them all."""
    servers: list[Memcached] = []

    def start(*options: str, memory_mb: int = 64, keeps_tombstones: bool = True) -> Memcached:
        servers.append(Memcached(options=options, memory_mb=memory_mb, keeps_tombstones=keeps_tombstones))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


class TestMemcached(BackendContract):
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
        node.perform([Add(b"k", b"former", TTL_SECONDS)])
        (former,) = node.perform([Get(b"k")])
        assert isinstance(former, Item)
        setup.kill()
        setup.restart()
        node.close()
        node.perform([Add(b"k", b"new", TTL_SECONDS)])
        request = Cas(b"k", b"from the former life", former.version, TTL_SECONDS)
        assert node.perform([request]) == [CONFLICT]
        (stored,) = setup.connect().perform([request])
        assert isinstance(stored, Stored)

    def test_a_refused_item_takes_the_former_one_with_it(self, setup: Setup) -> None:
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


# -- what the server says about its storage ------------------------------------------------------------


def test_a_node_set_up_for_it_keeps_tombstones(started: Callable[..., Memcached]) -> None:
    node = MemcachedNode(started().address)
    assert inspect(node).keeps_tombstones
    assert inspect(node).reason == ""
    assert "memcached 1." in inspect(node).server
    # one second for the partial first one, and the limit itself is not promised
    assert inspect(node, TEMPORARY_TTL_SECONDS - 2).keeps_tombstones
    assert not inspect(node, TEMPORARY_TTL_SECONDS - 1).keeps_tombstones


def test_the_hint_names_what_the_server_then_takes(started: Callable[..., Memcached]) -> None:
    server = started(keeps_tombstones=False)
    node = MemcachedNode(server.address)
    report = inspect(node)
    assert not report.keeps_tombstones
    for words in ("-o temporary_ttl=122", "lru temp_ttl 122", "-o slab_automove=0", "slabs automove 0"):
        assert words in report.reason
    assert server.ask("lru temp_ttl 122") == "OK\r\n"
    assert inspect(node).reason.startswith("it moves slab pages")
    assert server.ask("slabs automove 0") == "OK\r\n"
    assert inspect(node).keeps_tombstones
    again = started("-o", "temporary_ttl=122", "-o", "slab_automove=0", keeps_tombstones=False)
    assert inspect(MemcachedNode(again.address)).keeps_tombstones


def test_without_a_segmented_lru_nothing_is_promised(started: Callable[..., Memcached]) -> None:
    server = started("-o", "no_lru_maintainer", keeps_tombstones=False)
    assert "no_lru_maintainer" in inspect(MemcachedNode(server.address)).reason


def fill(node: CacheNode, prefix: bytes, count: int, ttl_seconds: int, value: bytes) -> int:
    """Add items by their thousands; how many flows the node refused."""
    refused = 0
    for start in range(0, count, 1000):
        try:
            node.perform([Add(b"%b%d" % (prefix, n), value, ttl_seconds) for n in range(start, start + 1000)])
        except NodeUnavailable as error:
            if "out of memory storing object" not in str(error):
                raise
            refused += 1
    return refused


def count_present(node: CacheNode, prefix: bytes, count: int) -> int:
    replies = node.perform([Get(b"%b%d" % (prefix, n)) for n in range(count)])
    return sum(reply is not MISSING for reply in replies)


def test_the_temp_lru_keeps_tombstones_under_pressure(started: Callable[..., Memcached]) -> None:
    """F5. The same node without it loses them all, so that this test could fail. Where its own threads starve,
    memcached refuses a store now and then: that is a loss and counted as one, an eviction is not."""
    kept = []
    for keeps_tombstones in (True, False):
        server = started(keeps_tombstones=keeps_tombstones, memory_mb=16)
        node = MemcachedNode(server.address)
        assert fill(node, b"tombstone", 5000, TTL_SECONDS, b"t" * 60) == 0
        assert inspect(node).losses == 0
        refused = fill(node, b"entry", 300_000, 86_400, b"v" * 60)
        kept.append(count_present(node, b"tombstone", 5000))
        losses, evictions = inspect(node).losses, int(server.stats()["evictions"])
        assert losses >= refused
        assert losses < evictions / 10, "evicting entries is not a loss"
    assert kept == [5000, 0]


def test_memory_full_of_tombstones_refuses_and_counts(started: Callable[..., Memcached]) -> None:
    """F51: a quiet add fails its flow; a CAS is refused, and its former item is gone."""
    node = MemcachedNode(started(memory_mb=8).address)
    assert fill(node, b"tombstone", 200_000, TTL_SECONDS, b"t" * 60) > 0
    losses = inspect(node).losses
    assert losses > 0
    (seen,) = node.perform([Get(b"tombstone0")])
    assert isinstance(seen, Item)
    (refused,) = node.perform([Cas(b"tombstone0", b"u" * 60, seen.version, TTL_SECONDS)])
    assert refused == Refused("out of memory storing object")
    assert node.perform([Get(b"tombstone0")]) == [MISSING]
    assert inspect(node).losses > losses


def test_a_moved_slab_page_is_counted(started: Callable[..., Memcached]) -> None:
    """F67: unevictable items that go with a page are in no eviction counter."""
    server = started()
    node = MemcachedNode(server.address)
    count = 100_000
    assert fill(node, b"tombstone", count, TTL_SECONDS, b"t" * 60) == 0
    assert inspect(node).losses == 0
    full = max(
        (int(pages), name.split(":")[0])
        for name, pages in server.stats("slabs").items()
        if name.endswith(":total_pages")
    )
    for moved in (1, 2):
        assert server.ask(f"slabs reassign {full[1]} 20") == "OK\r\n"
        deadline = time.monotonic() + 30
        while int(server.stats()["slabs_moved"]) < moved:
            assert time.monotonic() < deadline, "the page was not moved"
            time.sleep(0.02)
    lost = count - count_present(node, b"tombstone", count)
    assert lost > 0
    assert inspect(node).losses >= lost
    assert server.stats()["evictions"] == "0"


def test_a_flush_by_a_stranger_is_counted(started: Callable[..., Memcached]) -> None:
    server = started()
    node = MemcachedNode(server.address)
    node.perform([Add(b"k", b"v", TTL_SECONDS)])
    server.ask("flush_all")
    assert node.perform([Get(b"k")]) == [MISSING]
    assert inspect(node).losses == 1


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
        good = MemcachedNode(server.address, credentials=("app", "secret"))
        wait_until_up(good)
        assert good.perform([Add(b"k", b"v", TTL_SECONDS)]) == [Stored(0)]
        with pytest.raises(NodeUnsuitable, match="refuses the credentials"):
            MemcachedNode(server.address, credentials=("app", "wrong")).perform([Get(b"k")])
        with pytest.raises(NodeUnsuitable, match="wants credentials"):
            MemcachedNode(server.address).perform([Get(b"k")])
    finally:
        server.stop()


def test_tls(tmp_path: Path) -> None:
    """A flow of many records: memcached 1.6.18 hangs over one whose records end within a command."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server = Memcached(options=("-Z", "-o", f"ssl_chain_cert={certificate},ssl_key={key}"))
    server.launch()
    try:
        context = ssl.create_default_context(cafile=certificate)
        node = MemcachedNode(server.address, tls_context=context, timeout_seconds=5)
        wait_until_up(node)
        requests: list[Request] = [Add(b"k%d" % n, b"v" * (n % 3000), TTL_SECONDS) for n in range(5000)]
        assert set(node.perform(requests)) == {Stored(0)}
        assert set(node.perform(requests)) == {CONFLICT}
        replies = node.perform([Get(b"k%d" % n) for n in range(5000)])
        assert [len(reply.value) for reply in replies if isinstance(reply, Item)] == [
            n % 3000 for n in range(5000)
        ]
        large: list[Request] = []
        for n in range(20):
            large += [Add(b"large%d" % n, b"v" * 900_000, TTL_SECONDS), Get(b"large%d" % n)]
        assert all(isinstance(reply, Item) for reply in node.perform(large)[1::2])
        with pytest.raises(NodeUnavailable):
            MemcachedNode(server.address, tls_context=ssl.create_default_context()).perform([Get(b"k")])
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


def test_a_paused_server_is_unavailable_and_its_late_answer_is_nobodys(
    started: Callable[..., Memcached],
) -> None:
    server = started()
    node = MemcachedNode(server.address, timeout_seconds=1.5)
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


def test_a_paused_server_that_no_longer_reads(started: Callable[..., Memcached]) -> None:
    """A flow larger than all buffers on the way ends by the timeout too."""
    server = started()
    node = MemcachedNode(server.address, timeout_seconds=1.5)
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


class TestRedis(BackendContract):
    @pytest.fixture
    def setup(self, redis: Redis) -> Iterator[Setup]:
        redis.restart()
        setup = ServerSetup(redis, lambda: RedisNode(redis.address))
        yield setup
        setup.close()

    def test_versions_do_not_repeat_after_a_restart(self, setup: Setup) -> None:
        node = setup.connect()
        node.perform([Add(b"k", b"former", TTL_SECONDS)])
        (former,) = node.perform([Get(b"k")])
        assert isinstance(former, Item)
        setup.kill()
        setup.restart()
        node.close()
        node.perform([Add(b"k", b"new", TTL_SECONDS)])
        assert node.perform([Cas(b"k", b"from the former life", former.version, TTL_SECONDS)]) == [CONFLICT]


def test_a_redis_that_never_evicts_keeps_tombstones(started_redis: Callable[..., Redis]) -> None:
    report = inspect(RedisNode(started_redis().address))
    assert report.keeps_tombstones
    assert report.server.startswith("redis ")
    limited = started_redis("--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
    assert inspect(RedisNode(limited.address)).keeps_tombstones


def test_a_redis_that_evicts_does_not(started_redis: Callable[..., Redis]) -> None:
    server = started_redis("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru")
    node = RedisNode(server.address)
    before = inspect(node)
    assert not before.keeps_tombstones
    assert "noeviction" in before.reason
    assert fill(node, b"entry", 5000, 86_400, b"v" * 1000) == 0
    assert inspect(node).losses > before.losses


def test_a_full_redis_refuses_and_counts(started_redis: Callable[..., Redis]) -> None:
    server = started_redis("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    node = RedisNode(server.address)
    with pytest.raises(NodeUnavailable, match="maxmemory") as caught:
        node.perform([Add(b"k%d" % n, b"v" * 1000, TTL_SECONDS) for n in range(5000)])
    assert "more memory" in caught.value.hint
    report = inspect(node)
    assert report.keeps_tombstones
    assert report.losses > 0
    (seen,) = node.perform([Get(b"k0")])
    assert isinstance(seen, Item)
    (refused,) = node.perform([Cas(b"k0", b"v" * 1000, seen.version, TTL_SECONDS)])
    assert isinstance(refused, Refused)
    assert node.perform([Get(b"absent", 30)]) == [MISSING]
    (after,) = node.perform([Get(b"k0")])
    assert isinstance(after, Item)
    assert after.version == seen.version


@pytest.mark.parametrize("options", [("--save", "60 1"), ("--appendonly", "yes")])
def test_a_persistent_redis_is_refused(started_redis: Callable[..., Redis], options: tuple[str, ...]) -> None:
    with pytest.raises(NodeUnsuitable, match="persistent") as caught:
        RedisNode(started_redis(*options).address).perform([Get(b"k")])
    assert "appendonly no" in caught.value.hint


def test_a_redis_that_becomes_persistent_is_noticed(started_redis: Callable[..., Redis]) -> None:
    server = started_redis()
    node = RedisNode(server.address)
    assert inspect(node).keeps_tombstones
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(b"CONFIG SET appendonly yes\r\n")
        assert connection.recv(100) == b"+OK\r\n"
    with pytest.raises(NodeUnsuitable, match="persistent"):
        inspect(node)


def test_a_replicated_redis_is_refused(started_redis: Callable[..., Redis]) -> None:
    """A failover would keep the life and forget the last acknowledged invalidations."""
    primary = started_redis()
    replica = started_redis("--replicaof", f"127.0.0.1 {primary.port}")
    with pytest.raises(NodeUnsuitable, match="replicated: role slave"):
        RedisNode(replica.address).perform([Get(b"k")])


def test_a_redis_that_hides_its_configuration_promises_nothing(started_redis: Callable[..., Redis]) -> None:
    server = started_redis("--rename-command", "CONFIG", "")
    report = inspect(RedisNode(server.address))
    assert not report.keeps_tombstones
    assert "CONFIG GET" in report.reason


def test_a_redis_with_a_password() -> None:
    server = Redis(options=("--requirepass", "secret"))
    server.launch()
    try:
        node = RedisNode(server.address, password="secret")
        wait_until_up(node)
        assert node.perform([Add(b"k", b"v", TTL_SECONDS)]) == [Stored(0)]
        for wrong in (None, "wrong"):
            with pytest.raises(NodeUnavailable, match=r"(?i)auth|pass"):
                RedisNode(server.address, password=wrong).perform([Get(b"k")])
    finally:
        server.stop()


def test_a_paused_redis_is_unavailable(started_redis: Callable[..., Redis]) -> None:
    server = started_redis()
    node = RedisNode(server.address, timeout_seconds=1.5)
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
