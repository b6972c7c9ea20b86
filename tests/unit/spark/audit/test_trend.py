"""Tables of all audits: a day is a folder, and an audit is in them once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars
import pytest
from pyarrow import Table, parquet

from spark.audit import __main__ as command
from spark.audit.schema import VIOLATION
from spark.audit.summary import Nines, Share, Summary
from spark.audit.trend import VIOLATIONS, append_audit
from spark.folder import open_folder
from tests.simulation.recorded import write_rows
from tests.unit.spark.audit.test_evidence import ACTION, change
from tests.unit.spark.audit.test_page import summary_of

DAY_US: Final = 86_400_000_000


def audit_of(day: int, fresh: int) -> Summary:
    within = {str(seconds): Share.of_counts(fresh, 100) for seconds in (1, 10, 60, 300)}
    return replace(summary_of(), as_of_us=day * DAY_US, nines=[Nines("table", "orders", 100, 3, within)])


def violations_of(*kinds: str) -> Table:
    empty: dict[str, Any] = dict.fromkeys(VIOLATION.names)
    return Table.from_pylist(
        [{**empty, "kind": kind, "clients": [], "count": 2} for kind in kinds], VIOLATION
    )


def test_a_query_over_days_is_one_query(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "audits"))
    append_audit(audit_of(20_000, 99), violations_of("stale_hit"), folder)
    append_audit(audit_of(20_001, 100), violations_of(), folder)
    append_audit(audit_of(20_002, 90), violations_of("stale_hit", "thin_air_hit"), folder)
    nines = polars.scan_parquet(tmp_path / "audits/nines", hive_partitioning=True)
    fresh = (
        nines.group_by("day").agg(polars.col("within_1_seconds").sum() / polars.col("hits").sum()).sort("day")
    )
    told = fresh.collect().rows()
    assert [(str(day), share) for day, share in told] == [
        ("2024-10-04", 0.99),
        ("2024-10-05", 1.0),
        ("2024-10-06", 0.9),
    ]
    violations = polars.read_parquet(tmp_path / "audits/violations", hive_partitioning=True)
    assert violations.group_by("kind").agg(polars.col("count").sum()).sort("kind").rows() == [
        ("stale_hit", 4),
        ("thin_air_hit", 2),
    ]


def test_an_audit_that_is_repeated_takes_its_own_place(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    for summary in (audit_of(20_000, 98), audit_of(20_000, 99), replace(audit_of(20_000, 97), part="-80")):
        append_audit(summary, violations_of("stale_hit"), folder)
    rows = polars.read_parquet(tmp_path / "nines").sort("part").select("part", "within_1_seconds").rows()
    assert rows == [("", 99), ("-80", 97)]
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_the_command_appends_its_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = [{**change(ordinal), "items": [], "row_items": []} for ordinal in range(1, 9)]
    folders = {
        "--archive": write_rows("changes", changes, tmp_path / "archive"),
        "--history": write_rows("actions", [{**ACTION, "sequence": 1}], tmp_path / "history"),
        "--report": str(tmp_path / "out"),
        "--tables": str(tmp_path / "audits"),
    }
    assert command.main([part for pair in folders.items() for part in pair]) == 3
    expected = parquet.read_table(tmp_path / "out/violations").to_pylist()
    [file] = (tmp_path / "audits/violations").rglob("*.parquet")
    rows = parquet.read_table(file, schema=VIOLATIONS).to_pylist()
    assert [{name: row[name] for name in VIOLATION.names} for row in rows] == expected
    assert [path.name for path in (tmp_path / "audits/nines").rglob("*.parquet")] == [file.name]


def test_tables_that_cannot_be_written_are_told_before_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folders = {name: str(tmp_path / name) for name in ("archive", "history", "report")}
    options = [f"--{name}={folder}" for name, folder in folders.items()]
    for name in ("archive", "history"):
        (tmp_path / name).mkdir()
    assert command.main([*options, f"--tables={tmp_path / 'file'}"]) == 2
    assert f"{tmp_path / 'file'} cannot be written to" in capsys.readouterr().err
