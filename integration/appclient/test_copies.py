"""Copies of hits in one process, and the limit of database reads, on real servers. The clock of the copies stands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest

from appclient import Cache, Explanation, LoaderConnection, Overloaded, ReadOutcome
from integration.appclient.tasks import loop_cache
from integration.configuration import CUSTOMER
from integration.harness import CUSTOMERS_TABLE, System, running_system, wait_for_hits
from integration.servers import Pair

OBJECTS: Final = (
    CUSTOMER
    + """[objects.kept]
table = "customers"
local_copy_seconds = 0.2
[objects.card]
key = "id"
members = { customers = "id" }
[objects.revalidated]
key = "id"
members = { customers = "id" }
stale_while_revalidate_seconds = 5
[objects.limited]
table = "customers"
database_reads_per_second = 2
[objects.limited_and_copied]
table = "customers"
database_reads_per_second = 2
stale_while_revalidate_seconds = 5
"""
)


@pytest.fixture(scope="module")
def system(mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    with running_system(
        mariadb_pair,
        tmp_path_factory.mktemp("copies"),
        tables=(CUSTOMERS_TABLE,),
        objects=OBJECTS,
        cache={"overload_wait_ms": 0},
    ) as running:
        yield running


class Clock:
    """Stands, so that a slow machine lets no copy grow old."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["threads", "tasks"])
def cache(system: System, request: pytest.FixtureRequest, clock: Clock) -> Iterator[Cache]:
    system.execute("DELETE FROM customers")
    system.execute("INSERT INTO customers VALUES " + ", ".join(f"({each}, 'n', 0)" for each in range(20)))
    system.settle()
    if request.param == "tasks":
        with loop_cache(system.config_path) as on_loop:
            stand(on_loop.inner.blocking, clock)
            yield cast(Cache, on_loop)
        return
    opened = system.open_cache()
    stand(opened, clock)
    yield opened
    opened.close()


def stand(cache: Cache, clock: Clock) -> None:
    """Copies are noted and found by this clock, and limits count by it. All else goes by the real one."""
    cache._pipeline.copies.clock = clock
    for limit in cache._pipeline.limits.values():
        limit._clock, limit._due = clock, clock.now - 1


def read(cache: Cache, name: str, key: Any, **options: Any) -> Explanation:
    explanation: Explanation = cache.get(name, key, explain=True, **options)
    return explanation


def fill(system: System, cache: Cache, name: str, *keys: int) -> None:
    """Entries are hits, and this process has its copies."""
    wait_for_hits(cache, name, list(keys), system.describe)


def change(system: System, key: int) -> None:
    system.execute("UPDATE customers SET v = v + 1 WHERE id = %s", key)
    system.settle()


def test_a_copy_serves_for_a_moment_without_the_node(system: System, cache: Cache, clock: Clock) -> None:
    fill(system, cache, "kept", 1, 2)
    clock.now += 0.1
    assert read(cache, "kept", 1).outcome is ReadOutcome.LOCAL_HIT
    change(system, 1)
    assert (read(cache, "kept", 1).outcome, read(cache, "kept", 1).value["v"]) == (ReadOutcome.LOCAL_HIT, 0)
    answers = cache.get_many("kept", [1, 2, 3], explain=True)
    assert [answers[key].value["v"] for key in (1, 2, 3)] == [0, 0, 0]
    assert [answers[key].outcome is ReadOutcome.LOCAL_HIT for key in (1, 2, 3)] == [True, True, False]
    clock.now += 0.15
    assert read(cache, "kept", 1).value["v"] == 1


def test_a_value_of_its_own_for_each_reader(system: System, cache: Cache) -> None:
    fill(system, cache, "kept", 1)
    cache.get("kept", 1)["v"] = "changed by its reader"
    assert read(cache, "kept", 1).outcome is ReadOutcome.LOCAL_HIT
    assert cache.get("kept", 1)["v"] == 0


def test_a_demand_is_served_no_copy_and_ends_the_copy(system: System, cache: Cache) -> None:
    fill(system, cache, "kept", 1, 2, 3)
    token = cache.database().query("SELECT 1", include_event_token=True).extras.event_token
    assert token is not None
    change(system, 1)
    asked = read(cache, "kept", 1, max_staleness_seconds=60)
    assert (asked.outcome is ReadOutcome.LOCAL_HIT, asked.value["v"]) == (False, 1)
    assert cache.get("kept", 1)["v"] == 1, "this process has seen the new value"
    assert read(cache, "kept", 2).outcome is ReadOutcome.LOCAL_HIT


def test_a_composite_has_no_copy_as_its_part(system: System, cache: Cache) -> None:
    """F18: the composite would keep a part that is older than its position."""

    @cache.loader("card")
    def load(database: LoaderConnection, customer_id: int) -> Any:
        return {"customer": cache.get("kept", customer_id)}

    fill(system, cache, "kept", 1)
    change(system, 1)
    assert cache.get("kept", 1)["v"] == 0, "a copy"
    assert cache.get("card", 1)["customer"]["v"] == 1
    system.settle()
    assert cache.get("card", 1)["customer"]["v"] == 1


def test_an_old_value_is_served_while_another_reader_fills(system: System, cache: Cache, clock: Clock) -> None:
    filling, go_on = threading.Event(), threading.Event()
    go_on.set()

    @cache.loader("revalidated")
    def load(database: LoaderConnection, customer_id: int) -> Any:
        filling.set()
        assert go_on.wait(30)
        return database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))

    fill(system, cache, "revalidated", 1)
    change(system, 1)
    go_on.clear()
    filling.clear()
    filled: list[Explanation] = []
    # A cache of its own: on an event loop the loader would hold all reads up.
    with_own = system.open_cache()
    with_own.loader("revalidated")(load)
    winner = threading.Thread(target=lambda: filled.append(read(with_own, "revalidated", 1)))
    winner.start()
    assert filling.wait(30)
    clock.now += 4.9
    old = read(cache, "revalidated", 1)
    assert (old.outcome, old.value["v"]) == (ReadOutcome.STALE_SERVED, 0)
    go_on.set()
    winner.join()
    with_own.close()
    assert filled[0].value["v"] == 1
    assert read(cache, "revalidated", 1).value["v"] == 1


def test_reads_of_the_database_beyond_the_limit_fail(system: System, cache: Cache, clock: Clock) -> None:
    assert cache.get_many("limited", [1, 2, 3]).keys() == {1, 2, 3}
    with pytest.raises(Overloaded, match="limited is read from the database more than 2 times"):
        cache.get("limited", 4)
    assert cache.get("customer", 4)["v"] == 0, "the limit is of one object"
    clock.now += 0.5
    assert cache.get("limited", 4)["v"] == 0


def test_hits_count_for_no_limit_and_copies_are_served_beyond_it(system: System, cache: Cache, clock: Clock) -> None:
    for key in (1, 2):
        wait_for_hits_slowly(cache, key, clock)
    clock.now += 1
    for _ in range(10):
        assert read(cache, "limited_and_copied", 1).is_hit
    change(system, 1)
    cache.get_many("limited_and_copied", [11, 12, 13])
    old = read(cache, "limited_and_copied", 1)
    assert (old.outcome, old.value["v"]) == (ReadOutcome.STALE_SERVED, 0)
    with pytest.raises(Overloaded):
        cache.get("limited_and_copied", 1, max_staleness_seconds=60)
    with pytest.raises(Overloaded):
        cache.get_many("limited_and_copied", [1, 14])
    clock.now += 1
    assert cache.get("limited_and_copied", 1)["v"] == 1


def wait_for_hits_slowly(cache: Cache, key: int, clock: Clock) -> None:
    """Within the limit."""

    class Slow:
        def get_many(self, name: str, keys: Any, **options: Any) -> Any:
            clock.now += 1
            return cache.get_many(name, keys, **options)

    wait_for_hits(cast(Cache, Slow()), "limited_and_copied", [key])
