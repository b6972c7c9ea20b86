"""The cache on a real Vitess, with late replicas: tablets come and go, a table's schema changes, shards are split and
merged.

All the while one thread writes through vtgate and others read through caches. No read may show a version that the
checker refuses; after each event everything can be cached again, and every live entry is its row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from integration.harness import wait_until
from integration.servers.vitess import Vitess
from integration.vitess.real.deployment import SETTLES_SECONDS, Deployment, Writer, deployment, reading

DELAY_SECONDS: Final = 2
SOME: Final = 50
"""Writes between two events."""

READS_MIN: Final = 20_000


def settle(made: Deployment, writer: Writer) -> None:
    """Everything can be cached again, and nothing in the cache is old."""
    writer.check()
    with writer.paused():
        made.wait_ready()
        made.wait_cacheable()
        assert made.assert_none_stale() > 0
    assert not made.checker.violations, made.checker.violations[:20]
    writer.wait_for(SOME)


def report(made: Deployment, writer: Writer) -> None:
    checker = made.checker
    print(
        f"\n{checker.reads} reads, {checker.hits} hits, {writer.writes} writes, {dict(checker.outcomes)},"
        f" {len(checker.violations)} violations; failures of the writer: {dict(writer.failures)}"
    )
    assert not checker.violations, checker.violations[:20]


def wait_replicating(cluster: Vitess, shard: str) -> None:
    """Return when all replicas of the shard follow its primary."""
    primary = cluster.primary(shard)

    def follow() -> bool:
        for tablet in cluster.replicas(shard):
            status = tablet.mysql.replication_status()
            if (status.get("Source_Port"), status.get("Replica_SQL_Running")) != (primary.mysql.port, "Yes"):
                return False
        return True

    wait_until(follow, f"the replicas of {shard} follow", seconds=SETTLES_SECONDS)


# -- tablets come and go -------------------------------------------------------------------------------


def reparent(made: Deployment) -> None:
    first, second, _ = made.cluster.tablets["-80"]
    made.cluster.reparent("-80", second)
    made.cluster.reparent("-80", first)


def lose_primary(made: Deployment) -> None:
    """The primary's machine is gone; another tablet is promoted; the old one comes back as a replica."""
    first, second, _ = made.cluster.tablets["80-"]
    first.kill()
    first.mysql.kill()
    made.cluster.fail_over("80-", second)
    first.mysql.start()
    first.start()


def kill_replica(made: Deployment) -> None:
    """While reads are in their transactions."""
    tablet = made.cluster.replicas("-80")[0]
    tablet.kill()
    tablet.start()


def restart_vtgate(made: Deployment) -> None:
    made.cluster.vtgate.restart()


def change_schema(made: Deployment) -> None:
    """By a shadow table of Vitess's, which takes the table's name in the end."""
    with closing(made.cluster.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET @@ddl_strategy = 'vitess'")
        cursor.execute("ALTER TABLE customers ADD COLUMN note VARCHAR(20)")

        def is_complete() -> bool:
            cursor.execute("SHOW VITESS_MIGRATIONS")
            names = [column[0] for column in cursor.description]
            states = [dict(zip(names, row, strict=True))["migration_status"] for row in cursor.fetchall()]
            assert not {"failed", "cancelled"} & set(states), states
            return len(states) == len(made.serving) and set(states) == {"complete"}

        wait_until(is_complete, "all shards have changed the table", seconds=SETTLES_SECONDS)


def restart_invalidator(made: Deployment) -> None:
    assert made.invalidator is not None
    made.invalidator.kill()
    made.invalidator.launch()


EVENTS: Final[list[Callable[[Deployment], None]]] = [
    reparent,
    lose_primary,
    kill_replica,
    restart_vtgate,
    change_schema,
    restart_invalidator,
]


@pytest.mark.timeout(1800)
def test_the_cache_is_true_while_tablets_come_and_go(tmp_path: Path) -> None:
    with deployment(tmp_path) as (made, writer):
        for shard in made.serving:
            made.cluster.replicas(shard)[-1].delay(DELAY_SECONDS)
        with reading(made):
            settle(made, writer)
            for event in EVENTS:
                event(made)
                for shard in made.serving:
                    wait_replicating(made.cluster, shard)
                settle(made, writer)
        report(made, writer)


# -- shards are split and merged -----------------------------------------------------------------------


def reshard(made: Deployment, writer: Writer, names: tuple[str, ...], generation: int) -> None:
    """As docs/vitess.md says. Readers keep the previous file until writes have moved, then load the new one."""
    cluster, sources = made.cluster, dict(made.serving)
    destinations = {name: f"shop/{name}/{generation}" for name in names}
    job = ("Reshard", "--workflow", f"to{generation}", "--target-keyspace", cluster.keyspace)
    with reading(made):
        settle(made, writer)
        previous = cluster.take_shards()
        # 1. The destinations exist, and are followed; nothing is cached from them
        cluster.add_shards(names)
        for shard in names:
            cluster.replicas(shard)[-1].delay(DELAY_SECONDS)
        cluster.control(*job, "create", "--source-shards", ",".join(sources), "--target-shards", ",".join(names))
        cluster.wait_copied(f"to{generation}")
        made.reload(sources, destinations)
        writer.wait_for(SOME)
        # 2. Nothing is cached from the sources any more; only then do writes move
        made.reload(destinations, sources)
        writer.wait_for(SOME)
        cluster.control(*job, "SwitchTraffic")
        # 3. Applications follow, each when it likes
        with reading(made):
            writer.wait_for(SOME)
    # 4. The sources are gone
    made.reload(destinations)
    cluster.control(*job, "complete")
    for tablet in previous:
        tablet.stop()
    with reading(made):
        settle(made, writer)


@pytest.mark.timeout(2400)
def test_the_cache_is_true_while_shards_are_split_and_merged(tmp_path: Path) -> None:
    with deployment(tmp_path, replicas=1) as (made, writer):
        reshard(made, writer, ("-40", "40-80", "80-c0", "c0-"), 1)
        reshard(made, writer, ("-80", "80-"), 2)
        report(made, writer)
        assert made.checker.reads > READS_MIN
