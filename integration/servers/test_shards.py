"""The sharded keyspace of the other tests: a split and a merge under a writer lose no row and double none, and GTIDs
are kept or new as promised."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pymysql
import pytest

from freshness.position import Position, parse_position
from freshness.stream.heartbeat import EPOCH_ROW, HEARTBEAT_TABLE
from integration.servers import DatabaseServer, Flavor, ServerFailed
from integration.servers.database import SCHEMA
from integration.shards import (
    TABLES,
    WRITER,
    Cluster,
    Reshard,
    Shard,
    ShardRouter,
    Writer,
    catch_up,
    cut_over,
    drop_foreign_rows,
    prepare_copied,
    prepare_replicated,
    promote,
    start_shards,
    stop_writes,
    switch,
    writing,
)

SOME = 80
"""Writes between two steps."""


def _executed(server: DatabaseServer) -> Position:
    return parse_position(server.flavor, server.executed())


def _assert_holds(shards: tuple[Shard, ...], writer: Writer) -> None:
    """Together the shards have every row once and on its own shard, and replicas are equal to their primaries."""
    for table in TABLES:
        held = {shard.name: shard.rows(table.name) for shard in shards}
        together = sorted(row for rows in held.values() for row in rows)
        assert together == sorted(writer.expected[table.name].values())
        assert all(held.values()), f"{table.name}: a shard without rows proves nothing"
        place = [row[0] for row in shards[0].primary.execute(f"SHOW COLUMNS FROM {SCHEMA}.{table.name}")].index(
            table.column
        )
        assert all(shard.contains(row[place]) for shard in shards for row in held[shard.name])
        for shard in shards:
            shard.wait_caught_up()
            sums = [server.execute(f"CHECKSUM TABLE {SCHEMA}.{table.name}") for server in shard.servers]
            assert sums == sums[:1] * len(shard.servers)


def _assert_gtids(reshard: Reshard) -> None:
    """At the promotion: all of the sources' are in every destination's log, or none is."""
    for destination in reshard.destinations:
        for source in reshard.sources_of(destination):
            for server in destination.servers:
                if reshard.keeps_gtids:
                    assert _executed(server).contains(_executed(source.primary))
                else:
                    assert _executed(server).intersection(_executed(source.primary)).is_empty
        if destination.primary.flavor == "mysql":
            # What is executed and was never purged is in the log; MariaDB's position is the log's anyway.
            assert destination.primary.execute("SELECT @@global.gtid_purged") == [("",)]


def _reshard(
    cluster: Cluster, router: ShardRouter, names: list[str], writer: Writer, *, keeps_gtids: bool
) -> tuple[Shard, ...]:
    """From all that serve to shards of these names, with writes before, between and after."""
    writer.wait_for(SOME)
    prepare = prepare_replicated if keeps_gtids else prepare_copied
    reshard = prepare(cluster, router.shards, names)
    writer.wait_for(SOME)
    stop_writes(reshard)
    last = [_executed(source.primary) for source in reshard.sources]
    catch_up(reshard)
    promote(reshard)
    assert [_executed(source.primary) for source in reshard.sources] == last
    _assert_gtids(reshard)
    switch(reshard, router)
    writer.wait_for(SOME)
    cluster.stop(reshard.sources)
    return reshard.destinations


@pytest.mark.parametrize("keeps_gtids", [True, False], ids=["replicated", "copied"])
def test_a_split_and_a_merge_keep_every_row(flavor: Flavor, keeps_gtids: bool) -> None:
    """The halves that are merged have a past in common: each has sent, and dropped, the other's rows."""
    with start_shards(flavor, ["-"]) as cluster:
        router = ShardRouter(cluster.shards)
        with writing(router) as writer:
            halves = _reshard(cluster, router, ["-80", "80-"], writer, keeps_gtids=keeps_gtids)
            past = reduce(lambda a, b: a.union(b), (_executed(half.primary) for half in halves))
            [whole] = _reshard(cluster, router, ["-"], writer, keeps_gtids=keeps_gtids)
            writer.stop()
            _assert_holds((whole,), writer)
            assert _executed(whole.primary).contains(past) is keeps_gtids


@pytest.mark.parametrize("is_logged", [False, True], ids=["silent", "logged"])
def test_a_split_alone_keeps_every_row(flavor: Flavor, is_logged: bool) -> None:
    with start_shards(flavor, ["-"]) as cluster:
        router = ShardRouter(cluster.shards)
        with writing(router) as writer:
            writer.wait_for(SOME)
            reshard = prepare_replicated(cluster, router.shards, ["-80", "80-"])
            cut_over(reshard, router, is_logged=is_logged)
            writer.wait_for(SOME)
            writer.stop()
            _assert_holds(reshard.destinations, writer)


def test_shards_without_a_common_past_merge(flavor: Flavor) -> None:
    with start_shards(flavor, ["-80", "80-"]) as cluster:
        router = ShardRouter(cluster.shards)
        with writing(router) as writer:
            [whole] = _reshard(cluster, router, ["-"], writer, keeps_gtids=True)
            writer.stop()
            _assert_holds((whole,), writer)


@pytest.mark.parametrize("user", [WRITER, "app"])
def test_a_stopped_shard_refuses_a_write_that_is_not_routed(flavor: Flavor, user: str) -> None:
    with start_shards(flavor, ["-"], replicas=0) as cluster:
        [shard] = cluster.shards
        stop_writes(Reshard(cluster, (shard,), (), keeps_gtids=True))
        with (
            shard.primary.connect(SCHEMA, user=user) as connection,
            connection.cursor() as cursor,
            pytest.raises(pymysql.MySQLError, match="read-only"),
        ):
            cursor.execute("INSERT INTO customers VALUES (1, 'late', 0)")


def test_heartbeats_of_several_sources_do_not_clash(flavor: Flavor) -> None:
    """Every source has a row of the same name, and beats last."""
    create = f"CREATE TABLE IF NOT EXISTS {HEARTBEAT_TABLE} (id VARCHAR(64) NOT NULL PRIMARY KEY, sequence INT)"
    with start_shards(flavor, ["-80", "80-"]) as cluster:
        for shard in cluster.shards:
            shard.primary.execute(create, database=SCHEMA)
            shard.primary.execute(f"INSERT INTO {HEARTBEAT_TABLE} VALUES (%s, 0)", EPOCH_ROW, database=SCHEMA)
        reshard = prepare_replicated(cluster, tuple(cluster.shards), ["-"])
        for source in reshard.sources:
            source.primary.execute(f"UPDATE {HEARTBEAT_TABLE} SET sequence = %s", source.number, database=SCHEMA)
        stop_writes(reshard)
        catch_up(reshard)
        promote(reshard)
        _assert_gtids(reshard)
        [whole] = reshard.destinations
        [(name, sequence)] = whole.rows(HEARTBEAT_TABLE)
        assert (name, sequence in (1, 2)) == (EPOCH_ROW, True)


def test_foreign_rows_are_dropped_with_and_without_log(flavor: Flavor) -> None:
    with start_shards(flavor, ["-"]) as cluster:
        [whole] = cluster.shards
        half = replace(whole, name="-80")
        rows = [(key, "name", 0) for key in range(1, 21)]
        for is_logged in (False, True):
            for row in rows:
                whole.primary.execute("REPLACE INTO customers VALUES (%s, %s, %s)", *row, database=SCHEMA)
            whole.wait_caught_up()
            before = _executed(whole.primary)
            drop_foreign_rows(half, TABLES, is_logged=is_logged)
            assert (_executed(whole.primary) != before) is is_logged
            kept = [row for row in rows if half.contains(row[0])]
            assert 0 < len(kept) < len(rows)
            for server in whole.servers:
                assert server.execute("SELECT * FROM customers ORDER BY 1", database=SCHEMA) == kept


def test_a_router_wants_every_key_exactly_once() -> None:
    def shard(name: str) -> Shard:
        return Shard(name, 1, None, ())  # type: ignore[arg-type]

    for names in ([], ["-80"], ["-80", "c0-"], ["-80", "40-"], ["-", "-"]):
        with pytest.raises(ServerFailed, match="exactly once"):
            ShardRouter([shard(name) for name in names])
    router = ShardRouter([shard("80-"), shard("-40"), shard("40-80")])
    # Vitess's ids of 1, 2 and 3 start with 16, 06 and 4e.
    assert [router.find(value).name for value in (1, 2, 3, 4)] == ["-40", "-40", "40-80", "80-"]
