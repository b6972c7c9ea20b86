"""All engines say the same of a history: one process, one with little memory, Spark, and Spark Connect."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import SparkSession

from integration.spark.connect_audit import audit_folders
from spark.audit import __main__ as command
from spark.audit.engine.cluster import SparkEngine
from spark.audit.engine.local import LocalEngine
from spark.audit.engine.step import Engine
from spark.audit.input.recording import open_actions, open_changes
from spark.audit.job import audit
from spark.audit.model import verdict
from spark.audit.model.finding import Rules
from spark.audit.shuffle.state import load_state, save_state
from spark.audit.shuffle.survey import Scope
from spark.folder import open_folder
from tests.simulation.planted import AS_OF_US, HOUR, plant
from tests.simulation.recorded import EPOCH_US, record, write_rows

ROOT: Final = Path(__file__).resolve().parents[2]
SEEDS: Final = *range(40), 50
"""The last one has a torn view."""
HOT_ROWS: Final = 60
"""So few that some items of these histories are in several pieces."""


class Written(NamedTuple):
    """The paths of an archive and its history."""

    archive: str
    history: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    logging.disable(logging.CRITICAL)  # what the production code logs of what is done to it
    try:
        worlds = [plant(record(seed), seed) for seed in SEEDS]
    finally:
        logging.disable(logging.NOTSET)
    folder = tmp_path_factory.mktemp("recorded")
    changes = [row for world in worlds for row in world.history.changes]
    actions = [row for world in worlds for row in world.history.actions]
    return Written(
        write_rows("changes", changes, folder / "archive", files=5),
        write_rows("actions", actions, folder / "history", files=7),
    )


@pytest.fixture(scope="module")
def expected(written: Written) -> dict[str, Any]:
    told = audit_folders(LocalEngine(), *written)
    assert len(told["violations"]) > 20
    assert verdict.TORN_VIEW in {each["kind"] for each in told["summary"]["found"]}
    return told


def test_spark_says_what_one_process_says(session: SparkSession, written: Written, expected: dict[str, Any]) -> None:
    assert audit_folders(SparkEngine(session), *written) == expected


def test_rows_on_disk_are_judged_as_those_in_memory(written: Written, expected: dict[str, Any]) -> None:
    assert audit_folders(LocalEngine(held_bytes_max=1 << 16), *written) == expected


def test_items_in_many_pieces_are_judged_by_spark_as_in_one(
    session: SparkSession, written: Written, expected: dict[str, Any]
) -> None:
    assert audit_folders(SparkEngine(session), *written, hot_rows=HOT_ROWS) == expected


def two_days(engine: Engine, written: Written, folder: Path, **options: Any) -> tuple[list[Any], list[Any]]:
    """What two audits say, of which the second one continues the first with no history of its own day."""
    changes, actions = open_changes(engine, written.archive), open_actions(engine, written.history)
    split_us = EPOCH_US + 7_000_000
    first = audit(engine, changes, actions, rules=Rules(0), scope=Scope(split_us), pieces=4, **options)
    save_state(first.carry, open_folder(str(folder)), HOUR)
    first.close()
    state = load_state(open_folder(str(folder)))
    scope = Scope(AS_OF_US, previous=state)
    second = audit(engine, changes, actions, rules=Rules(0), scope=scope, pieces=3, **options)
    second.close()
    return first.violations.to_pylist(), second.violations.to_pylist()


@pytest.mark.slow
def test_a_state_of_spark_is_that_of_one_process(session: SparkSession, written: Written, tmp_path: Path) -> None:
    expected = two_days(LocalEngine(), written, tmp_path / "local")
    assert all(map(len, expected))
    assert two_days(SparkEngine(session), written, tmp_path / "spark") == expected
    assert two_days(SparkEngine(session), written, tmp_path / "hot", hot_rows=HOT_ROWS) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_connect_says_what_one_process_says(written: Written, expected: dict[str, Any]) -> None:
    """There the driver is elsewhere: a client has no context, no RDD and no JVM."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    program = [sys.executable, "-m", "integration.spark.connect_audit", *written]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert json.loads(done.stdout) == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [([], "engine: local, for "), (["--engine", "local"], "replay: "), (["--master", "local[2]"], "replay, ")],
)
def test_the_engine_is_chosen_and_told(
    session: SparkSession,
    written: Written,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    told: str,
) -> None:
    places = ["--archive", written.archive, "--history", written.history, "--report", str(tmp_path / "out")]
    assert command.main([*places, *options], session if "--master" in options else None) == 5
    assert told in capsys.readouterr().err


def test_one_process_needs_no_spark(written: Written, tmp_path: Path) -> None:
    """Neither its packages nor Java are looked for."""
    places = ["--archive", written.archive, "--history", written.history, "--report", str(tmp_path / "out")]
    script = f"""
import sys
for name in ("pyspark", "py4j"):
    sys.modules[name] = None
from spark.audit.__main__ import main
sys.exit(main({places}))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": "", "JAVA_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 5, done.stderr
