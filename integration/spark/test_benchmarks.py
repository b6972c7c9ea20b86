"""The benchmarks of the jobs, on little: every contestant does all of the work. No time is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from benchmarks import sink
from benchmarks.audit import list_contestants, measure
from benchmarks.audit_history import generate
from spark.audit.engine.local import LocalEngine
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.model import verdict
from spark.audit.model.finding import Rules
from spark.audit.shuffle.survey import survey_history
from tests.unit.spark.audit.both import gather_pieces, judge_both

JUDGED: Final = {
    *(verdict.POISONED_FILL, verdict.FILL_BELOW_FLOOR, verdict.DIGEST_MISMATCH, verdict.STALE_HIT),
    *(verdict.DEAD_LIFE_HIT, verdict.THIN_AIR_HIT, verdict.MISSED_INVALIDATION, verdict.CLOCK_ANOMALY),
}
"""Kinds of violations of items; damages of the evidence are found before."""


@pytest.mark.slow
@pytest.mark.long
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
@pytest.mark.long
@pytest.mark.timeout(900)
def test_arrays_say_of_a_million_events_what_the_judge_says(tmp_path: Path) -> None:
    """In an audit the judge sees only the events that the arrays do not find right; here it sees all of them."""
    bench = generate(tmp_path, 1_000_000)
    engine = LocalEngine()
    changes, actions = open_changes(engine, str(bench.archive)), open_actions(engine, str(bench.history))
    survey = survey_history(engine, changes, actions, Rules(0))
    assert survey.stock
    assert changes.rows + actions.rows >= 1_000_000
    found: set[str] = set()
    for table in gather_pieces(survey):
        by_arrays, by_rows = judge_both(table, survey.rules, survey.kept.known)
        assert by_arrays == by_rows
        found |= {kind for kind in JUDGED for text in by_rows["results"] if f"kind={kind!r}" in text}
    survey.shuffled.close()
    assert found == JUDGED


@pytest.mark.slow
@pytest.mark.long
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
