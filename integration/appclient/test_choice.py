"""Reads of a shard with two replicas: both are read, one that stands still seldom, one of the own zone first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from appclient import Cache
from integration.harness import System, running_system, wait_until
from integration.servers import DatabaseServer, Flavor, Pair
from integration.servers.database import make_database

READS = 200


@pytest.fixture
def second(flavor: Flavor, pair: Pair) -> Iterator[DatabaseServer]:
    server = make_database(flavor, server_id=3)
    try:
        server.start()
        server.replicate_from(pair.primary)
        yield server
    finally:
        server.stop()


@pytest.fixture
def system(pair: Pair, second: DatabaseServer, tmp_path: Path) -> Iterator[System]:
    with running_system(pair, tmp_path) as running:
        text = running.config_path.read_text()
        first = f'"{pair.replica.url}"'
        both = f'"{pair.replica.url}?zone=east", "{second.url}?zone=west"'
        assert first in text
        running.config_path.write_text(text.replace(first, both))
        second.wait_caught_up(pair.primary)
        yield running


def answering(cache: Cache, count: int = READS) -> Counter[str]:
    """How often each server answered."""
    database = cache.database()
    return Counter(database.query("SELECT 1 AS one", include_event_token=True).extras.server for _ in range(count))


def name_of(server: DatabaseServer) -> str:
    return f"127.0.0.1:{server.port}"


def test_both_are_read_and_one_that_stands_still_rests(system: System, second: DatabaseServer) -> None:
    cache = system.open_cache()
    first = system.pair.replica
    both = answering(cache)
    assert set(both) == {name_of(first), name_of(second)}
    assert min(both.values()) > READS / 5
    second.stop_replication()
    system.execute("INSERT INTO customers VALUES (1, 'n', 0)")

    def rests() -> bool:
        return answering(cache)[name_of(first)] >= READS - 2

    wait_until(rests, "the replica that stands still rests", system.describe)
    second.start_replication()
    second.wait_caught_up(system.pair.primary)
    wait_until(lambda: answering(cache)[name_of(second)] > READS / 5, "and is read again", system.describe)
    cache.close()


def test_the_own_zone_is_read(system: System, second: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = system.config_path.read_text()
    system.config_path.write_text(text.replace("[cache]\n", '[cache]\nzone = "${PLACE}"\n', 1))
    for place, server in (("east", system.pair.replica), ("west", second)):
        monkeypatch.setenv("PLACE", place)
        cache = system.open_cache()
        assert set(answering(cache, 50)) == {name_of(server)}
        cache.close()
    second.stop()
    cache = system.open_cache()
    assert set(answering(cache, 50)) == {name_of(system.pair.replica)}, "the other zone in its place"
    cache.close()
