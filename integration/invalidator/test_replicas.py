"""The stream of a primary and two replicas, on real servers that are killed, stopped, purged, delayed and led astray.

The test compares what a consumer receives with the primary's own log: every transaction, in its order, once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import pytest

from freshness.config.server import ServerAddress
from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import FreshnessError, HistoryPurged, SourceUnavailable
from freshness.position import Position
from freshness.stream.source import Transaction
from integration.harness import wait_until
from integration.invalidator.test_binlog import TABLES, address_of, head_of, run, streaming
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import SCHEMA, make_database
from invalidator.binlog.seek import find_position
from invalidator.binlog.source import BinlogSource
from invalidator.replica.candidate import Choice, ReplicaBounds
from invalidator.replica.server import look_at
from invalidator.replica.source import ReplicaSource

BOUNDS = ReplicaBounds(lag_max=6.0, stuck=4.0, look=0.1, look_timeout=3.0, holdoff=2.0, back=1.0)
BEAT_SECONDS = 0.2
RETRY_SECONDS = 0.1


@dataclass
class Trio:
    """A primary with two replicas, and a writer that keeps it busy until it is stopped."""

    primary: DatabaseServer
    replicas: list[DatabaseServer]
    start: Position
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    @property
    def flavor(self) -> Flavor:
        return self.primary.flavor

    def begin_writing(self) -> None:
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def end_writing(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(20)
            assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        """Rows all the time, and heartbeats."""
        beats = HeartbeatWriter(address_of(self.primary), self.flavor, "writer", 0.0)
        try:
            number = beaten_at = 0.0
            with self.primary.connect("shop") as connection, connection.cursor() as cursor:
                while not self._stopping.wait(0.005):
                    number += 1
                    cursor.execute("INSERT INTO goods VALUES (%s, 'x')", (int(number),))
                    if number % 3 == 0:
                        cursor.execute("UPDATE goods SET v = 'y' WHERE id = %s", (int(number) - 1,))
                    if time.monotonic() - beaten_at > BEAT_SECONDS:
                        beats.beat()
                        beaten_at = time.monotonic()
        except BaseException as error:
            self._error = error
            raise
        finally:
            beats.close()

    def by_address(self, address: ServerAddress | None) -> DatabaseServer:
        [found] = [each for each in (self.primary, *self.replicas) if address == address_of(each)]
        return found

    def other_than(self, replica: DatabaseServer) -> DatabaseServer:
        [other] = [each for each in self.replicas if each is not replica]
        return other


@pytest.fixture
def trio(flavor: Flavor) -> Iterator[Trio]:
    servers = [make_database(flavor, server_id=number) for number in (1, 2, 3)]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.launch()
        for server in servers:
            server.wait_ready()
        primary, *replicas = servers
        primary.execute(f"CREATE DATABASE {SCHEMA}")
        primary.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v VARCHAR(20))")
        writer = HeartbeatWriter(address_of(primary), flavor, "setup", 0.0)
        writer.prepare()
        writer.beat()
        writer.close()
        for replica in replicas:
            replica.replicate_from(primary)
            replica.wait_caught_up(primary)
        made = Trio(primary, replicas, head_of(primary))
        stack.callback(made.end_writing)
        yield made


class Follower:
    """Consumes as the invalidator's loop does: opens at what it acknowledged, and again after each error."""

    def __init__(self, trio: Trio, choice: Choice = "freshest", bounds: ReplicaBounds = BOUNDS) -> None:
        self.trio = trio
        self.acknowledged = trio.start
        self.received: list[Transaction] = []
        self.errors: list[str] = []
        self.servers: list[DatabaseServer] = []
        self.source = ReplicaSource(
            [address_of(server) for server in (trio.primary, *trio.replicas)],
            trio.flavor,
            choice,
            lambda address: BinlogSource(address, trio.flavor, TABLES),
            bounds=bounds,
        )

    def step(self) -> None:
        try:
            if self.source.serving is None:
                self.source.open(self.acknowledged)
                self.servers.append(self.trio.by_address(self.source.serving))
            for transaction in self.source.poll(0.05, 50):
                self.received.append(transaction)
                self.acknowledged = self.acknowledged.union(transaction.position)
        except SourceUnavailable as error:
            self.errors.append(str(error))
            time.sleep(RETRY_SECONDS)

    def until(self, is_reached: Callable[[], bool], what: str) -> None:
        def step() -> bool:
            self.step()
            return is_reached()

        wait_until(step, what, lambda: "\n".join(self.errors[-10:]))

    def serving(self) -> DatabaseServer:
        """The server that is read from, after some transactions of it have come."""
        before = len(self.received)
        self.until(lambda: self.source.serving is not None and len(self.received) > before + 20, "it streams")
        return self.servers[-1]

    def until_left(self, server: DatabaseServer) -> DatabaseServer:
        """Follow until another server serves and sends transactions. Return that server."""
        self.until(
            lambda: self.source.serving not in (None, address_of(server)), f"{server.port} is left for another"
        )
        return self.serving()

    def finish(self) -> None:
        """Follow to the end of what is written, and compare with the primary's own log."""
        self.trio.end_writing()
        end = head_of(self.trio.primary)
        self.until(lambda: self.acknowledged.contains(end), f"{end} is reached")
        self.source.close()
        with streaming(self.trio.primary, self.trio.start) as stream:
            expected = stream.read_up_to(end)
        assert [str(each.position) for each in self.received] == [str(each.position) for each in expected]
        assert [each.changes for each in self.received] == [each.changes for each in expected]
        assert len(expected) > 50


@pytest.fixture
def follower(trio: Trio) -> Iterator[Follower]:
    made = Follower(trio)
    trio.begin_writing()
    yield made
    made.source.close()


def test_a_killed_replica_is_left_for_the_other_and_then_for_the_primary(follower: Follower) -> None:
    trio = follower.trio
    first = follower.serving()
    assert first in trio.replicas
    first.kill()
    second = follower.until_left(first)
    assert second is trio.other_than(first)
    second.kill()
    assert follower.until_left(second) is trio.primary
    first.start()
    first.start_replication()
    assert follower.until_left(trio.primary) is first
    follower.finish()


def test_a_hanging_replica_is_left(trio: Trio) -> None:
    """Its connections stay open, and nothing comes: a look finds out before the stream itself does."""
    follower = Follower(trio, bounds=replace(BOUNDS, look_timeout=1.0))
    trio.begin_writing()
    first = follower.serving()
    first.pause()
    try:
        second = follower.until_left(first)
    finally:
        first.resume()
    assert second is not first
    assert any("does not tell its state" in error or "is stuck" in error for error in follower.errors)
    follower.finish()


@pytest.mark.parametrize("thread", ["SQL", "IO"])
def test_a_replica_whose_replication_is_stopped_is_left(follower: Follower, thread: str) -> None:
    first = follower.serving()
    statement = {
        ("mariadb", "SQL"): "STOP SLAVE SQL_THREAD",
        ("mariadb", "IO"): "STOP SLAVE IO_THREAD",
        ("mysql", "SQL"): "STOP REPLICA SQL_THREAD",
        ("mysql", "IO"): "STOP REPLICA IO_THREAD",
    }
    first.execute(statement[first.flavor, thread])
    assert follower.until_left(first) is follower.trio.other_than(first)
    assert f"its {thread} thread is stopped" in "".join(follower.errors)
    follower.finish()


def test_a_replica_that_is_locked_and_executes_nothing_is_left(follower: Follower) -> None:
    """Its threads run, as its status says."""
    first = follower.serving()
    with first.connect("shop") as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH TABLES WITH READ LOCK")
        second = follower.until_left(first)
        assert all("stopped" not in error for error in follower.errors)
        cursor.execute("UNLOCK TABLES")
    assert second is follower.trio.other_than(first)
    assert any("is stuck" in error or "lags" in error for error in follower.errors)
    follower.finish()


def test_a_replica_that_lags_beyond_the_bound_is_left(follower: Follower) -> None:
    first = follower.serving()
    first.replicate_from(follower.trio.primary, delay_seconds=30)
    assert follower.until_left(first) is follower.trio.other_than(first)
    follower.finish()


def test_the_slowest_is_one_that_lags_within_the_bound(trio: Trio) -> None:
    trio.replicas[1].replicate_from(trio.primary, delay_seconds=2)
    follower = Follower(trio, "slowest", ReplicaBounds(lag_max=20.0, look=0.1))
    trio.begin_writing()
    wait_until(lambda: _heartbeat(trio.primary) - _heartbeat(trio.replicas[1]) > 1_000_000, "the replica lags")
    assert follower.serving() is trio.replicas[1]
    assert not follower.errors
    follower.finish()


def _heartbeat(server: DatabaseServer) -> int:
    return look_at(address_of(server), server.flavor, timeout_seconds=5).heartbeat_us


def test_purged_logs_send_to_another_server_and_are_lost_when_all_have_purged(trio: Trio) -> None:
    follower = Follower(trio)
    trio.begin_writing()
    first = follower.serving()
    # The stream stands still while the logs are purged
    follower.source.close()
    wait_until(lambda: not follower.acknowledged.contains(head_of(trio.primary)), "more was written")
    second = trio.other_than(first)
    for server in (first, trio.primary):
        purge(server)
    follower.until(lambda: follower.source.serving is not None, "it streams")
    assert follower.servers[-1] is second
    follower.serving()
    follower.source.close()
    trio.end_writing()
    second.wait_caught_up(trio.primary)
    for server in (trio.primary, *trio.replicas):
        run(server, "FLUSH BINARY LOGS")
    run(trio.primary, "INSERT INTO goods VALUES (-1, 'lost')")
    for server in (trio.primary, *trio.replicas):
        if server is not trio.primary:
            server.wait_caught_up(trio.primary)
        purge(server)
    with pytest.raises(HistoryPurged, match="no server that answers has the log"):
        follower.source.open(follower.acknowledged)


def purge(server: DatabaseServer) -> None:
    """All log files but a new one, once nobody reads them."""
    run(server, "FLUSH BINARY LOGS")
    newest = server.execute("SHOW BINARY LOGS")[-1][0]

    def is_gone() -> bool:
        run(server, f"PURGE BINARY LOGS TO '{newest}'")
        return bool(server.execute("SHOW BINARY LOGS")[0][0] == newest)

    wait_until(is_gone, f"{server.port} has purged its logs")


def test_an_errant_transaction_is_never_delivered_and_its_replica_refused(follower: Follower) -> None:
    trio = follower.trio
    first = follower.serving()
    run(first, "INSERT INTO goods VALUES (-7, 'errant')")
    errant = head_of(first)
    second = follower.until_left(first)
    assert second is trio.other_than(first)
    assert "errant" in "".join(follower.errors)
    second.kill()
    follower.until_left(second)
    assert follower.servers[-1] is trio.primary
    assert not head_of(trio.primary).contains(errant) or trio.flavor == "mariadb"
    follower.finish()
    ids = {(change.after or {}).get("id") for each in follower.received for change in each.changes}
    assert -7 not in ids
    reason = str(
        open_error(
            ReplicaSource(
                [address_of(trio.primary), address_of(first)],
                trio.flavor,
                "freshest",
                lambda address: BinlogSource(address, trio.flavor, TABLES),
                bounds=BOUNDS,
            ),
            trio,
        )
    )
    assert "errant" in reason or "replication is broken" in reason


def open_error(source: ReplicaSource, trio: Trio) -> FreshnessError:
    """What a source says that could only read from the replica: the primary has gone after it was seen."""
    source.open(trio.start)
    assert source.serving == address_of(trio.primary)
    trio.primary.kill()
    with pytest.raises(SourceUnavailable) as caught:
        source.open(trio.start)
    source.close()
    return caught.value


def test_after_a_failover_the_stream_goes_on(follower: Follower) -> None:
    """The primary dies, a replica is promoted and takes writes; the configuration then says so."""
    trio = follower.trio
    follower.serving()
    trio.end_writing()
    for replica in trio.replicas:
        replica.wait_caught_up(trio.primary)
    before = head_of(trio.primary)
    follower.until(lambda: follower.acknowledged.contains(before), "all was read")
    trio.primary.kill()
    promoted, other = trio.replicas
    promoted.stop_replication()
    promoted.execute("RESET SLAVE ALL" if trio.flavor == "mariadb" else "RESET REPLICA ALL")
    other.replicate_from(promoted)
    run(promoted, "INSERT INTO goods VALUES (-1, 'after')", "DELETE FROM goods WHERE id = 1")
    other.wait_caught_up(promoted)
    for _ in range(20):
        follower.step()
    assert follower.acknowledged == before, "what a replica writes is errant until the configuration knows better"
    follower.source.close()
    moved = Trio(promoted, [other, trio.primary], before)
    after = Follower(moved)
    end = head_of(promoted)
    after.until(lambda: after.acknowledged.contains(end), "the new primary's writes came")
    assert after.servers == [other]
    assert [change.op for each in after.received for change in each.changes] == ["insert", "delete"]
    after.source.close()


def test_a_replica_tells_the_same_as_the_primary(trio: Trio) -> None:
    """Cascades, statements and XA come out of a replica's log as they come out of the primary's."""
    run(
        trio.primary,
        "CREATE TABLE child (id INT PRIMARY KEY, parent INT, v INT,"
        " FOREIGN KEY (parent) REFERENCES goods (id) ON DELETE CASCADE)",
        "INSERT INTO goods VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO child VALUES (10, 1, 0), (20, 2, 0)",
        "DELETE FROM goods WHERE id = 1",
        "XA START 'one'",
        "UPDATE child SET v = 1",
        "XA END 'one'",
        "XA PREPARE 'one'",
        "XA COMMIT 'one'",
        "BEGIN",
        "UPDATE goods SET id = 4 WHERE id = 3",
        "UPDATE child SET v = 2",
        "COMMIT",
        "TRUNCATE TABLE child",
    )
    trio.replicas[0].wait_caught_up(trio.primary)
    end = head_of(trio.primary)

    def tell(server: DatabaseServer) -> list[tuple[object, ...]]:
        with streaming(server, trio.start) as stream:
            return [(each.position, each.changes, each.raised_tables) for each in stream.read_up_to(end)]

    assert tell(trio.replicas[0]) == tell(trio.primary)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--replicate-ignore-table=shop.goods",), "it filters what it replicates: Replicate_Ignore_Table"),
        (("LOG",), "it does not log what it replicates"),
        (("SKIP",), "it skips errors of replication"),
        (("--binlog-ignore-db=elsewhere",), "it filters what it logs: Binlog_Ignore_DB"),
        (("PARALLEL",), "it commits in another order than its primary"),
    ],
)
def test_a_replica_whose_log_would_lack_or_reorder_changes_is_found_out(
    flavor: Flavor, options: tuple[str, ...], expected: str
) -> None:
    own = {
        "LOG": "--log-slave-updates=0" if flavor == "mariadb" else "--log-replica-updates=0",
        "SKIP": "--slave-skip-errors=1062" if flavor == "mariadb" else "--replica-skip-errors=1062",
        "PARALLEL": "--slave-parallel-threads=2" if flavor == "mariadb" else "--replica-preserve-commit-order=0",
    }
    with ExitStack() as stack:
        primary = make_database(flavor, server_id=1)
        replica = make_database(flavor, server_id=2, options=[own.get(each, each) for each in options])
        for server in (primary, replica):
            stack.callback(server.stop)
            server.launch()
        for server in (primary, replica):
            server.wait_ready()
        primary.execute(f"CREATE DATABASE {SCHEMA}")
        if flavor == "mariadb":
            with primary.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET gtid_domain_id = 7")
                cursor.execute("CREATE DATABASE another_domain")
        replica.replicate_from(primary)
        replica.wait_caught_up(primary)
        state = look_at(address_of(replica), flavor, timeout_seconds=5)
        assert state.follows
        assert state.stopped == ""
        assert expected in state.unfit
        own_state = look_at(address_of(primary), flavor, timeout_seconds=5)
        assert (own_state.follows, own_state.unfit, own_state.stopped) == (False, "", "")
        assert own_state.heartbeat_us == 0


def test_the_account_of_the_invalidator_may_look_and_search(pair: Pair) -> None:
    """With no more than `invalidator check` asks for, and the heartbeat table."""
    monitor = {"mariadb": "BINLOG MONITOR, REPLICA MONITOR", "mysql": "REPLICATION CLIENT"}[pair.primary.flavor]
    pair.primary.execute("CREATE USER IF NOT EXISTS low@'%' IDENTIFIED BY 'low'")
    pair.primary.execute(f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO low@'%'")
    pair.primary.execute("GRANT SELECT ON shop.* TO low@'%'")
    writer = HeartbeatWriter(address_of(pair.primary), pair.primary.flavor, "me", 0.0)
    writer.prepare()
    writer.beat()
    writer.close()
    pair.wait_caught_up()
    for server in (pair.primary, pair.replica):
        address = replace(address_of(server), user="low", password="low")
        state = look_at(address, server.flavor, timeout_seconds=5)
        assert state.follows == (server is pair.replica)
        assert state.executed.contains(head_of(server))
        assert state.heartbeat_us > 0
        find_position(address, server.flavor, state.heartbeat_us)
