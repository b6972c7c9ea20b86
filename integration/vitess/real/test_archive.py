"""The update stream of a real Vitess, over a reshard: read from a time on, archived, replayed, and compared with all
that applications did with the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset
import pytest

from appclient import Cache
from integration.harness import call_cli, wait_until
from integration.vitess.real.deployment import CUSTOMERS, SETTLES_SECONDS, Deployment, deployment, reading
from integration.vitess.real.test_cache import SOME, report, reshard
from invalidator.archive.reader import open_archive
from invalidator.stream.message import StreamMessage
from invalidator.stream.open import StreamOpener
from invalidator.stream.query import StreamQuery
from invalidator.vstream import seek
from spark.audit.model import verdict

ROOT: Final = Path(__file__).resolve().parents[3]
RECORDED: Final = """
[archive]
path = "archive"
rotate_seconds = 2
[history]
path = "history"
rotate_seconds = 2
"""
UNLOGGED: Final = 1_000_000
"""A version that is in no log."""

HITS_MIN: Final = 10_000
VALUES_MIN: Final = 500
AUDIT_SECONDS: Final = 580


def versions(message: StreamMessage) -> set[tuple[int, int]]:
    """(customer, version) of all rows."""
    rows: list[Any] = [change.after for change in message.transaction.changes if change.after is not None]
    return {(row["customer_id"], row["v"]) for row in rows}


def archived(folder: Path) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for lineage in open_archive(folder):
        found.update(*map(versions, lineage.messages()))
    return found


def streamed_since(made: Deployment, begun: datetime, wanted: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """What the stream brings from a time on, until everything wanted has come."""
    found: set[tuple[int, int]] = set()
    opened = StreamOpener(lambda: made.config).open(StreamQuery("shop", since=begun.isoformat()))
    try:
        deadline = time.monotonic() + SETTLES_SECONDS
        while not wanted <= found and time.monotonic() < deadline:
            message = opened.stream.poll(1.0)
            found |= set() if message is None else versions(message)
    finally:
        opened.stream.close()
    return found


def audit(made: Deployment) -> dict[str, Any]:
    """The summary of an audit of everything, with its exit code."""
    command = [sys.executable, "-m", "spark.audit", "--json", "--master", "local[*]"]
    for name in ("archive", "history", "report"):
        command += [f"--{name}", str(made.folder / name)]
    done = subprocess.run(
        [*command, "--clock-error-seconds", "0", "--as-of", datetime.now(UTC).isoformat()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=AUDIT_SECONDS,
    )
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "exit": done.returncode}


def change_unlogged(made: Deployment, key: int) -> None:
    """The row is another one on all tablets of its shard, and no log says so."""
    for shard in made.serving:
        made.cluster.wait_caught_up(shard)
        for tablet in made.cluster.tablets[shard]:
            database = tablet.database
            with tablet.mysql.connect(database, user="root") as connection, connection.cursor() as cursor:
                cursor.execute("SET GLOBAL super_read_only = 0")
                cursor.execute("SET sql_log_bin = 0")
                cursor.execute(f"UPDATE customers SET v = {UNLOGGED} WHERE customer_id = {key}")


def read_unlogged(made: Deployment, key: int) -> None:
    """Return when an application has had it from the cache."""
    with made.cluster.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE customers SET v = v + 1 WHERE customer_id = {key}")
        connection.commit()
    change_unlogged(made, key)
    cache = Cache.open(made.path)
    try:

        def is_hit() -> bool:
            found = cache.get("customer", key, explain=True)
            return found.is_hit and found.value is not None and found.value["v"] == UNLOGGED

        wait_until(is_hit, f"customer {key} is cached as no log has it", made.describe, seconds=SETTLES_SECONDS)
    finally:
        cache.close()


@pytest.mark.timeout(1800)
def test_a_recorded_vitess_is_replayed_and_audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seek, "READ_THROUGH", 50)
    with deployment(tmp_path, replicas=1, sections=RECORDED) as (made, writer):
        with reading(made):
            writer.wait_for(SOME)
        reshard(made, writer, ("-40", "40-80", "80-c0", "c0-"), 1)
        begun = datetime.now(UTC)
        first = {key: len(written) for key, written in made.checker.written.items()}
        writer.wait_for(SOME)
        writer.stop()
        report(made, writer)
        wanted = {
            (key, version)
            for key, written in made.checker.written.items()
            for version in range(first[key], len(written))
        }
        assert wanted <= streamed_since(made, begun, wanted)
        read_unlogged(made, CUSTOMERS[0])
        assert made.invalidator is not None
        assert made.invalidator.terminate() == 0
        # Every version that was written is in the archive: of the old shards, or of the new ones
        missing = {
            (key, version) for key, written in made.checker.written.items() for version in range(1, len(written))
        } - archived(tmp_path / "archive")
        assert not missing, sorted(missing)[:20]
        replayed = call_cli("replay", tmp_path / "archive", "-c", made.path)
        assert replayed.returncode == 0, replayed.stderr
        summary = audit(made)
        print(f"\n{summary['actions']} {summary['counts']}")
        assert summary["exit"] == verdict.STALE_DATA
        # Nothing is wrong but the row that was changed behind the log
        report_of = pyarrow.dataset.dataset(tmp_path / "report/violations", format="parquet")
        found = {(each["kind"], each["item"]) for each in report_of.to_table().to_pylist()}
        assert found == {(verdict.DIGEST_MISMATCH, f"shop:customer:{CUSTOMERS[0]}".encode())}
        assert summary["actions"]["hit"] > HITS_MIN
        assert summary["counts"]["values compared"] > VALUES_MIN
