"""Rows that foreign keys change without logging them (F23): which tables are reached by what is logged.

MariaDB logs no cascade. It announces each child that a statement may cascade to, and logs no rows of it; a child that
the statement also changes itself, or that refers to itself, is known by the schema alone.

MySQL logs cascades since 9.6, unless ``innodb_native_foreign_keys`` is ON, and marks each row event whose cascades
are logged. So the log itself shows it, whatever server wrote it. MySQL announces nothing, and only the schema shows
the children: a deleted row and a changed column of a key reach them. The schema is the current one and the log is
older, so a statement that defines a table raises all tables that this table cascades to: at the latest, the last
statement that cuts a chain of foreign keys raises the child at its end.

In doubt a table is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final

from freshness.database.foreignkey import Cascades, Cause
from freshness.stream.source import UNREADABLE, RowChange
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable
from invalidator.binlog.rows.plan import RowPlan
from invalidator.binlog.wire.event import LogEvent
from invalidator.binlog.wire.rowevent import CASCADES_LOGGED
from invalidator.binlog.wire.tablemap import NAMES_START, read_columns, read_name
from invalidator.statement import tables_changed_by

PLANS_MAX: Final = 64
"""Parents whose plan of reading rows is kept."""


class ForeignKeys:
    """One for each stream. ``find_cascades`` reads the foreign keys as they are now."""

    def __init__(self, flavor: str, find_cascades: Callable[[], Cascades]) -> None:
        self._flavor = flavor
        self._find_cascades = find_cascades
        self._plans: dict[bytes, RowPlan] = {}
        self.cascades: Cascades = {}
        self._columns: dict[tuple[str, str], set[Cause]] = {}

    def restart(self) -> None:
        """A new connection. Raises what ``find_cascades`` raises."""
        self._take(self._find_cascades())

    def read_new(self) -> None:
        """A foreign key may be new. One that is gone by now may still be in what is to be read: keep all."""
        merged = dict(self.cascades)
        for child, causes in self._find_cascades().items():
            merged[child] = merged.get(child, frozenset()) | causes
        self._take(merged)

    def _take(self, cascades: Cascades) -> None:
        self.cascades = cascades
        self._columns = {}
        for causes in cascades.values():
            for cause in causes:
                self._columns.setdefault((cause.database, cause.table), set()).add(cause)

    def is_parent(self, database: str, table: str) -> bool:
        return (database, table) in self._columns

    def find_causes(self, rows: ChangedRows, event: LogEvent | None) -> Set[Cause]:
        """The changes of a row event whose cascades are not logged. Without ``event`` any column may have."""
        table = rows.table
        if table is None or rows.op == "insert":
            return frozenset()
        known = self._columns.get((table.database, table.name), set())
        if self._flavor == "mariadb":
            return known | {Cause(table.database, table.name)}
        if not known or (event is not None and event.packet[event.start + 6] & CASCADES_LOGGED):
            return frozenset()
        if rows.op == "delete":
            return {cause for cause in known if cause.column is None}
        columns = {cause for cause in known if cause.column is not None}
        if not columns or event is None:
            return columns
        try:
            changes = rows.changes or self._read_rows(table, event)
        except Exception:  # noqa: BLE001 - rows that cannot be read may have changed any column
            return columns
        return {cause for cause in columns if any(_has_changed(each, cause.column) for each in changes)}

    def _read_rows(self, table: MappedTable, event: LogEvent) -> Iterable[RowChange]:
        """The rows of a table whose rows are not wanted, or wanted as keys."""
        names = table.body[NAMES_START:]
        plan = self._plans.get(names)
        if plan is None:
            _, place = read_name(table.body, NAMES_START)
            _, place = read_name(table.body, place)
            plan = RowPlan(table.name, read_columns(table.body, place, self._flavor), self._flavor)
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[names] = plan
        return plan.read(event, "update")

    def find_reached(self, causes: Set[Cause], announced: Set[str], with_rows: Set[str]) -> Set[str]:
        """The tables that a statement with these causes may have changed. ``announced``: with a table map;
        ``with_rows``: with rows, too."""
        reached = {child for child, known in self.cascades.items() if known & causes}
        if self._flavor == "mariadb" and causes:
            return (announced - with_rows) | (reached & announced)
        return reached

    def find_reached_from(self, tables: Mapping[str, Set[str]]) -> Set[str]:
        """The tables that any change of these reaches, by database."""
        return {
            child
            for child, causes in self.cascades.items()
            if any(cause.table in tables.get(cause.database, ()) for cause in causes)
        }

    def find_reached_by(self, sql: str, default_database: str) -> Set[str]:
        """Take note of a statement that may define foreign keys; the tables that one which it removed may have
        reached before."""
        if "references" in sql.casefold():
            self.read_new()
        if self._flavor == "mariadb":
            return frozenset()
        parents: dict[str, set[str]] = {}
        for database, table in self._columns:
            parents.setdefault(database, set()).add(table)
        return self.find_reached_from(
            {
                database: tables_changed_by(sql, database, default_database, tables)
                for database, tables in parents.items()
            }
        )


def _has_changed(change: RowChange, column: str | None) -> bool:
    before, after = change.before or {}, change.after or {}
    if column is None or column not in before or column not in after:
        return True
    values = before[column], after[column]
    return UNREADABLE in values or values[0] != values[1]
