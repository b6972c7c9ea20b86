"""What is missing in the evidence itself: lost recordings that others outnumber, and more of a thing than is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from freshness.errors import FormatError
from freshness.history.columns import ACTIONS as ACTION_COLUMNS
from spark.audit import actions as audit_actions
from spark.audit import evidence, verdict
from spark.audit.actions import collect_lives, find_published, take_stock
from spark.audit.archive import read_archive
from spark.audit.evidence import Names, find_gtid_gaps, find_recorder_gaps, name_violations
from spark.audit.finding import Rules
from spark.schema import ACTIONS, CHANGES, FINDING

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_EMPTY: Final = {"string": "", "int64": 0, "bool": False, "list<string>": [], "list<binary>": []}
ACTION: Final = {
    column.name: None if column.nullable else _EMPTY[column.type] for column in ACTION_COLUMNS
} | {"client": "host/1/1.0", "action": "refusal", "outcome": "MISS"}


def stock_of(session: SparkSession, sequences: list[int]) -> list[Any]:
    """Of one client, whose actions are of several kinds."""
    rows = [{**ACTION, "sequence": each, "object": f"o{each % 3}"} for each in sequences]
    return take_stock(session.createDataFrame(rows, ACTIONS))


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
    session: SparkSession, sequences: list[int], told: str | None
) -> None:
    recorded = find_recorder_gaps(stock_of(session, sequences), {}, None)
    expected = [] if told is None else [(verdict.RECORDER_GAP, f"host/1/1.0: {told}")]
    assert [(each.kind, each.source) for each in recorded.damages] == expected


def change(ordinal: int, number: int | None = None) -> dict[str, Any]:
    times = {"timestamp_us": 10**12 + ordinal, "received_us": 10**12 + ordinal}
    named = {"keyspace": "shop", "shard": "-", "lineage": "shop/-", "epoch": 1, "ordinal": ordinal}
    row = {"row": 0, "rows": 1, "op": "insert", "table": "customers", "items": [], "row_items": []}
    return {**dict.fromkeys(CHANGES.names), **times, **named, **row, "gtid": f"{SOURCE}:{number or ordinal}"}


@pytest.mark.parametrize("ordinals", [[1, 1, 4, 4], [1, 3, 4, 4, 5, 6, 7, 7, 8, 10]])
def test_lost_transactions_are_told_though_others_are_there_twice(
    session: SparkSession, ordinals: list[int]
) -> None:
    archive = read_archive(session.createDataFrame([*map(change, ordinals)], CHANGES), Rules(0))
    told = [(each.kind, number) for each in archive.damages for number in range(each.first, each.last + 1)]
    gone = {number for kind, number in told if kind == verdict.ARCHIVE_GAP}
    assert gone == set(range(1, max(ordinals))) - set(ordinals)
    # A piece without a gap is told as a whole.
    doubled = {number for number in ordinals if ordinals.count(number) > 1}
    assert doubled <= {number for kind, number in told if kind == verdict.ARCHIVE_DUPLICATE}


def test_more_lives_than_are_held_are_refused(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = read_archive(session.createDataFrame([*map(change, (1, 2, 3))], CHANGES), Rules(0))
    stamp = {
        "lineages": ["shop/-"],
        "epochs": ["1"],
        "positions": [f"{SOURCE}:1-3"],
        "floors": [f"{SOURCE}:1"],
    }
    rows = [
        {
            **ACTION,
            **stamp,
            "action": "publish",
            "node": "n:1",
            "lives": [bytes([life] * 8)],
            "sequence": life,
        }
        for life in (1, 2, 3)
    ]
    lineages = {lineage.name: lineage for lineage in archive.lineages.values()}
    published = find_published(session.createDataFrame(rows, ACTIONS), lineages)
    monkeypatch.setattr(audit_actions, "LIVES_MAX", 3)
    assert [len(lives) for lives in collect_lives(published).values()] == [3]
    monkeypatch.setattr(audit_actions, "LIVES_MAX", 2)
    with pytest.raises(FormatError, match="more than 2 lives"):
        collect_lives(published)


def test_more_holes_than_are_looked_for_are_refused(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [change(ordinal, ordinal * 2) for ordinal in (1, 2, 3, 4)]
    archive = read_archive(session.createDataFrame(rows, CHANGES), Rules(0))
    actions = session.createDataFrame([], ACTIONS)
    monkeypatch.setattr(evidence, "HOLES_MAX", 3)
    assert find_gtid_gaps(actions, archive, frozenset()) == []
    monkeypatch.setattr(evidence, "HOLES_MAX", 2)
    with pytest.raises(FormatError, match="more than 2 places"):
        find_gtid_gaps(actions, archive, frozenset())


def test_violations_are_computed_again_where_their_executor_is_lost(session: SparkSession) -> None:
    changes = session.createDataFrame([*map(change, (1, 2, 5))], CHANGES)
    actions = session.createDataFrame([], ACTIONS)
    archive = read_archive(changes, Rules(0))
    names = Names.of(archive, [], None)
    findings = session.createDataFrame([], FINDING)
    violations = name_violations(findings, names, changes, actions, archive.damages)
    told = violations.collect()
    assert {row["kind"] for row in told} == {verdict.ARCHIVE_GAP}
    # What an executor has kept goes with it
    kept: Any = session.sparkContext._jsc.sc().getPersistentRDDs()
    for rdd in iterate(kept.values().toSeq()):
        rdd.unpersist(True)
    assert violations.collect() == told
    violations.unpersist()


def iterate(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala."""
    for at in range(sequence.size()):
        yield sequence.apply(at)
