"""`invalidator invalidate` beside a running invalidator: what was there is gone, and what is older is not stored."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appclient import ReadOutcome
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    REPLICAS_ALONE,
    System,
    call_cli,
    running_system,
    wait_for_hits,
    wait_for_outcome,
    wait_until,
)
from integration.servers import Pair

USAGE = 2
PAIR_TABLE = "CREATE TABLE pairs (a INT, b INT, v INT, PRIMARY KEY (a, b))"


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    with running_system(
        pair,
        tmp_path,
        tables=(CUSTOMERS_TABLE, ORDERS_TABLE, PAIR_TABLE),
        objects=CUSTOMER + PROFILE + '[objects.pair]\ntable = "pairs"\n',
        cache=REPLICAS_ALONE,
        extra=f'[http]\nlisten = "127.0.0.1:{port}"\n',
    ) as started:
        yield started


def test_what_was_there_is_gone_and_comes_back_from_the_database(system: System) -> None:
    for number in (1, 2, 3):
        system.execute("INSERT INTO customers VALUES (%s, 'n', 0)", number)
    cache = system.open_cache()
    system.settle()  # else the stream's own invalidation could come after the fills
    wait_for_hits(cache, "customer", [1, 2, 3], system.describe)
    result = call_cli("invalidate", "customer", "1", "2", "--json", "-c", system.config_path)
    assert result.returncode == 0, result.stderr
    assert [each["item"] for each in json.loads(result.stdout)] == ["shop:customer:1", "shop:customer:2"]
    assert [system.find_item("customer", key) is None for key in (1, 2, 3)] == [True, True, False]
    wait_for_hits(cache, "customer", [1, 2, 3], system.describe)
    system.assert_none_stale(cache, "customer", [1, 2, 3])


def test_what_is_older_is_not_stored_again(system: System) -> None:
    """Even if no event of the stream says that the key has changed."""
    system.execute("INSERT INTO customers VALUES (1, 'n', 0)")
    cache = system.open_cache()
    system.settle()
    wait_for_hits(cache, "customer", [1], system.describe)
    system.pair.replica.stop_replication()
    try:
        system.execute("INSERT INTO customers VALUES (2, 'n', 0)")
        assert call_cli("invalidate", "customer", "1", "-c", system.config_path).returncode == 0
        # At first since its stripe is gone, and then since that has come back with all that was executed.
        wait_until(lambda: system.find_stripe("customer", 1), "the stripe is back", system.describe)
        wait_for_outcome(cache, "customer", 1, [ReadOutcome.BOUNDED], system.describe)
        assert cache.get("customer", 1, explain=True).outcome is ReadOutcome.BOUNDED
    finally:
        system.pair.replica.start_replication()
    wait_for_hits(cache, "customer", [1], system.describe)
    cache.close()


def test_keys_of_several_columns(system: System) -> None:
    system.execute("INSERT INTO pairs VALUES (1, 2, 0), (3, 4, 0)")
    cache = system.open_cache()
    system.settle()
    wait_for_hits(cache, "pair", [(1, 2), (3, 4)], system.describe)
    result = call_cli("invalidate", "pair", "1", "2", "3", "4", "-c", system.config_path)
    assert (result.returncode, result.stdout.count("invalidated")) == (0, 2)
    assert [system.find_item("pair", *key) for key in ((1, 2), (3, 4))] == [None, None]
    refused = call_cli("invalidate", "pair", "1", "2", "3", "-c", system.config_path)
    assert refused.returncode == USAGE
    assert "a key has 2: a, b" in refused.stderr
    unknown = call_cli("invalidate", "nothing", "1", "-c", system.config_path)
    assert (unknown.returncode, "unknown object" in unknown.stderr) == (USAGE, True)


def test_a_node_that_is_down_is_an_error(system: System) -> None:
    node = next(node for node in system.nodes if node.address == system.subject("customer", 1).node)
    node.stop()
    result = call_cli("invalidate", "customer", "1", "-c", system.config_path)
    assert result.returncode == 3
    assert node.address in result.stderr


def post(port: int, document: object) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/invalidate", json.dumps(document), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_over_http(system: System, port: int) -> None:
    system.execute("INSERT INTO pairs VALUES (1, 2, 0)")
    cache = system.open_cache()
    system.settle()
    wait_for_hits(cache, "pair", [(1, 2)], system.describe)
    status, answer = post(port, {"object": "pair", "keys": [["1", "2"], ["3", "4"]]})
    assert (status, len(answer["invalidated"])) == (200, 2)  # type: ignore[arg-type]
    assert system.find_item("pair", 1, 2) is None
    assert post(port, {"object": "pair", "keys": [["1", "2", "3"], ["4"]]})[0] == 400
    assert post(port, {"object": "nothing", "keys": [["1"]]})[0] == 400
    assert post(port, {"object": "pair", "keys": []})[0] == 422
    for node in system.nodes:
        node.stop()
    assert post(port, {"object": "pair", "keys": [["1", "2"]]})[0] == 503
