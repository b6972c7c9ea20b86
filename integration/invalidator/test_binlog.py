"""The binlog source on real servers: what arrives for each kind of change, and what stops the stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from freshness.config.server import ServerAddress
from freshness.database.connection import Connection, connect, executed_position
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.schema import key_columns
from freshness.errors import FreshnessError, HistoryLost, SourceUnavailable
from freshness.keys.cachekey import KeyBuilder
from freshness.objects.registry import ObjectDefinition
from freshness.position import Position, empty_position, parse_position
from freshness.stream.source import UNREADABLE, RowChange, Transaction
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import make_database
from invalidator.binlog import source
from invalidator.binlog.source import BinlogSource, Intake
from invalidator.mailbox import QueueBounds

TABLES = frozenset(("goods", "child", "grandchild"))
ARRIVES_SECONDS = 60.0


def address_of(server: DatabaseServer) -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, "app", "app", "shop")


def head_of(server: DatabaseServer) -> Position:
    with connect(replace(address_of(server), database="")) as connection:
        return executed_position(connection, server.flavor)


@dataclass
class Stream:
    """A source, and what it delivered so far."""

    source: BinlogSource
    position: Position

    def open(self) -> None:
        self.source.open(self.position)

    def read_up_to(self, end: Position) -> list[Transaction]:
        """All transactions up to the position. An idle stream fails the test instead of hanging it."""
        received: list[Transaction] = []
        deadline = time.monotonic() + ARRIVES_SECONDS
        while not self.position.contains(end):
            assert time.monotonic() < deadline, f"{end} did not arrive, the last is {received[-1:]}"
            for transaction in self.source.poll(1.0, 100):
                received.append(transaction)
                self.position = self.position.union(transaction.position)
        return received


@contextmanager
def streaming(server: DatabaseServer, start: Position | None = None, **options: Any) -> Iterator[Stream]:
    stream = Stream(
        BinlogSource(address_of(server), server.flavor, TABLES, **options),
        head_of(server) if start is None else start,
    )
    stream.open()
    try:
        yield stream
    finally:
        stream.source.close()


def stream_of(server: DatabaseServer, *statements: str, **options: Any) -> list[Transaction]:
    """What the statements, on one connection, bring to the stream."""
    with streaming(server, **options) as stream:
        run(server, *statements)
        return stream.read_up_to(head_of(server))


def run(server: DatabaseServer, *statements: str) -> None:
    with server.connect("shop") as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def changes_of(transactions: Sequence[Transaction]) -> list[RowChange]:
    return [change for transaction in transactions for change in transaction.changes]


def raised_by(transactions: Sequence[Transaction]) -> set[str]:
    return {table for transaction in transactions for table in transaction.raised_tables}


@pytest.fixture
def server(pair: Pair) -> DatabaseServer:
    """A primary with an empty table ``goods``."""
    pair.primary.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v VARCHAR(20))")
    return pair.primary


@pytest.fixture
def own_server(flavor: Flavor) -> Iterator[DatabaseServer]:
    """A server of the test's own, to break."""
    server = make_database(flavor, server_id=1)
    try:
        server.launch()
        server.wait_ready()
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v VARCHAR(20))")
        yield server
    finally:
        server.stop()


# -- rows -----------------------------------------------------------------------------------------------


def test_insert_update_delete_come_with_their_images(server: DatabaseServer) -> None:
    received = stream_of(
        server,
        "INSERT INTO goods VALUES (1, 'a'), (2, NULL)",
        "UPDATE goods SET v = 'b' WHERE id = 1",
        "UPDATE goods SET id = 9 WHERE id = 2",
        "DELETE FROM goods WHERE id = 1",
    )
    assert [len(transaction.changes) for transaction in received] == [2, 1, 1, 1]
    assert changes_of(received) == [
        RowChange("goods", "insert", None, {"id": 1, "v": "a"}),
        RowChange("goods", "insert", None, {"id": 2, "v": None}),
        RowChange("goods", "update", {"id": 1, "v": "a"}, {"id": 1, "v": "b"}),
        RowChange("goods", "update", {"id": 2, "v": None}, {"id": 9, "v": None}),
        RowChange("goods", "delete", {"id": 1, "v": "b"}, None),
    ]
    assert raised_by(received) == set()


def test_positions_are_each_transactions_own_and_add_up_to_the_head(server: DatabaseServer) -> None:
    before = head_of(server)
    received = stream_of(server, *(f"INSERT INTO goods VALUES ({number}, 'x')" for number in range(5)))
    assert len({str(transaction.position) for transaction in received}) == 5
    position = before
    for transaction in received:
        assert not position.contains(transaction.position)
        position = position.union(transaction.position)
    assert position == head_of(server)


def test_the_timestamp_is_the_commit_and_not_what_a_session_sets(server: DatabaseServer) -> None:
    # MariaDB logs nothing better than the time that the session may set (docs/adr/0001-containment-decides.md).
    [transaction] = stream_of(server, "SET timestamp = 1000000000", "INSERT INTO goods VALUES (1, 'x')")[-1:]
    if server.flavor == "mysql":
        assert abs(transaction.timestamp_us - time.time_ns() // 1000) < 3600 * 1_000_000
    else:
        assert transaction.timestamp_us == 1000000000 * 1_000_000


def test_all_kinds_of_values_arrive(server: DatabaseServer) -> None:
    run(
        server,
        "DROP TABLE goods",
        "CREATE TABLE goods (y YEAR, id BIGINT UNSIGNED PRIMARY KEY, small TINYINT UNSIGNED, negative INT,"
        " amount DECIMAL(10,3), d DATE, zero DATE, dt DATETIME(3), ts TIMESTAMP(6),"
        " latin VARCHAR(9) CHARACTER SET latin1,"
        " wide VARCHAR(300) CHARACTER SET utf8mb4, big CHAR(5) CHARACTER SET utf16, bin BINARY(4), blobs BLOB,"
        " color ENUM('red','grün') CHARACTER SET latin1, plain ENUM('x','y') CHARACTER SET ascii,"
        " tags SET('a','b') CHARACTER SET ascii, bits BIT(3), nothing INT)",
    )
    [transaction] = stream_of(
        server,
        "SET sql_mode = '', time_zone = '+03:00'",
        "INSERT INTO goods VALUES (2024, 18446744073709551615, 255, -5, -12.345, '2024-02-29', '0000-00-00',"
        " '2024-01-02 03:04:05.678', '2024-01-02 03:04:05.678901',"
        " 'é', '€', '€', x'01020000', x'ff00', 'grün', 'y', '',"
        " b'101', NULL)",
    )
    assert transaction.reasons == ()
    after = transaction.changes[0].after
    assert after == {
        "y": 2024,
        "id": 18446744073709551615,
        "small": 255,
        "negative": -5,
        "amount": Decimal("-12.345"),
        "d": date(2024, 2, 29),
        "zero": UNREADABLE,
        "dt": datetime.fromisoformat("2024-01-02 03:04:05.678"),
        "ts": datetime.fromisoformat("2024-01-02 00:04:05.678901"),
        "latin": "é",
        "wide": "€",
        "big": "€",
        "bin": b"\x01\x02\0\0",
        "blobs": b"\xff\x00",
        "color": "grün",
        "plain": "y",
        "tags": set(),
        "bits": "101",
        "nothing": None,
    }


def test_a_number_behind_a_year_is_right_or_raises_its_table(server: DatabaseServer) -> None:
    """MySQL before 8.0.23 may count the signs of columns otherwise (``--older``)."""
    run(server, "DROP TABLE goods", "CREATE TABLE goods (y YEAR, small TINYINT UNSIGNED PRIMARY KEY, v INT)")
    [transaction] = stream_of(server, "INSERT INTO goods VALUES (2024, 255, -1)")
    if server.flavor == "mysql" and tuple(map(int, server.version.split("."))) < (8, 0, 23):
        assert transaction.raised_tables == {"goods"}
        assert "before 8.0.23" in transaction.reasons[0]
    else:
        assert changes_of([transaction]) == [RowChange("goods", "insert", None, {"y": 2024, "small": 255, "v": -1})]


def test_a_minimal_image_leaves_columns_out(server: DatabaseServer) -> None:
    run(server, "INSERT INTO goods VALUES (1, 'a')")
    received = stream_of(
        server, "SET binlog_row_image = MINIMAL", "UPDATE goods SET v = NULL WHERE id = 1", "DELETE FROM goods"
    )
    assert changes_of(received) == [
        RowChange("goods", "update", {"id": 1}, {"v": None}),
        RowChange("goods", "delete", {"id": 1}, None),
    ]


def test_many_rows_and_large_ones_and_several_log_files(server: DatabaseServer) -> None:
    run(server, "ALTER TABLE goods MODIFY v LONGTEXT", "SET GLOBAL max_allowed_packet = 64 * 1024 * 1024")
    with streaming(server) as stream:
        # A second connection: the packet limit holds from its start.
        run(
            server,
            "INSERT INTO goods VALUES (1, REPEAT('x', 20000000))",
            "FLUSH BINARY LOGS",
            f"INSERT INTO goods VALUES {','.join(f'({number}, NULL)' for number in range(2, 3002))}",
            "FLUSH BINARY LOGS",
            "DELETE FROM goods WHERE id = 2",
        )
        received = stream.read_up_to(head_of(server))
    assert [len(transaction.changes) for transaction in received] == [1, 3000, 1]
    assert len(str((received[0].changes[0].after or {})["v"])) == 20000000


def test_too_many_rows_raise_the_table_instead(server: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TRANSACTION_ROWS_MAX", 100)
    big, small = stream_of(
        server,
        f"INSERT INTO goods VALUES {','.join(f'({number}, NULL)' for number in range(101))}",
        "DELETE FROM goods WHERE id < 100",
    )
    assert big.changes == ()
    assert big.raised_tables == {"goods"}
    assert len(small.changes) == 100
    assert small.raised_tables == frozenset()


def test_the_mailbox_is_bounded_and_loses_nothing(server: DatabaseServer) -> None:
    inserts = [f"INSERT INTO goods VALUES ({number}, NULL), ({number + 1}, NULL)" for number in range(0, 60, 2)]
    received = stream_of(server, *inserts, intake=Intake(queue=QueueBounds(3, 4)))
    assert [(change.after or {})["id"] for change in changes_of(received)] == list(range(60))


def test_other_tables_and_databases_move_the_position_only(server: DatabaseServer) -> None:
    server.execute("CREATE DATABASE IF NOT EXISTS elsewhere")
    try:
        run(server, "CREATE TABLE boring (id INT)", "CREATE TABLE elsewhere.goods (id INT PRIMARY KEY, v INT)")
        received = stream_of(server, "INSERT INTO boring VALUES (1)", "INSERT INTO elsewhere.goods VALUES (1, 1)")
    finally:
        server.execute("DROP DATABASE elsewhere")
    assert len(received) == 2
    assert changes_of(received) == []
    assert raised_by(received) == set()


def test_the_metadata_of_a_session_cannot_hide_rows(own_server: DatabaseServer) -> None:
    """binlog_row_metadata is global: without names a row is not known, and the table is raised."""
    with streaming(own_server) as stream:
        run(own_server, "SET GLOBAL binlog_row_metadata = MINIMAL", "INSERT INTO goods VALUES (1, 'a')")
        received = stream.read_up_to(head_of(own_server))
    assert changes_of(received) == []
    assert raised_by(received) == {"goods"}
    assert "binlog_row_metadata" in received[-1].reasons[0]


def test_no_checksums(own_server: DatabaseServer) -> None:
    own_server.execute("SET GLOBAL binlog_checksum = NONE")
    with streaming(own_server) as stream:
        run(
            own_server, "INSERT INTO goods VALUES (1, 'a')", "SET GLOBAL binlog_checksum = CRC32", "DELETE FROM goods"
        )
        received = stream.read_up_to(head_of(own_server))
    assert [change.op for change in changes_of(received)] == ["insert", "delete"]
    assert raised_by(received) == set()


def test_a_table_that_cannot_be_decoded_raises_itself_and_disturbs_no_other(own_server: DatabaseServer) -> None:
    kind, value = "VARCHAR(9) CHARACTER SET cp1251", "_cp1251 x'98'"  # no character
    run(own_server, f"CREATE TABLE child (id INT PRIMARY KEY, e {kind})", f"CREATE TABLE other (id INT, e {kind})")
    received = stream_of(
        own_server,
        f"INSERT INTO other VALUES (1, {value})",
        f"INSERT INTO child VALUES (1, {value})",
        "INSERT INTO goods VALUES (1, 'a')",
    )
    assert [transaction.raised_tables for transaction in received] == [frozenset(), {"child"}, frozenset()]
    assert changes_of(received) == [RowChange("goods", "insert", None, {"id": 1, "v": "a"})]


# -- statements -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE goods",
        "DROP TABLE goods",
        "ALTER TABLE goods ADD COLUMN more INT",
        "RENAME TABLE goods TO moved",
        "ALTER TABLE shop.goods RENAME TO moved2",
        "create /* c1 */ or replace /* c2 */ table `goods` (id int)",
        "/*!50000 TRUNCATE */ `goods`",
    ],
)
def test_a_definition_raises_its_table(server: DatabaseServer, statement: str) -> None:
    if server.flavor == "mysql":
        statement = statement.replace("or replace /* c2 */ table", "table if not exists /* c2 */")
    received = stream_of(server, "CREATE TABLE untouched (id INT)", statement, "CREATE TABLE u2 (id INT)")
    assert received[0].raised_tables == frozenset()
    assert "goods" in raised_by(received[1:])
    assert received[-1].raised_tables == frozenset()


def test_drop_database_raises_all(server: DatabaseServer) -> None:
    [transaction] = stream_of(server, "DROP DATABASE shop")[:1]
    assert transaction.raised_tables == TABLES


def test_statement_format_raises_all_and_the_stream_goes_on(server: DatabaseServer) -> None:
    received = stream_of(
        server,
        "SET binlog_format = STATEMENT",
        "INSERT INTO goods VALUES (1, 'a')",
        "SET @value = 'b'",
        "UPDATE goods SET v = @value WHERE id = 1 AND RAND() >= 0",
        "SET binlog_format = ROW",
        "DELETE FROM goods",
    )
    assert [transaction.raised_tables for transaction in received] == [TABLES, TABLES, frozenset()]
    assert [change.op for change in changes_of(received)] == ["delete"]


def test_one_transaction_with_several_statements_and_a_savepoint(server: DatabaseServer) -> None:
    [transaction] = stream_of(
        server,
        "BEGIN",
        "INSERT INTO goods VALUES (1, 'a')",
        "SAVEPOINT here",
        "INSERT INTO goods VALUES (2, 'b')",
        "ROLLBACK TO here",
        "INSERT INTO goods VALUES (3, 'c')",
        "COMMIT",
    )
    identities = [(change.after or {})["id"] for change in transaction.changes]
    assert identities[0] == 1
    assert identities[-1] == 3


def test_rows_that_cannot_roll_back(server: DatabaseServer) -> None:
    run(server, "CREATE TABLE child (id INT PRIMARY KEY) ENGINE=MyISAM")
    statements = ["BEGIN", "INSERT INTO child VALUES (1)", "INSERT INTO goods VALUES (1, 'a')", "ROLLBACK"]
    if server.flavor == "mysql":
        # enforce_gtid_consistency forbids to mix engines in one transaction.
        statements = ["INSERT INTO child VALUES (1)"]
    received = stream_of(server, *statements)
    assert [change.table for change in changes_of(received) if change.table == "child"] == ["child"]


def test_create_select(server: DatabaseServer) -> None:
    received = stream_of(
        server, "INSERT INTO goods VALUES (1, 'a')", "CREATE TABLE child SELECT * FROM goods", "DELETE FROM goods"
    )
    assert [change.table for change in changes_of(received)] == ["goods", "child", "goods"]
    assert raised_by(received) == {"child"}


# -- XA -------------------------------------------------------------------------------------------------


def test_xa_rows_come_at_the_commit(server: DatabaseServer) -> None:
    prepared, committed = stream_of(
        server,
        "XA START 'x1'",
        "INSERT INTO goods VALUES (1, 'a')",
        "XA END 'x1'",
        "XA PREPARE 'x1'",
        "XA COMMIT 'x1'",
    )
    assert prepared.changes == ()
    assert committed.changes == (RowChange("goods", "insert", None, {"id": 1, "v": "a"}),)
    assert prepared.position != committed.position
    assert prepared.raised_tables == committed.raised_tables == frozenset()


def test_xa_rollback_and_one_phase(server: DatabaseServer) -> None:
    received = stream_of(
        server,
        "XA START 'x2'",
        "INSERT INTO goods VALUES (1, 'a')",
        "XA END 'x2'",
        "XA PREPARE 'x2'",
        "XA ROLLBACK 'x2'",
        "XA START 'x3'",
        "INSERT INTO goods VALUES (2, 'b')",
        "XA END 'x3'",
        "XA COMMIT 'x3' ONE PHASE",
        "DELETE FROM goods",
    )
    assert raised_by(received) == set()
    assert [((change.after or change.before or {})["id"], change.op) for change in changes_of(received)] == [
        (2, "insert"),
        (2, "delete"),
    ]


def test_the_commit_of_an_xa_transaction_prepared_earlier_raises_all(server: DatabaseServer) -> None:
    run(server, "XA START 'x4'", "INSERT INTO goods VALUES (1, 'a')", "XA END 'x4'", "XA PREPARE 'x4'")
    received = stream_of(server, "XA COMMIT 'x4'")
    assert raised_by(received) == TABLES


# -- resuming -------------------------------------------------------------------------------------------


def test_resuming_from_every_position_loses_and_repeats_nothing(server: DatabaseServer) -> None:
    before = head_of(server)
    whole = stream_of(
        server,
        "INSERT INTO goods VALUES (1, 'a')",
        "ALTER TABLE goods ADD COLUMN w INT",
        "INSERT INTO goods VALUES (2, 'b', 2)",
        "FLUSH BINARY LOGS",
        "UPDATE goods SET w = 3",
    )
    position, end = before, head_of(server)
    for place in range(len(whole)):
        with streaming(server, position) as stream:
            assert stream.read_up_to(end) == whole[place:]
        position = position.union(whole[place].position)


def test_an_empty_start_is_the_beginning_of_history(own_server: DatabaseServer) -> None:
    run(own_server, "INSERT INTO goods VALUES (1, 'a')")
    with streaming(own_server, empty_position(own_server.flavor)) as stream:
        received = stream.read_up_to(head_of(own_server))
    assert len(received) >= 3
    assert [change.op for change in changes_of(received)] == ["insert"]


def test_a_start_that_was_purged(own_server: DatabaseServer) -> None:
    start = head_of(own_server)
    run(own_server, "INSERT INTO goods VALUES (1, 'a')", "FLUSH BINARY LOGS", "INSERT INTO goods VALUES (2, 'a')")
    deadline = time.monotonic() + ARRIVES_SECONDS
    while len(logs := own_server.execute("SHOW BINARY LOGS")) > 1:
        # MariaDB keeps a file until its background thread has written a checkpoint.
        assert time.monotonic() < deadline, f"still there: {logs}"
        own_server.execute("PURGE BINARY LOGS TO %s", logs[-1][0])
    with pytest.raises(HistoryLost, match="no longer has the log") as caught, streaming(own_server, start) as stream:
        # MariaDB may begin with the name of a file before it refuses.
        poll_until_error(stream.source, [])
    assert "purged" in caught.value.hint


def test_a_start_from_the_future(own_server: DatabaseServer) -> None:
    head = str(head_of(own_server)).replace("\n", "")
    future = {"mysql": f"{head.split(':')[0]}:1-5000", "mariadb": "0-1-5000"}[own_server.flavor]
    with (
        pytest.raises(HistoryLost, match="never executed") as caught,
        streaming(own_server, parse_position(own_server.flavor, future)),
    ):
        pass
    assert "future" in caught.value.hint


def test_a_replica_that_lags_is_not_lost_history(pair: Pair) -> None:
    pair.replica.stop_replication()
    try:
        pair.primary.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY)")
        with (
            pytest.raises(SourceUnavailable, match="not yet executed"),
            streaming(pair.replica, head_of(pair.primary)),
        ):
            pass
    finally:
        pair.replica.start_replication()


def test_a_replica_serves_the_same_stream(pair: Pair) -> None:
    start = head_of(pair.primary)
    run(
        pair.primary,
        "CREATE TABLE goods (id INT PRIMARY KEY, v INT)",
        "INSERT INTO goods VALUES (1, 1)",
        "UPDATE goods SET v = 2",
    )
    pair.wait_caught_up()
    end = head_of(pair.primary)
    with streaming(pair.primary, start) as stream:
        of_primary = stream.read_up_to(end)
    with streaming(pair.replica, start) as stream:
        of_replica = stream.read_up_to(end)
    assert of_replica == of_primary


def test_a_killed_server_is_unavailable_and_the_stream_goes_on_after_its_return(own_server: DatabaseServer) -> None:
    with streaming(own_server) as stream:
        run(own_server, "INSERT INTO goods VALUES (1, 'a')")
        stream.read_up_to(head_of(own_server))
        own_server.kill()
        with pytest.raises(SourceUnavailable):
            poll_until_error(stream.source, [])
        with pytest.raises(SourceUnavailable):
            stream.source.poll(0, 1)
        with pytest.raises(SourceUnavailable):
            stream.open()
        own_server.restart()
        stream.open()
        run(own_server, "INSERT INTO goods VALUES (2, 'b')")
        received = stream.read_up_to(head_of(own_server))
    assert [(change.after or {})["id"] for change in changes_of(received)] == [2]


def test_close_ends_an_idle_stream_and_poll_says_so(server: DatabaseServer) -> None:
    with streaming(server) as stream:
        assert stream.source.poll(0.05, 10) == []
    with pytest.raises(SourceUnavailable, match="not open"):
        stream.source.poll(0, 1)


# -- what stops the stream ------------------------------------------------------------------------------


def poll_until_error(source: BinlogSource, received: list[Transaction]) -> None:
    """Collect until the stream raises; return if it does not, so that the test fails."""
    deadline = time.monotonic() + ARRIVES_SECONDS
    while time.monotonic() < deadline:
        received += source.poll(1.0, 100)


@pytest.mark.parametrize("is_keyed", [False, True])
def test_compressed_events_are_read(own_server: DatabaseServer, is_keyed: bool) -> None:
    run(own_server, "ALTER TABLE goods MODIFY v VARCHAR(2000)")
    compress = {
        "mariadb": "SET GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10",
        "mysql": "SET SESSION binlog_transaction_compression = ON",
    }
    with (
        connect(address_of(own_server)) as connection,
        streaming(own_server, definitions=definitions_of(connection) if is_keyed else None) as stream,
    ):
        run(own_server, "INSERT INTO goods VALUES (1, 'a')")
        run(
            own_server,
            compress[own_server.flavor],
            "INSERT INTO goods VALUES (2, REPEAT('compressible', 50)), (3, 'x')",
            "UPDATE goods SET id = id + 10 WHERE id = 2",
            "DELETE FROM goods WHERE v LIKE '%compressible%'",
            f"TRUNCATE goods /* {'a comment that is long enough to be compressed ' * 9} */",
        )
        received = stream.read_up_to(head_of(own_server))
    if is_keyed:
        items = [each.items for each in received if each.items]
        assert items == [
            (b"n:goods:1",),
            (b"n:goods:2", b"n:goods:3"),
            (b"n:goods:2", b"n:goods:12"),
            (b"n:goods:12",),
        ]
        assert changes_of(received) == []
    else:
        keys = [((each.before or {}).get("id"), (each.after or {}).get("id")) for each in changes_of(received)]
        assert keys == [(None, 1), (None, 2), (None, 3), (2, 12), (12, None)]
    assert raised_by(received) == {"goods"}
    assert received[-1].reasons[0].startswith("statement: TRUNCATE")


def definitions_of(connection: Connection, *tables: str) -> dict[str, ObjectDefinition]:
    """An object over the primary key of each table, ``goods`` by default. Items are as in ``n:goods:1``."""
    found = {}
    for table in tables or ("goods",):
        columns = key_columns(connection, "shop", table)
        builder = KeyBuilder("n", table, columns)
        named = SimpleNamespace(name=table)
        found[table] = ObjectDefinition(cast(Any, named), cast(Any, None), builder, {table: columns})
    return found


def test_the_heartbeat_comes_back(server: DatabaseServer) -> None:
    writer = HeartbeatWriter(address_of(server), server.flavor, "one", 0.5, now_us=lambda: 1_700_000_000_000_000)
    writer.prepare()
    try:
        with streaming(server) as stream:
            sequences = [writer.beat(), writer.beat()]
            epoch = writer.raise_epoch()
            sequences.append(writer.beat())
            received = stream.read_up_to(head_of(server))
    finally:
        writer.close()
    heartbeats = [heartbeat for transaction in received for heartbeat in transaction.heartbeats]
    assert [heartbeat.sequence for heartbeat in heartbeats] == sequences == [1, 2, 3]
    assert [heartbeat.epoch for heartbeat in heartbeats] == [1, 1, epoch] == [1, 1, 2]
    assert heartbeats[0].max_us - heartbeats[0].min_us == 1_000_000
    assert changes_of(received) == []
    assert all(transaction.reasons == () for transaction in received)


def test_a_server_without_a_binary_log_says_so(flavor: Flavor) -> None:
    server = make_database(flavor, server_id=1, options=("--skip-log-bin",))
    try:
        server.launch()
        server.wait_ready()
        server.execute("CREATE DATABASE shop")
        with pytest.raises(FreshnessError), streaming(server, empty_position(flavor)):
            pass
    finally:
        server.stop()


def test_a_wrong_password_is_told(server: DatabaseServer) -> None:
    address = ServerAddress("127.0.0.1", server.port, "guarded", "wrong", "shop")
    with pytest.raises(FreshnessError, match="Access denied") as caught:
        BinlogSource(address, server.flavor, TABLES).open(empty_position(server.flavor))
    assert isinstance(caught.value.__cause__, pymysql.MySQLError)
