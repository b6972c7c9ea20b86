"""The metrics of the sink's driver: a query's progress, keepers, and the address that serves them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from freshness.errors import ConfigError
from freshness.exposition import serving
from integration.servers.process import find_free_port
from spark.sink import __main__ as command
from spark.sink.keeper import LineageStatus
from spark.sink.metrics import SinkMetrics
from spark.stream.progress import QueryMetrics


def progress(second: int, batch: int, rows: int, **milliseconds: int) -> dict[str, Any]:
    return {
        "timestamp": f"2026-01-31T10:00:{second:02}.000Z",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": milliseconds,
    }


def samples(registry: CollectorRegistry) -> dict[str, float]:
    """Without those of buckets and times of making."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs if "_bucket" not in name and "_created" not in name}


def test_each_micro_batch_counts_once() -> None:
    registry = CollectorRegistry()
    metrics = QueryMetrics(registry)
    first = progress(1, 7, 100, triggerExecution=500, addBatch=400)
    idle = progress(2, 8, 0, triggerExecution=10)
    second = progress(3, 8, 50, triggerExecution=1500, addBatch=1400)
    for seen in ([first], [first, idle], [first, idle, second], [first, idle, second]):
        metrics.note(SimpleNamespace(recentProgress=seen))
    assert samples(registry) == {
        "freshness_query_rows_total": 150,
        "freshness_query_batch_seconds_count": 2,
        "freshness_query_batch_seconds_sum": 2.0,
        "freshness_query_batch": 8,
    }


def keeper(**lineages: LineageStatus) -> Any:
    return SimpleNamespace(items=12, read_status=lambda: lineages)


def test_the_stand_in_counts_while_spark_is_late() -> None:
    metrics = SinkMetrics()
    found = samples(metrics.registry)
    assert (found["freshness_sink_stand_in"], found["freshness_sink_items_total"]) == (0, 0)
    stand_in = keeper(a=LineageStatus(2, 2, 0.5))
    metrics.find_stand_in = lambda: stand_in
    metrics.keeper = keeper(a=LineageStatus(2, 1, None), b=LineageStatus(1, 1, 3.5))
    found = samples(metrics.registry)
    assert {name: value for name, value in found.items() if "_sink_" in name} == {
        "freshness_sink_stand_in": 1,
        "freshness_sink_items_total": 12,
        'freshness_sink_heartbeat_age_seconds{lineage="b"}': 3.5,
        'freshness_sink_nodes_joined{lineage="a"}': 2,
        'freshness_sink_nodes_joined{lineage="b"}': 1,
        'freshness_sink_nodes_open{lineage="a"}': 2,
        'freshness_sink_nodes_open{lineage="b"}': 1,
    }


def test_they_are_served_until_the_job_ends() -> None:
    port = find_free_port()
    with serving(SinkMetrics().registry, f"127.0.0.1:{port}"):
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert b"freshness_sink_stand_in 0.0" in answer.read()
        with (
            pytest.raises(ConfigError, match="cannot be served"),
            serving(SinkMetrics().registry, f"127.0.0.1:{port}"),
        ):
            pass
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics")


def test_an_address_that_is_none_ends_the_job_before_spark_starts(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(
        '[cache]\nnamespace = "shop"\nnodes = ["127.0.0.1:1"]\n[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://app@127.0.0.1:1/shop"\n'
        '[objects.customer]\ntable = "customers"\n'
    )
    arguments = ["--config", str(path), "--url", "http://127.0.0.1:1", "--checkpoint", str(tmp_path / "c")]
    assert command.main([*arguments, "--metrics-listen", "nowhere"]) == ConfigError.exit_code
    assert "--metrics-listen" in capsys.readouterr().err
