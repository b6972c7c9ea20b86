"""Large transactions that vtgate sends in chunks: two shards at once, and a tablet that dies within one."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any, Final

import pytest

from freshness.errors import SourceUnavailable
from freshness.position import Position
from integration.servers.vitess import Vitess
from integration.vitess.real.following import ARRIVES_SECONDS, RETRY_SECONDS, Follower, execute, executed
from invalidator.mailbox import QueueBounds
from invalidator.vstream.source import VStream

LARGE: Final = "CREATE TABLE large (id BIGINT PRIMARY KEY, filler VARCHAR(2000))"
WHOLE: Final[dict[str, tuple[str, ...]]] = {"large": ()}
VSCHEMA: Final[dict[str, Any]] = {
    "sharded": True,
    "vindexes": {"xxhash": {"type": "xxhash"}},
    "tables": {
        "large": {"column_vindexes": [{"column": "id", "name": "xxhash"}]},
        "freshness_heartbeat": {"type": "reference"},
    },
}
CHUNK_BYTES: Final = 100_000
ROWS: Final = 1_000
TRANSACTIONS: Final = 40
IDLE_SECONDS: Final = 5.0
"""Of a stream, for the test: by default 30."""


def insert(cluster: Vitess, shard: str, first: int) -> None:
    """One transaction of many chunks, past vtgate."""
    rows = ", ".join(f"({first + number}, REPEAT('x', 2000))" for number in range(ROWS))
    execute(cluster, f"INSERT INTO large VALUES {rows}", shard=shard)


def insert_some(cluster: Vitess, shard: str, base: int) -> None:
    for number in range(TRANSACTIONS):
        insert(cluster, shard, base + number * ROWS)


@pytest.mark.timeout(600)
def test_chunks_of_two_shards_are_whole_transactions() -> None:
    with Vitess(("-80", "80-"), replicas=0, vschema=VSCHEMA,
                vtgate_options=("--tablet-types-to-wait", "PRIMARY")) as cluster:  # fmt: skip
        cluster.control("ApplySchema", "--sql", LARGE, cluster.keyspace)
        starts = {shard: executed(cluster.primary(shard)) for shard in cluster.tablets}
        stream = VStream(cluster.address(tablet_type="primary", chunk_bytes=CHUNK_BYTES), WHOLE)
        stream.open(starts)
        try:
            writers = [
                threading.Thread(target=insert_some, args=(cluster, shard, base))
                for base, shard in ((0, "-80"), (1_000_000, "80-"))
            ]
            for writer in writers:
                writer.start()
            received: Counter[str] = Counter()
            deadline = time.monotonic() + ARRIVES_SECONDS
            while sum(received.values()) < 2 * TRANSACTIONS and time.monotonic() < deadline:
                for shard, transaction in stream.poll(1.0, 100):
                    if not transaction.changes:
                        continue
                    ids: list[Any] = [each.after["id"] for each in transaction.changes if each.after]
                    assert len(ids) == ROWS
                    assert ids == list(range(ids[0], ids[0] + ROWS)), "rows of two transactions in one"
                    received[shard] += 1
            for writer in writers:
                writer.join()
        finally:
            stream.close()
    assert received == dict.fromkeys(starts, TRANSACTIONS)


@pytest.mark.timeout(900)
def test_a_transaction_whose_tablet_dies_within_it_comes_once() -> None:
    with Vitess(replicas=2) as cluster:
        start = execute(cluster, LARGE)
        insert_some(cluster, "0", 0)
        cluster.wait_caught_up("0")
        end = executed(cluster.primary("0"))
        received: Counter[Any] = Counter()
        position: Position = start
        with Follower(
            cluster,
            WHOLE,
            start=start,
            parts={"chunk_bytes": CHUNK_BYTES},
            idle_seconds=IDLE_SECONDS,
            queue=QueueBounds(1),
        ) as stream:
            victims = itertools.cycle(cluster.replicas("0"))
            deadline = time.monotonic() + ARRIVES_SECONDS
            while not position.contains(end):
                assert time.monotonic() < deadline, f"{len(received)} rows, {stream.ends[-2:]}"
                if received and not stream.ends:
                    # The stream is of one of the two, and vtgate itself goes on with the other one where
                    # no transaction was under way.
                    victim = next(victims)
                    victim.kill()
                    victim.start()
                try:
                    for transaction in stream.source.poll(1.0, 1):
                        ids = [each.after["id"] for each in transaction.changes if each.after]
                        assert len(ids) in (0, ROWS)
                        received.update(ids)
                        position = position.union(transaction.position)
                except SourceUnavailable as error:
                    stream.ends.append(error)
                    time.sleep(RETRY_SECONDS)
                    stream.source.open(position)
        assert stream.ends, "a tablet was killed under the stream"
    assert len(received) == TRANSACTIONS * ROWS
    assert set(received.values()) == {1}
