"""Tables of all audits, for trends: violations and nines, divided by day, so that a query over days reads those days
alone.

`spark.audit.report.trend_table` stores them. Called by the audit's main.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow

from spark.audit.model.schema import VIOLATION
from spark.audit.report.summary import WITHIN_SECONDS, Summary
from spark.audit.report.trend_table import TrendTables

NINES: Final = pyarrow.schema(
    [
        ("as_of_us", pyarrow.int64()),
        ("exit_code", pyarrow.int32()),
        ("dimension", pyarrow.string()),
        ("name", pyarrow.string()),
        ("hits", pyarrow.int64()),
        ("unknown", pyarrow.int64()),
        *((f"within_{seconds}_seconds", pyarrow.int64()) for seconds in WITHIN_SECONDS),
    ]
)
"""Hits of a group, and how many of them were at most so far out of date: `spark.audit.report.summary.Nines`."""
VIOLATIONS: Final = pyarrow.schema([("as_of_us", pyarrow.int64()), *VIOLATION])
"""``as_of_us``: which audit found it."""


def append_audit(summary: Summary, violations: pyarrow.Table, tables: TrendTables) -> None:
    """Add an audit to the tables. Its rows are in the day of its end (UTC). An audit with the same end replaces
    the previous one."""
    day = datetime.fromtimestamp(summary.as_of_us / 1e6, UTC).date()
    found = [{"as_of_us": summary.as_of_us, **row} for row in violations.to_pylist()]
    for name, rows, schema in (("violations", found, VIOLATIONS), ("nines", _list_nines(summary), NINES)):
        table = pyarrow.Table.from_pylist(rows, schema)
        tables.replace(name, table, day, summary.as_of_us)


def _list_nines(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "as_of_us": summary.as_of_us,
            "exit_code": summary.exit_code,
            "dimension": each.dimension,
            "name": each.name,
            "hits": each.hits,
            "unknown": each.unknown,
            **{f"within_{seconds}_seconds": share.count for seconds, share in each.within.items()},
        }
        for each in summary.nines
    ]
