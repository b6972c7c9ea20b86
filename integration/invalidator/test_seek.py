"""Streams opened by time on real servers bring what a stream opened by position brings, and some from before."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import takewhile

import pytest

from freshness.database.heartbeat import HeartbeatWriter
from freshness.errors import HistoryPurged
from freshness.position import Position, empty_position
from freshness.stream.source import Transaction
from integration.harness import wait_until
from integration.invalidator.test_binlog import address_of, head_of, run, streaming
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import make_database
from invalidator.binlog.seek import SECOND_US, TimeIndex, find_position, find_start

MARGIN_SECONDS = 1.0
"""MariaDB records whole seconds, so it cannot be less. A statement below takes longer."""

LONG_STATEMENT_SECONDS = 3
IDLE_SECONDS = 2.5


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """A log with all that makes times doubtful. Shared by the tests that only read it."""
    server = make_database(request.param, server_id=1)
    try:
        server.launch()
        server.wait_ready()
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v VARCHAR(20))")
        made = Story(server)
        made.tell()
        yield made
    finally:
        server.stop()


class Story:
    """``moments``: points in time, each with what the server had executed shortly before it."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.moments: list[tuple[int, Position]] = []
        self.whole: list[Transaction] = []

    def tell(self) -> None:
        server = self.server
        self.moment()
        run(server, "INSERT INTO goods VALUES (1, 'a'), (2, 'b')", "FLUSH BINARY LOGS")
        with self.heartbeats():
            time.sleep(IDLE_SECONDS)
            self.moment()
            run(server, "INSERT INTO goods VALUES (3, 'c')")
            # A session that lies about the time, and rotates
            run(
                server,
                "SET timestamp = 1000000000",
                "INSERT INTO goods VALUES (4, 'd')",
                "FLUSH BINARY LOGS",
                "UPDATE goods SET v = 'e' WHERE id = 3",
            )
            self.moment()
            run(server, "SET timestamp = 2000000000", "DELETE FROM goods WHERE id = 4")
            # A statement that began long before others that are committed before it
            slow = threading.Thread(
                target=run, args=(server, f"UPDATE goods SET v = SLEEP({LONG_STATEMENT_SECONDS}) WHERE id = 1")
            )
            slow.start()
            for number in range(100, 115):
                run(server, f"INSERT INTO goods VALUES ({number}, 'x')")
                self.moment()
                time.sleep(LONG_STATEMENT_SECONDS / 20)
            run(server, "FLUSH BINARY LOGS")
            slow.join()
            self.moment()
            # A transaction that is open for long
            with server.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO goods VALUES (200, 'long')")
                run(server, "INSERT INTO goods VALUES (201, 'short')")
                time.sleep(IDLE_SECONDS)
                self.moment()
                cursor.execute("COMMIT")
            self.moment()
        time.sleep(IDLE_SECONDS)
        self.moment()
        run(server, "INSERT INTO goods VALUES (300, 'after an idle gap')")
        self.moment()
        self.whole = self.stream(empty_position(server.flavor))

    def moment(self) -> None:
        """All that is executed by now is from before the time; all that is not yet may be committed after it."""
        position = head_of(self.server)
        self.moments.append((time.time_ns() // 1000, position))

    @contextmanager
    def heartbeats(self) -> Iterator[None]:
        writer = HeartbeatWriter(address_of(self.server), self.server.flavor, "me", 0.0)
        writer.prepare()
        stopping = threading.Event()
        failures: list[BaseException] = []

        def beat() -> None:
            try:
                while not stopping.wait(0.1):
                    writer.beat()
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(20)
            writer.close()
        assert not failures

    def find(self, timestamp_us: int) -> Position:
        return find_position(address_of(self.server), self.server.flavor, timestamp_us, margin_seconds=MARGIN_SECONDS)

    def stream(self, start: Position) -> list[Transaction]:
        with streaming(self.server, start) as stream:
            return stream.read_up_to(head_of(self.server))


def test_a_stream_by_time_is_the_stream_by_position_after_some_from_before(story: Story) -> None:
    assert len(story.server.execute("SHOW BINARY LOGS")) == 4
    starts = set()
    for timestamp_us, position in story.moments:
        found = story.find(timestamp_us)
        by_time = story.stream(found)
        by_position = story.stream(position)
        assert by_time == story.whole[len(story.whole) - len(by_time) :]
        assert by_position == [each for each in by_time if not position.contains(each.position)]
        starts.add(found)
    assert len(starts) > 5, "it is a search, and not the begin of a file"


def test_the_long_statement_and_the_long_transaction_are_streamed(story: Story) -> None:
    """Both began before the time and were committed after it."""
    changes = [(change.table, change.after) for each in story.whole for change in each.changes]
    slow, long = (("goods", {"id": 1, "v": "0"}), ("goods", {"id": 200, "v": "long"}))
    assert slow in changes
    assert long in changes
    seen = set()
    for timestamp_us, position in story.moments:
        streamed = [
            (change.table, change.after) for each in story.stream(story.find(timestamp_us)) for change in each.changes
        ]
        for each in (slow, long):
            [place] = [transaction.position for transaction in story.whole if _holds(transaction, each[1])]
            if not position.contains(place):
                assert each in streamed
                seen.add(str(each))
    assert len(seen) == 2


def _holds(transaction: Transaction, after: dict[str, object]) -> bool:
    return any(change.after == after for change in transaction.changes)


def test_how_much_comes_from_before(story: Story) -> None:
    """MySQL knows when it committed. On MariaDB one more comes, the last that seems to be from before."""
    is_mysql = story.server.flavor == "mysql"
    for timestamp_us, _ in story.moments:
        cut_us = timestamp_us - round(MARGIN_SECONDS * SECOND_US)
        times = [each.timestamp_us for each in story.stream(story.find(timestamp_us))]
        if is_mysql:
            assert all(time_us > cut_us for time_us in times)
        else:
            assert times[0] <= cut_us or len(times) == len(story.whole)
            others = takewhile(cut_us.__ge__, times[1:])
            assert all(time_us < times[0] for time_us in others), "what is not in order, and nothing else"


def test_a_time_in_the_future_is_the_head_with_a_warning(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    future_us = time.time_ns() // 1000 + 3600 * SECOND_US
    with caplog.at_level(logging.WARNING):
        assert story.find(future_us) == head_of(story.server)
    assert "in the future" in caplog.text
    assert caplog.records[0].getMessage().startswith("the start time lies 3")


def test_an_index_of_what_passed_by_gives_a_position_of_the_same_stream(story: Story) -> None:
    index = TimeIndex(clock_error_seconds=0)
    before_us = time.time_ns() // 1000
    with streaming(story.server, empty_position(story.server.flavor)) as stream:
        end = head_of(story.server)
        while not stream.position.contains(end):
            for transaction in stream.source.poll(1.0, 5):
                stream.position = stream.position.union(transaction.position)
            index.note(time.time_ns() // 1000, stream.position)
        run(story.server, "INSERT INTO goods VALUES (900, 'new') ON DUPLICATE KEY UPDATE v = 'newer'")
    now_us = time.time_ns() // 1000
    search_log = partial(find_position, address_of(story.server), story.server.flavor)
    found = find_start(index, now_us, search_log)
    assert not found.contains(head_of(story.server))
    by_log = find_start(index, before_us, search_log)
    assert len(story.stream(by_log)) >= len(story.stream(end)) >= 1


# -- servers of a test's own ----------------------------------------------------------------------------


@pytest.fixture
def own_server(flavor: Flavor) -> Iterator[DatabaseServer]:
    server = make_database(flavor, server_id=1)
    try:
        server.launch()
        server.wait_ready()
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v VARCHAR(20))")
        yield server
    finally:
        server.stop()


def test_after_a_purge_only_what_is_left_can_be_found(own_server: DatabaseServer) -> None:
    server, flavor = own_server, own_server.flavor
    run(server, "INSERT INTO goods VALUES (1, 'a')", "FLUSH BINARY LOGS")
    first_us = time.time_ns() // 1000
    time.sleep(IDLE_SECONDS)
    run(server, "INSERT INTO goods VALUES (2, 'b')")
    time.sleep(IDLE_SECONDS)
    second_us, second = time.time_ns() // 1000, head_of(server)
    run(server, "INSERT INTO goods VALUES (3, 'c')", "FLUSH BINARY LOGS")
    run(server, "INSERT INTO goods VALUES (4, 'd')")

    def purge(kept: int) -> None:
        logs = server.execute("SHOW BINARY LOGS")

        def is_purged() -> bool:
            # A file that a reader was at is kept until the server sees that the reader has gone
            run(server, f"PURGE BINARY LOGS TO '{logs[-kept][0]}'")
            return len(server.execute("SHOW BINARY LOGS")) == kept

        wait_until(is_purged, f"{kept} log files are left")

    def find(timestamp_us: int) -> Position:
        return find_position(address_of(server), flavor, timestamp_us, margin_seconds=MARGIN_SECONDS)

    assert not find(first_us).contains(second)
    purge(2)
    with pytest.raises(HistoryPurged, match="may begin later"):
        find(first_us - 3600 * SECOND_US)
    with streaming(server, find(second_us)) as stream:
        received = stream.read_up_to(head_of(server))
    ids = [(change.after or {})["id"] for each in received for change in each.changes]
    assert ids[-2:] == [3, 4]
    purge(1)
    with pytest.raises(HistoryPurged):
        find(second_us)


def test_a_replica_can_be_searched(pair: Pair) -> None:
    run(pair.primary, "CREATE TABLE goods (id INT PRIMARY KEY, v INT)", "INSERT INTO goods VALUES (1, 1)")
    timestamp_us, before = time.time_ns() // 1000, head_of(pair.primary)
    run(pair.primary, "INSERT INTO goods VALUES (2, 2)")
    pair.wait_caught_up()
    found = find_position(address_of(pair.replica), pair.replica.flavor, timestamp_us)
    with streaming(pair.replica, found) as stream:
        received = stream.read_up_to(head_of(pair.primary))
    missing = [each for each in received if not before.contains(each.position)]
    assert [(change.after or {})["id"] for each in missing for change in each.changes] == [2]


def test_the_search_closes_its_connections(own_server: DatabaseServer) -> None:
    for _ in range(5):
        find_position(address_of(own_server), own_server.flavor, time.time_ns() // 1000)

    def are_gone() -> bool:
        rows = own_server.execute("SHOW PROCESSLIST")
        return not [row for row in rows if "Binlog Dump" in str(row[4])]

    wait_until(are_gone, "no dump is left")
