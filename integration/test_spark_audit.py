"""The live audit on a running system: a clean cache is clean, a planted value is found, silence is not green."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from appclient import Cache, LoaderConnection
from freshness.backends.codec import decode_value, encode_value
from freshness.backends.memcached import MemcachedNode
from freshness.envelope import Filled
from freshness.request import Cas, Get, Item, Stored
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import CUSTOMERS_TABLE, ORDERS_TABLE, System, running_system, wait_for_hits
from integration.servers import Pair
from spark import audit_live
from spark.session import open_session

KEYS = range(1, 41)
ABSENT = 999
SEAT_TABLE = (
    "CREATE TABLE seats (hall VARCHAR(20) COLLATE utf8mb4_bin, seat BINARY(3), price DECIMAL(8,2), at DATETIME, "
    "PRIMARY KEY (hall, seat, price, at))"
)
SEAT = '[objects.seat]\ntable = "seats"\n'
SEAT_KEY = ("A: ü~", b"a\x00b", "1.50", "2026-01-31 10:00:00")


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """One Spark session for the file."""
    opened = open_session("tests", "local[2]")
    yield opened
    opened.stop()


@pytest.fixture(params=["mariadb"])
def flavor(request: pytest.FixtureRequest) -> str:
    """One flavor is enough: positions and rows of the other are under test elsewhere."""
    return str(request.param)


def load_profile(database: LoaderConnection, customer_id: int) -> Any:
    return database.query_one("SELECT * FROM customers WHERE id = %s", (customer_id,))


@pytest.fixture
def system(pair: Pair, tmp_path: Path) -> Iterator[System]:
    """A settled system with all keys cached, a missing row, a composite, and a key of four columns."""
    with running_system(
        pair,
        tmp_path,
        tables=(CUSTOMERS_TABLE, ORDERS_TABLE, SEAT_TABLE),
        objects=CUSTOMER + PROFILE + SEAT,
    ) as started:
        for key in KEYS:
            started.execute("INSERT INTO customers VALUES (%s, 'n', 0)", key)
        started.execute("INSERT INTO seats VALUES (%s, %s, %s, %s)", *SEAT_KEY)
        started.settle()
        cache: Cache = started.open_cache()
        cache.loader("profile")(load_profile)
        wait_for_hits(cache, "customer", [*KEYS, ABSENT], started.describe)
        wait_for_hits(cache, "profile", [1, 2], started.describe)
        wait_for_hits(cache, "seat", [SEAT_KEY], started.describe)
        cache.close()
        yield started


def run_audit(
    system: System, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = audit_live.main(["--config", str(system.config_path), "--json"], session)
    return code, json.loads(capsys.readouterr().out)


def plant(system: System, key: int) -> str:
    """Put another value under a live entry, with the evidence of the right one; return the item's key."""
    subject = system.subject("customer", key)
    node = MemcachedNode(subject.node)
    try:
        [found] = node.perform([Get(subject.item)])
        assert isinstance(found, Item)
        entry = Filled.decode(found.value)
        assert entry.value is not None
        wrong = replace(entry, value=encode_value({**decode_value(entry.value), "name": "poison"}))
        [stored] = node.perform([Cas(subject.item, wrong.encode(), found.version, found.ttl_seconds)])
        assert isinstance(stored, Stored)
    finally:
        node.close()
    return subject.item.decode()


def test_a_clean_cache_is_clean_and_a_planted_value_is_found(
    system: System, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    code, clean = run_audit(system, session, capsys)
    assert code == 0, clean
    rows = len(KEYS) + 2  # and the missing row, and the seat
    assert (clean["nodes"], clean["live"], clean["compared"]) == (2, rows + 2, rows), clean
    assert (clean["entries"], clean["not_comparable"]) == (rows + 2, 2)
    assert (clean["poisoned"], clean["unknown"], clean["in_flight"]) == (0, 0, 0)
    assert clean["examples"] == []

    item = plant(system, 7)
    code, found = run_audit(system, session, capsys)
    assert code == 5, found
    assert (found["poisoned"], found["compared"], found["unknown"]) == (1, rows, 0)
    (example,) = found["examples"]
    assert (example["verdict"], example["item"]) == ("poisoned", item)
    assert "poison" in example["cached"]
    assert "poison" not in example["primary"]


def test_a_node_that_does_not_answer_is_not_green(
    system: System, session: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = system.nodes[0]
    stopped.stop()
    code, answer = run_audit(system, session, capsys)
    assert code == 3, answer
    assert any(stopped.address in error for error in answer["unavailable"])
    assert answer["compared"] > 0, "the other node was not audited"
    assert answer["poisoned"] == 0


def test_a_wrong_configuration_is_told_in_one_line(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit_live.main(["--config", str(tmp_path / "none.toml")], session) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "none.toml" in told.err
