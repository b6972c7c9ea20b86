"""MoveTables: a table goes to another keyspace, and what the stream of the keyspace that it left still brings."""

from __future__ import annotations

from contextlib import closing

import pytest

from integration.servers.vitess import Vitess
from integration.vitess.real.following import Follower, execute, executed

CUSTOMERS = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))"
KEYS = {"customers": ("id",)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reverse", [True, False])
def test_a_table_that_moves_is_raised_at_the_switch_and_at_the_end(reverse: bool) -> None:
    """In between its changes come back where Vitess replicates in reverse, as it does by default.

    The statements that raise it at the switch are Vitess's own: it optimizes a table of its sidecar in the
    background, so they come some time after ``SwitchTraffic`` has answered.
    """
    with Vitess(replicas=0, vtgate_options=("--tablet-types-to-wait", "PRIMARY")) as cluster:
        cluster.add_keyspace("market")
        execute(cluster, CUSTOMERS, "INSERT INTO customers VALUES (1, 'Ann')")
        job = ("MoveTables", "--workflow", "move", "--target-keyspace", "market")
        with Follower(cluster, KEYS, parts={"tablet_type": "primary"}) as stream:
            cluster.control(*job, "create", "--source-keyspace", "shop", "--tables", "customers")
            cluster.wait_copied("move", kind="MoveTables", keyspace="market")
            stream.read_up_to(executed(cluster.primary("0")))
            assert not stream.raised
            cluster.control(*job, "SwitchTraffic", f"--enable-reverse-replication={str(reverse).lower()}")
            stream.read_until(lambda: bool(stream.raised), "the table is raised")
            assert stream.raised == {"customers"}
            assert not stream.changes
            with closing(cluster.connect(keyspace="market")) as connection:
                connection.cursor().execute("INSERT INTO customers VALUES (2, 'Bob')")
                connection.commit()
            if reverse:
                stream.read_until(lambda: bool(stream.changes), "the row comes back")
                assert stream.changes[-1].after == {"id": 2}
            stream.received.clear()
            cluster.control(*job, "complete")
            stream.read_up_to(executed(cluster.primary("0")))
            assert not stream.changes
            assert any("DROP TABLE" in reason for each in stream.received for reason in each.reasons)
