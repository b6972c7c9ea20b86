"""A copy in a folder: each dump and each merge of a table is a folder of files of its own, a generation.

``state.json`` names the one that readers get, so a copy is replaced as a whole, and never half.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from freshness.errors import ConfigError
from freshness.history.durable import make_folder, sync, sync_tree
from freshness.history.folder_lock import lock_folder
from spark.copy.merge import merge_changes
from spark.copy.state import GENERATIONS_KEPT, PARQUET, CopyState, TableState, read_state, write_state
from spark.copy.table import CopyTable
from spark.failure import SPARK_ERRORS

PROBE: Final = "key binary, number bigint, amount decimal(38,0), text string, day date, at timestamp, share double"
"""A column of each type that a copy can have."""
_PROBE_ROW: Final = (b"\0", 1, Decimal(10**37), "ü", date(2026, 1, 31), datetime(2026, 1, 31, 10, tzinfo=UTC), 0.1)


@dataclass(frozen=True, slots=True)
class FolderTarget:
    """``out``: the folder; ``file_format``: format in which Spark writes there."""

    session: SparkSession
    out: Path
    file_format: str = PARQUET

    def __str__(self) -> str:
        return str(self.out)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """`CopyTarget.opened`: a lock on a file in the folder."""
        make_folder(self.out)
        with lock_folder(self.out, ".copying.lock", "written"):
            yield

    def open_state(self, tables: Sequence[str]) -> CopyState | None:
        require_format(self.session, self.out, self.file_format)
        return read_state(self.out)

    def dump(self, name: str, table: TableState, layout: CopyTable, rows: DataFrame) -> None:
        """`CopyTarget.dump`: a new generation."""
        self._write(name, table, rows)

    def merge(self, name: str, table: TableState, layout: CopyTable, changes: DataFrame) -> None:
        """`CopyTarget.merge`: a new generation, the last one with the newest change of each key."""
        previous = self.session.read.schema(layout.schema()).format(self.file_format)
        merged = merge_changes(previous.load(str(self.out / table.folder)), changes, layout)
        self._write(name, table, merged)

    def _write(self, name: str, table: TableState, rows: DataFrame) -> None:
        table.generation += 1
        table.folder = f"{name}/{table.generation:09d}"
        rows.write.format(self.file_format).mode("overwrite").save(str(self.out / table.folder))
        sync_tree(self.out / table.folder)
        for folder in (self.out / name, self.out):
            sync(folder)

    def commit(self, state: CopyState, exact: Collection[str]) -> None:
        """`CopyTarget.commit`: replace ``state.json``, then remove the generations that nobody reads."""
        for name in exact:
            state.tables[name].published = state.tables[name].folder
        write_state(self.out, state)
        for name, table in state.tables.items():
            folders = sorted(path for path in (self.out / name).glob("0*") if path.is_dir())
            for path in folders[:-GENERATIONS_KEPT]:
                if f"{name}/{path.name}" not in (table.folder, table.published):
                    shutil.rmtree(path)


def require_format(session: SparkSession, out: Path, file_format: str) -> None:
    """Write a row into a folder, read it back, and compare. Raises `ConfigError` if that fails. A format without its
    package, or with one that is made for another Spark, one that writes elsewhere than to a folder (jdbc, kafka), and
    one that keeps no types (csv, json) are found out before the first row is read."""
    if file_format == PARQUET:
        return
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=out) as folder:
        try:
            probe = session.createDataFrame([_PROBE_ROW], PROBE)
            probe.write.format(file_format).mode("overwrite").save(folder)
            found = session.read.format(file_format).load(folder)
            # Delta has the columns in its log: rows show whether its package can read
            are_rows_back = found.dtypes == probe.dtypes and found.collect() == probe.collect()
        except SPARK_ERRORS as error:
            # A class that is missing comes as Java's own error
            text = error if isinstance(error, PySparkException) else error.java_exception.getMessage()
            told = next(iter(str(text).splitlines()), "")[:300]
            raise ConfigError(
                f"a copy cannot be kept as {file_format!r}: {told}",
                hint="is Spark's package for it there, is it made for this Spark, and does it write to folders? "
                "--format parquet needs nothing",
            ) from error
    if not are_rows_back:
        raise ConfigError(
            f"a copy cannot be kept as {file_format!r}: rows do not come back, or with other types",
            hint="take --format parquet or orc, or what else keeps types",
        )
