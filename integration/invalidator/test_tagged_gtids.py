"""Transactions whose GTIDs have tags (MySQL 8.3), on real servers: everything that reads GTIDs treats them alike."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from freshness.position import MysqlGtidSet, parse_gtid
from freshness.stream.source import RowChange, Transaction
from integration.configuration import CUSTOMER, write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, System, run_cli, wait_for_hits
from integration.invalidator.test_binlog import address_of, definitions_of, head_of, run, stream_of, streaming
from integration.invalidator.test_skip import read_changes, spoil_last_rows
from integration.servers import DatabaseServer, Memcached, Pair, database_pair
from integration.servers.program import InvalidatorProcess
from invalidator.binlog.seek import find_position
from invalidator.stream.open import StreamOpener

TAGGED: Final = "SET gtid_next = 'AUTOMATIC:mytag'"
PLAIN: Final = "SET gtid_next = 'AUTOMATIC'"
KEYS: Final = [1, 2, 3]


@pytest.fixture
def pair(mysql_pair: Pair) -> Pair:
    mysql_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mysql_pair.primary.execute("CREATE DATABASE shop")
    mysql_pair.wait_caught_up()
    return mysql_pair


def write_all_kinds(server: DatabaseServer) -> None:
    run(
        server,
        TAGGED,
        "CREATE TABLE goods (id INT PRIMARY KEY, v INT)",
        "INSERT INTO goods VALUES (1, 1)",
        "SET gtid_next = 'AUTOMATIC:b_2'",
        "UPDATE goods SET v = 2",
        PLAIN,
        "INSERT INTO goods VALUES (2, 2)",
        TAGGED,
        "DELETE FROM goods WHERE id = 1",
    )


def tell(transactions: list[Transaction]) -> list[tuple[str, tuple[RowChange, ...], frozenset[str]]]:
    return [(str(each.position), each.changes, each.raised_tables) for each in transactions]


def test_a_stream_begins_behind_every_transaction_and_repeats_and_loses_none(pair: Pair) -> None:
    """On the replica too, whose events also have the time of the primary."""
    start = head_of(pair.primary)
    write_all_kinds(pair.primary)
    pair.wait_caught_up()
    end = head_of(pair.primary)
    with streaming(pair.primary, start) as stream:
        received = stream.read_up_to(end)
    tags = [",".join(each.position.intervals()).partition(":")[2] for each in received]
    assert tags == ["mytag", "mytag", "b_2", "", "mytag"]
    assert start.union_all(each.position for each in received) == end
    assert [len(each.changes) for each in received] == [0, 1, 1, 1, 1]
    for server in (pair.primary, pair.replica):
        position = start
        for count, transaction in enumerate(received, 1):
            position = position.union(transaction.position)
            with streaming(server, position) as stream:
                rest = stream.read_up_to(end)
            assert tell(rest) == tell(received[count:])
            assert [each.timestamp_us for each in rest] == [each.timestamp_us for each in received[count:]]


def test_keys_are_read_from_tagged_transactions(pair: Pair) -> None:
    run(pair.primary, "CREATE TABLE goods (id INT PRIMARY KEY, v INT)")
    with pair.primary.connect("shop") as connection:
        definitions = definitions_of(connection)
    changes = [f"INSERT INTO goods VALUES ({key}, 1)" for key in KEYS]
    plain = stream_of(pair.primary, *changes, definitions=definitions)
    run(pair.primary, "DELETE FROM goods")
    tagged = stream_of(pair.primary, TAGGED, *changes, definitions=definitions)
    assert [each.items for each in tagged] == [each.items for each in plain] != []
    assert all("mytag" in str(each.position) for each in tagged)


def test_a_log_with_tagged_gtids_is_searched_by_time(pair: Pair) -> None:
    run(pair.primary, TAGGED, "CREATE TABLE goods (id INT PRIMARY KEY, v INT)")
    time.sleep(0.01)
    timestamp_us, before = time.time_ns() // 1000, head_of(pair.primary)
    run(pair.primary, TAGGED, "INSERT INTO goods VALUES (2, 2)")
    pair.wait_caught_up()
    assert find_position(address_of(pair.primary), "mysql", timestamp_us, margin_seconds=0) == before
    found = find_position(address_of(pair.replica), "mysql", timestamp_us)
    assert before.contains(found)


@pytest.mark.parametrize("replica_choice", ["never", "freshest"])
def test_cached_reads_are_exact_and_an_invalidator_goes_on_behind_a_tagged_transaction(
    pair: Pair, tmp_path: Path, replica_choice: str
) -> None:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    run(pair.primary, TAGGED, "INSERT INTO customers VALUES (1, 'n', 0), (2, 'n', 0), (3, 'n', 0)")
    pair.wait_caught_up()
    stream = {**STREAM} if replica_choice == "never" else {**STREAM, "replica_choice": replica_choice}
    with Memcached() as node:
        path = write_config(
            tmp_path,
            "mysql",
            pair.primary.url,
            [node.address],
            replicas=[pair.replica.url],
            objects=CUSTOMER,
            cache=CACHE,
            stream=stream,
        )
        with InvalidatorProcess(path) as invalidator:
            system = System(pair, [node], path, invalidator)
            cache = system.open_cache()
            wait_for_hits(cache, "customer", KEYS, system.describe)
            run(pair.primary, TAGGED, "UPDATE customers SET v = 1 WHERE id = 1")
            system.assert_none_stale(cache, "customer", KEYS)
            system.wait_resumable()
            lives = system.lives()
            since = StreamOpener(lambda: system.config).read_token(None, None).format()
            assert invalidator.terminate() == 0
            run(pair.primary, TAGGED, "UPDATE customers SET v = 2 WHERE id = 2", PLAIN)
            invalidator.start()
            system.assert_none_stale(cache, "customer", KEYS)
            cache.close()
            assert system.lives() == lives, "the history is not lost"
            [change] = read_changes(system, since, 1)
            assert (change["table"], change["op"]) == ("customers", "update")
            assert ":mytag:" in str(change["gtid"])


def test_a_tagged_transaction_is_skipped_by_its_gtid(tmp_path: Path) -> None:
    with database_pair("mysql") as pair, Memcached() as node:
        pair.primary.execute(CUSTOMERS_TABLE, database="shop")
        run(pair.primary, "INSERT INTO customers VALUES (1, 'n', 0)")
        path = write_config(tmp_path, "mysql", pair.primary.url, [node.address], cache=CACHE, stream=STREAM)
        with InvalidatorProcess(path) as invalidator:
            system = System(pair, [node], path, invalidator)
            cache = system.open_cache()
            wait_for_hits(cache, "customer", [1], system.describe)
            system.wait_resumable()
            assert invalidator.terminate() == 0
            before = head_of(pair.primary)
            run(pair.primary, TAGGED, "UPDATE customers SET v = 7", PLAIN)
            gtid = str(head_of(pair.primary).subtract(before))
            assert parse_gtid("mysql", gtid) == MysqlGtidSet.parse(gtid)
            spoil_last_rows(pair.primary)
            stopped = run_cli("run", "-c", path)
            assert gtid in "".join(stopped.stderr.split("\n")), stopped.stderr
            with path.open("a") as file:
                file.write(f'[[keyspaces.shop.shards.skip]]\ngtid = "{gtid}"\nreason = "damaged"\n')
            invalidator.start()
            system.wait_covered()
            assert cache.get("customer", 1)["v"] == 7
            cache.close()
