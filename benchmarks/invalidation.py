"""Invalidations per second on one real memcached, against a client that makes them one after the other.

The baseline is what an application does with a client of its own that keeps a marker for each key: read the marker
with its version, then add it or replace it by CAS, each with its answer. It leaves out the delete of the entry, which
ours includes. Beside it meta-memcache, which adds and deletes, and the quickest that pymemcache has: many blind sets
and deletes, which forget what another invalidator knew, without an answer to any of them.

Where client and node share a core, nobody can be quicker than the node itself: `invalidation_bare` compares with a
client that sends the same commands, made before the clock starts, and reads the answers without a look at them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Final

from meta_memcache.cache_client import CacheClient
from meta_memcache.configuration import ServerAddress, connection_pool_factory_builder
from meta_memcache.protocol import SetMode
from pymemcache.client.base import Client

from benchmarks.cores import Placement, only_on, settle_node
from benchmarks.measure import Criterion, Result, Timings, interleave, stopwatch
from benchmarks.pipeline import LIFE, STRIPES, put_stripes
from freshness.algorithm.admission import join
from freshness.algorithm.apply import Batch, apply_batch
from freshness.algorithm.driver import BlockingDriver
from freshness.algorithm.envelope import encode_chunk, stripe_keys, stripe_numbers
from freshness.algorithm.invalidate import Target, invalidate, shorten
from freshness.algorithm.membership import Membership, NodePolicy
from freshness.algorithm.request import Head, Strikes
from freshness.nodes.memcached import MemcachedNode
from freshness.nodes.meta import FENCE, encode_strikes
from freshness.position import MariadbPosition
from integration.servers import Memcached

RECEIVE_BYTES: Final = 65_536
KEYS_IN_BATCH: Final = 2000
KEYS: Final = 3 * KEYS_IN_BATCH
"""In one round."""

MARKER_SUFFIX: Final = b"!"
MARKER_BYTES: Final = 29
MARKER_TTL_SECONDS: Final = 120
"""What a marker must live longer than: a replica's lag."""

NAMESPACE: Final = "bench"
LINEAGE: Final = "shop/-"
START: Final = MariadbPosition.of(0, 1, 1)
LEASE_SECONDS: Final = 60
"""The baseline's turn takes less."""

ABSENT: Final = Criterion(at_least=15)
PRESENT: Final = Criterion(at_least=12)
BARE_RATE: Final = Criterion(at_least=0.4)
SERIAL: Final = "serial pymemcache gets + add"
SERIAL_CAS: Final = "serial pymemcache gets + cas"
META: Final = "serial meta-memcache add + delete"
BLIND: Final = "pymemcache set_many + delete_many, blind, noreply"
BARE: Final = "the same commands, made before, answers unread"

Send = Callable[[list[bytes], int], None]
"""Invalidates these keys by the event with this sequence number."""


def measure_invalidation(rounds: int) -> list[Result]:
    """New keys, keys that were invalidated before, and the whole path of a batch with the record's progress."""
    with Memcached(memory_mb=256) as server:
        settle_node(server.pid)
        address = server.address
        node = MemcachedNode(address)
        client = Client(address, no_delay=True)
        try:
            put_stripes(node, NAMESPACE, LINEAGE, MariadbPosition())
            gathered, serial = _gathered(address, node), _serial(client)
            return [
                *_compare(
                    "invalidation",
                    (only_on(Placement.OTHER_CORE, ABSENT), only_on(Placement.OTHER_CORE, PRESENT)),
                    gathered,
                    serial,
                    rounds,
                ),
                _against_bare(address, gathered, rounds),
                *_compare("invalidation_batch", (None, None), _applied(address, node), serial, rounds),
                _against("invalidation_meta", gathered, _by_meta(address), META, rounds),
                _against("invalidation_blind", gathered, _blind(client), BLIND, rounds),
            ]
        finally:
            node.close()
            client.close()


def _compare(
    name: str, criteria: tuple[Criterion | None, Criterion | None], ours: Send, serial: Send, rounds: int
) -> list[Result]:
    """``criteria``: one for new keys, one for keys that were invalidated before. Ours does the same for both;
    the
    baseline finds no marker, or one."""
    absent = _measure(name, ours, serial, 1, rounds)
    present = _measure(name, ours, serial, 2, rounds)
    return [
        absent.per_second(name, KEYS, "keys/s", SERIAL, criteria[0]),
        present.per_second(f"{name}_again", KEYS, "keys/s", SERIAL_CAS, criteria[1]),
    ]


def _against(name: str, ours: Send, theirs: Send, baseline: str, rounds: int) -> Result:
    return _measure(name, ours, theirs, 1, rounds).per_second(name, KEYS, "keys/s", baseline)


def _against_bare(address: str, ours: Send, rounds: int) -> Result:
    host, _, port = address.rpartition(":")
    names = stripe_keys(NAMESPACE, LINEAGE, STRIPES)

    def encode(batch: list[bytes], number: int) -> bytes:
        chunk = encode_chunk(LIFE, MariadbPosition.of(0, 1, number))
        stripes = [names[each] for each in stripe_numbers(batch, STRIPES)]
        strikes = Strikes(stripes, chunk, batch)
        return b"".join([*encode_strikes(strikes, 0, len(strikes)), FENCE])

    with socket.create_connection((host, int(port))) as connection:

        def exchange(pieces: list[bytes]) -> None:
            for piece in pieces:
                connection.sendall(piece)
                while not connection.recv(RECEIVE_BYTES).endswith(b"MN\r\n"):
                    pass

        def keys_of(who: bytes, number: int) -> list[bytes]:
            return [b"bare:%b:%d:%d" % (who, number, place) for place in range(KEYS)]

        def bare(number: int) -> float:
            pieces = [encode(batch, number + 1) for batch in _batches(keys_of(b"theirs", number))]
            return stopwatch(lambda: exchange(pieces))

        def candidate(number: int) -> float:
            keys = keys_of(b"ours", number)
            return stopwatch(lambda: ours(keys, 1))

        timings = interleave(candidate, bare, rounds)
    criterion = only_on(Placement.SAME_CORE, BARE_RATE)
    return timings.per_second("invalidation_bare", KEYS, "keys/s", BARE, criterion)


def _measure(name: str, ours: Send, theirs: Send, sequence: int, rounds: int) -> Timings:
    """The keys of sequence 1 are new in every round; those of sequence 2 are the same once more."""

    def work(send: Send, who: bytes, number: int) -> float:
        keys = [b"%b:%b:%d:%d" % (name.encode(), who, number, place) for place in range(KEYS)]
        return stopwatch(lambda: send(keys, sequence + 2 * number))

    return interleave(
        lambda number: work(ours, b"ours", number), lambda number: work(theirs, b"theirs", number), rounds
    )


def _batches(keys: list[bytes]) -> list[list[bytes]]:
    return [keys[at : at + KEYS_IN_BATCH] for at in range(0, len(keys), KEYS_IN_BATCH)]


def _gathered(address: str, node: MemcachedNode) -> Send:
    """What the invalidator does with the keys of a batch, and with stripes that have become long."""
    driver = BlockingDriver({address: node}, time.sleep)
    target = Target(NAMESPACE, LINEAGE, LIFE, STRIPES, START)
    done = [1]

    def send(keys: list[bytes], _: int) -> None:
        for batch in _batches(keys):
            done[0] += 1
            streamed = MariadbPosition.of(0, 1, done[0])
            stripes = driver.run(invalidate(address, batch, target, streamed))
            assert stripes, "their stripes are there"
            driver.run(shorten(address, stripes, target, streamed))

    return send


def _applied(address: str, node: MemcachedNode) -> Send:
    """What it does with a batch in all: stripes and deletes, then progress and lease in the node record."""
    head = Head(START, 1)
    policy = NodePolicy(NAMESPACE, LINEAGE, 1, {}, STRIPES, LEASE_SECONDS, LEASE_SECONDS, 1.0)
    member = Membership(address, policy, time.monotonic, lambda: LIFE, head.position)
    driver = BlockingDriver({address: node}, time.sleep, read_head=lambda: head)
    driver.run(join(member, head.position))
    done = [1]

    def send(keys: list[bytes], _: int) -> None:
        for batch in _batches(keys):
            before = MariadbPosition.of(0, 1, done[0])
            done[0] += 1
            position = MariadbPosition.of(0, 1, done[0])
            driver.run(apply_batch(member, Batch(dict.fromkeys(batch, position), {}, before, position)))

    return send


def _marker(sequence: int) -> bytes:
    return b"%*d" % (MARKER_BYTES, sequence)


def mark(client: Client, key: bytes, data: bytes) -> None:
    """One invalidation of the baseline."""
    marker = key + MARKER_SUFFIX
    held, version = client.gets(marker)
    if held is None:
        stored = client.add(marker, data, expire=MARKER_TTL_SECONDS, noreply=False)
    else:
        stored = client.cas(marker, data, version, expire=MARKER_TTL_SECONDS, noreply=False)
    assert stored, "nobody else writes these keys"


def _serial(client: Client) -> Send:
    def send(keys: list[bytes], sequence: int) -> None:
        data = _marker(sequence)
        for key in keys:
            mark(client, key, data)

    return send


def _by_meta(address: str) -> Send:
    host, _, port = address.rpartition(":")
    servers = [ServerAddress(host, int(port))]
    cache = CacheClient.cache_client_from_servers(servers, connection_pool_factory_builder())

    def send(keys: list[bytes], sequence: int) -> None:
        data = _marker(sequence)
        for key in keys:
            marker = (key + MARKER_SUFFIX).decode()
            assert cache.set(marker, data, MARKER_TTL_SECONDS, set_mode=SetMode.ADD), "it is new"
            cache.delete(key.decode())

    return send


def _blind(client: Client) -> Send:
    def send(keys: list[bytes], sequence: int) -> None:
        data = _marker(sequence)
        for batch in _batches(keys):
            markers = [key + MARKER_SUFFIX for key in batch]
            client.set_many(dict.fromkeys(markers, data), MARKER_TTL_SECONDS, noreply=True)
            client.delete_many(batch, noreply=True)
            assert client.get(markers[-1]) == data, "all before it is through"

    return send
