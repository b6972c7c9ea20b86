"""Tables of all audits: a day is a folder, and an audit is in them once."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final

import polars
import pytest
from deltalake import DeltaTable
from pyarrow import Table, parquet
from pyiceberg.catalog import load_catalog

from freshness.errors import ConfigError
from spark.audit import __main__ as command
from spark.audit.model.schema import VIOLATION
from spark.audit.report.summary import Nines, Share, Summary
from spark.audit.report.trend_table import NINES, VIOLATIONS, IcebergTables, TrendTables, append_audit, open_tables
from tests.simulation.recorded import write_rows
from tests.unit.spark.audit.test_evidence import ACTION, change
from tests.unit.spark.audit.test_page import summary_of

DAY_US: Final = 86_400_000_000


def audit_of(day: int, fresh: int) -> Summary:
    within = {str(seconds): Share.of_counts(fresh, 100) for seconds in (1, 10, 60, 300)}
    return replace(summary_of(), as_of_us=day * DAY_US, nines=[Nines("table", "orders", 100, 3, within)])


def later_audit() -> Summary:
    """Of the same day."""
    return replace(audit_of(20_000, 97), as_of_us=20_000 * DAY_US + 1)


def violations_of(*kinds: str) -> Table:
    empty: dict[str, Any] = dict.fromkeys(VIOLATION.names)
    return Table.from_pylist([{**empty, "kind": kind, "clients": [], "count": 2} for kind in kinds], VIOLATION)


def test_a_query_over_days_is_one_query(tmp_path: Path) -> None:
    folder = open_tables(str(tmp_path / "audits"))
    append_audit(audit_of(20_000, 99), violations_of("stale_hit"), folder)
    append_audit(audit_of(20_001, 100), violations_of(), folder)
    append_audit(audit_of(20_002, 90), violations_of("stale_hit", "thin_air_hit"), folder)
    nines = polars.scan_parquet(tmp_path / "audits/nines", hive_partitioning=True)
    fresh = nines.group_by("day").agg(polars.col("within_1_seconds").sum() / polars.col("hits").sum()).sort("day")
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
    folder = open_tables(str(tmp_path))
    for summary in (audit_of(20_000, 98), audit_of(20_000, 99), later_audit()):
        append_audit(summary, violations_of("stale_hit"), folder)
    rows = polars.read_parquet(tmp_path / "nines").sort("as_of_us").select("within_1_seconds").rows()
    assert rows == [(99,), (97,)]
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


# -- Delta and Iceberg -----------------------------------------------------------------------------------


def append_three(tables: TrendTables) -> None:
    """Two audits of one day, of which one is repeated, and one of the next day without violations."""
    tables.require()
    for summary, violations in (
        (audit_of(20_000, 98), violations_of("stale_hit")),
        (audit_of(20_000, 99), violations_of("stale_hit", "thin_air_hit")),
        (later_audit(), violations_of("stale_hit")),
        (audit_of(20_001, 100), violations_of()),
    ):
        append_audit(summary, violations, tables)


NINES_TOLD: Final = [("2024-10-04", 0, 99), ("2024-10-04", 1, 97), ("2024-10-05", 0, 100)]
KINDS_TOLD: Final = [(0, "stale_hit"), (0, "thin_air_hit"), (1, "stale_hit")]


def read_told(nines: Table, violations: Table) -> tuple[list[Any], list[Any]]:
    assert nines.column_names == ["day", *NINES.names]
    assert violations.column_names == ["day", *VIOLATIONS.names]
    rows = [(str(row["day"]), row["as_of_us"] % DAY_US, row["within_1_seconds"]) for row in nines.to_pylist()]
    return sorted(rows), sorted((row["as_of_us"] % DAY_US, row["kind"]) for row in violations.to_pylist())


def test_audits_are_added_to_delta_tables(tmp_path: Path) -> None:
    append_three(open_tables(f"delta:{tmp_path / 'audits'}"))
    nines, violations = (DeltaTable(tmp_path / "audits" / name) for name in ("nines", "violations"))
    assert read_told(table(nines), table(violations)) == (NINES_TOLD, KINDS_TOLD)
    assert nines.metadata().partition_columns == violations.metadata().partition_columns == ["day"]
    [row] = polars.scan_delta(tmp_path / "audits/nines").filter(day=date(2024, 10, 5)).collect().rows(named=True)
    assert row["within_1_seconds"] == 100


def table(delta: DeltaTable) -> Table:
    return delta.to_pyarrow_table()


def test_audits_are_added_to_iceberg_tables(tmp_path: Path) -> None:
    with_sqlite = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = load_catalog("audits", **with_sqlite)
    append_three(IcebergTables(catalog, "quality"))
    nines, violations = (catalog.load_table(f"quality.{name}") for name in ("nines", "violations"))
    assert read_told(nines.scan().to_arrow(), violations.scan().to_arrow()) == (NINES_TOLD, KINDS_TOLD)
    [field] = nines.spec().fields
    assert (field.name, str(field.transform)) == ("day", "identity")
    files = nines.scan(row_filter="day = '2024-10-05'").plan_files()
    assert [file.file.record_count for file in files] == [1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("iceberg:audits", "expected iceberg:CATALOG.NAMESPACE"),
        ("iceberg:nowhere.audits", "the Iceberg catalog nowhere cannot be opened"),
        ("delta:s3://bucket/audits", "is not on a local or mounted file system"),
    ],
)
def test_tables_that_cannot_be_opened_are_told(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_tables(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(("text", "extra"), [("delta:audits", "delta"), ("iceberg:audits.all", "iceberg")])
def test_a_package_that_is_missing_is_told(text: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("deltalake", "pyiceberg.catalog"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"freshness\[{extra}\]"):
        open_tables(text)
