"""The role of a copy's target, which keeps the tables and the state of a copy.

`spark.copy.job` says what to write and when it counts; a target knows how. `spark.copy.folder` and
`spark.copy.database` are the targets.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pyspark.sql import DataFrame

from spark.copy.state import CopyState, TableState
from spark.copy.table import CopyTable


class CopyTarget(Protocol):
    """Rows that `dump` and `merge` write count from the next `commit` on; before that they count for nothing,
    whatever happens to the process. ``str`` names the place for messages."""

    def opened(self) -> AbstractContextManager[None]:
        """For one run at a time. Raises `ConfigError` if another run is at work."""

    def open_state(self, tables: Sequence[str]) -> CopyState | None:
        """The state that counts; None for a copy that begins. Raises `FormatError`, and `ConfigError` if the target
        cannot hold a copy of these tables."""

    def dump(self, name: str, table: TableState, layout: CopyTable, rows: DataFrame) -> None:
        """All rows of a table, with the columns of `CopyTable.schema`, beside what readers get. Sets ``folder`` and
        ``generation``."""

    def merge(self, name: str, table: TableState, layout: CopyTable, changes: DataFrame) -> None:
        """Changes that are all whole, with the columns of `CopyTable.change_schema`, into ``folder``."""

    def commit(self, state: CopyState, exact: Collection[str]) -> None:
        """The state, with all that was written, counts from now on. Readers get the tables of ``exact`` as they are
        now; this sets ``published``."""
