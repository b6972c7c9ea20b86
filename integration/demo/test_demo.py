"""`make demo` as a release check: the JSON, the exit code, and that event tokens alone stay clean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from examples.demo.databases import Topology

CHECKOUT = Path(__file__).resolve().parents[2]
PROMISED = {
    "reads",
    "hit_rate",
    "stale_reads",
    "torn_pairs",
    "poisoned",
    "database_reads",
    "lag_p50_ms",
    "lag_p99_ms",
}


def demonstrate(*options: str) -> dict[str, Any]:
    """The result of a run that kept its promise."""
    run = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--json", *options],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--interrupted", "2"), id="plain memcached, with readers that signals interrupt"),
        pytest.param(
            ("--managed", "--backend", "redis"), id="a Redis that evicts and hides CONFIG", marks=pytest.mark.slow
        ),
        pytest.param(("--managed", "--node-megabytes", "6"), id="a memcached too small for its stripes"),
    ],
)
def test_the_demo_poisons_the_others_and_not_event_tokens(options: tuple[str, ...]) -> None:
    result = demonstrate("--seconds", "6", *options)
    assert (result["flavor"], result["seconds"]) == ("mariadb", 6)
    strategies = result["strategies"]
    assert set(strategies) == {"delete_after_write", "generation_fence", "delete_from_stream", "event_tokens"}
    for strategy in strategies.values():
        assert set(strategy) >= PROMISED
        assert strategy["reads"] > 0
        assert strategy["checked"] > 0
        assert strategy["invalidations"] == result["writes"] > 0
    ours = strategies["event_tokens"]
    assert (ours["poisoned"], ours["stale_reads"], ours["torn_pairs"]) == (0, 0, 0)
    assert ours["hit_rate"] > 0
    assert ours["pairs"] > 0
    assert ("stripe_absent" in ours["outcomes"]) == ("--node-megabytes" in options)
    interruptions = result["interruptions"]
    assert (interruptions["interrupted"] > 0) == ("--interrupted" in options)
    assert interruptions["reads"] >= interruptions["interrupted"]
    assert interruptions["wrong_answers"] == 0
    for other in strategies.keys() - {"event_tokens"}:
        assert strategies[other]["poisoned"] > 0, other


@pytest.mark.parametrize("flavor", [pytest.param("mariadb"), pytest.param("mysql", marks=pytest.mark.long)])
def test_on_a_primary_alone_no_value_of_event_tokens_is_old(flavor: str) -> None:
    result = demonstrate("--seconds", "6", "--replicas", "0", "--flavor", flavor)
    assert (result["replica_delay_seconds"], result["applier_pause_seconds"]) == (0, 0)
    ours = result["strategies"]["event_tokens"]
    assert ours["invalidations"] == result["writes"] > 0
    assert (ours["poisoned"], ours["stale_reads"], ours["stale_replica_reads"]) == (0, 0, 0)
    assert ours["outcomes"]["filled"] > 0
    assert result["strategies"]["delete_after_write"]["hit_rate"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("topology", get_args(Topology))
def test_wherever_it_runs_no_value_of_event_tokens_is_old(topology: str) -> None:
    strategies = demonstrate("--seconds", "6", "--topology", topology)["strategies"]
    ours, naive = strategies["event_tokens"], strategies["delete_after_write"]
    assert (ours["poisoned"], ours["stale_reads"], ours["stale_replica_reads"], ours["torn_pairs"]) == (0, 0, 0, 0)
    assert ours["pairs"] > 0
    assert ours["hit_rate"] > 0
    assert naive["stale_reads"] > 0, "the servers lag"
    assert naive["poisoned"] > 0


@pytest.mark.parametrize(
    "options", [("--topology", "galera", "--flavor", "mysql"), ("--topology", "haproxy", "--replicas", "0")]
)
def test_what_goes_with_no_topology_is_refused(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "examples.demo", *options]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=500)
    assert run.returncode == 2
    assert "topology" in run.stderr
