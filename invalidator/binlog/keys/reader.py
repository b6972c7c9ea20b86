"""Row events to the cache items that they concern, without decoding the rest of their rows.

Stands where `invalidator.binlog.rows.decoder.RowDecoder` stands and has its surface, for a consumer that wants keys
alone: a row event gives `ChangedRows` with the items of both images, for every object that has the table. Rows of the
heartbeat table still go through the other decoder. A row that gives no key is never skipped: the event's ``problem``
says so, no item of the event is used, and the table is raised. Called by ``invalidator.binlog.decoder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from freshness.errors import FormatError, StreamStopped
from freshness.objects.registry import ObjectDefinition
from freshness.stream.source import Operation
from invalidator.binlog.keys.plan import Shape, TablePlan, find_targets
from invalidator.binlog.rows.decoder import ChangedRows, MappedTable, RowDecoder
from invalidator.binlog.wire.compression import PLAIN_KINDS, unpack_rows
from invalidator.binlog.wire.event import ROW_EVENTS, TABLE_MAP, Event, FormatDescription
from invalidator.binlog.wire.tablemap import read_columns, read_packed

TABLES_MAPPED_MAX: Final = 4096
"""Table maps kept of one log file; a statement announces each of its tables anew, so the oldest is not needed."""

LAYOUTS_MAX: Final = 1024
"""Different table maps whose plan is kept over log files."""

OPERATIONS: Final[Mapping[int, Operation]] = {
    **ROW_EVENTS,  # type: ignore[dict-item]
    **{kind: ROW_EVENTS[plain] for kind, plain in PLAIN_KINDS.items()},  # type: ignore[misc]
}
"""Every row event, with the compressed ones."""

STATEMENT_END: Final = 1
"""The flag of the last row event of a statement."""

_NO_TABLE: Final = b"\xff\xff\xff\0\0\0"
_PARTIAL_UPDATE: Final = 39
_FIRST_VERSION: Final = frozenset((23, 24, 25))
_NAMES_START: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class KeyedTable(MappedTable):
    """A table whose keys are read by ``plan``; None where its rows concern no object, or with a ``problem``."""

    plan: TablePlan | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
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
        tables: frozenset[str],
        heartbeat_table: str,
        definitions: Mapping[str, ObjectDefinition],
    ) -> None:
        """``tables``: those whose changes are told at all, the heartbeat table left out; ``definitions``: the objects
        whose keys are looked for. A table of no object is told without items."""
        self.flavor = flavor
        self._database = database
        self._tables = tables
        self._heartbeat_table = heartbeat_table
        self._targets = find_targets(definitions)
        self._heartbeats = RowDecoder(flavor, database, frozenset((heartbeat_table,)))
        self._names_start = _NAMES_START
        self._mapped: dict[bytes, MappedTable] = {}
        self._layouts: dict[bytes, _Layout] = {}

    def start_file(self, description: FormatDescription) -> None:
        """See `RowDecoder.start_file`."""
        lengths = description.post_header_lengths
        self._names_start = lengths[TABLE_MAP - 1] if len(lengths) >= TABLE_MAP else _NAMES_START
        if self._names_start != _NAMES_START:
            raise StreamStopped(
                f"table maps with a head of {self._names_start} bytes",
                hint="this log is of a very old server",
            )
        self._mapped.clear()
        self._heartbeats.start_file(description)

    def map_table(self, event: Event) -> MappedTable:
        """See `RowDecoder.map_table`."""
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
        """The table of the body of a table map, where the very same is known and is not the heartbeat table."""
        known = self._mapped.get(body[:6])
        return known if isinstance(known, KeyedTable) and known.body == body else None

    def read_rows(self, event: Event) -> ChangedRows:
        """See `RowDecoder.read_rows`. Raises `StreamStopped` too for a compressed event that cannot be unpacked."""
        kind, packet, start, end = event.kind, event.packet, event.start, event.end
        if end < start + 8:
            raise StreamStopped(f"row event {kind} at {event.log_pos} is shorter than its head")
        op = OPERATIONS[kind]
        table_id = packet[start : start + 6]
        ends_statement = bool(packet[start + 6] & STATEMENT_END)
        if table_id == _NO_TABLE:
            return ChangedRows(None, op, ends_statement)
        table = self._mapped.get(table_id)
        if table is None:
            number = int.from_bytes(table_id, "little")
            raise StreamStopped(
                f"row event at {event.log_pos} for table number {number}, which was not announced",
                hint="the stream was joined inside a transaction: resume from a GTID position (F61)",
            )
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

    def _read_table(self, event: Event, body: bytes) -> MappedTable:
        rest = body[_NAMES_START:]
        layout = self._layouts.get(rest)
        if layout is None:
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            layout = self._layouts[rest] = self._read_layout(body)
        database, name = layout.database, layout.name
        if database != self._database or name not in self._tables | {self._heartbeat_table}:
            return KeyedTable(database, name, False, body)
        if name == self._heartbeat_table:
            return self._heartbeats.map_table(event)
        return KeyedTable(database, name, True, body, problem=layout.problem, plan=layout.plan)

    def _read_layout(self, body: bytes) -> _Layout:
        database, place = _read_name(body, _NAMES_START)
        name, place = _read_name(body, place)
        targets = self._targets.get(name)
        if database != self._database or not targets or name not in self._tables:
            return _Layout(database, name)
        try:
            return _Layout(
                database, name, TablePlan(read_columns(body, place, self.flavor), targets, self.flavor)
            )
        except FormatError as error:
            return _Layout(database, name, problem=f"no key can be read from {name}: {error}")


def read_items(plan: TablePlan, event: Event) -> list[bytes]:
    """The items of a row event. Raises anything where its bytes do not add up."""
    if event.kind in PLAIN_KINDS:
        event = unpack_rows(event)
    packet, kind, start = event.packet, event.kind, event.start + 8
    length = plan.head_bytes.get(kind, 0)
    # The usual head was seen before, byte by byte.
    code = plan.heads.get((kind, packet[start : start + length]))
    if code is not None:
        return code.read(packet, start + length, event.end)
    shape, place = _read_head(plan, event)
    code = plan.find_code(shape)
    if kind not in plan.head_bytes or place == start + length:
        plan.remember_head(kind, packet[start:place], code)
    return code.read(packet, place, event.end)


def _read_head(plan: TablePlan, event: Event) -> tuple[Shape, int]:
    """How the rows are laid out, and where they begin."""
    packet, kind = event.packet, event.kind
    place = event.start + 8
    if kind not in _FIRST_VERSION:
        extra = packet[place] | packet[place + 1] << 8
        if extra < 2:
            raise FormatError(f"{extra} bytes of extra information")
        place += extra
    count, place = read_packed(packet, place)
    if count != len(plan.columns):
        raise FormatError(f"{count} columns where the table map has {len(plan.columns)}")
    size = (count + 7) >> 3
    before = packet[place : place + size]
    place += size
    after = None
    if OPERATIONS[kind] == "update":
        after = packet[place : place + size]
        place += size
    if place > event.end:
        raise FormatError("a row event shorter than its head")
    return Shape(before, after, plan.json_bits if kind == _PARTIAL_UPDATE else -1), place


def _read_name(body: bytes, place: int) -> tuple[str, int]:
    """A name with its length before it and a zero after it, and the place behind them."""
    end = place + 1 + body[place] if place < len(body) else len(body)
    if end >= len(body):
        raise StreamStopped("a TABLE_MAP event is shorter than its names")
    return body[place + 1 : end].decode("utf-8", "backslashreplace"), end + 1


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, FormatError) else repr(error)
