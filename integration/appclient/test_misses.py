"""Misses while the replica stands still: the value is of the primary, and is stored at once (I10)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from appclient import Cache, Explanation, LoaderConnection, ReadOutcome
from freshness.config.server import ServerAddress
from freshness.database.connection import connect
from integration.configuration import PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system
from integration.servers import Pair

LATEST: Final = """[objects.latest]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
"""
OBJECTS: Final = '[objects.customer]\ntable = "customers"\n' + PROFILE + LATEST
KEYS: Final = range(1, 9)


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """The nodes know of changes that the replica lacks."""
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with running_system(pair, tmp_path, tables=tables, objects=OBJECTS) as running:
        rows = ", ".join(f"({key}, 'n', 0)" for key in KEYS)
        running.execute(f"INSERT INTO customers VALUES {rows}")
        running.settle()
        running.wait_open()
        pair.replica.stop_replication()
        try:
            yield running
        finally:
            pair.replica.start_replication()
            pair.replica.wait_caught_up(pair.primary)


def open_cache(system: System, **settings: Any) -> Cache:
    text = system.config_path.read_text()
    lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
    system.config_path.write_text(text.replace("[cache]\n", f"[cache]\n{lines}", 1))
    cache = system.open_cache()

    @cache.loader("profile")
    def profile(connection: LoaderConnection, key: int) -> Any:
        return connection.query("SELECT v FROM customers WHERE id = %s", (key,))

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


def test_a_composite_is_new(system: System) -> None:
    """On MariaDB it is stored only when the primary's heartbeats have come round: no lock holds for free SQL."""
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()
    with closing(open_cache(system)) as cache:
        value, outcome = read(cache, "profile", 1)
        assert value == [{"v": 1}]
        assert outcome is not ReadOutcome.BOUNDED
        if system.pair.primary.flavor == "mysql":
            assert outcome is ReadOutcome.FILLED


def test_with_a_bound_of_0_the_primary_is_not_read(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()
    with closing(open_cache(system, primary_reads_per_second=0)) as cache:
        value, outcome = read(cache, "customer", 1)
        assert (value["v"], outcome) == (0, ReadOutcome.BOUNDED)


@pytest.mark.parametrize("settings", [{}, {"on_unknown": '"primary"'}], ids=["replica", "primary"])
def test_while_a_node_is_down_the_setting_decides_over_the_server(
    settings: dict[str, Any], system: System
) -> None:
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


def test_a_row_that_a_writer_holds_is_read_and_not_waited_for(system: System) -> None:
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    system.wait_covered()
    with closing(open_cache(system)) as cache, closing(writer_of(system)) as writer:
        with writer.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("UPDATE customers SET v = 2 WHERE id = 1")
        value, outcome = read(cache, "customer", 1)
        assert value["v"] == 1
        writer.rollback()
        if system.pair.primary.flavor == "mariadb":
            assert outcome is ReadOutcome.STRIPE
            assert read(cache, "customer", 1)[1] is ReadOutcome.FILLED


def writer_of(system: System) -> Any:
    primary = system.pair.primary
    return connect(ServerAddress("127.0.0.1", primary.port, "app", "app", "shop"))
