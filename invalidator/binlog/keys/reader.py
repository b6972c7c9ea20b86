"""Row events to the cache items that they concern, without decoding the rest of their rows.

Stands where `invalidator.binlog.rows.decoder.RowDecoder` stands and has its surface, for a consumer that wants keys
alone: a row event gives `ChangedRows` with the items of both images, for every object that has the table. Rows of the
heartbeat table still go through the other decoder. A row that gives no key is never skipped: the event's ``problem``
says so, no item of the event is used, and the table is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from freshness.errors import FormatError, StreamStopped
from freshness.objects.registry import ObjectDefinition
from invalidator.binlog.keys.plan import TablePlan, find_targets
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable, RowDecoder
from invalidator.binlog.wire.compression import PLAIN_KINDS, unpack_rows
from invalidator.binlog.wire.event import FormatDescription, LogEvent
from invalidator.binlog.wire.rowevent import check_table_map_head, not_announced, read_bitmaps, read_head
from invalidator.binlog.wire.tablemap import NAMES_START, read_columns, read_name

TABLES_MAPPED_MAX: Final = 4096
"""Table maps kept of one log file; each statement announces its tables again, so the oldest is not needed."""

PLANS_MAX: Final = 1024
"""Different table maps whose plan is kept over log files."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyedTable(MappedTable):
    """A table whose keys ``plan`` reads. ``plan`` is None if its rows concern no object, or with a ``problem``."""

    plan: TablePlan | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    database: str
    name: str
    plan: TablePlan | None = None
    problem: str = ""


class KeyReader:
    """Holds the table maps of the log file that is being read, and the plans of all tables."""

    def __init__(
        self,
        flavor: str,
        database: str,
        tables: Set[str],
        heartbeat_table: str,
        definitions: Mapping[str, ObjectDefinition],
    ) -> None:
        """``tables``: names of the tables whose changes are reported, without the heartbeat table; ``definitions``:
        objects whose keys are read. A change in a table of no object is reported without items."""
        self.flavor = flavor
        self._database = database
        self._tables = tables
        self._heartbeat_table = heartbeat_table
        self._targets = find_targets(definitions)
        self._heartbeats = RowDecoder(flavor, database, (), heartbeat_table)
        self._mapped: dict[bytes, MappedTable] = {}
        self._known: dict[bytes, _Known] = {}

    def start_file(self, description: FormatDescription) -> None:
        check_table_map_head(description)
        self._mapped.clear()
        self._heartbeats.start_file(description)

    def map_table(self, event: LogEvent) -> MappedTable:
        body = event.packet[event.start : event.end]
        table_id = body[:6]
        known = self._mapped.get(table_id)
        if known is not None and known.body == body:
            return known
        table = self._read_table(event, body)
        if len(self._mapped) >= TABLES_MAPPED_MAX:
            del self._mapped[next(iter(self._mapped))]
        # Behind all others, as the newest.
        self._mapped.pop(table_id, None)
        self._mapped[table_id] = table
        return table

    def find_table(self, body: bytes) -> KeyedTable | None:
        """The table of a table map's body, if this very body is known and is not the heartbeat table's."""
        known = self._mapped.get(body[:6])
        return known if isinstance(known, KeyedTable) and known.body == body else None

    def read_rows(self, event: LogEvent) -> ChangedRows:
        """See `RowDecoder.read_rows`. Raises `StreamStopped` too for a compressed event that cannot be unpacked."""
        op, table_id, ends_statement = read_head(event)
        if table_id is None:
            return ChangedRows(None, op, ends_statement)
        table = self._mapped.get(table_id)
        if table is None:
            raise not_announced(event, table_id)
        if not isinstance(table, KeyedTable):
            return self._heartbeats.read_rows(event)
        plan = table.plan
        if plan is None:
            return ChangedRows(table, op, ends_statement, problem=table.problem, items=[])
        try:
            items = read_items(plan, event)
        except StreamStopped:
            raise
        except Exception as error:  # noqa: BLE001 - whatever does not add up, the table is raised
            problem = f"rows of {table.name} at {event.log_pos} give no keys: {_describe(error)}"
            return ChangedRows(table, op, ends_statement, problem=problem, items=[])
        return ChangedRows(table, op, ends_statement, items=items)

    def _read_table(self, event: LogEvent, body: bytes) -> MappedTable:
        rest = body[NAMES_START:]
        known = self._known.get(rest)
        if known is None:
            if len(self._known) >= PLANS_MAX:
                self._known.clear()
            known = self._known[rest] = self._read_known(body)
        database, name = known.database, known.name
        if database != self._database or name not in self._tables | {self._heartbeat_table}:
            return KeyedTable(database, name, False, body)
        if name == self._heartbeat_table:
            return self._heartbeats.map_table(event)
        return KeyedTable(database, name, True, body, problem=known.problem, plan=known.plan)

    def _read_known(self, body: bytes) -> _Known:
        database, place = read_name(body, NAMES_START)
        name, place = read_name(body, place)
        targets = self._targets.get(name)
        if database != self._database or not targets or name not in self._tables:
            return _Known(database, name)
        try:
            return _Known(database, name, TablePlan(read_columns(body, place, self.flavor), targets, self.flavor))
        except FormatError as error:
            return _Known(database, name, problem=f"no key can be read from {name}: {error}")


def read_items(plan: TablePlan, event: LogEvent) -> list[bytes]:
    """The items of a row event. Raises any exception if its bytes do not add up."""
    if event.kind in PLAIN_KINDS:
        event = unpack_rows(event)
    packet, kind, start = event.packet, event.kind, event.start + 8
    length = plan.head_bytes.get(kind, 0)
    # The usual head was seen before, byte by byte.
    code = plan.heads.get((kind, packet[start : start + length]))
    if code is not None:
        return code.read(packet, start + length, event.end)
    bitmaps, place = read_bitmaps(event, len(plan.columns), plan.json_bytes)
    code = plan.find_code(bitmaps)
    if kind not in plan.head_bytes or place == start + length:
        plan.remember_head(kind, packet[start:place], code)
    return code.read(packet, place, event.end)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, FormatError) else repr(error)
