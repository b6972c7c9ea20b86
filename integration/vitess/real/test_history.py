"""Positions that the tablets of a real Vitess do not have: purged, of the future, or on one of them only.

Each test breaks its tablets, so it has a cluster of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from freshness.errors import FreshnessError, HistoryLost, HistoryPurged, SourceUnavailable
from freshness.position import MysqlGtidSet, Position, parse_position
from integration.servers.vitess import Tablet, Vitess
from integration.vitess.real.following import ARRIVES_SECONDS, Follower, execute, executed

CUSTOMERS = "CREATE TABLE customers (id BIGINT PRIMARY KEY, name VARCHAR(50))"
KEYS = {"customers": ("id",)}
FUTURE = 1000
WRITE_SECONDS = 0.05
ROWS_MAX = 100_000


def purge(tablet: Tablet) -> None:
    """All but the last log."""
    tablet.mysql.execute("FLUSH BINARY LOGS")
    [last] = tablet.mysql.execute("SHOW BINARY LOGS")[-1:]
    tablet.mysql.execute(f"PURGE BINARY LOGS TO '{last[0]}'")


def purged_of(tablet: Tablet) -> Position:
    [(text,)] = tablet.mysql.execute("SELECT @@global.gtid_purged")
    return parse_position("mysql", text)


def history_of(stream: Follower) -> FreshnessError:
    """The error that is no `SourceUnavailable`."""
    deadline = time.monotonic() + 2 * ARRIVES_SECONDS
    while time.monotonic() < deadline:
        try:
            stream.read()
        except FreshnessError as error:
            return error
    raise AssertionError(f"the stream goes on: {stream.received[-3:]} {stream.ends[-3:]}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_purged_position_is_told(replicas: int) -> None:
    with Vitess(replicas=replicas) as cluster:
        start = execute(cluster, CUSTOMERS)
        end = execute(cluster, "INSERT INTO customers VALUES (1, 'Ann')")
        cluster.wait_caught_up("0")
        for tablet in cluster.tablets["0"]:
            purge(tablet)
        replica = cluster.replicas("0")[0]
        stream = Follower(cluster, KEYS, start=start, read_purged=lambda: purged_of(replica))
        error = history_of(stream)
        print(f"\n{replicas} replicas: {type(error).__name__} {error} after {stream.ends}")
        assert isinstance(error, HistoryPurged)
        with Follower(cluster, KEYS, start=end) as behind:
            behind.read_up_to(execute(cluster, "INSERT INTO customers VALUES (2, 'Bob')"))
        assert [change.after for change in behind.changes] == [{"id": 2}]


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
    """Until the tablet has it: a replica may lag. What a primary lacks is lost."""
    with Vitess(replicas=1) as cluster:
        now = execute(cluster, CUSTOMERS)
        [(uuid,)] = cluster.primary("0").mysql.execute("SELECT @@server_uuid")
        future = now.union(MysqlGtidSet.parse(f"{uuid}:1-{FUTURE}"))
        with Follower(cluster, KEYS, start=future, parts={"tablet_type": tablet_type}) as stream:
            try:
                stream.read_until(lambda: bool(stream.ends), "the stream ends")
                error: FreshnessError = stream.ends[0]
            except HistoryLost as lost:
                error = lost
        print(f"\n{tablet_type}: {type(error).__name__} {error}")
        assert isinstance(error, SourceUnavailable | HistoryLost)
        assert stream.received == []


# -- failover ------------------------------------------------------------------------------------------


class Inserts(threading.Thread):
    """Rows on whichever tablet is the primary, each number once, until it is stopped. ``written``: those of commits
    that returned."""

    def __init__(self, cluster: Vitess) -> None:
        super().__init__(name="inserts", daemon=True)
        self.written: list[int] = []
        self.error: BaseException | None = None
        self._address = cluster.mysql_address("0")
        self._ending = threading.Event()

    def run(self) -> None:
        from freshness.database.connection import connect

        connection = None
        try:
            for number in range(ROWS_MAX):
                while not self._ending.wait(WRITE_SECONDS):
                    try:
                        if connection is None:
                            connection = connect(self._address)
                        with connection.cursor() as cursor:
                            # One number may come twice where nobody knows whether it was committed.
                            cursor.execute(f"INSERT IGNORE INTO customers VALUES ({number}, 'x')")
                        connection.commit()
                        break
                    except Exception:  # noqa: BLE001 - the primary is away: the same again
                        connection = None
                else:
                    return
                self.written.append(number)
        except BaseException as error:  # noqa: BLE001 - raised again in stop()
            self.error = error

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
        if self.error is not None:
            raise self.error


@contextmanager
def inserting(cluster: Vitess) -> Iterator[Inserts]:
    writer = Inserts(cluster)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def wait_for(is_there: Callable[[], bool], stream: Follower, what: str) -> None:
    stream.read_until(is_there, what)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tablet_type", ["primary", "replica"])
def test_every_row_comes_over_reparents(tablet_type: str) -> None:
    with Vitess(replicas=2) as cluster:
        execute(cluster, CUSTOMERS)
        first, second, third = cluster.tablets["0"]
        with (
            Follower(cluster, KEYS, parts={"tablet_type": tablet_type}) as stream,
            inserting(cluster) as writer,
        ):
            for tablet, is_emergency in ((second, False), (first, False), (third, True), (first, False)):
                before = len(writer.written)
                wait_for(lambda before=before: len(writer.written) > before + 20, stream, "rows are written")  # type: ignore[misc]
                if is_emergency:
                    cluster.primary("0").kill()
                    cluster.primary("0").mysql.kill()
                    cluster.reparent("0", tablet, is_emergency=True)
                    first.mysql.start()
                    first.start()
                    wait_for(lambda: is_following(first, third), stream, "the former primary follows")
                else:
                    cluster.reparent("0", tablet)
            before = len(writer.written)
            wait_for(lambda: len(writer.written) > before + 20, stream, "rows are written")
            writer.stop()
            end = executed(cluster.primary("0"))
            stream.read_up_to(end)
        came = [change.after["id"] for change in stream.changes if change.after is not None]
        assert set(writer.written) <= set(came)
        assert len(came) == len(set(came)), "none twice"
        print(
            f"\n{tablet_type}: {len(came)} rows, {len(stream.ends)} ends {[str(e)[:150] for e in stream.ends]}"
        )


def is_following(tablet: Tablet, primary: Tablet) -> bool:
    return executed(tablet).contains(executed(primary))
