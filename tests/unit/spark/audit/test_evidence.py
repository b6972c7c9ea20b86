"""What is missing in the evidence itself: lost recordings that others outnumber, and more of a thing than is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from freshness.errors import FormatError
from freshness.history.columns import ACTIONS as ACTION_COLUMNS
from freshness.history.columns import CHANGES as CHANGE_COLUMNS
from spark.audit import job
from spark.audit.engine.local import LocalEngine
from spark.audit.input import archive, evidence, published
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.job import Audit, audit
from spark.audit.model import verdict
from spark.audit.model.finding import Life, Rules
from spark.audit.shuffle import survey
from tests.simulation.recorded import write_rows

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_EMPTY: Final = {"string": "", "int64": 0, "bool": False, "list<string>": [], "list<binary>": []}
ACTION: Final = {column.name: None if column.nullable else _EMPTY[column.type] for column in ACTION_COLUMNS} | {
    "client": "host/1/1.0",
    "action": "refusal",
    "outcome": "MISS",
}
Rows: TypeAlias = list[dict[str, Any]]
Auditor: TypeAlias = Callable[[Rows, Rows], Audit]


def change(ordinal: int, number: int | None = None) -> dict[str, Any]:
    times = {"timestamp_us": 10**12 + ordinal, "received_us": 10**12 + ordinal}
    named = {"keyspace": "shop", "shard": "-", "lineage": "shop/-", "epoch": 1, "ordinal": ordinal}
    row = {"row": 0, "rows": 1, "op": "insert", "table": "customers", "items": [], "row_items": []}
    missing = dict.fromkeys(column.name for column in CHANGE_COLUMNS)
    return {**missing, **times, **named, **row, "gtid": f"{SOURCE}:{number or ordinal}"}


def publish(sequence: int, life: int, position: str = "1-3") -> dict[str, Any]:
    stamp = {"lineages": ["shop/-"], "epochs": ["1"], "lives": [bytes([life] * 8)]}
    reach = {"positions": [f"{SOURCE}:{position}"], "floors": [f"{SOURCE}:1"]}
    return {**ACTION, **stamp, **reach, "action": "publish", "node": "n:1", "sequence": sequence}


@pytest.fixture
def run(tmp_path: Path) -> Auditor:
    def run_audit(changes: Rows, actions: Rows) -> Audit:
        engine = LocalEngine()
        recorded = open_changes(engine, write_rows("changes", changes, tmp_path / "archive"))
        history = open_actions(engine, write_rows("actions", actions, tmp_path / "history"))
        return audit(engine, recorded, history, rules=Rules(0))

    return run_audit


def damages_of(result: Audit) -> list[tuple[str, str]]:
    return [(row["kind"], row["object"]) for row in result.violations.to_pylist()]


@pytest.mark.parametrize(
    ("sequences", "told"),
    [
        ([*range(1, 11)], None),
        ([1, 2, 3, 4, 8, 9, 10], "3 of 10"),
        ([*range(1, 11), 4], "1 of 10"),
        ([1, 2, 2, 3, 3, 4, 4, 8, 9, 10], "some, with as many others twice, of 10"),
        # 2 and 9 are lost, 4 and 7 are there twice: the sum is right
        ([1, 3, 4, 4, 5, 6, 7, 7, 8, 10], "some, with as many others twice, of 10"),
    ],
)
def test_lost_recordings_are_told_though_others_are_there_twice(
    run: Auditor, sequences: list[int], told: str | None
) -> None:
    rows = [{**ACTION, "sequence": each, "object": f"o{each % 3}"} for each in sequences]
    expected = [] if told is None else [(verdict.RECORDER_GAP, f"host/1/1.0: {told}")]
    assert damages_of(run([change(1)], rows)) == expected


@pytest.mark.parametrize("ordinals", [[1, 1, 4, 4], [1, 3, 4, 4, 5, 6, 7, 7, 8, 10]])
def test_lost_transactions_are_told_though_others_are_there_twice(run: Auditor, ordinals: list[int]) -> None:
    rows = run([*map(change, ordinals)], []).violations.to_pylist()
    told = [(row["kind"], row["version"] + more) for row in rows for more in range(row["count"])]
    gone = {number for kind, number in told if kind == verdict.ARCHIVE_GAP}
    assert gone == set(range(1, max(ordinals))) - set(ordinals)
    # A piece without a gap is reported as a whole.
    doubled = {number for number in ordinals if ordinals.count(number) > 1}
    assert doubled <= {number for kind, number in told if kind == verdict.ARCHIVE_DUPLICATE}


def test_numbers_that_the_archive_lacks_and_a_position_holds_are_a_gap(run: Auditor) -> None:
    rows = [change(ordinal, ordinal * 2) for ordinal in (1, 2, 3, 4)]
    fill = {**ACTION, "action": "fill", "item": b"i", "node": "n:1", "lineages": ["shop/-"], "epochs": ["1"]}
    held = {"lives": [b"x" * 8], "positions": [f"{SOURCE}:1-3"]}
    result = run(rows, [{**fill, **held, "sequence": 1, "begin_us": 7, "end_us": 8}])
    [gap] = [row for row in result.violations.to_pylist() if row["kind"] == verdict.GTID_GAP]
    assert (gap["version"], gap["first_us"], gap["object"]) == (3, 7, SOURCE)


def test_more_lives_than_are_held_are_refused(run: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, actions = [*map(change, (1, 2, 3))], [publish(life, life) for life in (1, 2, 3)]
    monkeypatch.setattr(published, "LIVES_MAX", 3)
    assert [len(lives) for lives in run(changes, actions).carry.kept.known.lives.values()] == [3]
    monkeypatch.setattr(published, "LIVES_MAX", 2)
    with pytest.raises(FormatError, match="more than 2 lives"):
        run(changes, actions)


def test_a_life_ends_the_previous_one_though_the_archive_has_nothing_of_its_epoch(run: Auditor) -> None:
    def at(seconds: int) -> dict[str, int]:
        us = 10**12 + seconds * 10**6
        return {"begin_us": us, "end_us": us}

    entry = {**publish(1, 1), "item": b"i", "object": "o", "version": 1, "floors": []}
    later = {**publish(3, 2), "epochs": ["2"], "positions": [""], "floors": [""]}
    actions = [
        {**publish(1, 1), **at(1)},
        {**entry, **at(1), "action": "fill", "sequence": 2},
        {**later, **at(10)},
        {**entry, **at(20), "action": "hit", "outcome": "HIT", "sequence": 4},
    ]
    end = {**change(4), "timestamp_us": 10**12 + 60 * 10**6, "received_us": 10**12 + 60 * 10**6}
    result = run([*map(change, (1, 2, 3)), end], actions)
    assert [row["kind"] for row in result.violations.to_pylist()] == [verdict.DEAD_LIFE_HIT]


def test_a_life_is_of_its_highest_floor(run: Auditor) -> None:
    """An epoch that the archive lacks says nothing of a floor."""
    told = [("1", "1"), ("2", "1-2"), ("3", "1-2"), ("4", "1"), ("5", "1-3")]
    publishes = [
        {**publish(int(at), 7), "floors": [f"{SOURCE}:{floor}"], "begin_us": int(at), "end_us": int(at) + 1}
        for at, floor in told
    ]
    publishes[-1]["epochs"] = ["2"]
    for each in publishes[1:3]:
        each["outcome"] = "settling"
    result = run([*map(change, (1, 2, 3))], publishes)
    [[life]] = result.carry.kept.known.lives.values()
    assert life[1:] == Life(0, 1, 2, 2, 3, 2, 3)[1:]


def test_more_holes_than_are_looked_for_are_refused(run: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [change(ordinal, ordinal * 2) for ordinal in (1, 2, 3, 4)]
    monkeypatch.setattr(evidence, "HOLES_MAX", 3)
    assert damages_of(run(rows, [])) == []
    monkeypatch.setattr(evidence, "HOLES_MAX", 2)
    with pytest.raises(FormatError, match="more than 2 places"):
        run(rows, [])


def test_the_pieces_are_counted_by_rows_and_not_by_cores() -> None:
    """With dynamic allocation a cluster begins with few cores, whatever the history."""
    per_piece = survey.ROWS_PER_PIECE
    assert survey.count_pieces(0) == survey.count_pieces(1) == survey.PIECES_MIN
    some = survey.PIECES_MIN + 3
    assert survey.count_pieces(some * per_piece) == some
    assert survey.count_pieces(some * per_piece + 1) == some + 1
    huge = 10**12
    assert survey.count_pieces(huge) * survey.ROWS_PER_LARGE_PIECE >= huge, "no piece outgrows the memory of a task"


def test_more_commits_with_wrong_times_than_are_reported_are_refused(
    run: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = 10**12 + 3600 * 10**6
    rows = [change(1), *({**change(ordinal), "timestamp_us": late} for ordinal in (2, 3, 4)), change(5)]
    told = [each for each in damages_of(run(rows, [])) if each[0] == verdict.CLOCK_ANOMALY]
    assert len(told) >= 3
    monkeypatch.setattr(archive, "ODD_TIMES_MAX", len(told))
    assert len(damages_of(run(rows, []))) >= len(told)
    monkeypatch.setattr(archive, "ODD_TIMES_MAX", len(told) - 1)
    with pytest.raises(FormatError, match=f"{len(told)} commits of the archive have times"):
        run(rows, [])


def test_more_findings_than_are_listed_are_refused(run: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    hit = {**ACTION, "action": "hit", "item": b"i", "node": "n:1", "lineages": ["shop/-"], "epochs": ["1"]}
    now, later = 10**12 + 5, 10**12 + 10**7
    held = {"lives": [b"x" * 8], "positions": [f"{SOURCE}:1-3"], "begin_us": now, "end_us": now}
    hits = [{**hit, **held, "item": bytes([at]), "version": at, "sequence": at} for at in (1, 2, 3)]
    hits.append(publish(4, ord("x")))  # since when actions are recorded
    changes = [*map(change, range(1, 5)), {**change(5), "timestamp_us": later, "received_us": later}]
    monkeypatch.setattr(job, "FINDINGS_MAX", 3)
    assert len(damages_of(run(changes, hits))) == 3
    monkeypatch.setattr(job, "FINDINGS_MAX", 2)
    with pytest.raises(FormatError, match=r"more than 2 violations \(thin_air_hit: 3\)"):
        run(changes, hits)
