"""The audit by replay says of the demo's three caches what the demo finds by its own means, key by key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from examples.demo.report import DemoResult
from examples.demo.run import Sample, run_demo
from examples.demo.strategy import DELETE_AFTER_WRITE, DELETE_FROM_STREAM, EVENT_TOKENS
from examples.demo.workload import Plan
from examples.demo.world import NodeKind
from spark.audit import __main__ as command
from spark.audit.model.verdict import CLEAN, POISONED_FILL, STALE_DATA

CLOSE_US: Final = 20_000
PLAN: Final = Plan(seconds=6, seed=11, customers=400)


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None: ...

    def show(self, sample: Sample) -> None: ...


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def result(history: Path) -> DemoResult:
    return run_demo("mariadb", PLAN, Silent(), NodeKind(), history)


def judge(session: SparkSession, folder: Path) -> int:
    arguments = ["--archive", folder / "archive", "--history", folder / "history", "--report", folder / "report"]
    # One machine, one clock. The archives are complete, so nothing is left out at the end.
    now = datetime.now(UTC).isoformat()
    return command.main([*map(str, arguments), "--clock-error-seconds", "0", "--as-of", now], session)


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return found


def effect_of(action: Mapping[str, Any]) -> tuple[str, Any]:
    """The state of the item after it: gone, or this version."""
    return action["action"], action["version"] if action["action"] == "fill" else None


@pytest.mark.timeout(600)
def test_event_tokens_are_clean(session: SparkSession, result: DemoResult, history: Path) -> None:
    assert result.strategies[EVENT_TOKENS].poisoned == 0
    assert result.strategies[EVENT_TOKENS].hits > 0
    assert judge(session, history / EVENT_TOKENS) == CLEAN
    summary = json.loads((history / EVENT_TOKENS / "report" / "summary.json").read_text())
    assert summary["counts"]["hits of views"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [DELETE_AFTER_WRITE, DELETE_FROM_STREAM])
def test_what_the_audit_finds_poisoned_at_the_end_is_what_the_demo_finds(
    session: SparkSession, result: DemoResult, history: Path, name: str
) -> None:
    folder = history / name
    assert judge(session, folder) == STALE_DATA
    bad = {
        (violation["item"], violation["version"])
        for violation in rows(folder / "report" / "violations")
        if violation["kind"] == POISONED_FILL
    }
    last: dict[bytes, dict[str, Any]] = {}
    close: set[str] = set()
    for action in sorted(rows(folder / "history"), key=lambda each: each["end_us"]):
        if action["action"] not in ("fill", "invalidation"):
            continue
        item = action["item"].decode()
        previous = last.get(action["item"])
        if previous is not None and effect_of(previous) != effect_of(action):
            is_close = action["begin_us"] - previous["end_us"] < CLOSE_US
            (close.add if is_close else close.discard)(item)
        last[action["item"]] = action
    left = {
        item.decode()
        for item, action in last.items()
        if action["action"] == "fill" and (item, action["version"]) in bad
    }
    poisoned = {f"{name}:{key}:{number}" for key, number in (p.key for p in result.strategies[name].verdict.poisoned)}
    # If two effects came within milliseconds, or one within the other, no clock can order them
    assert left - close == poisoned - close
    assert poisoned - close, "a replica that lags poisons these caches, or the demo shows nothing"
