"""The merged update stream on three real primaries: nothing lost, nothing twice, in order, and in bounded memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from freshness.algorithm.request import Head
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.database.connection import connect, executed_position
from freshness.database.heartbeat import HeartbeatWriter
from freshness.database.sharding import keyspace_id
from freshness.errors import HistoryPurged
from freshness.keys.keyrange import KeyRange
from freshness.position import Position, parse_position
from freshness.position.token import EventToken
from freshness.stream.resume import ResumeVector
from integration.harness import wait_until
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import make_database
from invalidator.binlog.seek import find_position
from invalidator.binlog.source import BinlogSource, Intake
from invalidator.mailbox import QueueBounds
from invalidator.stream.deduplicator import Deduplicator
from invalidator.stream.feed import Access
from invalidator.stream.message import StreamMessage
from invalidator.stream.start import Start
from invalidator.stream.update_stream import UpdateStream

TABLES: Final = frozenset(("goods",))
NAMES: Final = ("-55", "55-aa", "aa-")
BOUND_SECONDS: Final = 90.0
PIECE_ROWS: Final = 1_000
GROWTH_BYTES_MAX: Final = 100 << 20


def address_of(server: DatabaseServer) -> ServerAddress:
    return ServerAddress("127.0.0.1", server.port, "app", "app", "shop")


def shard_of(server: DatabaseServer, name: str, lineage: str, **options: Any) -> Shard:
    return Shard(name=name, primary=address_of(server), lineage=lineage, **options)


def find_head(shard: Shard, flavor: str) -> Head:
    writer = HeartbeatWriter(shard.primary, flavor, "reader", 0)
    try:
        with connect(shard.primary) as connection:
            return Head(executed_position(connection, flavor), writer.epoch())
    finally:
        writer.close()


def find_keyspace_id(_: str, row: Mapping[str, object]) -> bytes:
    return keyspace_id("hash", row["id"])


def access_for(flavor: str) -> Access:
    return Access(
        open_source=lambda shard: BinlogSource(
            shard.primary, flavor, TABLES, intake=Intake(PIECE_ROWS, QueueBounds(16, 5_000))
        ),
        find_head=lambda shard: find_head(shard, flavor),
        seek=lambda shard, timestamp_us: find_position(shard.primary, flavor, timestamp_us),
        find_keyspace_id=find_keyspace_id,
    )


def head_of(server: DatabaseServer) -> Position:
    with server.connect() as connection:
        return executed_position(connection, server.flavor)


def heads(servers: Sequence[DatabaseServer]) -> dict[str, Position]:
    return {name: head_of(server) for name, server in zip(NAMES, servers, strict=True)}


def prepare(server: DatabaseServer) -> None:
    server.execute("DROP TABLE IF EXISTS shop.goods")
    server.execute("CREATE TABLE shop.goods (id BIGINT PRIMARY KEY, v VARCHAR(60))")
    writer = HeartbeatWriter(address_of(server), server.flavor, "me", 0)
    writer.prepare()
    writer.close()


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def primaries(request: pytest.FixtureRequest) -> Iterator[list[DatabaseServer]]:
    """Three primaries of one flavor that know nothing of each other, with an empty schema ``shop``."""
    flavor: Flavor = request.param
    servers = [make_database(flavor, server_id=number) for number in (1, 2, 3)]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.launch()
        for server in servers:
            server.wait_ready()
            server.execute("CREATE DATABASE shop")
        yield servers


@pytest.fixture
def shards(primaries: list[DatabaseServer]) -> tuple[Shard, ...]:
    for server in primaries:
        prepare(server)
    return tuple(shard_of(server, name, name) for server, name in zip(primaries, NAMES, strict=True))


@contextmanager
def streaming(shards: Sequence[Shard], flavor: str, start: Start = "now", **options: Any) -> Iterator[UpdateStream]:
    keyspace = Keyspace(name="shop", flavor=flavor, shards=tuple(shards))  # type: ignore[arg-type]
    with closing(UpdateStream(keyspace, access_for(flavor), start=start, **options)) as stream:
        yield stream


def read_until(stream: UpdateStream, is_enough: Callable[[], bool]) -> list[StreamMessage]:
    messages: list[StreamMessage] = []
    deadline = time.monotonic() + BOUND_SECONDS
    while not is_enough():
        message = stream.poll(0.2)
        if message is not None:
            messages.append(message)
        assert time.monotonic() < deadline, f"{messages[-1:]}\n{stream.status()}"
    return messages


def read_to(stream: UpdateStream, ends: Mapping[str, Position]) -> list[StreamMessage]:
    """Everything up to these positions."""

    def has_all() -> bool:
        tokens = stream.resume.tokens
        return all(lineage in tokens and tokens[lineage].position.contains(end) for lineage, end in ends.items())

    return read_until(stream, has_all)


def wait_started(stream: UpdateStream, lineages: Iterable[str]) -> list[StreamMessage]:
    wanted = set(lineages)
    return read_until(stream, lambda: stream.resume.tokens.keys() == wanted)


# -- a workload ------------------------------------------------------------------------------------------


def write(server: DatabaseServer, writer: int, count: int, seed: int) -> None:
    """Transactions of one to five changes on rows of the writer's own, so that writers never wait for each other."""
    chance = random.Random(f"{seed}-{server.port}-{writer}")
    low = writer * 1000
    with server.connect("shop", autocommit=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        for number in range(count):
            for _ in range(chance.randint(1, 5)):
                row = low + chance.randrange(100)
                value = f"{writer}-{number}-{chance.random()}"
                match chance.randrange(4):
                    case 0:
                        cursor.execute("DELETE FROM goods WHERE id = %s", (row,))
                    case 1:
                        cursor.execute("UPDATE goods SET v = %s WHERE id >= %s AND id < %s", (value, row, row + 5))
                    case _:
                        cursor.execute("REPLACE INTO goods VALUES (%s, %s)", (row, value))
            if chance.randrange(10) == 0:
                connection.rollback()
            else:
                connection.commit()


def write_everywhere(servers: Sequence[DatabaseServer], *, count: int, seed: int) -> None:
    """Two writers on each server, and a heartbeat on each, all at once."""
    threads = [
        threading.Thread(target=write, args=(server, writer, count, seed)) for server in servers for writer in (1, 2)
    ]
    beats = {server.port: HeartbeatWriter(address_of(server), server.flavor, "me", 0) for server in servers}
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for writer in beats.values():
            writer.beat()
        threads[0].join(0.1)
    for writer in beats.values():
        writer.beat()
        writer.close()


def rows_of(server: DatabaseServer) -> dict[int, Any]:
    return dict(server.execute("SELECT id, v FROM shop.goods"))


def replay(messages: Iterable[StreamMessage], rows: dict[int, Any]) -> dict[int, Any]:
    """The table after these messages. Fails if a change does not fit the rows: one was lost or came twice."""
    for message in messages:
        assert not message.transaction.raised_tables, message.transaction.reasons
        for change in message.transaction.changes:
            if change.before is not None:
                assert rows.pop(change.before["id"]) == change.before["v"]  # type: ignore[call-overload]
            if change.after is not None:
                assert change.after["id"] not in rows
                rows[change.after["id"]] = change.after["v"]  # type: ignore[index]
    return rows


def of(messages: Iterable[StreamMessage], lineage: str) -> list[StreamMessage]:
    return [message for message in messages if message.token.lineage == lineage]


def assert_each_gtid_once(messages: Sequence[StreamMessage], start: Position, end: Position) -> None:
    """What the messages bring is all that lies between the positions, each transaction once and in the order in which
    the server numbered them (one primary numbers them in the order of its log)."""
    assert not [message for message in messages if start.contains(message.token.position)]
    numbers = [last_number(message.token.position) for message in messages]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == last_number(end) - last_number(start)
    together = start
    for message in messages:
        together = together.union(message.token.position)
    assert together == end


def last_number(position: Position) -> int:
    """The last number of a position that has a single source."""
    text = str(position)
    assert "," not in text
    return int(text.rpartition("-")[2].rpartition(":")[2])


# -- the tests -------------------------------------------------------------------------------------------


def test_all_that_concurrent_writers_do_comes_once_in_order_and_can_be_resumed_anywhere(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    flavor = primaries[0].flavor
    starts = heads(primaries)
    with streaming(shards, flavor) as stream:
        messages = wait_started(stream, starts)
        work = threading.Thread(target=write_everywhere, args=(primaries,), kwargs={"count": 60, "seed": 7})
        work.start()
        messages += read_until(stream, lambda: not work.is_alive())
        ends = heads(primaries)
        messages += read_to(stream, ends)
        assert stream.poll(0.5) is None
    assert sum(len(message.rows) for message in messages) > 500
    for server, shard in zip(primaries, shards, strict=True):
        own = of(messages, shard.lineage)
        assert_each_gtid_once(own, starts[shard.lineage], ends[shard.lineage])
        assert replay(own, {}) == rows_of(server)
        assert any(message.transaction.heartbeats for message in own)
    # From any message on, the rest is the same.
    for place in random.Random(1).sample(range(len(messages)), 6):
        text = messages[place].vector.format()
        with streaming(shards, flavor, ResumeVector.parse(text)) as stream:
            rest = read_to(stream, ends)
        for shard in shards:
            expected = of(messages[place + 1 :], shard.lineage)
            found = of(rest, shard.lineage)
            assert [each.transaction for each in found] == [each.transaction for each in expected]


def test_a_primary_that_is_killed_comes_back_and_the_others_go_on(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    with streaming(shards, primaries[0].flavor) as stream:
        messages = wait_started(stream, NAMES)
        for server in primaries:
            server.execute("INSERT INTO shop.goods VALUES (1, 'before')")
        messages += read_to(stream, heads(primaries))
        primaries[1].kill()
        for server in (primaries[0], primaries[2]):
            server.execute("INSERT INTO shop.goods VALUES (2, 'meanwhile')")
        during = read_to(stream, {NAMES[0]: head_of(primaries[0]), NAMES[2]: head_of(primaries[2])})
        assert not of(during, NAMES[1])
        read_until(stream, lambda: any(each.error for each in stream.status() if each.lineage == NAMES[1]))
        primaries[1].restart()
        primaries[1].execute("INSERT INTO shop.goods VALUES (3, 'after')")
        messages += during + read_to(stream, heads(primaries))
    for server, name in zip(primaries, NAMES, strict=True):
        assert replay(of(messages, name), {}) == rows_of(server)


def test_a_key_range_that_cuts_through_shards_has_its_rows_and_no_others(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    wanted = KeyRange.parse("30-80")
    with streaming(shards, primaries[0].flavor, key_range=wanted) as stream:
        wait_started(stream, NAMES[:2])
        expected: dict[int, str] = {}
        for row in range(60):
            place = find_keyspace_id("goods", {"id": row})
            [server] = [
                server for server, name in zip(primaries, NAMES, strict=True) if KeyRange.parse(name).contains(place)
            ]
            server.execute("INSERT INTO shop.goods VALUES (%s, 'x')", row)
            if wanted.contains(place):
                expected[row] = "x"
        messages = read_to(
            stream, {name: head_of(server) for name, server in zip(NAMES[:2], primaries, strict=False)}
        )
    assert 5 < len(expected) < 55
    assert replay(messages, {}) == expected
    assert {message.shard for message in messages} == set(NAMES[:2])


def test_idle_shards_hold_nobody_where_heartbeats_are_written(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    beats = [HeartbeatWriter(address_of(server), server.flavor, "me", 0) for server in primaries]
    with streaming(shards, primaries[0].flavor, minimize_skew=True) as stream:
        messages = wait_started(stream, NAMES)
        for number in range(12):
            primaries[0].execute("INSERT INTO shop.goods VALUES (%s, 'x')", number)
            for writer in beats:
                writer.beat()
            until = time.monotonic() + 0.3
            messages += read_until(stream, lambda until=until: time.monotonic() > until)  # type: ignore[misc]
        messages += read_to(stream, heads(primaries))
    for writer in beats:
        writer.close()
    assert [change.after for message in messages for change in message.transaction.changes] == [
        {"id": number, "v": "x"} for number in range(12)
    ]
    assert all(message.is_aligned for message in messages)
    assert messages[-1].min_timestamp_us >= messages[0].min_timestamp_us + 2_000_000


def test_a_consumer_follows_a_shard_to_the_servers_that_took_over(flavor: Flavor, own_pair: Pair) -> None:
    """Another lineage that keeps the GTIDs: its log has everything that the previous one delivered, and goes on."""
    prepare(own_pair.primary)
    own_pair.wait_caught_up()
    old = shard_of(own_pair.primary, "-", "old")
    new = shard_of(own_pair.replica, "-", "new", continues=("old",))
    with streaming([old], flavor) as stream:
        messages = wait_started(stream, ["old"])
        write(own_pair.primary, 1, 30, 1)
        messages += read_to(stream, {"old": head_of(own_pair.primary)})
        write(own_pair.primary, 2, 30, 2)
        own_pair.wait_caught_up()
        own_pair.replica.stop_replication()
        stream.set_shards([new])
        write(own_pair.replica, 1, 30, 3)
        messages += read_to(stream, {"new": head_of(own_pair.replica)})
        assert stream.resume.tokens.keys() == {"new"}
    assert len({message.token.position for message in messages}) == len(messages), "no GTID came twice"
    assert {message.token.lineage for message in messages} == {"old", "new"}
    assert replay(messages, {}) == rows_of(own_pair.replica)


def test_a_stream_by_time_has_all_that_one_by_position_has_and_before_that_perhaps_more(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    flavor = primaries[0].flavor
    write_everywhere(primaries, count=10, seed=1)
    time_us = time.time_ns() // 1000
    starts = heads(primaries)
    write_everywhere(primaries, count=10, seed=2)
    ends = heads(primaries)
    with streaming(shards, flavor, starts) as stream:
        by_position = read_to(stream, ends)
    with streaming(shards, flavor, time_us, rewind_seconds=1) as stream:
        by_time = read_to(stream, ends)
    for name in NAMES:
        wanted = [message.transaction for message in of(by_position, name)]
        found = [message.transaction for message in of(by_time, name)]
        assert wanted
        assert found[-len(wanted) :] == wanted
    # Who has recorded up to then takes the same from both.
    once = Deduplicator({name: EventToken(name, name, 1, 0, position) for name, position in starts.items()})
    taken = [message for message in by_time if once.take(message) is not None]
    for name in NAMES:
        assert [each.transaction for each in of(taken, name)] == [each.transaction for each in of(by_position, name)]


def test_a_split_by_copied_data_goes_on_by_time(primaries: list[DatabaseServer], shards: tuple[Shard, ...]) -> None:
    """Fresh GTIDs: the new shards have nothing of the old one but the rows and the time."""
    old, lower, upper = primaries
    halves = {"-80": lower, "80-": upper}
    with streaming([shard_of(old, "-", "old")], old.flavor, rewind_seconds=5) as stream:
        messages = wait_started(stream, ["old"])
        write(old, 1, 40, 5)
        for row, value in rows_of(old).items():
            place = find_keyspace_id("goods", {"id": row})
            [server] = [each for name, each in halves.items() if KeyRange.parse(name).contains(place)]
            server.execute("INSERT INTO shop.goods VALUES (%s, %s)", row, value)
        stream.set_shards([shard_of(server, name, name) for name, server in halves.items()])
        for number, server in enumerate(halves.values(), 5):
            write(server, number, 20, 6)
        messages += read_to(stream, {name: head_of(server) for name, server in halves.items()})
        assert stream.resume.tokens.keys() == halves.keys()
    assert of(messages, "old"), "what it still had came before it left"
    for name, server in halves.items():
        copy: dict[int, Any] = {}
        for message in of(messages, name):
            if message.transaction.raised_tables:  # the table was created: the rows of the test before are gone
                copy.clear()
            for change in message.transaction.changes:
                if change.before is not None:
                    copy.pop(change.before["id"], None)  # type: ignore[call-overload]
                if change.after is not None:
                    copy[change.after["id"]] = change.after["v"]  # type: ignore[index]
        assert copy == rows_of(server)


def test_a_split_by_replication_brings_each_row_change_once(flavor: Flavor) -> None:
    """Both halves replicate all of the old shard, GTIDs included, and clear away the other's rows afterwards."""
    servers = [make_database(flavor, server_id=number) for number in (1, 2, 3)]
    old, *halves = servers
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.launch()
        for server in servers:
            server.wait_ready()
        for server in halves:
            server.replicate_from(old)
        old.execute("CREATE DATABASE shop")
        prepare(old)
        stream = stack.enter_context(streaming([shard_of(old, "-", "old")], flavor))
        messages = wait_started(stream, ["old"])
        write(old, 1, 40, 1)
        messages += read_to(stream, {"old": head_of(old)})
        write(old, 2, 40, 2)  # what has not been read when the topology changes
        shards = [
            shard_of(server, name, name, continues=("old",))
            for server, name in zip(halves, ("-80", "80-"), strict=True)
        ]
        for server in halves:
            server.wait_caught_up(old)
            server.stop_replication()
        stream.set_shards(shards)
        for server, shard in zip(halves, shards, strict=True):
            for row in rows_of(server):
                if not KeyRange.parse(shard.name).contains(find_keyspace_id("goods", {"id": row})):
                    server.execute("DELETE FROM shop.goods WHERE id = %s", row)
            write(server, 1, 30, server.port)
        messages += read_to(
            stream, {shard.lineage: head_of(server) for server, shard in zip(halves, shards, strict=True)}
        )
        assert stream.resume.tokens.keys() == {"-80", "80-"}
        found = [(message.token.position, row) for message in messages for row in message.rows]
        assert len(found) == len(set(found))
        rows = {
            row: value
            for server, shard in zip(halves, shards, strict=True)
            for row, value in rows_of(server).items()
            if KeyRange.parse(shard.name).contains(find_keyspace_id("goods", {"id": row}))
        }
        assert replay(messages, {}) == rows
        assert {message.token.lineage for message in messages} == {"old", "-80", "80-"}


ROWS: Final = 1_000_000
MILLION: Final[Mapping[str, str]] = {
    "mariadb": f"INSERT INTO goods SELECT seq, CONCAT('value of ', seq) FROM seq_1_to_{ROWS}",
    "mysql": "INSERT INTO goods WITH RECURSIVE seq AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM seq"
    f" WHERE n < {ROWS}) SELECT n, CONCAT('value of ', n) FROM seq",
}


def test_a_million_rows_in_one_transaction_pass_in_bounded_memory(
    primaries: list[DatabaseServer], shards: tuple[Shard, ...]
) -> None:
    server = primaries[0]
    start = head_of(server)
    with server.connect("shop") as connection, connection.cursor() as cursor:
        if server.flavor == "mysql":
            cursor.execute(f"SET cte_max_recursion_depth = {ROWS}")
        cursor.execute(MILLION[server.flavor])
    arguments = json.dumps([server.flavor, server.port, str(start), str(head_of(server))])
    ran = subprocess.run(
        [sys.executable, "-c", "from integration.stream.test_update_stream import measure; measure()", arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    print(server.flavor, report)
    assert report["rows"] == ROWS
    assert report["sum"] == ROWS * (ROWS + 1) // 2
    assert report["pieces"] >= ROWS / PIECE_ROWS / 2
    assert report["last pieces"] == 1
    assert report["growth in bytes"] < GROWTH_BYTES_MAX


def peak_bytes() -> int:
    """The most memory this process has had resident. ``ru_maxrss`` would count what its parent had at the fork."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def measure() -> None:
    """In a process of its own: read to the end, and print what came and by how much memory grew at most."""
    flavor, port, start, end = json.loads(sys.argv[1])
    shard = Shard(name="-", primary=ServerAddress("127.0.0.1", port, "app", "app", "shop"), lineage="only")
    final = parse_position(flavor, end)
    report: dict[str, int] = defaultdict(int)
    before = peak_bytes()
    with streaming([shard], flavor, {"only": parse_position(flavor, start)}) as stream:
        once = Deduplicator({})
        while "only" not in stream.resume.tokens or not stream.resume.tokens["only"].position.contains(final):
            found = stream.poll(1)
            message = None if found is None else once.take(found)
            if message is not None and message.rows:
                assert message.rows[0] == report["rows"]
                report["rows"] += len(message.rows)
                report["sum"] += sum(change.after["id"] for change in message.transaction.changes)  # type: ignore
                report["pieces"] += 1
                report["last pieces"] += message.is_last
        report["growth in bytes"] = peak_bytes() - before
    print(json.dumps(report))


def test_a_purged_log_ends_the_stream(primaries: list[DatabaseServer], shards: tuple[Shard, ...]) -> None:
    """The last test: the others would find their past gone."""
    starts = heads(primaries)
    server = primaries[2]
    server.execute("INSERT INTO shop.goods VALUES (1, 'x')")
    server.execute("FLUSH BINARY LOGS")
    server.execute("INSERT INTO shop.goods VALUES (2, 'x')")
    [*_, (newest, *_)] = server.execute("SHOW BINARY LOGS")

    def is_purged() -> bool:
        # A log that a reader of the test before still holds stays, with a warning only.
        server.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return len(server.execute("SHOW BINARY LOGS")) == 1

    wait_until(is_purged, "the logs are purged")
    with streaming(shards, primaries[0].flavor, starts) as stream, pytest.raises(HistoryPurged):
        read_until(stream, lambda: False)
