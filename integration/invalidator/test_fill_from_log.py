"""Objects with ``fill_from_log``, on real servers: entries follow their rows without a read of the database."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from appclient import Cache, ReadOutcome
from integration.harness import System, running_system, wait_for_hits, wait_until
from integration.servers import Pair
from integration.servers.program import InvalidatorProcess

FILLED = '[objects.customer]\ntable = "customers"\nfill_from_log = true\n'
KEYS = list(range(8))
WRITES = 400


@contextmanager
def filled_system(pair: Pair, folder: Path, *, has_replica: bool = True) -> Iterator[tuple[System, Cache]]:
    """Eight customers, all of them cached."""
    with running_system(pair, folder, objects=FILLED, has_replica=has_replica) as system:
        rows = ", ".join(f"({key}, 'n{key}', 0)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        system.settle()
        cache = system.open_cache()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        yield system, cache
        cache.close()


def read_hit(cache: Cache, key: int) -> object:
    explanation = cache.get("customer", key, explain=True)
    assert explanation.outcome is ReadOutcome.HIT, explanation
    return explanation.value


def test_an_entry_follows_its_row_and_stays_a_hit(pair: Pair, tmp_path: Path) -> None:
    with filled_system(pair, tmp_path) as (system, cache):
        system.execute("UPDATE customers SET v = 7, name = 'Zoë' WHERE id = 1")
        system.execute("DELETE FROM customers WHERE id = 2")
        system.execute("UPDATE customers SET id = 20 WHERE id = 3")
        system.wait_covered()
        # Nobody has read since: the rows come from the log.
        assert read_hit(cache, 1) == {"id": 1, "name": "Zoë", "v": 7}
        assert read_hit(cache, 2) is None
        assert read_hit(cache, 3) is None
        assert read_hit(cache, 4) == {"id": 4, "name": "n4", "v": 0}
        # A key that nobody has read gets no entry.
        assert cache.get("customer", 20, explain=True).outcome is not ReadOutcome.HIT
        system.execute("INSERT INTO customers VALUES (2, 'again', 1), (3, 'too', 2)")
        system.wait_covered()
        assert read_hit(cache, 2) == {"id": 2, "name": "again", "v": 1}
        assert read_hit(cache, 3) == {"id": 3, "name": "too", "v": 2}


def test_a_row_that_changes_twice_in_a_transaction_is_the_last_one(pair: Pair, tmp_path: Path) -> None:
    with filled_system(pair, tmp_path) as (system, cache):
        with pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE customers SET v = 1 WHERE id IN (1, 2)")
            cursor.execute("UPDATE customers SET v = 2 WHERE id = 1")
            cursor.execute("DELETE FROM customers WHERE id = 2")
            cursor.execute("SAVEPOINT s")
            cursor.execute("UPDATE customers SET v = 3 WHERE id = 1")
            cursor.execute("ROLLBACK TO s")
            cursor.execute("COMMIT")
        system.wait_covered()
        assert read_hit(cache, 1) == {"id": 1, "name": "n1", "v": 2}
        assert read_hit(cache, 2) is None


def test_a_statement_behind_a_change_leaves_no_entry_from_the_log(pair: Pair, tmp_path: Path) -> None:
    with filled_system(pair, tmp_path) as (system, cache):
        system.invalidator.pause()
        try:
            system.execute("UPDATE customers SET v = 5")
            system.execute("TRUNCATE TABLE customers")  # perhaps in one batch with the change
        finally:
            system.invalidator.resume()
        system.wait_covered()
        wait_until(
            lambda: set(cache.get_many("customer", KEYS).values()) == {None}, "no row is left", system.describe
        )
        system.execute("ALTER TABLE customers ADD COLUMN w INT NOT NULL DEFAULT 9")
        system.execute("INSERT INTO customers VALUES (1, 'new', 1, 2)")
        system.wait_covered()
        assert cache.get("customer", 1) == {"id": 1, "name": "new", "v": 1, "w": 2}
        wait_for_hits(cache, "customer", [1], system.describe)
        system.execute("UPDATE customers SET w = 3 WHERE id = 1")
        system.wait_covered()
        assert read_hit(cache, 1) == {"id": 1, "name": "new", "v": 1, "w": 3}


@pytest.mark.parametrize("flavor", ["mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def test_rows_of_hot_keys_only_go_forward_while_invalidators_die(pair: Pair, tmp_path: Path) -> None:
    """Two invalidators race for each entry, and one of them is killed again and again."""
    with filled_system(pair, tmp_path) as (system, cache), InvalidatorProcess(system.config_path) as second:
        wait_until(second.is_streaming, "the second streams", second.log_tail)
        is_over = threading.Event()
        failures: list[str] = []
        hits = [0]

        def read(own: Cache) -> None:
            seen = dict.fromkeys(KEYS, 0)
            while not is_over.is_set():
                for key, explanation in own.get_many("customer", KEYS, explain=True).items():
                    if explanation.is_hit:
                        hits[0] += 1
                        version = explanation.value["v"]
                        if version < seen[key]:
                            failures.append(f"{key} went back from {seen[key]} to {version}")
                        seen[key] = version

        caches = [system.open_cache() for _ in range(2)]
        readers = [threading.Thread(target=read, args=(each,)) for each in caches]
        for reader in readers:
            reader.start()
        try:
            chance = random.Random(7)
            for number in range(1, WRITES):
                system.execute(f"UPDATE customers SET v = {number} WHERE id = {chance.choice(KEYS)}")
                if number % 100 == 0:
                    system.invalidator.kill()
                    system.invalidator.start()
                time.sleep(0.002)
        finally:
            is_over.set()
            for reader in readers:
                reader.join()
            for each in caches:
                each.close()
        assert not failures
        assert hits[0] > WRITES
        system.assert_none_stale(cache, "customer", KEYS)


NAMED_PERIOD = (
    ", a TIMESTAMP(6) GENERATED ALWAYS AS ROW START, b TIMESTAMP(6) GENERATED ALWAYS AS ROW END,"
    " PERIOD FOR SYSTEM_TIME(a, b)"
)


@pytest.mark.parametrize("flavor", ["mariadb"])
@pytest.mark.parametrize("period", ["", NAMED_PERIOD], ids=["hidden", "named"])
def test_a_system_versioned_row_is_never_one_of_the_past(pair: Pair, tmp_path: Path, period: str) -> None:
    """Its past is in the log, behind each change and with the same id."""
    table = f"CREATE TABLE gauges (id INT PRIMARY KEY, v INT, UNIQUE KEY (v){period}) WITH SYSTEM VERSIONING"
    pair.primary.execute(table, database="shop")
    gauge = '[objects.gauge]\ntable = "gauges"\nfill_from_log = true\n'
    by_v = '[objects.by_v]\ntable = "gauges"\nkey = ["v"]\n'
    with running_system(pair, tmp_path, objects=gauge + by_v) as system:
        system.execute("INSERT INTO gauges (id, v) VALUES (1, 1), (2, 2)")
        system.settle()
        with closing(system.open_cache()) as cache:
            wait_for_hits(cache, "gauge", [1, 2], system.describe)
            system.execute("UPDATE gauges SET v = 7 WHERE id = 1")
            system.execute("DELETE FROM gauges WHERE id = 2")
            system.wait_covered()
            for key, v in ((1, 7), (2, None)):
                explanation = cache.get("gauge", key, explain=True)
                assert explanation.outcome is ReadOutcome.HIT
                assert (explanation.value and explanation.value["v"]) == v
            assert cache.get("by_v", 7)["id"] == 1
            assert cache.get("by_v", 1) is None


@pytest.mark.parametrize("flavor", ["mysql"])
def test_what_the_log_does_not_tell_is_removed_as_ever(pair: Pair, tmp_path: Path) -> None:
    """A FLOAT of more digits than a client reads, and a session that logs less than whole rows."""
    pair.primary.execute("CREATE TABLE gauges (id INT PRIMARY KEY, f FLOAT, v INT)", database="shop")
    gauge = '[objects.gauge]\ntable = "gauges"\nfill_from_log = true\n'
    with running_system(pair, tmp_path, objects=gauge) as system:
        system.execute("INSERT INTO gauges VALUES (1, 0.5, 0), (2, 0.1, 0), (3, 0.5, 0)")
        system.settle()
        with closing(system.open_cache()) as cache:
            wait_for_hits(cache, "gauge", [1, 2, 3], system.describe)
            system.execute("UPDATE gauges SET v = 1 WHERE id < 3")
            with pair.primary.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION binlog_row_image = MINIMAL")
                cursor.execute("UPDATE gauges SET v = 1 WHERE id = 3")
                connection.commit()
            system.wait_covered()
            for key in (1, 2, 3):
                assert cache.get("gauge", key)["v"] == 1
            wait_for_hits(cache, "gauge", [1], system.describe)
            system.execute("UPDATE gauges SET v = 2 WHERE id = 1")
            system.wait_covered()
            explanation = cache.get("gauge", 1, explain=True)
            assert (explanation.outcome, explanation.value["v"]) == (ReadOutcome.HIT, 2)
