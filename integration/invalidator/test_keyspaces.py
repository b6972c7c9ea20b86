"""Two keyspaces, and the database of one of them is not there: the other one is served as if nothing had happened."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache, SourceUnavailable
from integration.configuration import write_config
from integration.harness import CACHE, CUSTOMERS_TABLE, STREAM, WAIT_SECONDS, call_cli, wait_for_hits, wait_until
from integration.servers import Flavor, Memcached, Pair
from integration.servers.database import make_database
from integration.servers.program import InvalidatorProcess

OBJECTS = '[objects.customer]\nkeyspace = "shop"\ntable = "customers"\n'
OTHER = """[keyspaces.other]
flavor = "{flavor}"
[[keyspaces.other.shards]]
primary = "{url}"
[objects.goods]
keyspace = "other"
table = "goods"
[http]
listen = "127.0.0.1:{port}"
"""


def fetch(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_SECONDS) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_a_database_that_is_down_at_the_start_keeps_no_other_keyspace_waiting(
    pair: Pair, flavor: Flavor, memcached: Memcached, tmp_path: Path, port: int
) -> None:
    pair.primary.execute(CUSTOMERS_TABLE, database="shop")
    pair.primary.execute("INSERT INTO shop.customers VALUES (1, 'n', 0)")
    pair.wait_caught_up()
    other = make_database(flavor, server_id=7)
    try:
        other.start()
        other.execute("CREATE DATABASE shop")
        other.execute("CREATE TABLE shop.goods (id INT PRIMARY KEY, v INT)")
        other.execute("INSERT INTO shop.goods VALUES (1, 0)")
        other.kill()
        path = write_config(
            tmp_path,
            flavor,
            pair.primary.url,
            [memcached.address],
            replicas=[pair.replica.url],
            objects=OBJECTS,
            cache=CACHE,
            stream=STREAM,
            extra=OTHER.format(flavor=flavor, url=other.url, port=port),
        )
        invalidator = InvalidatorProcess(path)
        invalidator.launch()
        try:
            cache = Cache.open(path)
            wait_for_hits(cache, "customer", [1], invalidator.log)
            with pytest.raises(SourceUnavailable, match=f"127.0.0.1:{other.port}"):
                cache.get("goods", 1)
            assert cache.get("customer", 1, explain=True).is_hit
            wait_until(lambda: "other/- waits for its database" in invalidator.log(), "it says so", invalidator.log)
            look_at_one_that_waits(path, port, other.port)
            other.start()
            wait_for_hits(cache, "goods", [1], invalidator.log)
            wait_until(lambda: json.loads(fetch(port, "/readyz"))["ready"], "all is ready", invalidator.log)
            assert 'freshness_shard_waiting{lineage="other/-"} 0.0' in fetch(port, "/metrics")
            cache.close()
            assert invalidator.terminate() == 0
        finally:
            invalidator.stop()
    finally:
        other.stop()


def look_at_one_that_waits(path: Path, port: int, database: int) -> None:
    ready = json.loads(fetch(port, "/readyz"))
    assert ready["ready"] is False
    assert ready["streams_not_open"] == ["other/-"]
    assert str(database) in ready["last_errors"]["other/-"]
    samples = fetch(port, "/metrics")
    assert 'freshness_shard_waiting{lineage="other/-"} 1.0' in samples
    assert 'freshness_shard_failed{lineage="other/-"} 0.0' in samples
    status: dict[str, Any] = json.loads(call_cli("status", "-c", path, "--json").stdout)
    errors = {each["lineage"]: each.get("error", "") for each in status["servers"]}
    assert str(database) in errors["other/-"]
    assert errors["shop/-"] == ""
    assert call_cli("inspect", "customer", "1", "-c", path).returncode == 0
    assert call_cli("inspect", "goods", "1", "-c", path).returncode == SourceUnavailable.exit_code


def test_a_process_waits_for_its_only_database(flavor: Flavor, memcached: Memcached, tmp_path: Path) -> None:
    """While it waits, SIGTERM ends it."""
    other = make_database(flavor, server_id=7)
    try:
        other.start()
        other.execute("CREATE DATABASE shop")
        other.execute(CUSTOMERS_TABLE, database="shop")
        other.kill()
        path = write_config(tmp_path, flavor, other.url, [memcached.address], cache=CACHE, stream=STREAM)
        with_none = InvalidatorProcess(path)
        with_none.launch()
        try:
            wait_until(lambda: "waits for its database" in with_none.log(), "it waits", with_none.log)
            assert with_none.terminate() == 0
            with_none.launch()
            other.start()
            wait_until(with_none.is_ready, "it serves", with_none.log)
        finally:
            with_none.stop()
    finally:
        other.stop()
