"""Values that are read together from the database are of one snapshot; whatever has none is refused (I11)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

import pytest

from appclient import AsyncCache, Cache, ConfigError, LoaderConnection, Overloaded, ReadOutcome, StateChanged
from appclient.connection.own import require_one_shard
from appclient.database.atleast import demand_commits, enclosed_by
from appclient.testing import FakeSystem
from freshness.position import parse_position
from freshness.position.token import EventToken
from freshness.stream.heartbeat import UNTIL_CHARS_MAX, parse_until, until_sql

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
TOGETHER: Final = [ReadOutcome.TOGETHER, ReadOutcome.TOGETHER]
SCHEMA: Final = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total INTEGER);
INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob');
INSERT INTO orders VALUES (7, 1, 70), (8, 1, 80);
"""
CONFIGURATION: Final = """
[cache]
nodes = ["127.0.0.1:11211", "127.0.0.1:11212"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
replicas = ["mysql://app@127.0.0.1:3307/shop"]
[objects.customer]
table = "customers"
[objects.scarce]
table = "customers"
database_reads_per_second = 1
[objects.orders]
table = "orders"
key = "customer_id"
order_by = "id desc"
limit = 5
[objects.profile]
key = "customer_id"
members = { customers = "id", orders = "customer_id" }
"""


class Customer(TypedDict):
    id: int
    name: str


@pytest.fixture
def system(tmp_path: Path) -> Iterator[FakeSystem]:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIGURATION)
    opened = FakeSystem(path, SCHEMA)
    yield opened
    opened.close()


def read(cache: Cache, name: str, *keys: int) -> tuple[list[Any], list[ReadOutcome]]:
    found = cache.get_many(name, keys, together=True, explain=True).values()
    return [each.value for each in found], [each.outcome for each in found]


def test_rows_lists_and_what_is_absent_are_of_one_snapshot(system: FakeSystem) -> None:
    assert read(system.cache, "customer", 1, 2, 3) == (
        [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}, None],
        [*TOGETHER, ReadOutcome.TOGETHER],
    )
    lists, outcomes = read(system.cache, "orders", 1, 2)
    assert [[row["id"] for row in each] for each in lists] == [[8, 7], []]
    assert outcomes == TOGETHER


def test_all_loaders_read_by_one_connection(system: FakeSystem) -> None:
    """A commit between two of them shows in neither."""
    names = (f"name {number}" for number in itertools.count())

    @system.cache.loader("profile")
    def profile(connection: LoaderConnection, key: int) -> Any:
        (row,) = connection.query("SELECT name FROM customers WHERE id = %s", (key,))
        system.execute(f"UPDATE customers SET name = '{next(names)}'")
        return row

    for store in system.stores.values():
        store.down = True
    (one, two), outcomes = read(system.cache, "profile", 1, 2)
    assert one == two
    assert outcomes == TOGETHER


def test_an_object_whose_loader_reads_by_the_cache_is_refused(system: FakeSystem) -> None:
    @system.cache.loader("profile")
    def profile(_: LoaderConnection, key: int) -> Any:
        return system.cache.get("customer", key)

    with pytest.raises(ConfigError, match="reads by the cache, so its value is of several moments"):
        read(system.cache, "profile", 1, 2)


def test_a_key_of_several_shards_is_refused() -> None:
    with pytest.raises(ConfigError, match="from 2 shards, and its values cannot be read together"):
        require_one_shard("customer", ["shop/-80", "shop/80-"], "its values cannot be read together")


def test_the_limit_of_reads_counts_them(system: FakeSystem) -> None:
    def read_often() -> None:
        for _ in range(100):
            read(system.cache, "scarce", 1, 2)

    with pytest.raises(Overloaded):
        read_often()


def test_tasks_and_typed_reads_have_the_option(system: FakeSystem) -> None:
    async def tasks() -> list[Any]:
        async with await system.open_async() as cache:
            assert isinstance(cache, AsyncCache)
            plain = await cache.get_many("customer", [1, 2], together=True)
            typed = await cache.of("customer", Customer).get_many([1, 2], together=True)
            return [plain, typed]

    one, two = asyncio.run(tasks())
    assert one == two == system.cache.of("customer", Customer).get_many([1, 2], together=True)


def test_several_objects_are_of_one_snapshot(system: FakeSystem) -> None:
    """A commit between two of them shows in none."""
    numbers = itertools.count()

    @system.cache.loader("profile")
    def profile(connection: LoaderConnection, key: int) -> Any:
        total = connection.query_one("SELECT SUM(total) AS total FROM orders WHERE customer_id = %s", (key,))
        number = next(numbers)
        system.execute(f"UPDATE customers SET name = '{number}'")
        system.execute(f"UPDATE orders SET total = {number}")
        return total

    with system.cache.together() as view:
        found = view.get_all([("customer", 2), ("profile", 1), ("orders", 1), ("customer", 1)], explain=True)
    assert [each.outcome for each in found] == [*TOGETHER, *TOGETHER]
    assert [each.object_name for each in found] == ["customer", "profile", "orders", "customer"]
    bob, total, orders, ada = (each.value for each in found)
    assert (bob["id"], ada["id"]) == (2, 1)
    assert bob["name"] == ada["name"]
    assert {row["total"] for row in orders} == {int(ada["name"])}
    assert total["total"] == 2 * int(ada["name"])


def test_a_view_goes_on_until_what_it_has_shown_changes(system: FakeSystem) -> None:
    with system.cache.together() as view:
        customer = view.get("customer", 1)
        customer["name"] = "a change of the caller's own value"
        system.execute("UPDATE customers SET name = 'Eve' WHERE id = 2")
        assert view.get_many("customer", [2, 3]) == {2: {"id": 2, "name": "Eve"}, 3: None}
        assert view.get_many("customer", []) == {}
        system.execute("UPDATE customers SET name = 'Eve' WHERE id = 1")
        with pytest.raises(StateChanged, match=r"customer of key \(1,\) has changed .* so orders of key \(1,\)"):
            view.get("orders", 1)
    with system.cache.together() as view:
        assert view.of("customer", Customer).get(1) == {"id": 1, "name": "Eve"}
        assert view.of("customer", Customer).get_many([1]) == {1: {"id": 1, "name": "Eve"}}


def test_a_view_has_the_demands_of_its_options(system: FakeSystem) -> None:
    system.stop_replication()
    with system.connect() as connection:
        connection.cursor().execute("UPDATE customers SET name = 'Eve' WHERE id = 1")
        connection.commit()
        token = system.cache.database().commit_token(connection)
    with system.cache.together(at_least=token) as view:
        assert view.get("customer", 1)["name"] == "Eve"


def test_a_task_that_does_not_wait_for_its_view_is_told(system: FakeSystem) -> None:
    """Neither read would be compared with the other one."""

    async def tasks() -> list[Any]:
        async with await system.open_async() as cache:
            with cache.together() as view:
                both = view.get("customer", 1), view.get("customer", 2)
                answers: Sequence[Any] = await asyncio.gather(*both, return_exceptions=True)
                assert isinstance(answers[1], ConfigError)
                all_of_them = await view.get_all([("customer", 1), ("customer", 2)])
                typed = await view.of("customer", Customer).get(1)
                return [answers[0], typed, *all_of_them, *(await view.get_many("customer", [1, 2])).values()]

    one, typed, *all_of_them, first, second = asyncio.run(tasks())
    assert one == typed == first
    assert all_of_them == [first, second]


def test_several_objects_count_for_the_limits_of_each(system: FakeSystem) -> None:
    def read_often() -> None:
        for _ in range(100):
            with system.cache.together() as view:
                view.get_all([("customer", 1), ("scarce", 1)])

    with pytest.raises(Overloaded, match="object scarce"):
        read_often()


def test_the_loaders_of_an_ordinary_read_get_their_own_keys(system: FakeSystem) -> None:
    """Misses of several objects are filled before the next look."""
    with system.cache.together() as view:
        view.get_all([("customer", 1), ("orders", 1), ("customer", 2)])
    found = [system.cache.get(name, 1, explain=True) for name in ("customer", "orders")]
    assert [each.outcome for each in found] == [ReadOutcome.HIT, ReadOutcome.HIT]
    assert found[0].value == {"id": 1, "name": "Ada"}
    assert [row["id"] for row in found[1].value] == [8, 7]


def test_a_read_inside_a_value_is_noted_by_all_around_it() -> None:
    with enclosed_by("shop/-") as outer, enclosed_by("shop/-") as inner:
        assert not outer.has_parts
        demand_commits(None, [])
        assert (inner.has_parts, outer.has_parts) == (True, True)


def token_of(flavor: str, position: str) -> EventToken:
    return EventToken("shop/-", "-", 1, 0, parse_position(flavor, position))


@pytest.mark.parametrize(
    ("flavor", "position", "text", "expected"),
    [
        ("mysql", f"{SOURCE}:1-4", "", f"{SOURCE}:1-4"),
        ("mysql", f"{SOURCE}:1-4", f"{SOURCE}:5#12:7#13,{SOURCE}:6", f"{SOURCE}:1-7"),
        ("mysql", f"{SOURCE}:1-4", f"{SOURCE}:tag:5#12", f"{SOURCE}:1-4:tag:5"),
        ("mariadb", "0-1-5", "0-1-7", "0-1-7"),
    ],
)
def test_a_bound_has_the_token_and_what_is_owned(flavor: str, position: str, text: str, expected: str) -> None:
    assert str(parse_until(flavor, token_of(flavor, position), text)) == expected


def test_a_server_that_gives_no_bound_is_not_taken_for_one_that_has_executed_nothing() -> None:
    assert parse_until("mariadb", token_of("mariadb", "0-1-7"), None) is None


def test_a_position_with_many_gaps_is_not_subtracted_for_each_row() -> None:
    gaps = ":".join(str(number) for number in range(1, UNTIL_CHARS_MAX, 2))
    assert until_sql("mysql", token_of("mysql", f"{SOURCE}:{gaps}")) == "NULL"
    assert f"'{SOURCE}:1-4'" in until_sql("mysql", token_of("mysql", f"{SOURCE}:1-4"))
