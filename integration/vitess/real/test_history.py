"""Positions that the tablets of a real Vitess do not have: purged, of the future, or on one of them only.

Each test breaks its tablets, so it has a cluster of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from freshness.errors import HistoryPurged
from freshness.position import MysqlGtidSet, Position, parse_position
from integration.harness import wait_until
from integration.invalidator.test_process import purge_logs
from integration.servers.vitess import Tablet, Vitess
from integration.vitess.real.following import Follower, Inserts, execute, executed
from invalidator.vstream import error

CUSTOMERS = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))"
KEYS = {"customers": ("id",)}
FUTURE = 1000
SOME = 20
ATTEMPTS = 2
IDLE_SECONDS = 5.0
"""Of a stream, for the tests: by default 30."""

PATIENT_POLLS = 40


def purge(tablet: Tablet) -> None:
    """All but the last log."""
    tablet.mysql.execute("FLUSH BINARY LOGS")
    wait_until(lambda: purge_logs(tablet.mysql), "all but the last log are purged")


def purged_of(tablet: Tablet) -> Position:
    [(text,)] = tablet.mysql.execute("SELECT @@global.gtid_purged")
    return parse_position("mysql", text)


@contextmanager
def purged(replicas: int) -> Iterator[tuple[Vitess, Position]]:
    """A cluster whose tablets have purged what follows a position."""
    with Vitess(replicas=replicas) as cluster:
        start = execute(cluster, CUSTOMERS)
        execute(cluster, "INSERT INTO customers VALUES (1, 'Ann')")
        cluster.wait_caught_up("0")
        for tablet in cluster.tablets["0"]:
            purge(tablet)
        yield cluster, start


@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_purged_position_is_told(replicas: int) -> None:
    """With three tablets vtgate reports it. With fewer it only keeps looking for a tablet."""
    with purged(replicas) as (cluster, start):
        replica = cluster.replicas("0")[0]
        stream = Follower(
            cluster, KEYS, start=start, read_purged=lambda: purged_of(replica), idle_seconds=IDLE_SECONDS
        )
        stream.read_to(HistoryPurged)
        end = executed(cluster.primary("0"))
        with Follower(cluster, KEYS, start=end) as behind:
            behind.read_up_to(execute(cluster, "INSERT INTO customers VALUES (2, 'Bob')"))
        assert [change.after for change in behind.changes] == [{"id": 2}]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [1, 3])
def test_without_its_remedy_a_purged_position_is_never_told(replicas: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tablet nobody asks what it has purged; of three, the text is cut where messages once were."""
    by_text = error._by_text
    monkeypatch.setattr(error, "_by_text", lambda details, *more: by_text(details[:400], *more))
    with (
        purged(replicas) as (cluster, start),
        Follower(cluster, KEYS, start=start, idle_seconds=IDLE_SECONDS) as stream,
    ):
        stream.read_until(lambda: len(stream.ends) >= ATTEMPTS, "the stream ends")
        assert stream.received == []


PATIENT = ("--discovery-low-replication-lag", "1h", "--discovery-high-replication-lag-minimum-serving", "1h")
"""vtgate keeps a stream of a tablet however late it is."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("idle_seconds", [IDLE_SECONDS, math.inf])
def test_a_stream_of_a_tablet_that_stands_still_is_opened_again(idle_seconds: float) -> None:
    """Until vtgate chooses the other one, while vtgate's own heartbeats come. Without the remedy no row comes."""
    with Vitess(replicas=2, vtgate_options=PATIENT) as cluster:
        execute(cluster, CUSTOMERS)
        cluster.wait_caught_up("0")
        with Follower(cluster, KEYS, idle_seconds=idle_seconds) as stream, ExitStack() as stack:
            stream.read_up_to(execute(cluster, "INSERT INTO customers VALUES (1, 'Ann')"))
            standing = streaming_tablet(cluster)
            standing.mysql.execute("STOP REPLICA SQL_THREAD")
            writer = stack.enter_context(inserting(cluster))
            if math.isinf(idle_seconds):
                for _ in range(PATIENT_POLLS):
                    stream.read(0.5)
                assert (len(stream.changes), stream.ends) == (1, [])
                return
            stream.read_until(lambda: len(stream.changes) > SOME, "rows come from the other tablet")
            assert stream.ends
            assert writer.written


def streaming_tablet(cluster: Vitess) -> Tablet:
    """The replica that a stream is read from now, by the dump threads of its MySQL."""

    def find() -> Tablet | None:
        for tablet in cluster.replicas("0"):
            dumps = [row for row in tablet.mysql.execute("SHOW PROCESSLIST") if "Binlog Dump" in str(row[4])]
            if dumps:
                return tablet
        return None

    return wait_until(find, "a replica is streamed from")


@pytest.mark.timeout(600)
def test_a_position_that_one_tablet_has_purged_is_streamed_from_another() -> None:
    with Vitess(replicas=2) as cluster:
        start = execute(cluster, CUSTOMERS)
        end = execute(cluster, "INSERT INTO customers VALUES (1, 'Ann')")
        cluster.wait_caught_up("0")
        purge(cluster.replicas("0")[0])
        for _ in range(4):
            with Follower(cluster, KEYS, start=start) as stream:
                stream.read_up_to(end)
            assert [change.after for change in stream.changes] == [{"id": 1}]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tablet_type", ["primary", "replica"])
def test_a_position_of_the_future_never_streams(tablet_type: str) -> None:
    """It streams once the tablet has it: a replica may lag. The primary's head shows that it is lost."""
    with Vitess(replicas=1) as cluster:
        now = execute(cluster, CUSTOMERS)
        [(uuid,)] = cluster.primary("0").mysql.execute("SELECT @@server_uuid")
        future = now.union(MysqlGtidSet.parse(f"{uuid}:1-{FUTURE}"))
        parts = {"tablet_type": tablet_type}
        with Follower(cluster, KEYS, start=future, parts=parts, idle_seconds=IDLE_SECONDS) as stream:
            stream.read_until(lambda: len(stream.ends) >= ATTEMPTS, "the stream ends")
        assert stream.received == []


# -- failover ------------------------------------------------------------------------------------------


@contextmanager
def inserting(cluster: Vitess) -> Iterator[Inserts]:
    writer = Inserts(cluster.mysql_address("0"), "INSERT IGNORE INTO customers VALUES ({number}, 'x')")
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def wait_for_rows(writer: Inserts, stream: Follower) -> None:
    target = len(writer.written) + SOME
    try:
        stream.read_until(lambda: len(writer.written) > target, "rows are written")
    except AssertionError as error:
        error.add_note(f"the write that was refused last: {writer.refused!r}")
        raise


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tablet_type", ["primary", "replica"])
def test_every_row_comes_over_reparents(tablet_type: str) -> None:
    with Vitess(replicas=2) as cluster:
        execute(cluster, CUSTOMERS)
        first, second, third = cluster.tablets["0"]
        with Follower(cluster, KEYS, parts={"tablet_type": tablet_type}) as stream, inserting(cluster) as writer:
            for tablet, is_emergency in ((second, False), (first, False), (third, True), (first, False)):
                wait_for_rows(writer, stream)
                if is_emergency:
                    cluster.primary("0").kill()
                    cluster.primary("0").mysql.kill()
                    cluster.fail_over("0", tablet)
                    first.mysql.start()
                    first.start()
                    stream.read_until(lambda: is_following(first, third), "the previous primary follows")
                else:
                    cluster.reparent("0", tablet)
            wait_for_rows(writer, stream)
            writer.stop()
            end = executed(cluster.primary("0"))
            stream.read_up_to(end)
        came = [change.after["id"] for change in stream.changes if change.after is not None]
        assert set(writer.written) <= set(came)
        assert len(came) == len(set(came)), "none twice"


def is_following(tablet: Tablet, primary: Tablet) -> bool:
    return executed(tablet).contains(executed(primary))
