"""The command line and the HTTP service against a running system, as operators and their scripts use them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appclient import Cache, ReadOutcome
from freshness import __version__
from integration.configuration import CUSTOMER, PROFILE, STRIPES
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    PATIENT,
    WAIT_SECONDS,
    System,
    call_cli,
    run_cli,
    running_system,
    wait_for_hits,
    wait_until,
)
from integration.servers import Pair

USAGE = 2
NUMBER_TABLE = "CREATE TABLE tags (kind VARCHAR(20) COLLATE utf8mb4_bin, code BINARY(2), PRIMARY KEY (kind, code))"
TAG = '[objects.tag]\ntable = "tags"\n'


@pytest.fixture
def system(pair: Pair, tmp_path: Path, port: int) -> Iterator[System]:
    with running_system(
        pair,
        tmp_path,
        tables=(CUSTOMERS_TABLE, ORDERS_TABLE, NUMBER_TABLE),
        objects=CUSTOMER + PROFILE + TAG,
        cache=PATIENT,
        extra=f'[http]\nlisten = "127.0.0.1:{port}"\n',
    ) as started:
        started.execute("INSERT INTO customers VALUES (1, 'n', 0)")
        started.settle()
        yield started


def verb(system: System, *arguments: str) -> str:
    """What the verb prints, which must end well."""
    result = call_cli(*arguments, "-c", system.config_path)
    assert result.returncode == 0, result.stderr
    return result.stdout


def verb_json(system: System, *arguments: str) -> Any:
    return json.loads(verb(system, *arguments, "--json"))


def refused(system: System, *arguments: str) -> str:
    result = call_cli(*arguments, "-c", system.config_path)
    assert result.returncode == USAGE, result.stdout + result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WAIT_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_verbs_that_look(system: System) -> None:
    cache = system.open_cache()
    wait_for_hits(cache, "customer", [1], system.describe)
    look_at_the_status(system)
    look_at_an_object(system, cache)
    look_at_the_check(system)
    look_at_mistakes(system)
    cache.close()


def look_at_the_status(system: System) -> None:
    answer = verb_json(system, "status")
    assert answer["namespace"] == "shop"
    assert [node["node"] for node in answer["nodes"]] == [node.address for node in system.nodes]
    for node in answer["nodes"]:
        assert node["state"] == "open"
        assert node["lineage"] == "shop/-"
        assert len(bytes.fromhex(node["life"])) == 8
        assert 0 <= node["lease_seconds_left"] <= PATIENT["lease_seconds"]
        assert node["progress"]
        assert node["objects"] == ["customer", "profile", "tag"]
        assert (node["stripes"], node["stripes_there_percent"]) == (STRIPES, 100)
    (server,) = answer["servers"]
    replica = f"127.0.0.1:{system.pair.replica.port}"
    assert server == {"server": replica, "lineage": "shop/-", "refused_percent": 0, "advice": ""}
    text = verb(system, "status")
    assert f"{replica} of shop/-: a fill is refused for a neighbour's sake in about 0.0 % of cases" in text
    assert all(node.address in text for node in system.nodes)
    assert text.count("open") == 2
    system.nodes[1].kill()
    down = verb_json(system, "status")["nodes"]
    assert [node["state"] for node in down] == ["open", "unavailable"]
    assert "cannot be reached" in down[1]["error"]
    assert "unavailable" in verb(system, "status")
    system.nodes[1].start()
    system.wait_open()


def look_at_an_object(system: System, cache: Cache) -> None:
    wait_for_hits(cache, "customer", [1, 2], system.describe)
    row = {"id": 1, "name": "n", "v": 0}
    answer = verb_json(system, "inspect", "customer", "1")
    assert (answer["entry"], answer["value"], answer["primary"]) == ("live", row, row)
    assert answer["equals_primary"] is True
    assert answer["item"] == "shop:customer:1"
    assert answer["node"] in {node.address for node in system.nodes}
    text = verb(system, "inspect", "customer", "1")
    assert "equals_primary: True" in text
    # "No such row" is a value.
    absent = verb_json(system, "inspect", "customer", "2")
    assert (absent["entry"], absent["value"], absent["equals_primary"]) == ("live", None, True)
    assert verb_json(system, "inspect", "customer", "3")["entry"] == "absent"
    assert verb_json(system, "inspect", "tag", "a b", "00ff")["entry"] == "absent"
    # What nobody invalidates any more is seen to differ.
    system.invalidator.kill()
    system.execute("UPDATE customers SET v = 1 WHERE id = 1")
    stale = verb_json(system, "inspect", "customer", "1")
    assert (stale["value"]["v"], stale["primary"]["v"], stale["equals_primary"]) == (0, 1, False)
    system.invalidator.start()
    system.settle()
    invalidated = verb_json(system, "inspect", "customer", "1")
    assert invalidated["entry"] == "absent"
    look_at_the_fills(system)


def look_at_the_fills(system: System) -> None:
    """Whether the replica's row would be stored, and why not."""
    replica = {"server": f"127.0.0.1:{system.pair.replica.port}", "lineage": "shop/-"}
    allowed = verb_json(system, "inspect", "customer", "1")
    (stripe,) = allowed["stripes"]
    assert stripe["key"].encode() == system.stripe_of("customer", 1)
    assert stripe["key"].endswith(f"!{stripe['number']:x}")
    assert (stripe["lineage"], stripe["state"]) == ("shop/-", "there")
    assert stripe["position"]
    assert allowed["fills"] == [replica | {"verdict": "stored"}]
    system.pair.replica.stop_replication()
    try:
        system.execute("UPDATE customers SET v = v + 1")
        system.wait_covered()
        refused = verb_json(system, "inspect", "customer", "1")
        assert refused["fills"] == [replica | {"verdict": ReadOutcome.STRIPE.value}]
        (server,) = verb_json(system, "status")["servers"]
        assert server["refused_percent"] > 0
    finally:
        system.pair.replica.start_replication()
    system.settle()
    system.invalidator.kill()
    [node] = [node for node in system.nodes if node.address == allowed["node"]]
    try:
        node.ask(f"delete {stripe['key']}")
        absent = verb_json(system, "inspect", "customer", "1")
        named = {name: stripe[name] for name in ("lineage", "number", "key")}
        assert absent["stripes"] == [named | {"state": "absent"}]
        assert absent["fills"] == [replica | {"verdict": ReadOutcome.STRIPE_ABSENT.value}]
    finally:
        system.invalidator.start()


def look_at_the_check(system: System) -> None:
    findings = verb_json(system, "check")
    assert {finding["severity"] for finding in findings} <= {"warning", "note"}
    names = {"severity", "code", "rule", "where", "message", "hint", "statements", "mended"}
    assert all(finding.keys() == names for finding in findings)
    assert f"findings: {len(findings)}" in verb(system, "check")
    assert run_cli("--version").stdout == f"freshness {__version__}\n"


def look_at_mistakes(system: System) -> None:
    assert "unknown object 'custmer'" in refused(system, "inspect", "custmer", "1")
    assert "customer, profile, tag" in refused(system, "inspect", "custmer", "1")
    assert "got 2 values" in refused(system, "inspect", "customer", "1", "2")
    assert "expected int" in refused(system, "inspect", "customer", "one")
    assert "hexadecimal" in refused(system, "inspect", "tag", "a", "xyz")
    assert "log level" in refused(system, "run", "--log-level", "loud")


def test_the_http_service(system: System, port: int) -> None:
    assert fetch(port, "/healthz") == (200, '{"status":"ok"}')
    code, text = fetch(port, "/readyz")
    assert code == 200
    assert json.loads(text) == {
        "ready": True,
        "streams_not_open": [],
        "nodes_not_joined": [],
        "nodes_not_open": [],
        "last_errors": {},
    }
    code, text = fetch(port, "/v1/status")
    assert code == 200
    assert [node["state"] for node in json.loads(text)["nodes"]] == ["open", "open"]
    assert fetch(port, "/nowhere")[0] == 404

    def sample(name: str, labels: str = '{lineage="shop/-"}') -> float:
        _, samples = fetch(port, "/metrics")
        [value] = [line.split()[1] for line in samples.splitlines() if line.startswith(f"{name}{labels} ")]
        return float(value)

    assert sample("freshness_nodes_configured", "") == 2
    assert sample("freshness_nodes_joined") == 2
    # The nodes are open before all stripes are there
    wait_until(lambda: sample("freshness_nodes_complete") == 2, "the stripes are there", system.invalidator.log_tail)
    assert sample("freshness_stripes_configured", "") == STRIPES
    assert sample("freshness_stripes_restored_total") == 2 * STRIPES
    assert sample("freshness_stream_open") == 1
    before = sample("freshness_invalidations_total")
    system.execute("UPDATE customers SET v = v + 1")
    system.settle()
    assert sample("freshness_invalidations_total") > before
    assert sample("freshness_lag_seconds_count") > 0

    down = system.nodes[0]
    down.kill()
    wait_until(lambda: fetch(port, "/readyz")[0] == 503, "a node is missed", system.describe)
    assert json.loads(fetch(port, "/readyz")[1])["nodes_not_joined"] == [f"{down.address} shop/-"]
    assert fetch(port, "/healthz")[0] == 200
    assert [node["state"] for node in json.loads(fetch(port, "/v1/status")[1])["nodes"]] == ["unavailable", "open"]
    down.start()
    wait_until(lambda: fetch(port, "/readyz")[0] == 200, "all nodes are joined again", system.describe)
    assert system.invalidator.terminate() == 0
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetch(port, "/healthz")
