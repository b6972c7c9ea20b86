"""The live audit on a running system: a clean cache is clean, a planted value is found, silence is not green.

On one shard and on several: real servers, of a MySQL that stands in for Vitess's too (see `test_vitess_keyspace`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from appclient import Cache, LoaderConnection
from freshness.config.config import Config, load_config
from freshness.database.schema import load_registry
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    System,
    running_system,
    wait_covered,
    wait_for_hits,
)
from integration.harness import plant as plant_value
from integration.invalidator.test_reshard import deployment
from integration.invalidator.test_reshard import open_cache as open_reshard_cache
from integration.servers import Pair
from integration.servers.program import InvalidatorProcess
from integration.servers.redis import Redis
from integration.shards import start_shards
from integration.vitess import test_keyspace as vitess
from spark.live import __main__ as command

KEYS = range(1, 41)
ABSENT = 999
SEAT_TABLE = (
    "CREATE TABLE seats (hall VARCHAR(20) COLLATE utf8mb4_bin, seat BINARY(3), price DECIMAL(8,2), at DATETIME, "
    "PRIMARY KEY (hall, seat, price, at))"
)
SEAT = """[objects.seat]
table = "seats"
[objects.seat_by_price]
table = "seats"
key = ["price", "at", "seat", "hall"]
[objects.seats_of_hall]
table = "seats"
key = "hall"
order_by = ["price desc", "seat"]
limit = 2
"""
POISON = "poison"
PLANTED = {"customer": "name", "order": "total"}
"""The column whose value is another in what is planted."""

AUDITS_MAX = 5
CANNOT_TELL = 3
POISONED = 5
SEAT_KEY = ("A: ü~", b"a\x00b", "1.50", "2026-01-31 10:00:00")


@pytest.fixture(params=["mariadb"])
def flavor(request: pytest.FixtureRequest) -> str:
    """One flavor is enough: positions and rows of the other are under test elsewhere."""
    return str(request.param)


def load_profile(database: LoaderConnection, customer_id: int) -> Any:
    return database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))


PLACED = """[objects.placed]
key = ["customer_id", "number"]
members = { customers = ["id", "v"], orders = ["customer_id", "id"] }
"""


def load_placed(database: LoaderConnection, customer_id: int, number: int) -> Any:
    return database.query("SELECT * FROM orders WHERE customer_id = %s AND id = %s", (customer_id, number))


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """A settled system with all keys cached, a missing row, composites of one and of two key columns, and a key of
    four columns, in two orders."""
    with running_system(
        pair,
        tmp_path,
        tables=(CUSTOMERS_TABLE, ORDERS_TABLE, SEAT_TABLE),
        objects=CUSTOMER + PROFILE + SEAT + PLACED,
    ) as started:
        for key in KEYS:
            started.execute("INSERT INTO customers VALUES (%s, 'n', 0)", key)
        started.execute("INSERT INTO seats VALUES (%s, %s, %s, %s)", *SEAT_KEY)
        started.settle()
        cache: Cache = started.open_cache()
        cache.loader("profile")(load_profile)
        wait_for_hits(cache, "customer", [*KEYS, ABSENT], started.describe)
        cache.loader("placed")(load_placed)
        wait_for_hits(cache, "profile", [1, 2], started.describe)
        wait_for_hits(cache, "placed", [(1, 7)], started.describe)
        wait_for_hits(cache, "seat", [SEAT_KEY], started.describe)
        hall, seat, price, at = SEAT_KEY
        wait_for_hits(cache, "seat_by_price", [(price, at, seat, hall)], started.describe)
        wait_for_hits(cache, "seats_of_hall", [hall, "nowhere"], started.describe)
        cache.close()
        yield started


def run_audit(
    path: Path, session: SparkSession, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = command.main(["--config", str(path), "--json", *options], session)
    return code, json.loads(capsys.readouterr().out)


def audit_surely(
    path: Path, session: SparkSession, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[int, dict[str, Any]]:
    """As `run_audit`, repeated if a server did not answer in time: on a busy machine that proves nothing. Earlier
    repairs count as found by the last run."""
    repaired = 0
    for _ in range(AUDITS_MAX):
        code, answer = run_audit(path, session, capsys, *options)
        answer["poisoned"] += repaired
        answer["repaired"] = repaired = repaired + answer["repaired"]
        if code != CANNOT_TELL:
            break
    return (POISONED if code == 0 and repaired else code), answer


def plant(config: Config, key: int | str, name: str = "customer") -> str:
    """Put another value under a live entry; return the item's key."""

    def change(value: Any) -> Any:
        return [] if isinstance(value, list) else {**value, PLANTED[name]: POISON}

    return plant_value(config, load_registry(config), name, key, change)


def test_a_clean_cache_is_clean_and_a_planted_value_is_found(
    system: System, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    code, clean = audit_surely(system.config_path, session, capsys)
    assert code == 0, clean
    rows = len(KEYS) + 5  # and the missing row, the seat by two keys, the lists of two halls
    assert (clean["nodes"], clean["live"], clean["compared"]) == (2, rows + 3, rows), clean
    assert (clean["entries"], clean["not_comparable"]) == (rows + 3, 3)
    assert (clean["poisoned"], clean["unknown"], clean["in_flight"]) == (0, 0, 0)
    assert clean["examples"] == []

    item = plant(system.config, 7)
    code, found = audit_surely(system.config_path, session, capsys)
    assert code == 5, found
    assert (found["poisoned"], found["compared"], found["unknown"]) == (1, rows, 0)
    (example,) = found["examples"]
    assert (example["verdict"], example["item"]) == ("poisoned", item)
    assert POISON in example["cached"]
    assert POISON not in example["primary"]

    plant(system.config, SEAT_KEY[0], "seats_of_hall")
    _, found = audit_surely(system.config_path, session, capsys)
    assert (found["poisoned"], found["compared"]) == (2, rows)
    assert {"[]", "poison"} & {each["cached"] for each in found["examples"]} == {"[]"}


def test_a_node_that_does_not_answer_is_not_green(
    system: System, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = system.nodes[0]
    stopped.stop()
    code, answer = run_audit(system.config_path, session, capsys)
    assert code == CANNOT_TELL, answer
    assert any(stopped.address in error for error in answer["unavailable"])
    assert answer["compared"] > 0, "the other node was not audited"
    assert answer["poisoned"] == 0


def test_the_entries_of_redis_are_audited(
    pair: Pair, session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes: list[Any] = [Redis(), Redis()]
    cache_of = {"backend": "redis"}
    # The replica would fill the entry again: it never gets the change
    with running_system(pair, tmp_path, nodes=nodes, has_replica=False, cache=cache_of) as system:
        rows = ", ".join(f"({key}, 'n', 0)" for key in KEYS)
        system.execute(f"INSERT INTO customers VALUES {rows}")
        system.settle()
        cache = system.open_cache()
        wait_for_hits(cache, "customer", KEYS, system.describe)
        code, clean = audit_surely(system.config_path, session, capsys)
        assert (code, clean["unavailable"], clean["live"], clean["compared"]) == (
            0,
            [],
            len(KEYS),
            len(KEYS),
        ), clean
        with system.pair.primary.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            cursor.execute("UPDATE customers SET name = 'other' WHERE id = 7")
        code, found = audit_surely(system.config_path, session, capsys, "--repair")
        assert (code, found["poisoned"], found["repaired"]) == (POISONED, 1, 1), found
        assert cache.get("customer", 7)["name"] == "other"
        cache.close()


# -- several shards ------------------------------------------------------------------------------------------------


def values_of(cache: Cache, name: str, keys: Sequence[int]) -> dict[int, Any]:
    """What is served; all of them hits."""
    found = cache.get_many(name, keys, explain=True)
    assert all(each.is_hit for each in found.values())
    return {key: each.value for key, each in found.items()}


def audit_two_shards(
    path: Path,
    cache: Cache,
    keys: Mapping[str, Sequence[int]],
    session: SparkSession,
    capsys: pytest.CaptureFixture[str],
    describe: Callable[[], str],
) -> None:
    """Everything is cached and clean; of each object the last key is poisoned, found, and removed, and no other."""
    for name, of_object in keys.items():
        wait_for_hits(cache, name, of_object, describe)
    right = {name: values_of(cache, name, of_object) for name, of_object in keys.items()}
    rows = len(keys["customer"]) + len(keys["order"])
    code, clean = audit_surely(path, session, capsys)
    assert code == 0, (clean, describe())
    assert (clean["compared"], clean["not_comparable"]) == (rows, len(keys["profile"])), clean

    config = load_config(path)
    items = sorted(plant(config, keys[name][-1], name) for name in PLANTED)
    code, found = audit_surely(path, session, capsys)
    assert code == 5, found
    assert (found["poisoned"], found["compared"], found["unknown"], found["repaired"]) == (2, rows, 0, 0)
    assert sorted(each["item"] for each in found["examples"]) == items
    code, found = audit_surely(path, session, capsys, "--repair")
    assert (code, found["poisoned"], found["repaired"]) == (5, 2, 2), found

    for name in PLANTED:
        *good, bad = keys[name]
        assert values_of(cache, name, good) == {key: right[name][key] for key in good}, (
            "a good one was touched"
        )
        assert not cache.get(name, bad, explain=True).is_hit
        assert wait_for_hits(cache, name, [bad], describe)[bad].value == right[name][bad]
    code, clean = audit_surely(path, session, capsys)
    assert (code, clean["poisoned"], clean["compared"]) == (0, 0, rows), clean


@pytest.mark.timeout(300)
def test_every_shard_is_audited(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An order's key does not tell its shard; a row that a reshard left on the wrong shard is nobody's."""
    with ExitStack() as stack:
        made, router = stack.enter_context(deployment("mariadb", tmp_path, ["-80", "80-"]))
        for key in KEYS:
            router.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
            router.execute(key, "INSERT INTO orders VALUES (%s, %s, %s)", 100 + key, key, key)
        customers = sorted(KEYS, key=lambda key: router.find(key).name == "80-")
        first, last = router.find(customers[0]), router.find(customers[-1])
        assert (first.name, last.name) == ("-80", "80-")
        first.primary.execute("INSERT INTO customers VALUES (%s, 'left', 0)", customers[-1], database="shop")
        for shard in router.shards:
            shard.wait_caught_up()
        made.wait_covered(router.shards)
        cache = open_reshard_cache(made.path)
        stack.callback(cache.close)
        keys = {"customer": customers, "order": [100 + key for key in customers], "profile": customers[:5]}
        audit_two_shards(made.path, cache, keys, session, capsys, made.describe)

        last.primary.stop()
        code, answer = run_audit(made.path, session, capsys)
        assert code == CANNOT_TELL, answer
        of_first = [key for key in customers if router.find(key) is first]
        rows = len(keys["customer"]) + len(keys["order"])
        assert answer["compared"] == len(of_first), "the other shard was not audited"
        assert (answer["unknown"], answer["poisoned"]) == (rows - len(of_first), 0), answer


@pytest.mark.timeout(300)
def test_a_keyspace_of_vitess_is_audited_on_its_shards(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(start_shards("mysql", vitess.NAMES, replicas=0))
        for shard in cluster.shards:
            vitess.prepare(shard)
        made = stack.enter_context(vitess.deployed(cluster.shards, tmp_path))
        for key in KEYS:
            made.execute(key, "INSERT INTO customers VALUES (%s, %s, 0)", key, f"customer {key}")
            made.execute(key, "INSERT INTO orders VALUES (%s, %s, %s)", 100 + key, key, key)
        invalidator = stack.enter_context(InvalidatorProcess(made.path))
        wait_covered(made.config, made.heads(), invalidator.log)
        cache = vitess.open_cache(made.path)
        stack.callback(cache.close)
        customers = sorted(KEYS, key=cluster.shards[1].contains)
        keys = {"customer": customers, "order": [100 + key for key in customers], "profile": customers[:5]}
        audit_two_shards(made.path, cache, keys, session, capsys, invalidator.log)


def test_a_wrong_configuration_is_told_in_one_line(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--config", str(tmp_path / "none.toml")], session) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "none.toml" in told.err
