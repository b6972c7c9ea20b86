"""Streams of a real Vitess when shards are split and merged: all rows come once, from old shards and new ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from freshness.errors import SourceUnavailable
from freshness.position import Position
from freshness.stream.source import RowChange
from integration.servers.vitess import Vitess
from integration.vitess.real.deployment import TABLE, VSCHEMA
from integration.vitess.real.following import ARRIVES_SECONDS, RETRY_SECONDS, Follower, Inserts, executed
from invalidator.vstream.reader import ShardsMoved
from invalidator.vstream.source import VStream

KEYS = {"customers": ("customer_id",)}
SOME = 40
FOUR = ("-40", "40-80", "80-c0", "c0-")
TWO = ("-80", "80-")
ONE = ("-",)


def keys_of(changes: Sequence[RowChange]) -> list[Any]:
    return [each.after["customer_id"] for each in changes if each.after is not None]


def read_whole(cluster: Vitess, start: dict[str, Position]) -> list[int]:
    """One stream of all shards to the end of these: the keys."""
    stream = VStream(cluster.address(tablet_type="primary"), KEYS)
    keys: list[int] = []
    positions = dict(start)
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline:
        try:
            stream.open(positions)
            while True:
                for _, transaction in stream.poll(1.0, 1000):
                    keys += keys_of(transaction.changes)
        except SourceUnavailable:
            positions = stream.positions
            time.sleep(RETRY_SECONDS)
        except ShardsMoved:
            return keys
        finally:
            stream.close()
    raise AssertionError(f"the stream of all shards goes on at {positions}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("before", "after"), [(TWO, FOUR), (TWO, ONE)], ids=["split", "merge"])
def test_every_row_comes_once_over_a_reshard(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    with Vitess(before, replicas=0, vschema=VSCHEMA, vtgate_options=("--tablet-types-to-wait", "PRIMARY")) as cluster:
        cluster.control("ApplySchema", "--sql", TABLE, cluster.keyspace)
        previous = cluster.take_shards()
        starts = {tablet.shard: executed(tablet) for tablet in previous}
        writer = Inserts(
            cluster.mysql_address(), "INSERT IGNORE INTO customers (customer_id, v) VALUES ({number}, 1)"
        )
        writer.start()
        try:
            cluster.add_shards(after)
            job = ("Reshard", "--workflow", "move", "--target-keyspace", cluster.keyspace)
            cluster.control(
                *job, "create", "--source-shards", ",".join(before), "--target-shards", ",".join(after),
                "--tablet-types", "primary",
            )  # fmt: skip
            cluster.wait_copied("move")
            writer.wait_for(SOME)
            cluster.control(*job, "SwitchTraffic")
            writer.wait_for(SOME)
        finally:
            writer.stop()
        counted: Counter[int] = Counter()
        new: dict[str, Position] = {}
        for shard in before:
            with Follower(
                cluster, KEYS, shard=shard, start=starts[shard], parts={"tablet_type": "primary"}
            ) as stream:
                moved = stream.read_to(ShardsMoved)
            assert shard in moved.old
            assert set(moved.new) <= set(after)
            new |= moved.new
            counted.update(keys_of(stream.changes))
            # A process that dies here and begins again at what was delivered meets the journal again
            with Follower(
                cluster, KEYS, shard=shard, start=stream.position, parts={"tablet_type": "primary"}
            ) as again:
                assert again.read_to(ShardsMoved).new == moved.new
                assert again.changes == []
        assert Counter(read_whole(cluster, starts)) == counted, "one stream of all shards brings the same"
        assert set(new) == set(after)
        for shard, position in new.items():
            with Follower(cluster, KEYS, shard=shard, start=position, parts={"tablet_type": "primary"}) as follower:
                follower.read_up_to(executed(cluster.primary(shard)))
            counted.update(keys_of(follower.changes))
        assert set(writer.written) <= counted.keys()
        assert max(counted.values()) == 1, [key for key, count in counted.items() if count > 1][:20]
