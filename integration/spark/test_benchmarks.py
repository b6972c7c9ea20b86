"""The benchmarks of the jobs, on little: every contestant does all of the work. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import sink
from benchmarks.audit import list_contestants, measure


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_contestant_of_the_audit_finds_what_is_planted(tmp_path: Path) -> None:
    contestants = list_contestants("local[2]")
    run = measure(tmp_path, 30_000, contestants)
    assert [each.name for each in run.measured] == [*contestants]
    assert run.events >= 30_000
    assert run.violations > 2_000
    assert all(each.cpu_seconds > 0 and each.python_mb > 0 for each in run.measured)
    assert all((each.java_mb > 0) == ("Spark" in each.name) for each in run.measured)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_benchmark_of_the_sink_takes_a_log_in_all_ways(
    session: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "WARM", (5, 2))
    assert sink.main(["--transactions", "20", "--rows", "3", "--json"], session) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    ways = ("source, archive", "sink, archive", "source, service", "sink, service")
    assert [each["name"] for each in results] == ["invalidator", *ways]
    assert {each["rows"] for each in results} == {60}
    assert {each["ratio"] for each in results[:1]} == {1.0}
