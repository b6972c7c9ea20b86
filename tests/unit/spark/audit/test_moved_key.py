"""A row that got another primary key: its new key had no row before."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from freshness.stream.source import RowChange, Shape
from freshness.values.codec import row_digest
from spark.audit.engine.local import LocalEngine
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.job import audit
from spark.audit.model import verdict
from spark.audit.model.finding import Rules
from spark.audit.shuffle.survey import survey_history
from tests.simulation.recorded import write_rows
from tests.unit.invalidator.archive.archive_world import NODES, NOW_US, SOURCE, World, message
from tests.unit.spark.audit.both import gather_rows, judge_both
from tests.unit.spark.audit.test_evidence import ACTION

SECOND: Final = 1_000_000
SHAPES: Final = {"id": Shape("same"), "v": Shape("text")}
FIRST, MOVED, LAST = 4, 6, 20
"""Numbers of transactions: a row changes for the first time, another one moves, the archive ends."""


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """Customer 1 gets the key 2; the profiles of both are composites."""
    with World(tmp_path / "archive", begins_at=2) as world:
        for number in range(3, LAST + 1):
            previous, now = {FIRST: (7, 7), MOVED: (1, 2)}.get(number, (9, 9))
            images = {"id": previous, "v": "a"}, {"id": now, "v": "b"}
            world.now_us = NOW_US + number * SECOND
            world.writer.write(message(number, RowChange("customers", "update", *images, SHAPES)))
    return str(tmp_path / "archive")


def fill(item: str, until: int, digest: bytes | None) -> dict[str, Any]:
    """A value that was read when the primary had executed so much. ``digest``: None for no row."""
    at_us = NOW_US + until * SECOND + 1000
    return {
        **ACTION,
        "action": "fill",
        "outcome": "FILLED",
        "object": "customer",
        "tables": ["customers"],
        "item": item.encode(),
        "node": NODES[0],
        "version": 8,
        "observed": 7,
        "sequence": 1,
        "lineages": ["shop/-"],
        "epochs": ["1"],
        "lives": [b"LIFELIFE"],
        "positions": [f"{SOURCE}:1-{until}"],
        "floors": [f"{SOURCE}:1-1"],
        "digest": digest,
        "is_absent": digest is None,
        "begin_us": at_us,
        "end_us": at_us + 1000,
    }


A, B = row_digest({"id": 1, "v": "a"}), row_digest({"id": 2, "v": "b"})


@pytest.mark.parametrize(
    ("item", "until", "digest", "told"),
    [
        ("shop:customer:2", MOVED - 1, None, "values not comparable"),
        ("shop:customer:2", MOVED, B, "values compared"),
        ("shop:customer:7", FIRST - 1, row_digest({"id": 7, "v": "a"}), "values compared"),
    ],
)
def test_the_previous_row_of_another_key_is_no_value_of_the_item(
    archive: str, tmp_path: Path, item: str, until: int, digest: bytes | None, told: str
) -> None:
    engine = LocalEngine()
    history = write_rows("actions", [fill(item, until, digest)], tmp_path / "history")
    changes, actions = open_changes(engine, archive), open_actions(engine, history)
    result = audit(engine, changes, actions, rules=Rules(0))
    assert [row["kind"] for row in result.violations.to_pylist()] == []
    assert (result.summary.unknown, result.summary.counts[told], result.summary.counts["fills"]) == ({}, 1, 1)
    survey = survey_history(engine, changes, actions, Rules(0), pieces=1)
    by_arrays, by_rows = judge_both(gather_rows(survey), survey.rules, survey.kept.known)
    assert by_arrays == by_rows
    assert by_rows["counts"][told] == 1


@pytest.mark.parametrize(
    ("item", "until", "digest"),
    [("shop:customer:2", MOVED, A), ("shop:customer:7", FIRST - 1, A), ("shop:customer:7", FIRST - 1, None)],
)
def test_another_value_than_the_row_is_found(
    archive: str, tmp_path: Path, item: str, until: int, digest: bytes | None
) -> None:
    engine = LocalEngine()
    history = write_rows("actions", [fill(item, until, digest)], tmp_path / "history")
    result = audit(engine, open_changes(engine, archive), open_actions(engine, history), rules=Rules(0))
    assert [row["kind"] for row in result.violations.to_pylist()] == [verdict.DIGEST_MISMATCH]
