"""Misses while the replica stands still: the value is of the primary, and is stored at once (I10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, Explanation, LoaderConnection, ReadOutcome
from appclient.database import shard
from appclient.database.atleast import wait_sql
from appclient.telemetry.observer import Observer, PrimaryResult, TelemetryOption, Vitals
from freshness.config.server import ServerAddress
from freshness.database.connection import connect
from integration.configuration import PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system, wait_for_hits, wait_until
from integration.servers import Pair
from integration.servers.mariadb import MariadbServer

LATEST: Final = """[objects.latest]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
"""
OBJECTS: Final = '[objects.customer]\ntable = "customers"\n' + PROFILE + LATEST
KEYS: Final = range(1, 9)
CHANGES_MAX: Final = 100


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """The nodes know of changes that the replica lacks."""
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE.replace("total INT)", "total INT, KEY (customer_id))"))
    with running_system(pair, tmp_path, tables=tables, objects=OBJECTS) as running:
        rows = ", ".join(f"({key}, 'n', 0)" for key in KEYS)
        running.execute(f"INSERT INTO customers VALUES {rows}")
        running.settle()
        running.wait_open()
        pair.replica.stop_applying()
        try:
            yield running
        finally:
            pair.replica.start_replication()
            pair.replica.wait_caught_up(pair.primary)


class PrimaryReads(Observer):
    """Notes how each miss that the replica cannot answer at once was read."""

    def __init__(self) -> None:
        self.results: list[PrimaryResult] = []

    def observe(self, _: Vitals) -> Observer:
        return self

    def need_primary(self, result: PrimaryResult) -> None:
        self.results.append(result)


def open_cache(system: System, *, telemetry: TelemetryOption = None, **settings: Any) -> Cache:
    text = system.config_path.read_text()
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    system.config_path.write_text(text.replace("[cache]\n", f"[cache]\n{lines}", 1))
    cache = Cache.open(system.config_path, telemetry=telemetry)

    @cache.loader("profile")
    def profile(connection: LoaderConnection, key: int) -> Any:
        (customer,) = connection.query("SELECT v FROM customers WHERE id = %s", (key,))
        orders = connection.query("SELECT total FROM orders WHERE customer_id = %s ORDER BY id", (key,))
        return {**customer, "totals": [each["total"] for each in orders]}

    return cache


def read(cache: Cache, name: str, key: int) -> tuple[Any, ReadOutcome]:
    explanation: Explanation = cache.get(name, key, explain=True)
    return explanation.value, explanation.outcome


def test_a_row_and_a_list_that_the_replica_lacks_are_filled_from_the_primary(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.execute("DELETE FROM customers WHERE id = 2")
    system.execute("INSERT INTO orders (id, customer_id) VALUES (1, 1)")
    system.wait_covered()
    with closing(open_cache(system)) as cache:
        row = {"id": 1, "name": "n", "v": 1}
        assert read(cache, "customer", 1) == (row, ReadOutcome.FILLED)
        assert read(cache, "customer", 2) == (None, ReadOutcome.FILLED)
        value, outcome = read(cache, "latest", 1)
        assert ([each["id"] for each in value], outcome) == ([1], ReadOutcome.FILLED)
        assert [read(cache, *which)[1] for which in (("customer", 1), ("customer", 2), ("latest", 1))] == (
            [ReadOutcome.HIT] * 3
        )


def test_of_many_keys_those_that_the_replica_lacks_are_new(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id IN (1, 3)")
    system.wait_covered()
    with closing(open_cache(system)) as cache:
        found = cache.get_many("customer", list(KEYS))
        assert {key: row["v"] for key, row in found.items()} == {key: int(key in (1, 3)) for key in KEYS}


def test_each_answer_names_its_server(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id IN (1, 3)")
    system.wait_covered()
    pair = system.pair
    with closing(open_cache(system)) as cache:
        found: dict[int, Explanation] = cache.get_many("customer", list(KEYS), explain=True)
        named = {key: str(server) for key, each in found.items() for server in each.servers.values()}
        primary, replica = f"primary 127.0.0.1:{pair.primary.port}", f"replica 127.0.0.1:{pair.replica.port}"
        assert named == {key: primary if key in (1, 3) else replica for key in KEYS}
        assert {each.outcome for each in found.values()} == {ReadOutcome.FILLED}
        hit: Explanation = cache.get("customer", 1, explain=True)
        assert (hit.outcome, hit.servers) == (ReadOutcome.HIT, {})


def test_a_composite_is_new_and_stored(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()
    with closing(open_cache(system)) as cache:
        for outcome in (ReadOutcome.FILLED, ReadOutcome.HIT):
            assert read(cache, "profile", 1) == ({"v": 1, "totals": []}, outcome)


def test_with_a_bound_of_0_the_primary_is_not_read(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()
    with closing(open_cache(system, primary_reads_per_second=0)) as cache:
        value, outcome = read(cache, "customer", 1)
        assert (value["v"], outcome) == (0, ReadOutcome.BOUNDED)


def test_a_miss_waits_for_the_replica_by_a_setting(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica goes on as soon as it is asked to wait."""
    text = system.config_path.read_text()
    line = f'flavor = "{system.pair.primary.flavor}"'
    waits = f"{line}\nmiss_wait_ms = 60000\nquery_timeout_seconds = 60"
    system.config_path.write_text(text.replace(line, waits))
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()

    def go_on(*asked: Any) -> str:
        system.pair.replica.start_replication()
        return wait_sql(*asked)

    monkeypatch.setattr(shard, "wait_sql", go_on)
    reads = PrimaryReads()
    with closing(open_cache(system, telemetry=reads)) as cache:
        found: Explanation = cache.get("customer", 1, explain=True)
        assert (found.value["v"], found.outcome) == (1, ReadOutcome.FILLED)
        assert (found.servers["shop/-"].is_primary, reads.results) == (False, ["waited"])


@pytest.mark.parametrize("settings", [{}, {"on_unknown": '"primary"'}], ids=["replica", "primary"])
def test_while_a_node_is_down_the_setting_decides_over_the_server(settings: dict[str, Any], system: System) -> None:
    system.execute("UPDATE customers SET v = 1")
    system.wait_covered()
    for node in system.nodes:
        node.kill()
    is_primary = bool(settings)
    with closing(open_cache(system, **settings)) as cache:
        found: dict[int, Explanation] = cache.get_many("customer", list(KEYS), explain=True)
        for each in (cache.get("customer", 1, explain=True), *found.values()):
            assert each.outcome is ReadOutcome.NODE_DOWN
            assert (each.value["v"], each.servers["shop/-"].is_primary) == (int(is_primary), is_primary)
    with closing(open_cache(system, primary_reads_per_second=0)) as cache:
        value, outcome = read(cache, "customer", 1)
        assert (value["v"], outcome) == (0, ReadOutcome.BOUNDED if is_primary else ReadOutcome.NODE_DOWN)


def test_hits_go_on_and_misses_are_of_the_primary_up_to_the_bound(system: System) -> None:
    """The pace is so slow that the first read of the primary is the only one."""
    changed, others = [1, 3, 5, 7], [2, 4, 6, 8]
    reads = PrimaryReads()
    with (
        closing(open_cache(system)) as cache,
        closing(open_cache(system, telemetry=reads, primary_reads_per_second=0.001)) as bounded,
    ):
        wait_for_hits(cache, "customer", list(KEYS), system.describe)
        for number in (1, 2, 3):
            system.execute("UPDATE customers SET v = %s WHERE id IN (1, 3, 5, 7)", number)
            system.wait_covered()
            found = cache.get_many("customer", list(KEYS), explain=True)
            assert {key: (found[key].value["v"], found[key].outcome) for key in KEYS} == {
                **dict.fromkeys(changed, (number, ReadOutcome.FILLED)),
                **dict.fromkeys(others, (0, ReadOutcome.HIT)),
            }
        system.execute("UPDATE customers SET v = 4 WHERE id IN (1, 3, 5, 7)")
        system.wait_covered()
        answers = {key: read(bounded, "customer", key) for key in KEYS}
        assert reads.results == ["read", "bounded", "bounded", "bounded"]
        assert {key: (value["v"], outcome) for key, (value, outcome) in answers.items()} == {
            1: (4, ReadOutcome.FILLED),
            **dict.fromkeys([3, 5, 7], (0, ReadOutcome.BOUNDED)),
            **dict.fromkeys(others, (0, ReadOutcome.HIT)),
        }
        assert system.find_stale("customer", KEYS) == (len(others) + 1, [])
        # The other process may still read the primary, and its fills are hits here.
        assert [read(cache, "customer", key)[1] for key in (3, 5, 7)] == [ReadOutcome.FILLED] * 3
        assert [read(bounded, "customer", key)[1] for key in KEYS] == [ReadOutcome.HIT] * len(KEYS)
        assert system.find_stale("customer", KEYS) == (len(KEYS), [])
        system.pair.replica.start_replication()
        system.assert_none_stale(bounded, "customer", list(KEYS))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("customer", "UPDATE customers SET v = -1 WHERE id = 1"),
        ("profile", "UPDATE customers SET v = -1 WHERE id = 1"),
        ("profile", "UPDATE orders SET customer_id = 2 WHERE id = 1"),
        ("profile", "UPDATE orders SET total = 7 WHERE id = 1"),
    ],
    ids=["a row", "a composite", "another member of it", "a column outside of the index"],
)
def test_a_row_that_a_writer_holds_is_read_and_not_waited_for(system: System, name: str, change: str) -> None:
    """On MariaDB the value is not stored until the primary's heartbeats have come round: a slow machine may let them,
    and then the next change is looked at."""
    system.execute("INSERT INTO orders (id, customer_id) VALUES (1, 1)")
    outcomes: list[ReadOutcome] = []
    with closing(open_cache(system)) as cache, closing(writer_of(system)) as writer:
        while ReadOutcome.STRIPE not in outcomes:
            assert len(outcomes) < CHANGES_MAX
            version = len(outcomes) + 1
            system.execute(f"UPDATE customers SET v = {version} WHERE id = 1")
            system.wait_covered()
            with writer.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(change)
            value, outcome = read(cache, name, 1)
            writer.rollback()
            outcomes.append(outcome)
            assert value["v"] == version
            if system.pair.primary.flavor == "mysql":
                break
        assert {*outcomes} <= {ReadOutcome.FILLED, ReadOutcome.STRIPE}
        last = ReadOutcome.HIT if outcomes[-1] is ReadOutcome.FILLED else ReadOutcome.FILLED
        assert read(cache, name, 1)[1] is last


def read_until(cache: Cache, name: str, is_wanted: Callable[[ReadOutcome], bool]) -> tuple[Any, ReadOutcome]:
    def ask() -> tuple[Any, ReadOutcome] | None:
        found = read(cache, name, 1)
        return found if is_wanted(found[1]) else None

    return wait_until(ask, "a read is as wanted")


@pytest.mark.parametrize("flavor", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("customer", "UPDATE customers SET v = 9 WHERE id = 1"),
        ("customer", "DELETE FROM customers WHERE id = 1"),
        ("latest", "INSERT INTO orders (id, customer_id) VALUES (2, 1)"),
        ("latest", "UPDATE orders SET customer_id = 2 WHERE id = 1"),
        ("profile", "UPDATE customers SET v = 9 WHERE id = 1"),
        ("profile", "UPDATE orders SET total = 7 WHERE id = 1"),
    ],
)
def test_a_change_that_is_logged_and_not_shown_yet_is_not_stored_without(
    system: System, name: str, change: str
) -> None:
    """The primary's log is ahead of what a SELECT shows (F2): the cache knows of the change, the row lacks it."""
    system.execute("INSERT INTO orders (id, customer_id) VALUES (1, 1)")
    system.wait_covered()
    with closing(open_cache(system)) as cache, ThreadPoolExecutor(1) as pool:
        before = read_until(cache, name, lambda outcome: outcome is ReadOutcome.HIT)
        primary = system.pair.primary
        assert isinstance(primary, MariadbServer)
        with primary.commits_waiting():
            commit = pool.submit(system.execute, change)
            value, outcome = read_until(cache, name, lambda outcome: outcome is not ReadOutcome.HIT)
            assert not commit.done()
            assert value == before[0]
            assert outcome is not ReadOutcome.FILLED
        commit.result()
        assert read_until(cache, name, lambda outcome: outcome is ReadOutcome.HIT)[0] != value


def writer_of(system: System) -> Any:
    primary = system.pair.primary
    return connect(ServerAddress("127.0.0.1", primary.port, "app", "app", "shop"))
