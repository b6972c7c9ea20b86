"""Tables of all audits, for trends: violations and nines, as Parquet files in a folder for each day.

``FOLDER/violations/day=2026-01-31/`` and ``FOLDER/nines/day=2026-01-31/`` are what pandas, Polars, DuckDB and Spark
call a partitioned data set, so that a query over days reads those days alone. Called by the audit's main.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pyarrow
from pyarrow import fs, parquet

from spark.audit.hashing import hash_name
from spark.audit.schema import VIOLATION
from spark.audit.summary import WITHIN_SECONDS, Summary
from spark.folder import Folder

NINES: Final = pyarrow.schema(
    [
        ("as_of_us", pyarrow.int64()),
        ("part", pyarrow.string()),
        ("exit_code", pyarrow.int32()),
        ("dimension", pyarrow.string()),
        ("name", pyarrow.string()),
        ("hits", pyarrow.int64()),
        ("unknown", pyarrow.int64()),
        *((f"within_{seconds}_seconds", pyarrow.int64()) for seconds in WITHIN_SECONDS),
    ]
)
"""Hits of a group, and how many of them were at most so far out of date: `spark.audit.summary.Nines`."""
VIOLATIONS: Final = pyarrow.schema([("as_of_us", pyarrow.int64()), ("part", pyarrow.string()), *VIOLATION])
"""``as_of_us``, ``part``: which audit found it."""


def append_audit(summary: Summary, violations: pyarrow.Table, folder: Folder) -> None:
    """Add an audit to the tables. Its rows are in the day of its end (UTC). The same audit again, of the same end and
    part, takes the place of itself."""
    day = datetime.fromtimestamp(summary.as_of_us / 1e6, UTC).strftime("%Y-%m-%d")
    file = f"day={day}/{summary.as_of_us}-{hash_name(summary.part) & 0xFFFFFFFFFFFFFFFF:016x}.parquet"
    audit = {"as_of_us": summary.as_of_us, "part": summary.part}
    found = [{**audit, **row} for row in violations.to_pylist()]
    tables = {
        "violations": pyarrow.Table.from_pylist(found, VIOLATIONS),
        "nines": pyarrow.Table.from_pylist([{**audit, **row} for row in _list_nines(summary)], NINES),
    }
    for name, table in tables.items():
        _replace(folder.filesystem, f"{folder.path}/{name}/{file}", table)


def _list_nines(summary: Summary) -> list[dict[str, Any]]:
    return [
        {
            "exit_code": summary.exit_code,
            "dimension": each.dimension,
            "name": each.name,
            "hits": each.hits,
            "unknown": each.unknown,
            **{f"within_{seconds}_seconds": share.count for seconds, share in each.within.items()},
        }
        for each in summary.nines
    ]


def _replace(filesystem: fs.FileSystem, path: str, table: pyarrow.Table) -> None:
    """Write under a name that readers pass over, and give it its own then."""
    place, _, name = path.rpartition("/")
    filesystem.create_dir(place)
    parquet.write_table(table, f"{place}/.{name}", filesystem=filesystem)
    filesystem.move(f"{place}/.{name}", path)
