"""Row events to rows: the columns of both images as Python values.

A row that cannot be decoded is never skipped: the event's ``problem`` says why, no row of the event is used, and the
table is raised. A value that cannot be decoded exactly, in a row that can, is `UNREADABLE`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from freshness.errors import FormatError
from freshness.stream.source import Operation, RowChange
from invalidator.binlog.rows.layout import FindPeriod, Period
from invalidator.binlog.rows.plan import RowPlan
from invalidator.binlog.wire.event import FormatDescription, LogEvent
from invalidator.binlog.wire.rowevent import check_table_map_head, not_announced, read_head
from invalidator.binlog.wire.tablemap import (
    NAMES_START,
    TIMESTAMP2,
    MappedColumn,
    read_columns,
    read_name,
    read_primary_key,
)

PLANS_MAX: Final = 1024
"""Different table maps whose plan is kept over log files."""


PERIOD_DIGITS: Final = 6
"""Digits behind the second of a period's columns."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedTable:
    """The table that a TABLE_MAP event announces. ``wanted``: its rows are asked for. ``problem``: why they
    cannot be read."""

    database: str
    name: str
    wanted: bool
    body: bytes
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class RowTable(MappedTable):
    """A table whose rows ``plan`` reads. ``plan`` is None if they are not wanted, or with a ``problem``."""

    plan: RowPlan | None = None


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """One row event. ``table`` is None if it only ends a statement. With a ``problem`` the rows are not known.
    ``is_past``: flag, True if it has rows, and all are of the past of a system-versioned table. ``items``: cache
    items that its rows concern, if items were asked for instead of ``changes``, else None."""

    table: MappedTable | None
    op: Operation
    ends_statement: bool
    changes: tuple[RowChange, ...] = ()
    problem: str = ""
    items: list[bytes] | None = None
    is_past: bool = False


class RowDecoder:
    """Holds the table maps of the log file that is being read, and the plans of all tables."""

    def __init__(
        self,
        flavor: str,
        database: str,
        tables: Container[str],
        heartbeat_table: str = "",
        find_period: FindPeriod = lambda *_: None,
    ) -> None:
        """``tables``: names of the tables whose rows are wanted, besides the heartbeat table."""
        self._find_period = find_period
        self._flavor = flavor
        self._database = database
        self._tables = tables
        self._heartbeat_table = heartbeat_table
        self._mapped: dict[bytes, RowTable] = {}
        self._plans: dict[bytes, RowPlan] = {}

    def start_file(self, description: FormatDescription) -> None:
        """Forget the table maps: a server that was restarted uses their numbers for other tables. Raises
        `StreamStopped` for the log of a very old server."""
        check_table_map_head(description)
        self._mapped.clear()

    def map_table(self, event: LogEvent) -> MappedTable:
        """Take note of a TABLE_MAP event. Raises `StreamStopped` for one that ends inside of its names."""
        body = event.body
        table_id = body[:6]
        known = self._mapped.get(table_id)
        if known is not None and known.body == body:
            return known
        self._mapped[table_id] = table = self._read_table(body)
        return table

    def read_rows(self, event: LogEvent) -> ChangedRows:
        """Decode a row event. Raises `StreamStopped` for one without a table map before it (F61), or shorter than its
        head."""
        op, table_id, ends_statement = read_head(event)
        if table_id is None:
            return ChangedRows(None, op, ends_statement)
        table = self._mapped.get(table_id)
        if table is None:
            raise not_announced(event, table_id)
        if table.plan is None:
            return ChangedRows(table, op, ends_statement, problem=table.problem)
        try:
            changes = tuple(table.plan.read(event, op))
        except Exception as error:  # noqa: BLE001 - whatever does not add up, the table is raised
            problem = f"rows of {table.name} at {event.log_pos} cannot be decoded: {error!r}"
            return ChangedRows(table, op, ends_statement, problem=problem)
        is_past = table.plan.is_versioned and not changes
        return ChangedRows(table, op, ends_statement, changes, is_past=is_past)

    def _period_of(self, table: str, columns: Sequence[MappedColumn], key: tuple[str, ...]) -> Period | None:
        """None if no column can be the end of one."""
        moments = [each.name for each in columns if each.kind == TIMESTAMP2 and each.width == PERIOD_DIGITS]
        return self._find_period(table, moments, key) if moments and self._flavor == "mariadb" else None

    def _read_table(self, body: bytes) -> RowTable:
        database, place = read_name(body, NAMES_START)
        name, place = read_name(body, place)
        if database != self._database or (name != self._heartbeat_table and name not in self._tables):
            return RowTable(database, name, False, body)
        plan = self._plans.get(body[NAMES_START:])
        if plan is None:
            try:
                columns = read_columns(body, place, self._flavor)
                key = read_primary_key(body, place, columns)
                plan = RowPlan(name, columns, self._flavor, key, self._period_of(name, columns, key))
            except FormatError as error:
                return RowTable(database, name, True, body, f"the columns of {name} cannot be read: {error}")
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[body[NAMES_START:]] = plan
        return RowTable(database, name, True, body, plan=plan)
